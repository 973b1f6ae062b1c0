"""Packets of a script as bytes, and packets of the wire as what a script would say.

`build` makes what is injected; `Live` is one packet of the stack; `merge` joins the pieces of one super-segment;
`compare` lists what differs, field by field, in words for the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytcp.wire import icmp, icmpv6, signature, tcpopt
from pytcp.wire.checksum import transport_ok
from pytcp.wire.errors import WireError
from pytcp.wire.ipv4 import Ipv4
from pytcp.wire.ipv6 import Ipv6
from pytcp.wire.tcp import IPPROTO_TCP, TcpHeader

from .errors import ScriptError, Where
from .flow import ACK, M32, SYN, Flow
from .script import ANY, IcmpPacket, IpInfo, Opt, TcpPacket

AE, CWR, ECE = 0x100, 0x080, 0x040
ACE_BITS = AE | CWR | ECE
PSH = 0x008
URG = 0x020

_LETTERS = ((0x001, "F"), (0x002, "S"), (0x004, "R"), (0x008, "P"), (0x010, "."), (0x020, "U"), (0x040, "E"), (0x080, "W"), (0x100, "A"))
_ECN_BITS = {"noecn": 0, "ect1": 1, "ect0": 2, "ce": 3}
_TCP_HEADER = 20
_QUOTED = 8  # bytes of TCP in an ICMP quote

UNREACHABLE_CODES = {
    "net_unreachable": 0, "host_unreachable": 1, "protocol_unreachable": 2, "port_unreachable": 3, "frag_needed": 4,
    "source_route_failed": 5, "net_unknown": 6, "host_unknown": 7, "source_host_isolated": 8, "net_prohibited": 9,
    "host_prohibited": 10, "net_unreachable_for_tos": 11, "host_unreachable_for_tos": 12, "packet_filtered": 13,
    "precedence_violation": 14, "precedence_cutoff": 15,
}  # fmt: skip
UNREACHABLE6_CODES = {
    "no_route": 0, "net_unreachable": 0, "admin_prohibited": 1, "packet_filtered": 1, "beyond_scope": 2, "host_unreachable": 3,
    "addr_unreachable": 3, "port_unreachable": 4, "policy_fail": 5, "reject_route": 6,
}  # fmt: skip
EXCEEDED_CODES = {"ttl": 0, "hop_limit": 0, "reassembly": 1, "fragment_reassembly": 1}


@dataclass(frozen=True, slots=True)
class Addresses:
    """Whom packets are between: 4 or 16 bytes each."""

    local: bytes
    remote: bytes


# ---- options ------------------------------------------------------------------------------------


def encode_option(option: Opt) -> bytes:
    """One option's bytes."""
    match option.kind:
        case "nop":
            return b"\x01"
        case "eol":
            return b"\x00"
        case "mss":
            return tcpopt.opt_mss(option.value[0])
        case "wscale":
            return tcpopt.opt_wscale(option.value[0])
        case "sackOK":
            return tcpopt.opt_sack_perm()
        case "sack":
            return tcpopt.opt_sack(option.blocks)
        case "TS":
            return tcpopt.opt_timestamp(*option.value)
        case "FO" | "FOEXP":
            return tcpopt.opt_fastopen(option.data, option.kind == "FOEXP")
        case "md5":
            return tcpopt.opt_md5(option.data.ljust(16, b"\0"))
        case "ECN":
            order = tcpopt.ACCECN1 if option.names[:1] == ("e1b",) else tcpopt.ACCECN0
            return tcpopt.opt_accecn(option.value, order)
    return option.data


def encode_options(options: Sequence[Opt], where: Where) -> bytes:
    """A header's options, padded. Raises ScriptError when they do not fit 40 bytes or need a wildcard's value."""
    if any(-1 in option.value for option in options):
        raise ScriptError("an injected option has its value written out", where)
    raw = tcpopt.opt_pad(b"".join([encode_option(option) for option in options]))
    if len(raw) > tcpopt.MAX_OPTIONS:
        raise ScriptError(f"{len(raw)} bytes of TCP options, a header has room for {tcpopt.MAX_OPTIONS}", where)
    return raw


def decode_options(header: TcpHeader, flow: Flow) -> list[Opt]:
    """A header's options as a script writes them."""
    base = flow.remote_base(bool(header.flags & SYN))
    found: list[Opt] = []
    for option in header.options:
        match option:
            case tcpopt.Nop():
                found.append(Opt("nop"))
            case tcpopt.Eol(padding):
                found += [Opt("eol")] * (1 + len(padding))
            case tcpopt.Mss(value):
                found.append(Opt("mss", (value,)))
            case tcpopt.WindowScale(shift):
                found.append(Opt("wscale", (shift,)))
            case tcpopt.SackPermitted():
                found.append(Opt("sackOK"))
            case tcpopt.Sack(blocks):
                found.append(Opt("sack", blocks=tuple((left - base & M32, right - base & M32) for left, right in blocks)))
            case tcpopt.Timestamps(tsval, tsecr):
                found.append(Opt("TS", (tsval, tsecr)))
            case tcpopt.FastOpen(cookie, exp):
                found.append(Opt("FOEXP" if exp else "FO", data=cookie))
            case tcpopt.Md5(digest):
                found.append(Opt("md5", data=digest))
            case tcpopt.AccEcn(kind, counters):
                order = ("e0b", "ceb", "e1b") if kind == tcpopt.ACCECN0 else ("e1b", "ceb", "e0b")
                found.append(Opt("ECN", counters, names=order[: len(counters)]))
            case other:
                found.append(Opt("raw", data=other.emit()))
    return found


def option_text(option: Opt) -> str:
    """An option in the language."""
    if option.kind in ("mss", "wscale"):
        return f"{option.kind} {option.value[0] if option.value[0] >= 0 else '...'}"
    if option.kind == "TS":
        val, ecr = ("..." if number < 0 else number for number in option.value)
        return f"TS val {val} ecr {ecr}"
    if option.kind == "sack":
        return "sack " + " ".join(f"{left}:{right}" for left, right in option.blocks)
    if option.kind == "ECN":
        return " ".join(["ECN", *[f"{name} {value}" for name, value in zip(option.names, option.value, strict=True)]])
    if option.key is not None:
        return option.kind + ' "' + repr(option.key)[2:-1].replace('"', '\\"') + '"'
    return f"{option.kind} {option.data.hex()}" if option.data else option.kind


def options_text(options: Sequence[Opt]) -> str:
    return f"<{','.join(map(option_text, options))}>" if options else "no options"


# ---- flags --------------------------------------------------------------------------------------


def flags_of(packet: TcpPacket) -> int:
    """A packet's nine flag bits, the ACE digit put where it belongs (RFC 9768 §3.2.1)."""
    bits = packet.flags
    if packet.ace is not None:
        bits |= (AE if packet.ace & 4 else 0) | (CWR if packet.ace & 2 else 0) | (ECE if packet.ace & 1 else 0)
    return bits


def flags_text(bits: int, ace: bool = False) -> str:
    """Flags in the language; `ace`: the upper three as one digit."""
    letters = "".join(letter for bit, letter in _LETTERS if bits & bit and not (ace and bit & ACE_BITS))
    if ace:
        letters += str((bits >> 6 & 1) | (bits >> 7 & 1) << 1 | (bits >> 8 & 1) << 2)
    return letters or "-"


# ---- building -----------------------------------------------------------------------------------


def _tos(info: IpInfo) -> int:
    tos = info.tos or 0
    if info.ecn is not None:
        tos = tos & 0xFC | _ECN_BITS.get(info.ecn, 1)
    return tos


def ip_packet(src: bytes, dst: bytes, proto: int, payload: bytes, info: IpInfo) -> bytes:
    """An IP packet of the family of its addresses."""
    ttl = 255 if info.ttl is None else info.ttl
    if len(src) == 4:
        return Ipv4(src, dst, proto, payload, tos=_tos(info), ttl=ttl, df=False).emit()
    return Ipv6(src, dst, proto, payload, tclass=_tos(info), flow=info.flowlabel or 0, hop_limit=ttl).emit()


def build_tcp(packet: TcpPacket, flow: Flow, to: Addresses, where: Where) -> bytes:
    """The bytes of a segment from the tool to the stack."""
    raw = encode_options(flow.options_to_wire(packet), where)
    # an ACK flag without `ack N` acknowledges the script's 0
    syn = bool(packet.flags & SYN)
    ack = (packet.ack or 0) + (flow.local_base(syn) if packet.flags & ACK else 0) & M32
    size = _TCP_HEADER + len(raw) + packet.length
    if size > 65535 - (20 if len(to.local) == 4 else 0):
        raise ScriptError(f"{packet.length} bytes do not fit one IP packet", where)
    header = TcpHeader(
        flow.remote_port, flow.local_port, packet.seq + flow.remote_base(syn) & M32, ack, flags_of(packet), packet.window or 0, packet.urg or 0,
        tcpopt.parse_options(raw), bytes(packet.length),
    )  # fmt: skip
    key = _key(packet)
    if key is not None:
        header = _sign(header, key, to)
    return ip_packet(to.remote, to.local, IPPROTO_TCP, header.emit(to.remote, to.local), packet.ip)


def _key(packet: TcpPacket) -> bytes | None:
    """The key of a packet whose MD5 option has one."""
    if not isinstance(packet.options, tuple):
        return None
    return next((option.key for option in packet.options if option.key is not None), None)


def _digest(key: bytes, src: bytes, dst: bytes, header: TcpHeader) -> bytes:
    start = len(header.emit()) - len(header.payload)
    return signature.digest(key, src, dst, header.emit()[:start], (header.payload,))


def _sign(header: TcpHeader, key: bytes, to: Addresses) -> TcpHeader:
    made = tcpopt.Md5(_digest(key, to.remote, to.local, header))
    return replace(header, options=tuple(made if isinstance(option, tcpopt.Md5) else option for option in header.options))


def build_icmp(packet: IcmpPacket, flow: Flow, to: Addresses, where: Where) -> bytes:
    """The bytes of an ICMP error from the tool about a segment of the stack's."""
    four = len(to.local) == 4
    seq = flow.last_seq if packet.seq is None else packet.seq + flow.local_base(False) & M32
    l4 = flow.local_port.to_bytes(2, "big") + flow.remote_port.to_bytes(2, "big") + seq.to_bytes(4, "big")
    l4 = l4.ljust(_TCP_HEADER, b"\0") if not four else l4
    total = _TCP_HEADER + packet.length
    if four:
        quote = Ipv4(to.local, to.remote, IPPROTO_TCP, bytes(total)).emit()[:20] + l4[:_QUOTED]
        message = _icmp4(packet, quote, where)
        return ip_packet(to.remote, to.local, 1, message, packet.ip)
    quote = Ipv6(to.local, to.remote, IPPROTO_TCP, bytes(total)).emit()[:40] + l4
    return ip_packet(to.remote, to.local, icmpv6.IPPROTO_ICMPV6, _icmp6(packet, quote, where).emit(to.remote, to.local), packet.ip)


def _code(packet: IcmpPacket, names: dict[str, int], where: Where) -> int:
    if packet.code is None:
        return 0
    if isinstance(packet.code, int):
        return packet.code & 0xFF
    if packet.code not in names:
        raise ScriptError(f"ICMP {packet.type} has no code {packet.code!r}: {', '.join(names) or 'it has none'}", where)
    return names[packet.code]


def _icmp4(packet: IcmpPacket, quote: bytes, where: Where) -> bytes:
    match packet.type:
        case "unreachable":
            return icmp.Unreachable(_code(packet, UNREACHABLE_CODES, where), quote, (packet.mtu or 0) & 0xFFFF).emit()
        case "time_exceeded":
            return icmp.TimeExceeded(_code(packet, EXCEEDED_CODES, where), quote).emit()
        case "parameter_problem":
            return icmp.ParameterProblem(0, quote, _code(packet, {}, where)).emit()
        case "source_quench":
            return icmp.SourceQuench(quote, _code(packet, {}, where)).emit()
        case "redirect":
            return icmp.Redirect(_code(packet, {}, where), bytes(4), quote).emit()
    raise ScriptError(f"IPv4 has no ICMP {packet.type}", where)


def _icmp6(packet: IcmpPacket, quote: bytes, where: Where) -> icmpv6.Error:
    match packet.type:
        case "unreachable":
            return icmpv6.Error(icmpv6.DEST_UNREACH, _code(packet, UNREACHABLE6_CODES, where), quote)
        case "packet_too_big":
            return icmpv6.Error(icmpv6.PACKET_TOO_BIG, _code(packet, {}, where), quote, packet.mtu or 0)
        case "time_exceeded":
            return icmpv6.Error(icmpv6.TIME_EXCEEDED, _code(packet, EXCEEDED_CODES, where), quote)
        case "parameter_problem":
            return icmpv6.Error(icmpv6.PARAMETER_PROBLEM, _code(packet, {}, where), quote)
    raise ScriptError(f"IPv6 has no ICMP {packet.type}", where)


# ---- what the stack sent ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Live:
    """A TCP segment as captured."""

    time_ns: int  # since the start of the script
    data: bytes  # the IP packet
    header: TcpHeader
    src: bytes
    dst: bytes
    tos: int
    ttl: int
    flowlabel: int
    pieces: int = 1
    more: tuple[Live, ...] = ()  # the pieces behind the first

    @property
    def length(self) -> int:
        return len(self.header.payload)


def read(time_ns: int, data: bytes) -> Live | None:
    """A captured IP packet; None when it is not TCP or cannot be read."""
    try:
        if data[:1] and data[0] >> 4 == 4:
            four = Ipv4.parse(data)
            if four.proto != IPPROTO_TCP or four.frag_offset or four.mf:
                return None
            return Live(time_ns, data, TcpHeader.parse(four.payload), four.src, four.dst, four.tos, four.ttl, 0)
        six = Ipv6.parse(data)
        if six.next_header != IPPROTO_TCP:
            return None
        return Live(time_ns, data, TcpHeader.parse(six.payload), six.src, six.dst, six.tclass, six.hop_limit, six.flow)
    except WireError:
        return None


def checksum_ok(live: Live) -> bool:
    """Whether the TCP checksum is right."""
    header = (live.data[0] & 15) * 4 if len(live.src) == 4 else 40
    return transport_ok(live.data[header:], live.src, live.dst, IPPROTO_TCP)


def merge(first: Live, more: Live) -> Live | str:
    """Two adjacent pieces as one segment, or why they are not pieces of one."""
    a, b = first.header, more.header
    if b.seq != (a.seq + len(a.payload)) & M32:
        return f"the next piece begins at another sequence number (+{(b.seq - a.seq) & M32}, not +{len(a.payload)})"
    if _unsigned(a) != _unsigned(b):
        return "the pieces have different options"
    if a.flags & 0x007:
        return "a piece with SYN, FIN or RST is not followed by another"
    # whether it was pushed the last piece says
    header = replace(a, flags=a.flags & ~PSH | b.flags, payload=a.payload + b.payload, ack=b.ack, window=b.window)
    # it is there when its last piece is
    return replace(first, header=header, time_ns=more.time_ns, pieces=first.pieces + 1, data=first.data, more=(*first.more, more))


def _unsigned(header: TcpHeader) -> list[tcpopt.Option]:
    """Options without digests, which differ from piece to piece."""
    return [tcpopt.Md5(b"") if isinstance(option, tcpopt.Md5) else option for option in header.options]


def _forged(live: Live, key: bytes) -> int:
    """How many pieces of a segment are not signed with `key`."""
    first = read(0, live.data)
    assert first is not None
    return sum(tcpopt.Md5(_digest(key, piece.src, piece.dst, piece.header)) not in piece.header.options for piece in (first, *live.more))


@dataclass(frozen=True, slots=True)
class Difference:
    """One field: what the script wants, what was on the wire."""

    name: str
    expected: str
    got: str


def numbers(header: TcpHeader, flow: Flow) -> tuple[int, int]:
    """Sequence and acknowledgement of a packet of the stack, in the script's numbers."""
    syn = bool(header.flags & SYN)
    return header.seq - flow.local_base(syn) & M32, header.ack - flow.remote_base(syn) & M32


def compare(want: TcpPacket, live: Live, flow: Flow, stamp_tick_ns: int = 0, stamp_slack_ns: int = 0) -> list[Difference]:
    """What differs, in the script's numbers; empty when the packet is as it should be.

    stamp_tick_ns: length of a timestamp tick; 0 = TS val is not looked at. stamp_slack_ns: by how much it may be off."""
    found: list[Difference] = []

    def differ(name: str, expected: object, got: object) -> None:
        if expected != got:
            found.append(Difference(name, str(expected), str(got)))

    header = live.header
    flags = header.flags
    ace = want.ace is not None
    differ("flags", flags_text(flags_of(want), ace), flags_text(flags, ace))
    seq, got_ack = numbers(header, flow)
    differ("seq", f"{want.seq}:{want.seq + want.length & M32}({want.length})", f"{seq}:{seq + live.length & M32}({live.length})")
    if want.ack is not None:
        differ("ack", want.ack, got_ack if flags & ACK else "none")
    if want.window is not None:
        differ("win", want.window, header.window)
    if want.urg is not None:
        differ("urg", want.urg, header.urg_ptr)
    elif header.urg_ptr:
        differ("urg", 0, header.urg_ptr)
    if header.reserved:
        differ("reserved bits", 0, header.reserved)
    if any(header.payload):
        differ("payload", "zeros", f"a byte {next(filter(None, header.payload))}")
    if want.options is not ANY:
        _compare_options(want, live, flow, stamp_tick_ns, stamp_slack_ns, found)
    key = _key(want)
    if key is not None and not found:
        forged = _forged(live, key)
        differ("signature", f"made with {key!r}", f"made with {key!r}" if not forged else f"another in {forged} of {live.pieces}")
    _compare_ip(want.ip, live, found)
    return found


def _compare_options(want: TcpPacket, live: Live, flow: Flow, tick_ns: int, slack_ns: int, found: list[Difference]) -> None:
    wanted = list(want.options or ())  # type: ignore[arg-type]
    got = decode_options(live.header, flow)
    size = len(b"".join([encode_option(o) for o in wanted if -1 not in o.value]))
    if size & 3 and not any(-1 in o.value for o in wanted):
        wanted += [Opt("eol")] * (-size & 3)
    same = len(wanted) == len(got) and all(_same(a, b, flow, tick_ns, slack_ns) for a, b in zip(wanted, got, strict=True))
    if not same:
        found.append(Difference("options", options_text(wanted), options_text(scripted(got, flow))))


def scripted(options: Sequence[Opt], flow: Flow) -> list[Opt]:
    """Options of the stack with its timestamps in the script's numbers, once there is a first to count from."""
    first = flow.first_stamp
    if first is None:
        return list(options)
    return [replace(o, value=(o.value[0] - first[1] + first[0] & M32, o.value[1])) if o.kind == "TS" else o for o in options]


def _same(want: Opt, got: Opt, flow: Flow, tick_ns: int, slack_ns: int) -> bool:
    if want.kind != got.kind:
        return False
    if want.kind == "TS":
        (val, ecr), (live_val, live_ecr) = want.value, got.value
        if ecr not in (-1, live_ecr):
            return False
        first = flow.first_stamp
        if val < 0 or not tick_ns or first is None:
            return True
        away = (live_val - first[1] - (val - first[0]) + (1 << 31) & M32) - (1 << 31)
        return abs(away) * tick_ns <= slack_ns
    if want.kind in ("mss", "wscale"):
        return want.value[0] in (-1, got.value[0])
    if want.kind == "md5" and not want.data:
        return True
    return want == got


def _compare_ip(want: IpInfo, live: Live, found: list[Difference]) -> None:
    names = {bits: name for name, bits in _ECN_BITS.items()}
    if want.ecn is not None:
        ecn = names[live.tos & 3]
        if ecn != want.ecn and not (want.ecn == "ect01" and ecn in ("ect0", "ect1")):
            found.append(Difference("ECN", want.ecn, ecn))
    for name, value, got in (("tos", want.tos, live.tos), ("ttl", want.ttl, live.ttl), ("flowlabel", want.flowlabel, live.flowlabel)):
        if value is not None and value != got:
            found.append(Difference(name, hex(value), hex(got)))


def is_syn(live: Live) -> bool:
    """A SYN that opens: without ACK."""
    return live.header.flags & (SYN | ACK) == SYN
