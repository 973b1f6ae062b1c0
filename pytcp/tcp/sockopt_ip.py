"""Options at IPPROTO_IP and IPPROTO_IPV6 that a TCP socket has (linux-sockets §7).

TOS and traffic class keep their ECN bits for TCP. Path MTU discovery modes are Linux's IP_PMTUDISC_*.
"""

from __future__ import annotations

import errno

from .sock import Sock
from .sockopt_kinds import IPPROTO_IP, IPPROTO_IPV6, Getter, Key, Setter, check, defaults, fail, field, flag, keep, kept, kept_getter

IP_TOS = 1
IP_TTL = 2
IP_MTU_DISCOVER = 10
IP_RECVERR = 11
IP_RECVTOS = 13
IP_MTU = 14
IP_FREEBIND = 15
IP_TRANSPARENT = 19
IP_MINTTL = 21
IP_BIND_ADDRESS_NO_PORT = 24
IP_LOCAL_PORT_RANGE = 51

IPV6_UNICAST_HOPS = 16
IPV6_MTU_DISCOVER = 23
IPV6_MTU = 24
IPV6_RECVERR = 25
IPV6_V6ONLY = 26
IPV6_FLOWINFO_SEND = 33
IPV6_DONTFRAG = 62
IPV6_RECVTCLASS = 66
IPV6_TCLASS = 67
IPV6_AUTOFLOWLABEL = 70
IPV6_ADDR_PREFERENCES = 72
IPV6_MINHOPCOUNT = 73

DEFAULT_TTL = 64
PMTUDISC_OMIT = 5
ECN_MASK = 3
MIN_MTU6 = 1280

PREFER_SRC_TMP = 0x001
PREFER_SRC_PUBLIC = 0x002
PREFER_SRC_COA = 0x004
PREFER_SRC_CGA = 0x008
PREFER_SRC_PUBTMP_DEFAULT = 0x100
PREFER_SRC_HOME = 0x400
PREFER_SRC_NONCGA = 0x800


def _set_tos(sk: Sock, value: int) -> None:
    # the ECN bits belong to TCP
    sk.tos = value & 0xFF & ~ECN_MASK | sk.tos & ECN_MASK


def _set_tclass(sk: Sock, value: int) -> None:
    check(-1 <= value <= 255)
    _set_tos(sk, max(value, 0))


def _set_ttl(sk: Sock, value: int) -> None:
    check(value == -1 or 1 <= value <= 255)
    sk.ttl = DEFAULT_TTL if value == -1 else value


def _set_hops(sk: Sock, value: int) -> None:
    check(-1 <= value <= 255)
    sk.ttl = DEFAULT_TTL if value == -1 else value


def _set_mtu_discover(sk: Sock, value: int) -> None:
    check(0 <= value <= PMTUDISC_OMIT)
    sk.pmtu_disc = value


def _set_recverr(sk: Sock, value: int) -> None:
    sk.recverr = bool(value)
    if not value:
        sk.error_queue = None


def _get_mtu(sk: Sock) -> int:
    if sk.dst is None:
        fail(errno.ENOTCONN, "Transport endpoint is not connected")
    return int(sk.dst.mtu)


def _set_mtu6(sk: Sock, value: int) -> None:
    """Fragments of IPv6 datagrams; TCP sends none."""
    check(value == 0 or value >= MIN_MTU6)


def _set_min_ttl(sk: Sock, value: int) -> None:
    check(0 <= value <= 255)
    sk.min_ttl = value


def _set_port_range(sk: Sock, value: int) -> None:
    low, high = value & 0xFFFF, value >> 16 & 0xFFFF
    check(not low or not high or low <= high)
    keep(sk, (IPPROTO_IP, IP_LOCAL_PORT_RANGE), value)


def local_port_range(sk: Sock) -> tuple[int, int]:
    """First and last port connect() and bind(0) may choose for `sk`: the sysctl's range, narrowed by the option."""
    low, high = sk.sysctl.ip_local_port_range
    value = kept(sk, IPPROTO_IP, IP_LOCAL_PORT_RANGE)
    own_low, own_high = value & 0xFFFF, value >> 16 & 0xFFFF
    return own_low if low <= own_low <= high else low, own_high if low <= own_high <= high else high


def _set_v6only(sk: Sock, value: int) -> None:
    check(not sk.bound_port)
    sk.v6only = bool(value)


def _set_addr_preferences(sk: Sock, value: int) -> None:
    """At most one preference of each kind; what is not named returns to its default (RFC 5014)."""
    pubtmp = value & (PREFER_SRC_TMP | PREFER_SRC_PUBLIC | PREFER_SRC_PUBTMP_DEFAULT)
    home = value & (PREFER_SRC_HOME | PREFER_SRC_COA)
    cga = value & (PREFER_SRC_CGA | PREFER_SRC_NONCGA)
    check(pubtmp.bit_count() <= 1 and home.bit_count() <= 1 and cga.bit_count() <= 1)
    keep(sk, (IPPROTO_IPV6, IPV6_ADDR_PREFERENCES), (pubtmp or PREFER_SRC_PUBTMP_DEFAULT) | (home or PREFER_SRC_HOME))


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
}
defaults |= _KEPT

SET: dict[Key, Setter] = {key: flag(key) for key in _KEPT} | {
    (IPPROTO_IP, IP_TOS): _set_tos,
    (IPPROTO_IP, IP_TTL): _set_ttl,
    (IPPROTO_IP, IP_MTU_DISCOVER): _set_mtu_discover,
    (IPPROTO_IP, IP_RECVERR): _set_recverr,
    (IPPROTO_IP, IP_MINTTL): _set_min_ttl,
    (IPPROTO_IP, IP_LOCAL_PORT_RANGE): _set_port_range,
    (IPPROTO_IPV6, IPV6_UNICAST_HOPS): _set_hops,
    (IPPROTO_IPV6, IPV6_V6ONLY): _set_v6only,
    (IPPROTO_IPV6, IPV6_MTU_DISCOVER): _set_mtu_discover,
    (IPPROTO_IPV6, IPV6_MTU): _set_mtu6,
    (IPPROTO_IPV6, IPV6_RECVERR): _set_recverr,
    (IPPROTO_IPV6, IPV6_TCLASS): _set_tclass,
    (IPPROTO_IPV6, IPV6_MINHOPCOUNT): _set_min_ttl,
    (IPPROTO_IPV6, IPV6_ADDR_PREFERENCES): _set_addr_preferences,
}

GET: dict[Key, Getter] = {key: kept_getter(key) for key in _KEPT} | {
    (IPPROTO_IP, IP_TOS): field("tos"),
    (IPPROTO_IP, IP_TTL): field("ttl"),
    (IPPROTO_IP, IP_MTU_DISCOVER): field("pmtu_disc"),
    (IPPROTO_IP, IP_RECVERR): field("recverr"),
    (IPPROTO_IP, IP_MTU): _get_mtu,
    (IPPROTO_IP, IP_MINTTL): field("min_ttl"),
    (IPPROTO_IPV6, IPV6_UNICAST_HOPS): field("ttl"),
    (IPPROTO_IPV6, IPV6_V6ONLY): field("v6only"),
    (IPPROTO_IPV6, IPV6_MTU_DISCOVER): field("pmtu_disc"),
    (IPPROTO_IPV6, IPV6_MTU): _get_mtu,
    (IPPROTO_IPV6, IPV6_RECVERR): field("recverr"),
    (IPPROTO_IPV6, IPV6_TCLASS): field("tos"),
    (IPPROTO_IPV6, IPV6_MINHOPCOUNT): field("min_ttl"),
}
