"""pfifo: first in, first out, the newest is dropped when `limit` frames wait (`tc-pfifo(8)`)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from pytcp.link.frame import TxFrame

from .base import NEVER, Hooks, Qdisc


@dataclass(frozen=True, slots=True)
class Pfifo:
    """limit: frames, the default that of an interface's txqueuelen. Raises ValueError."""

    limit: int = 1000

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"limit {self.limit} is negative")


class PfifoQdisc(Qdisc):
    kind = "pfifo"

    def __init__(self, settings: Pfifo, hooks: Hooks) -> None:
        super().__init__(hooks)
        self.limit = settings.limit
        self._frames: deque[TxFrame] = deque()

    def enqueue(self, frame: TxFrame, now_ns: int) -> bool:
        if len(self._frames) >= self.limit:
            return False
        self._frames.append(frame)
        return True

    def dequeue(self, now_ns: int) -> TxFrame | None:
        return self._frames.popleft() if self._frames else None

    def next_ns(self) -> int:
        return NEVER

    def drain(self) -> list[TxFrame]:
        frames = list(self._frames)
        self._frames.clear()
        return frames

    def options(self) -> dict[str, Any]:
        return {"limit": self.limit}
