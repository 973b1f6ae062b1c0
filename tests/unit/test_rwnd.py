"""The receive window: what is offered, how it grows, when reading reopens it (linux-tcp §7, §14)."""

from __future__ import annotations

import pytest

from pytcp.tcp import const, input, recv, rwnd
from pytcp.tcp.sock import Sock

from .harness import FakeHost, established, make_sock, segment
from .receive_replay import cases, host_of, replay


@pytest.mark.parametrize("name", cases("f_*", "i0*", "r0*", "w0*", "z0*", "random_win*", "random_shrink*"))
def test_windows_and_thresholds_are_the_kernels_step_by_step(name: str) -> None:
    run = replay(name)
    assert run.differences == []
    assert run.compared > 1


def opened(value: int | None, mss: int = 1460) -> tuple[Sock, int]:
    """A socket with SO_RCVBUF `value` whose SYN has been answered; and the window field of that SYN."""
    sk = make_sock()
    if value is not None:
        rwnd.set_rcvbuf(sk, value)
    full = rwnd.full_space(sk)
    sk.advmss = mss
    sk.rcv_wnd, sk.window_clamp, sk.rcv_wscale = rwnd.select_initial_window(sk, full, mss, full if sk.rcvbuf_locked else 0, True)
    sk.rcv_ssthresh = sk.rcv_wnd
    field = min(sk.rcv_wnd, 65535)
    rwnd.init_buffer_space(sk)
    return sk, field


@pytest.mark.parametrize(
    ("value", "rcvbuf", "field", "wscale", "clamp"),
    [
        (1, 2304, 1152, 0, 1152),
        (2304, 4608, 1460, 0, 2304),
        (4096, 8192, 2920, 0, 2920),
        (10000, 20000, 8760, 0, 8540),
        (30000, 60000, 29200, 0, 28540),
        (65536, 131072, 64240, 1, 64076),
        (200000, 400000, 65535, 2, 198540),
        (5000000, 8388608, 65535, 7, 4192844),
        (None, 131072, 64240, 10, 64076),
    ],
)
def test_so_rcvbuf_decides_first_window_scale_and_clamp(value: int | None, rcvbuf: int, field: int, wscale: int, clamp: int) -> None:
    """Measured on 6.18 (linux-tcp §14, 7.3)."""
    sk, syn_field = opened(value)
    assert (sk.rcvbuf, syn_field, sk.rcv_wscale, sk.window_clamp) == (rcvbuf, field, wscale, clamp)


def test_with_timestamps_the_first_window_is_45_segments_of_1448() -> None:
    sk, field = opened(None, 1448)
    assert (field, sk.window_clamp) == (65160, 64088)
    assert sk.rcvq_space == 14480


def test_the_window_scale_serves_the_largest_buffer_autotuning_may_reach() -> None:
    for largest, wscale in ((6 << 20, 7), (32 << 20, 10)):
        host = FakeHost()
        host.sysctl.tcp_rmem = (4096, 131072, largest)
        sk = make_sock(host)
        assert rwnd.select_initial_window(sk, 65536, 1460, 0, True)[2] == wscale


def test_without_window_scaling_the_clamp_is_64_kib() -> None:
    assert rwnd.select_initial_window(make_sock(), 1 << 20, 1460, 0, False) == (1048280, 65535, 0)


def test_a_routes_initrwnd_and_the_signed_window_workaround_limit_the_first_window() -> None:
    sk = make_sock()
    assert rwnd.select_initial_window(sk, 65536, 1460, 0, True, init_rcv_wnd=4)[0] == 5840
    sk.sysctl.tcp_workaround_signed_windows = 1
    assert rwnd.select_initial_window(sk, 65536, 1460, 0, True)[0] == 32767


def test_a_negative_so_rcvbuf_is_a_huge_one() -> None:
    sk = make_sock()
    rwnd.set_rcvbuf(sk, -1)
    assert sk.rcvbuf == 8388608


def test_tcp_app_win_keeps_a_share_of_the_window_back() -> None:
    sk = make_sock(advmss=1460, window_clamp=1 << 30, rcv_wnd=65535, rcv_ssthresh=65535)
    sk.sysctl.tcp_app_win = 2
    rwnd.init_buffer_space(sk)
    assert sk.window_clamp == 65536 - 65536 // 4


def test_so_rcvlowat_is_capped_at_half_the_largest_buffer_and_grows_the_buffer_to_twice_itself() -> None:
    sk = established()
    rwnd.set_rcvlowat(sk, 0)
    assert (sk.rcvlowat, sk.rcvbuf) == (1, 131072)
    rwnd.set_rcvlowat(sk, 1_000_000)
    assert (sk.rcvlowat, sk.rcvbuf, sk.window_clamp) == (1_000_000, 2_000_000, 1_000_000)
    rwnd.set_rcvlowat(sk, -1)
    assert sk.rcvlowat == 16777216
    locked = established()
    rwnd.set_rcvbuf(locked, 50_000)
    rwnd.set_rcvlowat(locked, 1 << 30)
    assert (locked.rcvlowat, locked.rcvbuf) == (50_000, 100_000)


# ---------------------------------------------------------------- what a segment teaches


@pytest.mark.parametrize(("size", "header", "ratio"), [(1448, 8, 170), (1460, 5, 171), (1000, 5, 148)])
def test_the_scaling_ratio_is_measured_on_the_first_segment_of_a_size(size: int, header: int, ratio: int) -> None:
    """Measured on 6.18 (linux-tcp §14, 7.1)."""
    sk = established(rcv_mss=536, advmss=1460)
    seg = segment(sk, payload=bytes(size))
    seg.doff = header
    seg.truesize = (14 + 20 + header * 4 + size + 64 + 63) // 64 * 64 + 576
    rwnd.measure_rcv_mss(sk, seg)
    assert (sk.rcv_mss, sk.scaling_ratio) == (size, ratio)
    assert sk.window_clamp == sk.rcvbuf * ratio >> 8


@pytest.mark.parametrize(("segs", "ratio"), [(4, 164), (10, 215), (44, 245)])
def test_super_frames_hold_more_payload_per_byte_of_memory(segs: int, ratio: int) -> None:
    sk = established(rcv_mss=536, advmss=1448)
    seg = segment(sk, payload=bytes(segs * 1448), gso_size=1448, nsegs=segs)
    seg.truesize = 832 + (segs * 1448 + 4095) // 4096 * 4096
    rwnd.measure_rcv_mss(sk, seg)
    assert sk.scaling_ratio == ratio


def test_before_6_11_the_clamp_did_not_follow_the_ratio() -> None:
    sk = established(rcv_mss=536, advmss=1460)
    sk.sysctl.clamp_follows_ratio = 0
    clamp = sk.window_clamp
    rwnd.measure_rcv_mss(sk, segment(sk, payload=bytes(1460)))
    assert sk.scaling_ratio == 171
    assert sk.window_clamp == clamp


def test_a_smaller_segment_size_is_adopted_only_when_seen_twice_running() -> None:
    sk = established(rcv_mss=1460, advmss=1460)
    for size, believed in ((700, 1460), (800, 1460), (700, 1460), (700, 700)):
        rwnd.measure_rcv_mss(sk, segment(sk, payload=bytes(size)))
        assert sk.rcv_mss == believed


def test_a_tiny_segment_between_two_equal_ones_clears_the_memory() -> None:
    sk = established(rcv_mss=1460, advmss=1460)
    for size in (700, 10, 700):
        rwnd.measure_rcv_mss(sk, segment(sk, payload=bytes(size)))
    assert sk.rcv_mss == 1460


def test_below_536_a_segment_with_psh_is_never_taken_for_a_full_one() -> None:
    sk = established(rcv_mss=1460, advmss=1460)
    for _ in range(3):
        rwnd.measure_rcv_mss(sk, segment(sk, const.ACK | const.PSH, payload=bytes(200)))
    assert sk.rcv_mss == 1460
    for _ in range(2):
        rwnd.measure_rcv_mss(sk, segment(sk, payload=bytes(200)))
    assert sk.rcv_mss == 200


def test_short_segments_are_remembered_for_the_readers_ack() -> None:
    sk = established(rcv_mss=1460, advmss=1460)
    rwnd.measure_rcv_mss(sk, segment(sk, payload=bytes(10)))
    assert sk.ack_pending == const.ACK_PUSHED
    rwnd.measure_rcv_mss(sk, segment(sk, payload=bytes(10)))
    assert sk.ack_pending == const.ACK_PUSHED | const.ACK_PUSHED2


def test_a_full_segment_counts_as_pushed_only_with_psh() -> None:
    sk = established(rcv_mss=1460, advmss=1460)
    rwnd.measure_rcv_mss(sk, segment(sk, payload=bytes(1460)))
    assert sk.ack_pending == 0
    rwnd.measure_rcv_mss(sk, segment(sk, const.ACK | const.PSH, payload=bytes(1460)))
    assert sk.ack_pending == const.ACK_PUSHED


def test_the_threshold_grows_by_two_segments_or_twice_the_payload_per_segment() -> None:
    """r03: SO_RCVBUF 30000; the first full segment moves the threshold from 29200 to 32120."""
    sk = established(rcv_mss=1460, advmss=1460, scaling_ratio=171, rcvbuf=60000, window_clamp=40078, rcv_ssthresh=29200, rmem_alloc=2176)
    rwnd.grow_window(sk, segment(sk, payload=bytes(1460)), True)
    assert (sk.rcv_ssthresh, sk.quick) == (32120, 1)
    # the third is limited by what is free: (60000 - 6016) * 171 / 256
    sk.rmem_alloc, sk.rcv_ssthresh = 6016, 35040
    rwnd.grow_window(sk, segment(sk, payload=bytes(1460)), True)
    assert sk.rcv_ssthresh == 36059


def test_growth_makes_the_quick_ack_budget_odd_not_larger() -> None:
    sk = established(quick=7, scaling_ratio=171, rcv_ssthresh=20000)
    rwnd.grow_window(sk, segment(sk, payload=bytes(1460)), True)
    assert sk.quick == 7


@pytest.mark.parametrize(("threshold", "grows"), [(350208, 2000), (350209, 0)])
def test_segments_that_are_nearly_all_overhead_grow_only_a_window_far_below_the_largest(threshold: int, grows: int) -> None:
    """10 bytes cost 704: half that in window bytes, 235, fits after five halvings; so does 11206656 (half of
    tcp_rmem[2]) down to 350208."""
    sk = established(scaling_ratio=171, rcv_ssthresh=threshold, window_clamp=1 << 24, rcvbuf=1 << 24, rcv_mss=1000)
    rwnd.grow_window(sk, segment(sk, payload=bytes(10)), True)
    assert sk.rcv_ssthresh == threshold + grows


def test_the_clamp_is_at_least_1152_and_drags_the_threshold_along() -> None:
    sk = established(rcv_wnd=30000, rcv_ssthresh=20000, window_clamp=40000)
    rwnd.set_window_clamp(sk, 5000)
    assert (sk.window_clamp, sk.rcv_ssthresh) == (5000, 5000)
    rwnd.set_window_clamp(sk, 25000)
    assert (sk.window_clamp, sk.rcv_ssthresh) == (25000, 25000)
    rwnd.set_window_clamp(sk, 60000)
    assert (sk.window_clamp, sk.rcv_ssthresh) == (60000, 30000)
    rwnd.set_window_clamp(sk, 0)
    assert sk.window_clamp == 1152


# ---------------------------------------------------------------- what is offered


def test_with_scaling_the_offer_is_rounded_up_to_the_scale() -> None:
    """A first window of 64076 with scale 10 goes out as 64512 (§14, 7.3)."""
    sk = established(wscale=10, rcv_ssthresh=64076, rcv_mss=536)
    assert rwnd.wanted_window(sk) == 64512


def test_without_scaling_the_offer_is_a_multiple_of_the_segment_size_and_moves_by_whole_segments() -> None:
    sk = established(wscale=0, rcv_mss=1460, advmss=1460, rcv_ssthresh=20000)
    # within one segment of 20000 it stays; else the largest multiple, 13 segments
    for current, offered in ((20000, 20000), (18541, 18541), (18540, 18980), (20001, 18980)):
        sk.rcv_wnd = current
        assert rwnd.wanted_window(sk) == offered


def test_the_window_closes_below_a_sixteenth_of_the_buffer() -> None:
    sk = established(wscale=0, rcvbuf=64000, window_clamp=32000, rcv_ssthresh=32000, rcv_mss=100)
    sk.rmem_alloc = 64000 - 4000  # 2000 window bytes free, exactly 32000/16
    assert rwnd.wanted_window(sk) > 0
    sk.rmem_alloc += 2
    assert rwnd.wanted_window(sk) == 0


def test_the_window_closes_when_less_than_a_segment_fits() -> None:
    sk = established(wscale=0, rcvbuf=64000, window_clamp=32000, rcv_ssthresh=32000, rcv_mss=3000)
    sk.rmem_alloc = 64000 - 5998
    assert rwnd.wanted_window(sk) == 0


def test_less_than_half_the_buffer_free_ends_quick_acks() -> None:
    sk = established(rcvbuf=64000, window_clamp=32000, quick=9)
    sk.rmem_alloc = 32000
    rwnd.wanted_window(sk)
    assert sk.quick == 9
    sk.rmem_alloc = 32002
    rwnd.wanted_window(sk)
    assert sk.quick == 0


def test_the_right_edge_never_moves_left() -> None:
    sk = established(wscale=0, rcvbuf=64000, window_clamp=32000, rcv_ssthresh=32000, rcv_mss=1000, rcv_wnd=30000)
    sk.rcv_wup = sk.rcv_nxt
    sk.rcv_nxt += 1000
    sk.rmem_alloc = 40000
    assert rwnd.select_window(sk) == 29000
    assert (sk.rcv_wup, sk.rcv_wnd) == (sk.rcv_nxt, 29000)
    sk.rmem_alloc = 63000
    assert rwnd.select_window(sk) == 29000
    assert sk.mib.TCPWantZeroWindowAdv == 1


def test_tcp_shrink_window_lets_the_right_edge_follow_memory() -> None:
    sk = established(wscale=10, rcvbuf=64000, window_clamp=32000, rcv_ssthresh=32000, rcv_mss=1000, rcv_wnd=30720)
    sk.sysctl.tcp_shrink_window = 1
    sk.rcv_wup = sk.rcv_nxt
    sk.rmem_alloc = 40000  # 12000 window bytes: eleven units of 1024
    assert rwnd.select_window(sk) == 11
    assert sk.rcv_wnd == 11 * 1024


def test_the_field_is_capped_but_the_remembered_window_is_not() -> None:
    """i03: without scaling 65535 is offered while rcv_wnd says 67160."""
    sk = established(wscale=0, rcv_mss=1460, advmss=1460, rcvbuf=131072, scaling_ratio=171, window_clamp=87552, rcv_ssthresh=67160, rcv_wnd=64240)
    sk.rmem_alloc = 2176
    assert rwnd.select_window(sk) == 65535
    assert sk.rcv_wnd == 67160


def test_closing_and_opening_are_counted_and_a_closed_window_ends_header_prediction() -> None:
    sk = established(wscale=0, rcvbuf=8000, window_clamp=4000, rcv_ssthresh=4000, rcv_mss=1000, rcv_wnd=0, pred=True)
    sk.rcv_wup = sk.rcv_nxt
    assert rwnd.select_window(sk) > 0
    assert (sk.mib.TCPFromZeroWindowAdv, sk.mib.TCPToZeroWindowAdv) == (1, 0)
    sk.rcv_nxt += sk.rcv_wnd
    sk.rmem_alloc = 8000
    assert rwnd.select_window(sk) == 0
    assert (sk.mib.TCPFromZeroWindowAdv, sk.mib.TCPToZeroWindowAdv) == (1, 1)
    assert not sk.pred


def test_out_of_memory_offers_nothing_once() -> None:
    sk = established(ack_pending=const.ACK_NOMEM)
    assert rwnd.select_window(sk) == 0
    assert (sk.rcv_wnd, sk.rcv_wup) == (0, sk.rcv_nxt)


# ---------------------------------------------------------------- the reader


def fill(sk: Sock, size: int, count: int) -> None:
    for _ in range(count):
        seg = segment(sk, payload=bytes(size), ack=1)
        input.receive(sk, seg)


def test_a_read_that_at_least_doubles_a_small_window_is_announced() -> None:
    sk = established(mss=1460, wscale=0, rcvbuf=60000, scaling_ratio=171, window_clamp=40078, rcv_ssthresh=36059, rcv_wnd=35040, rcv_mss=1460, ato_jiffies=10)
    sk.rcv_wup = sk.rcv_nxt
    fill(sk, 1460, 18)
    fill(sk, 1460, 5)
    host = host_of(sk)
    host.advance(60_000_000)
    host.take()
    edge = rwnd.receive_window(sk)
    # memory comes back per skb of 18 segments: nothing before it has been read
    recv.recv(sk, 17 * 1460)
    assert host.take() == []
    recv.recv(sk, 1460)
    (update,) = host.take()
    assert update.length == 0
    assert update.window >= 2 * edge


def test_after_the_peers_fin_no_window_is_announced() -> None:
    sk = established(mss=1460, wscale=0, rcv_mss=1460, rcv_wnd=2000, window_clamp=30000, rcv_ssthresh=30000, ato_jiffies=10)
    sk.rcv_wup = sk.rcv_nxt
    fill(sk, 1460, 1)
    sk.shutdown |= const.RCV_SHUTDOWN
    host = host_of(sk)
    host.take()
    sk.ack_pending = 0
    recv.recv(sk, 1460)
    assert host.take() == []
