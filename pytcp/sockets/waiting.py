"""How a trio task waits for a socket: one reader and one writer, parked as plain task references.

No Event, ParkingLot or scope per wait: a wake is one `reschedule`. Readiness is a level, not an edge:
whoever wants to wait looks first and parks only when there is nothing to do, and looks again when it
is woken. As program calls and packets meet in one thread, nothing can happen between the look and the
park, so no wake is lost, and a wake that turns out to be stale costs one look.

The host delivers readiness once per batch (`Socket.on_events`), so a task runs at most once per batch
whatever number of segments came in. A second task that wants to wait for the same direction gets
`trio.BusyResourceError`, as on a kernel socket under trio. Cancellation takes the reference away again
and leaves nothing behind. Closing the socket wakes both; their next look finds it closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from trio.lowlevel import Abort, current_task, reschedule, wait_task_rescheduled

from pytcp.tcp.const import POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDHUP

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.lowlevel import RaiseCancelT, Task

READ_EVENTS = POLLIN | POLLPRI | POLLRDHUP | POLLERR | POLLHUP
WRITE_EVENTS = POLLOUT | POLLERR | POLLHUP


class Waiter:
    """The two places where a task can be parked on one socket."""

    __slots__ = ("reader", "writer")

    def __init__(self) -> None:
        self.reader: Task | None = None
        self.writer: Task | None = None

    def __call__(self, mask: int) -> None:
        """Wake who waits for one of the readiness bits in `mask` (`POLLIN`, ...): a socket's `notify`, without a bound method for each."""
        task = self.reader
        if task is not None and mask & READ_EVENTS:
            self.reader = None
            reschedule(task)
        task = self.writer
        if task is not None and mask & WRITE_EVENTS:
            self.writer = None
            reschedule(task)

    def _abort_reader(self, _raise_cancel: RaiseCancelT) -> Abort:
        self.reader = None
        return Abort.SUCCEEDED

    def _abort_writer(self, _raise_cancel: RaiseCancelT) -> Abort:
        self.writer = None
        return Abort.SUCCEEDED

    def reading(self) -> Callable[[RaiseCancelT], Abort]:
        """Note the running task as the reader: it is about to sleep. Returns its abort function, for `wait_task_rescheduled`.

        Raises trio.BusyResourceError when another task is parked here already.
        """
        if self.reader is not None:
            raise trio.BusyResourceError("another task is already reading from this socket")
        self.reader = current_task()
        return self._abort_reader

    def writing(self) -> Callable[[RaiseCancelT], Abort]:
        """The same for the writer."""
        if self.writer is not None:
            raise trio.BusyResourceError("another task is already writing to this socket")
        self.writer = current_task()
        return self._abort_writer

    async def park_reader(self) -> None:
        """Sleep until a read event. Look at the level first: this always sleeps. Raises as `reading`."""
        await wait_task_rescheduled(self.reading())

    async def park_writer(self) -> None:
        """Sleep until a write event. Look at the level first: this always sleeps. Raises as `writing`."""
        await wait_task_rescheduled(self.writing())

    async def until_readable(self, poll: Callable[[], int]) -> None:
        """Return when `poll()` shows a read event; a checkpoint in any case."""
        if poll() & READ_EVENTS:
            await trio.lowlevel.checkpoint()
            return
        await self.park_reader()
        while not poll() & READ_EVENTS:
            await self.park_reader()

    async def until_writable(self, poll: Callable[[], int]) -> None:
        """Return when `poll()` shows a write event; a checkpoint in any case."""
        if poll() & WRITE_EVENTS:
            await trio.lowlevel.checkpoint()
            return
        await self.park_writer()
        while not poll() & WRITE_EVENTS:
            await self.park_writer()
