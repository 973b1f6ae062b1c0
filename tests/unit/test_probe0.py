"""Zero-window probes (linux-tcp §7.7, §14; RFC 9293 §3.8.6.1), and data caught by a window that closes."""

from __future__ import annotations

import errno
import itertools
from typing import Any

import pytest

from pytcp.tcp import const, input, probe0, sendmsg
from pytcp.tcp.sock import NEVER, Sock

from .harness import MS, FakeHost, Sent, established, segment

RTO = 220 * MS  # srtt 20 ms


def closed(data: int = 500, window: int = 0, **fields: Any) -> tuple[Sock, FakeHost]:
    """`data` bytes wait behind a window of `window` bytes; nothing is in flight."""
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=20_000, wscale=0, **fields)
    sk.snd_wnd = window
    sk.nonagle = const.NAGLE_OFF
    sendmsg.sendmsg(sk, bytes(data))
    assert (host.take(), sk.pending) == ([], const.PENDING_PROBE0)
    return sk, host


def probes(host: FakeHost, ms: int) -> list[Sent]:
    host.advance(ms * MS)
    return host.take()


def test_the_first_probe_comes_after_an_rto_and_asks_one_byte_back() -> None:
    sk, host = closed()
    start = host.now_ns
    sent = probes(host, 240)
    assert [(s.flags, s.seq, s.length) for s in sent] == [(".", 0, 0)], "snd_una - 1: the peer must answer"
    assert RTO < sent[0].t_ns - start <= RTO + 4 * MS
    assert (sk.mib.TCPWinProbe, sk.probes_out, sk.backoff) == (1, 1, 1)


def test_unanswered_probes_double_up_to_rto_max() -> None:
    _sk, host = closed(rto_max_ns=1000 * MS)
    sent = probes(host, 6000)
    gaps = [b.t_ns - a.t_ns for a, b in itertools.pairwise(sent)]
    # 440, 880, then 1000; from 63 ticks (252 ms) on in buckets of 8 ticks
    for gap, delay in zip(gaps, (440, 880, 1000, 1000), strict=False):
        assert delay * MS <= gap <= (delay + 40) * MS
    assert len(gaps) >= 4


def test_an_answer_restarts_the_wait_and_forgives_the_count() -> None:
    """RFC 1122 §4.2.2.17: a receiver that answers keeps the connection open for ever."""
    sk, host = closed()
    for _ in range(40):
        sent = probes(host, 130_000)
        assert sent
        input.receive(sk, segment(sk, ack=1, window=0))
        assert sk.probes_out == 0
    assert sk.state == const.ESTABLISHED


def test_a_silent_peer_is_given_up_after_tcp_retries2_probes() -> None:
    sk, host = closed()
    sk.sysctl.tcp_retries2 = 3
    sent = probes(host, 30_000)
    assert len(sent) == 3
    assert (sk.state, sk.sk_err) == (const.CLOSE, errno.ETIMEDOUT)
    assert sk.mib.TCPAbortOnTimeout == 1


def test_tcp_user_timeout_ends_it_however_the_peer_answers() -> None:
    sk, host = closed(user_timeout_ms=1000)
    start = host.now_ns
    while sk.state == const.ESTABLISHED:
        host.advance(50 * MS)
        if host.take():
            input.receive(sk, segment(sk, ack=1, window=0))
        assert host.now_ns - start < 3000 * MS
    assert sk.sk_err == errno.ETIMEDOUT
    # counted from the first probe, at 220 ms
    assert 1220 * MS <= host.now_ns - start <= 1340 * MS


def test_a_usable_window_ends_probing() -> None:
    sk, host = closed()
    probes(host, 700)
    assert sk.backoff == 2
    input.receive(sk, segment(sk, ack=1, window=4000))
    sent = host.take()
    assert [(s.seq, s.length, s.flags) for s in sent] == [(1, 500, "P.")]
    assert (sk.backoff, sk.probes_out, sk.probes_tstamp) == (0, 0, 0)
    assert sk.pending in (const.PENDING_RETRANS, const.PENDING_LOSS_PROBE)


def test_a_window_too_small_for_the_head_keeps_the_timer_and_the_probe_carries_what_fits() -> None:
    """Window 128 for 500 bytes (measured): after the RTO a segment of 128 bytes with PSH."""
    sk, host = closed()
    host.advance(50 * MS)
    start = host.now_ns
    input.receive(sk, segment(sk, ack=1, window=128))
    assert host.take() == []
    sent = probes(host, 240)
    assert [(s.seq, s.length, s.flags) for s in sent] == [(1, 128, "P.")]
    assert RTO < sent[0].t_ns - start <= RTO + 4 * MS
    assert (sk.packets_out, sk.write_seq - sk.snd_nxt, sk.mib.TCPWinProbe) == (1, 372, 0)
    input.receive(sk, segment(sk, ack=129, window=4000))
    assert [(s.seq, s.length) for s in host.take()] == [(129, 372)]


def test_a_probe_takes_one_segment_at_most() -> None:
    """A corked queue that the window would take: the probe timer sends its first segment."""
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=20_000, window=5000, wscale=0)
    sk.snd_cwnd = 0
    sendmsg.sendmsg(sk, bytes(3500))
    sk.snd_cwnd = 10
    probe0.send(sk)
    assert [(s.seq, s.length) for s in host.take()] == [(1, 1000)]
    assert (sk.backoff, sk.probes_out) == (0, 0), "it was real data"


def test_urgent_data_is_announced_by_a_probe_of_its_own() -> None:
    """Measured: one at snd_una, which the peer need not answer, and the usual one below it; both with URG."""
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=20_000, wscale=0)
    sk.snd_wnd = 0
    sendmsg.sendmsg(sk, b"abc")
    sendmsg.sendmsg(sk, b"!", const.MSG_OOB)
    sent = probes(host, 240)
    assert [(s.flags, s.seq, s.urg) for s in sent] == [("U.", 1, 4), ("U.", 0, 5)]
    assert sk.mib.TCPWinProbe == 2


@pytest.mark.parametrize(("verdict", "delay_ms", "backoff"), [(1, 500, 0), (-105, 440, 1)])
def test_a_probe_our_own_host_dropped_is_repeated_soon(verdict: int, delay_ms: int, backoff: int) -> None:
    """Local congestion (> 0) is no sign from the peer; an error counts as sent."""
    sk, host = closed()
    host.refuse = verdict
    host.advance(230 * MS)
    assert (sk.probes_out, sk.backoff) == (1, backoff)
    assert sk.rtx_deadline - host.now_ns <= delay_ms * MS
    assert sk.rtx_deadline - host.now_ns > (delay_ms - 20) * MS


def test_nothing_left_to_send_ends_probing_silently() -> None:
    sk, host = closed()
    head = sk.write_queue.head
    assert head is not None
    sk.write_queue.remove(head)
    sk.probes_out, sk.probes_tstamp = 3, 5
    assert probes(host, 240) == []
    assert (sk.probes_out, sk.probes_tstamp, sk.rtx_deadline) == (0, 0, NEVER)


@pytest.mark.parametrize(("backoff", "rto_ms", "delay_ms"), [(0, 220, 220), (1, 220, 440), (3, 220, 1760), (20, 220, 120_000), (0, 50, 200), (2, 50, 800)])
def test_the_delay_is_the_rto_at_least_200_ms_doubled(backoff: int, rto_ms: int, delay_ms: int) -> None:
    sk = established(rto_ns=rto_ms * MS, backoff=backoff)
    assert probe0.when_ns(sk, sk.rto_max_ns) == delay_ms * MS


def test_an_orphan_is_given_fewer_probes() -> None:
    sk, host = closed()
    sk.sysctl.tcp_orphan_retries = 2
    sk.sock_flags |= const.SF_DEAD
    sk.mib.sockstat.orphan += 1
    assert len(probes(host, 60_000)) == 2
    assert sk.state == const.CLOSE


# ---------------------------------------------------------------- a window that closes over data in flight


def shrunk(**fields: Any) -> tuple[Sock, FakeHost]:
    host = FakeHost()
    host.sysctl.tcp_early_retrans = 0
    sk = established(host, mss=1000, srtt_us=20_000, wscale=0, **fields)
    sendmsg.sendmsg(sk, bytes(2000))
    host.take()
    input.receive(sk, segment(sk, ack=1, window=0))
    return sk, host


def test_retransmissions_into_a_closed_window_are_probes_that_back_off() -> None:
    """Measured: 0.22, 0.46, 0.93, 1.8 s apart; no timeout is counted, the connection stays."""
    sk, host = shrunk()
    sent = probes(host, 3700)
    assert {(s.seq, s.length) for s in sent} == {(1, 1000)}
    gaps = [b.t_ns - a.t_ns for a, b in itertools.pairwise(sent)]
    for gap, delay in zip(gaps, (440, 880, 1760), strict=False):
        assert delay * MS <= gap <= (delay + 40) * MS
    assert (sk.mib.TCPTimeouts, sk.retransmits, sk.backoff, sk.state) == (0, 0, 4, const.ESTABLISHED)


def test_it_ends_when_the_peer_has_been_silent_for_twice_rto_max() -> None:
    sk, host = shrunk(rto_max_ns=1000 * MS)
    host.advance(1900 * MS)
    assert sk.state == const.ESTABLISHED
    host.advance(2000 * MS)
    assert (sk.state, sk.sk_err) == (const.CLOSE, errno.ETIMEDOUT)


def test_an_answering_peer_keeps_it_alive() -> None:
    sk, host = shrunk(rto_max_ns=1000 * MS)
    for _ in range(20):
        host.advance(500 * MS)
        input.receive(sk, segment(sk, ack=1, window=0))
    assert sk.state == const.ESTABLISHED


def test_but_not_beyond_tcp_user_timeout() -> None:
    sk, host = shrunk(rto_max_ns=1000 * MS, user_timeout_ms=1500)
    start = host.now_ns
    while sk.state == const.ESTABLISHED and host.now_ns - start < 9000 * MS:
        host.advance(100 * MS)
        if sk.state == const.ESTABLISHED:
            input.receive(sk, segment(sk, ack=1, window=0))
    assert sk.sk_err == errno.ETIMEDOUT
    assert 1500 * MS <= host.now_ns - start <= 3000 * MS
