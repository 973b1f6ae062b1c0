"""epoll over the stack's sockets: level, edge (EPOLLET) and one-shot, woken by `Socket.notify`.

As in the kernel an entry becomes ready when it is added or modified, if its events are there, and each time the socket
reports one of the wanted events; `wait` looks at the level then, hands out what is true, and keeps only
level-triggered entries in the ready list (epoll(7)).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Protocol

EPOLLET = 1 << 31
EPOLLONESHOT = 1 << 30
EPOLLEXCLUSIVE = 1 << 28
EPOLLERR = 8
EPOLLHUP = 16
CTL_ADD, CTL_DEL, CTL_MOD = 1, 2, 3
_PRIVATE = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE


class Pollable(Protocol):
    """What an epoll set can watch."""

    watchers: list[Callable[[int], None]]

    def mask(self) -> int:
        """Readiness bits that are true now."""


class _Entry:
    __slots__ = ("data", "events", "item", "notify")

    def __init__(self, item: Pollable, events: int, data: int, notify: Callable[[int], None]) -> None:
        self.item = item
        self.events = events
        self.data = data
        self.notify = notify

    @property
    def wanted(self) -> int:
        bits = self.events & ~_PRIVATE
        return bits | EPOLLERR | EPOLLHUP if bits or not self.events & EPOLLONESHOT else 0


class Epoll:
    """One epoll set."""

    def __init__(self) -> None:
        self._entries: dict[Pollable, _Entry] = {}
        self._ready: list[_Entry] = []
        self.watchers: list[Callable[[int], None]] = []

    def control(self, op: int, item: Pollable, events: int, data: int) -> None:
        """epoll_ctl. Raises OSError EEXIST, ENOENT, EINVAL."""
        entry = self._entries.get(item)
        if op == CTL_ADD:
            if entry is not None:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
            entry = _Entry(item, events, data, lambda mask: self._woken(item, mask))
            self._entries[item] = entry
            item.watchers.append(entry.notify)
        elif entry is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        elif op == CTL_DEL:
            self.forget(item)
            return
        elif op == CTL_MOD:
            entry.events = events
            entry.data = data
        else:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if item.mask() & entry.wanted:
            self._queue(entry)

    def forget(self, item: Pollable) -> None:
        """The descriptor is closed, or taken out."""
        entry = self._entries.pop(item, None)
        if entry is not None:
            item.watchers.remove(entry.notify)
            if entry in self._ready:
                self._ready.remove(entry)

    def _woken(self, item: Pollable, mask: int) -> None:
        entry = self._entries[item]
        if not mask or mask & entry.wanted:
            self._queue(entry)

    def _queue(self, entry: _Entry) -> None:
        if entry not in self._ready:
            self._ready.append(entry)

    def harvest(self, most: int) -> list[tuple[int, int]]:
        """(events, data) of up to `most` ready entries."""
        found: list[tuple[int, int]] = []
        again: list[_Entry] = []
        while self._ready and len(found) < most:
            entry = self._ready.pop(0)
            events = entry.item.mask() & entry.wanted
            if not events:
                continue
            found.append((events, entry.data))
            if entry.events & EPOLLONESHOT:
                entry.events &= _PRIVATE
            elif not entry.events & EPOLLET:
                again.append(entry)
        self._ready += again
        return found
