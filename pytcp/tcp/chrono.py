"""What keeps a sender from sending: Linux's exclusive chronographs behind tcp_info.

BUSY runs while data is unacknowledged or unsent; RWND_LIMITED and SNDBUF_LIMITED take over from it
while the peer's window or our buffer is what is missing. Exactly one runs at a time; busy_time in
tcp_info is the sum (since Linux 4.10). They count whole ticks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sock import Sock

UNSPEC = 0
BUSY = 1
RWND_LIMITED = 2
SNDBUF_LIMITED = 3


def _switch(sk: Sock, kind: int) -> None:
    """Another one runs from here, or none; what the last one has counted is added, which within a tick is nothing."""
    tick = sk.sysctl.tick_ns
    now = sk.host.now_ns
    if now // tick != sk.chrono_start_ns // tick:
        if sk.chrono_us is None:
            sk.chrono_us = [0, 0, 0]
        sk.chrono_us[sk.chrono_kind - 1] += _running_us(sk)
        sk.chrono_start_ns = now
    sk.chrono_kind = kind


def _running_us(sk: Sock) -> int:
    """What the one that runs has counted."""
    tick = sk.sysctl.tick_ns
    return sk.host.now_ns // tick * tick // 1000 - sk.chrono_start_ns // tick * tick // 1000


def start(sk: Sock, kind: int) -> None:
    """A higher kind overrides a lower one; a lower one never interrupts a higher one."""
    running = sk.chrono_kind
    if not running:
        sk.chrono_start_ns = sk.host.now_ns
        sk.chrono_kind = kind
    elif kind > running:
        _switch(sk, kind)


def stop(sk: Sock, kind: int) -> None:
    """End `kind`; if data is still queued the connection falls back to BUSY."""
    if sk.rtx_queue.head is None and sk.write_queue.head is None:
        if sk.chrono_kind:
            _switch(sk, UNSPEC)
    elif kind == sk.chrono_kind:
        _switch(sk, BUSY)


def times_us(sk: Sock) -> tuple[int, int, int]:
    """(busy, rwnd_limited, sndbuf_limited) so far, us, as tcp_info reports them (busy = the sum)."""
    us = list(sk.chrono_us or (0, 0, 0))
    if sk.chrono_kind:
        us[sk.chrono_kind - 1] += _running_us(sk)
    return sum(us), us[1], us[2]
