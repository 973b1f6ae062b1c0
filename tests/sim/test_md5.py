"""MD5 signatures between two stacks in virtual time: what crosses the wire, what is refused, and keys that change."""

from __future__ import annotations

import errno
import socket as stdlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from pytcp.cli.inspect import ssinfo
from pytcp.link.emulator import Emulator, Impairment
from pytcp.link.offload import segment
from pytcp.link.pipe import PipeEnd, pipe_pair
from pytcp.net import snapshot
from pytcp.sockets.open import TrioStack, open_stack, run_virtual
from pytcp.sockets.socket import Socket
from pytcp.sockets.streams import TcpListener, TcpStream
from pytcp.tcp.reset import reply
from tests.md5 import FLAG_PREFIX, TCP_MD5SIG, TCP_MD5SIG_EXT, answer, carried, md5sig, measured, signature

from .streams import A4, A6, B4, B6, PORT, runtime

TCP = int(stdlib.IPPROTO_TCP)
KEY = b"correct horse"
PEERS = {4: (A4, B4), 6: (A6, B6)}


class Wire:
    """Two stacks and every TCP packet between them, as it left its sender."""

    def __init__(self, a: TrioStack, b: TrioStack) -> None:
        self.a = a
        self.b = b
        self.packets: list[bytes] = []

    def watch(self, link: PipeEnd) -> None:
        send = link.send

        def sends(frames: Any) -> int:
            for frame in frames:
                for whole in segment(frame):
                    packet = bytes(whole)[14:]
                    # the protocol of IPv4, the next header of IPv6; anything else is ARP
                    if packet[{4: 9, 6: 6}.get(packet[0] >> 4, 0)] == 6:
                        self.packets.append(packet)
            return send(frames)

        link.send = sends  # type: ignore[method-assign]

    async def listen(self, family: int, key: bytes | None = KEY) -> TcpListener:
        [listener] = await self.b.open_tcp_listeners(PORT, host=PEERS[family][1])
        if key is not None:
            listener.socket.setsockopt(TCP, TCP_MD5SIG, md5sig(PEERS[family][0], key))
        return listener

    async def connect(self, family: int, key: bytes | None = KEY) -> TcpStream:
        there = PEERS[family][1]

        def prepare(sock: Socket) -> None:
            if key is not None:
                sock.setsockopt(TCP, TCP_MD5SIG, md5sig(there, key))

        return await self.a.open_tcp_stream(there, PORT, prepare=prepare)


def simulate(program: Callable[[Wire], Awaitable[None]], impairment: Impairment | None = None, **options: Any) -> None:
    async def main() -> None:
        heap = runtime().heap
        link_a, link_b = pipe_pair(heap, delay_ns=1_000_000)
        wire: Wire
        outer = Emulator(link_a, heap, 5, tx=impairment, rx=impairment) if impairment is not None else link_a
        async with (
            open_stack(link=outer, addresses=[f"{A4}/24", f"{A6}/64"], **options) as a,
            open_stack(link=link_b, addresses=[f"{B4}/24", f"{B6}/64"], **options) as b,
        ):
            wire = Wire(a, b)
            wire.watch(link_a)
            wire.watch(link_b)
            with trio.fail_after(3600):
                await program(wire)

    run_virtual(main)


async def read_all(stream: TcpStream) -> bytes:
    parts = []
    while part := await stream.receive_some(1 << 16):
        parts.append(part)
    return b"".join(parts)


async def both_ways(one: TcpStream, two: TcpStream, size: int) -> None:
    data = bytes(range(251)) * (size // 251)

    async def send(stream: TcpStream) -> None:
        await stream.send_all(data)
        await stream.send_eof()

    async def receive(stream: TcpStream) -> None:
        assert await read_all(stream) == data

    async with trio.open_nursery() as nursery:
        for stream in (one, two):
            nursery.start_soon(send, stream)
            nursery.start_soon(receive, stream)


def counters(stack: TrioStack) -> tuple[int, int, int]:
    mib = stack.net.mib
    return mib.TCPMD5NotFound, mib.TCPMD5Unexpected, mib.TCPMD5Failure


@pytest.mark.parametrize("family", [4, 6])
def test_every_packet_of_a_connection_is_signed_from_syn_to_time_wait(family: int) -> None:
    async def program(wire: Wire) -> None:
        async with await wire.listen(family) as listener, await wire.connect(family) as client:
            server = await listener.accept()
            await both_ways(client, server, 300_000)
            await server.aclose()
        assert len(wire.packets) > 400
        assert all(carried(packet) == signature(packet, KEY) for packet in wire.packets)
        assert counters(wire.a) == counters(wire.b) == (0, 0, 0)

    simulate(program)


@pytest.mark.parametrize("family", [4, 6])
def test_bytes_arrive_exactly_over_a_wire_that_loses_reorders_and_duplicates(family: int) -> None:
    bad = Impairment(loss=0.03, reorder=0.02, reorder_delay_ns=3_000_000, duplicate=0.01)

    async def program(wire: Wire) -> None:
        async with await wire.listen(family) as listener, await wire.connect(family) as client:
            server = await listener.accept()
            await both_ways(client, server, 600_000)
        assert wire.a.net.mib.TcpRetransSegs > 5
        assert wire.b.net.mib.TcpRetransSegs > 5
        assert all(carried(packet) == signature(packet, KEY) for packet in wire.packets)
        assert counters(wire.a) == counters(wire.b) == (0, 0, 0)

    simulate(program, bad)


@pytest.mark.parametrize(
    ("ours", "theirs", "counter"),
    [(b"wrong", KEY, "TCPMD5Failure"), (None, KEY, "TCPMD5NotFound"), (KEY, None, "TCPMD5Unexpected"), (KEY + b"\0", KEY, "TCPMD5Failure")],
    ids=["another key", "no key here", "no key there", "a longer key"],
)
def test_without_the_same_key_a_connection_is_never_answered(ours: bytes | None, theirs: bytes | None, counter: str) -> None:
    async def program(wire: Wire) -> None:
        async with await wire.listen(4, theirs):
            with pytest.raises(OSError) as refused:
                await wire.connect(4, ours)
        assert refused.value.errno == errno.ETIMEDOUT
        # a SYN and its repetitions, and nothing else
        sent = len(wire.packets)
        assert sent > 5
        assert getattr(wire.b.net.mib, counter) == sum(counters(wire.b)) == sent

    simulate(program)


def test_a_reset_made_up_by_a_third_party_ends_nothing() -> None:
    async def program(wire: Wire) -> None:
        async with await wire.listen(4) as listener, await wire.connect(4) as client:
            server = await listener.accept()
            ours = client.socket.sk
            assert ours is not None
            # exactly the number the other end expects: it would end any connection without keys
            reply(wire.a.net, 4, ours.saddr, ours.daddr, ours.sport, ours.dport, ours.snd_nxt, 0, 0x04, 0)
            await trio.sleep(0.1)
            await client.send_all(b"still here")
            assert await server.receive_some() == b"still here"
        assert counters(wire.b) == (1, 0, 0)

    simulate(program)


def test_a_key_changed_on_both_sides_of_a_living_connection_goes_on() -> None:
    async def program(wire: Wire) -> None:
        async with await wire.listen(4) as listener, await wire.connect(4) as client:
            server = await listener.accept()
            await client.send_all(b"one")
            assert await server.receive_some() == b"one"
            await trio.sleep(1)
            client.setsockopt(TCP, TCP_MD5SIG, md5sig(B4, b"new"))
            await client.send_all(b"two")
            await trio.sleep(0.5)
            # until the other end has it, too, nothing is believed; what was lost is sent again
            assert counters(wire.b)[2] > 0
            server.setsockopt(TCP, TCP_MD5SIG, md5sig(A4, b"new"))
            assert await server.receive_some() == b"two"
            await both_ways(client, server, 100_000)
            assert carried(wire.packets[-1]) == signature(wire.packets[-1], b"new")

    simulate(program)


def test_a_listener_for_a_prefix_takes_whoever_is_in_it_and_the_child_has_the_key_for_its_peer() -> None:
    async def program(wire: Wire) -> None:
        async with await wire.listen(4, None) as listener:
            listener.socket.setsockopt(TCP, TCP_MD5SIG_EXT, md5sig("10.0.0.0", b"net", flags=FLAG_PREFIX, prefix=8))
            async with await wire.connect(4, b"net") as client:
                server = await listener.accept()
                assert [(key.addr, key.prefix_len, key.secret) for key in server.socket.sk.md5] == [(bytes((10, 0, 0, 1)), 32, b"net")]  # type: ignore[union-attr]
                await both_ways(client, server, 10_000)

    simulate(program)


def test_a_key_for_somebody_else_changes_only_that_nothing_is_sent_in_super_segments() -> None:
    async def program(wire: Wire) -> None:
        async with await wire.listen(4, None) as listener:
            listener.socket.setsockopt(TCP, TCP_MD5SIG, md5sig("192.0.2.77", KEY))
            async with await wire.connect(4, None) as client:
                server = await listener.accept()
                assert server.socket.sk.md5 is None  # type: ignore[union-attr]
                client.setsockopt(TCP, TCP_MD5SIG, md5sig("192.0.2.77", KEY))
                await both_ways(client, server, 50_000)
        assert not any(map(carried, wire.packets))
        assert counters(wire.a) == counters(wire.b) == (0, 0, 0)

    simulate(program)


def test_what_ss_says_of_keys() -> None:
    async def program(wire: Wire) -> None:
        async with await wire.listen(4, None) as listener:
            for address, key in (("192.0.2.1", b"first"), ("192.0.2.2", b"a b,c")):
                listener.socket.setsockopt(TCP, TCP_MD5SIG, md5sig(address, key))
            [facts] = [facts for facts in snapshot.sockets(wire.b.net, ("tcp",)) if facts["state"] == "LISTEN"]
        found = [(key["address"], key["prefix_len"], bytes(key["key"])) for key in facts["md5keys"]]
        assert found == [("192.0.2.2", 32, b"a b,c"), ("192.0.2.1", 32, b"first")]
        assert ssinfo.md5keys(facts) == r"md5keys:192.0.2.2/32=a\040b\054c,192.0.2.1/32=first"
        assert facts["memory"]["optmem"] == 272

    simulate(program)


def test_keys_are_taken_and_refused_as_measured() -> None:
    async def main() -> None:
        link, _ = pipe_pair(runtime().heap)
        async with open_stack(link=link) as stack:
            sock: Any = None
            wrong = []
            for family, option, value, expected, line in measured():
                if family:
                    sock = stack.socket(stdlib.AF_INET if family == "tcp4" else stdlib.AF_INET6)
                elif (found := answer(sock, option, value)) != expected:
                    wrong.append(f"{line}: {found}")
            assert not wrong, "\n".join(wrong)

    run_virtual(main)


def test_the_964th_key_has_no_memory() -> None:
    async def program(wire: Wire) -> None:
        sock = wire.a.socket()
        answers = [answer(sock, TCP_MD5SIG, md5sig(f"10.{n >> 8}.{n & 255}.1", KEY)) for n in range(965)]
        assert answers == ["ok"] * 963 + ["ENOMEM"] * 2
        assert answer(sock, TCP_MD5SIG, md5sig("10.0.0.1", b"changed")) == "ok"
        assert answer(sock, TCP_MD5SIG, md5sig("10.0.0.1", b"")) == "ok"
        assert answer(sock, TCP_MD5SIG, md5sig("10.9.9.9", KEY)) == "ok"

    simulate(program)


def test_an_ipv6_socket_that_speaks_ipv4_has_keys_for_mapped_addresses() -> None:
    async def program(wire: Wire) -> None:
        mapped = f"::ffff:{B4}"
        async with await wire.listen(4) as listener:
            sock = wire.a.socket(stdlib.AF_INET6)
            assert answer(sock, TCP_MD5SIG, md5sig(mapped, KEY)) == "ok"
            with pytest.raises(BlockingIOError):
                sock.connect((mapped, PORT))
            server = await listener.accept()
            assert answer(sock, TCP_MD5SIG, md5sig(B4, KEY)) == "EINVAL"
            assert answer(sock, TCP_MD5SIG, md5sig(mapped, KEY)) == "ok"
            assert answer(server, TCP_MD5SIG, md5sig(f"::ffff:{A4}", KEY)) == "EINVAL"
            await server.send_all(b"hello")
            await trio.sleep(0.1)
            assert sock.recv(10) == b"hello"

    simulate(program)
