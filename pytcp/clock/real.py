"""Real time under trio: gives the stack the processor when a device, a timer or the stack itself asks.

The devices are in the epoll of trio's loop, and when one is ready whole passes run by plain calls in the loop, before
the tasks have their turn (`trio_private.DeviceLoop`). So nothing is handed from task to task, nothing is allocated per
frame, and a program that a frame wakes runs in the same turn of the loop. Timers are kept by a `timerfd`, because trio
sleeps in whole milliseconds on Linux (`epoll_wait`) while pacing and the emulated wire need microseconds; it counts
CLOCK_MONOTONIC, the clock of `heap.now_ns`, so no conversion between clocks is needed.

After a burst of passes the tasks have their turn even when frames are left: the programs are tasks of
the same loop, and a bulk transfer must not starve the reader it feeds.

A sleeper takes tens of microseconds to wake, more in a virtual machine, whose processors halt. So after a wait that
was short enough the loop polls for pytcp.halt_poll microseconds before it sleeps, as Linux's haltpoll governor does in a
guest: who answers at once finds it awake, and after polling in vain it sleeps at once until waits are short again. With
net.core.busy_poll (as on Linux 0, off, unless set) it polls until so long after the last frame, timer or call.

trio protects its loop from Ctrl-C: KeyboardInterrupt is raised in the program's main task, where it
can be handled, and never in the middle of a pass.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from .heap import NEVER, TimerHeap
from .runtime import BUDGET, Runtime
from .trio_private import DeviceLoop

if TYPE_CHECKING:
    from pytcp.link.frame import Link

BURST = 4  # passes in a row, when kicks keep asking for them, before program tasks get a turn

_WAKE_NS = 25_000  # what a short sleep is longer than the wait for its event: the sleeper has to wake
_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_NS = 1_000_000_000


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval_sec", ctypes.c_long), ("interval_nsec", ctypes.c_long), ("sec", ctypes.c_long), ("nsec", ctypes.c_long))


class TimerFd:
    """A descriptor that becomes readable at an absolute CLOCK_MONOTONIC time (timerfd_create(2))."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            errno = ctypes.get_errno()
            raise OSError(errno, f"timerfd_create: {os.strerror(errno)}")
        self._settime = libc.timerfd_settime
        self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._spec = _Itimerspec()
        self._where = ctypes.addressof(self._spec)

    def set(self, when_ns: int) -> None:
        """Become readable at `when_ns` (at once when that is past); 0 = never. Also clears readability."""
        self._spec.sec, self._spec.nsec = divmod(when_ns, _NS)
        self._settime(self.fd, _TFD_TIMER_ABSTIME, self._where, None)

    def close(self) -> None:
        os.close(self.fd)


class RealRuntime(Runtime):
    """Drives a stack in real time: `await nursery.start(runtime.run)`, or `nursery.start_soon`."""

    def __init__(self, heap: TimerHeap | None = None, *, budget: int = BUDGET, burst: int = BURST) -> None:
        """budget: frames per link and pass. burst: passes in a row. Raises ValueError for less than one."""
        if budget < 1 or burst < 1:
            raise ValueError("budget and burst are positive")
        super().__init__(heap, budget=budget)
        self.burst = burst
        self.loop: DeviceLoop | None = None  # which serves it, while it runs
        self._in_pass = False
        self._failed: BaseException | None = None  # what a callback raised
        self._task: trio.lowlevel.Task | None = None  # which runs it, while it is parked
        self._devices: select.epoll | None = None  # the timer's and the links' descriptors, while it runs
        self._watched: dict[int, tuple[Link, int]] = {}  # links in there by identity, with their descriptors: a closed link has none
        self._timerfd: TimerFd | None = None
        self._armed = NEVER
        self._alone = False  # on a single processor nobody could answer while we poll
        self.now()

    def now(self) -> int:
        now = self.heap.now_ns = time.monotonic_ns()
        return now

    def realtime_ns(self) -> int:
        return time.time_ns()

    def kick(self) -> None:
        if not self.kicked:
            self.kicked = True
            if self.loop is not None and not self._in_pass:
                self.loop.wake()

    def add_link(self, link: Link) -> None:
        super().add_link(link)
        self._watch(link)

    def remove_link(self, link: Link) -> None:
        super().remove_link(link)
        _, fd = self._watched.pop(id(link), (link, -1))
        if fd < 0 or self._devices is None:
            return
        if link.fileno() == fd:
            try:
                self._devices.unregister(fd)
            except OSError:
                pass  # somebody closed the number under the link
            else:
                return
        # it was closed before: its number may be another's, and whoever has a duplicate keeps it in the epoll
        self._renew()

    def _watch(self, link: Link) -> None:
        fd = link.fileno()
        if self._devices is not None and fd >= 0:
            self._devices.register(fd, select.EPOLLIN)
            self._watched[id(link)] = link, fd

    def _renew(self) -> None:
        """A new epoll, with what is still open."""
        assert self.loop is not None
        old = self._devices
        self._devices = self._new_epoll()
        for link, fd in self._watched.values():
            if link.fileno() == fd:
                with suppress(OSError):  # closed under its link, too
                    self._devices.register(fd, select.EPOLLIN)
        self.loop.watch(self, self._devices.fileno())
        if old is not None:
            old.close()

    def _new_epoll(self) -> select.epoll:
        assert self._timerfd is not None
        devices = select.epoll()
        devices.register(self._timerfd.fd, select.EPOLLIN)
        return devices

    @trio.lowlevel.enable_ki_protection
    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. An error in a callback of the stack is raised here: it is a bug.

        Raises RuntimeError when it is already running."""
        if self.loop is not None:
            raise RuntimeError("this runtime is already running")
        try:
            self._timerfd = TimerFd()
            self._devices = self._new_epoll()
            self.loop = DeviceLoop.join(self, self._devices.fileno())
            self._alone = len(os.sched_getaffinity(0)) == 1
            for link in self._polled:
                self._watch(link)
            self.heap.on_earlier = self._on_earlier
            self.kick()
            task_status.started()
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        finally:
            self._stop()
            self._task = None
            failed, self._failed = self._failed, None
            if failed is not None:
                raise failed

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _stop(self) -> None:
        """Ask the loop for nothing more."""
        if self.loop is not None:
            self.loop.leave(self)
            self.loop = None
        if self._devices is not None:
            self._devices.close()
            self._devices = None
        if self._timerfd is not None:
            self._timerfd.close()
            self._timerfd = None
        self._watched.clear()
        self.heap.on_earlier = None
        self._armed = NEVER
        self.kicked = False

    def _on_earlier(self, when_ns: int) -> None:
        # in a pass deadlines move several times; the end of the burst looks once
        if not self._in_pass:
            if when_ns <= self.heap.now_ns:
                self.kick()
            elif when_ns < self._armed and self._timerfd is not None:
                self._armed = when_ns
                self._timerfd.set(when_ns)

    def serve(self) -> None:
        """Called by trio's loop: passes until nothing is asked for, at most `burst` and one full budget.

        An error is raised where the runtime runs: trio would take it for its own."""
        self._in_pass = True
        try:
            more = self.one_pass()
            left = self.burst - 1
            while more and left and not self.backlog:
                more = self.one_pass()
                left -= 1
        except BaseException as failed:
            self._failed = failed
            self._stop()
            if self._task is not None:
                task, self._task = self._task, None
                trio.lowlevel.reschedule(task)
            return
        finally:
            self._in_pass = False
        self.kicked = more
        if not more and self._timerfd is not None:
            deadline_ns = self.deadline_ns
            # once it has fired it stays readable until it is set anew
            if deadline_ns < self._armed or self._armed <= self.heap.now_ns:
                self._armed = deadline_ns
                self._timerfd.set(0 if deadline_ns == NEVER else max(deadline_ns, 1))

    def spin_until_ns(self, now_ns: int, waited_ns: int) -> int:
        """Until when the loop shall poll instead of sleeping, as the stack's sysctls have it (see `trio_private.Served`)."""
        tunables = self.tunables
        if tunables is None:
            return 0
        if tunables.busy_poll:
            return self.heap.now_ns + tunables.busy_poll * 1000
        spin_ns = tunables.halt_poll * 1000
        return now_ns + spin_ns if waited_ns < spin_ns + _WAKE_NS and not self._alone else 0
