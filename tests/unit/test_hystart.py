"""HyStart: leaving slow start before the bottleneck overflows (linux-tcp §6.3; Ha & Rhee)."""

from __future__ import annotations

import pytest

from pytcp.tcp import const
from pytcp.tcp.cong import hystart
from pytcp.tcp.cong.cubic import Cubic
from pytcp.tcp.sock import Sock

from .harness import MS, US, FakeHost, established


def slow_start(cwnd: int = 40, *, delay_min_us: int = 40_000, rate: int = 1 << 40) -> tuple[Sock, Cubic, FakeHost]:
    """In slow start, a round just begun; a very high pacing rate makes the allowance for merged ACKs vanish."""
    host = FakeHost()
    sk = established(host, cc="cubic", mss=1000)
    sk.snd_cwnd = cwnd
    sk.pacing_rate = rate
    ca = sk.ca
    assert isinstance(ca, Cubic)
    sk.snd_nxt += 100_000
    ca.delay_min = delay_min_us
    hystart.reset(ca, sk)
    return sk, ca, host


def acks(sk: Sock, ca: Cubic, host: FakeHost, gap_us: int, count: int, rtt_us: int = 40_000) -> int:
    """ACKs `gap_us` apart until HyStart has found its exit; how many that took (0: never)."""
    for n in range(1, count + 1):
        host.advance(gap_us * US)
        ca.pkts_acked(sk, 1, rtt_us)
        if ca.found:
            return n
    return 0


# ---------------------------------------------------------------- the train


def test_a_train_of_acks_longer_than_half_the_minimum_delay_ends_slow_start() -> None:
    """delay_min 40 ms: past 20 ms. ACKs 1 ms apart: the 21st is the first at more than 20 ms."""
    sk, ca, host = slow_start()
    assert acks(sk, ca, host, 1000, 40) == 21
    assert sk.snd_ssthresh == sk.snd_cwnd == 40
    assert (sk.mib.TCPHystartTrainDetect, sk.mib.TCPHystartTrainCwnd) == (1, 40)


def test_a_paced_sender_has_to_wait_for_all_of_it() -> None:
    """Pacing spreads packets over up to half an RTT by itself."""
    sk, ca, host = slow_start()
    sk.pacing_status = 1
    assert acks(sk, ca, host, 1000, 60) == 41


@pytest.mark.parametrize(
    ("rate", "allowance_us"),
    [
        (0, 0),
        (1 << 40, 0),  # 4·65343 bytes at 1 TB/s
        (1_000_000_000, 261),  # at 1 GB/s
        (100_000_000, 1000),  # at most 1 ms
    ],
)
def test_merged_acks_get_an_allowance_of_four_bursts(rate: int, allowance_us: int) -> None:
    sk, _, _ = slow_start(rate=rate)
    assert hystart.ack_delay_us(sk) == allowance_us


def test_the_allowance_lengthens_the_threshold() -> None:
    sk, ca, host = slow_start(rate=100_000_000)
    assert acks(sk, ca, host, 500, 80) == 42, "(40 + 1)/2 = 20.5 ms: the 42nd half millisecond"


def test_a_gap_of_more_than_two_milliseconds_breaks_the_train() -> None:
    sk, ca, host = slow_start()
    assert acks(sk, ca, host, 1000, 10) == 0
    host.advance(2001 * US)
    ca.pkts_acked(sk, 1, 40_000)
    assert acks(sk, ca, host, 1000, 60, rtt_us=40_000) == 0, "not before a new round"
    sk, ca, host = slow_start()
    assert acks(sk, ca, host, 2000, 60) == 11, "2 ms is still a train: 22 ms"


def test_a_new_round_begins_when_its_last_segment_is_acknowledged() -> None:
    sk, ca, host = slow_start()
    assert acks(sk, ca, host, 1000, 15) == 0
    end = ca.end_seq
    sk.snd_una = end
    ca.pkts_acked(sk, 1, 40_000)
    assert ca.end_seq == end, "exactly the end is not behind it"
    sk.snd_una = end + 1
    sk.snd_nxt = end + 50_000
    ca.pkts_acked(sk, 1, 40_000)
    assert (ca.end_seq, ca.round_start, ca.sample_cnt) == (sk.snd_nxt, host.now_ns // 1000, 1)
    assert acks(sk, ca, host, 1000, 40) == 21


# ---------------------------------------------------------------- the delay


@pytest.mark.parametrize(
    ("delay_min_us", "rtt_us", "found"),
    [
        (40_000, 45_000, 0),  # an eighth: exactly at the threshold
        (40_000, 45_001, 9),
        (10_000, 14_000, 0),  # at least 4 ms
        (10_000, 14_001, 9),
        (200_000, 216_000, 0),  # at most 16 ms
        (200_000, 216_001, 9),
    ],
)
def test_a_round_trip_above_the_minimum_ends_slow_start_from_the_ninth_sample_on(delay_min_us: int, rtt_us: int, found: int) -> None:
    sk, ca, host = slow_start(delay_min_us=delay_min_us)
    assert acks(sk, ca, host, 3000, 20, rtt_us) == found
    if found:
        assert (sk.snd_ssthresh, sk.mib.TCPHystartDelayDetect, sk.mib.TCPHystartDelayCwnd) == (40, 1, 40)


def test_one_fast_sample_of_the_round_speaks_for_all() -> None:
    sk, ca, host = slow_start()
    ca.pkts_acked(sk, 1, 41_000)
    assert acks(sk, ca, host, 3000, 30, 60_000) == 0
    assert ca.curr_rtt == 41_000


def test_a_sample_below_the_minimum_lowers_it() -> None:
    sk, ca, _ = slow_start()
    ca.pkts_acked(sk, 1, 30_000)
    assert ca.delay_min == 30_000
    ca.pkts_acked(sk, 1, 0)
    assert ca.delay_min == 1, "no delay at all counts as 1 us"


# ---------------------------------------------------------------- when it does not look


def test_below_sixteen_packets_nothing_is_detected() -> None:
    sk, ca, host = slow_start(15)
    assert acks(sk, ca, host, 1000, 60, 90_000) == 0
    sk, ca, host = slow_start(16)
    assert acks(sk, ca, host, 1000, 60) == 21


def test_outside_slow_start_and_once_found_it_does_not_look() -> None:
    sk, ca, host = slow_start()
    sk.snd_ssthresh = 40
    assert acks(sk, ca, host, 1000, 60, 90_000) == 0
    sk, ca, host = slow_start()
    acks(sk, ca, host, 1000, 60)
    sk.snd_ssthresh = 1000
    ca.pkts_acked(sk, 1, 90_000)
    assert sk.mib.TCPHystartTrainDetect + sk.mib.TCPHystartDelayDetect == 1


def test_acks_without_a_sample_are_ignored() -> None:
    sk, ca, host = slow_start()
    assert acks(sk, ca, host, 1000, 60, -1) == 0


def test_for_a_second_after_a_recovery_samples_do_not_count() -> None:
    """The queue its burst built is still draining."""
    sk, ca, host = slow_start()
    ca.epoch_start = host.now_ns // sk.sysctl.tick_ns
    ca.pkts_acked(sk, 1, 10_000)
    assert ca.delay_min == 40_000
    host.advance(1000 * MS)
    ca.pkts_acked(sk, 1, 10_000)
    assert ca.delay_min == 10_000


def test_an_rto_makes_it_look_again() -> None:
    sk, ca, host = slow_start()
    assert acks(sk, ca, host, 1000, 60) == 21
    ca.set_state(sk, const.CA_LOSS)
    assert (ca.found, ca.round_start) == (False, host.now_ns // 1000)
    sk.snd_ssthresh = 1000
    ca.delay_min = 40_000
    assert acks(sk, ca, host, 1000, 60) == 21


# ---------------------------------------------------------------- how it was before


def test_before_6_14_rounds_were_not_reset_below_sixteen_packets() -> None:
    """4e1fddc98d25 kept the low-window test in front; the round began with the connection."""
    for variant, reset in (("update", True), ("update_gated", False)):
        sk, ca, host = slow_start(15)
        sk.sysctl.hystart_reset = variant
        host.advance(5 * MS)
        sk.snd_una = ca.end_seq + 1
        ca.pkts_acked(sk, 1, 40_000)
        assert (ca.round_start == host.now_ns // 1000) is reset


def test_before_5_16_rounds_were_reset_only_while_the_window_was_the_limit() -> None:
    """The reset sat in cong_avoid: an application-limited flow kept an old round and took its ACKs for a train."""
    sk, ca, host = slow_start()
    sk.sysctl.hystart_reset = "cong_avoid"
    start = ca.round_start
    sk.snd_una = ca.end_seq + 1
    host.advance(1 * MS)
    ca.pkts_acked(sk, 1, 40_000)
    assert ca.round_start == start
    sk.is_cwnd_limited = False
    ca.cong_avoid(sk, sk.snd_una, 1)
    assert ca.round_start == start
    sk.is_cwnd_limited = True
    ca.cong_avoid(sk, sk.snd_una, 1)
    assert ca.round_start == host.now_ns // 1000


# ---------------------------------------------------------------- the module's parameters


@pytest.mark.parametrize(("detect", "train", "delay"), [(3, 1, 0), (2, 0, 1), (1, 1, 0), (0, 0, 0)])
def test_hystart_detect_chooses_the_detectors(detect: int, train: int, delay: int) -> None:
    """A train of 1 ms gaps at 46 ms, 6 ms above delay_min: more than its eighth. The train is long at the 21st ACK; the delay
    counts from the ninth, when no round has ended."""
    sk, ca, host = slow_start()
    sk.sysctl.cubic_hystart_detect = detect
    if detect == 3:
        acks(sk, ca, host, 1000, 40)  # 40 ms: the train alone has something to say
    else:
        acks(sk, ca, host, 1000, 40, rtt_us=46_000)
    assert (sk.mib.TCPHystartTrainDetect, sk.mib.TCPHystartDelayDetect) == (train, delay)


def test_without_hystart_slow_start_goes_on() -> None:
    sk, ca, host = slow_start()
    sk.sysctl.cubic_hystart = 0
    assert acks(sk, ca, host, 1000, 80, rtt_us=80_000) == 0


def test_hystart_low_window_and_ack_delta_are_settings() -> None:
    sk, ca, host = slow_start()
    sk.sysctl.cubic_hystart_low_window = 41
    assert acks(sk, ca, host, 1000, 80) == 0, "cwnd 40 is below it"
    sk, ca, host = slow_start()
    sk.sysctl.cubic_hystart_ack_delta_us = 3000
    assert acks(sk, ca, host, 3000, 60) == 7, "3 ms is still a train: 21 ms"
