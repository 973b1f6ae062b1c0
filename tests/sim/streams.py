"""Two hosts on a wire in virtual time, for tests of streams: real engine, real network layer, no sleep."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from pytcp.clock.virtual import VirtualClock, VirtualRuntime
from pytcp.link.pipe import PipeEnd, pipe_pair
from pytcp.sockets.open import TrioStack, open_stack, run_virtual
from pytcp.sockets.streams import TcpStream

A4, B4 = "10.0.0.1", "10.0.0.2"
A6, B6 = "fd00::1", "fd00::2"
PORT = 7000
DELAY_NS = 1_000_000  # one way


@dataclass
class World:
    """Hosts a and b; `wire` records what crosses it: (ns, sender, flags, payload bytes)."""

    runtime: VirtualRuntime
    a: TrioStack
    b: TrioStack
    link_a: PipeEnd
    link_b: PipeEnd
    wire: list[tuple[int, str, str, int]]

    async def pair(self, host: str = B4, port: int = PORT, *, nodelay: bool | None = True) -> tuple[TcpStream, TcpStream]:
        """A connection: (a's stream, b's stream)."""
        [listener] = await self.b.open_tcp_listeners(port, host=host)
        async with listener:
            client = await self.a.open_tcp_stream(host, port, nodelay=nodelay)
            return client, await listener.accept()

    def sent(self, sender: str, flag: str = "") -> list[tuple[int, str, str, int]]:
        """What one host sent, with a flag (S F R P .)."""
        return [entry for entry in self.wire if entry[1] == sender and flag in entry[2]]


def runtime() -> VirtualRuntime:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, VirtualClock)
    return clock.runtime


def spy(link: PipeEnd, name: str, wire: list[tuple[int, str, str, int]]) -> None:
    """Record the TCP segments `link` sends."""
    send = link.send

    def sends(frames: Any) -> int:
        for frame in frames:
            head = bytes(frame.head)
            l4 = 54 if head[12:14] == b"\x86\xdd" else 34
            if head[l4 - 20 + 9 : l4 - 20 + 10] == b"\x06" if l4 == 34 else head[20:21] == b"\x06":
                bits = head[l4 + 13]
                flags = "".join(mark for mark, bit in (("S", 2), ("F", 1), ("R", 4), ("P", 8), (".", 16)) if bits & bit)
                size = len(head) + sum(len(part) for part in frame.parts) - l4 - (head[l4 + 12] >> 4) * 4
                wire.append((link.heap.now_ns, name, flags, size))
        return send(frames)

    link.send = sends  # type: ignore[method-assign]


@asynccontextmanager
async def world(**options: Any) -> AsyncIterator[World]:
    """Two hosts; options go to both `open_stack`s."""
    clocked = runtime()
    link_a, link_b = pipe_pair(clocked.heap, delay_ns=DELAY_NS)
    wire: list[tuple[int, str, str, int]] = []
    spy(link_a, "a", wire)
    spy(link_b, "b", wire)
    async with (
        open_stack(link=link_a, addresses=[f"{A4}/24", f"{A6}/64"], **options) as a,
        open_stack(link=link_b, addresses=[f"{B4}/24", f"{B6}/64"], **options) as b,
    ):
        yield World(clocked, a, b, link_a, link_b, wire)


def simulate(program: Callable[[World], Awaitable[None]], *, seed: int = 0, **options: Any) -> None:
    """Run `program(world)` in virtual time, at most an hour of it."""

    async def main() -> None:
        with trio.fail_after(3600):
            async with world(**options) as two:
                await program(two)

    run_virtual(main, seed=seed)


async def clog(stream: TcpStream) -> None:
    """Fill the way from `stream` to a peer that does not read, until not one byte more is taken."""
    for size in (65536, 1024, 1):
        with trio.move_on_after(30):
            while True:
                await stream.send_all(bytes(size))
