"""A transmit ring whose completions come one by one, as late as a NIC's: on time, late, or unseen.

`TxRing` completes in batches, when a pass comes by. An experiment wants the time between a frame and
its completion as a quantity: drawn uniformly for each frame (`delay_ns`), now and then much later
(`late`, a driver that forgets its interrupt), or *missed*: the socket's charge is taken back but
nobody is called, which is what a completion does that reads the flags before the sender's THROTTLED
is visible (the race of tcp_push, fixed in Linux 6.8 by 7267e8dcad6b: it takes `pytcp.push_barrier` off).
The flag then stays set and only the peer's ACK, or a later completion, moves the socket on.

Completions of one socket keep their order, those of different sockets need not: a NIC has many queues
and a socket stays on one. Everything random is seeded, so a run in virtual time repeats.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytcp.clock.heap import Timer, TimerHeap

from .dice import Dice, check_probability
from .frame import Link, TxFrame
from .txring import LIMIT, TxRing


@dataclass(frozen=True, slots=True)
class Delayed:
    """When completions come; for `tx_mode` of an interface.

    delay_ns: from the device taking a frame to its completion, uniform between the two, both included.
    late, late_ns: probability that a completion comes so much later still. missed: probability that a
    completion takes the charge back and calls nobody. seed: of these draws. Raises ValueError."""

    delay_ns: tuple[int, int] = (20_000, 50_000)
    late: float = 0.0
    late_ns: int = 0
    missed: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        first, last = self.delay_ns
        if not 0 <= first <= last:
            raise ValueError(f"delay_ns {self.delay_ns} is not a range of times")
        check_probability("late", self.late)
        check_probability("missed", self.missed)
        if self.late and self.late_ns <= 0:
            raise ValueError("late completions need late_ns, the time by which they are late")


class DelayedRing(TxRing):
    """A transmit ring with a completion time for each frame."""

    __slots__ = ("delayed", "on_missed", "late", "missed", "_delay", "_late", "_missed", "_due", "_order", "_last", "_timer")

    def __init__(
        self,
        link: Link,
        heap: TimerHeap,
        on_complete: Callable[[Any, Any, int], bool | None],
        on_missed: Callable[[Any, Any, int], bool],
        delayed: Delayed,
        limit: int = LIMIT,
    ) -> None:
        """on_missed(owner, skb, truesize): a completion nobody is called for; whether somebody waited for it.
        The rest as in `TxRing`."""
        super().__init__(link, heap, on_complete, limit=limit)
        self.mode = "delayed"
        self._lazy = False
        self.delayed = delayed
        self.on_missed = on_missed
        self.late = 0  # completions that came late_ns after their time
        self.missed = 0  # completions missed by a socket that waited for one
        seed = delayed.seed
        self._delay = random.Random(f"{seed} delay")
        self._late = Dice(delayed.late, random.Random(f"{seed} late"))
        self._missed = Dice(delayed.missed, random.Random(f"{seed} missed"))
        self._due: list[tuple[int, int, TxFrame]] = []  # heap of (completion, order, frame)
        self._order = 0
        self._last: dict[Any, int] = {}  # when an owner's last completion is due
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self.queue) + len(self._due)

    def put(self, frame: TxFrame) -> bool:
        if len(self.queue) + len(self._due) >= self.limit:
            self.dropped += 1
            return False
        return super().put(frame)

    def _taken(self, frames: list[TxFrame]) -> None:
        delayed = self.delayed
        now = self.heap.now_ns
        first, last = delayed.delay_ns
        for frame in frames:
            owner = frame.owner
            if owner is None:
                continue
            when = now + self._delay.randint(first, last)
            if self._late.roll():
                self.late += 1
                when += delayed.late_ns
            when = max(when, self._last.get(owner, 0))
            self._last[owner] = when
            self._order += 1
            heapq.heappush(self._due, (when, self._order, frame))
        self._arm()

    def _arm(self) -> None:
        if not self._due:
            return
        when = self._due[0][0]
        if self._timer is not None:
            if self._timer.when_ns <= when:
                return
            self._timer.cancel()
        self._timer = self.heap.call_at(when, self._complete)

    def _complete(self) -> None:
        self._timer = None
        now = self.heap.now_ns
        due = self._due
        called = []
        while due and due[0][0] <= now:
            when, _, frame = heapq.heappop(due)
            owner = frame.owner
            if self._last.get(owner) == when:
                del self._last[owner]
            self.completed += 1
            if not self._missed.roll():
                if self.on_complete(owner, frame.skb, frame.truesize):
                    called.append(owner)
            elif self.on_missed(owner, frame.skb, frame.truesize):
                self.missed += 1
        if called:
            self.on_end(called)
        self._arm()
        if self.feeder is not None:
            self.feeder()

    def reap(self) -> None:
        """Completions come by timer only."""

    def settle(self, now_ns: int) -> None:
        """Completions come by timer only."""

    def statistics(self) -> dict[str, int]:
        return {"late": self.late, "missed": self.missed}

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.done = [frame for _, _, frame in sorted(self._due)]
        self._due.clear()
        self._last.clear()
        super().close()
