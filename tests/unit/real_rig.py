"""A link over one end of a socket pair, and a real-time runtime for as long as a test needs it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

import trio

from pytcp.clock.real import RealRuntime
from pytcp.link.frame import LinkDown, RxFrame, TxFrame

MS = 1_000_000


class SocketLink:
    """A link over one end of a datagram socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.name = "pair"
        self.mac = b""
        self.mtu = 1500
        self.features = 0
        self.gso_max_size = 65536
        self.rx: Callable[[RxFrame], None] = lambda frame: None
        self.rx_end: Callable[[], None] = lambda: None
        self.gone = False

    def fileno(self) -> int:
        return self.sock.fileno()

    def poll(self, budget: int) -> int:
        if self.gone:
            raise LinkDown(77, "pair: gone")
        count = 0
        while count < budget:
            try:
                data = self.sock.recv(2048)
            except BlockingIOError:
                break
            self.rx(RxFrame(memoryview(data)))
            count += 1
        if count:
            self.rx_end()
        return count

    def send(self, frames: Sequence[TxFrame]) -> int:
        raise AssertionError("not used")

    def close(self) -> None:
        self.sock.close()


async def with_runtime(runtime: RealRuntime, body: Callable[[trio.Nursery], object]) -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(runtime.run)
            await body(nursery)  # type: ignore[misc]
            nursery.cancel_scope.cancel()


class Settings:
    def __init__(self, busy_poll: int, halt_poll: int = 0) -> None:
        self.busy_poll = busy_poll
        self.halt_poll = halt_poll
