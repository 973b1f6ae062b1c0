"""Byte-exact exchanges between pytcp and the kernel, in one thread: the kernel's sockets wait under trio as well."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import trio

import pytcp
from pytcp.lab.testbed import Testbed

Stream = trio.abc.HalfCloseableStream

# bits of tcpi_options, offset 5 of the kernel's struct tcp_info
TIMESTAMPS, SACK, WSCALE, ECN = 1, 2, 4, 8


def pattern(size: int, seed: int) -> bytes:
    """Bytes in which no two places look alike, so that a misplaced segment cannot go unnoticed."""
    return random.Random(seed).randbytes(size)


async def read_all(stream: Stream) -> bytes:
    """Everything up to the end of file."""
    chunks = []
    while chunk := await stream.receive_some(1 << 18):
        chunks.append(chunk)
    return b"".join(chunks)


async def duplex(one: Stream, two: Stream, size: int) -> None:
    """Both ends send at the same time, half-close, and see exactly the other's bytes and then its end of file."""
    sent = {one: pattern(size, 1), two: pattern(size + 1, 2)}
    received: dict[Stream, bytes] = {}

    async def send(stream: Stream) -> None:
        await stream.send_all(sent[stream])
        await stream.send_eof()

    async def receive(stream: Stream) -> None:
        received[stream] = await read_all(stream)

    async with trio.open_nursery() as nursery:
        for stream in (one, two):
            nursery.start_soon(send, stream)
            nursery.start_soon(receive, stream)
    assert received[two] == sent[one]
    assert received[one] == sent[two]


class Kernel:
    """The kernel's half of a connection as a trio stream, with what it says about it."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.sock = sock
        self.stream = trio.SocketStream(sock)

    @property
    def options(self) -> int:
        """Which TCP options the two ends agreed on, by the kernel's tcp_info."""
        return self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 16)[5]

    @property
    def retransmits(self) -> int:
        total: int = struct.unpack_from("I", self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 100)[0]
        return total

    @property
    def congestion(self) -> str:
        return self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()

    @property
    def mss(self) -> int:
        return self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)


class Pair:
    """A stack, its testbed, and ways to connect the two."""

    def __init__(self, testbed: Testbed, stack: Any) -> None:
        self.testbed = testbed
        self.stack = stack

    def address(self, family: int) -> str:
        return self.testbed.address4 if family == 4 else self.testbed.address6

    def peer(self, family: int) -> str:
        return self.testbed.peer4 if family == 4 else self.testbed.peer6

    def kernel_socket(self, family: int) -> trio.socket.SocketType:
        """A kernel socket in the peer's namespace, to be waited for under trio."""
        return trio.socket.from_stdlib_socket(self.testbed.socket(socket.AF_INET if family == 4 else socket.AF_INET6))

    @contextlib.asynccontextmanager
    async def kernel_connects(self, family: int) -> AsyncIterator[tuple[Kernel, Any]]:
        """The kernel opens a connection to a pytcp listener: (kernel's half, ours)."""
        listener = (await self.stack.open_tcp_listeners(0, host=self.address(family)))[0]
        async with listener:
            sock = self.kernel_socket(family)
            with sock:
                await sock.connect((self.address(family), listener.socket.getsockname()[1]))
                async with await listener.accept() as ours:
                    yield Kernel(sock), ours

    @contextlib.asynccontextmanager
    async def pytcp_connects(self, family: int) -> AsyncIterator[tuple[Kernel, Any]]:
        """pytcp opens a connection to a kernel listener: (kernel's half, ours)."""
        listener = self.kernel_socket(family)
        with listener:
            await listener.bind((self.peer(family), 0))
            listener.listen()
            async with await self.stack.open_tcp_stream(self.peer(family), listener.getsockname()[1]) as ours:
                sock, _ = await listener.accept()
                with sock:
                    yield Kernel(sock), ours


@contextlib.asynccontextmanager
async def pair(testbed: Testbed, **options: Any) -> AsyncIterator[Pair]:
    """A stack on the testbed's TAP; `options` are those of `open_stack`."""
    with trio.fail_after(60):
        async with pytcp.open_stack(link=testbed.link, addresses=testbed.addresses, **options) as stack:
            yield Pair(testbed, stack)
