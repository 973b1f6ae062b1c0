"""Delivery-rate samples (draft-cheng-iccrg-delivery-rate-estimation; Linux 4.9).

Each sent skb remembers how much had been delivered when it left; when it is (S)ACKed, delivered-now
minus delivered-then over the longer of send and ACK intervals is a bandwidth sample. `AckSample`
also collects what one ACK tells the other rooms, so that an ACK costs one allocation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .skb import Skb
    from .sock import Sock

NO_REORDER = 1 << 62


class AckSample:
    """Everything one incoming ACK was found to say."""

    __slots__ = (
        "prior_delivered",
        "prior_us",
        "delivered",
        "interval_us",
        "snd_interval_us",
        "rtt_us",
        "losses",
        "acked_sacked",
        "prior_in_flight",
        "last_end_seq",
        "is_app_limited",
        "is_ack_delayed",
        "first_sackt_us",
        "last_sackt_us",
        "reord",
        "sack_delivered",
        "sack_flag",
        "last_tx_ns",
    )

    def __init__(self) -> None:
        self.delivered = 0
        self.interval_us = -1
        self.snd_interval_us = 0
        self.losses = 0
        self.acked_sacked = 0
        self.last_end_seq = 0
        self.is_app_limited = False
        self.last_sackt_us = 0
        self.last_tx_ns = 0
        self.sack_flag = 0
        self.prior_in_flight = 0
        # what tcp_ack forgets with every ACK; the other fields are always set before they are read
        self.prior_delivered = 0
        self.prior_us = 0
        self.first_sackt_us = 0
        self.rtt_us = -1
        self.is_ack_delayed = False
        self.begin_sacks()

    def begin_sacks(self) -> None:
        """Forget the SACKs of the last ACK that had some."""
        self.reord = NO_REORDER
        self.sack_delivered = 0


def skb_sent(sk: Sock, skb: Skb) -> None:
    """Snapshot the delivery state into an skb as it leaves."""
    if not sk.packets_out:
        # the pipe was empty: the sampling interval starts with this send
        tx_us = skb.tx_ns // 1000
        sk.first_tx_us = tx_us
        sk.delivered_us = tx_us
    skb.tx_first_us = sk.first_tx_us
    skb.tx_delivered_us = sk.delivered_us
    skb.tx_delivered = sk.delivered
    skb.tx_app_limited = sk.app_limited != 0


def skb_delivered(sk: Sock, skb: Skb, rs: AckSample) -> None:
    """An skb was (S)ACKed: keep the sample of the most recently sent one."""
    if not skb.tx_delivered_us:
        return
    tx = skb.tx_ns
    if not rs.prior_us or tx > rs.last_tx_ns or (tx == rs.last_tx_ns and skb.end_seq > rs.last_end_seq):
        rs.prior_delivered = skb.tx_delivered
        rs.prior_us = skb.tx_delivered_us
        rs.is_app_limited = skb.tx_app_limited
        rs.last_end_seq = skb.end_seq
        rs.last_tx_ns = tx
        sk.first_tx_us = tx_us = tx // 1000
        rs.snd_interval_us = tx_us - skb.tx_first_us
    if skb.sacked & 0x01:
        # SACKed now, cumulatively acknowledged later: sampled once
        skb.tx_delivered_us = 0


def gen(sk: Sock, delivered: int, is_sack_reneg: bool, now_us: int, rs: AckSample) -> None:
    """Finish the sample of this ACK and keep the best for tcp_info."""
    total = sk.delivered
    if sk.app_limited and total > sk.app_limited:
        sk.app_limited = 0
    if delivered:
        sk.delivered_us = now_us
    prior_us = rs.prior_us
    if not prior_us or is_sack_reneg:
        rs.delivered = -1
        rs.interval_us = -1
        rs.is_app_limited = False
        return
    rs.delivered = gained = total - rs.prior_delivered
    interval_us = now_us - prior_us
    if interval_us < rs.snd_interval_us:
        interval_us = rs.snd_interval_us
    if interval_us < sk.min_rtt_us:
        rs.interval_us = -1
        return
    rs.interval_us = interval_us
    if not rs.is_app_limited or gained * sk.rate_interval_us >= sk.rate_delivered * interval_us:
        sk.rate_delivered = gained
        sk.rate_interval_us = interval_us
        sk.rate_app_limited = rs.is_app_limited


def check_app_limited(sk: Sock) -> None:
    """Mark the flow application-limited when a write finds the pipe not full and nothing waiting."""
    if sk.write_seq - sk.snd_nxt < sk.mss_cache and sk.wmem_alloc <= 577 and sk.lost_out <= sk.retrans_out:
        in_flight = sk.packets_out
        if in_flight:
            in_flight += sk.retrans_out - sk.sacked_out - sk.lost_out
        if in_flight < sk.snd_cwnd:
            sk.app_limited = (sk.delivered + in_flight) or 1
