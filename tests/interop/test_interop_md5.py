"""MD5 signatures with a real kernel at the other end: both families, whoever opens, wrong keys, bad wires, and the calls themselves."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from pytcp.clock.virtual import VirtualRuntime
from pytcp.lab.testbed import Testbed
from pytcp.lab.wired import open_wired
from pytcp.link.emulator import Impairment
from pytcp.link.pipe import pipe_pair
from pytcp.net.stack import Stack
from pytcp.sockets.socket import Socket
from tests.md5 import FLAG_IFINDEX, FLAG_PREFIX, TCP_MD5SIG, TCP_MD5SIG_EXT, answer, md5sig, measured

from .exchange import SACK, TIMESTAMPS, Kernel, Pair, duplex, pair

pytestmark = pytest.mark.tap

TCP = socket.IPPROTO_TCP
KEY = b"correct horse"
MS = 1_000_000
SIZE = 1 << 20

WIRES: Mapping[str, Impairment] = {
    "3 % loss": Impairment(loss=0.03),
    "every 20th late by 5 ms": Impairment(reorder_gap=20, reorder_delay_ns=5 * MS),
    "a bit of everything": Impairment(loss=0.01, reorder=0.01, reorder_delay_ns=MS, duplicate=0.001, corrupt=0.001),
}


@asynccontextmanager
async def kernel_connects(p: Pair, family: int, theirs: bytes | None = KEY, ours: bytes | None = KEY, **ext: int) -> AsyncIterator[tuple[Kernel, Any]]:
    """As Pair.kernel_connects, with keys. ext: flags and prefix of ours."""
    [listener] = await p.stack.open_tcp_listeners(0, host=p.address(family))
    async with listener:
        if ours is not None:
            listener.socket.setsockopt(TCP, TCP_MD5SIG_EXT, md5sig(p.peer(family), ours, **ext))
        sock = p.kernel_socket(family)
        with sock:
            if theirs is not None:
                sock.setsockopt(TCP, TCP_MD5SIG, md5sig(p.address(family), theirs))
            await sock.connect((p.address(family), listener.socket.getsockname()[1]))
            async with await listener.accept() as stream:
                yield Kernel(sock), stream


@asynccontextmanager
async def pytcp_connects(p: Pair, family: int, theirs: bytes | None = KEY, ours: bytes | None = KEY) -> AsyncIterator[tuple[Kernel, Any]]:
    """As Pair.pytcp_connects, with keys."""

    def prepare(sock: Socket) -> None:
        if ours is not None:
            sock.setsockopt(TCP, TCP_MD5SIG, md5sig(p.peer(family), ours))

    listener = p.kernel_socket(family)
    with listener:
        await listener.bind((p.peer(family), 0))
        if theirs is not None:
            listener.setsockopt(TCP, TCP_MD5SIG, md5sig(p.address(family), theirs))
        listener.listen()
        async with await p.stack.open_tcp_stream(p.peer(family), listener.getsockname()[1], prepare=prepare) as stream:
            sock, _ = await listener.accept()
            with sock:
                yield Kernel(sock), stream


def nothing_wrong(p: Pair) -> None:
    mib = p.stack.net.mib
    assert (mib.TCPMD5NotFound, mib.TCPMD5Unexpected, mib.TCPMD5Failure) == (0, 0, 0)


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("sysctls", [{}, {"net.ipv4.tcp_sack": 0}, {"net.ipv4.tcp_syncookies": 2}], ids=["as it comes", "SACK off", "SYN cookies"])
def test_both_directions_are_byte_exact_whoever_opened(sysctls: dict[str, int], family: int) -> None:
    async def main() -> None:
        async with pair(tb) as p:
            async with kernel_connects(p, family) as (kernel, ours):
                assert kernel.options & TIMESTAMPS == 0
                assert bool(kernel.options & SACK) == ("net.ipv4.tcp_sack" not in sysctls)
                await duplex(kernel.stream, ours, SIZE)
            async with pytcp_connects(p, family) as (kernel, ours):
                assert kernel.options & TIMESTAMPS == 0
                await duplex(kernel.stream, ours, SIZE)
            nothing_wrong(p)

    with Testbed(sysctls=sysctls) as tb:
        trio.run(main)


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("wire", WIRES)
def test_byte_exact_whatever_the_wire_does(wire: str, family: int) -> None:
    async def main() -> None:
        with trio.fail_after(60):
            async with open_wired(tb.link, tb.addresses, tx=WIRES[wire], rx=WIRES[wire], seed=7) as wired:
                p = Pair(tb, wired.stack)
                async with kernel_connects(p, family) as (kernel, ours):
                    await duplex(kernel.stream, ours, SIZE)
                async with pytcp_connects(p, family) as (kernel, ours):
                    await duplex(kernel.stream, ours, SIZE)
                assert p.stack.net.mib.TcpRetransSegs > 0
                nothing_wrong(p)

    with Testbed() as tb:
        trio.run(main)


def test_a_listener_has_one_key_for_a_whole_prefix() -> None:
    async def main() -> None:
        async with pair(tb) as p:
            for family, prefix in ((4, 8), (6, 16)):
                async with kernel_connects(p, family, flags=FLAG_PREFIX, prefix=prefix) as (kernel, ours):
                    await duplex(kernel.stream, ours, 10_000)
            nothing_wrong(p)

    with Testbed() as tb:
        trio.run(main)


@pytest.mark.parametrize(
    ("theirs", "ours", "counter"),
    [(b"wrong", KEY, "TCPMD5Failure"), (None, KEY, "TCPMD5NotFound"), (KEY, None, "TCPMD5Unexpected")],
    ids=["wrong", "missing", "unexpected"],
)
def test_the_kernel_is_not_heard_with_a_key_that_is(theirs: bytes | None, ours: bytes | None, counter: str) -> None:
    async def main() -> None:
        async with pair(tb) as p:
            with trio.move_on_after(1.5) as patience:
                async with kernel_connects(p, 4, theirs, ours):
                    pass
            assert patience.cancelled_caught
            assert getattr(p.stack.net.mib, counter) >= 2  # the SYN, and again a second later

    with Testbed() as tb:
        trio.run(main)


@pytest.mark.parametrize(("theirs", "ours"), [(KEY, b"wrong"), (KEY, None), (None, KEY)], ids=["wrong", "missing", "unexpected"])
def test_the_kernel_does_not_hear_us_with_a_key_that_is(theirs: bytes | None, ours: bytes | None) -> None:
    async def main() -> None:
        async with pair(tb) as p:
            with trio.move_on_after(1.5) as patience:
                async with pytcp_connects(p, 4, theirs, ours):
                    pass
            assert patience.cancelled_caught

    with Testbed() as tb:
        trio.run(main)


def test_a_signed_reset_ends_the_kernels_half() -> None:
    async def main() -> None:
        async with pair(tb) as p, pytcp_connects(p, 4) as (kernel, ours):
            await duplex_once(kernel, ours)
            ours.abort()
            with pytest.raises(trio.BrokenResourceError) as broken:
                await kernel.stream.receive_some()
            assert isinstance(broken.value.__cause__, ConnectionResetError)

    with Testbed() as tb:
        trio.run(main)


async def duplex_once(kernel: Kernel, ours: Any) -> None:
    await kernel.stream.send_all(b"ping")
    assert await ours.receive_some() == b"ping"
    await ours.send_all(b"pong")
    assert await kernel.stream.receive_some() == b"pong"


def test_a_key_changed_on_both_sides_goes_on() -> None:
    async def main() -> None:
        async with pair(tb) as p, kernel_connects(p, 4) as (kernel, ours):
            await duplex_once(kernel, ours)
            kernel.sock.setsockopt(TCP, TCP_MD5SIG, md5sig(p.address(4), b"another"))
            ours.setsockopt(TCP, TCP_MD5SIG, md5sig(p.peer(4), b"another"))
            await duplex(kernel.stream, ours, 100_000)

    with Testbed() as tb:
        trio.run(main)


def test_the_running_kernel_answers_the_calls_as_measured() -> None:
    sock: socket.socket | None = None
    wrong = []
    for family, option, value, expected, line in measured():
        if family:
            if sock is not None:
                sock.close()
            sock = socket.socket(socket.AF_INET if family == "tcp4" else socket.AF_INET6)
        elif sock is not None and (found := answer(sock, option, value)) != expected:
            wrong.append(f"{line}: {found}")
    assert sock is not None
    sock.close()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_random_calls_have_the_kernels_answers_one_after_the_other(family: int, seed: int) -> None:
    dice = random.Random(seed)
    runtime = VirtualRuntime()
    link, _ = pipe_pair(runtime.heap)
    stack = Stack(runtime, seed=1)
    stack.add_interface(link, ["10.0.0.1/24"])
    addresses = ["10.0.0.1", "10.0.0.2", "10.1.0.0", "::ffff:10.0.0.1", "::ffff:10.1.0.0", "::", "2001:db8::1", "2001:db8::2"]

    class Host:
        now, flush, new_sock = stack.now, stack.flush, staticmethod(stack.new_sock)

        def opened(self, socket: Socket) -> None: ...

        def closed(self, socket: Socket) -> None: ...

    answers = set()
    with socket.socket(family) as theirs:
        ours = Socket(Host(), family)
        for _ in range(3000):
            option = dice.choice((TCP_MD5SIG, TCP_MD5SIG_EXT))
            value = md5sig(
                dice.choice(addresses), bytes(dice.choice((0, 0, 1, 80))), flags=dice.choice((0, FLAG_PREFIX, FLAG_IFINDEX, 3, 252)),
                prefix=dice.choice((0, 8, 24, 32, 33, 96, 128, 129)), ifindex=dice.choice((0, 0, 0, 1)), keylen=dice.choice((None, None, None, 81)),
            )  # fmt: skip
            value = value[: dice.choice((216, 216, 216, 216, dice.randrange(216)))]
            want = answer(theirs, option, value)
            assert answer(ours, option, value) == want, (option, value.hex())
            answers.add(want)
    assert answers == {"ok", "EINVAL", "ENOENT"}
    stack.close()


def test_the_kernels_errno_when_option_memory_is_full_is_ours() -> None:
    with socket.socket() as sock:
        answers = [answer(sock, TCP_MD5SIG, md5sig(f"10.{n >> 8}.{n & 255}.1", KEY)) for n in range(965)]
    if answers[-1] == "ok":
        pytest.skip("this machine has another net.core.optmem_max")
    assert answers.index("ENOMEM") == 963
