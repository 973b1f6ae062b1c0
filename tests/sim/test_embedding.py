"""Stacks over carriers of the program's own: plain functions, async functions, byte streams, and the examples of docs/embedding.md."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import memory_stream_pair

import pytcp
from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.callback import CallbackLink
from pytcp.link.frame import RxFrame, TxFrame
from pytcp.link.pcapng import Capture, PcapngWriter
from pytcp.sockets.open import TrioStack
from pytcp.sockets.tunnel import TunnelLink, framed

from .streams import runtime

EXAMPLES = re.findall(r"```python\n(import trio\n.*?)```", (Path(pytcp.__file__).parents[1] / "docs" / "embedding.md").read_text(), re.DOTALL)
DATA = bytes(range(256)) * 4000  # 1 MB


async def echo(stream: trio.abc.Stream) -> None:
    async for data in stream:
        await stream.send_all(data)


async def exchange(client: TrioStack, server: TrioStack, host: str) -> None:
    """A megabyte there and back."""
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve_tcp, echo, 7)
        async with await client.open_tcp_stream(host, 7) as stream:

            async def send() -> None:
                await stream.send_all(DATA)
                await stream.send_eof()

            nursery.start_soon(send)
            assert b"".join([data async for data in stream]) == DATA
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["10.8.0.2", "fd08::2"])
@pytest.mark.parametrize("mtu", [1280, 9000])
def test_a_megabyte_goes_there_and_back_between_two_functions(host: str, mtu: int) -> None:
    longest = 0

    async def main() -> None:
        nonlocal longest

        def to_b(packet: bytes) -> bool:
            nonlocal longest
            longest = max(longest, len(packet))
            return b.feed(packet)

        a = CallbackLink(to_b, name="a", mtu=mtu)
        b = CallbackLink(a.feed, name="b", mtu=mtu, checked=True)
        async with (
            pytcp.open_stack(link=a, addresses=["10.8.0.1/24", "fd08::1/64"]) as one,
            pytcp.open_stack(link=b, addresses=["10.8.0.2/24", "fd08::2/64"]) as two,
        ):
            await exchange(one, two, host)
            assert one.net.mib.TcpRetransSegs == 0
            assert (await one.ping(host))[0].rtt is not None

    pytcp.run_virtual(main)
    assert longest == mtu  # cut to what the carrier takes, and not a byte less


def test_with_a_mac_address_the_frames_are_ethernet_and_neighbours_are_asked_for() -> None:
    kinds: set[bytes] = set()

    async def main() -> None:
        def to_b(frame: bytes) -> bool:
            kinds.add(frame[12:14])
            return b.feed(frame)

        a = CallbackLink(to_b, name="a", mac=b"\2\0\0\0\0\1")
        b = CallbackLink(a.feed, name="b", mac=b"\2\0\0\0\0\2")
        async with (
            pytcp.open_stack(link=a, addresses=["10.8.0.1/24"]) as one,
            pytcp.open_stack(link=b, addresses=["10.8.0.2/24"]) as two,
        ):
            await exchange(one, two, "10.8.0.2")

    pytcp.run_virtual(main)
    assert {b"\x08\x06", b"\x08\x00"} <= kinds


def over_streams(program: Callable[[TrioStack, TrioStack, list[TunnelLink]], Awaitable[None]], *, limit: int = 64) -> None:
    async def main() -> None:
        one, two = memory_stream_pair()
        links = [TunnelLink(*framed(end), limit=limit) for end in (one, two)]
        async with (
            pytcp.open_stack(link=links[0], addresses=["10.8.0.1/24"]) as a,
            pytcp.open_stack(link=links[1], addresses=["10.8.0.2/24"]) as b,
            trio.open_nursery() as nursery,
        ):
            for link in links:
                await nursery.start(link.run)
            await program(a, b, links)
            nursery.cancel_scope.cancel()

    pytcp.run_virtual(main)


def test_a_megabyte_goes_there_and_back_over_a_byte_stream() -> None:
    async def program(a: TrioStack, b: TrioStack, links: list[TunnelLink]) -> None:
        await exchange(a, b, "10.8.0.2")
        await trio.sleep(1)  # the last acknowledgements arrive
        assert links[0].tx_packets == links[1].rx_packets
        assert links[0].tx_bytes == links[1].rx_bytes > len(DATA)

    over_streams(program)


def test_a_narrow_tunnel_slows_the_sender_down_and_loses_nothing() -> None:
    async def program(a: TrioStack, b: TrioStack, links: list[TunnelLink]) -> None:
        await exchange(a, b, "10.8.0.2")
        assert a.net.mib.TcpRetransSegs == 0

    over_streams(program, limit=1)


def test_connections_fail_at_once_when_the_tunnel_ends() -> None:
    async def main() -> None:
        one, two = memory_stream_pair()
        link = TunnelLink(*framed(one))
        far = TunnelLink(*framed(two))
        async with pytcp.open_stack(link=far, addresses=["10.8.0.2/24"]) as server, trio.open_nursery() as nursery:
            nursery.start_soon(far.run)
            await nursery.start(server.serve_tcp, echo, 7)
            async with pytcp.open_stack(link=link, addresses=["10.8.0.1/24"]) as stack, trio.open_nursery() as inner:
                inner.start_soon(link.run)
                stream = await stack.open_tcp_stream("10.8.0.2", 7)
                before = trio.current_time()
                await two.send_eof()
                with pytest.raises(trio.BrokenResourceError):
                    await stream.receive_some()
                assert trio.current_time() == before
                with pytest.raises(OSError, match="the tunnel has ended"):
                    await stack.open_tcp_stream("10.8.0.2", 7)
            nursery.cancel_scope.cancel()

    pytcp.run_virtual(main)


def test_a_tunnel_that_breaks_says_why_to_both_sides() -> None:
    async def main() -> None:
        async def send(packet: bytes) -> None:
            raise OSError("the radio is off")

        async def receive() -> bytes:
            await trio.sleep_forever()
            raise AssertionError

        link = TunnelLink(send, receive)
        async with pytcp.open_stack(link=link, addresses=["10.8.0.1/24"]) as stack:

            async def carry() -> None:
                with pytest.raises(OSError, match="the radio is off"):
                    await link.run()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(carry)
                with pytest.raises(OSError, match="the tunnel broke: the radio is off"):
                    await stack.open_tcp_stream("10.8.0.2", 7)

    pytcp.run_virtual(main)


@pytest.mark.parametrize(
    ("wire", "complaint"),
    [(b"\0\0", "a packet of 0 bytes"), (b"\x10\x00", "a packet of 4096 bytes"), (b"\0\x09short", "in the middle of a packet"), (b"\0", "in the middle")],
)
def test_a_byte_stream_that_is_no_tunnel_is_refused(wire: bytes, complaint: str) -> None:
    async def main() -> None:
        one, two = memory_stream_pair()
        await two.send_all(wire)
        await two.send_eof()
        _, receive = framed(one, 1500)
        with pytest.raises(ValueError, match=complaint):
            await receive()

    trio.run(main)


def test_packets_are_reassembled_whatever_the_pieces_they_arrive_in() -> None:
    async def main() -> None:
        one, two = memory_stream_pair()
        _, receive = framed(one)
        for byte in b"\0\3abc\0\1d":
            await two.send_all(bytes((byte,)))
        await two.send_eof()
        assert [await receive() for _ in range(3)] == [b"abc", b"d", b""]

    trio.run(main)


def test_what_is_fed_beyond_the_bounds_is_dropped_and_counted() -> None:
    clock = VirtualRuntime()
    link = CallbackLink(bool, mtu=100, limit=2)
    seen: list[bytes] = []

    def rx(frame: RxFrame) -> None:
        seen.append(bytes(frame.data))

    link.rx = rx
    assert not link.feed(b"early")  # no stack has it yet
    link.attached(clock)
    assert not link.feed(b"")
    assert not link.feed(bytes(101))
    assert [link.feed(b"x" * 100), link.feed(b"y"), link.feed(b"z")] == [True, True, False]
    assert not seen  # never inside the call
    clock.run_for(0)
    assert seen == [b"x" * 100, b"y"]
    assert link.rx_dropped == 4
    link.close()
    assert not link.feed(b"late")


def test_a_packet_that_is_not_taken_stays_with_the_stack() -> None:
    taken: list[bytes] = []

    def transmit(packet: bytes) -> bool:
        if len(taken) == 2:
            return False
        taken.append(packet)
        return True

    link = CallbackLink(transmit)
    frames = [TxFrame(b"head", (b"-", b"%d" % number)) for number in range(4)]
    assert link.send(frames) == 2
    assert taken == [b"head-0", b"head-1"]
    assert (link.tx_packets, link.tx_bytes) == (2, 12)


@pytest.mark.parametrize(("options", "complaint"), [({"mtu": 67}, "68 bytes"), ({"mac": b"\2"}, "six bytes")])
def test_a_device_that_cannot_be_is_refused(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        CallbackLink(bool, **options)  # type: ignore[arg-type]


def test_behind_a_capture_the_device_is_told_its_runtime(tmp_path: Path) -> None:
    async def main() -> None:
        clocked = runtime()
        a = CallbackLink(lambda packet: b.feed(packet), name="a", runtime=clocked)
        b = CallbackLink(a.feed, name="b")
        writer = PcapngWriter(tmp_path / "file.pcapng")
        capture = Capture(a, writer, realtime_ns=clocked.realtime_ns)
        async with (
            pytcp.open_stack(link=capture, addresses=["10.8.0.1/24"]) as one,
            pytcp.open_stack(link=b, addresses=["10.8.0.2/24"]) as two,
        ):
            await exchange(one, two, "10.8.0.2")
        assert writer.packets > 100
        writer.close()

    pytcp.run_virtual(main)


def test_there_are_two_complete_examples() -> None:
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize(("number", "said"), [(0, "HELLO OVER OUR OWN TUNNEL\n"), (1, "round trip: True\n")])
def test_the_examples_of_the_documentation_run(number: int, said: str) -> None:
    program = EXAMPLES[number]
    for port in ("7001", "7002"):  # somebody else may run the same test now
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            program = program.replace(port, str(free.getsockname()[1]))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    assert (done.stdout, done.stderr) == (said, "")
