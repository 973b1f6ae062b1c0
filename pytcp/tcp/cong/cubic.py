"""CUBIC (RFC 9438 as Linux computes it): the window is a cubic function of time since the last loss.

Integer arithmetic and the kernel's approximate cube root, so that decisions match to the packet
(linux-tcp §6.2, §14). Time is in jiffies for the growth function, in us for delays. HyStart lives in
`hystart`. The parameters of Linux's module are sysctls, `pytcp.tcp_cubic.*`; what the module derives from
beta and bic_scale when it is loaded does not follow later changes there, and is constant here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..const import CA_EVENT_TX_START, CA_LOSS
from ..cwnd import is_limited
from . import hystart
from .base import CongestionControl, cong_avoid_ai, slow_start

if TYPE_CHECKING:
    from ..sock import Sock

BETA_SCALE = 1024
BETA_SCALED = 8 * (BETA_SCALE + 717) // 3 // (BETA_SCALE - 717)
CUBE_RTT_SCALE = 410  # bic_scale 41 times 10: C = 0.4
CUBE_FACTOR = (1 << 40) // CUBE_RTT_SCALE

# seed table of the kernel's cube root: 64ths of the root of the top bits
_ROOTS = (
    0, 54, 54, 54, 118, 118, 118, 118, 123, 129, 134, 138, 143, 147, 151, 156,
    157, 161, 164, 168, 170, 173, 176, 179, 181, 185, 187, 190, 192, 194, 197, 199,
    200, 202, 204, 206, 209, 211, 213, 215, 217, 219, 221, 222, 224, 225, 227, 229,
    231, 232, 234, 236, 237, 239, 240, 242, 244, 245, 246, 248, 250, 251, 252, 254,
)  # fmt: skip


def cubic_root(a: int) -> int:
    """Cube root by table and one Newton step: the kernel's value, about 0.2 % off the exact one."""
    b = a.bit_length()
    if b < 7:
        return (_ROOTS[a] + 35) >> 6
    b = ((b * 84) >> 8) - 1
    x = ((_ROOTS[a >> (b * 3)] + 10) << b) >> 6
    x = 2 * x + a // (x * (x - 1))
    return (x * 341) >> 10


class Cubic(CongestionControl):
    """State of one connection: bictcp's fields and HyStart's."""

    __slots__ = (
        "cnt",
        "last_max_cwnd",
        "last_cwnd",
        "last_time",
        "origin_point",
        "k",
        "delay_min",
        "epoch_start",
        "ack_cnt",
        "tcp_cwnd",
        "found",
        "sample_cnt",
        "round_start",
        "end_seq",
        "last_ack",
        "curr_rtt",
    )

    name = "cubic"

    def __init__(self) -> None:
        self.found = False
        self.round_start = 0
        self.end_seq = 0
        self.last_ack = 0
        self.curr_rtt = hystart.NO_RTT
        self.sample_cnt = 0
        self._reset()

    def _reset(self) -> None:
        self.cnt = 0
        self.last_max_cwnd = 0
        self.last_cwnd = 0
        self.last_time = 0
        self.origin_point = 0
        self.k = 0
        self.delay_min = 0
        self.epoch_start = 0
        self.ack_cnt = 0
        self.tcp_cwnd = 0
        self.found = False

    def init(self, sk: Sock) -> None:
        self._reset()
        if sk.sysctl.cubic_hystart:
            hystart.reset(self, sk)
        elif sk.sysctl.cubic_initial_ssthresh:
            sk.snd_ssthresh = sk.sysctl.cubic_initial_ssthresh

    def ssthresh(self, sk: Sock) -> int:
        self.epoch_start = 0
        cwnd = sk.snd_cwnd
        beta = sk.sysctl.cubic_beta
        if cwnd < self.last_max_cwnd and sk.sysctl.cubic_fast_convergence:
            self.last_max_cwnd = cwnd * (BETA_SCALE + beta) // (2 * BETA_SCALE)
        else:
            self.last_max_cwnd = cwnd
        return max(cwnd * beta // BETA_SCALE, 2)

    def cong_avoid(self, sk: Sock, ack: int, acked: int) -> None:
        if not is_limited(sk):
            return
        if sk.snd_cwnd < sk.snd_ssthresh:
            if sk.sysctl.hystart_reset == "cong_avoid" and sk.sysctl.cubic_hystart and ack > self.end_seq:
                hystart.reset(self, sk)
            acked = slow_start(sk, acked)
            if not acked:
                return
        self._update(sk, sk.snd_cwnd, acked)
        cong_avoid_ai(sk, self.cnt, acked)

    def _update(self, sk: Sock, cwnd: int, acked: int) -> None:
        """Recompute `cnt`: packets to be acknowledged per packet of growth."""
        hz = sk.sysctl.hz
        now = sk.host.now_ns // sk.sysctl.tick_ns
        self.ack_cnt += acked
        if self.last_cwnd == cwnd and now - self.last_time <= hz // 32:
            return
        # within one jiffy the growth function cannot have changed, the friendly window can
        if not (self.epoch_start and now == self.last_time):
            self.last_cwnd = cwnd
            self.last_time = now
            if not self.epoch_start:
                self.epoch_start = now or 1
                self.ack_cnt = acked
                self.tcp_cwnd = cwnd
                if self.last_max_cwnd <= cwnd:
                    self.k = 0
                    self.origin_point = cwnd
                else:
                    self.k = cubic_root(CUBE_FACTOR * (self.last_max_cwnd - cwnd))
                    self.origin_point = self.last_max_cwnd
            delay_jiffies = -(-self.delay_min * 1000 // sk.sysctl.tick_ns)
            t = ((now - self.epoch_start + delay_jiffies) << 10) // hz
            offset = self.k - t if t < self.k else t - self.k
            delta = (CUBE_RTT_SCALE * offset * offset * offset) >> 40
            target = self.origin_point - delta if t < self.k else self.origin_point + delta
            self.cnt = cwnd // (target - cwnd) if target > cwnd else 100 * cwnd
            # the first loss has not happened: grow no slower than 5 % per round trip
            if not self.last_max_cwnd and self.cnt > 20:
                self.cnt = 20
        if sk.sysctl.cubic_tcp_friendliness:
            per_packet = (cwnd * BETA_SCALED) >> 3
            if per_packet > 0 and self.ack_cnt > per_packet:
                more = (self.ack_cnt - 1) // per_packet
                self.ack_cnt -= more * per_packet
                self.tcp_cwnd += more
            if self.tcp_cwnd > cwnd:
                self.cnt = min(self.cnt, cwnd // (self.tcp_cwnd - cwnd))
        # at most 1.5 times per round trip
        if self.cnt < 2:
            self.cnt = 2

    def set_state(self, sk: Sock, state: int) -> None:
        if state == CA_LOSS:
            self._reset()
            hystart.reset(self, sk)

    def cwnd_event(self, sk: Sock, event: int) -> None:
        if event == CA_EVENT_TX_START and self.epoch_start:
            # idle time does not count as time since the loss
            tick = sk.sysctl.tick_ns
            now = sk.host.now_ns // tick
            idle = now - sk.lsndtime_ns // tick
            if idle > 0:
                self.epoch_start = min(self.epoch_start + idle, now)

    def pkts_acked(self, sk: Sock, acked: int, rtt_us: int) -> None:
        if rtt_us < 0:
            return
        # right after a recovery the samples are inflated by its burst
        if self.epoch_start and sk.host.now_ns // sk.sysctl.tick_ns - self.epoch_start < sk.sysctl.hz:
            return
        delay = rtt_us or 1
        if not self.delay_min or self.delay_min > delay:
            self.delay_min = delay
        if not self.found and sk.snd_cwnd < sk.snd_ssthresh and sk.sysctl.cubic_hystart:
            if sk.sysctl.hystart_reset != "update" and sk.snd_cwnd < sk.sysctl.cubic_hystart_low_window:
                return
            hystart.update(self, sk, delay)
