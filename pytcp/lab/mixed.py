"""pytcp and the kernel as senders at one bottleneck, in real time: `pytcp lab run fairness --real`.

Every second sender is a kernel, in a namespace of its own behind a TAP; the others are stacks of ours. All share one emulated queue
(`link.shared`) to one receiver, a stack that treats all alike. It is in the same process as our senders, so that rates of some ten Mbit/s are
what can be asked for.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from pytcp.link.emulator import Direction, Impairment
from pytcp.link.shared import Shared
from pytcp.sockets.open import TrioStack, open_stack

from .record import Row
from .testbed import Testbed

if TYPE_CHECKING:
    from .real import Real

CHUNK = 1 << 18
PORT = 5001
NET, RECEIVER = "10.98.0", 254


class Mixed:
    """Senders that wait for `start`. `way` is the bottleneck, `received` the bytes of each flow that the receiver has."""

    def __init__(self, way: Direction, receiver: TrioStack, senders: Sequence[TrioStack | Testbed], controls: Sequence[str]) -> None:
        self.way = way
        self.received = [0] * len(senders)
        self._receiver = receiver
        self._senders = senders
        self._controls = controls
        self._nursery: trio.Nursery
        self._over = threading.Event()

    def start(self, number: int) -> None:
        """Flow `number` (from 0) begins; it sends until the block ends."""
        sender = self._senders[number]
        if isinstance(sender, Testbed):
            self._nursery.start_soon(self._kernel, sender, number)
        else:
            self._nursery.start_soon(self._ours, sender, number)

    async def _ours(self, stack: TrioStack, number: int) -> None:
        stream = await stack.open_tcp_stream(f"{NET}.{RECEIVER}", PORT + number)
        data = bytes(CHUNK)
        while True:
            await stream.send_all(data)

    async def _kernel(self, testbed: Testbed, number: int) -> None:
        def send() -> None:
            with testbed.socket() as sender:
                sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._controls[number].encode())
                sender.settimeout(0.2)  # to look whether it is over
                connected = False
                data = bytes(CHUNK)
                while not self._over.is_set():
                    with contextlib.suppress(TimeoutError):
                        if not connected:
                            sender.connect((f"{NET}.{RECEIVER}", PORT + number))
                            connected = True
                        sender.send(data)

        await trio.to_thread.run_sync(send)

    async def _sink(self, number: int, *, task_status: trio.TaskStatus[None]) -> None:
        [listener] = await self._receiver.open_tcp_listeners(PORT + number, host=f"{NET}.{RECEIVER}")
        async with listener:
            task_status.started()
            async for data in await listener.accept():
                self.received[number] += len(data)


def _queue(way: Direction) -> Iterator[Row]:
    packets, size = way.queued
    yield {"queue": "bottleneck", "packets": packets, "bytes": size, "drops": way.counters.overflowed, "marks": way.counters.marked}


@contextlib.asynccontextmanager
async def mixed(real: Real, controls: Sequence[str], bottleneck: Impairment) -> AsyncIterator[Mixed]:
    """A sender for each congestion control: the first is ours, the second the kernel's, and so on by turns.

    Raises TestbedError, and OSError for a congestion control that one of them does not have."""
    runtime: Any = real.stack.runtime
    shared = Shared(runtime.heap, there=bottleneck, back=Impairment(delay_ns=bottleneck.delay_ns), far_mac=bytes((2, 98, 0, 0, 0, RECEIVER)))
    real.stack.net.add_interface(shared.far, [f"{NET}.{RECEIVER}/24"], gro=True)
    senders: list[TrioStack | Testbed] = []
    async with contextlib.AsyncExitStack() as opened:
        for number, control in enumerate(controls, 1):
            port = shared.port(f"sender{number}", bytes((2, 98, 0, 0, 0, number)))
            address = f"{NET}.{number}/24"
            if number % 2:
                settings = {"net.ipv4.tcp_congestion_control": control}
                name = f"{control} {number}"
                link = real.captured(port, name)
                stack = await opened.enter_async_context(open_stack(link=link, addresses=[address], runtime=runtime, sysctls=settings, drain=0))
                real.watch(stack, name, partial(_queue, shared.there))
                senders.append(stack)
            else:
                testbed = opened.enter_context(Testbed(addresses=[f"{NET}.{RECEIVER}/24"], peer_addresses=[address]))
                with testbed.socket() as probe:  # refused now rather than in the middle
                    probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
                port.attach(real.captured(testbed.link, f"kernel's {control} {number}"))
                runtime.add_link(testbed.link)
                opened.callback(runtime.remove_link, testbed.link)
                senders.append(testbed)
        flows = Mixed(shared.there, real.stack, senders, controls)
        async with trio.open_nursery() as nursery:
            flows._nursery = nursery
            for number in range(len(controls)):
                await nursery.start(flows._sink, number)
            try:
                yield flows
            finally:
                flows._over.set()
                nursery.cancel_scope.cancel()
