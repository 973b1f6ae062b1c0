"""What the clocks need of trio that has no public name, kept in this one place.

Virtual time: which task runs first among several that became runnable together is random in trio; its test
suite has a private switch for a seeded order (trio 0.22 to 0.35 and later). And a clock that advances a
simulation has to see whether that made a task runnable; the public statistics say so too, but cost
microseconds per event. Nor may a clock raise: trio would take it for an error of its own, so an error
is raised in the main task instead, the way trio delivers KeyboardInterrupt.

Real time: trio hands a descriptor's readiness to a task, once, and the task asks anew: a turn of the task and
an `epoll_ctl` for every frame. `DeviceLoop` keeps the devices in trio's epoll for good and serves them by a plain
call in the loop, before the tasks have their turn. Those calls are made outside any task.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Protocol

import trio
from trio._core import _run


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Runs of trio inside schedule their tasks in an order that depends on `seed` only."""
    module: Any = _run
    allowed, state = module._ALLOW_DETERMINISTIC_SCHEDULING, module._r.getstate()
    module._ALLOW_DETERMINISTIC_SCHEDULING = True
    module._r.seed(seed)
    try:
        yield
    finally:
        module._ALLOW_DETERMINISTIC_SCHEDULING = allowed
        module._r.setstate(state)


class World:
    """What the trio run of this thread is waiting for, seen from inside its clock."""

    __slots__ = ("_runner", "_runq", "_entry")

    def __init__(self) -> None:
        self._runner: Any = _run.GLOBAL_RUN_CONTEXT.runner
        self._runq = self._runner.runq
        self._entry = self._runner.entry_queue

    def busy(self) -> bool:
        """A task is runnable, or a call from a thread or signal handler waits to be made."""
        return bool(self._runq or self._entry.queue or self._entry.idempotent_queue)

    def waiting_for_idle(self) -> bool:
        """A task is in `trio.testing.wait_all_tasks_blocked`."""
        return bool(self._runner.waiting_for_idle)

    def threads(self) -> bool:
        """A thread of the default limiter is at work for some task."""
        return trio.to_thread.current_default_thread_limiter().borrowed_tokens > 0

    def real_io(self) -> bool:
        """A task waits for a descriptor of the real world (trio's own wake-up socket apart)."""
        statistics = trio.lowlevel.current_statistics().io_statistics
        waiting: int = statistics.tasks_waiting_read + statistics.tasks_waiting_write
        return waiting > 1

    def interrupt(self, failure: BaseException) -> bool:
        """Raise `failure` in the main task where it waits; False when that cannot be done."""
        task = self._runner.main_task
        if task is None or self._runner.main_task_outcome is not None or task._abort_func is None:
            return False

        def raise_failure(*_: object) -> NoReturn:
            raise failure

        task._attempt_abort(raise_failure)
        return True


class Served(Protocol):
    """Who has devices in a loop."""

    kicked: bool  # it wants to be served: set by the loop when a device is ready, and by itself

    def spin_until_ns(self, now_ns: int, waited_ns: int) -> int:
        """CLOCK_MONOTONIC time until which the loop shall poll before it sleeps, asked when it has nothing to do.

        waited_ns: how long its last wait was; `UNENDED` when nobody ended it, or not while it polled."""

    def serve(self) -> None:
        """Clears `kicked`, or leaves it set to be called again after the tasks had a turn. Must not raise: trio would take it for its own error."""


UNENDED = 1 << 62

_MAX_EVENTS = 64  # of one poll; what does not fit is there at the next
_KICKED: list[tuple[int, int]] = [(-1, 0)]  # no descriptor is ready, and yet the turn was not for nothing


class DeviceLoop:
    """Stands where a trio run keeps its I/O manager, and gives it what is not of a device.

    Who is served has an epoll of its own for its devices, and this loop has that one in trio's: so no device is mixed up with
    what trio waits for, whatever becomes of its descriptor."""

    def __init__(self, runner: Any) -> None:
        """Raises RuntimeError for a trio that is built differently (0.26 to 0.35 are not)."""
        self._runner = runner
        self._inner = inner = runner.io_manager
        try:
            self._epoll: select.epoll = inner._epoll
        except AttributeError:
            raise RuntimeError(f"trio {trio.__version__} keeps its descriptors in a way that pytcp does not know") from None
        self.poll: Callable[[float, int], list[tuple[int, int]]] = self._epoll.poll
        self._pid = os.getpid()
        self._owners: dict[int, Served] = {}
        self._served: tuple[Served, ...] = ()
        self._waited_ns = UNENDED
        self.wait_readable = inner.wait_readable
        self.wait_writable = inner.wait_writable
        self.notify_closing = inner.notify_closing
        self.force_wakeup = inner.force_wakeup

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @classmethod
    def join(cls, served: Served, devices: int) -> DeviceLoop:
        """The loop of the trio run of this thread, which serves `served` from now on. devices: the descriptor of its epoll."""
        runner: Any = _run.GLOBAL_RUN_CONTEXT.runner
        loop: DeviceLoop | None = runner.io_manager if isinstance(runner.io_manager, cls) else None
        if loop is None:
            loop = runner.io_manager = cls(runner)
        loop._served += (served,)
        loop.watch(served, devices)
        return loop

    def watch(self, served: Served, devices: int) -> None:
        """Look at this epoll for `served`, and at none before."""
        self._forget(served)
        self._epoll.register(devices, select.EPOLLIN)
        self._owners[devices] = served

    def leave(self, served: Served) -> None:
        """Serve it no more. Its epoll must still be open."""
        self._served = tuple(other for other in self._served if other is not served)
        self._forget(served)
        if not self._served and self._runner.io_manager is self:
            self._runner.io_manager = self._inner

    def _forget(self, served: Served) -> None:
        for fd in [fd for fd, owner in self._owners.items() if owner is served]:
            del self._owners[fd]
            if os.getpid() == self._pid:  # a forked child has the same epoll, not a copy
                with suppress(OSError, ValueError):  # trio's is closed after an internal error
                    self._epoll.unregister(fd)

    def wake(self) -> None:
        """Somebody is kicked. Only a loop that is a guest in another one can be asleep while its own thread does that."""
        if self._runner.is_guest:
            self._runner.force_guest_tick_asap()

    # --- what trio calls ---

    def get_events(self, timeout: float) -> list[tuple[int, int]]:
        """Wait for descriptors, at most `timeout` seconds (a guest's run does that in another thread)."""
        if timeout <= 0:
            events = self.poll(0, _MAX_EVENTS)
            if not events:
                for served in self._served:
                    if served.kicked:
                        # trio must not take this turn for rest
                        return _KICKED
            return events
        clock = time.monotonic_ns
        start_ns = clock()
        until_ns = 0
        for served in self._served:
            if served.kicked:
                events = self.poll(0, _MAX_EVENTS)
                return events or _KICKED
            until_ns = max(until_ns, served.spin_until_ns(start_ns, self._waited_ns))
        polled = until_ns > start_ns and not self._runner.is_guest
        if polled:
            until_ns = min(until_ns, start_ns + int(timeout * 1e9))
            while (now_ns := clock()) < until_ns:
                events = self.poll(0, _MAX_EVENTS)
                if events:
                    self._waited_ns = now_ns - start_ns
                    return events
            timeout = max(0, timeout - (now_ns - start_ns) / 1e9)
        events = self.poll(timeout, _MAX_EVENTS)
        self._waited_ns = clock() - start_ns if events and not polled else UNENDED
        return events

    def process_events(self, events: list[tuple[int, int]]) -> None:
        """Give trio what is its own, then serve who wants to be."""
        if events and events is not _KICKED:
            owners = self._owners
            others = []
            for event in events:
                owner = owners.get(event[0])
                if owner is None:
                    others.append(event)
                else:
                    owner.kicked = True
            if others:
                self._inner.process_events(others)
        for served in self._served:
            if served.kicked:
                served.serve()
