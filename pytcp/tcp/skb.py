"""Super-segments in the send queues, and the intrusive lists they hang in.

A `Skb` is Linux's sk_buff seen by TCP: up to `size_goal` payload bytes, a sequence range and the
scoreboard's tags. It lives either in the write queue (never sent) or in the retransmit queue (sent,
not acknowledged), linked by `prev`/`next`; once sent it is also in the time-sorted list RACK walks
(`tprev`/`tnext`). Intrusive links, because SACK splits skbs in the middle and RACK moves them on
every retransmission: both are O(1) here. Two queues since Linux 4.15 (75c119afe14f).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .slab import Slab
    from .zerocopy import Held

Buffer = bytes | bytearray | memoryview


class Skb:
    """One super-segment of the send side. Sequence numbers are unwrapped, times are ns."""

    __slots__ = (
        "seq",
        "end_seq",
        "length",  # payload bytes
        "flags",  # TCP header flags: FIN, PSH, SYN, ECE, CWR, URG, ACK
        "frags",  # list of payload buffers, in order
        "slabs",  # slabs, or memory of the program's, to give back when the skb is freed; or None
        "truesize",
        "nr_frags",  # pieces of the modelled kernel's pages its payload lies in
        "pcount",  # MSS-sized segments in it (tcp_gso_segs); 0 = not yet known
        "gso_size",
        "sacked",  # SACKED_ACKED | SACKED_RETRANS | LOST | EVER_RETRANS
        "eor",
        "retrans",  # times retransmitted
        "stamp",  # SO_TIMESTAMPING: flags and the number of the byte that is watched, or None
        "in_host",  # clones still in the TX ring (the host-queue guard)
        "freed",  # acknowledged while a clone was in the ring: memory goes with the completion
        "tx_ns",  # departure time of the last (re)transmission, skb_mstamp_ns
        # delivery-rate snapshot (linux-tcp §6.5)
        "tx_first_us",
        "tx_delivered_us",
        "tx_delivered",
        "tx_app_limited",
        "prev",
        "next",
        "tprev",
        "tnext",
    )

    # set when it is put into a list
    prev: Skb | None
    next: Skb | None
    tnext: Skb | None
    # set when it is sent: until then `tx_delivered_us` is 0
    tx_first_us: int
    tx_delivered: int
    tx_app_limited: bool

    def __init__(self, seq: int, flags: int, truesize: int) -> None:
        self.seq = seq
        self.end_seq = seq
        self.length = 0
        self.flags = flags
        self.frags: list[Buffer] = []
        self.slabs: list[Slab | Held] | None = None
        self.truesize = truesize
        self.nr_frags = 0
        self.pcount = 0
        self.gso_size = 0
        self.sacked = 0
        self.eor = False
        self.retrans = 0
        self.stamp: tuple[int, int] | None = None
        self.in_host = 0
        self.freed = False
        self.tx_ns = 0
        self.tx_delivered_us = 0
        self.tprev: Skb | None = None

    def split_stamp(self, rest: Skb) -> None:
        """`rest` has been cut off: a watched byte may lie there now."""
        if self.stamp is not None and self.stamp[1] >= rest.seq:
            rest.stamp, self.stamp = self.stamp, None

    def share_slabs(self, source: Skb) -> None:
        """Hold those of `source`'s slabs that payload of this skb lies in, now that it was taken over from there."""
        mine = self.slabs or []
        for slab in source.slabs or ():
            if slab not in mine and self._shows(slab):
                slab.refs += 1
                mine.append(slab)
        self.slabs = mine or None

    def trim_slabs(self) -> None:
        """Give back slabs that no payload lies in any more, unless a clone in the TX ring may still show them."""
        if self.slabs and not self.in_host:
            kept = [slab for slab in self.slabs if self._shows(slab)]
            for slab in self.slabs:
                if slab not in kept:
                    slab.put()
            self.slabs = kept or None

    def is_zerocopy(self) -> bool:
        """Whether it holds memory of the program's (MSG_ZEROCOPY): then nothing is shifted into or out of it."""
        return self.slabs is not None and any(slab.by_program for slab in self.slabs)

    def _shows(self, slab: Slab | Held) -> bool:
        if slab.by_program:
            return any(type(frag) is memoryview and slab.lies_in(frag.obj) for frag in self.frags)  # type: ignore[union-attr]
        memory = slab.view.obj  # type: ignore[union-attr]
        return any(type(frag) is memoryview and frag.obj is memory for frag in self.frags)

    def free_slabs(self) -> None:
        """Give copied payload's memory back, unless a clone in the TX ring still shows it."""
        if self.in_host:
            self.freed = True
            return
        slabs = self.slabs
        if slabs:
            self.slabs = None
            for slab in slabs:
                slab.put()

    def __repr__(self) -> str:
        return f"<Skb {self.seq}:{self.end_seq} len {self.length} segs {self.pcount} tags {self.sacked:#x}>"


MAX_SKB_FRAGS = 17
PAGE_FRAG = 32768  # bytes of the page a program's writes are copied into, one after the other (order 3)
PAGE_LEAST = 32  # a page with less room is given up


class PageFrag:
    """Where the modelled kernel copies what the program writes: one page for all sockets of the program (`task_frag`).

    So the bytes of an skb lie in one piece only as long as no other socket is written to in between, and an
    skb has room for so many pieces (net.core.max_skb_frags). Only the count is modelled; where pytcp has the bytes
    is another matter (`slab`)."""

    __slots__ = ("skb", "left")

    def __init__(self) -> None:
        self.skb: Skb | None = None  # whose bytes are the last in the page
        self.left = PAGE_FRAG

    def take(self, skb: Skb, want: int, most: int) -> int:
        """Put `want` bytes behind those of `skb`; returns how many fit into `most` pieces."""
        pieces = skb.nr_frags
        if self.skb is not skb:
            if pieces >= most:
                return 0
            pieces += 1
            self.skb = skb
        left = self.left - want
        while left < 0:
            if pieces >= most:
                want += left
                left = 0
                break
            pieces += 1
            left += PAGE_FRAG
        if left < PAGE_LEAST:
            left = PAGE_FRAG
            self.skb = None
        self.left = left
        skb.nr_frags = pieces
        return want


class SkbList:
    """Doubly linked queue of skbs through `prev`/`next`."""

    __slots__ = ("head", "tail", "qlen")

    def __init__(self) -> None:
        self.head: Skb | None = None
        self.tail: Skb | None = None
        self.qlen = 0

    def __len__(self) -> int:
        return self.qlen

    def __bool__(self) -> bool:
        return self.head is not None

    def __iter__(self) -> Iterator[Skb]:
        skb = self.head
        while skb is not None:
            nxt = skb.next
            yield skb
            skb = nxt

    def append(self, skb: Skb) -> None:
        tail = self.tail
        skb.prev = tail
        skb.next = None
        if tail is None:
            self.head = skb
        else:
            tail.next = skb
        self.tail = skb
        self.qlen += 1

    def insert_after(self, where: Skb, skb: Skb) -> None:
        nxt = where.next
        skb.prev = where
        skb.next = nxt
        where.next = skb
        if nxt is None:
            self.tail = skb
        else:
            nxt.prev = skb
        self.qlen += 1

    def remove(self, skb: Skb) -> None:
        prev = skb.prev
        nxt = skb.next
        if prev is None:
            self.head = nxt
        else:
            prev.next = nxt
        if nxt is None:
            self.tail = prev
        else:
            nxt.prev = prev
        skb.prev = skb.next = None
        self.qlen -= 1


class TimeList:
    """The same through `tprev`/`tnext`: skbs in order of their last (re)transmission."""

    __slots__ = ("head", "tail")

    def __init__(self) -> None:
        self.head: Skb | None = None
        self.tail: Skb | None = None

    def append(self, skb: Skb) -> None:
        tail = self.tail
        skb.tprev = tail
        skb.tnext = None
        if tail is None:
            self.head = skb
        else:
            tail.tnext = skb
        self.tail = skb

    def insert_after(self, where: Skb, skb: Skb) -> None:
        nxt = where.tnext
        skb.tprev = where
        skb.tnext = nxt
        where.tnext = skb
        if nxt is None:
            self.tail = skb
        else:
            nxt.tprev = skb

    def remove(self, skb: Skb) -> None:
        prev = skb.tprev
        nxt = skb.tnext
        if prev is None:
            self.head = nxt
        else:
            prev.tnext = nxt
        if nxt is None:
            self.tail = prev
        else:
            nxt.tprev = prev
        skb.tprev = skb.tnext = None
