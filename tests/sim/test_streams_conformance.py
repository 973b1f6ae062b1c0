"""trio's own conformance tests, on our streams between two of our hosts in virtual time."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from pytcp.sockets.streams import TcpListener, TcpStream

from .streams import B4, B6, PORT, World, clog, simulate


@pytest.mark.parametrize("host", [B4, B6])
@pytest.mark.parametrize("nodelay", [True, None])
def test_tcp_streams_are_half_closeable_streams(host: str, nodelay: bool | None) -> None:
    async def program(world: World) -> None:
        listeners = await world.b.open_tcp_listeners(PORT, host=host)

        async def make() -> tuple[TcpStream, TcpStream]:
            client = await world.a.open_tcp_stream(host, PORT, nodelay=nodelay)
            return client, await listeners[0].accept()

        async def make_clogged() -> tuple[TcpStream, TcpStream]:
            client, server = await make()
            await clog(client)
            await clog(server)
            return client, server

        await trio.testing.check_half_closeable_stream(make, make_clogged)

    simulate(program)


def test_they_are_one_way_streams_within_one_host() -> None:
    """Over the loopback, where both ends are of one stack."""

    async def program(world: World) -> None:
        listeners = await world.a.open_tcp_listeners(PORT, host="127.0.0.1")

        async def make() -> tuple[TcpStream, TcpStream]:
            client = await world.a.open_tcp_stream("127.0.0.1", PORT)
            return client, await listeners[0].accept()

        async def make_clogged() -> tuple[TcpStream, TcpStream]:
            client, server = await make()
            await clog(client)
            return client, server

        await trio.testing.check_one_way_stream(make, make_clogged)

    simulate(program)


def test_a_listener_is_what_serve_listeners_wants() -> None:
    async def program(world: World) -> None:
        [listener] = await world.b.open_tcp_listeners(PORT, host=B4)
        assert isinstance(listener, trio.abc.Listener)
        assert isinstance(listener, TcpListener)
        with pytest.raises(ValueError, match="listening"):
            TcpListener(world.a.socket())
        await listener.aclose()
        await listener.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()

    simulate(program)
