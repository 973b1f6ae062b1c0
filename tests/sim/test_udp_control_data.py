"""Control data that goes with a datagram: what a 6.18 kernel makes of each message, on a host with two networks."""

from __future__ import annotations

import errno
import socket as stdlib
import struct
from collections.abc import Sequence

import pytest
import trio

from pytcp.sockets.factory import use_stack
from pytcp.sockets.udp import DatagramSocket

from .test_bind_to_device import PORT, V4, V6, Host, on_two_networks

INT = struct.Struct("=i").pack
TTL, TOS, PKTINFO, HOPLIMIT, TCLASS, PKTINFO6, DONTFRAG = 2, 1, 8, 52, 67, 50, 62
Message = tuple[int, int, bytes]


def info4(index: int, source: str) -> bytes:
    return struct.pack("=i4s4x", index, stdlib.inet_aton(source))


def info6(index: int, source: str) -> bytes:
    return stdlib.inet_pton(stdlib.AF_INET6, source) + INT(index)


def sent(host: Host, family: int, messages: Sequence[Message]) -> str:
    """What the call comes to; a datagram goes from 10.9.0.1 or fd00:9::1 to neighbour b."""
    sock = host.stack.datagram_socket(family)
    try:
        sock.sendmsg([b"x"], messages, 0, ("10.9.0.2" if family == V4 else "fd00:9::2", PORT))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "sent"


async def arrived(receiver: DatagramSocket) -> tuple[int, int, str]:
    """(hop limit, traffic class, source) of the datagram that came."""
    await trio.sleep(0.1)
    _, ancillary, _, source = receiver.recvmsg(10, 200)
    values = {kind: int.from_bytes(data[:4], "little") for _, kind, data in ancillary}
    return values.get(TTL, values.get(HOPLIMIT, -1)), values.get(TOS, values.get(TCLASS, -1)), source[0]


def receiver(host: Host, family: int) -> DatagramSocket:
    sock = host.b.datagram_socket(family)
    for level, option in ((0, 12), (0, 13)) if family == V4 else ((41, 51), (41, 66)):
        sock.setsockopt(level, option, 1)
    sock.bind(("", PORT))
    return sock


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], (64, 0, "10.9.0.1")),
        ([(0, TTL, INT(1))], (1, 0, "10.9.0.1")),
        ([(0, TTL, INT(255))], (255, 0, "10.9.0.1")),
        ([(0, TOS, INT(255))], (64, 255, "10.9.0.1")),
        ([(0, TOS, b"\x20")], (64, 0x20, "10.9.0.1")),
        ([(0, TTL, INT(9)), (0, TOS, INT(0x28))], (9, 0x28, "10.9.0.1")),
        ([(0, PKTINFO, info4(2, "0.0.0.0"))], (64, 0, "10.9.0.1")),
        ([(0, PKTINFO, info4(0, "10.8.0.1"))], (64, 0, "10.8.0.1")),
        ([(0, PKTINFO, info4(2, "10.8.0.1"))], (64, 0, "10.8.0.1")),
        ([(1, 36, INT(5)), (1, 12, INT(3)), (99, 1, INT(5)), (6, 1, INT(5)), (41, HOPLIMIT, INT(5))], (64, 0, "10.9.0.1")),
    ],
    ids=str,
)
def test_a_datagram_has_what_its_control_data_asks_for(messages: list[Message], expected: tuple[int, int, str]) -> None:
    async def program(host: Host) -> None:
        heard = receiver(host, V4)
        assert sent(host, V4, messages) == "sent"
        assert await arrived(heard) == expected
        assert sent(host, V4, []) == "sent"
        assert await arrived(heard) == (64, 0, "10.9.0.1")  # of the one datagram only

    on_two_networks(program)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], (64, 0, "fd00:9::1")),
        ([(41, HOPLIMIT, INT(-1))], (64, 0, "fd00:9::1")),
        ([(41, HOPLIMIT, INT(5))], (5, 0, "fd00:9::1")),
        ([(41, TCLASS, INT(0x28))], (64, 0x28, "fd00:9::1")),
        ([(41, TCLASS, INT(-1))], (64, 255, "fd00:9::1")),
        ([(41, PKTINFO6, info6(2, "::"))], (64, 0, "fd00:9::1")),
        ([(41, PKTINFO6, info6(0, "fd00:8::1"))], (64, 0, "fd00:8::1")),
        ([(41, DONTFRAG, INT(1)), (0, TTL, INT(5))], (64, 0, "fd00:9::1")),
    ],
    ids=str,
)
def test_so_has_one_of_ipv6(messages: list[Message], expected: tuple[int, int, str]) -> None:
    async def program(host: Host) -> None:
        heard = receiver(host, V6)
        assert sent(host, V6, messages) == "sent"
        assert await arrived(heard) == expected

    on_two_networks(program)


@pytest.mark.parametrize(
    ("family", "message", "expected"),
    [
        *[(V4, (0, TTL, data), "EINVAL") for data in (INT(0), INT(256), INT(-1), b"\5", b"\5\0")],
        *[(V4, (0, TOS, data), "EINVAL") for data in (INT(256), INT(-1), b"\x20\0", b"")],
        (V4, (0, PKTINFO, info4(0, "1.2.3.4")), "ENETUNREACH"),
        (V4, (0, PKTINFO, info4(99, "0.0.0.0")), "ENODEV"),
        *[(V4, (0, PKTINFO, bytes(size)), "EINVAL") for size in (8, 16)],
        *[(V4, (0, kind, INT(1)), "EINVAL") for kind in (11, 77)],
        (V4, (1, 77, INT(5)), "EINVAL"),
        (V4, (17, 99, INT(1)), "EINVAL"),
        *[(V6, (41, HOPLIMIT, data), "EINVAL") for data in (INT(256), b"\5")],
        (V6, (41, TCLASS, INT(256)), "EINVAL"),
        (V6, (41, PKTINFO6, info6(0, "2001:db8::9")), "EINVAL"),
        (V6, (41, PKTINFO6, info6(99, "::")), "ENODEV"),
        (V6, (41, PKTINFO6, bytes(16)), "EINVAL"),
        (V6, (41, DONTFRAG, INT(2)), "EINVAL"),
        (V6, (41, 77, INT(1)), "EINVAL"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_and_nothing_is_sent(family: int, message: Message, expected: str) -> None:
    async def program(host: Host) -> None:
        heard = receiver(host, family)
        assert sent(host, family, [message]) == expected
        assert sent(host, family, [(0 if family == V4 else 41, TTL if family == V4 else HOPLIMIT, INT(9)), message]) == expected
        await trio.sleep(0.1)
        with pytest.raises(BlockingIOError):
            heard.recv(10)

    on_two_networks(program)


def test_a_corked_datagram_has_the_control_data_of_its_beginning() -> None:
    async def program(host: Host) -> None:
        heard = receiver(host, V4)
        sock = host.stack.datagram_socket()
        sock.connect(("10.9.0.2", PORT))
        sock.sendmsg([b"a"], [(0, TTL, INT(7))], stdlib.MSG_MORE)
        sock.sendmsg([b"b"], [(0, TTL, INT(8))])
        assert (await arrived(heard))[0] == 7

    on_two_networks(program)


def test_a_program_of_trios_answers_from_the_address_it_was_asked_at() -> None:
    async def program(host: Host) -> None:
        with use_stack(host.stack):
            server = trio.socket.socket(stdlib.AF_INET, stdlib.SOCK_DGRAM)
            server.setsockopt(0, PKTINFO, 1)
            await server.bind(("", PORT))
            client = host.b.datagram_socket()
            client.sendto(b"who?", ("10.9.0.1", PORT))
            _, [(_, _, asked)], _, address = await server.recvmsg(10, 100)
            await server.sendmsg([b"me"], [(0, PKTINFO, asked[:4] + asked[4:8] + bytes(4))], 0, address)
            await trio.sleep(0.1)
            assert client.recvfrom(10) == (b"me", ("10.9.0.1", PORT))
            server.close()

    on_two_networks(program)
