"""RACK loss detection (RFC 8985; Linux 4.4, the only detector for SACK flows since 6.17).

A segment is lost when one sent sufficiently later has been delivered. "Sufficiently" is the reordering
window: zero until reordering was seen, then a quarter of min_rtt, growing with DSACKs. Segments whose
time has not come yet get a timer. Sysctl: tcp_recovery. Counter: TCPLostRetransmit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import prr, retransmit, timers
from . import trace as tracing
from .const import CA_RECOVERY, LOST, PENDING_REO_TIMEOUT, PENDING_RETRANS, RETRANS, SACKED_ACKED, SACKED_RETRANS

if TYPE_CHECKING:
    from .rate import AckSample
    from .skb import Skb
    from .sock import Sock

STATIC_REO_WND = 2
NO_DUPTHRESH = 4
TIMEOUT_MIN_US = 2000
RECOVERY_PERSIST = 16


def sent_after(t1: int, t2: int, seq1: int, seq2: int) -> bool:
    """Whether (t1, seq1) was sent after (t2, seq2): time decides, sequence breaks ties."""
    return t1 > t2 or (t1 == t2 and seq1 > seq2)


def advance(sk: Sock, sacked: int, end_seq: int, xmit_us: int) -> None:
    """A segment sent at `xmit_us` was delivered: the RACK point may move forward."""
    rtt_us = max(sk.host.now_ns // 1000 - xmit_us, 0)
    # an ACK this soon after a retransmission acknowledges the original
    if rtt_us < sk.min_rtt_us and sacked & RETRANS:
        return
    sk.rack_advanced = True
    sk.rack_rtt_us = rtt_us
    if sent_after(xmit_us, sk.rack_mstamp_us, end_seq, sk.rack_end_seq):
        sk.rack_mstamp_us = xmit_us
        sk.rack_end_seq = end_seq


def reo_wnd_us(sk: Sock) -> int:
    """Current reordering window, us."""
    if not sk.reord_seen:
        if sk.ca_state >= CA_RECOVERY:
            return 0
        if sk.sacked_out >= sk.reordering and not sk.sysctl.tcp_recovery & NO_DUPTHRESH:
            return 0
    return min((sk.min_rtt_us >> 2) * sk.rack_reo_wnd_steps, sk.srtt_us >> 3)


def skb_timeout_us(sk: Sock, skb: Skb, reo_wnd: int) -> int:
    """Time until `skb` counts as lost, us; not positive when it does."""
    return sk.rack_rtt_us + reo_wnd - (sk.host.now_ns // 1000 - skb.tx_ns // 1000)


def mark_skb_lost(sk: Sock, skb: Skb, why: str) -> None:
    """Tag `skb` lost, once per (re)transmission. `why`, for the trace: rack, dupacks, rto, mtu, fastopen."""
    sacked = skb.sacked
    if sacked & SACKED_ACKED:
        return
    # where the search for lost data may begin
    hint = sk.retransmit_hint
    if hint is None or skb.seq < hint.seq:
        sk.retransmit_hint = skb
    if not sacked & LOST:
        # R stays where an undo took L away: that retransmission is still out
        skb.sacked |= LOST
        sk.lost_out += skb.pcount
        sk.lost += skb.pcount
        if sk.trace is not None:
            tracing.lost(sk.trace, sk, skb, why, 0)
    elif sacked & SACKED_RETRANS:
        # the retransmission is lost too
        skb.sacked &= ~SACKED_RETRANS
        sk.retrans_out -= skb.pcount
        sk.mib.TCPLostRetransmit += skb.pcount
        sk.lost += skb.pcount
        if sk.trace is not None:
            tracing.lost(sk.trace, sk, skb, why, 1)


def detect_loss(sk: Sock) -> int:
    """Mark what is lost; returns us until the next segment would be (0: none is pending)."""
    reo_timeout = 0
    reo_wnd = reo_wnd_us(sk)
    skb = sk.tsorted.head
    point_us = sk.rack_mstamp_us
    point_seq = sk.rack_end_seq
    while skb is not None:
        nxt = skb.tnext
        if skb.sacked & LOST and not skb.sacked & SACKED_RETRANS:
            skb = nxt
            continue
        tx_us = skb.tx_ns // 1000
        if not (point_us > tx_us or (point_us == tx_us and point_seq > skb.end_seq)):
            break
        remaining = skb_timeout_us(sk, skb, reo_wnd)
        if remaining <= 0:
            mark_skb_lost(sk, skb, "rack")
            if skb.tprev is not None or sk.tsorted.head is skb:
                # lost skbs leave the time list until they are sent again
                sk.tsorted.remove(skb)
        elif remaining > reo_timeout:
            reo_timeout = remaining
        skb = nxt
    return reo_timeout


def mark_lost(sk: Sock) -> bool:
    """Run the detector if an ACK moved the RACK point; True when a timer was armed for the rest."""
    if not sk.rack_advanced:
        return False
    sk.rack_advanced = False
    timeout_us = detect_loss(sk)
    if timeout_us:
        tick = sk.sysctl.tick_ns
        delay = -(-(timeout_us + TIMEOUT_MIN_US) * 1000 // tick) * tick
        timers.arm_rtx(sk, PENDING_REO_TIMEOUT, min(delay, sk.rto_ns), False)
        return True
    return False


def reo_timeout(sk: Sock) -> None:
    """The reordering timer: what waited long enough is lost now."""
    prior_in_flight = sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out
    lost = sk.lost
    detect_loss(sk)
    now_in_flight = sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out
    if prior_in_flight != now_in_flight:
        if sk.ca_state != CA_RECOVERY:
            retransmit.enter_recovery(sk, False)
            if not sk.ca.has_cong_control:
                prr.cwnd_reduction(sk, 1, sk.lost - lost, False)
        retransmit.xmit_retransmit_queue(sk)
    if sk.pending != PENDING_RETRANS:
        timers.rearm_rto(sk)


def update_reo_wnd(sk: Sock, rs: AckSample) -> None:
    """Widen the window after a round with DSACKs; narrow it again after 16 recoveries without."""
    if sk.sysctl.tcp_recovery & STATIC_REO_WND or not rs.prior_delivered:
        return
    # DSACKs of one round count once
    if rs.prior_delivered < sk.rack_last_delivered:
        sk.rack_dsack_seen = False
    if sk.rack_dsack_seen:
        sk.rack_reo_wnd_steps = min(0xFF, sk.rack_reo_wnd_steps + 1)
        sk.rack_dsack_seen = False
        sk.rack_last_delivered = sk.delivered
        sk.rack_reo_wnd_persist = RECOVERY_PERSIST
    elif not sk.rack_reo_wnd_persist:
        sk.rack_reo_wnd_steps = 1


def newreno_mark_lost(sk: Sock, snd_una_advanced: bool) -> None:
    """Without SACK: the head is lost after enough duplicate ACKs, or at each partial ACK."""
    if (sk.ca_state < CA_RECOVERY and sk.sacked_out >= sk.reordering) or (sk.ca_state == CA_RECOVERY and snd_una_advanced):
        skb = sk.rtx_queue.head
        if skb is None or skb.sacked & LOST:
            return
        mss = skb.gso_size or sk.mss_cache
        if skb.pcount > 1 and skb.length > mss:
            retransmit.fragment(sk, skb, mss, mss)
        mark_skb_lost(sk, skb, "dupacks")
