"""setsockopt and getsockopt of a UDP socket: Linux's names, ranges and refusals, as measured on 6.18.

Most are a field of the endpoint with a range; some are only remembered, because they mean nothing here
(SO_PRIORITY, SO_MARK) or because they ask for control data, which `udp_control` makes. What belongs to
features that do not exist here (time stamps) is ENOPROTOOPT, as from a kernel
without them.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytcp.net.datagram import MIN_RCVBUF, MIN_SNDBUF
from pytcp.wire.addr import IP4_ANY, is_multicast

from .address import AF_INET, oserror

if TYPE_CHECKING:
    from pytcp.net.datagram import UdpSocket
    from pytcp.net.interface import Interface

    from .udp import DatagramSocket

SOL_SOCKET, IPPROTO_IP, IPPROTO_UDP, IPPROTO_IPV6 = 1, 0, 17, 41

SO_DEBUG, SO_REUSEADDR, SO_TYPE, SO_ERROR, SO_DONTROUTE, SO_BROADCAST, SO_SNDBUF, SO_RCVBUF, SO_KEEPALIVE, SO_OOBINLINE, SO_NO_CHECK = range(1, 12)
SO_PRIORITY, SO_LINGER, SO_REUSEPORT, SO_RCVLOWAT, SO_SNDLOWAT, SO_RCVTIMEO, SO_SNDTIMEO, SO_BINDTODEVICE = 12, 13, 15, 18, 19, 20, 21, 25
SO_ACCEPTCONN, SO_MARK, SO_PROTOCOL, SO_DOMAIN, SO_INCOMING_CPU, SO_BINDTOIFINDEX = 30, 36, 38, 39, 49, 62
SO_BSDCOMPAT, SO_PASSCRED, SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_PASSSEC, SO_WIFI_STATUS, SO_NOFCS, SO_SELECT_ERR_QUEUE = 14, 16, 32, 33, 34, 41, 43, 45
SO_BUSY_POLL, SO_BPF_EXTENSIONS, SO_MEMINFO, SO_INCOMING_NAPI_ID, SO_COOKIE, SO_RCVTIMEO_NEW, SO_SNDTIMEO_NEW = 46, 48, 55, 56, 57, 66, 67
SO_PREFER_BUSY_POLL, SO_PEERNAME = 69, 28
IFNAMSIZ = 16

IP_TOS, IP_TTL, IP_PKTINFO, IP_MTU_DISCOVER, IP_RECVERR, IP_RECVTTL, IP_RECVTOS, IP_MTU, IP_FREEBIND = 1, 2, 8, 10, 11, 12, 13, 14, 15
IP_BIND_ADDRESS_NO_PORT, IP_MULTICAST_IF, IP_MULTICAST_TTL, IP_MULTICAST_LOOP = 24, 32, 33, 34
IP_ADD_MEMBERSHIP, IP_DROP_MEMBERSHIP, IP_MULTICAST_ALL, IP_LOCAL_PORT_RANGE = 35, 36, 49, 51

IPV6_UNICAST_HOPS, IPV6_MULTICAST_IF, IPV6_MULTICAST_HOPS, IPV6_MULTICAST_LOOP, IPV6_JOIN_GROUP, IPV6_LEAVE_GROUP = 16, 17, 18, 19, 20, 21
IPV6_MTU_DISCOVER, IPV6_MTU, IPV6_RECVERR, IPV6_V6ONLY, IPV6_MULTICAST_ALL, IPV6_RECVPKTINFO, IPV6_PKTINFO = 23, 24, 25, 26, 29, 49, 50
IPV6_RECVHOPLIMIT, IPV6_HOPLIMIT, IPV6_DONTFRAG, IPV6_RECVTCLASS, IPV6_TCLASS, IPV6_AUTOFLOWLABEL = 51, 52, 62, 66, 67, 70
UDP_CORK, UDP_NO_CHECK6_TX, UDP_NO_CHECK6_RX, UDP_SEGMENT, UDP_GRO = 1, 101, 102, 103, 104

SOCK_DGRAM = 2
PMTUDISC_OMIT = 5
INT = struct.Struct("=i")
_MREQ = 8  # struct ip_mreq; ip_mreqn has an interface index behind it
_IN6_MREQ = 20

Key = tuple[int, int]
Setter = Callable[["DatagramSocket", "UdpSocket", int], None]
Getter = Callable[["DatagramSocket", "UdpSocket"], "int | bytes"]
ByteSetter = Callable[["DatagramSocket", "UdpSocket", bytes], None]


def setsockopt(so: DatagramSocket, udp: UdpSocket, level: int, name: int, value: int | bytes) -> None:
    """Set an option from an int or from bytes as the system call takes them. Raises ENOPROTOOPT, EINVAL, ENODEV, ..."""
    key = (level, name)
    _check_level(so, level, errno.ENOPROTOOPT)
    special = _SET_BYTES.get(key)
    if special is not None:
        special(so, udp, INT.pack(_signed(value)) if isinstance(value, int) else bytes(value))
        return
    setter = _SET.get(key)
    if setter is None and level in (IPPROTO_IP, IPPROTO_IPV6):
        raise oserror(errno.ENOPROTOOPT, f"option {name} of level {level}")
    if isinstance(value, int):
        number = _signed(value)
    elif len(value) >= 4:
        number = INT.unpack_from(value)[0]
    elif level == IPPROTO_IP and (value or key not in _NOT_EMPTY):
        number = value[0] if value else 0
    elif key in _LENGTH_UNCHECKED:
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
    return 8 if name == SO_COOKIE else IFNAMSIZ if name == SO_BINDTODEVICE and udp.dev is not None else 0


def _signed(value: int) -> int:
    return value if value < 1 << 31 else value - (1 << 32)


def _check(ok: bool, value: int) -> None:
    if not ok:
        raise oserror(errno.EINVAL, f"value {value}")


# ---------------------------------------------------------------- makers


def _flag(name: str) -> Setter:
    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        setattr(udp, name, bool(value))

    return setter


def _strict_flag(name: str) -> Setter:
    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        _check(value in (0, 1), value)
        setattr(udp, name, bool(value))

    return setter


def _number(name: str, low: int, high: int, default: int) -> Setter:
    """A field from `low` to `high`; -1 is its default."""

    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        _check(value == -1 or low <= value <= high, value)
        setattr(udp, name, default if value == -1 else value)

    return setter


def _field(name: str) -> Getter:
    def getter(so: DatagramSocket, udp: UdpSocket) -> int:
        return int(getattr(udp, name))

    return getter


def _constant(value: int) -> Getter:
    def getter(so: DatagramSocket, udp: UdpSocket) -> int:
        return value

    return getter


def _keep(key: Key) -> Setter:
    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        so.kept[key] = value

    return setter


def _keep_flag(key: Key) -> Setter:
    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        so.kept[key] = int(bool(value))

    return setter


def _kept(key: Key, default: int | bytes) -> Getter:
    def getter(so: DatagramSocket, udp: UdpSocket) -> int | bytes:
        return so.kept.get(key, default)

    return getter


def _keep_bytes(key: Key, size: int) -> ByteSetter:
    def setter(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
        if len(value) < size:
            raise oserror(errno.EINVAL, f"{len(value)} bytes, not {size}")
        so.kept[key] = value[:size]

    return setter


# ---------------------------------------------------------------- single options


def _set_rcvbuf(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    udp.set_rcvbuf(value)


def _set_sndbuf(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    udp.set_sndbuf(value)


def _set_rcvlowat(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    so.kept[SOL_SOCKET, SO_RCVLOWAT] = (1 << 31) - 1 if value < 0 else value or 1


def _force_rcvbuf(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    udp.rcvbuf = max(2 * min(max(value, 0), (1 << 30) - 1), MIN_RCVBUF)


def _force_sndbuf(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    udp.sndbuf = max(2 * min(max(value, 0), (1 << 30) - 1), MIN_SNDBUF)


def _set_nothing(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    """Of another age: accepted, and of no effect."""


def _set_unsupported(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    raise oserror(errno.EOPNOTSUPP)


def _get_unsupported(so: DatagramSocket, udp: UdpSocket) -> int:
    raise oserror(errno.EOPNOTSUPP)


def _set_busy_poll(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    _check(value >= 0, value)
    so.kept[SOL_SOCKET, SO_BUSY_POLL] = value


def _set_port_range(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    low, high = value & 0xFFFF, value >> 16 & 0xFFFF
    _check(not low or not high or low <= high, value)
    udp.port_range = value


def _get_cookie(so: DatagramSocket, udp: UdpSocket) -> bytes:
    """A number no other socket of the stack has, chosen when first asked for."""
    key = (SOL_SOCKET, SO_COOKIE)
    if key not in so.kept:
        so.kept[key] = udp.stack.random.getrandbits(64)
    cookie = so.kept[key]
    assert isinstance(cookie, int)
    return cookie.to_bytes(8, "little")


def _get_meminfo(so: DatagramSocket, udp: UdpSocket) -> bytes:
    return struct.pack("=9I", udp.rmem, udp.rcvbuf, 0, udp.sndbuf, 0, 0, 0, 0, 0)


def _get_error(so: DatagramSocket, udp: UdpSocket) -> int:
    return udp.so_error()


def _get_domain(so: DatagramSocket, udp: UdpSocket) -> int:
    return so.family


def _set_device(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
    name = value.partition(b"\0")[0].decode(errors="replace")
    udp.dev = udp.stack.interface(name) if name else None


def _get_device(so: DatagramSocket, udp: UdpSocket) -> bytes:
    return udp.dev.name.encode() + b"\0" if udp.dev is not None else b""


def _set_ifindex(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    _check(value >= 0, value)
    udp.dev = so.interface_of(value) if value else None


def _get_ifindex(so: DatagramSocket, udp: UdpSocket) -> int:
    return udp.dev.index if udp.dev is not None else 0


def _set_tos(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    udp.tos = value & 0xFF


def _set_tclass(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    _check(-1 <= value <= 255, value)
    udp.tos = max(value, 0)


def _get_ttl(so: DatagramSocket, udp: UdpSocket) -> int:
    sysctl = udp.stack.sysctl
    return udp.ttl or (sysctl.ip_default_ttl if udp.family == 4 else sysctl.hop_limit)


def _set_recverr(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    udp.recverr = bool(value)
    if not value:
        udp.errors.clear()


def _set_pmtu_disc(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    _check(0 <= value <= PMTUDISC_OMIT, value)
    udp.pmtu_disc = value


def _get_mtu(so: DatagramSocket, udp: UdpSocket) -> int:
    return udp.mtu()


def _set_cork(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    so.cork(bool(value))


def _set_segment(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    _check(0 <= value <= 0xFFFF, value)
    udp.gso_size = value


def _get_cork(so: DatagramSocket, udp: UdpSocket) -> int:
    return int(so.corked)


def _set_v6only(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    _check(not udp.lport, value)
    udp.v6only = bool(value)


# ---------------------------------------------------------------- multicast


def _group4(udp: UdpSocket, value: bytes) -> tuple[bytes, Interface]:
    """(group, interface) of a struct ip_mreq or ip_mreqn."""
    if len(value) < _MREQ:
        raise oserror(errno.EINVAL, f"{len(value)} bytes for a group")
    group, address = value[:4], value[4:8]
    if not is_multicast(group):
        raise oserror(errno.EINVAL, "not a multicast address")
    stack = udp.stack
    index = INT.unpack_from(value, 8)[0] if len(value) >= 12 else 0
    if index:
        return group, _by_index(udp, index, errno.ENODEV)
    if address != IP4_ANY:
        found = stack.local4.get(address)
        if found is None:
            raise oserror(errno.ENODEV, "no interface has that address")
        return group, found
    return group, _default_device(udp, group)


def _group6(udp: UdpSocket, value: bytes) -> tuple[bytes, Interface]:
    """(group, interface) of a struct ipv6_mreq."""
    if len(value) < _IN6_MREQ:
        raise oserror(errno.EINVAL, f"{len(value)} bytes for a group")
    group, index = value[:16], INT.unpack_from(value, 16)[0]
    if not is_multicast(group):
        raise oserror(errno.EINVAL, "not a multicast address")
    return group, _by_index(udp, index, errno.ENODEV) if index else _default_device(udp, group)


def _default_device(udp: UdpSocket, group: bytes) -> Interface:
    try:
        return udp.stack.dst(group).dev
    except OSError:
        raise oserror(errno.ENODEV, "no interface for the group") from None


def _by_index(udp: UdpSocket, index: int, number: int) -> Interface:
    for dev in udp.stack.interfaces:
        if dev.index == index:
            return dev
    raise oserror(number, f"no interface {index}")


def _join4(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
    udp.join(*_group4(udp, value))


def _leave4(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
    udp.leave(*_group4(udp, value))


def _join6(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
    udp.join(*_group6(udp, value))


def _leave6(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
    udp.leave(*_group6(udp, value))


def _set_multicast_if(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
    """An address, or a struct ip_mreqn."""
    if len(value) < 4:
        raise oserror(errno.EINVAL, f"{len(value)} bytes for an interface")
    index = INT.unpack_from(value, 8)[0] if len(value) >= 12 else 0
    address = value[4:8] if len(value) >= _MREQ else value[:4]
    if index:
        udp.multicast_dev = _by_index(udp, index, errno.EADDRNOTAVAIL)
    elif address == IP4_ANY:
        udp.multicast_dev = None
    else:
        found = udp.stack.local4.get(address)
        if found is None:
            raise oserror(errno.EADDRNOTAVAIL, "no interface has that address")
        udp.multicast_dev = found


def _get_multicast_if(so: DatagramSocket, udp: UdpSocket) -> bytes:
    dev = udp.multicast_dev
    return dev.primary4 if dev is not None and dev.addresses4 else IP4_ANY


def _set_multicast_if6(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    udp.multicast_dev = _by_index(udp, value, errno.ENODEV) if value else None


def _get_multicast_if6(so: DatagramSocket, udp: UdpSocket) -> int:
    return udp.multicast_dev.index if udp.multicast_dev is not None else 0


# ---------------------------------------------------------------- tables

_FLAGS_KEPT: dict[Key, int] = {
    (SOL_SOCKET, SO_DEBUG): 0,
    (SOL_SOCKET, SO_DONTROUTE): 0,
    (SOL_SOCKET, SO_KEEPALIVE): 0,
    (SOL_SOCKET, SO_OOBINLINE): 0,
    (SOL_SOCKET, SO_WIFI_STATUS): 0,
    (SOL_SOCKET, SO_NOFCS): 0,
    (SOL_SOCKET, SO_SELECT_ERR_QUEUE): 0,
    (SOL_SOCKET, SO_PREFER_BUSY_POLL): 0,
    (IPPROTO_IP, IP_PKTINFO): 0,
    (IPPROTO_IP, IP_RECVTTL): 0,
    (IPPROTO_IP, IP_RECVTOS): 0,
    (IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT): 0,
    (IPPROTO_IPV6, IPV6_RECVPKTINFO): 0,
    (IPPROTO_IPV6, IPV6_RECVHOPLIMIT): 0,
    (IPPROTO_IPV6, IPV6_RECVTCLASS): 0,
}
_NUMBERS_KEPT: dict[Key, int] = {(SOL_SOCKET, SO_PRIORITY): 0, (SOL_SOCKET, SO_MARK): 0, (SOL_SOCKET, SO_INCOMING_CPU): -1}
_BYTES_KEPT: dict[Key, bytes] = {(SOL_SOCKET, SO_LINGER): bytes(8), (SOL_SOCKET, SO_RCVTIMEO): bytes(16), (SOL_SOCKET, SO_SNDTIMEO): bytes(16)}

_SET: dict[Key, Setter] = (
    {key: _keep_flag(key) for key in _FLAGS_KEPT}
    | {key: _keep(key) for key in _NUMBERS_KEPT}
    | {
        (SOL_SOCKET, SO_REUSEADDR): _flag("reuseaddr"),
        (SOL_SOCKET, SO_REUSEPORT): _flag("reuseport"),
        (SOL_SOCKET, SO_BROADCAST): _flag("broadcast"),
        (SOL_SOCKET, SO_NO_CHECK): _flag("no_check"),
        (SOL_SOCKET, SO_RCVBUF): _set_rcvbuf,
        (SOL_SOCKET, SO_SNDBUF): _set_sndbuf,
        (SOL_SOCKET, SO_RCVLOWAT): _set_rcvlowat,
        (SOL_SOCKET, SO_BINDTOIFINDEX): _set_ifindex,
        (SOL_SOCKET, SO_RCVBUFFORCE): _force_rcvbuf,
        (SOL_SOCKET, SO_SNDBUFFORCE): _force_sndbuf,
        (SOL_SOCKET, SO_BUSY_POLL): _set_busy_poll,
        (SOL_SOCKET, SO_BSDCOMPAT): _set_nothing,
        (SOL_SOCKET, SO_PASSCRED): _set_unsupported,
        (SOL_SOCKET, SO_PASSSEC): _set_unsupported,
        (IPPROTO_IP, IP_LOCAL_PORT_RANGE): _set_port_range,
        (IPPROTO_IP, IP_TOS): _set_tos,
        (IPPROTO_IP, IP_TTL): _number("ttl", 1, 255, 0),
        (IPPROTO_IP, IP_MTU_DISCOVER): _set_pmtu_disc,
        (IPPROTO_IP, IP_RECVERR): _set_recverr,
        (IPPROTO_IP, IP_FREEBIND): _flag("freebind"),
        (IPPROTO_IP, IP_MULTICAST_TTL): _number("multicast_ttl", 0, 255, 1),
        (IPPROTO_IP, IP_MULTICAST_LOOP): _flag("multicast_loop"),
        (IPPROTO_IP, IP_MULTICAST_ALL): _strict_flag("multicast_all"),
        (IPPROTO_IPV6, IPV6_UNICAST_HOPS): _number("ttl", 0, 255, 0),
        (IPPROTO_IPV6, IPV6_MULTICAST_IF): _set_multicast_if6,
        (IPPROTO_IPV6, IPV6_MULTICAST_HOPS): _number("multicast_ttl", 0, 255, 1),
        (IPPROTO_IPV6, IPV6_MULTICAST_LOOP): _strict_flag("multicast_loop"),
        (IPPROTO_IPV6, IPV6_AUTOFLOWLABEL): _flag("autoflowlabel"),
        (IPPROTO_IPV6, IPV6_MULTICAST_ALL): _flag("multicast_all"),
        (IPPROTO_IPV6, IPV6_MTU_DISCOVER): _set_pmtu_disc,
        (IPPROTO_IPV6, IPV6_RECVERR): _set_recverr,
        (IPPROTO_IPV6, IPV6_V6ONLY): _set_v6only,
        (IPPROTO_IPV6, IPV6_TCLASS): _set_tclass,
        (IPPROTO_IPV6, IPV6_DONTFRAG): _flag("dontfrag"),
        (IPPROTO_UDP, UDP_CORK): _set_cork,
        (IPPROTO_UDP, UDP_NO_CHECK6_TX): _flag("no_check6_tx"),
        (IPPROTO_UDP, UDP_NO_CHECK6_RX): _flag("no_check6_rx"),
        (IPPROTO_UDP, UDP_SEGMENT): _set_segment,
        (IPPROTO_UDP, UDP_GRO): _flag("gro"),
    }
)

_SET_BYTES: dict[Key, ByteSetter] = {key: _keep_bytes(key, len(initial)) for key, initial in _BYTES_KEPT.items()} | {
    (SOL_SOCKET, SO_BINDTODEVICE): _set_device,
    (SOL_SOCKET, SO_RCVTIMEO_NEW): _keep_bytes((SOL_SOCKET, SO_RCVTIMEO), 16),
    (SOL_SOCKET, SO_SNDTIMEO_NEW): _keep_bytes((SOL_SOCKET, SO_SNDTIMEO), 16),
    (IPPROTO_IP, IP_MULTICAST_IF): _set_multicast_if,
    (IPPROTO_IP, IP_ADD_MEMBERSHIP): _join4,
    (IPPROTO_IP, IP_DROP_MEMBERSHIP): _leave4,
    (IPPROTO_IPV6, IPV6_JOIN_GROUP): _join6,
    (IPPROTO_IPV6, IPV6_LEAVE_GROUP): _leave6,
}

# flags for which no byte at all is EINVAL, not 0; and those that take any length
_NOT_EMPTY = {(IPPROTO_IP, name) for name in (IP_TTL, IP_FREEBIND, IP_MULTICAST_TTL, IP_MULTICAST_LOOP, IP_MULTICAST_ALL, IP_LOCAL_PORT_RANGE)}
_LENGTH_UNCHECKED = {(IPPROTO_IPV6, IPV6_AUTOFLOWLABEL), (IPPROTO_IPV6, IPV6_DONTFRAG)}

_GET: dict[Key, Getter] = {key: _kept(key, default) for key, default in (_FLAGS_KEPT | _NUMBERS_KEPT | _BYTES_KEPT).items()} | {
    (SOL_SOCKET, SO_REUSEADDR): _field("reuseaddr"),
    (SOL_SOCKET, SO_REUSEPORT): _field("reuseport"),
    (SOL_SOCKET, SO_BROADCAST): _field("broadcast"),
    (SOL_SOCKET, SO_NO_CHECK): _field("no_check"),
    (SOL_SOCKET, SO_RCVBUF): _field("rcvbuf"),
    (SOL_SOCKET, SO_SNDBUF): _field("sndbuf"),
    (SOL_SOCKET, SO_RCVLOWAT): _kept((SOL_SOCKET, SO_RCVLOWAT), 1),
    (SOL_SOCKET, SO_SNDLOWAT): _constant(1),
    (SOL_SOCKET, SO_TYPE): _constant(SOCK_DGRAM),
    (SOL_SOCKET, SO_PROTOCOL): _constant(IPPROTO_UDP),
    (SOL_SOCKET, SO_DOMAIN): _get_domain,
    (SOL_SOCKET, SO_ERROR): _get_error,
    (SOL_SOCKET, SO_ACCEPTCONN): _constant(0),
    (SOL_SOCKET, SO_BINDTODEVICE): _get_device,
    (SOL_SOCKET, SO_BINDTOIFINDEX): _get_ifindex,
    (SOL_SOCKET, SO_RCVTIMEO_NEW): _kept((SOL_SOCKET, SO_RCVTIMEO), bytes(16)),
    (SOL_SOCKET, SO_SNDTIMEO_NEW): _kept((SOL_SOCKET, SO_SNDTIMEO), bytes(16)),
    (SOL_SOCKET, SO_BUSY_POLL): _kept((SOL_SOCKET, SO_BUSY_POLL), 0),
    (SOL_SOCKET, SO_BPF_EXTENSIONS): _constant(64),
    (SOL_SOCKET, SO_INCOMING_NAPI_ID): _constant(0),
    (SOL_SOCKET, SO_BSDCOMPAT): _constant(0),
    (SOL_SOCKET, SO_PASSCRED): _get_unsupported,
    (SOL_SOCKET, SO_PASSSEC): _get_unsupported,
    (SOL_SOCKET, SO_COOKIE): _get_cookie,
    (SOL_SOCKET, SO_MEMINFO): _get_meminfo,
    (IPPROTO_IP, IP_TOS): _field("tos"),
    (IPPROTO_IP, IP_TTL): _get_ttl,
    (IPPROTO_IP, IP_MTU_DISCOVER): _field("pmtu_disc"),
    (IPPROTO_IP, IP_RECVERR): _field("recverr"),
    (IPPROTO_IP, IP_MTU): _get_mtu,
    (IPPROTO_IP, IP_FREEBIND): _field("freebind"),
    (IPPROTO_IP, IP_LOCAL_PORT_RANGE): _field("port_range"),
    (IPPROTO_IP, IP_MULTICAST_IF): _get_multicast_if,
    (IPPROTO_IP, IP_MULTICAST_TTL): _field("multicast_ttl"),
    (IPPROTO_IP, IP_MULTICAST_LOOP): _field("multicast_loop"),
    (IPPROTO_IP, IP_MULTICAST_ALL): _field("multicast_all"),
    (IPPROTO_IPV6, IPV6_UNICAST_HOPS): _get_ttl,
    (IPPROTO_IPV6, IPV6_MULTICAST_IF): _get_multicast_if6,
    (IPPROTO_IPV6, IPV6_MULTICAST_HOPS): _field("multicast_ttl"),
    (IPPROTO_IPV6, IPV6_MULTICAST_LOOP): _field("multicast_loop"),
    (IPPROTO_IPV6, IPV6_AUTOFLOWLABEL): _field("autoflowlabel"),
    (IPPROTO_IPV6, IPV6_MULTICAST_ALL): _field("multicast_all"),
    (IPPROTO_IPV6, IPV6_MTU_DISCOVER): _field("pmtu_disc"),
    (IPPROTO_IPV6, IPV6_MTU): _get_mtu,
    (IPPROTO_IPV6, IPV6_RECVERR): _field("recverr"),
    (IPPROTO_IPV6, IPV6_V6ONLY): _field("v6only"),
    (IPPROTO_IPV6, IPV6_TCLASS): _field("tos"),
    (IPPROTO_IPV6, IPV6_DONTFRAG): _field("dontfrag"),
    (IPPROTO_UDP, UDP_CORK): _get_cork,
    (IPPROTO_UDP, UDP_NO_CHECK6_TX): _field("no_check6_tx"),
    (IPPROTO_UDP, UDP_NO_CHECK6_RX): _field("no_check6_rx"),
    (IPPROTO_UDP, UDP_SEGMENT): _field("gso_size"),
    (IPPROTO_UDP, UDP_GRO): _field("gro"),
}
