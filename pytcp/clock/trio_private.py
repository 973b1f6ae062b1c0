"""What virtual time needs of trio that has no public name, kept in this one place.

Which task runs first among several that became runnable together is random in trio; its test suite
has a private switch for a seeded order (trio 0.22 to 0.35 and later). And a clock that advances a
simulation has to see whether that made a task runnable; the public statistics say so too, but cost
microseconds per event. Nor may a clock raise: trio would take it for an error of its own, so an error
is raised in the main task instead, the way trio delivers KeyboardInterrupt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

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
