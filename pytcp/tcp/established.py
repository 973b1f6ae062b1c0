"""Header prediction: the expected segment of an established connection in as few steps as possible.

V. Jacobson's observation (1990): nearly every segment is either the next data or a pure ACK, with the
window unchanged and nothing special in the header. `predicted` recognises it and does at once what the
slow path (`input`) would do for it, in the order Linux's tcp_rcv_established does it; everything else is
left alone and reported as not handled. One rule of the model shows here: a data segment that needs fresh
pages of receive memory counts as slow path, which changes the order of ACK and data and two counters
(TCPHPHits, TCPHPAcks) but nothing else; it is handled here too when no ACK work is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import ack, delack, drs, ecn, memory, recv, rwnd, xmit
from .const import ACK, ACK_NOW, ACK_PUSHED, ACK_SCHED, POLLIN, PSH, SF_DEAD
from .flags import FLAG_DATA

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Sock

_ACK_PSH = ACK | PSH
_HALF = 0x80000000
_M32 = 0xFFFFFFFF


def predicted(sk: Sock, seg: Segment) -> bool:
    """Handle `seg`, whose sequence number is rcv_nxt, if it is what was expected; whether it was.

    `seg.seq`, `seg.ack`, `seg.end_seq` are unwrapped."""
    flags = seg.flags
    if flags | PSH != _ACK_PSH or not sk.pred or seg.window != sk.snd_wnd >> sk.snd_wscale or seg.doff << 2 != sk.tcp_header_len:
        return False
    acked = seg.ack
    snd_una = sk.snd_una
    if acked > sk.snd_nxt:
        return False
    rcv_nxt = seg.seq
    rcv_wup = sk.rcv_wup
    if sk.tstamp_ok:
        tsval = seg.tsval
        if not seg.saw_tstamp or (tsval - sk.ts_recent) & _M32 >= _HALF:
            return False
    length = seg.length
    host = sk.host
    now = host.now_ns

    if not length:
        sk.mstamp_us = now // 1000
        if sk.tstamp_ok:
            sk.rcv_tsval = tsval
            sk.rcv_tsecr = sk.rcv_rtt_last_tsecr = seg.tsecr
            if rcv_nxt == rcv_wup:
                sk.ts_recent = tsval
                sk.ts_recent_stamp_s = now // 1_000_000_000
        ack.tcp_ack(sk, seg, 0)
        xmit.data_snd_check(sk)
        return True

    if seg.end_seq > rcv_wup + sk.rcv_wnd:
        return False
    truesize = seg.truesize
    roomy = truesize <= sk.forward_alloc
    if not roomy:
        # Linux's slow path: same outcome if the ACK says nothing and there is memory
        if acked != snd_una or sk.packets_out or sk.write_queue.head is not None or sk.tlp_high_seq or sk.rmem_alloc > sk.rcvbuf:
            return False
        missing = truesize - sk.forward_alloc
        sk.forward_alloc += missing + 4095 & ~4095

    sk.mstamp_us = now // 1000
    if sk.tstamp_ok:
        sk.rcv_tsval = tsval
        tsecr = sk.rcv_tsecr = seg.tsecr
        if rcv_nxt == rcv_wup:
            sk.ts_recent = tsval
            sk.ts_recent_stamp_s = now // 1_000_000_000
        if tsecr != sk.rcv_rtt_last_tsecr:
            drs.rcv_rtt_measure_ts(sk, seg)
    if roomy:
        sk.mib.TCPHPHits += 1
    else:
        # what tcp_ack leaves behind when SEG.ACK = SND.UNA
        sk.snd_wl1 = rcv_nxt
        sk.sk_err_soft = 0
        sk.probes_out = 0
        sk.rcv_tstamp_ns = now
        sk.duplicate_sack = None

    # into the receive queue
    queue = sk.receive_queue
    if not queue or not memory.coalesce_segment(sk, queue[-1], seg):
        if queue is None:
            queue = sk.receive_queue = []
        queue.append(memory.RxChunk(seg))
        sk.rmem_alloc += truesize
        sk.forward_alloc -= truesize
    sk.bytes_received += length
    sk.rcv_nxt = rcv_nxt = seg.end_seq

    # as reassembly.event_data_recv
    pending = sk.ack_pending | ACK_SCHED
    size = seg.gso_size or length
    if size == sk.rcv_mss:
        sk.rcv_small_len = 0
        if flags & PSH:
            pending |= ACK_PUSHED
        sk.ack_pending = pending
    else:
        sk.ack_pending = pending
        rwnd.measure_rcv_mss(sk, seg)
    if rcv_nxt >= sk.rcv_rtt_seq or not sk.rcv_rtt_time_us:
        drs.rcv_rtt_measure(sk)
    sysctl = sk.sysctl
    tick = sysctl.tick_ns
    ato_min = sysctl.hz // 25
    if now - sk.lrcvtime_ns > ato_min // 2 * tick or sk.ato_jiffies != ato_min:
        delack.measure_ato(sk, now // tick)
    sk.lrcvtime_ns = now
    if sk.ecn_flags:
        ecn.data_ecn_check(sk, seg)
    if length >= 128 and sk.rcv_ssthresh < sk.window_clamp:
        rwnd.grow_window(sk, seg, True)

    if roomy:
        if acked != snd_una:
            ack.tcp_ack(sk, seg, FLAG_DATA)
            xmit.data_snd_check(sk)
            if not sk.ack_pending & ACK_SCHED:
                # data went out and carried the ACK
                _data_ready(sk)
                return True
        else:
            sk.snd_wl1 = seg.seq

    # as delack.ack_snd_check with nothing out of order
    if (
        (rcv_nxt - sk.rcv_wup > sk.rcv_mss and (rcv_nxt - sk.copied_seq < sk.rcvlowat or rwnd.wanted_window(sk) >= sk.rcv_wnd))
        or sk.ack_pending & ACK_NOW
        or (sk.quick and sk.pingpong < sysctl.tcp_pingpong_thresh)
    ):
        xmit.send_ack(sk)
    else:
        delack.send_delayed_ack(sk)
    _data_ready(sk)
    return True


def _data_ready(sk: Sock) -> None:
    if not sk.sock_flags & SF_DEAD:
        if sk.rcv_nxt - sk.copied_seq >= sk.rcvlowat:
            sk.host.wake(sk, POLLIN)
        else:
            recv.data_ready(sk)
