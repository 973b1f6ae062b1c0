"""Delivery-rate samples and what limits the flow (linux-tcp §6.5; draft-cheng-iccrg-delivery-rate-estimation)."""

from __future__ import annotations

from pytcp.tcp import const, input, rate, sendmsg
from pytcp.tcp.cong.base import CongestionControl
from pytcp.tcp.info import tcp_info
from pytcp.tcp.sock import Sock

from .harness import MS, FakeHost, established, segment

MSS = 1000


class Witness(CongestionControl):
    """Keeps what each ACK's sample said."""

    name = "witness"
    has_cong_control = True

    def __init__(self) -> None:
        self.samples: list[tuple[int, int, int, bool, int]] = []

    def cong_control(self, sk: Sock, ack: int, flag: int, rs: rate.AckSample) -> None:
        self.samples.append((rs.delivered, rs.interval_us, rs.acked_sacked, rs.is_app_limited, rs.losses))


def flow() -> tuple[Sock, FakeHost, Witness]:
    host = FakeHost()
    sk = established(host, mss=MSS, srtt_us=20_000)
    sk.sysctl.tcp_early_retrans = 0
    sk.nonagle = const.NAGLE_OFF
    sk.snd_cwnd = 100
    witness = Witness()
    sk.ca = witness
    return sk, host, witness


def write(sk: Sock, packets: int) -> None:
    for _ in range(packets):
        sendmsg.sendmsg(sk, bytes(MSS), const.MSG_EOR)


def test_a_flight_acknowledged_at_once_is_its_packets_over_its_round_trip() -> None:
    sk, host, seen = flow()
    write(sk, 10)
    host.advance(20 * MS)
    input.receive(sk, segment(sk))
    assert seen.samples == [(10, 20_000, 10, True, 0)]
    assert tcp_info(sk).delivery_rate == 10 * MSS * 1_000_000 // 20_000


def test_the_longer_of_sending_and_acknowledging_is_the_interval() -> None:
    """Sent over 30 ms, acknowledged within 20: ACKs that come bunched must not feign a faster path."""
    sk, host, seen = flow()
    write(sk, 1)
    host.advance(30 * MS)
    write(sk, 1)
    host.advance(20 * MS)
    input.receive(sk, segment(sk))
    assert seen.samples == [(2, 50_000, 2, True, 0)]
    sk, host, seen = flow()
    write(sk, 2)
    host.advance(20 * MS)
    input.receive(sk, segment(sk, ack=1001))
    write(sk, 1)
    host.advance(5 * MS)
    input.receive(sk, segment(sk, ack=2001))
    assert seen.samples[1][:2] == (2, 25_000), "since both left"


def test_each_packet_is_sampled_once_though_sacked_before_it_is_acknowledged() -> None:
    sk, host, seen = flow()
    write(sk, 4)
    host.advance(20 * MS)
    input.receive(sk, segment(sk, ack=1, sack=[(1001, 2001)]))
    host.advance(1 * MS)
    input.receive(sk, segment(sk, ack=2001))
    assert [s[0] for s in seen.samples] == [1, 2]
    assert [s[2] for s in seen.samples] == [1, 1], "packets newly delivered"


def test_a_sample_shorter_than_any_round_trip_is_void() -> None:
    """Without an RTT sample (a retransmission was acknowledged) the interval may come out too short to be true."""
    sk, host, seen = flow()
    write(sk, 5)
    host.advance(20 * MS)
    input.receive(sk, segment(sk, ack=1, sack=[(1001, 4001)]))
    assert sk.retrans_out == 1
    host.advance(2 * MS)
    sk.min_rtt_us = 20_001
    input.receive(sk, segment(sk, ack=4001))
    assert seen.samples[1][:2] == (1, -1), "it took 20 ms to send and 2 to acknowledge"


def test_losses_are_counted_with_the_ack_that_showed_them() -> None:
    sk, host, seen = flow()
    write(sk, 10)
    host.advance(20 * MS)
    input.receive(sk, segment(sk, ack=1, sack=[(2001, 5001)]))
    assert seen.samples[-1][4] == 2


def test_an_acknowledgement_of_nothing_gives_no_sample() -> None:
    sk, host, seen = flow()
    write(sk, 2)
    host.advance(20 * MS)
    input.receive(sk, segment(sk, ack=1))
    assert seen.samples == [(-1, -1, 0, False, 0)]


def test_the_clock_starts_anew_after_idleness() -> None:
    sk, host, seen = flow()
    write(sk, 1)
    host.advance(20 * MS)
    input.receive(sk, segment(sk))
    host.advance(5000 * MS)
    write(sk, 1)
    host.advance(20 * MS)
    input.receive(sk, segment(sk))
    assert seen.samples[1][:2] == (1, 20_000)


# ---------------------------------------------------------------- application-limited


def test_a_write_into_an_empty_pipe_marks_the_flow_as_limited_by_the_program() -> None:
    sk, _, _ = flow()
    write(sk, 3)
    assert sk.app_limited == 2, "up to what was delivered and in flight at the last write"
    sk.snd_cwnd = sk.packets_out
    sk.app_limited = 0
    write(sk, 1)
    assert sk.app_limited == 0, "the window is full"


def test_waiting_data_or_a_busy_ring_is_no_such_limit() -> None:
    host = FakeHost(complete="manual")
    sk = established(host, mss=MSS)
    sendmsg.sendmsg(sk, bytes(MSS))
    sk.app_limited = 0
    rate.check_app_limited(sk)
    assert sk.app_limited == 0, "a packet has not left the host"
    host.complete_all()
    rate.check_app_limited(sk)
    assert sk.app_limited == 1
    sk.app_limited = 0
    sk.write_seq += MSS
    rate.check_app_limited(sk)
    assert sk.app_limited == 0, "a segment is waiting"


def test_the_mark_goes_when_more_than_what_it_covers_is_delivered() -> None:
    sk, host, _ = flow()
    write(sk, 4)
    assert sk.app_limited == 3
    host.advance(20 * MS)
    input.receive(sk, segment(sk, ack=3001))
    assert sk.app_limited == 3
    input.receive(sk, segment(sk, ack=4001))
    assert sk.app_limited == 0


def test_tcp_info_keeps_the_last_sample_of_a_busy_flow_and_better_ones_of_a_limited_one() -> None:
    sk, host, _ = flow()
    for packets, limited, kept in ((10, False, 10), (5, True, 10), (20, True, 20), (2, False, 2)):
        sendmsg.sendmsg(sk, bytes(packets * MSS))
        for skb in sk.rtx_queue:
            skb.tx_app_limited = limited
        host.advance(20 * MS)
        input.receive(sk, segment(sk))
        assert (sk.rate_delivered, sk.rate_interval_us, sk.rate_app_limited) == (kept, 20_000, limited if kept == packets else False)
