"""trio-websocket on pytcp in both roles, the same library on the kernel's sockets at the other end."""

from __future__ import annotations

import functools

import pytest
import trio
import trio_websocket

from pytcp.sockets.factory import SocketFactory

from .exchange import Pair
from .programs import BODY, client_context, kernel_listener, run, server_context

pytestmark = pytest.mark.tap

MESSAGES: list[str | bytes] = ["hello", BODY[:100_000], "", "x" * 200_000]


async def echo(request: trio_websocket.WebSocketRequest) -> None:
    connection = await request.accept()
    try:
        while True:
            await connection.send_message(await connection.get_message())
    except trio_websocket.ConnectionClosed:
        pass


async def talk(websocket: trio_websocket.WebSocketConnection) -> None:
    for message in MESSAGES:
        await websocket.send_message(message)
        assert await websocket.get_message() == message
    await websocket.ping()


@pytest.mark.parametrize("tls", [False, True])
def test_a_websocket_client_on_pytcp(tls: bool) -> None:
    async def main(p: Pair, factory: SocketFactory, nursery: trio.Nursery) -> None:
        tcp = kernel_listener(p, 4, (p.peer(4), 8080))
        listener = trio.SSLListener(tcp, server_context(p.peer(4))) if tls else tcp
        nursery.start_soon(trio_websocket.WebSocketServer(echo, [listener]).run)
        context = client_context() if tls else None
        async with trio_websocket.open_websocket(p.peer(4), 8080, "/", use_ssl=context or False) as websocket:
            await talk(websocket)

    run(main)


@pytest.mark.parametrize("family", [4, 6])
def test_a_websocket_server_on_pytcp(family: int) -> None:
    async def main(p: Pair, factory: SocketFactory, nursery: trio.Nursery) -> None:
        await nursery.start(functools.partial(trio_websocket.serve_websocket, echo, None, 8080, None))
        sock = p.kernel_socket(family)
        await sock.connect((p.address(family), 8080))
        async with trio.open_nursery() as inner:
            websocket = await trio_websocket.wrap_client_stream(inner, trio.SocketStream(sock), "pytcp", "/")
            await talk(websocket)
            await websocket.aclose()

    run(main)
