"""tcp_ack: what an incoming acknowledgement means (linux-tcp §8.1, §8.2, RFC 9293 §3.10.7.4).

Order: acceptability, window update, SACK, cleaning the retransmit queue (RTT, RACK), the tail-loss
verdict, recovery state machine, timer, delivery rate, congestion control, recovery sends. The caller
(input) then pushes pending data, looks at send space and decides about its own ACK.
Counters: TCPHPAcks, TCPPureAcks, TCPDelivered, TCPDeliveredCE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import (
    challenge,
    cwnd,
    ecn,
    frto,
    mtu,
    mtu_probe,
    pacing,
    paws,
    probe0,
    prr,
    rack,
    rate,
    reassembly,
    retransmit,
    rtt,
    sack,
    timers,
    timestamping,
    tlp,
    tso,
    undo,
)
from . import trace as tracing
from .chrono import BUSY
from .chrono import stop as chrono_stop
from .const import (
    CA_CWR,
    CA_RECOVERY,
    LOST,
    RETRANS,
    SACKED_ACKED,
    SACKED_RETRANS,
    SYN,
)
from .flags import (
    FLAG_ACKED,
    FLAG_CA_ALERT,
    FLAG_DATA,
    FLAG_DATA_ACKED,
    FLAG_DSACKING_ACK,
    FLAG_ECE,
    FLAG_FORWARD_PROGRESS,
    FLAG_NO_CHALLENGE_ACK,
    FLAG_NOT_DUP,
    FLAG_ORIG_SACK_ACKED,
    FLAG_RETRANS_DATA_ACKED,
    FLAG_SACK_RENEGING,
    FLAG_SET_XMIT_TIMER,
    FLAG_SLOWPATH,
    FLAG_SND_UNA_ADVANCED,
    FLAG_SYN_ACKED,
    FLAG_UPDATE_TS_RECENT,
    FLAG_WIN_UPDATE,
)
from .rate import NO_REORDER, AckSample

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .skb import Skb
    from .sock import Sock

__all__ = ["FLAG_DATA", "FLAG_NO_CHALLENGE_ACK", "FLAG_SLOWPATH", "FLAG_UPDATE_TS_RECENT", "tcp_ack"]

# an skb with one of these gives no RTT sample when it is acknowledged
_UNSAMPLED = RETRANS | SACKED_ACKED
# what tells an ACK that header prediction let through and that acknowledges something: the second alone
_PREDICTED_OR_NOT = FLAG_SLOWPATH | FLAG_SND_UNA_ADVANCED
# an ACK with one of these was not held back by the peer's delayed-ACK timer
_AT_ONCE = FLAG_CA_ALERT | FLAG_SYN_ACKED

# tcp_ack never nests: one sample serves every ACK of the process
_sample = AckSample()


def tcp_ack(sk: Sock, seg: Segment, flag: int) -> int:
    """Process SEG.ACK. 1: acceptable; 0: old but harmless; -1: unacceptable, answered, drop it.

    `seg.seq`, `seg.ack`, `seg.end_seq` are unwrapped. `flag`: FLAG_SLOWPATH unless header prediction
    matched, with it FLAG_UPDATE_TS_RECENT if the segment's timestamp may be taken over, FLAG_NO_CHALLENGE_ACK.
    """
    prior_una = sk.snd_una
    ack = seg.ack
    prior_packets = sk.packets_out
    prior_delivered = sk.delivered
    prior_lost = sk.lost
    rs = _sample
    ca = sk.ca
    in_charge = ca.has_cong_control  # of cwnd and pacing rate
    if in_charge:
        rs.prior_in_flight = prior_packets - sk.sacked_out - sk.lost_out + sk.retrans_out
    rs.prior_delivered = 0
    rs.prior_us = 0
    rs.first_sackt_us = 0

    if ack <= prior_una:
        if ack < prior_una:
            return _old_ack(sk, seg, flag, rs, prior_delivered)
    elif ack > sk.snd_nxt:
        if not flag & FLAG_NO_CHALLENGE_ACK:
            challenge.send_challenge_ack(sk)
        return -1
    else:
        flag |= FLAG_SND_UNA_ADVANCED
        sk.retransmits = 0
    prior_fack = sack.highest_sack_seq(sk) if sk.sacked_out and sk.sack_ok else prior_una

    if flag & _PREDICTED_OR_NOT == FLAG_SND_UNA_ADVANCED:
        # header prediction matched: the window is as it was
        sk.snd_wl1 = seg.seq
        sk.bytes_acked += ack - prior_una
        sk.snd_una = ack
        flag |= FLAG_WIN_UPDATE
        sk.mib.TCPHPAcks += 1
    else:
        # (only the slow path asks for it)
        if flag & FLAG_UPDATE_TS_RECENT:
            paws.replace_ts_recent(sk, seg)
        if seg.seq != seg.end_seq:
            flag |= FLAG_DATA
        else:
            sk.mib.TCPPureAcks += 1
        flag |= _update_window(sk, seg, ack)
        if seg.options.sack and sk.sack_ok:
            rs.begin_sacks()
            flag |= sack.tag_write_queue(sk, seg, prior_una, rs)
            sk.delivered += rs.sack_delivered
        if sk.ecn_flags:
            if ecn.rcv_ecn_echo(sk, seg):
                flag |= FLAG_ECE
                if sk.trace is not None:
                    sk.trace.event(sk, "ecn", what="ece", cwnd=sk.snd_cwnd)
            ecn.accept_cwr(sk, seg)

    sk.sk_err_soft = 0
    sk.probes_out = 0
    sk.rcv_tstamp_ns = now = sk.host.now_ns
    if not prior_packets:
        if sk.trace is not None:
            tracing.ack(sk.trace, sk, seg, 0, -1)
        if flag & FLAG_DSACKING_ACK:
            retransmit.fastretrans_alert(sk, prior_una, 0, flag)
            _newly_delivered(sk, prior_delivered, flag)
        probe0.ack_probe(sk)
        if sk.tlp_high_seq:
            tlp.process_ack(sk, ack, flag, rs)
        return 1

    now_us = now // 1000
    flag = _clean_rtx_queue(sk, prior_fack, prior_una, flag, now_us, rs)
    if sk.trace is not None:
        tracing.ack(sk.trace, sk, seg, sk.delivered - prior_delivered, rs.rtt_us)
    if sk.rack_dsack_seen or (sk.rack_reo_wnd_steps != 1 and not sk.rack_reo_wnd_persist):
        rack.update_reo_wnd(sk, rs)
    if sk.tlp_high_seq:
        tlp.process_ack(sk, ack, flag, rs)
    rexmit = frto.REXMIT_NONE
    reneged = False
    if not flag & FLAG_NOT_DUP or flag & FLAG_CA_ALERT or sk.ca_state:  # (CA_OPEN is 0)
        reneged = sk.sack_reneged
        dupacks = 0
        if not flag & (FLAG_SND_UNA_ADVANCED | FLAG_NOT_DUP | FLAG_DSACKING_ACK):
            dupacks = max(1, seg.nsegs)
        rexmit, flag = retransmit.fastretrans_alert(sk, prior_una, dupacks, flag)
    if flag & FLAG_SET_XMIT_TIMER:
        # a loss probe if one makes sense, else the RTO
        if not sk.packets_out:
            timers.clear_rtx(sk)
        elif not tlp.schedule(sk, True):
            timers.rearm_rto(sk)
    delivered = _newly_delivered(sk, prior_delivered, flag)
    rate.gen(sk, delivered, reneged, now_us, rs)
    if in_charge:
        rs.acked_sacked = delivered
        rs.losses = sk.lost - prior_lost
        ca.cong_control(sk, ack, flag, rs)
    else:
        if sk.ca_state and sk.ca_state in (CA_CWR, CA_RECOVERY):
            prr.cwnd_reduction(sk, delivered, sk.lost - prior_lost, bool(flag & FLAG_SND_UNA_ADVANCED))
        elif flag & FLAG_DATA_ACKED or (flag & FLAG_FORWARD_PROGRESS and sk.reordering > sk.sysctl.tcp_reordering):
            ca.cong_avoid(sk, ack, delivered)
            # an application-limited flow that keeps being acknowledged does not decay
            sk.cwnd_stamp = now
        pacing.update_rate(sk)
    if rexmit:
        retransmit.xmit_recovery(sk, rexmit)
    return 1


def _old_ack(sk: Sock, seg: Segment, flag: int, rs: AckSample, prior_delivered: int) -> int:
    """SEG.ACK below snd_una: stale SACKs may still teach something; far too old is blind injection."""
    window = min(sk.max_window, sk.bytes_acked)
    if seg.ack < sk.snd_una - window:
        if not flag & FLAG_NO_CHALLENGE_ACK:
            challenge.send_challenge_ack(sk)
        return -1
    if seg.options.sack and sk.sack_ok:
        prior_una = sk.snd_una
        rs.begin_sacks()
        flag |= sack.tag_write_queue(sk, seg, prior_una, rs)
        if sk.trace is not None:
            tracing.ack(sk.trace, sk, seg, sk.delivered - prior_delivered, -1)
        rexmit, flag = retransmit.fastretrans_alert(sk, prior_una, 0, flag)
        _newly_delivered(sk, prior_delivered, flag)
        retransmit.xmit_recovery(sk, rexmit)
    return 0


def _newly_delivered(sk: Sock, prior_delivered: int, flag: int) -> int:
    delivered = sk.delivered - prior_delivered
    sk.mib.TCPDelivered += delivered
    if flag & FLAG_ECE:
        sk.delivered_ce += delivered
        sk.mib.TCPDeliveredCE += delivered
    return delivered


def _update_window(sk: Sock, seg: Segment, ack: int) -> int:
    """SND.WND update (RFC 9293 §3.10.7.4, with Linux's extra case of a zero window)."""
    flag = 0
    window = seg.window
    if not seg.flags & SYN:
        window <<= sk.snd_wscale
    if ack > sk.snd_una or seg.seq > sk.snd_wl1 or (seg.seq == sk.snd_wl1 and (window > sk.snd_wnd or not window)):
        flag = FLAG_WIN_UPDATE
        sk.snd_wl1 = seg.seq
        if sk.snd_wnd != window:
            sk.snd_wnd = window
            # header prediction compares with the new window from here on
            sk.pred = False
            reassembly.fast_path_check(sk)
            if sk.write_queue.head is not None:
                cwnd.slow_start_after_idle_check(sk)
            if window > sk.max_window:
                sk.max_window = window
                mtu.sync_mss(sk, sk.pmtu_cookie)
    sk.bytes_acked += ack - sk.snd_una
    sk.snd_una = ack
    return flag


def _clean_rtx_queue(sk: Sock, prior_fack: int, prior_una: int, flag: int, now_us: int, rs: AckSample) -> int:
    """Free what is acknowledged; take RTT samples; returns the flags found."""
    una = sk.snd_una
    queue = sk.rtx_queue
    tsorted = sk.tsorted
    sack_ok = sk.sack_ok
    prior_sacked = sk.sacked_out
    first_us = 0  # when the first skb with an RTT sample left, and `last_us` the last one
    reord = NO_REORDER
    pkts_acked = 0
    fully_acked = True
    skb = queue.head
    while skb is not None:
        start_seq = skb.seq
        end_seq = skb.end_seq
        acked = skb.pcount
        if end_seq > una:
            if una <= start_seq or acked <= 1:
                break
            acked = _tso_acked(sk, skb)
            if not acked:
                break
            fully_acked = False
        sacked = skb.sacked
        tx_us = skb.tx_ns // 1000
        if not sacked & _UNSAMPLED:
            last_us = tx_us
            if not first_us:
                first_us = tx_us
                reord = start_seq
            if end_seq <= sk.high_seq:
                flag |= FLAG_ORIG_SACK_ACKED
        elif sacked & RETRANS:
            flag |= FLAG_RETRANS_DATA_ACKED
            if sacked & SACKED_RETRANS:
                sk.retrans_out -= acked
        if sacked:
            if sacked & SACKED_ACKED:
                sk.sacked_out -= acked
            elif sack_ok:
                sk.delivered += acked
                if not (sacked & RETRANS and undo.echo_before(sk, tx_us // 1000)):
                    # (an echo older than the retransmission: the original was acknowledged)
                    rack.advance(sk, sacked, end_seq, tx_us)
            if sacked & LOST:
                sk.lost_out -= acked
        elif sack_ok:
            sk.delivered += acked
            # rack.advance for a segment sent once
            sk.rack_advanced = True
            sk.rack_rtt_us = now_us - tx_us if tx_us < now_us else 0
            if tx_us > sk.rack_mstamp_us or (tx_us == sk.rack_mstamp_us and end_seq > sk.rack_end_seq):
                sk.rack_mstamp_us = tx_us
                sk.rack_end_seq = end_seq
        sk.packets_out -= acked
        pkts_acked += acked
        if skb.stamp is not None:
            timestamping.acked(sk, skb, prior_una)
        rate.skb_delivered(sk, skb, rs)
        if skb.flags & SYN:
            flag |= FLAG_SYN_ACKED
            sk.retrans_stamp = 0
        else:
            flag |= FLAG_DATA_ACKED
        if not fully_acked:
            break
        nxt = skb.next
        # unlink_rtx for the head of the queue
        if sk.retransmit_hint is skb:
            sk.retransmit_hint = nxt
        if sk.highest_sack is skb:
            sk.highest_sack = nxt
        if tsorted.head is skb:
            after = tsorted.head = skb.tnext
            if after is None:
                tsorted.tail = None
            else:
                after.tprev = None
                skb.tnext = None
        elif skb.tprev is not None:
            tsorted.remove(skb)
        queue.head = nxt
        if nxt is None:
            queue.tail = None
        else:
            nxt.prev = None
            skb.next = None
        queue.qlen -= 1
        truesize = skb.truesize
        sk.wmem_queued -= truesize
        pages = sk.forward_alloc + truesize
        sk.forward_alloc = pages if pages < 4096 else pages & 4095
        if skb.slabs:
            skb.free_slabs()
        skb = nxt
    if skb is None:
        chrono_stop(sk, BUSY)
        if sack_ok:
            # an RTO that resends an skb whose retransmission an undo left out counts it twice, until here
            sk.retrans_out = 0
    elif skb.sacked & SACKED_ACKED:
        flag |= FLAG_SACK_RENEGING
    # (with nothing urgent it follows step by step)
    if sk.snd_up == prior_una or prior_una < sk.snd_up <= una:
        sk.snd_up = una

    sack_rtt = -1
    if first_us and not flag & FLAG_RETRANS_DATA_ACKED:
        seq_rtt = now_us - first_us
        ca_rtt = now_us - last_us
        if ca_rtt < 0:
            # sent with a paced departure ahead of the clock (an MTU probe does not wait for it), and here already: it took no time
            ca_rtt = 0
            seq_rtt = max(seq_rtt, 0)
        maybe_delayed = (
            pkts_acked == 1
            and fully_acked
            and not prior_sacked
            and una - prior_una < sk.mss_cache
            and rs.prior_delivered + 1 == sk.delivered
            and not flag & _AT_ONCE
        )
    else:
        seq_rtt = ca_rtt = -1
        maybe_delayed = False
    rs.is_ack_delayed = maybe_delayed
    if rs.first_sackt_us:
        sack_rtt = max(now_us - rs.first_sackt_us, 0)
        ca_rtt = max(now_us - rs.last_sackt_us, 0)
    if seq_rtt < 0:
        if sack_rtt < 0 and flag & FLAG_ACKED and sk.tstamp_ok and sk.rcv_tsecr:
            # only retransmitted data was acknowledged: the timestamp echo tells what Karn's rule forbids
            seq_rtt = ca_rtt = rtt.tsecr_rtt_us(sk)
        if seq_rtt < 0:
            seq_rtt = sack_rtt
    if seq_rtt >= 0:
        rtt.sample(sk, maybe_delayed, seq_rtt, ca_rtt)

    if flag & FLAG_ACKED:
        flag |= FLAG_SET_XMIT_TIMER
        if sk.mtu_probe is not None and sk.mtu_probe.size and sk.mtu_probe.end_seq <= una:
            mtu_probe.succeeded(sk)
        if not sack_ok:
            sack.remove_reno_sacks(sk, pkts_acked)
            if flag & FLAG_RETRANS_DATA_ACKED:
                # without SACK nothing tells which of the two copies made this progress
                flag &= ~FLAG_ORIG_SACK_ACKED
        elif reord < prior_fack:
            # data below FACK arrived late: the network reorders
            sack.check_reordering(sk, reord, False)
    elif skb is not None and seq_rtt >= 0 and sack_rtt >= 0 and sack_rtt > now_us - skb.tx_ns // 1000:
        # the sample shortened the RTO, and the head is younger than the sample: restart the timer
        flag |= FLAG_SET_XMIT_TIMER
    rs.rtt_us = ca_rtt
    sk.ca.pkts_acked(sk, pkts_acked, ca_rtt)
    return flag


def _tso_acked(sk: Sock, skb: Skb) -> int:
    """A super-segment is acknowledged in part: drop its acknowledged segments; returns how many."""
    before = skb.pcount
    mss = skb.gso_size or sk.mss_cache
    retransmit.trim_head(sk, skb, sk.snd_una - skb.seq)
    tso.set_pcount(skb, mss)
    return before - skb.pcount
