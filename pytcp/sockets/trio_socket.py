"""A `trio.socket.SocketType` on a pytcp socket: what trio's own streams, and programs written for them, hold.

Each method does what trio's does with a socket of the kernel: the call is tried, and when it would block
the task waits for readiness. Names in addresses go through `trio.socket.getaddrinfo`, and so to the
resolver of the run. After `close` every call is OSError EBADF, and a task that was waiting gets
ClosedResourceError; what the stack's end does to a call is the stack's error.

A socket that a program drops without closing it is closed then, with a ResourceWarning, as the standard
library's is.

There is no descriptor behind it. `fileno()` is a number no descriptor can have, -1 once closed, so that
programs that only look whether a socket is open are served, and a system call on it fails with EBADF;
`detach`, `dup` and `set_inheritable(True)` are EOPNOTSUPP.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket as stdlib
import warnings
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import trio
from trio.lowlevel import cancel_shielded_checkpoint, checkpoint, checkpoint_if_cancelled

from . import arguments
from .address import AF_INET, AF_INET6, oserror
from .socket import IPPROTO_IPV6, IPV6_V6ONLY, SHUT_WR, SO_ERROR, SOL_SOCKET, Socket
from .udp import DatagramSocket
from .waiting import READ_EVENTS, Waiter

T = TypeVar("T")

# descriptors end far below (fs.nr_open), and it is still a C int
FIRST_NUMBER = 1 << 30
_numbers = itertools.count(FIRST_NUMBER)
BACKLOG = min(stdlib.SOMAXCONN, 128)


def _let_go(sock: Socket | DatagramSocket, stands_for: stdlib.socket | None) -> None:
    sock.close()
    if stands_for is not None:
        stands_for.close()


class TrioSocket(trio.socket.SocketType):
    """Takes ownership of `sock`. proto: as the program gave it."""

    def __init__(self, sock: Socket | DatagramSocket, proto: int = 0) -> None:
        super().__init__()
        self._sock = sock  # under this name anyio looks for the socket within
        self._proto = proto
        self._number = next(_numbers)
        self._shut = False
        self._waiter = Waiter()
        self._stands_for: stdlib.socket | None = None
        self._token = trio.lowlevel.current_trio_token()
        sock.notify = self._waiter

    def __del__(self) -> None:
        if getattr(self, "_number", -1) < 0:
            return
        warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
        # the collector may run in any thread, the stack belongs to one
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(_let_go, self._sock, self._stands_for)

    def stand_for(self, sock: stdlib.socket) -> None:
        """Close `sock` with this one: who made it may still ask it for its address."""
        self._stands_for = sock

    # --- what it is ---

    @property
    def family(self) -> stdlib.AddressFamily:
        """AF_INET or AF_INET6."""
        return stdlib.AddressFamily(self._sock.family)

    @property
    def type(self) -> stdlib.SocketKind:
        """SOCK_STREAM or SOCK_DGRAM."""
        return stdlib.SOCK_STREAM if isinstance(self._sock, Socket) else stdlib.SOCK_DGRAM

    @property
    def proto(self) -> int:
        """The protocol that was asked for; 0 is the type's."""
        return self._proto

    @property
    def did_shutdown_SHUT_WR(self) -> bool:
        """Whether this end was shut down for sending."""
        return self._shut

    def fileno(self) -> int:
        """A number that is no descriptor; -1 once closed."""
        return self._number

    def getsockname(self) -> Any:
        """The local address."""
        return self._sock.getsockname()

    def getpeername(self) -> Any:
        """The remote address. Raises ENOTCONN."""
        return self._sock.getpeername()

    def getsockopt(self, level: int, optname: int, buflen: int | None = None) -> Any:
        """An option's value, an int, or bytes with `buflen`."""
        return self._sock.getsockopt(level, optname, 0 if buflen is None else buflen)

    def setsockopt(self, level: int, optname: int, value: Any, optlen: int | None = None) -> None:
        """Set an option to an int or bytes. Raises as Linux does."""
        if optlen is not None:
            if value is not None:
                raise TypeError(f"invalid value for argument 'value': {value!r}, must be None when specifying optlen")
            raise oserror(errno.EFAULT, "no option takes a null pointer")
        if value is None:
            raise TypeError("invalid value for argument 'value', must not be None when not specifying optlen")
        self._sock.setsockopt(level, optname, value)

    def get_inheritable(self) -> bool:
        """False: a child process has no part in a pytcp socket."""
        return False

    def set_inheritable(self, inheritable: bool) -> None:
        """Raises EOPNOTSUPP for True."""
        if inheritable:
            raise oserror(errno.EOPNOTSUPP, "a child process cannot inherit a pytcp socket")

    def detach(self) -> int:
        """Raises EOPNOTSUPP: there is no descriptor."""
        raise oserror(errno.EOPNOTSUPP, "there is no descriptor behind a pytcp socket")

    def dup(self) -> trio.socket.SocketType:
        """Raises EOPNOTSUPP: there is no descriptor."""
        raise oserror(errno.EOPNOTSUPP, "there is no descriptor behind a pytcp socket")

    def __repr__(self) -> str:
        return repr(self._sock).replace("<pytcp ", "<trio socket on pytcp ", 1)

    def __enter__(self) -> TrioSocket:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- waiting ---

    async def _call(self, park: Callable[[], Awaitable[None]], call: Callable[[], T]) -> T:
        """Make a call that may have to wait; a checkpoint in any case."""
        await checkpoint_if_cancelled()
        try:
            result = call()
        except BlockingIOError:
            pass
        except BaseException:
            await cancel_shielded_checkpoint()
            raise
        else:
            await cancel_shielded_checkpoint()
            return result
        while True:
            await park()
            self._check_waited()
            try:
                return call()
            except BlockingIOError:
                continue

    def _check_waited(self) -> None:
        if self._number < 0:
            raise trio.ClosedResourceError("another task closed this socket")

    async def _read(self, call: Callable[[], T]) -> T:
        return await self._call(self._waiter.park_reader, call)

    async def _write(self, call: Callable[[], T]) -> T:
        return await self._call(self._waiter.park_writer, call)

    def is_readable(self) -> bool:
        """Whether reading would not block."""
        return bool(self._sock.poll() & READ_EVENTS)

    async def wait_writable(self) -> None:
        """Sleep until sending would not block."""
        try:
            await self._waiter.until_writable(self._sock.poll)
        except OSError:
            self._check_waited()
            raise

    # --- addresses ---

    async def _resolve(self, address: Any, *, local: bool) -> Any:
        """The address with numeric host and port."""
        family = self._sock.family
        if family == AF_INET and not (isinstance(address, tuple) and len(address) == 2):
            raise ValueError("address should be a (host, port) tuple")
        if family == AF_INET6 and not (isinstance(address, tuple) and 2 <= len(address) <= 4):
            raise ValueError("address should be a (host, port, [flowinfo, [scopeid]]) tuple")
        host, port, *rest = address
        if isinstance(port, int) and isinstance(host, str) and host:
            try:
                stdlib.inet_pton(family, host)
            except OSError:
                pass
            else:
                return address
        flags = int(stdlib.AI_PASSIVE) if local else 0
        if family == AF_INET6 and not self._sock.getsockopt(IPPROTO_IPV6, IPV6_V6ONLY):
            flags |= int(stdlib.AI_V4MAPPED)
        host = {"": None, "<broadcast>": "255.255.255.255"}.get(host, host)
        first, *_ = await trio.socket.getaddrinfo(host, port, family, int(self.type), self._proto, flags)
        return (*first[4][:2], *rest, *first[4][2 + len(rest) :])

    # --- opening ---

    async def bind(self, address: Any) -> None:
        """Take a local address. Raises EADDRINUSE, EADDRNOTAVAIL, EINVAL."""
        address = await self._resolve(address, local=True)
        await checkpoint()
        self._sock.bind(address)

    def listen(self, backlog: int = BACKLOG) -> None:
        """Accept connections."""
        self._sock.listen(backlog)

    async def accept(self) -> tuple[trio.socket.SocketType, Any]:
        """(socket, address) of the next connection."""
        accept: Callable[[], tuple[Any, Any]] = self._sock.accept
        sock, address = await self._read(accept)
        return TrioSocket(sock, self._proto), address

    async def connect(self, address: Any) -> None:
        """Connect, or fix the peer of a datagram socket. Cancelled, it closes the socket, as trio does."""
        try:
            address = await self._resolve(address, local=False)
            await checkpoint_if_cancelled()
            try:
                self._sock.connect(address)
            except BlockingIOError:
                if isinstance(self._sock, DatagramSocket):
                    raise  # no port is left, which waiting does not change
            else:
                await cancel_shielded_checkpoint()
                return
            await self.wait_writable()
        except trio.Cancelled:
            self.close()
            raise
        error = self._sock.getsockopt(SOL_SOCKET, SO_ERROR)
        if error:
            assert isinstance(error, int)
            raise OSError(error, f"Error connecting to {address!r}: {os.strerror(error)}")

    def shutdown(self, flag: int) -> None:
        """Shut down one direction, or both. Raises ENOTCONN, EINVAL."""
        self._sock.shutdown(flag)
        if flag >= SHUT_WR:
            self._shut = True

    def close(self) -> None:
        """Close; who waits on it gets ClosedResourceError. Harmless when done before."""
        self._number = -1
        _let_go(self._sock, self._stands_for)

    # --- receiving ---

    async def recv(self, buflen: int, flags: int = 0, /) -> bytes:
        """Received bytes, or a datagram."""
        size = arguments.size(buflen, "recv")
        sock = self._sock
        return await self._read(lambda: sock.recv(size, flags))

    async def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As `recv`, into a buffer."""
        return (await self.recvfrom_into(buffer, nbytes, flags))[0]

    async def recvfrom(self, bufsize: int, flags: int = 0, /) -> tuple[bytes, Any]:
        """As `recv`, with the sender of a datagram; of a stream it is None, as on Linux."""
        sock = self._sock
        if isinstance(sock, Socket):
            return await self.recv(bufsize, flags), None
        return await self._read(lambda: sock.recvfrom(bufsize, flags))

    async def recvfrom_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> tuple[int, Any]:
        """As `recvfrom`, into a buffer."""
        sock = self._sock
        part = arguments.room(buffer, nbytes, "recv_into")
        if isinstance(sock, Socket):
            return await self._read(lambda: sock.recv_into(part, flags)), None
        return await self._read(lambda: sock.recvfrom_into(part, 0, flags))

    async def recvmsg(self, bufsize: int, ancbufsize: int = 0, flags: int = 0, /) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        """(data, control data, flags, address) as `socket.recvmsg`."""
        sock = self._sock
        return await self._read(lambda: sock.recvmsg(bufsize, ancbufsize, flags))

    async def recvmsg_into(self, buffers: Iterable[Any], ancbufsize: int = 0, flags: int = 0, /) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
        """As `recvmsg`, into buffers that are filled one after the other."""
        views = [arguments.room(buffer, 0, "recvmsg_into") for buffer in buffers]
        data, ancillary, result, address = await self.recvmsg(sum(map(len, views)), ancbufsize, flags)
        rest = memoryview(data)
        for view in views:
            taken = min(len(view), len(rest))
            view[:taken] = rest[:taken]
            rest = rest[taken:]
        return len(data), ancillary, result, address

    # --- sending ---

    async def send(self, bytes: Any, flags: int = 0, /) -> int:
        """Send; returns how many bytes there was room for."""
        sock = self._sock
        return await self._write(lambda: sock.send(bytes, flags))

    async def sendto(self, *args: Any) -> int:
        """sendto(data[, flags], address)."""
        if len(args) not in (2, 3):
            raise TypeError(f"sendto() takes 2 or 3 arguments ({len(args)} given)")
        data, flags = args[0], args[1] if len(args) == 3 else 0
        address = await self._resolve(args[-1], local=False)
        sock = self._sock
        if isinstance(sock, Socket):
            return await self.send(data, flags)  # a connected stream does not look at the address
        return await self._write(lambda: sock.sendto(data, address, flags))

    async def sendmsg(self, buffers: Iterable[Any], ancdata: Iterable[tuple[int, int, Any]] = (), flags: int = 0, address: Any = None, /) -> int:
        """Send the buffers as one, with the control data that `DatagramSocket.sendmsg` and `Socket.sendmsg` name."""
        sock = self._sock
        data, control = arguments.joined(buffers), arguments.control(ancdata)
        if isinstance(sock, Socket):
            return await self._write(lambda: sock.sendmsg([data], control, flags))
        where = None if address is None else await self._resolve(address, local=False)
        return await self._write(lambda: sock.sendmsg([data], control, flags, where))
