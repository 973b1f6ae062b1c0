"""BSD sockets on a stack: the classes, and the numbers of Linux that their calls take beside those of `socket`.

`stack.socket(family)` and `stack.datagram_socket(family)` make them. They never block: a call that would is BlockingIOError, `poll()`
tells the readiness, `notify` is called when it may have changed. `Epoll` watches many, level or edge triggered.
"""

from __future__ import annotations

from pytcp.sockets.address import SockAddr
from pytcp.sockets.cmsg import IP_RECVERR, IPV6_RECVERR, MSG_CTRUNC, MSG_ERRQUEUE
from pytcp.sockets.epoll import EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, Epoll
from pytcp.sockets.socket import (
    IPV6_V6ONLY,
    MSG_OOB,
    MSG_TRUNC,
    SHUT_RD,
    SHUT_RDWR,
    SHUT_WR,
    SIOCATMARK,
    SIOCINQ,
    SIOCOUTQ,
    SIOCOUTQNSD,
    SO_ERROR,
    SO_LINGER,
    SO_REUSEADDR,
    SOL_SOCKET,
    Socket,
)
from pytcp.sockets.udp import DatagramSocket

__all__ = [
    "EPOLLERR",
    "EPOLLET",
    "EPOLLEXCLUSIVE",
    "EPOLLHUP",
    "EPOLLIN",
    "EPOLLONESHOT",
    "EPOLLOUT",
    "EPOLLPRI",
    "EPOLLRDHUP",
    "IPV6_RECVERR",
    "IPV6_V6ONLY",
    "IP_RECVERR",
    "MSG_CTRUNC",
    "MSG_ERRQUEUE",
    "MSG_OOB",
    "MSG_TRUNC",
    "SHUT_RD",
    "SHUT_RDWR",
    "SHUT_WR",
    "SIOCATMARK",
    "SIOCINQ",
    "SIOCOUTQ",
    "SIOCOUTQNSD",
    "SOL_SOCKET",
    "SO_ERROR",
    "SO_LINGER",
    "SO_REUSEADDR",
    "DatagramSocket",
    "Epoll",
    "SockAddr",
    "Socket",
]
