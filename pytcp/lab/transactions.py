"""Questions and answers: what clients and servers of an experiment do. The rest as in `workloads`."""

from __future__ import annotations

import contextlib
import random
from array import array
from collections.abc import Callable
from functools import partial

from pytcp.clock.heap import TimerHeap
from pytcp.sockets.socket import Socket
from pytcp.tcp.const import POLLIN, POLLOUT

from .hosts import AF_INET, Host
from .workloads import CHUNK, Prepare, drain


class RequestResponse:
    """netperf's TCP_RR: a request of `request` bytes, a response of `response`, one after the other.

    It runs for `transactions` of them (0: until time is up). wakeup: ns from a socket's news until its program runs, on both
    sides, as a sleeping thread has to be scheduled; what arrives meanwhile is read at once."""

    def __init__(
        self,
        client: Host,
        server: Host,
        request: int,
        response: int,
        *,
        transactions: int = 0,
        wakeup: int = 0,
        port: int = 5002,
        family: int = AF_INET,
        prepare: Prepare | None = None,
    ) -> None:
        self.heap = client.stack.heap
        self.transactions = transactions
        self.completed = 0
        self.started_ns = 0  # the first request
        self.finished_ns = 0  # the last response
        self.latencies: list[int] = []  # ns
        self.client: Socket | None = None
        self.server: Socket | None = None
        self._request = bytes(request)
        self._response = bytes(response)
        self._asked_ns = 0
        self._wakeup = wakeup
        server.listen(port, self._accepted, prepare=prepare)
        client.connect(server, port, self._connected, family=family, prepare=prepare)

    @property
    def done(self) -> bool:
        """All transactions are complete."""
        return 0 < self.transactions <= self.completed

    @property
    def per_second(self) -> float:
        """Transactions per second."""
        return self.completed * 1e9 / (self.finished_ns - self.started_ns)

    def _accepted(self, socket: Socket) -> None:
        self.server = socket
        _Exchange(self.heap, socket, len(self._request), self._wakeup, lambda: _Sending(socket, self._response))

    def _connected(self, socket: Socket) -> None:
        self.client = socket
        self.started_ns = self.heap.now_ns
        _Exchange(self.heap, socket, len(self._response), self._wakeup, self._answered)
        self._ask()

    def _ask(self) -> None:
        assert self.client is not None
        self._asked_ns = self.heap.now_ns
        _Sending(self.client, self._request)

    def _answered(self) -> None:
        self.completed += 1
        self.finished_ns = self.heap.now_ns
        self.latencies.append(self.finished_ns - self._asked_ns)
        if not self.done:
            self._ask()


class _Exchange:
    """One side of a request and response: reads messages of `size` bytes and calls `whole` after each."""

    def __init__(self, heap: TimerHeap, socket: Socket, size: int, wakeup: int, whole: Callable[[], object]) -> None:
        self.heap = heap
        self.socket = socket
        self.size = size
        self.wakeup = wakeup
        self.whole = whole
        self.got = 0
        self.waking = False
        socket.notify = self._notify

    def _notify(self, mask: int) -> None:
        if mask & POLLIN and not self.waking:
            if self.wakeup:
                self.waking = True
                self.heap.call_later(self.wakeup, self._run)
            else:
                self._run()

    def _run(self) -> None:
        self.waking = False
        with contextlib.suppress(BlockingIOError):
            while self.got < self.size:
                data = self.socket.recv(self.size - self.got)
                if not data:
                    return
                self.got += len(data)
        if self.got == self.size:
            self.got = 0
            self.whole()


class _Sending:
    """A message that is sent as fast as the socket takes it."""

    def __init__(self, socket: Socket, data: bytes, *, close: bool = False) -> None:
        self.socket = socket
        self.close = close  # behind it
        self.left = memoryview(data)
        self.reader = socket.notify
        self._send()

    def _send(self) -> None:
        try:
            while self.left:
                self.left = self.left[self.socket.send(self.left) :]
        except BlockingIOError:
            self.socket.notify = self._notify
        else:
            self.socket.notify = self.reader
            if self.close:
                self.socket.notify = _done
                self.socket.close()

    def _notify(self, mask: int) -> None:
        if mask & POLLOUT:
            self._send()
        self.reader(mask)


class OpenLoop:
    """wrk2's load: requests at fixed times on each of many connections, whatever the answers do.

    Each connection has a request every `connections / rate` seconds from a random phase on, one outstanding at a time: a
    late answer delays the next request, and that delay counts. The server thinks for `think()` ns, then answers in
    `writes` (bytes each). Connections keep on for `requests` altogether, after `warmup` requests each that do not count."""

    def __init__(
        self,
        client: Host,
        server: Host,
        rng: random.Random,
        *,
        connections: int,
        rate: int,
        requests: int,
        writes: tuple[int, ...],
        think: Callable[[], int],
        request: int = 100,
        warmup: int = 20,
        port: int = 8080,
        prepare: Prepare | None = None,
    ) -> None:
        self.heap = client.stack.heap
        self.from_schedule = array("q")  # ns, of each counted request
        self.from_send = array("q")
        self.interval = connections * 1_000_000_000 // rate
        self.open = 0
        self._writes = [bytes(size) for size in writes]
        self._answer = sum(writes)
        self._request = bytes(request)
        self._think = think
        self._warmup = warmup
        counts = [requests // connections + (number < requests % connections) for number in range(connections)]
        server.listen(port, self._accepted, prepare=prepare)
        for count in counts:
            start = rng.randrange(self.interval)
            client.connect(server, port, partial(self._connected, count, start), prepare=prepare)
            self.open += 1

    @property
    def done(self) -> bool:
        """Every request is answered."""
        return not self.open

    def _connected(self, count: int, start: int, socket: Socket) -> None:
        _Client(self, socket, self.heap.now_ns + start, count + self._warmup, self._warmup)

    def _accepted(self, socket: Socket) -> None:
        _Server(self, socket)


class _Client:
    """One connection of `OpenLoop`, asking."""

    __slots__ = ("due_ns", "got", "left", "load", "sent_ns", "socket", "warmup")

    def __init__(self, load: OpenLoop, socket: Socket, due_ns: int, requests: int, warmup: int) -> None:
        self.load = load
        self.socket = socket
        self.due_ns = due_ns
        self.left = requests
        self.warmup = warmup
        self.sent_ns = 0
        self.got = 0
        socket.notify = self._readable
        load.heap.call_at(due_ns, self._ask)

    def _ask(self) -> None:
        self.sent_ns = self.load.heap.now_ns
        self.socket.send(self.load._request)

    def _readable(self, mask: int) -> None:
        load = self.load
        try:
            self.got += len(self.socket.recv(CHUNK))
        except BlockingIOError:
            return
        if self.got < load._answer:
            return
        self.got = 0
        now = load.heap.now_ns
        if self.warmup:
            self.warmup -= 1
        else:
            load.from_schedule.append(now - self.due_ns)
            load.from_send.append(now - self.sent_ns)
        self.left -= 1
        if not self.left:
            load.open -= 1
            return
        self.due_ns += load.interval
        if self.due_ns <= now:
            self._ask()
        else:
            load.heap.call_at(self.due_ns, self._ask)


class _Server:
    """One connection of `OpenLoop`, answering."""

    __slots__ = ("got", "load", "socket")

    def __init__(self, load: OpenLoop, socket: Socket) -> None:
        self.load = load
        self.socket = socket
        self.got = 0
        socket.notify = self._readable

    def _readable(self, mask: int) -> None:
        load = self.load
        try:
            self.got += len(self.socket.recv(CHUNK))
        except BlockingIOError:
            return
        if self.got >= len(load._request):
            self.got -= len(load._request)
            load.heap.call_later(load._think(), self._answer)

    def _answer(self) -> None:
        send = self.socket.send
        for data in self.load._writes:
            send(data)


class ShortFlows:
    """A connection for each question: `count` of them, one every `interval()` ns, a request of `request` bytes, an answer of
    `response` bytes, and the server closes. `interval` may draw at random (a Poisson process: `rng.expovariate`)."""

    def __init__(
        self,
        client: Host,
        server: Host,
        count: int,
        interval: Callable[[], int],
        *,
        request: int = 100,
        response: int = 20_000,
        port: int = 80,
        family: int = AF_INET,
        prepare: Prepare | None = None,
    ) -> None:
        self.heap = client.stack.heap
        self.started = 0
        self.completion = array("q")  # ns from connect to the end of the answer, in the order of their ends
        self._client, self._server, self._port, self._family, self._prepare = client, server, port, family, prepare
        self._count = count
        self._interval = interval
        self._request, self._response = bytes(request), bytes(response)
        server.listen(port, self._serve, prepare=prepare)
        self._start()

    @property
    def done(self) -> bool:
        """Every answer has come."""
        return len(self.completion) == self._count

    def _start(self) -> None:
        began = self.heap.now_ns
        self._client.connect(self._server, self._port, partial(self._ask, began), family=self._family, prepare=self._prepare)
        self.started += 1
        if self.started < self._count:
            self.heap.call_later(self._interval(), self._start)

    def _ask(self, began: int, socket: Socket) -> None:
        def readable(mask: int) -> None:
            if drain(socket)[1]:
                socket.notify = _done
                socket.close()
                self.completion.append(self.heap.now_ns - began)

        socket.send(self._request)
        socket.notify = readable

    def _serve(self, socket: Socket) -> None:
        _Exchange(self.heap, socket, len(self._request), 0, lambda: _Sending(socket, self._response, close=True))


def _done(mask: int) -> None:
    """The connection is over for its program."""
