"""Answers to segments that cannot be right, and how often they are given.

RFC 5961: a RST or SYN that is merely inside the window proves nothing; the answer is an ACK (the
"challenge") that lets a genuine peer try again with exact numbers and tells a blind attacker nothing.
Two hosts must not answer each other's answers for ever, so dataless replies are limited to one per
tcp_invalid_ratelimit (500 ms) and connection, one clock for all kinds (3.19, 032ee4236954); challenges
may have a budget per second and host besides, off by default since 5.19 (79e3602caa6f), randomised
because its exhaustion was visible to third parties (4.7, 75ff39ccc1bd).
Counters: TCPChallengeACK, TCPACKSkippedChallenge and its sisters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from . import xmit
from .const import FIN, NSEC_PER_MSEC, NSEC_PER_SEC, SYN

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Host, Sock

INT_MAX = 0x7FFFFFFF


class Limited(Protocol):
    """A Sock, a half-open connection or a TIME-WAIT block."""

    host: Host
    last_oow_ack_ns: int


def _limited(who: Limited, counter: str) -> bool:
    host = who.host
    now = host.now_ns
    last = who.last_oow_ack_ns
    if last:
        tick = host.sysctl.tick_ns
        elapsed = now // tick - last // tick
        if elapsed * tick < host.sysctl.tcp_invalid_ratelimit * NSEC_PER_MSEC:
            mib = host.mib
            setattr(mib, counter, getattr(mib, counter) + 1)
            return True
    who.last_oow_ack_ns = now or 1
    return False


def oow_rate_limited(who: Limited, seg: Segment, counter: str) -> bool:
    """Whether the answer to an unacceptable segment must be swallowed now; counts it under `counter`.

    Segments with data (and FINs) cannot be part of an ACK loop and are always answered."""
    if (seg.length or seg.flags & FIN) and not seg.flags & SYN:
        return False
    return _limited(who, counter)


def allowed(who: Limited) -> bool:
    """Whether the limits let a suspicious segment be answered now; it is counted as answered."""
    if _limited(who, "TCPACKSkippedChallenge"):
        return False
    host = who.host
    limit = host.sysctl.tcp_challenge_ack_limit
    if limit != INT_MAX and not _take_budget(host, limit):
        return False
    host.mib.TCPChallengeACK += 1
    return True


def send_challenge_ack(sk: Sock) -> None:
    """Answer a suspicious segment with a pure ACK, within the limits."""
    if allowed(sk):
        xmit.send_ack(sk)


def _take_budget(host: Host, limit: int) -> bool:
    """One of this second's challenges: between half and one and a half times `limit` of them."""
    state = host.mib.sockstat
    second = host.now_ns // NSEC_PER_SEC
    if second != state.challenge_second:
        state.challenge_second = second
        state.challenge_left = (limit + 1 >> 1) + (host.random32() % limit if limit else 0)
    if not state.challenge_left:
        return False
    state.challenge_left -= 1
    return True
