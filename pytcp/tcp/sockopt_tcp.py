"""Options at IPPROTO_TCP: ranges and roundings as measured on Linux 6.18 (linux-sockets §7).

Times given in ms or us become whole ticks, rounded up. TCP_REPAIR and what belongs to it are refused as
to a program without the privilege; what else is not here is in `sockopt_absent`.
"""

from __future__ import annotations

import errno

from . import cong, delack, fastopen, fastopen_client, info, keepalive, mtu, options, pacing, rtt, rwnd, sockopt_md5, xmit
from .const import CLOSE, ESTABLISHED, LISTEN, NAGLE_CORK, NAGLE_OFF, NAGLE_PUSH, NSEC_PER_MSEC, NSEC_PER_SEC, SF_CLOSE, SF_LISTEN
from .sock import Sock
from .sockopt_kinds import (
    IPPROTO_TCP,
    M32,
    ByteSetter,
    Getter,
    Key,
    Setter,
    check,
    constant,
    defaults,
    fail,
    field,
    flag,
    in_range,
    keep,
    kept_getter,
    ticks,
    to_int,
    write_space,
)

TCP_NODELAY = 1
TCP_MAXSEG = 2
TCP_CORK = 3
TCP_KEEPIDLE = 4
TCP_KEEPINTVL = 5
TCP_KEEPCNT = 6
TCP_SYNCNT = 7
TCP_LINGER2 = 8
TCP_DEFER_ACCEPT = 9
TCP_WINDOW_CLAMP = 10
TCP_INFO = 11
TCP_QUICKACK = 12
TCP_CONGESTION = 13
TCP_MD5SIG = 14
TCP_THIN_LINEAR_TIMEOUTS = 16
TCP_THIN_DUPACK = 17
TCP_USER_TIMEOUT = 18
TCP_REPAIR = 19
TCP_REPAIR_QUEUE = 20
TCP_QUEUE_SEQ = 21
TCP_TIMESTAMP = 24
TCP_NOTSENT_LOWAT = 25
TCP_CC_INFO = 26
TCP_SAVE_SYN = 27
TCP_SAVED_SYN = 28
TCP_FASTOPEN = 23
TCP_FASTOPEN_CONNECT = 30
TCP_MD5SIG_EXT = 32
TCP_FASTOPEN_KEY = 33
TCP_FASTOPEN_NO_COOKIE = 34
TCP_INQ = 36
TCP_TX_DELAY = 37
TCP_IS_MPTCP = 43
TCP_RTO_MAX_MS = 44
TCP_RTO_MIN_US = 45
TCP_DELACK_MAX_US = 46

MD5_KEYS = ((IPPROTO_TCP, TCP_MD5SIG), (IPPROTO_TCP, TCP_MD5SIG_EXT))

MIN_MSS = 88  # smallest TCP_MAXSEG
MAX_WINDOW = 32767
MAX_KEEP_S = 32767
MAX_COUNT = 127
FIN_TIMEOUT_MAX_S = 120
CONG_NAME_MAX = 16
RTO_MIN_MAX_US = 200_000
DELACK_MAX_US = 200_000
MIN_TIMEOUT_TICKS = 2
TX_DELAY_LIMIT = 1 << 28


def _set_tx_delay(sk: Sock, value: int) -> None:
    """Everything leaves so many us later, where the device has an fq.

    The round trip of a connection changes by as much: what was measured is corrected at once (6.18)."""
    check(0 <= value < TX_DELAY_LIMIT)
    keep(sk, (IPPROTO_TCP, TCP_TX_DELAY), value)
    change = value - sk.tx_delay_ns // 1000
    sk.tx_delay_ns = value * 1000
    if change and sk.state == ESTABLISHED:
        rtt.shift(sk, change)
        pacing.update_rate(sk)


def _push(sk: Sock) -> None:
    xmit.push_pending_frames(sk, mtu.current_mss(sk), sk.nonagle)


def _set_nodelay(sk: Sock, value: int) -> None:
    if value:
        sk.nonagle |= NAGLE_OFF | NAGLE_PUSH
        _push(sk)
    else:
        sk.nonagle &= ~NAGLE_OFF


def _set_cork(sk: Sock, value: int) -> None:
    if value:
        sk.nonagle |= NAGLE_CORK
        return
    sk.nonagle &= ~NAGLE_CORK
    if sk.nonagle & NAGLE_OFF:
        sk.nonagle |= NAGLE_PUSH
    _push(sk)


def _set_maxseg(sk: Sock, value: int) -> None:
    check(value == 0 or MIN_MSS <= value <= MAX_WINDOW)
    sk.user_mss = value


def _get_maxseg(sk: Sock) -> int:
    if sk.user_mss and 1 << sk.state & (SF_CLOSE | SF_LISTEN):
        return sk.user_mss
    return sk.mss_cache


def _set_keepidle(sk: Sock, value: int) -> None:
    check(1 <= value <= MAX_KEEP_S)
    keepalive.set_idle(sk, value)


def _set_keepintvl(sk: Sock, value: int) -> None:
    check(1 <= value <= MAX_KEEP_S)
    sk.keepalive_intvl = value


def _set_keepcnt(sk: Sock, value: int) -> None:
    check(1 <= value <= MAX_COUNT)
    sk.keepalive_probes = value


def _set_syncnt(sk: Sock, value: int) -> None:
    check(1 <= value <= MAX_COUNT)
    sk.syn_retries = value


def _set_linger2(sk: Sock, value: int) -> None:
    sk.linger2 = -1 if value < 0 else min(value, FIN_TIMEOUT_MAX_S)


def _get_linger2(sk: Sock) -> int:
    return sk.linger2 or sk.sysctl.tcp_fin_timeout


def _set_defer_accept(sk: Sock, value: int) -> None:
    """Seconds become the number of SYN-ACK repetitions whose time they cover."""
    count = 0
    if value > 0:
        longest = sk.rto_max_ns // NSEC_PER_SEC
        timeout = period = count = 1
        while value > period and count < 255:
            count += 1
            timeout = min(timeout << 1, longest)
            period += timeout
    sk.defer_accept = count


def _get_defer_accept(sk: Sock) -> int:
    longest = sk.rto_max_ns // NSEC_PER_SEC
    timeout = 1
    period = 0
    for _ in range(sk.defer_accept):
        period += timeout
        timeout = min(timeout << 1, longest)
    return period


def _set_window_clamp(sk: Sock, value: int) -> None:
    if value:
        rwnd.set_window_clamp(sk, value)
    else:
        check(sk.state == CLOSE)
        sk.window_clamp = 0


def _set_thin_linear(sk: Sock, value: int) -> None:
    check(0 <= value <= 1)
    sk.linear_timeouts = bool(value)


def _set_thin_dupack(sk: Sock, value: int) -> None:
    """Accepted and without effect since the algorithm went (4.11, 4a7f6009441d)."""
    check(0 <= value <= 1)


def _set_user_timeout(sk: Sock, value: int) -> None:
    check(value >= 0)
    sk.user_timeout_ms = value


def _set_repair(sk: Sock, value: int) -> None:
    """Repair mode needs a privilege nobody has here; being out of it already is fine, except on a listener."""
    if sk.state != LISTEN:
        check(-1 <= value <= 1)
        if value <= 0:
            return
    fail(errno.EPERM)


def _set_only_in_repair(sk: Sock, value: int) -> None:
    fail(errno.EPERM)


def _set_queue_seq(sk: Sock, value: int) -> None:
    check(sk.state != CLOSE)
    fail(errno.EPERM)


def _refuse(sk: Sock) -> int:
    fail(errno.EINVAL)


def _set_notsent_lowat(sk: Sock, value: int) -> None:
    sk.notsent_lowat = value & M32
    write_space(sk)


def _get_cc_info(sk: Sock) -> bytes:
    """What the congestion control tells, 32-bit words (bw of BBR in two)."""
    words: list[int] = []
    if sk.cong_name is None:
        return b""
    for name, value in sk.ca.info(sk).items():
        words.append(value & M32)
        if name == "bw":
            words.append(value >> 32 & M32)
    return b"".join(word.to_bytes(4, "little") for word in words)


def _set_rto_max(sk: Sock, value: int) -> None:
    check(1000 <= value <= 120_000)
    sk.rto_max_ns = ticks(sk, value * 1000) * sk.sysctl.tick_ns


def _set_rto_min(sk: Sock, value: int) -> None:
    check(value > 0 and MIN_TIMEOUT_TICKS <= ticks(sk, value) <= ticks(sk, RTO_MIN_MAX_US))
    sk.rto_min_us = ticks(sk, value) * sk.sysctl.tick_ns // 1000


def _set_delack_max(sk: Sock, value: int) -> None:
    check(value > 0 and MIN_TIMEOUT_TICKS <= ticks(sk, value) <= ticks(sk, DELACK_MAX_US))
    sk.delack_max_ns = ticks(sk, value) * sk.sysctl.tick_ns


def _set_congestion(sk: Sock, value: bytes) -> None:
    check(len(value) > 0)
    name = value[: CONG_NAME_MAX - 1].split(b"\0")[0].decode("ascii", "replace")
    if not name:
        fail(errno.ENOENT, "no congestion control with an empty name")
    started = not 1 << sk.state & (SF_CLOSE | SF_LISTEN)
    if started and name == sk.ca.name:
        return  # it goes on as it was
    cong.assign(sk, name)
    if started:
        cong.init(sk)


def _get_congestion(sk: Sock) -> bytes:
    return (sk.cong_name or sk.sysctl.tcp_congestion_control).encode().ljust(CONG_NAME_MAX, b"\0")


def saved_syn(sk: Sock, buflen: int) -> bytes:
    """TCP_SAVED_SYN: the headers kept by TCP_SAVE_SYN, once; a short buffer is EINVAL and loses nothing."""
    saved = sk.saved_syn
    if saved is None:
        return b""
    if buflen < len(saved):
        fail(errno.EINVAL)
    sk.saved_syn = None
    return saved


# ---------------------------------------------------------------- tables

def _set_no_cookie(sk: Sock, value: int) -> None:
    check(value in (0, 1) and bool(1 << sk.state & (SF_CLOSE | SF_LISTEN)))
    fastopen.of(sk).no_cookie = value


def _set_fastopen_key(sk: Sock, value: bytes) -> None:
    check(len(value) in (fastopen.KEY_LEN, 2 * fastopen.KEY_LEN))
    fastopen.of(sk).keys = value


_KEPT: dict[Key, int] = {
    (IPPROTO_TCP, TCP_SAVE_SYN): 0,
    (IPPROTO_TCP, TCP_INQ): 0,
    (IPPROTO_TCP, TCP_TX_DELAY): 0,
}
defaults |= _KEPT

SET: dict[Key, Setter] = {key: flag(key) for key in _KEPT} | {
    (IPPROTO_TCP, TCP_NODELAY): _set_nodelay,
    (IPPROTO_TCP, TCP_MAXSEG): _set_maxseg,
    (IPPROTO_TCP, TCP_CORK): _set_cork,
    (IPPROTO_TCP, TCP_KEEPIDLE): _set_keepidle,
    (IPPROTO_TCP, TCP_KEEPINTVL): _set_keepintvl,
    (IPPROTO_TCP, TCP_KEEPCNT): _set_keepcnt,
    (IPPROTO_TCP, TCP_SYNCNT): _set_syncnt,
    (IPPROTO_TCP, TCP_LINGER2): _set_linger2,
    (IPPROTO_TCP, TCP_DEFER_ACCEPT): _set_defer_accept,
    (IPPROTO_TCP, TCP_WINDOW_CLAMP): _set_window_clamp,
    (IPPROTO_TCP, TCP_QUICKACK): delack.set_quickack,
    (IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS): _set_thin_linear,
    (IPPROTO_TCP, TCP_THIN_DUPACK): _set_thin_dupack,
    (IPPROTO_TCP, TCP_USER_TIMEOUT): _set_user_timeout,
    (IPPROTO_TCP, TCP_REPAIR): _set_repair,
    (IPPROTO_TCP, TCP_REPAIR_QUEUE): _set_only_in_repair,
    (IPPROTO_TCP, TCP_QUEUE_SEQ): _set_queue_seq,
    (IPPROTO_TCP, TCP_TIMESTAMP): _set_only_in_repair,
    (IPPROTO_TCP, TCP_NOTSENT_LOWAT): _set_notsent_lowat,
    (IPPROTO_TCP, TCP_SAVE_SYN): in_range((IPPROTO_TCP, TCP_SAVE_SYN), 0, 2),
    (IPPROTO_TCP, TCP_INQ): in_range((IPPROTO_TCP, TCP_INQ), 0, 1),
    (IPPROTO_TCP, TCP_FASTOPEN): fastopen.set_max_qlen,
    (IPPROTO_TCP, TCP_FASTOPEN_CONNECT): fastopen_client.set_connect,
    (IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE): _set_no_cookie,
    (IPPROTO_TCP, TCP_TX_DELAY): _set_tx_delay,
    (IPPROTO_TCP, TCP_RTO_MAX_MS): _set_rto_max,
    (IPPROTO_TCP, TCP_RTO_MIN_US): _set_rto_min,
    (IPPROTO_TCP, TCP_DELACK_MAX_US): _set_delack_max,
}

SET_BYTES: dict[Key, ByteSetter] = {
    (IPPROTO_TCP, TCP_CONGESTION): _set_congestion,
    (IPPROTO_TCP, TCP_FASTOPEN_KEY): _set_fastopen_key,
    (IPPROTO_TCP, TCP_MD5SIG): sockopt_md5.set_key,
    (IPPROTO_TCP, TCP_MD5SIG_EXT): sockopt_md5.set_key_ext,
}

GET: dict[Key, Getter] = {key: kept_getter(key) for key in _KEPT} | {
    (IPPROTO_TCP, TCP_NODELAY): lambda sk: int(sk.nonagle & NAGLE_OFF != 0),
    (IPPROTO_TCP, TCP_MAXSEG): _get_maxseg,
    (IPPROTO_TCP, TCP_CORK): lambda sk: int(sk.nonagle & NAGLE_CORK != 0),
    (IPPROTO_TCP, TCP_KEEPIDLE): lambda sk: keepalive.idle_time_ns(sk) // NSEC_PER_SEC,
    (IPPROTO_TCP, TCP_KEEPINTVL): lambda sk: keepalive.interval_ns(sk) // NSEC_PER_SEC,
    (IPPROTO_TCP, TCP_KEEPCNT): keepalive.probes,
    (IPPROTO_TCP, TCP_SYNCNT): lambda sk: sk.syn_retries or sk.sysctl.tcp_syn_retries,
    (IPPROTO_TCP, TCP_LINGER2): _get_linger2,
    (IPPROTO_TCP, TCP_DEFER_ACCEPT): _get_defer_accept,
    (IPPROTO_TCP, TCP_WINDOW_CLAMP): field("window_clamp"),
    (IPPROTO_TCP, TCP_INFO): lambda sk: info.tcp_info(sk).pack(),
    (IPPROTO_TCP, TCP_QUICKACK): lambda sk: int(not delack.in_pingpong(sk)),
    (IPPROTO_TCP, TCP_CONGESTION): _get_congestion,
    (IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS): field("linear_timeouts"),
    (IPPROTO_TCP, TCP_THIN_DUPACK): constant(0),
    (IPPROTO_TCP, TCP_USER_TIMEOUT): field("user_timeout_ms"),
    (IPPROTO_TCP, TCP_REPAIR): constant(0),
    (IPPROTO_TCP, TCP_REPAIR_QUEUE): _refuse,
    (IPPROTO_TCP, TCP_QUEUE_SEQ): _refuse,
    (IPPROTO_TCP, TCP_TIMESTAMP): lambda sk: to_int(options.tsval_now(sk)),
    (IPPROTO_TCP, TCP_NOTSENT_LOWAT): lambda sk: to_int(sk.notsent_lowat),
    (IPPROTO_TCP, TCP_CC_INFO): _get_cc_info,
    (IPPROTO_TCP, TCP_FASTOPEN): lambda sk: sk.fastopen.max_qlen if sk.fastopen is not None else 0,
    (IPPROTO_TCP, TCP_FASTOPEN_CONNECT): lambda sk: sk.fastopen.connect if sk.fastopen is not None else 0,
    (IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE): lambda sk: sk.fastopen.no_cookie if sk.fastopen is not None else 0,
    (IPPROTO_TCP, TCP_FASTOPEN_KEY): fastopen.own_keys,
    (IPPROTO_TCP, TCP_IS_MPTCP): constant(0),
    (IPPROTO_TCP, TCP_RTO_MAX_MS): lambda sk: sk.rto_max_ns // NSEC_PER_MSEC,
    (IPPROTO_TCP, TCP_RTO_MIN_US): field("rto_min_us"),
    (IPPROTO_TCP, TCP_DELACK_MAX_US): lambda sk: sk.delack_max_ns // 1000,
}
