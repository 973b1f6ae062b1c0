"""Timestamps against old segments: PAWS and which TSval to echo (RFC 7323 §4, §5; linux-tcp §8.12).

A segment whose TSval is older than the newest one seen is a leftover of an earlier wrap or connection
and dropped, unless the newest one is itself too old to judge by (more than 2147 s). A reordered pure ACK
is let through within a replay window. A RST is never rejected for its timestamp (measured, §14).
Counters: PAWSEstab, PAWSOldAck, TCPACKSkippedPAWS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .const import ACK, NSEC_PER_MSEC, NSEC_PER_SEC

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Sock

PAWS_WINDOW = 1  # TSval units a segment may be older without being called old
PAWS_WRAP_S = 0x7FFFFFFF // 1_000_000  # age from which ts_recent proves nothing
M32 = 0xFFFFFFFF
HALF = 0x80000000

# verdicts of `check`
OK = 0
OLD = 1  # drop and answer
OLD_ACK = 2  # an old pure ACK: drop in silence


def _behind(sk: Sock, tsval: int) -> int:
    """How far `tsval` lies behind ts_recent, in TSval units; negative when it is newer."""
    d = (sk.ts_recent - tsval) & M32
    return d if d < HALF else d - (M32 + 1)


def acceptable(sk: Sock, tsval: int, window: int) -> bool:
    """Whether `tsval` passes PAWS with `window` units of tolerance."""
    if _behind(sk, tsval) <= window:
        return True
    if sk.host.now_ns // NSEC_PER_SEC >= sk.ts_recent_stamp_s + PAWS_WRAP_S:
        return True
    # a peer that sends TSval 0 with its SYN only (seen in the field): 0 proves nothing
    return not sk.ts_recent


def check(sk: Sock, seg: Segment) -> int:
    """PAWS verdict on a segment that carries a timestamp: OK, OLD or OLD_ACK."""
    if acceptable(sk, seg.tsval, PAWS_WINDOW):
        return OK
    if not seg.flags & ACK or seg.seq != seg.end_seq:
        return OLD
    if seg.seq != sk.rcv_nxt:
        return OLD_ACK if seg.seq < sk.rcv_nxt else OLD
    if seg.ack != sk.snd_una:
        return OLD
    window = seg.window << sk.snd_wscale
    if seg.seq > sk.snd_wl1 or (seg.seq == sk.snd_wl1 and (window > sk.snd_wnd or not window)):
        # it would change the send window
        return OLD
    # a duplicate ACK that the network reordered with another: 1.2 RTO of timestamps
    replay = sk.rto_ns * 12 // (10 * NSEC_PER_MSEC)
    return OLD if _behind(sk, seg.tsval) > replay else OK


def replace_ts_recent(sk: Sock, seg: Segment) -> None:
    """Take the segment's TSval as the one to echo, if it covers the last ACK sent (RFC 7323 §4.3 (3))."""
    if seg.saw_tstamp and sk.tstamp_ok and seg.seq <= sk.rcv_wup and acceptable(sk, seg.tsval, 0):
        sk.ts_recent = seg.tsval
        sk.ts_recent_stamp_s = sk.host.now_ns // NSEC_PER_SEC
