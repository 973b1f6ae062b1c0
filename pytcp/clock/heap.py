"""The one timer heap: integer-nanosecond deadlines and callbacks, driven by real or virtual time.

The heap does not know what time it is by itself: its driver sets `now_ns` (refreshed for each
received super-segment, each program call and each timer) and calls `run_due`. Ties run in the order
they were set, so a virtual run is deterministic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

NEVER = 1 << 62  # a deadline that does not come


class Timer:
    """One pending call. Cancelling leaves the entry in the heap to be skipped."""

    __slots__ = ("when_ns", "callback")

    def __init__(self, when_ns: int, callback: Callable[[], None]) -> None:
        self.when_ns = when_ns
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    @property
    def active(self) -> bool:
        return self.callback is not None


class TimerHeap:
    """Deadlines in order; `on_earlier` tells the driver that the earliest one moved forward."""

    __slots__ = ("now_ns", "on_earlier", "_heap", "_count")

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns
        self.on_earlier: Callable[[int], None] | None = None
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer:
        """Run `callback` when time reaches `when_ns` (never before the current batch ends)."""
        timer = Timer(when_ns, callback)
        heap = self._heap
        earlier = not heap or when_ns < heap[0][0]
        self._count += 1
        heapq.heappush(heap, (when_ns, self._count, timer))
        if earlier and self.on_earlier is not None:
            self.on_earlier(when_ns)
        return timer

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> Timer:
        """Run `callback` `delay_ns` from now, as `call_at`."""
        return self.call_at(self.now_ns + delay_ns, callback)

    def next_deadline(self) -> int | None:
        """The earliest live deadline, dropping cancelled entries on the way."""
        heap = self._heap
        while heap:
            if heap[0][2].callback is not None:
                return heap[0][0]
            heapq.heappop(heap)
        return None

    def run_due(self, limit: int = 1 << 30) -> int:
        """Run every timer whose time has come at `now_ns`, at most `limit`; returns how many ran."""
        heap = self._heap
        now = self.now_ns
        ran = 0
        while heap and heap[0][0] <= now and ran < limit:
            timer = heapq.heappop(heap)[2]
            callback = timer.callback
            if callback is not None:
                timer.callback = None
                ran += 1
                callback()
        return ran

    def __len__(self) -> int:
        return sum(1 for entry in self._heap if entry[2].callback is not None)
