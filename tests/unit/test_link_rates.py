"""Rates that vary: a function of time, a mahimahi trace; and the event-driven bottleneck that they, and queues that decide at departure, need."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.aqm import CoDel, DropTail, Red
from pytcp.link.bottleneck import Bottleneck
from pytcp.link.emulator import Direction, Impairment
from pytcp.link.rates import Constant, Rate, Since, Trace, Varying

MS = 1_000_000
SECOND = 1_000_000_000


class Wire:
    """One direction in virtual time; packets are numbered and `size` long."""

    def __init__(self, size: int = 1500, **impairment: Any) -> None:
        self.runtime = VirtualRuntime()
        self.size = size
        self.arrived: list[tuple[int, int]] = []
        self.direction = Direction(self.runtime.heap, Impairment(**impairment), 1, self.deliver)
        self.sent = 0

    def deliver(self, packets: list[bytes]) -> None:
        self.arrived += [(self.runtime.now(), int.from_bytes(packet[:4], "big")) for packet in packets]

    def send(self, count: int = 1, at: int | None = None, size: int = 0) -> Wire:
        if at is not None:
            self.runtime.run_until(at)
        for _ in range(count):
            self.direction.enter([self.sent.to_bytes(4, "big").ljust(size or self.size, b"\0")])
            self.sent += 1
        return self

    def times(self) -> list[int]:
        self.runtime.run_until_idle()
        return [time for time, _ in self.arrived]


# ---------------------------------------------------------------- functions of time


def halves(t_ns: int) -> int:
    """12 Mbit/s in the first 10 ms, a quarter of it after."""
    return 12_000_000 if t_ns < 10 * MS else 3_000_000


def test_each_packet_takes_what_the_rate_allows_at_its_time() -> None:
    """1500 bytes are 12,000 bits: 1 ms at first. From 10 ms on 4 ms."""
    assert Wire(rate=Varying(halves)).send(12).times() == [n * MS for n in range(1, 11)] + [14 * MS, 18 * MS]


def test_a_packet_under_way_when_the_rate_changes_takes_some_of_both() -> None:
    # from 9.5 ms: 6000 bits until 10 ms, the other 6000 at a quarter of the rate: 2 ms
    assert Wire(rate=Varying(halves)).send(1, at=19 * MS // 2).times() == [12 * MS]


def test_the_last_bit_is_never_early_and_less_than_a_nanosecond_late() -> None:
    # 12,000 bits at 7 Mbit/s: 1714285.71 ns
    assert Wire(rate=Varying(lambda t: 7_000_000)).send(1).times() == [1_714_286]
    assert Wire(rate=7_000_000).send(1).times() == [1_714_286]


def test_a_link_that_stands_still_goes_on_where_it_stopped() -> None:
    """No rate between 0.5 ms and 20 s, which is longer than what is looked at together."""
    rate = Varying(lambda t: 12_000_000 if t < MS // 2 or t >= 20 * SECOND else 0, step_ns=MS // 2)
    assert Wire(rate=rate).send(2).times() == [20 * SECOND + MS // 2, 20 * SECOND + 3 * MS // 2]


def test_a_negative_rate_is_an_error_of_the_function() -> None:
    with pytest.raises(ValueError, match="the rate at 0 ns is -1"):
        Wire(rate=Varying(lambda t: -1)).send(1)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 50).map(lambda n: n * 1_000_000), min_size=1, max_size=20), st.lists(st.integers(60, 1500), min_size=1, max_size=30))
def test_bits_delivered_are_the_integral_of_the_rate(rates: list[int], sizes: list[int]) -> None:
    """A busy link: after the k-th packet the integral up to its arrival, and not a nanosecond before, covers the k packets."""
    rates = [*rates, 10_000_000]  # it comes to life in the end

    def rate(t_ns: int) -> int:
        return rates[min(t_ns // MS, len(rates) - 1)]

    def integral(until: int) -> int:  # bits times NS
        whole = sum(rate(step * MS) * MS for step in range(until // MS))
        return whole + rate(until) * (until % MS)

    wire = Wire(rate=Varying(rate), queue_packets=0)
    for size in sizes:
        wire.send(1, size=size)
    total = 0
    for when, size in zip(wire.times(), sizes, strict=True):
        total += size * 8
        assert integral(when) >= total * SECOND
        # each packet may lose less than a nanosecond's worth, at whatever the rate was
        assert integral(when - 1) < total * SECOND + len(sizes) * max(rates)


# ---------------------------------------------------------------- traces


def test_a_trace_delivers_1500_bytes_at_each_of_its_times_and_repeats() -> None:
    """Length 10 ms: opportunities at 2, 2, 7, 10, then 12, 12, 17, 20, ..."""
    assert Wire(rate=Trace([2, 2, 7, 10])).send(7).times() == [n * MS for n in (2, 2, 7, 10, 12, 12, 17)]


def test_an_opportunity_nobody_used_is_lost() -> None:
    assert Wire(rate=Trace([2, 2, 7, 10])).send(1, at=3 * MS).times() == [7 * MS]
    assert Wire(rate=Trace([2, 2, 7, 10])).send(1, at=2 * MS).times() == [2 * MS], "but one that begins now is not"
    assert Wire(rate=Trace([2, 2, 7, 10])).send(1, at=20 * MS).times() == [20 * MS]
    assert Wire(rate=Trace([0, 5])).send(1, at=5 * MS).times() == [5 * MS]


def test_small_packets_share_an_opportunity_and_large_ones_span_several() -> None:
    wire = Wire(rate=Trace([2, 4, 6]))
    for size in (700, 700, 700, 1000):
        wire.send(1, size=size)
    # 1500 at 2 ms: two and 100 bytes of the third; at 4 ms the other 600 and 900 of the fourth; the rest at 6
    assert wire.times() == [2 * MS, 2 * MS, 4 * MS, 6 * MS]


def test_room_left_over_is_not_saved_for_later() -> None:
    wire = Wire(rate=Trace([2, 4, 6]))
    wire.send(1, size=100).send(1, at=3 * MS, size=1500)
    assert wire.times() == [2 * MS, 4 * MS]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.lists(st.tuples(st.integers(0, 20), st.integers(1, 1500)), min_size=1, max_size=25))
def test_a_trace_against_the_rule_played_out_millisecond_by_millisecond(times: list[int], arrivals: list[tuple[int, int]]) -> None:
    times = sorted(times)
    times[-1] += 1
    when = 0
    wire = Wire(rate=Trace(times), queue_packets=0)
    coming: list[tuple[int, int]] = []
    for gap, size in arrivals:
        when += gap
        coming.append((when, max(size, 4)))
    for at, size in coming:
        wire.send(1, at=at * MS, size=size)
    # the rule: at each opportunity up to 1500 bytes of what has come by then
    expected: list[int] = []
    queue: list[int] = []
    turn = 0
    while len(expected) < len(coming):
        for time in times:
            now = turn * times[-1] + time
            queue += [size for at, size in coming[len(expected) + len(queue) :] if at <= now]
            room = 1500
            while queue and room:
                used = min(queue[0], room)
                room -= used
                queue[0] -= used
                if not queue[0]:
                    queue.pop(0)
                    expected.append(now * MS)
        turn += 1
    assert wire.times() == expected


def test_two_directions_of_one_trace_have_opportunities_of_their_own() -> None:
    trace = Trace([2, 4])
    wires = [Wire(rate=rate).send(2) for rate in (trace, trace, Since(trace, 0))]
    assert [wire.times() for wire in wires] == [[2 * MS, 4 * MS]] * 3


def test_a_trace_is_read_from_a_file_and_a_bad_line_is_named(tmp_path: Path) -> None:
    good = tmp_path / "good.trace"
    good.write_text("1\n1\n\n3\n")
    assert Trace.read(good).times == [MS, MS, 3 * MS]
    assert Trace.read(good).packet_ns(1500) == MS
    bad = tmp_path / "bad.trace"
    bad.write_text("1\nfast\n")
    with pytest.raises(ValueError, match=r"bad.trace, line 2: 'fast' is no time in ms"):
        Trace.read(bad)


@pytest.mark.parametrize("times", [[], [0], [3, 2], [-1, 2]])
def test_impossible_traces_are_refused(times: list[int]) -> None:
    with pytest.raises(ValueError):
        Trace(times)


# ---------------------------------------------------------------- the bottleneck


def test_event_by_event_and_computed_at_once_are_the_same_for_a_constant_rate() -> None:
    """The droptail queue of constant rate against the other way of having it, with a queue that overflows."""

    def run(rate: int | Varying) -> tuple[list[tuple[int, int]], Any]:
        wire = Wire(rate=rate, queue_packets=5, overhead=24, delay_ns=3 * MS)
        for burst in range(20):
            wire.send(burst % 9, at=burst * 5 * MS, size=100 + 70 * burst)
        wire.times()
        return wire.arrived, wire.direction.counters

    computed, evented = run(8_000_000), run(Varying(lambda t: 8_000_000))
    assert computed == evented
    assert computed[1].overflowed > 0


def test_a_marking_threshold_works_at_a_varying_rate_too() -> None:
    wire = Wire(rate=Varying(lambda t: 12_000_000), ecn_packets=2)
    packet = bytes(12) + b"\x08\x00\x45\x02" + bytes(8) + b"\x40\x06" + bytes(10 + 1466)
    wire.direction.enter([packet] * 4)
    wire.runtime.run_until_idle()
    assert wire.direction.counters.marked == 2


def test_codel_holds_a_wire_under_overload_to_its_schedule() -> None:
    """1500 bytes a millisecond leave, two packets a millisecond come: as if all had come at once, from the 10th ms on they have waited 5 ms."""
    wire = Wire(rate=12_000_000, aqm="codel", queue_packets=0)
    for ms in range(400):
        wire.send(2, at=ms * MS)
    wire.runtime.run_until(400 * MS)
    # waits exceed 5 ms from 10 ms on, so drops come at 110, 210, 281, 339, 389 ms, give or take the packet in transmission
    assert wire.direction.counters.dropped == 5
    numbers = [number for _, number in wire.arrived]
    lost = sorted(set(range(numbers[-1])) - set(numbers))
    when = [wire.arrived[numbers.index(number + 1)][0] / MS - 1 for number in lost]
    assert [abs(time - due) <= 1 for time, due in zip(when, (110, 210, 281, 339, 389), strict=True)] == [True] * 5


def test_red_keeps_a_wire_under_overload_between_its_thresholds() -> None:
    wire = Wire(rate=12_000_000, aqm=Red(15_000, 45_000, 0.1, 4), queue_bytes=150_000, queue_packets=0)
    for ms in range(5000):
        wire.send(1, at=ms * MS)
        if ms % 20 == 0:
            wire.send(1)
    counters = wire.direction.counters
    assert counters.overflowed == 0 and counters.dropped > 0
    assert 15_000 <= counters.max_backlog <= 60_000


@pytest.mark.parametrize("settings", [{"rate": Trace([1])}, {"rate": 12_000_000, "aqm": "codel"}])
def test_what_is_queued_is_known_and_lost_when_the_wire_is_closed(settings: dict[str, Any]) -> None:
    wire = Wire(**settings).send(3)
    assert (wire.direction.queued, wire.direction.pending) == ((3, 4500), True)
    wire.direction.close()
    assert (wire.times(), wire.direction.queued, wire.direction.pending) == ([], (0, 0), False)


def test_a_computed_queue_is_known_too() -> None:
    wire = Wire(rate=12_000_000).send(3)
    assert wire.direction.queued == (3, 4500)
    wire.runtime.run_until(2 * MS)
    assert wire.direction.queued == (1, 1500)


def test_new_settings_leave_what_is_queued_to_the_old_ones() -> None:
    wire = Wire(rate=12_000_000, aqm="codel").send(3)
    wire.direction.impairment = Impairment()
    wire.send(1)
    assert [number for _, number in wire.arrived] == [3]
    assert wire.times() == [0, MS, 2 * MS, 3 * MS]


@settings(max_examples=80)
@given(
    rate=st.sampled_from([lambda: Constant(9_999_991), lambda: Varying(halves), lambda: Trace([0, 1, 1, 5])]),
    arrivals=st.lists(st.tuples(st.integers(0, 5), st.integers(40, 3000)), min_size=1, max_size=60),
)
def test_a_bottleneck_loses_nothing_keeps_the_order_and_sends_one_at_a_time(rate: Callable[[], Rate], arrivals: list[tuple[int, int]]) -> None:
    runtime = VirtualRuntime()
    out: list[tuple[int, bytes]] = []
    place = Bottleneck(runtime.heap, DropTail(packets=0), rate(), lambda packet: out.append((runtime.now(), packet)))
    for number, (gap, size) in enumerate(arrivals):
        runtime.run_for(gap * MS)
        place.enter(number.to_bytes(4, "big"), size)
    runtime.run_until_idle()
    assert [int.from_bytes(packet, "big") for _, packet in out] == list(range(len(arrivals)))
    assert all(earlier <= later for (earlier, _), (later, _) in pairwise(out))
    assert (place.packets, place.backlog) == (0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": -1},
        {"aqm": "fifo", "rate": 1},
        {"aqm": "codel"},
        {"aqm": CoDel(), "rate": 1, "ecn_packets": 3},
        {"rate": 1, "aqm": "red", "queue_packets": 0},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Wire(**wrong)
