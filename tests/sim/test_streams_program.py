"""What programs see of our streams: waiting, waking, closing and breaking, between two hosts in virtual time."""

from __future__ import annotations

import errno
import struct
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

import pytcp
from pytcp.sockets.socket import SO_LINGER, SOL_SOCKET
from pytcp.sockets.streams import TcpStream
from pytcp.tcp.const import CLOSE, CLOSE_WAIT, FIN_WAIT2
from pytcp.tcp.sock import Sock

from .streams import A4, B4, B6, DELAY_NS, PORT, World, clog, simulate

MS = 1_000_000


def engine(stream: TcpStream) -> Sock:
    assert stream.socket.sk is not None
    return stream.socket.sk


def deaf_to_tcp(world: World) -> None:
    """Host b answers ARP, but hears no TCP any more."""
    hear = world.link_b.rx
    world.link_b.rx = lambda frame: None if bytes(frame.data[12:14]) == b"\x08\x00" and frame.data[23] == 6 else hear(frame)


async def settle() -> None:
    """Let everything that is on the wire arrive and be answered."""
    await trio.sleep(0.1)


class Steps(trio.abc.Instrument):
    """Counts how often each task runs, by the name of its function."""

    def __init__(self) -> None:
        self.count: dict[str, int] = {}

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        name = task.name.rpartition(".")[2]
        self.count[name] = self.count.get(name, 0) + 1


# --- sending ---


def test_a_large_send_of_bytes_is_not_copied_even_where_it_has_to_wait() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        data = bytes(range(256)) * 4096  # 1 MiB
        taken: list[memoryview] = []
        transmit = world.a.net.transmit

        def sees(sk: Sock, th: bytes, parts: list[memoryview], length: int, *rest: object) -> int:
            taken.extend(parts)
            return transmit(sk, th, parts, length, *rest)  # type: ignore[arg-type]

        world.a.net.transmit = sees  # type: ignore[method-assign,assignment]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, data)
            received = bytearray()
            while len(received) < len(data):
                received += await server.receive_some()
        assert received == data
        assert sum(map(len, taken)) == len(data)
        # the slab holds what is smaller than a page: at most the very end
        assert sum(len(part) for part in taken if part.obj is data) >= len(data) - 4096

    simulate(program)


def test_sending_waits_for_the_receiver_and_goes_on_when_it_reads() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        await clog(client)
        # Linux looks at the limit only before it starts a new super-segment
        assert engine(client).write_seq - engine(client).snd_una <= engine(client).sndbuf + 65536
        done = trio.Event()

        async def send_more() -> None:
            await client.send_all(bytes(100))
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_more)
            await trio.sleep(60)
            assert not done.is_set()
            while not done.is_set():
                await server.receive_some()

    simulate(program)


def test_cancelling_a_send_that_waits_leaves_the_stream_usable() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        await clog(client)
        with trio.move_on_after(1) as scope:
            await client.send_all(bytes(1000))
        assert scope.cancelled_caught
        waiting = engine(client).write_seq - engine(client).iss - 1
        received = 0
        while received < waiting:
            received += len(await server.receive_some())
        await client.send_all(b"still there")
        assert await server.receive_some() == b"still there"

    simulate(program)


def test_every_kind_of_buffer_is_sent_as_its_bytes() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        array = memoryview(struct.pack("=3I", 1, 2, 3)).cast("I")
        for data in (b"abc", bytearray(b"def"), memoryview(b"ghi"), array):
            await client.send_all(data)
            size = len(bytes(data))
            got = b""
            while len(got) < size:
                got += await server.receive_some()
            assert got == bytes(data)

    simulate(program)


def test_a_buffer_may_be_changed_once_send_all_has_returned() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        buffer = bytearray(b"x" * 100_000)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                await client.send_all(buffer)
                buffer[:] = b"y" * 100_000

            nursery.start_soon(send)
            got = b""
            while len(got) < 100_000:
                got += await server.receive_some()
        assert got == b"x" * 100_000

    simulate(program)


# --- waking ---


def test_a_one_byte_echo_wakes_each_task_once_per_way() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        rounds = 50

        async def answering() -> None:
            while data := await server.receive_some():
                await server.send_all(data)

        async def asking() -> None:
            for _ in range(rounds):
                await client.send_all(b"x")
                assert await client.receive_some() == b"x"
            await client.send_eof()

        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answering)
            nursery.start_soon(asking)
        trio.lowlevel.remove_instrument(steps)
        # per round one wake-up, and the checkpoint of the send that did not have to wait
        assert steps.count["answering"] <= 2 * rounds + 3
        assert steps.count["asking"] <= 2 * rounds + 3

    simulate(program)


def test_many_segments_of_one_batch_wake_the_reader_once() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        reads: list[int] = []

        async def reading() -> None:
            while data := await server.receive_some():
                reads.append(len(data))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reading)
            await settle()
            for _ in range(10):
                client.socket.send(b"0123456789")  # ten segments in the same instant
            await settle()
            assert reads == [100]
            await client.aclose()

    simulate(program)


def test_a_cancelled_receive_takes_nothing() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        with trio.move_on_after(1):
            await server.receive_some()
        await client.send_all(b"data")
        await settle()
        with trio.CancelScope() as scope:
            scope.cancel()
            await server.receive_some()
        assert await server.receive_some() == b"data"

    simulate(program)


# --- closing ---


def test_half_closing_ends_one_direction_only() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        await client.send_all(b"question")
        await client.send_eof()
        await client.send_eof()
        with pytest.raises(trio.ClosedResourceError, match="EOF"):
            await client.send_all(b"more")
        assert await server.receive_some() == b"question"
        assert await server.receive_some() == b""
        assert await server.receive_some() == b""
        assert engine(server).state == CLOSE_WAIT
        await server.send_all(b"answer")
        assert await client.receive_some() == b"answer"
        assert engine(client).state == FIN_WAIT2
        await server.aclose()
        assert await client.receive_some() == b""

    simulate(program)


def test_closing_behind_unread_data_resets_the_peer() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        await client.send_all(b"never read")
        await settle()
        await server.aclose()
        with pytest.raises(trio.BrokenResourceError, match="reset by peer") as caught:
            await client.receive_some()
        assert isinstance(caught.value.__cause__, ConnectionResetError)
        assert world.b.net.mib.TCPAbortOnClose == 1

    simulate(program)


def test_a_cancelled_close_still_delivers_what_was_sent() -> None:
    """As with a kernel socket, and as `serve_tcp` relies on for handlers that just return."""

    async def program(world: World) -> None:
        async def handler(stream: TcpStream) -> None:
            await stream.send_all(b"answer" * 10_000)

        async with trio.open_nursery() as nursery:
            await nursery.start(world.b.serve_tcp, handler, PORT)
            client = await world.a.open_tcp_stream(B4, PORT)
            got = b""
            async for data in client:
                got += data
            assert got == b"answer" * 10_000
            nursery.cancel_scope.cancel()
        assert not world.sent("b", "R")

    simulate(program)


def test_abort_sends_a_reset_at_once() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        await clog(client)
        client.abort()
        client.abort()
        with pytest.raises(trio.ClosedResourceError):
            await client.send_all(b"x")
        await settle()
        assert world.sent("a", "R")
        with pytest.raises(trio.BrokenResourceError):
            while True:
                await server.receive_some()

    simulate(program)


def test_closing_wakes_whoever_waits_on_the_stream() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        await clog(client)

        async def closed(wait: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(trio.ClosedResourceError):
                await wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(closed, client.receive_some)
            nursery.start_soon(closed, lambda: client.send_all(bytes(1000)))
            await settle()
            await client.aclose()
        with pytest.raises(trio.ClosedResourceError) as caught:
            await client.receive_some()
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.EBADF
        await server.aclose()

    simulate(program)


def test_with_linger_closing_waits_for_the_ack_of_the_fin() -> None:
    async def program(world: World) -> None:
        client, _server = await world.pair()
        await client.send_all(bytes(10_000))
        client.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("=ii", 1, 5))
        start = world.runtime.now()
        await client.aclose()
        # the peer has the FIN after one delay, we its ACK after two: at least a round trip, far below 5 s
        assert 2 * DELAY_NS <= world.runtime.now() - start < 1000 * MS

    simulate(program)


def test_lingering_ends_with_its_time_when_the_peer_does_not_answer() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        await clog(client)
        client.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("=ii", 1, 5))
        start = trio.current_time()
        await client.aclose()
        assert trio.current_time() - start == pytest.approx(5, abs=1e-3)
        with pytest.raises(trio.ClosedResourceError):
            await client.receive_some()
        while await server.receive_some():
            pass

    simulate(program)


def test_without_linger_closing_does_not_wait() -> None:
    async def program(world: World) -> None:
        client, _server = await world.pair()
        await client.send_all(bytes(100_000))
        start = world.runtime.now()
        await client.aclose()
        assert world.runtime.now() == start

    simulate(program)


# --- breaking ---


def test_a_broken_stream_stays_broken_and_never_looks_like_its_end() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        await client.send_all(b"part of it")
        await settle()
        assert await server.receive_some() == b"part of it"
        client.abort()
        await settle()
        with pytest.raises(trio.BrokenResourceError, match="reset by peer"):
            await server.send_all(b"x")
        for _ in range(3):
            # where Linux tells of a reset once, and of EOF from then on
            with pytest.raises(trio.BrokenResourceError, match="reset by peer"):
                await server.receive_some()
            with pytest.raises(trio.BrokenResourceError, match="reset by peer"):
                await server.send_all(b"x")

    simulate(program)


def test_a_reset_behind_the_peers_end_does_not_spoil_what_it_sent() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        await server.send_all(b"all of it")
        await server.aclose()
        await settle()
        with pytest.raises(trio.BrokenResourceError, match="Broken pipe"):
            while True:
                await client.send_all(b"x")
                await settle()
        assert world.sent("b", "R")
        assert await client.receive_some() == b"all of it"
        assert await client.receive_some() == b""

    simulate(program)


def test_data_before_a_reset_is_still_read() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        await client.send_all(b"first")
        await settle()
        client.abort()
        await settle()
        assert await server.receive_some() == b"first"
        with pytest.raises(trio.BrokenResourceError):
            await server.receive_some()

    simulate(program)


def test_shutting_down_what_was_reset_hides_neither_the_reason_nor_the_peers_end() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        client.abort()
        await settle()
        with pytest.raises(trio.BrokenResourceError, match="not connected"):
            await server.send_eof()
        for _ in range(2):
            with pytest.raises(trio.BrokenResourceError, match="reset by peer"):
                await server.receive_some()
        with pytest.raises(trio.BrokenResourceError, match="reset by peer"):
            await server.send_eof()
        client, server = await world.pair()
        await server.send_all(b"all of it")
        await server.aclose()
        await settle()
        await client.send_all(b"too late")
        await settle()
        with pytest.raises(trio.BrokenResourceError):
            await client.send_eof()
        assert (await client.receive_some(), await client.receive_some()) == (b"all of it", b"")

    simulate(program)


def test_a_peer_that_vanishes_breaks_the_stream_by_timeout() -> None:
    async def program(world: World) -> None:
        client, _server = await world.pair()
        deaf_to_tcp(world)
        await client.send_all(b"anybody there?")
        with pytest.raises(trio.BrokenResourceError, match="timed out") as caught:
            await client.receive_some()
        assert isinstance(caught.value.__cause__, TimeoutError)

    simulate(program)


# --- opening ---


def test_a_refused_connection_is_refused_after_one_round_trip() -> None:
    async def program(world: World) -> None:
        for host in (B4, B6):
            with pytest.raises(ConnectionRefusedError, match=f"{PORT}"):
                await world.a.open_tcp_stream(host, PORT)
        assert not world.a._sockets

    simulate(program)


def test_what_cannot_be_reached_or_resolved_says_so_at_once() -> None:
    async def program(world: World) -> None:
        start = trio.current_time()
        with pytest.raises(OSError, match="no route") as caught:
            await world.a.open_tcp_stream("192.0.2.1", PORT)
        assert caught.value.errno == errno.ENETUNREACH
        with pytest.raises(OSError, match="not a numeric"):
            await world.a.open_tcp_listeners(PORT, host="example.com")
        with pytest.raises(OSError, match="assign requested address") as caught:
            await world.a.open_tcp_stream(B4, PORT, local_address="192.0.2.7")
        assert caught.value.errno == errno.EADDRNOTAVAIL
        assert trio.current_time() == start
        assert not world.a._sockets

    simulate(program)


def test_a_cancelled_connect_leaves_nothing_behind() -> None:
    async def program(world: World) -> None:
        deaf_to_tcp(world)
        with trio.move_on_after(5) as scope:
            await world.a.open_tcp_stream(B4, PORT)
        assert scope.cancelled_caught
        assert not world.a._sockets
        assert not world.a.net.table
        syns = len(world.sent("a", "S"))
        await trio.sleep(60)
        assert len(world.sent("a", "S")) == syns

    simulate(program)


def test_the_source_address_can_be_chosen() -> None:
    async def program(world: World) -> None:
        world.a.net.add_address(world.a.net.interfaces[1], "10.0.0.77/24")
        [listener] = await world.b.open_tcp_listeners(PORT, host=B4)
        client = await world.a.open_tcp_stream(B4, PORT, local_address="10.0.0.77")
        server = await listener.accept()
        assert server.socket.getpeername()[0] == "10.0.0.77"
        assert client.socket.getsockname() == server.socket.getpeername()

    simulate(program)


# --- listening ---


def test_listening_without_a_host_means_both_families() -> None:
    async def program(world: World) -> None:
        seen: list[str] = []

        async def handler(stream: TcpStream) -> None:
            seen.append(stream.socket.getpeername()[0])

        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(world.b.serve_tcp, handler, PORT)
            assert [listener.socket.getsockname()[:2] for listener in listeners] == [("0.0.0.0", PORT), ("::", PORT)]
            for host in (B4, B6):
                async with await world.a.open_tcp_stream(host, PORT):
                    await settle()
            nursery.cancel_scope.cancel()
        assert seen == [A4, "fd00::1"]

    simulate(program)


def test_a_port_in_use_cannot_be_listened_on_twice() -> None:
    async def program(world: World) -> None:
        first = await world.b.open_tcp_listeners(PORT)
        with pytest.raises(OSError) as caught:
            await world.b.open_tcp_listeners(PORT)
        assert caught.value.errno == errno.EADDRINUSE
        for listener in first:
            await listener.aclose()
        for listener in await world.b.open_tcp_listeners(PORT):
            await listener.aclose()
        assert not world.b._sockets

    simulate(program)


def test_a_full_accept_queue_holds_newcomers_off_until_somebody_accepts() -> None:
    async def program(world: World) -> None:
        [listener] = await world.b.open_tcp_listeners(PORT, host=B4, backlog=1)
        # the queue holds one more than the backlog says (linux-tcp §9)
        clients = [await world.a.open_tcp_stream(B4, PORT) for _ in range(2)]
        await settle()
        opened: list[TcpStream] = []

        async def connect() -> None:
            opened.append(await world.a.open_tcp_stream(B4, PORT))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            await trio.sleep(10)
            assert not opened
            assert world.b.net.mib.ListenOverflows > 0
            names = [(await listener.accept()).socket.getpeername() for _ in range(3)]
        assert names == [stream.socket.getsockname() for stream in clients + opened]

    simulate(program)


def test_a_cancelled_accept_leaves_the_connection_in_the_queue() -> None:
    async def program(world: World) -> None:
        [listener] = await world.b.open_tcp_listeners(PORT, host=B4)
        with trio.move_on_after(1) as scope:
            await listener.accept()
        assert scope.cancelled_caught
        client = await world.a.open_tcp_stream(B4, PORT)
        await settle()
        with trio.CancelScope() as scope:
            scope.cancel()
            await listener.accept()
        assert scope.cancelled_caught
        with trio.fail_after(1):
            server = await listener.accept()
        assert server.socket.getpeername() == client.socket.getsockname()

    simulate(program)


def test_two_tasks_cannot_accept_from_one_listener() -> None:
    async def program(world: World) -> None:
        [listener] = await world.b.open_tcp_listeners(PORT, host=B4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.accept)
            await settle()
            with pytest.raises(trio.BusyResourceError):
                await listener.accept()
            nursery.cancel_scope.cancel()

    simulate(program)


def test_a_link_that_a_stack_has_is_busy_until_that_stack_has_ended() -> None:
    async def main() -> None:
        left, right = pytcp.pipe_pair(trio.lowlevel.current_clock().runtime.heap)  # type: ignore[attr-defined]
        async with pytcp.open_stack(link=left, addresses=["10.0.0.1/24"]) as a, pytcp.open_stack(link=right, addresses=["10.0.0.2/24"]):
            with pytest.raises(OSError, match="another stack has the link") as busy:
                async with pytcp.open_stack(link=right, addresses=["10.0.0.3/24"]):
                    pass
            assert busy.value.errno == errno.EBUSY
            assert {answer.source for answer in await a.ping("10.0.0.2")} == {"10.0.0.2"}
            async with pytcp.open_stack(), pytcp.open_stack():
                pass

    pytcp.run_virtual(main)


def test_closing_a_listener_wakes_its_accept_and_resets_who_was_not_accepted() -> None:
    async def program(world: World) -> None:
        [listener] = await world.b.open_tcp_listeners(PORT, host=B4)
        client = await world.a.open_tcp_stream(B4, PORT)
        await settle()
        await listener.aclose()
        with pytest.raises(trio.BrokenResourceError):
            await client.receive_some()
        [other] = await world.b.open_tcp_listeners(PORT + 1, host=B4)

        async def accept() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await other.accept()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            await settle()
            await other.aclose()

    simulate(program)


# --- nothing is kept ---


def test_a_closed_connection_is_forgotten() -> None:
    async def program(world: World) -> None:
        client, server = await world.pair()
        refs: list[weakref.ref[Any]] = [weakref.ref(client), weakref.ref(client.socket), weakref.ref(server)]
        sock = engine(client)
        await client.aclose()
        assert await server.receive_some() == b""
        await server.aclose()
        del client, server
        await trio.sleep(120)  # TIME-WAIT
        assert sock.state == CLOSE
        assert not world.a.net.table
        assert not world.b.net.table
        assert not world.a._sockets
        assert [ref() for ref in refs] == [None, None, None]

    simulate(program)
