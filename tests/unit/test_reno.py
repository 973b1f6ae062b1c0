"""Reno, the registry, and what every congestion control has in common (linux-tcp §6.1; RFC 5681)."""

from __future__ import annotations

import errno

import pytest

from pytcp.tcp import cong, const, input, sendmsg
from pytcp.tcp.cong.base import CongestionControl, cong_avoid_ai, slow_start
from pytcp.tcp.cong.reno import Reno
from pytcp.tcp.rate import AckSample
from pytcp.tcp.sock import Sock

from .harness import MS, FakeHost, established, make_sock, segment


def window(cwnd: int, ssthresh: int, *, limited: bool = True) -> Sock:
    sk = established(cc="reno", mss=1000, srtt_us=20_000)
    sk.snd_cwnd, sk.snd_ssthresh, sk.is_cwnd_limited = cwnd, ssthresh, limited
    return sk


@pytest.mark.parametrize(("cwnd", "ssthresh"), [(20, 10), (21, 10), (4, 2), (3, 2), (1, 2)])
def test_a_loss_halves_the_window_down_to_two(cwnd: int, ssthresh: int) -> None:
    assert window(cwnd, 100).ca.ssthresh(window(cwnd, 100)) == ssthresh


def test_slow_start_adds_a_packet_for_each_delivered_one() -> None:
    """No limit per ACK: a stretched ACK counts all it delivers."""
    sk = window(10, const.INFINITE_SSTHRESH)
    sk.ca.cong_avoid(sk, sk.snd_una, 7)
    assert sk.snd_cwnd == 17


def test_what_slow_start_does_not_use_goes_to_congestion_avoidance() -> None:
    """From 10 to ssthresh 14 takes 4 of 20; the other 16 are one window of 14 and 2 over."""
    sk = window(10, 14)
    sk.ca.cong_avoid(sk, sk.snd_una, 20)
    assert (sk.snd_cwnd, sk.snd_cwnd_cnt) == (15, 2)


def test_congestion_avoidance_adds_one_packet_per_window() -> None:
    sk = window(10, 10)
    for _ in range(9):
        sk.ca.cong_avoid(sk, sk.snd_una, 1)
    assert sk.snd_cwnd == 10
    sk.ca.cong_avoid(sk, sk.snd_una, 1)
    assert (sk.snd_cwnd, sk.snd_cwnd_cnt) == (11, 0)
    for _ in range(11):
        sk.ca.cong_avoid(sk, sk.snd_una, 1)
    assert sk.snd_cwnd == 12


def test_a_window_that_is_not_the_limit_does_not_grow() -> None:
    sk = window(10, 5, limited=False)
    sk.ca.cong_avoid(sk, sk.snd_una, 50)
    assert (sk.snd_cwnd, sk.snd_cwnd_cnt) == (10, 0)


def test_the_clamp_bounds_growth() -> None:
    sk = window(10, const.INFINITE_SSTHRESH)
    sk.snd_cwnd_clamp = 12
    assert slow_start(sk, 7) == 0
    assert sk.snd_cwnd == 12
    sk.snd_cwnd_cnt = 11
    cong_avoid_ai(sk, 12, 1)
    assert sk.snd_cwnd == 12


def test_a_counter_left_over_from_a_larger_window_counts_once() -> None:
    """w fell below snd_cwnd_cnt: one packet now, and the count begins anew."""
    sk = window(10, 5)
    sk.snd_cwnd_cnt = 9
    cong_avoid_ai(sk, 5, 1)
    assert (sk.snd_cwnd, sk.snd_cwnd_cnt) == (11, 1)


def test_a_big_ack_may_add_several() -> None:
    sk = window(10, 5)
    cong_avoid_ai(sk, 5, 17)
    assert (sk.snd_cwnd, sk.snd_cwnd_cnt) == (13, 2)


def test_an_undo_gives_the_larger_window_back() -> None:
    sk = window(5, 5)
    sk.prior_cwnd = 10
    assert sk.ca.undo_cwnd(sk) == 10
    sk.snd_cwnd = 12
    assert sk.ca.undo_cwnd(sk) == 12


def test_a_flow_doubles_per_round_trip_until_ssthresh_then_grows_by_one() -> None:
    """RFC 5681 from the wire: windows of 10, 20, 32 (ssthresh), 33, 34 packets per round trip."""
    host = FakeHost()
    sk = established(host, cc="reno", mss=1000, srtt_us=20_000)
    sk.snd_ssthresh = 32
    flights = []
    for _ in range(5):
        sendmsg.sendmsg(sk, bytes(100_000))
        flights.append(sk.packets_out)
        host.advance(20 * MS)
        input.receive(sk, segment(sk, window=1 << 22))
        # the ACK's own sends belong to the next flight
    assert flights == [10, 20, 32, 33, 34]


# ---------------------------------------------------------------- the registry


def test_algorithms_are_known_by_name() -> None:
    assert {"reno", "cubic"} <= set(cong.available())
    sk = make_sock()
    cong.assign(sk, "cubic")
    assert (sk.cong_name, sk.ca.name) == ("cubic", "cubic")
    cong.assign(sk)
    assert sk.cong_name == sk.sysctl.tcp_congestion_control


def test_an_unknown_name_is_no_such_file() -> None:
    """setsockopt(TCP_CONGESTION) says ENOENT."""
    sk = make_sock()
    with pytest.raises(OSError, match="available") as caught:
        cong.assign(sk, "vegas")
    assert caught.value.errno == errno.ENOENT
    assert sk.cong_name == "reno"


def test_a_new_algorithm_is_a_class_with_a_name() -> None:
    class Fixed(CongestionControl):
        name = "test-fixed"
        released = 0

        def cong_avoid(self, sk: Sock, ack: int, acked: int) -> None:
            sk.snd_cwnd = 42

        def release(self, sk: Sock) -> None:
            Fixed.released += 1

    class Nameless(CongestionControl):
        pass

    with pytest.raises(ValueError, match="name"):
        cong.register(Nameless)
    cong.register(Fixed)
    try:
        host = FakeHost()
        sk = established(host, cc="test-fixed", mss=1000)
        sendmsg.sendmsg(sk, bytes(1000))
        input.receive(sk, segment(sk))
        assert sk.snd_cwnd == 42
        cong.assign(sk, "reno")
        assert Fixed.released == 1
    finally:
        del cong._registry["test-fixed"]


def test_what_could_never_be_called_is_not_registered() -> None:
    class Whole(CongestionControl):
        name = "test-whole"

        def cong_control(self, sk: Sock, ack: int, flag: int, rs: AckSample) -> None:
            sk.snd_cwnd = 4

    class Bursts(CongestionControl):
        name = "test-bursts"

        def min_tso_segs(self, sk: Sock) -> int:
            return 4

    with pytest.raises(ValueError, match="has_cong_control = True"):
        cong.register(Whole)
    with pytest.raises(ValueError, match="has_min_tso_segs = True"):
        cong.register(Bursts)
    with pytest.raises(TypeError, match=r"subclass of pytcp\.tcp\.cong\.CongestionControl"):
        cong.register(object)  # type: ignore[arg-type]
    assert not {"test-whole", "test-bursts"} & set(cong.available())


def test_reno_needs_no_state_of_its_own() -> None:
    assert Reno.__slots__ == ()
    assert Reno().info(window(1, 1)) == {}
