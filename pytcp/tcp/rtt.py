"""Round-trip time and retransmission timeout: RFC 6298 with Linux's estimator (linux-tcp §8.2).

srtt_us is kept times 8, mdev_us times 4. The variance decays slowly: it follows the largest deviation
of each window (mdev_max), so that a burst of smooth samples cannot pull the RTO under the real jitter.
RTO = srtt + max(4·mdev..., rto_min); hence never below srtt + 200 ms. Sysctls: tcp_rto_min_us,
tcp_min_rtt_wlen. RFC 7323 timestamps serve when no unambiguous sample exists (Karn's rule).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sock import Sock

UNKNOWN = 0xFFFFFFFF


class WindowedMin:
    """Minimum over a sliding time window from three samples: best, second and third best so far.

    The estimator of Kathleen Nichols' windowed-min filter: constant memory, exact when the minimum
    does not change, at most a quarter window late when it does.
    """

    __slots__ = ("best", "best_time", "second", "second_time", "third", "third_time")

    def __init__(self, time: int, value: int) -> None:
        self.reset(time, value)

    def get(self) -> int:
        return self.best

    def reset(self, time: int, value: int) -> int:
        self.best = self.second = self.third = value
        self.best_time = self.second_time = self.third_time = time
        return value

    def _next(self, time: int, value: int) -> None:
        """The best is too old: the runners-up move up, behind them comes the new sample."""
        self.best, self.best_time = self.second, self.second_time
        self.second, self.second_time = self.third, self.third_time
        self.third, self.third_time = value, time

    def update(self, window: int, time: int, value: int) -> int:
        """Add a sample; returns the minimum over the last `window` time units."""
        best_time = self.best_time
        age = time - best_time
        if value > self.third and age <= window // 4:
            # the usual: no better than what there is, and nothing is old enough to be replaced
            return self.best
        if value <= self.best or time - self.third_time > window:
            return self.reset(time, value)
        if value <= self.second:
            self.second = self.third = value
            self.second_time = self.third_time = time
        elif value <= self.third:
            self.third, self.third_time = value, time
        # subwindow: let the runners-up be recent enough to take over
        if age > window:
            self._next(time, value)
            if time - self.best_time > window:
                self._next(time, value)
        elif self.second_time == best_time and age > window // 4:
            self.second = self.third = value
            self.second_time = self.third_time = time
        elif self.third_time == self.second_time and age > window // 2:
            self.third, self.third_time = value, time
        return self.best


def update_rtt_min(sk: Sock, rtt_us: int, maybe_delayed: bool) -> None:
    """Feed the minimum filter; a sample the peer may have delayed cannot raise the minimum.

    `sk.min_rtt_us` is the lowest RTT of the last tcp_min_rtt_wlen seconds, UNKNOWN before any."""
    if maybe_delayed and rtt_us > sk.min_rtt_us:
        return
    sysctl = sk.sysctl
    tick = sysctl.tick_ns
    now = sk.host.now_ns // tick
    # no time at all cannot have passed: it counts as a tick
    rtt_us = rtt_us or tick // 1000
    known = sk.rtt_min
    if known is None:
        # one sample needs no filter yet, only its time: many connections never see a second
        sk.rtt_min = now
        sk.min_rtt_us = rtt_us
    else:
        if type(known) is int:
            known = sk.rtt_min = WindowedMin(known, sk.min_rtt_us)
        sk.min_rtt_us = known.update(sysctl.tcp_min_rtt_wlen * sysctl.hz, now, rtt_us)


def rtt_estimator(sk: Sock, mrtt_us: int) -> None:
    """Take one sample, us, into srtt and rttvar."""
    srtt = sk.srtt_us
    if srtt:
        mdev = sk.mdev_us
        m = mrtt_us - (srtt >> 3)
        srtt += m
        if m < 0:
            m = -m - (mdev >> 2)
            # a falling RTT should not raise the variance as much as a rising one
            if m > 0:
                m >>= 3
        else:
            m -= mdev >> 2
        mdev += m
        sk.mdev_us = mdev
        if mdev > sk.mdev_max_us:
            sk.mdev_max_us = mdev
            if mdev > sk.rttvar_us:
                sk.rttvar_us = mdev
        if sk.snd_una > sk.rtt_seq:
            if sk.mdev_max_us < sk.rttvar_us:
                sk.rttvar_us -= (sk.rttvar_us - sk.mdev_max_us) >> 2
            sk.rtt_seq = sk.snd_nxt
            sk.mdev_max_us = sk.rto_min_us
    else:
        srtt = mrtt_us << 3
        sk.mdev_us = mrtt_us << 1
        sk.rttvar_us = max(sk.mdev_us, sk.rto_min_us)
        sk.mdev_max_us = sk.rttvar_us
        sk.rtt_seq = sk.snd_nxt
    sk.srtt_us = srtt if srtt > 0 else 1


def rto_from_srtt_ns(sk: Sock) -> int:
    """RTO of the current estimate, whole ticks, ns."""
    us = (sk.srtt_us >> 3) + sk.rttvar_us
    tick = sk.sysctl.tick_ns
    return -(-us * 1000 // tick) * tick


def set_rto(sk: Sock) -> None:
    sk.rto_ns = min(rto_from_srtt_ns(sk), sk.rto_max_ns)


def shift(sk: Sock, change_us: int) -> None:
    """The round trip has become so much longer (or shorter), us, by our own doing; the minimum begins anew."""
    sk.srtt_us = min(max(sk.srtt_us + (change_us << 3), 1), UNKNOWN)
    set_rto(sk)
    sk.rtt_min = None
    sk.min_rtt_us = UNKNOWN


def sample(sk: Sock, maybe_delayed: bool, seq_rtt_us: int, ca_rtt_us: int) -> None:
    """Apply the RTT sample of an ACK, us; `ca_rtt_us`, of what was sent last, feeds the minimum. Neither is negative.

    The caller chose both: never-retransmitted cumulatively acknowledged data, else SACKed data, else
    the timestamp echo where only retransmitted data was acknowledged (RFC 7323 §4.3).
    """
    if not maybe_delayed or ca_rtt_us <= sk.min_rtt_us:
        update_rtt_min(sk, ca_rtt_us, maybe_delayed)
    rtt_estimator(sk, seq_rtt_us)
    tick = sk.sysctl.tick_ns
    rto = -(-((sk.srtt_us >> 3) + sk.rttvar_us) * 1000 // tick) * tick
    if rto > sk.rto_max_ns:
        rto = sk.rto_max_ns
    sk.rto_ns = rto
    sk.backoff = 0


def tsecr_rtt_us(sk: Sock) -> int:
    """RTT from the timestamp echo in the segment being processed, us; -1 when it cannot be right."""
    now_ms = (sk.host.now_ns // 1_000_000 + sk.ts_offset) & 0xFFFFFFFF
    delta_ms = (now_ms - sk.rcv_tsecr) & 0xFFFFFFFF
    if delta_ms < 0x7FFFFFFF // 1000:
        return max(delta_ms, 1) * 1000
    return -1


def synack_rtt_meas(sk: Sock, rtt_us: int) -> None:
    """First sample of a passive open: SYN-ACK sent to final ACK, us; -1 if the SYN-ACK was repeated."""
    if rtt_us < 0:
        return
    update_rtt_min(sk, rtt_us, False)
    rtt_estimator(sk, rtt_us)
    set_rto(sk)
    sk.backoff = 0
