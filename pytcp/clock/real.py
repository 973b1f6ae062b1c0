"""Real time under trio: the tasks that give the stack the processor when a device or a timer asks.

One task per device descriptor, one for timers and one for kicks; each runs whole passes by plain
calls, so nothing is handed from task to task and nothing is allocated per frame. A wait costs one
`epoll_ctl`: there is no cancel scope around it. Timers are kept by a `timerfd`, because trio sleeps
in whole milliseconds on Linux (`epoll_wait`) while pacing and the emulated wire need microseconds;
it counts CLOCK_MONOTONIC, the clock of `heap.now_ns`, so no conversion between clocks is needed.

When trio's loop has slept, a pass runs at once, in an instrument of the loop, so that the programs it wakes run in the
same turn; the device's task has only to wait again. While programs keep the loop awake, the device's task runs the
passes in its turn.

A sleeper takes tens of microseconds to wake. With net.core.busy_poll (as on Linux 0, off, unless set) the loop is
kept from sleeping for so many microseconds after a frame: nothing but the devices and the timers is looked at then.

After a burst of passes the task checkpoints even when frames are left: the programs are tasks of
the same loop, and a bulk transfer must not starve the reader it feeds.

These tasks are protected from Ctrl-C: KeyboardInterrupt is raised in the program's main task, where it
can be handled, and never in the middle of a pass.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from typing import TYPE_CHECKING

import trio

from .heap import NEVER, TimerHeap
from .runtime import BUDGET, Runtime

if TYPE_CHECKING:
    from pytcp.link.frame import Link

BURST = 4  # passes in a row, when kicks keep asking for them, before program tasks get a turn

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


class _AtOnce(trio.abc.Instrument):
    """Runs a burst when the loop has slept, before any task has its turn: most likely a device or a timer woke it, and a needless pass is cheap."""

    def __init__(self, runtime: RealRuntime) -> None:
        self.runtime = runtime
        self.served = False  # in this turn of the loop: the tasks that were woken need not

    def after_io_wait(self, timeout: float) -> None:
        runtime = self.runtime
        self.served = timeout > 0 and not runtime.serving
        if self.served:
            runtime.serve_at_once()


class _BusyPoll(trio.abc.Instrument):
    """Looks at the devices for a while where the loop would sleep (net.core.busy_poll)."""

    def __init__(self, runtime: RealRuntime) -> None:
        self.runtime = runtime
        self.until_ns = 0

    def before_io_wait(self, timeout: float) -> None:
        if timeout > 0:
            now = time.monotonic_ns
            until_ns = min(self.until_ns, now() + int(timeout * _NS))
            poll = self.runtime.sources.poll
            while now() < until_ns and not poll(0):
                pass


class RealRuntime(Runtime):
    """Drives a stack in real time: `await nursery.start(runtime.run)`, or `nursery.start_soon`."""

    def __init__(self, heap: TimerHeap | None = None, *, budget: int = BUDGET, burst: int = BURST) -> None:
        super().__init__(heap, budget=budget)
        self.burst = burst
        self.sources = select.poll()  # the devices, and the timer while it runs
        self.serving = False  # some task is between two bursts
        self._at_once = _AtOnce(self)
        self._busy: _BusyPoll | None = None  # while net.core.busy_poll is set
        self._in_pass = False
        self._left = False  # `serve_at_once` has left something to do
        self._failed: BaseException | None = None  # what a callback raised in it
        self._sleeper: trio.lowlevel.Task | None = None  # the kick task while it is parked
        self._nursery: trio.Nursery | None = None
        self._timerfd: TimerFd | None = None
        self._armed = NEVER
        self.now()

    def now(self) -> int:
        now = self.heap.now_ns = time.monotonic_ns()
        return now

    def realtime_ns(self) -> int:
        return time.time_ns()

    def kick(self) -> None:
        if not self.kicked:
            self.kicked = True
            if not self.serving and not self._in_pass:
                self._wake_kicks()

    def _wake_kicks(self) -> None:
        if self._sleeper is not None:
            sleeper = self._sleeper
            self._sleeper = None
            trio.lowlevel.reschedule(sleeper)

    def add_link(self, link: Link) -> None:
        super().add_link(link)
        if link.fileno() >= 0:
            self.sources.register(link.fileno(), select.POLLIN)
        if self._nursery is not None and link.fileno() >= 0:
            self._nursery.start_soon(self._watch, link)

    def remove_link(self, link: Link) -> None:
        known = link in self.links
        super().remove_link(link)
        if known and link.fileno() >= 0:
            self.sources.unregister(link.fileno())
            if self._nursery is not None:
                trio.lowlevel.notify_closing(link.fileno())

    @trio.lowlevel.enable_ki_protection
    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. An error in a callback of the stack is raised here: it is a bug.

        Raises RuntimeError when it is already running."""
        if self._nursery is not None:
            raise RuntimeError("this runtime is already running")
        self._timerfd = TimerFd()
        self.sources.register(self._timerfd.fd, select.POLLIN)
        trio.lowlevel.add_instrument(self._at_once)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.heap.on_earlier = self._on_earlier
                for link in self._polled:
                    nursery.start_soon(self._watch, link)
                nursery.start_soon(self._timers)
                self.kicked = True
                nursery.start_soon(self._kicks)
                task_status.started()
        finally:
            trio.lowlevel.remove_instrument(self._at_once)
            self._stop_busy_poll()
            self.heap.on_earlier = None
            self._nursery = None
            self.sources.unregister(self._timerfd.fd)
            self._timerfd.close()
            self._timerfd = None
            self._armed = NEVER
            self.kicked = False
            self._left = False
            self._failed = None

    def _on_earlier(self, when_ns: int) -> None:
        # in a pass deadlines move several times; the end of the burst looks once
        if not self._in_pass:
            if when_ns <= self.heap.now_ns:
                self.kick()
            elif when_ns < self._armed and self._timerfd is not None:
                self._armed = when_ns
                self._timerfd.set(when_ns)

    def pass_burst(self) -> bool:
        """Passes until nothing is asked for, at most `burst` and one full budget; True when something still is."""
        self._in_pass = True
        try:
            for _ in range(self.burst):
                more = self.one_pass()
                if self.backlog or not more:
                    break
        finally:
            self._in_pass = False
        deadline = self.heap.next_deadline()
        if deadline is not None and not more:
            self._on_earlier(deadline)
        return more

    def serve_at_once(self) -> None:
        """A burst outside any task. What it leaves to do, an error to raise among it, is the kick task's."""
        try:
            self._left = self.pass_burst()
        except BaseException as failed:  # trio would only log it
            self._failed = failed
        if self._left or self._failed is not None:
            self._wake_kicks()

    @trio.lowlevel.enable_ki_protection
    async def _go_on(self) -> None:
        """More bursts, as a burst has asked for, each after a turn for the programs."""
        self.serving = True
        try:
            await trio.lowlevel.checkpoint()
            while self.pass_burst():
                await trio.lowlevel.checkpoint()
        finally:
            self.serving = False

    @trio.lowlevel.enable_ki_protection
    async def _watch(self, link: Link) -> None:
        fd = link.fileno()
        while link in self.links:
            try:
                await trio.lowlevel.wait_readable(fd)
            except trio.ClosedResourceError:
                return
            if not self._at_once.served and not self.serving and self.pass_burst():
                await self._go_on()
            tunables = self.tunables
            if tunables is not None and (tunables.busy_poll or self._busy is not None):
                self._watch_on(tunables.busy_poll)

    def _watch_on(self, busy_poll: int) -> None:
        """A frame has come: keep the loop awake for `busy_poll` us, 0 = no more."""
        if not busy_poll:
            self._stop_busy_poll()
            return
        if self._busy is None:
            self._busy = _BusyPoll(self)
            trio.lowlevel.add_instrument(self._busy)
        self._busy.until_ns = time.monotonic_ns() + busy_poll * 1000

    def _stop_busy_poll(self) -> None:
        if self._busy is not None:
            trio.lowlevel.remove_instrument(self._busy)
            self._busy = None

    @trio.lowlevel.enable_ki_protection
    async def _timers(self) -> None:
        timerfd = self._timerfd
        assert timerfd is not None
        while True:
            deadline = self.heap.next_deadline()
            self._armed = NEVER if deadline is None else deadline
            timerfd.set(0 if deadline is None else max(deadline, 1))
            await trio.lowlevel.wait_readable(timerfd.fd)
            if not self._at_once.served and not self.serving and self.pass_burst():
                await self._go_on()

    @trio.lowlevel.enable_ki_protection
    async def _kicks(self) -> None:
        while True:
            if self._failed is not None:
                raise self._failed
            if self._left:
                self._left = False
                await self._go_on()
            elif self.kicked and not self.serving and self.pass_burst():
                await self._go_on()
            self._sleeper = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort_kicks)

    def _abort_kicks(self, raise_cancel: object) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED
