"""What keeps a sender from sending: exclusive clocks behind tcp_info's busy_time and *_limited."""

from __future__ import annotations

from pytcp.tcp import chrono, const, input, sendmsg
from pytcp.tcp.info import tcp_info

from .harness import MS, FakeHost, established, segment

TICK_US = 4000


def test_busy_runs_from_the_first_byte_queued_to_the_last_acknowledged() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    host.advance(100 * MS)
    assert chrono.times_us(sk) == (0, 0, 0)
    sendmsg.sendmsg(sk, bytes(100))
    host.advance(40 * MS)
    assert chrono.times_us(sk) == (40_000, 0, 0), "it is read while it runs"
    input.receive(sk, segment(sk))
    host.advance(100 * MS)
    assert chrono.times_us(sk) == (40_000, 0, 0)
    sendmsg.sendmsg(sk, bytes(100))
    host.advance(20 * MS)
    assert tcp_info(sk).busy_time == 60_000


def test_time_is_counted_in_ticks() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    host.advance(3 * MS)
    sendmsg.sendmsg(sk, bytes(100))
    host.advance(2 * MS)
    assert chrono.times_us(sk)[0] == TICK_US, "from 3 to 5 ms one tick boundary is crossed"
    host.advance(2 * MS)
    assert chrono.times_us(sk)[0] == TICK_US


def test_a_closed_window_takes_over_from_busy_and_counts_as_busy_too() -> None:
    host = FakeHost()
    sk = established(host, mss=1000, window=2000, wscale=0, srtt_us=20_000)
    sendmsg.sendmsg(sk, bytes(5000))
    assert sk.chrono_kind == chrono.RWND_LIMITED
    host.advance(40 * MS)
    input.receive(sk, segment(sk, ack=2001, window=10_000))
    assert sk.chrono_kind == chrono.BUSY
    host.advance(20 * MS)
    assert chrono.times_us(sk) == (60_000, 40_000, 0)


def test_a_send_buffer_that_leaves_the_window_unused_takes_over_until_the_writer_may_go_on() -> None:
    """5000 bytes of buffer are two skbs of 2000: both leave, the window has room, and the writer waits."""
    host = FakeHost()
    sk = established(host, mss=1000, window=4096)
    sk.sndbuf, sk.sndbuf_locked, sk.snd_cwnd = 5000, True, 0
    assert sendmsg.sendmsg(sk, bytes(20_000)) == 4000
    sk.snd_cwnd = 20
    input.receive(sk, segment(sk, ack=1))
    assert (sum(s.length for s in host.take()), sk.nospace, sk.chrono_kind) == (4000, True, chrono.SNDBUF_LIMITED)
    host.advance(8 * MS)
    input.receive(sk, segment(sk, ack=2001))
    assert (sk.nospace, sk.chrono_kind) == (False, chrono.BUSY)
    host.advance(4 * MS)
    assert chrono.times_us(sk) == (12_000, 0, 8_000)


def test_a_higher_clock_overrides_a_lower_one_and_falls_back_to_busy() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sk.nonagle = const.NAGLE_CORK
    sendmsg.sendmsg(sk, bytes(100))
    for kind in (chrono.SNDBUF_LIMITED, chrono.RWND_LIMITED):
        chrono.start(sk, kind)
        assert sk.chrono_kind == chrono.SNDBUF_LIMITED
        host.advance(4 * MS)
    chrono.stop(sk, chrono.RWND_LIMITED)
    assert sk.chrono_kind == chrono.SNDBUF_LIMITED, "not the one that runs"
    chrono.stop(sk, chrono.SNDBUF_LIMITED)
    assert sk.chrono_kind == chrono.BUSY, "data is still queued"
    assert chrono.times_us(sk) == (8000, 0, 8000)


def test_with_nothing_queued_every_clock_stops() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(100))
    host.advance(4 * MS)
    input.receive(sk, segment(sk))
    assert sk.chrono_kind == chrono.UNSPEC
    chrono.stop(sk, chrono.BUSY)
    assert chrono.times_us(sk) == (4000, 0, 0)
