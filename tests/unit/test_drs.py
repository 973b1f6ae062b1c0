"""Dynamic right-sizing of the receive buffer, and the receiver's own RTT (linux-tcp §7.5, §14)."""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.tcp import drs, input, recv
from pytcp.tcp.sock import Sock

from .harness import MS, US, FakeHost, established, segment
from .receive_replay import cases, replay


@pytest.mark.parametrize("name", cases("drs*"))
def test_the_receivers_rtt_follows_the_kernels(name: str) -> None:
    run = replay(name)
    assert run.differences == []
    assert run.compared > 10


def receiver(**fields: Any) -> tuple[Sock, FakeHost]:
    host = FakeHost()
    sk = established(host, **{"timestamps": True, "rcv_wnd": 60000, "ato_jiffies": 10, "lrcvtime_ns": host.now_ns - MS, **fields})
    sk.rcv_wup = sk.rcv_nxt
    sk.mstamp_ns = host.now_ns
    return sk, host


def sample(sk: Sock, age_ms: int, size: int = 1000) -> None:
    """A segment of `size` bytes that echoes a timestamp of ours `age_ms` old."""
    seg = segment(sk, payload=bytes(size), ts=(1, (sk.host.now_ns // MS - age_ms) & 0xFFFFFFFF))
    seg.end_seq = sk.rcv_nxt + size
    seg.seq = sk.rcv_nxt
    drs.rcv_rtt_measure_ts(sk, seg)


# ---------------------------------------------------------------- RTT


def test_smaller_samples_count_at_once_larger_ones_by_an_eighth() -> None:
    """drs_rcv_rtt_ts: 20, 40, 40, 10 ms give 20, 22.5, 24.687, 10 ms."""
    sk, host = receiver()
    seen = []
    for age in (20, 40, 40, 10):
        host.advance(100 * MS)
        sample(sk, age)
        seen.append(sk.rcv_rtt_us >> 3)
    assert seen == [20000, 22500, 24687, 10000]


def test_while_the_program_lags_behind_larger_samples_measure_the_program() -> None:
    sk, host = receiver(rcv_rtt_us=20_000 * 8)
    sk.copied_seq -= 1
    sample(sk, 90)
    assert sk.rcv_rtt_us == 20_000 * 8
    host.advance(100 * MS)
    sample(sk, 5)
    assert sk.rcv_rtt_us == 5_000 * 8


@pytest.mark.parametrize(("age", "size"), [(0, 1000), (20, 999), (3_000_000, 1000)])
def test_young_short_or_absurd_echoes_are_no_samples(age: int, size: int) -> None:
    sk, _ = receiver()
    sample(sk, age, size)
    assert sk.rcv_rtt_us == 0


def test_an_echo_is_used_once() -> None:
    sk, host = receiver()
    echo = host.now_ns // MS - 20
    for _ in range(2):
        seg = segment(sk, payload=bytes(1000), ts=(1, echo))
        seg.seq, seg.end_seq = sk.rcv_nxt, sk.rcv_nxt + 1000
        drs.rcv_rtt_measure_ts(sk, seg)
        host.advance(50 * MS)
    assert sk.rcv_rtt_us == 20_000 * 8


def test_without_timestamps_a_windows_worth_of_data_takes_one_rtt_at_most() -> None:
    sk, host = receiver(timestamps=False, rcv_wnd=5000)
    drs.rcv_rtt_measure(sk)
    assert sk.rcv_rtt_us == 0
    host.advance(30 * MS)
    sk.mstamp_ns = host.now_ns
    sk.rcv_nxt += 4999
    drs.rcv_rtt_measure(sk)
    assert sk.rcv_rtt_us == 0
    sk.rcv_nxt += 1
    drs.rcv_rtt_measure(sk)
    assert sk.rcv_rtt_us == 30_000 * 8
    # later windows can only lower it
    host.advance(90 * MS)
    sk.mstamp_ns = host.now_ns
    sk.rcv_nxt += 5000
    drs.rcv_rtt_measure(sk)
    assert sk.rcv_rtt_us == 30_000 * 8


# ---------------------------------------------------------------- growth


def read_a_round(sk: Sock, host: FakeHost, copied: int, unread: int = 0) -> None:
    """One RTT of 10 ms in which the program takes `copied` bytes, `unread` more still waiting."""
    sk.rcv_nxt += copied + unread
    sk.copied_seq += copied
    # the time is that of the read, not of the last segment (measured on 6.18)
    host.advance(10 * MS)
    drs.rcv_space_adjust(sk)
    sk.rcv_nxt -= unread


def test_the_buffer_serves_twice_what_was_read_and_the_senders_slow_start() -> None:
    """30000 after 20000: window 60000, grown by half twice: 60000 + 2 * 30000; ratio one half."""
    sk, host = receiver(rcv_rtt_us=10_000 * 8, rcvq_space=20000)
    sk.rcvq_seq = sk.copied_seq
    read_a_round(sk, host, 30000)
    assert (sk.rcvq_space, sk.rcvbuf, sk.window_clamp) == (30000, 240000, 120000)
    read_a_round(sk, host, 30000)
    assert sk.rcvbuf == 240000


def test_what_waits_in_the_queue_was_not_read() -> None:
    sk, host = receiver(rcv_rtt_us=10_000 * 8, rcvq_space=20000)
    sk.rcvq_seq = sk.copied_seq
    read_a_round(sk, host, 30000, unread=10000)
    assert sk.rcvq_space == 20000
    read_a_round(sk, host, 30001, unread=10000)
    assert sk.rcvq_space == 20001


def test_it_is_looked_at_once_per_rtt() -> None:
    sk, host = receiver(rcv_rtt_us=20_000 * 8, rcvq_space=20000)
    sk.rcvq_seq = sk.copied_seq
    read_a_round(sk, host, 30000)
    assert sk.rcvq_space == 20000
    read_a_round(sk, host, 1)
    assert sk.rcvq_space == 30001


def test_without_an_rtt_nothing_grows() -> None:
    sk, host = receiver(rcvq_space=20000)
    sk.rcvq_seq = sk.copied_seq
    read_a_round(sk, host, 50000)
    assert sk.rcvq_space == 20000


@pytest.mark.parametrize(("locked", "moderate"), [(True, 1), (False, 0)])
def test_so_rcvbuf_and_the_sysctl_stop_the_growth(locked: bool, moderate: int) -> None:
    sk, _ = receiver(rcvq_space=20000, rcvbuf_locked=locked)
    sk.sysctl.tcp_moderate_rcvbuf = moderate
    before = sk.rcvbuf
    drs.rcvbuf_grow(sk, 90000)
    assert (sk.rcvbuf, sk.rcvq_space) == (before, 90000)


def test_tcp_rmem_2_is_the_limit() -> None:
    sk, _ = receiver(rcvq_space=20000)
    sk.sysctl.tcp_rmem = (4096, 131072, 150000)
    drs.rcvbuf_grow(sk, 90000)
    assert (sk.rcvbuf, sk.window_clamp) == (150000, 75000)


def test_a_reader_of_a_fast_sender_gets_a_growing_window() -> None:
    sk, host = receiver(rcv_mss=1000)
    sk.rcvq_seq = sk.copied_seq
    first = sk.rcvbuf
    for burst in (10, 20, 40, 80):
        host.advance(10 * MS)
        echo = host.now_ns // MS - 10
        for _ in range(burst):
            host.advance(10 * US)
            input.receive(sk, segment(sk, payload=bytes(1000), ts=(1, echo)))
            recv.recv(sk, 10_000)
    assert sk.rcvbuf > 2 * first
    assert sk.rcv_wnd > 100_000
