"""Dynamic right-sizing: the receive buffer grows with what the program reads per round trip.

Once per receiver-side RTT the bytes copied to the program in that time (less what still waits in the
queue, 6.16) are compared with the best so far; when they grew, the buffer becomes large enough for twice
that, and for the sender's slow start on top (linux-tcp §7.5; W. Feng and M. Fisk, 2001). The receiver's
RTT comes from timestamp echoes of full segments, else from the time a whole window takes to arrive.
SO_RCVBUF or tcp_moderate_rcvbuf=0 switch the growth off. Before 6.16 all that was read counted, with room
for 16 segments more. Sysctls: tcp_moderate_rcvbuf, tcp_rmem[2], pytcp.drs, pytcp.rcvbuf_low_rtt_us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import rwnd

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Sock

M32 = 0xFFFFFFFF


def rcv_rtt_measure(sk: Sock) -> None:
    """A segment came: if a window's worth has arrived since the measurement began, that took one RTT at most."""
    now = sk.mstamp_ns // 1000
    if sk.rcv_rtt_time_us:
        if sk.rcv_nxt < sk.rcv_rtt_seq:
            return
        _update(sk, max(now - sk.rcv_rtt_time_us, 1), True)
    sk.rcv_rtt_seq = sk.rcv_nxt + sk.rcv_wnd
    sk.rcv_rtt_time_us = now


def rcv_rtt_measure_ts(sk: Sock, seg: Segment) -> None:
    """One sample per new timestamp echo, from segments that are full (others may have been delayed)."""
    tsecr = seg.tsecr
    if tsecr == sk.rcv_rtt_last_tsecr:
        return
    sk.rcv_rtt_last_tsecr = tsecr
    if seg.end_seq - seg.seq >= sk.rcv_mss:
        ms = (sk.host.now_ns // 1_000_000 + sk.ts_offset - tsecr) & M32
        # less than a timestamp tick says nothing; an absurd age is an echo of something else
        if 0 < ms < 0x7FFFFFFF // 1000:
            _update(sk, ms * 1000, False)


def _update(sk: Sock, sample_us: int, win_dep: bool) -> None:
    """Take a sample into rcv_rtt_us (kept times 8): smaller ones at once, larger ones by 1/8.

    `win_dep`: the sample is an upper bound only. While the program lags behind, larger samples measure
    the program, not the network."""
    old = sk.rcv_rtt_us
    new = sample_us << 3
    if old and new >= old:
        if win_dep or sk.rcv_nxt != sk.copied_seq:
            return
        new = old - (old >> 3) + sample_us
    sk.rcv_rtt_us = new


def rcv_space_adjust(sk: Sock) -> None:
    """The program has read: once per RTT, see whether the buffer should grow."""
    rtt = sk.rcv_rtt_us
    if not rtt:
        return
    now = sk.host.now_ns // 1000
    if now - sk.rcvq_time_us < rtt >> 3:
        return
    copied_seq = sk.copied_seq
    copied = copied_seq - sk.rcvq_seq
    if sk.sysctl.drs == "unqueued":
        copied -= sk.rcv_nxt - copied_seq
    if copied > sk.rcvq_space:
        rcvbuf_grow(sk, copied)
    sk.rcvq_seq = copied_seq
    sk.rcvq_time_us = now


def rcvbuf_grow(sk: Sock, copied: int) -> None:
    """Make room for a sender that doubles its rate from `copied` bytes per RTT, and for what waits out of order."""
    old = sk.rcvq_space
    sk.rcvq_space = copied
    if not sk.sysctl.tcp_moderate_rcvbuf or sk.rcvbuf_locked:
        return
    # the measurement is one RTT late, hence twice; the rest is the growth since the last one, twice
    window = copied << 1
    if sk.sysctl.drs == "copied":
        window += 16 * sk.advmss
    low_rtt = sk.sysctl.rcvbuf_low_rtt_us
    rtt = sk.rcv_rtt_us >> 3
    if rtt < low_rtt:
        window += window * rtt // low_rtt
    else:
        window += (window * (copied - old) // old) << 1
    ofo = sk.ofo_queue
    if ofo and sk.sysctl.drs == "unqueued":
        window += ofo[-1].end_seq - sk.rcv_nxt
    rcvbuf = min(rwnd.space_from_win(sk, window), sk.sysctl.tcp_rmem[2])
    if rcvbuf > sk.rcvbuf:
        sk.rcvbuf = rcvbuf
        sk.window_clamp = rwnd.win_from_space(sk, rcvbuf)
