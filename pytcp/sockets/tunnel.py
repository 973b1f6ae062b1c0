"""A stack over a tunnel of the program's own: two async functions carry its packets.

    link = TunnelLink(send=udp_send, receive=udp_receive, mtu=1400)
    async with open_stack(link=link, addresses=["10.8.0.2/24"]) as stack, trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        stream = await stack.open_tcp_stream("10.8.0.1", 80)

`framed` turns a byte stream (TCP, TLS, a pipe) into such a pair of functions: each packet behind its length in 16 bits. See
docs/embedding.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import trio

from pytcp.link.callback import CallbackLink

LIMIT = 64  # packets that wait for `send`; then the stack's own queue fills, and its senders slow down

Send = Callable[[bytes], Awaitable[object]]
Receive = Callable[[], Awaitable[bytes]]


class TunnelLink(CallbackLink):
    """A device that carries its packets by two async functions while `run` runs.

    send: takes a packet and may wait for as long as it likes. receive: waits for the next packet; b"" says that the tunnel
    has ended. limit: packets that wait for `send`. The others are `CallbackLink`'s.
    """

    def __init__(
        self, send: Send, receive: Receive, *, name: str = "tunnel0", mtu: int = 1400, mac: bytes = b"", checked: bool = False, limit: int = LIMIT
    ) -> None:
        super().__init__(self._enqueue, name=name, mtu=mtu, mac=mac, checked=checked)
        self._send = send
        self._receive = receive
        self._outgoing: deque[bytes] = deque()
        self._outgoing_limit = limit
        self._more = trio.Event()

    def _enqueue(self, packet: bytes) -> bool:
        if len(self._outgoing) >= self._outgoing_limit:
            return False
        self._outgoing.append(packet)
        self._more.set()
        return True

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry packets until `receive` says that the tunnel has ended; the stack's connections over it then fail.

        Raises what `send` and `receive` raise, and does the same then."""
        reason = "the tunnel has ended"
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def outward() -> None:
                nonlocal failure, reason
                try:
                    while True:
                        while self._outgoing:
                            await self._send(self._outgoing.popleft())
                        self._more = trio.Event()
                        await self._more.wait()
                except Exception as exc:
                    failure, reason = exc, f"the tunnel broke: {exc}"
                    nursery.cancel_scope.cancel()

            nursery.start_soon(outward)
            task_status.started()
            try:
                while packet := await self._receive():
                    self.feed(packet)
            except Exception as exc:
                failure, reason = exc, f"the tunnel broke: {exc}"
            nursery.cancel_scope.cancel()
        self.lose(reason)
        if failure is not None:
            raise failure


def framed(stream: trio.abc.Stream, longest: int = 65535) -> tuple[Send, Receive]:
    """(send, receive) that carry packets over a byte stream, each behind its length in two bytes, big-endian.

    longest: what is accepted. `receive` gives b"" at the stream's end, and raises ValueError for a length of 0 or beyond `longest`, or an end in
    the middle of a packet."""
    buffer = bytearray()

    async def send(packet: bytes) -> None:
        await stream.send_all(len(packet).to_bytes(2, "big") + packet)

    async def fill(size: int) -> bool:
        while len(buffer) < size:
            data = await stream.receive_some()
            if not data:
                return False
            buffer.extend(data)
        return True

    async def receive() -> bytes:
        whole = await fill(2)
        size = int.from_bytes(buffer[:2], "big") if whole else 0
        if whole and not 0 < size <= longest:
            raise ValueError(f"a packet of {size} bytes")
        if not whole or not await fill(2 + size):
            if buffer:
                raise ValueError("the stream ended in the middle of a packet")
            return b""
        packet = bytes(buffer[2 : 2 + size])
        del buffer[: 2 + size]
        return packet

    return send, receive
