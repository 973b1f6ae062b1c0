"""The trace of a running stack over its control socket: rows as they come, for as long as somebody reads them.

    {"get": "trace", "kinds": ["xmit", "stop"], "ports": [80], "peers": ["10.0.0.0/8"]}

Each row is a line of JSON (`net.tracer`). The stack never waits for the reader: what does not fit `QUEUE` rows is not kept but
counted, and told as {"lost": n} where it is missing. The trace ends when the reader goes, or does not read for `PATIENCE` seconds.
"""

from __future__ import annotations

import errno
import ipaddress
import json
from collections import deque
from contextlib import suppress
from typing import Any

import trio

from pytcp.net import tracer
from pytcp.net.stack import Stack
from pytcp.tcp import trace

QUEUE = 20_000  # rows kept for a reader who is behind
AT_ONCE = 4  # traces of one stack
PATIENCE = 10.0  # seconds for the reader to make room
PAUSE = 0.02  # seconds between two batches


def listener(question: dict[str, Any], queue: Queue) -> tracer.Listener:
    """Who hears for a question. Raises OSError EINVAL for a filter that is none."""
    kinds, ports, peers = (question.get(name, []) for name in ("kinds", "ports", "peers"))
    if not isinstance(kinds, list) or not all(kind in trace.KINDS for kind in kinds):
        raise OSError(errno.EINVAL, f"kinds is a list of {', '.join(trace.KINDS)}")
    if not isinstance(ports, list) or not all(isinstance(port, int) for port in ports):
        raise OSError(errno.EINVAL, "ports is a list of numbers")
    try:
        networks = [ipaddress.ip_network(peer, strict=False) for peer in peers]
    except (TypeError, ValueError) as error:
        raise OSError(errno.EINVAL, f"peers is a list of addresses or networks: {error}") from None
    return tracer.Listener(queue.put, kinds=kinds, ports=ports, peers=networks)


class Queue:
    """Rows on their way from the engine to a reader."""

    def __init__(self) -> None:
        self._rows: deque[tracer.Row] = deque()
        self._lost = 0
        self._news = trio.Event()

    def put(self, row: tracer.Row) -> None:
        """Keep a row, or count it."""
        if len(self._rows) >= QUEUE:
            self._lost += 1
        else:
            self._rows.append(row)
        if not self._news.is_set():
            self._news.set()

    async def get(self) -> list[tracer.Row]:
        """What has come since the last call, once there is something."""
        await self._news.wait()
        await trio.sleep(PAUSE)
        self._news = trio.Event()
        rows = list(self._rows)
        self._rows.clear()
        if self._lost:
            rows.append({"lost": self._lost})
            self._lost = 0
        return rows


async def follow(stream: trio.SocketStream, stack: Stack, question: dict[str, Any]) -> None:
    """Send rows until the reader has gone. Raises OSError for a question that makes no sense, or EBUSY."""
    queue = Queue()
    heard = listener(question, queue)
    if tracer.count(stack) >= AT_ONCE:
        raise OSError(errno.EBUSY, f"{AT_ONCE} traces of this stack are running")
    tracer.attach(stack, heard)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_gone, stream, nursery.cancel_scope)
            while True:
                lines = b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in await queue.get())
                with trio.move_on_after(PATIENCE), suppress(OSError, trio.BrokenResourceError):
                    await stream.send_all(lines)
                    continue
                # it has gone, or does not read
                nursery.cancel_scope.cancel()
    finally:
        tracer.detach(stack, heard)


async def _until_gone(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    try:
        while await stream.receive_some(4096):
            pass  # more words than one question are not for us
    except (OSError, trio.BrokenResourceError):
        pass
    scope.cancel()
