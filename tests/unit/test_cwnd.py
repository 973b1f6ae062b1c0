"""Was the congestion window the limit, and is it still valid? (linux-tcp §3.6, §8.12, §14; RFC 2861)"""

from __future__ import annotations

import pytest

from pytcp.tcp import const, cwnd, input, sendmsg, xmit
from pytcp.tcp.cong.base import CongestionControl
from pytcp.tcp.sock import Sock

from .harness import MS, FakeHost, established, segment


def flow(window: int, *, ssthresh: int = const.INFINITE_SSTHRESH) -> tuple[Sock, FakeHost]:
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=20_000)
    sk.nonagle = const.NAGLE_OFF
    sk.snd_cwnd, sk.snd_ssthresh = window, ssthresh
    return sk, host


@pytest.mark.parametrize(("metric", "clamp", "window"), [(0, 0xFFFFFFFF, 10), (30, 0xFFFFFFFF, 30), (0, 4, 4)])
def test_the_initial_window_is_ten_or_the_routes(metric: int, clamp: int, window: int) -> None:
    sk = established()
    sk.dst.initcwnd = metric
    sk.snd_cwnd_clamp = clamp
    assert cwnd.init_cwnd(sk) == window


def test_the_current_ssthresh_remembers_three_quarters_of_the_window() -> None:
    sk = established()
    sk.snd_cwnd, sk.snd_ssthresh = 22, 5
    assert cwnd.current_ssthresh(sk) == 11 + 5
    sk.snd_ssthresh = 50
    assert cwnd.current_ssthresh(sk) == 50
    sk.snd_ssthresh, sk.ca_state = 5, const.CA_RECOVERY
    assert cwnd.current_ssthresh(sk) == 5, "the reduction is under way"


def test_a_full_window_is_a_limit() -> None:
    sk, _ = flow(10)
    sendmsg.sendmsg(sk, bytes(20_000))
    assert (sk.is_cwnd_limited, cwnd.is_limited(sk)) == (True, True)


def test_a_program_that_sends_less_is_not_limited_once_the_window_is_twice_its_flight() -> None:
    """Slow start lets cwnd grow to twice what was in flight (max_packets_out), congestion avoidance does not."""
    sk, _ = flow(9)
    sendmsg.sendmsg(sk, bytes(5_000))
    assert (sk.is_cwnd_limited, sk.max_packets_out) == (False, 5)
    assert cwnd.is_limited(sk)
    sk.snd_cwnd = 10
    assert not cwnd.is_limited(sk)
    sk.snd_cwnd, sk.snd_ssthresh = 9, 9
    assert not cwnd.is_limited(sk)


def test_the_verdict_holds_for_a_window_of_data() -> None:
    """cwnd_usage_seq: a limit noted in this window is not taken back until the window is acknowledged."""
    sk, _ = flow(10)
    sendmsg.sendmsg(sk, bytes(10_000))
    assert sk.is_cwnd_limited
    input.receive(sk, segment(sk, ack=5001))
    sendmsg.sendmsg(sk, bytes(100))
    assert sk.is_cwnd_limited, "5 in flight, but the limit belongs to this window"
    input.receive(sk, segment(sk))
    sendmsg.sendmsg(sk, bytes(100))
    assert (sk.is_cwnd_limited, sk.max_packets_out) == (False, 1)


@pytest.mark.parametrize(("keep", "limited", "packets"), [(1, True, 10), (0, False, 12)])
def test_before_6_1_a_larger_burst_of_the_same_window_overwrote_the_verdict(keep: int, limited: bool, packets: int) -> None:
    """Ten segments fill the window of ten; five are acknowledged, the window is 15 and seven more leave: 12 in flight, no limit."""
    sk, host = flow(10)
    host.sysctl.keep_cwnd_limited = keep
    sendmsg.sendmsg(sk, bytes(10_000))
    input.receive(sk, segment(sk, ack=5001))
    assert sk.snd_cwnd == 15
    sendmsg.sendmsg(sk, bytes(7_000))
    assert (sk.is_cwnd_limited, sk.max_packets_out) == (limited, packets)


def test_a_window_unused_for_an_rto_comes_half_way_down_to_what_was_used() -> None:
    """RTO 220 ms; 12 in flight at most: (40 + 12)/2 = 26, ssthresh 3/4 of 40."""
    sk, host = flow(40, ssthresh=20)
    sendmsg.sendmsg(sk, bytes(12_000))
    assert sk.snd_cwnd_used == 12
    sk.write_queue.head = None
    sk.cwnd_stamp = host.now_ns - 224 * MS
    cwnd.validate(sk, False)
    assert (sk.snd_cwnd, sk.snd_ssthresh, sk.snd_cwnd_used) == (26, 30, 0)
    assert sk.cwnd_stamp == host.now_ns


def test_it_does_not_come_down_below_the_initial_window_or_for_a_full_buffer() -> None:
    for nospace, state, expected in ((False, const.CA_OPEN, 25), (True, const.CA_OPEN, 40), (False, const.CA_DISORDER, 40)):
        sk, host = flow(40, ssthresh=20)
        sendmsg.sendmsg(sk, bytes(3_000))
        sk.nospace, sk.ca_state = nospace, state
        sk.cwnd_stamp = host.now_ns - 300 * MS
        cwnd.validate(sk, False)
        assert sk.snd_cwnd == expected, "(40 + 10)/2"


def test_an_ack_in_congestion_avoidance_keeps_the_window_valid() -> None:
    """cwnd_stamp: an application-limited flow that keeps being acknowledged does not decay (measured)."""
    sk, host = flow(40, ssthresh=20)
    for _ in range(30):
        sendmsg.sendmsg(sk, bytes(3_000))
        host.advance(30 * MS)
        input.receive(sk, segment(sk))
    assert sk.snd_cwnd == 40


@pytest.mark.parametrize(
    ("idle_ms", "window"),
    [
        # RTO 220 ms: idle time beyond one RTO halves once per RTO begun, never below ten
        (220, 40),
        (224, 20),
        (440, 20),
        (444, 10),
        (10_000, 10),
    ],
)
def test_an_idle_connection_restarts_from_a_smaller_window(idle_ms: int, window: int) -> None:
    sk, host = flow(40)
    assert sk.rto_ns == 220 * MS
    sk.lsndtime_ns = host.now_ns
    host.heap.now_ns += idle_ms * MS
    sk.cwnd_stamp = host.now_ns  # (the decay of an unused window is another rule)
    sendmsg.sendmsg(sk, bytes(100))
    assert sk.snd_cwnd == window
    assert sk.snd_ssthresh == const.INFINITE_SSTHRESH


def test_a_restart_keeps_three_quarters_as_ssthresh() -> None:
    sk, host = flow(40, ssthresh=20)
    host.heap.now_ns += 300 * MS
    sendmsg.sendmsg(sk, bytes(100))
    assert (sk.snd_cwnd, sk.snd_ssthresh) == (20, 30)


def test_a_small_window_is_not_enlarged_by_a_restart() -> None:
    sk, host = flow(4, ssthresh=4)
    host.heap.now_ns += 3000 * MS
    sendmsg.sendmsg(sk, bytes(100))
    assert sk.snd_cwnd == 4


def test_data_in_flight_is_no_idleness() -> None:
    sk, host = flow(40)
    sendmsg.sendmsg(sk, bytes(100))
    host.heap.now_ns += 1000 * MS
    sk.cwnd_stamp = host.now_ns
    sendmsg.sendmsg(sk, bytes(100))
    assert sk.snd_cwnd == 40


def test_the_restart_can_be_switched_off_and_rate_based_controls_do_without() -> None:
    class Rate(CongestionControl):
        name = "rate"
        has_cong_control = True

    for off, ca in ((True, None), (False, Rate())):
        sk, host = flow(40)
        if off:
            sk.sysctl.tcp_slow_start_after_idle = 0
        if ca is not None:
            sk.ca = ca
        host.heap.now_ns += 3000 * MS
        sendmsg.sendmsg(sk, bytes(100))
        assert sk.snd_cwnd == 40


def test_a_window_update_after_idleness_restarts_too() -> None:
    sk, host = flow(40)
    sk.snd_wnd = 0
    sendmsg.sendmsg(sk, bytes(100))
    assert host.sent == []
    sk.snd_cwnd = 40
    host.heap.now_ns += 444 * MS
    input.receive(sk, segment(sk, seq=1, window=60_000))
    assert sk.snd_cwnd == 10
    assert [s.length for s in host.sent if s.length] == [100]


def test_nothing_is_sent_beyond_the_window() -> None:
    sk, host = flow(7)
    sendmsg.sendmsg(sk, bytes(20_000))
    assert sum(s.segs for s in host.take()) == 7
    input.receive(sk, segment(sk, ack=2001))
    # slow start: two acknowledged, two more, and two in their place
    assert (sk.snd_cwnd, sum(s.segs for s in host.take())) == (9, 4)
    xmit.push_pending_frames(sk, 1000, const.NAGLE_OFF)
    assert host.take() == []
