"""RTT estimator, RTO and minimum filter, by hand (linux-tcp §8.2; RFC 6298, RFC 7323)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytcp.tcp import rtt
from pytcp.tcp.sock import Sock

from .harness import MS, FakeHost, established, make_sock


def estimator(*samples: int) -> Sock:
    """A socket that took `samples`, us, each acknowledging a window of its own."""
    sk = make_sock()
    for m in samples:
        sk.snd_una += 2
        sk.snd_nxt = sk.snd_una + 1
        sk.rtt_seq = min(sk.rtt_seq, sk.snd_una - 1)
        rtt.rtt_estimator(sk, m)
    return sk


def test_the_first_sample_sets_everything() -> None:
    """srtt = m, mdev = m/2 (kept times 4 as 2m), variance at least rto_min: RTO = srtt + 200 ms."""
    sk = estimator(40_000)
    assert (sk.srtt_us, sk.mdev_us, sk.rttvar_us, sk.mdev_max_us) == (320_000, 80_000, 200_000, 200_000)
    rtt.set_rto(sk)
    assert sk.rto_ns == 240 * MS


def test_a_slow_first_sample_triples() -> None:
    """RFC 6298: RTO = R + 4·(R/2)."""
    sk = estimator(500_000)
    rtt.set_rto(sk)
    assert (sk.rttvar_us, sk.rto_ns) == (1_000_000, 1_500 * MS)


def test_a_larger_sample_moves_the_mean_by_an_eighth_and_the_deviation_by_a_quarter() -> None:
    """e = 80 - 40 = 40 ms: srtt·8 = 320 + 40; mdev·4 = 80 + (40 - 20) = 100."""
    sk = estimator(40_000, 80_000)
    assert (sk.srtt_us, sk.mdev_us) == (360_000, 100_000)


def test_a_smaller_sample_raises_the_deviation_eight_times_more_slowly() -> None:
    """e = -30 ms: srtt·8 = 320 - 30; 30 - 20 = 10 ms above mdev: an eighth of it, 1250 us."""
    sk = estimator(40_000, 10_000)
    assert (sk.srtt_us, sk.mdev_us) == (290_000, 81_250)


def test_a_smaller_deviation_than_usual_lowers_it() -> None:
    """e = -8 ms, mdev 20 ms: mdev·4 falls by 12."""
    sk = estimator(40_000, 32_000)
    assert (sk.srtt_us, sk.mdev_us) == (312_000, 68_000)


def test_the_variance_follows_a_jump_at_once() -> None:
    """mdev·4 = 80 + (500 - 40 - 20) ms = 520 ms is more than the 200 of before."""
    sk = estimator(40_000, 500_000)
    assert (sk.mdev_us, sk.mdev_max_us, sk.rttvar_us) == (520_000, 200_000, 520_000), "the maximum of the next window starts at rto_min"
    rtt.set_rto(sk)
    assert sk.rto_ns == -(-(97_500 + 520_000) // 4000) * 4 * MS


def test_and_decays_by_a_quarter_of_the_difference_once_per_window() -> None:
    sk = estimator(40_000, 500_000)
    sk.snd_una = sk.rtt_seq
    rtt.rtt_estimator(sk, 97_500)
    assert sk.rttvar_us == 520_000, "the same window goes on"
    # mdev: e = 0, falls by mdev/4 each time: 520 → 390 → 292.5 ms
    assert sk.mdev_max_us == 390_000
    sk.snd_una = sk.rtt_seq + 1
    sk.mdev_max_us = 200_000
    rtt.rtt_estimator(sk, 97_500)
    assert (sk.mdev_us, sk.rttvar_us) == (292_500, 520_000 - (520_000 - 292_500) // 4)
    assert (sk.mdev_max_us, sk.rtt_seq) == (200_000, sk.snd_nxt)


@given(st.lists(st.integers(1, 10_000_000), min_size=1, max_size=60))
def test_the_rto_never_comes_within_rto_min_of_the_mean(samples: list[int]) -> None:
    sk = estimator(*samples)
    rtt.set_rto(sk)
    assert sk.srtt_us >= 1
    assert sk.rto_ns >= min((sk.srtt_us >> 3) * 1000 + 200 * MS, sk.rto_max_ns)
    assert sk.rto_ns <= 120_000 * MS
    assert sk.rto_ns % sk.sysctl.tick_ns == 0


def test_rto_min_and_rto_max_are_the_sockets() -> None:
    sk = make_sock(rto_min_us=5_000, rto_max_ns=1_000 * MS)
    rtt.rtt_estimator(sk, 1_000)
    rtt.set_rto(sk)
    assert sk.rto_ns == 8 * MS, "1 + 5 ms in ticks of 4"
    rtt.rtt_estimator(sk, 5_000_000)
    rtt.set_rto(sk)
    assert sk.rto_ns == 1_000 * MS


@pytest.mark.parametrize(("sysctl_us", "min_us", "rto_ms"), [(50_000, 52_000, 60), (52_000, 52_000, 60), (200_000, 200_000, 208)])
def test_rto_min_is_kept_in_whole_ticks(sysctl_us: int, min_us: int, rto_ms: int) -> None:
    """HZ 250: 50 ms is 13 ticks, so with a round trip of 5073 us the RTO is 60 ms, not 56 (measured on 6.18)."""
    host = FakeHost()
    host.sysctl.tcp_rto_min_us = sysctl_us
    sk = make_sock(host)
    rtt.rtt_estimator(sk, 5073)
    rtt.set_rto(sk)
    assert (sk.rto_min_us, sk.rto_ns) == (min_us, rto_ms * MS)


def test_a_valid_sample_ends_the_backoff() -> None:
    sk = make_sock(backoff=3, rto_ns=1600 * MS)
    rtt.sample(sk, False, 40_000, 38_000)
    assert (sk.backoff, sk.rto_ns, sk.min_rtt_us) == (0, 240 * MS, 38_000)


# ---------------------------------------------------------------- timestamps


@pytest.mark.parametrize(
    ("echo_age_ms", "rtt_us"),
    [(0, 1000), (1, 1000), (40, 40_000), (2_000_000, 2_000_000_000), (2_147_483, -1), (-1, -1)],
)
def test_an_echo_gives_milliseconds_at_least_one_or_nothing(echo_age_ms: int, rtt_us: int) -> None:
    """More than 2^31/1000 ms cannot be an RTT, and an echo from the future is none either."""
    host = FakeHost()
    sk = make_sock(host, ts_offset=0xFFFFFF00)
    sk.rcv_tsecr = (host.now_ns // MS + sk.ts_offset - echo_age_ms) & 0xFFFFFFFF
    assert rtt.tsecr_rtt_us(sk) == rtt_us


def test_the_handshake_gives_the_first_sample_unless_its_synack_was_repeated() -> None:
    sk = established()
    rtt.synack_rtt_meas(sk, -1)
    assert sk.srtt_us == 0
    rtt.synack_rtt_meas(sk, 40_000)
    assert (sk.srtt_us >> 3, sk.min_rtt_us, sk.rto_ns) == (40_000, 40_000, 240 * MS)


# ---------------------------------------------------------------- the minimum


def test_the_minimum_is_that_of_a_sliding_window() -> None:
    host = FakeHost()
    sk = make_sock(host)
    for at_s, sample, minimum in ((0, 50, 50), (10, 40, 40), (100, 60, 40), (200, 45, 40), (309, 70, 40), (311, 70, 45), (600, 80, 70)):
        host.heap.now_ns = (1000 + at_s) * 1000 * MS
        rtt.update_rtt_min(sk, sample * 1000, False)
        assert sk.min_rtt_us == minimum * 1000, at_s


def test_the_window_is_a_sysctl() -> None:
    host = FakeHost()
    host.sysctl.tcp_min_rtt_wlen = 10
    sk = make_sock(host)
    rtt.update_rtt_min(sk, 40_000, False)
    host.advance(11_000 * MS)
    rtt.update_rtt_min(sk, 90_000, False)
    assert sk.min_rtt_us == 90_000


def test_a_sample_that_may_be_delayed_counts_only_as_a_new_minimum() -> None:
    sk = make_sock()
    rtt.update_rtt_min(sk, 40_000, True)
    assert sk.min_rtt_us == 40_000, "the first of all"
    rtt.update_rtt_min(sk, 90_000, True)
    rtt.update_rtt_min(sk, 30_000, True)
    assert sk.min_rtt_us == 30_000


def test_no_time_at_all_counts_as_a_tick() -> None:
    sk = make_sock()
    rtt.update_rtt_min(sk, 0, False)
    assert sk.min_rtt_us == 4000


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 1000)), min_size=1, max_size=80))
def test_the_filter_is_never_above_a_recent_sample_nor_below_the_window(samples: list[tuple[int, int]]) -> None:
    """Three samples stand for the window: at worst a quarter of it late, never above the newest sample."""
    window = 100
    now, seen = 0, []
    filt: rtt.WindowedMin | None = None
    for gap, value in samples:
        now += gap
        seen.append((now, value))
        got = value if filt is None else filt.update(window, now, value)
        if filt is None:
            filt = rtt.WindowedMin(now, value)
        assert got <= value
        assert got == filt.get()
        assert got in [v for t, v in seen if now - t <= window]
