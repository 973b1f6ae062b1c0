"""The pacing rate, and the internal timer that enforces it (linux-tcp §5, §14)."""

from __future__ import annotations

import pytest

from pytcp.tcp import const, handshake, input, pacing, sendmsg, timers
from pytcp.tcp.sock import NEVER, Sock
from pytcp.tcp.sockopt import setsockopt

from .harness import MS, FakeHost, established, make_sock, segment

SOL_SOCKET, SO_MAX_PACING_RATE = 1, 47


def paced(rate: int, *, skip: int = 10, cwnd: int = 100) -> tuple[Sock, FakeHost]:
    """NODELAY, limited to `rate` bytes/s, `skip` data segments sent already."""
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=20_000)
    setsockopt(sk, SOL_SOCKET, SO_MAX_PACING_RATE, rate)
    sk.nonagle = const.NAGLE_OFF
    sk.snd_cwnd = cwnd
    sk.data_segs_out = skip
    return sk, host


@pytest.mark.parametrize(
    ("cwnd", "ssthresh", "packets_out", "rate"),
    [
        # mss·cwnd/srtt = 1000·10/0.02 s = 500 kB/s; 200 % while cwnd < ssthresh/2
        (10, const.INFINITE_SSTHRESH, 0, 1_000_000),
        (10, 22, 0, 1_000_000),
        (10, 21, 0, 600_000),  # 10 is not below 10: 120 %
        (10, 2, 0, 600_000),
        (10, 2, 15, 900_000),  # more in flight than cwnd (after a reduction)
    ],
)
def test_the_rate_is_two_windows_per_round_trip_in_slow_start_and_a_fifth_more_than_one_after(cwnd: int, ssthresh: int, packets_out: int, rate: int) -> None:
    sk = established(mss=1000, srtt_us=20_000)
    sk.snd_cwnd, sk.snd_ssthresh, sk.packets_out = cwnd, ssthresh, packets_out
    pacing.update_rate(sk)
    assert sk.pacing_rate == rate


def test_the_ratios_are_sysctls() -> None:
    sk = established(mss=1000, srtt_us=20_000)
    sk.sysctl.tcp_pacing_ss_ratio, sk.sysctl.tcp_pacing_ca_ratio = 300, 100
    pacing.update_rate(sk)
    assert sk.pacing_rate == 1_500_000
    sk.snd_ssthresh = 5
    pacing.update_rate(sk)
    assert sk.pacing_rate == 500_000


def test_without_an_rtt_the_rate_is_as_good_as_unlimited() -> None:
    sk = established(mss=1000)
    pacing.update_rate(sk)
    assert sk.pacing_rate > 100_000_000_000


def test_so_max_pacing_rate_caps_the_rate_and_turns_the_timer_on() -> None:
    sk, _ = paced(123_456)
    pacing.update_rate(sk)
    assert (sk.pacing_rate, sk.pacing_status) == (123_456, pacing.STATUS_NEEDED)


def test_the_first_nine_segments_leave_unpaced() -> None:
    """The segment that makes ten is the first that costs time: at 100 kB/s 1000 bytes are 10 ms."""
    sk, host = paced(100_000, skip=0)
    start = host.now_ns
    for _ in range(12):
        sendmsg.sendmsg(sk, bytes(1000), const.MSG_EOR)
    assert len(host.sent) == 10
    host.advance(25 * MS)
    assert [s.t_ns - start for s in host.sent[10:]] == [10 * MS, 20 * MS]


def test_departures_are_spaced_by_payload_alone() -> None:
    """2000-byte bursts at 1 MB/s: 2 ms apart, headers and options not counted; the timer is exact, not a jiffy."""
    sk, host = paced(1_000_000)
    sk.tstamp_ok, sk.tcp_header_len = True, 32
    start = host.now_ns
    sendmsg.sendmsg(sk, bytes(8000))
    host.advance(30 * MS)
    assert [(s.length, s.t_ns - start) for s in host.sent] == [(2000, 0), (2000, 2 * MS), (2000, 4 * MS), (2000, 6 * MS)]


def test_a_sender_that_is_late_may_catch_up_by_half_a_packet() -> None:
    """credit = the gap before this departure; at most half of the packet's time is forgiven."""
    sk, host = paced(100_000)
    sk.wstamp_ns = host.now_ns - 3 * MS
    sendmsg.sendmsg(sk, bytes(1000))
    assert sk.wstamp_ns == host.now_ns + 7 * MS
    sk, host = paced(100_000)
    sk.wstamp_ns = host.now_ns - 500 * MS
    sendmsg.sendmsg(sk, bytes(1000))
    assert sk.wstamp_ns == host.now_ns + 5 * MS


def test_an_unpaced_connection_never_waits() -> None:
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=20_000)
    sk.data_segs_out = 1000
    sk.pacing_rate = 1000
    sk.snd_cwnd = 100
    sendmsg.sendmsg(sk, bytes(20_000))
    assert sum(s.length for s in host.sent) == 20_000
    assert sk.pacing_deadline == NEVER


def test_under_fq_the_engine_only_computes_departures() -> None:
    """Status FQ: the qdisc holds packets back, the socket does not."""
    sk, host = paced(100_000)
    sk.pacing_status = pacing.STATUS_FQ
    for _ in range(3):
        sendmsg.sendmsg(sk, bytes(1000), const.MSG_EOR)
    assert len(host.sent) == 3
    assert sk.wstamp_ns == host.now_ns + 30 * MS


def test_the_retransmission_timer_waits_for_the_departure_too() -> None:
    """In whole ticks of 4 ms, rounded down: 10 ms ahead are 8."""
    sk, host = paced(100_000)
    sendmsg.sendmsg(sk, bytes(1000))
    timers.arm_rtx(sk, const.PENDING_RETRANS, 100 * MS)
    assert sk.rtx_deadline == host.now_ns + 108 * MS
    timers.arm_retrans(sk, 100 * MS)
    assert sk.rtx_deadline == host.now_ns + 100 * MS, "a backoff is not delayed"


def test_retransmissions_are_paced() -> None:
    sk, host = paced(100_000)
    for _ in range(6):
        sk.wstamp_ns = 0
        sendmsg.sendmsg(sk, bytes(1000), const.MSG_EOR)
    host.take()
    host.advance(20 * MS)
    sk.wstamp_ns = host.now_ns + 5 * MS
    start = host.now_ns
    input.receive(sk, segment(sk, ack=1, sack=[(3001, 6001)]))
    assert host.sent == []
    host.advance(16 * MS)
    assert [(s.seq, s.t_ns - start) for s in host.sent] == [(1, 5 * MS), (1001, 15 * MS)]


@pytest.mark.parametrize(("timestamps", "rate"), [(False, 5_483_809), (True, 5_483_809)])
def test_the_first_rate_of_an_active_open_leaves_room_for_timestamps_whether_agreed_or_not(timestamps: bool, rate: int) -> None:
    """Measured: RTT 5281 us, MSS 1460, IW10 gave 5,483,809 bytes/s without timestamps: 1448·10·2/RTT."""
    host = FakeHost()
    sk = make_sock(host, saddr=b"\x0a\0\0\1", daddr=b"\x0a\0\0\2", sport=1, dport=2, state=const.SYN_SENT)
    host.route(sk)
    sk.dst.advmss = 1460
    handshake.connect(sk)
    host.advance(5_281_000)
    seg = segment(sk, const.SYN | const.ACK, ack=1, window=65_535)
    seg.options.mss, seg.options.wscale, seg.options.sack_perm = 1460, 7, True
    if timestamps:
        seg.saw_tstamp, seg.tsval, seg.tsecr = True, 7, (sk.retrans_stamp + sk.ts_offset) & 0xFFFFFFFF
    input.receive(sk, seg)
    assert sk.state == const.ESTABLISHED
    assert (sk.mss_cache, sk.tcp_header_len) == ((1448, 32) if timestamps else (1460, 20))
    assert sk.pacing_rate == rate
