"""htb with one class: whole frames at a rate, after a burst (sch_htb, `tc-htb(8)`).

What comparisons with a kernel put before both senders: tun and veth release a frame's charge at once, an HTB class keeps
super-frames in the host, so that small queues and autocork show (linux-tcp §14).

Two buckets fill with time and are charged with what leaves: `burst` at `rate`, `cburst` at `ceil`. A frame may leave while
neither is overdrawn, whatever its size.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from pytcp.link.frame import TxFrame

from .base import NEVER, Hooks, Qdisc, wire_size

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Htb:
    """rate, ceil: bytes/s, ceil 0 = rate. burst, cburst: bytes; limit: frames. Raises ValueError."""

    rate: int
    ceil: int = 0
    burst: int = 1600
    cburst: int = 1600
    limit: int = 1000

    def __post_init__(self) -> None:
        if self.rate <= 0 or (self.ceil and self.ceil < self.rate):
            raise ValueError("rate is positive, and ceil not below it")
        if self.burst <= 0 or self.cburst <= 0 or self.limit < 0:
            raise ValueError("burst and cburst are positive, limit is not negative")


class HtbQdisc(Qdisc):
    kind = "htb"

    def __init__(self, settings: Htb, hooks: Hooks) -> None:
        super().__init__(hooks)
        self.settings = settings
        self.ceil = settings.ceil or settings.rate
        # in ns, as the kernel keeps them: how long the bucket's content would take at its rate
        self.buffer = settings.burst * NS // settings.rate
        self.cbuffer = settings.cburst * NS // self.ceil
        self.tokens = self.buffer
        self.ctokens = self.cbuffer
        self.checked_ns = self.heap.now_ns
        self._frames: deque[TxFrame] = deque()

    def enqueue(self, frame: TxFrame, now_ns: int) -> bool:
        if len(self._frames) >= self.settings.limit:
            return False
        self._frames.append(frame)
        return True

    def dequeue(self, now_ns: int) -> TxFrame | None:
        if not self._frames:
            return None
        passed = now_ns - self.checked_ns
        if self.tokens + passed < 0 or self.ctokens + passed < 0:
            self.overlimits += 1
            return None
        frame = self._frames.popleft()
        size = wire_size(frame)[0]
        self.tokens = min(self.tokens + passed, self.buffer) - size * NS // self.settings.rate
        self.ctokens = min(self.ctokens + passed, self.cbuffer) - size * NS // self.ceil
        self.checked_ns = now_ns
        return frame

    def next_ns(self) -> int:
        return self.checked_ns - min(self.tokens, self.ctokens) if self._frames else NEVER

    def drain(self) -> list[TxFrame]:
        frames = list(self._frames)
        self._frames.clear()
        return frames

    def options(self) -> dict[str, Any]:
        return {"rate": self.settings.rate, "ceil": self.ceil, "burst": self.settings.burst, "cburst": self.settings.cburst}
