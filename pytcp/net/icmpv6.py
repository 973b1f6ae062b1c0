"""ICMPv6 (RFC 4443): echo answered, errors sent and passed on; neighbour discovery goes to `ndp`.

As `icmp`, with IPv6's differences: the quote may fill 1280 bytes, packet-too-big is never limited, and
an unknown option may be complained about even to a group. Types below 128 are errors, known or not.
Counters: Icmp6*. Sysctls: net.ipv6.icmp.ratelimit, echo_ignore_all, echo_ignore_multicast,
flowlabel_reflect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytcp.link.frame import CSUM_NONE
from pytcp.wire.addr import IP6_ANY, is_multicast
from pytcp.wire.checksum import transport_ok
from pytcp.wire.errors import WireError
from pytcp.wire.icmp import quoted
from pytcp.wire.icmpv6 import (
    DEST_UNREACH,
    ECHO,
    ECHO_REPLY,
    IPPROTO_ICMPV6,
    MAX_QUOTE,
    PACKET_TOO_BIG,
    PARAMETER_PROBLEM,
    TIME_EXCEEDED,
    UNKNOWN_OPTION,
    seal,
)
from pytcp.wire.ipv6 import IPPROTO_TCP, IPPROTO_UDP, walk
from pytcp.wire.ndp import REDIRECT, TYPES

from . import ipv6, ndp, udp
from .packet import HOST, TO_US, Packet

if TYPE_CHECKING:
    from .stack import Stack

REFLECT_ECHO = 4  # bit of flowlabel_reflect

_IN = {
    DEST_UNREACH: "Icmp6InDestUnreachs",
    PACKET_TOO_BIG: "Icmp6InPktTooBigs",
    TIME_EXCEEDED: "Icmp6InTimeExcds",
    PARAMETER_PROBLEM: "Icmp6InParmProblems",
    ECHO: "Icmp6InEchos",
    ECHO_REPLY: "Icmp6InEchoReplies",
    130: "Icmp6InGroupMembQueries",
    131: "Icmp6InGroupMembResponses",
    132: "Icmp6InGroupMembReductions",
    133: "Icmp6InRouterSolicits",
    134: "Icmp6InRouterAdvertisements",
    135: "Icmp6InNeighborSolicits",
    136: "Icmp6InNeighborAdvertisements",
    137: "Icmp6InRedirects",
    143: "Icmp6InMLDv2Reports",
}
_OUT = {
    DEST_UNREACH: "Icmp6OutDestUnreachs",
    PACKET_TOO_BIG: "Icmp6OutPktTooBigs",
    TIME_EXCEEDED: "Icmp6OutTimeExcds",
    PARAMETER_PROBLEM: "Icmp6OutParmProblems",
    ECHO: "Icmp6OutEchos",
    ECHO_REPLY: "Icmp6OutEchoReplies",
    133: "Icmp6OutRouterSolicits",
    135: "Icmp6OutNeighborSolicits",
    136: "Icmp6OutNeighborAdvertisements",
}


# --- in ---


def receive(stack: Stack, pkt: Packet) -> None:
    """One ICMPv6 message for us."""
    mib = stack.mib
    mib.Icmp6InMsgs += 1
    message = pkt.data[pkt.off :]
    if not transport_ok(message, pkt.src, pkt.dst, IPPROTO_ICMPV6):
        mib.Icmp6InCsumErrors += 1
        mib.Icmp6InErrors += 1
        return
    if len(message) < 8:
        mib.Icmp6InErrors += 1
        return
    kind = message[0]
    mib.count(f"Icmp6InType{kind}")
    if kind in _IN:
        mib.count(_IN[kind])
    if kind == ECHO:
        _answer_echo(stack, pkt, message)
    elif kind == ECHO_REPLY:
        stack.ping.reply(pkt, message)
    elif kind in TYPES:
        ndp.receive(stack, pkt, message)
    elif kind in (DEST_UNREACH, PACKET_TOO_BIG, TIME_EXCEEDED, PARAMETER_PROBLEM):
        _error(stack, pkt, message)
    elif kind < ECHO:
        mib.Icmp6InErrors += 1


def _answer_echo(stack: Stack, pkt: Packet, message: bytes) -> None:
    sysctl = stack.sysctl
    if sysctl.icmp6_echo_ignore_all or (pkt.dkind != TO_US and sysctl.icmp6_echo_ignore_multicast):
        return
    flow = pkt.flow if sysctl.flowlabel_reflect & REFLECT_ECHO else None
    _send(stack, pkt.src, pkt.dst if pkt.dkind == TO_US else b"", ECHO_REPLY, message[1], message[4:], pkt, tclass=pkt.tos, flow=flow)


def _error(stack: Stack, pkt: Packet, message: bytes) -> None:
    """An error about something we sent: find whose it was."""
    try:
        quote = quoted(message[8:])
    except WireError:
        stack.mib.Icmp6InErrors += 1
        return
    kind = message[0]
    code = message[1]
    info = int.from_bytes(message[4:8], "big")
    if quote.family != 6:
        stack.mib.Icmp6InErrors += 1
    elif quote.proto == IPPROTO_TCP:
        stack.tcp_error(pkt, quote, kind, code, info)
    elif quote.proto == IPPROTO_UDP:
        udp.error(stack, pkt, quote, kind, code, info, message[8:])
    elif quote.proto == IPPROTO_ICMPV6:
        stack.ping.error(pkt, quote, kind, code)


# --- out ---


def count_out(stack: Stack, kind: int) -> None:
    """Count a message of a type that is about to leave."""
    mib = stack.mib
    mib.Icmp6OutMsgs += 1
    mib.count(f"Icmp6OutType{kind}")
    if kind in _OUT:
        mib.count(_OUT[kind])


def _send(stack: Stack, daddr: bytes, saddr: bytes, kind: int, code: int, rest: bytes, about: Packet, *, tclass: int = 0, flow: int | None = None) -> None:
    """Send a message about the packet `about`."""
    try:
        dst = stack.dst_back(daddr, saddr, about)
    except OSError:
        stack.mib.Ip6OutNoRoutes += 1
        return
    saddr = saddr or dst.saddr
    if flow is None:
        flow = stack.flow_label(saddr, daddr, 0, 0, IPPROTO_ICMPV6) if stack.sysctl.auto_flowlabels else 0
    count_out(stack, kind)
    ipv6.output(stack, dst, saddr, IPPROTO_ICMPV6, seal(bytes((kind, code, 0, 0)) + rest, saddr, daddr), tclass=tclass, flow=flow)


def send_echo(stack: Stack, dst: bytes, source: bytes, ident: int, seq: int, data: bytes, hops: int = 0) -> None:
    """Send an echo request. Raises OSError when there is no route."""
    way = stack.dst(dst, source)
    source = source or way.saddr
    count_out(stack, ECHO)
    rest = ident.to_bytes(2, "big") + seq.to_bytes(2, "big") + data
    flow = stack.flow_label(source, dst, 0, 0, IPPROTO_ICMPV6) if stack.sysctl.auto_flowlabels else 0
    ipv6.output(stack, way, source, IPPROTO_ICMPV6, seal(bytes((ECHO, 0, 0, 0)) + rest, source, dst), flow=flow, hops=hops or -1)


def send_error(stack: Stack, pkt: Packet, kind: int, code: int, info: int) -> None:
    """Tell the sender of `pkt` what is wrong with it; `info` is the second word of the message.

    Nothing is sent about packets that RFC 4443 §2.4 (e) exempts, nor beyond the rate limits."""
    if (pkt.dkind != TO_US or pkt.kind != HOST) and kind != PACKET_TOO_BIG and (kind, code) != (PARAMETER_PROBLEM, UNKNOWN_OPTION):
        return
    src = pkt.src
    if src == IP6_ANY or is_multicast(src) or _about_error(pkt.data):
        return
    sysctl = stack.sysctl
    now = stack.heap.now_ns
    limited = kind != PACKET_TOO_BIG
    if limited and not stack.icmp_host_limit.allow(now, sysctl.icmp_msgs_per_sec, sysctl.icmp_msgs_burst):
        stack.mib.IcmpOutRateLimitGlobal += 1
        return
    saddr = pkt.dst if pkt.dst in stack.local6 else b""
    try:
        dst = stack.dst_back(src, saddr, pkt)
    except OSError:
        return
    if limited:
        if not dst.dev.loopback and not stack.icmp6_peer_limit.allow(src, now, sysctl.icmp6_ratelimit):
            stack.mib.Icmp6OutRateLimitHost += 1
            return
        stack.icmp_host_limit.consume()
    _send(stack, src, saddr, kind, code, info.to_bytes(4, "big") + pkt.data[:MAX_QUOTE], pkt)


def _about_error(data: bytes) -> bool:
    """Whether a packet is itself an ICMPv6 error or a redirect."""
    try:
        found = walk(data, data[6])
    except WireError:
        return False
    if found.proto != IPPROTO_ICMPV6 or found.offset >= len(data):
        return False
    return data[found.offset] < ECHO or data[found.offset] == REDIRECT


def local_error(stack: Stack, data: bytes, kind: int, code: int, info: int) -> None:
    """Report to ourselves that a packet of our own (`data`, from its IPv6 header) could not be delivered."""
    pkt = Packet(6, stack.lo, data, HOST, CSUM_NONE)
    pkt.off = 40
    pkt.proto = data[6]
    pkt.src = data[8:24]
    pkt.dst = data[24:40]
    send_error(stack, pkt, kind, code, info)
