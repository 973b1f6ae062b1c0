"""HyStart: leave slow start before it overflows the bottleneck (Ha & Rhee; Linux 2.6.29).

Two detectors per round trip: the ACK train (ACKs closer than 2 ms for longer than half of the minimum
delay) and the delay (RTT above delay_min by an eighth, 4–16 ms). Where a round is reset changed twice:
in cong_avoid (so only while cwnd-limited), at the top of update but behind the low-window test
(5.16, 4e1fddc98d25), before that test (6.14, 25c1a9ca53db): `pytcp.hystart_reset`. Detectors, low window
and the gap within a train: `pytcp.tcp_cubic.hystart_*`.
Counters: TCPHystartTrainDetect, TCPHystartTrainCwnd, TCPHystartDelayDetect, TCPHystartDelayCwnd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import pacing

if TYPE_CHECKING:
    from ..sock import Sock
    from .cubic import Cubic

TRAIN, DELAY = 1, 2  # detectors, bits of pytcp.tcp_cubic.hystart_detect
MIN_SAMPLES = 8
DELAY_MIN_US = 4000
DELAY_MAX_US = 16000
NO_RTT = 0xFFFFFFFF


def reset(ca: Cubic, sk: Sock) -> None:
    """A new round begins."""
    now_us = sk.host.now_ns // 1000
    ca.round_start = ca.last_ack = now_us
    ca.end_seq = sk.snd_nxt
    ca.curr_rtt = NO_RTT
    ca.sample_cnt = 0


def ack_delay_us(sk: Sock) -> int:
    """Allowance for a receiver that merges ACKs: four super-segments at the pacing rate, at most 1 ms."""
    rate = sk.pacing_rate
    return min(1000, sk.gso_max_size * 4 * 1_000_000 // rate) if rate else 0


def update(ca: Cubic, sk: Sock, delay_us: int) -> None:
    """One RTT sample in slow start, us."""
    if sk.sysctl.hystart_reset != "cong_avoid" and sk.snd_una > ca.end_seq:
        reset(ca, sk)
    if sk.snd_cwnd < sk.sysctl.cubic_hystart_low_window:
        return
    detect = sk.sysctl.cubic_hystart_detect
    now_us = sk.host.now_ns // 1000
    mib = sk.mib
    if detect & TRAIN and now_us - ca.last_ack <= sk.sysctl.cubic_hystart_ack_delta_us:
        ca.last_ack = now_us
        threshold = ca.delay_min + ack_delay_us(sk)
        # unpaced senders burst: half the delay is a train already
        if sk.pacing_status == pacing.STATUS_NONE:
            threshold >>= 1
        if now_us - ca.round_start > threshold:
            ca.found = True
            mib.TCPHystartTrainDetect += 1
            mib.TCPHystartTrainCwnd += sk.snd_cwnd
            sk.snd_ssthresh = sk.snd_cwnd
            if sk.trace is not None:
                sk.trace.event(sk, "hystart", detector="train", cwnd=sk.snd_cwnd, round_us=now_us - ca.round_start, delay_min_us=ca.delay_min)
    if not detect & DELAY:
        return
    if delay_us < ca.curr_rtt:
        ca.curr_rtt = delay_us
    if ca.sample_cnt < MIN_SAMPLES:
        ca.sample_cnt += 1
    elif ca.curr_rtt > ca.delay_min + min(max(ca.delay_min >> 3, DELAY_MIN_US), DELAY_MAX_US):
        ca.found = True
        mib.TCPHystartDelayDetect += 1
        mib.TCPHystartDelayCwnd += sk.snd_cwnd
        sk.snd_ssthresh = sk.snd_cwnd
        if sk.trace is not None:
            sk.trace.event(sk, "hystart", detector="delay", cwnd=sk.snd_cwnd, rtt_us=ca.curr_rtt, delay_min_us=ca.delay_min)
