"""Pacing: how fast the connection should send, and the internal timer that enforces it.

sk_pacing_rate = mss·cwnd/srtt times 200 % in slow start, 120 % after (tcp_pacing_ss_ratio,
tcp_pacing_ca_ratio); it always sizes TSO bursts and the TSQ limit, but delays packets only when
somebody asked for it (SO_MAX_PACING_RATE, BBR: status NEEDED) or an fq qdisc does (status FQ).
Since Linux 4.13 (internal pacing), 4.20 (departure times).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import timers

if TYPE_CHECKING:
    from .skb import Skb
    from .sock import Sock

STATUS_NONE = 0
STATUS_NEEDED = 1
STATUS_FQ = 2

UNLIMITED = 0xFFFFFFFFFFFFFFFF
# packets sent before pacing starts: the first window leaves unpaced
UNPACED_SEGS = 10


def update_rate(sk: Sock) -> None:
    """Recompute sk_pacing_rate, bytes/s, after an ACK (classic congestion controls)."""
    cwnd = sk.snd_cwnd
    percent = sk.sysctl.tcp_pacing_ss_ratio if cwnd < sk.snd_ssthresh >> 1 else sk.sysctl.tcp_pacing_ca_ratio
    packets = sk.packets_out
    # mss·cwnd/srtt: 8 · 10^6 as srtt is kept times 8 and in us, over 100 for the percentage
    rate = sk.mss_cache * 80_000 * percent * (cwnd if cwnd > packets else packets)
    srtt = sk.srtt_us
    if srtt:
        rate //= srtt
    if rate > sk.max_pacing_rate:
        rate = sk.max_pacing_rate
    sk.pacing_rate = rate


def check(sk: Sock) -> bool:
    """Whether the next packet must wait; arms the departure timer if so."""
    if sk.pacing_status != STATUS_NEEDED:
        return False
    if sk.wstamp_ns <= sk.host.now_ns:
        return False
    sk.pacing_deadline = sk.wstamp_ns
    timers.touch(sk, sk.wstamp_ns)
    return True


def kept_by_qdisc(sk: Sock) -> None:
    """An fq qdisc has seen the socket and keeps its departure times from now on; the internal timer rests."""
    sk.pacing_status = STATUS_FQ


def departure(sk: Sock) -> int:
    """When the segment that `sk` sends now may leave, ns: for a qdisc that keeps departure times."""
    return sk.wstamp_ns + sk.tx_delay_ns


def after_send(sk: Sock, skb: Skb, prior_wstamp_ns: int) -> None:
    """Advance the next departure time by what this skb costs at the pacing rate."""
    if sk.pacing_status != STATUS_NONE:
        rate = sk.pacing_rate
        if rate != UNLIMITED and sk.data_segs_out >= UNPACED_SEGS:
            length_ns = skb.length * 1_000_000_000 // rate if rate else 0
            credit = sk.wstamp_ns - prior_wstamp_ns
            # a late sender may use up to half the gap it was late by
            length_ns -= min(length_ns >> 1, credit)
            sk.wstamp_ns += length_ns
