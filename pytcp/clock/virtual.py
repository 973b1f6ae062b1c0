"""Virtual time: nothing sleeps, `now` jumps from one event to the next, every run is the same.

`VirtualRuntime` alone drives tests of the engine (`run_until`, `run_for`, `run_until_idle`).
`VirtualClock` puts it under trio: trio asks its clock how long to sleep only when no task is
runnable, and the answer is to run the stack's next events until one is. Programs written for trio
run unmodified, their timeouts count virtual seconds, and `run(main, seed=...)` gives the same packets
twice, to the nanosecond. When no task is runnable and nothing at all is pending the run would
hang; `VirtualDeadlock` says so instead.

Work handed to threads (name look-ups, files) takes no virtual time: the clock stands still until it
is done. Real sockets and devices have no place here.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple, Unpack

import trio

from . import trio_private
from .heap import NEVER, TimerHeap
from .runtime import BUDGET, Runtime

if TYPE_CHECKING:
    from pytcp.link.frame import Link

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH_NS = 1_700_000_000_000_000_000  # the wall clock when virtual time is 0
SLICE = 10_000  # passes between two looks of trio at signals
STANDSTILL = 1_000_000  # passes at one instant that are taken for an endless loop
THREAD_POLL = 0.05  # real seconds between two looks at running threads


class VirtualDeadlock(RuntimeError):
    """Virtual time can no longer advance, or has no end."""


class VirtualRuntime(Runtime):
    """A runtime whose clock is its heap: the time is that of the event being run."""

    def __init__(self, heap: TimerHeap | None = None, *, budget: int = BUDGET, epoch_ns: int = EPOCH_NS) -> None:
        super().__init__(heap, budget=budget)
        self.epoch_ns = epoch_ns
        self._standing = 0  # passes since time last moved

    def now(self) -> int:
        return self.heap.now_ns

    def realtime_ns(self) -> int:
        return self.epoch_ns + self.heap.now_ns

    def kick(self) -> None:
        self.kicked = True

    def add_link(self, link: Link) -> None:
        """As in `Runtime`. Raises ValueError for a link with a descriptor: the world does not wait for us."""
        if link.fileno() >= 0:
            raise ValueError(f"{link.name}: a device of the real world cannot take part in virtual time")
        super().add_link(link)

    def next_event_ns(self) -> int | None:
        """When the next pass would run: now after a kick, else at the first timer; None when idle."""
        if self.kicked:
            return self.heap.now_ns
        deadline = self.heap.next_deadline()
        return None if deadline is None else max(deadline, self.heap.now_ns)

    def step(self, until_ns: int) -> bool:
        """Run the next pass if it is due at `until_ns` or before; False when there is none. Raises
        VirtualDeadlock when passes follow each other without end at one instant."""
        when = self.next_event_ns()
        if when is None or when > until_ns:
            return False
        if when > self.heap.now_ns:
            self.heap.now_ns = when
            self._standing = 0
        else:
            self._standing += 1
            if self._standing > STANDSTILL:
                raise VirtualDeadlock(f"{STANDSTILL} passes at {when} ns: something keeps asking for another")
        self.one_pass()
        return True

    def run_until(self, until_ns: int) -> None:
        """Run all events up to and including `until_ns`, and leave the clock there."""
        while self.step(until_ns):
            pass
        if self.heap.now_ns < until_ns:
            self.heap.now_ns = until_ns

    def run_for(self, duration_ns: int) -> None:
        """Run the events of the next `duration_ns`."""
        self.run_until(self.heap.now_ns + duration_ns)

    def run_until_idle(self, limit_ns: int = 3600 * 1_000_000_000) -> int:
        """Run until nothing is pending; returns the time. Raises VirtualDeadlock when events still
        come after `limit_ns` of virtual time (a keepalive or a probe that never ends)."""
        until_ns = self.heap.now_ns + limit_ns
        while self.step(until_ns):
            pass
        if self.next_event_ns() is not None:
            raise VirtualDeadlock(f"still busy after {limit_ns} ns")
        return self.heap.now_ns

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """For programs written for either runtime: the clock does the work, this only waits."""
        task_status.started()
        await trio.sleep_forever()


class VirtualClock(trio.abc.Clock):
    """A trio clock on which one `VirtualRuntime` runs whenever all tasks are blocked."""

    def __init__(self, runtime: VirtualRuntime | None = None) -> None:
        self.runtime = VirtualRuntime() if runtime is None else runtime
        self.failure: BaseException | None = None  # what ended the run: a deadlock, or an error of a callback

    def start_clock(self) -> None:
        """A run starts at the time where the heap stands."""
        self.failure = None

    def current_time(self) -> float:
        return self.runtime.heap.now_ns / 1e9

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Advance virtual time until a task is runnable or `deadline` (trio's next, seconds) is reached.

        VirtualDeadlock, and errors of the stack's callbacks, are raised in the program's main task."""
        world = trio_private.World()
        try:
            return self._advance(world, deadline)
        except BaseException as failure:
            if self.failure is not None or not world.interrupt(failure):
                raise
            self.failure = failure
            return 0

    def _advance(self, world: trio_private.World, deadline: float) -> float:
        if world.waiting_for_idle():
            return math.inf  # wait_all_tasks_blocked: they are
        if world.busy() or deadline <= self.current_time():
            return 0
        if world.threads():
            return THREAD_POLL
        runtime = self.runtime
        heap = runtime.heap
        until_ns = math.ceil(deadline * 1e9) if deadline < 1e9 else NEVER
        for _ in range(SLICE):
            if not runtime.step(until_ns):
                break
            if world.busy():
                return 0
        else:
            return 0
        if until_ns < NEVER:
            heap.now_ns = max(heap.now_ns, until_ns)
            while self.current_time() < deadline:
                heap.now_ns += 1
            return 0
        if world.real_io():
            return math.inf
        raise VirtualDeadlock(f"at {heap.now_ns} ns: no task can run, and no timer, frame or timeout is pending")


def run(async_fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, seed: int = 0, clock: VirtualClock | None = None) -> T:
    """`trio.run(async_fn, *args)` in virtual time, with tasks scheduled the same way each time.

    seed: of the order in which tasks that become runnable together run.
    Raises VirtualDeadlock when it would hang, and whatever a callback of the stack raised."""
    the_clock = VirtualClock() if clock is None else clock
    with trio_private.deterministic(seed):
        try:
            result = trio.run(async_fn, *args, clock=the_clock)
        except BaseException as unwound:
            if the_clock.failure is None or the_clock.failure is unwound:
                raise
            raise the_clock.failure from unwound
    if the_clock.failure is not None:
        raise the_clock.failure  # the program caught it and went on
    return result
