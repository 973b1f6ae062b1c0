"""UDP tests of iperf3: a handshake of two datagrams, numbered datagrams, and what their receiver finds out.

The client says CONNECT from a socket of each stream; the server answers with REPLY from its port, and both sides connect their
sockets. A datagram begins with the sender's seconds, microseconds and the datagram's number, from 1, each of 32 bits (the number of
64 when the client says udp_counters_64bit). The receiver counts gaps as lost, late ones as out of order, and smooths the jitter of the
transit times (RFC 1889 §6.3.1). What is due at once is sent in one call, and what comes as one super-frame read in one.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass

import trio

from pytcp.sockets.address import AF_INET6, oserror
from pytcp.sockets.datagrams import UdpEndpoint
from pytcp.sockets.open import TrioStack
from pytcp.sockets.udp import DatagramSocket

CONNECT, REPLY = b"9876", b"6789"
OLD_CONNECT, OLD_REPLY = (struct.pack("<i", number) for number in (123456789, 987654321))
ANSWER = {CONNECT: REPLY, OLD_CONNECT: OLD_REPLY}
PATIENCE = 0.5  # seconds until a CONNECT is said again
ATTEMPTS = 10
MAX_LENGTH = 65507
DEFAULT_RATE = 1_000_000  # bits/s
_SHORT, _LONG = struct.Struct("!III"), struct.Struct("!IIQ")
MIN_LENGTH = _LONG.size
BURST = 32  # datagrams in one call
SOL_SOCKET, SO_REUSEADDR = 1, 2
IPPROTO_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104


@dataclass
class Counts:
    """What one side knows of the datagrams of a stream; all but `packets` is the receiver's.

    packets: sent, or the highest number received. jitter: seconds."""

    packets: int = 0
    lost: int = 0
    late: int = 0
    jitter: float = 0.0
    transit: float | None = None

    def received(self, number: int, sent: float, now: float) -> None:
        """A datagram came."""
        if number > self.packets:
            self.lost += number - self.packets - 1
            self.packets = number
        else:
            self.late += 1
            self.lost = max(self.lost - 1, 0)
        transit = now - sent
        if self.transit is not None:
            self.jitter += (abs(transit - self.transit) - self.jitter) / 16
        self.transit = transit


def header(number: int, now: float, long: bool) -> bytes:
    """The head of a datagram."""
    seconds = int(now)
    return (_LONG if long else _SHORT).pack(seconds & 0xFFFFFFFF, int((now - seconds) * 1e6), number & (0xFFFFFFFFFFFFFFFF if long else 0xFFFFFFFF))


def at_once(length: int) -> int:
    """How many datagrams of `length` bytes one call may send (UDP_SEGMENT)."""
    return max(1, min(BURST, MAX_LENGTH // length))


def several(first: int, count: int, now: float, length: int, long: bool) -> bytes:
    """So many datagrams of `length` bytes in one."""
    filling = bytes(length - (_LONG if long else _SHORT).size)
    return b"".join([header(number, now, long) + filling for number in range(first, first + count)])


def parse(data: bytes, long: bool) -> tuple[int, float] | None:
    """(number, time it was sent) of a datagram; None for one that is too short."""
    form = _LONG if long else _SHORT
    if len(data) < form.size:
        return None
    seconds, microseconds, number = form.unpack_from(data)
    return number, seconds + microseconds / 1e6


async def connect(stack: TrioStack, address: str, port: int) -> UdpEndpoint:
    """A data stream to a server, which has answered. Raises OSError, ETIMEDOUT when it has not."""
    endpoint = await stack.open_udp(remote=(address, port))
    try:
        for _ in range(ATTEMPTS):
            await endpoint.send(CONNECT)
            with trio.move_on_after(PATIENCE):
                while await endpoint.receive() not in ANSWER.values():
                    pass
                return endpoint
    except BaseException:
        endpoint.socket.close()
        raise
    endpoint.socket.close()
    raise oserror(errno.ETIMEDOUT, "the server did not answer a UDP stream")


class Door:
    """The server's port: each CONNECT makes a stream, and the port stays open for the next."""

    def __init__(self, stack: TrioStack, port: int) -> None:
        self._stack = stack
        self._port = port
        self._open = self._listen()

    def _listen(self) -> UdpEndpoint:
        socket = DatagramSocket(self._stack, AF_INET6)
        try:
            socket.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            socket.bind(("", self._port))
        except BaseException:
            socket.close()
            raise
        return UdpEndpoint(socket)

    async def accept(self) -> UdpEndpoint:
        """The next stream."""
        while True:
            data, peer = await self._open.receive_from()
            reply = ANSWER.get(data)
            if reply is not None:
                break
        endpoint = self._open
        endpoint.socket.connect(peer)
        self._open = self._listen()  # before the answer, which may bring the next
        await endpoint.send(reply)
        return endpoint

    def close(self) -> None:
        self._open.socket.close()
