"""Delayed ACKs: when a received segment is acknowledged at once, and how long the ACK may wait otherwise.

Three forces (linux-tcp §8.11, §14). Quick ACKs: a budget of up to 16 immediate ACKs at the start, after
a pause longer than the RTO and after anything unusual, for a sender in slow start. Ping-pong: a
connection that answers data within the ACK timeout is interactive, its ACKs ride on the answers. The
timeout itself (`ato`, jiffies) follows the gaps between segments, 40 ms at the least, bounded by srtt.
RFC 1122 §4.2.3.2 (delay < 500 ms, an ACK for every second full segment), RFC 5681 §4.2.
Sysctls: tcp_pingpong_thresh, pytcp.hz. Counters: DelayedACKs, TCPAckCompressed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import rwnd, sack_send, timers, xmit
from .const import (
    ACK_NOW,
    ACK_PUSHED,
    ACK_SCHED,
    ACK_TIMER,
    CLOSE,
    LISTEN,
    MAX_QUICKACKS,
    SF_CLOSE_WAIT,
    SF_ESTABLISHED,
)
from .sock import NEVER

if TYPE_CHECKING:
    from .sock import Sock

_WAITING = ACK_SCHED | ACK_TIMER  # an ACK that waits for its timer

# ---------------------------------------------------------------- modes


def in_pingpong(sk: Sock) -> bool:
    return sk.pingpong >= sk.sysctl.tcp_pingpong_thresh


def enter_pingpong(sk: Sock) -> None:
    sk.pingpong = sk.sysctl.tcp_pingpong_thresh


def exit_pingpong(sk: Sock) -> None:
    sk.pingpong = 0


def in_quickack_mode(sk: Sock) -> bool:
    """Whether each segment is acknowledged at once: budget left and not interactive, or the route wants it."""
    if sk.quick > 0 and sk.pingpong < sk.sysctl.tcp_pingpong_thresh:
        return True
    dst = sk.dst
    return dst is not None and dst.quickack


def incr_quickack(sk: Sock, most: int) -> None:
    """Fill the budget: half the segments of a full window, at least 2, at most `most`; never lowers it."""
    quick = sk.rcv_wnd // (2 * sk.rcv_mss) or 2
    sk.quick = max(sk.quick, min(quick, most))


def enter_quickack_mode(sk: Sock, most: int) -> None:
    """Something unusual arrived: up to `most` ACKs at once, interactive or not."""
    incr_quickack(sk, most)
    sk.pingpong = 0
    sk.ato_jiffies = sk.sysctl.ato_min


def forget(sk: Sock) -> None:
    """A socket begins to listen: what it was told about ACKs before does not count."""
    sk.quick = sk.pingpong = sk.ato_jiffies = 0


def inherit(child: Sock, sk: Sock) -> None:
    """A child is as interactive as its listener was told to be."""
    child.pingpong = sk.pingpong


def set_quickack(sk: Sock, value: int) -> None:
    """TCP_QUICKACK: 0 = interactive from now on; odd = quick ACKs, a pending one now if the queue is
    drained (or more than a segment is unacknowledged); even = that ACK only."""
    if not value:
        enter_pingpong(sk)
        return
    exit_pingpong(sk)
    if 1 << sk.state & (SF_ESTABLISHED | SF_CLOSE_WAIT) and sk.ack_pending & ACK_SCHED:
        sk.ack_pending |= ACK_PUSHED
        rwnd.cleanup_rbuf(sk, 1)
        if not value & 1:
            enter_pingpong(sk)


# ---------------------------------------------------------------- events


def schedule_ack(sk: Sock) -> None:
    """An ACK is owed; when it goes is decided at the end of input processing or by the reader."""
    sk.ack_pending |= ACK_SCHED


def measure_ato(sk: Sock, now_jiffies: int) -> None:
    """A data segment came: move the ACK timeout towards the gap since the last one.

    Call before `lrcvtime_ns` is set to now."""
    sysctl = sk.sysctl
    ato_min = sysctl.ato_min
    ato = sk.ato_jiffies
    if not ato:
        # first data of the connection
        incr_quickack(sk, MAX_QUICKACKS)
        sk.ato_jiffies = ato_min
        return
    gap = now_jiffies - sk.lrcvtime_ns // sysctl.tick_ns
    if gap <= ato_min // 2:
        sk.ato_jiffies = (ato >> 1) + ato_min // 2
    elif gap < ato:
        sk.ato_jiffies = min((ato >> 1) + gap, sk.rto_ns // sysctl.tick_ns)
    elif gap > sk.rto_ns // sysctl.tick_ns:
        # the sender restarts, probably from a small window: let it grow fast
        incr_quickack(sk, MAX_QUICKACKS)


def event_ack_sent(sk: Sock, _segs: int) -> None:
    """A segment with ACK leaves: nothing is owed any more, one quick ACK is spent if one was owed."""
    if sk.compressed_ack:
        sk.mib.TCPAckCompressed += sk.compressed_ack
        sk.compressed_ack = 0
        sk.compressed_ack_deadline = NEVER
    quick = sk.quick
    if quick:
        spent = sk.ack_pending & ACK_SCHED
        if spent >= quick:
            sk.quick = 0
            sk.ato_jiffies = sk.sysctl.ato_min
        else:
            sk.quick = quick - spent
    sk.ack_pending = 0
    sk.delack_deadline = NEVER
    sk.duplicate_sack = None


def event_data_sent(sk: Sock) -> None:
    """Data leaves: within the ACK timeout of the last received data it is an answer, the connection interactive."""
    tick = sk.sysctl.tick_ns
    if sk.host.now_ns // tick - sk.lrcvtime_ns // tick < sk.ato_jiffies:
        sk.pingpong += 1


# ---------------------------------------------------------------- the decision


def ack_snd_check(sk: Sock) -> None:
    """Input is processed: send the ACK that is owed, compress it, or let it wait."""
    if not sk.ack_pending & ACK_SCHED:
        return
    if must_ack_now(sk):
        xmit.send_ack(sk)
    elif sk.ofo_queue:
        sack_send.compress(sk)
    else:
        send_delayed_ack(sk)


def must_ack_now(sk: Sock) -> bool:
    """Whether the ACK that is owed must not wait."""
    if sk.rcv_nxt - sk.rcv_wup > sk.rcv_mss and (sk.rcv_nxt - sk.copied_seq < sk.rcvlowat or rwnd.wanted_window(sk) >= sk.rcv_wnd):
        # more than a full segment, and the right edge can advance (else the reader's ACK will tell)
        return True
    return sk.ack_pending & ACK_NOW != 0 or in_quickack_mode(sk)


def delack_max(sk: Sock) -> int:
    """Longest delay of an ACK in jiffies: the option's, but one tick less than the smallest RTO."""
    tick = sk.sysctl.tick_ns
    most = sk.delack_max_ns // tick
    rto_min = -(-sk.rto_min_us * 1000 // tick)
    if most < rto_min:
        return most
    return rto_min - 1 if rto_min > 2 else 1 if most else 0


def send_delayed_ack(sk: Sock) -> None:
    """Let the owed ACK wait for the timeout, or send it when an earlier timer is about to fire anyway."""
    sysctl = sk.sysctl
    tick = sysctl.tick_ns
    ato = sk.ato_jiffies
    delack_min = sysctl.ato_min
    pending = sk.ack_pending
    if ato > delack_min:
        hz = sysctl.hz
        longest = hz // 5 if pending & ACK_PUSHED or sk.pingpong >= sysctl.tcp_pingpong_thresh else hz // 2
        if sk.srtt_us:
            rtt = max(-(-(sk.srtt_us >> 3) * 1000 // tick), delack_min)
            longest = min(longest, rtt)
        ato = min(ato, longest)
    wait = ato * tick
    if wait > sk.delack_max_ns or wait >= sk.rto_min_us * 1000:
        ato = min(ato, delack_max(sk))
    now = sk.host.now_ns // tick
    if pending & ACK_TIMER:
        running = sk.delack_timeout
        if running <= now + (ato >> 2):
            xmit.send_ack(sk)
            return
        if running <= now + ato:
            sk.ack_pending = pending | _WAITING
            return
    sk.ack_pending = pending | _WAITING
    sk.delack_timeout = timeout = now + ato
    # short timers lie on the wheel's first level, where nothing but the next tick is rounded to
    sk.delack_deadline = when = (timeout + 1) * tick if ato < timers.FIRST_LEVEL else timers.expiry(sk, ato * tick)
    if when < sk.heap_when:
        timers.touch(sk, when)


def timer(sk: Sock) -> None:
    """The delayed-ACK timer fired."""
    if sk.state == CLOSE or sk.state == LISTEN:
        return
    if sk.compressed_ack:
        sack_send.flush(sk)
        return
    if not sk.ack_pending & ACK_TIMER:
        return
    sk.ack_pending &= ~ACK_TIMER
    if sk.ack_pending & ACK_SCHED:
        if sk.pingpong < sk.sysctl.tcp_pingpong_thresh:
            # nobody spoke in time: wait longer next time
            sk.ato_jiffies = min(sk.ato_jiffies << 1, sk.rto_ns // sk.sysctl.tick_ns)
        else:
            # not interactive after all
            sk.pingpong = 0
            sk.ato_jiffies = sk.sysctl.ato_min
        sk.mstamp_ns = sk.host.now_ns
        xmit.send_ack(sk)
        sk.mib.DelayedACKs += 1
