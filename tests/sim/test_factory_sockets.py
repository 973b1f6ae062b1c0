"""trio's own socket functions on our sockets: opening, serving, waiting, closing, and what is refused."""

from __future__ import annotations

import errno
import os
import socket as stdlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from pytcp.sockets.factory import SocketFactory, patched_stdlib, use_stack
from pytcp.sockets.resolver import Resolver
from pytcp.sockets.socket import Socket
from pytcp.sockets.trio_socket import FIRST_NUMBER, TrioSocket

from .nameserver import NameServer, a_records
from .streams import A4, A6, B4, B6, PORT, World, simulate


def on_a(program: Callable[[World], Awaitable[None]]) -> None:
    """Run a program whose trio sockets live on host a."""

    async def main(world: World) -> None:
        with use_stack(world.a, resolver=Resolver(world.a, hosts="/dev/null", resolv_conf="/dev/null", nameservers=[B4], environ={})):
            await program(world)

    simulate(main)


async def echo(stream: trio.abc.Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


async def asked(stream: trio.abc.HalfCloseableStream, data: bytes) -> bytes:
    """What comes back for `data` until the end."""
    await stream.send_all(data)
    await stream.send_eof()
    answer = bytearray()
    while chunk := await stream.receive_some():
        answer += chunk
    return bytes(answer)


# --- clients and servers ---


@pytest.mark.parametrize("host", [B4, B6])
def test_open_tcp_stream_connects_over_pytcp(host: str) -> None:
    async def program(world: World) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(world.b.serve_tcp, echo, PORT)
            async with await trio.open_tcp_stream(host, PORT) as stream:
                assert isinstance(stream.socket, TrioSocket)
                assert stream.socket.getpeername()[:2] == (host, PORT)
                assert await asked(stream, b"x" * 300_000) == b"x" * 300_000
            nursery.cancel_scope.cancel()

    on_a(program)


def test_names_resolve_over_pytcp_and_the_next_address_is_tried_when_one_is_dead() -> None:
    records = {("twice.example", "A"): a_records("twice.example", "10.0.0.99", B4)}  # nobody has 10.0.0.99

    async def program(world: World) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(NameServer(records).serve, world.b)
            await nursery.start(world.b.serve_tcp, echo, PORT)
            start = trio.current_time()
            async with await trio.open_tcp_stream("twice.example", PORT) as stream:
                assert stream.socket.getpeername() == (B4, PORT)
            # RFC 8305 as trio has it: the next attempt starts after 250 ms
            assert 0.2 < trio.current_time() - start < 0.5
            with pytest.raises(stdlib.gaierror) as caught:
                await trio.open_tcp_stream("missing.example", PORT)
            assert caught.value.errno == stdlib.EAI_NONAME
            nursery.cancel_scope.cancel()

    on_a(program)


def test_a_stack_connects_to_names_itself_and_tries_each_address() -> None:
    records = {
        ("twice.example", "A"): a_records("twice.example", "10.0.0.99", B4),
        ("dead.example", "A"): a_records("dead.example", B4, "192.0.2.1"),
        ("xn--bcher-kva.example", "A"): a_records("xn--bcher-kva.example", B4),
    }

    async def program(world: World) -> None:
        world.a.resolver = Resolver(world.a, hosts="/dev/null", resolv_conf="/dev/null", nameservers=[B4], environ={})
        async with trio.open_nursery() as nursery:
            await nursery.start(NameServer(records).serve, world.b)
            await nursery.start(world.b.serve_tcp, echo, PORT)
            start = trio.current_time()
            async with await world.a.open_tcp_stream("twice.example", PORT) as stream:
                assert stream.socket.getpeername() == (B4, PORT)
            assert 0.25 <= trio.current_time() - start < 0.3  # RFC 8305 §8
            async with await world.a.open_tcp_stream("Bücher.example", PORT) as stream:
                assert await asked(stream, b"x") == b"x"
            with pytest.raises(ConnectionRefusedError, match="1 more") as caught:
                await world.a.open_tcp_stream("dead.example", 9)
            group = caught.value.__cause__
            assert isinstance(group, ExceptionGroup)
            assert [failure.errno for failure in group.exceptions if isinstance(failure, OSError)] == [errno.ECONNREFUSED, errno.ENETUNREACH]
            with pytest.raises(stdlib.gaierror, match="Name or service not known"):
                await world.a.open_tcp_stream("missing.example", PORT)
            with trio.move_on_after(0.1):
                await world.a.open_tcp_stream("twice.example", PORT)
            nursery.cancel_scope.cancel()
        await trio.sleep(0)
        assert not world.a._sockets

    simulate(program)


def test_serve_tcp_serves_both_families_on_one_port() -> None:
    async def program(world: World) -> None:
        async with trio.open_nursery() as nursery:
            listeners: list[trio.SocketListener] = await nursery.start(trio.serve_tcp, echo, PORT)
            assert sorted(listener.socket.family for listener in listeners) == [stdlib.AF_INET, stdlib.AF_INET6]
            assert all(listener.socket.getsockopt(stdlib.SOL_SOCKET, stdlib.SO_ACCEPTCONN) == 1 for listener in listeners)
            for host in (A4, A6):
                async with await world.b.open_tcp_stream(host, PORT) as stream:
                    assert await asked(stream, b"hello") == b"hello"
            nursery.cancel_scope.cancel()

    on_a(program)


def test_trios_own_conformance_checks_pass_on_its_streams_over_our_sockets() -> None:
    async def program(world: World) -> None:
        async def pair() -> tuple[trio.SocketStream, trio.SocketStream]:
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            async with listener:
                client = await trio.testing.open_stream_to_socket_listener(listener)
                return client, await listener.accept()

        await trio.testing.check_half_closeable_stream(pair, None)

    on_a(program)


def test_a_refused_connection_is_the_error_trio_makes_of_it() -> None:
    async def program(world: World) -> None:
        with pytest.raises(OSError, match="all attempts to connect") as caught:
            await trio.open_tcp_stream(B4, 9)
        assert isinstance(caught.value.__cause__, ExceptionGroup)
        [failure] = caught.value.__cause__.exceptions
        assert isinstance(failure, ConnectionRefusedError)

    on_a(program)


def test_a_cancelled_connect_closes_its_socket() -> None:
    async def program(world: World) -> None:
        sock = trio.socket.socket()
        with trio.move_on_after(0.1) as scope:
            await sock.connect(("10.0.0.99", PORT))
        assert scope.cancelled_caught
        assert sock.fileno() == -1

    on_a(program)


def test_a_cancelled_accept_takes_no_connection() -> None:
    async def program(world: World) -> None:
        [listener] = await trio.open_tcp_listeners(PORT, host=A4)
        with trio.move_on_after(1) as scope:
            await listener.accept()
        assert scope.cancelled_caught
        client = await world.b.open_tcp_stream(A4, PORT)
        server = await listener.accept()
        await client.send_all(b"x")
        assert await server.receive_some() == b"x"

    on_a(program)


# --- datagrams ---


def test_trio_datagram_sockets_send_and_receive() -> None:
    async def program(world: World) -> None:
        sock = trio.socket.socket(stdlib.AF_INET, stdlib.SOCK_DGRAM)
        await sock.bind(("", PORT))
        assert (sock.type, sock.family, sock.getsockname()) == (stdlib.SOCK_DGRAM, stdlib.AF_INET, ("0.0.0.0", PORT))
        peer = await world.b.open_udp(remote=(A4, PORT))
        await peer.send(b"hello")
        data, source = await sock.recvfrom(100)
        assert (data, source[0]) == (b"hello", B4)
        assert await sock.sendto(b"answer", source) == 6
        assert await peer.receive() == b"answer"
        await sock.connect(source)
        assert await sock.send(b"more") == 4
        assert await sock.sendmsg([b"two ", b"parts"]) == 9
        assert [await peer.receive(), await peer.receive()] == [b"more", b"two parts"]
        await peer.send(b"0123456789")
        assert (await sock.recvmsg(4))[:3] == (b"0123", [], stdlib.MSG_TRUNC)
        buffers = [bytearray(2), bytearray(5)]
        await peer.send(b"abcdef")
        assert (await sock.recvmsg_into(buffers))[0] == 6
        assert bytes(buffers[0] + buffers[1]) == b"abcdef\0"

    on_a(program)


def test_a_datagram_socket_hears_of_a_closed_port() -> None:
    async def program(world: World) -> None:
        sock = trio.socket.socket(stdlib.AF_INET, stdlib.SOCK_DGRAM)
        await sock.connect((B4, 9))
        await sock.send(b"x")
        with pytest.raises(ConnectionRefusedError):
            await sock.recv(10)

    on_a(program)


# --- what is refused ---


@pytest.mark.parametrize(
    ("family", "kind", "proto", "verdict"),
    [
        # measured on Linux 6.18
        (stdlib.AF_INET, stdlib.SOCK_STREAM, 17, errno.EPROTONOSUPPORT),
        (stdlib.AF_INET, stdlib.SOCK_DGRAM, 6, errno.EPROTONOSUPPORT),
        (stdlib.AF_INET, stdlib.SOCK_RAW, 0, errno.EPROTONOSUPPORT),
        (stdlib.AF_INET, stdlib.SOCK_SEQPACKET, 0, errno.ESOCKTNOSUPPORT),
        (stdlib.AF_INET, 99, 0, errno.EINVAL),
        (stdlib.AF_INET, stdlib.SOCK_STREAM, 999, errno.EINVAL),
        (99, stdlib.SOCK_STREAM, 0, errno.EAFNOSUPPORT),
    ],
)
def test_a_wrong_kind_of_socket_is_refused_as_linux_refuses_it(family: int, kind: int, proto: int, verdict: int) -> None:
    async def program(world: World) -> None:
        with pytest.raises(OSError) as caught:
            trio.socket.socket(family, kind, proto)
        assert caught.value.errno == verdict

    on_a(program)


def test_the_flags_linux_knows_are_no_part_of_the_type() -> None:
    async def program(world: World) -> None:
        sock = trio.socket.socket(stdlib.AF_INET6, stdlib.SOCK_STREAM | stdlib.SOCK_CLOEXEC | stdlib.SOCK_NONBLOCK, 6)
        assert (sock.type, sock.proto, sock.family) == (stdlib.SOCK_STREAM, 6, stdlib.AF_INET6)

    on_a(program)


def test_wrong_arguments_have_the_errors_of_trios_sockets() -> None:
    async def program(world: World) -> None:
        sock = trio.socket.socket()
        for address in ("10.0.0.1", (B4,), (B4, 80, 0)):
            with pytest.raises(ValueError, match="address should be"):
                await sock.connect(address)
        with pytest.raises(OverflowError):
            await sock.connect((B4, 65536))
        with pytest.raises(TypeError):
            sock.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_REUSEADDR, None)  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            await sock.sendto(b"x")  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="negative"):
            await sock.recv(-1)
        with pytest.raises(OSError, match="not connected"):
            sock.getpeername()
        for call in (sock.detach, sock.dup, lambda: sock.set_inheritable(True)):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == errno.EOPNOTSUPP
        assert sock.get_inheritable() is False

    on_a(program)


def test_a_closed_socket_says_so_and_wakes_who_waits() -> None:
    async def program(world: World) -> None:
        client, _server = await world.pair()
        sock = TrioSocket(client.socket)
        assert sock.fileno() >= FIRST_NUMBER
        with pytest.raises(OSError):
            os.fstat(sock.fileno())

        async def closed(wait: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(trio.ClosedResourceError):
                await wait()

        while True:  # until no byte more is taken
            with trio.move_on_after(1) as scope:
                await sock.send(bytes(65536))
            if scope.cancelled_caught:
                break
        async with trio.open_nursery() as nursery:
            nursery.start_soon(closed, lambda: sock.recv(10))
            nursery.start_soon(closed, sock.wait_writable)
            await trio.sleep(0.1)
            with pytest.raises(trio.BusyResourceError):
                await sock.recv(10)
            sock.close()
        sock.close()
        assert sock.fileno() == -1
        for call in (lambda: sock.recv(1), lambda: sock.send(b"x"), lambda: sock.bind(("", 0)), lambda: sock.accept(), lambda: sock.connect((B4, 1))):
            with pytest.raises(OSError) as caught:
                await call()
            assert caught.value.errno == errno.EBADF
        with pytest.raises(OSError):
            sock.getsockname()

    on_a(program)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_socket_that_is_dropped_is_closed_with_a_warning() -> None:
    async def program(world: World) -> None:
        [listener] = await trio.open_tcp_listeners(PORT, host=A4)
        client = await world.b.open_tcp_stream(A4, PORT)
        stream = await listener.accept()
        await client.send_all(b"never read")
        await trio.sleep(0.1)
        with pytest.warns(ResourceWarning, match="unclosed <trio socket on pytcp Socket ESTABLISHED"):
            del stream
        with pytest.raises(trio.BrokenResourceError):
            await client.receive_some()

    on_a(program)


def test_a_second_factory_in_one_run_is_refused_and_the_first_one_stays() -> None:
    async def program(world: World) -> None:
        with pytest.raises(RuntimeError, match="a socket factory already"), use_stack(world.b):
            raise AssertionError("not reached")
        sock = trio.socket.socket()
        assert isinstance(sock, TrioSocket)
        await sock.bind((A4, PORT))

    on_a(program)


def test_after_the_block_trio_makes_the_kernels_sockets_again() -> None:
    async def program(world: World) -> None:
        with use_stack(world.a):
            pass
        with trio.socket.socket() as sock:
            assert not isinstance(sock, TrioSocket)
        with use_stack(world.b), trio.socket.socket() as sock:
            assert isinstance(sock, TrioSocket)

    simulate(program)


def test_sockets_of_other_families_stay_the_kernels() -> None:
    async def program(world: World) -> None:
        with trio.socket.socket(stdlib.AF_UNIX) as sock:
            assert not isinstance(sock, TrioSocket)
            os.fstat(sock.fileno())

    on_a(program)


def test_a_factory_whose_stack_has_ended_says_that() -> None:
    left: list[SocketFactory] = []

    async def program(world: World) -> None:
        left.append(SocketFactory(world.a))

    simulate(program)
    with pytest.raises(OSError) as caught:
        left[0].socket()
    assert caught.value.errno == errno.ENETDOWN


# --- sockets of the standard library ---


def test_a_listener_of_the_standard_library_becomes_one_of_ours() -> None:
    async def program(world: World) -> None:
        with stdlib.socket(stdlib.AF_INET6) as kernel:
            kernel.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_REUSEADDR, 1)
            kernel.setsockopt(stdlib.IPPROTO_IPV6, stdlib.IPV6_V6ONLY, 0)
            kernel.bind(("::", 0))
            kernel.listen(7)
            port = kernel.getsockname()[1]
            with patched_stdlib(SocketFactory(world.a)):
                sock = trio.socket.from_stdlib_socket(kernel)
            assert isinstance(sock, TrioSocket)
            assert kernel.getsockname()[1] == port == sock.getsockname()[1]
            with stdlib.socket() as probe, pytest.raises(ConnectionRefusedError):
                probe.connect(("127.0.0.1", port))
            assert isinstance(sock._sock, Socket) and sock._sock.check_open().backlog == 7
            client = await world.b.open_tcp_stream(A4, port)
            _, address = await sock.accept()
            assert address[0] == f"::ffff:{B4}"
            await client.aclose()
            sock.close()
            assert kernel.fileno() == -1

    on_a(program)


def test_a_bound_datagram_socket_becomes_one_of_ours() -> None:
    async def program(world: World) -> None:
        kernel = stdlib.socket(stdlib.AF_INET, stdlib.SOCK_DGRAM)
        kernel.bind(("0.0.0.0", 0))
        sock = SocketFactory(world.a).adopt(kernel)
        peer = await world.b.open_udp(remote=(A4, sock.getsockname()[1]))
        await peer.send(b"hello")
        assert (await sock.recvfrom(10))[0] == b"hello"
        sock.close()

    on_a(program)


def test_connected_and_local_sockets_of_the_standard_library_stay_what_they_are(tmp_path: Path) -> None:
    async def program(world: World) -> None:
        left, right = stdlib.socketpair()
        with patched_stdlib(SocketFactory(world.a)):
            with pytest.raises(RuntimeError, match="patched already"), patched_stdlib(SocketFactory(world.a)):
                raise AssertionError("not reached")
            with right, trio.socket.from_stdlib_socket(left) as sock:
                assert not isinstance(sock, TrioSocket)
            with pytest.raises(TypeError, match="expected object of type"):
                trio.socket.from_stdlib_socket(3)  # type: ignore[arg-type]

    on_a(program)


def test_an_address_that_is_taken_here_leaves_both_sockets_as_they_were() -> None:
    async def program(world: World) -> None:
        with stdlib.socket() as kernel:
            kernel.bind(("127.0.0.1", 0))
            kernel.listen()
            taken = trio.socket.socket()
            await taken.bind(kernel.getsockname())
            before = len(world.a._sockets)
            with pytest.raises(OSError) as caught:
                SocketFactory(world.a).adopt(kernel)
            assert caught.value.errno == errno.EADDRINUSE
            assert len(world.a._sockets) == before
            assert kernel.getsockopt(stdlib.SOL_SOCKET, stdlib.SO_ACCEPTCONN) == 1

    on_a(program)
