"""How tasks wait for a socket: no wake is lost, none is given twice, nothing stays behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI

import pytest
import trio
import trio.testing

from pytcp.sockets.waiting import Waiter

POLLRDHUP = 0x2000


def run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("event", [POLLIN, POLLPRI, POLLRDHUP, POLLERR, POLLHUP, POLLIN | POLLOUT])
def test_a_read_event_wakes_the_reader(event: int) -> None:
    async def main() -> None:
        waiter = Waiter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.park_reader)
            await trio.testing.wait_all_tasks_blocked()
            assert waiter.reader is not None
            waiter(event)
            assert waiter.reader is None

    run(main)


@pytest.mark.parametrize("event", [POLLOUT, POLLERR, POLLHUP])
def test_a_write_event_wakes_the_writer(event: int) -> None:
    async def main() -> None:
        waiter = Waiter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.park_writer)
            await trio.testing.wait_all_tasks_blocked()
            waiter(event)
            assert waiter.writer is None

    run(main)


def test_an_event_of_the_other_direction_wakes_nobody() -> None:
    async def main() -> None:
        waiter = Waiter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.park_reader)
            nursery.start_soon(waiter.park_writer)
            await trio.testing.wait_all_tasks_blocked()
            waiter(POLLOUT)
            assert waiter.reader is not None
            await trio.testing.wait_all_tasks_blocked()
            waiter(POLLIN)
            assert waiter.writer is None

    run(main)


def test_several_notices_before_the_task_runs_are_one_wake_up() -> None:
    runs: list[str] = []

    async def main() -> None:
        waiter = Waiter()

        async def reader() -> None:
            await waiter.park_reader()
            runs.append("woken")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                waiter(POLLIN)

    run(main)
    assert runs == ["woken"]


def test_a_notice_without_a_sleeper_is_forgotten_because_the_level_tells() -> None:
    async def main() -> None:
        waiter = Waiter()
        level = 0
        waiter(POLLIN)
        with trio.move_on_after(1) as scope:
            await waiter.until_readable(lambda: level)
        assert scope.cancelled_caught
        level = POLLIN
        with trio.fail_after(1):
            await waiter.until_readable(lambda: level)

    run(main)


def test_a_stale_wake_costs_one_look_and_the_wait_goes_on() -> None:
    looks: list[int] = []

    async def main() -> None:
        waiter = Waiter()
        level = 0

        def poll() -> int:
            looks.append(level)
            return level

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.until_writable, poll)
            await trio.testing.wait_all_tasks_blocked()
            waiter(POLLOUT)
            await trio.testing.wait_all_tasks_blocked()
            level = POLLOUT
            waiter(POLLOUT)

    run(main)
    assert looks == [0, 0, POLLOUT]


def test_waiting_for_what_is_there_already_is_still_a_checkpoint() -> None:
    async def main() -> None:
        waiter = Waiter()
        with trio.testing.assert_checkpoints():
            await waiter.until_readable(lambda: POLLIN)
        with trio.testing.assert_checkpoints():
            await waiter.until_writable(lambda: POLLOUT)
        with trio.CancelScope() as scope:
            scope.cancel()
            await waiter.until_readable(lambda: POLLIN)
        assert scope.cancelled_caught

    run(main)


def test_a_second_task_in_the_same_direction_is_told_that_it_is_busy() -> None:
    async def main() -> None:
        waiter = Waiter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.park_reader)
            nursery.start_soon(waiter.park_writer)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError, match="reading"):
                await waiter.park_reader()
            with pytest.raises(trio.BusyResourceError, match="writing"):
                await waiter.park_writer()
            # the first ones still sleep and can be woken
            waiter(POLLIN | POLLOUT)

    run(main)


def test_cancellation_leaves_the_place_free() -> None:
    async def main() -> None:
        waiter = Waiter()
        for park in (waiter.park_reader, waiter.park_writer):
            with trio.move_on_after(1):
                await park()
        assert waiter.reader is None
        assert waiter.writer is None
        waiter(POLLIN | POLLOUT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.park_reader)
            await trio.testing.wait_all_tasks_blocked()
            waiter(POLLIN)

    run(main)


def test_a_wake_wins_over_a_cancellation_that_comes_after_it() -> None:
    async def main() -> None:
        waiter = Waiter()
        outcome: list[str] = []

        async def reader(scope: trio.CancelScope) -> None:
            with scope:
                await waiter.park_reader()
                outcome.append("woken")

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(reader, scope)
            await trio.testing.wait_all_tasks_blocked()
            waiter(POLLIN)
            scope.cancel()
        assert outcome == ["woken"]

    run(main)
