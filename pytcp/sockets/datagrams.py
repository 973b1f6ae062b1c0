"""Datagrams for trio tasks: one UDP socket with calls that wait.

`UdpEndpoint` is to `DatagramSocket` what `TcpStream` is to `Socket`. Sending never waits: a datagram is
with the device, or dropped as UDP drops, when the call returns. Every call is a checkpoint; one that did
not have to wait takes it after its work, so a cancelled `receive_from` never loses a datagram.

Errors of the network (a closed port at the peer of a connected endpoint, a host that cannot be reached)
are the OSError they are, once, and the endpoint stays usable. ClosedResourceError when it was closed,
BusyResourceError when two tasks receive.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import trio
from trio.lowlevel import cancel_shielded_checkpoint, checkpoint, checkpoint_if_cancelled

from .udp_kinds import INT, IPPROTO_UDP
from .udp_options import UDP_GRO
from .waiting import Waiter

if TYPE_CHECKING:
    from pytcp.tcp.skb import Buffer

    from .address import SockAddr
    from .udp import DatagramSocket

MAX_DATAGRAM = 65535
ANCILLARY = 256  # bytes of control data that are read
_T = TypeVar("_T")


class UdpEndpoint(trio.abc.AsyncResource):
    """A UDP socket for one receiving task and any number that send. Takes ownership of `socket`."""

    __slots__ = ("__weakref__", "_waiter", "socket")

    def __init__(self, socket: DatagramSocket) -> None:
        self.socket = socket
        self._waiter = Waiter()
        socket.notify = self._waiter

    def _error(self, exc: OSError) -> BaseException:
        return trio.ClosedResourceError("this endpoint was already closed") if exc.errno == errno.EBADF else exc

    async def send_to(self, data: Buffer, address: SockAddr) -> None:
        """Send one datagram to a numeric address. Raises OSError: EMSGSIZE, ENETUNREACH, EACCES, ..."""
        await checkpoint_if_cancelled()
        try:
            self.socket.sendto(data, address)
        except OSError as exc:
            raise self._error(exc) from exc.__cause__
        await cancel_shielded_checkpoint()

    async def send(self, data: Buffer) -> None:
        """Send one datagram to the peer of a connected endpoint. Raises OSError: EDESTADDRREQ without one, ECONNREFUSED, ..."""
        await checkpoint_if_cancelled()
        try:
            self.socket.send(data)
        except OSError as exc:
            raise self._error(exc) from exc.__cause__
        await cancel_shielded_checkpoint()

    async def receive_from(self) -> tuple[bytes, SockAddr]:
        """The next datagram and who sent it, sleeping until there is one."""
        return await self._received(self._one)

    async def receive_many(self) -> list[bytes]:
        """What one read gives: several datagrams where UDP_GRO is on and they came as a super-frame, else one; without the sender."""
        return await self._received(self._many)

    def _one(self) -> tuple[bytes, SockAddr]:
        return self.socket.recvfrom(MAX_DATAGRAM)

    def _many(self) -> list[bytes]:
        data, ancillary, _, _ = self.socket.recvmsg(MAX_DATAGRAM, ANCILLARY)
        for level, kind, value in ancillary:
            if (level, kind) == (IPPROTO_UDP, UDP_GRO):
                size = INT.unpack(value)[0]
                return [data[at : at + size] for at in range(0, len(data), size)]
        return [data]

    async def _received(self, read: Callable[[], _T]) -> _T:
        await checkpoint_if_cancelled()
        slept = False
        while True:
            try:
                received = read()
            except BlockingIOError:
                await self._waiter.park_reader()
                slept = True
            except OSError as exc:
                raise self._error(exc) from exc.__cause__
            else:
                if not slept:
                    await cancel_shielded_checkpoint()
                return received

    async def receive(self) -> bytes:
        """As `receive_from`, without the sender."""
        return (await self.receive_from())[0]

    async def aclose(self) -> None:
        """Close it; a task that waits gets ClosedResourceError."""
        self.socket.close()
        await checkpoint()
