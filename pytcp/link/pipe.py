"""Two links joined in one process: what one end sends the other receives, after a fixed delay and, if there is a rate,
the time its bits take.

Frames travel by the timer heap, so the pipe works in virtual and in real time and a send never
re-enters the receiver. Like veth it hands super-frames and unfinished checksums over as they are
when the receiving end's features say that it takes them, and otherwise cuts and completes them as a
NIC would. Payload is copied: the sender's buffers are its own again when `send` returns.

With a rate a super-frame arrives when its last segment has: as if the receiver coalesced exactly what the sender sent
in one piece. Where the receiver takes no super-frames each segment arrives by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from pytcp.clock.heap import Timer, TimerHeap

from . import offload
from .dice import whole
from .frame import (
    CSUM_NONE,
    CSUM_UNNECESSARY,
    F_CSUM,
    F_RXCSUM,
    F_TSO4,
    F_TSO6,
    F_USO,
    GSO_ECN,
    GSO_TCPV4,
    GSO_TCPV6,
    GSO_UDP_L4,
    RxFrame,
    TxFrame,
)

ALL_FEATURES = F_CSUM | F_TSO4 | F_TSO6 | F_USO | F_RXCSUM
LIMIT = 8192  # frames on the way in one direction

ETHERNET_GAP = 24  # bytes on an Ethernet wire beside the frame: preamble, FCS, gap
NS = 1_000_000_000

GSO_FEATURE = {GSO_TCPV4: F_TSO4, GSO_TCPV6: F_TSO6, GSO_UDP_L4: F_USO}


class PipeEnd:
    """One end of a pipe; `pipe_pair` makes two. `peer` is the other."""

    def __init__(
        self, heap: TimerHeap, name: str, mac: bytes, mtu: int, features: int, delay_ns: int, limit: int, rate: int = 0, takes: int | None = None,
        gso_max_size: int = 65536,
    ) -> None:  # fmt: skip
        self.heap = heap
        self.name = name
        self.mac = mac
        self.mtu = mtu
        self.features = features  # what it does for its stack
        self.takes = features if takes is None else takes  # what it lets the other end send as it is
        self.gso_max_size = gso_max_size
        self.delay_ns = delay_ns
        self.rate = rate  # bit/s, 0 = infinite
        self.limit = limit
        self.rx: Callable[[RxFrame], None] = self._no_rx
        self.rx_end: Callable[[], None] = self._no_rx_end
        self.peer: PipeEnd = self
        self.closed = False
        self.tx_packets = 0
        self.tx_bytes = 0
        self.tx_errors = 0  # longer than the MTU of either end
        self._way: deque[tuple[int, RxFrame]] = deque()  # (arrival, frame) towards the peer
        self._timer: Timer | None = None
        self._busy_until = 0  # when the last bit sent so far has left

    def fileno(self) -> int:
        return -1

    def poll(self, budget: int) -> int:
        return 0

    def send(self, frames: Sequence[TxFrame]) -> int:
        """Send frames on their way; fewer are taken when `limit` are on the way already."""
        peer = self.peer
        way = self._way
        taken = 0
        for frame in frames:
            if len(way) >= self.limit:
                break
            taken += 1
            self.tx_packets += 1
            self.tx_bytes += frame.length or len(frame.head) + sum(map(len, frame.parts))
            if self.closed or peer.closed:
                continue
            self._carry(frame)
        if way and self._timer is None:
            self._timer = self.heap.call_at(way[0][0], self._deliver)
        return taken

    def _carry(self, frame: TxFrame) -> None:
        peer = self.peer
        wanted = peer.takes
        gso_type = frame.gso_type
        if (frame.gso_size and not wanted & GSO_FEATURE[gso_type & ~GSO_ECN]) or (frame.csum_start and not wanted & F_RXCSUM):
            packets = offload.segment(frame)
            gso_type = gso_size = 0
            csum = CSUM_NONE
        else:
            packets = [b"".join((frame.head, *frame.parts))]
            gso_size = frame.gso_size
            csum = CSUM_UNNECESSARY if frame.csum_start else CSUM_NONE
        longest = min(self.mtu, peer.mtu) + 18  # Ethernet with a VLAN tag
        for packet in packets:
            if not gso_size and len(packet) > longest:
                self.tx_errors += 1
            else:
                received = RxFrame(memoryview(packet), gso_type, gso_size, csum)
                received.counted = True
                self._way.append((self._arrival(len(packet), frame, gso_size), received))

    def _arrival(self, size: int, frame: TxFrame, gso_size: int) -> int:
        """When the last bit of a frame of `size` bytes, sent behind all others, arrives."""
        if not self.rate:
            return self.heap.now_ns + self.delay_ns
        size += ETHERNET_GAP
        if gso_size:
            headers = len(frame.head) + ETHERNET_GAP
            size += (-(-(frame.length - len(frame.head)) // gso_size) - 1) * headers
        self._busy_until = max(self._busy_until, self.heap.now_ns) + -(-size * 8 * NS // self.rate)
        return self._busy_until + self.delay_ns

    def _deliver(self) -> None:
        self._timer = None
        peer = self.peer
        way = self._way
        now = self.heap.now_ns
        if peer.closed:
            way.clear()
        count = 0
        while way and way[0][0] <= now:
            peer.rx(way.popleft()[1])
            count += 1
        if count:
            peer.rx_end()
        if way and self._timer is None:
            self._timer = self.heap.call_at(way[0][0], self._deliver)

    def close(self) -> None:
        """Lose what is on the way to this end, and everything sent from now on."""
        self.closed = True

    def _no_rx(self, frame: RxFrame) -> None:
        """Nobody listens yet: a received frame is lost."""

    def _no_rx_end(self) -> None:
        """Nobody listens yet."""


def pipe_pair(
    heap: TimerHeap,
    *,
    mtu: int | tuple[int, int] = 1500,
    features: int | tuple[int, int] = ALL_FEATURES,
    delay_ns: int | tuple[int, int] = 0,
    names: tuple[str, str] = ("pipe0", "pipe1"),
    macs: tuple[bytes, bytes] = (b"\x02\x00\x00\x00\x00\x01", b"\x02\x00\x00\x00\x00\x02"),
    limit: int = LIMIT,
    rate: int | tuple[int, int] = 0,
    takes: int | None = None,
    gso_max_size: int = 65536,
) -> tuple[PipeEnd, PipeEnd]:
    """Two joined links on `heap`. A pair of values is (first end, second end).

    mtu: bytes of IP. features: F_* bits of each end, both what it does for its stack and what it takes
    from the other end (F_TSO4, F_TSO6, F_USO: whole super-frames; F_RXCSUM: unfinished checksums).
    delay_ns: from that end to the other. limit: frames on the way in one direction. rate: bit/s from that end, 0 = infinite.
    takes: F_* bits of what both ends take from each other, by default their features. gso_max_size: of both ends, bytes of IP that a
    super-frame may have. Raises ValueError and TypeError for a delay or rate that is no whole number."""
    mtus = mtu if isinstance(mtu, tuple) else (mtu, mtu)
    both = features if isinstance(features, tuple) else (features, features)
    delays = [whole("delay_ns", delay) for delay in (delay_ns if isinstance(delay_ns, tuple) else (delay_ns, delay_ns))]
    rates = [whole("rate", each) for each in (rate if isinstance(rate, tuple) else (rate, rate))]
    first, second = (PipeEnd(heap, names[i], macs[i], mtus[i], both[i], delays[i], limit, rates[i], takes, gso_max_size) for i in (0, 1))
    first.peer = second
    second.peer = first
    return first, second
