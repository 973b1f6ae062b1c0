"""TCP small queues: no socket fills the host's transmit queue (linux-tcp §3.5, §4; Linux 3.6).

A socket is charged (sk_wmem_alloc, truesize) for every skb between transmit and TX completion. Over
the limit it stops and sets THROTTLED; the completion that finds THROTTLED clears it and lets the
socket send again. Autocork shares the flag. In Linux the completion may run on another CPU, hence the
re-read after setting the flag. Here completions are reaped by the ring's own pass, and the re-read sees
what the first read saw, unless a thread writes the frames (`link.txthread`): then setting the flag looks
again, debits what is completed, and the re-read sees that. What a CPU makes of it without a fence can
also be had in virtual time (`wfree_missed`, `link.delayed`).
Sysctls: tcp_limit_output_bytes, pytcp.tsq_cap, pytcp.push_barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import mtu, retransmit, xmit
from .const import (
    SF_CLOSE_WAIT,
    SF_CLOSING,
    SF_ESTABLISHED,
    SF_FIN_WAIT1,
    SF_LAST_ACK,
)

if TYPE_CHECKING:
    from .skb import Skb
    from .sock import Sock

PURE_ACK = 2  # truesize a pure ACK is charged, which tells it from everything else

_SENDING_STATES = SF_ESTABLISHED | SF_FIN_WAIT1 | SF_CLOSING | SF_CLOSE_WAIT | SF_LAST_ACK


def small_queue_check(sk: Sock, skb: Skb, factor: int) -> int:
    """0, or the limit (bytes of truesize) that makes `skb` wait for completions; `factor` 0 for new data, 1 for retransmissions."""
    limit = sk.pacing_rate >> sk.pacing_shift
    if 2 * skb.truesize > limit:
        limit = 2 * skb.truesize
    sysctl = sk.sysctl
    cap = sysctl.tcp_limit_output_bytes
    if limit > cap and (sysctl.tsq_capped_paced or not sk.pacing_status):
        limit = cap
    limit <<= factor
    if sk.tx_delay_ns:
        # what waits for its delayed departure, twice for the overhead; 2^20 us stand for a second
        limit += sk.pacing_rate * (sk.tx_delay_ns // 1000) >> 19
    return _over(sk, limit) if sk.wmem_alloc > limit else 0


def small_queue_check_unsplit(sk: Sock) -> int:
    """The test before 3.19: made before a burst is cut, and the sysctl is the least a socket may have."""
    limit = max(sk.pacing_rate >> sk.pacing_shift, sk.sysctl.tcp_limit_output_bytes)
    return _over(sk, limit) if sk.wmem_alloc > limit else 0


def _over(sk: Sock, limit: int) -> int:
    """More is charged than `limit`."""
    # with little in flight the ACK clock might not restart us: never throttle the first two skbs
    if sk.rtx_queue.qlen <= 1:
        return 0
    set_throttled(sk)
    if sk.wmem_alloc <= limit:
        return 0
    if sk.trace is not None:
        sk.trace.event(sk, "tsq", wmem_alloc=sk.wmem_alloc, limit=limit)
    return limit


def set_throttled(sk: Sock) -> None:
    """Ask for a call at the next TX completion."""
    if not sk.tsq_throttled:
        sk.tsq_throttled = True
        sk.host.throttled(sk)


def release(sk: Sock, skb: Skb | None, truesize: int) -> bool:
    """TX completion: the device has taken a frame of this socket. Returns whether that calls the socket (`called`).

    A NIC completes frames in batches and Linux calls the sockets behind the batch (a tasklet, since 2024 a workqueue):
    whoever is called finds all of it released, and sends as much at once."""
    sk.wmem_alloc -= truesize
    if skb is not None:
        skb.in_host -= 1
        if skb.freed and not skb.in_host:
            skb.free_slabs()
    # a pure ACK frees what it was charged and calls nobody
    if sk.tsq_throttled and truesize != PURE_ACK:
        sk.tsq_throttled = False
        return True
    return False


def wfree(sk: Sock, skb: Skb | None, truesize: int) -> None:
    """A TX completion that stands alone."""
    if release(sk, skb, truesize):
        called(sk)


def uncharge(sk: Sock, skb: Skb | None, truesize: int) -> None:
    """The part of a TX completion that looks at no flag: where somebody else has (`link.txthread`)."""
    throttled = sk.tsq_throttled
    sk.tsq_throttled = False
    wfree(sk, skb, truesize)
    sk.tsq_throttled = throttled


def called(sk: Sock) -> None:
    """The other part: a completion has found THROTTLED. What calls the socket holds one byte of its charge meanwhile (tcp_wfree)."""
    sk.tsq_throttled = False
    sk.wmem_alloc += 1
    handler(sk)
    sk.wmem_alloc -= 1


def wfree_missed(sk: Sock, skb: Skb | None, truesize: int) -> bool:
    """A TX completion that read the flags before THROTTLED was visible: it calls nobody, and the flag stays.

    The fence in `tcp_push` (pytcp.push_barrier) makes this impossible: then it is a completion like any other.
    Returns whether somebody waited for the call and did not get it."""
    if sk.sysctl.push_barrier:
        wfree(sk, skb, truesize)
        return False
    uncharge(sk, skb, truesize)
    return sk.tsq_throttled and truesize != PURE_ACK


def handler(sk: Sock) -> None:
    """A throttled (or paced) socket may send again: lost data first, then new data."""
    if 1 << sk.state & _SENDING_STATES:
        if sk.lost_out > sk.retrans_out and sk.snd_cwnd > sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out:
            retransmit.xmit_retransmit_queue(sk)
        xmit.write_xmit(sk, mtu.current_mss(sk), sk.nonagle, 0)
