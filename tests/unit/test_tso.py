"""How large a burst is, whether it waits for the next ACK, and where it is cut (linux-tcp §3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytcp.tcp import const, input, sendmsg, tso, xmit
from pytcp.tcp.skb import Skb
from pytcp.tcp.sock import Sock

from .harness import MS, US, FakeHost, established, segment

GSO_MAX = 65_343  # 65536 - (MAX_TCP_HEADER 192 + 1)

# ---------------------------------------------------------------- autosizing


@pytest.mark.parametrize(
    ("rate", "min_rtt_us", "mss", "segs"),
    [
        # one millisecond (>> 10) of the rate: 10 MB/s are 9765 bytes
        (10_000_000, 100_000, 1460, 6),
        (10_000_000, 100_000, 1000, 9),
        # at least two, however slow
        (1_000, 100_000, 1460, 2),
        # min_rtt 1000 us >> 9 = 1: half of gso_max on top: (9765 + 32671) / 1460 = 29
        (10_000_000, 1_000, 1460, 29),
        # min_rtt 5120 us >> 9 = 10: 63 bytes more; 11 264 us >> 9 = 22: nothing
        (10_000_000, 5_120, 1460, 6),
        # below 512 us all of gso_max: 44 segments of 1460
        (1_000, 400, 1460, 44),
        # never more than gso_max
        (1 << 40, 100_000, 1460, 44),
        (1 << 40, 100_000, 1452, 45),
        # no RTT known yet: no bonus
        (2_920 << 10, 0xFFFFFFFF, 1460, 2),
    ],
)
def test_a_burst_is_a_millisecond_of_the_rate_and_more_on_short_paths(rate: int, min_rtt_us: int, mss: int, segs: int) -> None:
    sk = established(mss=mss)
    sk.pacing_rate, sk.min_rtt_us = rate, min_rtt_us
    assert sk.gso_max_size == GSO_MAX
    assert tso.tso_segs(sk, mss) == segs


def test_the_bonus_for_short_paths_can_be_switched_off() -> None:
    sk = established(mss=1460)
    sk.pacing_rate, sk.min_rtt_us = 10_000_000, 100
    sk.sysctl.tcp_tso_rtt_log = 0
    assert tso.tso_segs(sk, 1460) == 6


def test_the_smallest_burst_and_the_device_bound_it() -> None:
    sk = established(mss=1000)
    sk.pacing_rate, sk.min_rtt_us = 1000, 1 << 30
    sk.sysctl.tcp_min_tso_segs = 4
    assert tso.tso_segs(sk, 1000) == 4
    sk.gso_max_segs = 3
    assert tso.tso_segs(sk, 1000) == 3


def test_a_device_may_want_more_than_a_millisecond() -> None:
    """sk_pacing_shift 7 is 8 ms, as WiFi drivers set it."""
    sk = established(mss=1000)
    sk.pacing_rate, sk.min_rtt_us, sk.pacing_shift = 1_280_000, 1 << 30, 7
    assert tso.tso_segs(sk, 1000) == 10


# ---------------------------------------------------------------- deferral


def waiting(length: int = 4000, *, in_flight: int = 8, cwnd: int = 10, srtt_us: int = 20_000, window: int = 1 << 20) -> tuple[Sock, FakeHost, Skb]:
    """`in_flight` segments of 1000 sent 19.5 ms ago (their ACK is due in 0.5 ms), `length` bytes queued, and the
    last transmission 0.1 ms ago. Every condition for waiting holds."""
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=srtt_us, window=window)
    sk.snd_cwnd = 100
    sk.nonagle = const.NAGLE_OFF
    for _ in range(in_flight):
        sendmsg.sendmsg(sk, bytes(1000), const.MSG_EOR)
    host.advance(19_400 * US)
    sk.wstamp_ns = host.now_ns
    host.advance(100 * US)
    sk.snd_cwnd = 0
    sendmsg.sendmsg(sk, bytes(length))
    sk.snd_cwnd = cwnd
    skb = sk.write_queue.head
    assert skb is not None
    assert skb.length == length
    return sk, host, skb


def test_a_burst_that_the_next_ack_would_enlarge_waits_for_it() -> None:
    """2000 of a window of 10000 are free: less than a third, less than the skb."""
    sk, _, skb = waiting()
    assert tso.should_defer(sk, skb, 40) == tso.DEFER_CWND_LIMITED


def test_in_recovery_nothing_waits() -> None:
    sk, _, skb = waiting()
    sk.ca_state = const.CA_RECOVERY
    assert tso.should_defer(sk, skb, 40) == tso.NOW_RECOVERY
    sk.ca_state = const.CA_CWR
    assert tso.should_defer(sk, skb, 40) == tso.DEFER_CWND_LIMITED


@pytest.mark.parametrize(("age_us", "verdict"), [(1000, tso.DEFER_CWND_LIMITED), (1001, tso.NOW_STALE)])
def test_nothing_waits_when_the_last_transmission_is_older_than_a_millisecond(age_us: int, verdict: int) -> None:
    sk, host, skb = waiting()
    sk.wstamp_ns = host.now_ns - age_us * US
    assert tso.should_defer(sk, skb, 40) == verdict


@pytest.mark.parametrize(("max_segs", "verdict"), [(2, tso.NOW_FULL_BURST), (3, tso.DEFER_CWND_LIMITED)])
def test_a_burst_of_full_size_does_not_wait(max_segs: int, verdict: int) -> None:
    sk, _, skb = waiting()
    assert tso.should_defer(sk, skb, max_segs) == verdict


def test_an_skb_in_the_middle_that_fits_whole_does_not_wait() -> None:
    sk, _, skb = waiting(2000)
    assert tso.should_defer(sk, skb, 40) == tso.DEFER_CWND_LIMITED, "the tail may get more"
    sk.write_queue.append(Skb(skb.end_seq, const.ACK, 832))
    assert tso.should_defer(sk, skb, 40) == tso.NOW_WHOLE


@pytest.mark.parametrize(("cwnd", "verdict"), [(11, tso.DEFER_CWND_LIMITED), (12, tso.NOW_ENOUGH)])
def test_a_third_of_the_window_is_enough(cwnd: int, verdict: int) -> None:
    """tcp_tso_win_divisor 3: 3000 free of 11000 are less than a third, 4000 of 12000 are not."""
    sk, _, skb = waiting(6000, cwnd=cwnd)
    assert tso.should_defer(sk, skb, 40) == verdict


@pytest.mark.parametrize(("in_flight", "verdict"), [(7, tso.DEFER_CWND_LIMITED), (6, tso.NOW_ENOUGH)])
def test_without_the_divisor_more_than_three_segments_are_enough(in_flight: int, verdict: int) -> None:
    sk, _, skb = waiting(6000, in_flight=in_flight)
    sk.sysctl.tcp_tso_win_divisor = 0
    assert tso.should_defer(sk, skb, 40) == verdict


def test_with_nothing_in_flight_there_is_no_ack_to_wait_for() -> None:
    sk, _, skb = waiting()
    sk.sysctl.tcp_tso_win_divisor = 0
    sk.snd_cwnd = sk.packets_out + 2
    assert tso.should_defer(sk, skb, 40) == tso.DEFER_CWND_LIMITED
    sk.rtx_queue.head = None
    assert tso.should_defer(sk, skb, 40) == tso.NOW_NO_ACK_DUE


@pytest.mark.parametrize(
    ("srtt_us", "age_us", "verdict"),
    [
        # the ACK is due at srtt after the oldest transmission; 1 ms or half the RTT is worth waiting
        (20_000, 19_000, tso.DEFER_CWND_LIMITED),
        (20_000, 18_999, tso.NOW_ACK_FAR),
        (1_000, 500, tso.DEFER_CWND_LIMITED),
        (1_000, 499, tso.NOW_ACK_FAR),
        (20_000, 30_000, tso.DEFER_CWND_LIMITED),  # overdue
    ],
)
def test_an_ack_that_is_far_away_is_not_waited_for(srtt_us: int, age_us: int, verdict: int) -> None:
    sk, host, skb = waiting(srtt_us=srtt_us)
    head = sk.rtx_queue.head
    assert head is not None
    head.tx_ns = host.now_ns - age_us * US
    assert tso.should_defer(sk, skb, 40) == verdict


def test_the_receivers_window_may_be_what_limits() -> None:
    sk, _, skb = waiting()
    sk.snd_wnd = sk.snd_nxt - sk.snd_una + 1500
    assert tso.should_defer(sk, skb, 40) == tso.DEFER_RWND_LIMITED


@pytest.mark.parametrize("last", ["fin", "eor"])
def test_a_program_that_has_no_more_is_not_waited_for(last: str) -> None:
    """Application-limited: the skb is smaller than what is free, a write may still enlarge it."""
    sk, _, skb = waiting(1500)
    assert tso.should_defer(sk, skb, 40) == tso.DEFER
    if last == "fin":
        skb.flags |= const.FIN
    else:
        skb.eor = True
    assert tso.should_defer(sk, skb, 40) == tso.NOW_END


def test_a_deferred_burst_leaves_with_the_next_ack() -> None:
    sk, host, _ = waiting()
    sk.sysctl.tcp_min_tso_segs = 40
    host.take()
    xmit.push_pending_frames(sk, 1000, 0)
    assert host.take() == []
    assert sk.is_cwnd_limited
    input.receive(sk, segment(sk, ack=4001))
    assert sum(s.length for s in host.take()) == 4000


# ---------------------------------------------------------------- the split point


def queue_of(length: int, window: int = 1 << 20, cwnd: int = 20) -> tuple[Sock, Skb]:
    sk = established(mss=1000, window=window)
    sk.snd_cwnd = 0
    sendmsg.sendmsg(sk, bytes(length))
    sk.snd_cwnd = cwnd
    skb = sk.write_queue.head
    assert skb is not None
    return sk, skb


def first_cut(sk: Sock, nonagle: int = 0) -> int:
    """Payload of the first super-segment that leaves."""
    host = sk.host
    assert isinstance(host, FakeHost)
    sk.ca_state = const.CA_RECOVERY  # nothing is deferred then
    xmit.write_xmit(sk, 1000, nonagle, 1)
    return host.take()[0].length


def test_the_quota_cuts_at_a_segment_boundary() -> None:
    sk, _ = queue_of(7500, cwnd=6)
    assert first_cut(sk) == 3000, "half of the congestion window"


def test_a_partial_last_segment_rides_along_when_nagle_lets_it() -> None:
    sk, _ = queue_of(4480)
    assert first_cut(sk) == 4480


@pytest.mark.parametrize(("nonagle", "bytes_"), [(0, 4000), (const.NAGLE_CORK, 4000), (const.NAGLE_OFF, 4480)])
def test_it_stays_behind_an_unacknowledged_small_segment_or_a_cork(nonagle: int, bytes_: int) -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(100))
    assert [s.length for s in host.take()] == [100]
    sk.snd_cwnd = 0
    sendmsg.sendmsg(sk, bytes(4480))
    sk.snd_cwnd = 20
    assert first_cut(sk, nonagle) == bytes_


def test_a_cork_alone_holds_it_too() -> None:
    sk, _ = queue_of(4480)
    assert first_cut(sk, const.NAGLE_CORK) == 4000


@pytest.mark.parametrize(("nonagle", "bytes_"), [(const.NAGLE_CORK, 2000), (const.NAGLE_OFF, 2600)])
def test_a_window_that_ends_within_a_segment_is_treated_alike(nonagle: int, bytes_: int) -> None:
    sk, _ = queue_of(7500)
    sk.snd_wnd = 2600
    assert first_cut(sk, nonagle) == bytes_


def test_one_burst_takes_at_most_half_of_the_congestion_window() -> None:
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=300)
    sk.snd_cwnd = 10
    sendmsg.sendmsg(sk, bytes(20_000))
    assert [s.segs for s in host.take()] == [5, 5]
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=300)
    sk.snd_cwnd = 10
    sk.sysctl.half_cwnd_cap = 0
    sendmsg.sendmsg(sk, bytes(20_000))
    assert [s.segs for s in host.take()] == [10]


def test_a_window_of_one_still_sends() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sk.snd_cwnd = 1
    sendmsg.sendmsg(sk, bytes(3000))
    assert [s.length for s in host.take()] == [1000]


def test_a_short_rest_takes_bytes_from_the_skb_behind_it() -> None:
    """6.10: [300][5000] with room for 4 segments is one burst of 4000, not a runt and a burst."""
    host = FakeHost()
    sk = established(host, mss=1000)
    sk.snd_cwnd = 0
    sendmsg.sendmsg(sk, bytes(300))
    tail = sk.write_queue.tail
    assert tail is not None
    tail.length, full = 65_000, tail.length  # what was written so far fills an skb
    sendmsg.sendmsg(sk, bytes(5000))
    tail.length = full
    sk.snd_cwnd = 8
    xmit.push_pending_frames(sk, 1000, const.NAGLE_OFF)
    assert [(s.length, s.gso_size) for s in host.take()] == [(4000, 1000), (1300, 1000)]


def test_growing_stops_at_a_record_end_and_can_be_switched_off() -> None:
    for record_end in (True, False):
        host = FakeHost()
        sk = established(host, mss=1000)
        sk.snd_cwnd = 0
        sendmsg.sendmsg(sk, bytes(300), const.MSG_EOR)
        first = sk.write_queue.head
        assert first is not None
        sendmsg.sendmsg(sk, bytes(3000))
        first.eor = record_end
        sk.sysctl.grow_skb = int(record_end)
        sk.snd_cwnd = 8
        xmit.push_pending_frames(sk, 1000, const.NAGLE_OFF)
        assert [s.length for s in host.take()] == [300, 3000]


# ---------------------------------------------------------------- cutting


@given(st.lists(st.binary(max_size=6), max_size=6), st.data())
def test_cutting_a_list_of_buffers_loses_nothing(parts: list[bytes], data: Any) -> None:
    n = data.draw(st.integers(0, sum(map(len, parts))))
    frags: list[Any] = list(parts)
    first, rest = tso.split_frags(frags, n)
    whole = b"".join(parts)
    assert b"".join(map(bytes, first)) == whole[:n]
    assert b"".join(map(bytes, rest)) == whole[n:]
    assert frags == parts, "the old list may be in the TX ring"


def test_a_cut_moves_bytes_flags_and_memory_to_the_second_part() -> None:
    sk, skb = queue_of(3500)
    skb.flags |= const.FIN | const.PSH
    skb.end_seq += 1
    skb.eor = True
    before = sk.wmem_queued
    rest = tso.fragment(sk, skb, 2000, 1000)
    assert (skb.length, skb.pcount, skb.gso_size, skb.flags & (const.FIN | const.PSH), skb.eor) == (2000, 2, 1000, 0, False)
    assert (rest.length, rest.pcount, rest.gso_size, rest.eor) == (1500, 2, 1000, True)
    assert rest.flags & (const.FIN | const.PSH) == const.FIN | const.PSH
    assert (skb.end_seq, rest.seq, rest.end_seq - rest.seq) == (rest.seq, skb.seq + 2000, 1501)
    assert skb.truesize == 832 + 2000
    assert rest.truesize == 832 + 1500
    assert sk.wmem_queued == before + 832, "the payload's memory moved, the second skb's own is new"


def test_a_cut_inherits_the_scoreboard_and_the_time_of_sending() -> None:
    sk, skb = queue_of(2000)
    skb.sacked, skb.retrans, skb.tx_ns = const.LOST | const.EVER_RETRANS, 2, 5 * MS
    skb.tx_delivered, skb.tx_delivered_us, skb.tx_first_us, skb.tx_app_limited = 7, 8, 9, True
    rest = tso.fragment(sk, skb, 1000, 1000)
    for name in ("sacked", "retrans", "tx_ns", "tx_delivered", "tx_delivered_us", "tx_first_us", "tx_app_limited"):
        assert getattr(rest, name) == getattr(skb, name)


@pytest.mark.parametrize(("length", "pcount", "gso_size"), [(0, 1, 0), (1, 1, 0), (1000, 1, 0), (1001, 2, 1000), (2000, 2, 1000), (2001, 3, 1000)])
def test_segments_are_counted_in_whole_mss(length: int, pcount: int, gso_size: int) -> None:
    skb = Skb(0, const.ACK, 832)
    skb.length = length
    assert tso.set_pcount(skb, 1000) == pcount
    assert (skb.pcount, skb.gso_size) == (pcount, gso_size)
