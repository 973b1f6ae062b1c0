"""Timestamps against old segments (RFC 7323 §4, §5; linux-tcp §8.12)."""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.tcp import const, input, paws
from pytcp.tcp.sock import Sock
from pytcp.wire.tcp import Segment

from .harness import MS, FakeHost, established, segment
from .receive_replay import cases, host_of, replay

DAY_NS = 86_400_000 * MS


@pytest.mark.parametrize("name", cases("random_paws*"))
def test_old_and_new_timestamps_are_judged_as_the_kernel_judges_them(name: str) -> None:
    run = replay(name)
    assert run.differences == []


def receiver(**fields: Any) -> tuple[Sock, FakeHost]:
    host = FakeHost()
    host.heap.now_ns += 100 * DAY_NS
    now_s = host.now_ns // 1_000_000_000
    sk = established(
        host,
        **{"timestamps": True, "rcv_wnd": 60000, "ts_recent": 1000, "ts_recent_stamp_s": now_s, "ato_jiffies": 10, "lrcvtime_ns": host.now_ns - MS, **fields},
    )
    sk.rcv_wup = sk.rcv_nxt
    return sk, host


def unwrapped(sk: Sock, seg: Segment) -> Segment:
    seg.seq = sk.rcv_nxt + (seg.seq - sk.rcv_nxt & 0xFFFFFFFF)
    seg.ack = sk.snd_una + (seg.ack - sk.snd_una & 0xFFFFFFFF)
    seg.end_seq = seg.seq + seg.length
    return seg


def data(sk: Sock, tsval: int, **more: Any) -> Segment:
    return unwrapped(sk, segment(sk, payload=b"x", ts=(tsval, 0), **more))


@pytest.mark.parametrize(
    ("recent", "tsval", "verdict"), [(1000, 1000, paws.OK), (1000, 999, paws.OK), (1000, 998, paws.OLD), (3, 0xFFFFFFFF, paws.OLD), (0xFFFFFFFF, 5, paws.OK)]
)
def test_a_segment_more_than_one_tick_older_than_the_newest_is_old_across_the_wrap(recent: int, tsval: int, verdict: int) -> None:
    sk, _ = receiver(ts_recent=recent)
    assert paws.check(sk, data(sk, tsval)) == verdict


def test_a_timestamp_remembered_for_more_than_24_days_and_a_fifth_proves_nothing() -> None:
    """Linux gives up after 2147 s, long before the 2^31 ms at which comparison breaks down."""
    sk, host = receiver()
    host.heap.now_ns += 2146 * 1000 * MS
    assert paws.check(sk, data(sk, 10)) == paws.OLD
    host.heap.now_ns += 1000 * MS
    assert paws.check(sk, data(sk, 10)) == paws.OK


def test_a_zero_timestamp_from_the_syn_proves_nothing() -> None:
    sk, _ = receiver(ts_recent=0)
    assert paws.check(sk, data(sk, 0x90000000)) == paws.OK


@pytest.mark.parametrize(
    ("age", "offset", "acks", "window", "verdict"),
    [
        (100, 0, 0, None, paws.OK),  # a reordered duplicate ACK
        (1.2 * 200, 0, 0, None, paws.OK),  # 1.2 RTO is the limit
        (1.2 * 200 + 1, 0, 0, None, paws.OLD),
        (100, -1, 0, None, paws.OLD_ACK),  # below rcv_nxt: common, not worth an answer
        (100, 1, 0, None, paws.OLD),
        (100, 0, 1, None, paws.OLD),  # would acknowledge something
        (100, 0, 0, 1 << 21, paws.OLD),  # would open the window
    ],
)
def test_an_old_pure_ack_is_harmless_only_as_a_duplicate_within_the_replay_window(age: float, offset: int, acks: int, window: int | None, verdict: int) -> None:
    sk, _ = receiver(rto_ns=200 * MS, ts_recent=100_000)
    sk.snd_wl1 = sk.rcv_nxt
    sk.snd_nxt += 1
    seg = segment(sk, ack=1 + acks, window=window, ts=(100_000 - int(age), 0))
    seg = unwrapped(sk, seg)
    seg.seq = seg.end_seq = sk.rcv_nxt + offset
    assert paws.check(sk, seg) == verdict


# ---------------------------------------------------------------- what happens to them


def answers(sk: Sock, seg: Segment) -> int:
    """How many segments we answer with at once."""
    host = host_of(sk)
    host.take()
    input.receive(sk, seg)
    return len(host.take())


def test_old_data_is_dropped_and_always_answered() -> None:
    sk, _ = receiver()
    for _ in range(3):
        assert answers(sk, segment(sk, payload=b"x", ts=(1, 0))) == 1
    assert sk.mib.PAWSEstab == 3
    assert not sk.receive_queue


def test_old_dataless_segments_are_answered_twice_a_second() -> None:
    sk, host = receiver()
    sk.ts_recent = 100_000
    assert answers(sk, segment(sk, window=1 << 21, ts=(1, 0))) == 1
    assert answers(sk, segment(sk, window=1 << 21, ts=(1, 0))) == 0
    assert sk.mib.TCPACKSkippedPAWS == 1
    host.advance(500 * MS)
    assert answers(sk, segment(sk, window=1 << 21, ts=(1, 0))) == 1


def test_an_old_pure_ack_is_dropped_in_silence() -> None:
    sk, _ = receiver()
    assert answers(sk, segment(sk, seq=0, ts=(1, 0))) == 0
    assert (sk.mib.PAWSOldAck, sk.mib.PAWSEstab) == (1, 0)


def test_an_old_reset_is_believed() -> None:
    sk, _ = receiver()
    answers(sk, segment(sk, const.RST | const.ACK, ts=(1, 0)))
    assert sk.state == const.CLOSE


def test_an_old_syn_is_challenged() -> None:
    sk, _ = receiver()
    assert answers(sk, segment(sk, const.SYN, ts=(1, 0))) == 1
    assert (sk.mib.TCPSYNChallenge, sk.mib.PAWSEstab) == (1, 0)


def test_timestamps_not_agreed_on_are_not_looked_at() -> None:
    sk, _ = receiver(timestamps=False)
    input.receive(sk, segment(sk, payload=b"x", ts=(1, 0)))
    assert sk.rcv_nxt - sk.irs == 2
    assert sk.ts_recent == 1000


# ---------------------------------------------------------------- which one is echoed


def test_the_timestamp_of_the_segment_that_covers_the_last_ack_is_echoed() -> None:
    """RFC 7323 §4.3: so that a delayed ACK measures the delay, too."""
    sk, _ = receiver()
    input.receive(sk, segment(sk, payload=b"a" * 10, ts=(1010, 0)))
    assert sk.ts_recent == 1010
    # not acknowledged yet: the next segment's does not count
    input.receive(sk, segment(sk, payload=b"b" * 10, ts=(1020, 0)))
    assert sk.ts_recent == 1010
    sk.rcv_wup = sk.rcv_nxt
    input.receive(sk, segment(sk, payload=b"c" * 10, ts=(1030, 0)))
    assert sk.ts_recent == 1030


def test_a_segment_beyond_a_hole_does_not_change_the_echo() -> None:
    sk, _ = receiver()
    input.receive(sk, segment(sk, seq=501, payload=b"a", ts=(1010, 0)))
    assert sk.ts_recent == 1000


def test_the_echo_never_goes_back_even_by_the_tick_that_is_tolerated() -> None:
    sk, _ = receiver()
    input.receive(sk, segment(sk, payload=b"a", ts=(999, 0)))
    assert sk.ts_recent == 1000
    assert sk.rcv_nxt - sk.irs == 2
