"""Devices in trio's loop: beside trio's own descriptors, other runtimes and other loops, closed, duplicated, interrupted, forked."""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from outcome import Outcome
from trio._core import _run

from pytcp.clock import trio_private
from pytcp.clock.real import RealRuntime
from pytcp.clock.trio_private import UNENDED, DeviceLoop

from .real_rig import MS, Settings, SocketLink, with_runtime


def trio_runner() -> Any:
    """What runs this thread's trio."""
    return _run.GLOBAL_RUN_CONTEXT.runner


# --- pytcp.halt_poll ---


@pytest.mark.parametrize(
    ("gap_us", "slept"),
    [
        (5, [True, False, False, False]),
        (40, [True, False, False, False]),
        (60, [True, True, True, True]),  # polling in vain: it sleeps, and a wait that begins so is not short
        (2000, [True, True, True, True]),
    ],
)
def test_after_a_short_wait_the_loop_polls_before_it_sleeps(monkeypatch: pytest.MonkeyPatch, gap_us: int, slept: list[bool]) -> None:
    """Something comes every `gap_us`, on a clock of our own, on which a sleeper takes 20 us to wake: how each wait ends."""
    now = 0
    due = gap_us * 1000
    found: list[bool] = []

    def poll(timeout: float, size: int) -> list[tuple[int, int]]:
        nonlocal now, due
        if timeout > 0:
            now = max(now, due) + 20_000
        else:
            now += 1_000
        if now < due:
            return []
        found.append(timeout > 0)
        due = now + gap_us * 1000
        return [(99, 1)]

    async def main() -> None:
        runtime = RealRuntime()
        runtime.tunables = Settings(0, halt_poll=50)
        loop = DeviceLoop(trio_runner())
        loop._served = (runtime,)
        loop.poll = poll
        monkeypatch.setattr(trio_private.time, "monotonic_ns", lambda: now)
        for _ in slept:
            assert loop.get_events(10) == [(99, 1)]

    trio.run(main)
    assert found == slept


def test_on_a_single_processor_nobody_could_answer_a_loop_that_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []

    async def body(_: trio.Nursery) -> None:
        found.append(runtime.spin_until_ns(1_000, waited_ns=10_000))
        assert runtime.spin_until_ns(1_000, waited_ns=UNENDED) == 0

    for processors in ({0, 1}, {1}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid, which=processors: which)
        runtime = RealRuntime()
        runtime.tunables = Settings(0, halt_poll=50)
        trio.run(with_runtime, runtime, body)
    assert found == [51_000, 0]


# --- beside trio's own descriptors, and other loops ---


def test_two_runtimes_and_the_programs_own_sockets_share_a_loop(pair: tuple[SocketLink, socket.socket]) -> None:
    link, peer = pair
    got: list[str] = []

    async def main() -> None:
        first, second = RealRuntime(), RealRuntime()
        done = trio.Event()
        second.heap.call_later(MS, done.set)
        link.rx = lambda frame: got.append(bytes(frame.data).decode())
        first.add_link(link)
        theirs, ours = trio.socket.socketpair()
        manager = trio_runner().io_manager
        with theirs, ours:
            async with trio.open_nursery() as nursery:
                await nursery.start(first.run)
                await nursery.start(second.run)
                peer.send(b"frame")
                await theirs.send(b"bytes")
                got.append((await ours.recv(10)).decode())
                await done.wait()
                nursery.cancel_scope.cancel()
        assert trio_runner().io_manager is manager

    trio.run(main)
    assert sorted(got) == ["bytes", "frame"]


async def next_turns() -> None:
    for _ in range(5):
        await trio.lowlevel.checkpoint()


def test_a_link_that_was_closed_first_leaves_its_number_to_whoever_has_it_next(pair: tuple[SocketLink, socket.socket]) -> None:
    link, _peer = pair
    runtime = RealRuntime()
    runtime.add_link(link)

    async def body(_: trio.Nursery) -> None:
        fd = link.fileno()
        near, far = socket.socketpair()
        os.dup2(near.fileno(), fd)  # closes the link's descriptor and takes its number
        near.close()
        link.fileno = lambda: -1  # type: ignore[method-assign]
        link.gone = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.wait_readable, fd)
            await next_turns()
            runtime.kick()  # meets the closed link and removes it
            await next_turns()
            assert runtime.links == []
            far.send(b"mine")
        assert os.read(fd, 10) == b"mine"
        far.close()

    trio.run(with_runtime, runtime, body)


def test_a_new_link_with_the_number_of_one_that_was_closed_first_is_heard(pair: tuple[SocketLink, socket.socket]) -> None:
    link, _peer = pair
    runtime = RealRuntime()
    runtime.add_link(link)
    got = trio.Event()

    async def body(_: trio.Nursery) -> None:
        fd = link.fileno()
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        os.dup2(near.fileno(), fd)
        near.close()
        new = SocketLink(link.sock)
        link.fileno = lambda: -1  # type: ignore[method-assign]
        new.rx = lambda frame: got.set()
        runtime.add_link(new)
        runtime.remove_link(link)
        far.send(b"frame")
        await got.wait()
        far.close()

    trio.run(with_runtime, runtime, body)
    assert got.is_set()


def test_a_link_whose_number_somebody_closed_under_it_goes_without_an_error_and_the_others_stay(pair: tuple[SocketLink, socket.socket]) -> None:
    link, peer = pair
    broken = [SocketLink(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)]
    runtime = RealRuntime()
    for each in (*broken, link):
        runtime.add_link(each)
    got = trio.Event()
    link.rx = lambda frame: got.set()

    async def body(_: trio.Nursery) -> None:
        for each in broken:
            os.close(each.fileno())
        for each in broken:
            runtime.remove_link(each)
            each.sock.detach()
        assert runtime.links == [link]
        peer.send(b"frame")
        await got.wait()

    trio.run(with_runtime, runtime, body)
    assert got.is_set()


def test_a_duplicate_of_a_closed_descriptor_keeps_nobody_awake(pair: tuple[SocketLink, socket.socket]) -> None:
    link, peer = pair
    runtime = RealRuntime()
    runtime.add_link(link)

    async def body(_: trio.Nursery) -> None:
        duplicate = os.dup(link.fileno())
        link.close()
        runtime.remove_link(link)
        peer.send(b"for nobody")
        await next_turns()
        passes = runtime.passes
        for _ in range(20):
            await trio.sleep(0.001)
        assert runtime.passes == passes
        os.close(duplicate)

    trio.run(with_runtime, runtime, body)


def test_a_link_is_heard_although_trio_has_waited_for_its_descriptor(pair: tuple[SocketLink, socket.socket]) -> None:
    link, peer = pair
    runtime = RealRuntime()
    frames: list[bytes] = []
    news = trio.Event()
    link.rx = lambda frame: (frames.append(bytes(frame.data)), news.set())  # type: ignore[func-returns-value]

    async def body(_: trio.Nursery) -> None:
        nonlocal news
        await trio.lowlevel.wait_writable(link.fileno())
        runtime.add_link(link)
        for number in (b"one", b"two"):
            news = trio.Event()
            peer.send(number)
            await news.wait()
            await trio.lowlevel.wait_writable(link.fileno())

    trio.run(with_runtime, runtime, body)
    assert frames == [b"one", b"two"]


def test_all_tasks_are_not_blocked_while_the_stack_asks_for_passes() -> None:
    runtime = RealRuntime(burst=1)
    left = 20

    def again() -> None:
        nonlocal left
        if left:
            left -= 1
            runtime.kick()

    async def body(_: trio.Nursery) -> None:
        await next_turns()
        runtime.after_pass.append(again)
        runtime.kick()
        await trio.testing.wait_all_tasks_blocked()
        assert not left

    trio.run(with_runtime, runtime, body)


def test_an_error_in_the_turn_in_which_the_runtime_is_cancelled_is_told() -> None:
    runtime = RealRuntime()

    def broken() -> None:
        raise ZeroDivisionError("a bug in a callback")

    async def body(nursery: trio.Nursery) -> None:
        await next_turns()
        runtime.after_pass.append(broken)
        runtime.kick()
        nursery.cancel_scope.cancel()

    with pytest.raises(ExceptionGroup) as raised:
        trio.run(with_runtime, runtime, body)
    assert raised.group_contains(ZeroDivisionError, match="a bug in a callback")


@pytest.mark.parametrize("when", ["join", "leave"])
def test_an_interrupt_while_the_runtime_begins_or_ends_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    real_one = getattr(DeviceLoop, when)
    runtime = RealRuntime()
    before = len(os.listdir("/proc/self/fd"))

    def interrupted(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real_one(*args)

    async def body(_: trio.Nursery) -> None:
        await next_turns()

    with monkeypatch.context() as patch:
        patch.setattr(DeviceLoop, when, interrupted)
        with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)):
            trio.run(with_runtime, runtime, body)
    assert runtime.loop is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_child_that_forks_and_unwinds_takes_nothing_from_its_parent(pair: tuple[SocketLink, socket.socket]) -> None:
    link, peer = pair
    runtime = RealRuntime()
    runtime.add_link(link)
    got = trio.Event()
    link.rx = lambda frame: got.set()

    async def body(_: trio.Nursery) -> None:
        await next_turns()
        child = os.fork()
        if not child:
            runtime._stop()
            os._exit(0)
        os.waitpid(child, 0)
        peer.send(b"any")
        await got.wait()

    trio.run(with_runtime, runtime, body)
    assert got.is_set()


def test_a_trio_that_is_built_differently_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Runner:
        io_manager = object()

    with pytest.raises(RuntimeError, match=f"trio {trio.__version__} keeps its descriptors"):
        DeviceLoop(Runner())


def test_a_stack_lives_in_a_trio_that_is_a_guest_of_another_loop(pair: tuple[SocketLink, socket.socket]) -> None:
    link, peer = pair
    calls: queue.Queue[Callable[[], object]] = queue.Queue()
    ended: list[Outcome[None]] = []
    log: list[str] = []
    runtime = RealRuntime()
    asleep, news = threading.Event(), trio.Event()
    link.rx = lambda frame: (log.append(f"frame in {threading.current_thread().name}"), news.set())  # type: ignore[func-returns-value]
    runtime.add_link(link)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(runtime.run)
            await trio.sleep(0.01)
            kicked = trio.Event()
            runtime.after_pass.append(kicked.set)
            asleep.set()
            await kicked.wait()
            log.append("kicked")
            peer.send(b"any")
            await news.wait()
            nursery.cancel_scope.cancel()

    trio.lowlevel.start_guest_run(main, run_sync_soon_threadsafe=calls.put, done_callback=ended.append, host_uses_signal_set_wakeup_fd=True)
    while not ended:
        if asleep.is_set():
            time.sleep(0.02)  # trio's thread waits for descriptors now
            asleep.clear()
            runtime.kick()  # by the host loop, outside trio
        calls.get(timeout=10)()
    ended[0].unwrap()
    assert log == ["kicked", f"frame in {threading.current_thread().name}"]
