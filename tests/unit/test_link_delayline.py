"""A delay line holds frames, whole and in order, for the same time both ways."""

from __future__ import annotations

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.delayline import LIMIT, DelayLine
from pytcp.link.frame import GSO_TCPV4, RxFrame, TxFrame
from pytcp.link.pipe import pipe_pair

MS = 1_000_000


def test_frames_are_late_by_the_delay_both_ways_and_super_frames_stay_whole() -> None:
    runtime = VirtualRuntime()
    heap = runtime.heap
    near, far = pipe_pair(heap)
    line = DelayLine(near, heap, 20 * MS)
    at_far: list[tuple[int, int, int]] = []
    at_us: list[tuple[int, bytes]] = []
    ends: list[int] = []
    far.rx = lambda frame: at_far.append((heap.now_ns, len(frame.data), frame.gso_size))
    line.rx = lambda frame: at_us.append((heap.now_ns, bytes(frame.data)))
    line.rx_end = lambda: ends.append(heap.now_ns)
    assert line.send([TxFrame(bytes(66), (bytes(3000),), 3066, GSO_TCPV4, 1448), TxFrame(b"ack")]) == 2
    runtime.run_for(5 * MS)
    assert line.pending
    far.send([TxFrame(b"one"), TxFrame(b"two")])
    runtime.run_until_idle()
    assert at_far == [(20 * MS, 3066, 1448), (20 * MS, 3, 0)]
    assert at_us == [(25 * MS, b"one"), (25 * MS, b"two")]
    assert ends == [25 * MS]
    assert not line.pending


def test_what_is_under_way_is_a_copy() -> None:
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap)
    line = DelayLine(near, runtime.heap, MS)
    seen: list[bytes] = []
    far.rx = lambda frame: seen.append(bytes(frame.data))
    line.rx = lambda frame: seen.append(bytes(frame.data))
    buffer = bytearray(b"sent")
    line.send([TxFrame(b"", (memoryview(buffer),), 4)])
    received = bytearray(b"came")
    near.rx(RxFrame(memoryview(received)))
    near.rx_end()
    buffer[:] = received[:] = b"lost"
    runtime.run_until_idle()
    assert sorted(seen) == [b"came", b"sent"]


def test_a_bound_on_what_is_under_way_and_the_end_of_it() -> None:
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap, limit=2)
    line = DelayLine(near, runtime.heap, MS)
    line.send([TxFrame(b"x")] * (LIMIT + 5))
    assert line.refused == 5
    runtime.run_for(MS)
    assert line.refused == 5 + LIMIT - 2, "the device behind takes two"
    line.send([TxFrame(b"x")])
    line.close()
    runtime.run_until_idle()
    assert near.closed
    with pytest.raises(ValueError, match="negative"):
        DelayLine(far, runtime.heap, -1)
