"""The real-time runtime under trio, on links made of socket pairs. Nothing here asserts on speed."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from pytcp.clock.real import RealRuntime
from pytcp.link.frame import RxFrame

from .real_rig import MS, Settings, SocketLink, with_runtime


def test_a_frame_that_arrives_is_handed_up_and_the_batch_is_closed_once(pair: tuple[SocketLink, socket.socket]) -> None:
    link, peer = pair
    runtime = RealRuntime()
    log: list[bytes] = []
    ended = trio.Event()
    link.rx = lambda frame: log.append(bytes(frame.data))

    def rx_end() -> None:
        log.append(b"end")
        ended.set()

    link.rx_end = rx_end
    runtime.add_link(link)
    peer.send(b"one")
    peer.send(b"two")

    async def body(_: trio.Nursery) -> None:
        await ended.wait()

    trio.run(with_runtime, runtime, body)
    assert log == [b"one", b"two", b"end"]


def test_a_link_may_be_added_while_running_and_is_left_alone_once_removed(pair: tuple[SocketLink, socket.socket]) -> None:
    link, peer = pair
    runtime = RealRuntime()
    got = trio.Event()
    frames: list[bytes] = []

    def rx(frame: RxFrame) -> None:
        frames.append(bytes(frame.data))
        got.set()

    link.rx = rx

    async def body(_: trio.Nursery) -> None:
        runtime.add_link(link)
        peer.send(b"heard")
        await got.wait()
        runtime.remove_link(link)
        peer.send(b"unheard")
        runtime.kick()
        await trio.sleep(0.01)

    trio.run(with_runtime, runtime, body)
    assert frames == [b"heard"]
    assert link.sock.recv(100) == b"unheard"


def test_timers_run_at_or_after_their_time_and_in_order() -> None:
    runtime = RealRuntime()
    lateness: list[int] = []
    order: list[int] = []
    done = trio.Event()

    def set_timer(when_ns: int, number: int) -> None:
        def fire() -> None:
            lateness.append(time.monotonic_ns() - when_ns)
            order.append(number)
            if len(order) == 3:
                done.set()

        runtime.heap.call_at(when_ns, fire)

    async def body(_: trio.Nursery) -> None:
        start = runtime.now()
        set_timer(start + 3 * MS, 2)
        set_timer(start + 1 * MS, 0)
        set_timer(start + 2 * MS, 1)
        await done.wait()

    trio.run(with_runtime, runtime, body)
    assert order == [0, 1, 2]
    assert min(lateness) >= 0


def test_a_timer_set_by_a_timer_is_kept_although_deadlines_are_looked_at_once_per_burst() -> None:
    runtime = RealRuntime()
    done = trio.Event()

    def first() -> None:
        runtime.heap.call_later(MS, done.set)

    async def body(_: trio.Nursery) -> None:
        runtime.heap.call_later(MS, first)
        await done.wait()

    trio.run(with_runtime, runtime, body)
    assert done.is_set()


def test_a_timer_set_before_the_run_started_is_kept() -> None:
    runtime = RealRuntime()
    done = trio.Event()
    runtime.heap.call_later(MS, done.set)

    async def body(_: trio.Nursery) -> None:
        await done.wait()

    trio.run(with_runtime, runtime, body)


def test_many_kicks_from_a_program_are_one_pass_and_none_runs_inside_the_call() -> None:
    runtime = RealRuntime()
    counts: list[int] = []

    async def body(_: trio.Nursery) -> None:
        await trio.sleep(0.01)
        before = runtime.passes
        for _i in range(100):
            runtime.kick()
        counts.append(runtime.passes - before)
        for _turn in range(10):  # without letting the loop sleep: waking, it has a pass of its own
            await trio.lowlevel.checkpoint()
        counts.append(runtime.passes - before)

    trio.run(with_runtime, runtime, body)
    assert counts == [0, 1]


def test_a_kick_before_the_run_is_answered_by_its_first_pass() -> None:
    runtime = RealRuntime()
    passes: list[int] = []
    runtime.kick()

    async def body(_: trio.Nursery) -> None:
        await trio.sleep(0.01)
        passes.append(runtime.passes)

    trio.run(with_runtime, runtime, body)
    assert passes[0] >= 1


def test_an_event_due_now_set_by_a_program_or_at_the_end_of_a_pass_gets_a_pass() -> None:
    runtime = RealRuntime()
    order: list[str] = []
    done = trio.Event()

    def finish() -> None:
        order.append("completion")
        done.set()

    def after() -> None:
        if order == ["timer"]:
            order.append("flush")
            runtime.heap.call_later(0, finish)

    async def body(_: trio.Nursery) -> None:
        runtime.after_pass.append(after)
        runtime.now()
        runtime.heap.call_later(0, lambda: order.append("timer"))
        await done.wait()

    trio.run(with_runtime, runtime, body)
    assert order == ["timer", "flush", "completion"]


def test_a_link_that_never_runs_dry_does_not_starve_program_tasks(pair: tuple[SocketLink, socket.socket]) -> None:
    link, _peer = pair
    runtime = RealRuntime()
    link.poll = lambda budget: budget  # type: ignore[method-assign]  # always as many frames as it may
    runtime.add_link(link)
    turns: list[int] = []

    async def body(_: trio.Nursery) -> None:
        runtime.kick()
        for _i in range(50):
            await trio.lowlevel.checkpoint()
            turns.append(runtime.passes)

    trio.run(with_runtime, runtime, body)
    assert len(turns) == 50
    assert turns[-1] - turns[0] >= 40  # passes and program take turns, give or take what trio's other tasks do


def test_kicks_without_end_do_not_starve_program_tasks() -> None:
    runtime = RealRuntime(burst=4)
    turns: list[int] = []

    async def body(_: trio.Nursery) -> None:
        runtime.after_pass.append(runtime.kick)
        runtime.kick()
        for _i in range(10):
            await trio.lowlevel.checkpoint()
            turns.append(runtime.passes)
        runtime.after_pass.clear()

    trio.run(with_runtime, runtime, body)
    assert 0 < turns[-1] - turns[0] <= 4 * 10


def test_a_device_that_vanished_is_dropped_and_reported_and_the_rest_goes_on(pair: tuple[SocketLink, socket.socket]) -> None:
    link, peer = pair
    runtime = RealRuntime()
    down: list[tuple[object, int | None]] = []
    runtime.link_down.append(lambda which, error: down.append((which, error.errno)))
    runtime.add_link(link)
    fired = trio.Event()

    async def body(_: trio.Nursery) -> None:
        link.gone = True
        peer.send(b"wake")
        await trio.sleep(0.01)
        runtime.heap.call_later(MS, fired.set)
        await fired.wait()

    trio.run(with_runtime, runtime, body)
    assert down == [(link, 77)]
    assert runtime.links == []


def test_an_error_in_a_callback_ends_the_run_with_that_error() -> None:
    runtime = RealRuntime()

    def broken() -> None:
        raise ZeroDivisionError

    async def body(_: trio.Nursery) -> None:
        runtime.now()
        runtime.heap.call_later(0, broken)
        await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(with_runtime, runtime, body)
    assert caught.value.subgroup(ZeroDivisionError) is not None


def test_the_runtime_runs_once_at_a_time_and_again_after_it_was_cancelled() -> None:
    runtime = RealRuntime()
    fired: list[int] = []

    async def body(_: trio.Nursery) -> None:
        with pytest.raises(RuntimeError, match="already running"):
            await runtime.run()
        event = trio.Event()
        runtime.heap.call_later(MS, event.set)
        await event.wait()
        fired.append(1)

    before = len(os.listdir("/proc/self/fd"))
    trio.run(with_runtime, runtime, body)
    trio.run(with_runtime, runtime, body)
    assert fired == [1, 1]
    assert len(os.listdir("/proc/self/fd")) == before


# --- woken from sleep by a device ---


def while_asleep(act: Callable[[], object]) -> threading.Thread:
    """Does `act` from another thread a little later, so that the loop has gone to sleep by then."""
    timer = threading.Timer(0.02, act)
    timer.start()
    return timer


class Turns(trio.abc.Instrument):
    """Counts the turns of trio's loop."""

    def __init__(self) -> None:
        self.turn = 0

    def before_io_wait(self, timeout: float) -> None:
        self.turn += 1


def test_a_program_runs_in_the_same_turn_as_the_frame_that_wakes_it(pair: tuple[SocketLink, socket.socket]) -> None:
    link, peer = pair
    runtime = RealRuntime()
    turns = Turns()
    got = trio.Event()
    seen: list[int] = []

    def rx(frame: RxFrame) -> None:
        seen.append(turns.turn)
        got.set()

    link.rx = rx
    runtime.add_link(link)

    async def body(_: trio.Nursery) -> None:
        trio.lowlevel.add_instrument(turns)
        thread = while_asleep(lambda: peer.send(b"wake up"))
        await got.wait()
        seen.append(turns.turn)
        thread.join()

    trio.run(with_runtime, runtime, body)
    assert seen[0] == seen[1]


def test_what_a_frame_leaves_to_do_is_done_after_the_programs_had_a_turn(pair: tuple[SocketLink, socket.socket]) -> None:
    link, peer = pair
    runtime = RealRuntime(budget=1, burst=1)
    log: list[str] = []
    first, last = trio.Event(), trio.Event()

    def rx(frame: RxFrame) -> None:
        log.append(bytes(frame.data).decode())
        (last if len(log) > 2 else first).set()

    link.rx = rx
    runtime.add_link(link)

    def two() -> None:
        peer.send(b"one")
        peer.send(b"two")

    async def body(_: trio.Nursery) -> None:
        thread = while_asleep(two)
        await first.wait()
        log.append("program")
        await last.wait()
        thread.join()

    trio.run(with_runtime, runtime, body)
    assert log == ["one", "program", "two"]


def test_an_error_in_a_pass_that_a_frame_woke_is_raised_where_the_runtime_runs(pair: tuple[SocketLink, socket.socket]) -> None:
    link, peer = pair
    runtime = RealRuntime()

    def rx(frame: RxFrame) -> None:
        raise ZeroDivisionError("a bug in a callback")

    link.rx = rx
    runtime.add_link(link)
    thread = while_asleep(lambda: peer.send(b"any"))
    with pytest.raises(ZeroDivisionError, match="a bug in a callback"):
        trio.run(runtime.run)
    thread.join()

    async def body(_: trio.Nursery) -> None:
        await trio.sleep(0.01)

    trio.run(with_runtime, runtime, body)  # told once


# --- net.core.busy_poll ---


class Looks:
    """The loop's look at its descriptors, counting how often it sleeps and how often it only looks."""

    def __init__(self, poll: Callable[[float, int], Any]) -> None:
        self.poll = poll
        self.count = 0

    def __call__(self, timeout: float, size: int) -> Any:
        if timeout == 0:
            self.count += 1
        return self.poll(timeout, size)


def looks_and_frames(busy_poll: int) -> tuple[int, int, int]:
    """Five frames to a loop that has nothing else to do, 2 ms apart: how often the devices were looked at, how many frames came, and how
    many looks one more frame brings when the setting is off again."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    link = SocketLink(near)
    came = 0
    news = trio.Event()

    def rx(frame: RxFrame) -> None:
        nonlocal came
        came += 1
        news.set()

    link.rx = rx

    async def frame() -> None:
        nonlocal news
        news = trio.Event()
        thread = threading.Timer(0.002, far.send, (b"a frame",))
        thread.start()
        await news.wait()
        thread.join()

    async def main() -> tuple[int, int, int]:
        runtime = RealRuntime()
        tunables = runtime.tunables = Settings(busy_poll)
        runtime.add_link(link)
        async with trio.open_nursery() as nursery:
            await nursery.start(runtime.run)
            loop = runtime.loop
            assert loop is not None
            loop.poll = looks = Looks(loop.poll)
            for _ in range(5):
                await frame()
            watched = looks.count
            tunables.busy_poll = 0
            await frame()  # is still watched for, and its pass sees that it is the last
            await trio.testing.wait_all_tasks_blocked()
            before = looks.count
            await frame()
            after = looks.count
            nursery.cancel_scope.cancel()
        return watched, came, after - before

    try:
        return trio.run(main)
    finally:
        near.close()
        far.close()


def test_without_busy_poll_the_loop_sleeps_at_once() -> None:
    looks, frames, afterwards = looks_and_frames(0)
    assert frames == 7
    assert looks <= 10  # of turns that had something to run
    assert afterwards <= 2


def test_with_busy_poll_they_are_looked_at_until_a_frame_comes_and_no_more_when_it_is_off_again() -> None:
    looks, frames, afterwards = looks_and_frames(60_000_000)
    assert frames == 7
    assert looks > 50
    assert afterwards <= 2


def test_busy_poll_ends_after_its_time() -> None:
    looks, frames, _ = looks_and_frames(1)
    assert frames == 7
    assert looks < 50
