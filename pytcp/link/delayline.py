"""A device some time away: frames of an inner link are held for a fixed time in both directions, super-frames whole.

An emulated wire (`emulator`) judges packets and cuts super-frames for that. Where only distance is wanted this keeps them as they are,
so that a kernel behind a TAP sees the bursts that were sent. Held frames are copies: what they were made of is the sender's again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeVar

from pytcp.clock.heap import Timer, TimerHeap

from .around import Around
from .dice import whole
from .frame import Link, RxFrame, TxFrame

F = TypeVar("F")

LIMIT = 100_000  # frames under way in one direction


class DelayLine(Around):
    """A link that adds `delay_ns` to each way of `inner`."""

    def __init__(self, inner: Link, heap: TimerHeap, delay_ns: int) -> None:
        """Raises ValueError for a delay that is negative or no whole number, TypeError for what is no number."""
        self.delay_ns = whole("delay_ns", delay_ns)
        super().__init__(inner)
        self.heap = heap
        self.refused = 0  # frames the device behind did not take, or that were too many
        self._out: deque[tuple[int, TxFrame]] = deque()
        self._in: deque[tuple[int, RxFrame]] = deque()
        self._out_timer: Timer | None = None
        self._in_timer: Timer | None = None

    def send(self, frames: Sequence[TxFrame]) -> int:
        """Take all frames; what the device behind refuses later is counted."""
        due = self.heap.now_ns + self.delay_ns
        for frame in frames:
            if len(self._out) >= LIMIT:
                self.refused += 1
                continue
            payload = b"".join(frame.parts)
            length = len(frame.head) + len(payload)
            copy = TxFrame(bytes(frame.head), (payload,) if payload else (), length, frame.gso_type, frame.gso_size, frame.csum_start, frame.csum_offset)
            self._out.append((due, copy))
        if self._out_timer is None and self._out:
            self._out_timer = self.heap.call_at(self._out[0][0], self._leave)
        return len(frames)

    @property
    def pending(self) -> bool:
        """Frames are under way."""
        return bool(self._out or self._in)

    def close(self) -> None:
        """Lose what is under way and close the link within."""
        for timer in (self._out_timer, self._in_timer):
            if timer is not None:
                timer.cancel()
        self._out_timer = self._in_timer = None
        self._out.clear()
        self._in.clear()
        self.inner.close()

    def _leave(self) -> None:
        self._out_timer = None
        due = _due(self._out, self.heap.now_ns)
        self.refused += len(due) - self.inner.send(due)
        if self._out:
            self._out_timer = self.heap.call_at(self._out[0][0], self._leave)

    def _received(self, frame: RxFrame) -> None:
        if len(self._in) >= LIMIT:
            self.refused += 1
            return
        copy = RxFrame(memoryview(bytes(frame.data)), frame.gso_type, frame.gso_size, frame.csum)
        self._in.append((self.heap.now_ns + self.delay_ns, copy))

    def _received_end(self) -> None:
        if self._in_timer is None and self._in:
            self._in_timer = self.heap.call_at(self._in[0][0], self._arrive)

    def _arrive(self) -> None:
        self._in_timer = None
        for frame in _due(self._in, self.heap.now_ns):
            self.rx(frame)
        self.rx_end()
        if self._in:
            self._in_timer = self.heap.call_at(self._in[0][0], self._arrive)


def _due(way: deque[tuple[int, F]], now_ns: int) -> list[F]:
    frames = []
    while way and way[0][0] <= now_ns:
        frames.append(way.popleft()[1])
    return frames
