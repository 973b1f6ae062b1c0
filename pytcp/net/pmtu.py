"""Path MTU: what routers said a path takes, per destination, for ten minutes (RFC 1191, RFC 8201).

A report is believed by whoever checked that it quotes something we sent (TCP: the sequence number;
UDP: a matching socket). The first one makes cached routes to that destination stale: whoever reported it
looks the way up again, every other socket finds out when it sends, and then what it has cut for the old
MTU is too large (linux-sockets §3). Later ones are written into the cached routes (`Dst.mtu`), and so is
the old MTU when the report expires. IPv4 reports below
`min_pmtu` set that and lock the path: packets go without DF from then on. IPv6 ignores reports below
1280. A report never raises the MTU.
Sysctls: net.ipv4.route.mtu_expires, net.ipv4.route.min_pmtu, net.ipv6.route.mtu_expires.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytcp.wire.ipv6 import IPV6_MIN_MTU

if TYPE_CHECKING:
    from pytcp.clock.heap import Timer

    from .route import Dst
    from .stack import Stack

LIMIT = 4096  # destinations remembered
_S = 1_000_000_000


class _Exception:
    """One destination's learnt MTU."""

    __slots__ = ("mtu", "lock", "expires_ns", "timer")

    def __init__(self, mtu: int, lock: bool, expires_ns: int, timer: Timer) -> None:
        self.mtu = mtu
        self.lock = lock
        self.expires_ns = expires_ns
        self.timer = timer


class PmtuCache:
    """Learnt path MTUs of one stack."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._entries: dict[bytes, _Exception] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, daddr: bytes) -> tuple[int, bool, int] | None:
        """(MTU, locked, expires at ns) learnt for a destination, or None."""
        entry = self._entries.get(daddr)
        return None if entry is None else (entry.mtu, entry.lock, entry.expires_ns)

    def apply(self, dst: Dst) -> None:
        """Give a fresh `Dst` what is known about its destination."""
        entry = self._entries.get(dst.daddr)
        if entry is not None and (entry.mtu <= dst.mtu or entry.lock):
            dst.set_mtu(min(entry.mtu, dst.mtu), entry.lock or dst.mtu_lock)

    def update(self, dst: Dst, mtu: int) -> bool:
        """Take a validated report about the path `dst` goes; returns whether it counted for anything."""
        sysctl = self.stack.sysctl
        if dst.route is not None and dst.route.mtu_lock:
            return False
        lock = False
        known = self._entries.get(dst.daddr)
        # `dst` may be older than what is known
        current = dst.mtu if known is None else min(dst.mtu, known.mtu)
        if dst.family == 4:
            if mtu > current:
                return False
            seconds = sysctl.mtu_expires
            if mtu < sysctl.min_pmtu:
                lock = True
                mtu = min(current, sysctl.min_pmtu)
        else:
            if mtu >= current or mtu < IPV6_MIN_MTU:
                return False
            seconds = sysctl.mtu_expires6
        self._store(dst.daddr, mtu, lock, seconds)
        return True

    def _store(self, daddr: bytes, mtu: int, lock: bool, seconds: int) -> None:
        heap = self.stack.heap
        old = self._entries.pop(daddr, None)
        if old is not None:
            old.timer.cancel()
        elif len(self._entries) >= LIMIT:
            self._expire(next(iter(self._entries)))
        tick = self.stack.sysctl.tick_ns
        when = (heap.now_ns // tick) * tick + seconds * _S
        timer = heap.call_at(when, partial(self._expire, daddr))
        self._entries[daddr] = _Exception(mtu, lock, when, timer)
        if old is None:
            self.stack.forget_ways(daddr)
            return
        for dst in self.stack.dsts_to(daddr):
            dst.set_mtu(mtu, lock)

    def _expire(self, daddr: bytes) -> None:
        """The destination is worth its route's MTU again."""
        entry = self._entries.pop(daddr, None)
        if entry is not None:
            entry.timer.cancel()
            for dst in self.stack.dsts_to(daddr):
                dst.set_mtu(dst.route_mtu, dst.route.mtu_lock if dst.route is not None else False)

    def flush(self) -> None:
        """Forget everything (`net.ipv4.route.flush`)."""
        for daddr in list(self._entries):
            self._expire(daddr)
