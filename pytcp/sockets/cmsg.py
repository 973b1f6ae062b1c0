"""Control data of recvmsg (cmsg(3)): what has room in the caller's buffer, and the record of the error queue (ip(7), IP_RECVERR)."""

from __future__ import annotations

import socket as stdlib
import struct

from pytcp.tcp import sockopt_socket
from pytcp.tcp.sockopt_ip import IP_RECVERR as IP_RECVERR
from pytcp.tcp.sockopt_ip import IPV6_RECVERR as IPV6_RECVERR

from .address import AF_INET, AF_INET6, MAPPED_PREFIX

SOL_SOCKET = int(stdlib.SOL_SOCKET)
SCM_TIMESTAMP = sockopt_socket.SO_TIMESTAMP
SCM_TIMESTAMPNS = sockopt_socket.SO_TIMESTAMPNS
SCM_TIMESTAMPING = sockopt_socket.SO_TIMESTAMPING
SCM_TIMESTAMP_NEW = sockopt_socket.SO_TIMESTAMP_NEW
SCM_TIMESTAMPNS_NEW = sockopt_socket.SO_TIMESTAMPNS_NEW
SCM_TIMESTAMPING_NEW = sockopt_socket.SO_TIMESTAMPING_NEW
SCM_TIMESTAMPING_OPT_STATS = 54
IPPROTO_IP = int(stdlib.IPPROTO_IP)
IPPROTO_IPV6 = int(stdlib.IPPROTO_IPV6)
MSG_CTRUNC = int(stdlib.MSG_CTRUNC)
MSG_ERRQUEUE = 0x2000
_HEADER = 16  # struct cmsghdr
_SOCK_EXTENDED_ERR = struct.Struct("=IBBBBII")

Ancillary = list[tuple[int, int, bytes]]


def fit(items: Ancillary, room: int) -> tuple[Ancillary, int]:
    """What of the control data has room in `room` bytes, and MSG_CTRUNC when that is not all of it."""
    fitting: Ancillary = []
    for level, kind, data in items:
        if room < _HEADER:
            return fitting, MSG_CTRUNC
        space = room - _HEADER
        fitting.append((level, kind, data[:space]))
        if len(data) > space:
            return fitting, MSG_CTRUNC
        room -= _HEADER + (len(data) + 7 & ~7)
    return fitting, 0


def timestamp(stamp_ns: int, *, nanoseconds: bool, new: bool) -> tuple[int, int, bytes]:
    """struct timeval or timespec: when something was received. new: under the name of 64 bits."""
    seconds, ns = divmod(stamp_ns, 1_000_000_000)
    if nanoseconds:
        return SOL_SOCKET, SCM_TIMESTAMPNS_NEW if new else SCM_TIMESTAMPNS, struct.pack("=qq", seconds, ns)
    return SOL_SOCKET, SCM_TIMESTAMP_NEW if new else SCM_TIMESTAMP, struct.pack("=qq", seconds, ns // 1000)


def timestamping(stamp_ns: int, *, new: bool) -> tuple[int, int, bytes]:
    """struct scm_timestamping: the software time stamp, and two that only hardware could give. new: under the name of 64 bits."""
    return SOL_SOCKET, SCM_TIMESTAMPING_NEW if new else SCM_TIMESTAMPING, struct.pack("=6q", *divmod(stamp_ns, 1_000_000_000), 0, 0, 0, 0)


def extended_error(family: int, number: int, origin: int, kind: int, code: int, info: int, offender: bytes, data: int = 0) -> tuple[int, int, bytes]:
    """struct sock_extended_err of a socket of `family`, with the sockaddr of who reported the error behind it; b"" is nobody.

    number: errno. origin: SO_EE_ORIGIN_*. kind, code: of the ICMP message. info: the MTU of a path MTU report; info, data: the calls a notice of
    MSG_ZEROCOPY is about, first and last."""
    head = _SOCK_EXTENDED_ERR.pack(number, origin, kind, code, 0, info, data)
    if family == AF_INET:
        where = struct.pack("=HH4s8x", AF_INET, 0, offender) if offender else bytes(16)
        return IPPROTO_IP, IP_RECVERR, head + where
    if len(offender) == 4:
        offender = MAPPED_PREFIX + offender
    where = struct.pack("=HHI16sI", AF_INET6, 0, 0, offender, 0) if offender else bytes(28)
    return IPPROTO_IPV6, IPV6_RECVERR, head + where
