"""Options of a UDP socket at IPPROTO_IP and IPPROTO_IPV6: fields of the endpoint, groups, and wishes for control data.

An IPv6 socket has both sets: those of IP are for what goes to and comes from IPv4-mapped addresses. Only IP_FREEBIND and IP_TRANSPARENT
are one with their IPv6 namesakes. IP_MINTTL and IPV6_MINHOPCOUNT are remembered and mean nothing to datagrams, as in Linux; there are no
IP options, extension headers and source filters here.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from pytcp.tcp import sockopt_ip as ip
from pytcp.wire.addr import IP4_ANY, is_multicast

from .address import oserror
from .udp_kinds import (
    INT,
    IPPROTO_IP,
    IPPROTO_IPV6,
    ByteSetter,
    Getter,
    Key,
    Setter,
    check,
    constant,
    field,
    flag,
    keep_flag,
    keep_range,
    kept,
    number,
    refuse,
    strict_flag,
)

if TYPE_CHECKING:
    from pytcp.net.datagram import UdpSocket
    from pytcp.net.interface import Interface

    from .udp import DatagramSocket

_MREQ = 8  # struct ip_mreq; ip_mreqn has an interface index behind it
_IN6_MREQ = 20


def _set_port_range(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
    check(len(value) == INT.size, len(value))
    span: int = INT.unpack(value)[0]
    low, high = span & 0xFFFF, span >> 16 & 0xFFFF
    check(not low or not high or low <= high, span)
    udp.port_range = span


def _set_tos(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    udp.tos = value & 0xFF


def _set_tclass(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    check(-1 <= value <= 255, value)
    udp.tclass = max(value, 0)


def _get_ttl(so: DatagramSocket, udp: UdpSocket) -> int:
    return udp.ttl or udp.stack.sysctl.ip_default_ttl


def _get_hops(so: DatagramSocket, udp: UdpSocket) -> int:
    return udp.stack.sysctl.hop_limit if udp.hops < 0 else udp.hops


def _set_recverr(name: str) -> Setter:
    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        setattr(udp, name, bool(value))
        if not value:
            udp.errors.clear()

    return setter


def _set_pmtu_disc(name: str) -> Setter:
    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        check(0 <= value <= ip.PMTUDISC_OMIT, value)
        setattr(udp, name, value)

    return setter


def _get_mtu(so: DatagramSocket, udp: UdpSocket) -> int:
    return udp.mtu()


def _set_mtu6(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    """Fragments are no longer than this."""
    check(value == 0 or value >= ip.MIN_MTU6, value)
    udp.frag_size = value


def _set_v6only(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    check(not udp.lport, value)
    udp.v6only = bool(value)


def _set_preferences(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
    so.kept[IPPROTO_IPV6, ip.IPV6_ADDR_PREFERENCES] = ip.addr_preferences(value)


def _set_options(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
    """None, or such as only fill up."""
    if value.strip(b"\0\1"):
        raise oserror(errno.ENOPROTOOPT, "datagrams have no IP options here")


def _no_options(so: DatagramSocket, udp: UdpSocket) -> bytes:
    return b""


def _set_unicast_if(name: str) -> ByteSetter:
    """The interface of what goes to no group, by its index in network order; 0: as the routes say."""

    def setter(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
        check(len(value) >= INT.size, len(value))
        index = int.from_bytes(value[: INT.size], "big")
        if index and not udp.stack.dev_name(index):
            raise oserror(errno.EADDRNOTAVAIL, f"no interface {index}")
        check(not index or not udp.bound_dev_if, index)
        setattr(udp, name, index)

    return setter


def _get_unicast_if(name: str) -> Getter:
    def getter(so: DatagramSocket, udp: UdpSocket) -> bytes:
        index: int = getattr(udp, name)
        return index.to_bytes(INT.size, "big")

    return getter


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
    **{(IPPROTO_IP, name): 0 for name in (ip.IP_PKTINFO, ip.IP_RECVTTL, ip.IP_RECVTOS, ip.IP_RECVORIGDSTADDR, ip.IP_BIND_ADDRESS_NO_PORT)},
    **{(IPPROTO_IPV6, name): 0 for name in (ip.IPV6_RECVPKTINFO, ip.IPV6_RECVHOPLIMIT, ip.IPV6_RECVTCLASS, ip.IPV6_RECVORIGDSTADDR)},
    **{(IPPROTO_IPV6, name): 0 for name in (ip.IPV6_2292PKTINFO, ip.IPV6_2292HOPLIMIT, ip.IPV6_FLOWINFO)},
    # nothing comes of these
    **{(IPPROTO_IP, name): 0 for name in (ip.IP_RECVOPTS, ip.IP_RETOPTS, ip.IP_PASSSEC, ip.IP_CHECKSUM, ip.IP_RECVFRAGSIZE)},
    **{(IPPROTO_IPV6, name): 0 for name in (ip.IPV6_2292HOPOPTS, ip.IPV6_2292DSTOPTS, ip.IPV6_2292RTHDR, ip.IPV6_RECVHOPOPTS)},
    **{(IPPROTO_IPV6, name): 0 for name in (ip.IPV6_RECVRTHDR, ip.IPV6_RECVDSTOPTS, ip.IPV6_RECVPATHMTU, ip.IPV6_RECVFRAGSIZE)},
    **{(IPPROTO_IPV6, name): 0 for name in (ip.IPV6_ROUTER_ALERT_ISOLATE, ip.IPV6_FLOWINFO_SEND)},
}
_RANGES: dict[Key, tuple[int, int]] = {
    (IPPROTO_IP, ip.IP_MINTTL): (0, 255),
    (IPPROTO_IPV6, ip.IPV6_MINHOPCOUNT): (0, 255),
    (IPPROTO_IP, ip.IP_RECVERR_RFC4884): (0, 1),
    (IPPROTO_IPV6, ip.IPV6_RECVERR_RFC4884): (0, 1),
}

SET: dict[Key, Setter] = (
    {key: keep_flag(key) for key in _FLAGS_KEPT}
    | {key: keep_range(key, *span) for key, span in _RANGES.items()}
    | {
        (IPPROTO_IP, ip.IP_TOS): _set_tos,
        (IPPROTO_IP, ip.IP_TTL): number("ttl", 1, 255, 0),
        (IPPROTO_IP, ip.IP_MTU_DISCOVER): _set_pmtu_disc("pmtu_disc"),
        (IPPROTO_IP, ip.IP_RECVERR): _set_recverr("recverr"),
        (IPPROTO_IP, ip.IP_FREEBIND): flag("freebind"),
        (IPPROTO_IP, ip.IP_TRANSPARENT): flag("transparent"),
        (IPPROTO_IP, ip.IP_MULTICAST_TTL): number("multicast_ttl", 0, 255, 1),
        (IPPROTO_IP, ip.IP_MULTICAST_LOOP): flag("multicast_loop"),
        (IPPROTO_IP, ip.IP_MULTICAST_ALL): strict_flag("multicast_all"),
        (IPPROTO_IPV6, ip.IPV6_UNICAST_HOPS): number("hops", 0, 255, -1),
        (IPPROTO_IPV6, ip.IPV6_MULTICAST_IF): _set_multicast_if6,
        (IPPROTO_IPV6, ip.IPV6_MULTICAST_HOPS): number("multicast_hops", 0, 255, 1),
        (IPPROTO_IPV6, ip.IPV6_MULTICAST_LOOP): strict_flag("multicast_loop6"),
        (IPPROTO_IPV6, ip.IPV6_MULTICAST_ALL): flag("multicast_all6"),
        (IPPROTO_IPV6, ip.IPV6_AUTOFLOWLABEL): flag("autoflowlabel"),
        (IPPROTO_IPV6, ip.IPV6_MTU_DISCOVER): _set_pmtu_disc("pmtu_disc6"),
        (IPPROTO_IPV6, ip.IPV6_MTU): _set_mtu6,
        (IPPROTO_IPV6, ip.IPV6_RECVERR): _set_recverr("recverr6"),
        (IPPROTO_IPV6, ip.IPV6_V6ONLY): _set_v6only,
        (IPPROTO_IPV6, ip.IPV6_TCLASS): _set_tclass,
        (IPPROTO_IPV6, ip.IPV6_DONTFRAG): flag("dontfrag"),
        (IPPROTO_IPV6, ip.IPV6_FREEBIND): flag("freebind"),
        (IPPROTO_IPV6, ip.IPV6_TRANSPARENT): flag("transparent"),
        (IPPROTO_IPV6, ip.IPV6_ADDR_PREFERENCES): _set_preferences,
    }
)

SET_BYTES: dict[Key, ByteSetter] = {
    (IPPROTO_IP, ip.IP_OPTIONS): _set_options,
    (IPPROTO_IP, ip.IP_ROUTER_ALERT): refuse(errno.EINVAL),
    (IPPROTO_IP, ip.IP_LOCAL_PORT_RANGE): _set_port_range,
    (IPPROTO_IP, ip.IP_UNICAST_IF): _set_unicast_if("unicast_if"),
    (IPPROTO_IP, ip.IP_MULTICAST_IF): _set_multicast_if,
    (IPPROTO_IP, ip.IP_ADD_MEMBERSHIP): _join4,
    (IPPROTO_IP, ip.IP_DROP_MEMBERSHIP): _leave4,
    (IPPROTO_IPV6, ip.IPV6_UNICAST_IF): _set_unicast_if("unicast_if6"),
    (IPPROTO_IPV6, ip.IPV6_ROUTER_ALERT): refuse(errno.ENOPROTOOPT, 4),
    (IPPROTO_IPV6, ip.IPV6_JOIN_GROUP): _join6,
    (IPPROTO_IPV6, ip.IPV6_LEAVE_GROUP): _leave6,
}

# flags for which no byte at all is EINVAL, not 0; and those that take any length
NOT_EMPTY = {
    (IPPROTO_IP, name)
    for name in (ip.IP_TTL, ip.IP_FREEBIND, ip.IP_TRANSPARENT, ip.IP_MINTTL, ip.IP_MULTICAST_TTL, ip.IP_MULTICAST_LOOP, ip.IP_MULTICAST_ALL)
}
LENGTH_UNCHECKED = {(IPPROTO_IPV6, name) for name in (ip.IPV6_AUTOFLOWLABEL, ip.IPV6_DONTFRAG, ip.IPV6_RECVFRAGSIZE)}

GET: dict[Key, Getter] = {key: kept(key, 0) for key in (*_FLAGS_KEPT, *_RANGES)} | {
    (IPPROTO_IP, ip.IP_TOS): field("tos"),
    (IPPROTO_IP, ip.IP_TTL): _get_ttl,
    (IPPROTO_IP, ip.IP_MTU_DISCOVER): field("pmtu_disc"),
    (IPPROTO_IP, ip.IP_RECVERR): field("recverr"),
    (IPPROTO_IP, ip.IP_MTU): _get_mtu,
    (IPPROTO_IP, ip.IP_FREEBIND): field("freebind"),
    (IPPROTO_IP, ip.IP_TRANSPARENT): field("transparent"),
    (IPPROTO_IP, ip.IP_LOCAL_PORT_RANGE): field("port_range"),
    (IPPROTO_IP, ip.IP_UNICAST_IF): _get_unicast_if("unicast_if"),
    (IPPROTO_IP, ip.IP_MULTICAST_IF): _get_multicast_if,
    (IPPROTO_IP, ip.IP_MULTICAST_TTL): field("multicast_ttl"),
    (IPPROTO_IP, ip.IP_MULTICAST_LOOP): field("multicast_loop"),
    (IPPROTO_IP, ip.IP_MULTICAST_ALL): field("multicast_all"),
    (IPPROTO_IPV6, ip.IPV6_UNICAST_HOPS): _get_hops,
    (IPPROTO_IPV6, ip.IPV6_UNICAST_IF): _get_unicast_if("unicast_if6"),
    (IPPROTO_IPV6, ip.IPV6_MULTICAST_IF): _get_multicast_if6,
    (IPPROTO_IPV6, ip.IPV6_MULTICAST_HOPS): field("multicast_hops"),
    (IPPROTO_IPV6, ip.IPV6_MULTICAST_LOOP): field("multicast_loop6"),
    (IPPROTO_IPV6, ip.IPV6_MULTICAST_ALL): field("multicast_all6"),
    (IPPROTO_IPV6, ip.IPV6_AUTOFLOWLABEL): field("autoflowlabel"),
    (IPPROTO_IPV6, ip.IPV6_MTU_DISCOVER): field("pmtu_disc6"),
    (IPPROTO_IPV6, ip.IPV6_MTU): _get_mtu,
    (IPPROTO_IPV6, ip.IPV6_RECVERR): field("recverr6"),
    (IPPROTO_IPV6, ip.IPV6_V6ONLY): field("v6only"),
    (IPPROTO_IPV6, ip.IPV6_TCLASS): field("tclass"),
    (IPPROTO_IPV6, ip.IPV6_DONTFRAG): field("dontfrag"),
    (IPPROTO_IPV6, ip.IPV6_FREEBIND): field("freebind"),
    (IPPROTO_IPV6, ip.IPV6_TRANSPARENT): field("transparent"),
    (IPPROTO_IPV6, ip.IPV6_ADDR_PREFERENCES): kept((IPPROTO_IPV6, ip.IPV6_ADDR_PREFERENCES), ip.PREFER_SRC_PUBTMP_DEFAULT | ip.PREFER_SRC_HOME),
    # what cannot be changed on UDP
    (IPPROTO_IP, ip.IP_OPTIONS): _no_options,
    (IPPROTO_IP, ip.IP_PROTOCOL): field("lport"),  # as the kernel does: it reads the field that raw sockets keep their protocol in
    **{(IPPROTO_IP, name): constant(0) for name in (ip.IP_HDRINCL, ip.IP_ROUTER_ALERT, ip.IP_NODEFRAG)},
    (IPPROTO_IPV6, ip.IPV6_ROUTER_ALERT): constant(0),
}
