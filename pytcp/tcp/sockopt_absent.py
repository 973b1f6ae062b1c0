"""Options of features that are not here: what is wrong with their arguments is told as by a kernel that has the feature.

Right arguments are refused as by a kernel built without it: ENOPROTOOPT, or ENOENT where the feature goes by a name. Not here are
BPF filters, repairing a connection, upper layer protocols (TLS of the kernel), receiving without a copy, TCP-AO, multicast and
anycast groups, IPv6 flow labels that a program manages, and IPv6 extension headers. To end what never began (detaching a filter, leaving
a group, giving back a device's memory, sending no extension header) does, or fails, as where nothing was begun.
"""

from __future__ import annotations

import errno
from struct import Struct

from .const import LISTEN
from .sock import Sock
from .sockopt_kinds import INT, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, ByteSetter, Key, SizedGetter, check, fail, kept, refuse, unreadable

SO_ATTACH_FILTER = 26
SO_DETACH_FILTER = 27
SO_LOCK_FILTER = 44
SO_ATTACH_BPF = 50
SO_ATTACH_REUSEPORT_CBPF = 51
SO_ATTACH_REUSEPORT_EBPF = 52
SO_DETACH_REUSEPORT_BPF = 68
SO_PEERPIDFD = 77
SO_DEVMEM_DONTNEED = 80

TCP_REPAIR_OPTIONS = 22
TCP_REPAIR_WINDOW = 29
TCP_ULP = 31
TCP_ZEROCOPY_RECEIVE = 35
TCP_AO_REPAIR = 42

IP_UNBLOCK_SOURCE = 37
IP_BLOCK_SOURCE = 38
IP_ADD_SOURCE_MEMBERSHIP = 39
IP_DROP_SOURCE_MEMBERSHIP = 40
IP_MSFILTER = 41
MCAST_JOIN_GROUP = 42
MCAST_LEAVE_GROUP = 45
MCAST_OF_SOURCES = (43, 44, 46, 47)  # block, unblock, join, leave a source of a group
MCAST_MSFILTER = 48

IPV6_2292PKTOPTIONS = 6
IPV6_JOIN_ANYCAST = 27
IPV6_LEAVE_ANYCAST = 28
IPV6_FLOWLABEL_MGR = 32
IPV6_HOPOPTS = 54
IPV6_RTHDRDSTOPTS = 55
IPV6_RTHDR = 57
IPV6_DSTOPTS = 59

AF_INET = 2
AF_INET6 = 10
MAX_PROGRAM = 4096  # instructions of a classic BPF program
MAX_TOKENS = 128
MAX_SOURCES_IP = 10  # net.ipv4.igmp_max_msf
MAX_SOURCES_IP6 = 64  # net.ipv6.mld_max_msf
IP_MREQ_SOURCE = 12
IP_MSFILTER_HEAD = 16
IPV6_MREQ = 20
FLOWLABEL_REQ = 32
FL_RENEW = 2  # IPV6_FL_A_GET, PUT, RENEW
FL_SHARES = (1, 2, 3, 255)  # IPV6_FL_S_EXCL, PROCESS, USER, ANY
GROUP_REQ = 136
GROUP_SOURCE_REQ = 264
GROUP_FILTER = 144
REPAIR_WINDOW = 20
ZEROCOPY = 16  # of struct tcp_zerocopy_receive, what every version has
_PROGRAM = Struct("=HxxxxxxQ")  # struct sock_fprog
_CMSG = Struct("=QIxxxx")  # struct cmsghdr
_U16 = Struct("=H")
_U32 = Struct("=I")
_U64 = Struct("=Q")


# ---------------------------------------------------------------- filters


def _attach(sk: Sock, value: bytes) -> None:
    """A program of the classic BPF."""
    check(len(value) == _PROGRAM.size)
    length, address = _PROGRAM.unpack(value)
    if kept(sk, SOL_SOCKET, SO_LOCK_FILTER):
        fail(errno.EPERM)
    check(bool(address) and 0 < length <= MAX_PROGRAM)
    fail(errno.ENOPROTOOPT)


def _attach_loaded(sk: Sock, value: bytes) -> None:
    """A program that bpf(2) has loaded, by its descriptor."""
    check(len(value) == INT.size)
    if kept(sk, SOL_SOCKET, SO_LOCK_FILTER):
        fail(errno.EPERM)
    fail(errno.ENOPROTOOPT)


def _detach(sk: Sock, value: bytes) -> None:
    check(len(value) >= INT.size)
    fail(errno.EPERM if kept(sk, SOL_SOCKET, SO_LOCK_FILTER) else errno.ENOENT)


def _detach_of_group(sk: Sock, value: bytes) -> None:
    check(len(value) >= INT.size and sk.reuseport)
    fail(errno.ENOENT)


def _give_back(sk: Sock, value: bytes) -> None:
    """Tokens of a device's memory, of which no read has given any: none of them is known, which is no error."""
    check(len(value) >= INT.size and not len(value) % _U64.size and len(value) <= MAX_TOKENS * _U64.size)


# ---------------------------------------------------------------- TCP


def _set_ulp(sk: Sock, value: bytes) -> None:
    check(bool(value))
    fail(errno.ENOENT)


def _get_repair_window(sk: Sock, room: int) -> bytes:
    check(room == REPAIR_WINDOW)
    fail(errno.EPERM)


def _get_zerocopy(sk: Sock, room: int) -> bytes:
    check(room >= ZEROCOPY)
    fail(errno.ENOTCONN if sk.state == LISTEN else errno.ENOPROTOOPT)


def _set_ao_repair(sk: Sock, value: bytes) -> None:
    check(len(value) >= INT.size)
    _get_ao_repair(sk, 0)


def _get_ao_repair(sk: Sock, room: int) -> bytes:
    fail(errno.EPERM if sk.state == LISTEN else errno.ENOPROTOOPT)


# ---------------------------------------------------------------- groups


def _set_source(sk: Sock, value: bytes) -> None:
    """struct ip_mreq_source: a group, and a source of it."""
    check(len(value) == IP_MREQ_SOURCE and value[0] >> 4 == 14)
    fail(errno.ENOPROTOOPT)


def _set_msfilter(sk: Sock, value: bytes) -> None:
    """struct ip_msfilter: a group, and sources of it."""
    check(len(value) >= IP_MSFILTER_HEAD)
    sources = _U32.unpack_from(value, 12)[0]
    if sources > MAX_SOURCES_IP:
        fail(errno.ENOBUFS)
    check(len(value) >= IP_MSFILTER_HEAD + 4 * sources and value[0] >> 4 == 14)
    fail(errno.ENOPROTOOPT)


def _set_group(size: int, family: int, code: int) -> ByteSetter:
    """struct group_req or group_source_req of `size` bytes; `code` for an address of another family."""

    def setter(sk: Sock, value: bytes) -> None:
        check(len(value) >= size)
        if _U16.unpack_from(value, 8)[0] != family:
            fail(code)
        fail(errno.ENOPROTOOPT)

    return setter


def _set_group_filter(limit: int, family: int) -> ByteSetter:
    """struct group_filter: a group of any family, and at most `limit` sources of it."""

    def setter(sk: Sock, value: bytes) -> None:
        check(len(value) >= GROUP_FILTER)
        sources = _U32.unpack_from(value, 140)[0]
        if sources > limit:
            fail(errno.ENOBUFS)
        check(len(value) >= 16 + 128 * (sources + 1))
        if _U16.unpack_from(value, 8)[0] != family:
            fail(errno.EADDRNOTAVAIL if family == AF_INET else errno.EINVAL)
        fail(errno.ENOPROTOOPT)

    return setter


def _join_anycast(sk: Sock, value: bytes) -> None:
    check(len(value) >= IPV6_MREQ and value[0] != 0xFF)
    fail(errno.ENOPROTOOPT)


# ---------------------------------------------------------------- extension headers


def _set_header(sk: Sock, value: bytes) -> None:
    """An extension header that every packet is to have; none is sent."""
    if not value:
        return
    check(not len(value) % 8 and 8 * (value[1] + 1) <= len(value))
    fail(errno.ENOPROTOOPT)


def _set_routing(sk: Sock, value: bytes) -> None:
    """A routing header: for Mobile IPv6 (type 2), or segment routing (4)."""
    if value:
        check(len(value) >= 8 and not len(value) % 8 and value[2] in (2, 4))
    _set_header(sk, value)


def _set_pktoptions(sk: Sock, value: bytes) -> None:
    """Control messages (RFC 2292) that every packet is to obey: none, or of other levels. What is too short to be one is no message."""
    at = 0
    while len(value) - at >= _CMSG.size:
        size, level = _CMSG.unpack_from(value, at)
        check(_CMSG.size <= size <= len(value) - at)
        if level == IPPROTO_IPV6:
            fail(errno.ENOPROTOOPT)
        at += size + 7 & ~7


def _manage_label(sk: Sock, value: bytes) -> None:
    """struct in6_flowlabel_req: to get a label, or to give one back or renew it, of which there is none."""
    check(len(value) >= FLOWLABEL_REQ and value[20] <= FL_RENEW)
    if value[20]:
        fail(errno.ESRCH)
    check(value[21] in FL_SHARES)
    fail(errno.ENOPROTOOPT)


def _nothing(sk: Sock, room: int) -> bytes:
    return b""


# ---------------------------------------------------------------- tables

SET_BYTES: dict[Key, ByteSetter] = {
    **{(SOL_SOCKET, name): _attach for name in (SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF)},
    **{(SOL_SOCKET, name): _attach_loaded for name in (SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_EBPF)},
    (SOL_SOCKET, SO_DETACH_FILTER): _detach,
    (SOL_SOCKET, SO_DETACH_REUSEPORT_BPF): _detach_of_group,
    (SOL_SOCKET, SO_DEVMEM_DONTNEED): _give_back,
    (IPPROTO_TCP, TCP_REPAIR_OPTIONS): refuse(errno.EINVAL),
    (IPPROTO_TCP, TCP_REPAIR_WINDOW): refuse(errno.EPERM, INT.size),
    (IPPROTO_TCP, TCP_ULP): _set_ulp,
    (IPPROTO_TCP, TCP_AO_REPAIR): _set_ao_repair,
    **{(IPPROTO_IP, name): _set_source for name in (IP_UNBLOCK_SOURCE, IP_BLOCK_SOURCE, IP_ADD_SOURCE_MEMBERSHIP, IP_DROP_SOURCE_MEMBERSHIP)},
    (IPPROTO_IP, IP_MSFILTER): _set_msfilter,
    **{(IPPROTO_IP, name): _set_group(GROUP_REQ, AF_INET, errno.EINVAL) for name in (MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP)},
    **{(IPPROTO_IP, name): _set_group(GROUP_SOURCE_REQ, AF_INET, errno.EADDRNOTAVAIL) for name in MCAST_OF_SOURCES},
    (IPPROTO_IP, MCAST_MSFILTER): _set_group_filter(MAX_SOURCES_IP, AF_INET),
    **{(IPPROTO_IPV6, name): _set_group(GROUP_REQ, AF_INET6, errno.EADDRNOTAVAIL) for name in (MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP)},
    **{(IPPROTO_IPV6, name): _set_group(GROUP_SOURCE_REQ, AF_INET6, errno.EADDRNOTAVAIL) for name in MCAST_OF_SOURCES},
    (IPPROTO_IPV6, MCAST_MSFILTER): _set_group_filter(MAX_SOURCES_IP6, AF_INET6),
    (IPPROTO_IPV6, IPV6_2292PKTOPTIONS): _set_pktoptions,
    (IPPROTO_IPV6, IPV6_JOIN_ANYCAST): _join_anycast,
    (IPPROTO_IPV6, IPV6_LEAVE_ANYCAST): refuse(errno.ENOENT, IPV6_MREQ),
    (IPPROTO_IPV6, IPV6_FLOWLABEL_MGR): _manage_label,
    **{(IPPROTO_IPV6, name): _set_header for name in (IPV6_HOPOPTS, IPV6_RTHDRDSTOPTS, IPV6_DSTOPTS)},
    (IPPROTO_IPV6, IPV6_RTHDR): _set_routing,
}

GET_SIZED: dict[Key, SizedGetter] = {
    (SOL_SOCKET, SO_ATTACH_FILTER): _nothing,
    (SOL_SOCKET, SO_PEERPIDFD): unreadable(errno.ENODATA),
    (IPPROTO_TCP, TCP_REPAIR_WINDOW): _get_repair_window,
    (IPPROTO_TCP, TCP_ULP): _nothing,
    (IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE): _get_zerocopy,
    (IPPROTO_TCP, TCP_AO_REPAIR): _get_ao_repair,
    (IPPROTO_IP, IP_MSFILTER): unreadable(errno.EINVAL),
    (IPPROTO_IP, MCAST_MSFILTER): unreadable(errno.EINVAL),
    (IPPROTO_IPV6, MCAST_MSFILTER): unreadable(errno.EADDRNOTAVAIL, GROUP_FILTER),
    (IPPROTO_IPV6, IPV6_FLOWLABEL_MGR): unreadable(errno.ENOENT, FLOWLABEL_REQ),
    **{(IPPROTO_IPV6, name): _nothing for name in (IPV6_2292PKTOPTIONS, IPV6_HOPOPTS, IPV6_RTHDRDSTOPTS, IPV6_RTHDR, IPV6_DSTOPTS)},
}
