"""A completion time for each frame: on time, late, or missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.delayed import Delayed, DelayedRing
from pytcp.link.frame import TxFrame

US = 1000


class Device:
    def send(self, frames: Sequence[TxFrame]) -> int:
        return len(frames)


class Rig:
    """A ring in virtual time; what completed, was missed, and when."""

    def __init__(self, delayed: Delayed, limit: int = 1000) -> None:
        self.runtime = VirtualRuntime()
        self.completed: list[tuple[int, Any, Any]] = []
        self.lost: list[tuple[int, Any, Any]] = []
        self.waiting = True
        self.ring = DelayedRing(Device(), self.runtime.heap, self.on_complete, self.on_missed, delayed, limit)  # type: ignore[arg-type]
        self.runtime.before_pass.append(self.ring.reap)
        self.runtime.after_pass.append(self.ring.flush)

    def on_complete(self, owner: Any, skb: Any, truesize: int) -> None:
        self.completed.append((self.runtime.now(), owner, skb))

    def on_missed(self, owner: Any, skb: Any, truesize: int) -> bool:
        self.lost.append((self.runtime.now(), owner, skb))
        return self.waiting

    def put(self, owner: Any, *skbs: Any) -> list[bool]:
        return [self.ring.put(TxFrame(b"", owner=owner, skb=skb, truesize=1000)) for skb in skbs]

    def send(self, owner: Any, *skbs: Any) -> None:
        self.put(owner, *skbs)
        self.ring.flush()


def test_each_frame_completes_between_the_two_times_and_all_of_the_range_is_used() -> None:
    rig = Rig(Delayed((20 * US, 50 * US)), limit=2000)
    for n in range(2000):
        rig.send(f"socket {n}", n)
    rig.runtime.run_until_idle()
    times = sorted(when for when, _, _ in rig.completed)
    assert len(times) == 2000 and times[0] >= 20 * US and times[-1] <= 50 * US
    # uniform: a third of 2000 in each 10 us, give or take five standard deviations of 21
    thirds = Counter(min((when - 20 * US) // (10 * US), 2) for when in times)
    assert all(abs(thirds[third] - 667) < 105 for third in range(3))


def test_one_sockets_completions_keep_their_order() -> None:
    rig = Rig(Delayed((0, 1000 * US)))
    for n in range(300):
        rig.send("a", n)
        rig.runtime.run_for(10 * US)
    rig.runtime.run_until_idle()
    assert [skb for _, _, skb in rig.completed] == list(range(300))


def test_a_late_completion_holds_up_its_own_socket_only() -> None:
    rig = Rig(Delayed((10, 10), late=1.0, late_ns=5000))
    rig.send("a", 1)
    rig.runtime.run_until_idle()
    assert (rig.completed, rig.ring.late) == ([(5010, "a", 1)], 1)
    # the first frame of "a" is late: a frame of "a" behind it waits for it, one of "b" does not
    rig = Rig(Delayed((10, 10), late=0.5, late_ns=5000, seed=next(s for s in range(99) if _late_pattern(s) == [True, False, False])))
    rig.send("a", 1, 2)
    rig.send("b", 3)
    rig.runtime.run_until_idle()
    assert rig.completed == [(10, "b", 3), (5010, "a", 1), (5010, "a", 2)]


def _late_pattern(seed: int) -> list[bool]:
    rig = Rig(Delayed((10, 10), late=0.5, late_ns=5000, seed=seed))
    for n in range(3):
        rig.send(n, n)
    rig.runtime.run_until_idle()
    return [when > 10 for when, _, _ in sorted(rig.completed, key=lambda entry: entry[1])]


def test_a_missed_completion_takes_the_charge_back_and_counts_if_somebody_waited() -> None:
    rig = Rig(Delayed((10, 10), missed=1.0))
    rig.send("a", 1)
    rig.runtime.run_until_idle()
    rig.waiting = False
    rig.send("a", 2)
    rig.runtime.run_until_idle()
    assert (rig.completed, [skb for _, _, skb in rig.lost]) == ([], [1, 2])
    assert (rig.ring.missed, rig.ring.completed, len(rig.ring)) == (1, 2, 0)


def test_accidents_happen_as_often_as_asked_and_the_same_each_time() -> None:
    def run(seed: int, **accidents: Any) -> tuple[int, int, list[Any]]:
        rig = Rig(Delayed((10, 20), seed=seed, **accidents), limit=1 << 20)
        for n in range(20_000):
            rig.send(n, n)
        rig.runtime.run_until_idle()
        return rig.ring.late, rig.ring.missed, rig.completed

    late, missed, completed = run(1, late=0.01, late_ns=10, missed=0.02)
    # five standard deviations: 5·sqrt(20000·p·(1-p)) = 70 and 99
    assert abs(late - 200) < 70 and abs(missed - 400) < 99
    assert run(1, late=0.01, late_ns=10, missed=0.02) == (late, missed, completed)
    assert run(2, late=0.01, late_ns=10, missed=0.02) != (late, missed, completed)
    assert run(1, missed=0.02)[1] == missed, "who is late does not change who is missed"


def test_frames_hold_their_place_until_they_complete() -> None:
    rig = Rig(Delayed((10, 10)), limit=3)
    rig.send("a", 1, 2, 3)
    assert (rig.put("a", 4), rig.ring.dropped, len(rig.ring)) == ([False], 1, 3)
    rig.runtime.run_until_idle()
    assert rig.put("a", 5) == [True]


def test_frames_nobody_owns_are_done_when_written() -> None:
    rig = Rig(Delayed((10, 10)))
    rig.ring.put(TxFrame(b"arp"))
    rig.ring.flush()
    assert (len(rig.ring), rig.runtime.next_event_ns()) == (0, None)


def test_passes_and_calls_do_not_complete_what_is_not_due() -> None:
    rig = Rig(Delayed((1000, 1000)))
    rig.send("a", 1)
    rig.runtime.kick()
    rig.runtime.run_until(999)
    rig.ring.settle(999)
    assert rig.completed == []
    rig.runtime.run_until(1000)
    assert rig.completed == [(1000, "a", 1)]


def test_closing_completes_everything_once() -> None:
    rig = Rig(Delayed((10, 1000)))
    rig.send("a", 1, 2)
    rig.send("b", 3)
    rig.put("b", 4)
    rig.ring.close()
    assert sorted(skb for _, _, skb in rig.completed) == [1, 2, 3, 4]
    rig.runtime.run_until_idle()
    assert len(rig.completed) == 4


@pytest.mark.parametrize("bad", [{"delay_ns": (5, 4)}, {"delay_ns": (-1, 4)}, {"late": 1.5, "late_ns": 1}, {"late": 0.1}, {"missed": -0.1}])
def test_impossible_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Delayed(**bad)
