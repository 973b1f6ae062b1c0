"""Undoing a congestion response that was not needed (linux-tcp §8.9): Eifel by timestamps (RFC 3522,
RFC 4015) or by DSACKs that account for every retransmission (RFC 3708).
Counters: TCPFullUndo, TCPPartialUndo, TCPDSACKUndo, TCPLossUndo, TCPSpuriousRTOs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import ecn, retransmit, sack
from .const import CA_LOSS, CA_OPEN, LOST, SYN_SENT

if TYPE_CHECKING:
    from .sock import Sock


def packet_delayed(sk: Sock) -> bool:
    """The original arrived: nothing was retransmitted yet, or the echo is older than the retransmission."""
    if sk.retrans_stamp:
        return echo_before(sk, sk.retrans_stamp)
    # the stamp may also be gone after retransmissions: Reno's wait at high_seq, the ACK of a SYN
    return sk.state != SYN_SENT and (sk.sack_ok or sk.snd_una < sk.high_seq)


def echo_before(sk: Sock, sent_ms: int) -> bool:
    """Whether this ACK echoes a timestamp older than what was sent at `sent_ms`, host time in ms."""
    if not (sk.tstamp_ok and sk.rcv_tsecr):
        return False
    return 0 < (sent_ms + sk.ts_offset - sk.rcv_tsecr) & 0xFFFFFFFF < 0x80000000


def may_undo(sk: Sock) -> bool:
    return bool(sk.undo_marker) and (not sk.undo_retrans or packet_delayed(sk))


def undo_cwnd_reduction(sk: Sock, unmark_loss: bool, why: str) -> None:
    """Give back cwnd and ssthresh of before the episode. `why`, for the trace: full, dsack, loss, frto, partial."""
    if unmark_loss:
        for skb in sk.rtx_queue:
            skb.sacked &= ~LOST
        sk.lost_out = 0
        sk.retransmit_hint = None
    if sk.prior_ssthresh:
        sk.snd_cwnd = sk.ca.undo_cwnd(sk)
        if sk.prior_ssthresh > sk.snd_ssthresh:
            sk.snd_ssthresh = sk.prior_ssthresh
            sk.ecn_flags &= ~ecn.QUEUE_CWR
    sk.cwnd_stamp = sk.host.now_ns
    sk.undo_marker = 0
    sk.rack_advanced = True  # let RACK look again at what was unmarked
    if sk.trace is not None:
        sk.trace.event(sk, "undo", why=why, cwnd=sk.snd_cwnd, ssthresh=sk.snd_ssthresh)


def is_non_sack_preventing_reopen(sk: Sock) -> bool:
    """Without SACK, stay in Recovery while snd_una is exactly high_seq: later dupacks would start another."""
    if sk.snd_una == sk.high_seq and not sk.sack_ok:
        if not any_retrans_done(sk):
            sk.retrans_stamp = 0
        return True
    return False


def any_retrans_done(sk: Sock) -> bool:
    if sk.retrans_out:
        return True
    head = sk.rtx_queue.head
    return head is not None and bool(head.sacked & 0x80)


def try_undo_recovery(sk: Sock) -> bool:
    """At the end of Recovery or Loss; True when the state must be kept (see above)."""
    if may_undo(sk):
        undo_cwnd_reduction(sk, False, "full")
        if sk.ca_state == CA_LOSS:
            sk.mib.TCPLossUndo += 1
        else:
            sk.mib.TCPFullUndo += 1
    elif sk.rack_reo_wnd_persist:
        sk.rack_reo_wnd_persist -= 1
    if is_non_sack_preventing_reopen(sk):
        return True
    retransmit.set_ca_state(sk, CA_OPEN)
    sk.frto = False
    sk.sack_reneged = False
    return False


def try_undo_dsack(sk: Sock) -> bool:
    """Every retransmission was reported as a duplicate: undo."""
    if sk.undo_marker and not sk.undo_retrans:
        sk.rack_reo_wnd_persist = min(16, sk.rack_reo_wnd_persist + 1)
        undo_cwnd_reduction(sk, False, "dsack")
        sk.mib.TCPDSACKUndo += 1
        return True
    return False


def try_undo_loss(sk: Sock, frto_undo: bool) -> bool:
    """Leave the Loss state when the timeout proves spurious."""
    if not frto_undo and not may_undo(sk):
        return False
    undo_cwnd_reduction(sk, True, "frto" if frto_undo else "loss")
    sk.mib.TCPLossUndo += 1
    if frto_undo:
        sk.mib.TCPSpuriousRTOs += 1
    sk.retransmits = 0
    if is_non_sack_preventing_reopen(sk):
        return True
    if frto_undo or sk.sack_ok:
        retransmit.set_ca_state(sk, CA_OPEN)
        sk.frto = False
        sk.sack_reneged = False
    return True


def try_undo_partial(sk: Sock, prior_snd_una: int) -> bool:
    """A partial ACK in Recovery: if the original was only delayed, undo (RFC 4015)."""
    if not sk.undo_marker or not packet_delayed(sk):
        return False
    # the hole was filled by the original: that is reordering
    sack.check_reordering(sk, prior_snd_una, True)
    if sk.retrans_out:
        return True
    if not any_retrans_done(sk):
        sk.retrans_stamp = 0
    undo_cwnd_reduction(sk, True, "partial")
    sk.mib.TCPPartialUndo += 1
    retransmit.try_keep_open(sk)
    return False
