"""The receive window: how much we offer, when it grows, when a reader reopens it (linux-tcp §7, §14).

The buffer is counted in truesize (memory), the window in payload bytes; `scaling_ratio` (256ths) leads
from one to the other and is measured on the first segment of each new size (6.6, dfa2f0483360). What is
offered is the smallest of free space, `rcv_ssthresh` (slow start of the window, against peers that send
small segments) and `window_clamp`. The right edge never moves left unless tcp_shrink_window says so.
RFC 9293 §3.8.6, RFC 7323 §2. Sysctls: tcp_rmem, rmem_max, tcp_app_win, tcp_shrink_window,
tcp_workaround_signed_windows, pytcp.init_rwnd, pytcp.scaling_ratio_default, pytcp.scaling_ratio_measured,
pytcp.clamp_follows_ratio, pytcp.rcvbuf_sets_clamp, pytcp.ack_full_push. Counters:
TCPFromZeroWindowAdv, TCPToZeroWindowAdv, TCPWantZeroWindowAdv.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import memory, xmit
from .const import (
    ACK_NOMEM,
    ACK_PUSHED,
    ACK_PUSHED2,
    ACK_SCHED,
    FIN,
    MAX_TCP_WINDOW,
    MAX_WSCALE,
    MIN_MSS_DEFAULT,
    PSH,
    RCV_SHUTDOWN,
    SYN,
    URG,
)

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Sock

SOCK_MIN_RCVBUF = 2304
MIN_CLAMP = SOCK_MIN_RCVBUF // 2
TCP_MIN_MSS = 88  # smallest size a segment without PSH may have and still be taken for a full one
INIT_CWND = 10
SHORT = TCP_MIN_MSS + 20  # bytes with the header below which a segment is never taken for a full one
REMNANT = FIN | URG | SYN | PSH


# ---------------------------------------------------------------- space <-> window


def win_from_space(sk: Sock, space: int) -> int:
    """Window bytes that `space` buffer bytes (truesize) are expected to hold; negative stays negative."""
    return space * sk.scaling_ratio >> 8


def space_from_win(sk: Sock, win: int) -> int:
    """Buffer bytes needed to hold a window of `win` bytes."""
    return (win << 8) // sk.scaling_ratio


def space(sk: Sock) -> int:
    """Window bytes the free part of the receive buffer can hold; negative when it is overdrawn."""
    return (sk.rcvbuf - sk.rmem_alloc) * sk.scaling_ratio >> 8


def full_space(sk: Sock) -> int:
    """Window bytes the whole receive buffer can hold."""
    return sk.rcvbuf * sk.scaling_ratio >> 8


def receive_window(sk: Sock) -> int:
    """What is left of the window last offered, bytes."""
    left = sk.rcv_wup + sk.rcv_wnd - sk.rcv_nxt
    return left if left > 0 else 0


# ---------------------------------------------------------------- opening


def select_initial_window(sk: Sock, space_: int, mss: int, clamp: int, wscale_ok: bool, init_rcv_wnd: int = 0) -> tuple[int, int, int]:
    """First window of a connection: (rcv_wnd, window_clamp, rcv_wscale).

    `space_`: window bytes available (full_space). `clamp` 0: none. `init_rcv_wnd`: the route's
    initrwnd in segments, 0 = none. The scale must serve the largest buffer autotuning may reach, so it
    comes from tcp_rmem[2] and rmem_max, not from the buffer of the moment."""
    sysctl = sk.sysctl
    if not clamp:
        clamp = 65535 << MAX_WSCALE
    room = min(max(space_, 0), clamp)
    if room > mss:
        room -= room % mss
    rcv_wnd = min(room, MAX_TCP_WINDOW) if sysctl.tcp_workaround_signed_windows else room
    if not init_rcv_wnd and sysctl.init_rwnd:
        init_rcv_wnd = sysctl.init_rwnd if mss <= 1460 else max(1460 * sysctl.init_rwnd // mss, 2)
    if init_rcv_wnd:
        rcv_wnd = min(rcv_wnd, init_rcv_wnd * mss)
    wscale = 0
    if wscale_ok:
        largest = min(max(room, sysctl.tcp_rmem[2], sysctl.rmem_max), clamp)
        wscale = min(max(largest.bit_length() - 1 - 15, 0), MAX_WSCALE)
    return rcv_wnd, min(65535 << wscale, clamp), wscale


def init_rcv_mss(sk: Sock) -> None:
    """First guess of the peer's segment size: low, so that small segments count as full ones."""
    sk.rcv_mss = max(min(sk.advmss, sk.mss_cache, sk.rcv_wnd // 2, MIN_MSS_DEFAULT), TCP_MIN_MSS)


def forget_rcv_mss(sk: Sock) -> None:
    """The connection is over: its peer's segment size means nothing for the next one."""
    sk.rcv_mss = TCP_MIN_MSS


def init_buffer_space(sk: Sock) -> None:
    """The connection is up: settle clamp and slow-start threshold, start the autotuning measurement.

    One segment of the buffer stays reserved, so that the window closes before memory runs out."""
    sk.mstamp_ns = sk.host.now_ns
    sk.rcvq_time_us = sk.mstamp_ns // 1000
    sk.rcvq_seq = sk.copied_seq
    maxwin = full_space(sk)
    app_win = sk.sysctl.tcp_app_win
    if sk.window_clamp >= maxwin:
        sk.window_clamp = maxwin
        if app_win and maxwin > 4 * sk.advmss:
            sk.window_clamp = max(maxwin - (maxwin >> app_win), 4 * sk.advmss)
    if app_win and sk.window_clamp > 2 * sk.advmss and sk.window_clamp + sk.advmss > maxwin:
        sk.window_clamp = max(2 * sk.advmss, maxwin - sk.advmss)
    sk.rcv_ssthresh = min(sk.rcv_ssthresh, sk.window_clamp)
    sk.rcvq_space = min(sk.rcv_ssthresh, sk.rcv_wnd, INIT_CWND * sk.advmss)


# ---------------------------------------------------------------- socket options


def set_rcvbuf(sk: Sock, value: int) -> None:
    """SO_RCVBUF: the buffer becomes twice `value` (the other half pays for overhead) and stays there.

    A negative value is a huge one, as the kernel's unsigned comparison has it. Clamp and threshold
    follow at the next change of the scaling ratio only (§14), or at once (pytcp.rcvbuf_sets_clamp)."""
    limit = sk.sysctl.rmem_max
    value = min(value, limit) if value >= 0 else limit
    sk.rcvbuf_locked = True
    sk.rcvbuf = max(value * 2, SOCK_MIN_RCVBUF)
    if sk.sysctl.rcvbuf_sets_clamp:
        set_window_clamp(sk, win_from_space(sk, sk.rcvbuf))


def set_rcvlowat(sk: Sock, value: int) -> None:
    """SO_RCVLOWAT: bytes that must be there before the socket is readable; the buffer grows to hold them."""
    from . import recv

    if value < 0:
        value = 0x7FFFFFFF
    top = (sk.rcvbuf if sk.rcvbuf_locked else sk.sysctl.tcp_rmem[2]) >> 1
    value = min(value, top)
    sk.rcvlowat = value or 1
    recv.data_ready(sk)
    if sk.rcvbuf_locked:
        return
    need = space_from_win(sk, value)
    if need > sk.rcvbuf:
        sk.rcvbuf = need
        if 0 < sk.window_clamp < value:
            sk.window_clamp = value


def set_window_clamp(sk: Sock, value: int) -> None:
    """Set the upper bound of the offered window (TCP_WINDOW_CLAMP, and each new scaling ratio)."""
    old = sk.window_clamp
    value = max(MIN_CLAMP, value)
    if value == old:
        return
    sk.window_clamp = value
    if value < old:
        sk.rcv_ssthresh = min(sk.rcv_ssthresh, value)
    else:
        sk.rcv_ssthresh = max(sk.rcv_ssthresh, min(sk.rcv_wnd, value))


# ---------------------------------------------------------------- per data segment


def measure_rcv_mss(sk: Sock, seg: Segment) -> None:
    """Learn the peer's segment size, and with it how much payload the buffer really holds.

    Also notes for the ACK decision that a segment was short or pushed: the sender may be waiting."""
    small = sk.rcv_small_len
    sk.rcv_small_len = 0
    size = seg.gso_size or seg.length
    if size >= sk.rcv_mss:
        if size != sk.rcv_mss:
            ratio = max(1, min((seg.length << 8) // seg.truesize, 255))
            if ratio != sk.scaling_ratio and sk.sysctl.scaling_ratio_measured:
                sk.scaling_ratio = ratio
                if sk.sysctl.clamp_follows_ratio:
                    set_window_clamp(sk, win_from_space(sk, sk.rcvbuf))
                    sk.rcvq_space = min(sk.rcvq_space, sk.window_clamp)
            sk.rcv_mss = min(size, sk.advmss)
        if seg.flags & PSH and sk.sysctl.ack_full_push:
            sk.ack_pending |= ACK_PUSHED
        return
    # below the estimate: adopt it only when plausible as a full segment and seen twice running
    header = seg.doff * 4
    total = size + header
    if total >= MIN_MSS_DEFAULT + 20 or (total >= SHORT and not seg.flags & REMNANT):
        # without the variable part (SACK blocks) of the header
        size = total - sk.tcp_header_len
        sk.rcv_small_len = size
        if size == small:
            sk.rcv_mss = size
            return
    if sk.ack_pending & ACK_PUSHED:
        sk.ack_pending |= ACK_PUSHED2
    sk.ack_pending |= ACK_PUSHED


def grow_window(sk: Sock, seg: Segment, adjust: bool) -> None:
    """Slow start of the offered window: raise rcv_ssthresh if segments like this one fit the buffer.

    `adjust`: count a paged super-segment without its head. Growth makes quick ACKs: `quick` gets its
    lowest bit set, so that the peer learns of the new window (§14)."""
    ssthresh = sk.rcv_ssthresh
    room = min(sk.window_clamp, (sk.rcvbuf - sk.rmem_alloc) * sk.scaling_ratio >> 8) - ssthresh
    if room <= 0:
        return
    length = seg.length
    truesize = seg.truesize
    if adjust and truesize - memory.PAGED_HEAD >= length and memory.tail_room(seg) < 0:
        truesize -= memory.PAGED_HEAD
    if truesize * sk.scaling_ratio >> 8 <= length:
        incr = 2 * sk.advmss
    else:
        incr = _grow_slowly(sk, length, seg.truesize)
    if incr:
        sk.rcv_ssthresh = ssthresh + min(room, max(incr, 2 * length))
        sk.quick |= 1


def _grow_slowly(sk: Sock, length: int, truesize: int) -> int:
    """Overhead-heavy segments may still grow the window while it is far below what the buffer may become."""
    cost = win_from_space(sk, truesize) >> 1
    window = win_from_space(sk, sk.sysctl.tcp_rmem[2]) >> 1
    while sk.rcv_ssthresh <= window:
        if cost <= length:
            return 2 * sk.rcv_mss
        cost >>= 1
        window >>= 1
    return 0


# ---------------------------------------------------------------- advertising


def wanted_window(sk: Sock) -> int:
    """The window memory allows now, bytes, before the rule that the right edge stays (`__select_window`).

    Clears the quick-ACK budget when less than half the buffer is free: no reason to invite more."""
    free = (sk.rcvbuf - sk.rmem_alloc) * sk.scaling_ratio >> 8
    wscale = sk.rcv_wscale
    if sk.sysctl.tcp_shrink_window and wscale:
        return _wanted_when_shrinking(sk, free)
    # (a full window is at most the clamp: with half of that free there is enough)
    if free < sk.window_clamp >> 1:
        free = _left_when_scarce(sk, free)
    ssthresh = sk.rcv_ssthresh
    if free > ssthresh:
        free = ssthresh
    if wscale:
        # round up: a window below one unit of the scale would read as closed
        return -(-free >> wscale) << wscale
    return _wanted_unscaled(sk, free)


def _full_window(sk: Sock) -> tuple[int, int, int]:
    """The largest window the clamp and the buffer allow, what the buffer alone allows, and a segment, which is no larger than the first."""
    allowed = sk.rcvbuf * sk.scaling_ratio >> 8
    full = min(sk.window_clamp, allowed)
    return full, allowed, min(sk.rcv_mss, full)


def _left_when_scarce(sk: Sock, free: int) -> int:
    """What is to be offered of `free` bytes when that may be less than half of a full window."""
    allowed = sk.rcvbuf * sk.scaling_ratio >> 8
    full = sk.window_clamp
    if full > allowed:
        full = allowed
    if full <= 0:
        return 0
    if free < full >> 1:
        sk.quick = 0
        # the rounding up of what is offered must not make it more than there is
        free = free >> sk.rcv_wscale << sk.rcv_wscale
        # (a segment larger than a full window counts as one, and there is less than that, too)
        if free < allowed >> 4 or free < sk.rcv_mss:
            return 0
    return free


def _wanted_unscaled(sk: Sock, free: int) -> int:
    """Without window scaling the offer moves by whole segments, and stays while it is about right."""
    full, _, mss = _full_window(sk)
    if not free or full <= 0:
        return 0
    window = sk.rcv_wnd
    if window <= free - mss or window > free:
        return free - free % mss
    if mss == full and free > window + (full >> 1):
        return free
    return window


def _wanted_when_shrinking(sk: Sock, free: int) -> int:
    """tcp_shrink_window=1 (6.6): offer exactly what there is, even if the right edge moves left."""
    full, allowed, mss = _full_window(sk)
    if full <= 0:
        return 0
    wscale = sk.rcv_wscale
    free = free >> wscale << wscale
    if free < full >> 1:
        sk.quick = 0
        if free < allowed >> 4 or free < mss or free < 1 << wscale:
            return 0
    if free > sk.rcv_ssthresh:
        # only here the threshold limits, not memory, and rounding up is harmless
        free = -(-sk.rcv_ssthresh >> wscale) << wscale
    return free


def select_window(sk: Sock) -> int:
    """The 16-bit window field of a header built now; remembers what was offered (rcv_wnd, rcv_wup)."""
    old = sk.rcv_wnd
    rcv_nxt = sk.rcv_nxt
    wscale = sk.rcv_wscale
    if sk.ack_pending & ACK_NOMEM:
        sk.pred = False
        sk.rcv_wnd = 0
        sk.rcv_wup = rcv_nxt
        return 0
    current = sk.rcv_wup + old - rcv_nxt  # as receive_window, or below 0
    window = sk.window_due
    if window < 0:
        window = wanted_window(sk)
    if window < current and not (wscale and sk.sysctl.tcp_shrink_window):
        if not window:
            sk.mib.TCPWantZeroWindowAdv += 1
        window = -(-current >> wscale) << wscale
    if sk.trace is not None and rcv_nxt + window != sk.rcv_wup + old:
        sk.trace.event(sk, "window", wnd=window, edge=rcv_nxt + window - sk.irs - 1)
    sk.rcv_wnd = window
    sk.rcv_wup = rcv_nxt
    # the field is capped, rcv_wnd is not
    if not wscale and sk.sysctl.tcp_workaround_signed_windows:
        window = min(window, MAX_TCP_WINDOW)
    window >>= wscale
    if window > 65535:
        window = 65535
    if not window:
        sk.pred = False
        if old:
            sk.mib.TCPToZeroWindowAdv += 1
    elif not old:
        sk.mib.TCPFromZeroWindowAdv += 1
    return window


def cleanup_rbuf(sk: Sock, copied: int) -> None:
    """The program took `copied` bytes: does the peer need an ACK, or the news of more room?"""
    pending = sk.ack_pending
    unacked = sk.rcv_nxt - sk.rcv_wup
    if pending & ACK_SCHED and (
        unacked > sk.rcv_mss
        or (copied > 0 and not sk.rmem_alloc and pending & (ACK_PUSHED2 if sk.pingpong >= sk.sysctl.tcp_pingpong_thresh else ACK_PUSHED2 | ACK_PUSHED))
    ):
        # the ACK of every second segment, which the input path left to the reader; or the queue is drained
        # and the last segment was short: the sender may be waiting for this ACK
        _ack_read(sk)
    elif copied > 0 and not sk.shutdown & RCV_SHUTDOWN:
        current = sk.rcv_wnd - unacked  # as receive_window
        if 2 * current <= sk.window_clamp:
            if current < 0:
                current = 0
            window = wanted_window(sk)
            # news worth a segment: at least twice what the peer believes
            if window > 0 and window >= 2 * current:
                _ack_read(sk)


def _ack_read(sk: Sock) -> None:
    """An ACK because the program has read."""
    sk.mstamp_ns = sk.host.now_ns
    xmit.send_ack(sk)
