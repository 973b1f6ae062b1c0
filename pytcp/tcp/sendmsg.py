"""sendmsg: from the program's bytes to super-segments in the write queue (linux-tcp §1).

Bytes are appended to the unsent tail up to size_goal, then to new skbs while the socket has send memory.
Immutable `bytes` are taken by reference if they are large or begin an skb (what follows a small one there is
copied, so that many small writes do not make a long list), everything else is copied into slabs. sndbuf grows
with the congestion window (autotuning), unless SO_SNDBUF fixed it. Memory is tested only when a new skb must
be started, which is also so where the tail's bytes lie in too many places (`skb.PageFrag`).
Sysctls: tcp_wmem, tcp_notsent_lowat, max_skb_frags.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from . import cwnd, errors, fastopen_client, gates, mtu, push, rate, slab, timestamping
from .chrono import BUSY, SNDBUF_LIMITED
from .chrono import start as chrono_start
from .chrono import stop as chrono_stop
from .const import (
    ACK,
    CLOSE,
    CLOSE_WAIT,
    ESTABLISHED,
    MSG_EOR,
    MSG_MORE,
    MSG_OOB,
    NAGLE_PUSH,
    POLLOUT,
    PSH,
    SEND_SHUTDOWN,
    SF_SYN_RECV,
    SF_SYN_SENT,
)
from .skb import PAGE_LEAST, Buffer, Skb

if TYPE_CHECKING:
    from .sock import Sock

# bytes objects from this size on are always kept by reference instead of copied
BY_REFERENCE = 4096


def sendmsg(sk: Sock, data: Buffer, flags: int = 0) -> int:
    """Queue `data` and send what may be sent.

    Returns the bytes taken, possibly fewer than given. Raises OSError: EAGAIN when there is no room
    (or the connection is not open yet), EPIPE after a shutdown or reset, the pending error otherwise.
    """
    if sk.state != ESTABLISHED and sk.state != CLOSE_WAIT:
        rate.check_app_limited(sk)
        if sk.sk_err:
            errors.raise_pending(sk)
        if not 1 << sk.state & (SF_SYN_SENT | SF_SYN_RECV):
            raise OSError(errno.EPIPE, "Broken pipe")
        state = sk.fastopen
        if state is not None and state.deferred:
            return fastopen_client.send_deferred(sk, data)
        if state is None or state.request is None:
            sk.nospace = True
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
    rate.check_app_limited(sk)
    if sk.sk_err:
        errors.raise_pending(sk)
    if sk.shutdown and sk.shutdown & SEND_SHUTDOWN:
        raise OSError(errno.EPIPE, "Broken pipe")

    mss = mtu.current_mss(sk)
    queue = sk.write_queue
    whole = type(data) is bytes
    if whole:
        size = len(data)
        by_reference = size >= BY_REFERENCE
    else:
        data = memoryview(data)
        if data.ndim != 1 or data.itemsize != 1:
            data = data.cast("B")
        size = len(data)
        # a view of bytes counts, too: it is what is left of a send that was not taken whole
        by_reference = size >= BY_REFERENCE and type(data.obj) is bytes and data.c_contiguous
    if size < mss and queue.head is None and sk.trace is None:
        # a small skb of its own, whatever the goal is
        goal = mss
    else:
        goal = mss if flags & MSG_OOB else mtu.size_goal(sk, mss)
    done = 0
    page = sk.page_frag
    full = None  # a tail that has as many fragments as an skb may have
    while done < size:
        skb = queue.tail
        if skb is None or skb.eor or skb is full or skb.length >= goal:
            if not stream_memory_free(sk):
                sk.nospace = True
                if done:
                    if sk.tstamp_flags:
                        timestamping.wish(sk)
                    push.push(sk, flags & ~MSG_MORE, mss, NAGLE_PUSH, goal)
                    # what that sent may have made room, but the writer is about to wait all the same
                    sk.nospace = True
                if queue.head is None:
                    gates.idle(sk)
                if done:
                    # a program that does not wait is let go through the end of the call, which pushes, too
                    break
                raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
            charge = sk.sysctl.skb_base_truesize
            skb = Skb(sk.write_seq, ACK, charge)
            entail(sk, skb)
            room = goal
        else:
            charge = 0
            room = goal - skb.length
            if not done:
                skb.flags &= ~PSH
        copy = size - done
        if copy > room:
            copy = room
        left = page.left - copy
        if page.skb is skb and left >= 0:
            page.left = left
        elif not skb.nr_frags and left >= PAGE_LEAST:
            # PageFrag.take for what a small write does
            page.skb = skb
            page.left = left
            skb.nr_frags = 1
        else:
            copy = page.take(skb, copy, sk.sysctl.max_skb_frags)
            if not copy:
                push.mark_push(sk, skb)
                full = skb
                continue
        if whole and copy == size and (not skb.length or by_reference):
            skb.frags.append(data)
        elif by_reference:
            skb.frags.append(memoryview(data)[done : done + copy])
        else:
            _copy(sk, skb, memoryview(data)[done : done + copy], copy)
        skb.length += copy
        skb.truesize += copy
        charge += copy
        sk.wmem_queued += charge
        pages = sk.forward_alloc - charge
        sk.forward_alloc = pages if pages >= 0 else pages & 4095
        sk.write_seq = skb.end_seq = skb.end_seq + copy
        skb.pcount = 0
        done += copy
        if done == size:
            if flags and flags & MSG_EOR:
                skb.eor = True
            break
        if skb.length < goal or flags & MSG_OOB:
            continue
        push.push_full(sk, skb, mss)
    if done:
        if sk.tstamp_flags:
            timestamping.wish(sk)
        push.push(sk, flags, mss, sk.nonagle, goal)
    return done


def entail(sk: Sock, skb: Skb) -> None:
    """Put a new, empty skb, made for `write_seq`, at the end of the write queue. Its memory is the caller's to charge."""
    sk.write_queue.append(skb)
    if sk.nonagle & NAGLE_PUSH:
        sk.nonagle &= ~NAGLE_PUSH
    if not sk.packets_out and sk.host.now_ns - sk.lsndtime_ns > sk.rto_ns:
        cwnd.slow_start_after_idle_check(sk)
    if not sk.chrono_kind:
        chrono_start(sk, BUSY)


def _copy(sk: Sock, skb: Skb, data: memoryview, size: int) -> None:
    """Copy payload into the socket's slab, growing the last fragment where it is contiguous."""
    done = 0
    while done < size:
        room = sk.slab
        if room is None or room.used == slab.SLAB_SIZE:
            if room is not None:
                room.put()
            room = sk.slab = slab.get()
        start = room.used
        n = min(size - done, slab.SLAB_SIZE - start)
        room.view[start : start + n] = data[done : done + n]
        room.used = start + n
        if skb.frags and skb.frags[-1] is room.tail_frag:
            room.tail_frag = skb.frags[-1] = room.view[room.tail_start : start + n]
        else:
            room.tail_frag = room.view[start : start + n]
            room.tail_start = start
            skb.frags.append(room.tail_frag)
            room.refs += 1
            if skb.slabs is None:
                skb.slabs = [room]
            else:
                skb.slabs.append(room)
        done += n


def stream_memory_free(sk: Sock) -> bool:
    """Whether a new skb may be started."""
    if sk.wmem_queued >= sk.sndbuf:
        return False
    return sk.write_seq - sk.snd_nxt < (sk.notsent_lowat or sk.sysctl.tcp_notsent_lowat)


def stream_is_writeable(sk: Sock) -> bool:
    """Whether poll says OUT: at most two thirds of sndbuf used, and little unsent."""
    queued = sk.wmem_queued
    if sk.sndbuf - queued < queued >> 1:
        return False
    return (sk.write_seq - sk.snd_nxt) << 1 < (sk.notsent_lowat or sk.sysctl.tcp_notsent_lowat)


def sndbuf_expand(sk: Sock) -> None:
    """Autotune sndbuf to twice what the congestion window can have in flight (BBR: three times)."""
    per_mss = max(sk.mss_clamp, sk.mss_cache) + sk.sysctl.max_tcp_header + 320
    per_mss = (1 << (per_mss - 1).bit_length()) + 256
    packets = max(10, sk.snd_cwnd, sk.reordering + 1)
    want = sk.ca.sndbuf_factor * packets * per_mss
    if sk.sndbuf < want:
        sk.sndbuf = min(want, sk.sysctl.tcp_wmem[2])


def init_sndbuf(sk: Sock) -> None:
    """First autotuned value, on ESTABLISHED."""
    if not sk.sndbuf_locked:
        sndbuf_expand(sk)


def check_space(sk: Sock) -> None:
    """Space was freed while a writer waits: grow sndbuf if that is what limits, and wake it."""
    if sk.state == CLOSE or not sk.nospace:
        return
    if not sk.sndbuf_locked and sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out < sk.snd_cwnd:
        if sk.sndbuf < sk.sysctl.tcp_wmem[2]:
            sndbuf_expand(sk)
        # not the program but the buffer kept cwnd from being used: it must not decay for that
        sk.cwnd_stamp = sk.host.now_ns
    if stream_is_writeable(sk):
        sk.nospace = False
        if sk.gate == gates.SNDBUF:
            gates.idle(sk)
        sk.host.wake(sk, POLLOUT)
    if not sk.nospace and sk.chrono_kind == SNDBUF_LIMITED:
        chrono_stop(sk, SNDBUF_LIMITED)
