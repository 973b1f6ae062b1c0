"""Corners of loss recovery where one copy of a segment must not be taken for the other, and what is resent how
(linux-tcp §8.3 to §8.9; each of these was measured on, or reported for, Linux)."""

from __future__ import annotations

import errno

import pytest

from pytcp.tcp import const, input, retransmit, sendmsg, xmit
from pytcp.tcp.sock import Sock

from .harness import MS, FakeHost, Sent, established, segment

MSS = 1000


def flight(packets: int, *, sack: bool = True, timestamps: bool = False, rto_only: bool = False) -> tuple[Sock, FakeHost]:
    """`packets` segments of 1000 bytes in flight, sent one by one just now; cwnd is full."""
    host = FakeHost()
    if rto_only:
        host.sysctl.tcp_early_retrans = 0
    sk = established(host, mss=MSS, sack=sack, timestamps=timestamps, srtt_us=20_000)
    sk.snd_cwnd = packets
    sk.nonagle = const.NAGLE_OFF
    for _ in range(packets):
        sendmsg.sendmsg(sk, bytes(MSS), const.MSG_EOR)
    host.take()
    return sk, host


def ack(sk: Sock, upto: float, *blocks: tuple[int, int], ts: tuple[int, int] | None = None) -> list[Sent]:
    host = sk.host
    assert isinstance(host, FakeHost)
    input.receive(sk, segment(sk, ack=round(1 + upto * MSS), sack=[(1 + a * MSS, 1 + b * MSS) for a, b in blocks], ts=ts))
    return host.take()


def numbers(sent: list[Sent]) -> list[int]:
    return [(s.seq - 1) // MSS for s in sent if s.length]


# ---------------------------------------------------------------- which copy was it


def test_the_sack_of_a_probed_segment_within_a_round_trip_is_the_originals() -> None:
    """RACK must not take the probe's time for the delivered copy's: everything before it would look lost."""
    sk, host = flight(3)
    host.advance(50 * MS)
    assert numbers(host.take()) == [2], "the probe, after 2·20 + 2 ms"
    host.advance(1 * MS)
    assert ack(sk, 0, (2, 3)) == []
    assert (sk.lost_out, sk.ca_state) == (0, const.CA_DISORDER)


def test_an_echo_older_than_the_retransmission_does_not_move_rack() -> None:
    """The original was 25 ms late: the retransmission's time says nothing about what was sent before it."""
    sk, host = flight(10, timestamps=True)
    echo = host.now_ns // MS
    host.advance(20 * MS)
    ack(sk, 0, (1, 4), ts=(1, echo))
    assert (sk.retrans_out, sk.ca_state) == (1, const.CA_RECOVERY)
    host.advance(25 * MS)
    ack(sk, 4, ts=(2, echo))
    assert sk.lost_out == 0
    assert sk.rack_mstamp_us < host.now_ns // 1000 - 40_000
    assert sk.mib.TCPPartialUndo == 1


def test_a_retransmission_the_host_refused_gives_no_rtt_sample() -> None:
    """Its time stamp is that of the attempt, the ACK answers the original (without SACK, without timestamps)."""
    sk, host = flight(1, sack=False)
    host.refuse = -105
    host.advance(230 * MS)
    assert sk.ca_state == const.CA_LOSS
    srtt = sk.srtt_us
    ack(sk, 1)
    assert sk.srtt_us == srtt
    assert sk.mib.TCPRetransFail == 1


def test_without_sack_an_ack_over_both_copies_is_no_proof_that_a_timeout_was_spurious() -> None:
    """F-RTO without SACK cannot tell whether the retransmitted or the never-retransmitted part made it advance."""
    sk, host = flight(6, sack=False)
    host.advance(230 * MS)
    assert numbers(host.take()) == [0]
    ack(sk, 3)
    assert (sk.ca_state, sk.mib.TCPSpuriousRTOs) == (const.CA_LOSS, 0)


def test_without_sack_the_end_of_an_episode_undoes_nothing_when_its_stamp_was_cleared() -> None:
    sk, host = flight(1, sack=False)
    host.advance(230 * MS)
    ack(sk, 1)
    sk.retrans_stamp = 0
    ack(sk, 1)
    sendmsg.sendmsg(sk, bytes(MSS))
    host.advance(20 * MS)
    ack(sk, 2)
    assert sk.mib.TCPLossUndo == 0


def test_a_new_recovery_on_the_ack_that_ends_the_old_one_has_its_own_stamp() -> None:
    """Else timestamps would compare with, and give-up count from, a retransmission of long ago (Linux 6.12)."""
    sk, host = flight(10)
    sk.snd_cwnd = 40
    sendmsg.sendmsg(sk, bytes(6 * MSS))
    host.advance(20 * MS)
    ack(sk, 0, (1, 4))
    ack(sk, 0, (1, 16))
    sk.snd_cwnd = 60
    sendmsg.sendmsg(sk, bytes(10 * MSS))
    assert sk.snd_nxt - sk.snd_una == 26 * MSS
    host.take()
    first = sk.retrans_stamp
    assert first == host.now_ns // MS
    host.advance(24 * MS)
    sent = ack(sk, 16, (17, 21))
    assert numbers(sent)[0] == 16
    assert (sk.ca_state, sk.mib.TCPSackRecovery) == (const.CA_RECOVERY, 2)
    assert sk.retrans_stamp == first + 24


# ---------------------------------------------------------------- the Loss state


def test_a_lost_retransmission_in_loss_starts_a_recovery_of_its_own() -> None:
    sk, host = flight(10, rto_only=True)
    sk.snd_ssthresh = 20
    host.advance(230 * MS)
    assert numbers(host.take()) == [0]
    host.advance(20 * MS)
    assert numbers(ack(sk, 1)) == [1, 2]
    assert (sk.ca_state, sk.mib.TCPSackRecovery) == (const.CA_LOSS, 0)
    host.advance(20 * MS)
    # 2 was resent right behind 1, and is there
    assert numbers(ack(sk, 1, (2, 3))) == [1]
    assert sk.mib.TCPLostRetransmit == 1
    assert (sk.ca_state, sk.mib.TCPSackRecovery, sk.mib.TCPFastRetrans) == (const.CA_RECOVERY, 1, 1)


def test_the_time_spent_after_timeouts_is_kept() -> None:
    """tcpi_total_rto_time: from the first RTO of an episode to its end, ms."""
    sk, host = flight(2, rto_only=True)
    host.advance(300 * MS)
    assert (sk.total_rto, sk.total_rto_recoveries) == (1, 1)
    began = sk.rto_stamp
    host.advance(50 * MS)
    ack(sk, 2)
    assert sk.total_rto_time_ms == host.now_ns // MS - began
    assert sk.rto_stamp == 0


def test_what_the_rack_timeout_still_expects_is_not_given_up_with_the_head() -> None:
    """A segment sent a moment before the RTO of the first is on its way; everything else is lost."""
    sk, host = flight(3, rto_only=True)
    sk.snd_cwnd = 10
    host.advance(100 * MS)
    ack(sk, 1)  # RTT 100 ms
    host.advance(200 * MS)
    sendmsg.sendmsg(sk, bytes(MSS))
    host.advance(90 * MS)
    assert sk.ca_state == const.CA_LOSS
    assert [bool(skb.sacked & const.LOST) for skb in sk.rtx_queue] == [True, True, False]
    sk.sysctl.tcp_recovery = 0
    retransmit.enter_loss(sk)
    assert sk.lost_out == 2, "tcp_recovery's first bit has no effect any more (6.17)"


def test_a_reneging_peer_gets_a_grace_of_half_a_round_trip() -> None:
    """An ACK that advances to data it had SACKed without covering it: max(srtt/2, 10 ms), not the RTO."""
    sk, host = flight(10)
    host.advance(20 * MS)
    ack(sk, 0, (1, 10))
    start = host.now_ns
    ack(sk, 1)
    assert sk.pending == const.PENDING_RETRANS
    host.advance(30 * MS)
    sent = host.take()
    assert numbers(sent) == [1]
    assert 12 * MS <= sent[0].t_ns - start <= 16 * MS
    assert (sk.mib.TCPSACKReneging, sk.sacked_out, sk.lost_out) == (1, 0, 9)


def test_a_peer_that_took_sacks_back_gives_no_delivery_rates_until_the_loss_is_over() -> None:
    """Measured: tcp_info's delivery_rate stays what it was before, over several partial ACKs."""
    sk, host = flight(10)
    host.advance(20 * MS)
    ack(sk, 0, (1, 10))
    ack(sk, 1)
    before = (sk.rate_delivered, sk.rate_interval_us)
    host.advance(30 * MS)
    assert sk.ca_state == const.CA_LOSS
    for upto in (2, 4, 10):
        host.advance(20 * MS)
        ack(sk, upto)
        assert (sk.rate_delivered, sk.rate_interval_us) == before, upto
    assert sk.ca_state == const.CA_OPEN
    sk.rate_delivered = 0  # any sample is an improvement
    sendmsg.sendmsg(sk, bytes(MSS))
    host.advance(25 * MS)
    ack(sk, 11)
    assert sk.rate_interval_us == 25_000


# ---------------------------------------------------------------- how it is resent


def test_small_neighbours_and_the_fin_are_resent_as_one_segment() -> None:
    """Measured: 100 and 50 bytes and a FIN, each sent by itself, come again as FIN|PSH with 150."""
    host = FakeHost()
    host.sysctl.tcp_early_retrans = 0
    sk = established(host, mss=MSS, srtt_us=20_000)
    sk.nonagle = const.NAGLE_OFF
    sendmsg.sendmsg(sk, b"a" * 100)
    sendmsg.sendmsg(sk, b"b" * 50)
    sk.state = const.FIN_WAIT1
    xmit.send_fin(sk)
    assert [s.flags for s in host.take()] == ["P.", "P.", "F."]
    host.advance(300 * MS)
    assert [(s.flags, s.payload) for s in host.take()] == [("FP.", b"a" * 100 + b"b" * 50)]
    assert (sk.packets_out, sk.lost_out, sk.retrans_out, len(sk.rtx_queue)) == (1, 1, 1, 1)


@pytest.mark.parametrize("reason", ["record end", "sacked", "full", "switched off"])
def test_neighbours_stay_apart_where_they_must(reason: str) -> None:
    host = FakeHost()
    host.sysctl.tcp_early_retrans = 0
    sk = established(host, mss=MSS, srtt_us=20_000)
    sk.nonagle = const.NAGLE_OFF
    for _ in range(2):
        sendmsg.sendmsg(sk, bytes(600 if reason == "full" else 100), const.MSG_EOR if reason == "record end" else 0)
    host.take()
    if reason == "switched off":
        host.sysctl.tcp_retrans_collapse = 0
    if reason == "sacked":
        input.receive(sk, segment(sk, ack=1, sack=[(101, 201)]))
        sk.sysctl.tcp_recovery = 4
        host.advance(5 * MS)
    host.advance(300 * MS)
    assert host.take()[0].length == (600 if reason == "full" else 100)


def test_only_what_is_unacknowledged_of_a_segment_is_resent() -> None:
    sk, host = flight(1, rto_only=True)
    ack(sk, 0.4)
    host.advance(300 * MS)
    assert [(s.seq, s.length) for s in host.take()] == [(401, 600)]


def test_the_head_is_resent_into_a_closed_window_as_its_probe_and_nothing_else() -> None:
    sk, host = flight(4, sack=False)
    sk.snd_wnd = 0
    assert retransmit.resend(sk, sk.rtx_queue.tail, 1) < 0  # type: ignore[arg-type]
    assert retransmit.resend(sk, sk.rtx_queue.head, 1) == 0  # type: ignore[arg-type]
    assert numbers(host.take()) == [0]


def test_a_window_that_ends_within_a_burst_cuts_it() -> None:
    host = FakeHost()
    host.sysctl.tcp_early_retrans = 0
    sk = established(host, mss=MSS, srtt_us=20_000)
    sendmsg.sendmsg(sk, bytes(4 * MSS))
    host.take()
    sk.snd_wnd = 2500
    head = sk.rtx_queue.head
    assert head is not None
    assert retransmit.resend(sk, head, 4) == 0
    assert [s.length for s in host.take()] == [2000]
    assert [skb.pcount for skb in sk.rtx_queue] == [2, 2]


def test_the_oldest_hole_goes_first_and_no_more_than_the_window_allows() -> None:
    sk, host = flight(20)
    host.advance(20 * MS)
    ack(sk, 0, (1, 2), (3, 4), (5, 6))
    assert sk.ca_state == const.CA_RECOVERY
    sent = []
    for right in range(7, 20):
        sent += numbers(ack(sk, 0, (5, right), (1, 2), (3, 4)))
    assert sent == sorted(sent)
    in_flight = sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out
    assert in_flight <= sk.snd_cwnd


# ---------------------------------------------------------------- giving up


def test_how_long_retransmissions_go_on_follows_the_largest_rto_allowed() -> None:
    """tcp_retries2 8 with TCP_RTO_MAX_MS 1000: 200·(2^3 - 1) ms + 6·1000 = 7.4 s (the kernel took 7.8)."""
    sk, host = flight(1, sack=False)
    sk.sysctl.tcp_retries2 = 8
    sk.rto_max_ns = 1000 * MS
    start = host.now_ns
    host.advance(7000 * MS)
    assert sk.state == const.ESTABLISHED
    host.advance(1700 * MS)
    assert (sk.state, sk.sk_err) == (const.CLOSE, errno.ETIMEDOUT)
    assert host.now_ns - start < 9000 * MS


def test_thin_streams_are_spared_the_backoff_only_while_established() -> None:
    for state, backoff in ((const.ESTABLISHED, 0), (const.CLOSE_WAIT, 1)):
        sk, host = flight(2, sack=False)
        sk.sysctl.tcp_thin_linear_timeouts = 1
        sk.snd_ssthresh = 10
        sk.state = state
        host.advance(300 * MS)
        assert (sk.retransmits, sk.backoff) == (1, backoff)
