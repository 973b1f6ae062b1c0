"""The options of a TCP socket at SOL_SOCKET: Linux's names, ranges, roundings and refusals (linux-sockets §7).

Where a value has no field of the socket it is kept by its number (`_KEPT`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from hashlib import blake2b
from struct import Struct
from typing import NoReturn

from . import keepalive, md5, rwnd, rx_timestamps, timestamping
from .const import SF_LISTEN
from .sock import Sock
from .sockopt_kinds import (
    INT,
    INT_MAX,
    IPPROTO_TCP,
    M32,
    SOL_SOCKET,
    ByteSetter,
    Getter,
    Key,
    Setter,
    SizedGetter,
    check,
    constant,
    defaults,
    fail,
    field,
    flag,
    in_range,
    keep,
    kept,
    kept_getter,
    refuse,
    ticks,
    write_space,
)

UNLIMITED_RATE = 0xFFFFFFFFFFFFFFFF
_LINGER = Struct("=ii")
_TIMEVAL = Struct("=qq")
_U32 = Struct("=I")
_U64 = Struct("=Q")
_TXTIME = Struct("=iI")  # clock, flags
_TIMESTAMPING = Struct("=ii")  # flags, hardware clock
_LONG_MAX = (1 << 63) - 1
_MEMINFO = Struct("=9I")
_NOBODY = Struct("=iii").pack(0, -1, -1)  # struct ucred of a peer that is no process here

SO_DEBUG = 1
SO_REUSEADDR = 2
SO_TYPE = 3
SO_ERROR = 4
SO_DONTROUTE = 5
SO_BROADCAST = 6
SO_SNDBUF = 7
SO_RCVBUF = 8
SO_KEEPALIVE = 9
SO_OOBINLINE = 10
SO_NO_CHECK = 11
SO_PRIORITY = 12
SO_LINGER = 13
SO_BSDCOMPAT = 14
SO_REUSEPORT = 15
SO_PASSCRED = 16
SO_PEERCRED = 17
SO_RCVLOWAT = 18
SO_SNDLOWAT = 19
SO_RCVTIMEO = 20
SO_SNDTIMEO = 21
SO_BINDTODEVICE = 25
SO_TIMESTAMP = 29
SO_ACCEPTCONN = 30
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
SO_PASSSEC = 34
SO_TIMESTAMPNS = 35
SO_MARK = 36
SO_PROTOCOL = 38
SO_DOMAIN = 39
SO_RXQ_OVFL = 40
SO_WIFI_STATUS = 41
SO_PEEK_OFF = 42
SO_NOFCS = 43
SO_LOCK_FILTER = 44
SO_SELECT_ERR_QUEUE = 45
SO_BUSY_POLL = 46
SO_TIMESTAMPING = 37
SO_ZEROCOPY = 60
SO_MAX_PACING_RATE = 47
SO_BPF_EXTENSIONS = 48
SO_INCOMING_CPU = 49
SO_CNX_ADVICE = 53
SO_MEMINFO = 55
SO_INCOMING_NAPI_ID = 56
SO_COOKIE = 57
SO_TXTIME = 61
SO_BINDTOIFINDEX = 62
SO_TIMESTAMP_NEW = 63
SO_TIMESTAMPNS_NEW = 64
SO_TIMESTAMPING_NEW = 65
SO_RCVTIMEO_NEW = 66
SO_SNDTIMEO_NEW = 67
SO_PREFER_BUSY_POLL = 69
SO_BUSY_POLL_BUDGET = 70
SO_NETNS_COOKIE = 71
SO_BUF_LOCK = 72
SO_RESERVE_MEM = 73
SO_TXREHASH = 74
SO_RCVMARK = 75
SO_PASSPIDFD = 76
SO_RCVPRIORITY = 82
SO_PASSRIGHTS = 83

AF_INET = 2
AF_INET6 = 10
IFNAMSIZ = 16
SOCK_STREAM = 1
SOCK_MIN_SNDBUF = 4608
SOCK_MIN_RCVBUF = 2304
BPF_EXTENSIONS = 64  # how many ancillary loads classic BPF has
SNDBUF_LOCK, RCVBUF_LOCK = 1, 2
CLOCKS = (0, 1, 11)  # CLOCK_REALTIME, MONOTONIC, TAI
TXTIME_FLAGS = 3
MAX_BUDGET = 0xFFFF
FOREVER = -1  # SO_RCVTIMEO, SO_SNDTIMEO: no limit


def take_error(sk: Sock) -> int:
    """SO_ERROR: the pending error, else what an ICMP error has left; reading clears it."""
    code = sk.sk_err
    if code:
        sk.sk_err = 0
    else:
        code = sk.sk_err_soft
        sk.sk_err_soft = 0
    return code


def _set_sndbuf(sk: Sock, value: int) -> None:
    limit = sk.sysctl.wmem_max
    _force_sndbuf(sk, min(value, limit) if value >= 0 else limit)


def _force_sndbuf(sk: Sock, value: int) -> None:
    sk.sndbuf_locked = True
    sk.sndbuf = max(min(max(value, 0), INT_MAX // 2) * 2, SOCK_MIN_SNDBUF)
    write_space(sk)


def _force_rcvbuf(sk: Sock, value: int) -> None:
    sk.rcvbuf_locked = True
    sk.rcvbuf = max(min(max(value, 0), INT_MAX // 2) * 2, SOCK_MIN_RCVBUF)


def _set_keepalive(sk: Sock, value: int) -> None:
    keepalive.set_enabled(sk, bool(value))


def _set_oobinline(sk: Sock, value: int) -> None:
    sk.rx_opt_oobinline = bool(value)


def _set_reuseaddr(sk: Sock, value: int) -> None:
    sk.reuseaddr = bool(value)


def _set_reuseport(sk: Sock, value: int) -> None:
    sk.reuseport = bool(value)


def _set_priority(sk: Sock, value: int) -> None:
    sk.priority = value


def _set_mark(sk: Sock, value: int) -> None:
    sk.mark = value


def _set_peek_off(sk: Sock, value: int) -> None:
    sk.peek_off = value


def _set_lock_filter(sk: Sock, value: int) -> None:
    key = (SOL_SOCKET, SO_LOCK_FILTER)
    if not value and kept(sk, *key):
        fail(errno.EPERM)
    keep(sk, key, int(bool(value)))


def _set_linger(sk: Sock, value: bytes) -> None:
    """A negative time is for ever: as many ticks as a long can say. It is kept while lingering is off, too."""
    check(len(value) >= _LINGER.size)
    on, seconds = _LINGER.unpack_from(value)
    if not on:
        sk.linger = None
        return
    sk.linger = seconds if seconds >= 0 else _LONG_MAX // sk.sysctl.hz
    keep(sk, (SOL_SOCKET, SO_LINGER), sk.linger)


def _get_linger(sk: Sock) -> bytes:
    stored = (sk.optmem or {}).get((SOL_SOCKET, SO_LINGER), 0)
    seconds = stored if sk.linger is None else sk.linger
    return _LINGER.pack(sk.linger is not None, (seconds & M32 ^ 1 << 31) - (1 << 31))


def _get_max_pacing_rate(sk: Sock, room: int) -> bytes:
    """Whole with room for 64 bits, else the most that 32 bits can say."""
    if room >= _U64.size:
        return _U64.pack(sk.max_pacing_rate)
    return _U32.pack(min(sk.max_pacing_rate, M32))[:room]


def _set_timeout(name: int) -> Callable[[Sock, bytes], None]:
    def setter(sk: Sock, value: bytes) -> None:
        check(len(value) >= _TIMEVAL.size)
        seconds, us = _TIMEVAL.unpack_from(value)
        if not 0 <= us < 1_000_000:
            fail(errno.EDOM)
        if seconds < 0:
            total = 0
        elif seconds or us:
            total = ticks(sk, seconds * 1_000_000 + us) * sk.sysctl.tick_ns // 1000
        else:
            total = FOREVER
        keep(sk, (SOL_SOCKET, name), total)

    return setter


def timeout_us(sk: Sock, name: int) -> int:
    """SO_RCVTIMEO or SO_SNDTIMEO: us a blocking call waits; 0 = not at all, FOREVER = no limit."""
    return (sk.optmem or {}).get((SOL_SOCKET, name), FOREVER)


def _get_timeout(name: int) -> Getter:
    def getter(sk: Sock) -> bytes:
        total = timeout_us(sk, name)
        return _TIMEVAL.pack(*divmod(max(total, 0), 1_000_000))

    return getter


def _set_pacing(sk: Sock, value: bytes) -> None:
    """Bytes per second as 32 or 64 bits; all ones = no limit. From the first limit on packets are spaced."""
    check(len(value) >= 4)
    if len(value) >= 8:
        rate = _U64.unpack_from(value)[0]
    else:
        rate = int.from_bytes(value[:4], "little")
        if rate == M32:
            rate = UNLIMITED_RATE
    if rate != UNLIMITED_RATE and not sk.pacing_status:
        sk.pacing_status = 1
    sk.max_pacing_rate = rate
    sk.pacing_rate = min(sk.pacing_rate, rate)


def _set_cnx_advice(sk: Sock, value: int) -> None:
    """1: the program says the path is bad; try another flow hash."""
    if value == 1:
        sk.host.rehash(sk)


def _get_cookie(sk: Sock) -> bytes:
    """A number no other socket of the stack has, chosen when first asked for."""
    key = (SOL_SOCKET, SO_COOKIE)
    if sk.optmem is None or key not in sk.optmem:
        keep(sk, key, sk.host.random32() << 32 | sk.host.random32())
    assert sk.optmem is not None
    return _U64.pack(sk.optmem[key])


def _get_meminfo(sk: Sock) -> bytes:
    return _MEMINFO.pack(sk.rmem_alloc, sk.rcvbuf, max(sk.wmem_alloc - 1, 0), sk.sndbuf, sk.forward_alloc, sk.wmem_queued, md5.option_memory(sk), 0, 0)


def _set_reserve_mem(sk: Sock, value: int) -> None:
    check(value >= 0)
    fail(errno.EOPNOTSUPP, "no memory control group to reserve from")


def _set_txrehash(sk: Sock, value: int) -> None:
    check(-1 <= value <= 1)
    keep(sk, (SOL_SOCKET, SO_TXREHASH), 1 if value else 0)


def _set_device(sk: Sock, value: bytes) -> None:
    """SO_BINDTODEVICE: an interface's name; none frees the socket from its device."""
    name = value[: IFNAMSIZ - 1].partition(b"\0")[0]
    index = sk.host.dev_index(name.decode("utf-8", "replace")) if name else 0
    if name and not index:
        fail(errno.ENODEV)
    sk.host.bind_device(sk, index)


def _get_device(sk: Sock) -> bytes:
    if not sk.bound_dev_if:
        return b""
    name = sk.host.dev_name(sk.bound_dev_if)
    if not name:
        fail(errno.ENODEV)
    return name.encode() + b"\0"


def _set_ifindex(sk: Sock, value: int) -> None:
    """SO_BINDTOIFINDEX: nobody asks whether there is such an interface."""
    check(value >= 0)
    sk.host.bind_device(sk, value)


def _set_buf_lock(sk: Sock, value: int) -> None:
    check(not value & ~(SNDBUF_LOCK | RCVBUF_LOCK))
    sk.sndbuf_locked = bool(value & SNDBUF_LOCK)
    sk.rcvbuf_locked = bool(value & RCVBUF_LOCK)


def _get_buf_lock(sk: Sock) -> int:
    return SNDBUF_LOCK * sk.sndbuf_locked | RCVBUF_LOCK * sk.rcvbuf_locked


def _set_timestamping(name: int) -> ByteSetter:
    """SO_TIMESTAMPING and its namesake of 64 bits: flags, and in a value of 8 bytes a hardware clock, which no device here has."""

    def setter(sk: Sock, value: bytes) -> None:
        check(len(value) >= INT.size)
        timestamping.set_flags(sk, INT.unpack_from(value)[0])
        keep(sk, (SOL_SOCKET, SO_TIMESTAMPING_NEW), int(name == SO_TIMESTAMPING_NEW))
        rx_timestamps.update(sk)

    return setter


def _set_timestamp(name: int) -> Setter:
    """Of the four kinds of time stamps a socket has one; taking any off takes off what there is."""

    def setter(sk: Sock, value: int) -> None:
        if value:
            keep(sk, (SOL_SOCKET, SO_TIMESTAMPING_NEW), int(name in (SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW)))
        keep(sk, rx_timestamps.KIND, _TIMESTAMPS[name] if value else 0)
        rx_timestamps.update(sk)

    return setter


def _get_timestamp(name: int) -> Getter:
    def getter(sk: Sock) -> int:
        kind = (sk.optmem or {}).get(rx_timestamps.KIND, 0)
        if name == SO_TIMESTAMP_NEW:
            # that of nanoseconds is also one of the new kind, to Linux
            return int(bool(kind) and new_timestamps(sk))
        return int(kind == _TIMESTAMPS[name] and new_timestamps(sk) == (name == SO_TIMESTAMPNS_NEW))

    return getter


def _get_timestamping_new(sk: Sock) -> bytes:
    """Only what was set by this name."""
    return _TIMESTAMPING.pack(sk.tstamp_flags if new_timestamps(sk) else 0, 0)


def new_timestamps(sk: Sock) -> bool:
    """Whether time stamps come as SCM_TIMESTAMPING_NEW."""
    return sk.optmem is not None and bool(sk.optmem.get((SOL_SOCKET, SO_TIMESTAMPING_NEW)))


def _set_txtime(sk: Sock, value: bytes) -> None:
    """A stream takes SCM_TXTIME with its data from now on, and does nothing about it."""
    check(len(value) == _TXTIME.size)
    clock, flags = _TXTIME.unpack(value)
    check(not flags & ~TXTIME_FLAGS and clock in CLOCKS)
    keep(sk, (SOL_SOCKET, SO_TXTIME), _U64.unpack(value)[0])


def takes_txtime(sk: Sock) -> bool:
    """Whether SO_TXTIME was set."""
    return sk.optmem is not None and (SOL_SOCKET, SO_TXTIME) in sk.optmem


def _get_txtime(sk: Sock) -> bytes:
    return _U64.pack((sk.optmem or {}).get((SOL_SOCKET, SO_TXTIME), 0))


def _set_busy_poll_budget(sk: Sock, value: int) -> None:
    """How many packets a poll takes from a device; no socket here polls one. It cannot be read."""
    check(0 <= value <= MAX_BUDGET)


def _get_netns_cookie(sk: Sock, room: int) -> bytes:
    """A number that tells stacks apart."""
    check(room == _U64.size)
    return blake2b(sk.host.secret(), digest_size=_U64.size, person=b"netns").digest()


def _set_nothing(sk: Sock, value: int) -> None:
    """Of another age: accepted, and of no effect."""


def _unsupported(sk: Sock) -> NoReturn:
    fail(errno.EOPNOTSUPP)


# ---------------------------------------------------------------- tables

_KEPT: dict[Key, int] = {
    (SOL_SOCKET, SO_DEBUG): 0,
    (SOL_SOCKET, SO_DONTROUTE): 0,
    (SOL_SOCKET, SO_BROADCAST): 0,
    (SOL_SOCKET, SO_NO_CHECK): 0,
    (SOL_SOCKET, SO_RXQ_OVFL): 0,
    (SOL_SOCKET, SO_WIFI_STATUS): 0,
    (SOL_SOCKET, SO_NOFCS): 0,
    (SOL_SOCKET, SO_LOCK_FILTER): 0,
    (SOL_SOCKET, SO_SELECT_ERR_QUEUE): 0,
    (SOL_SOCKET, SO_BUSY_POLL): 0,
    (SOL_SOCKET, SO_ZEROCOPY): 0,
    (SOL_SOCKET, SO_INCOMING_CPU): -1,
    (SOL_SOCKET, SO_PREFER_BUSY_POLL): 0,
    (SOL_SOCKET, SO_TXREHASH): 1,
    (SOL_SOCKET, SO_RCVMARK): 0,
    (SOL_SOCKET, SO_RCVPRIORITY): 0,
}
defaults |= _KEPT

_TIMESTAMPS = {
    SO_TIMESTAMP: rx_timestamps.MICROSECONDS,
    SO_TIMESTAMPNS: rx_timestamps.NANOSECONDS,
    SO_TIMESTAMP_NEW: rx_timestamps.MICROSECONDS,
    SO_TIMESTAMPNS_NEW: rx_timestamps.NANOSECONDS,
}
_OF_UNIX_SOCKETS = (SO_PASSCRED, SO_PASSSEC, SO_PASSPIDFD, SO_PASSRIGHTS)

SET: dict[Key, Setter] = (
    {key: flag(key) for key in _KEPT}
    | {(SOL_SOCKET, name): _set_timestamp(name) for name in _TIMESTAMPS}
    | {
        (SOL_SOCKET, SO_REUSEADDR): _set_reuseaddr,
        (SOL_SOCKET, SO_REUSEPORT): _set_reuseport,
        (SOL_SOCKET, SO_SNDBUF): _set_sndbuf,
        (SOL_SOCKET, SO_RCVBUF): rwnd.set_rcvbuf,
        (SOL_SOCKET, SO_SNDBUFFORCE): _force_sndbuf,
        (SOL_SOCKET, SO_RCVBUFFORCE): _force_rcvbuf,
        (SOL_SOCKET, SO_KEEPALIVE): _set_keepalive,
        (SOL_SOCKET, SO_OOBINLINE): _set_oobinline,
        (SOL_SOCKET, SO_PRIORITY): _set_priority,
        (SOL_SOCKET, SO_RCVLOWAT): rwnd.set_rcvlowat,
        (SOL_SOCKET, SO_MARK): _set_mark,
        (SOL_SOCKET, SO_PEEK_OFF): _set_peek_off,
        (SOL_SOCKET, SO_LOCK_FILTER): _set_lock_filter,
        (SOL_SOCKET, SO_ZEROCOPY): in_range((SOL_SOCKET, SO_ZEROCOPY), 0, 1),
        (SOL_SOCKET, SO_BUSY_POLL): in_range((SOL_SOCKET, SO_BUSY_POLL), 0, INT_MAX),
        (SOL_SOCKET, SO_INCOMING_CPU): in_range((SOL_SOCKET, SO_INCOMING_CPU), -INT_MAX - 1, INT_MAX),
        (SOL_SOCKET, SO_CNX_ADVICE): _set_cnx_advice,
        (SOL_SOCKET, SO_RESERVE_MEM): _set_reserve_mem,
        (SOL_SOCKET, SO_TXREHASH): _set_txrehash,
        (SOL_SOCKET, SO_BINDTOIFINDEX): _set_ifindex,
        (SOL_SOCKET, SO_BUF_LOCK): _set_buf_lock,
        (SOL_SOCKET, SO_BUSY_POLL_BUDGET): _set_busy_poll_budget,
        (SOL_SOCKET, SO_BSDCOMPAT): _set_nothing,
    }
)

SET_BYTES: dict[Key, ByteSetter] = {
    (SOL_SOCKET, SO_LINGER): _set_linger,
    (SOL_SOCKET, SO_RCVTIMEO): _set_timeout(SO_RCVTIMEO),
    (SOL_SOCKET, SO_SNDTIMEO): _set_timeout(SO_SNDTIMEO),
    (SOL_SOCKET, SO_RCVTIMEO_NEW): _set_timeout(SO_RCVTIMEO),
    (SOL_SOCKET, SO_SNDTIMEO_NEW): _set_timeout(SO_SNDTIMEO),
    (SOL_SOCKET, SO_BINDTODEVICE): _set_device,
    (SOL_SOCKET, SO_MAX_PACING_RATE): _set_pacing,
    **{(SOL_SOCKET, name): _set_timestamping(name) for name in (SO_TIMESTAMPING, SO_TIMESTAMPING_NEW)},
    (SOL_SOCKET, SO_TXTIME): _set_txtime,
    **{(SOL_SOCKET, name): refuse(errno.EOPNOTSUPP, INT.size) for name in _OF_UNIX_SOCKETS},
}

# what the room for the answer changes
GET_SIZED: dict[Key, SizedGetter] = {
    (SOL_SOCKET, SO_MAX_PACING_RATE): _get_max_pacing_rate,
    (SOL_SOCKET, SO_NETNS_COOKIE): _get_netns_cookie,
}

GET: dict[Key, Getter] = (
    {key: kept_getter(key) for key in _KEPT}
    | {(SOL_SOCKET, name): _get_timestamp(name) for name in _TIMESTAMPS}
    | {
        (SOL_SOCKET, SO_REUSEADDR): field("reuseaddr"),
        (SOL_SOCKET, SO_REUSEPORT): field("reuseport"),
        (SOL_SOCKET, SO_TYPE): constant(SOCK_STREAM),
        (SOL_SOCKET, SO_ERROR): take_error,
        (SOL_SOCKET, SO_SNDBUF): field("sndbuf"),
        (SOL_SOCKET, SO_RCVBUF): field("rcvbuf"),
        (SOL_SOCKET, SO_KEEPALIVE): field("keepopen"),
        (SOL_SOCKET, SO_OOBINLINE): field("rx_opt_oobinline"),
        (SOL_SOCKET, SO_PRIORITY): field("priority"),
        (SOL_SOCKET, SO_LINGER): _get_linger,
        (SOL_SOCKET, SO_RCVLOWAT): field("rcvlowat"),
        (SOL_SOCKET, SO_SNDLOWAT): constant(1),
        (SOL_SOCKET, SO_RCVTIMEO): _get_timeout(SO_RCVTIMEO),
        (SOL_SOCKET, SO_SNDTIMEO): _get_timeout(SO_SNDTIMEO),
        (SOL_SOCKET, SO_ACCEPTCONN): lambda sk: int(1 << sk.state & SF_LISTEN != 0),
        (SOL_SOCKET, SO_MARK): field("mark"),
        (SOL_SOCKET, SO_PROTOCOL): constant(IPPROTO_TCP),
        (SOL_SOCKET, SO_DOMAIN): lambda sk: AF_INET if sk.family == 4 else AF_INET6,
        (SOL_SOCKET, SO_PEEK_OFF): field("peek_off"),
        (SOL_SOCKET, SO_TIMESTAMPING): lambda sk: _TIMESTAMPING.pack(sk.tstamp_flags, 0),
        (SOL_SOCKET, SO_TIMESTAMPING_NEW): _get_timestamping_new,
        (SOL_SOCKET, SO_TXTIME): _get_txtime,
        (SOL_SOCKET, SO_MEMINFO): _get_meminfo,
        (SOL_SOCKET, SO_COOKIE): _get_cookie,
        (SOL_SOCKET, SO_RESERVE_MEM): constant(0),
        (SOL_SOCKET, SO_RCVTIMEO_NEW): _get_timeout(SO_RCVTIMEO),
        (SOL_SOCKET, SO_SNDTIMEO_NEW): _get_timeout(SO_SNDTIMEO),
        (SOL_SOCKET, SO_BINDTODEVICE): _get_device,
        (SOL_SOCKET, SO_BINDTOIFINDEX): field("bound_dev_if"),
        (SOL_SOCKET, SO_BUF_LOCK): _get_buf_lock,
        (SOL_SOCKET, SO_BSDCOMPAT): constant(0),
        (SOL_SOCKET, SO_BPF_EXTENSIONS): constant(BPF_EXTENSIONS),
        (SOL_SOCKET, SO_INCOMING_NAPI_ID): constant(0),
        (SOL_SOCKET, SO_PEERCRED): lambda sk: _NOBODY,
        **{(SOL_SOCKET, name): _unsupported for name in _OF_UNIX_SOCKETS},
    }
)
# the least that a buffer must hold, where a shorter one is refused
LEAST: dict[Key, Callable[[Sock], int]] = {
    (SOL_SOCKET, SO_COOKIE): lambda sk: _U64.size,
    (SOL_SOCKET, SO_BINDTODEVICE): lambda sk: IFNAMSIZ if sk.bound_dev_if else 0,
}
