"""CUBIC computes the window Linux 6.18 computed, ACK by ACK, for flows of thousands of packets."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pytcp.tcp import const
from pytcp.tcp.cong.cubic import Cubic, cubic_root

from .harness import FakeHost, established

DATA = Path(__file__).parent.parent / "data"


@pytest.mark.parametrize("name", ["cubic_rtt50", "cubic_rtt110"])
def test_cwnd_follows_the_kernels_after_a_loss(name: str) -> None:
    """Tables taken from a running kernel: a lossy flow with one recovery, then avoidance for seconds.

    The recovery itself is PRR's business, so cwnd is taken from the table while it lasts; every ACK in
    Open must give the recorded cwnd."""
    host = FakeHost()
    sk = established(host, cc="cubic", mss=1460)
    sk.is_cwnd_limited = True
    ca = sk.ca
    assert isinstance(ca, Cubic)
    delivered = 1
    state = const.CA_OPEN
    compared = 0
    with (DATA / f"{name}.csv").open() as f:
        for row in csv.DictReader(f):
            host.heap.now_ns = int(row["jiffy"]) * 4_000_000
            acked = int(row["delivered"]) - delivered
            delivered += acked
            new_state = int(row["ca_state"])
            cwnd = int(row["cwnd"])
            ca.delay_min = int(row["min_rtt_us"])
            if new_state != const.CA_OPEN:
                if state < const.CA_RECOVERY == new_state:
                    sk.snd_ssthresh = ca.ssthresh(sk)
                    sk.snd_cwnd_cnt = 0
                    assert sk.snd_ssthresh == int(row["ssthresh"])
                sk.snd_cwnd = cwnd
                state = new_state
                continue
            if state == const.CA_RECOVERY:
                # the ACK that ends the recovery starts from ssthresh and already counts
                sk.snd_cwnd = sk.snd_ssthresh
            state = new_state
            ca.cong_avoid(sk, sk.snd_una, acked)
            assert sk.snd_cwnd == cwnd, row
            compared += 1
    assert compared > 5000


@pytest.mark.parametrize(("a", "root"), [(0, 0), (1, 1), (8, 2), (27, 3), (64, 4), (1000, 10), (10**6, 100), (10**12, 10_000)])
def test_the_cube_root_is_right_for_perfect_cubes_within_its_error(a: int, root: int) -> None:
    assert abs(cubic_root(a) - root) <= max(1, root // 400)


def test_loss_below_the_last_maximum_gives_way_faster() -> None:
    """Fast convergence: a flow that lost before it was back at W_max remembers (1 + beta)/2 of cwnd."""
    sk = established(cc="cubic")
    ca = sk.ca
    assert isinstance(ca, Cubic)
    sk.snd_cwnd = 1000
    assert ca.ssthresh(sk) == 1000 * 717 // 1024
    assert ca.last_max_cwnd == 1000
    sk.snd_cwnd = 800
    assert ca.ssthresh(sk) == 800 * 717 // 1024
    assert ca.last_max_cwnd == 800 * (1024 + 717) // 2048


def test_an_rto_forgets_the_epoch() -> None:
    sk = established(cc="cubic")
    ca = sk.ca
    assert isinstance(ca, Cubic)
    sk.snd_cwnd = 100
    ca.ssthresh(sk)
    ca.set_state(sk, const.CA_LOSS)
    assert (ca.last_max_cwnd, ca.epoch_start, ca.k) == (0, 0, 0)


def test_beta_and_fast_convergence_decide_what_a_loss_leaves() -> None:
    """717/1024 of 100 is 70; a second loss below the last maximum remembers (1024 + 717)/2048 of 70: 59. With beta 512 half is
    left, and without fast convergence the window itself is remembered."""
    sk = established(FakeHost(), cc="cubic", mss=1460)
    ca = sk.ca
    assert isinstance(ca, Cubic)
    sk.snd_cwnd = 100
    assert ca.ssthresh(sk) == 70
    sk.snd_cwnd = 70
    ca.ssthresh(sk)
    assert ca.last_max_cwnd == 59
    sk.sysctl.cubic_beta = 512
    sk.sysctl.cubic_fast_convergence = 0
    sk.snd_cwnd = 50
    assert ca.ssthresh(sk) == 25
    assert ca.last_max_cwnd == 50


def test_initial_ssthresh_counts_only_without_hystart() -> None:
    sk = established(FakeHost(), cc="cubic", mss=1460)
    before = sk.snd_ssthresh
    sk.sysctl.cubic_initial_ssthresh = 12
    sk.ca.init(sk)
    assert sk.snd_ssthresh == before
    sk.sysctl.cubic_hystart = 0
    sk.ca.init(sk)
    assert sk.snd_ssthresh == 12


@pytest.mark.parametrize(("friendliness", "cnt"), [(1, 10), (0, 1000)])
def test_friendliness_grows_no_slower_than_reno_would(friendliness: int, cnt: int) -> None:
    """At the origin of the cube it wants 100 windows of ACKs for a packet. Reno with this beta grows by one for 10 * 15 / 8 = 18
    packets acknowledged, so 19 make an estimate of 11, one above the window: a packet for each 10."""
    sk = established(FakeHost(), cc="cubic", mss=1460)
    sk.sysctl.cubic_tcp_friendliness = friendliness
    ca = sk.ca
    assert isinstance(ca, Cubic)
    sk.snd_cwnd, sk.snd_ssthresh, sk.is_cwnd_limited = 10, 5, True
    ca.last_max_cwnd = 10
    ca.cong_avoid(sk, sk.snd_una, 19)
    assert ca.cnt == cnt
