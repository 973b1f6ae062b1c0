"""The timer heap: order, ties, cancelling, and what the driver is told."""

from __future__ import annotations

from pytcp.clock.heap import TimerHeap


def test_timers_run_in_order_of_time_and_ties_in_the_order_they_were_set() -> None:
    heap = TimerHeap()
    ran: list[str] = []
    heap.call_at(20, lambda: ran.append("late"))
    heap.call_at(10, lambda: ran.append("first"))
    heap.call_at(10, lambda: ran.append("second"))
    heap.now_ns = 20
    assert heap.run_due() == 3
    assert ran == ["first", "second", "late"]


def test_a_timer_does_not_run_before_its_time() -> None:
    heap = TimerHeap(now_ns=100)
    timer = heap.call_later(50, lambda: None)
    heap.now_ns = 149
    assert heap.run_due() == 0
    assert timer.active
    heap.now_ns = 150
    assert heap.run_due() == 1
    assert not timer.active


def test_a_cancelled_timer_neither_runs_nor_counts_as_a_deadline() -> None:
    heap = TimerHeap()
    ran: list[int] = []
    heap.call_at(10, lambda: ran.append(10)).cancel()
    heap.call_at(30, lambda: ran.append(30))
    assert heap.next_deadline() == 30
    assert len(heap) == 1
    heap.now_ns = 30
    heap.run_due()
    assert ran == [30]


def test_a_timer_set_for_now_by_a_running_timer_runs_in_the_same_turn() -> None:
    heap = TimerHeap(now_ns=5)
    ran: list[str] = []

    def outer() -> None:
        ran.append("outer")
        heap.call_later(0, lambda: ran.append("inner"))

    heap.call_at(5, outer)
    heap.run_due()
    assert ran == ["outer", "inner"]


def test_the_limit_leaves_due_timers_for_the_next_turn() -> None:
    heap = TimerHeap(now_ns=1)
    ran: list[int] = []
    for i in range(5):
        heap.call_at(0, lambda i=i: ran.append(i))  # type: ignore[misc]
    assert heap.run_due(limit=2) == 2
    assert ran == [0, 1]
    assert heap.run_due() == 3


def test_the_driver_hears_only_of_deadlines_that_are_earlier_than_all_others() -> None:
    heap = TimerHeap()
    told: list[int] = []
    heap.on_earlier = told.append
    heap.call_at(100, lambda: None)
    heap.call_at(200, lambda: None)
    heap.call_at(50, lambda: None)
    assert told == [100, 50]
