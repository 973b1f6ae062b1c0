"""Every option number of TCP sockets, closed, listening and connected, with values and buffers of many lengths: a kernel in a fresh namespace
is asked the same over its loopback, and must answer the same, result, errno and bytes.

As a program it prints what differs, with the reasons that are known: `python -m tests.interop.test_socket_options`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import socket
import struct
from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.lab.netns import Namespace
from pytcp.net.stack import Stack
from pytcp.sockets.open import TrioStack

pytestmark = pytest.mark.tap

V4, V6 = int(socket.AF_INET), int(socket.AF_INET6)
HOST = {V4: "127.0.0.1", V6: "::1"}
PORT = 7000
SOL, IP, TCP, IP6 = 1, 0, 6, 41
NUMBERS = {SOL: range(90), IP: range(90), TCP: range(51), IP6: range(90)}
NETFILTER = {(IP, number) for number in (64, 65, 66, 67, 80, 83)} | {(IP6, number) for number in (64, 65, 68, 69, 80)}  # answered by modules of the machine
STATES = ("closed", "listening", "connected")
ROOMS = (1, 2, 3, 4, 8, 16, 20, 32, 64, 144, 264, 1024)
NUMBERS_SET = (0, 1, -1, 2, 100, 1 << 30)
LENGTHS = (4, 8, 12, 16, 20, 32, 64, 136, 144, 264)
VALUES = [
    b"",
    *((number & (1 << 8 * size) - 1).to_bytes(size, "little") for size in (1, 2, 3) for number in (0, 1, -1, 100)),
    *(struct.pack("=i", number) + (b"\xff" if number < 0 else b"\0") * (size - 4) for size in LENGTHS for number in NUMBERS_SET),
]

# what differs: the option numbers by level, and how the answers look, "question | kernel's | ours"
OTHER_NUMBERS = {"another port, processor, cookie, clock, and what has been measured meanwhile"}
DIFFERENT: dict[str, tuple[dict[int, set[int]], str]] = {
    "another port, processor, cookie, clock, and what has been measured meanwhile": (
        {SOL: {49, 57, 71}, IP: {52}, TCP: {11, 24}},
        r"get \d+ \| [\da-f]+ \| [\da-f]+",
    ),
    "no IP options are sent: such as only fill up are taken, and forgotten": ({IP: {4}}, r"set .* \| ok [01]+ \| ok -"),
    "IPsec": ({IP: {16, 17}, IP6: {34, 35}}, r"set .* \| E\w+ \| ENOPROTOOPT"),
    "programs of bpf(2)": ({SOL: {50, 52}}, r"set 4:.* \| (EBADF|EINVAL) \| ENOPROTOOPT"),
    "security modules": ({SOL: {59}}, r"get .* \| ENOPROTOOPT"),
    "repairing a connection": ({TCP: {19}}, r"set .* \| ok 01000000 \| EPERM"),
    "receiving without a copy": ({TCP: {35}}, r"get .* \| 0+ \| ENOPROTOOPT"),
    "anycast groups": ({IP6: {27}}, r"set .* \| EADDRNOTAVAIL \| ENOPROTOOPT"),
    "extension headers": ({IP6: {54, 55, 59}}, r"set .* \| ok [\da-f]+ \| ENOPROTOOPT"),
}

Answers = dict[tuple[str, int, int], dict[str, str]]
Fresh = Callable[[], tuple[Any, tuple[Any, ...]]]

_libc = ctypes.CDLL(None, use_errno=True)


def kernel_get(sock: Any, level: int, number: int, room: int) -> bytes:
    """getsockopt into a buffer of zeros; the standard library's has whatever was there before, which some options read."""
    buffer = ctypes.create_string_buffer(room)
    length = ctypes.c_uint32(room)
    if _libc.getsockopt(sock.fileno(), level, number, buffer, ctypes.byref(length)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return buffer.raw[: length.value]


def our_get(sock: Any, level: int, number: int, room: int) -> bytes:
    value = sock.getsockopt(level, number, room)
    assert isinstance(value, bytes)
    return value


def tried(call: Callable[[], bytes | None]) -> str:
    try:
        result = call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok" if result is None else result.hex() or "-"


class Sockets:
    """The socket of one question after the other; a new one after each that changed something."""

    def __init__(self, fresh: Fresh) -> None:
        self._fresh = fresh
        self._held: tuple[Any, ...] = ()

    def get(self) -> Any:
        if not self._held:
            sock, others = self._fresh()
            self._held = (sock, *others)
        return self._held[0]

    def used(self) -> None:
        for sock in self._held:
            with contextlib.suppress(OSError):
                sock.setsockopt(SOL, socket.SO_LINGER, struct.pack("=ii", 1, 0))
            sock.close()
        self._held = ()


def ask(fresh: Fresh, read: Callable[[Any, int, int, int], bytes], level: int, number: int) -> dict[str, str]:
    """What getsockopt answers for each length of its buffer, and setsockopt for each value, with what is read after it."""
    found = {}
    sockets = Sockets(fresh)
    for room in ROOMS:
        found[f"get {room}"] = tried(partial(read, sockets.get(), level, number, room))
    sockets.used()
    for value in VALUES:
        result = tried(partial(sockets.get().setsockopt, level, number, value))
        if result == "ok":
            result += " " + tried(lambda: read(sockets.get(), level, number, 264))
            sockets.used()
        found[f"set {len(value)}:{value[:4].hex()}"] = result
    sockets.used()
    return found


def all_answers(make: Callable[[int], Any], accept: Callable[[Any], Any], read: Callable[[Any, int, int, int], bytes]) -> Answers:
    found = {}
    for family, host in HOST.items():
        listener = make(family)
        listener.bind((host, PORT))
        listener.listen(10)

        def listening(family: int = family, host: str = host) -> tuple[Any, tuple[Any, ...]]:
            sock = make(family)
            sock.bind((host, 0))
            sock.listen(5)
            return sock, ()

        def connected(family: int = family, host: str = host, listener: Any = listener) -> tuple[Any, tuple[Any, ...]]:
            sock = make(family)
            with contextlib.suppress(BlockingIOError):
                sock.connect((host, PORT))
            return sock, (accept(listener),)

        makers: dict[str, Fresh] = {"closed": lambda family=family: (make(family), ()), "listening": listening, "connected": connected}  # type: ignore[misc]
        for state, fresh in makers.items():
            for level, numbers in NUMBERS.items():
                for number in numbers:
                    if (level, number) not in NETFILTER:
                        found[f"tcp{6 if family == V6 else 4} {state}", level, number] = ask(fresh, read, level, number)
        listener.close()
    return found


def of_the_kernel() -> Answers:
    with Namespace() as ns:
        with ns.netlink() as ip:
            ip.link("set", index=1, state="up")
        ns.set_sysctl("net.ipv4.tcp_congestion_control", "reno")
        return all_answers(ns.socket, lambda listener: listener.accept()[0], kernel_get)


def our_stack() -> tuple[VirtualRuntime, TrioStack, Callable[[Any], Any]]:
    """A stack with the congestion control of the kernel's side, its clock, and what accepts from a listener."""
    runtime = VirtualRuntime()
    net = Stack(runtime, seed=1)
    net.sysctl.tcp_congestion_control = "reno"

    def accept(listener: Any) -> Any:
        runtime.run_for(1_000_000)
        return listener.accept()[0]

    return runtime, TrioStack(net, runtime), accept


def of_ours() -> Answers:
    _, stack, accept = our_stack()
    return all_answers(stack.socket, accept, our_get)


@cache
def differences() -> list[tuple[tuple[str, int, int], str, str, str]]:
    """(socket and option, question, the kernel's answer, ours), where these differ."""
    ours = of_ours()
    return [
        (key, question, kernel, ours[key][question])
        for key, answers in of_the_kernel().items()
        for question, kernel in answers.items()
        if ours[key][question] != kernel
    ]


def reason(level: int, number: int, question: str, kernel: str, ours: str) -> str | None:
    for why, (options, pattern) in DIFFERENT.items():
        if number in options.get(level, ()) and re.fullmatch(pattern, f"{question} | {kernel} | {ours}"):
            return why
    return None


def test_every_option_is_answered_as_the_kernel_of_this_machine_answers_it() -> None:
    wrong = [f"{key}: {question}: {ours}, not {kernel}" for key, question, kernel, ours in differences() if reason(*key[1:], question, kernel, ours) is None]
    assert not wrong, "\n".join(wrong)


def test_what_is_said_to_differ_does() -> None:
    found = {(level, number) for (_, level, number), _, _, _ in differences()}
    said = {(level, number) for options, _ in DIFFERENT.values() for level, numbers in options.items() for number in numbers}
    assert said <= found, f"no longer different: {sorted(said - found)}"


def test_a_value_of_another_number_has_the_kernels_length() -> None:
    for key, question, kernel, ours in differences():
        if reason(*key[1:], question, kernel, ours) in OTHER_NUMBERS:
            assert len(ours) == len(kernel), (key, question)


def main() -> None:
    groups: dict[tuple[int, int, str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for (name, level, number), question, kernel, ours in differences():
        groups[level, number, kernel, ours][question].add(name)
    for (level, number, kernel, ours), questions in groups.items():
        names = sorted(set().union(*questions.values()))
        why = {reason(level, number, question, kernel, ours) or "not known" for question in questions}
        print(f"level {level}, option {number}: {ours[:60]}, not {kernel[:60]} ({'; '.join(sorted(why))})")
        print(f"    {', '.join(names)}: {', '.join(questions)[:300]}")


if __name__ == "__main__":
    main()
