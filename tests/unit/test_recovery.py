"""Loss recovery as Linux has it: what is detected when, what is resent, and what cwnd becomes."""

from __future__ import annotations

from pytcp.tcp import const, input, sendmsg
from pytcp.tcp.sock import Sock

from .harness import MS, FakeHost, Sent, established, segment

MSS = 1000


def flight(packets: int, *, sack: bool = True, timestamps: bool = False, cwnd: int | None = None, srtt_us: int = 40_000) -> tuple[Sock, FakeHost]:
    """A connection with `packets` segments of 1000 bytes in flight, sent one by one just now."""
    host = FakeHost()
    sk = established(host, mss=MSS, sack=sack, timestamps=timestamps, srtt_us=srtt_us)
    sk.snd_cwnd = cwnd or packets
    sk.snd_wl1 = sk.rcv_nxt  # the peer has sent a segment at rcv_nxt before: a repeated ACK is a duplicate
    sk.nonagle = const.NAGLE_OFF
    for _ in range(packets):
        sendmsg.sendmsg(sk, b"d" * MSS)
        host.advance(10_000)
    assert sk.packets_out == packets
    host.take()
    return sk, host


def ack(sk: Sock, upto: int, *sack: tuple[int, int], ts: tuple[int, int] | None = None) -> list[Sent]:
    """The peer acknowledges `upto` segments and SACKs segment ranges [a, b); returns what that sent."""
    host = sk.host
    assert isinstance(host, FakeHost)
    host.advance(10_000)
    blocks = [(1 + a * MSS, 1 + b * MSS) for a, b in sack]
    input.receive(sk, segment(sk, ack=1 + upto * MSS, sack=blocks, ts=ts))
    return host.take()


def numbers(sent: list[Sent]) -> list[int]:
    """Which segments these are, by number."""
    return [(s.seq - 1) // MSS for s in sent if s.length]


def test_three_sacked_segments_above_a_hole_start_recovery_at_once() -> None:
    sk, host = flight(10)
    host.advance(40 * MS)
    assert numbers(ack(sk, 0, (1, 2))) == []
    assert sk.ca_state == const.CA_DISORDER
    assert numbers(ack(sk, 0, (1, 3))) == []
    sent = ack(sk, 0, (1, 4))
    assert numbers(sent) == [0], "the hole, and nothing else: no new data was written"
    assert sk.ca_state == const.CA_RECOVERY
    assert sk.snd_ssthresh == 5, "Reno halves"
    assert (sk.mib.TCPSackRecovery, sk.mib.TCPFastRetrans, sk.lost_out, sk.sacked_out) == (1, 1, 1, 3)


def test_two_sacked_segments_wait_for_the_reordering_window_first() -> None:
    """Below three SACKs RACK waits min_rtt/4 after an RTT: a timer, not the RTO, declares the loss."""
    sk, host = flight(3)
    host.advance(40 * MS)
    assert numbers(ack(sk, 0, (1, 3))) == []
    assert sk.pending == const.PENDING_REO_TIMEOUT
    start = host.now_ns
    host.advance(25 * MS)
    sent = host.take()
    assert numbers(sent) == [0]
    # min_rtt/4 = 10 ms, plus 2 ms, in ticks of 4 ms
    assert 8 * MS <= sent[0].t_ns - start <= 20 * MS
    assert sk.mib.TCPTimeouts == 0


def test_recovery_ends_when_high_seq_is_acknowledged_and_cwnd_is_ssthresh() -> None:
    sk, host = flight(10)
    host.advance(40 * MS)
    ack(sk, 0, (1, 4))
    assert sk.ca_state == const.CA_RECOVERY
    host.advance(40 * MS)
    ack(sk, 10)
    assert sk.ca_state == const.CA_OPEN
    # the ACK that ends recovery sets cwnd to ssthresh, and its seven delivered packets count: 5 + 7 // 5
    assert (sk.snd_ssthresh, sk.snd_cwnd) == (5, 6)
    assert (sk.packets_out, sk.sacked_out, sk.lost_out, sk.retrans_out) == (0, 0, 0, 0)


def test_prr_sends_ssthresh_over_prior_cwnd_of_what_is_delivered() -> None:
    """RFC 6937 §3.1 with 20 in flight and ssthresh 10: one packet for every two delivered."""
    sk, host = flight(20)
    sendmsg.sendmsg(sk, b"n" * 40 * MSS)
    host.take()
    host.advance(40 * MS)
    ack(sk, 0, (1, 4))
    assert sk.ca_state == const.CA_RECOVERY
    sent = 0
    for n in range(5, 15):
        sent += sum(s.segs for s in ack(sk, 0, (1, n)) if s.length)
    assert sent == 5
    in_flight = sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out
    assert in_flight >= sk.snd_ssthresh


def test_a_lost_retransmission_is_found_without_a_timeout() -> None:
    sk, host = flight(10)
    sendmsg.sendmsg(sk, b"n" * 30 * MSS)
    host.take()
    host.advance(40 * MS)
    assert 0 in numbers(ack(sk, 0, (1, 4)))
    new = ack(sk, 0, (1, 10))
    assert new, "new data must flow for RACK to have something sent later"
    host.advance(41 * MS)
    top = max((s.seq + s.length - 1) // MSS for s in new)
    sent = ack(sk, 0, (1, top))
    assert 0 in numbers(sent)
    assert (sk.mib.TCPLostRetransmit, sk.mib.TCPTimeouts) == (1, 0)


def test_without_sack_three_duplicate_acks_resend_the_head() -> None:
    sk, host = flight(10, sack=False)
    host.advance(40 * MS)
    assert numbers(ack(sk, 0)) == []
    assert numbers(ack(sk, 0)) == []
    assert numbers(ack(sk, 0)) == [0]
    assert (sk.ca_state, sk.mib.TCPRenoRecovery, sk.snd_ssthresh) == (const.CA_RECOVERY, 1, 5)


def test_without_sack_a_partial_ack_resends_the_next_hole() -> None:
    """RFC 6582: a partial ACK in recovery means that the next segment is lost too. Segments 0 and 4 of
    ten are lost: eight duplicate ACKs, then the retransmission of 0 fills up to 4."""
    sk, host = flight(10, sack=False)
    host.advance(40 * MS)
    for _ in range(8):
        ack(sk, 0)
    host.advance(40 * MS)
    assert numbers(ack(sk, 4)) == [4]
    assert sk.ca_state == const.CA_RECOVERY


def test_without_sack_recovery_is_held_while_snd_una_is_high_seq() -> None:
    sk, host = flight(10, sack=False)
    host.advance(40 * MS)
    for _ in range(3):
        ack(sk, 0)
    high = sk.high_seq
    host.advance(40 * MS)
    ack(sk, 10)
    assert sk.snd_una == high
    assert sk.ca_state == const.CA_RECOVERY


def test_a_timeout_marks_everything_lost_and_starts_from_one_packet() -> None:
    sk, host = flight(8, cwnd=8)
    sk.sysctl.tcp_early_retrans = 0
    sk.rto_ns = 240 * MS
    host.advance(400 * MS)
    sent = host.take()
    # a tail loss probe first (two round trips), then the RTO
    assert sk.ca_state == const.CA_LOSS
    assert sk.snd_cwnd == 1
    assert sk.snd_ssthresh == 4
    assert numbers(sent)[-1] == 0
    assert sk.lost_out == 8
    host.advance(40 * MS)
    assert numbers(ack(sk, 1)) == [1, 2], "no new data for F-RTO to send: slow start on what is lost"


def test_frto_finds_a_spurious_timeout_and_gives_everything_back() -> None:
    """RFC 5682 with SACK: the ACK of never-retransmitted data proves the originals were only late."""
    sk, host = flight(8, cwnd=8)
    sk.snd_ssthresh = 20
    host.advance(400 * MS)
    host.take()
    assert sk.ca_state == const.CA_LOSS
    assert sk.frto
    ack(sk, 8)
    assert sk.ca_state == const.CA_OPEN
    assert (sk.mib.TCPSpuriousRTOs, sk.mib.TCPLossUndo) == (1, 1)
    assert sk.snd_cwnd >= 8
    assert sk.snd_ssthresh == 20


def test_a_dsack_for_every_retransmission_undoes_the_reduction() -> None:
    sk, host = flight(10)
    host.advance(40 * MS)
    ack(sk, 0, (1, 4))
    assert sk.snd_ssthresh == 5
    host.advance(5 * MS)
    # the original arrives late, then the needless retransmission is reported by DSACK
    ack(sk, 4)
    host.advance(5 * MS)
    ack(sk, 10, (0, 1))
    assert sk.mib.TCPDSACKUndo + sk.mib.TCPFullUndo == 1
    assert sk.snd_cwnd >= 10
    assert sk.mib.TCPDSACKRecv == 1


def test_a_timestamp_echo_older_than_the_retransmission_undoes_at_once() -> None:
    """Eifel (RFC 3522): the ACK answers the original, so nothing was lost."""
    sk, host = flight(10, timestamps=True)
    before = (host.now_ns // MS) & 0xFFFFFFFF
    host.advance(40 * MS)
    peer = 1000
    ack(sk, 0, (1, 4), ts=(peer, before))
    assert sk.ca_state == const.CA_RECOVERY
    host.advance(5 * MS)
    ack(sk, 4, ts=(peer + 5, before))
    assert sk.ca_state in (const.CA_OPEN, const.CA_DISORDER)
    assert sk.snd_cwnd >= 10


def test_a_tail_loss_probe_goes_out_after_two_round_trips() -> None:
    sk, host = flight(5)
    start = host.now_ns
    host.advance(120 * MS)
    sent = host.take()
    assert numbers(sent) == [4], "nothing new to send: the last segment again"
    # 2*srtt + 2 ms = 82 ms, in ticks
    assert 80 * MS <= sent[0].t_ns - start <= 92 * MS
    assert (sk.mib.TCPLossProbes, sk.mib.TCPTimeouts) == (1, 0)


def test_the_probe_carries_new_data_when_there_is_some() -> None:
    sk, host = flight(5, cwnd=5)
    sendmsg.sendmsg(sk, b"n" * MSS)
    assert host.take() == []
    host.advance(120 * MS)
    assert numbers(host.take()) == [5]


def test_a_probe_that_repaired_a_loss_reduces_the_window_once() -> None:
    sk, host = flight(5)
    host.advance(40 * MS)
    ack(sk, 4)
    host.advance(300 * MS)
    assert numbers(host.take())[0] == 4
    assert sk.mib.TCPLossProbes == 1
    if sk.ca_state == const.CA_OPEN:
        sendmsg.sendmsg(sk, b"n" * MSS)
        ack(sk, 6)
        assert sk.mib.TCPLossProbeRecovery == 1


def test_ecn_echo_reduces_once_per_round_trip_and_answers_cwr() -> None:
    sk, host = flight(10)
    sk.ecn_flags = 1
    host.advance(40 * MS)
    host.take()
    input.receive(sk, segment(sk, const.ACK | const.ECE, ack=1 + 2 * MSS))
    assert (sk.ca_state, sk.snd_ssthresh) == (const.CA_CWR, 5)
    input.receive(sk, segment(sk, const.ACK | const.ECE, ack=1 + 4 * MSS))
    assert sk.snd_ssthresh == 5
    sendmsg.sendmsg(sk, b"n" * 20 * MSS)
    input.receive(sk, segment(sk, ack=1 + 9 * MSS))
    data = [s for s in host.take() if s.length]
    assert "W" in data[0].flags
    assert all("W" not in s.flags for s in data[1:])
    assert all(s.ecn == 2 for s in data), "new data is ECT(0)"


def test_retransmissions_are_not_ect() -> None:
    sk, host = flight(10)
    sk.ecn_flags = 1
    host.advance(40 * MS)
    sent = ack(sk, 0, (1, 4))
    assert [s.ecn for s in sent if s.length] == [0]


def test_a_super_segment_is_split_where_sack_says_it_is_torn() -> None:
    host = FakeHost()
    sk = established(host, mss=MSS, srtt_us=40_000)
    sk.snd_cwnd = 20
    sendmsg.sendmsg(sk, b"d" * 10 * MSS)
    assert [s.segs for s in host.take()] == [10]
    host.advance(40 * MS)
    sent = ack(sk, 2, (3, 10))
    assert numbers(sent) == [2]
    assert [s.length for s in sent] == [MSS]
    assert [(skb.seq - sk.iss - 1) // MSS for skb in sk.rtx_queue] == [2, 3]


def test_the_payload_resent_is_the_payload_written() -> None:
    host = FakeHost()
    sk = established(host, mss=MSS, srtt_us=40_000)
    sk.snd_cwnd = 20
    data = bytes(i * 7 % 251 for i in range(10 * MSS))
    sendmsg.sendmsg(sk, bytearray(data))
    host.take()
    host.advance(40 * MS)
    sent = ack(sk, 2, (3, 7), (8, 10))
    host.advance(40 * MS)
    sent += ack(sk, 2, (3, 7), (8, 10))
    for s in sent:
        assert s.payload == data[s.seq - 1 : s.seq - 1 + s.length]
    assert set(numbers(sent)) <= {2, 7}
