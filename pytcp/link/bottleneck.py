"""The slow place of a wire, event by event: a queue, and a transmitter that takes from it when the rate lets it.

`emulator` computes when a packet leaves a droptail queue of constant rate as soon as it comes. That is not possible where
the rate varies, or where the queue looks at packets when they leave (`aqm`): then this is in its place.
"""

from __future__ import annotations

from collections.abc import Callable

from pytcp.clock.heap import Timer, TimerHeap

from .aqm import DropTail, Waiting
from .rates import Rate


class Bottleneck:
    """Packets enter, wait, are sent one after the other, and leave with their last bit."""

    def __init__(self, heap: TimerHeap, queue: DropTail, rate: Rate, leave: Callable[[bytes], None]) -> None:
        self.heap = heap
        self.queue = queue
        self.rate = rate
        self.leave = leave
        self.max_backlog = 0  # bytes
        self._current: Waiting | None = None  # in transmission
        self._left = 0  # bits of it that are not yet on the way
        self._timer: Timer | None = None

    @property
    def packets(self) -> int:
        """Packets in the queue and in transmission."""
        return len(self.queue) + (self._current is not None)

    @property
    def backlog(self) -> int:
        """Bytes in the queue and in transmission."""
        return self.queue.backlog + (self._current.size if self._current is not None else 0)

    def enter(self, packet: bytes, size: int) -> None:
        """size: what the packet costs on the wire, bytes."""
        now = self.heap.now_ns
        current = self._current
        if self.queue.enqueue(packet, size, now, *((1, current.size) if current is not None else ())):
            self.max_backlog = max(self.max_backlog, self.backlog)
            if self._timer is None:
                self._go()

    def close(self) -> None:
        """Lose what is queued and in transmission."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._current = None
        self.queue.waiting.clear()
        self.queue.backlog = 0

    def _go(self) -> None:
        self._timer = None
        now = self.heap.now_ns
        while True:
            current = self._current
            if current is not None and not self._left:
                self._current = None
                self.leave(current.packet)
                continue
            if current is None and not self.queue:
                return
            when = self.rate.start(now)
            if when == now:
                if current is None:
                    self._current = current = self.queue.dequeue(now)
                    if current is None:
                        continue  # the queue has dropped all it had
                    self._left = current.size * 8
                when, self._left = self.rate.serve(now, self._left)
                if when == now:
                    continue
            self._timer = self.heap.call_at(when, self._go)
            return
