"""Queues of a bottleneck: CoDel's schedule by hand from RFC 8289, RED's average and probabilities, marks, bounds."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytcp.link.aqm import CoDel, CoDelQueue, DropTail, Losses, Red, RedQueue, Waiting

MS = 1_000_000
SIZE = 1500


def mark(packet: bytes) -> bytes | None:
    """Packets beginning with E speak ECN; a marked one begins with C."""
    return b"C" + packet[1:] if packet[:1] in b"EC" else None


def packets(count: int, kind: bytes = b"-") -> list[bytes]:
    return [kind + n.to_bytes(4, "big") for n in range(count)]


# ---------------------------------------------------------------- CoDel


def overload(queue: CoDelQueue, count: int, until_ms: int, kind: bytes = b"-") -> tuple[list[int], list[bytes]]:
    """All packets come at 0 and one is taken each ms. When drops or marks happened, ms; and what came out."""
    for packet in packets(count, kind):
        assert queue.enqueue(packet, SIZE, 0)
    times, out = [], []
    for now in range(until_ms):
        before = queue.counts.dropped + queue.counts.marked
        item = queue.dequeue(now * MS)
        if item is not None:
            out.append(item.packet)
        times += [now] * (queue.counts.dropped + queue.counts.marked - before)
    return times, out


# A packet is first seen to have waited 5 ms at 5 ms; a whole interval later, at 105 ms, the first is dropped, and the next are due at
# 105 + 100/√1 = 205, 205 + 100/√2 = 275.71.., + 100/√3 = 333.44.., + 50 = 383.44.., + 44.72.. = 428.16.., + 40.82.. = 468.99.., + 37.79.. = 506.78..,
# + 35.35.. = 542.14.., + 33.33.. = 575.47.., each at the first packet that leaves then or later.
SCHEDULE = [105, 205, 276, 334, 384, 429, 469, 507, 543, 576]


def test_codel_drops_on_the_schedule_of_rfc_8289() -> None:
    times, _ = overload(CoDelQueue(CoDel(), packets=0), 2000, 580)
    assert times == SCHEDULE


def test_the_schedule_does_not_drift() -> None:
    """drop_next moves on from drop_next, not from when the drop could be made."""
    queue = CoDelQueue(CoDel(), packets=0)
    overload(queue, 2000, 600)
    due = Fraction(105)
    for count in range(1, 11):
        due += Fraction(100) / Fraction(count**0.5)
    assert abs(queue.drop_next_ns - due * MS) < 10  # the floor of each of ten steps


def test_with_ecn_packets_are_marked_on_the_same_schedule_and_none_is_lost() -> None:
    queue = CoDelQueue(CoDel(ecn=True), packets=0, mark=mark)
    times, out = overload(queue, 2000, 580, b"E")
    assert times == SCHEDULE
    assert (queue.counts.dropped, queue.counts.marked) == (0, 10)
    assert [n for n, packet in enumerate(out) if packet[:1] == b"C"] == SCHEDULE
    assert len(out) == 580


def test_without_ecn_support_a_packet_is_dropped_all_the_same() -> None:
    queue = CoDelQueue(CoDel(ecn=True), packets=0, mark=mark)
    times, _ = overload(queue, 2000, 580, b"-")
    assert (times, queue.counts.marked) == (SCHEDULE, 0)


def steady(queue: CoDelQueue, wait_ms: float, frm: int, until: int) -> list[int]:
    """From `frm` on each ms one packet comes and one leaves that has waited `wait_ms`; when drops happened."""
    times = []
    for now in range(frm, until):
        before = queue.counts.dropped
        while len(queue) < 10:
            queue.enqueue(b"-", SIZE, int((now - wait_ms) * MS))
        queue.waiting = type(queue.waiting)(item._replace(since_ns=int((now - wait_ms) * MS)) for item in queue.waiting)
        queue.dequeue(now * MS)
        times += [now] * (queue.counts.dropped - before)
    return times


def test_a_wait_just_below_the_target_never_drops_and_one_good_packet_starts_the_interval_anew() -> None:
    queue = CoDelQueue(CoDel())
    assert steady(queue, 4.999, 0, 500) == []
    assert steady(queue, 5, 500, 600) == []
    assert steady(queue, 4, 600, 601) == []
    assert steady(queue, 5, 601, 702) == [701]


def test_coming_back_soon_goes_on_where_the_drop_rate_had_got_to() -> None:
    queue = CoDelQueue(CoDel())
    times = steady(queue, 20, 0, 480)
    assert times == [100, 200, 271, 329, 379, 424, 464]  # the schedule, begun at 0
    assert queue.count == 7
    assert steady(queue, 1, 480, 490) == []
    assert not queue.dropping
    # RFC 8289 §5.5: count becomes 7 - 1 = 6, so the second drop comes 100/√6 = 40.8 ms after the first
    assert steady(queue, 20, 490, 640)[:2] == [590, 631]


def test_coming_back_late_begins_with_one() -> None:
    queue = CoDelQueue(CoDel())
    steady(queue, 20, 0, 480)
    steady(queue, 1, 480, 3000)
    assert steady(queue, 20, 3000, 3250)[:2] == [3100, 3200]


def test_a_queue_of_one_packet_is_never_too_long() -> None:
    queue = CoDelQueue(CoDel())
    for now in range(0, 1000, 50):
        queue.enqueue(b"-", SIZE, (now - 40) * MS)
        queue.enqueue(b"-", SIZE, (now - 40) * MS)
        assert queue.dequeue(now * MS) is not None
        assert queue.dequeue(now * MS) is not None
    assert queue.counts.dropped == 0


# ---------------------------------------------------------------- RED


def red_queue(red: Red, packet_ns: int = 0, **limits: Any) -> RedQueue:
    return RedQueue(red, random.Random(1), packet_ns, **({"packets": 0} | limits))


def at_average(red: Red, average: int, kind: bytes = b"-", **limits: Any) -> RedQueue:
    """A queue whose average is `average` bytes and stays there: it holds just so much."""
    queue = RedQueue(red, random.Random(7), 0, packets=0, mark=mark, **limits)
    queue.average = average << red.wlog
    queue.backlog = average
    queue.waiting.append(Waiting(kind, average, 0))
    return queue


def gaps(queue: RedQueue, count: int, kind: bytes = b"-") -> list[int]:
    """Distances between packets that are dropped or marked, out of `count` that come one by one."""
    backlog = queue.backlog
    chosen = []
    for n in range(count):
        before = queue.counts.dropped + queue.counts.marked
        if queue.enqueue(kind, SIZE, 0):
            queue.waiting.pop()
            queue.backlog = backlog
        if queue.counts.dropped + queue.counts.marked > before:
            chosen.append(n)
    return [later - earlier for earlier, later in pairwise(chosen)]


def test_reds_drops_are_uniformly_apart_with_the_probability_of_the_average() -> None:
    """pb = 0.04·(30000 - 20000)/(40000 - 20000) = 0.02. A distance of n has probability pb for n = 1 .. 49 (Floyd and Jacobson §7: at the
    49th packet pb/(1 - 49·pb) is one), so the mean is 25 and every distance is as likely as the other."""
    seen = gaps(at_average(Red(20_000, 40_000, 0.04), 30_000), 100_000)
    count = len(seen)
    assert (min(seen), max(seen)) == (1, 49)
    # the standard deviation of a uniform number from 1 to 49 is 14.1
    assert abs(sum(seen) / count - 25) < 5 * 14.1 / count**0.5
    expected = count / 49
    chi2 = sum((Counter(seen)[n] - expected) ** 2 / expected for n in range(1, 50))
    assert chi2 < 48 + 5 * (2 * 48) ** 0.5


@pytest.mark.parametrize(("average", "probability"), [(20_000, 0.0), (25_000, 0.025), (39_999, 0.1)])
def test_reds_probability_grows_linearly_between_the_thresholds(average: int, probability: float) -> None:
    seen = gaps(at_average(Red(20_000, 40_000, 0.1), average), 20_000)
    if not probability:
        assert seen == []
    else:
        mean = (round(1 / probability) - 1 + 1) / 2
        assert abs(sum(seen) / len(seen) - mean) < 0.1 * mean


def test_below_min_nothing_is_dropped_and_at_max_everything() -> None:
    assert gaps(at_average(Red(20_000, 40_000, 1.0), 19_999), 1000) == []
    assert gaps(at_average(Red(20_000, 40_000, 0.01), 40_000), 1000) == [1] * 999


@pytest.mark.parametrize(
    ("kind", "harddrop", "marks_between", "marks_above"), [(b"E", False, True, True), (b"E", True, True, False), (b"-", False, False, False)]
)
def test_red_marks_what_may_be_marked_unless_told_to_drop_hard(kind: bytes, harddrop: bool, marks_between: bool, marks_above: bool) -> None:
    for average, marks, times in ((30_000, marks_between, range(30, 51)), (40_000, marks_above, range(1000, 1001))):
        queue = at_average(Red(20_000, 40_000, 0.04, ecn=True, harddrop=harddrop), average)
        gaps(queue, 1000, kind)
        chosen, other = queue.counts.marked, queue.counts.dropped
        if not marks:
            chosen, other = other, chosen
        assert chosen in times and other == 0


def test_the_average_follows_the_backlog_with_its_weight() -> None:
    """avg ← (1 - w)·avg + w·q with w = 1/4: from 0 with q = 1000: 250, 437.5, 578.1, 683.6."""
    queue = red_queue(Red(10_000, 20_000, wlog=2))
    queue.enqueue(b"-", 1000, 0)  # sees 0
    seen = []
    for _ in range(4):
        queue.enqueue(b"-", 0, 0)
        seen.append(queue.average / 4)
    assert seen == [250, 437.5, 578.25, 683.75]  # the shift drops what is below a quarter byte


def test_an_idle_queue_forgets() -> None:
    """(1 - 1/16)^8 = 0.5967 of 8000 is 4773.6; the packet that comes sees an empty queue and takes another sixteenth."""
    queue = red_queue(Red(10_000, 20_000, wlog=4), packet_ns=1000)
    queue.average = 8000 << 4
    queue.enqueue(b"-", SIZE, 8000)
    assert queue.average >> 4 == int(8000 * (15 / 16) ** 9)


def test_thresholds_come_from_the_limit_when_they_are_not_given() -> None:
    assert (red_queue(Red(), size=120_000).red.min_size, red_queue(Red(), size=120_000).red.max_size) == (10_000, 30_000)
    with pytest.raises(ValueError, match="need a limit"):
        red_queue(Red())


# ---------------------------------------------------------------- all


@settings(max_examples=60)
@given(
    kind=st.sampled_from(["droptail", "codel", "red"]),
    ecn=st.booleans(),
    limit=st.integers(1, 40),
    events=st.lists(st.tuples(st.sampled_from([0, 1, 20, 200]), st.integers(0, 4), st.integers(0, 3)), max_size=200),
)
def test_packets_are_conserved_and_keep_their_order(kind: str, ecn: bool, limit: int, events: list[tuple[int, int, int]]) -> None:
    """What comes is sent once, or counted as lost, or still there; bounds hold; nobody overtakes."""
    losses = Losses()
    queue: DropTail
    if kind == "codel":
        queue = CoDelQueue(CoDel(ecn=ecn), packets=limit, mark=mark, counts=losses)
    elif kind == "red":
        queue = RedQueue(Red(1000, 4000, 0.5, 1, ecn), random.Random(3), MS, packets=limit, mark=mark, counts=losses)
    else:
        queue = DropTail(packets=limit, mark=mark, counts=losses)
    now = number = 0
    sent: list[int] = []
    for gap, come, go in events:
        now += gap * MS
        for _ in range(come):
            queue.enqueue((b"E" if number % 2 else b"-") + number.to_bytes(4, "big"), SIZE, now)
            number += 1
            assert len(queue) <= limit
        for _ in range(go):
            item = queue.dequeue(now)
            if item is not None:
                sent.append(int.from_bytes(item.packet[1:], "big"))
        assert queue.backlog == SIZE * len(queue)
    assert sent == sorted(set(sent))
    assert len(sent) + len(queue) + losses.overflowed + losses.dropped == number


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: CoDel(target_ns=0),
        lambda: CoDel(target_ns=100 * MS),
        lambda: Red(5000, 5000),
        lambda: Red(-1, 5000),
        lambda: Red(5000),
        lambda: Red(probability=0),
        lambda: Red(wlog=0),
    ],
)
def test_impossible_settings_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError):
        wrong()
