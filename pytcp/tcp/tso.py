"""TSO decisions at transmit time: how large a burst, whether to wait for a larger one, where to cut.

Autosizing (Linux 3.12, at transmit time since 3.19: 605ad7f184b6) gives a burst about 1 ms of the
pacing rate, so that a slow flow does not dump 64 KiB into the network; short RTTs get a bonus since
5.18 (65466904b015). Deferral waits a little for the next ACK when a burst would be cut short.
Sysctls: tcp_min_tso_segs, tcp_tso_rtt_log, tcp_tso_win_divisor, pytcp.tso_defer_max_us, pytcp.autosize_at
(`sendmsg`: `mtu.size_goal` sizes, and a burst has no limit here).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .const import ACK, CA_RECOVERY, CWR, FIN, NSEC_PER_MSEC, PSH
from .skb import Buffer, Skb

if TYPE_CHECKING:
    from .sock import Sock

# results of should_defer: above 0 the burst is held, below it leaves, by the exit the name says
DEFER = 1
DEFER_CWND_LIMITED = 2
DEFER_RWND_LIMITED = 3
NOW_RECOVERY = -1
NOW_STALE = -2
NOW_FULL_BURST = -3
NOW_WHOLE = -4
NOW_ENOUGH = -5
NOW_NO_ACK_DUE = -6
NOW_ACK_FAR = -7
NOW_END = -8


def tso_segs(sk: Sock, mss: int) -> int:
    """Segments one burst may have at the current pacing rate (max_segs of this call of write_xmit)."""
    sysctl = sk.sysctl
    gso_max = sk.gso_max_size
    if sysctl.sized_by_sendmsg:
        return min(max(gso_max // mss, 1), sk.gso_max_segs)
    size = sk.pacing_rate >> sk.pacing_shift
    log = sysctl.tcp_tso_rtt_log
    if log:
        r = sk.min_rtt_us >> log
        if r < 32:
            size += gso_max >> r
    if size > gso_max:
        size = gso_max
    segs = size // mss
    floor = sk.ca.min_tso_segs(sk) if sk.ca.has_min_tso_segs else sysctl.tcp_min_tso_segs
    if segs < floor:
        segs = floor
    return segs if segs < sk.gso_max_segs else sk.gso_max_segs


def should_defer(sk: Sock, skb: Skb, max_segs: int) -> int:
    """Whether to hold a multi-segment skb for the next ACK (above 0), and why; see linux-tcp §3.3 for each exit."""
    if sk.ca_state >= CA_RECOVERY:
        return NOW_RECOVERY
    now = sk.host.now_ns
    # the last transmission is old: do not make a stalled flow wait
    if now - sk.wstamp_ns - NSEC_PER_MSEC > 0:
        return NOW_STALE
    in_flight = sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out
    send_win = sk.snd_una + sk.snd_wnd - skb.seq
    cong_win = (sk.snd_cwnd - in_flight) * sk.mss_cache
    limit = send_win if send_win < cong_win else cong_win
    if limit >= max_segs * sk.mss_cache:
        return NOW_FULL_BURST
    if skb is not sk.write_queue.tail and limit >= skb.length:
        return NOW_WHOLE
    divisor = sk.sysctl.tcp_tso_win_divisor
    if divisor:
        chunk = min(sk.snd_wnd, sk.snd_cwnd * sk.mss_cache) // divisor
        if limit >= chunk:
            return NOW_ENOUGH
    elif limit > 3 * sk.mss_cache:
        return NOW_ENOUGH
    head = sk.rtx_queue.head
    if head is None:
        return NOW_NO_ACK_DUE
    srtt_ns = sk.srtt_us * 125
    # the next ACK is further away than waiting is worth
    if head.tx_ns + srtt_ns - now > min(srtt_ns >> 1, sk.sysctl.tso_defer_max_ns):
        return NOW_ACK_FAR
    if cong_win < send_win:
        if cong_win <= skb.length:
            return DEFER_CWND_LIMITED
    elif send_win <= skb.length:
        return DEFER_RWND_LIMITED
    if skb.flags & FIN or skb.eor:
        return NOW_END
    return DEFER


def split_frags(frags: list[Buffer], n: int) -> tuple[list[Buffer], list[Buffer]]:
    """(first `n` bytes, the rest) as new lists: the old one may still be in the TX ring."""
    for i, frag in enumerate(frags):
        size = len(frag)
        if n < size:
            if not n:
                return frags[:i], frags[i:]
            view = memoryview(frag)
            return [*frags[:i], view[:n]], [view[n:], *frags[i + 1 :]]
        n -= size
    return list(frags), []


def fragment(sk: Sock, skb: Skb, n: int, mss: int) -> Skb:
    """Cut `skb` behind `n` payload bytes; returns the new skb with the rest, linked nowhere yet.

    The rest takes PSH, FIN and EOR with it; truesize moves with the bytes and the new skb's own
    overhead is charged on top.
    """
    base = sk.sysctl.skb_base_truesize
    rest = skb.length - n
    cut = skb.seq + n
    flags = skb.flags
    new = Skb(cut, flags & ~CWR | ACK, base + rest)
    skb.flags = flags & ~(FIN | PSH)
    new.end_seq = skb.end_seq
    skb.end_seq = cut
    new.length = rest
    skb.length = n
    skb.truesize -= rest
    sk.wmem_queued += base
    pages = sk.forward_alloc - base
    sk.forward_alloc = pages if pages >= 0 else pages & 4095
    skb.frags, new.frags = split_frags(skb.frags, n)
    if skb.slabs:
        new.share_slabs(skb)
        skb.trim_slabs()
    if skb.stamp is not None:
        skb.split_stamp(new)
    if skb.eor:
        new.eor = True
        skb.eor = False
    new.sacked = skb.sacked
    new.retrans = skb.retrans
    new.tx_ns = skb.tx_ns
    if skb.tx_delivered_us:
        new.tx_first_us = skb.tx_first_us
        new.tx_delivered_us = skb.tx_delivered_us
        new.tx_delivered = skb.tx_delivered
        new.tx_app_limited = skb.tx_app_limited
    if sk.page_frag.skb is skb:
        sk.page_frag.skb = new
    # the cut goes through one piece, which both then have a part of
    pieces = skb.nr_frags
    skb.nr_frags = -(-n * pieces // (n + rest)) if rest else pieces
    new.nr_frags = pieces - n * pieces // (n + rest) if rest else 0
    set_pcount(skb, mss)
    set_pcount(new, mss)
    return new


def set_pcount(skb: Skb, mss: int) -> int:
    """Segments of `skb` at `mss`."""
    if skb.length <= mss:
        skb.pcount = 1
        skb.gso_size = 0
    else:
        skb.pcount = -(-skb.length // mss)
        skb.gso_size = mss
    return skb.pcount
