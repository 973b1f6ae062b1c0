"""The congestion-control interface: what an algorithm may decide, and when it is asked.

A new algorithm is a class: give it a `name`, override the hooks it needs, `register` it. State lives
in the instance (one per connection). Linux's tcp_congestion_ops, same names. Windows are packets.
As there, the SYN-ACK of a connection that we open is already told to `cong_control` and `pkts_acked`, before `init`:
what they need is there from `__init__` on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cwnd import is_limited

if TYPE_CHECKING:
    from ..rate import AckSample
    from ..sock import Sock


class CongestionControl:
    """Base class; by itself it behaves as Reno."""

    __slots__ = ()

    name = ""
    needs_ecn = False
    has_cong_control = False  # cong_control() replaces PRR and cong_avoid()
    has_min_tso_segs = False  # min_tso_segs() replaces the sysctl
    sndbuf_factor = 2  # sndbuf in congestion windows

    def init(self, sk: Sock) -> None:
        """The connection becomes established (or switches to this algorithm)."""

    def release(self, sk: Sock) -> None:
        """The algorithm is dropped."""

    def ssthresh(self, sk: Sock) -> int:
        """Slow-start threshold after a loss or ECN mark, packets (RFC 5681 §3.1: half, at least two)."""
        return max(sk.snd_cwnd >> 1, 2)

    def cong_avoid(self, sk: Sock, ack: int, acked: int) -> None:
        """`acked` packets were delivered and the window may grow."""
        if not is_limited(sk):
            return
        if sk.snd_cwnd < sk.snd_ssthresh:
            acked = slow_start(sk, acked)
            if not acked:
                return
        cong_avoid_ai(sk, sk.snd_cwnd, acked)

    def undo_cwnd(self, sk: Sock) -> int:
        """cwnd after an episode proved spurious."""
        return max(sk.snd_cwnd, sk.prior_cwnd)

    def set_state(self, sk: Sock, state: int) -> None:
        """The congestion state changes to CA_*."""

    def cwnd_event(self, sk: Sock, event: int) -> None:
        """One of CA_EVENT_* happened."""

    def pkts_acked(self, sk: Sock, acked: int, rtt_us: int) -> None:
        """`acked` packets left the queue; RTT sample in us, -1 without."""

    def cong_control(self, sk: Sock, ack: int, flag: int, rs: AckSample) -> None:
        """The whole answer to an ACK, if `has_cong_control`."""

    def min_tso_segs(self, sk: Sock) -> int:
        """Smallest burst, packets, if `has_min_tso_segs`."""
        return sk.sysctl.tcp_min_tso_segs

    def info(self, sk: Sock) -> dict[str, int]:
        """What TCP_CC_INFO tells of it, by field name."""
        return {}


def slow_start(sk: Sock, acked: int) -> int:
    """Grow by one packet per packet acknowledged up to ssthresh; returns what is left over."""
    cwnd = min(sk.snd_cwnd + acked, sk.snd_ssthresh)
    acked -= cwnd - sk.snd_cwnd
    sk.snd_cwnd = min(cwnd, sk.snd_cwnd_clamp)
    return acked


def cong_avoid_ai(sk: Sock, w: int, acked: int) -> None:
    """Additive increase: one packet per `w` packets acknowledged."""
    if sk.snd_cwnd_cnt >= w:
        sk.snd_cwnd_cnt = 0
        sk.snd_cwnd += 1
    sk.snd_cwnd_cnt += acked
    if sk.snd_cwnd_cnt >= w:
        more = sk.snd_cwnd_cnt // w
        sk.snd_cwnd_cnt -= more * w
        sk.snd_cwnd += more
    sk.snd_cwnd = min(sk.snd_cwnd, sk.snd_cwnd_clamp)
