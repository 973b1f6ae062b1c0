"""anyio on pytcp, socat on the kernel at the other end: streams in both roles, datagrams."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.abc
import pytest
import trio

from pytcp.sockets.factory import SocketFactory

from .exchange import Pair
from .programs import BODY, adopting, run

pytestmark = pytest.mark.tap

Program = Callable[[str], str]


@pytest.mark.parametrize("family", [4, 6])
def test_anyio_connects_to_socat_and_half_closes(program: Program, family: int) -> None:
    socat = program("socat")

    async def main(p: Pair, factory: SocketFactory, nursery: trio.Nursery) -> None:
        kind = "TCP6-LISTEN" if family == 6 else "TCP4-LISTEN"
        address = f"[{p.peer(6)}]" if family == 6 else p.peer(4)
        p.testbed.popen([socat, "-t", "20", f"{kind}:7000,bind={address}", "EXEC:sha256sum"])
        while ":7000 " not in p.testbed.ss("-tlnH"):
            await trio.sleep(0.02)
        async with await anyio.connect_tcp(p.peer(family), 7000) as stream:
            await stream.send(BODY)
            await stream.send_eof()
            answer = b""
            async for chunk in stream:
                answer += chunk
        assert answer.split()[0].decode() == hashlib.sha256(BODY).hexdigest()

    run(main)


@pytest.mark.parametrize("family", [4, 6])
def test_anyio_listens_for_socat(program: Program, family: int) -> None:
    socat = program("socat")

    async def digest(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            seen = hashlib.sha256()
            async for chunk in stream:
                seen.update(chunk)
            await stream.send(seen.hexdigest().encode())

    async def main(p: Pair, factory: SocketFactory, nursery: trio.Nursery) -> None:
        with adopting(factory):
            listener = await anyio.create_tcp_listener()
        nursery.start_soon(listener.serve, digest)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        target = f"TCP6:[{p.address(6)}]:{port}" if family == 6 else f"TCP4:{p.address(4)}:{port}"
        done = await p.testbed.run_async([socat, "-t", "20", "-", target], data=BODY)
        assert done.stdout.decode() == hashlib.sha256(BODY).hexdigest()

    run(main)


def test_anyio_datagrams_reach_socat_and_come_back(program: Program, tmp_path: Path) -> None:
    socat = program("socat")

    async def main(p: Pair, factory: SocketFactory, nursery: trio.Nursery) -> None:
        p.testbed.popen([socat, "UDP4-RECVFROM:7000,fork", "EXEC:cat"])
        while ":7000 " not in p.testbed.ss("-ulnH"):
            await trio.sleep(0.02)
        async with await anyio.create_connected_udp_socket(p.peer(4), 7000) as sock:
            for size in (1, 1472, 8000):  # the last one travels in fragments
                await sock.send(BODY[:size])
                assert await sock.receive() == BODY[:size]
        async with await anyio.create_udp_socket(local_host="0.0.0.0", local_port=7001) as sock2:
            await p.testbed.run_async([socat, "-u", "-", f"UDP4:{p.address(4)}:7001"], data=b"hello")
            data, (host, _) = await sock2.receive()
            assert (data, host) == (b"hello", p.peer(4))

    run(main)
