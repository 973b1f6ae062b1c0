"""Options at IPPROTO_IP and IPPROTO_IPV6 that a TCP socket has (linux-sockets §7).

TOS and traffic class keep their ECN bits for TCP. Path MTU discovery modes are Linux's IP_PMTUDISC_*.
What asks for control data of datagrams, or names multicast interfaces, is remembered where Linux remembers
it on a stream, though it means nothing there; joining a group is refused (EPROTO), and so are IP options
(IP_OPTIONS, ENOPROTOOPT, or EINVAL for what are none), which this TCP does not send. `sockopt_absent` has more that is not here.

What an IPv6 socket has twice is in `ip_families`.
"""

from __future__ import annotations

import errno

from .const import ESTABLISHED
from .ip_families import IP_MINTTL as IP_MINTTL
from .ip_families import IP_MTU_DISCOVER as IP_MTU_DISCOVER
from .ip_families import IP_RECVERR as IP_RECVERR
from .ip_families import IP_TOS as IP_TOS
from .ip_families import IP_TTL as IP_TTL
from .ip_families import IPV6_MINHOPCOUNT as IPV6_MINHOPCOUNT
from .ip_families import IPV6_MTU_DISCOVER as IPV6_MTU_DISCOVER
from .ip_families import IPV6_RECVERR as IPV6_RECVERR
from .ip_families import IPV6_TCLASS as IPV6_TCLASS
from .ip_families import IPV6_UNICAST_HOPS as IPV6_UNICAST_HOPS
from .ip_families import OF_BOTH, of_family, put
from .sock import Sock
from .sockopt_kinds import (
    INT,
    IPPROTO_IP,
    IPPROTO_IPV6,
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
    kept,
    kept_getter,
    refuse,
)

IP_HDRINCL = 3
IP_OPTIONS = 4
IP_ROUTER_ALERT = 5
IP_RECVOPTS = 6
IP_RETOPTS = 7
IP_PKTINFO = 8
IP_PKTOPTIONS = 9
IP_RECVTTL = 12
IP_RECVTOS = 13
IP_MTU = 14
IP_FREEBIND = 15
IP_PASSSEC = 18
IP_TRANSPARENT = 19
IP_RECVORIGDSTADDR = 20
IP_NODEFRAG = 22
IP_CHECKSUM = 23
IP_BIND_ADDRESS_NO_PORT = 24
IP_RECVFRAGSIZE = 25
IP_RECVERR_RFC4884 = 26
IP_MULTICAST_IF = 32
IP_MULTICAST_TTL = 33
IP_MULTICAST_LOOP = 34
IP_ADD_MEMBERSHIP = 35
IP_DROP_MEMBERSHIP = 36
IP_MULTICAST_ALL = 49
IP_UNICAST_IF = 50
IP_LOCAL_PORT_RANGE = 51
IP_PROTOCOL = 52

IPV6_ADDRFORM = 1
IPV6_2292PKTINFO = 2
IPV6_2292HOPOPTS = 3
IPV6_2292DSTOPTS = 4
IPV6_2292RTHDR = 5
IPV6_2292HOPLIMIT = 8
IPV6_FLOWINFO = 11
IPV6_MULTICAST_IF = 17
IPV6_MULTICAST_HOPS = 18
IPV6_MULTICAST_LOOP = 19
IPV6_JOIN_GROUP = 20
IPV6_LEAVE_GROUP = 21
IPV6_ROUTER_ALERT = 22
IPV6_MTU = 24
IPV6_V6ONLY = 26
IPV6_MULTICAST_ALL = 29
IPV6_ROUTER_ALERT_ISOLATE = 30
IPV6_RECVERR_RFC4884 = 31
IPV6_FLOWINFO_SEND = 33
IPV6_RECVPKTINFO = 49
IPV6_PKTINFO = 50
IPV6_RECVHOPLIMIT = 51
IPV6_RECVHOPOPTS = 53
IPV6_RECVRTHDR = 56
IPV6_RECVDSTOPTS = 58
IPV6_RECVPATHMTU = 60
IPV6_PATHMTU = 61
IPV6_DONTFRAG = 62
IPV6_RECVTCLASS = 66
IPV6_AUTOFLOWLABEL = 70
IPV6_ADDR_PREFERENCES = 72
IPV6_RECVORIGDSTADDR = 74
IPV6_TRANSPARENT = 75
IPV6_UNICAST_IF = 76
IPV6_RECVFRAGSIZE = 77
IPV6_FREEBIND = 78

DEFAULT_TTL = 64
PMTUDISC_OMIT = 5
ECN_MASK = 3
MIN_MTU6 = 1280
MAX_OPTIONS = 40
PKTINFO6 = 20  # bytes of struct in6_pktinfo
MTUINFO = 32  # of struct ip6_mtuinfo: a struct sockaddr_in6, and the MTU
AF_INET = 2
AF_INET6 = 10

PREFER_SRC_TMP = 0x001
PREFER_SRC_PUBLIC = 0x002
PREFER_SRC_COA = 0x004
PREFER_SRC_CGA = 0x008
PREFER_SRC_PUBTMP_DEFAULT = 0x100
PREFER_SRC_HOME = 0x400
PREFER_SRC_NONCGA = 0x800


def _set_both(name: str, level: int, low: int = -(1 << 31), high: int = (1 << 31) - 1) -> Setter:
    def setter(sk: Sock, value: int) -> None:
        check(low <= value <= high)
        put(sk, name, level, value)

    return setter


def _get_both(name: str, level: int) -> Getter:
    def getter(sk: Sock) -> int:
        return of_family(sk, name, level)

    return getter


def _set_tos(level: int) -> Setter:
    """Type of service, traffic class: the ECN bits belong to TCP."""

    def setter(sk: Sock, value: int) -> None:
        if level == IPPROTO_IPV6:
            check(-1 <= value <= 255)
            value = max(value, 0)
        put(sk, "tos", level, value & 0xFF & ~ECN_MASK | of_family(sk, "tos", level) & ECN_MASK)

    return setter


def _set_ttl(level: int) -> Setter:
    """Time to live, hop limit; IPv6 has one of 0, too."""

    def setter(sk: Sock, value: int) -> None:
        check(-1 <= value <= 255 and (value != 0 or level == IPPROTO_IPV6))
        put(sk, "ttl", level, DEFAULT_TTL if value == -1 else value)

    return setter


def _set_recverr(level: int) -> Setter:
    def setter(sk: Sock, value: int) -> None:
        put(sk, "recverr", level, int(bool(value)))
        if not value:
            sk.error_queue = None

    return setter


def _get_mtu(sk: Sock) -> int:
    if sk.dst is None:
        fail(errno.ENOTCONN)
    return int(sk.dst.mtu)


def _set_mtu6(sk: Sock, value: int) -> None:
    """Fragments of IPv6 datagrams; TCP sends none."""
    check(value == 0 or value >= MIN_MTU6)


def _set_port_range(sk: Sock, value: int) -> None:
    low, high = value & 0xFFFF, value >> 16 & 0xFFFF
    check(not low or not high or low <= high)
    keep(sk, (IPPROTO_IP, IP_LOCAL_PORT_RANGE), value)


def narrowed(span: tuple[int, int], value: int) -> tuple[int, int]:
    """The first and last port of the sysctl's range, where IP_LOCAL_PORT_RANGE narrows it."""
    low, high = span
    own_low, own_high = value & 0xFFFF, value >> 16 & 0xFFFF
    return own_low if low <= own_low <= high else low, own_high if low <= own_high <= high else high


def local_port_range(sk: Sock) -> tuple[int, int]:
    """First and last port connect() and bind(0) may choose for `sk`."""
    return narrowed(sk.sysctl.ip_local_port_range, kept(sk, IPPROTO_IP, IP_LOCAL_PORT_RANGE))


def _set_v6only(sk: Sock, value: int) -> None:
    check(not sk.bound_port)
    sk.v6only = bool(value)


def addr_preferences(value: int) -> int:
    """What IPV6_ADDR_PREFERENCES reads after `value` was set: at most one preference of each kind, and what is not named returns to
    its default (RFC 5014). Raises OSError EINVAL."""
    pubtmp = value & (PREFER_SRC_TMP | PREFER_SRC_PUBLIC | PREFER_SRC_PUBTMP_DEFAULT)
    home = value & (PREFER_SRC_HOME | PREFER_SRC_COA)
    cga = value & (PREFER_SRC_CGA | PREFER_SRC_NONCGA)
    check(pubtmp.bit_count() <= 1 and home.bit_count() <= 1 and cga.bit_count() <= 1)
    return (pubtmp or PREFER_SRC_PUBTMP_DEFAULT) | (home or PREFER_SRC_HOME)


def _set_addr_preferences(sk: Sock, value: int) -> None:
    keep(sk, (IPPROTO_IPV6, IPV6_ADDR_PREFERENCES), addr_preferences(value))


def _set_options(sk: Sock, value: bytes) -> None:
    """IP_OPTIONS: none, or such as only fill up; the end of the list (0) may have anything behind it."""
    check(len(value) <= MAX_OPTIONS)
    at = 0
    while at < len(value) and value[at]:
        if value[at] == 1:
            at += 1
            continue
        check(at + 1 < len(value) and 2 <= value[at + 1] <= len(value) - at)
        fail(errno.ENOPROTOOPT, "TCP sends no IP options here")


def _set_unicast_if(key: Key) -> ByteSetter:
    """An interface by its index in network order, 0 = none; remembered, and of no consequence for TCP."""

    def setter(sk: Sock, value: bytes) -> None:
        check(len(value) == 4)
        index = int.from_bytes(value[:4], "big")
        if index and not sk.host.dev_name(index):
            fail(errno.EADDRNOTAVAIL)
        check(not sk.bound_dev_if or not index)
        keep(sk, key, INT.unpack_from(value)[0])

    return setter


def _get_multicast_all(sk: Sock) -> int:
    """On unless it was switched off; an IPv6 socket begins without."""
    key = (IPPROTO_IP, IP_MULTICAST_ALL)
    return (sk.optmem or {}).get(key, int(sk.family == 4))


def _set_form(sk: Sock, value: int) -> None:
    """IPV6_ADDRFORM: whether the socket can become one of IPv4."""
    check(value == AF_INET)
    if sk.state != ESTABLISHED:
        fail(errno.ENOTCONN)
    if sk.v6only or sk.family != 4:
        fail(errno.EADDRNOTAVAIL)


def _get_form(sk: Sock) -> int:
    if sk.state != ESTABLISHED:
        fail(errno.ENOTCONN)
    return AF_INET6


def _set_pktinfo(sk: Sock, value: bytes) -> None:
    """Source and interface of datagrams; a stream does not look at it."""
    check(len(value) >= PKTINFO6)
    index = INT.unpack_from(value, 16)[0]
    check(not sk.bound_dev_if or not index or index == sk.bound_dev_if)


def path_mtu(sk: Sock, room: int) -> bytes:
    """IPV6_PATHMTU: what the path takes, behind the address of nobody."""
    check(room >= MTUINFO)
    return bytes(MTUINFO - INT.size) + INT.pack(_get_mtu(sk))


# ---------------------------------------------------------------- tables

_KEPT: dict[Key, int] = {
    (IPPROTO_IP, IP_RECVTOS): 0,
    (IPPROTO_IP, IP_FREEBIND): 0,
    (IPPROTO_IP, IP_TRANSPARENT): 0,
    (IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT): 0,
    (IPPROTO_IP, IP_LOCAL_PORT_RANGE): 0,
    (IPPROTO_IPV6, IPV6_RECVTCLASS): 0,
    (IPPROTO_IPV6, IPV6_AUTOFLOWLABEL): 1,
    (IPPROTO_IPV6, IPV6_FLOWINFO_SEND): 0,
    (IPPROTO_IPV6, IPV6_DONTFRAG): 0,
    (IPPROTO_IPV6, IPV6_ADDR_PREFERENCES): PREFER_SRC_PUBTMP_DEFAULT | PREFER_SRC_HOME,
    # of datagrams: nothing comes of them on a stream
    **{(IPPROTO_IP, name): 0 for name in (IP_RECVOPTS, IP_RETOPTS, IP_PKTINFO, IP_RECVTTL, IP_PASSSEC, IP_RECVORIGDSTADDR, IP_CHECKSUM)},
    (IPPROTO_IP, IP_RECVERR_RFC4884): 0,
    (IPPROTO_IP, IP_MULTICAST_LOOP): 1,
    (IPPROTO_IP, IP_UNICAST_IF): 0,
    **{(IPPROTO_IPV6, name): 0 for name in (IPV6_2292PKTINFO, IPV6_2292HOPOPTS, IPV6_2292DSTOPTS, IPV6_2292RTHDR, IPV6_2292HOPLIMIT, IPV6_FLOWINFO)},
    **{(IPPROTO_IPV6, name): 0 for name in (IPV6_RECVPKTINFO, IPV6_RECVHOPLIMIT, IPV6_RECVHOPOPTS, IPV6_RECVRTHDR, IPV6_RECVDSTOPTS, IPV6_RECVPATHMTU)},
    **{(IPPROTO_IPV6, name): 0 for name in (IPV6_ROUTER_ALERT_ISOLATE, IPV6_RECVERR_RFC4884, IPV6_RECVORIGDSTADDR, IPV6_UNICAST_IF, IPV6_RECVFRAGSIZE)},
    (IPPROTO_IPV6, IPV6_MULTICAST_LOOP): 1,
    (IPPROTO_IPV6, IPV6_MULTICAST_ALL): 1,
}
defaults |= _KEPT

SET: dict[Key, Setter] = {key: flag(key) for key in _KEPT} | {
    (IPPROTO_IP, IP_TOS): _set_tos(IPPROTO_IP),
    (IPPROTO_IP, IP_TTL): _set_ttl(IPPROTO_IP),
    (IPPROTO_IP, IP_MTU_DISCOVER): _set_both("pmtu_disc", IPPROTO_IP, 0, PMTUDISC_OMIT),
    (IPPROTO_IP, IP_RECVERR): _set_recverr(IPPROTO_IP),
    (IPPROTO_IP, IP_MINTTL): _set_both("min_ttl", IPPROTO_IP, 0, 255),
    (IPPROTO_IP, IP_LOCAL_PORT_RANGE): _set_port_range,
    (IPPROTO_IPV6, IPV6_ADDRFORM): _set_form,
    (IPPROTO_IPV6, IPV6_UNICAST_HOPS): _set_ttl(IPPROTO_IPV6),
    (IPPROTO_IPV6, IPV6_V6ONLY): _set_v6only,
    (IPPROTO_IPV6, IPV6_MTU_DISCOVER): _set_both("pmtu_disc", IPPROTO_IPV6, 0, PMTUDISC_OMIT),
    (IPPROTO_IPV6, IPV6_MTU): _set_mtu6,
    (IPPROTO_IPV6, IPV6_RECVERR): _set_recverr(IPPROTO_IPV6),
    (IPPROTO_IPV6, IPV6_TCLASS): _set_tos(IPPROTO_IPV6),
    (IPPROTO_IPV6, IPV6_MINHOPCOUNT): _set_both("min_ttl", IPPROTO_IPV6, 0, 255),
    (IPPROTO_IPV6, IPV6_ADDR_PREFERENCES): _set_addr_preferences,
    (IPPROTO_IP, IP_RECVERR_RFC4884): in_range((IPPROTO_IP, IP_RECVERR_RFC4884), 0, 1),
    (IPPROTO_IP, IP_MULTICAST_ALL): in_range((IPPROTO_IP, IP_MULTICAST_ALL), 0, 1),
    (IPPROTO_IPV6, IPV6_RECVERR_RFC4884): in_range((IPPROTO_IPV6, IPV6_RECVERR_RFC4884), 0, 1),
    (IPPROTO_IPV6, IPV6_MULTICAST_LOOP): in_range((IPPROTO_IPV6, IPV6_MULTICAST_LOOP), 0, 1),
    (IPPROTO_IPV6, IPV6_TRANSPARENT): flag((IPPROTO_IP, IP_TRANSPARENT)),
    (IPPROTO_IPV6, IPV6_FREEBIND): flag((IPPROTO_IP, IP_FREEBIND)),
}

SET_BYTES: dict[Key, ByteSetter] = {
    (IPPROTO_IP, IP_OPTIONS): _set_options,
    (IPPROTO_IP, IP_UNICAST_IF): _set_unicast_if((IPPROTO_IP, IP_UNICAST_IF)),
    (IPPROTO_IPV6, IPV6_UNICAST_IF): _set_unicast_if((IPPROTO_IPV6, IPV6_UNICAST_IF)),
    (IPPROTO_IPV6, IPV6_PKTINFO): _set_pktinfo,
    (IPPROTO_IPV6, IPV6_ROUTER_ALERT): refuse(errno.ENOPROTOOPT, 4),
    **{(IPPROTO_IPV6, name): refuse(errno.EPROTO, 20) for name in (IPV6_JOIN_GROUP, IPV6_LEAVE_GROUP)},
    **{(IPPROTO_IP, name): refuse(errno.EINVAL) for name in (IP_ROUTER_ALERT, IP_RECVFRAGSIZE, IP_MULTICAST_IF, IP_MULTICAST_TTL)},
    **{(IPPROTO_IP, name): refuse(errno.EPROTO) for name in (IP_ADD_MEMBERSHIP, IP_DROP_MEMBERSHIP)},
}
# flags of IPPROTO_IP for which no byte at all is EINVAL, not 0
NOT_EMPTY = {(IPPROTO_IP, name) for name in (IP_FREEBIND, IP_TRANSPARENT, IP_MINTTL, IP_MULTICAST_LOOP, IP_MULTICAST_ALL)}

GET: dict[Key, Getter] = {key: kept_getter(key) for key in _KEPT} | {
    **{keys[number]: _get_both(name, keys[number][0]) for name, keys in OF_BOTH.items() for number in (0, 1)},
    (IPPROTO_IP, IP_MTU): _get_mtu,
    (IPPROTO_IP, IP_MULTICAST_ALL): _get_multicast_all,
    (IPPROTO_IPV6, IPV6_ADDRFORM): _get_form,
    (IPPROTO_IPV6, IPV6_V6ONLY): field("v6only"),
    (IPPROTO_IPV6, IPV6_MTU): _get_mtu,
    (IPPROTO_IPV6, IPV6_TRANSPARENT): kept_getter((IPPROTO_IP, IP_TRANSPARENT)),
    (IPPROTO_IPV6, IPV6_FREEBIND): kept_getter((IPPROTO_IP, IP_FREEBIND)),
    # what cannot be changed on a stream
    (IPPROTO_IP, IP_OPTIONS): lambda sk: b"",
    (IPPROTO_IP, IP_PKTOPTIONS): lambda sk: b"",
    (IPPROTO_IP, IP_PROTOCOL): field("sport"),  # as the kernel does: it reads the field that raw sockets keep their protocol in
    (IPPROTO_IP, IP_MULTICAST_TTL): constant(1),
    (IPPROTO_IPV6, IPV6_MULTICAST_HOPS): constant(1),
    **{(IPPROTO_IP, name): constant(0) for name in (IP_HDRINCL, IP_ROUTER_ALERT, IP_NODEFRAG, IP_RECVFRAGSIZE)},
    (IPPROTO_IP, IP_MULTICAST_IF): lambda sk: bytes(4),  # an address, not a number
    **{(IPPROTO_IPV6, name): constant(0) for name in (IPV6_MULTICAST_IF, IPV6_ROUTER_ALERT)},
}
