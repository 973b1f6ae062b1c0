"""The transmit ring: the stack's NIC queue, and the completions that come back from it.

Frames are put in while segments are made and written to the device in one go: at the end of a pass
or of a program's call (`flush`), or as soon as 8 of them wait. That the device has *taken* a frame
is not yet its completion. As on a NIC, completion is an event of its own, reaped later and never
inside the call that sent the frame; only then is the socket's `wmem_alloc` released. So the second
of two small writes finds the first one still in the queue and is autocorked, and TCP small queues
throttle and resume, without either being simulated.

Modes: `reaped` (at the start of the next pass, or by a program's call that comes 50 us later; a pass is
not asked for unless a throttled socket waits for one, since completions nobody waits for show nowhere
else and a pass costs microseconds), `moderated` (as a NIC under `ethtool -C tx-usecs
tx-frames`: an interrupt comes so late, or after so many frames), `orphan` (released when the frame is
queued, as the kernel's tun and veth drivers do: autocork and TSQ never show). `delayed.DelayedRing` gives each
frame a completion time of its own, `txthread.ThreadRing` has a thread that writes and completes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytcp.clock.heap import Timer, TimerHeap

from .frame import Link, TxFrame

BULK = 8  # frames written together without waiting for a flush
LIMIT = 1000  # frames held, as the default txqueuelen
COMPLETION_NS = 50_000  # a NIC's completion comes about so long after the frame
RETRY_NS = 100_000  # a full device is tried again so much later

MODES = ("reaped", "orphan", "moderated")


class TxRing:
    """One device's transmit queue."""

    __slots__ = (
        "link", "heap", "on_complete", "mode", "tx_usecs", "tx_frames", "limit", "dropped", "completed",
        "queue", "done", "signal", "feeder", "on_end", "_orphan", "_lazy", "_stalled", "_retry", "_interrupt", "_flushed_ns",
    )  # fmt: skip

    def __init__(
        self,
        link: Link,
        heap: TimerHeap,
        on_complete: Callable[[Any, Any, int], bool | None],
        mode: str = "reaped",
        tx_usecs: int = 0,
        tx_frames: int = 0,
        limit: int = LIMIT,
    ) -> None:
        """on_complete(owner, skb, truesize) is called once for each frame with an owner; True: `on_end` is given it behind the batch.
        tx_usecs: delay of a moderated completion, us; 0 = the next event. tx_frames: completions that
        end the delay early; 0 = none do. limit: frames held, written or not. Raises ValueError."""
        if mode not in MODES:
            raise ValueError(f"completion mode {mode!r} is not one of {', '.join(MODES)}")
        if tx_usecs < 0 or tx_frames < 0 or limit < 1:
            raise ValueError("tx_usecs and tx_frames are not negative, limit is positive")
        self.link = link
        self.heap = heap
        self.on_complete = on_complete
        self.mode = mode
        self.tx_usecs = tx_usecs if mode == "moderated" else 0
        self.tx_frames = tx_frames if mode == "moderated" else 0
        self.limit = limit
        self.dropped = 0
        self.completed = 0
        self.queue: list[TxFrame] = []  # not yet written
        self.done: list[TxFrame] = []  # taken by the device, not yet reaped
        self.signal: Link | None = None  # what a runtime polls for completions, where they do not wait for a pass
        self.on_end: Callable[[list[Any]], None] = self._no_end  # a batch of completions is over
        self.feeder: Callable[[], None] | None = None  # called when there is room again: a queueing discipline waits for it
        self._orphan = mode == "orphan"
        self._lazy = mode == "reaped"
        self._flushed_ns = 0  # when the last frame was written
        self._stalled = False  # the device was full
        self._retry: Timer | None = None
        self._interrupt: Timer | None = None

    def __len__(self) -> int:
        """Frames held: waiting to be written, or written and not yet completed."""
        return len(self.queue) + len(self.done)

    def put(self, frame: TxFrame) -> bool:
        """Queue a frame; False when the ring is full and the frame is lost (nothing is completed then)."""
        queue = self.queue
        if len(queue) + len(self.done) >= self.limit:
            self.dropped += 1
            return False
        queue.append(frame)
        if self._orphan:
            owner = frame.owner
            if owner is not None:
                frame.owner = None
                self.completed += 1
                self.on_complete(owner, frame.skb, frame.truesize)
        if len(queue) >= BULK and not self._stalled:
            self.flush()
        return True

    def post(self, frame: TxFrame) -> bool:
        """`put` a frame and `flush`."""
        if self.queue or not self._lazy or self._stalled or len(self.done) >= self.limit:
            if not self.put(frame):
                return False
            self.flush()
            return True
        # the same where it is the only one
        taken = self.link.send((frame,))
        self._flushed_ns = self.heap.now_ns
        if taken:
            self.done.append(frame)
        else:
            self._full([frame])
        return True

    def flush(self) -> None:
        """Write what waits to the device."""
        queue = self.queue
        if not queue:
            return
        self.queue = []
        lazy = self._lazy and not self._stalled
        taken = self.link.send(queue)
        self._flushed_ns = self.heap.now_ns
        if taken < len(queue):
            self._full(queue[taken:])
            del queue[taken:]
        elif not lazy:
            self._stalled = False
        if lazy:
            # nobody need be woken for their completion
            self.done += queue
        elif not self._orphan:
            self._taken(queue)
        elif self.feeder is not None and not self._stalled:
            self.feeder()

    def _full(self, rest: list[TxFrame]) -> None:
        """The device does not take `rest` now."""
        self.queue = rest + self.queue
        self._stalled = True
        if self._retry is None:
            self._retry = self.heap.call_later(RETRY_NS, self._try_again)

    def _taken(self, frames: list[TxFrame]) -> None:
        """The device has taken `frames`, and somebody is woken for their completion."""
        done = self.done
        owed = False
        for frame in frames:
            if frame.owner is not None:
                done.append(frame)
                if frame.skb is not None:
                    owed = True
        # bare ACKs hold nothing up: they are reaped when a pass comes by
        if owed and self._interrupt is None:
            self._interrupt = self.heap.call_later(self.tx_usecs * 1000, self._interrupted)
        if self.tx_frames and len(done) >= self.tx_frames and self._interrupt is not None and self._interrupt.when_ns > self.heap.now_ns:
            self._interrupt.cancel()
            self._interrupt = self.heap.call_later(0, self._interrupted)

    def reap(self) -> None:
        """Complete what the device has taken, unless the interrupt that says so is still to come."""
        if self.done and (self._interrupt is None or self._interrupt.when_ns <= self.heap.now_ns):
            self._interrupted()
            if self.queue and self._lazy and not self._stalled:
                # the peer waits for what the completions released: it leaves before this pass looks at what has come
                self.flush()

    def settle(self, now_ns: int) -> None:
        """A program's call begins at `now_ns`: by now a NIC would have completed what left before."""
        if self.done and now_ns - self._flushed_ns >= COMPLETION_NS:
            self.reap()

    def statistics(self) -> dict[str, int]:
        """What a ring of this kind counts beyond `completed` and `dropped`."""
        return {}

    def close(self) -> None:
        """Forget the queue: everything held is completed, nothing more is written."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self.done += [frame for frame in self.queue if frame.owner is not None]
        self.queue.clear()
        self._interrupted()

    def _interrupted(self) -> None:
        if self._interrupt is not None:
            self._interrupt.cancel()
            self._interrupt = None
        # what on_complete sends now belongs to the next completion
        done = self.done
        self.done = []
        on_complete = self.on_complete
        called = []
        for frame in done:
            owner = frame.owner
            if owner is not None:
                self.completed += 1
                if on_complete(owner, frame.skb, frame.truesize):
                    called.append(owner)
        if called:
            self.on_end(called)
        if self.feeder is not None:
            self.feeder()

    def _no_end(self, called: list[Any]) -> None:
        """Nobody asks."""

    def _try_again(self) -> None:
        self._retry = None
        self.flush()
