"""Loss recovery: the congestion states, entering and leaving them, and resending what is lost.

Open → Disorder (SACKs or dupacks) → Recovery (something is lost) → Open; CWR on ECN or local
congestion; Loss on RTO (linux-tcp §8.3, §8.6). Retransmissions go in sequence order, lost ones only,
as cwnd and small queues allow. Counters: TCPFastRetrans, TCPSlowStartRetrans, TcpRetransSegs,
TCPSackRecovery, TCPRenoRecovery, TCPSACKReneging, TCPSpuriousRtxHostQueues, TCPWqueueTooBig.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import cwnd, ecn, frto, gates, memory, mtu, mtu_probe, pacing, prr, rack, sack, timers, tso, tsq, undo, xmit
from . import trace as tracing
from .const import (
    CA_CWR,
    CA_DISORDER,
    CA_EVENT_LOSS,
    CA_LOSS,
    CA_OPEN,
    CA_RECOVERY,
    CWR,
    ECE,
    EVER_RETRANS,
    FIN,
    INFINITE_SSTHRESH,
    LOST,
    NAGLE_OFF,
    NSEC_PER_MSEC,
    PENDING_REO_TIMEOUT,
    PENDING_RETRANS,
    SACKED_ACKED,
    SACKED_RETRANS,
    SYN,
    SYN_SENT,
)
from .flags import FLAG_ECE, FLAG_LOST_RETRANS, FLAG_SACK_RENEGING, FLAG_SET_XMIT_TIMER, FLAG_SND_UNA_ADVANCED

if TYPE_CHECKING:
    from .skb import Skb
    from .sock import Sock

__all__ = [
    "enter_cwr",
    "enter_loss",
    "enter_recovery",
    "fastretrans_alert",
    "retransmit_skb",
    "xmit_recovery",
    "xmit_retransmit_queue",
]


def in_initial_slowstart(sk: Sock) -> bool:
    return sk.snd_ssthresh >= INFINITE_SSTHRESH


def set_ca_state(sk: Sock, state: int) -> None:
    sk.ca.set_state(sk, state)
    if sk.trace is not None and state != sk.ca_state:
        tracing.ca_state(sk.trace, sk, state)
    sk.ca_state = state


# ---------------------------------------------------------------- entering and leaving


def init_undo(sk: Sock) -> None:
    """Remember where this episode began, so that it can be undone."""
    sk.undo_marker = sk.snd_una
    # a TLP retransmission counts; -1 = nothing was retransmitted yet
    sk.undo_retrans = sk.retrans_out
    if sk.tlp_high_seq and sk.tlp_retrans:
        sk.undo_retrans += 1
    if not sk.undo_retrans:
        sk.undo_retrans = -1


def enter_cwr(sk: Sock) -> None:
    """Reduce the window once without a loss: ECN echo or local congestion."""
    sk.prior_ssthresh = 0
    if sk.ca_state < CA_CWR:
        sk.undo_marker = 0
        prr.init_cwnd_reduction(sk)
        set_ca_state(sk, CA_CWR)


def enter_recovery(sk: Sock, ece_ack: bool) -> None:
    """Something is lost: fast recovery begins. In CWR it goes on with CWR's ssthresh and high_seq."""
    if not undo.any_retrans_done(sk):
        sk.retrans_stamp = 0
    if sk.sack_ok:
        sk.mib.TCPSackRecovery += 1
    else:
        sk.mib.TCPRenoRecovery += 1
    sk.prior_ssthresh = 0
    init_undo(sk)
    if sk.ca_state != CA_CWR:
        if not ece_ack:
            sk.prior_ssthresh = cwnd.current_ssthresh(sk)
        prr.init_cwnd_reduction(sk)
    set_ca_state(sk, CA_RECOVERY)


def _mark_all_lost(sk: Sock) -> None:
    """RTO: everything in flight counts as lost, except what RACK still expects."""
    head = sk.rtx_queue.head
    reneging = head is not None and bool(head.sacked & SACKED_ACKED)
    if reneging:
        sk.mib.TCPSACKReneging += 1
        sk.sacked_out = 0
        sk.sack_reneged = True
    elif not sk.sack_ok:
        sack.reset_reno_sack(sk)
    for skb in sk.rtx_queue:
        if reneging:
            skb.sacked &= ~SACKED_ACKED
        elif skb is not head and rack.skb_timeout_us(sk, skb, 0) > 0:
            # sent too recently to be given up together with the head
            continue
        rack.mark_skb_lost(sk, skb, "rto")
    if reneging:
        sk.highest_sack = sk.rtx_queue.head
        sk.recv_sack_cache = None


def enter_loss(sk: Sock) -> None:
    """RTO: slow start over from one packet (RFC 5681 §3.1, linux-tcp §8.3)."""
    new_recovery = sk.ca_state < CA_RECOVERY
    _mark_all_lost(sk)
    if sk.ca_state <= CA_DISORDER or sk.snd_una >= sk.high_seq or (sk.ca_state == CA_LOSS and not sk.retransmits):
        sk.prior_ssthresh = cwnd.current_ssthresh(sk)
        sk.prior_cwnd = sk.snd_cwnd
        sk.snd_ssthresh = sk.ca.ssthresh(sk)
        sk.ca.cwnd_event(sk, CA_EVENT_LOSS)
        init_undo(sk)
    sk.snd_cwnd = sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out + 1
    sk.snd_cwnd_cnt = 0
    sk.cwnd_stamp = sk.host.now_ns
    reordering = sk.sysctl.tcp_reordering
    if sk.ca_state <= CA_DISORDER and sk.sacked_out >= reordering:
        sk.reordering = min(sk.reordering, reordering)
    set_ca_state(sk, CA_LOSS)
    sk.high_seq = sk.snd_nxt
    sk.tlp_high_seq = 0
    ecn.queue_cwr(sk)
    sk.frto = bool(sk.sysctl.tcp_frto) and (new_recovery or sk.retransmits > 0)
    if sk.mtu_probe is not None and sk.mtu_probe.size:
        sk.frto = False


def simple_retransmit(sk: Sock) -> None:
    """The path MTU fell: resend everything that no longer fits, without a congestion response."""
    # a SYN with data did not fit: it goes again without
    mss = -1 if sk.state == SYN_SENT and sk.fastopen is not None and sk.fastopen.syn_data else mtu.current_mss(sk)
    for skb in sk.rtx_queue:
        if (skb.gso_size or skb.length) > mss:
            rack.mark_skb_lost(sk, skb, "mtu")
    if not sk.lost_out:
        return
    if not sk.sack_ok:
        sk.sacked_out = min(sk.sacked_out, sk.packets_out - sk.lost_out)
    non_congestion_loss(sk)


def non_congestion_loss(sk: Sock) -> None:
    """Resend what is marked lost, and was not lost to congestion: the window stays."""
    if sk.ca_state != CA_LOSS:
        sk.high_seq = sk.snd_nxt
        sk.snd_ssthresh = max(sk.snd_ssthresh if sk.ca_state in (CA_CWR, CA_RECOVERY) else cwnd.current_ssthresh(sk), 2)
        sk.prior_ssthresh = 0
        sk.undo_marker = 0
        set_ca_state(sk, CA_LOSS)
    xmit_retransmit_queue(sk)


def _end_rto_time(sk: Sock) -> None:
    """The Loss state is left: add its duration to tcpi_total_rto_time."""
    if sk.rto_stamp:
        sk.total_rto_time_ms += sk.host.now_ns // NSEC_PER_MSEC - sk.rto_stamp
        sk.rto_stamp = 0


def try_keep_open(sk: Sock) -> None:
    """Back to Open, or Disorder while something is still marked or being retransmitted."""
    state = CA_OPEN
    if sk.sacked_out or sk.lost_out or undo.any_retrans_done(sk):
        state = CA_DISORDER
    if sk.ca_state != state:
        set_ca_state(sk, state)
        sk.high_seq = sk.snd_nxt


def try_to_open(sk: Sock, flag: int) -> None:
    if not undo.any_retrans_done(sk):
        sk.retrans_stamp = 0
    if flag & FLAG_ECE:
        enter_cwr(sk)
    if sk.ca_state != CA_CWR:
        try_keep_open(sk)


# ---------------------------------------------------------------- the state machine


def _check_sack_reneging(sk: Sock, flag: int) -> bool:
    """The ACK stops at data that was SACKed: give the peer max(srtt/2, 10 ms), then distrust it."""
    if flag & (FLAG_SACK_RENEGING | FLAG_SND_UNA_ADVANCED) != FLAG_SACK_RENEGING | FLAG_SND_UNA_ADVANCED:
        return False
    delay_us = max(sk.srtt_us >> 4, 10_000)
    timers.arm_retrans(sk, delay_us * 1000)
    return True


def _identify_loss(sk: Sock, flag: int) -> int:
    """Run the loss detector; returns the flags of this ACK, changed by what it found."""
    if sk.rtx_queue.head is None:
        return flag
    if not sk.sack_ok:
        rack.newreno_mark_lost(sk, bool(flag & FLAG_SND_UNA_ADVANCED))
        return flag
    prior_retrans = sk.retrans_out
    if rack.mark_lost(sk):
        # the reordering timer is running: do not overwrite it
        flag &= ~FLAG_SET_XMIT_TIMER
    if prior_retrans > sk.retrans_out:
        flag |= FLAG_LOST_RETRANS
    return flag


def fastretrans_alert(sk: Sock, prior_snd_una: int, num_dupack: int, flag: int) -> tuple[int, int]:
    """A dubious ACK, or any ACK outside Open. Returns (what to send: frto.REXMIT_*, flags)."""
    if not sk.packets_out and sk.sacked_out:
        sk.sacked_out = 0
    if flag & FLAG_ECE:
        sk.prior_ssthresh = 0
    if _check_sack_reneging(sk, flag):
        return frto.REXMIT_NONE, flag & ~FLAG_SET_XMIT_TIMER
    advanced = bool(flag & FLAG_SND_UNA_ADVANCED)
    if sk.ca_state == CA_OPEN:
        sk.retrans_stamp = 0
    elif sk.snd_una >= sk.high_seq:
        if sk.ca_state == CA_CWR:
            # CWR holds until something beyond high_seq is acknowledged
            if sk.snd_una != sk.high_seq:
                prr.end_cwnd_reduction(sk)
                set_ca_state(sk, CA_OPEN)
        elif sk.ca_state == CA_RECOVERY:
            if not sk.sack_ok:
                sack.reset_reno_sack(sk)
            if undo.try_undo_recovery(sk):
                return frto.REXMIT_NONE, flag
            prr.end_cwnd_reduction(sk)

    ece_ack = bool(flag & FLAG_ECE)
    if sk.ca_state == CA_RECOVERY:
        if not advanced:
            if not sk.sack_ok:
                sack.add_reno_sack(sk, num_dupack, ece_ack)
        elif undo.try_undo_partial(sk, prior_snd_una):
            return frto.REXMIT_NONE, flag
        if undo.try_undo_dsack(sk):
            try_to_open(sk, flag)
        flag = _identify_loss(sk, flag)
        if sk.ca_state != CA_RECOVERY:
            if not sk.lost_out:
                return frto.REXMIT_NONE, flag
            enter_recovery(sk, ece_ack)
        return frto.REXMIT_LOST, flag
    if sk.ca_state == CA_LOSS:
        rexmit = frto.process_loss(sk, flag, num_dupack)
        if sk.ca_state != CA_LOSS:
            _end_rto_time(sk)
        flag = _identify_loss(sk, flag)
        # Loss undone, or a retransmission lost in turn: as from any other state
        if sk.ca_state != CA_OPEN and not flag & FLAG_LOST_RETRANS:
            return rexmit, flag

    if not sk.sack_ok:
        if advanced:
            sack.reset_reno_sack(sk)
        sack.add_reno_sack(sk, num_dupack, ece_ack)
    if sk.ca_state <= CA_DISORDER:
        undo.try_undo_dsack(sk)
    flag = _identify_loss(sk, flag)
    if not sk.lost_out:
        try_to_open(sk, flag)
        return frto.REXMIT_NONE, flag
    if sk.mtu_probe is not None and mtu_probe.failed(sk):
        return frto.REXMIT_NONE, flag
    enter_recovery(sk, ece_ack)
    return frto.REXMIT_LOST, flag


def xmit_recovery(sk: Sock, rexmit: int) -> None:
    """Send what recovery calls for."""
    if rexmit == frto.REXMIT_NONE or sk.state == SYN_SENT:
        return
    if rexmit == frto.REXMIT_NEW:
        xmit.push_pending_frames(sk, mtu.current_mss(sk), NAGLE_OFF)
        if sk.snd_nxt > sk.high_seq:
            return
        sk.frto = False
    xmit_retransmit_queue(sk)


# ---------------------------------------------------------------- resending


# two skbs of 64 KiB beyond sndbuf: what splitting may add to the queue's memory
FRAGMENT_SLACK = 2 * (65536 + 576)


def fragment(sk: Sock, skb: Skb, n: int, mss: int) -> Skb | None:
    """Cut an skb of the retransmit queue behind `n` payload bytes; returns the rest, linked in.

    None where a peer that tears the queue apart by SACK blocks would make it too big (CVE-2019-11478)."""
    queue = sk.rtx_queue
    if sk.wmem_queued >> 1 > sk.sndbuf + FRAGMENT_SLACK and skb is not queue.head and skb is not queue.tail:
        sk.mib.TCPWqueueTooBig += 1
        return None
    old = skb.pcount
    rest = tso.fragment(sk, skb, n, mss)
    queue.insert_after(skb, rest)
    if skb.tprev is not None or sk.tsorted.head is skb:
        sk.tsorted.insert_after(skb, rest)
    _adjust_pcount(sk, skb, old - skb.pcount - rest.pcount)
    return rest


# of resend: the window shrank, and the segment is not the head
BEYOND_WINDOW = -11


def host_queue_guard(sk: Sock, skb: Skb) -> bool:
    """Whether the original is still in our own host's queue: a retransmission would be absurd."""
    if not skb.in_host:
        return False
    tsq.set_throttled(sk)
    if skb.in_host:
        sk.mib.TCPSpuriousRtxHostQueues += 1
        gates.hold(sk, gates.HOST_QUEUE)
        return True
    return False


def resend(sk: Sock, skb: Skb, quota: int, why: str = "mss", cause: str = "rto") -> int:
    """Send (part of) `skb` again, `quota` segments at most.

    For the trace: `why` so few, and what it is resent for. Returns 0, a negative errno-like refusal, or >0 when the host dropped it."""
    if sk.mtu_probe is not None:
        sk.mtu_probe.size = 0  # the probe under way proves nothing any more
    if host_queue_guard(sk, skb):
        return -16
    if skb.seq < sk.snd_una:
        if skb.end_seq <= sk.snd_una:
            return -22
        if not skb.flags & SYN:
            trim_head(sk, skb, sk.snd_una - skb.seq)
    error = sk.host.fresh_route(sk)
    if error:
        return error
    mss = mtu.current_mss(sk)
    avail = sk.snd_una + sk.snd_wnd - skb.seq
    if avail <= 0:
        # the window shrank: only the head may still go, as a probe
        if skb.seq != sk.snd_una:
            return BEYOND_WINDOW
        avail = mss
    limit = mss * quota
    if limit > avail:
        limit = avail // mss * mss or avail
        why = "window"
    if skb.length > limit:
        if fragment(sk, skb, limit, mss) is None:
            return -12
    else:
        old = skb.pcount
        tso.set_pcount(skb, mss)
        _adjust_pcount(sk, skb, old - skb.pcount)
        why = "again"
        room = min(avail, mss)
        if skb.length < room:
            _try_collapse(sk, skb, room)
    if skb.flags & SYN and skb.flags & (ECE | CWR) == ECE | CWR and sk.sysctl.tcp_ecn_fallback and not skb.flags & 0x10:
        # the first SYN got no answer: maybe ECN is what stood in the way
        skb.flags &= ~(ECE | CWR)
        sk.ecn_flags &= ~ecn.OK
    segs = skb.pcount
    sk.mib.TcpRetransSegs += segs
    if skb.flags & SYN:
        sk.mib.TCPSynRetrans += 1
    sk.total_retrans += segs
    sk.bytes_retrans += skb.length
    skb.retrans += 1
    error = xmit.transmit_skb(sk, skb)
    # also when it failed: the time stamp is that of the attempt, no RTT may come of it
    skb.sacked |= EVER_RETRANS
    if error:
        sk.mib.TCPRetransFail += segs
    elif sk.trace is not None:
        tracing.xmit(sk.trace, sk, skb, why, quota, quota, 1)
        tracing.retransmit(sk.trace, sk, skb, cause)
    return error


def _adjust_pcount(sk: Sock, skb: Skb, fewer: int) -> None:
    """`skb` is cut differently now and counts `fewer` packets (or more, when negative)."""
    if not fewer:
        return
    sk.packets_out -= fewer
    if skb.sacked & SACKED_ACKED:
        sk.sacked_out -= fewer
    if skb.sacked & SACKED_RETRANS:
        sk.retrans_out -= fewer
    if skb.sacked & LOST:
        sk.lost_out -= fewer
    if not sk.sack_ok and fewer > 0:
        sk.sacked_out -= min(sk.sacked_out, fewer)


def trim_head(sk: Sock, skb: Skb, n: int) -> None:
    """Drop the first `n` acknowledged payload bytes."""
    skb.frags = tso.split_frags(skb.frags, n)[1]
    skb.seq += n
    skb.length -= n
    skb.truesize -= n
    memory.uncharge_send(sk, n)


def _try_collapse(sk: Sock, skb: Skb, room: int) -> None:
    """Merge small neighbours into a retransmission (tcp_retrans_collapse)."""
    if not sk.sysctl.tcp_retrans_collapse or skb.flags & SYN or skb.pcount > 1:
        return
    nxt = skb.next
    while nxt is not None:
        follower = nxt.next
        if nxt.pcount > 1 or nxt.flags & SYN or nxt.sacked & SACKED_ACKED or skb.eor or nxt.in_host or skb.is_zerocopy() or nxt.is_zerocopy():
            return
        if skb.length + nxt.length > room or skb.flags & FIN:
            return
        if nxt.end_seq > sk.snd_una + sk.snd_wnd:
            return
        skb.frags = [*skb.frags, *nxt.frags]
        skb.length += nxt.length
        skb.end_seq = nxt.end_seq
        skb.flags |= nxt.flags
        skb.eor = nxt.eor
        skb.sacked |= nxt.sacked & EVER_RETRANS
        skb.truesize += nxt.length
        memory.uncharge_send(sk, nxt.truesize - nxt.length)
        if nxt.stamp is not None:
            skb.stamp = nxt.stamp
        if nxt.slabs:
            skb.share_slabs(nxt)
            nxt.free_slabs()
        _adjust_pcount(sk, nxt, 1)
        unlink_rtx(sk, nxt, skb)
        nxt = follower


def unlink_rtx(sk: Sock, skb: Skb, heir: Skb) -> None:
    """Take an skb out of the retransmit queue; `heir` has its bytes now and what points to it."""
    if sk.retransmit_hint is skb:
        sk.retransmit_hint = heir
    if sk.highest_sack is skb:
        sk.highest_sack = heir
    if skb.tprev is not None or sk.tsorted.head is skb:
        sk.tsorted.remove(skb)
    sk.rtx_queue.remove(skb)


def retransmit_skb(sk: Sock, skb: Skb, segs: int, why: str = "mss", cause: str = "rto") -> int:
    """`resend`, and the scoreboard's book-keeping."""
    error = resend(sk, skb, segs, why, cause)
    if not error:
        skb.sacked |= SACKED_RETRANS
        sk.retrans_out += skb.pcount
    if not sk.retrans_stamp:
        sk.retrans_stamp = (skb.tx_ns or sk.host.now_ns) // NSEC_PER_MSEC
    if sk.undo_retrans < 0:
        sk.undo_retrans = 0
    sk.undo_retrans += skb.pcount
    return error


def hold_lost(sk: Sock, gate: int) -> None:
    """Resending ended: what is still lost and not sent again waits at `gate`; new data that is queued has its own."""
    if sk.lost_out > sk.retrans_out:
        if gate != sk.gate:
            gates.switch(sk, gate)
    elif sk.write_queue.head is None:
        gates.idle(sk)


def xmit_retransmit_queue(sk: Sock) -> None:
    """Resend lost segments, oldest first, while the congestion window has room."""
    if not sk.packets_out:
        return
    head = sk.rtx_queue.head
    skb = sk.retransmit_hint or head
    max_segs = tso.tso_segs(sk, mtu.current_mss(sk))
    hole: Skb | None = None
    rearm = False
    gate = gates.CWND
    while skb is not None:
        if sk.pacing_status == 1 and pacing.check(sk):
            gate = gates.PACING
            break
        if hole is None:
            sk.retransmit_hint = skb
        segs = sk.snd_cwnd - (sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out)
        why = "cwnd"
        if segs <= 0:
            break
        if segs > max_segs:
            segs = max_segs
            why = "autosize"
        sacked = skb.sacked
        if sk.retrans_out >= sk.lost_out:
            break
        if not sacked & LOST:
            if hole is None and not sacked & (SACKED_RETRANS | SACKED_ACKED):
                hole = skb
            skb = skb.next
            continue
        if sacked & (SACKED_ACKED | SACKED_RETRANS):
            skb = skb.next
            continue
        if tsq.small_queue_check(sk, skb, 1):
            gate = gates.TSQ
            break
        error = retransmit_skb(sk, skb, segs, why, "lost")
        if error:
            gate = gates.RWND if error == BEYOND_WINDOW else gates.HOST_QUEUE
            break
        if sk.ca_state == CA_LOSS:
            sk.mib.TCPSlowStartRetrans += skb.pcount
        else:
            sk.mib.TCPFastRetrans += skb.pcount
        if sk.ca_state == CA_CWR or sk.ca_state == CA_RECOVERY:
            sk.prr_out += skb.pcount
        if skb is head and sk.pending != PENDING_REO_TIMEOUT:
            rearm = True
        skb = skb.next
    hold_lost(sk, gate)
    if rearm:
        timers.arm_rtx(sk, PENDING_RETRANS, sk.rto_ns)
