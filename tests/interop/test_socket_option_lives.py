"""What becomes of socket options: in a connection that is made with them, in the children of a listener, after connect(AF_UNSPEC), and of an
IPv6 socket's two sets of IP options when it turns to IPv4. The kernel of this machine, over its loopback, must answer the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pytest

from pytcp.lab.netns import Namespace

from .test_socket_options import DIFFERENT, HOST, IP, IP6, NETFILTER, NUMBERS, OTHER_NUMBERS, SOL, TCP, V4, V6, kernel_get, our_get, our_stack, tried

pytestmark = pytest.mark.tap

NUMBERS_SET = (1, 0, 3, 100, 2000)
TIMES = (20, 21, 66, 67)  # of SOL_SOCKET: struct timeval
# no connection to a listener with TCP_DEFER_ACCEPT or by TCP_FASTOPEN_CONNECT while there is no data, none where somebody asks for more hops
# than a loopback has, or for a device that is not there
ALONE = {(TCP, 9), (TCP, 30), (IP, 21), (IP6, 73), (SOL, 25), (SOL, 62)}
# it becomes another's business, or of another time
OTHER = {(level, number) for why, (options, _) in DIFFERENT.items() for level, numbers in options.items() for number in numbers if why in OTHER_NUMBERS}
APART = {
    (IP, 4): "no IP options are sent",
    (TCP, 19): "no connection is repaired",
    (TCP, 34): "a child connects to nobody",
    (SOL, 55): "memory is charged by another schedule",
}
# the option of IPv4 and that of IPv6, and a number
TWINS = ((1, 67, 8), (2, 16, 5), (10, 23, 2), (11, 25, 1), (21, 73, 3), (15, 78, 1), (19, 75, 1), (13, 66, 1), (34, 19, 0), (26, 31, 1), (12, 51, 1))
T = TypeVar("T")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Side:
    """A kernel or a stack, asked in the same words."""

    make: Callable[[int], Any]
    accept: Callable[[Any], Any]
    read: Callable[[Any, int, int, int], bytes]
    disconnect: Callable[[Any], None]
    wait: Callable[[float], None]  # seconds

    def new(self, family: int) -> Any:
        sock = self.make(family)
        sock.setsockopt(SOL, socket.SO_REUSEADDR, 1)
        return sock

    def listening(self, family: int, host: str, port: int, options: tuple[tuple[int, int, bytes], ...] = ()) -> Any:
        sock = self.new(family)
        for option in options:
            sock.setsockopt(*option)
        sock.bind((host, port))
        sock.listen(5)
        return sock

    def pair(self, listener: Any, client: Any, host: str, port: int) -> Any:
        """The server's end; None where there is none."""
        with contextlib.suppress(BlockingIOError):
            client.connect((host, port))
        try:
            return self.accept(listener)
        except OSError:
            return None


def end(*socks: Any) -> None:
    for sock in filter(None, socks):
        with contextlib.suppress(OSError):
            sock.setsockopt(SOL, socket.SO_LINGER, struct.pack("=ii", 1, 0))
        sock.close()


def value_of(level: int, number: int, given: int) -> bytes:
    if level == SOL and number in TIMES:
        return struct.pack("=qq", given, 0)
    if (level, number) == (SOL, socket.SO_LINGER):
        return struct.pack("=ii", 1, given)
    return b"reno" if (level, number) == (TCP, 13) else struct.pack("=i", given)


def lives(side: Side) -> dict[tuple[int, int, int, int, str], str]:
    found = {}
    for family, host in HOST.items():
        listener = side.listening(family, host, 7000)
        for level, numbers in NUMBERS.items():
            for number in numbers:
                if (level, number) in NETFILTER | OTHER | ALONE:
                    continue
                for given in NUMBERS_SET:
                    option = (level, number, value_of(level, number, given))

                    def read(sock: Any, level: int = level, number: int = number) -> bytes:
                        return side.read(sock, level, number, 264)

                    client = side.new(family)
                    server = side.pair(listener, client, host, 7000)
                    if tried(partial(client.setsockopt, *option)) == "ok":
                        side.disconnect(client)
                        found[family, *option[:2], given, "disconnected"] = tried(partial(read, client))
                    end(client, server)
                    client = side.new(family)
                    if tried(partial(client.setsockopt, *option)) == "ok":
                        server = side.pair(listener, client, host, 7000)
                        found[family, *option[:2], given, "connected"] = tried(partial(read, client))
                        end(client, server)
                        other = side.listening(family, host, 7001, (option,))
                        client = side.new(family)
                        server = side.pair(other, client, host, 7001)
                        found[family, *option[:2], given, "child"] = tried(partial(read, server)) if server else "nobody"
                        end(client, server, other)
                    else:
                        client.close()
        listener.close()
    return found


def twins(side: Side) -> dict[tuple[str, int], tuple[str, ...]]:
    """An IPv6 socket with an option of either level set, and what both are, also of one that is connected to, or by, IPv4."""
    found = {}
    for four, six, number in TWINS:
        keys = ((IP, four), (IP6, six))
        for at, key in enumerate(keys):
            sock = side.new(V6)
            sock.setsockopt(*key, number)
            found[f"set {key}", at] = tuple(tried(partial(side.read, sock, *other, 4)) for other in keys)
            sock.close()
        options = ((IP, four, struct.pack("=i", number)), (IP6, six, struct.pack("=i", 1 if six in (16, 73) else 0)))
        listener = side.listening(V4, "127.0.0.1", 7000)
        client = side.new(V6)
        for option in options:
            client.setsockopt(*option)
        server = side.pair(listener, client, "::ffff:127.0.0.1", 7000)
        found["client", four] = tuple(tried(partial(side.read, client, *key, 4)) for key in keys)
        end(client, server, listener)
        listener = side.listening(V6, "::", 7000, options)
        client = side.new(V4)
        server = side.pair(listener, client, "127.0.0.1", 7000)
        found["child", four] = tuple(tried(partial(side.read, server, *key, 4)) for key in keys)
        end(client, server, listener)
    return found


def stamps(side: Side) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    """The control data of a read: level, type and size."""
    found = {}
    for option, value in ((29, 1), (35, 1), (63, 1), (64, 1), (37, 0x18), (65, 0x18)):
        listener = side.listening(V4, "127.0.0.1", 7000)
        client = side.new(V4)
        server = side.pair(listener, client, "127.0.0.1", 7000)
        server.setsockopt(TCP, 36, 1)  # TCP_INQ
        server.setsockopt(SOL, option, value)
        side.wait(0.1)  # the kernel stamps nothing until it has rewritten its code
        client.send(b"data")
        side.wait(0.01)
        for flags in (socket.MSG_PEEK, 0):
            found[option, flags] = [(level, kind, len(data)) for level, kind, data in server.recvmsg(100, 200, flags)[1]]
        end(client, server, listener)
    return found


def of_the_kernel(ask: Callable[[Side], T]) -> T:
    with Namespace() as ns:
        with ns.netlink() as ip:
            ip.link("set", index=1, state="up")
        ns.set_sysctl("net.ipv4.tcp_congestion_control", "reno")
        nobody = bytes(16)  # AF_UNSPEC

        def make(family: int) -> socket.socket:
            sock = ns.socket(family)
            sock.settimeout(1)
            return sock

        return ask(Side(make, lambda listener: listener.accept()[0], kernel_get, lambda sock: _libc.connect(sock.fileno(), nobody, 16), time.sleep))


def of_ours(ask: Callable[[Side], T]) -> T:
    runtime, stack, accept = our_stack()
    return ask(Side(stack.socket, accept, our_get, lambda sock: sock.disconnect(), lambda seconds: runtime.run_for(int(seconds * 1e9))))


def test_options_live_on_in_connections_children_and_disconnected_sockets_as_the_kernels_do() -> None:
    kernel, ours = of_the_kernel(lives), of_ours(lives)
    wrong = [f"{key}: {ours.get(key)}, not {value}" for key, value in kernel.items() if key[1:3] not in APART and ours.get(key) != value]
    wrong += [f"{key}: {value}, which the kernel refuses" for key, value in ours.items() if key not in kernel]
    assert not wrong, "\n".join(wrong)
    assert {key[1:3] for key, value in kernel.items() if ours.get(key) != value} == set(APART) - {(SOL, 55)}


def test_an_ipv6_socket_has_options_of_both_families_as_the_kernels_has() -> None:
    assert of_ours(twins) == of_the_kernel(twins)


def test_reads_are_told_the_time_as_the_kernel_tells_it() -> None:
    kernel = of_the_kernel(stamps)
    assert of_ours(stamps) == kernel
    assert all(len(control) == 2 for control in kernel.values())
