"""iperf3 client and server of ours on two stacks, in virtual time."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from pytcp.lab.iperf3 import PORT, Iperf3Error, Server, Settings, State, run_client, udp
from pytcp.lab.iperf3.protocol import Control, new_cookie
from pytcp.sockets.socket import Socket
from pytcp.sockets.streams import TcpStream

from .streams import B4, World, simulate

MIB = 1 << 20


async def measure(two: World, server: Server, settings: Settings, lines: list[str] | None = None, **options: Any) -> dict[str, Any]:
    async def connect(host: str, port: int, prepare: Any) -> TcpStream:
        return await two.a.open_tcp_stream(host, port, prepare=prepare)

    return await run_client(connect, B4, settings, say=None if lines is None else lines.append, **options)


async def serving(two: World, nursery: trio.Nursery, server: Server) -> None:
    await nursery.start(partial(two.b.serve_tcp, server.handle, PORT))


@pytest.mark.parametrize("reverse", [False, True])
def test_both_ends_count_the_same_bytes_when_the_amount_is_given(reverse: bool) -> None:
    async def program(two: World) -> None:
        trees: list[dict[str, Any]] = []
        server = Server(on_json=trees.append)
        async with trio.open_nursery() as nursery:
            await serving(two, nursery, server)
            tree = await measure(two, server, Settings(amount=4 * MIB, reverse=reverse, parallel=2))
            await server.finished.wait()
            nursery.cancel_scope.cancel()
        assert tree["end"]["sum_sent"]["bytes"] == 4 * MIB
        assert trees[0]["end"]["sum_sent"]["bytes"] == 4 * MIB
        # a receiver that is the client ends the test as soon as it has all
        assert tree["end"]["sum_received"]["bytes"] == trees[0]["end"]["sum_received"]["bytes"] == 4 * MIB
        assert server.bytes == 4 * MIB
        assert [stream["sender"]["sender"] for stream in tree["end"]["streams"]] == [not reverse] * 2

    simulate(program)


def test_a_bitrate_and_a_time_give_their_product() -> None:
    async def program(two: World) -> None:
        server = Server()
        lines: list[str] = []
        async with trio.open_nursery() as nursery:
            await serving(two, nursery, server)
            tree = await measure(two, server, Settings(duration=4, bitrate=8 << 20, length=MIB // 8), lines)
            nursery.cancel_scope.cancel()
        # 1 MiB/s in blocks of an eighth: at most one block more or less
        assert abs(tree["end"]["sum_sent"]["bytes"] - 4 * MIB) <= MIB // 8
        assert len(tree["intervals"]) == 4
        assert [round(interval["sum"]["end"]) for interval in tree["intervals"]] == [1, 2, 3, 4]
        assert lines[0] == f"Connecting to host {B4}, port {PORT}"
        assert lines[2] == "[ ID] Interval           Transfer     Bitrate         Retr  Cwnd"
        assert lines[-1] == "iperf Done."

    simulate(program)


def test_the_omitted_beginning_is_shown_but_not_counted() -> None:
    async def program(two: World) -> None:
        server = Server()
        async with trio.open_nursery() as nursery:
            await serving(two, nursery, server)
            tree = await measure(two, server, Settings(duration=2, omit=1, bitrate=8 << 20, length=MIB // 8))
            nursery.cancel_scope.cancel()
        assert [interval["sum"]["omitted"] for interval in tree["intervals"]] == [True, False, False]
        assert tree["end"]["sum_sent"]["bytes"] == sum(interval["sum"]["bytes"] for interval in tree["intervals"][1:])
        assert tree["end"]["sum_sent"]["seconds"] == pytest.approx(2)

    simulate(program)


def test_both_directions_at_once_are_told_apart() -> None:
    async def program(two: World) -> None:
        server = Server()
        lines: list[str] = []
        async with trio.open_nursery() as nursery:
            await serving(two, nursery, server)
            tree = await measure(two, server, Settings(duration=2, bidirectional=True, bitrate=8 << 20), lines)
            nursery.cancel_scope.cancel()
        end = tree["end"]
        assert [stream["sender"]["sender"] for stream in end["streams"]] == [True, False]
        for name in ("sum_sent", "sum_received", "sum_sent_bidir_reverse", "sum_received_bidir_reverse"):
            assert end[name]["bytes"] == pytest.approx(2 * MIB, rel=0.2)
        assert any(line.startswith("[  5][TX-C]") for line in lines)
        assert any(line.startswith("[  7][RX-C]") for line in lines)

    simulate(program)


def test_what_the_server_printed_comes_along() -> None:
    async def program(two: World) -> None:
        printed: list[str] = []
        server = Server(say=printed.append)
        async with trio.open_nursery() as nursery:
            await serving(two, nursery, server)
            tree = await measure(two, server, Settings(amount=MIB, server_output=True))
            nursery.cancel_scope.cancel()
        assert tree["server_output_text"] == "\n".join(printed) + "\n"
        assert "Accepted connection from 10.0.0.1" in printed[0]

    simulate(program)


def test_options_reach_the_streams_of_both_ends() -> None:
    async def program(two: World) -> None:
        server = Server()
        seen: list[tuple[int | bytes, int | bytes]] = []

        async def handle(stream: TcpStream) -> None:
            await server.handle(stream)
            if not stream.socket.getsockopt(6, 1):  # the control connection keeps trio's TCP_NODELAY
                seen.append((stream.socket.getsockopt(6, 13, 16), stream.socket.getsockopt(0, 1)))

        async with trio.open_nursery() as nursery:
            await nursery.start(partial(two.b.serve_tcp, handle, PORT))
            await measure(two, server, Settings(amount=MIB, congestion="reno", tos=0x10, mss=1000))
            nursery.cancel_scope.cancel()
        assert [(bytes(name).rstrip(b"\0") if isinstance(name, bytes) else name, tos) for name, tos in seen] == [(b"reno", 0x10)]
        assert max(size for _, sender, _, size in two.wire if sender == "a") > 1000  # super-segments
        # without time stamps an MSS of 1000 would be 1000; they cost 12 bytes each
        assert two.a.net.mib.TcpOutSegs >= MIB // 1000

    simulate(program)


def test_an_option_the_stack_does_not_have_ends_the_test_before_it_begins() -> None:
    async def program(two: World) -> None:
        async with trio.open_nursery() as nursery:
            await serving(two, nursery, Server())
            with pytest.raises(Iperf3Error, match="unknown congestion control 'nosuch'"):
                await measure(two, Server(), Settings(congestion="nosuch"))
            nursery.cancel_scope.cancel()

    simulate(program)


def test_a_server_that_is_stopped_in_the_middle_says_so() -> None:
    async def program(two: World) -> None:
        async def serve_a_while(task_status: Any) -> None:
            with trio.move_on_after(1.5):
                await two.b.serve_tcp(Server().handle, PORT, task_status=task_status)

        async with trio.open_nursery() as nursery:
            await nursery.start(serve_a_while)
            with pytest.raises(Iperf3Error, match=r"the server has terminated|Connection reset by peer") as caught:
                await measure(two, Server(), Settings(duration=5, bitrate=8 << 20))
            tree = caught.value.tree
            assert tree is not None
            assert tree["error"] == str(caught.value)
            assert (len(tree["start"]["connected"]), len(tree["intervals"]), tree["end"]) == (1, 1, {})
        assert two.a.net.now() < 2_000_000_000

    simulate(program)


def test_a_cancelled_client_says_so_and_the_server_takes_the_next_one() -> None:
    async def program(two: World) -> None:
        said: list[str] = []
        server = Server(say=said.append)
        async with trio.open_nursery() as nursery:
            await serving(two, nursery, server)
            with trio.move_on_after(1.5):
                await measure(two, server, Settings(duration=5, bitrate=8 << 20))
            await server.finished.wait()
            assert said[-1] == "iperf3: error - the client has terminated"
            tree = await measure(two, server, Settings(amount=MIB))
            nursery.cancel_scope.cancel()
        assert tree["end"]["sum_received"]["bytes"] == MIB

    simulate(program)


def test_a_client_that_vanishes_does_not_keep_the_server_busy() -> None:
    async def program(two: World) -> None:
        said: list[str] = []
        server = Server(say=said.append, interval=0)
        async with trio.open_nursery() as nursery:
            await serving(two, nursery, server)

            async def vanishing() -> None:
                await measure(two, server, Settings(duration=2000, bitrate=8 << 20))

            nursery.start_soon(vanishing)
            await trio.sleep(10)
            two.link_a.close()
            with trio.fail_after(300):
                await server.finished.wait()
            assert said[-1] == "iperf3: error - idle timeout for receiving data"
            nursery.cancel_scope.cancel()

    simulate(program)


def prepared(socket: Socket) -> None:
    raise OSError(22, "no")


def test_a_refused_preparation_leaves_no_socket_behind() -> None:
    async def program(two: World) -> None:
        with pytest.raises(OSError, match="no"):
            await two.a.open_tcp_stream(B4, PORT, prepare=prepared)
        assert not two.a._sockets

    simulate(program)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"garbage\n", "unable to receive parameters from client"),
        (b"", "unable to receive parameters from client"),
        (bytes(200), "unable to receive parameters from client: not JSON"),
    ],
)
def test_a_client_that_is_no_iperf3_is_a_test_that_failed(said: bytes, complaint: str) -> None:
    async def program(two: World) -> None:
        lines: list[str] = []
        trees: list[dict[str, Any]] = []
        server = Server(say=lines.append, on_json=trees.append)
        async with trio.open_nursery() as nursery:
            await serving(two, nursery, server)
            async with await two.a.open_tcp_stream(B4, PORT) as stream:
                await stream.send_all(said)
                await stream.send_eof()
                with trio.fail_after(5):
                    await server.finished.wait()
            nursery.cancel_scope.cancel()
        assert lines == [f"iperf3: error - {complaint}"]
        assert [tree["error"] for tree in trees] == [complaint]
        assert server.tests == 0

    simulate(program)


def test_a_data_connection_that_is_gone_before_the_test_begins_loses_only_that_test() -> None:
    async def program(two: World) -> None:
        lines: list[str] = []
        server = Server(say=lines.append)
        cookie = new_cookie()

        async def opened() -> TcpStream:
            stream = await two.a.open_tcp_stream(B4, PORT)
            await stream.send_all(cookie)
            return stream

        async with trio.open_nursery() as nursery:
            await serving(two, nursery, server)
            control = Control(await opened())
            await control.expect(State.PARAM_EXCHANGE)
            await control.send_json(Settings(parallel=2).encode())
            await control.expect(State.CREATE_STREAMS)
            (await opened()).abort()
            await trio.sleep(0.1)
            async with await opened():
                await server.finished.wait()
            assert lines[-1] == "iperf3: error - Transport endpoint is not connected"
            tree = await measure(two, server, Settings(amount=MIB))
            nursery.cancel_scope.cancel()
        assert tree["end"]["sum_received"]["bytes"] == MIB

    simulate(program)


# --- UDP ---


def in_udp(settings: Settings, check: Callable[[World, dict[str, Any], dict[str, Any], list[str]], None], wire: Callable[[World], None] | None = None) -> None:
    """A test of UDP from a to b; `check(world, client's tree, server's tree, client's lines)`."""

    async def program(two: World) -> None:
        trees: list[dict[str, Any]] = []
        lines: list[str] = []
        server = Server(stack=two.b, on_json=trees.append)
        if wire is not None:
            wire(two)
        async with trio.open_nursery() as nursery:
            await serving(two, nursery, server)
            tree = await measure(two, server, settings, lines, connect_udp=partial(udp.connect, two.a))
            await server.finished.wait()
            nursery.cancel_scope.cancel()
        check(two, tree, trees[0], lines)
        assert not two.a._sockets and {type(socket).__name__ for socket in two.b._sockets} <= {"Socket"}

    simulate(program)


@pytest.mark.parametrize("reverse", [False, True])
def test_datagrams_come_at_the_rate_that_was_asked_for_and_all_of_them(reverse: bool) -> None:
    def check(two: World, client: dict[str, Any], server: dict[str, Any], lines: list[str]) -> None:
        for tree in (client, server):
            assert tree["end"]["sum"]["packets"] == pytest.approx(1000, abs=2)  # 2 s at 500 a second
            assert tree["end"]["sum"]["lost_packets"] == 0
            assert tree["end"]["sum"]["jitter_ms"] == pytest.approx(0, abs=0.01)  # a wire that is never late, a clock in microseconds
        assert client["end"]["sum_sent"]["bytes"] == pytest.approx(1_000_000, abs=2000)

    in_udp(Settings(duration=2, bitrate=4_000_000, length=1000, udp=True, reverse=reverse), check)


@pytest.mark.parametrize(("length", "calls"), [(1000, 7), (8000, 26)])
def test_what_is_due_at_once_is_one_call_unless_the_path_takes_no_such_datagrams(length: int, calls: int) -> None:
    sent: list[int] = []

    def counts(two: World) -> None:
        sent.append(two.a.net.mib.UdpOutDatagrams)

    def check(two: World, client: dict[str, Any], server: dict[str, Any], lines: list[str]) -> None:
        # 208000 bytes without a bound of the rate; one call more for the CONNECT
        assert client["end"]["sum"]["packets"] == server["end"]["sum"]["packets"] == 208_000 // length
        assert two.a.net.mib.UdpOutDatagrams - sent[0] == calls + 1
        assert client["end"]["sum"]["lost_packets"] == 0

    in_udp(Settings(amount=208_000, bitrate=0, length=length, udp=True, window=1 << 20), check, counts)


def test_the_report_of_udp_is_worded_as_iperf3s() -> None:
    def check(two: World, client: dict[str, Any], server: dict[str, Any], lines: list[str]) -> None:
        assert lines[2] == "[ ID] Interval           Transfer     Bitrate         Total Datagrams"
        assert re.fullmatch(r"\[  5\]   0\.00-1\.00   sec   49\d KBytes  (3\.99|4\.00|4\.01) Mbits/sec  (499|500|501)  ", lines[3].replace(" 488 ", " 490 "))
        assert lines[6] == "[ ID] Interval           Transfer     Bitrate         Jitter    Lost/Total Datagrams"
        assert re.fullmatch(r"\[  5\]   0\.00-2\.0\d   sec   \d+ KBytes  [34]\.\d\d Mbits/sec  0\.000 ms  0/\d+ \(0%\)  sender", lines[7])
        assert lines[8].endswith(" (0%)  receiver")

    in_udp(Settings(duration=2, bitrate=4_000_000, length=1000, udp=True), check)


def test_what_the_wire_loses_is_counted_as_lost() -> None:
    def lossy(two: World) -> None:
        send, seen = two.link_a.send, [0]

        def sends(frames: Any) -> int:
            kept = []
            for frame in frames:
                payload = len(bytes(frame.head)) + sum(len(part) for part in frame.parts)
                seen[0] += payload > 1000
                if payload <= 1000 or seen[0] % 10:  # one datagram in ten
                    kept.append(frame)
            send(kept)
            return len(frames)

        two.link_a.send = sends  # type: ignore[method-assign]

    def check(two: World, client: dict[str, Any], server: dict[str, Any], lines: list[str]) -> None:
        assert client["end"]["sum"]["lost_packets"] == pytest.approx(100, abs=1)
        assert client["end"]["sum"]["lost_percent"] == pytest.approx(10, abs=0.2)
        assert client["end"]["sum_received"]["bytes"] == pytest.approx(0.9 * client["end"]["sum_sent"]["bytes"], rel=0.01)

    in_udp(Settings(duration=2, bitrate=4_000_000, length=1000, udp=True), check, lossy)


def test_streams_of_udp_are_told_apart_and_both_ways_at_once() -> None:
    def check(two: World, client: dict[str, Any], server: dict[str, Any], lines: list[str]) -> None:
        assert [stream["udp"]["sender"] for stream in client["end"]["streams"]] == [True, True, False, False]
        assert {stream["udp"]["packets"] for stream in client["end"]["streams"]} <= set(range(248, 253))
        assert client["end"]["sum_sent"]["packets"] == pytest.approx(500, abs=4)
        assert client["end"]["sum_received_bidir_reverse"]["packets"] == pytest.approx(500, abs=4)

    in_udp(Settings(duration=1, bitrate=2_000_000, length=1000, udp=True, parallel=2, bidirectional=True, counters64=True), check)


def test_a_server_that_does_not_answer_a_stream_of_udp_is_given_up() -> None:
    async def program(two: World) -> None:
        with pytest.raises(OSError, match="did not answer a UDP stream"):
            await udp.connect(two.a, B4, 9999)  # the port is open, and nobody speaks iperf3 there
        assert not two.a._sockets

    async def deaf(two: World) -> None:
        async with await two.b.open_udp(9999):
            await program(two)

    simulate(deaf)
