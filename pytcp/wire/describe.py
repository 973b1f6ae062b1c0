"""One line of text for any frame, worded as tcpdump -n words it, with absolute sequence numbers.

For traces, test failures and logs. What does not parse is said in the line ("[|tcp]": cut off), never
raised. Where tcpdump has no words (AccECN, the AE flag) or only ambiguous ones (fragments) they are ours.
"""

from __future__ import annotations

from collections.abc import Callable

from pytcp.wire import arp, icmp, icmpv6, igmp, ipv4, ipv6, mld, ndp
from pytcp.wire.addr import format_ip, format_mac
from pytcp.wire.arp import Arp
from pytcp.wire.errors import TruncatedError, WireError
from pytcp.wire.ethernet import ETH_P_802_3_MIN, ETH_P_ARP, ETH_P_IP, ETH_P_IPV6, walk_tags
from pytcp.wire.ipv4 import Ipv4
from pytcp.wire.ipv6 import Ipv6
from pytcp.wire.tcp import TcpHeader
from pytcp.wire.tcpopt import (
    ACCECN0,
    AO,
    AccEcn,
    Eol,
    FastOpen,
    Malformed,
    Md5,
    Mss,
    Nop,
    Option,
    Sack,
    SackPermitted,
    Timestamps,
    Unknown,
    WindowScale,
)
from pytcp.wire.udp import Udp

Buffer = bytes | bytearray | memoryview

# tcpdump's order
_TCP_FLAGS = ((0x01, "F"), (0x02, "S"), (0x04, "R"), (0x08, "P"), (0x10, "."), (0x20, "U"), (0x40, "E"), (0x80, "W"), (0x100, "e"))

_UNREACHABLE4 = {
    0: "net {dst} unreachable",
    1: "host {dst} unreachable",
    2: "{dst} protocol {proto} unreachable",
    3: "{dst} {l4} port {port} unreachable",
    5: "{dst} unreachable - source route failed",
    6: "net {dst} unreachable - unknown",
    7: "host {dst} unreachable - unknown",
    8: "{dst} unreachable - source host isolated",
    9: "net {dst} unreachable - admin prohibited",
    10: "host {dst} unreachable - admin prohibited",
    11: "net {dst} unreachable - tos prohibited",
    12: "host {dst} unreachable - tos prohibited",
    13: "host {dst} unreachable - admin prohibited filter",
    14: "host {dst} unreachable - host precedence violation",
    15: "host {dst} unreachable - precedence cutoff",
}
_REDIRECT4 = {0: "redirect {dst} to net", 1: "redirect {dst} to host", 2: "redirect-tos {dst} to net", 3: "redirect-tos {dst} to host"}
_UNREACHABLE6 = {
    0: "unreachable route {dst}",
    1: "unreachable prohibited {dst}",
    2: "beyond scope {dst}",
    3: "unreachable address {dst}",
    4: "unreachable port, {dst} {l4} port {port}",
    5: "source address failed policy {dst}",
    6: "reject route {dst}",
}
_PROBLEM6 = {0: "erroneous", 1: "next header", 2: "option", 3: "incomplete header chain"}


def describe(frame: Buffer, length: int = 0) -> str:
    """An Ethernet frame, from its destination address on, in one line. Never raises.

    `length` is the frame's whole length in bytes when `frame` is only its headers, as in a TxFrame.
    """
    data = memoryview(bytes(frame) + bytes(length - len(frame)) if length > len(frame) else frame)
    try:
        kind, at, tags = walk_tags(data)
    except WireError:
        return "[|ether]"
    line = "".join(f"vlan {tag.vid}, p {tag.pcp}, " for tag in tags)
    rest = data[at:]
    if kind == ETH_P_ARP:
        return line + _guard("arp", _arp, rest)
    if kind in (ETH_P_IP, ETH_P_IPV6):
        return line + describe_packet(rest)
    dst, src = format_mac(data[:6]), format_mac(data[6:12])
    if kind < ETH_P_802_3_MIN:
        return f"{line}{src} > {dst}, 802.3, length {kind}"
    return f"{line}{src} > {dst}, ethertype 0x{kind:04x}, length {len(data)}"


def describe_packet(packet: Buffer) -> str:
    """An IPv4 or IPv6 packet, from its version on, in one line. Never raises."""
    data = memoryview(packet)
    version = data[0] >> 4 if len(data) else 0
    if version == 4:
        return "IP " + _guard("ip", _ipv4, data)
    if version == 6:
        return "IP6 " + _guard("ip6", _ipv6, data)
    return f"IP, version {version}" if len(data) else "IP [|ip]"


def _guard(name: str, describer: Callable[[memoryview], str], data: memoryview) -> str:
    """The text, or what is wrong with the header called `name`."""
    try:
        return describer(data)
    except TruncatedError:
        return f"[|{name}]"
    except WireError as error:
        return f"[{name}: {error}]"


def _arp(data: memoryview) -> str:
    packet = Arp.parse(data)
    tail = f"length {len(data)}"
    if packet.ptype != ETH_P_IP or len(packet.spa) != 4:
        return f"ARP, op {packet.op}, hardware type {packet.htype}, protocol type 0x{packet.ptype:04x}, {tail}"
    sender, target = format_ip(packet.spa), format_ip(packet.tpa)
    if packet.op == arp.REQUEST:
        known = f" ({format_mac(packet.tha)})" if any(packet.tha) else ""
        return f"ARP, Request who-has {target}{known} tell {sender}, {tail}"
    if packet.op == arp.REPLY:
        return f"ARP, Reply {sender} is-at {format_mac(packet.sha)}, {tail}"
    return f"ARP, op {packet.op}, {sender} ({format_mac(packet.sha)}) to {target} ({format_mac(packet.tha)}), {tail}"


# ---- internet layer --------------------------------------------------------------------------


def _ipv4(data: memoryview) -> str:
    packet = Ipv4.parse(data)
    if packet.frag_offset or packet.mf:
        more = ", more" if packet.mf else ""
        where = f"frag (id {packet.ident}, offset {packet.frag_offset}, length {len(packet.payload)}{more})"
        return f"{format_ip(packet.src)} > {format_ip(packet.dst)}: ip-proto-{packet.proto} {where}"
    return _upper(packet.src, packet.dst, packet.proto, memoryview(packet.payload), "")


def _ipv6(data: memoryview) -> str:
    packet = Ipv6.parse(data)
    where = ipv6.walk(data, packet.next_header, end=ipv6.IPV6_HLEN + len(packet.payload))
    notes = ""
    for kind, offset, length, _ in where.extensions:
        header = data[offset : offset + length]
        if kind == ipv6.IPPROTO_FRAGMENT:
            fragment = ipv6.FragmentHeader.parse(header)
            size = len(packet.payload) + ipv6.IPV6_HLEN - offset - length
            notes += f"frag (id {fragment.ident}, offset {fragment.offset}, length {size}{', more' if fragment.more else ''}) "
            if fragment.offset or fragment.more:
                return f"{format_ip(packet.src)} > {format_ip(packet.dst)}: {notes}ip-proto-{where.proto}"
        elif kind == ipv6.IPPROTO_ROUTING:
            notes += f"RT6 (type={header[2]}, segleft={header[3]}) "
        else:
            notes += "HBH " if kind == ipv6.IPPROTO_HOPOPTS else "DSTOPT "
    return _upper(packet.src, packet.dst, where.proto, data[where.offset : ipv6.IPV6_HLEN + len(packet.payload)], notes)


def _upper(src: bytes, dst: bytes, proto: int, data: memoryview, notes: str) -> str:
    sender, receiver = format_ip(src), format_ip(dst)
    if proto in (ipv4.IPPROTO_TCP, ipv4.IPPROTO_UDP):
        name, describer = ("tcp", _tcp) if proto == ipv4.IPPROTO_TCP else ("udp", _udp)
        if len(data) >= 4:
            sender += f".{data[0] << 8 | data[1]}"
            receiver += f".{data[2] << 8 | data[3]}"
        return f"{sender} > {receiver}: {notes}{_guard(name, describer, data)}"
    head = f"{sender} > {receiver}: {notes}"
    family = len(src)
    if proto == ipv4.IPPROTO_ICMP and family == 4:
        return f"{head}ICMP {_guard('icmp', _icmp, data)}, length {len(data)}"
    if proto == ipv4.IPPROTO_IGMP and family == 4:
        return f"{head}igmp {_guard('igmp', _igmp, data)}"
    if proto == ipv6.IPPROTO_ICMPV6 and family == 16:
        return f"{head}ICMP6, {_guard('icmp6', _icmpv6, data)}, length {len(data)}"
    if proto == ipv6.IPPROTO_NONE and family == 16:
        return f"{head}no next header"
    return f"{head}ip-proto-{proto} {len(data)}"


# ---- transport layer -------------------------------------------------------------------------


def _tcp(data: memoryview) -> str:
    header = TcpHeader.parse(data)
    size = len(header.payload)
    flags = "".join([letter for bit, letter in _TCP_FLAGS if header.flags & bit]) or "none"
    parts = [f"Flags [{flags}]"]
    if size:
        parts.append(f"seq {header.seq}:{header.seq + size & 0xFFFFFFFF}")
    elif header.flags & 0x07:
        parts.append(f"seq {header.seq}")
    if header.flags & 0x10:
        parts.append(f"ack {header.ack}")
    parts.append(f"win {header.window}")
    if header.flags & 0x20:
        parts.append(f"urg {header.urg_ptr}")
    if header.options:
        parts.append(f"options [{','.join([_tcp_option(option) for option in header.options])}]")
    parts.append(f"length {size}")
    return ", ".join(parts)


def _tcp_option(option: Option) -> str:
    match option:
        case Nop():
            return "nop"
        case Eol():
            return "eol"
        case Mss(value):
            return f"mss {value}"
        case WindowScale(shift):
            return f"wscale {shift}"
        case SackPermitted():
            return "sackOK"
        case Sack(blocks):
            return f"sack {len(blocks)} " + "".join([f"{{{left}:{right}}}" for left, right in blocks])
        case Timestamps(tsval, tsecr):
            return f"TS val {tsval} ecr {tsecr}"
        case FastOpen(cookie, exp):
            name = "exp-tfo" if exp else "tfo"
            return f"{name} cookie {cookie.hex()}" if cookie else f"{name} cookiereq"
        case Md5(digest):
            return f"md5 {digest.hex()}"
        case AccEcn(kind, counters):
            # RFC 9768 §3.2.3: order 0 is E0 CE E1, order 1 the reverse
            names = ("e0b", "ceb", "e1b") if kind == ACCECN0 else ("e1b", "ceb", "e0b")
            return " ".join([f"accecn{kind - ACCECN0 >> 1}", *[f"{name} {value}" for name, value in zip(names, counters, strict=False)]])
        case Unknown(kind, body) if kind == AO and len(body) >= 2:
            return f"tcp-ao keyid {body[0]} rnextkeyid {body[1]} mac 0x{body[2:].hex()}"
        case Unknown(kind, body):
            return f"unknown-{kind} 0x{body.hex()}" if body else f"unknown-{kind}"
        case Malformed(raw):
            return f"bad opt 0x{raw.hex()}"


def _udp(data: memoryview) -> str:
    return f"UDP, length {len(Udp.parse(data).payload)}"


# ---- control messages ------------------------------------------------------------------------


def _quote_words(quote: bytes) -> dict[str, object]:
    inner = icmp.quoted(quote)
    l4 = {ipv4.IPPROTO_TCP: "tcp", ipv4.IPPROTO_UDP: "udp"}.get(inner.proto, f"ip-proto-{inner.proto}")
    return {"dst": format_ip(inner.dst), "proto": inner.proto, "l4": l4, "port": inner.dport}


def _icmp(data: memoryview) -> str:
    match icmp.parse(data):
        case icmp.Echo() as echo:
            return f"echo {'reply' if echo.reply else 'request'}, id {echo.ident}, seq {echo.seq}"
        case icmp.Unreachable(code, quote, mtu):
            words = _quote_words(quote)
            if code == icmp.FRAG_NEEDED:
                return f"{words['dst']} unreachable - need to frag" + (f" (mtu {mtu})" if mtu else "")
            return _UNREACHABLE4.get(code, f"{{dst}} unreachable - #{code}").format(**words)
        case icmp.TimeExceeded(code, _):
            return {0: "time exceeded in-transit", 1: "ip reassembly time exceeded"}.get(code, f"time exceeded - #{code}")
        case icmp.ParameterProblem(pointer, _, code):
            return f"parameter problem - octet {pointer}" + (f" (code {code})" if code else "")
        case icmp.Redirect(code, gateway, quote):
            return _REDIRECT4.get(code, f"redirect-#{code} {{dst}} to").format(**_quote_words(quote)) + f" {format_ip(gateway)}"
        case icmp.SourceQuench():
            return "source quench"
        case icmp.Timestamp() as stamp:
            return f"time stamp {'reply' if stamp.reply else 'query'} id {stamp.ident} seq {stamp.seq}"
        case other:
            return f"type-#{other.type}" + (f" code {other.code}" if other.code else "")


def _records(records: tuple[igmp.GroupRecord, ...]) -> str:
    names = {1: "is_in", 2: "is_ex", 3: "to_in", 4: "to_ex", 5: "allow", 6: "block"}
    texts = [f"[{names.get(record.kind, record.kind)} {format_ip(record.group)} {len(record.sources)} source(s)]" for record in records]
    return " ".join([f"{len(records)} group record(s)", *texts])


def _igmp(data: memoryview) -> str:
    message = igmp.parse(data)
    if isinstance(message, igmp.ReportV3):
        return "v3 report, " + _records(message.records)
    group = format_ip(message.group)
    match message.type:
        case igmp.QUERY:
            version = 3 if message.rest else 2 if message.code else 1
            return f"query v{version}" + (f" [gaddr {group}]" if any(message.group) else "")
        case igmp.REPORT_V1 | igmp.REPORT_V2:
            return f"v{1 if message.type == igmp.REPORT_V1 else 2} report {group}"
        case igmp.LEAVE:
            return f"leave {group}"
        case kind:
            return f"type-#{kind}"


def _icmpv6(data: memoryview) -> str:
    kind = data[0] if len(data) else 0
    if kind in ndp.TYPES:
        return _ndp(data)
    if kind in (mld.QUERY, mld.REPORT_V1, mld.DONE, mld.REPORT_V2):
        return _mld(data)
    match icmpv6.parse(data):
        case icmpv6.Echo() as echo:
            return f"echo {'reply' if echo.reply else 'request'}, id {echo.ident}, seq {echo.seq}"
        case icmpv6.Error(icmpv6.DEST_UNREACH, code, quote):
            return "destination unreachable, " + _UNREACHABLE6.get(code, f"code {code} {{dst}}").format(**_quote_words(quote))
        case icmpv6.Error(icmpv6.PACKET_TOO_BIG, _, _, mtu):
            return f"packet too big, mtu {mtu}"
        case icmpv6.Error(icmpv6.TIME_EXCEEDED, code, quote):
            return f"time exceeded in-transit for {_quote_words(quote)['dst']}" if code == 0 else "time exceeded in-transit (reassembly)"
        case icmpv6.Error(icmpv6.PARAMETER_PROBLEM, code, _, pointer):
            return f"parameter problem, {_PROBLEM6.get(code, f'code {code}')} - octet {pointer}"
        case other:
            return f"unknown icmp6 type ({other.type})"


def _ndp(data: memoryview) -> str:
    match ndp.parse(data):
        case ndp.NeighborSolicit(target):
            return f"neighbor solicitation, who has {format_ip(target)}"
        case ndp.NeighborAdvert(target):
            return f"neighbor advertisement, tgt is {format_ip(target)}"
        case ndp.RouterSolicit():
            return "router solicitation"
        case ndp.RouterAdvert():
            return "router advertisement"
        case ndp.Redirect(target, destination):
            return f"redirect, {format_ip(destination)} to {format_ip(target)}"


def _mld(data: memoryview) -> str:
    message = mld.parse(data)
    if isinstance(message, mld.ReportV2):
        return "multicast listener report v2, " + _records(message.records)
    name = {mld.QUERY: "query", mld.REPORT_V1: "report", mld.DONE: "done"}[message.type]
    return f"multicast listener {name} max resp delay: {message.max_delay} addr: {format_ip(message.group)}"
