"""What the hosts of an experiment do: programs as callbacks on non-blocking sockets.

Each is made before time runs and says when it is `done`; what it saw is in its attributes afterwards, times in ns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from pytcp.sockets.socket import IPPROTO_TCP, SHUT_WR, Socket
from pytcp.tcp.const import POLLHUP, POLLIN, POLLOUT, POLLRDHUP

from .hosts import AF_INET, Host

CHUNK = 1 << 18
TCP_CONGESTION = 13

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
        self.closed_ns = 0  # the sender has seen that the receiver closed, too
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
            socket.notify = self._closing
            socket.shutdown(SHUT_WR)
            self._closing(POLLIN)

    def _closing(self, mask: int) -> None:
        socket = self.source
        if socket is not None and mask & (POLLIN | POLLRDHUP | POLLHUP) and drain(socket)[1]:
            self.closed_ns = self._heap.now_ns
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


class SmallWrites:
    """`count` writes of `size` bytes, one every `interval` ns, on one connection; `prepare` sets its options.

    The program does not wait for room: what the socket does not take is counted in `refused` (bytes)."""

    def __init__(
        self, sender: Host, receiver: Host, size: int, interval: int, count: int, *, port: int = 5003, family: int = AF_INET, prepare: Prepare | None = None
    ) -> None:
        self.heap = sender.stack.heap
        self.interval = interval
        self.left = count
        self.sent = 0
        self.refused = 0
        self.received = 0
        self.socket: Socket | None = None
        self._data = bytes(size)
        receiver.listen(port, self._accepted)
        sender.connect(receiver, port, self._connected, family=family, prepare=prepare)

    @property
    def done(self) -> bool:
        """Everything that was taken has arrived."""
        return not self.left and self.received == self.sent

    def _connected(self, socket: Socket) -> None:
        self.socket = socket
        self._write()

    def _write(self) -> None:
        assert self.socket is not None
        taken = 0
        with contextlib.suppress(BlockingIOError):
            taken = self.socket.send(self._data)
        self.sent += taken
        self.refused += len(self._data) - taken
        self.left -= 1
        if self.left:
            self.heap.call_later(self.interval, self._write)

    def _accepted(self, socket: Socket) -> None:
        def readable(mask: int) -> None:
            self.received += drain(socket)[0]

        socket.notify = readable


class OnOff:
    """Bursts of `burst` bytes with rests of `rest()` ns between the end of one and the beginning of the next, `count` of them.

    The end of a burst is when the receiver has it. times: ns each burst took."""

    def __init__(
        self, sender: Host, receiver: Host, burst: int, rest: Callable[[], int], count: int, *, port: int = 5004, family: int = AF_INET,
        prepare: Prepare | None = None,
    ) -> None:  # fmt: skip
        self.heap = sender.stack.heap
        self.times: list[int] = []
        self.burst = burst
        self.count = count
        self.received = 0
        self._rest = rest
        self._began = 0
        self._left = memoryview(b"")
        self._data = bytes(burst)
        self.socket: Socket | None = None
        receiver.listen(port, self._accepted, prepare=prepare)
        sender.connect(receiver, port, self._connected, family=family, prepare=prepare)

    @property
    def done(self) -> bool:
        """All bursts have arrived."""
        return len(self.times) == self.count

    def _connected(self, socket: Socket) -> None:
        self.socket = socket
        socket.notify = self._writable
        self._begin()

    def _begin(self) -> None:
        self._began = self.heap.now_ns
        self._left = memoryview(self._data)
        self._writable(POLLOUT)

    def _writable(self, mask: int) -> None:
        assert self.socket is not None
        if mask & POLLOUT and self._left:
            with contextlib.suppress(BlockingIOError):
                while self._left:
                    self._left = self._left[self.socket.send(self._left) :]

    def _accepted(self, socket: Socket) -> None:
        def readable(mask: int) -> None:
            self.received += drain(socket)[0]
            if self.received >= (len(self.times) + 1) * self.burst:
                self.times.append(self.heap.now_ns - self._began)
                if not self.done:
                    self.heap.call_later(self._rest(), self._begin)

        socket.notify = readable


class Iperf3:
    """As iperf3: `streams` connections that send for `duration` ns, and what arrived on each in every `interval` ns.

    names: congestion controls, given to the streams in turn ("" for the host's)."""

    def __init__(
        self,
        sender: Host,
        receiver: Host,
        duration: int,
        *,
        streams: int = 1,
        interval: int = 1_000_000_000,
        names: tuple[str, ...] = ("",),
        port: int = 5201,
        prepare: Prepare | None = None,
    ) -> None:
        self.heap = sender.stack.heap
        self.duration = duration
        self.interval = interval
        self.intervals: list[list[int]] = [[] for _ in range(streams)]  # bytes, by stream
        self.received = [0] * streams
        self.done = False
        self.sockets: list[Socket] = []  # of the sender
        self._last = [0] * streams
        self._data = bytes(CHUNK)
        for number in range(streams):
            control = names[number % len(names)]
            receiver.listen(port + number, partial(self._sink, number), prepare=prepare)

            def with_control(socket: Socket, control: str = control) -> None:
                if prepare is not None:
                    prepare(socket)
                if control:
                    socket.setsockopt(IPPROTO_TCP, TCP_CONGESTION, control.encode())

            self.sockets.append(sender.connect(receiver, port + number, self._source, prepare=with_control))
        self.heap.call_later(interval, self._tick)
        self.heap.call_later(duration, self._end)

    def rates(self, first: int = 0) -> list[float]:
        """Bit/s of each stream, from interval `first` on."""
        return [sum(bytes_[first:]) * 8e9 / (len(bytes_[first:]) * self.interval) for bytes_ in self.intervals]

    def _source(self, socket: Socket) -> None:
        def writable(mask: int) -> None:
            if mask & POLLOUT and not self.done:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        socket.send(self._data)

        socket.notify = writable
        writable(POLLOUT)

    def _sink(self, number: int, socket: Socket) -> None:
        def readable(mask: int) -> None:
            self.received[number] += drain(socket)[0]

        socket.notify = readable

    def _tick(self) -> None:
        for number, total in enumerate(self.received):
            self.intervals[number].append(total - self._last[number])
        self._last = self.received.copy()
        if not self.done:
            self.heap.call_later(self.interval, self._tick)

    def _end(self) -> None:
        self.done = True


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index of shares: 1 when all are equal, 1/n when one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
