"""The same random calls on UDP sockets of the kernel and of ours, over the loopback: results, errors, control data and readiness must agree."""

from __future__ import annotations

import errno
import random
import select
import socket
import struct
from typing import Any

import pytest
import trio

from pytcp.clock.virtual import VirtualClock
from pytcp.lab.netns import Namespace
from pytcp.link.pipe import pipe_pair
from pytcp.sockets.open import open_stack, run_virtual

pytestmark = pytest.mark.tap

V4, V6 = int(socket.AF_INET), int(socket.AF_INET6)
IP, IP6, SOL, UDP = 0, 41, 1, 17
PORTS = (7001, 7002, 7003)
HOSTS = {V4: ("127.0.0.1", "127.0.0.2", "0.0.0.0"), V6: ("::1", "::", "::ffff:127.0.0.1", "::ffff:127.0.0.2")}
SIZES = (0, 1, 5, 5, 1000, 3000, 12801, 65507, 65536)
PEEK, TRUNC, CONFIRM = 2, 0x20, 0x800
LEVELS: dict[int, list[tuple[int, int, tuple[int, ...]]]] = {
    V4: [
        (IP, 2, (-1, 0, 1, 255)), (IP, 1, (0, 8, 255)), (IP, 12, (0, 1)), (IP, 13, (0, 1)), (IP, 10, (0, 1, 2, 4, 5)), (IP, 20, (0, 1)), (IP, 15, (0, 1)),
        (SOL, 42, (-1, 0, 1, 3)), (SOL, 11, (0, 1)), (SOL, 6, (0, 1)), (SOL, 62, (0, 1, 99)), (SOL, 4, (0,)), (UDP, 103, (0, 1, 100, 1000)),
        (UDP, 104, (0, 1)),
    ],
    V6: [
        (IP6, 16, (-1, 0, 1, 255)), (IP6, 67, (-1, 0, 8)), (IP6, 49, (0, 1)), (IP6, 51, (0, 1)), (IP6, 66, (0, 1)), (IP6, 23, (0, 1, 2, 4, 5)),
        (IP6, 74, (0, 1)), (IP6, 26, (0, 1)), (IP6, 62, (0, 1)), (IP6, 2, (0, 1)), (IP6, 8, (0, 1)), (UDP, 101, (0, 1)), (UDP, 102, (0, 1)),
    ],
}  # fmt: skip
Call = tuple[Any, ...]


def number(value: int) -> bytes:
    return struct.pack("=i", value)


def messages(rng: random.Random, family: int) -> list[tuple[int, int, bytes]]:
    """One or two control messages, right and wrong ones."""
    found = [
        (IP, 2, number(rng.choice((0, 1, 9, 255, 256)))),
        (IP, 1, rng.choice((number(8), b"\x20", number(256)))),
        (IP, 8, struct.pack("=i4s4x", rng.choice((0, 1, 99)), socket.inet_aton(rng.choice(("0.0.0.0", "127.0.0.3", "1.2.3.4"))))),
        (UDP, 103, struct.pack("=H", rng.choice((0, 1, 100, 1000)))),
        (UDP, 103, number(5)),
        (IP, 52, number(rng.choice((0, 17)))),
        (SOL, 12, number(1)),
        (SOL, 37, number(rng.choice((1, 8)))),
    ]
    if family == V6:
        found += [
            (IP6, 52, number(rng.choice((-2, -1, 0, 1, 255, 256)))),
            (IP6, 67, number(rng.choice((-1, 0, 8, 255, 256)))),
            (IP6, 50, socket.inet_pton(V6, rng.choice(("::", "::1", "2001:db8::1", "::ffff:127.0.0.3"))) + number(rng.choice((0, 1, 99)))),
            (IP6, 62, number(rng.choice((0, 1, 2)))),
        ]
    return rng.sample(found, rng.randint(1, 2))


def calls(seed: int) -> tuple[list[int], list[Call]]:
    """The families of some sockets, and what is done with them: (method, socket, arguments...)."""
    rng = random.Random(f"udp {seed}")
    families = [rng.choice((V4, V4, V6)) for _ in range(rng.randint(2, 4))]
    todo: list[Call] = []

    def where(family: int) -> tuple[str, int]:
        return rng.choice(HOSTS[family]), rng.choice(PORTS)

    for index, family in enumerate(families):
        if rng.random() < 0.8:
            todo.append(("bind", index, where(family)))
    for _ in range(60):
        index = rng.randrange(len(families))
        family = families[index]
        data = bytes(number & 255 for number in range(rng.choice(SIZES)))
        options = LEVELS[V4] + (LEVELS[V6] if family == V6 else [])
        kind = rng.choice(("bind", "connect", "sendto", "sendto", "send", "sendmsg", "sendmsg", "recvmsg", "recvmsg", "recvmsg", "option", "option", "names"))
        if kind == "bind" or (kind == "connect" and rng.random() < 0.5):
            todo.append((kind, index, where(family)))
        elif kind == "sendto":
            host, port = where(family)
            todo.append((kind, index, data, rng.choice((0, CONFIRM)), (host, port if rng.random() < 0.9 else 0)))
        elif kind == "send":
            todo.append((kind, index, data))
        elif kind == "sendmsg":
            todo.append((kind, index, [data], messages(rng, family), 0, where(family) if rng.random() < 0.7 else None))
        elif kind == "recvmsg":
            todo.append((kind, index, rng.choice((0, 1, 3, 100, 70000)), rng.choice((0, 20, 400)), rng.choice((0, 0, PEEK, TRUNC))))
        elif kind == "option":
            level, name, values = rng.choice(options)
            todo += [("setsockopt", index, level, name, rng.choice(values)), ("getsockopt", index, level, name)]
        elif kind == "names":
            todo += [("getsockname", index), ("getpeername", index)]
    return families, todo


def done(sock: Any, call: Call) -> Any:
    """What a call comes to, in a form that does not depend on whose socket it is."""
    method, _, *arguments = call
    if method == "sendto" and not isinstance(sock, socket.socket):
        data, flags, address = arguments
        arguments = [data, address, flags]
    try:
        result = getattr(sock, method)(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    if method == "recvmsg":
        data, ancillary, flags, address = result
        return data[: arguments[0]], list(ancillary), flags & (TRUNC | socket.MSG_CTRUNC), shown(address)
    return shown(result) if isinstance(result, tuple) else result


def shown(address: Any) -> Any:
    """An address without the number of a port that nobody named."""
    return (address[0], address[1] if address[1] < 32768 else "any")


def of_the_kernel(seed: int) -> list[Any]:
    families, todo = calls(seed)
    socks = []
    with Namespace() as ns:
        with ns.netlink() as ip:
            ip.link("set", index=1, state="up")
        for family in families:
            socks.append(ns.socket(family, socket.SOCK_DGRAM))
            socks[-1].setblocking(False)
        poll = select.poll()
        for sock in socks:
            poll.register(sock, select.POLLIN | select.POLLOUT)
        found = []
        for call in todo:
            found.append(done(socks[call[1]], call))
            ready = dict(poll.poll(0))
            found.append([ready.get(sock.fileno(), 0) for sock in socks])
        for sock in socks:
            sock.close()
    return found


def of_ours(seed: int) -> list[Any]:
    families, todo = calls(seed)
    found: list[Any] = []

    async def main() -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, VirtualClock)
        link, _ = pipe_pair(clock.runtime.heap)
        async with open_stack(link=link, addresses=[]) as stack:
            socks = [stack.datagram_socket(family) for family in families]
            for call in todo:
                found.append(done(socks[call[1]], call))
                await trio.sleep(0.1)
                found.append([sock.poll() & (select.POLLIN | select.POLLOUT | select.POLLERR) for sock in socks])

    run_virtual(main)
    return found


@pytest.mark.parametrize("block", range(8))
def test_random_calls_come_to_the_same(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        _, todo = calls(seed)
        for at, (ours, kernel) in enumerate(zip(of_ours(seed), of_the_kernel(seed), strict=True)):
            call = [repr(part)[:80] for part in todo[at // 2]]
            assert ours == kernel, f"seed {seed}, {'readiness after' if at % 2 else 'result of'} call {at // 2}: {call}"


def test_the_calls_are_worth_comparing() -> None:
    outcomes = [result for seed in range(80) for result in of_ours(seed)[::2]]
    refused = {result for result in outcomes if isinstance(result, str)}
    assert {"EINVAL", "EMSGSIZE", "EADDRINUSE", "ECONNREFUSED", "ENETUNREACH", "ENODEV", "EDESTADDRREQ", "EAGAIN", "ENOTCONN"} <= refused
    assert sum(isinstance(result, tuple) and isinstance(result[0], bytes) for result in outcomes) > 150
