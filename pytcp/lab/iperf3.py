"""An iperf3 server as a trio program, so that a kernel's iperf3 can measure a stack of ours.

One test at a time, TCP, any number of streams, both directions (`-P`, `-R`). The protocol: a control connection that starts
with the client's cookie and on which single bytes name the state; parameters and results are JSON behind a 32-bit length; each
data connection starts with the same cookie. Serve `Iperf3().handle` on port 5201.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

import trio

PORT = 5201
COOKIE_SIZE = 37
JSON_MAX = 1 << 16
CHUNK = 1 << 20

TEST_START, TEST_RUNNING, TEST_END = 1, 2, 4
PARAM_EXCHANGE, CREATE_STREAMS, SERVER_TERMINATE, EXCHANGE_RESULTS, DISPLAY_RESULTS, IPERF_DONE = 9, 10, 11, 13, 14, 16
ACCESS_DENIED = 255

Stream = trio.abc.HalfCloseableStream


class Iperf3Error(Exception):
    """The client does not speak iperf3, or went away in the middle."""


async def _exactly(stream: Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        if not piece:
            raise Iperf3Error("the client went away")
        data += piece
    return data


async def _receive_json(stream: Stream) -> dict[str, Any]:
    (size,) = struct.unpack("!I", await _exactly(stream, 4))
    if size > JSON_MAX:
        raise Iperf3Error(f"{size} bytes of JSON are too many")
    try:
        found = json.loads(await _exactly(stream, size))
    except ValueError as exc:
        raise Iperf3Error("not JSON") from exc
    if not isinstance(found, dict):
        raise Iperf3Error("not a JSON object")
    return found


async def _send_json(stream: Stream, value: object) -> None:
    text = json.dumps(value).encode()
    await stream.send_all(struct.pack("!I", len(text)) + text)


@dataclass
class _Test:
    """The test under way: who asked, the data connections so far, and what each moved."""

    cookie: bytes
    parallel: int
    reverse: bool
    streams: list[Stream] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    complete: trio.Event = field(default_factory=trio.Event)
    start: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)


class Iperf3:
    """The server. `handle` is a stream handler; a second client during a test is told to go away."""

    def __init__(self) -> None:
        self._test: _Test | None = None
        self.tests = 0
        self.bytes = 0  # of the last test, both directions

    async def handle(self, stream: Stream) -> None:
        """Serve one connection, control or data. A client that breaks the protocol only loses its connection."""
        try:
            cookie = await _exactly(stream, COOKIE_SIZE)
            test = self._test
            if test is not None and cookie == test.cookie and len(test.streams) < test.parallel:
                await self._data(test, stream)
            elif test is not None:
                await stream.send_all(bytes((ACCESS_DENIED,)))
            else:
                await self._control(cookie, stream)
        except (Iperf3Error, trio.BrokenResourceError):
            return

    async def _control(self, cookie: bytes, stream: Stream) -> None:
        async def say(state: int) -> None:
            await stream.send_all(bytes((state,)))

        async def expect(state: int) -> None:
            got = (await _exactly(stream, 1))[0]
            if got != state:
                raise Iperf3Error(f"state {got} where {state} was due")

        test = self._test = _Test(cookie, 0, False)
        try:
            await say(PARAM_EXCHANGE)
            wanted = await _receive_json(stream)
            test.parallel = int(wanted.get("parallel", 1))
            test.reverse = bool(wanted.get("reverse"))
            await say(CREATE_STREAMS)
            await test.complete.wait()
            await say(TEST_START)
            await say(TEST_RUNNING)
            started = trio.current_time()
            test.start.set()
            await expect(TEST_END)
            elapsed = trio.current_time() - started
            test.over.set()
            await say(EXCHANGE_RESULTS)
            await _receive_json(stream)
            await _send_json(stream, self._results(test, elapsed))
            await say(DISPLAY_RESULTS)
            await expect(IPERF_DONE)
            self.tests += 1
            self.bytes = sum(test.moved)
        finally:
            test.over.set()
            self._test = None

    def _results(self, test: _Test, elapsed: float) -> dict[str, Any]:
        # iperf3 numbers its streams 1, 3, 4, ...
        streams = [
            {
                "id": number + 1 + (number > 0),
                "bytes": moved,
                "retransmits": 0,
                "jitter": 0,
                "errors": 0,
                "omitted_errors": 0,
                "packets": 0,
                "omitted_packets": 0,
                "start_time": 0,
                "end_time": elapsed,
            }
            for number, moved in enumerate(test.moved)
        ]
        return {
            "cpu_util_total": 0,
            "cpu_util_user": 0,
            "cpu_util_system": 0,
            "sender_has_retransmits": 0,
            "congestion_used": "unknown",
            "streams": streams,
        }

    async def _data(self, test: _Test, stream: Stream) -> None:
        number = len(test.streams)
        test.streams.append(stream)
        test.moved.append(0)
        if len(test.streams) == test.parallel:
            test.complete.set()

        async def move() -> None:
            if test.reverse:
                await test.start.wait()
                block = bytes(CHUNK)
                while not test.over.is_set():
                    await stream.send_all(block)
                    test.moved[number] += len(block)
            else:
                while data := await stream.receive_some(CHUNK):
                    test.moved[number] += len(data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_over, test, nursery)
            try:
                await move()
            finally:
                if not test.over.is_set():
                    await test.over.wait()

    async def _until_over(self, test: _Test, nursery: trio.Nursery) -> None:
        await test.over.wait()
        # what is already on its way is still counted: the client stops sending before it says so
        nursery.cancel_scope.deadline = trio.current_time() + 0.1
