"""setsockopt and getsockopt of a UDP socket: Linux's names, ranges and refusals, as measured on 6.18.

Most are a field of the endpoint with a range; some are only remembered, because they mean nothing here
(SO_PRIORITY, SO_MARK) or because they ask for control data, which `udp_control` makes. What belongs to
features that do not exist here (time stamps of what is sent, MSG_ZEROCOPY) is ENOPROTOOPT, as from a kernel
without them. `udp_options_ip` has the levels of IP.
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING

from pytcp.net.datagram import MIN_RCVBUF, MIN_SNDBUF

from . import udp_options_ip
from .address import AF_INET, oserror
from .udp_kinds import (
    INT,
    IPPROTO_IP,
    IPPROTO_UDP,
    SOL_SOCKET,
    ByteSetter,
    Getter,
    Key,
    Setter,
    check,
    constant,
    field,
    flag,
    keep,
    keep_bytes,
    keep_flag,
    keep_range,
    kept,
    unreadable,
)

if TYPE_CHECKING:
    from pytcp.net.datagram import UdpSocket

    from .udp import DatagramSocket

SO_DEBUG, SO_REUSEADDR, SO_TYPE, SO_ERROR, SO_DONTROUTE, SO_BROADCAST, SO_SNDBUF, SO_RCVBUF, SO_KEEPALIVE, SO_OOBINLINE, SO_NO_CHECK = range(1, 12)
SO_PRIORITY, SO_LINGER, SO_REUSEPORT, SO_RCVLOWAT, SO_SNDLOWAT, SO_RCVTIMEO, SO_SNDTIMEO, SO_BINDTODEVICE = 12, 13, 15, 18, 19, 20, 21, 25
SO_ACCEPTCONN, SO_MARK, SO_PROTOCOL, SO_DOMAIN, SO_INCOMING_CPU, SO_BINDTOIFINDEX = 30, 36, 38, 39, 49, 62
SO_BSDCOMPAT, SO_PASSCRED, SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_PASSSEC, SO_WIFI_STATUS, SO_NOFCS, SO_SELECT_ERR_QUEUE = 14, 16, 32, 33, 34, 41, 43, 45
SO_BUSY_POLL, SO_BPF_EXTENSIONS, SO_MEMINFO, SO_INCOMING_NAPI_ID, SO_COOKIE, SO_RCVTIMEO_NEW, SO_SNDTIMEO_NEW = 46, 48, 55, 56, 57, 66, 67
SO_PREFER_BUSY_POLL, SO_PEERNAME, SO_PEERCRED, SO_TIMESTAMP, SO_TIMESTAMPNS, SO_RXQ_OVFL, SO_PEEK_OFF, SO_LOCK_FILTER = 69, 28, 17, 29, 35, 40, 42, 44
SO_MAX_PACING_RATE, SO_CNX_ADVICE, SO_TXTIME, SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW, SO_BUF_LOCK, SO_RESERVE_MEM, SO_TXREHASH = 47, 53, 61, 63, 64, 72, 73, 74
SO_RCVMARK, SO_PASSPIDFD, SO_RCVPRIORITY, SO_PASSRIGHTS = 75, 76, 82, 83
UDP_CORK, UDPLITE_SEND_CSCOV, UDPLITE_RECV_CSCOV, UDP_NO_CHECK6_TX, UDP_NO_CHECK6_RX, UDP_SEGMENT, UDP_GRO = 1, 10, 11, 101, 102, 103, 104

IFNAMSIZ = 16
SOCK_DGRAM = 2
SNDBUF_LOCK, RCVBUF_LOCK = 1, 2
CLOCKS = (0, 1, 11)  # CLOCK_REALTIME, MONOTONIC, TAI
TXTIME_FLAGS = 3
_TXTIME = struct.Struct("=iI")
_U64 = struct.Struct("=Q")
_UNLIMITED = (1 << 64) - 1
_NOBODY = struct.pack("=iii", 0, -1, -1)  # struct ucred of no process


def setsockopt(so: DatagramSocket, udp: UdpSocket, level: int, name: int, value: int | bytes) -> None:
    """Set an option from an int or from bytes as the system call takes them. Raises ENOPROTOOPT, EINVAL, ENODEV, ..."""
    key = (level, name)
    _check_level(so, level, errno.ENOPROTOOPT)
    special = _SET_BYTES.get(key)
    if special is not None:
        special(so, udp, INT.pack(_signed(value)) if isinstance(value, int) else bytes(value))
        return
    setter = _SET.get(key)
    if setter is None and level not in (SOL_SOCKET, IPPROTO_UDP):
        raise oserror(errno.ENOPROTOOPT, f"option {name} of level {level}")
    if isinstance(value, int):
        number = _signed(value)
    elif len(value) >= 4:
        number = INT.unpack_from(value)[0]
    elif level == IPPROTO_IP and (value or key not in udp_options_ip.NOT_EMPTY):
        number = value[0] if value else 0
    elif key in udp_options_ip.LENGTH_UNCHECKED:
        number = 0
    else:
        raise oserror(errno.EINVAL, f"{len(value)} bytes for option {name} of level {level}")
    if setter is None:
        raise oserror(errno.ENOPROTOOPT, f"option {name} of level {level}")
    setter(so, udp, number)


def getsockopt(so: DatagramSocket, udp: UdpSocket, level: int, name: int, buflen: int = 0) -> int | bytes:
    """The value of an option: an int, or with `buflen` the first bytes of what the system call would write."""
    _check_level(so, level, errno.EOPNOTSUPP)
    getter = _GET.get((level, name))
    if getter is None:
        raise oserror(errno.ENOPROTOOPT, f"option {name} of level {level}")
    if (buflen or INT.size) < _least(udp, level, name):
        raise oserror(errno.EINVAL, f"a buffer of {buflen or INT.size} bytes for option {name} of level {level}")
    value = getter(so, udp)
    if not buflen:
        return value if isinstance(value, int) else int(INT.unpack(value[:4].ljust(4, b"\0"))[0])
    if isinstance(value, int):
        if level == IPPROTO_IP and buflen < 4 and 0 <= value <= 255:
            return bytes((value,))
        value = INT.pack(value)
    return value[:buflen]


def _check_level(so: DatagramSocket, level: int, number: int) -> None:
    """An AF_INET socket knows nothing of other families' levels, and says so in its own way."""
    if so.family == AF_INET and level not in (SOL_SOCKET, IPPROTO_IP, IPPROTO_UDP):
        raise oserror(number, f"level {level}")


def _least(udp: UdpSocket, level: int, name: int) -> int:
    """The shortest buffer that getsockopt takes."""
    if level != SOL_SOCKET:
        return 0
    return 8 if name == SO_COOKIE else IFNAMSIZ if name == SO_BINDTODEVICE and udp.bound_dev_if else 0


def _signed(value: int) -> int:
    return value if value < 1 << 31 else value - (1 << 32)


# ---------------------------------------------------------------- single options


def _lock(so: DatagramSocket, bit: int) -> None:
    key = (SOL_SOCKET, SO_BUF_LOCK)
    old = so.kept.get(key, 0)
    assert isinstance(old, int)
    so.kept[key] = old | bit


def _set_rcvbuf(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    udp.set_rcvbuf(value)
    _lock(so, RCVBUF_LOCK)


def _set_sndbuf(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    udp.set_sndbuf(value)
    _lock(so, SNDBUF_LOCK)


def _set_rcvlowat(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    so.kept[SOL_SOCKET, SO_RCVLOWAT] = (1 << 31) - 1 if value < 0 else value or 1


def _force_rcvbuf(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    udp.rcvbuf = max(2 * min(max(value, 0), (1 << 30) - 1), MIN_RCVBUF)
    _lock(so, RCVBUF_LOCK)


def _force_sndbuf(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    udp.sndbuf = max(2 * min(max(value, 0), (1 << 30) - 1), MIN_SNDBUF)
    _lock(so, SNDBUF_LOCK)


def _set_nothing(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    """Accepted, and of no effect."""


def _set_unsupported(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    raise oserror(errno.EOPNOTSUPP)


def _set_reserve_mem(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    check(value >= 0, value)
    raise oserror(errno.EOPNOTSUPP)


def _set_lock_filter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    key = (SOL_SOCKET, SO_LOCK_FILTER)
    if not value and so.kept.get(key):
        raise oserror(errno.EPERM, "once locked, for ever locked")
    so.kept[key] = int(bool(value))


def _set_pacing(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
    check(len(value) >= INT.size, len(value))
    if len(value) >= _U64.size:
        rate = _U64.unpack_from(value)[0]
    else:
        rate = int.from_bytes(value[:4], "little")
        rate = _UNLIMITED if rate == 0xFFFFFFFF else rate
    so.kept[SOL_SOCKET, SO_MAX_PACING_RATE] = _U64.pack(rate)


def _set_txtime(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
    """SCM_TXTIME may come with a datagram now. No queueing discipline here looks at it: it leaves at once."""
    check(len(value) == _TXTIME.size, len(value))
    clock, flags = _TXTIME.unpack(value)
    check(not flags & ~TXTIME_FLAGS and clock in CLOCKS, clock)
    so.kept[SOL_SOCKET, SO_TXTIME] = value


def _set_stamps(option: int) -> Setter:
    """Of the four kinds of time stamps a socket has one; taking any off takes off what there is."""

    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        udp.stamps = option if value else 0

    return setter


def _get_stamps(option: int) -> Getter:
    def getter(so: DatagramSocket, udp: UdpSocket) -> int:
        # the new kind with nanoseconds is also one of the new kind, to Linux
        return int(udp.stamps == option or (option == SO_TIMESTAMP_NEW and udp.stamps == SO_TIMESTAMPNS_NEW))

    return getter


def _set_peek_off(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    udp.peek_off = value


def _get_cookie(so: DatagramSocket, udp: UdpSocket) -> bytes:
    """A number no other socket of the stack has, chosen when first asked for."""
    key = (SOL_SOCKET, SO_COOKIE)
    if key not in so.kept:
        so.kept[key] = udp.stack.random.getrandbits(64)
    cookie = so.kept[key]
    assert isinstance(cookie, int)
    return cookie.to_bytes(8, "little")


def _get_meminfo(so: DatagramSocket, udp: UdpSocket) -> bytes:
    return struct.pack("=9I", udp.rmem, udp.rcvbuf, 0, udp.sndbuf, 0, 0, 0, 0, udp.drops)


def _get_error(so: DatagramSocket, udp: UdpSocket) -> int:
    return udp.so_error()


def _get_domain(so: DatagramSocket, udp: UdpSocket) -> int:
    return so.family


def _set_device(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
    name = value.partition(b"\0")[0].decode(errors="replace")
    udp.bound_dev_if = udp.stack.interface(name).index if name else 0


def _get_device(so: DatagramSocket, udp: UdpSocket) -> bytes:
    return udp.stack.device(udp.bound_dev_if).name.encode() + b"\0" if udp.bound_dev_if else b""


def _set_ifindex(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    """Nobody asks whether there is one."""
    check(value >= 0, value)
    udp.bound_dev_if = value


def _set_cork(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    so.cork(bool(value))


def _set_segment(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    check(0 <= value <= 0xFFFF, value)
    udp.gso_size = value


def _get_cork(so: DatagramSocket, udp: UdpSocket) -> int:
    return int(so.corked)


# ---------------------------------------------------------------- tables

_FLAGS_KEPT: dict[Key, int] = {
    **{(SOL_SOCKET, name): 0 for name in (SO_DEBUG, SO_DONTROUTE, SO_KEEPALIVE, SO_OOBINLINE, SO_WIFI_STATUS, SO_NOFCS, SO_SELECT_ERR_QUEUE)},
    **{(SOL_SOCKET, name): 0 for name in (SO_PREFER_BUSY_POLL, SO_RXQ_OVFL, SO_RCVMARK, SO_RCVPRIORITY)},
}
_NUMBERS_KEPT: dict[Key, int] = {(SOL_SOCKET, SO_PRIORITY): 0, (SOL_SOCKET, SO_MARK): 0, (SOL_SOCKET, SO_INCOMING_CPU): -1}
_RANGES: dict[Key, tuple[int, int]] = {(SOL_SOCKET, SO_BUSY_POLL): (0, (1 << 31) - 1), (SOL_SOCKET, SO_BUF_LOCK): (0, SNDBUF_LOCK | RCVBUF_LOCK)}
_BYTES_KEPT: dict[Key, bytes] = {(SOL_SOCKET, SO_LINGER): bytes(8), (SOL_SOCKET, SO_RCVTIMEO): bytes(16), (SOL_SOCKET, SO_SNDTIMEO): bytes(16)}
_STAMPS = (SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW)
_UNSUPPORTED = (SO_PASSCRED, SO_PASSSEC, SO_TXREHASH, SO_PASSPIDFD, SO_PASSRIGHTS)

_SET: dict[Key, Setter] = (
    udp_options_ip.SET
    | {key: keep_flag(key) for key in _FLAGS_KEPT}
    | {key: keep(key) for key in _NUMBERS_KEPT}
    | {key: keep_range(key, *span) for key, span in _RANGES.items()}
    | {(SOL_SOCKET, name): _set_stamps(name) for name in _STAMPS}
    | {(SOL_SOCKET, name): _set_unsupported for name in _UNSUPPORTED}
    | {
        (SOL_SOCKET, SO_REUSEADDR): flag("reuseaddr"),
        (SOL_SOCKET, SO_REUSEPORT): flag("reuseport"),
        (SOL_SOCKET, SO_BROADCAST): flag("broadcast"),
        (SOL_SOCKET, SO_NO_CHECK): flag("no_check"),
        (SOL_SOCKET, SO_RCVBUF): _set_rcvbuf,
        (SOL_SOCKET, SO_SNDBUF): _set_sndbuf,
        (SOL_SOCKET, SO_RCVLOWAT): _set_rcvlowat,
        (SOL_SOCKET, SO_PEEK_OFF): _set_peek_off,
        (SOL_SOCKET, SO_LOCK_FILTER): _set_lock_filter,
        (SOL_SOCKET, SO_BINDTOIFINDEX): _set_ifindex,
        (SOL_SOCKET, SO_RCVBUFFORCE): _force_rcvbuf,
        (SOL_SOCKET, SO_SNDBUFFORCE): _force_sndbuf,
        (SOL_SOCKET, SO_BSDCOMPAT): _set_nothing,
        (SOL_SOCKET, SO_CNX_ADVICE): _set_nothing,
        (SOL_SOCKET, SO_RESERVE_MEM): _set_reserve_mem,
        (IPPROTO_UDP, UDP_CORK): _set_cork,
        (IPPROTO_UDP, UDP_NO_CHECK6_TX): flag("no_check6_tx"),
        (IPPROTO_UDP, UDP_NO_CHECK6_RX): flag("no_check6_rx"),
        (IPPROTO_UDP, UDP_SEGMENT): _set_segment,
        (IPPROTO_UDP, UDP_GRO): flag("gro"),
    }
)

_SET_BYTES: dict[Key, ByteSetter] = (
    udp_options_ip.SET_BYTES
    | {key: keep_bytes(key, len(initial)) for key, initial in _BYTES_KEPT.items()}
    | {
        (SOL_SOCKET, SO_BINDTODEVICE): _set_device,
        (SOL_SOCKET, SO_MAX_PACING_RATE): _set_pacing,
        (SOL_SOCKET, SO_TXTIME): _set_txtime,
        (SOL_SOCKET, SO_RCVTIMEO_NEW): keep_bytes((SOL_SOCKET, SO_RCVTIMEO), 16),
        (SOL_SOCKET, SO_SNDTIMEO_NEW): keep_bytes((SOL_SOCKET, SO_SNDTIMEO), 16),
    }
)

_GET: dict[Key, Getter] = (
    udp_options_ip.GET
    | {key: kept(key, default) for key, default in (_FLAGS_KEPT | _NUMBERS_KEPT | _BYTES_KEPT).items()}
    | {key: kept(key, 0) for key in _RANGES}
    | {(SOL_SOCKET, name): _get_stamps(name) for name in _STAMPS}
    | {(SOL_SOCKET, name): unreadable(errno.EOPNOTSUPP) for name in _UNSUPPORTED}
    | {
        (SOL_SOCKET, SO_REUSEADDR): field("reuseaddr"),
        (SOL_SOCKET, SO_REUSEPORT): field("reuseport"),
        (SOL_SOCKET, SO_BROADCAST): field("broadcast"),
        (SOL_SOCKET, SO_NO_CHECK): field("no_check"),
        (SOL_SOCKET, SO_RCVBUF): field("rcvbuf"),
        (SOL_SOCKET, SO_SNDBUF): field("sndbuf"),
        (SOL_SOCKET, SO_RCVLOWAT): kept((SOL_SOCKET, SO_RCVLOWAT), 1),
        (SOL_SOCKET, SO_SNDLOWAT): constant(1),
        (SOL_SOCKET, SO_TYPE): constant(SOCK_DGRAM),
        (SOL_SOCKET, SO_PROTOCOL): constant(IPPROTO_UDP),
        (SOL_SOCKET, SO_DOMAIN): _get_domain,
        (SOL_SOCKET, SO_ERROR): _get_error,
        (SOL_SOCKET, SO_ACCEPTCONN): constant(0),
        (SOL_SOCKET, SO_PEERCRED): kept((SOL_SOCKET, SO_PEERCRED), _NOBODY),
        (SOL_SOCKET, SO_PEEK_OFF): field("peek_off"),
        (SOL_SOCKET, SO_LOCK_FILTER): kept((SOL_SOCKET, SO_LOCK_FILTER), 0),
        (SOL_SOCKET, SO_BINDTODEVICE): _get_device,
        (SOL_SOCKET, SO_BINDTOIFINDEX): field("bound_dev_if"),
        (SOL_SOCKET, SO_MAX_PACING_RATE): kept((SOL_SOCKET, SO_MAX_PACING_RATE), _U64.pack(_UNLIMITED)),
        (SOL_SOCKET, SO_TXTIME): kept((SOL_SOCKET, SO_TXTIME), bytes(_TXTIME.size)),
        (SOL_SOCKET, SO_RCVTIMEO_NEW): kept((SOL_SOCKET, SO_RCVTIMEO), bytes(16)),
        (SOL_SOCKET, SO_SNDTIMEO_NEW): kept((SOL_SOCKET, SO_SNDTIMEO), bytes(16)),
        (SOL_SOCKET, SO_BPF_EXTENSIONS): constant(64),
        (SOL_SOCKET, SO_INCOMING_NAPI_ID): constant(0),
        (SOL_SOCKET, SO_BSDCOMPAT): constant(0),
        (SOL_SOCKET, SO_RESERVE_MEM): constant(0),
        (SOL_SOCKET, SO_COOKIE): _get_cookie,
        (SOL_SOCKET, SO_MEMINFO): _get_meminfo,
        (IPPROTO_UDP, UDP_CORK): _get_cork,
        (IPPROTO_UDP, UDP_NO_CHECK6_TX): field("no_check6_tx"),
        (IPPROTO_UDP, UDP_NO_CHECK6_RX): field("no_check6_rx"),
        (IPPROTO_UDP, UDP_SEGMENT): field("gso_size"),
        (IPPROTO_UDP, UDP_GRO): field("gro"),
        (IPPROTO_UDP, UDPLITE_SEND_CSCOV): constant(0),
        (IPPROTO_UDP, UDPLITE_RECV_CSCOV): constant(0),
    }
)
