"""UDP_SEGMENT and UDP_GRO with a kernel at the other end, over devices that carry super-frames and such that carry packets."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
import trio

from pytcp.lab.netns import Namespace
from pytcp.lab.testbed import Testbed
from pytcp.sockets.datagrams import UdpEndpoint
from pytcp.sockets.open import TrioStack

from .exchange import pattern
from .test_links import PEER, US, stack_on, tun

pytestmark = pytest.mark.tap

UDP, SEGMENT, GRO = int(socket.IPPROTO_UDP), 103, 104
PORT = 7000
SIZES = [(3000, 1000), (2500, 1000), (12800, 100), (60000, 1400), (65507, 1452), (999, 1000)]
Open = Callable[[], "contextlib.AbstractAsyncContextManager[tuple[TrioStack, Namespace]]"]


def segment(size: int) -> tuple[int, int, bytes]:
    return UDP, SEGMENT, struct.pack("=H", size)


@contextlib.asynccontextmanager
async def tap(offload: bool) -> AsyncIterator[tuple[TrioStack, Namespace]]:
    with Testbed(offload=offload) as net:
        async with stack_on(net.link) as stack:
            yield stack, net


@contextlib.asynccontextmanager
async def on_tun() -> AsyncIterator[tuple[TrioStack, Namespace]]:
    with tun("offloads") as (ns, link):
        async with stack_on(link) as stack:
            yield stack, ns


WAYS: dict[str, Open] = {"super-frames": lambda: tap(True), "packets": lambda: tap(False), "tun": on_tun}


def fits(way: str, version: int, size: int) -> bool:
    """Whether a device takes it as a super-frame, headers included."""
    return (14 if way != "tun" else 0) + (28 if version == 4 else 48) + size < 65536


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


async def taken(sock: trio.socket.SocketType, total: int) -> list[tuple[bytes, int]]:
    """What a kernel socket reads until it has so many bytes: (data, size of the datagrams in it, 0 = it is one)."""
    found: list[tuple[bytes, int]] = []
    with trio.fail_after(10):
        while sum(len(data) for data, _ in found) < total:
            data, ancillary, _, _ = await sock.recvmsg(70000, 100)
            found.append((data, next((struct.unpack("=i", value)[0] for level, kind, value in ancillary if (level, kind) == (UDP, GRO)), 0)))
    return found


async def first_heard(send: Callable[[bytes], Awaitable[object]], receive: Callable[[], Awaitable[object]]) -> None:
    """Send until it is heard: a device that came up this moment may lose the first datagram. Then read what else was sent."""
    heard = False
    with trio.fail_after(10):
        while not heard:
            await send(b"the neighbour is known from now on")
            with trio.move_on_after(0.5):
                await receive()
                heard = True
    with trio.move_on_after(0.05):
        while True:
            await receive()


@pytest.mark.parametrize("gro", [False, True])
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("way", WAYS)
def test_a_kernel_receives_our_segments(way: str, version: int, gro: bool) -> None:
    async def main() -> None:
        async with WAYS[way]() as (stack, ns):
            peer = PEER[version == 6]
            with trio.socket.from_stdlib_socket(ns.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_DGRAM)) as heard:
                heard.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
                heard.setsockopt(UDP, GRO, gro)
                await heard.bind((peer, PORT))
                async with await stack.open_udp(remote=(peer, PORT)) as ours:
                    await first_heard(ours.send, partial(heard.recv, 70000))
                    for size, gso_size in SIZES:
                        data = pattern(size, size)
                        ours.socket.sendmsg([data], [segment(gso_size)])
                        found = await taken(heard, size)
                        whole = gro and way != "packets" and gso_size < size and fits(way, version, size)
                        assert found == ([(data, gso_size)] if whole else [(piece, 0) for piece in cut(data, gso_size)])
            assert ns.nstat()["Udp6InCsumErrors" if version == 6 else "UdpInCsumErrors"] == 0

    trio.run(main)


@pytest.mark.parametrize("gro", [False, True])
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("way", WAYS)
def test_we_receive_a_kernels_segments(way: str, version: int, gro: bool) -> None:
    async def main() -> None:
        async with WAYS[way]() as (stack, ns):
            us = US[version == 6]
            async with await stack.open_udp(PORT) as heard:
                heard.socket.setsockopt(UDP, GRO, gro)
                heard.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
                with trio.socket.from_stdlib_socket(ns.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_DGRAM)) as sock:
                    await sock.connect((us, PORT))
                    await first_heard(sock.send, heard.receive_from)
                    for size, gso_size in SIZES:
                        data = pattern(size, size)
                        await sock.sendmsg([data], [segment(gso_size)])
                        found = await all_of(heard, size)
                        whole = gro and way != "packets" and gso_size < size and fits(way, version, size)
                        assert found == ([(data, gso_size)] if whole else [(piece, 0) for piece in cut(data, gso_size)])
            mib = stack.net.mib
            assert mib.UdpInErrors == mib.Udp6InErrors == 0

    trio.run(main)


async def all_of(endpoint: UdpEndpoint, total: int) -> list[tuple[bytes, int]]:
    """As `taken`, of ours."""
    found: list[tuple[bytes, int]] = []
    with trio.fail_after(10):
        while sum(len(data) for data, _ in found) < total:
            try:
                data, ancillary, _, _ = endpoint.socket.recvmsg(70000, 100)
            except BlockingIOError:
                await trio.sleep(0.001)
                continue
            found.append((data, next((struct.unpack("=i", value)[0] for level, kind, value in ancillary if (level, kind) == (UDP, GRO)), 0)))
    return found
