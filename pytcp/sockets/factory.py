"""Unmodified trio programs on pytcp: the socket factory and the resolver of a trio run.

    async with open_stack(...) as stack:
        with use_stack(stack):
            stream = await trio.open_tcp_stream("example.org", 80)   # pytcp's TCP, pytcp's DNS

While `use_stack` holds, `trio.socket.socket` makes pytcp sockets, for this trio run and all its tasks.
trio's streams and listeners, SSLStream, anyio, httpx, hypercorn and trio-websocket are built on that
function and on `trio.socket.getaddrinfo`, so they need no change. Sockets of other families (AF_UNIX)
stay the kernel's. Programs that make a socket of the standard library and hand it to
`trio.socket.from_stdlib_socket` (anyio's create_tcp_listener, hypercorn's command line) are served by
`SocketFactory.adopt`, which `patched_stdlib` puts in that function's place.
"""

from __future__ import annotations

import errno
import socket as stdlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from .address import AF_INET, AF_INET6, oserror
from .socket import IPPROTO_IPV6, IPPROTO_TCP, IPV6_V6ONLY, SO_ACCEPTCONN, SO_REUSEADDR, SOL_SOCKET, TCP_NODELAY, Socket
from .trio_socket import TrioSocket
from .udp import DatagramSocket

if TYPE_CHECKING:
    from .open import TrioStack

SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_MAX = 1, 2, 3, 11
TYPE_FLAGS = int(stdlib.SOCK_NONBLOCK) | int(stdlib.SOCK_CLOEXEC)
IPPROTO_UDP = 17
PROTOCOL_MAX = 512
SO_REUSEPORT = int(stdlib.SO_REUSEPORT)
SO_BROADCAST = int(stdlib.SO_BROADCAST)

# which options of a kernel socket that takes no part any more go over to the one in its place
CARRIED = {
    SOCK_STREAM: ((SOL_SOCKET, SO_REUSEADDR), (SOL_SOCKET, SO_REUSEPORT), (IPPROTO_TCP, TCP_NODELAY)),
    SOCK_DGRAM: ((SOL_SOCKET, SO_REUSEADDR), (SOL_SOCKET, SO_REUSEPORT), (SOL_SOCKET, SO_BROADCAST)),
}
_TCP_INFO = 11
_MAX_BACKLOG_AT = 28  # of tcpi_sacked, which of a listening socket is its backlog


class SocketFactory(trio.abc.SocketFactory):
    """Makes the sockets of one stack."""

    def __init__(self, stack: TrioStack) -> None:
        self.stack = stack

    def socket(self, family: int = AF_INET, type: int = SOCK_STREAM, proto: int = 0) -> trio.socket.SocketType:
        """As `trio.socket.socket`. Raises OSError as Linux: EPROTONOSUPPORT, ESOCKTNOSUPPORT, EINVAL; ENETDOWN after the stack's end."""
        family, kind = int(family), int(type) & ~TYPE_FLAGS
        if family not in (AF_INET, AF_INET6):
            return _kernel(stdlib.socket(family, type, proto))
        if not 0 <= kind < SOCK_MAX or not 0 <= proto < PROTOCOL_MAX:
            raise oserror(errno.EINVAL, f"type {kind}, protocol {proto}")
        if kind not in (SOCK_STREAM, SOCK_DGRAM, SOCK_RAW):
            raise oserror(errno.ESOCKTNOSUPPORT, f"type {kind}")
        if kind == SOCK_STREAM and proto in (0, IPPROTO_TCP):
            return TrioSocket(Socket(self.stack, family), proto)
        if kind == SOCK_DGRAM and proto in (0, IPPROTO_UDP):
            return TrioSocket(DatagramSocket(self.stack, family), proto)
        raise oserror(errno.EPROTONOSUPPORT, f"type {kind} with protocol {proto}: pytcp has TCP streams and UDP datagrams")

    def adopt(self, sock: stdlib.socket) -> trio.socket.SocketType:
        """A pytcp socket in the place of one of the standard library: same address, options and backlog.

        The kernel's listens no more, and is closed with ours. One that is connected, or of another family,
        stays the kernel's, in a socket of trio's. Raises TypeError for other objects, OSError as `bind` and
        `listen`."""
        if type(sock) is not stdlib.socket or sock.family not in (AF_INET, AF_INET6) or sock.type not in CARRIED or _connected(sock):
            return _kernel(sock)
        made = self.socket(sock.family, sock.type, sock.proto)
        assert isinstance(made, TrioSocket)
        try:
            _carry(sock, made._sock)
        except BaseException:
            made.close()
            raise
        made.stand_for(sock)
        return made


# before anything is patched
_kernel = trio.socket.from_stdlib_socket


def _connected(sock: stdlib.socket) -> bool:
    try:
        sock.getpeername()
    except OSError as exc:
        return exc.errno != errno.ENOTCONN
    return True


def _carry(sock: stdlib.socket, made: Socket | DatagramSocket) -> None:
    """Give `made` the options, the address and the backlog of `sock`."""
    for level, option in CARRIED[sock.type]:
        value = sock.getsockopt(level, option)
        if value:
            made.setsockopt(level, option, value)
    if sock.family == AF_INET6:
        made.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, sock.getsockopt(IPPROTO_IPV6, IPV6_V6ONLY))
    address = sock.getsockname()
    if address[1]:
        made.bind(address)
    if sock.getsockopt(SOL_SOCKET, SO_ACCEPTCONN):
        made.listen(struct.unpack_from("=I", sock.getsockopt(IPPROTO_TCP, _TCP_INFO, 104), _MAX_BACKLOG_AT)[0])
        sock.shutdown(stdlib.SHUT_RD)  # of a listener: it keeps the port, and refuses connections


@contextmanager
def use_stack(stack: TrioStack, *, resolver: trio.abc.HostnameResolver | None = None) -> Iterator[SocketFactory]:
    """Have this trio run make its sockets on `stack` and resolve names over it, until the block ends.

    resolver: None is the stack's, a `Resolver` with the system's files unless it was set.
    Raises RuntimeError when the run has a socket factory already: its programs could not tell whose sockets they get.
    TypeError when either is something else.
    """
    from .open import TrioStack

    if not isinstance(stack, TrioStack):
        raise TypeError(f"use_stack() takes what open_stack() gives, not {stack!r}")
    if resolver is not None and not isinstance(resolver, trio.abc.HostnameResolver):
        raise TypeError(f"a resolver is a trio.abc.HostnameResolver, not {resolver!r}")
    factory = SocketFactory(stack)
    before = trio.socket.set_custom_socket_factory(factory)
    if before is not None:
        trio.socket.set_custom_socket_factory(before)
        raise RuntimeError(f"this trio run has a socket factory already: {before!r}")
    resolver_before = trio.socket.set_custom_hostname_resolver(resolver or stack.resolver)
    try:
        yield factory
    finally:
        trio.socket.set_custom_socket_factory(None)
        trio.socket.set_custom_hostname_resolver(resolver_before)


@contextmanager
def patched_stdlib(factory: SocketFactory) -> Iterator[None]:
    """Let `trio.socket.from_stdlib_socket` adopt the sockets it is given, in the whole process, until the block ends.

    Raises RuntimeError when that is so already."""
    if trio.socket.from_stdlib_socket is not _kernel:
        raise RuntimeError("trio.socket.from_stdlib_socket is patched already")
    trio.socket.from_stdlib_socket = factory.adopt
    try:
        yield
    finally:
        trio.socket.from_stdlib_socket = _kernel
