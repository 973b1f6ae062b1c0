"""The life of a stack: opening, ending, breaking, repeating; and what lives on it: ping and HTTP."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from pytcp.clock.real import RealRuntime
from pytcp.clock.virtual import VirtualDeadlock
from pytcp.link.frame import LinkDown
from pytcp.link.pipe import pipe_pair
from pytcp.sockets.http import FileServer, get
from pytcp.sockets.open import TrioStack, open_stack, run_virtual
from pytcp.sockets.streams import TcpStream

from .streams import A4, B4, B6, DELAY_NS, PORT, World, runtime, simulate, world


def vanish(two: World) -> None:
    """Host a's only device is gone, as its runtime would find out in a pass."""
    for told in two.runtime.link_down:
        told(two.link_a, LinkDown(errno.ENODEV, "No such device"))


# --- the same again ---


def trace(seed: int) -> list[Any]:
    """What crosses the wire while several tasks race, and what is left of virtual time."""
    result: list[Any] = []

    async def program(two: World) -> None:
        async def echo(stream: TcpStream) -> None:
            async for data in stream:
                await stream.send_all(data)

        async def ask(number: int) -> None:
            async with await two.a.open_tcp_stream(B4 if number % 2 else B6, PORT) as stream:
                for size in range(1, 2000 * number, 501):
                    await stream.send_all(bytes(size))
                    while size:
                        size -= len(await stream.receive_some())

        async with trio.open_nursery() as nursery:
            await nursery.start(two.b.serve_tcp, echo, PORT)
            async with trio.open_nursery() as clients:
                for number in range(1, 5):
                    clients.start_soon(ask, number)
            nursery.cancel_scope.cancel()
        result.extend([two.wire, two.runtime.now(), two.a.net.random.random()])

    simulate(program, seed=seed)
    return result


def test_the_same_seed_gives_the_same_packets_to_the_nanosecond() -> None:
    assert trace(1) == trace(1)


def test_programs_for_trio_run_unmodified_in_virtual_time() -> None:
    """A program that gets `open_tcp_stream` and `serve_tcp` as it would get trio's, and sleeps for hours."""

    async def clock_server(stream: trio.abc.Stream) -> None:
        await stream.send_all(f"{trio.current_time():.0f}".encode())

    async def client(open_tcp_stream: Any) -> list[str]:
        seen = []
        for _ in range(3):
            async with await open_tcp_stream(B4, PORT) as stream:
                seen.append(b"".join([data async for data in stream]).decode())
            await trio.sleep(3600)
        return seen

    async def main() -> list[str]:
        async with world() as two, trio.open_nursery() as nursery:
            await nursery.start(two.b.serve_tcp, clock_server, PORT)
            seen = await client(two.a.open_tcp_stream)
            nursery.cancel_scope.cancel()
        return seen

    assert run_virtual(main) == ["0", "3600", "7200"]


def test_a_run_that_can_never_go_on_says_so_instead_of_hanging() -> None:
    async def main() -> None:
        async with open_stack() as stack:
            [listener] = await stack.open_tcp_listeners(PORT, host="127.0.0.1")
            await listener.accept()

    with pytest.raises(VirtualDeadlock):
        run_virtual(main)


# --- opening ---


def test_a_configuration_that_cannot_be_is_refused_and_leaves_no_stack() -> None:
    async def main() -> None:
        clocked = runtime()
        for options, wrong in (
            ({"addresses": ["10.0.0.300/24"]}, ValueError),
            ({"addresses": ["10.0.0.1/24"], "gateway": "192.0.2.1"}, OSError),
            ({"sysctls": {"net.ipv4.tcp_sak": 1}}, OSError),
            ({"sysctls": {"net.ipv4.tcp_sack": "many"}}, OSError),
        ):
            link, _ = pipe_pair(clocked.heap)
            with pytest.raises(wrong):
                async with open_stack(link=link, **options):
                    pytest.fail("the stack was opened")
        assert not [*clocked.before_pass, *clocked.after_pass, *clocked.link_down]

    run_virtual(main)


def test_sysctls_hold_before_the_first_packet_and_a_gateway_leads_everywhere() -> None:
    async def main() -> None:
        link, _ = pipe_pair(runtime().heap)
        async with open_stack(link=link, addresses=[f"{A4}/24"], gateway=B4, sysctls={"net.ipv4.tcp_sack": 0}) as stack:
            assert stack.net.sysctl.tcp_sack == 0
            assert stack.net.dst(bytes((192, 0, 2, 1))).saddr == bytes((10, 0, 0, 1))

    run_virtual(main)


def test_an_error_in_the_block_comes_out_as_it_is() -> None:
    async def main() -> None:
        with pytest.raises(KeyError, match="mine"):
            async with open_stack():
                raise KeyError("mine")

    run_virtual(main)


def test_a_bug_in_a_callback_ends_the_block_in_real_time() -> None:
    async def main() -> None:
        with pytest.raises(BaseExceptionGroup) as caught:
            async with open_stack() as stack:
                stack.net.heap.call_later(0, lambda: [][0])
                await trio.sleep_forever()
        assert caught.value.split(IndexError)[1] is None
        assert stack.net.closed

    trio.run(main)


# --- ending ---


def test_data_sent_just_before_the_end_is_still_delivered() -> None:
    async def main() -> None:
        received = bytearray()

        async def sink(stream: TcpStream) -> None:
            async for data in stream:
                received.extend(data)

        clocked = runtime()
        link_a, link_b = pipe_pair(clocked.heap, delay_ns=DELAY_NS)
        async with open_stack(link=link_b, addresses=[f"{B4}/24"]) as b, trio.open_nursery() as nursery:
            await nursery.start(b.serve_tcp, sink, PORT)
            async with open_stack(link=link_a, addresses=[f"{A4}/24"]) as a:
                closed = await a.open_tcp_stream(B4, PORT)
                await closed.send_all(bytes(100_000))
                await closed.aclose()
                left_open = await a.open_tcp_stream(B4, PORT)
                await left_open.send_all(bytes(100_000))
            await trio.sleep(0.1)
            assert len(received) == 200_000
            assert b.net.mib.TcpEstabResets == 0
            nursery.cancel_scope.cancel()

    run_virtual(main)


def test_a_peer_that_does_not_read_holds_the_end_up_no_longer_than_drain() -> None:
    async def main() -> None:
        clocked = runtime()
        link_a, link_b = pipe_pair(clocked.heap, delay_ns=DELAY_NS)
        async with open_stack(link=link_b, addresses=[f"{B4}/24"]) as b:
            [listener] = await b.open_tcp_listeners(PORT, host=B4)
            async with open_stack(link=link_a, addresses=[f"{A4}/24"], drain=3) as a:
                stream = await a.open_tcp_stream(B4, PORT)
                with trio.move_on_after(30):
                    while True:
                        await stream.send_all(bytes(65536))
                start = trio.current_time()
            assert trio.current_time() - start == pytest.approx(3, abs=0.1)
            await listener.aclose()

    run_virtual(main)


def test_cancelling_the_stack_ends_it_at_once_and_resets_its_peers() -> None:
    async def program(two: World) -> None:
        [listener] = await two.b.open_tcp_listeners(PORT, host=B4)
        link_c, link_d = pipe_pair(two.runtime.heap, delay_ns=DELAY_NS)
        two.b.net.add_interface(link_d, ["10.1.0.2/24"], name="second")
        start = trio.current_time()
        with trio.move_on_after(5) as scope:
            async with open_stack(link=link_c, addresses=["10.1.0.1/24"]) as stack:
                await listener.aclose()
                [listener] = await two.b.open_tcp_listeners(PORT, host="10.1.0.2")
                stream = await stack.open_tcp_stream("10.1.0.2", PORT)
                server = await listener.accept()
                await stream.receive_some()
        assert scope.cancelled_caught
        assert trio.current_time() - start == pytest.approx(5, abs=1e-3)
        with pytest.raises(trio.BrokenResourceError, match="reset by peer"):
            await server.receive_some()
        assert link_c.closed

    simulate(program)


def test_a_stack_used_after_its_end_says_that_it_was_closed() -> None:
    async def main() -> None:
        async with open_stack() as stack:
            [listener] = await stack.open_tcp_listeners(PORT, host="127.0.0.1")
            kept = stack.socket()
        for use in (
            lambda: stack.open_tcp_stream("127.0.0.1", PORT),
            lambda: stack.open_tcp_listeners(PORT),
            lambda: stack.ping("127.0.0.1"),
        ):
            with pytest.raises(OSError, match="the stack was closed") as caught:
                await use()
            assert caught.value.errno == errno.ENETDOWN
        with pytest.raises(OSError, match="the stack was closed"):
            stack.socket()
        # what the end of the block closed is closed, as if by the program
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()
        with pytest.raises(OSError, match="the socket was closed"):
            kept.listen()

    run_virtual(main)


def test_tasks_that_outlive_the_stack_are_woken_with_an_error() -> None:
    async def main() -> None:
        errors: list[BaseException] = []

        async def accept(stack: TrioStack) -> None:
            [listener] = await stack.open_tcp_listeners(PORT, host="127.0.0.1")
            try:
                await listener.accept()
            except (trio.ClosedResourceError, OSError) as exc:
                errors.append(exc)

        async with trio.open_nursery() as nursery:
            async with open_stack() as stack:
                nursery.start_soon(accept, stack)
                await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(1):
                async with open_stack() as stack:
                    nursery.start_soon(accept, stack)
                    await trio.sleep_forever()
        assert isinstance(errors[0], trio.ClosedResourceError)
        assert "the stack was closed" in str(errors[1])

    run_virtual(main)


def test_a_ping_under_way_ends_with_the_stack_and_not_with_its_own_patience() -> None:
    async def program(two: World) -> None:
        link, _ = pipe_pair(two.runtime.heap)

        async def ping(stack: TrioStack) -> None:
            with pytest.raises(OSError, match="the stack was closed") as caught:
                await stack.ping("10.1.0.2", timeout=60)
            assert caught.value.errno == errno.ENETDOWN

        start = trio.current_time()
        async with trio.open_nursery() as nursery, open_stack(link=link, addresses=["10.1.0.1/24"], runtime=two.runtime) as stack:
            nursery.start_soon(ping, stack)
            await trio.sleep(0.5)
        assert trio.current_time() - start == pytest.approx(0.5, abs=1e-3)

    simulate(program)


# --- a device that vanishes ---


def test_a_device_that_vanishes_wakes_everybody_who_waits_with_its_error() -> None:
    async def program(two: World) -> None:
        client, _server = await two.pair()
        [listener] = await two.a.open_tcp_listeners(PORT, host=A4)
        broken: list[BaseException] = []

        async def waits(what: Any, *args: Any) -> None:
            with pytest.raises((trio.BrokenResourceError, OSError)) as caught:
                await what(*args)
            broken.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits, client.receive_some)
            nursery.start_soon(waits, listener.accept)
            nursery.start_soon(waits, two.a.open_tcp_stream, "10.0.0.99", PORT)
            nursery.start_soon(waits, two.a.ping, "10.0.0.99")
            await trio.testing.wait_all_tasks_blocked()
            vanish(two)
        assert len(broken) == 4
        assert all(str(error).count("vanished") == 1 for error in broken), "who waits is told what happened, not only the errno's text"
        for error in broken:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, LinkDown):
                cause = cause.__cause__
            assert isinstance(cause, LinkDown)
        with pytest.raises(OSError, match="vanished") as later:
            await two.a.open_tcp_stream(B4, PORT)
        assert later.value.errno == errno.ENODEV
        await client.aclose()

    simulate(program)


def test_with_another_device_only_what_led_over_the_lost_one_breaks() -> None:
    async def program(two: World) -> None:
        link_c, link_d = pipe_pair(two.runtime.heap, delay_ns=DELAY_NS)
        two.a.net.add_interface(link_c, ["10.1.0.1/24"], name="second")
        two.b.net.add_interface(link_d, ["10.1.0.2/24"], name="second")
        lost, _ = await two.pair()
        kept, server = await two.pair("10.1.0.2")
        [listener] = await two.a.open_tcp_listeners(PORT + 1, host="0.0.0.0")
        vanish(two)
        with pytest.raises(trio.BrokenResourceError, match="No such device"):
            await lost.receive_some()
        await kept.send_all(b"still here")
        assert await server.receive_some() == b"still here"
        await two.b.open_tcp_stream("10.1.0.1", PORT + 1)
        await listener.accept()

    simulate(program)


# --- ping ---


def test_ping_measures_the_round_trip_of_both_families() -> None:
    async def program(two: World) -> None:
        await two.a.ping(B4)  # ARP
        seen: list[int] = []
        for host in (B4, B6):
            pings = await two.a.ping(host, count=3, interval=0.5, size=100, on_answer=lambda ping: seen.append(ping.seq))
            assert [ping.seq for ping in pings] == [1, 2, 3]
            assert [ping.source for ping in pings] == [host] * 3
            assert pings[2].rtt == pytest.approx(2 * DELAY_NS / 1e9)
        assert seen == [1, 2, 3, 1, 2, 3]

    simulate(program)


def test_a_ping_without_an_answer_and_one_without_a_way() -> None:
    async def program(two: World) -> None:
        two.link_b.rx = lambda frame: None
        start = trio.current_time()
        [ping] = await two.a.ping(B6, timeout=0.5)
        assert (ping.rtt, ping.source) == (None, "")
        assert trio.current_time() - start == pytest.approx(0.5)
        with pytest.raises(OSError, match="no route"):
            await two.a.ping("192.0.2.1")

    simulate(program)


# --- HTTP over it ---


def test_a_file_comes_over_http_byte_for_byte(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(content)

    async def program(two: World) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(two.b.serve_tcp, FileServer(tmp_path), 80)
            progress: list[tuple[int, int | None]] = []
            for host in (B4, f"[{B6}]"):
                response = await get(two.a.open_tcp_stream, f"http://{host}/file", progress=lambda done, total: progress.append((done, total)))
                assert response.body == content
                assert progress[-1] == (len(content), len(content))
            assert (await get(two.a.open_tcp_stream, f"http://{B4}/none")).status == 404
            nursery.cancel_scope.cancel()

    simulate(program)


def test_a_runtime_that_is_given_is_driven_by_its_owner() -> None:
    async def main() -> None:
        mine = RealRuntime()
        link_a, link_b = pipe_pair(mine.heap)
        async with trio.open_nursery() as nursery:
            await nursery.start(mine.run)
            async with (
                open_stack(link=link_a, addresses=[f"{A4}/24"], runtime=mine) as a,
                open_stack(link=link_b, addresses=[f"{B4}/24"], runtime=mine) as b,
            ):
                [listener] = await b.open_tcp_listeners(PORT, host=B4)
                stream = await a.open_tcp_stream(B4, PORT)
                async with stream, await listener.accept() as server:
                    await stream.send_all(b"real time")
                    assert await server.receive_some() == b"real time"
            nursery.cancel_scope.cancel()

    trio.run(main)
