"""What a bottleneck does with a queue that grows: drop the newest (droptail), CoDel, RED.

CoDel (RFC 8289) looks at packets as they leave: when each has waited longer than `target` for a whole
`interval`, it drops one, and then others at shrinking distances, interval/√count, until one has waited
less. RED (Floyd and Jacobson, 1993) looks at them as they come: between two thresholds of an average
queue length it drops at random, ever more often, and above the upper one it drops all. With `ecn` both mark
instead what may be marked (RFC 3168), RED also above the upper threshold, as Linux does, unless `harddrop`.

All arithmetic is in integers: interval/√count is the floor of the exact value, RED's average is kept in 2^-wlog bytes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isqrt
from typing import NamedTuple, Protocol

MS = 1_000_000
MAXPACKET = 1514  # a queue this short is never too long (RFC 8289 §5.2)
NEVER = -1


class Waiting(NamedTuple):
    packet: bytes
    size: int  # what it costs on the wire, bytes
    since_ns: int


Mark = Callable[[bytes], bytes | None]  # the packet with CE set, or None: it does not speak ECN


class Counts(Protocol):
    """What a queue counts, in packets."""

    overflowed: int  # dropped because the queue was full
    dropped: int  # dropped early
    marked: int


@dataclass(slots=True)
class Losses:
    overflowed: int = 0
    dropped: int = 0
    marked: int = 0


class DropTail:
    """A bounded queue, and the base of the others."""

    def __init__(
        self, *, packets: int = 1000, size: int = 0, mark_packets: int = 0, mark_size: int = 0, mark: Mark | None = None, counts: Counts | None = None
    ) -> None:
        """packets, size: limits in packets and bytes, 0 = none. mark_packets, mark_size: backlog from which packets that may be are marked.
        counts: where losses and marks are counted; an object of its own by default."""
        self.limit_packets = packets
        self.limit_size = size
        self.mark_packets = mark_packets
        self.mark_size = mark_size
        self.mark = mark
        self.waiting: deque[Waiting] = deque()
        self.backlog = 0  # bytes
        self.counts: Counts = Losses() if counts is None else counts

    def __len__(self) -> int:
        return len(self.waiting)

    def enqueue(self, packet: bytes, size: int, now_ns: int, more: int = 0, more_size: int = 0) -> bool:
        """Take a packet, or lose it. more, more_size: what has left the queue and still counts, because it is being sent."""
        if (self.limit_packets and len(self.waiting) + more >= self.limit_packets) or (
            self.limit_size and self.backlog + more_size + size > self.limit_size
        ):
            self.counts.overflowed += 1
            return False
        if (self.mark_packets and len(self.waiting) + more >= self.mark_packets) or (self.mark_size and self.backlog + more_size >= self.mark_size):
            packet = self._mark(packet) or packet
        self.waiting.append(Waiting(packet, size, now_ns))
        self.backlog += size
        return True

    def dequeue(self, now_ns: int) -> Waiting | None:
        """The next packet to send, if there is one."""
        if not self.waiting:
            return None
        item = self.waiting.popleft()
        self.backlog -= item.size
        return item

    def _mark(self, packet: bytes) -> bytes | None:
        marked = self.mark(packet) if self.mark is not None else None
        if marked is not None:
            self.counts.marked += 1
        return marked


@dataclass(frozen=True, slots=True)
class CoDel:
    """Settings of CoDel. target_ns, interval_ns: RFC 8289 §4. ecn: mark what may be marked. Raises ValueError."""

    target_ns: int = 5 * MS
    interval_ns: int = 100 * MS
    ecn: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.target_ns < self.interval_ns:
            raise ValueError("CoDel's target is positive and shorter than its interval")


class CoDelQueue(DropTail):
    """RFC 8289 §5."""

    def __init__(self, codel: CoDel, *, packets: int = 1000, size: int = 0, mark: Mark | None = None, counts: Counts | None = None) -> None:
        super().__init__(packets=packets, size=size, mark=mark, counts=counts)
        self.codel = codel
        self.dropping = False
        self.count = 0  # drops since dropping began
        self.last_count = 0
        self.first_above_ns = NEVER  # when the wait will have been too long for an interval
        self.drop_next_ns = 0

    def control_law(self, from_ns: int) -> int:
        """When to drop next: interval/√count after `from_ns`."""
        interval = self.codel.interval_ns
        return from_ns + isqrt(interval * interval // self.count)

    def _leave(self, now_ns: int) -> tuple[Waiting | None, bool]:
        """The head of the queue, and whether packets have waited too long for too long."""
        item = super().dequeue(now_ns)
        if item is None:
            self.first_above_ns = NEVER
            return None, False
        if now_ns - item.since_ns < self.codel.target_ns or self.backlog <= MAXPACKET:
            self.first_above_ns = NEVER
            return item, False
        if self.first_above_ns == NEVER:
            self.first_above_ns = now_ns + self.codel.interval_ns
            return item, False
        return item, now_ns >= self.first_above_ns

    def _punish(self, item: Waiting) -> Waiting | None:
        """Mark a packet, which is then sent, or drop it."""
        if self.codel.ecn:
            marked = self._mark(item.packet)
            if marked is not None:
                return item._replace(packet=marked)
        self.counts.dropped += 1
        return None

    def dequeue(self, now_ns: int) -> Waiting | None:
        item, too_long = self._leave(now_ns)
        if self.dropping:
            if not too_long:
                self.dropping = False
            while item is not None and self.dropping and now_ns >= self.drop_next_ns:
                self.count += 1
                sent = self._punish(item)
                if sent is not None:
                    self.drop_next_ns = self.control_law(self.drop_next_ns)
                    return sent
                item, too_long = self._leave(now_ns)
                if too_long:
                    self.drop_next_ns = self.control_law(self.drop_next_ns)
                else:
                    self.dropping = False
        elif too_long and item is not None:
            sent = self._punish(item)
            if sent is not None:
                item = sent
            else:
                item, _ = self._leave(now_ns)
            self.dropping = True
            # soon after the last time: go on about where that had got to
            delta = self.count - self.last_count
            self.count = delta if delta > 1 and now_ns - self.drop_next_ns < 16 * self.codel.interval_ns else 1
            self.drop_next_ns = self.control_law(now_ns)
            self.last_count = self.count
        return item


@dataclass(frozen=True, slots=True)
class Red:
    """Settings of RED. min_size, max_size: thresholds of the average backlog, bytes; 0: from the queue's limit as tc does (max a quarter of it,
    min a third of max). probability: of a drop just below max. wlog: weight of a new sample, 2^-wlog. ecn: mark what may be marked.
    harddrop: but not above max. Raises ValueError."""

    min_size: int = 0
    max_size: int = 0
    probability: float = 0.02
    wlog: int = 9
    ecn: bool = False
    harddrop: bool = False

    def __post_init__(self) -> None:
        if self.min_size < 0 or (self.max_size and self.max_size <= self.min_size) or (self.min_size and not self.max_size):
            raise ValueError("RED's thresholds are not negative, and max is above min")
        if not 0 < self.probability <= 1:
            raise ValueError(f"RED's probability is {self.probability}")
        if not 1 <= self.wlog <= 31:
            raise ValueError("RED's wlog is between 1 and 31")


class RedQueue(DropTail):
    """Floyd and Jacobson, "Random Early Detection Gateways for Congestion Avoidance" (1993), with the uniform distance between drops of its §7."""

    def __init__(
        self, red: Red, rng: random.Random, packet_ns: int, *, packets: int = 1000, size: int = 0, mark: Mark | None = None, counts: Counts | None = None
    ) -> None:
        """packet_ns: how long a packet takes on the wire; an idle queue's average falls as if so many short ones had come."""
        super().__init__(packets=packets, size=size, mark=mark, counts=counts)
        limit = size or packets * MAXPACKET
        if not red.max_size:
            if not limit:
                raise ValueError("RED's thresholds need a limit of the queue, or to be given")
            red = replace(red, min_size=max(limit // 12, 1), max_size=max(limit // 4, 2))
        self.red = red
        self.average = 0  # bytes, times 2^wlog
        self.since = NEVER  # packets since the last drop or mark; NEVER: below the threshold
        self.idle_since_ns = 0
        self._rng = rng
        self._packet_ns = packet_ns
        self._p = round(red.probability * (1 << 32))

    def enqueue(self, packet: bytes, size: int, now_ns: int, more: int = 0, more_size: int = 0) -> bool:
        red = self.red
        backlog = self.backlog + more_size
        if not self.waiting and not more:
            self._decay((now_ns - self.idle_since_ns) // self._packet_ns if self._packet_ns else 0)
        self.average += backlog - (self.average >> red.wlog)
        average = self.average >> red.wlog
        above = average >= red.max_size
        if average < red.min_size:
            self.since = NEVER
        else:
            self.since += 1
            if above or self._chosen(average):
                self.since = 0
                marked = self._mark(packet) if red.ecn and not (above and red.harddrop) else None
                if marked is None:
                    self.counts.dropped += 1
                    return False
                packet = marked
        return super().enqueue(packet, size, now_ns, more, more_size)

    def _chosen(self, average: int) -> bool:
        """A draw with probability pb/(1 - since·pb), pb = p·(average - min)/(max - min)."""
        red = self.red
        numerator = self._p * (average - red.min_size)
        denominator = (red.max_size - red.min_size) << 32
        rest = denominator - self.since * numerator
        return rest <= 0 or self._rng.getrandbits(32) * rest < numerator << 32

    def _decay(self, packets: int) -> None:
        """The average of a queue that was empty while so many packets might have been sent: times (1 - 2^-wlog)^packets."""
        factor = 1 << 64
        base = factor - (factor >> self.red.wlog)
        while packets:
            if packets & 1:
                factor = factor * base >> 64
            base = base * base >> 64
            packets >>= 1
        self.average = self.average * factor >> 64

    def dequeue(self, now_ns: int) -> Waiting | None:
        item = super().dequeue(now_ns)
        if not self.waiting:
            self.idle_since_ns = now_ns
        return item
