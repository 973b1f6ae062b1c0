"""Control data of UDP (ip(7), ipv6(7), udp(7)): what recvmsg adds to a datagram, and what sendmsg may ask for it.

Received: interface, addresses, TTL and TOS, as far as options ask (IP_PKTINFO, IP_RECVTTL, IPV6_RECVPKTINFO, ...), when it came and what
was lost before (SO_TIMESTAMP, SO_RXQ_OVFL), the size of the datagrams of a super-frame (UDP_GRO), in the kernel's order. Sent: source and
interface, TTL, TOS, IPV6_DONTFRAG, flow label, segment size (UDP_SEGMENT) for one datagram, with the kernel's refusals.
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING, Any

from pytcp.net.udp_output import Control
from pytcp.tcp import sockopt_ip as ip
from pytcp.wire.addr import IP4_ANY, IP4_BROADCAST, is_link_local, is_multicast

from .address import AF_INET, AF_INET6, MAPPED_PREFIX, oserror
from .udp_kinds import INT, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, SOL_SOCKET
from .udp_options import (
    SO_MARK,
    SO_PRIORITY,
    SO_RCVMARK,
    SO_RCVPRIORITY,
    SO_RXQ_OVFL,
    SO_TIMESTAMP,
    SO_TIMESTAMP_NEW,
    SO_TXTIME,
    UDP_GRO,
    UDP_SEGMENT,
)

if TYPE_CHECKING:
    from pytcp.net.datagram import Datagram, UdpSocket

    from .cmsg import Ancillary
    from .udp import DatagramSocket

IP_PKTINFO, IP_TTL, IP_TOS, IP_RETOPTS, IP_PROTOCOL, IP_ORIGDSTADDR = ip.IP_PKTINFO, ip.IP_TTL, ip.IP_TOS, ip.IP_RETOPTS, ip.IP_PROTOCOL, ip.IP_RECVORIGDSTADDR
IPV6_PKTINFO, IPV6_HOPLIMIT, IPV6_TCLASS, IPV6_DONTFRAG = 50, 52, ip.IPV6_TCLASS, ip.IPV6_DONTFRAG
IPV6_FLOWINFO, IPV6_2292PKTINFO, IPV6_2292HOPLIMIT, IPV6_ORIGDSTADDR = ip.IPV6_FLOWINFO, ip.IPV6_2292PKTINFO, ip.IPV6_2292HOPLIMIT, ip.IPV6_RECVORIGDSTADDR
SCM_TIMESTAMPING, SCM_TIMESTAMPING_NEW, SCM_DEVMEM_DMABUF = 37, 65, 79
FLOW_LABEL = 0xFFFFF

_PKTINFO = 12  # struct in_pktinfo
_PKTINFO6 = 20
_SEGMENT = struct.Struct("=H")
_TIME = struct.Struct("=qq")  # struct timeval, struct timespec
_U32, _U64 = struct.Struct("=I"), struct.Struct("=Q")
_TX_RECORDS = 0x303  # the stamps of SO_TIMESTAMPING that one datagram may ask for; none are made


def ancillary(so: DatagramSocket, udp: UdpSocket, datagram: Datagram) -> Ancillary:
    """The control data that options ask for, in the kernel's order."""
    kept = so.kept
    found: Ancillary = []
    if udp.stamps:
        seconds, ns = divmod(datagram.stamp_ns or udp.stack.realtime_ns(), 1_000_000_000)
        found.append((SOL_SOCKET, udp.stamps, _TIME.pack(seconds, ns // 1000 if udp.stamps in (SO_TIMESTAMP, SO_TIMESTAMP_NEW) else ns)))
    if kept:
        if datagram.drops and kept.get((SOL_SOCKET, SO_RXQ_OVFL)):
            found.append((SOL_SOCKET, SO_RXQ_OVFL, _U32.pack(datagram.drops & 0xFFFFFFFF)))
        # nothing on a wire says these
        if kept.get((SOL_SOCKET, SO_RCVMARK)):
            found.append((SOL_SOCKET, SO_MARK, INT.pack(0)))
        if kept.get((SOL_SOCKET, SO_RCVPRIORITY)):
            found.append((SOL_SOCKET, SO_PRIORITY, INT.pack(0)))
    if datagram.gso_size and udp.gro:
        found.append((IPPROTO_UDP, UDP_GRO, INT.pack(datagram.gso_size)))
    if kept:
        four = len(datagram.dst) == 4
        if so.family == AF_INET6:
            _told6(so, udp, datagram, four, found)
        if four:
            _told4(so, udp, datagram, found)
    return found


def _told6(so: DatagramSocket, udp: UdpSocket, datagram: Datagram, four: bool, found: Ancillary) -> None:
    kept = so.kept
    info = (MAPPED_PREFIX + datagram.dst if four else datagram.dst) + INT.pack(datagram.dev.index)
    if kept.get((IPPROTO_IPV6, ip.IPV6_RECVPKTINFO)):
        found.append((IPPROTO_IPV6, IPV6_PKTINFO, info))
    if four:
        return
    if kept.get((IPPROTO_IPV6, ip.IPV6_RECVHOPLIMIT)):
        found.append((IPPROTO_IPV6, IPV6_HOPLIMIT, INT.pack(datagram.ttl)))
    if kept.get((IPPROTO_IPV6, ip.IPV6_RECVTCLASS)):
        found.append((IPPROTO_IPV6, IPV6_TCLASS, INT.pack(datagram.tos)))
    flow = datagram.tos << 20 | datagram.flow
    if flow and kept.get((IPPROTO_IPV6, IPV6_FLOWINFO)):
        found.append((IPPROTO_IPV6, IPV6_FLOWINFO, flow.to_bytes(4, "big")))
    if kept.get((IPPROTO_IPV6, IPV6_2292PKTINFO)):
        found.append((IPPROTO_IPV6, IPV6_2292PKTINFO, info))
    if kept.get((IPPROTO_IPV6, IPV6_2292HOPLIMIT)):
        found.append((IPPROTO_IPV6, IPV6_2292HOPLIMIT, INT.pack(datagram.ttl)))
    if kept.get((IPPROTO_IPV6, IPV6_ORIGDSTADDR)):
        scope = datagram.dev.index if is_link_local(datagram.dst) else 0
        where = struct.pack("=H2sI16sI", AF_INET6, udp.lport.to_bytes(2, "big"), 0, datagram.dst, scope)
        found.append((IPPROTO_IPV6, IPV6_ORIGDSTADDR, where))


def _told4(so: DatagramSocket, udp: UdpSocket, datagram: Datagram, found: Ancillary) -> None:
    kept = so.kept
    if kept.get((IPPROTO_IP, IP_PKTINFO)):
        stack = datagram.dev.stack
        group = is_multicast(datagram.dst) or datagram.dst == IP4_BROADCAST or datagram.dst in stack.broadcast4
        local = datagram.dev.primary4 if group and datagram.dev.addresses4 else datagram.dst
        found.append((IPPROTO_IP, IP_PKTINFO, INT.pack(datagram.dev.index) + local + datagram.dst))
    if kept.get((IPPROTO_IP, ip.IP_RECVTTL)):
        found.append((IPPROTO_IP, IP_TTL, INT.pack(datagram.ttl)))
    if kept.get((IPPROTO_IP, ip.IP_RECVTOS)):
        found.append((IPPROTO_IP, IP_TOS, bytes((datagram.tos,))))
    if kept.get((IPPROTO_IP, IP_ORIGDSTADDR)):
        found.append((IPPROTO_IP, IP_ORIGDSTADDR, struct.pack("=H2s4s8x", AF_INET, udp.lport.to_bytes(2, "big"), datagram.dst)))


def outgoing(so: DatagramSocket, udp: UdpSocket, control: Ancillary, six: bool) -> Control:
    """What the control data of one datagram asks for; `six`: it goes to an IPv6 address. As measured: other levels are
    ignored, and so is the family's that it does not go by. Raises OSError EINVAL, ENODEV, ENETUNREACH."""
    asked: dict[str, Any] = {}
    for level, kind, data in control:
        if level == SOL_SOCKET:
            _check_socket(so, kind, data)
        elif level == IPPROTO_UDP:
            if kind != UDP_SEGMENT or len(data) != _SEGMENT.size:
                raise oserror(errno.EINVAL, f"control message {kind} of IPPROTO_UDP, {len(data)} bytes")
            asked["gso_size"] = _SEGMENT.unpack(data)[0]
        elif level == (IPPROTO_IPV6 if six else IPPROTO_IP):
            asked |= (_ask6 if six else _ask4)(udp, kind, data)
        elif level == IPPROTO_IPV6 and so.family == AF_INET6 and kind == IPV6_PKTINFO:
            asked |= _ask_mapped(data)
    if not six and asked.get("source") and not _may_send4(udp, asked["source"]):
        raise oserror(errno.ENETUNREACH, "the source is not an address of this host")
    if "index" in asked:
        index = asked.pop("index")
        asked["dev"] = udp.stack.device(index) if index else None
    return Control(**asked)


def _check_socket(so: DatagramSocket, kind: int, data: bytes) -> None:
    """A message of SOL_SOCKET is taken or refused, and changes nothing here."""
    if kind in (1, 2):  # SCM_RIGHTS, SCM_CREDENTIALS
        return
    if kind == SO_TXTIME:
        ok = len(data) == _U64.size and (SOL_SOCKET, SO_TXTIME) in so.kept
    else:
        ok = len(data) == _U32.size and kind in (SO_PRIORITY, SO_MARK, SCM_DEVMEM_DMABUF, SCM_TIMESTAMPING, SCM_TIMESTAMPING_NEW)
        if ok and kind in (SCM_TIMESTAMPING, SCM_TIMESTAMPING_NEW):
            ok = not _U32.unpack(data)[0] & ~_TX_RECORDS
    if not ok:
        raise oserror(errno.EINVAL, f"control message {kind} of SOL_SOCKET, {len(data)} bytes")


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
        return _from4(INT.unpack_from(data)[0], data[4:8])
    if kind == IP_PROTOCOL:
        _int_in(data, 1, 255)  # of raw sockets
        return {}
    if kind == IP_RETOPTS and not data.strip(b"\0\1"):
        return {}
    raise oserror(errno.EINVAL, f"control message {kind} of IPPROTO_IP")


def _ask_mapped(data: bytes) -> dict[str, Any]:
    """IPV6_PKTINFO of a datagram to an IPv4-mapped address."""
    if len(data) < _PKTINFO6 or not data.startswith(MAPPED_PREFIX):
        raise oserror(errno.EINVAL, "no IPv4-mapped source")
    return _from4(INT.unpack_from(data, 16)[0], data[12:16])


def _from4(index: int, source: bytes) -> dict[str, Any]:
    """Whether there are such an interface and address is asked when all messages are read."""
    return {"index": index, "source": b"" if source == IP4_ANY else source}


def _may_send4(udp: UdpSocket, source: bytes) -> bool:
    return source in udp.stack.local4 or source[0] == 127 or udp.transparent


def _ask6(udp: UdpSocket, kind: int, data: bytes) -> dict[str, Any]:
    if kind in (IPV6_HOPLIMIT, IPV6_2292HOPLIMIT):
        hops = _int_in(data, -1, 255)
        return {} if hops < 0 else {"ttl": hops}
    if kind == IPV6_TCLASS:
        return {"tos": _int_in(data, -1, 255) & 0xFF}
    if kind == IPV6_DONTFRAG:
        return {"dontfrag": bool(_int_in(data, 0, 1))}
    if kind == IPV6_FLOWINFO and len(data) >= INT.size:
        return {"flow": int.from_bytes(data[:4], "big") & FLOW_LABEL}
    if kind in (IPV6_PKTINFO, IPV6_2292PKTINFO):
        if len(data) < _PKTINFO6:
            raise oserror(errno.EINVAL, f"{len(data)} bytes for struct in6_pktinfo")
        source, index = data[:16], INT.unpack_from(data, 16)[0]
        if index and udp.bound_dev_if and index != udp.bound_dev_if:
            raise oserror(errno.EINVAL, "not the interface that the socket is bound to")
        asked = _by(udp, index, source if any(source) else None)
        if any(source) and source not in udp.stack.local6 and not udp.freebind and not udp.transparent:
            raise oserror(errno.EINVAL, "the source is not an address of this host")
        return asked
    raise oserror(errno.EINVAL, f"control message {kind} of IPPROTO_IPV6")


def _by(udp: UdpSocket, index: int, source: bytes | None) -> dict[str, Any]:
    """Interface and source of IP_PKTINFO, IPV6_PKTINFO."""
    return {"dev": udp.stack.device(index) if index else None, "source": source}
