"""The pass: what happens each time the stack gets the processor, in real and in virtual time alike.

A pass is the stack's softirq. It refreshes `now`, reaps transmit completions (`before_pass`), polls
the links within a budget (Linux's NAPI weight, 64 frames), runs the timers that are due and then
delivers what gathered meanwhile: wake-ups and the transmit rings (`after_pass`). `kick` asks for one
more pass soon, as raising a softirq does: whoever asks twice gets one. The runtime never looks into
frames, and everything runs in one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pytcp.link.frame import Link, LinkDown

from .heap import NEVER, TimerHeap

BUDGET = 64  # frames per link and pass, as NAPI_POLL_WEIGHT
TIMER_BATCH = 64  # timers between two refreshes of `now`


class Tunables(Protocol):
    """What a stack's sysctls say to its driver."""

    busy_poll: int  # us devices are polled, instead of sleeping, after a frame, timer or call
    halt_poll: int  # the same before a sleep, when the last wait was short


class Runtime:
    """A timer heap, links and hooks; subclasses say where time comes from and who calls `one_pass`."""

    def __init__(self, heap: TimerHeap | None = None, *, budget: int = BUDGET) -> None:
        self.heap = TimerHeap() if heap is None else heap
        self.budget = budget
        self.links: list[Link] = []
        self.before_pass: list[Callable[[], None]] = []
        self.after_pass: list[Callable[[], None]] = []
        self.link_down: list[Callable[[Link, LinkDown], None]] = []  # told of a device that vanished
        self.passes = 0
        self.kicked = False  # one more pass is wanted
        self.backlog = False  # the last pass left frames behind in a device
        self.deadline_ns = NEVER  # of the first timer, after a pass
        self.tunables: Tunables | None = None  # of the stack that is driven
        self._polled: list[Link] = []  # the links with a descriptor

    def now(self) -> int:
        """Refresh `heap.now_ns` from the clock and return it (ns, monotonic)."""
        raise NotImplementedError

    def realtime_ns(self) -> int:
        """The wall clock, ns since 1970."""
        raise NotImplementedError

    def kick(self) -> None:
        """Run a pass soon, never inside this call. Cheap when one is already wanted."""
        raise NotImplementedError

    def add_link(self, link: Link) -> None:
        """Poll `link` from now on. Its `rx` and `rx_end` must be set. One that is fed by the program (`link.callback`)
        has an `attached`, and is told who runs it."""
        self.links.append(link)
        attached = getattr(link, "attached", None)
        if attached is not None:
            attached(self)
        if link.fileno() >= 0:
            self._polled = [*self._polled, link]

    def remove_link(self, link: Link) -> None:
        """Poll it no more. Call this before closing it; a link that is not there is ignored."""
        if link in self.links:
            self.links.remove(link)
            self._polled = [other for other in self._polled if other is not link]

    def one_pass(self) -> bool:
        """Run one pass; True when another is wanted: a budget used up, a kick, a timer due by now."""
        heap = self.heap
        budget = self.budget
        self.kicked = False
        backlog = False
        self.passes += 1
        self.now()
        for hook in self.before_pass:
            hook()
        for link in self._polled:
            try:
                if link.poll(budget) >= budget:
                    backlog = True
            except LinkDown as down:
                self.remove_link(link)
                for told in self.link_down:
                    told(link, down)
        # (a stack's `rx` has refreshed `now` for each frame)
        if heap.run_due(TIMER_BATCH) == TIMER_BATCH:
            self.kicked = True
        for hook in self.after_pass:
            hook()
        self.backlog = backlog
        deadline = heap.next_deadline()
        if deadline is None:
            deadline = NEVER
        self.deadline_ns = deadline
        return backlog or self.kicked or deadline <= heap.now_ns
