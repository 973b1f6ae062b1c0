"""How fast a bottleneck transmits: a constant rate, one that varies with time, or a recording of a real link.

A rate answers three questions: when can a transmission begin (`start`), how far does it get from there
(`serve`), and how long does a packet take on average (`packet_ns`). Times are nanoseconds on the clock of
the caller's heap, and a trace begins where that is 0.

A mahimahi trace (Netravali et al., USENIX ATC 2015) is a text file of milliseconds, one a line and never
decreasing: at each the link could deliver 1500 bytes. Behind the last it starts again. What a packet leaves of an
opportunity the next one uses; what nobody uses is lost.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

NS = 1_000_000_000
MS = 1_000_000
OPPORTUNITY = 1500  # bytes
STEPS = 1000  # of a varying rate that are looked at together


class Service(NamedTuple):
    """How far a transmission gets: until `when_ns`, with `left` bits to go (0: it is over)."""

    when_ns: int
    left: int


class Rate(Protocol):
    """What a bottleneck asks."""

    def start(self, now_ns: int) -> int:
        """When a transmission can begin or go on: now, or later."""

    def serve(self, now_ns: int, bits: int) -> Service:
        """Transmit so many bits from `now_ns`, which `start` has allowed."""

    def packet_ns(self, size: int) -> int:
        """How long `size` bytes take on average."""

    def fresh(self) -> Rate:
        """This rate for one direction: what it knows of the transmissions it has served is its own."""


class Since:
    """A rate whose time counts from `zero_ns`."""

    def __init__(self, rate: Rate, zero_ns: int) -> None:
        self.rate = rate
        self.zero_ns = zero_ns

    def start(self, now_ns: int) -> int:
        return self.rate.start(now_ns - self.zero_ns) + self.zero_ns

    def serve(self, now_ns: int, bits: int) -> Service:
        when_ns, left = self.rate.serve(now_ns - self.zero_ns, bits)
        return Service(when_ns + self.zero_ns, left)

    def packet_ns(self, size: int) -> int:
        return self.rate.packet_ns(size)

    def fresh(self) -> Since:
        return Since(self.rate.fresh(), self.zero_ns)


class Constant:
    """So many bit/s."""

    def __init__(self, rate: int) -> None:
        self.rate = rate

    def start(self, now_ns: int) -> int:
        return now_ns

    def serve(self, now_ns: int, bits: int) -> Service:
        return Service(now_ns + -(-bits * NS // self.rate), 0)

    def packet_ns(self, size: int) -> int:
        return size * 8 * NS // self.rate

    def fresh(self) -> Constant:
        return self


class Varying:
    """A rate that is a function of time."""

    def __init__(self, function: Callable[[int], int], step_ns: int = MS) -> None:
        """function(t_ns): bit/s at that time, asked at multiples of step_ns and valid until the next. Raises ValueError."""
        if step_ns <= 0:
            raise ValueError("step_ns is positive")
        self.function = function
        self.step_ns = step_ns

    def start(self, now_ns: int) -> int:
        return now_ns

    def serve(self, now_ns: int, bits: int) -> Service:
        step = self.step_ns
        credit = bits * NS  # bits times ns/s, so that nothing is rounded on the way
        for _ in range(STEPS):
            start = now_ns // step * step
            rate = self.function(start)
            if rate < 0:
                raise ValueError(f"the rate at {start} ns is {rate}")
            room = (start + step - now_ns) * rate
            if room >= credit:
                return Service(now_ns + -(-credit // rate), 0)
            credit -= room
            now_ns = start + step
        return Service(now_ns, -(-credit // NS))

    def packet_ns(self, size: int) -> int:
        return size * 8 * NS // max(self.function(0), 1)

    def fresh(self) -> Varying:
        return self


class Trace:
    """A mahimahi trace. `Trace.read` takes a file."""

    def __init__(self, opportunities_ms: Iterable[int]) -> None:
        """opportunities_ms: when 1500 bytes could be delivered; the last is the length of the trace. Raises ValueError."""
        times = list(opportunities_ms)
        if not times or times[-1] <= 0:
            raise ValueError("a trace has opportunities, the last of them after 0 ms")
        if times[0] < 0 or any(later < earlier for earlier, later in itertools.pairwise(times)):
            raise ValueError("the times of a trace are not negative and never decrease")
        self.times = [time * MS for time in times]
        self.period = self.times[-1]
        self._at = -1  # number of the opportunity in use, counted through all repetitions
        self._room = 0  # bits left of it

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Trace:
        """The trace in a file. Raises OSError; ValueError naming the line that is no number."""
        times = []
        for number, line in enumerate(Path(path).read_text().split("\n"), 1):
            if line.strip():
                try:
                    times.append(int(line))
                except ValueError:
                    raise ValueError(f"{path}, line {number}: {line.strip()!r} is no time in ms") from None
        return cls(times)

    def _when(self, at: int) -> int:
        turn, index = divmod(at, len(self.times))
        return turn * self.period + self.times[index]

    def _first_from(self, now_ns: int) -> int:
        """Number of the first opportunity that is not before `now_ns`."""
        turn, into = divmod(now_ns, self.period)
        # at the turn itself the last of the old round and those at 0 of the new one coincide
        if turn and not into:
            turn, into = turn - 1, self.period
        return turn * len(self.times) + bisect_right(self.times, into - 1)

    def _next(self, now_ns: int) -> int:
        """Number of the opportunity to use: the one in use while it lasts, else the next. What one had left over later is lost."""
        if self._room and self._when(self._at) == now_ns:
            return self._at
        return max(self._first_from(now_ns), self._at + 1)

    def start(self, now_ns: int) -> int:
        return self._when(self._next(now_ns))

    def serve(self, now_ns: int, bits: int) -> Service:
        at = self._next(now_ns)
        if at != self._at:
            self._at = at
            self._room = OPPORTUNITY * 8
        used = min(bits, self._room)
        self._room -= used
        return Service(now_ns, bits - used)

    def packet_ns(self, size: int) -> int:
        return size * self.period // (OPPORTUNITY * len(self.times))

    def fresh(self) -> Trace:
        return Trace(time // MS for time in self.times)
