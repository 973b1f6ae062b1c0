"""MSG_ZEROCOPY: the program's own memory is what is sent, and a notice says when it may be used again.

The socket option SO_ZEROCOPY allows it, the flag asks for it with each call, and every such call has a number, from 0. Its buffers
hang in the send queues by reference, like slabs (`slab`) whose last `put` is the notice: a record of the error queue
with the numbers of calls that are over, neighbours merged into one range. They are over when the last byte is acknowledged and no
copy is left in the host's queue, or when the connection is gone. Until then a retransmission sends what the memory holds
by then. The record says "copied" (code 1), as Linux does wherever a frame had to be copied below TCP: a TAP copies every frame.

An skb holds the memory of one call, in at most 17 pages (MAX_SKB_FRAGS), or of several in a row, which then share a notice.
Linux 4.14 (f214f915e7db).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import fastopen_client, gates, icmp_err, memory, mtu, push, sendmsg, timestamping
from .const import ACK, MSG_EOR, MSG_MORE, MSG_OOB, NAGLE_PUSH, POLLERR, PSH
from .skb import Skb
from .sockopt_kinds import SOL_SOCKET, kept
from .sockopt_socket import SO_ZEROCOPY

if TYPE_CHECKING:
    from .skb import Buffer
    from .sock import Sock

MSG_ZEROCOPY = 0x4000000
ORIGIN_ZEROCOPY = 5
CODE_COPIED = 1
PAGE = 4096  # memory is charged in pages, as many as the piece lies in
MOST_CALLS, MOST_BYTES = 65534, 1 << 19  # of one notice, before it is due
MASK = 0xFFFFFFFF


class Held:
    """The memory of one call, or of several in a row; takes a slab's place in an skb."""

    by_program = True

    __slots__ = ("count", "first", "refs", "size", "sk", "views")

    def __init__(self, sk: Sock) -> None:
        self.sk = sk
        self.views: list[memoryview] = []
        self.refs = 0
        self.size = 0
        self.first = sk.zerocopy_id
        self.count = 0  # of calls

    def takes(self, size: int) -> bool:
        """Whether the next call of the socket, of `size` bytes, is followed by the same notice."""
        return self.count < MOST_CALLS and self.size + size <= MOST_BYTES and (self.first + self.count) & MASK == self.sk.zerocopy_id

    def call(self, view: memoryview) -> None:
        """Another call begins, and holds it until it ends."""
        self.views.append(view)
        self.size += len(view)
        self.count += 1
        self.refs += 1
        self.sk.zerocopy_id = (self.sk.zerocopy_id + 1) & MASK

    def lies_in(self, memory: object) -> bool:
        """Whether `memory` is that of one of its calls."""
        return any(view.obj is memory for view in self.views)

    def put(self) -> None:
        """Drop one reference; with the last one the program is told."""
        self.refs -= 1
        if not self.refs and self.count:
            _notify(self.sk, self.first, (self.first + self.count - 1) & MASK)

    def abort(self) -> None:
        """The call sent nothing: it has no number."""
        self.count -= 1
        self.sk.zerocopy_id = (self.sk.zerocopy_id - 1) & MASK
        self.put()


def enabled(sk: Sock) -> bool:
    """Whether MSG_ZEROCOPY means anything on this socket."""
    return bool(kept(sk, SOL_SOCKET, SO_ZEROCOPY))


def _notify(sk: Sock, first: int, last: int) -> None:
    queue = sk.error_queue
    newest = queue[-1] if queue else None
    if newest is not None and newest.origin == ORIGIN_ZEROCOPY and (newest.data + 1) & MASK == first:
        queue[-1] = newest._replace(data=last)
    else:
        record = icmp_err.QueuedError(0, ORIGIN_ZEROCOPY, 0, CODE_COPIED, first, last, b"", b"")
        if queue is None:
            sk.error_queue = [record]
        else:
            queue.append(record)
    sk.host.wake(sk, POLLERR)


def _holder(sk: Sock, view: memoryview) -> Held:
    """What holds the memory of a new call: that of the skb it will be appended to, if the two can share a notice."""
    tail = sk.write_queue.tail
    held = None
    for slab in (tail.slabs or ()) if tail is not None else ():
        if isinstance(slab, Held) and slab.takes(len(view)):
            held = slab
    held = held or Held(sk)
    held.call(view)
    return held


def send(sk: Sock, buffers: Sequence[Buffer], flags: int) -> int:
    """As `sendmsg.sendmsg`, of several buffers, without copying; the caller leaves the memory alone until it is told.

    One buffer is sent from where it lies; several are put together first, and stay pieces of their own.
    Returns the bytes taken. Raises OSError as sendmsg does, and then there is no notice."""
    if fastopen_client.is_deferred(sk):
        return by_copy(sk, sendmsg.sendmsg(sk, b"".join(buffers), flags & ~MSG_ZEROCOPY))
    sizes = [len(memoryview(buffer).cast("B")) for buffer in buffers]
    if not sum(sizes) or not enabled(sk):
        return sendmsg.sendmsg(sk, b"".join(buffers), flags & ~MSG_ZEROCOPY)
    # (an empty write meets every reason to refuse one)
    sendmsg.sendmsg(sk, b"")
    view = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers)).cast("B")
    pieces: list[memoryview] = []
    at = 0
    for size in sizes:
        if size:
            pieces.append(view[at : at + size])
        at += size
    held = _holder(sk, view)
    try:
        done = _queue(sk, pieces, flags, held)
    except OSError:
        held.abort()
        raise
    held.put()
    return done


def by_copy(sk: Sock, done: int) -> int:
    """A call whose `done` bytes were copied all the same, as the data of a SYN is: over at once."""
    if done and enabled(sk):
        held = Held(sk)
        held.call(memoryview(b""))
        held.put()
    return done


def _queue(sk: Sock, pieces: list[memoryview], flags: int, held: Held) -> int:
    """The loop of sendmsg, a piece at a time."""
    mss = mtu.current_mss(sk)
    goal = mss if flags & MSG_OOB else mtu.size_goal(sk, mss)
    queue = sk.write_queue
    frags = sk.sysctl.max_skb_frags
    left = sum(map(len, pieces))
    pieces.reverse()
    start = 0  # of the piece, in its page: a buffer is taken to begin with a page
    done = 0
    while pieces:
        skb = queue.tail
        room = goal - skb.length if skb is not None and not skb.eor else 0
        if skb is not None and room > 0 and (skb.nr_frags >= frags or any(other.by_program and other is not held for other in skb.slabs or ())):
            push.mark_push(sk, skb)
            room = 0
        if room <= 0 or skb is None:
            if not sendmsg.stream_memory_free(sk):
                sk.nospace = True
                if done:
                    push.push(sk, flags & ~MSG_MORE, mss, NAGLE_PUSH, goal)
                    sk.nospace = True
                if queue.head is None:
                    gates.idle(sk)
                if done:
                    return done
                raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
            skb = Skb(sk.write_seq, ACK, sk.sysctl.skb_base_truesize)
            sendmsg.entail(sk, skb)
            memory.charge_send(sk, skb.truesize)
            room = goal
        piece = pieces.pop()
        room = min(room, (frags - skb.nr_frags) * PAGE - start)
        rest = piece[room:]
        piece = piece[:room]
        size = len(piece)
        skb.frags.append(piece)
        if skb.slabs is None:
            skb.slabs = [held]
            held.refs += 1
        elif held not in skb.slabs:
            skb.slabs.append(held)
            held.refs += 1
        if not done:
            skb.flags &= ~PSH
        pages = -(-(start + size) // PAGE)
        charge = pages * PAGE
        skb.nr_frags += pages
        start = 0
        if rest:
            start = (start + size) % PAGE
            pieces.append(rest)
        skb.length += size
        skb.truesize += charge
        memory.charge_send(sk, charge)
        sk.write_seq += size
        skb.end_seq += size
        skb.pcount = 0
        done += size
        if done == left:
            if flags & MSG_EOR:
                skb.eor = True
            break
        if skb.length < goal or flags & MSG_OOB:
            continue
        push.push_full(sk, skb, mss)
    if sk.tstamp_flags:
        timestamping.wish(sk)
    push.push(sk, flags, mss, sk.nonagle, goal)
    return done
