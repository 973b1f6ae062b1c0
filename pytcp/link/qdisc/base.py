"""What all queueing disciplines share: the run that moves frames into the ring, the watchdog, the counters of `tc -s`.

Bytes and packets are counted when a frame leaves for the ring, as `tc` does: a super-frame counts as its segments,
each with its headers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytcp.clock.heap import Timer, TimerHeap
from pytcp.link.frame import TxFrame
from pytcp.link.txring import COMPLETION_NS, TxRing

RING = 256  # frames of a NIC's ring behind a queueing discipline
NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a queueing discipline needs to know of the host.

    departure(owner): when a frame of that socket may leave, ns. adopted(owner): its departure times are kept from now on.
    leave(frame): into the ring, which has room, cut if the device cannot.
    link_header: bytes before the IP header, 14 or 0."""

    heap: TimerHeap
    ring: TxRing
    departure: Callable[[Any], int]
    adopted: Callable[[Any], None]
    leave: Callable[[TxFrame], object]
    link_header: int = 14


def wire_size(frame: TxFrame) -> tuple[int, int]:
    """(bytes, segments) of a frame on the wire: every segment of a super-frame has headers of its own (qdisc_pkt_len)."""
    gso_size = frame.gso_size
    if not gso_size:
        return frame.length, 1
    head = len(frame.head)
    segments = -(-(frame.length - head) // gso_size)
    return frame.length + (segments - 1) * head, segments


class Qdisc:
    """A queueing discipline. `enqueue` and `dequeue` are the discipline's."""

    kind = ""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks
        self.heap = hooks.heap
        self.ring = hooks.ring
        self.qlen = 0  # frames
        self.backlog = 0  # bytes on the wire
        self.bytes = 0
        self.packets = 0
        self.drops = 0
        self.overlimits = 0
        self.requeues = 0
        self._running = False
        self._watchdog: Timer | None = None

    def enqueue(self, frame: TxFrame, now_ns: int) -> bool:
        """Take a frame; False: it is dropped."""
        raise NotImplementedError

    def dequeue(self, now_ns: int) -> TxFrame | None:
        """The next frame that may leave; None: none, or not yet (then `next_ns` says when)."""
        raise NotImplementedError

    def next_ns(self) -> int:
        """When a frame that `dequeue` kept may leave."""
        raise NotImplementedError

    def drain(self) -> list[TxFrame]:
        """Take all frames out."""
        raise NotImplementedError

    def put(self, frame: TxFrame) -> bool:
        """As `TxRing.put`: queue a frame and send what may leave; False when it is lost."""
        size = wire_size(frame)[0]
        if not self.enqueue(frame, self.heap.now_ns):
            self.drops += 1
            return False
        self.qlen += 1
        self.backlog += size
        if not self._running:
            self.run()
        return True

    def run(self) -> None:
        """Give the ring what may leave and what it has room for. A call from within, by a completion, is left to the outer one."""
        if self._running or not self.qlen:
            return
        self._running = True
        ring = self.ring
        leave = self.hooks.leave
        now = self.heap.now_ns
        try:
            while self.qlen:
                if len(ring) >= ring.limit:
                    # completions make room: by the next pass they have come, and the ring calls
                    self._watch(now + COMPLETION_NS)
                    break
                frame = self.dequeue(now)
                if frame is None:
                    self._watch(self.next_ns())
                    break
                size, segments = wire_size(frame)
                self.qlen -= 1
                self.backlog -= size
                self.bytes += size
                self.packets += segments
                leave(frame)
        finally:
            self._running = False

    def _watch(self, when_ns: int) -> None:
        if when_ns >= NEVER:
            return
        if self._watchdog is not None:
            if self._watchdog.active and self._watchdog.when_ns <= when_ns:
                return
            self._watchdog.cancel()
        self._watchdog = self.heap.call_at(when_ns, self._bark)

    def _bark(self) -> None:
        self._watchdog = None
        self.run()

    def close(self) -> list[TxFrame]:
        """Out of service; returns the frames that will not be sent."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        self.qlen = 0
        self.backlog = 0
        return self.drain()

    def options(self) -> dict[str, Any]:
        """Its settings under the names of `tc -j`."""
        return {}

    def statistics(self) -> dict[str, Any]:
        """What `tc -s` shows beyond the counters all have, under the names of `tc -j`."""
        return {}
