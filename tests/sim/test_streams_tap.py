"""Our streams on a real TAP in real time, with the machine's kernel as the peer."""

from __future__ import annotations

import errno
import random
import socket as stdlib
from pathlib import Path

import pytest
import trio

import pytcp
from pytcp.lab.testbed import Testbed
from pytcp.link.frame import LinkDown
from pytcp.native import HAVE_C
from pytcp.sockets.http import FileServer, get
from pytcp.sockets.streams import TcpStream

pytestmark = pytest.mark.tap

PORT = 7000


def listen_in(testbed: Testbed, host: str, port: int) -> trio.SocketListener:
    """A trio listener on a socket of the peer's kernel."""
    family = stdlib.AF_INET6 if ":" in host else stdlib.AF_INET
    sock = testbed.socket(family, stdlib.SOCK_STREAM)
    sock.bind((host, port))
    sock.listen()
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


async def connect_in(testbed: Testbed, host: str, port: int) -> trio.SocketStream:
    """A connection from the peer's kernel to us, as a trio stream."""
    family = stdlib.AF_INET6 if ":" in host else stdlib.AF_INET
    sock = trio.socket.from_stdlib_socket(testbed.socket(family, stdlib.SOCK_STREAM))
    await sock.connect((host, port))
    return trio.SocketStream(sock)


async def echo(stream: trio.abc.HalfCloseableStream) -> None:
    async for data in stream:
        await stream.send_all(data)
    await stream.send_eof()


async def exchange(stream: trio.abc.HalfCloseableStream, data: bytes) -> bytes:
    """Send `data` and the end while receiving what comes back."""
    received = bytearray()

    async def send() -> None:
        await stream.send_all(data)
        await stream.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        async for piece in stream:
            received += piece
    return bytes(received)


@pytest.mark.parametrize(("tx_mode", "qdisc"), [("reaped", None), ("reaped", "fq"), ("thread", None), ("thread", "fq")])
def test_megabytes_go_both_ways_between_us_and_the_kernel(tx_mode: str, qdisc: str | None) -> None:
    if tx_mode == "thread" and not HAVE_C:
        pytest.skip("no C helpers")

    data = random.Random(1).randbytes(8 << 20)

    async def main(testbed: Testbed) -> None:
        with trio.fail_after(60):
            async with pytcp.open_stack(link=testbed.link, addresses=testbed.addresses, tx_mode=tx_mode, qdisc=qdisc) as stack, trio.open_nursery() as nursery:
                nursery.start_soon(trio.serve_listeners, echo, [listen_in(testbed, host, PORT) for host in (testbed.peer4, testbed.peer6)])
                for host in (testbed.peer4, testbed.peer6):
                    async with await stack.open_tcp_stream(host, PORT) as stream:
                        assert await exchange(stream, data) == data
                await nursery.start(stack.serve_tcp, echo, PORT)
                for host in (testbed.address4, testbed.address6):
                    async with await connect_in(testbed, host, PORT) as kernel:
                        assert await exchange(kernel, data) == data
                nursery.cancel_scope.cancel()

    with Testbed() as testbed:
        trio.run(main, testbed)


@pytest.mark.parametrize("tx_mode", ["reaped", "thread"])
def test_a_tap_that_is_deleted_gives_whoever_waits_a_clear_error(tx_mode: str) -> None:
    if tx_mode == "thread" and not HAVE_C:
        pytest.skip("no C helpers")

    async def main(testbed: Testbed) -> None:
        broken: list[BaseException] = []
        with trio.fail_after(30):
            async with pytcp.open_stack(link=testbed.link, addresses=testbed.addresses, tx_mode=tx_mode) as stack:
                [listener] = await stack.open_tcp_listeners(PORT, host=testbed.address4)
                async with await connect_in(testbed, testbed.address4, PORT):
                    stream = await listener.accept()

                    async def receive() -> None:
                        with pytest.raises(trio.BrokenResourceError) as caught:
                            await stream.receive_some()
                        broken.append(caught.value)

                    async def accept() -> None:
                        with pytest.raises(OSError, match="vanished") as caught:
                            await listener.accept()
                        broken.append(caught.value)

                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(receive)
                        nursery.start_soon(accept)
                        await trio.sleep(0.1)
                        with testbed.netlink() as ip:
                            ip.link("del", index=ip.link_lookup(ifname=testbed.device)[0])
                with pytest.raises(OSError, match=f"device {testbed.link.name} vanished: File descriptor in bad state"):
                    await stack.open_tcp_stream(testbed.peer4, PORT)
        assert len(broken) == 2
        for error in broken:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, LinkDown):
                cause = cause.__cause__
            assert isinstance(cause, LinkDown)

    with Testbed() as testbed:
        trio.run(main, testbed)


def test_the_kernel_fetches_and_serves_files(tmp_path: Path) -> None:
    content = random.Random(2).randbytes(5 << 20)
    (tmp_path / "file").write_bytes(content)

    async def main(testbed: Testbed) -> None:
        with trio.fail_after(60):
            async with pytcp.open_stack(link=testbed.link, addresses=testbed.addresses) as stack, trio.open_nursery() as nursery:
                server = FileServer(tmp_path)
                nursery.start_soon(trio.serve_listeners, server, [listen_in(testbed, testbed.peer4, 80)])
                assert (await get(stack.open_tcp_stream, f"http://{testbed.peer4}/file")).body == content
                await nursery.start(stack.serve_tcp, server, 80)

                async def from_kernel(host: str, port: int) -> trio.SocketStream:
                    return await connect_in(testbed, host, port)

                for host in (testbed.address4, f"[{testbed.address6}]"):
                    assert (await get(from_kernel, f"http://{host}/file")).body == content
                nursery.cancel_scope.cancel()

    with Testbed() as testbed:
        trio.run(main, testbed)


def test_connecting_to_a_closed_port_of_the_kernel_is_refused() -> None:
    async def main(testbed: Testbed) -> None:
        with trio.fail_after(30):
            async with pytcp.open_stack(link=testbed.link, addresses=testbed.addresses) as stack:
                for host in (testbed.peer4, testbed.peer6):
                    with pytest.raises(ConnectionRefusedError) as caught:
                        await stack.open_tcp_stream(host, PORT)
                    assert caught.value.errno == errno.ECONNREFUSED
                [ping] = await stack.ping(testbed.peer4)
                assert ping.rtt is not None

    with Testbed() as testbed:
        trio.run(main, testbed)


def test_a_handler_that_just_returns_has_its_answer_delivered() -> None:
    async def handler(stream: TcpStream) -> None:
        await stream.send_all(b"answer" * 50_000)

    async def main(testbed: Testbed) -> None:
        with trio.fail_after(30):
            async with pytcp.open_stack(link=testbed.link, addresses=testbed.addresses) as stack, trio.open_nursery() as nursery:
                await nursery.start(stack.serve_tcp, handler, PORT)
                received = bytearray()
                async with await connect_in(testbed, testbed.address4, PORT) as kernel:
                    async for piece in kernel:
                        received += piece
                assert received == b"answer" * 50_000
                nursery.cancel_scope.cancel()

    with Testbed() as testbed:
        trio.run(main, testbed)
