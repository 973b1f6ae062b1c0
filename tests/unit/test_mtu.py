"""From path MTU to segment size to super-segment size (linux-tcp §1.1, §14)."""

from __future__ import annotations

import pytest

from pytcp.tcp import const, input, mtu, sendmsg
from pytcp.tcp.sock import Sock

from .harness import FakeDst, FakeHost, established, segment


def path(pmtu: int, *, timestamps: bool = False, clamp: int = 65535, family: int = 4) -> Sock:
    sk = established(mss=1460, timestamps=timestamps)
    sk.family = family
    sk.mss_clamp = clamp
    sk.dst = FakeDst(pmtu)
    return sk


@pytest.mark.parametrize(
    ("pmtu", "timestamps", "family", "clamp", "mss"),
    [
        (1500, False, 4, 65535, 1460),
        (1500, True, 4, 65535, 1448),
        (1500, False, 6, 65535, 1440),
        (1500, True, 6, 65535, 1428),
        (9000, True, 4, 65535, 8948),
        (1500, False, 4, 1400, 1400),  # the peer's MSS option
        (1500, True, 4, 1400, 1388),  # which does not count options (RFC 6691)
        (60, False, 4, 65535, 48),  # tcp_min_snd_mss
        (60, True, 4, 65535, 36),
    ],
)
def test_the_mss_is_what_fits_behind_the_headers(pmtu: int, timestamps: bool, family: int, clamp: int, mss: int) -> None:
    sk = path(pmtu, timestamps=timestamps, clamp=clamp, family=family)
    assert mtu.sync_mss(sk, pmtu) == mss
    assert (sk.mss_cache, sk.pmtu_cookie) == (mss, pmtu)


def test_a_changed_route_mtu_is_noticed_at_the_next_segment() -> None:
    sk = established(mss=1460)
    assert mtu.current_mss(sk) == 1460
    sk.dst.mtu = 1400
    assert mtu.current_mss(sk) == 1360
    assert sk.pmtu_cookie == 1400


@pytest.mark.parametrize(
    ("blocks", "dsack", "mss"), [(0, False, 1448), (1, False, 1436), (2, False, 1428), (3, False, 1420), (2, True, 1420), (4, False, 1420)]
)
def test_sack_blocks_in_our_own_segments_make_them_shorter(blocks: int, dsack: bool, mss: int) -> None:
    """4 + 8·n bytes beside the timestamps, at most three blocks; a DSACK is one of them."""
    sk = established(mss=1448, timestamps=True)
    at = sk.rcv_nxt + 1000
    sk.selective_acks = [(at + 2000 * i, at + 2000 * i + 1000) for i in range(blocks)]
    if dsack:
        sk.duplicate_sack = (sk.rcv_nxt - 10, sk.rcv_nxt)
    assert mtu.current_mss(sk) == mss
    assert sk.mss_cache == 1448


@pytest.mark.parametrize(
    ("max_window", "wanted", "got"),
    [
        (65535, 65343, 32767),
        (65535, 1460, 1460),
        (2000, 1460, 1000),
        (537, 1460, 268),
        (536, 1460, 536),  # tiny windows: all of it
        (400, 1460, 400),
        (100, 1460, 100),
        (30, 1460, 48),  # 68 - 20: no segment smaller than that
        (0, 1460, 1460),  # nothing known
    ],
)
def test_nothing_is_larger_than_half_the_largest_window_seen(max_window: int, wanted: int, got: int) -> None:
    sk = established()
    sk.max_window = max_window
    assert mtu.bound_to_half_wnd(sk, wanted) == got


@pytest.mark.parametrize(
    ("mss", "max_window", "goal"),
    [
        (1460, 65535, 22 * 1460),  # before the first scaled window: half of 65535
        (1460, 1 << 20, 44 * 1460),
        (1452, 1 << 20, 45 * 1452),  # 65340 of 65343
        (1453, 1 << 20, 44 * 1453),  # 65385 would be too much
        (1448, 1 << 20, 45 * 1448),
        (8960, 1 << 20, 7 * 8960),
        (1460, 2000, 1460),  # never less than one segment
    ],
)
def test_the_size_goal_is_whole_segments(mss: int, max_window: int, goal: int) -> None:
    sk = established(mss=mss)
    sk.max_window = max_window
    assert mtu.size_goal(sk, mss) == goal


def test_the_goal_follows_a_changed_mss_and_window() -> None:
    sk = established(mss=1460)
    sk.max_window = 65535
    assert mtu.size_goal(sk, 1460) == 22 * 1460
    assert mtu.size_goal(sk, 1448) == 22 * 1448
    assert mtu.size_goal(sk, 1000) == 32 * 1000
    sk.max_window = 1 << 20
    assert mtu.size_goal(sk, 1000) == 65 * 1000
    sk.gso_max_segs = 4
    sk.size_goal_segs = 0
    assert mtu.size_goal(sk, 1000) == 4 * 1000


def test_a_larger_window_raises_an_mss_that_the_window_had_bounded() -> None:
    sk = established(mss=1460, window=2000, wscale=0)
    mtu.sync_mss(sk, 1500)
    assert sk.mss_cache == 1000
    input.receive(sk, segment(sk, window=8000))
    assert sk.mss_cache == 1460


def test_a_smaller_path_mtu_resends_what_no_longer_fits_without_a_congestion_response() -> None:
    host = FakeHost()
    sk = established(host, mss=1460, srtt_us=20_000)
    sk.snd_cwnd = 20
    sendmsg.sendmsg(sk, bytes(1000), const.MSG_EOR)
    sk.nonagle = const.NAGLE_OFF
    sendmsg.sendmsg(sk, bytes(1460), const.MSG_EOR)
    sendmsg.sendmsg(sk, bytes(4380), const.MSG_EOR)
    host.take()
    sk.dst.mtu = 1240
    mtu.reduced(sk, 1240)
    sent = host.take()
    assert [(s.seq, s.length, s.gso_size) for s in sent] == [(1001, 1460, 1200), (2461, 4380, 1200)], "the one of 1000 bytes got through"
    assert (sk.snd_cwnd, sk.lost_out, sk.retrans_out) == (20, 6, 6)
    assert sk.packets_out == 1 + 2 + 4
    assert (sk.undo_marker, sk.prior_ssthresh) == (0, 0), "nothing to undo"


def test_an_mtu_that_is_no_news_changes_nothing() -> None:
    host = FakeHost()
    sk = established(host, mss=1460)
    sendmsg.sendmsg(sk, bytes(1460))
    host.take()
    mtu.reduced(sk, 1500)
    mtu.reduced(sk, 2000)
    assert (host.take(), sk.mss_cache) == ([], 1460)
