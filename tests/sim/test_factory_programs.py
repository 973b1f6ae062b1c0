"""Unmodified trio programs on pytcp, in virtual time: httpx, hypercorn, trio-websocket, anyio, SSLStream.

The program under test uses trio's own sockets on host a; the other end is host b, with our streams.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import hypercorn.trio
import pytest
import trio
import trio_websocket
import trustme
from hypercorn.config import Config

from pytcp.sockets import http
from pytcp.sockets.factory import patched_stdlib, use_stack
from pytcp.sockets.resolver import Resolver

from .nameserver import NameServer, a_records
from .streams import A4, A6, B4, B6, World, simulate

NAME = "b.example"
RECORDS = {(NAME, "A"): a_records(NAME, B4), (NAME, "AAAA"): a_records(NAME, B6, kind="AAAA")}
BODY = bytes(range(256)) * 1200


def on_a(program: Callable[[World, trio.Nursery], Awaitable[None]], *, adopting: bool = False) -> None:
    """Run a program whose trio sockets and names are host a's; the nursery is cancelled when it returns."""

    async def main(world: World) -> None:
        resolver = Resolver(world.a, hosts="/dev/null", resolv_conf="/dev/null", nameservers=[B4], environ={})
        with ExitStack() as stack:
            factory = stack.enter_context(use_stack(world.a, resolver=resolver))
            if adopting:
                stack.enter_context(patched_stdlib(factory))
            async with trio.open_nursery() as nursery:
                await nursery.start(NameServer(RECORDS).serve, world.b)
                await program(world, nursery)
                nursery.cancel_scope.cancel()

    simulate(main)


@functools.cache
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(*names: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority().issue_cert(*names).configure_cert(context)
    return context


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority().configure_trust(context)
    return context


async def echo(stream: trio.abc.Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


async def read_to_the_end(stream: trio.abc.ReceiveStream) -> bytes:
    received = bytearray()
    while data := await stream.receive_some():
        received += data
    return bytes(received)


async def app(scope: Any, receive: Callable[[], Awaitable[dict[str, Any]]], send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """An ASGI application: answers with the path, the client's address and the body; echoes websocket messages."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] == "http":
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        head = f"{scope['path']} {scope['client'][0]} ".encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(head + body)).encode())]})
        await send({"type": "http.response.body", "body": head + body})
    else:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"].upper()})


# --- SSLStream ---


def test_ssl_over_tcp_as_a_client() -> None:
    async def program(world: World, nursery: trio.Nursery) -> None:
        listeners = [trio.SSLListener(listener, server_context(NAME)) for listener in await world.b.open_tcp_listeners(443)]
        nursery.start_soon(trio.serve_listeners, echo, listeners)
        async with await trio.open_ssl_over_tcp_stream(NAME, 443, ssl_context=client_context()) as stream:
            async with trio.open_nursery() as inner:
                inner.start_soon(stream.send_all, BODY)
                received = b""
                while len(received) < len(BODY):
                    received += await stream.receive_some()
            assert received == BODY
        with pytest.raises(trio.BrokenResourceError):
            await (await trio.open_ssl_over_tcp_stream(B4, 443, ssl_context=client_context())).do_handshake()  # no certificate for the address

    on_a(program)


def test_ssl_over_tcp_as_a_server() -> None:
    async def program(world: World, nursery: trio.Nursery) -> None:
        await nursery.start(functools.partial(trio.serve_ssl_over_tcp, echo, 443, server_context("a.example")))
        tcp = await world.b.open_tcp_stream(A6, 443)
        stream = trio.SSLStream(tcp, client_context(), server_hostname="a.example")
        await stream.send_all(b"hello")
        assert await stream.receive_some() == b"hello"
        await stream.aclose()

    on_a(program)


# --- httpx ---


@pytest.mark.parametrize("host", [B4, f"[{B6}]", NAME])
def test_httpx_fetches_over_one_connection_that_it_keeps(tmp_path: Path, host: str) -> None:
    (tmp_path / "file").write_bytes(BODY)

    async def program(world: World, nursery: trio.Nursery) -> None:
        await nursery.start(world.b.serve_tcp, http.FileServer(tmp_path), 80)
        async with httpx.AsyncClient(trust_env=False) as client:
            for _ in range(3):
                response = await client.get(f"http://{host}/file")
                assert (response.status_code, response.content) == (200, BODY)
            part = await client.get(f"http://{host}/file", headers={"Range": "bytes=10-19"})
            assert (part.status_code, part.content) == (206, BODY[10:20])
        assert world.a.net.mib.TcpActiveOpens == 1

    on_a(program)


def test_httpx_speaks_tls_and_names_what_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BODY)

    async def program(world: World, nursery: trio.Nursery) -> None:
        listeners = [trio.SSLListener(listener, server_context(NAME), https_compatible=True) for listener in await world.b.open_tcp_listeners(443)]
        nursery.start_soon(trio.serve_listeners, http.FileServer(tmp_path), listeners)
        async with httpx.AsyncClient(trust_env=False, verify=client_context()) as client:
            assert (await client.get(f"https://{NAME}/file")).content == BODY
            with pytest.raises(httpx.ConnectError):
                await client.get(f"http://{B4}:9/")
            with pytest.raises(httpx.ConnectError, match="Name or service not known"):
                await client.get("http://missing.example/")
            with pytest.raises(httpx.ConnectTimeout):
                await client.get("http://10.0.0.99/", timeout=1.0)

    on_a(program)


# --- hypercorn ---


async def start_hypercorn(nursery: trio.Nursery, **settings: Any) -> str:
    """Serve `app`; returns the URL it says it runs on."""
    config = Config()
    config.graceful_timeout = 1.0
    config.errorlog = None
    for name, value in settings.items():
        setattr(config, name, value)
    [url] = await nursery.start(functools.partial(hypercorn.trio.serve, app, config))  # type: ignore[arg-type]
    return str(url)


def test_hypercorn_serves_an_asgi_app() -> None:
    async def program(world: World, nursery: trio.Nursery) -> None:
        port = int((await start_hypercorn(nursery, bind=["0.0.0.0:0"])).rpartition(":")[2])
        connection = await world.b.open_tcp_stream(A4, port)
        await connection.send_all(b"POST /path HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(BODY) + BODY)
        answer = await read_to_the_end(connection)
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"/path " + B4.encode() + b" " + BODY)
        await connection.aclose()

    on_a(program, adopting=True)


def test_hypercorn_serves_https_and_http2_to_httpx_on_the_same_host(tmp_path: Path) -> None:
    certificate = authority().issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert")

    async def program(world: World, nursery: trio.Nursery) -> None:
        url = await start_hypercorn(nursery, bind=["127.0.0.1:0"], certfile=str(tmp_path / "cert"), keyfile=str(tmp_path / "key"))
        async with httpx.AsyncClient(trust_env=False, verify=client_context(), http2=True) as client:
            response = await client.post(f"{url}/path", content=BODY)
            assert (response.http_version, response.content) == ("HTTP/2", b"/path 127.0.0.1 " + BODY)

    on_a(program, adopting=True)


# --- trio-websocket ---


async def shout(request: trio_websocket.WebSocketRequest) -> None:
    """A websocket server that answers in capitals."""
    connection = await request.accept()
    try:
        while True:
            message = await connection.get_message()
            await connection.send_message(message.upper())
    except trio_websocket.ConnectionClosed:
        pass


def test_trio_websocket_as_a_client() -> None:
    async def program(world: World, nursery: trio.Nursery) -> None:
        async def serve(stream: trio.abc.Stream) -> None:
            async with trio.open_nursery() as inner:
                request = await trio_websocket.wrap_server_stream(inner, stream)
                await shout(request)

        await nursery.start(world.b.serve_tcp, serve, 80)
        async with trio_websocket.open_websocket(NAME, 80, "/", use_ssl=False) as websocket:
            assert isinstance(websocket.remote, trio_websocket.Endpoint)
            assert str(websocket.remote.address) in (B4, B6)
            await websocket.send_message("hello")
            assert await websocket.get_message() == "HELLO"
            await websocket.send_message(BODY.decode("latin-1") * 3)
            assert await websocket.get_message() == BODY.decode("latin-1").upper() * 3
            await websocket.ping()

    on_a(program)


def test_trio_websocket_as_a_server() -> None:
    async def program(world: World, nursery: trio.Nursery) -> None:
        server = await nursery.start(functools.partial(trio_websocket.serve_websocket, shout, None, 8080, None))
        assert {listener.port for listener in server.listeners} == {8080}
        async with trio.open_nursery() as inner:
            stream = await world.b.open_tcp_stream(A4, 8080)
            websocket = await trio_websocket.wrap_client_stream(inner, stream, A4, "/")  # type: ignore[arg-type]
            await websocket.send_message("hello")
            assert await websocket.get_message() == "HELLO"
            await websocket.aclose()

    on_a(program)


def test_both_ends_of_a_websocket_on_hypercorn_within_one_host() -> None:
    async def program(world: World, nursery: trio.Nursery) -> None:
        url = await start_hypercorn(nursery, bind=["127.0.0.1:0"])
        async with trio_websocket.open_websocket_url(url.replace("http:", "ws:") + "/chat") as websocket:
            await websocket.send_message("hello")
            assert await websocket.get_message() == "HELLO"

    on_a(program, adopting=True)


# --- anyio ---


def test_anyio_connects_and_has_the_attributes_of_a_socket() -> None:
    async def program(world: World, nursery: trio.Nursery) -> None:
        await nursery.start(world.b.serve_tcp, echo, 7000)
        async with await anyio.connect_tcp(NAME, 7000) as stream:
            await stream.send(b"hello")
            assert await stream.receive() == b"hello"
            assert stream.extra(anyio.abc.SocketAttribute.remote_port) == 7000
            assert stream.extra(anyio.abc.SocketAttribute.remote_address)[0] in (B4, B6)
            await stream.send_eof()
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()

    on_a(program)


@pytest.mark.parametrize("local_host", [None, "127.0.0.1"])
def test_anyio_listens(local_host: str | None) -> None:
    async def program(world: World, nursery: trio.Nursery) -> None:
        async def shout_back(stream: anyio.abc.SocketStream) -> None:
            async with stream:
                await stream.send((await stream.receive()).upper())

        listener = await anyio.create_tcp_listener(local_host=local_host)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        nursery.start_soon(listener.serve, shout_back)
        if local_host is None:
            for host in (A4, A6):
                async with await world.b.open_tcp_stream(host, port) as stream:
                    await stream.send_all(b"hello")
                    assert await read_to_the_end(stream) == b"HELLO"
        else:
            async with await anyio.connect_tcp(local_host, port) as client:
                await client.send(b"hello")
                assert await client.receive() == b"HELLO"

    on_a(program, adopting=True)


def test_anyio_datagrams() -> None:
    async def program(world: World, nursery: trio.Nursery) -> None:
        async with await anyio.create_udp_socket(local_host="0.0.0.0", local_port=5000) as sock, await world.b.open_udp(remote=(A4, 5000)) as peer:
            await peer.send(b"hello")
            data, (host, port) = await sock.receive()
            assert (data, host) == (b"hello", B4)
            await sock.sendto(b"answer", host, port)
            assert await peer.receive() == b"answer"
            async with await anyio.create_connected_udp_socket(B4, peer.socket.getsockname()[1]) as connected:
                await connected.send(b"x")

    on_a(program)
