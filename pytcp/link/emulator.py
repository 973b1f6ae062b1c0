"""An emulated wire around any link: rate, delay, jitter, loss, reordering, duplication, corruption,
a bounded queue and ECN marking, per direction.

Judged are packets, never super-frames: those are cut first (`cut`), so that one packet of a burst can
be lost. A packet passes, in this order: the cut cable, loss, corruption, the bottleneck's queue
(droptail, CE marks above a threshold as RFC 3168 §5 asks for; or `aqm`), its transmission at `rate`, which
may vary (`rates`), then delay and jitter. Every kind of accident draws from a generator of its own, seeded by `seed`, the direction
and the kind, in integer arithmetic: the same packets in the same order meet the same fate in real and
in virtual time, and switching one impairment on does not move the others.

All frames come up with CSUM_NONE: a flipped bit has to be found by the receiver.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pytcp.clock.heap import Timer, TimerHeap
from pytcp.wire.checksum import incremental

from .aqm import MAXPACKET, CoDel, CoDelQueue, DropTail, Red, RedQueue
from .around import Around
from .bottleneck import Bottleneck
from .cut import ip_version, received_packets, sent_packets
from .dice import Dice, check_probability, whole
from .frame import F_CSUM, F_RXCSUM, F_TSO4, F_TSO6, F_USO, Link, RxFrame, TxFrame
from .gro import Gro
from .offload import ETHERNET
from .rates import Constant, Rate

NS = 1_000_000_000
OFFLOADS = F_CSUM | F_TSO4 | F_TSO6 | F_USO

AQMS: dict[str, CoDel | Red | None] = {"droptail": None, "codel": CoDel(), "red": Red()}


@dataclass(frozen=True, slots=True)
class GilbertElliott:
    """Loss in bursts: a two-state Markov chain (Gilbert 1960, Elliott 1963), stepped before each packet.

    p: probability to turn bad; r: to turn good again (mean length of a bad spell 1/r packets, share of
    bad packets p/(p+r)). loss_bad, loss_good: probability of loss in each state."""

    p: float
    r: float
    loss_bad: float = 1.0
    loss_good: float = 0.0

    def __post_init__(self) -> None:
        for name in ("p", "r", "loss_bad", "loss_good"):
            check_probability(name, getattr(self, name))


_COUNTS = (
    "overhead", "delay_ns", "jitter_ns", "reorder_gap", "reorder_delay_ns", "queue_packets", "queue_bytes", "ecn_packets", "ecn_bytes", "line_packets",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Impairment:
    """What one direction of the wire does to packets. The default does nothing.

    rate: bit/s, 0 = infinite; or a `rates.Varying` or `rates.Trace`. overhead: bytes a packet costs beyond its frame (24 on Ethernet: preamble,
    FCS, gap). delay_ns: propagation. jitter_ns: half width (uniform) or standard deviation (normal) of
    a variation of the delay, which is never negative; it keeps the order unless jitter_reorders.
    loss, duplicate, corrupt (one bit flipped): probabilities. gilbert: burst loss, besides `loss`.
    drop(n, packet): a rule of one's own, asked first, n counting packets from 0; true loses it.
    reorder: probability, or reorder_gap: each so-manieth packet, to arrive reorder_delay_ns late.
    queue_packets, queue_bytes: limits of the queue before the transmitter, 0 = none; a packet counts
    until its last bit is sent. ecn_packets, ecn_bytes: backlog from which ECT packets are marked CE (droptail).
    aqm: "droptail", "codel", "red", or an `aqm.CoDel` or `aqm.Red` with settings of one's own.
    line_packets: packets under way together, a bound on memory.
    Whole numbers may be written as floats (25e6). Raises ValueError, and TypeError for what is no number."""

    rate: int | Rate = 0
    overhead: int = 0
    delay_ns: int = 0
    jitter_ns: int = 0
    distribution: str = "uniform"
    jitter_reorders: bool = False
    loss: float = 0.0
    gilbert: GilbertElliott | None = None
    drop: Callable[[int, bytes], bool] | None = None
    duplicate: float = 0.0
    corrupt: float = 0.0
    reorder: float = 0.0
    reorder_gap: int = 0
    reorder_delay_ns: int = 0
    queue_packets: int = 1000
    queue_bytes: int = 0
    ecn_packets: int = 0
    ecn_bytes: int = 0
    aqm: str | CoDel | Red = "droptail"
    line_packets: int = 1_000_000

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "corrupt", "reorder"):
            check_probability(name, getattr(self, name))
        if not hasattr(self.rate, "fresh"):
            object.__setattr__(self, "rate", whole("rate", self.rate))
        if isinstance(self.aqm, str) and self.aqm not in AQMS:
            raise ValueError(f"aqm {self.aqm!r} is not one of {', '.join(AQMS)}")
        if self.aqm != "droptail" and not self.rate:
            raise ValueError("an aqm needs a rate: without one nothing queues")
        if self.aqm != "droptail" and (self.ecn_packets or self.ecn_bytes):
            raise ValueError("ecn_packets and ecn_bytes are droptail's; CoDel(ecn=True) and Red(ecn=True) mark by their own rules")
        for name in _COUNTS:
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        if self.distribution not in ("uniform", "normal"):
            raise ValueError(f"distribution {self.distribution!r} is neither uniform nor normal")
        if (self.reorder or self.reorder_gap) and not self.reorder_delay_ns:
            raise ValueError("reordering needs reorder_delay_ns, the time by which a packet is late")
        if not self.line_packets:
            raise ValueError("line_packets is positive")

    @property
    def instant(self) -> bool:
        """No packet is ever held back."""
        return not (self.rate or self.delay_ns or self.jitter_ns or self.reorder_delay_ns)

    @property
    def computable(self) -> bool:
        """When a packet leaves the queue is known as it enters."""
        return isinstance(self.rate, int) and self.aqm == "droptail"

    @property
    def harmless(self) -> bool:
        """Every packet passes at once and unchanged."""
        return self.instant and not (self.loss or self.gilbert or self.drop or self.duplicate or self.corrupt)


@dataclass(slots=True)
class Counters:
    """What happened in one direction, in packets unless a name says bytes."""

    packets: int = 0
    bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    lost: int = 0  # loss, gilbert, drop
    down: int = 0  # the cable was cut
    overflowed: int = 0  # the queue or the line was full
    dropped: int = 0  # early, by the queue's aqm
    refused: int = 0  # the device behind took no more
    duplicated: int = 0
    corrupted: int = 0
    reordered: int = 0
    marked: int = 0
    max_backlog: int = 0  # bytes in the queue at most
    whole: int = 0  # frames, not packets: passed uncut and not judged, because nothing can happen here


class Direction:
    """The wire one way: packets go in by `enter`, come out by `deliver`."""

    def __init__(self, heap: TimerHeap, impairment: Impairment, seed: int, deliver: Callable[[list[bytes]], None], link_header: int = ETHERNET) -> None:
        """seed: of everything random here. link_header: bytes before the IP header, 14 or 0."""
        self.heap = heap
        self.link_header = link_header
        self.deliver = deliver
        self.up = True
        self.counters = Counters()
        self._number = 0  # packets that came in
        self._since_gap = 0
        self._bad = False  # Gilbert-Elliott state
        self._busy_until = 0  # when the transmitter is free
        self._last_arrival = 0
        self._queue: deque[tuple[int, int]] = deque()  # (end of transmission, bytes) of what is not yet sent
        self._backlog = 0
        self._bottleneck: Bottleneck | None = None  # in the place of the two, where the rate varies or an aqm decides
        self._draining: list[Bottleneck] = []  # such, of earlier settings
        self._line: list[tuple[int, int, bytes]] = []  # heap of (arrival, order, packet)
        self._order = 0
        self._timer: Timer | None = None
        # a str seeds a generator by its SHA-512, the same in every process
        kinds = ("loss", "gilbert", "duplicate", "corrupt", "bit", "jitter", "reorder", "red")
        self._rng = {kind: random.Random(f"{seed} {kind}") for kind in kinds}
        self.impairment = impairment

    @property
    def pending(self) -> bool:
        """Packets are under way."""
        return bool(self._line) or any(place is not None and place.packets for place in (self._bottleneck, *self._draining))

    @property
    def queued(self) -> tuple[int, int]:
        """Packets and bytes in the bottleneck's queue and in transmission."""
        if self._bottleneck is not None:
            return self._bottleneck.packets, self._bottleneck.backlog
        self._expire(self.heap.now_ns)
        return len(self._queue), self._backlog

    @property
    def impairment(self) -> Impairment:
        """May be set at any time. Packets under way keep their arrival times; those queued for an aqm or for a rate that varies
        leave as the old settings let them."""
        return self._impairment

    @impairment.setter
    def impairment(self, new: Impairment) -> None:
        self._impairment = new
        rng = self._rng
        self._draining = [old for old in (*self._draining, self._bottleneck) if old is not None and old.packets]
        self._bottleneck = None if new.computable else self._slow_place(new)
        self._loss = Dice(new.loss, rng["loss"])
        self._duplicate = Dice(new.duplicate, rng["duplicate"])
        self._corrupt = Dice(new.corrupt, rng["corrupt"])
        self._reorder = Dice(new.reorder, rng["reorder"])
        gilbert = new.gilbert or GilbertElliott(0, 0)
        self._turn = (Dice(gilbert.p, rng["gilbert"]), Dice(gilbert.r, rng["gilbert"]))
        self._lose = (Dice(gilbert.loss_good, rng["gilbert"]), Dice(gilbert.loss_bad, rng["gilbert"]))

    def _slow_place(self, what: Impairment) -> Bottleneck:
        rate = Constant(what.rate) if isinstance(what.rate, int) else what.rate.fresh()
        mark = partial(mark_ce, link_header=self.link_header)
        aqm = AQMS[what.aqm] if isinstance(what.aqm, str) else what.aqm
        queue: DropTail
        if isinstance(aqm, CoDel):
            queue = CoDelQueue(aqm, packets=what.queue_packets, size=what.queue_bytes, mark=mark, counts=self.counters)
        elif isinstance(aqm, Red):
            rng, packet_ns = self._rng["red"], rate.packet_ns(MAXPACKET)
            queue = RedQueue(aqm, rng, packet_ns, packets=what.queue_packets, size=what.queue_bytes, mark=mark, counts=self.counters)
        else:
            queue = DropTail(
                packets=what.queue_packets, size=what.queue_bytes, mark_packets=what.ecn_packets, mark_size=what.ecn_bytes, mark=mark, counts=self.counters
            )
        return Bottleneck(self.heap, queue, rate, self._sent)

    def enter(self, packets: list[bytes]) -> None:
        """Judge packets and send those that live on their way."""
        at_once: list[bytes] = []
        for packet in packets:
            self._judge(packet, at_once)
        if at_once:
            self._out(at_once)

    def close(self) -> None:
        """Lose everything under way."""
        self._line.clear()
        for place in (self._bottleneck, *self._draining):
            if place is not None:
                place.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _judge(self, packet: bytes, at_once: list[bytes]) -> None:
        what = self._impairment
        counters = self.counters
        counters.packets += 1
        counters.bytes += len(packet)
        number = self._number
        self._number = number + 1
        # these dice are rolled for every packet, whatever the others say: its fate depends on its number only
        lost = what.drop is not None and what.drop(number, packet)
        if what.loss and self._loss.roll():
            lost = True
        if what.gilbert is not None and self._in_burst():
            lost = True
        copies = 2 if what.duplicate and self._duplicate.roll() else 1
        corrupted = bool(what.corrupt) and self._corrupt.roll()
        if not self.up:
            counters.down += 1
            return
        if lost:
            counters.lost += 1
            return
        if copies == 2:
            counters.duplicated += 1
        if corrupted:
            counters.corrupted += 1
            packet = self._flip(packet)
        for _ in range(copies):
            if what.instant:
                at_once.append(packet)
            else:
                self._send(packet, what)

    def _in_burst(self) -> bool:
        if self._turn[self._bad].roll():
            self._bad = not self._bad
        return self._lose[self._bad].roll()

    def _flip(self, packet: bytes) -> bytes:
        bit = self._rng["bit"].randrange(len(packet) * 8)
        damaged = bytearray(packet)
        damaged[bit >> 3] ^= 0x80 >> (bit & 7)
        return bytes(damaged)

    def _expire(self, now: int) -> None:
        """Forget what has left the queue."""
        queue = self._queue
        while queue and queue[0][0] <= now:
            self._backlog -= queue.popleft()[1]

    def _send(self, packet: bytes, what: Impairment) -> None:
        if not what.rate:
            self._launch(packet, what, self.heap.now_ns)
            return
        counters = self.counters
        size = len(packet) + what.overhead
        bottleneck = self._bottleneck
        if bottleneck is not None:
            bottleneck.enter(packet, size)
            counters.max_backlog = max(counters.max_backlog, bottleneck.backlog)
            return
        assert isinstance(what.rate, int)
        now = self.heap.now_ns
        self._expire(now)
        queue = self._queue
        if (what.queue_packets and len(queue) >= what.queue_packets) or (what.queue_bytes and self._backlog + size > what.queue_bytes):
            counters.overflowed += 1
            return
        if (what.ecn_packets and len(queue) >= what.ecn_packets) or (what.ecn_bytes and self._backlog >= what.ecn_bytes):
            marked = mark_ce(packet, self.link_header)
            if marked is not None:
                packet = marked
                counters.marked += 1
        departure = max(now, self._busy_until) + -(-size * 8 * NS // what.rate)
        self._busy_until = departure
        queue.append((departure, size))
        self._backlog += size
        counters.max_backlog = max(counters.max_backlog, self._backlog)
        self._launch(packet, what, departure)

    def _sent(self, packet: bytes) -> None:
        self._launch(packet, self._impairment, self.heap.now_ns)

    def _launch(self, packet: bytes, what: Impairment, departure: int) -> None:
        """The packet is on the line from `departure` on."""
        counters = self.counters
        if len(self._line) >= what.line_packets:
            counters.overflowed += 1
            return
        arrival = departure + what.delay_ns
        if what.jitter_ns:
            arrival = max(arrival + self._vary(what), departure)
        late = bool(what.reorder) and self._reorder.roll()
        if what.reorder_gap:
            self._since_gap += 1
            if self._since_gap == what.reorder_gap:
                self._since_gap = 0
                late = True
        if late:
            counters.reordered += 1
            arrival += what.reorder_delay_ns
        elif not what.jitter_reorders:
            arrival = self._last_arrival = max(arrival, self._last_arrival)
        self._order += 1
        heapq.heappush(self._line, (arrival, self._order, packet))
        timer = self._timer
        if timer is None or arrival < timer.when_ns:
            if timer is not None:
                timer.cancel()
            self._timer = self.heap.call_at(arrival, self._arrived)

    def _vary(self, what: Impairment) -> int:
        jitter = what.jitter_ns
        if what.distribution == "uniform":
            return self._rng["jitter"].randrange(-jitter, jitter + 1)
        # the sum of twelve uniform numbers of width 1 has variance 1 and is nearly normal
        draw = self._rng["jitter"].getrandbits
        total = sum(draw(16) for _ in range(12)) - 6 * 0xFFFF
        return total * jitter >> 16

    def _arrived(self) -> None:
        self._timer = None
        line = self._line
        now = self.heap.now_ns
        packets = []
        while line and line[0][0] <= now:
            packets.append(heapq.heappop(line)[2])
        if line:
            self._timer = self.heap.call_at(line[0][0], self._arrived)
        if self.up:
            self._out(packets)
        else:
            self.counters.down += len(packets)

    def _out(self, packets: list[bytes]) -> None:
        self.counters.delivered += len(packets)
        self.counters.delivered_bytes += sum(map(len, packets))
        self.deliver(packets)


def mark_ce(packet: bytes, link_header: int = ETHERNET) -> bytes | None:
    """`packet` with Congestion Experienced set and the IPv4 checksum updated; None when it is not ECT.
    A packet that carries CE already is returned as it is."""
    version = ip_version(packet, link_header)
    if version == 4:
        if not packet[link_header + 1] & 3:
            return None
        marked = bytearray(packet)
        marked[link_header + 1] |= 3
        word, field = slice(link_header, link_header + 2), slice(link_header + 10, link_header + 12)
        csum = incremental(int.from_bytes(packet[field], "big"), int.from_bytes(packet[word], "big"), int.from_bytes(marked[word], "big"))
        marked[field] = csum.to_bytes(2, "big")
        return bytes(marked)
    if version == 6:
        if not packet[link_header + 1] & 0x30:
            return None
        marked = bytearray(packet)
        marked[link_header + 1] |= 0x30
        return bytes(marked)
    return None


class Emulator(Around):
    """A link whose frames pass an emulated wire before they reach, and after they leave, `inner`."""

    def __init__(self, inner: Link, heap: TimerHeap, seed: int = 0, *, tx: Impairment | None = None, rx: Impairment | None = None, gro: bool = False) -> None:
        """tx: what happens to frames the stack sends; rx: to those it receives. gro: coalesce what
        comes up together, as a NIC behind the wire would; in real time that depends on punctuality."""
        super().__init__(inner)
        self.features = OFFLOADS | (inner.features & F_RXCSUM)
        self._link_header = ETHERNET if inner.mac else 0
        self.outward = Direction(heap, tx or Impairment(), seed * 2, self._to_inner, self._link_header)
        self.inward = Direction(heap, rx or Impairment(), seed * 2 + 1, self._to_stack, self._link_header)
        self._gro = Gro(self._link_header) if gro else None
        self._in_batch = False  # the link within is delivering: its rx_end will follow
        self._heard = False  # frames went up since the last rx_end

    @property
    def up(self) -> bool:
        """False: the cable is cut, what is sent or under way either way is lost."""
        return self.outward.up and self.inward.up

    @up.setter
    def up(self, value: bool) -> None:
        self.outward.up = self.inward.up = value

    def send(self, frames: Sequence[TxFrame]) -> int:
        """Take all frames; what the wire or the device behind loses is counted in `outward.counters`."""
        outward = self.outward
        if outward.up and outward.impairment.harmless and not outward.pending and self.inner.features & OFFLOADS == OFFLOADS:
            taken = self.inner.send(frames)
            outward.counters.whole += taken
            return taken
        outward.enter([packet for frame in frames for packet in sent_packets(frame)])
        return len(frames)

    def close(self) -> None:
        """Lose what is under way and close the link within."""
        self.outward.close()
        self.inward.close()
        self.inner.close()

    def _to_inner(self, packets: list[bytes]) -> None:
        taken = self.inner.send([TxFrame(packet, (), len(packet)) for packet in packets])
        self.outward.counters.refused += len(packets) - taken

    def _received(self, frame: RxFrame) -> None:
        inward = self.inward
        if inward.up and inward.impairment.harmless and not inward.pending:
            inward.counters.whole += 1
            self._heard = True
            self.rx(frame)
        else:
            self._in_batch = True
            inward.enter(received_packets(frame, self._link_header))
            self._in_batch = False

    def _received_end(self) -> None:
        if self._heard:
            self._heard = False
            self._batch_end()

    def _to_stack(self, packets: list[bytes]) -> None:
        up = self.rx if self._gro is None else self._gro.feed
        for packet in packets:
            up(RxFrame(memoryview(packet)))
        if self._in_batch:
            self._heard = True
        else:
            self._batch_end()

    def _batch_end(self) -> None:
        if self._gro is not None:
            for frame in self._gro.flush():
                self.rx(frame)
        self.rx_end()
