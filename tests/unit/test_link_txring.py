"""The transmit ring: bulking, completion modes, bounds, and a device that is full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.frame import TxFrame
from pytcp.link.txring import BULK, COMPLETION_NS, MODES, RETRY_NS, TxRing


class Device:
    """Takes up to `room` frames, noting each write."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.writes: list[list[Any]] = []
        self.frames: list[Any] = []

    def send(self, frames: Sequence[TxFrame]) -> int:
        taken = [frame.skb for frame in frames[: self.room]]
        self.room -= len(taken)
        self.writes.append(taken)
        self.frames += taken
        return len(taken)


class Rig:
    """A runtime in virtual time, a ring wired to it as an interface does it, and what completed when."""

    def __init__(self, **options: Any) -> None:
        self.runtime = VirtualRuntime()
        self.device = Device()
        self.completed: list[tuple[int, Any]] = []
        self.ring = TxRing(self.device, self.runtime.heap, self.on_complete, **options)  # type: ignore[arg-type]
        self.runtime.before_pass.append(self.ring.reap)
        self.runtime.after_pass.append(self.ring.flush)

    def on_complete(self, owner: Any, skb: Any, truesize: int) -> None:
        assert owner == "sk" and truesize == 1000
        self.completed.append((self.runtime.now(), skb))

    def put(self, *skbs: Any) -> list[bool]:
        return [self.ring.put(TxFrame(b"", owner="sk", skb=skb, truesize=1000)) for skb in skbs]

    def done(self) -> list[Any]:
        return [skb for _, skb in self.completed]


def test_frames_wait_for_a_flush_and_are_written_together_in_order() -> None:
    rig = Rig()
    rig.put("a", "b", "c")
    assert rig.device.writes == []
    rig.ring.flush()
    assert rig.device.writes == [["a", "b", "c"]]


@pytest.mark.parametrize("room", [0, 1, 3, 9])
@pytest.mark.parametrize("waiting", [0, 2])
@pytest.mark.parametrize("limit", [1, 3, 1000])
@pytest.mark.parametrize("mode", MODES)
def test_to_post_is_to_put_and_to_flush(mode: str, limit: int, waiting: int, room: int) -> None:
    def outcome(at_once: bool) -> Any:
        rig = Rig(mode=mode, limit=limit)
        rig.device.room = room
        taken = rig.put(*range(waiting))
        for skb in "ab":
            frame = TxFrame(b"", owner="sk", skb=skb, truesize=1000)
            if at_once:
                taken.append(rig.ring.post(frame))
            else:
                taken.append(rig.ring.put(frame))
                if taken[-1]:
                    rig.ring.flush()
        held = [frame.skb for frame in rig.ring.queue], [frame.skb for frame in rig.ring.done]
        rig.ring.settle(COMPLETION_NS)
        settled = list(rig.completed)
        rig.device.room = 1 << 30
        rig.runtime.run_for(2 * RETRY_NS)
        return taken, held, settled, rig.device.writes, rig.completed, rig.ring.dropped, len(rig.ring)

    assert outcome(True) == outcome(False)


def test_the_eighth_super_segment_is_written_at_once_with_those_before_it() -> None:
    rig = Rig()
    rig.put(*range(7))
    assert rig.device.writes == []
    rig.put(7)
    assert rig.device.writes == [list(range(8))]
    assert BULK == 8


def test_a_pass_ends_with_a_flush() -> None:
    rig = Rig()
    rig.put("a")
    rig.runtime.kick()
    rig.runtime.run_for(0)
    assert rig.device.frames == ["a"]


def test_completion_never_happens_inside_the_call_that_sent_the_frame() -> None:
    rig = Rig()
    rig.put(*range(8))
    rig.ring.flush()
    assert rig.device.frames == list(range(8))
    assert rig.done() == []


def test_a_pass_that_somebody_asks_for_completes_at_the_same_instant() -> None:
    rig = Rig()
    rig.runtime.run_until(500)
    rig.put("a", "b")
    rig.ring.flush()
    rig.runtime.kick()
    rig.runtime.run_until_idle()
    assert rig.completed == [(500, "a"), (500, "b")]


def test_completions_nobody_waits_for_cost_no_pass() -> None:
    rig = Rig()
    rig.put("a")
    rig.ring.flush()
    assert rig.runtime.next_event_ns() is None
    assert rig.done() == []


def test_a_later_call_finds_the_device_done_with_what_left_50_us_ago() -> None:
    rig = Rig()
    rig.put("a")
    rig.ring.flush()
    rig.ring.settle(COMPLETION_NS - 1)
    assert rig.done() == []
    rig.ring.settle(COMPLETION_NS)
    assert rig.done() == ["a"]


def test_bare_acknowledgements_call_for_no_pass_of_their_own() -> None:
    rig = Rig()
    rig.put(None)
    rig.ring.flush()
    assert rig.runtime.next_event_ns() is None
    rig.runtime.kick()
    rig.runtime.run_for(0)
    assert rig.done() == [None]


def test_frames_nobody_owns_complete_silently() -> None:
    rig = Rig()
    rig.ring.put(TxFrame(b"arp"))
    rig.ring.flush()
    rig.runtime.kick()
    rig.runtime.run_until_idle()
    assert rig.completed == []
    assert len(rig.ring) == 0


def test_what_a_completion_sends_belongs_to_the_next_completion() -> None:
    rig = Rig()

    def on_complete(owner: Any, skb: Any, truesize: int) -> None:
        rig.completed.append((rig.ring.completed, skb))
        if skb < 3:
            rig.put(skb + 1)
            rig.ring.flush()

    rig.ring.on_complete = on_complete
    rig.put(1)
    rig.ring.flush()
    rig.ring.reap()
    assert rig.done() == [1]
    rig.ring.reap()
    assert rig.done() == [1, 2]
    rig.runtime.kick()
    rig.runtime.run_until_idle()
    assert rig.done() == [1, 2, 3]


def test_orphan_mode_completes_when_the_frame_is_queued_and_only_once() -> None:
    rig = Rig(mode="orphan")
    rig.put("a")
    assert rig.done() == ["a"]
    rig.ring.flush()
    rig.runtime.run_until_idle()
    rig.ring.reap()
    assert rig.done() == ["a"]
    assert rig.device.frames == ["a"]


def test_a_moderated_completion_comes_tx_usecs_after_the_first_frame() -> None:
    rig = Rig(mode="moderated", tx_usecs=20)
    rig.put("a")
    rig.ring.flush()
    rig.runtime.run_until(15_000)
    rig.put("b")
    rig.ring.flush()
    rig.runtime.run_until_idle()
    assert rig.completed == [(20_000, "a"), (20_000, "b")]


def test_passes_before_the_moderated_interrupt_do_not_complete() -> None:
    rig = Rig(mode="moderated", tx_usecs=20)
    rig.put("a")
    rig.ring.flush()
    for _ in range(3):
        rig.runtime.kick()
        rig.runtime.run_for(1_000)
    assert rig.done() == []


def test_tx_frames_end_the_moderation_early_but_not_inside_the_call() -> None:
    rig = Rig(mode="moderated", tx_usecs=1000, tx_frames=3)
    rig.put("a", "b")
    rig.ring.flush()
    rig.runtime.run_until(7_000)
    assert rig.done() == []
    rig.put("c")
    rig.ring.flush()
    assert rig.done() == []
    rig.runtime.run_until(7_000)
    assert rig.completed == [(7_000, "a"), (7_000, "b"), (7_000, "c")]


def test_a_full_ring_refuses_and_counts_and_completes_nothing_for_the_refused() -> None:
    rig = Rig(limit=3)
    assert rig.put("a", "b", "c", "d") == [True, True, True, False]
    assert rig.ring.dropped == 1
    rig.ring.flush()
    assert rig.put("e") == [False]  # written but not completed frames hold their place
    rig.runtime.kick()
    rig.runtime.run_until_idle()
    assert rig.done() == ["a", "b", "c"]
    assert rig.put("f") == [True]


def test_a_full_device_keeps_the_rest_in_order_and_is_tried_again() -> None:
    rig = Rig()
    rig.device.room = 2
    rig.put("a", "b", "c")
    rig.ring.flush()
    rig.put("d")
    assert rig.device.frames == ["a", "b"]
    rig.device.room = 100
    rig.runtime.run_until(RETRY_NS)
    assert rig.device.frames == ["a", "b", "c", "d"]
    rig.runtime.run_until_idle()
    assert rig.done() == ["a", "b", "c", "d"]


def test_a_stalled_ring_is_not_tried_for_every_frame_put() -> None:
    rig = Rig()
    rig.device.room = 0
    rig.put(*range(8))
    writes = len(rig.device.writes)
    rig.put(*range(20))
    assert len(rig.device.writes) == writes


def test_closing_completes_everything_and_writes_nothing_more() -> None:
    rig = Rig()
    rig.put("a")
    rig.ring.flush()
    rig.put("b")
    rig.ring.close()
    assert rig.done() == ["a", "b"]
    assert rig.device.frames == ["a"]
    assert rig.runtime.run_until_idle() == 0
    assert rig.device.frames == ["a"]


@pytest.mark.parametrize("options", [{"mode": "instant"}, {"tx_usecs": -1}, {"tx_frames": -1}, {"limit": 0}])
def test_impossible_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Rig(**options)
