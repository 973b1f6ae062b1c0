"""Segment size: from path MTU to MSS to the size goal of one skb (linux-tcp §1.1).

mss_cache is what fits behind the header that every segment has; current_mss() also leaves room for
SACK blocks. size_goal() is how large a super-segment sendmsg fills: always a multiple of MSS, at most
half the largest window the peer ever offered, so that the peer can be kept busy by two of them.
Until 3.19 this was also where super-segments were sized to the pacing rate (`pytcp.autosize_at`).
Sysctls: tcp_min_snd_mss, tcp_min_tso_segs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import options, retransmit

if TYPE_CHECKING:
    from .sock import Sock

TCP_MSS_DEFAULT = 536


def net_header_len(sk: Sock) -> int:
    return 20 if sk.family == 4 else 40


def setup_caps(sk: Sock) -> None:
    """Take over what the device of the route can do (`sk_setup_caps`): how large a super-segment may be."""
    sk.gso_max_size = sk.dst.gso_max_size - (sk.sysctl.max_tcp_header + 1)
    if sk.md5 is not None:
        # each segment is signed by itself
        sk.gso_max_segs = 1


def bound_to_half_wnd(sk: Sock, pktsize: int) -> int:
    """Limit `pktsize` to half the largest window the peer has offered (all of it when it is tiny)."""
    cutoff = sk.max_window >> 1 if sk.max_window > TCP_MSS_DEFAULT else sk.max_window
    if cutoff and pktsize > cutoff:
        return max(cutoff, 68 - sk.tcp_header_len)
    return pktsize


def mtu_to_mss(sk: Sock, pmtu: int) -> int:
    """MSS for a path MTU, bytes of payload behind the usual header."""
    mss = pmtu - net_header_len(sk) - 20
    mss = min(mss, sk.mss_clamp)
    mss = max(mss, sk.sysctl.tcp_min_snd_mss)
    return mss - (sk.tcp_header_len - 20)


def sync_mss(sk: Sock, pmtu: int) -> int:
    """Adopt a path MTU; returns the new mss_cache."""
    mss = bound_to_half_wnd(sk, mtu_to_mss(sk, pmtu))
    sk.pmtu_cookie = pmtu
    search = sk.mtu_probe
    if search is not None:
        search.high = min(search.high, pmtu)
        mss = min(mss, mtu_to_mss(sk, search.low))
    sk.mss_cache = mss
    return mss


def current_mss(sk: Sock) -> int:
    """MSS for a segment sent now, with the options it will carry."""
    dst = sk.dst
    mss = sk.mss_cache
    if dst is not None and dst.mtu != sk.pmtu_cookie:
        mss = sync_mss(sk, dst.mtu)
    if sk.selective_acks or sk.duplicate_sack is not None or sk.md5 is not None:
        mss -= options.established_size(sk) + 20 - sk.tcp_header_len
    return mss


def size_goal(sk: Sock, mss: int) -> int:
    """Bytes sendmsg puts into one skb; a multiple of `mss`."""
    limit = sk.gso_max_size
    if sk.sysctl.sized_by_sendmsg:
        # half a millisecond of the pacing rate, which is twice the window's in slow start
        limit = min(limit, max(sk.pacing_rate // 2000, sk.sysctl.tcp_min_tso_segs * mss))
    half = sk.max_window >> 1
    if limit > half:
        limit = half if sk.max_window > TCP_MSS_DEFAULT else bound_to_half_wnd(sk, limit)
    goal = sk.size_goal_segs * mss
    if not goal <= limit < goal + mss:
        sk.size_goal_segs = min(limit // mss, sk.gso_max_segs)
        goal = sk.size_goal_segs * mss
    return goal if goal > mss else mss


def reduced(sk: Sock, mtu: int) -> None:
    """The path takes only `mtu` bytes (ICMP, validated): shrink the MSS and resend what is in flight.

    Everything in flight was too large to arrive, so it is marked lost and sent again at once, without
    a congestion-window cut (linux-sockets §3).
    """
    if sk.pmtu_cookie <= mtu:
        return
    sync_mss(sk, mtu)
    retransmit.simple_retransmit(sk)
