"""epoll over the stack's sockets: level, edge (EPOLLET) and one-shot, with `select.epoll`'s calls and Linux's readiness.

    with Epoll() as epoll:
        epoll.register(sock, EPOLLIN | EPOLLET)
        for sock, events in await epoll.wait():
            ...

As in the kernel (epoll(7)) an entry becomes ready when it is registered or modified, if its events are there, and each time the
socket reports one of the wanted events, whether they were there before or not: that is the edge. `poll` looks at the level
then, hands out what is true, and keeps only level-triggered entries ready. What arrives in one batch of frames is one edge.

Entries are sockets, not numbers. A socket that is closed leaves the set by itself; one whose stack has ended reports
EPOLLERR | EPOLLHUP. `notify` of a socket that is watched goes on being called.
"""

from __future__ import annotations

import errno
import operator
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio
from trio.lowlevel import ParkingLot, cancel_shielded_checkpoint, checkpoint_if_cancelled

from pytcp.tcp.const import POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDHUP

from .address import oserror

EPOLLIN, EPOLLPRI, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLRDHUP = POLLIN, POLLPRI, POLLOUT, POLLERR, POLLHUP, POLLRDHUP
EPOLLEXCLUSIVE = 1 << 28
EPOLLONESHOT = 1 << 30
EPOLLET = 1 << 31
_PRIVATE = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE
_ALWAYS = EPOLLERR | EPOLLHUP
_WITH_EXCLUSIVE = EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLET | EPOLLEXCLUSIVE


class Pollable(Protocol):
    """What a set can watch: `Socket`, `DatagramSocket`."""

    notify: Callable[[int], object]

    def poll(self) -> int:
        """Readiness bits that are true now. Raises OSError EBADF when it is closed."""


P = TypeVar("P", bound=Pollable)


class _Watchers:
    """`notify` of a socket that is watched: whoever had it, and the sets."""

    __slots__ = ("before", "sets")

    def __init__(self, before: Callable[[int], object]) -> None:
        self.before = before
        self.sets: list[Callable[[int], object]] = []

    def __call__(self, mask: int) -> None:
        self.before(mask)
        for watcher in tuple(self.sets):
            watcher(mask)


class _Entry(Generic[P]):
    __slots__ = ("events", "item", "owner", "ready", "watchers")

    def __init__(self, owner: Epoll[P], item: P, events: int) -> None:
        self.owner = owner
        self.item = item
        self.events = events | _ALWAYS  # until a one-shot entry has been served
        self.ready = False
        watchers = item.notify
        if not isinstance(watchers, _Watchers):
            watchers = item.notify = _Watchers(watchers)
        self.watchers = watchers
        watchers.sets.append(self.woken)

    @property
    def wanted(self) -> int:
        return self.events & ~_PRIVATE

    def level(self) -> int:
        """The wanted bits that are true; -1: the socket is closed."""
        try:
            return self.item.poll() & self.wanted
        except OSError as exc:
            return -1 if exc.errno == errno.EBADF else _ALWAYS & self.wanted

    def woken(self, mask: int) -> None:
        if mask & self.wanted:
            self.owner._queue(self)

    def let_go(self) -> None:
        self.watchers.sets.remove(self.woken)
        if not self.watchers.sets and self.item.notify is self.watchers:
            self.item.notify = self.watchers.before


class Epoll(Generic[P]):
    """One epoll set. Its errors are those of `select.epoll`."""

    def __init__(self) -> None:
        self._entries: dict[P, _Entry[P]] = {}
        self._ready: deque[_Entry[P]] = deque()
        self._lot = ParkingLot()
        self.closed = False

    def __enter__(self) -> Epoll[P]:
        self._check()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed epoll object")

    def register(self, sock: P, eventmask: int = EPOLLIN | EPOLLPRI | EPOLLOUT) -> None:
        """Watch a socket for EPOLL* events. Raises OSError EEXIST when it is watched, EBADF when it is closed, EINVAL."""
        self._check()
        events = operator.index(eventmask)
        if events & EPOLLEXCLUSIVE and events & ~_WITH_EXCLUSIVE:
            raise oserror(errno.EINVAL, "EPOLLEXCLUSIVE goes with EPOLLIN, EPOLLOUT and EPOLLET only")
        entry = self._entries.get(sock)
        if entry is not None and entry.level() >= 0:
            raise oserror(errno.EEXIST, "the socket is in the set already")
        sock.poll()
        entry = self._entries[sock] = _Entry(self, sock, events)
        if entry.level():
            self._queue(entry)

    def modify(self, sock: P, eventmask: int) -> None:
        """Watch for other events. Raises OSError ENOENT when the socket is not watched, EINVAL with EPOLLEXCLUSIVE."""
        entry = self._entry(sock)
        events = operator.index(eventmask)
        if (events | entry.events) & EPOLLEXCLUSIVE:
            raise oserror(errno.EINVAL, "EPOLLEXCLUSIVE cannot be modified")
        entry.events = events | _ALWAYS
        if entry.level():
            self._queue(entry)

    def unregister(self, sock: P) -> None:
        """Watch no longer. Raises OSError ENOENT when the socket is not watched."""
        self._drop(self._entry(sock))

    def _entry(self, sock: P) -> _Entry[P]:
        self._check()
        entry = self._entries.get(sock)
        if entry is None:
            raise oserror(errno.ENOENT, "the socket is not in the set")
        return entry

    def _drop(self, entry: _Entry[P]) -> None:
        if self._entries.get(entry.item) is entry:
            del self._entries[entry.item]
        entry.let_go()
        if entry.ready:
            entry.ready = False
            self._ready.remove(entry)

    def _queue(self, entry: _Entry[P]) -> None:
        if not entry.ready:
            entry.ready = True
            self._ready.append(entry)
        self._lot.unpark()

    def poll(self, maxevents: int = -1) -> list[tuple[P, int]]:
        """(socket, events) of up to `maxevents` ready entries (-1: of all), without waiting."""
        self._check()
        if maxevents < -1 or not maxevents:
            raise ValueError(f"maxevents must be greater than 0, got {maxevents}")
        found: list[tuple[P, int]] = []
        again: list[_Entry[P]] = []
        ready = self._ready
        while ready and len(found) != maxevents:
            entry = ready.popleft()
            entry.ready = False
            events = entry.level()
            if events < 0:
                self._drop(entry)
            elif events:
                found.append((entry.item, events))
                if entry.events & EPOLLONESHOT:
                    entry.events &= _PRIVATE
                elif not entry.events & EPOLLET:
                    again.append(entry)
        for entry in again:  # behind those that had no turn
            if not entry.ready:
                entry.ready = True
                ready.append(entry)
        return found

    async def wait(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[P, int]]:
        """As `poll`, sleeping until there is something, or for at most `timeout` seconds; a checkpoint in any case."""
        await checkpoint_if_cancelled()
        found = self.poll(maxevents)
        if found or (timeout is not None and timeout <= 0):
            await cancel_shielded_checkpoint()
            return found
        with trio.move_on_after(float("inf") if timeout is None else timeout):
            while not found:
                await self._lot.park()
                found = self.poll(maxevents)
        return found

    def close(self) -> None:
        """Let go of all sockets; who waits gets ValueError. Harmless when done before."""
        if not self.closed:
            self.closed = True
            for entry in self._entries.values():
                entry.let_go()
            self._entries.clear()
            self._ready.clear()
            self._lot.unpark_all()
