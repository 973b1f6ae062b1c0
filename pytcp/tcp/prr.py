"""Proportional rate reduction: how cwnd comes down to ssthresh during recovery (RFC 6937, RFC 9937).

Instead of halving at once, the sender sends ssthresh/prior_cwnd of what is delivered; when the pipe
has fallen below ssthresh it may send what was delivered plus one, unless this ACK showed new loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import ecn
from .const import CA_CWR, CA_EVENT_COMPLETE_CWR, INFINITE_SSTHRESH

if TYPE_CHECKING:
    from .sock import Sock


def init_cwnd_reduction(sk: Sock) -> None:
    """Start of a reduction: remember cwnd, let the congestion control choose ssthresh."""
    sk.high_seq = sk.snd_nxt
    sk.tlp_high_seq = 0
    sk.snd_cwnd_cnt = 0
    sk.prior_cwnd = sk.snd_cwnd
    sk.prr_delivered = 0
    sk.prr_out = 0
    sk.snd_ssthresh = sk.ca.ssthresh(sk)
    ecn.queue_cwr(sk)


def cwnd_reduction(sk: Sock, newly_delivered: int, newly_lost: int, snd_una_advanced: bool) -> None:
    """One ACK in CWR or Recovery delivered `newly_delivered` packets: set cwnd."""
    if newly_delivered <= 0 or not sk.prior_cwnd:
        return
    sk.prr_delivered += newly_delivered
    in_flight = sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out
    delta = sk.snd_ssthresh - in_flight
    if delta < 0:
        send = (sk.snd_ssthresh * sk.prr_delivered + sk.prior_cwnd - 1) // sk.prior_cwnd - sk.prr_out
    else:
        send = max(sk.prr_delivered - sk.prr_out, newly_delivered)
        if snd_una_advanced and not newly_lost:
            send += 1
        send = min(delta, send)
    # the first retransmission of an episode always goes out
    send = max(send, 0 if sk.prr_out else 1)
    sk.snd_cwnd = in_flight + send


def end_cwnd_reduction(sk: Sock) -> None:
    """Recovery is over: cwnd becomes ssthresh."""
    if sk.ca.has_cong_control:
        return
    if sk.snd_ssthresh < INFINITE_SSTHRESH and (sk.ca_state == CA_CWR or sk.undo_marker):
        sk.snd_cwnd = sk.snd_ssthresh
        sk.cwnd_stamp = sk.host.now_ns
    sk.ca.cwnd_event(sk, CA_EVENT_COMPLETE_CWR)
