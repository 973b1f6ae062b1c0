"""Stacks, links and streams asked for in a wrong way: the caller's error says what is wrong, and nothing is left behind."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
import trio

from pytcp.link.pipe import pipe_pair
from pytcp.link.tap import Tap
from pytcp.link.tun import Tun
from pytcp.sockets.factory import use_stack
from pytcp.sockets.open import TrioStack, open_stack, run_virtual
from pytcp.sockets.resolver import Resolver

from .streams import A4, B4, World, runtime, simulate

Expected = tuple[type[Exception], str]  # the error, and words that must be in it


def raises(expected: Expected) -> Any:
    kind, words = expected
    return pytest.raises(kind, match=f"(?s).*{words}")


OPENING: list[tuple[dict[str, Any], Expected]] = [
    ({"link": "tap0"}, (TypeError, "a link is a device")),
    ({"link": 5}, (TypeError, "a link is a device")),
    ({"sysctls": ["a"]}, (TypeError, "sysctls are a dict")),
    ({"sysctls": "a"}, (TypeError, "sysctls are a dict")),
    ({"sysctls": {"net.ipv4.tcp_nosuch": 1}}, (OSError, "no sysctl 'net.ipv4.tcp_nosuch'")),
    ({"sysctls": {"net.ipv4.tcp_sack": None}}, (TypeError, "net.ipv4.tcp_sack is a number")),
    ({"sysctls": {"net.ipv4.tcp_sack": 1.5}}, (TypeError, "net.ipv4.tcp_sack is a number")),
    ({"sysctls": {"net.ipv4.tcp_sack": "x"}}, (OSError, "'x' is not a number")),
    ({"sysctls": {5: 1}}, (TypeError, "name of a sysctl is a string")),
    ({"addresses": ["10.0.0.1/24"]}, (ValueError, "no link")),
    ({"name": "eth0"}, (ValueError, "no link")),
    ({"gateway": 5}, (TypeError, "a gateway is a string")),
    ({"gateway": b"10.0.0.1"}, (TypeError, "a gateway is a string")),
    ({"gateway": "10.0.0.1"}, (OSError, "gateway 10.0.0.1 is not on a link")),
    ({"runtime": "x"}, (TypeError, "a runtime is")),
    ({"seed": "x"}, (TypeError, "a seed is a number")),
    ({"drain": "x"}, (TypeError, "drain is a number")),
    ({"drain": -1}, (ValueError, "drain is -1")),
    ({"drain": float("nan")}, (ValueError, "drain is nan")),
]
WITH_LINK: list[tuple[dict[str, Any], Expected]] = [
    ({"addresses": "10.0.0.1/24"}, (TypeError, "addresses are a list of strings")),
    ({"addresses": 5}, (TypeError, "addresses are a list of strings")),
    ({"addresses": [5]}, (TypeError, "a prefix is a string")),
    ({"addresses": [b"10.0.0.1/24"]}, (TypeError, "a prefix is a string")),
    ({"addresses": ["x"]}, (ValueError, "'x' is not an address and prefix length")),
    ({"addresses": ["10.0.0.1/40"]}, (ValueError, "is not an address and prefix length")),
    ({"addresses": ["224.0.0.1/24"]}, (ValueError, "multicast")),
    ({"addresses": ["ff02::1/64"]}, (ValueError, "multicast")),
    ({"addresses": ["0.0.0.0/24"]}, (ValueError, "no host's address")),
    ({"addresses": ["::/64"]}, (ValueError, "no host's address")),
    ({"addresses": ["255.255.255.255/32"]}, (ValueError, "no host's address")),
    ({"addresses": ["10.0.0.1/24", "10.0.0.1/16"]}, (FileExistsError, "is there already")),
    ({"addresses": ["127.0.0.1/8"]}, (FileExistsError, "is there already")),
    ({"gateway": [5]}, (TypeError, "an address is a string")),
    ({"gateway": "x"}, (ValueError, "'x'")),
    ({"nosuch": 1}, (TypeError, "nosuch")),
    ({"tx_mode": "x"}, (ValueError, "completion mode 'x'")),
    ({"name": 5}, (TypeError, "name is a string")),
    ({"name": "a" * 16}, (OSError, "too long")),
    ({"name": "a/b"}, (OSError, "'a/b'")),
    ({"name": "lo"}, (FileExistsError, "there is an interface 'lo'")),
]


@pytest.mark.parametrize(("arguments", "expected"), OPENING, ids=lambda value: str(value))
def test_a_stack_that_cannot_be_is_refused(arguments: dict[str, Any], expected: Expected) -> None:
    async def main() -> None:
        before = len(runtime().before_pass)
        with raises(expected):
            async with open_stack(**arguments):
                pass
        assert len(runtime().before_pass) == before  # no stack is left at the clock

    run_virtual(main)


@pytest.mark.parametrize(("arguments", "expected"), WITH_LINK, ids=lambda value: str(value))
def test_an_interface_that_cannot_be_is_refused_and_its_link_is_free_again(arguments: dict[str, Any], expected: Expected) -> None:
    async def main() -> None:
        with raises(expected):
            async with open_stack(link=pipe_pair(runtime().heap)[0], **arguments):
                pass
        link = pipe_pair(runtime().heap)[0]
        async with open_stack() as stack:
            with raises(expected):
                stack.net.add_interface(link, **{name: value for name, value in arguments.items() if name != "gateway"})
                stack.net.add_route("default", via=next(iter([*arguments["gateway"]])) if "gateway" in arguments else None)
            assert [dev.name for dev in stack.net.interfaces if dev.link is not link] == ["lo"]

    run_virtual(main)


@pytest.mark.parametrize("stack", ["x", None, 5])
def test_use_stack_takes_a_stack_and_leaves_the_run_as_it_was(stack: Any) -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="what open_stack"), use_stack(stack):
            pass
        async with open_stack() as good:
            with pytest.raises(TypeError, match=r"HostnameResolver, not 'x'"), use_stack(good, resolver="x"):  # type: ignore[arg-type]
                pass
            with use_stack(good), trio.socket.socket() as sock:
                assert "pytcp" in repr(sock)

    run_virtual(main)


CALLS: list[tuple[str, Callable[[TrioStack], Any], Expected]] = [
    ("no host", lambda stack: stack.open_tcp_stream(None, 80), (ValueError, "host must be str or bytes, not None")),  # type: ignore[arg-type]
    ("a number for a host", lambda stack: stack.open_tcp_stream(5, 80), (ValueError, "host must be str or bytes")),  # type: ignore[arg-type]
    ("an empty host", lambda stack: stack.open_tcp_stream("", 80), (OSError, "the host is empty")),
    ("a null in a host", lambda stack: stack.open_tcp_stream("127.0.0.1\0", 80), (ValueError, "null character")),
    ("text for a port", lambda stack: stack.open_tcp_stream("127.0.0.1", "80"), (TypeError, "port must be an int, not '80'")),  # type: ignore[arg-type]
    ("a port too high", lambda stack: stack.open_tcp_stream("nosuch.example", 70000), (OverflowError, "port must be 0-65535")),
    ("a listener's port", lambda stack: stack.open_tcp_listeners("80"), (TypeError, "port must be an int")),  # type: ignore[arg-type]
    ("a listener's host", lambda stack: stack.open_tcp_listeners(80, host=5), (TypeError, "a host is a string, not 5")),  # type: ignore[arg-type]
    ("a listener's backlog", lambda stack: stack.open_tcp_listeners(80, backlog="x"), (TypeError, "backlog must be an int")),  # type: ignore[arg-type]
    ("a handler", lambda stack: stack.serve_tcp(5, 80), (TypeError, "a handler is an async function")),  # type: ignore[arg-type]
    ("a UDP port", lambda stack: stack.open_udp("80"), (TypeError, "port must be an int")),  # type: ignore[arg-type]
    ("a UDP peer", lambda stack: stack.open_udp(remote=("x",)), (TypeError, "remote is a tuple")),  # type: ignore[arg-type]
    ("a pinged host", lambda stack: stack.ping(5), (TypeError, "a host is a string")),  # type: ignore[arg-type]
    ("how many pings", lambda stack: stack.ping("127.0.0.1", count="x"), (TypeError, "count is a number")),  # type: ignore[arg-type]
    ("the size of a ping", lambda stack: stack.ping("127.0.0.1", size=65508), (ValueError, "size is 0 to 65507")),
    ("the TTL of a ping", lambda stack: stack.ping("127.0.0.1", ttl=256), (ValueError, "ttl is 0 to 255")),
]


@pytest.mark.parametrize(("call", "expected"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_a_call_with_a_wrong_argument_is_refused_before_anything_is_opened(call: Callable[[TrioStack], Any], expected: Expected) -> None:
    async def main() -> None:
        async with open_stack() as stack:
            with raises(expected):
                await call(stack)
            assert not stack._sockets

    run_virtual(main)


def test_a_refused_connection_names_the_host_and_the_address() -> None:
    async def program(world: World) -> None:
        with pytest.raises(ConnectionRefusedError) as caught:
            await world.a.open_tcp_stream(B4, 9)
        assert str(caught.value) == f"[Errno {errno.ECONNREFUSED}] Connection refused: {B4}:9"

    simulate(program)


def test_a_refused_connection_to_a_name_says_which_address_was_tried(tmp_path: Any) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{B4} server.example\n")

    async def program(world: World) -> None:
        world.a.resolver = Resolver(world.a, hosts=str(hosts))
        with pytest.raises(ConnectionRefusedError, match=rf"Connection refused: server.example \({B4}:9\)"):
            await world.a.open_tcp_stream("server.example", 9)

    simulate(program)


def test_a_name_nobody_knows_is_in_the_error(tmp_path: Any) -> None:
    config = tmp_path / "resolv.conf"
    config.write_text(f"nameserver {B4}\noptions attempts:1 timeout:1\n")

    async def program(world: World) -> None:
        world.a.resolver = Resolver(world.a, resolv_conf=str(config), hosts="/dev/null")
        for name in ("nosuch.example", "300.1.1.1"):  # the second is a name for the C library, too
            with pytest.raises(OSError, match=f"name resolution: {name}"):
                await world.a.open_tcp_stream(name, 9)

    simulate(program)


def test_a_stack_has_its_resolver_from_the_start() -> None:
    async def main() -> None:
        async with open_stack() as stack:
            assert isinstance(stack.resolver, Resolver)
            assert stack.resolver is stack.resolver
            with pytest.raises(TypeError, match="HostnameResolver, not 'x'"):
                stack.resolver = "x"  # type: ignore[assignment]
            infos = await stack.resolver.getaddrinfo(A4, 80)
            assert infos[0][4] == (A4, 80)

    run_virtual(main)


@pytest.mark.parametrize("kind", [Tap, Tun])
@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        (5, TypeError, "a string, not 5"),
        (b"tap0", TypeError, "a string, not b'tap0'"),
        ("", OSError, "needs a name"),
        ("a" * 16, OSError, "too long"),
        *[(name, OSError, "no name for an interface") for name in ("a/b", "a b", "a:b", ".", "..", "a\0b")],
    ],
)
def test_a_name_no_device_can_have_is_refused_without_asking_the_kernel(kind: type[Tap], name: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        kind(name)
