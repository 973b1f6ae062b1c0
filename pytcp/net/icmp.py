"""ICMP (RFC 792, RFC 1122 §3.2.2): echo and timestamp answered, errors sent and passed on.

Errors go out about whole packets that came to us alone, never about errors, broadcasts or fragments
after the first, at a limited rate (`ratelimit`), quoting as much as fits 576 bytes. Errors that come in
are handed to the connection or socket whose packet they quote. Both also happen between the host and
itself: a packet that cannot be delivered is reported to its sender over the loopback.
Counters: Icmp*, IcmpMsg*. Sysctls: icmp_echo_ignore_all, icmp_echo_ignore_broadcasts, icmp_ratelimit,
icmp_ratemask, icmp_msgs_per_sec, icmp_msgs_burst, ip_no_pmtu_disc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytcp.link.frame import CSUM_NONE
from pytcp.wire.addr import IP4_ANY, IP4_BROADCAST, is_multicast
from pytcp.wire.checksum import checksum
from pytcp.wire.errors import WireError
from pytcp.wire.icmp import (
    DEST_UNREACH,
    ECHO,
    ECHO_REPLY,
    FRAG_NEEDED,
    PARAMETER_PROBLEM,
    REDIRECT,
    SOURCE_QUENCH,
    TIME_EXCEEDED,
    TIMESTAMP,
    TIMESTAMP_REPLY,
    quote_limit,
    quoted,
)
from pytcp.wire.ipv4 import IP_OFFSET, IPPROTO_ICMP, IPPROTO_TCP, IPPROTO_UDP

from . import ipopts, ipv4, redirect, udp
from .packet import HOST, TO_US, Packet

if TYPE_CHECKING:
    from .stack import Stack

HIGHEST_TYPE = 18
EXTENDED_ECHO = (42, 43)  # RFC 8335: known, and switched off (icmp_echo_enable_probe)
ERRORS = frozenset((DEST_UNREACH, SOURCE_QUENCH, REDIRECT, TIME_EXCEEDED, PARAMETER_PROBLEM))
HIGHEST_UNREACH = 15

_IN = {
    ECHO_REPLY: "IcmpInEchoReps",
    DEST_UNREACH: "IcmpInDestUnreachs",
    SOURCE_QUENCH: "IcmpInSrcQuenchs",
    REDIRECT: "IcmpInRedirects",
    ECHO: "IcmpInEchos",
    TIME_EXCEEDED: "IcmpInTimeExcds",
    PARAMETER_PROBLEM: "IcmpInParmProbs",
    TIMESTAMP: "IcmpInTimestamps",
    TIMESTAMP_REPLY: "IcmpInTimestampReps",
    17: "IcmpInAddrMasks",
    18: "IcmpInAddrMaskReps",
}
_OUT = {
    ECHO_REPLY: "IcmpOutEchoReps",
    DEST_UNREACH: "IcmpOutDestUnreachs",
    ECHO: "IcmpOutEchos",
    TIME_EXCEEDED: "IcmpOutTimeExcds",
    PARAMETER_PROBLEM: "IcmpOutParmProbs",
}


# --- in ---


def receive(stack: Stack, pkt: Packet) -> None:
    """One ICMP message for us."""
    mib = stack.mib
    mib.IcmpInMsgs += 1
    message = pkt.data[pkt.off :]
    if pkt.csum == CSUM_NONE and checksum(message):
        mib.IcmpInCsumErrors += 1
        mib.IcmpInErrors += 1
        return
    if len(message) < 8:
        mib.IcmpInErrors += 1
        return
    kind = message[0]
    mib.count(f"IcmpMsgInType{kind}")
    if kind in _IN:
        mib.count(_IN[kind])
    if kind > HIGHEST_TYPE and kind not in EXTENDED_ECHO:
        mib.IcmpInErrors += 1
        return
    if pkt.dkind != TO_US:
        asks = kind in (ECHO, TIMESTAMP)
        if (not asks and kind not in (17, 18)) or (asks and stack.sysctl.icmp_echo_ignore_broadcasts):
            mib.IcmpInErrors += 1
            return
    if kind == ECHO:
        if not stack.sysctl.icmp_echo_ignore_all:
            _answer(stack, pkt, ECHO_REPLY, message[1], message[4:])
    elif kind == ECHO_REPLY:
        stack.ping.reply(pkt, message)
    elif kind == TIMESTAMP:
        _answer_timestamp(stack, pkt, message)
    elif kind == REDIRECT:
        redirect.receive4(stack, pkt, message)
    elif kind in ERRORS:
        _error(stack, pkt, message)


def _answer_timestamp(stack: Stack, pkt: Packet, message: bytes) -> None:
    if len(message) < 20:
        stack.mib.IcmpInErrors += 1
        return
    now = ipopts.ms_since_midnight(stack.realtime_ns()).to_bytes(4, "big")
    _answer(stack, pkt, TIMESTAMP_REPLY, 0, message[4:12] + now + now)


def _answer(stack: Stack, pkt: Packet, kind: int, code: int, rest: bytes) -> None:
    """Send `rest` (behind the checksum) back to where `pkt` came from, with its TOS and its route options."""
    source = pkt.dst if pkt.dkind == TO_US else b""
    try:
        dst = stack.dst(pkt.src, source)
    except OSError:
        stack.mib.IpOutNoRoutes += 1
        return
    source = source or dst.saddr
    options = ipopts.answer(pkt.options, source, ipopts.ms_since_midnight(stack.realtime_ns())) if pkt.options else b""
    # Linux counts a timestamp reply as an echo reply (measured)
    _count_out(stack, ECHO_REPLY)
    ipv4.output(stack, dst, source, IPPROTO_ICMP, seal(kind, code, rest), tos=pkt.tos, options=options)


def _error(stack: Stack, pkt: Packet, message: bytes) -> None:
    """An error about something we sent: find whose it was."""
    mib = stack.mib
    kind = message[0]
    code = message[1]
    try:
        quote = quoted(message[8:])
    except WireError:
        mib.IcmpInErrors += 1
        return
    if quote.family != 4:
        mib.IcmpInErrors += 1
        return
    info = 0
    if kind == DEST_UNREACH:
        if code > HIGHEST_UNREACH:
            return
        if code == FRAG_NEEDED:
            mode = stack.sysctl.ip_no_pmtu_disc
            if mode == 2:
                return
            if mode != 1:
                info = message[6] << 8 | message[7]
    elif kind == PARAMETER_PROBLEM:
        info = message[4]
    if quote.proto == IPPROTO_TCP:
        stack.tcp_error(pkt, quote, kind, code, info)
    elif quote.proto == IPPROTO_UDP:
        udp.error(stack, pkt, quote, kind, code, info, message[8:])
    elif quote.proto == IPPROTO_ICMP:
        stack.ping.error(pkt, quote, kind, code)


# --- out ---


def seal(kind: int, code: int, rest: bytes) -> bytes:
    """A message with its checksum; `rest` is everything behind the checksum field."""
    csum = checksum(bytes((kind, code, 0, 0)) + rest)
    return bytes((kind, code, csum >> 8, csum & 0xFF)) + rest


def _count_out(stack: Stack, kind: int) -> None:
    mib = stack.mib
    mib.IcmpOutMsgs += 1
    mib.count(f"IcmpMsgOutType{kind}")
    if kind in _OUT:
        mib.count(_OUT[kind])


def send_echo(stack: Stack, dst: bytes, source: bytes, ident: int, seq: int, data: bytes, ttl: int = 0) -> None:
    """Send an echo request. Raises OSError when there is no route."""
    way = stack.dst(dst, source)
    _count_out(stack, ECHO)
    rest = ident.to_bytes(2, "big") + seq.to_bytes(2, "big") + data
    fits = 24 + len(rest) <= way.mtu and not way.mtu_lock
    ipv4.output(stack, way, source or way.saddr, IPPROTO_ICMP, seal(ECHO, 0, rest), ttl=ttl, df=fits)


def send_error(stack: Stack, pkt: Packet, kind: int, code: int, info: int) -> None:
    """Tell the sender of `pkt` what is wrong with it; `info` is the second word of the message.

    Nothing is sent about packets that RFC 1122 §3.2.2 exempts, nor beyond the rate limits."""
    if pkt.kind != HOST or pkt.dkind != TO_US or pkt.frag & IP_OFFSET:
        return
    src = pkt.src
    if src in (IP4_ANY, IP4_BROADCAST) or is_multicast(src):
        return
    if pkt.proto == IPPROTO_ICMP and len(pkt.data) > pkt.off and _is_error(pkt.data[pkt.off]):
        return
    sysctl = stack.sysctl
    now = stack.heap.now_ns
    limited = bool(sysctl.icmp_ratemask >> kind & 1) and not (kind == DEST_UNREACH and code == FRAG_NEEDED)
    if limited and not stack.icmp_host_limit.allow(now, sysctl.icmp_msgs_per_sec, sysctl.icmp_msgs_burst):
        stack.mib.IcmpOutRateLimitGlobal += 1
        return
    source = pkt.dst if pkt.dst in stack.local4 else b""
    try:
        dst = stack.dst(src, source)
    except OSError:
        return
    if limited:
        if not dst.dev.loopback and not stack.icmp_peer_limit.allow(src, now, sysctl.icmp_ratelimit):
            stack.mib.IcmpOutRateLimitHost += 1
            return
        stack.icmp_host_limit.consume()
    source = source or dst.saddr
    options = ipopts.answer(pkt.options, source, ipopts.ms_since_midnight(stack.realtime_ns())) if pkt.options else b""
    quote = pkt.data[: quote_limit(20 + len(options))]
    _count_out(stack, kind)
    # precedence "internetwork control", the rest of the TOS from the packet (RFC 1812 §4.3.2.5)
    ipv4.output(stack, dst, source, IPPROTO_ICMP, seal(kind, code, info.to_bytes(4, "big") + quote), tos=(pkt.tos & 0x1E) | 0xC0, options=options)


def _is_error(kind: int) -> bool:
    """Whether a quoted ICMP type is an error, or unknown and therefore treated as one."""
    return kind in ERRORS or kind > HIGHEST_TYPE


def local_error(stack: Stack, data: bytes, kind: int, code: int, info: int) -> None:
    """Report to ourselves that a packet of our own (`data`, from its IPv4 header) could not be delivered."""
    pkt = Packet(4, stack.lo, data, HOST, CSUM_NONE)
    pkt.off = (data[0] & 15) * 4
    pkt.tos = data[1]
    pkt.proto = data[9]
    pkt.src = data[12:16]
    pkt.dst = data[16:20]
    pkt.frag = data[6] << 8 | data[7]
    send_error(stack, pkt, kind, code, info)
