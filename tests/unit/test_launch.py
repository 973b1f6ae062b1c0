"""A program on a stack without being told: what `trio.run` and `anyio.run` become, and that everything is put back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
import trio
from outcome import Outcome

from pytcp.lab.launch import Launcher
from pytcp.sockets.open import TrioStack, open_stack
from pytcp.sockets.trio_socket import TrioSocket

HOST = "127.0.0.1"


@asynccontextmanager
async def loopback_only() -> AsyncIterator[TrioStack]:
    async with open_stack() as stack:
        yield stack


@pytest.fixture
def launcher() -> Launcher:
    return Launcher(loopback_only, ["127.0.0.1"])


async def talk_to_itself(port: int) -> str:
    """A program that knows nothing of pytcp; returns what it heard."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all(b"from " + type(stream.socket).__name__.encode())

    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_tcp, answer, port)
        stream = await trio.open_tcp_stream(HOST, port)
        heard = b""
        async for data in stream:
            heard += data
        await stream.aclose()
        nursery.cancel_scope.cancel()
    return heard.decode()


def test_a_program_runs_on_the_stack_and_its_result_comes_back(launcher: Launcher) -> None:
    before = trio.run, trio.lowlevel.start_guest_run, anyio.run, trio.socket.from_stdlib_socket
    with launcher.installed():
        assert trio.run(talk_to_itself, 7000) == "from TrioSocket"
        assert trio.run(talk_to_itself, 7000) == "from TrioSocket"
    assert launcher.runs == 2
    assert (trio.run, trio.lowlevel.start_guest_run, anyio.run, trio.socket.from_stdlib_socket) == before


async def as_guest(program: Callable[..., Awaitable[object]], *args: object) -> object:
    """Run a trio program as a guest of the asyncio that runs."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Outcome[object]] = loop.create_future()
    trio.lowlevel.start_guest_run(
        program, *args, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=ended.set_result, host_uses_signal_set_wakeup_fd=True
    )
    return (await ended).unwrap()


def test_a_guest_of_another_loop_is_on_the_stack_too(launcher: Launcher) -> None:
    async def host() -> None:
        assert await as_guest(talk_to_itself, 7000) == "from TrioSocket"
        with pytest.raises(LookupError):
            await as_guest(fail)
        running = asyncio.create_task(as_guest(talk_to_itself, 7000))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="on the stack already"):
            await as_guest(fail)
        assert await running == "from TrioSocket"

    async def fail() -> None:
        raise LookupError

    with launcher.installed():
        asyncio.run(host())
    assert launcher.runs == 3


def test_a_guest_that_cannot_begin_leaves_the_stack_to_the_next(launcher: Launcher) -> None:
    with launcher.installed():
        with pytest.raises(TypeError):
            trio.lowlevel.start_guest_run(talk_to_itself, 7000, done_callback=print)  # type: ignore[call-arg]
        assert trio.run(talk_to_itself, 7000) == "from TrioSocket"


def test_what_a_program_raises_is_not_put_into_a_group(launcher: Launcher) -> None:
    class OfItsOwn(Exception):
        pass

    async def main() -> None:
        raise OfItsOwn

    async def leaving() -> None:
        raise SystemExit(3)

    with launcher.installed():
        with pytest.raises(OfItsOwn):
            trio.run(main)
        with pytest.raises(SystemExit) as caught:
            trio.run(leaving)
    assert caught.value.code == 3


def test_anyio_runs_on_trio_unless_it_is_told_otherwise(launcher: Launcher) -> None:
    async def main() -> type:
        async with await anyio.create_tcp_listener(local_host=HOST) as listener:
            return type(listener.listeners[0]._trio_socket)  # type: ignore[attr-defined]

    with launcher.installed():
        assert anyio.run(main) is TrioSocket
        assert anyio.run(main, backend="trio") is TrioSocket
        with pytest.raises(RuntimeError, match="asyncio backend; on pytcp it has to be trio"):
            anyio.run(main, backend="asyncio")


def test_two_runs_at_the_same_time_are_refused(launcher: Launcher) -> None:
    failures: list[BaseException] = []

    def second(program: Callable[[int], Awaitable[str]]) -> None:
        try:
            trio.run(program, 7001)
        except RuntimeError as error:
            failures.append(error)

    async def main() -> None:
        thread = threading.Thread(target=second, args=(talk_to_itself,))
        thread.start()
        await trio.to_thread.run_sync(thread.join)

    with launcher.installed():
        trio.run(main)
    assert ["on the stack already" in str(failure) for failure in failures] == [True]
