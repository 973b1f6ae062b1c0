"""Reassembly of both families (RFC 791 §3.2, RFC 8200 §4.5), bounded in memory and time.

Linux's rules: fragments may come in any order; one that lies wholly inside an earlier one is ignored,
any other overlap throws the datagram away (RFC 5722; IPv4 too since 4.19). The clock runs from the
first arrival and is not extended; when it fires and the first fragment is there, its sender is told.
New datagrams are refused while memory is above the limit; nothing is evicted. IPv4 also gives up a
datagram when the same source meanwhile sent more than `ipfrag_max_dist` other fragments (wrapped ids).
Mixed ECN marks: CE wins over ECT; a mix with not-ECT is dropped (RFC 3168 §5.3).
Sysctls: ipfrag_high_thresh, ipfrag_time, ipfrag_max_dist, ip6frag_high_thresh, ip6frag_time.
Counters: IpReasm*, IpExtReasmOverlaps, Ip6Reasm*.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytcp.wire.icmp import REASSEMBLY_EXPIRED, TIME_EXCEEDED
from pytcp.wire.icmpv6 import ERRONEOUS_HEADER, INCOMPLETE_CHAIN, PARAMETER_PROBLEM
from pytcp.wire.icmpv6 import TIME_EXCEEDED as TIME_EXCEEDED6
from pytcp.wire.ipv4 import IP_MF, IP_OFFSET, build_header
from pytcp.wire.ipv6 import IPPROTO_DSTOPTS, IPPROTO_FRAGMENT, IPPROTO_HOPOPTS, IPPROTO_NONE, IPPROTO_ROUTING

from . import icmp, icmpv6
from .truesize import rx_truesize

if TYPE_CHECKING:
    from pytcp.clock.heap import Timer

    from .packet import Packet
    from .stack import Stack

QUEUE_SIZE = 200  # what a queue itself is charged
SOURCES = 4096  # IPv4 sources whose fragments are counted

_CE = 3


class _Broken(Exception):
    """The fragments contradict each other: the datagram is lost. `overlap`: they overlap."""

    def __init__(self, overlap: bool = False) -> None:
        super().__init__()
        self.overlap = overlap


class Queue:
    """The fragments of one datagram."""

    __slots__ = ("pieces", "have", "total", "first", "ecn", "memory", "timer", "distance")

    def __init__(self, timer: Timer, distance: int) -> None:
        self.pieces: list[tuple[int, int, bytes]] = []  # (start, end, bytes) by start, disjoint
        self.have = 0
        self.total = -1  # known with the last fragment
        self.first: Packet | None = None  # the fragment with offset 0
        self.ecn = 0  # bit n: some fragment had ECN codepoint n
        self.memory = QUEUE_SIZE
        self.timer = timer
        self.distance = distance  # fragments seen from the source when the last of this datagram came

    def add(self, pkt: Packet, start: int, body: bytes, more: bool) -> bool:
        """Take one fragment; False when it adds nothing. Raises _Broken."""
        end = start + len(body)
        if not more:
            top = max((piece[1] for piece in self.pieces), default=0)
            if end < top or (self.total >= 0 and end != self.total):
                raise _Broken
            self.total = end
        elif self.total >= 0 and end > self.total:
            raise _Broken
        if start == end:
            raise _Broken
        at = len(self.pieces)
        while at and self.pieces[at - 1][0] > start:
            at -= 1
        for left, right, _ in self.pieces[max(at - 1, 0) : at + 1]:
            if left <= start and end <= right:
                return False
            if left < end and start < right:
                raise _Broken(overlap=True)
        self.pieces.insert(at, (start, end, body))
        self.have += end - start
        self.memory += rx_truesize(pkt.frame_len)
        self.ecn |= 1 << (pkt.tos & 3)
        if start == 0:
            self.first = pkt
        return True

    def complete(self) -> bool:
        return self.have == self.total and self.first is not None

    def ecn_result(self) -> int | None:
        """The ECN bits of the whole; None: the marks contradict each other."""
        if self.ecn & 1:
            return 0 if self.ecn == 1 else None
        return _CE if self.ecn & 8 else 0


class Reassembly:
    """All incomplete datagrams of one family."""

    def __init__(self, stack: Stack, family: int) -> None:
        self.stack = stack
        self.family = family
        self.memory = 0
        self._queues: dict[tuple[object, ...], Queue] = {}
        self._seen: dict[bytes, int] = {}  # IPv4: fragments per source

    def __len__(self) -> int:
        return len(self._queues)

    def close(self) -> None:
        """Forget everything."""
        for queue in self._queues.values():
            queue.timer.cancel()
        self._queues.clear()
        self.memory = 0

    def distance(self, source: bytes) -> int:
        """Count one more fragment of an IPv4 source."""
        seen = self._seen
        count = seen.pop(source, 0) + 1
        if len(seen) >= SOURCES:
            del seen[next(iter(seen))]
        seen[source] = count
        return count

    def find(self, key: tuple[object, ...]) -> Queue | None:
        return self._queues.get(key)

    def make(self, key: tuple[object, ...], distance: int = 0) -> Queue | None:
        """A new queue; None while memory is above the limit."""
        sysctl = self.stack.sysctl
        high, seconds = (sysctl.ipfrag_high_thresh, sysctl.ipfrag_time) if self.family == 4 else (sysctl.ip6frag_high_thresh, sysctl.ip6frag_time)
        if self.memory > high:
            return None
        timer = self.stack.call_later(seconds * 1_000_000_000, partial(self._expire, key))
        queue = self._queues[key] = Queue(timer, distance)
        self.memory += queue.memory
        return queue

    def drop(self, key: tuple[object, ...]) -> Queue:
        """Take a queue out."""
        queue = self._queues.pop(key)
        queue.timer.cancel()
        self.memory -= queue.memory
        return queue

    def _expire(self, key: tuple[object, ...]) -> None:
        queue = self.drop(key)
        mib = self.stack.mib
        if self.family == 4:
            mib.IpReasmTimeout += 1
            mib.IpReasmFails += 1
            if queue.first is not None:
                icmp.send_error(self.stack, queue.first, TIME_EXCEEDED, REASSEMBLY_EXPIRED, 0)
        else:
            mib.Ip6ReasmTimeout += 1
            mib.Ip6ReasmFails += 1
            if queue.first is not None:
                icmpv6.send_error(self.stack, queue.first, TIME_EXCEEDED6, REASSEMBLY_EXPIRED, 0)


# --- IPv4 ---


def add4(stack: Stack, pkt: Packet) -> Packet | None:
    """Take an IPv4 fragment; the whole datagram when it is the last one missing."""
    mib = stack.mib
    table = stack.frags4
    mib.IpReasmReqds += 1
    start = (pkt.frag & IP_OFFSET) * 8
    more = bool(pkt.frag & IP_MF)
    body = pkt.data[pkt.off :]
    if more:
        body = body[: len(body) & ~7]
    key = (pkt.src, pkt.dst, pkt.ident, pkt.proto)
    distance = table.distance(pkt.src)
    queue = table.find(key)
    limit = stack.sysctl.ipfrag_max_dist
    if queue is not None and limit and distance - queue.distance > limit:
        table.drop(key)
        mib.IpReasmFails += 1
        queue = None
    if queue is None:
        queue = table.make(key)
        if queue is None:
            mib.IpReasmFails += 1
            return None
    queue.distance = distance
    before = queue.memory
    try:
        queue.add(pkt, start, body, more)
    except _Broken as broken:
        table.drop(key)
        mib.IpReasmFails += 1
        if broken.overlap:
            mib.IpExtReasmOverlaps += 1
        return None
    table.memory += queue.memory - before
    if not queue.complete():
        return None
    table.drop(key)
    ecn = queue.ecn_result()
    first = queue.first
    if ecn is None or first is None or first.off + queue.total > 65535:
        mib.IpReasmFails += 1
        return None
    mib.IpReasmOKs += 1
    return _whole4(first, queue, ecn)


def _whole4(first: Packet, queue: Queue, ecn: int) -> Packet:
    header = first.data[: first.off]
    payload = b"".join([piece[2] for piece in queue.pieces])
    first.tos |= ecn
    first.frag = 0
    first.frame_len += sum(piece[1] - piece[0] for piece in queue.pieces[1:])
    total = first.off + len(payload)
    head = build_header(first.src, first.dst, first.proto, total, tos=first.tos, ident=first.ident, frag=0, ttl=first.ttl, options=header[20:])
    first.data = head + payload
    first.fragmented = True
    return first


# --- IPv6 ---


def add6(stack: Stack, pkt: Packet, at: int) -> Packet | None:
    """Take an IPv6 packet whose fragment header is at offset `at`; the whole packet when nothing is missing."""
    mib = stack.mib
    table = stack.frags6
    data = pkt.data
    mib.Ip6ReasmReqds += 1
    if at + 8 > len(data):
        mib.Ip6InHdrErrors += 1
        icmpv6.send_error(stack, pkt, PARAMETER_PROBLEM, ERRONEOUS_HEADER, at)
        return None
    field = data[at + 2] << 8 | data[at + 3]
    start = field & 0xFFF8
    more = bool(field & 1)
    body = data[at + 8 :]
    pkt.fragmented = True
    if start == 0 and not more:
        mib.Ip6ReasmOKs += 1
        pkt.proto = data[at]
        pkt.pointer = at
        pkt.off = at + 8
        return pkt
    if start == 0 and not _has_upper_header(data, at):
        mib.Ip6InHdrErrors += 1
        icmpv6.send_error(stack, pkt, PARAMETER_PROBLEM, INCOMPLETE_CHAIN, 0)
        return None
    if start + len(body) + at > 65535 + 40:
        mib.Ip6InHdrErrors += 1
        icmpv6.send_error(stack, pkt, PARAMETER_PROBLEM, ERRONEOUS_HEADER, at + 2)
        return None
    key = (pkt.src, pkt.dst, data[at + 4 : at + 8], pkt.dev.index)
    queue = table.find(key) or table.make(key)
    if queue is None:
        mib.Ip6ReasmFails += 1
        return None
    if more and len(body) & 7:
        mib.Ip6InHdrErrors += 1
        icmpv6.send_error(stack, pkt, PARAMETER_PROBLEM, ERRONEOUS_HEADER, 4)
        return None
    before = queue.memory
    try:
        queue.add(pkt, start, body, more)
    except _Broken:
        table.drop(key)
        mib.Ip6ReasmFails += 1
        return None
    table.memory += queue.memory - before
    if start == 0:
        pkt.pointer = _name_of(data, at)
        pkt.off = at
    if not queue.complete():
        return None
    table.drop(key)
    ecn = queue.ecn_result()
    first = queue.first
    if ecn is None or first is None or first.off - 40 + queue.total > 65535:
        mib.Ip6ReasmFails += 1
        return None
    mib.Ip6ReasmOKs += 1
    return _whole6(first, queue, ecn)


def _name_of(data: bytes, at: int) -> int:
    """The offset of the byte that names the header at `at`."""
    pointer, offset = 6, 40
    while offset < at:
        pointer, offset = offset, offset + 8 + 8 * data[offset + 1]
    return pointer


def _whole6(first: Packet, queue: Queue, ecn: int) -> Packet:
    at = first.off
    payload = b"".join([piece[2] for piece in queue.pieces])
    head = bytearray(first.data[:at])
    head[first.pointer] = first.proto = first.data[at]
    head[4:6] = (at - 40 + len(payload)).to_bytes(2, "big")
    first.tos |= ecn
    head[0] = 0x60 | first.tos >> 4
    head[1] = (first.tos & 0xF) << 4 | head[1] & 0xF
    first.frame_len += sum(piece[1] - piece[0] for piece in queue.pieces[1:])
    first.data = bytes(head) + payload
    return first


def _has_upper_header(data: bytes, at: int) -> bool:
    """RFC 7112: the first fragment must hold the whole header chain (for TCP, UDP and ICMPv6: their own headers too)."""
    kind, offset = data[at], at + 8
    end = len(data)
    while kind in (IPPROTO_HOPOPTS, IPPROTO_ROUTING, IPPROTO_DSTOPTS, IPPROTO_FRAGMENT):
        if offset + 8 > end:
            return False
        kind, offset = data[offset], offset + (8 if kind == IPPROTO_FRAGMENT else 8 + 8 * data[offset + 1])
    if kind == IPPROTO_NONE:
        return True
    need = {6: 20, 17: 8, 58: 1}.get(kind, 1)
    return offset + need <= end
