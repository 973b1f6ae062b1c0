"""Receive memory: what queued segments cost, and what is done when the buffer is full (linux-tcp §7.6, §14).

Payload is counted by the memory it pins in the modelled kernel (truesize), because windows are computed
from that. Adjacent segments are merged: a merged one costs its truesize less its sk_buff (256), or
nothing if its bytes fit behind the last ones; 17 of them fit one skb, whose memory comes back only when
all of it has been read. Memory is taken from the host in pages: a segment that needs a new page leaves
the fast path, as in Linux (it shows in TCPHPHits).

A full buffer is pruned in stages: grow it to what is used (autotuned sockets), copy sparse skbs together,
drop the newest out-of-order data; then the segment is refused. Counters: TCPRcvCoalesce, TCPRcvCollapsed,
PruneCalled, RcvPruned, OfoPruned. Not modelled: tcp_mem, the limit over all sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import rwnd, rx_timestamps, sack_send

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Sock

PAGE = 4096
SKB_SIZE = 256  # sizeof(struct sk_buff), aligned
SHARED_INFO = 320
OVERHEAD = SKB_SIZE + SHARED_INFO
SMALL_OVERHEAD = OVERHEAD + 64  # with the headroom of a frame in one piece
MAX_FRAGS = 17
COLLAPSE_MAX = PAGE - SHARED_INFO  # payload of one collapsed skb: one page
PAGED_HEAD = 832  # truesize of a skb whose payload lies in pages, without the pages
PAGED_FROM = PAGE - 64  # super-frames from this size on come in pages
ETH_HEADER = 14
SLABS = frozenset(SKB_SIZE + head for head in (576, 1024, 2048))  # truesizes with a head smaller than a page from the general allocator
OBJECT_LEAST = min(SLABS)  # a smaller skb is part of a page

# payload that fills at least this part of a device buffer is kept as a view of it, less is copied out
KEEP_SHARE = 4


class RxChunk:
    """One received skb: a run of adjacent payloads. Sequence numbers are unwrapped; a FIN counts in end_seq."""

    __slots__ = (
        "seq", "end_seq", "length", "fin", "truesize", "nr_frags", "tail_room", "paged", "locked", "parts",
        # its place in the out-of-order tree (ofo), while it is there
        "up", "left", "right", "red",
    )  # fmt: skip

    up: RxChunk | None
    left: RxChunk | None
    right: RxChunk | None
    red: bool
    parts: list[tuple[Any, Any]]  # (buffer, RxBuf to give back or None), in order; bytes before copied_seq may be among them

    def __init__(self, seg: Segment) -> None:
        self.seq = seg.seq
        self.end_seq = seg.end_seq
        self.length = length = seg.length
        self.fin = seg.flags & 1
        self.truesize = truesize = seg.truesize
        if truesize < OBJECT_LEAST:
            # the usual small one, without asking how it lies: `tail_room` of a part of a page
            self.paged = self.locked = False
            self.nr_frags = 0
            left = truesize - SMALL_OVERHEAD - length - (34 if seg.family == 4 else 54) - seg.doff * 4
            self.tail_room = left if left > 0 else 0
        else:
            pages = truesize - PAGED_HEAD
            room = -1 if length >= PAGED_FROM and not pages % PAGE else tail_room(seg)
            if room < 0:
                self.paged = True
                self.locked = False
                self.nr_frags = page_frags(pages)
                self.tail_room = 0
            else:
                self.paged = False
                self.locked = from_slab(truesize) or (truesize in SLABS and bare(seg))  # its head cannot be lent to another skb
                # a single segment fills an object of 4 KiB, and pages with the rest of it
                self.nr_frags = 0 if room or not self.locked else page_frags(truesize - SKB_SIZE - PAGE)
                self.tail_room = room
        rx = seg.rx
        if rx is None:
            self.parts = [(seg.payload, None)]
        elif length * KEEP_SHARE < len(rx.mem):
            # `keep_payload` for what is copied out
            self.parts = [(bytes(seg.payload), None)] if length else []
        else:
            self.parts = [keep_payload(seg, rx)]

    def copy_range(self, start: int, end: int) -> bytes:
        """Payload bytes of sequence numbers [start, end)."""
        out = []
        at = self.seq
        for buf, _ in self.parts:
            size = len(buf)
            if at + size > start and at < end:
                out.append(buf[max(start - at, 0) : end - at])
            at += size
        return b"".join(out)

    def __repr__(self) -> str:
        return f"<RxChunk {self.seq}:{self.end_seq} truesize {self.truesize} frags {self.nr_frags}>"


def keep_payload(seg: Segment, rx: Any) -> tuple[Any, Any]:
    """The payload, which points into device buffer `rx`, in a form that may outlive the call, and the buffer it pins (or None)."""
    if seg.length * KEEP_SHARE < len(rx.mem):
        return bytes(seg.payload), None
    rx.taken += 1
    return seg.payload, rx


def tail_room(seg: Segment) -> int:
    """How the modelled driver laid a frame out, told from its truesize (measured on a TAP, §14).

    -1: in pages. Else in one piece, with so many bytes free behind the payload: 64 bytes of headroom and
    the frame, rounded up to 64 or to a slab object; sk_buff and shared info are 576 on top. What does not fit
    an object of 4 KiB goes on in pages, with nothing free behind it."""
    length = seg.length
    truesize = seg.truesize
    pages = truesize - PAGED_HEAD
    if length <= pages and length and not pages % PAGE:
        return -1
    frame = length + (34 if seg.family == 4 else 54) + seg.doff * 4
    if truesize in SLABS and bare(seg):
        frame -= ETH_HEADER
    left = truesize - SMALL_OVERHEAD - frame
    return left if left > 0 and frame < PAGED_FROM else 0


def from_slab(truesize: int) -> bool:
    """Whether a skb in one piece is an object of the general allocator (4 KiB, 8 KiB, whole pages), no part of a page."""
    head = truesize - SKB_SIZE
    return head >= PAGE and not head % PAGE


def bare(seg: Segment) -> bool:
    """Whether a segment came from a link without link-layer headers (TUN): one of a size in `SLABS` is an object of the general allocator then."""
    header = 20 if seg.family == 4 else 40
    return header <= seg.l4_off < header + ETH_HEADER


def page_frags(size: int) -> int:
    """Pieces of a paged super-segment: as many of 32 KiB as fit, then 16, 8 and 4."""
    return (size >> 15) + (size >> 12 & 7).bit_count()


# ---------------------------------------------------------------- accounting


def charge(sk: Sock, size: int) -> None:
    sk.rmem_alloc += size
    sk.forward_alloc -= size


def reserve(sk: Sock, size: int) -> None:
    """Take pages from the host until `size` more bytes can be charged."""
    missing = size - sk.forward_alloc
    if missing > 0:
        sk.forward_alloc += -(-missing // PAGE) * PAGE


def charge_send(sk: Sock, size: int) -> None:
    """Send memory comes from the same pages: `size` bytes more wait in the send queues."""
    sk.wmem_queued += size
    left = sk.forward_alloc - size
    sk.forward_alloc = left if left >= 0 else left % PAGE


def uncharge_send(sk: Sock, size: int) -> None:
    """`size` bytes of send memory are free again; whole pages go back to the host."""
    sk.wmem_queued -= size
    left = sk.forward_alloc + size
    sk.forward_alloc = left if left < PAGE else left % PAGE


def free_chunk(sk: Sock, chunk: RxChunk) -> None:
    """What a queued skb held is free again; whole pages go back to the host."""
    size = chunk.truesize
    sk.rmem_alloc -= size
    left = sk.forward_alloc + size
    sk.forward_alloc = left if left < PAGE else left % PAGE
    for _, rx in chunk.parts:
        if rx is not None:
            rx.release()
    chunk.parts = []


def can_ingest(sk: Sock) -> bool:
    """One skb may overshoot the buffer; none is taken on top of that."""
    return sk.rmem_alloc <= sk.rcvbuf


def try_rmem_schedule(sk: Sock, seg: Segment) -> bool:
    """Whether there is memory for `seg`, after pruning if need be; pages for it are reserved."""
    if sk.rmem_alloc > sk.rcvbuf and not prune_queue(sk, seg):
        return False
    reserve(sk, seg.truesize)
    return True


# ---------------------------------------------------------------- merging


def coalesce_segment(sk: Sock, to: RxChunk, seg: Segment) -> bool:
    """Merge a segment into the chunk right before it; False if it must stand alone."""
    if to.end_seq != seg.seq:
        return False
    length = seg.length
    if length <= to.tail_room:
        to.tail_room -= length
        if length:
            _append(to, seg)
    else:
        delta = seg.truesize - PAGED_HEAD
        room = -1 if length >= PAGED_FROM and not delta % PAGE else tail_room(seg)
        if room < 0:
            frags = to.nr_frags + page_frags(delta)
            if frags > MAX_FRAGS:
                return False
            to.nr_frags = frags
        else:
            if to.nr_frags >= MAX_FRAGS or from_slab(seg.truesize) or (seg.truesize in SLABS and bare(seg)):
                return False
            to.nr_frags += 1
            delta = seg.truesize - SKB_SIZE
        to.tail_room = 0
        to.truesize += delta
        sk.rmem_alloc += delta
        sk.forward_alloc -= delta
        rx = seg.rx
        to.parts.append((seg.payload, None) if rx is None else keep_payload(seg, rx))
    to.length += length
    to.end_seq = seg.end_seq
    if seg.flags & 1:
        to.fin = 1
    sk.mib.TCPRcvCoalesce += 1
    return True


def _append(to: RxChunk, seg: Segment) -> None:
    """Copy a few bytes behind the last ones: they cost nothing, so a trickle must not make a part of each."""
    if to.parts:
        buf, rx = to.parts[-1]
        if rx is None:
            to.parts[-1] = (b"".join((buf, seg.payload)), None)
            return
    to.parts.append((bytes(seg.payload), None))


def coalesce_chunk(sk: Sock, to: RxChunk, chunk: RxChunk) -> bool:
    """The same for a chunk that was queued already (it keeps its own charge: the caller frees it)."""
    if to.end_seq != chunk.seq:
        return False
    if chunk.length <= to.tail_room:
        to.tail_room -= chunk.length
    else:
        frags = to.nr_frags + chunk.nr_frags
        if chunk.paged:
            if frags > MAX_FRAGS:
                return False
            delta = chunk.truesize - PAGED_HEAD
        else:
            if frags >= MAX_FRAGS or chunk.locked:
                return False
            frags += 1
            delta = chunk.truesize - SKB_SIZE
        to.nr_frags = frags
        to.tail_room = 0
        to.truesize += delta
        charge(sk, delta)
    to.parts += chunk.parts
    chunk.parts = []
    to.length += chunk.length
    to.end_seq = chunk.end_seq
    to.fin |= chunk.fin
    sk.mib.TCPRcvCoalesce += 1
    return True


# ---------------------------------------------------------------- a full buffer


def prune_queue(sk: Sock, seg: Segment) -> bool:
    """Make room for `seg` by every means but dropping what is in order; whether it may come in."""
    sk.mib.PruneCalled += 1
    if sk.rmem_alloc >= sk.rcvbuf:
        clamp_window(sk)
    if can_ingest(sk):
        return True
    collapse_ofo_queue(sk)
    if sk.receive_queue:
        sk.receive_queue = collapse(sk, sk.receive_queue, sk.copied_seq, sk.rcv_nxt)
    if can_ingest(sk):
        return True
    prune_ofo_queue(sk, seg)
    if can_ingest(sk):
        return True
    # the peer overruns every window: the caller drops the segment in silence
    sk.mib.RcvPruned += 1
    sk.pred = False
    return False


def clamp_window(sk: Sock) -> None:
    """The buffer is overrun: let an autotuned one grow to what is used, else close the window fast."""
    sk.quick = 0
    largest = sk.sysctl.tcp_rmem[2]
    if sk.rcvbuf < largest and not sk.rcvbuf_locked:
        sk.rcvbuf = min(sk.rmem_alloc, largest)
    if sk.rmem_alloc > sk.rcvbuf:
        sk.rcv_ssthresh = min(sk.window_clamp, 2 * sk.advmss)


def prune_ofo_queue(sk: Sock, seg: Segment) -> bool:
    """Drop out-of-order data from the far end, an eighth of the buffer at a time; whether any was dropped.

    Data below the new segment stays: dropping it to store something later gains nothing."""
    ofo = sk.ofo_queue
    if not ofo:
        return False
    goal = sk.rcvbuf >> 3
    pruned = False
    while ofo:
        chunk = ofo[-1]
        if seg.seq > chunk.seq:
            break
        pruned = True
        ofo.take(len(ofo) - 1, len(ofo))
        goal -= chunk.truesize
        free_chunk(sk, chunk)
        if not ofo or goal <= 0:
            if can_ingest(sk):
                break
            goal = sk.rcvbuf >> 3
    if pruned:
        sk.mib.OfoPruned += 1
        # what we told the peer by SACK is no longer true (RFC 2018 §8 allows it)
        if sk.sack_ok:
            sack_send.reset(sk)
        if sk.rx_stamps is not None:
            rx_timestamps.forget(sk)
    return pruned


def collapse_ofo_queue(sk: Sock) -> None:
    """Collapse each run of adjoining out-of-order chunks; tiny lone ones are not worth it."""
    ofo = sk.ofo_queue
    sum_tiny = 0
    at = 0
    while ofo and at < len(ofo):
        head = ofo[at]
        start, end = head.seq, head.end_seq
        total = head.truesize
        upto = at + 1
        while upto < len(ofo) and start <= ofo[upto].end_seq and ofo[upto].seq <= end:
            chunk = ofo[upto]
            total += chunk.truesize
            start = min(start, chunk.seq)
            end = max(end, chunk.end_seq)
            upto += 1
        if total != head.truesize or end - start >= COLLAPSE_MAX:
            run = collapse(sk, ofo[at:upto], start, end)
            ofo.substitute(at, upto, run)
            upto = at + len(run)
        else:
            sum_tiny += total
            if sum_tiny > sk.rcvbuf >> 3:
                return
        at = upto


def _bloated(sk: Sock, chunk: RxChunk, start: int) -> bool:
    return rwnd.win_from_space(sk, chunk.truesize) > chunk.length or chunk.seq < start


def collapse(sk: Sock, chunks: list[RxChunk], start: int, end: int) -> list[RxChunk]:
    """Copy sparse chunks together; returns the queue as it then is. [start, end) is what is still wanted."""
    at = 0
    kept: list[RxChunk] = []
    while at < len(chunks):
        chunk = chunks[at]
        if chunk.end_seq <= start:
            # read already, or repeated by its neighbour
            _drop_collapsed(sk, chunk)
            at += 1
            continue
        if not chunk.fin:
            if _bloated(sk, chunk, start):
                break
            if at + 1 < len(chunks) and chunk.end_seq != chunks[at + 1].seq:
                break
        kept.append(chunk)
        start = chunk.end_seq
        at += 1
    else:
        return kept
    while start < end and at < len(chunks):
        want = min(COLLAPSE_MAX, end - start)
        fresh = _fresh_chunk(sk, start, want)
        kept.append(fresh)
        pieces: list[bytes] = []
        size = 0
        stop = False
        while size < want:
            chunk = chunks[at]
            take = min(want - size, chunk.end_seq - start)
            if take > 0:
                pieces.append(chunk.copy_range(start, start + take))
                size += take
                start += take
            if start >= chunk.end_seq:
                _drop_collapsed(sk, chunk)
                at += 1
                if at == len(chunks) or chunks[at].fin:
                    stop = True
                    break
        fresh.parts = [(b"".join(pieces), None)]
        fresh.length = size
        fresh.end_seq = start
        fresh.tail_room -= size
        if stop:
            break
    return kept + chunks[at:]


def _drop_collapsed(sk: Sock, chunk: RxChunk) -> None:
    free_chunk(sk, chunk)
    sk.mib.TCPRcvCollapsed += 1


def _fresh_chunk(sk: Sock, seq: int, room: int) -> RxChunk:
    """An empty skb with space for `room` payload bytes, charged (without asking: it replaces larger ones)."""
    need = (room + 63 & ~63) + SHARED_INFO
    small = sk.sysctl.skb_base_truesize - SKB_SIZE
    head = small if need <= small else 1 << (need - 1).bit_length()
    chunk = RxChunk.__new__(RxChunk)
    chunk.seq = chunk.end_seq = seq
    chunk.length = 0
    chunk.fin = 0
    chunk.truesize = head + SKB_SIZE
    chunk.nr_frags = 0
    chunk.tail_room = head - SHARED_INFO
    chunk.paged = False
    chunk.locked = True
    chunk.parts = []
    charge(sk, chunk.truesize)
    return chunk
