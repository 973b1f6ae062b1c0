"""The real-time runtime under trio, on links made of socket pairs. Nothing here asserts on speed."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from outcome import Outcome
from trio._core import _run

from pytcp.clock import real, trio_private
from pytcp.clock.real import RealRuntime
from pytcp.clock.trio_private import DeviceLoop
from pytcp.link.frame import LinkDown, RxFrame, TxFrame

MS = 1_000_000


def trio_runner() -> Any:
    """What runs this thread's trio."""
    return _run.GLOBAL_RUN_CONTEXT.runner


class SocketLink:
    """A link over one end of a datagram socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.name = "pair"
        self.mac = b""
        self.mtu = 1500
        self.features = 0
        self.gso_max_size = 65536
        self.rx: Callable[[RxFrame], None] = lambda frame: None
        self.rx_end: Callable[[], None] = lambda: None
        self.gone = False

    def fileno(self) -> int:
        return self.sock.fileno()

    def poll(self, budget: int) -> int:
        if self.gone:
            raise LinkDown(77, "pair: gone")
        count = 0
        while count < budget:
            try:
                data = self.sock.recv(2048)
            except BlockingIOError:
                break
            self.rx(RxFrame(memoryview(data)))
            count += 1
        if count:
            self.rx_end()
        return count

    def send(self, frames: Sequence[TxFrame]) -> int:
        raise AssertionError("not used")

    def close(self) -> None:
        self.sock.close()


@pytest.fixture
def pair() -> object:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    yield SocketLink(ours), theirs
    ours.close()
    theirs.close()


async def with_runtime(runtime: RealRuntime, body: Callable[[trio.Nursery], object]) -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(runtime.run)
            await body(nursery)  # type: ignore[misc]
            nursery.cancel_scope.cancel()


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


class Settings:
    def __init__(self, busy_poll: int, halt_poll: int = 0) -> None:
        self.busy_poll = busy_poll
        self.halt_poll = halt_poll


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


# --- pytcp.halt_poll ---


@pytest.mark.parametrize(("gap_ns", "awake"), [(5_000, True), (50_000, True), (2 * MS, False)])
def test_after_a_short_wait_the_loop_looks_before_it_sleeps(monkeypatch: pytest.MonkeyPatch, gap_ns: int, awake: bool) -> None:
    """Frames come every `gap_ns`, on a clock of our own: whether the loop waits for the third one by looking, not by sleeping."""
    monkeypatch.setattr(real, "_CPUS", 2)
    now = 0
    due = gap_ns
    slept: list[bool] = []

    def poll(timeout: float, size: int) -> list[tuple[int, int]]:
        nonlocal now, due
        if timeout > 0:
            now = max(now, due)
        else:
            now += 1_000
        if now < due:
            return []
        slept.append(timeout > 0)
        due = now + gap_ns
        return [(99, 1)]

    async def main() -> None:
        runtime = RealRuntime()
        runtime.tunables = Settings(0, halt_poll=100)
        loop = DeviceLoop(trio_runner())
        loop._served = (runtime,)
        loop.poll = poll
        monkeypatch.setattr(trio_private.time, "monotonic_ns", lambda: now)
        for _ in range(3):
            assert loop.get_events(10) == [(99, 1)]

    trio.run(main)
    assert slept == [True, not awake, not awake]


def test_on_a_single_processor_nobody_could_answer_a_loop_that_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = RealRuntime()
    runtime.tunables = Settings(0, halt_poll=50)
    for processors, until_ns in ((2, 51_000), (1, 0)):
        monkeypatch.setattr(real, "_CPUS", processors)
        assert runtime.awake_until_ns(1_000, short=True) == until_ns
        assert runtime.awake_until_ns(1_000, short=False) == 0


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


def test_a_descriptor_that_was_closed_unseen_keeps_nothing_from_who_has_its_number_next(pair: tuple[SocketLink, socket.socket]) -> None:
    link, _peer = pair
    runtime = RealRuntime()
    runtime.add_link(link)

    async def body(_: trio.Nursery) -> None:
        await trio.sleep(0)
        fd = link.fileno()
        near, far = socket.socketpair()
        link.gone = True
        os.dup2(near.fileno(), fd)  # closes the link's descriptor and takes its number
        near.close()
        timer = threading.Timer(0.01, far.send, (b"mine",))
        timer.start()
        await trio.lowlevel.wait_readable(fd)
        timer.join()
        assert os.read(fd, 10) == b"mine"
        far.close()

    trio.run(with_runtime, runtime, body)
    assert runtime.links == []


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
