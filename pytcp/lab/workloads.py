"""What the hosts of an experiment do: programs as callbacks on non-blocking sockets.

Each is made before time runs and says when it is `done`; what it saw is in its attributes afterwards, times in ns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pytcp.sockets.socket import Socket
from pytcp.tcp.const import POLLHUP, POLLIN, POLLOUT, POLLRDHUP

from .hosts import AF_INET, Host

CHUNK = 1 << 18

Prepare = Callable[[Socket], object]


def drain(socket: Socket, size: int = CHUNK) -> tuple[int, bool]:
    """Read and drop what is there; returns how many bytes, and whether the stream has ended."""
    total = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            data = socket.recv(size)
            if not data:
                return total, True
            total += len(data)
    return total, False


class Bulk:
    """One connection over which the listening side sends `size` bytes and closes, as a download.

    upload: the connecting side sends. prepare_sender, prepare_receiver: options before the handshake.
    write: bytes per call of send."""

    def __init__(
        self,
        sender: Host,
        receiver: Host,
        size: int,
        *,
        upload: bool = False,
        port: int = 5001,
        family: int = AF_INET,
        write: int = CHUNK,
        prepare_sender: Prepare | None = None,
        prepare_receiver: Prepare | None = None,
    ) -> None:
        self.size = size
        self.sent = 0
        self.received = 0
        self.started_ns = sender.stack.heap.now_ns
        self.connected_ns = 0
        self.finished_ns = 0  # the receiver has seen the end
        self.source: Socket | None = None
        self.sink: Socket | None = None
        self._heap = sender.stack.heap
        self._data = bytes(write)
        self._write = write
        if upload:
            receiver.listen(port, self._read_from, prepare=prepare_receiver)
            sender.connect(receiver, port, self._write_to, family=family, prepare=prepare_sender)
        else:
            sender.listen(port, self._write_to, prepare=prepare_sender)
            receiver.connect(sender, port, self._read_from, family=family, prepare=prepare_receiver)

    @property
    def done(self) -> bool:
        """The receiver has everything, and the end of the stream."""
        return self.finished_ns > 0

    @property
    def seconds(self) -> float:
        """From the call of connect to the end of the stream."""
        return (self.finished_ns - self.started_ns) / 1e9

    def _write_to(self, socket: Socket) -> None:
        self.source = socket
        self.connected_ns = self._heap.now_ns
        socket.notify = self._writable
        self._writable(POLLOUT)

    def _writable(self, mask: int) -> None:
        socket = self.source
        if socket is None or not mask & POLLOUT:
            return
        with contextlib.suppress(BlockingIOError):
            while self.sent < self.size:
                left = self.size - self.sent
                self.sent += socket.send(self._data if left >= self._write else self._data[:left])
            self.source = None
            socket.close()

    def _read_from(self, socket: Socket) -> None:
        self.sink = socket
        socket.notify = self._readable
        self._readable(POLLIN)

    def _readable(self, mask: int) -> None:
        socket = self.sink
        if socket is None or not mask & (POLLIN | POLLRDHUP | POLLHUP):
            return
        got, ended = drain(socket)
        self.received += got
        if ended:
            self.finished_ns = self._heap.now_ns
            self.sink = None
            socket.close()
