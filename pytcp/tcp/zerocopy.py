"""MSG_ZEROCOPY: the program's own memory is what is sent, and a notice says when it may be used again.

The socket option SO_ZEROCOPY allows it, the flag asks for it with each call, and every such call has a number, from 0. Its buffers
hang in the send queues by reference, like slabs (`slab`) whose last `put` is the notice: a record of the error queue
with the numbers of calls that are over, neighbours merged into one range. They are over when the last byte is acknowledged and no
copy is left in the host's queue, or when the connection is gone. Until then a retransmission sends what the memory holds
by then. The record says "copied" (code 1), as Linux does wherever a frame had to be copied below TCP: a TAP copies every frame.

An skb holds the memory of one call, in at most 17 pieces (MAX_SKB_FRAGS). Linux 4.14 (f214f915e7db).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import fastopen_client, gates, icmp_err, memory, mtu, push, sendmsg, timestamping
from .const import ACK, MSG_EOR, MSG_MORE, MSG_OOB, NAGLE_PUSH, POLLERR, PSH
from .skb import Skb
from .sockopt import SO_ZEROCOPY
from .sockopt_kinds import SOL_SOCKET, kept

if TYPE_CHECKING:
    from .skb import Buffer
    from .sock import Sock

MSG_ZEROCOPY = 0x4000000
ORIGIN_ZEROCOPY = 5
CODE_COPIED = 1
PAGE = 4096  # memory is charged in pages
MASK = 0xFFFFFFFF


class Held:
    """The memory of one call; takes a slab's place in an skb."""

    by_program = True

    __slots__ = ("number", "refs", "sk", "view")

    def __init__(self, sk: Sock, view: memoryview) -> None:
        self.sk = sk
        self.view = view
        self.refs = 1  # the call's own
        self.number = sk.zerocopy_id
        sk.zerocopy_id = (self.number + 1) & MASK

    def put(self) -> None:
        """Drop one reference; with the last one the program is told."""
        self.refs -= 1
        if not self.refs:
            _notify(self.sk, self.number)

    def abort(self) -> None:
        """The call sent nothing: it has no number."""
        self.sk.zerocopy_id = self.number


def enabled(sk: Sock) -> bool:
    """Whether MSG_ZEROCOPY means anything on this socket."""
    return bool(kept(sk, SOL_SOCKET, SO_ZEROCOPY))


def _notify(sk: Sock, number: int) -> None:
    queue = sk.error_queue
    last = queue[-1] if queue else None
    if last is not None and last.origin == ORIGIN_ZEROCOPY and (last.data + 1) & MASK == number:
        queue[-1] = last._replace(data=number)
    else:
        record = icmp_err.QueuedError(0, ORIGIN_ZEROCOPY, 0, CODE_COPIED, number, number, b"", b"")
        if queue is None:
            sk.error_queue = [record]
        else:
            queue.append(record)
    sk.host.wake(sk, POLLERR)


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
    held = Held(sk, view)
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
        Held(sk, memoryview(b"")).put()
    return done


def _queue(sk: Sock, pieces: list[memoryview], flags: int, held: Held) -> int:
    """The loop of sendmsg, a piece at a time."""
    mss = mtu.current_mss(sk)
    goal = mss if flags & MSG_OOB else mtu.size_goal(sk, mss)
    queue = sk.write_queue
    frags = sk.sysctl.max_skb_frags
    left = len(held.view)
    pieces.reverse()
    done = 0
    while pieces:
        skb = queue.tail
        room = goal - skb.length if skb is not None and not skb.eor else 0
        if skb is not None and room > 0 and (len(skb.frags) >= frags or any(other.by_program and other is not held for other in skb.slabs or ())):
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
            room = goal
        piece = pieces.pop()
        if len(piece) > room:
            pieces.append(piece[room:])
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
        charge = -(-size // PAGE) * PAGE
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
