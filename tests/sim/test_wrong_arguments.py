"""Arguments of a wrong type or value: the standard library's socket is the measure, call by call."""

from __future__ import annotations

import array
import re
import socket as stdlib
from collections.abc import Callable
from typing import Any

import pytest

from pytcp.sockets.open import open_stack, run_virtual

FAR = ("127.0.0.1", 9)

# (call, arguments); the kernel's socket is given the same
STREAM: list[tuple[str, tuple[Any, ...]]] = [
    *[("setsockopt", (6, 1, value)) for value in (1.5, None, [1], "1", b"", b"\1", bytearray(4), True, 1 << 16)],
    *[("setsockopt", args) for args in (("a", 1, 1), (6, "a", 1), (6, 1 << 31, 1), (1.0, 2, 1), (6, 2, b"\1"), (6, 1), (1, 99, 1), (99, 1, 1))],
    *[("getsockopt", args) for args in (("a", 1), (6, 1, "a"), (6, 1, -1), (6, 1, 1025), (6, 1, 1024), (6, 1, None), (6, 1, 1.0), (99, 1), (1, 99))],
    *[("listen", (backlog,)) for backlog in ("x", None, 1.5, 1 << 31)],
    *[("recv", args) for args in (("x",), (-1,), (None,), (1.0,), (1, "x"), (1, None), (1, 1 << 31), (1,))],
    *[("recv_into", args) for args in ((b"xx",), ("x",), (5,), (memoryview(bytearray(8))[::2],))],
    *[("send", args) for args in (("x",), (None,), (5,), ([1],), (b"x", "y"), (memoryview(bytearray(8))[::2],), (array.array("i", [1, 2]),), (1.5,))],
    *[("shutdown", (how,)) for how in ("x", None, 5, 1.0, 1 << 31, -1, 0)],
    *[("bind", (address,)) for address in ("x", ("x",), ("127.0.0.1", "80"), ("127.0.0.1", 70000), ("127.0.0.1", -1), (5, 80), ["127.0.0.1", 0], None)],
    *[("bind", (address,)) for address in (("127.0.0.1", 1.5), ("127.0.0.1", 0, 0), (None, 0), ("a\0b", 0), ("192.0.2.1", 0))],
    *[("connect", (address,)) for address in ("x", None, ("127.0.0.1",), ("127.0.0.1", None), ("127.0.0.1", 65536), 5)],
    *[("sendmsg", args) for args in ((b"x",), (["x"],), (5,), ([b"x"], 5), ([b"x"], [5]), ([b"x"], [(1, 2)]), ([b"x"], [("a", 2, b"")]))],
    *[("sendmsg", args) for args in (([b"x"], [(0, 2, "s")]), ([b"x"], [], "x"))],
    *[("recvmsg", args) for args in (("x",), (-1,), (1, -1), (1, "x"), (1, 0, "x"))],
]
DATAGRAM: list[tuple[str, tuple[Any, ...]]] = [
    *[("sendto", args) for args in (("x", FAR), (b"x", "y"), (b"x", ("127.0.0.1", 0)), (b"x", ("127.0.0.1", 70000)), (5, FAR), (b"x", None))],
    *[("recvfrom", (size,)) for size in (-1, "x", None, 1.5, 1)],
    *[("recv", (size,)) for size in (-1, "x", 1)],
    *[("recv_into", args) for args in ((bytearray(2), 3), (bytearray(2), -1), (b"xx",), ("x",))],
    *[("recvmsg", args) for args in ((-1,), (1, -1), ("x",))],
    *[("send", (data,)) for data in ("x", None, 5, b"x")],
    *[("sendmsg", args) for args in (([b"x"], 5), (["x"],), (5,))],
    *[("setsockopt", (17, 1, value)) for value in (1.5, None, "1", b"")],
    *[("shutdown", (how,)) for how in ("x", None, 7, 0)],
    ("listen", ("x",)),
    ("listen", (1,)),
]
STREAM6: list[tuple[str, tuple[Any, ...]]] = [
    ("bind", (address,)) for address in (("::1", 0, "x"), ("::1", 0, -1), ("::1", 0, 1 << 20), ("::1", 0, 0, "x"), ("::1",), ("::1%nosuch", 0), ["::1", 0])
]


def shown(value: object) -> str:
    return re.sub(r" at 0x\w+", "", str(value))


def said(call: Callable[..., object], args: tuple[Any, ...]) -> tuple[str, int | None]:
    """The class of the error and its errno; ("", None) without one."""
    try:
        call(*args)
    except OSError as error:
        return type(error).__name__, error.errno
    except Exception as error:
        assert str(error), "an error without words"
        return type(error).__name__, None
    return "", None


def compare(family: int, kind: int, call: str, args: tuple[Any, ...]) -> None:
    with stdlib.socket(family, kind) as kernel:
        kernel.setblocking(False)
        expected = said(getattr(kernel, call), args)

    async def main() -> None:
        async with open_stack() as stack:
            sock = stack.socket(family) if kind == stdlib.SOCK_STREAM else stack.datagram_socket(family)
            assert said(getattr(sock, call), args) == expected

    run_virtual(main)


@pytest.mark.parametrize(("call", "args"), STREAM, ids=shown)
def test_a_stream_socket_takes_what_the_standard_library_takes(call: str, args: tuple[Any, ...]) -> None:
    compare(int(stdlib.AF_INET), int(stdlib.SOCK_STREAM), call, args)


@pytest.mark.parametrize(("call", "args"), STREAM6, ids=shown)
def test_so_does_one_of_ipv6(call: str, args: tuple[Any, ...]) -> None:
    compare(int(stdlib.AF_INET6), int(stdlib.SOCK_STREAM), call, args)


@pytest.mark.parametrize(("call", "args"), DATAGRAM, ids=shown)
def test_a_datagram_socket_takes_what_the_standard_library_takes(call: str, args: tuple[Any, ...]) -> None:
    compare(int(stdlib.AF_INET), int(stdlib.SOCK_DGRAM), call, args)
