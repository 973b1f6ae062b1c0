"""Virtual time: the runtime without trio, trio programs on it, determinism, and runs that would hang."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
import trio
import trio.testing

from pytcp.clock import trio_private
from pytcp.clock.virtual import EPOCH_NS, VirtualClock, VirtualDeadlock, VirtualRuntime, run
from pytcp.link.frame import TxFrame
from pytcp.link.pipe import pipe_pair

SECOND = 1_000_000_000


def test_time_jumps_from_event_to_event_and_ends_where_it_was_told_to() -> None:
    runtime = VirtualRuntime()
    seen: list[int] = []
    for when in (7, 3 * SECOND, 5 * SECOND):
        runtime.heap.call_at(when, lambda: seen.append(runtime.now()))
    runtime.run_until(4 * SECOND)
    assert seen == [7, 3 * SECOND]
    assert runtime.now() == 4 * SECOND
    runtime.run_for(SECOND)
    assert seen == [7, 3 * SECOND, 5 * SECOND]


def test_events_exactly_at_the_end_of_a_run_belong_to_it() -> None:
    runtime = VirtualRuntime()
    seen: list[int] = []
    runtime.heap.call_at(10, lambda: seen.append(10))
    runtime.run_until(10)
    assert seen == [10]


def test_the_wall_clock_moves_with_virtual_time() -> None:
    runtime = VirtualRuntime()
    runtime.run_for(42)
    assert runtime.realtime_ns() == EPOCH_NS + 42


def test_a_pass_reaps_first_then_runs_timers_then_delivers() -> None:
    runtime = VirtualRuntime()
    order: list[str] = []
    runtime.before_pass.append(lambda: order.append("before"))
    runtime.after_pass.append(lambda: order.append("after"))
    runtime.heap.call_at(5, lambda: order.append("timer"))
    runtime.run_until_idle()
    assert order == ["before", "timer", "after"]


def test_a_kick_runs_one_more_pass_at_the_same_instant_however_often_it_is_asked_for() -> None:
    runtime = VirtualRuntime()
    runtime.run_until(99)
    passes = runtime.passes
    runtime.kick()
    runtime.kick()
    assert runtime.passes == passes  # never inside the call
    assert runtime.run_until_idle() == 99
    assert runtime.passes == passes + 1


def test_a_kick_from_the_end_of_a_pass_is_not_lost() -> None:
    runtime = VirtualRuntime()
    times: list[int] = []

    def after() -> None:
        times.append(runtime.now())
        if len(times) < 3:
            runtime.kick()

    runtime.after_pass.append(after)
    runtime.heap.call_at(8, lambda: None)
    runtime.run_until_idle()
    assert times == [8, 8, 8]


def test_running_until_idle_says_when_the_world_never_becomes_idle() -> None:
    runtime = VirtualRuntime()

    def again() -> None:
        runtime.heap.call_later(SECOND, again)

    again()
    with pytest.raises(VirtualDeadlock, match="still busy"):
        runtime.run_until_idle(limit_ns=10 * SECOND)


def test_passes_without_end_at_one_instant_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytcp.clock.virtual.STANDSTILL", 100)
    runtime = VirtualRuntime()
    runtime.after_pass.append(runtime.kick)
    runtime.kick()
    with pytest.raises(VirtualDeadlock, match="keeps asking"):
        runtime.run_for(1)


def test_a_real_device_is_refused() -> None:
    class Device:
        name = "eth9"

        def fileno(self) -> int:
            return 3

    with pytest.raises(ValueError, match="eth9"):
        VirtualRuntime().add_link(Device())  # type: ignore[arg-type]


# --- under trio ---


def test_an_hour_of_sleep_passes_at_once_and_is_an_hour_on_trios_clock() -> None:
    async def main() -> float:
        start = trio.current_time()
        await trio.sleep(3600)
        return trio.current_time() - start

    began = time.monotonic()
    assert run(main) == 3600
    assert time.monotonic() - began < 60


def test_timeouts_and_heap_events_share_one_order_of_time() -> None:
    clock = VirtualClock()
    log: list[str] = []

    async def main() -> None:
        event = trio.Event()

        def in_the_stack() -> None:
            log.append("heap 1.5")
            event.set()

        clock.runtime.heap.call_at(1_500_000_000, in_the_stack)
        with trio.move_on_after(1) as scope:
            await event.wait()
        log.append(f"timeout {scope.cancelled_caught} at {trio.current_time():g}")
        await event.wait()
        log.append(f"woken at {trio.current_time():g}")

    run(main, clock=clock)
    assert log == ["timeout True at 1", "heap 1.5", "woken at 1.5"]


def test_at_the_same_instant_the_stack_runs_before_a_timeout_expires() -> None:
    clock = VirtualClock()

    async def main() -> bool:
        event = trio.Event()
        clock.runtime.heap.call_at(SECOND, event.set)
        with trio.move_on_after(1):
            await event.wait()
        return event.is_set()

    assert run(main, clock=clock)


@pytest.mark.parametrize("deadline", [0.1 + 0.2, 1 / 3, 12345.678901, 1e-9, 5e6 + 0.1])
def test_deadlines_that_are_no_whole_nanoseconds_expire(deadline: float) -> None:
    async def main() -> float:
        await trio.sleep_until(deadline)
        return trio.current_time()

    reached = run(main)
    assert deadline <= reached < deadline + 1e-6


@pytest.mark.parametrize("deadline", [-math.inf, -5.0, 1.0])
def test_a_deadline_moved_into_the_past_expires_without_time_passing(deadline: float) -> None:
    async def main() -> float:
        await trio.sleep_until(2)
        with trio.CancelScope() as scope:
            scope.deadline = deadline
            await trio.sleep_forever()
        return trio.current_time()

    assert run(main) == 2


def test_time_stands_still_while_a_thread_works() -> None:
    clock = VirtualClock()
    clock.runtime.heap.call_at(5, lambda: None)

    async def main() -> int:
        await trio.to_thread.run_sync(time.sleep, 0.05)
        return clock.runtime.now()

    assert run(main, clock=clock) == 0


def test_wait_all_tasks_blocked_returns_before_time_advances() -> None:
    clock = VirtualClock()
    clock.runtime.heap.call_at(5, lambda: None)

    async def main() -> int:
        await trio.testing.wait_all_tasks_blocked()
        return clock.runtime.now()

    assert run(main, clock=clock) == 0


def test_a_call_through_the_trio_token_is_made_before_time_advances() -> None:
    clock = VirtualClock()

    async def main() -> int:
        event = trio.Event()
        clock.runtime.heap.call_at(7 * SECOND, lambda: None)
        trio.lowlevel.current_trio_token().run_sync_soon(event.set)
        await event.wait()
        return clock.runtime.now()

    assert run(main, clock=clock) == 0


def test_a_program_that_waits_for_nothing_gets_an_error_instead_of_hanging() -> None:
    async def main() -> None:
        await trio.sleep(2)
        await trio.sleep_forever()

    with pytest.raises(VirtualDeadlock, match="at 2000000000 ns"):
        run(main)


def test_a_deadlock_is_reported_even_when_the_program_swallows_it() -> None:
    async def main() -> str:
        try:
            await trio.sleep_forever()
        except VirtualDeadlock:
            await trio.sleep(1)
        return "went on"

    with pytest.raises(VirtualDeadlock):
        run(main)


def test_without_the_helper_the_deadlock_is_raised_in_the_main_task() -> None:
    with pytest.raises(VirtualDeadlock):
        trio.run(trio.sleep_forever, clock=VirtualClock())


def test_a_deadlock_of_child_tasks_is_reported_as_such_and_not_as_a_group() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)

    with pytest.raises(VirtualDeadlock):
        run(main)


def test_a_shield_does_not_keep_a_deadlock_from_being_reported() -> None:
    async def main() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    with pytest.raises(VirtualDeadlock):
        run(main)


def test_an_error_in_a_callback_of_the_stack_reaches_the_caller_of_run() -> None:
    clock = VirtualClock()

    def broken() -> None:
        raise ZeroDivisionError("in a timer")

    clock.runtime.heap.call_at(1, broken)
    with pytest.raises(ZeroDivisionError, match="in a timer"):
        run(trio.sleep, 5, clock=clock)


def test_an_error_of_the_program_is_its_own() -> None:
    async def main() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run(main)


def test_runtime_run_waits_as_the_real_one_does() -> None:
    clock = VirtualClock()

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            await nursery.start(clock.runtime.run)
            await trio.sleep(3)
            nursery.cancel_scope.cancel()
        return trio.current_time()

    assert run(main, clock=clock) == 3


def _ping_pong(seed: int) -> list[tuple[int, bytes]]:
    """Eight tasks throw frames over a pipe; the other end throws each back. The log is the wire."""
    clock = VirtualClock()
    runtime = clock.runtime
    near, far = pipe_pair(runtime.heap, delay_ns=(1_000, 2_000))
    wire: list[tuple[int, bytes]] = []
    waiting: dict[int, trio.Event] = {}

    def far_rx(frame: object) -> None:
        data = bytes(frame.data)  # type: ignore[attr-defined]
        wire.append((runtime.now(), data))
        far.send([TxFrame(data)])

    far.rx = far_rx
    near.rx = lambda frame: waiting.pop(frame.data[0]).set()
    runtime.add_link(near)
    runtime.add_link(far)

    async def player(number: int) -> None:
        for round_ in range(20):
            waiting[number] = trio.Event()
            near.send([TxFrame(bytes((number, round_)))])
            await waiting[number].wait()
            if number % 3 == 0:
                await trio.sleep(0.000_001)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(player, number)

    run(main, seed=seed, clock=clock)
    return wire


def test_two_runs_with_one_seed_give_the_same_frames_at_the_same_nanoseconds() -> None:
    first = _ping_pong(seed=7)
    assert len(first) == 160
    assert _ping_pong(seed=7) == first


def test_another_seed_schedules_tasks_in_another_order() -> None:
    orders = {tuple(data for _, data in _ping_pong(seed)) for seed in range(6)}
    assert len(orders) > 1


def test_trios_own_scheduling_is_restored_afterwards() -> None:
    from trio._core import _run

    # hypothesis's plugin may have switched it on for the whole test run
    before = (_run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate())
    run(trio.sleep, 1)
    assert (_run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()) == before


def test_determinism_is_restored_when_the_run_fails() -> None:
    from trio._core import _run

    before = _run._ALLOW_DETERMINISTIC_SCHEDULING
    with pytest.raises(KeyError), trio_private.deterministic(1):
        assert _run._ALLOW_DETERMINISTIC_SCHEDULING is True
        raise KeyError
    assert _run._ALLOW_DETERMINISTIC_SCHEDULING is before


def test_an_infinite_deadline_is_no_deadline() -> None:
    clock = VirtualClock()
    seen: list[int] = []
    action: Callable[[], None] = lambda: seen.append(clock.runtime.now())  # noqa: E731
    clock.runtime.heap.call_at(10 * SECOND, action)

    async def main() -> None:
        event = trio.Event()
        clock.runtime.heap.call_at(20 * SECOND, event.set)
        with trio.CancelScope(deadline=math.inf):
            await event.wait()

    run(main, clock=clock)
    assert seen == [10 * SECOND]
