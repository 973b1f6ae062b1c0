"""Ctrl-C while the stack is at work: the program's main task gets it, and no connection is left half-changed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

import pytcp
from pytcp.clock.real import RealRuntime
from pytcp.tcp import api


@pytest.fixture(autouse=True)
def ctrl_c_reaches_us() -> Iterator[None]:
    """Whoever starts the tests in the background has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


async def echo(stream: trio.abc.Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


def interrupting(original: Callable[..., Any], times: list[int]) -> Callable[..., Any]:
    """`original`, in whose middle the user presses Ctrl-C, once."""

    def call(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        if not times:
            times.append(1)
            signal.raise_signal(signal.SIGINT)
        return result

    return call


@pytest.mark.parametrize("where", ["in a pass", "in a call"])
def test_the_main_task_is_interrupted_and_the_stack_goes_on(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    times: list[int] = [0]
    if where == "in a pass":
        monkeypatch.setattr(RealRuntime, "one_pass", interrupting(RealRuntime.one_pass, times))
    else:
        monkeypatch.setattr(api, "sendmsg", interrupting(api.sendmsg, times))

    async def main() -> None:
        async with pytcp.open_stack() as stack, trio.open_nursery() as nursery:
            await nursery.start(stack.serve_tcp, echo, 7000)
            stream = await stack.open_tcp_stream("127.0.0.1", 7000)
            times.clear()
            interrupted = False
            try:
                await stream.send_all(b"hello")
                await trio.sleep(10)
            except KeyboardInterrupt:
                interrupted = True
            assert interrupted
            assert await stream.receive_some() == b"hello"
            await stream.send_all(b"more")
            assert await stream.receive_some() == b"more"
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert times == [1]


def test_a_call_that_was_interrupted_has_been_made() -> None:
    async def main() -> None:
        async with pytcp.open_stack() as stack:
            sock = stack.socket()
            with pytest.raises(KeyboardInterrupt):
                # between the call and the next checkpoint the signal waits
                sock.notify = lambda mask: signal.raise_signal(signal.SIGINT)
                sock.close()
                await trio.sleep(10)
            assert sock.sk is None
            assert not stack._sockets

    trio.run(main)
