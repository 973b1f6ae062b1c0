"""Control data of UDP (ip(7), ipv6(7)): what recvmsg adds to a datagram, and what sendmsg may ask for it.

Received: interface, addresses, TTL and TOS, as far as options ask (IP_PKTINFO, IP_RECVTTL, IPV6_RECVPKTINFO, ...), in the kernel's
order, and the size of the datagrams of a super-frame (UDP_GRO). Sent: the source and the interface, TTL, TOS, IPV6_DONTFRAG, the segment
size (UDP_SEGMENT) for one datagram, with the kernel's refusals.
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING, Any

from pytcp.net.udp_output import Control
from pytcp.wire.addr import IP4_ANY, IP4_BROADCAST, is_multicast

from .address import AF_INET6, MAPPED_PREFIX, oserror
from .udp_options import (
    INT,
    IP_PKTINFO,
    IP_RECVTOS,
    IP_RECVTTL,
    IP_TOS,
    IP_TTL,
    IPPROTO_IP,
    IPPROTO_IPV6,
    IPPROTO_UDP,
    IPV6_DONTFRAG,
    IPV6_HOPLIMIT,
    IPV6_PKTINFO,
    IPV6_RECVHOPLIMIT,
    IPV6_RECVPKTINFO,
    IPV6_RECVTCLASS,
    IPV6_TCLASS,
    SO_MARK,
    SO_PRIORITY,
    SOL_SOCKET,
    UDP_GRO,
    UDP_SEGMENT,
)

if TYPE_CHECKING:
    from pytcp.net.datagram import Datagram, UdpSocket

    from .cmsg import Ancillary
    from .udp import DatagramSocket

_PKTINFO = 12  # struct in_pktinfo
_PKTINFO6 = 20
_SEGMENT = struct.Struct("=H")


def ancillary(so: DatagramSocket, udp: UdpSocket, datagram: Datagram) -> Ancillary:
    """The control data that options ask for, in the kernel's order."""
    kept = so.kept
    found: Ancillary = []
    if datagram.gso_size and udp.gro:
        found.append((IPPROTO_UDP, UDP_GRO, INT.pack(datagram.gso_size)))
    if not kept:
        return found
    four = len(datagram.dst) == 4
    if so.family == AF_INET6:
        if kept.get((IPPROTO_IPV6, IPV6_RECVPKTINFO)):
            dst = MAPPED_PREFIX + datagram.dst if four else datagram.dst
            found.append((IPPROTO_IPV6, IPV6_PKTINFO, dst + INT.pack(datagram.dev.index)))
        if not four:
            if kept.get((IPPROTO_IPV6, IPV6_RECVHOPLIMIT)):
                found.append((IPPROTO_IPV6, IPV6_HOPLIMIT, INT.pack(datagram.ttl)))
            if kept.get((IPPROTO_IPV6, IPV6_RECVTCLASS)):
                found.append((IPPROTO_IPV6, IPV6_TCLASS, INT.pack(datagram.tos)))
    if four:
        if kept.get((IPPROTO_IP, IP_PKTINFO)):
            stack = datagram.dev.stack
            group = is_multicast(datagram.dst) or datagram.dst == IP4_BROADCAST or datagram.dst in stack.broadcast4
            local = datagram.dev.primary4 if group and datagram.dev.addresses4 else datagram.dst
            found.append((IPPROTO_IP, IP_PKTINFO, INT.pack(datagram.dev.index) + local + datagram.dst))
        if kept.get((IPPROTO_IP, IP_RECVTTL)):
            found.append((IPPROTO_IP, IP_TTL, INT.pack(datagram.ttl)))
        if kept.get((IPPROTO_IP, IP_RECVTOS)):
            found.append((IPPROTO_IP, IP_TOS, bytes((datagram.tos,))))
    return found


_ACCEPTED = (1, 2, SO_PRIORITY, SO_MARK)  # of SOL_SOCKET: SCM_RIGHTS, SCM_CREDENTIALS


def outgoing(so: DatagramSocket, udp: UdpSocket, control: Ancillary, six: bool) -> Control:
    """What the control data of one datagram asks for; `six`: it goes to an IPv6 address. As measured: other levels are
    ignored, and so is the family's that it does not go by. Raises OSError EINVAL, ENODEV, ENETUNREACH."""
    asked: dict[str, Any] = {}
    for level, kind, data in control:
        if level == SOL_SOCKET and kind not in _ACCEPTED:
            raise oserror(errno.EINVAL, f"control message {kind} of SOL_SOCKET")
        if level == IPPROTO_UDP:
            if kind != UDP_SEGMENT or len(data) != _SEGMENT.size:
                raise oserror(errno.EINVAL, f"control message {kind} of IPPROTO_UDP, {len(data)} bytes")
            asked["gso_size"] = _SEGMENT.unpack(data)[0]
        if level == (IPPROTO_IPV6 if six else IPPROTO_IP):
            asked |= (_ask6 if six else _ask4)(udp, kind, data)
    return Control(**asked)


def _int_in(data: bytes, low: int, high: int) -> int:
    if len(data) != INT.size:
        raise oserror(errno.EINVAL, f"{len(data)} bytes of control data")
    number: int = INT.unpack(data)[0]
    if not low <= number <= high:
        raise oserror(errno.EINVAL, f"value {number}")
    return number


def _ask4(udp: UdpSocket, kind: int, data: bytes) -> dict[str, Any]:
    if kind == IP_TTL:
        return {"ttl": _int_in(data, 1, 255)}
    if kind == IP_TOS:
        return {"tos": data[0] if len(data) == 1 else _int_in(data, 0, 255)}
    if kind == IP_PKTINFO:
        if len(data) != _PKTINFO:
            raise oserror(errno.EINVAL, f"{len(data)} bytes for struct in_pktinfo")
        source = data[4:8]
        if source != IP4_ANY and source not in udp.stack.local4 and source[0] != 127:
            raise oserror(errno.ENETUNREACH, "the source is not an address of this host")
        return _by(udp, INT.unpack_from(data)[0], b"" if source == IP4_ANY else source)
    raise oserror(errno.EINVAL, f"control message {kind} of IPPROTO_IP")


def _ask6(udp: UdpSocket, kind: int, data: bytes) -> dict[str, Any]:
    if kind == IPV6_HOPLIMIT:
        hops = _int_in(data, -1, 255)
        return {} if hops < 0 else {"ttl": hops}
    if kind == IPV6_TCLASS:
        return {"tos": _int_in(data, -1, 255) & 0xFF}
    if kind == IPV6_DONTFRAG:
        return {"dontfrag": bool(_int_in(data, 0, 1))}
    if kind == IPV6_PKTINFO:
        if len(data) < _PKTINFO6:
            raise oserror(errno.EINVAL, f"{len(data)} bytes for struct in6_pktinfo")
        source = data[:16]
        asked = _by(udp, INT.unpack_from(data, 16)[0], source if any(source) else b"")
        if any(source) and source not in udp.stack.local6:
            raise oserror(errno.EINVAL, "the source is not an address of this host")
        return asked
    raise oserror(errno.EINVAL, f"control message {kind} of IPPROTO_IPV6")


def _by(udp: UdpSocket, index: int, source: bytes) -> dict[str, Any]:
    """Interface and source of IP_PKTINFO, IPV6_PKTINFO."""
    return {"dev": udp.stack.device(index) if index else None, "source": source}
