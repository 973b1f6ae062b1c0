"""Frames of the scripted peer, and what is said of the host's: relative numbers, super-segment sizes.

The peer is a few lines of its own, not the stack: what it checks must not come from what it checks.
Positions are relative to the first payload byte of either side, so that a SYN is at -1. A description
of the host's frame is an event of a recording (`workload`).
"""

from __future__ import annotations

from struct import Struct, pack, unpack_from
from typing import Any, NamedTuple

from pytcp.wire.checksum import checksum, ones_sum, pseudo4

HOST_MAC = bytes.fromhex("020000000011")
PEER_MAC = bytes.fromhex("020000000012")
HOST_IP = "10.79.0.1"
PEER_IP = "10.79.0.2"
HOST4 = bytes((10, 79, 0, 1))
PEER4 = bytes((10, 79, 0, 2))
PEER_PORT = 80
LISTEN_PORT = 7000  # of the host, where the peer opens
PEER_ISN = 0xFFFFF000  # numbers wrap early in every run
FLAG_BITS = {"F": 1, "S": 2, "R": 4, "P": 8, ".": 0x10, "U": 0x20, "E": 0x40, "W": 0x80}
VNET = Struct("=BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
NEEDS_CSUM = 1
GSO_TCPV4 = 1
M32 = 0xFFFFFFFF


class HostFrame(NamedTuple):
    """A TCP frame of the host, numbers as on the wire."""

    t_us: int
    port: int  # the host's
    seq: int
    ack: int
    flags: str
    window: int  # unscaled
    length: int
    gso_size: int
    mss: int | None
    wscale: int | None
    ts: tuple[int, int] | None
    sack: tuple[tuple[int, int], ...]
    urg: int
    ecn: int  # codepoint of the IP header


def parse(data: bytes | memoryview, gso_size: int, t_us: int) -> HostFrame | None:
    """A TCP/IPv4 frame of the host, perhaps cut behind its headers; None for any other frame."""
    if bytes(data[12:14]) != b"\x08\x00" or data[23] != 6 or bytes(data[26:30]) != HOST4:
        return None
    total = int.from_bytes(data[16:18], "big")
    at = 14 + (data[14] & 15) * 4
    sport, _, seq, ack, bits, window, _, urg = unpack_from("!HHIIHHHH", data, at)
    doff = (bits >> 12) * 4
    flags = "".join(name for name in "SFRPUEW" if bits & FLAG_BITS[name]) + ("." if bits & 0x10 else "")
    mss = wscale = ts = None
    sack: list[tuple[int, int]] = []
    i = at + 20
    end = at + doff
    while i < end and data[i]:
        kind = data[i]
        if kind == 1:
            i += 1
            continue
        size = data[i + 1]
        body = bytes(data[i + 2 : i + size])
        if kind == 2:
            mss = int.from_bytes(body, "big")
        elif kind == 3:
            wscale = body[0]
        elif kind == 8:
            ts = unpack_from("!II", body)
        elif kind == 5:
            sack = [unpack_from("!II", body, j) for j in range(0, len(body), 8)]
        i += size
    return HostFrame(t_us, sport, seq, ack, flags, window, total - (at - 14) - doff, gso_size, mss, wscale, ts, tuple(sack), urg, data[15] & 3)


def build(
    port: int, seq: int, ack: int, flags: str, window: int, options: bytes = b"", payload: bytes = b"", gso_size: int = 0, tos: int = 0, urg: int = 0
) -> tuple[bytes, bytes]:
    """(virtio header, frame) of a peer's segment to the host's `port`; numbers as on the wire, `window` unscaled, `urg` the urgent pointer."""
    bits = sum(FLAG_BITS[c] for c in flags)
    size = 20 + len(options) + len(payload)
    head = pack("!HHIIHHHH", PEER_PORT, port, seq & M32, ack & M32, (5 + len(options) // 4) << 12 | bits, window, 0, urg)
    tcp = head + options + payload
    vnet = bytes(VNET.size)
    if gso_size:
        partial = ones_sum(b"", pseudo4(PEER4, HOST4, 6, size))
        vnet = VNET.pack(NEEDS_CSUM, GSO_TCPV4, 54 + len(options), gso_size, 34, 16)
    else:
        partial = checksum(tcp, pseudo4(PEER4, HOST4, 6, size))
    tcp = tcp[:16] + partial.to_bytes(2, "big") + tcp[18:]
    ip = pack("!BBHHHBBH4s4s", 0x45, tos, 20 + size, 0, 0x4000, 64, 6, 0, PEER4, HOST4)
    ip = ip[:10] + checksum(ip).to_bytes(2, "big") + ip[12:]
    return vnet, HOST_MAC + PEER_MAC + b"\x08\x00" + ip + tcp


def too_big(port: int, seq: int, mtu: int) -> tuple[bytes, bytes]:
    """(virtio header, frame) of a router's "fragmentation needed" about the host's segment with number `seq` on the wire."""
    quoted = pack("!BBHHHBBH4s4s", 0x45, 0, 1500, 0, 0x4000, 63, 6, 0, HOST4, PEER4) + pack("!HHI", port, PEER_PORT, seq & M32)
    icmp = pack("!BBHHH", 3, 4, 0, 0, mtu) + quoted
    icmp = icmp[:2] + checksum(icmp).to_bytes(2, "big") + icmp[4:]
    ip = pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(icmp), 0, 0, 64, 1, 0, PEER4, HOST4)
    ip = ip[:10] + checksum(ip).to_bytes(2, "big") + ip[12:]
    return bytes(VNET.size), HOST_MAC + PEER_MAC + b"\x08\x00" + ip + icmp


def syn_options(config: dict[str, Any], ts: tuple[int, int] | None) -> bytes:
    """What the peer's SYN or SYN-ACK says by a workload's `config`: MSS, SACK, timestamps `ts`, window scale."""
    out = pack("!BBH", 2, 4, config["mss"])
    if config.get("sack"):
        out += b"\x01\x01\x04\x02"
    if ts is not None:
        out += b"\x01\x01" + pack("!BBII", 8, 10, ts[0] & M32, ts[1] & M32)
    if config.get("wscale") is not None:
        out += b"\x01" + bytes((3, 3, config["wscale"]))
    return out


def options(ts: tuple[int, int] | None, sack: list[tuple[int, int]]) -> bytes:
    """Timestamps and SACK blocks (numbers as on the wire), each behind two NOPs."""
    out = b""
    if ts is not None:
        out += pack("!HBBII", 0x0101, 8, 10, ts[0] & M32, ts[1] & M32)
    if sack:
        out += pack("!HBB", 0x0101, 5, 2 + 8 * len(sack)) + b"".join(pack("!II", a & M32, b & M32) for a, b in sack)
    return out


def describe(frame: HostFrame, iss: int, scale: int) -> dict[str, Any]:
    """The event a host's frame is: `frame` with payload, FIN or RST, `reply` without. `iss`: of the host's SYN; `scale`: of its windows."""
    start = _relative(frame.seq, iss + 1)
    fin = "F" in frame.flags
    base: dict[str, Any] = {"ack": _relative(frame.ack, PEER_ISN + 1), "win": frame.window << (0 if "S" in frame.flags else scale)}
    if frame.sack:
        base["sack"] = [[_relative(a, PEER_ISN + 1), _relative(b, PEER_ISN + 1)] for a, b in frame.sack]
    if frame.ts is not None:
        base["ts"] = list(frame.ts)
    if frame.ecn:
        base["ecn"] = frame.ecn
    if frame.urg:
        base["urg"] = frame.urg
    if frame.length or fin or "R" in frame.flags:
        segs = -(-frame.length // frame.gso_size) if frame.gso_size else 1
        event = {"ev": "frame", "t": frame.t_us, "seq": [start, start + frame.length], "flags": frame.flags, "gso_size": frame.gso_size, "segs": segs}
        return event | base
    return {"ev": "reply", "t": frame.t_us, "seq": start, "flags": frame.flags} | base


def _relative(number: int, base: int) -> int:
    distance = (number - base) & M32
    return distance - (1 << 32) if distance >> 31 else distance
