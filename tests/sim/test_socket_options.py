"""Every option number of a TCP and of a UDP socket, known or not: what the kernel answers, through the socket that programs hold."""

from __future__ import annotations

import errno
import socket as stdlib
import struct
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pytcp.link.pipe import pipe_pair
from pytcp.sockets.open import open_stack, run_virtual
from pytcp.sockets.socket import Socket
from pytcp.sockets.udp import DatagramSocket

from .streams import B4, B6, PORT, World, runtime, simulate

MEASURED = Path(__file__).parents[1] / "data" / "socket_option_numbers.txt"
VALUES = (-1, 0, 1, 2, 255, 256)
FAMILIES = {"4": int(stdlib.AF_INET), "6": int(stdlib.AF_INET6)}

# what is not the same, and why
DIFFERENT: dict[int, dict[str, set[int]]] = {
    0: {
        "no IP options are sent": {4},
        "IPsec policies and netfilter": {16, 17, 80, 83, *range(96, 100)},
        "it was asked about whatever group stood in the buffer": {41},
    },
    1: {
        "security modules": {59},
        "the cookie is random": {57},
    },
    6: {
        "receiving without a copy": {35},
        "repairing a connection": {19},
        "what that kernel has chosen: BBR, its clock, its buffer": {11, 13, 24, 26},
    },
    41: {
        "IPsec policies and netfilter": {34, 35, 68, 69, 80},
        "it was asked about whatever label stood in the buffer": {32},
    },
}
DIFFERENT_ON_UDP: dict[int, dict[str, set[int]]] = {
    0: {
        "no IP options are sent": {4},
        "IPsec policies, netfilter and multicast sources": {16, 17, *range(37, 49), 83, *range(96, 100)},
    },
    1: {
        "time stamps of what is sent, memory that is not copied": {37, 60, 65},
        "filters, Unix sockets and namespaces of the kernel": {59, 68, 70, 71, 77, 80},
        "the cookie is random": {57},
    },
    41: {
        "extension headers, anycast, IPsec, multicast sources, what the path takes": {1, 6, 27, 28, 32, 34, 35, *range(42, 49), 50, 54, 55, 57, 59, 61, 68, 69},
    },
}
APART = {(level, number) for level, reasons in DIFFERENT.items() for numbers in reasons.values() for number in numbers}


def table() -> dict[tuple[str, int], dict[int | str, str]]:
    rows: dict[tuple[str, int], dict[int | str, str]] = defaultdict(dict)
    for line in MEASURED.read_text().splitlines():
        if not line.startswith("#"):
            name, level, number, answer = line.split(maxsplit=3)
            rows[name, int(level)][number if number == "*" else int(number)] = answer
    return rows


def tried(call: Callable[[], int | bytes | None]) -> str:
    try:
        result = call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    if isinstance(result, bytes):
        return result.hex() or "-"
    return "ok" if result is None else str(result)


def answer(make: Callable[[], Socket | DatagramSocket], level: int, number: int) -> str:
    """What one option of fresh sockets does, in the table's words."""

    def sets(value: int | bytes) -> tuple[str, Socket | DatagramSocket]:
        sock = make()
        return tried(lambda: sock.setsockopt(level, number, value)), sock

    got, whole = (tried(lambda size=size: make().getsockopt(level, number, size)) for size in (0, 64))
    pairs = [f"{result}>{tried(lambda sock=sock: sock.getsockopt(level, number))}" for result, sock in map(sets, VALUES)]
    both = pairs[0] if len(set(pairs)) == 1 else "|".join(pairs)
    return f"{got} {whole} {both} {sets(b'')[0]} {sets(bytes([1]))[0]}"


def test_the_peers_address_is_a_struct_sockaddr_and_no_buffer_may_be_longer() -> None:
    async def program(world: World) -> None:
        for host, size in ((B4, 16), (B6, 28)):
            stream, _ = await world.pair(host)
            datagrams = world.a.datagram_socket(stream.socket.family)
            assert tried(partial(datagrams.getsockopt, 1, 28, 16)) == "ENOTCONN"
            datagrams.connect((host, PORT))
            for sock in (stream.socket, datagrams):
                raw = sock.getsockopt(1, 28, size)
                assert isinstance(raw, bytes) and len(raw) == size
                assert raw[:4] == struct.pack("=H", sock.family) + struct.pack(">H", PORT)
                assert stdlib.inet_ntop(sock.family, raw[4:8] if size == 16 else raw[8:24]) == host
                assert tried(partial(sock.getsockopt, 1, 28, size + 1)) == "EINVAL"
                assert sock.getsockopt(1, 28, 4) == raw[:4]

    simulate(program)


@pytest.mark.parametrize("level", [0, 1, 6, 17, 41])
@pytest.mark.parametrize("name", ["tcp4", "tcp6", "udp4", "udp6"])
def test_every_option_number_is_answered_as_the_kernel_answers_it(name: str, level: int) -> None:
    rows = table()[name, level]
    if name.startswith("udp"):
        apart = {number for numbers in DIFFERENT_ON_UDP.get(level, {}).values() for number in numbers}
    else:
        apart = {number for at, number in APART if at == level}
    if name in ("tcp4", "udp4") and level == 41:
        apart = set()  # one answer for all
    filters = {26, 27, 49, 50, 51, 52} if level == 1 else set(range(64, 68)) if level in (0, 41) else set()

    async def main() -> None:
        link, _ = pipe_pair(runtime().heap)
        async with open_stack(link=link) as stack:
            wrong, same = [], []
            make: Callable[[int], Socket | DatagramSocket] = stack.datagram_socket if name.startswith("udp") else stack.socket
            for number in [*range(100), *range(101, 105)]:
                if number in filters:
                    continue
                expected = rows.get(number, rows["*"])
                found = answer(lambda: make(FAMILIES[name[-1]]), level, number)
                if number in apart and found == expected:
                    same.append(number)
                if number not in apart and found != expected:
                    wrong.append(f"{number}: {found}, not {expected}")
            assert not wrong, "\n".join(wrong)
            assert not same, f"no longer different: {same}"

    run_virtual(main)
