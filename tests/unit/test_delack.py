"""Delayed ACKs: at once, every second segment, or after the ACK timeout (linux-tcp §8.11, §14; RFC 1122 §4.2.3.2)."""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.tcp import const, delack, input, recv, sendmsg
from pytcp.tcp.sock import NEVER, Sock

from .harness import MS, FakeHost, Sent, established, segment
from .receive_replay import cases, host_of, replay

TICK = 4 * MS


@pytest.mark.parametrize("name", cases("d0*", "d1*"))
def test_acks_come_when_the_kernels_come(name: str) -> None:
    run = replay(name)
    assert run.differences == []
    assert run.compared > 3


def receiver(**fields: Any) -> tuple[Sock, FakeHost]:
    """Established, past the start: no quick ACKs left, ACK timeout 40 ms, last data 1 ms ago."""
    host = FakeHost()
    sk = established(host, **{"rcv_wnd": 60000, "ato_jiffies": 10, "lrcvtime_ns": host.now_ns - MS, **fields})
    sk.rcv_wup = sk.rcv_nxt
    sk.rcv_ssthresh = sk.window_clamp
    return sk, host


def hear(sk: Sock, size: int, flags: int = const.ACK) -> list[Sent]:
    """Let the peer send `size` bytes; what we answer at once.

    Short segments come with PSH: without, two of the same size would pass for full ones."""
    if size < 1000:
        flags |= const.PSH
    input.receive(sk, segment(sk, flags, payload=bytes(size)))
    return host_of(sk).take()


# ---------------------------------------------------------------- quick ACKs


@pytest.mark.parametrize(("window", "mss", "budget"), [(60000, 1000, 16), (14600, 1460, 5), (2920, 1460, 1), (1000, 1460, 2)])
def test_the_first_data_is_acknowledged_at_once_for_half_a_window_of_segments(window: int, mss: int, budget: int) -> None:
    """rcv_wnd / (2 rcv_mss); 2 only where that is 0, at most 16 (§14)."""
    sk, _ = receiver(rcv_mss=mss, ato_jiffies=0)
    sk.rcv_wnd = window
    delack.measure_ato(sk, sk.host.now_ns // TICK)
    assert (sk.quick, sk.ato_jiffies) == (budget, 10)


def test_a_quick_budget_is_spent_one_ack_at_a_time() -> None:
    sk, _ = receiver(quick=2)
    assert [len(hear(sk, 10)) for _ in range(3)] == [1, 1, 0]


def test_an_ack_nobody_owed_spends_nothing() -> None:
    sk, _ = receiver(quick=2)
    delack.event_ack_sent(sk, 1)
    assert sk.quick == 2


def test_the_end_of_quick_acks_puts_the_timeout_back_to_40_ms() -> None:
    sk, _ = receiver(quick=1, ato_jiffies=30, ack_pending=const.ACK_SCHED)
    delack.event_ack_sent(sk, 1)
    assert (sk.quick, sk.ato_jiffies) == (0, 10)


def test_a_pause_longer_than_the_rto_fills_the_budget_again() -> None:
    sk, host = receiver(rto_ns=210 * MS)
    host.advance(220 * MS)
    assert len(hear(sk, 10)) == 1
    assert sk.quick == 15


def test_interactive_connections_get_no_quick_acks() -> None:
    sk, _ = receiver(quick=9, pingpong=1)
    assert hear(sk, 10) == []


# ---------------------------------------------------------------- every second segment


def test_every_second_full_segment_is_acknowledged_at_once() -> None:
    sk, host = receiver()
    for acks in (0, 1, 0, 1, 0, 1):
        assert len(hear(sk, 1000)) == acks
        recv.recv(sk, 1000)
        assert host.take() == []


def test_with_a_shrinking_window_the_reader_sends_the_ack() -> None:
    sk, host = receiver(rcvbuf=20000, scaling_ratio=128)
    sk.window_clamp = sk.rcv_ssthresh = 10000
    sk.rcv_wnd = 10000
    for _ in range(3):
        assert hear(sk, 1000) == []
    recv.recv(sk, 5000)
    assert [sent.ack for sent in host.take()] == [3001]


def test_below_so_rcvlowat_every_second_segment_is_acknowledged_whatever_the_window() -> None:
    sk, _ = receiver(rcvbuf=20000, scaling_ratio=128, rcvlowat=3500)
    sk.window_clamp = sk.rcv_ssthresh = 10000
    sk.rcv_wnd = 10000
    assert [len(hear(sk, 1000)) for _ in range(4)] == [0, 1, 0, 0]


def test_a_reader_that_drains_the_queue_after_a_short_segment_sends_the_ack() -> None:
    sk, host = receiver()
    hear(sk, 100)
    recv.recv(sk, 50)
    assert host.take() == []
    recv.recv(sk, 50)
    assert len(host.take()) == 1


def test_in_an_interactive_connection_it_takes_two_short_segments() -> None:
    sk, host = receiver(pingpong=1)
    hear(sk, 100)
    recv.recv(sk, 1000)
    assert host.take() == []
    hear(sk, 100)
    hear(sk, 100)
    recv.recv(sk, 1000)
    assert len(host.take()) == 1


# ---------------------------------------------------------------- the ACK timeout


@pytest.mark.parametrize(
    ("ato", "gap", "after"),
    [(10, 0, 10), (40, 5, 25), (40, 6, 26), (40, 39, 59), (40, 40, 40), (40, 100, 40), (60, 59, 75)],
)
def test_the_timeout_follows_the_gaps_between_segments(ato: int, gap: int, after: int) -> None:
    """Jiffies: up to 20 ms, ato/2 + 20 ms; below ato, ato/2 + gap, at most the RTO (75); else as it was."""
    sk, _ = receiver(ato_jiffies=ato, rto_ns=75 * TICK + 25 * TICK * (gap == 100))
    now = sk.host.now_ns // TICK
    sk.lrcvtime_ns = (now - gap) * TICK
    delack.measure_ato(sk, now)
    assert sk.ato_jiffies == after


def test_an_ack_that_waits_goes_after_40_ms_and_at_most_a_tick_more() -> None:
    sk, host = receiver()
    assert hear(sk, 10) == []
    start = host.now_ns
    host.advance(39 * MS)
    assert host.take() == []
    host.advance(10 * MS)
    (sent,) = host.take()
    assert 40 * MS < sent.t_ns - start <= 44 * MS
    assert sk.mib.DelayedACKs == 1


def test_a_timeout_that_fires_doubles_up_to_the_rto() -> None:
    sk, host = receiver(rto_ns=120 * MS)
    seen = []
    for _ in range(3):
        hear(sk, 10)
        host.advance(100 * MS)
        seen.append(sk.ato_jiffies)
    assert seen == [20, 30, 30]


def test_a_timeout_that_fires_in_an_interactive_connection_ends_that_mode() -> None:
    sk, host = receiver(pingpong=1, ato_jiffies=30)
    hear(sk, 10)
    host.advance(300 * MS)
    assert (sk.pingpong, sk.ato_jiffies) == (0, 10)


@pytest.mark.parametrize(
    ("srtt_ms", "pingpong", "ato", "delay_ms"),
    [(0, 0, 40, 160), (0, 1, 60, 196), (10, 0, 40, 40), (100, 0, 40, 100), (100, 0, 20, 80), (1000, 0, 100, 196)],
)
def test_the_wait_is_bounded_by_srtt_and_by_a_tick_less_than_the_smallest_rto(srtt_ms: int, pingpong: int, ato: int, delay_ms: int) -> None:
    sk, host = receiver(ato_jiffies=ato, pingpong=pingpong, srtt_us=srtt_ms * 1000)
    delack.send_delayed_ack(sk)
    assert (sk.delack_timeout - host.now_ns // TICK) * 4 == delay_ms


def test_an_earlier_timer_stays_and_one_about_to_fire_sends_now() -> None:
    sk, host = receiver()
    delack.send_delayed_ack(sk)
    first = sk.delack_deadline
    host.advance(20 * MS)
    delack.send_delayed_ack(sk)
    assert sk.delack_deadline == first
    assert host.take() == []
    # within a quarter of the wait: 2 of 10 jiffies
    host.advance(12 * MS)
    delack.send_delayed_ack(sk)
    assert len(host.take()) == 1
    assert sk.delack_deadline == NEVER


def test_tcp_delack_max_us_shortens_every_wait() -> None:
    sk, host = receiver(ato_jiffies=40, delack_max_ns=20 * MS)
    delack.send_delayed_ack(sk)
    assert sk.delack_timeout - host.now_ns // TICK == 5


def test_a_fin_before_any_data_is_acknowledged_at_the_next_tick() -> None:
    """The ACK timeout is still zero then (linux-sockets c17: 3 ms)."""
    sk, host = receiver(ato_jiffies=0)
    assert hear(sk, 0, const.ACK | const.FIN) == []
    start = host.now_ns
    host.advance(50 * MS)
    (sent,) = host.take()
    assert 0 < sent.t_ns - start <= 4 * MS


def test_at_hz_1000_the_wait_is_40_to_41_ms() -> None:
    host = FakeHost()
    host.sysctl.hz = 1000
    host.sysctl.update_derived()
    sk = established(host, rcv_wnd=60000, ato_jiffies=40, lrcvtime_ns=host.now_ns)
    sk.rcv_wup = sk.rcv_nxt
    hear(sk, 10)
    start = host.now_ns
    host.advance(50 * MS)
    (sent,) = host.take()
    assert 40 * MS < sent.t_ns - start <= 41 * MS


# ---------------------------------------------------------------- ping-pong


def test_an_answer_within_the_timeout_makes_a_connection_interactive() -> None:
    sk, host = receiver(quick=5)
    hear(sk, 100)
    sendmsg.sendmsg(sk, b"answer")
    assert delack.in_pingpong(sk)
    (sent,) = host.take()
    assert sent.payload == b"answer"
    assert sk.ack_pending == 0


def test_an_answer_after_the_timeout_does_not() -> None:
    sk, host = receiver()
    hear(sk, 100)
    host.advance(41 * MS)
    sendmsg.sendmsg(sk, b"late")
    assert not delack.in_pingpong(sk)


def test_tcp_pingpong_thresh_asks_for_more_answers() -> None:
    sk, _ = receiver()
    sk.sysctl.tcp_pingpong_thresh = 2
    for expected in (False, True):
        hear(sk, 100)
        sendmsg.sendmsg(sk, b"x")
        assert delack.in_pingpong(sk) is expected


# ---------------------------------------------------------------- TCP_QUICKACK


def test_tcp_quickack_0_makes_interactive_and_1_sends_the_pending_ack_of_a_drained_queue() -> None:
    sk, host = receiver()
    delack.set_quickack(sk, 0)
    assert delack.in_pingpong(sk)
    hear(sk, 100)
    delack.set_quickack(sk, 1)
    assert host.take() == [], "the data is unread: its ACK goes with the read"
    delack.set_quickack(sk, 0)
    recv.recv(sk, 100)
    host.take()
    hear(sk, 100)
    recv.recv(sk, 100)
    delack.set_quickack(sk, 1)
    assert len(host.take()) == 1
    assert not delack.in_pingpong(sk)


def test_an_even_tcp_quickack_sends_the_ack_and_stays_interactive() -> None:
    sk, host = receiver(pingpong=1)
    hear(sk, 100)
    recv.recv(sk, 100)
    delack.set_quickack(sk, 2)
    assert len(host.take()) == 1
    assert delack.in_pingpong(sk)
