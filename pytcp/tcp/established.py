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

from . import ack, delack, drs, ecn, memory, reassembly, recv, rwnd, xmit
from .const import ACK, ACK_NOW, ACK_PUSHED, ACK_PUSHED2, ACK_SCHED, POLLIN, PSH, SF_DEAD
from .flags import FLAG_DATA, FLAG_SLOWPATH
from .gates import SNDBUF

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Sock

_ACK_PSH = ACK | PSH
_HALF = 0x80000000
_M32 = 0xFFFFFFFF


def predicted(sk: Sock, seg: Segment) -> bool:
    """Handle `seg`, as parsed (sequence numbers still modulo 2^32), if it is what was expected; whether it was."""
    flags = seg.flags
    rcv_nxt = sk.rcv_nxt
    if flags | PSH != _ACK_PSH or seg.seq != rcv_nxt & _M32 or seg.doff << 2 != sk.tcp_header_len:
        return False
    as_before = sk.pred and seg.window == sk.snd_wnd >> sk.snd_wscale
    # a pure ACK with a new window is half of all ACKs: what the slow path would do for it is little
    if not as_before and (seg.length or sk.ack_pending & ACK_SCHED or sk.urg_data):
        return False
    snd_una = sk.snd_una
    acked = (seg.ack - snd_una) & _M32
    if acked > sk.snd_nxt - snd_una:
        # beyond what was sent, or behind what is acknowledged: whether it is too old is to be known before its timestamp is believed
        if acked < _HALF or not as_before:
            return False
        acked -= _M32 + 1
    if sk.tstamp_ok:
        tsval = seg.tsval
        if not seg.saw_tstamp or (tsval - sk.ts_recent) & _M32 >= _HALF:
            return False
    rcv_wup = sk.rcv_wup
    length = seg.length
    host = sk.host
    now = host.now_ns

    if not length:
        seg.seq = seg.end_seq = rcv_nxt
        seg.ack = snd_una + acked
        sk.mstamp_ns = now
        if sk.tstamp_ok:
            sk.rcv_tsval = tsval
            sk.rcv_tsecr = sk.rcv_rtt_last_tsecr = seg.tsecr
            if rcv_nxt == rcv_wup:
                sk.ts_recent = tsval
                sk.ts_recent_stamp_s = now // 1_000_000_000
        if seg.tos & 3:
            ecn.received(sk, seg)
        ack.tcp_ack(sk, seg, 0 if as_before else FLAG_SLOWPATH)
        xmit.data_snd_check(sk)
        return True

    end_seq = rcv_nxt + length
    if end_seq > rcv_wup + sk.rcv_wnd:
        return False
    truesize = seg.truesize
    roomy = truesize <= sk.forward_alloc
    if not roomy:
        # Linux's slow path: the ACK comes before the data, the rest is the same if there is memory
        if sk.rmem_alloc > sk.rcvbuf or acked < 0:
            return False
        news = acked != 0 or sk.packets_out > 0 or sk.write_queue.head is not None or sk.tlp_high_seq > 0
        missing = truesize - sk.forward_alloc
        sk.forward_alloc += missing + 4095 & ~4095

    seg.seq = rcv_nxt
    seg.end_seq = end_seq
    sk.mstamp_ns = now
    if sk.tstamp_ok:
        sk.rcv_tsval = tsval
        tsecr = sk.rcv_tsecr = seg.tsecr
        if rcv_nxt == rcv_wup:
            sk.ts_recent = tsval
            sk.ts_recent_stamp_s = now // 1_000_000_000
        if tsecr != sk.rcv_rtt_last_tsecr:
            if length < sk.rcv_mss:
                # a new echo, but not of a full segment
                sk.rcv_rtt_last_tsecr = tsecr
            else:
                drs.rcv_rtt_measure_ts(sk, seg)
    if roomy:
        sk.mib.TCPHPHits += 1
    elif news:
        seg.ack = snd_una + acked
        if ack.tcp_ack(sk, seg, FLAG_SLOWPATH) < 0:
            return True
        sk.duplicate_sack = None
    else:
        # what tcp_ack leaves behind when SEG.ACK = SND.UNA
        if rcv_nxt > sk.snd_wl1:
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
    sk.rcv_nxt = end_seq

    # as reassembly.event_data_recv
    pending = sk.ack_pending | ACK_SCHED
    size = seg.gso_size or length
    rcv_mss = sk.rcv_mss
    if size == rcv_mss:
        sk.rcv_small_len = 0
        if flags & PSH and sk.sysctl.ack_full_push:
            pending |= ACK_PUSHED
        sk.ack_pending = pending
    elif size < rcv_mss and size + sk.tcp_header_len < rwnd.SHORT:
        # too short to tell anything of the peer's segment size
        sk.rcv_small_len = 0
        sk.ack_pending = pending | (ACK_PUSHED | ACK_PUSHED2 if pending & ACK_PUSHED else ACK_PUSHED)
    else:
        sk.ack_pending = pending
        rwnd.measure_rcv_mss(sk, seg)
    if end_seq >= sk.rcv_rtt_seq or not sk.rcv_rtt_time_us:
        drs.rcv_rtt_measure(sk)
    sysctl = sk.sysctl
    if now - sk.lrcvtime_ns > sysctl.ato_short_ns or sk.ato_jiffies != sysctl.ato_min:
        delack.measure_ato(sk, now // sysctl.tick_ns)
    sk.lrcvtime_ns = now
    if seg.family == 6:
        sk.lrcv_flowlabel = reassembly.flow_label(seg)
    if seg.tos & 3:
        ecn.received(sk, seg)
    if sk.ecn_flags:
        ecn.data_ecn_check(sk, seg)
    if length >= 128 and sk.rcv_ssthresh < sk.window_clamp:
        rwnd.grow_window(sk, seg, True)

    if roomy:
        if acked:
            seg.ack = snd_una + acked
            ack.tcp_ack(sk, seg, FLAG_DATA)
            if sk.write_queue.head is not None or sk.gate > SNDBUF or sk.nospace:
                xmit.data_snd_check(sk)
            if not sk.ack_pending & ACK_SCHED:
                # data went out and carried the ACK
                recv.data_ready(sk)
                return True
        else:
            sk.snd_wl1 = rcv_nxt
    elif news:
        xmit.data_snd_check(sk)
        if not sk.ack_pending & ACK_SCHED:
            recv.data_ready(sk)
            return True

    # as delack.ack_snd_check with nothing out of order
    window = -1
    if end_seq - sk.rcv_wup > sk.rcv_mss and (end_seq - sk.copied_seq < sk.rcvlowat or (window := rwnd.wanted_window(sk)) >= sk.rcv_wnd):
        # the header about to be built offers this window: no need to work it out again
        sk.window_due = window
        xmit.send_ack(sk)
        sk.window_due = -1
    elif sk.ack_pending & ACK_NOW or (sk.quick and sk.pingpong < sysctl.tcp_pingpong_thresh) or sk.dst.quickack:
        xmit.send_ack(sk)
    else:
        delack.send_delayed_ack(sk)
    if end_seq - sk.copied_seq >= sk.rcvlowat and not sk.sock_flags & SF_DEAD:
        host.wake(sk, POLLIN)
    else:
        recv.data_ready(sk)
    return True
