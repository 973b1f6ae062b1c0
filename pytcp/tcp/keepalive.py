"""Keepalive: asking a silent peer whether it is still there (RFC 1122 §4.2.3.6).

After KEEPIDLE without a segment the connection sends an empty segment one byte below snd_una, which a
live peer must answer; KEEPCNT of them unanswered, KEEPINTVL apart, reset it (TCP_USER_TIMEOUT replaces
the count). Nothing is sent while data is queued or in flight: then other timers find out. Works in
half-closed states too. Sysctls: tcp_keepalive_time, tcp_keepalive_intvl, tcp_keepalive_probes.
Counter: TCPKeepAlive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import close, timers, xmit
from .const import ACK, NSEC_PER_MSEC, NSEC_PER_SEC, SF_CLOSE, SF_LISTEN, SF_SYN_SENT

if TYPE_CHECKING:
    from .sock import Sock


def idle_time_ns(sk: Sock) -> int:
    """TCP_KEEPIDLE in force."""
    return (sk.keepalive_time or sk.sysctl.tcp_keepalive_time) * NSEC_PER_SEC


def interval_ns(sk: Sock) -> int:
    """TCP_KEEPINTVL in force."""
    return (sk.keepalive_intvl or sk.sysctl.tcp_keepalive_intvl) * NSEC_PER_SEC


def probes(sk: Sock) -> int:
    """TCP_KEEPCNT in force."""
    return sk.keepalive_probes or sk.sysctl.tcp_keepalive_probes


def elapsed_ns(sk: Sock) -> int:
    """Time since anything was received, in whole ticks."""
    tick = sk.sysctl.tick_ns
    return (sk.host.now_ns // tick - max(sk.lrcvtime_ns, sk.rcv_tstamp_ns) // tick) * tick


def start(sk: Sock) -> None:
    """Keepalive is on and the connection has just come up."""
    _arm(sk, idle_time_ns(sk))


def _arm(sk: Sock, delay_ns: int) -> None:
    sk.keep_kind = timers.KEEP_KEEPALIVE
    sk.keep_expires_ns = sk.host.now_ns + delay_ns
    sk.keep_deadline = when = timers.expiry(sk, delay_ns)
    timers.touch(sk, when)


def set_enabled(sk: Sock, on: bool) -> None:
    """SO_KEEPALIVE; before the connection exists it is only remembered."""
    if not 1 << sk.state & (SF_CLOSE | SF_LISTEN):
        if not on:
            close.stop_keep_timer(sk)
        elif not sk.keepopen:
            start(sk)
    sk.keepopen = on


def set_idle(sk: Sock, seconds: int) -> None:
    """TCP_KEEPIDLE; on a connection with keepalive on the new time counts from the last segment, at once if it is over."""
    sk.keepalive_time = seconds
    if sk.keepopen and not 1 << sk.state & (SF_CLOSE | SF_LISTEN):
        _arm(sk, max(seconds * NSEC_PER_SEC - elapsed_ns(sk), 0))


def timer(sk: Sock) -> None:
    """The keepalive timer fired."""
    if not sk.keepopen or 1 << sk.state & (SF_CLOSE | SF_LISTEN | SF_SYN_SENT):
        return
    idle = idle_time_ns(sk)
    if sk.packets_out or sk.write_queue.head is not None:
        _arm(sk, idle)
        return
    elapsed = elapsed_ns(sk)
    if elapsed < idle:
        _arm(sk, idle - elapsed)
        return
    if _given_up(sk, elapsed):
        close.send_active_reset(sk)
        close.write_err(sk)
        return
    sk.mib.TCPKeepAlive += 1
    sk.probes_out += 1
    xmit.send_control(sk, ACK, sk.snd_una - 1)
    _arm(sk, interval_ns(sk))


def _given_up(sk: Sock, elapsed: int) -> bool:
    """Whether enough probes went unanswered; with TCP_USER_TIMEOUT at least one, and for that long."""
    if sk.user_timeout_ms:
        return sk.probes_out > 0 and elapsed >= sk.user_timeout_ms * NSEC_PER_MSEC
    return sk.probes_out >= probes(sk)
