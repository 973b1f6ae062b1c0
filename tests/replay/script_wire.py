"""Frames of a scripted peer: built from a recording's description, and described as a recording does.

Flags are letters as tcpdump's, with `A` for the AE bit and `-` for none. Options keep their order on the
wire. Sequence numbers here are those of the wire; the replayer makes them relative.
"""

from __future__ import annotations

from struct import pack, unpack_from
from typing import Any

from pytcp.wire.checksum import checksum, pseudo4, pseudo6

OUR_MAC = bytes.fromhex("020000000011")
PEER_MAC = bytes.fromhex("020000000012")
FLAG_BITS = {"F": 1, "S": 2, "R": 4, "P": 8, ".": 0x10, "U": 0x20, "E": 0x40, "W": 0x80, "A": 0x100, "-": 0}


def options_of(opts: dict[str, Any], ts: tuple[int, int] | None, sack: list[tuple[int, int]]) -> bytes:
    """The option bytes: of a SYN in the recorded order; else timestamps and SACK blocks, each behind two NOPs."""
    order = opts.get("order")
    if order is None:
        order = (["nop", "nop", "ts"] if ts else []) + (["nop", "nop", "sack"] if sack else [])
    out = b""
    for name in order:
        if name == "nop":
            out += b"\x01"
        elif name == "mss":
            out += pack("!BBH", 2, 4, opts["mss"])
        elif name == "ws":
            out += bytes((3, 3, opts["ws"]))
        elif name == "sackok":
            out += b"\x04\x02"
        elif name == "ts":
            out += pack("!BBII", 8, 10, *(ts or (0, 0)))
        elif name == "sack":
            out += bytes((5, 2 + 8 * len(sack))) + b"".join(pack("!II", *block) for block in sack)
        else:
            body = bytes.fromhex(opts[name])
            out += bytes((34 if name == "fastopen" else int(name.removeprefix("opt")), 2 + len(body))) + body
    return out + b"\x01" * (-len(out) % 4)


def tcp(src: bytes, dst: bytes, ports: tuple[int, int], seq: int, ack: int, flags: str, win: int, urp: int, options: bytes, payload: bytes) -> bytes:
    """A TCP segment with its checksum."""
    bits = sum(FLAG_BITS[c] for c in flags)
    doff = 5 + len(options) // 4
    head = pack("!HHIIHHHH", *ports, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, doff << 12 | bits, win, 0, urp)
    data = head + options + payload
    pseudo = pseudo4(src, dst, 6, len(data)) if len(src) == 4 else pseudo6(src, dst, 6, len(data))
    return data[:16] + checksum(data, pseudo).to_bytes(2, "big") + data[18:]


def ethernet(src: bytes, dst: bytes, proto: int, body: bytes, *, tos: int = 0, flow: int = 0, ident: int = 0) -> bytes:
    """An IP packet in an Ethernet frame to us. A super-frame's IPv4 length wraps like virtio's."""
    if len(src) == 4:
        head = pack("!BBHHHBBH4s4s", 0x45, tos, 20 + len(body) & 0xFFFF, ident, 0x4000, 64, proto, 0, src, dst)
        head = head[:10] + checksum(head).to_bytes(2, "big") + head[12:]
        kind = b"\x08\x00"
    else:
        head = pack("!IHBB16s16s", 0x60000000 | tos << 20 | flow, len(body), proto, 64, src, dst)
        kind = b"\x86\xdd"
    return OUR_MAC + PEER_MAC + kind + head + body


def icmp_error(reporter: bytes, ours: bytes, kind: int, code: int, mtu: int, quote: bytes) -> bytes:
    """An ICMP or ICMPv6 error to us that quotes a packet."""
    if len(ours) == 4:
        # the pointer of a parameter problem and an unused word are 0; only "fragmentation needed" has an MTU
        body = pack("!BBHHH", kind, code, 0, 0, mtu) + quote
        return ethernet(reporter, ours, 1, body[:2] + checksum(body).to_bytes(2, "big") + body[4:])
    body = pack("!BBHI", kind, code, 0, mtu) + quote
    return ethernet(reporter, ours, 58, body[:2] + checksum(body, pseudo6(reporter, ours, 58, len(body))).to_bytes(2, "big") + body[4:])


def describe(frame: bytes) -> dict[str, Any] | None:
    """The fields of a TCP frame of ours; None for any other frame."""
    if frame[12:14] == b"\x08\x00":
        vihl, tos, total, ident, frag, ttl, proto = unpack_from("!BBHHHBB", frame, 14)
        out: dict[str, Any] = {"src": frame[26:30], "dst": frame[30:34], "tos": tos, "ttl": ttl, "df": frag >> 14 & 1, "id": ident}
        at = 14 + (vihl & 15) * 4
        end = 14 + total
        off = (frag & 0x1FFF) * 8
        if off:
            return None
    elif frame[12:14] == b"\x86\xdd":
        word, plen, proto, hlim = unpack_from("!IHBB", frame, 14)
        tos = word >> 20 & 0xFF
        out = {"src": frame[22:38], "dst": frame[38:54], "tclass": tos, "flow": word & 0xFFFFF, "hlim": hlim}
        at = 54
        end = at + plen
    else:
        return None
    if proto != 6:
        return None
    sport, dport, seq, ack, bits, win = unpack_from("!HHIIHH", frame, at)
    header = (bits >> 12) * 4
    flags = "".join(name for name in "SFRPUEWA" if bits & FLAG_BITS[name]) + ("." if bits & 0x10 else "")
    out |= {"sport": sport, "dport": dport, "seq": seq, "ack": ack if bits & 0x10 else None, "flags": flags or "-", "win": win, "ip_ecn": tos & 3}
    out["len"] = end - at - header
    out |= parse_options(frame[at + 20 : at + header], "S" in flags)
    return out


def parse_options(data: bytes, syn: bool) -> dict[str, Any]:
    """`opts` with the order on the wire (of a SYN, or with an option of its own kind), `ts` and `sack`."""
    opts: dict[str, Any] = {}
    order: list[str] = []
    out: dict[str, Any] = {}
    while data and data[0]:
        if data[0] == 1:
            order.append("nop")
            data = data[1:]
            continue
        kind, size = data[0], data[1]
        body = data[2:size]
        data = data[size:]
        name = {2: "mss", 3: "ws", 4: "sackok", 5: "sack", 8: "ts", 34: "fastopen"}.get(kind, f"opt{kind}")
        order.append(name)
        if kind == 8:
            out["ts"] = list(unpack_from("!II", body))
        elif kind == 5:
            out["sack"] = [list(unpack_from("!II", body, i)) for i in range(0, len(body), 8)]
        else:
            opts[name] = 1 if kind == 4 else body.hex() if name.startswith("opt") or kind == 34 else int.from_bytes(body, "big")
    if syn or opts:
        out["opts"] = opts | {"order": order}
    return out


def text(fields: dict[str, Any]) -> str:
    """One line, tcpdump's way."""
    line = f"{fields['flags']} {fields['seq']}:{fields['seq'] + fields['len']}({fields['len']})"
    if fields.get("ack") is not None:
        line += f" ack {fields['ack']}"
    line += f" win {fields['win']}"
    for name in ("ts", "sack"):
        if fields.get(name):
            line += f" {name} {fields[name]}"
    opts = fields.get("opts")
    if opts:
        valued = ("mss", "ws", "opt", "fastopen")
        line += " <" + ",".join(f"{name} {opts[name]}" if name.startswith(valued) else name for name in opts.get("order", ())) + ">"
    return line
