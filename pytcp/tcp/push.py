"""tcp_push: what happens at the end of a write — PSH, autocork, Nagle and Minshall, cork.

Autocork (Linux 3.14, f54b311142a9) holds a small write while earlier data of the same socket still
waits in the host's transmit queue: the completion sends it, merged with what came meanwhile.
TCP_NODELAY is not consulted; `pytcp.autocork_nodelay` has the two variants that were proposed,
`pytcp.autocork_cond` the three conditions of its history.
Nagle as modified by Minshall blocks a small segment only behind an earlier *small* one that is
unacknowledged. Sysctl: tcp_autocorking. Counter: TCPAutoCorking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import gates, timers, tsq, xmit
from .const import CLOSE, FIN, MSG_MORE, MSG_OOB, NAGLE_CORK, NAGLE_OFF, NAGLE_PUSH, PSH

if TYPE_CHECKING:
    from .skb import Skb
    from .sock import Sock


def mark_push(sk: Sock, skb: Skb) -> None:
    skb.flags |= PSH
    sk.pushed_seq = sk.write_seq


def forced_push(sk: Sock) -> bool:
    """More than half the peer's largest window was written since the last PSH."""
    return sk.write_seq > sk.pushed_seq + (sk.max_window >> 1)


def push_full(sk: Sock, skb: Skb, mss_now: int) -> None:
    """In the middle of a write: the tail is full, and more comes. It goes with what waits before it, or if it is the first of all."""
    if forced_push(sk):
        mark_push(sk, skb)
        xmit.push_pending_frames(sk, mss_now, NAGLE_PUSH)
    elif skb is sk.write_queue.head:
        xmit.push_one(sk, mss_now)


def push(sk: Sock, flags: int, mss_now: int, nonagle: int, size_goal: int) -> None:
    """End of a write: decide whether what was queued goes out now. `flags` are MSG_* bits."""
    skb = sk.write_queue.tail
    if skb is None:
        return
    if not flags & MSG_MORE or forced_push(sk):
        mark_push(sk, skb)
    if flags:
        if flags & MSG_OOB:
            sk.snd_up = sk.write_seq
        if flags & MSG_MORE:
            nonagle = NAGLE_CORK
    if sk.wmem_alloc > skb.truesize and should_autocork(sk, skb, size_goal):
        if not sk.tsq_throttled:
            sk.mib.TCPAutoCorking += 1
            tsq.set_throttled(sk)
        # the completion may have come while the flag was being set
        if sk.wmem_alloc > skb.truesize:
            if sk.gate <= gates.SNDBUF:
                gates.switch(sk, gates.AUTOCORK)
            if sk.trace is not None:
                sk.trace.event(sk, "autocork", length=skb.length, truesize=skb.truesize, wmem_alloc=sk.wmem_alloc, size_goal=size_goal)
            return
    # xmit.push_pending_frames, where something is queued
    if sk.state != CLOSE and xmit.write_xmit(sk, mss_now, nonagle, 0):
        timers.check_probe_timer(sk)


def should_autocork(sk: Sock, skb: Skb, size_goal: int) -> bool:
    """The tail is small, earlier data is unacknowledged, and some of it has not left the host."""
    return (
        skb.length < size_goal
        and sk.wmem_alloc > skb.truesize
        and not skb.eor
        and sk.sysctl.tcp_autocorking != 0
        and _something_ahead(sk, skb)
        and _autocork_allowed(sk)
    )


def _something_ahead(sk: Sock, skb: Skb) -> bool:
    """Never hold the first packet: an ACK must be able to release the data. What "first" meant changed (pytcp.autocork_cond)."""
    cond = sk.sysctl.autocork_cond
    if cond == "rtx_nonempty":
        return sk.rtx_queue.head is not None
    # 4.15 split the queue, and "not its head" came to mean the first of the unsent
    return cond == "none" or skb is not sk.write_queue.head


def _autocork_allowed(sk: Sock) -> bool:
    variant = sk.sysctl.autocork_nodelay
    if variant == "mainline":
        return True
    if variant == "any_nonagle":
        return not sk.nonagle
    return not sk.nonagle & NAGLE_OFF


def nagle_blocks(sk: Sock, partial: bool, nonagle: int) -> bool:
    """Whether a segment shorter than MSS has to wait."""
    return partial and bool(nonagle & NAGLE_CORK or (not nonagle and sk.packets_out and sk.snd_una < sk.snd_sml <= sk.snd_nxt))


def nagle_test(sk: Sock, skb: Skb, mss_now: int, nonagle: int) -> bool:
    """Whether a single segment may be sent now."""
    if nonagle & NAGLE_PUSH:
        return True
    # FIN and urgent data never wait
    if sk.snd_up > sk.snd_una or skb.flags & FIN:
        return True
    return not nagle_blocks(sk, skb.length < mss_now, nonagle)
