"""Congestion-window bookkeeping around the congestion control: was it the limit, is it still valid?

cwnd only grows while it is what limits the sender (is_cwnd_limited); unused window decays (RFC 2861 as
Linux has it) and an idle restart begins again from the initial window. Sysctls:
tcp_slow_start_after_idle, pytcp.keep_cwnd_limited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .chrono import SNDBUF_LIMITED
from .chrono import start as chrono_start
from .const import CA_CWR, CA_EVENT_CWND_RESTART, CA_OPEN, CA_RECOVERY

if TYPE_CHECKING:
    from .sock import Sock

TCP_INIT_CWND = 10


def init_cwnd(sk: Sock) -> int:
    """Initial window, packets: the route's initcwnd metric or 10 (RFC 6928)."""
    dst = sk.dst
    metric = dst.initcwnd if dst is not None else 0
    return min(metric or TCP_INIT_CWND, sk.snd_cwnd_clamp)


def current_ssthresh(sk: Sock) -> int:
    """ssthresh that remembers what the window was good for."""
    if sk.ca_state == CA_CWR or sk.ca_state == CA_RECOVERY:
        return sk.snd_ssthresh
    return max(sk.snd_ssthresh, (sk.snd_cwnd >> 1) + (sk.snd_cwnd >> 2))


def is_limited(sk: Sock) -> bool:
    """Whether cwnd is (or in slow start recently was) what holds the sender back."""
    if sk.is_cwnd_limited:
        return True
    if sk.snd_cwnd < sk.snd_ssthresh:
        return sk.snd_cwnd < 2 * sk.max_packets_out
    return False


def validate(sk: Sock, limited: bool) -> None:
    """After sending: note whether cwnd was the limit in this window; decay it when unused for an RTO."""
    packets = sk.packets_out
    if sk.snd_una >= sk.cwnd_usage_seq or limited or (packets > sk.max_packets_out and not (sk.is_cwnd_limited and sk.sysctl.keep_cwnd_limited)):
        sk.is_cwnd_limited = limited
        sk.max_packets_out = packets
        sk.cwnd_usage_seq = sk.snd_nxt
    if limited or ((sk.is_cwnd_limited or sk.snd_cwnd < 2 * sk.max_packets_out) and is_limited(sk)):
        sk.snd_cwnd_used = 0
        sk.cwnd_stamp = sk.host.now_ns
        return
    if packets > sk.snd_cwnd_used:
        sk.snd_cwnd_used = packets
    # (counted in whole ticks, time is less than a tick longer than it is)
    if sk.host.now_ns - sk.cwnd_stamp > sk.rto_ns - sk.sysctl.tick_ns and sk.sysctl.tcp_slow_start_after_idle and not sk.ca.has_cong_control:
        tick = sk.sysctl.tick_ns
        if (sk.host.now_ns // tick - sk.cwnd_stamp // tick) * tick >= sk.rto_ns:
            _application_limited(sk)
    if sk.nospace and sk.write_queue.head is None and 1 << sk.state & (1 << 1 | 1 << 8):
        chrono_start(sk, SNDBUF_LIMITED)


def _application_limited(sk: Sock) -> None:
    """The window went unused for an RTO: come half way down to what was used."""
    if sk.ca_state == CA_OPEN and not sk.nospace:
        used = max(sk.snd_cwnd_used, init_cwnd(sk))
        if used < sk.snd_cwnd:
            sk.snd_ssthresh = current_ssthresh(sk)
            sk.snd_cwnd = (sk.snd_cwnd + used) >> 1
        sk.snd_cwnd_used = 0
    sk.cwnd_stamp = sk.host.now_ns


def slow_start_after_idle_check(sk: Sock) -> None:
    """New data after an idle period longer than the RTO: restart from a smaller window."""
    if not sk.sysctl.tcp_slow_start_after_idle or sk.packets_out or sk.ca.has_cong_control:
        return
    tick = sk.sysctl.tick_ns
    idle = (sk.host.now_ns // tick - sk.lsndtime_ns // tick) * tick
    if idle > sk.rto_ns:
        restart(sk, idle)


def restart(sk: Sock, idle_ns: int) -> None:
    """RFC 2861 §2: halve cwnd for every RTO of idleness, not below the restart window."""
    window = sk.snd_cwnd
    floor = min(init_cwnd(sk), window)
    sk.ca.cwnd_event(sk, CA_EVENT_CWND_RESTART)
    sk.snd_ssthresh = current_ssthresh(sk)
    rto = sk.rto_ns
    idle_ns -= rto
    while idle_ns > 0 and window > floor:
        window >>= 1
        idle_ns -= rto
    sk.snd_cwnd = max(window, floor)
    sk.cwnd_stamp = sk.host.now_ns
    sk.snd_cwnd_used = 0
