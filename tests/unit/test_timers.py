"""The retransmission timer and the kernel's timer wheel behind it (linux-tcp §8.3, §14, RFC 6298)."""

from __future__ import annotations

import pytest

from pytcp.tcp import const, input, sendmsg, timers
from pytcp.tcp.sock import NEVER

from .harness import MS, FakeHost, established, make_sock, segment

TICK = 4 * MS


def test_a_jiffy_timer_is_never_early_and_at_most_one_tick_late_below_63_ticks() -> None:
    host = FakeHost()
    sk = make_sock(host)
    for phase in (0, 1, 1_999_999, 3_999_999):
        host.heap.now_ns = 10_000 * MS + phase
        for delay_ms in (4, 10, 40, 200, 248):
            late = timers.expiry(sk, delay_ms * MS) - (host.now_ns + delay_ms * MS)
            rounded_up = -(-delay_ms // 4) * 4 - delay_ms
            assert 0 < late <= (4 + rounded_up) * MS


@pytest.mark.parametrize(("delay_ms", "earliest", "latest"), [(252, 256, 288), (304, 308, 340), (2000, 2004, 2036), (16_000, 16_004, 16_260)])
def test_the_wheel_is_coarser_for_longer_timers(delay_ms: int, earliest: int, latest: int) -> None:
    """63..503 ticks fire on multiples of 8 ticks, 504..4031 on multiples of 64 (measured on 6.18)."""
    host = FakeHost()
    sk = make_sock(host)
    for phase_ticks in range(0, 64, 7):
        host.heap.now_ns = 10_000 * MS + phase_ticks * TICK
        fires_in = (timers.expiry(sk, delay_ms * MS) - host.now_ns) // MS
        assert earliest - 4 <= fires_in <= latest
        granularity = 8 if delay_ms // 4 < 504 else 64
        assert timers.expiry(sk, delay_ms * MS) % (granularity * TICK) == 0


def test_syn_retransmission_times_measured_on_the_kernel_come_from_the_wheel() -> None:
    """1 s is 250 ticks: the wheel's 8-tick buckets put it between 1.004 and 1.032 s."""
    host = FakeHost()
    sk = make_sock(host)
    delays = {(timers.expiry(sk, 1000 * MS) - host.now_ns) // MS for host.heap.now_ns in range(10_000 * MS, 10_128 * MS, TICK)}
    assert min(delays) >= 1000
    assert max(delays) <= 1032


def test_an_rto_resends_the_head_and_doubles() -> None:
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=50_000, sack=False)
    sendmsg.sendmsg(sk, b"x" * 1000)
    first = host.take()[0]
    rto = sk.rto_ns
    assert rto == 252 * MS, "srtt 50 ms + the 200 ms floor of the variance term, in 4 ms ticks"
    host.advance(300 * MS)
    again = host.take()
    assert [(s.seq, s.length) for s in again] == [(first.seq, 1000)]
    assert rto < again[0].t_ns - first.t_ns <= rto + 9 * TICK
    assert sk.rto_ns == 2 * rto
    assert (sk.ca_state, sk.snd_cwnd, sk.mib.TCPTimeouts, sk.total_retrans) == (const.CA_LOSS, 1, 1, 1)


def test_the_rto_never_exceeds_its_maximum() -> None:
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=10_000, sack=False)
    sk.rto_max_ns = 1000 * MS
    sendmsg.sendmsg(sk, b"x")
    host.advance(4000 * MS)
    assert sk.rto_ns == 1000 * MS


@pytest.mark.parametrize(("boundary", "seconds"), [(0, 0.2), (1, 0.6), (2, 1.4), (8, 102.2), (15, 924.6)])
def test_retries_are_a_time_model(boundary: int, seconds: float) -> None:
    """tcp_retries2 15 means 924.6 s, tcp_orphan_retries 8 means 102.2 s (measured)."""
    assert timers.model_timeout_ms(boundary, 200, 120_000) == round(seconds * 1000)


def test_a_connection_is_given_up_when_the_model_says_so() -> None:
    """tcp_retries2 = 3: the model allows 200+400+800+1600 ms = 3.0 s from the first retransmission."""
    host = FakeHost()
    host.sysctl.tcp_retries2 = 3
    sk = established(host, mss=1000, srtt_us=1000, sack=False)
    start = host.now_ns
    sendmsg.sendmsg(sk, b"x")
    host.advance(10_000 * MS)
    assert sk.state == const.CLOSE
    assert sk.mib.TCPAbortOnTimeout == 1
    assert host.sent[-1].t_ns - start + sk.rto_ns >= 3000 * MS


def test_rearming_costs_no_heap_entry_while_an_earlier_one_waits() -> None:
    host = FakeHost()
    sk = established(host, srtt_us=20_000)
    timers.arm_retrans(sk, 100 * MS)
    entries = len(host.heap)
    for _ in range(100):
        timers.arm_retrans(sk, 200 * MS)
    assert len(host.heap) == entries == 1


def test_a_cleared_timer_does_not_fire() -> None:
    host = FakeHost()
    sk = established(host, srtt_us=20_000)
    timers.arm_retrans(sk, 100 * MS)
    timers.clear_rtx(sk)
    host.advance(1000 * MS)
    assert (host.sent, sk.rtx_deadline, sk.pending) == ([], NEVER, const.PENDING_NONE)


@pytest.mark.parametrize("data_first", [True, False])
def test_of_two_timers_of_one_tick_the_one_armed_last_fires_first(data_first: bool) -> None:
    """A retransmission that comes first carries the delayed ACK; else both leave (measured on 6.18)."""
    host = FakeHost()
    sk = established(host, srtt_us=20_000, pingpong=1, ato_jiffies=10, rcv_wnd=60000)
    sendmsg.sendmsg(sk, bytes(500))
    host.take()
    host.advance(MS // 2)

    def hear() -> None:
        host.advance(1000)
        input.receive(sk, segment(sk, payload=bytes(100), ack=1))

    if data_first:
        hear()
        expiry = sk.delack_deadline
    else:
        # nothing else moves in between, so the same delay counts from the same tick
        expiry = timers.expiry(sk, 40 * MS)
    delay = next(d * MS for d in range(4, 100, 4) if timers.expiry(sk, d * MS) == expiry)
    host.advance(1000)
    timers.arm_retrans(sk, delay)
    if not data_first:
        hear()
        assert sk.delack_deadline == expiry
    host.take()
    host.advance_to(expiry)
    assert [s.length for s in host.take()] == ([500] if data_first else [0, 500])
