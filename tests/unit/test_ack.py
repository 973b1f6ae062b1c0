"""What an incoming acknowledgement means to the sender (linux-tcp §8.1; RFC 9293 §3.10.7.4, RFC 5961)."""

from __future__ import annotations

import pytest

from pytcp.tcp import const, input, sendmsg
from pytcp.tcp.sock import Sock

from .harness import MS, FakeHost, established, segment

MSS = 1000


def flight(packets: int, *, single: bool = True, sack: bool = True, timestamps: bool = False) -> tuple[Sock, FakeHost]:
    """`packets` segments in flight, as single segments or one burst, sent 20 ms ago."""
    host = FakeHost()
    sk = established(host, mss=MSS, srtt_us=20_000, sack=sack, timestamps=timestamps)
    sk.snd_cwnd = 100
    sk.nonagle = const.NAGLE_OFF
    if single:
        for _ in range(packets):
            sendmsg.sendmsg(sk, bytes(MSS), const.MSG_EOR)
    else:
        sendmsg.sendmsg(sk, bytes(packets * MSS))
    host.advance(20 * MS)
    host.take()
    return sk, host


def una(sk: Sock) -> int:
    return sk.snd_una - sk.iss - 1


# ---------------------------------------------------------------- is it acceptable


def test_an_ack_beyond_what_was_sent_is_challenged_and_changes_nothing() -> None:
    sk, host = flight(3)
    input.receive(sk, segment(sk, ack=3002, window=5))
    assert (una(sk), sk.snd_wnd) == (0, 1 << 20)
    assert [(s.flags, s.seq) for s in host.take()] == [(".", 3001)]
    assert sk.mib.TCPChallengeACK == 1


def test_an_old_ack_is_ignored_silently_within_a_window() -> None:
    sk, host = flight(3)
    input.receive(sk, segment(sk, ack=2001))
    host.take()
    input.receive(sk, segment(sk, ack=1001, window=5000, seq=1))
    assert (una(sk), sk.snd_wnd, host.take()) == (2000, 1 << 20, [])


def test_an_ack_older_than_anything_we_sent_is_blind_injection() -> None:
    """RFC 5961 §5.2: below snd_una by more than min(max_window, bytes acknowledged so far)."""
    sk, host = flight(3)
    input.receive(sk, segment(sk, ack=2001))
    host.take()
    assert sk.bytes_acked == 2000
    input.receive(sk, segment(sk, ack=0))
    assert [s.flags for s in host.take()] == ["."]
    assert sk.mib.TCPChallengeACK == 1


def test_an_acknowledgement_frees_what_it_covers() -> None:
    sk, _ = flight(5)
    input.receive(sk, segment(sk, ack=3001))
    assert (una(sk), sk.packets_out, len(sk.rtx_queue), sk.bytes_acked) == (3000, 2, 2, 3000)
    assert sk.wmem_queued == 2 * (832 + MSS)
    assert (sk.delivered, sk.mib.TCPDelivered) == (3, 3)


def test_part_of_a_burst_is_freed_by_whole_segments() -> None:
    sk, _ = flight(5, single=False)
    input.receive(sk, segment(sk, ack=2501))
    head = sk.rtx_queue.head
    assert head is not None
    assert (sk.packets_out, head.pcount, head.seq - sk.iss) == (3, 3, 2501), "2.5 segments: two are gone, the third is shorter"
    assert head.length == 2500
    assert sk.delivered == 2


def test_half_a_segment_is_acknowledged_but_not_freed() -> None:
    sk, _ = flight(3)
    input.receive(sk, segment(sk, ack=501))
    assert (una(sk), sk.packets_out, sk.delivered) == (500, 3, 0)


def test_a_burst_down_to_a_small_rest_is_a_single_segment() -> None:
    sk, _ = flight(2, single=False)
    input.receive(sk, segment(sk, ack=1501))
    head = sk.rtx_queue.head
    assert head is not None
    assert (head.pcount, head.gso_size, head.length, sk.packets_out) == (1, 0, 500, 1)


# ---------------------------------------------------------------- the window


@pytest.mark.parametrize(
    ("seq", "ack", "window", "taken"),
    [
        (1, 0, 5120, False),  # older segment, nothing new acknowledged
        (601, 0, 5120, True),  # newer segment
        (601, 1000, 5120, True),
        (1, 1000, 5120, True),  # acknowledges something new
    ],
)
def test_the_window_is_taken_from_newer_segments(seq: int, ack: int, window: int, taken: bool) -> None:
    sk, _ = flight(3)
    sk.snd_wl1 = sk.irs + 501  # from a segment that arrived early
    sk.pred = False
    input.receive(sk, segment(sk, seq=seq, ack=1 + ack, window=window))
    assert sk.snd_wnd == (window if taken else 1 << 20)


def test_from_an_equal_segment_a_larger_window_or_none_is_taken() -> None:
    """RFC 9293 says newer or equal; Linux takes an equal one only if it enlarges the window, or closes it."""
    sk, _ = flight(3)
    sk.pred = False
    sk.snd_wl1 = sk.rcv_nxt
    for window, now in ((1 << 19, 1 << 20), (1 << 21, 1 << 21), (0, 0)):
        input.receive(sk, segment(sk, ack=1, window=window))
        assert sk.snd_wnd == now
    assert sk.max_window == 1 << 21


def test_expected_acks_take_the_short_way() -> None:
    sk, _ = flight(3)
    sk.pred = True
    input.receive(sk, segment(sk, ack=1001))
    assert (sk.mib.TCPHPAcks, sk.mib.TCPPureAcks, una(sk)) == (1, 0, 1000)
    input.receive(sk, segment(sk, ack=1001))
    assert (sk.mib.TCPHPAcks, sk.mib.TCPPureAcks) == (1, 1), "nothing new: a duplicate"


# ---------------------------------------------------------------- duplicates


@pytest.mark.parametrize(
    ("payload", "window", "duplicate"),
    [
        (b"", 1 << 20, True),
        (b"x", 1 << 20, False),  # with data
        (b"", 1 << 21, False),  # a window update
    ],
)
def test_a_duplicate_ack_brings_nothing_else(payload: bytes, window: int, duplicate: bool) -> None:
    sk, _ = flight(5, sack=False)
    sk.snd_wl1 = sk.rcv_nxt
    input.receive(sk, segment(sk, ack=1, payload=payload, window=window))
    assert sk.sacked_out == (1 if duplicate else 0)


def test_merged_duplicate_acks_count_each() -> None:
    sk, _ = flight(10, sack=False)
    sk.snd_wl1 = sk.rcv_nxt
    input.receive(sk, segment(sk, ack=1, nsegs=2))
    assert (sk.sacked_out, sk.ca_state) == (2, const.CA_DISORDER)


def test_with_nothing_in_flight_there_are_no_duplicates() -> None:
    sk, _ = flight(1)
    input.receive(sk, segment(sk, ack=1001))
    for _ in range(5):
        input.receive(sk, segment(sk, ack=1001))
    assert sk.ca_state == const.CA_OPEN


# ---------------------------------------------------------------- timer, RTT, growth


def test_progress_restarts_the_timer_and_the_last_ack_stops_it() -> None:
    sk, host = flight(3, sack=False)
    input.receive(sk, segment(sk, ack=1001))
    assert (sk.pending, sk.rtx_deadline) == (const.PENDING_RETRANS, host.now_ns + sk.rto_ns)
    input.receive(sk, segment(sk, ack=3001))
    assert sk.pending == const.PENDING_NONE


def test_progress_ends_a_backoff_count() -> None:
    sk, host = flight(3, sack=False)
    host.advance(300 * MS)
    assert (sk.retransmits, sk.backoff) == (1, 1)
    input.receive(sk, segment(sk, ack=1001))
    assert (sk.retransmits, sk.backoff) == (0, 1), "the RTO stays backed off until a valid sample (Karn)"


def test_the_rtt_is_that_of_the_first_segment_acknowledged() -> None:
    """seq_rtt from the oldest, the congestion control's from the newest."""
    host = FakeHost()
    sk = established(host, mss=MSS)
    sk.nonagle = const.NAGLE_OFF
    sendmsg.sendmsg(sk, bytes(MSS))
    host.advance(10 * MS)
    sendmsg.sendmsg(sk, bytes(MSS))
    host.advance(30 * MS)
    input.receive(sk, segment(sk))
    assert (sk.srtt_us >> 3, sk.min_rtt_us) == (40_000, 30_000)


def test_an_ack_that_may_have_been_delayed_does_not_raise_the_minimum() -> None:
    """One small segment alone: the peer may have waited for its delayed-ACK timer."""
    host = FakeHost()
    host.sysctl.tcp_early_retrans = 0
    sk = established(host, mss=MSS)
    sendmsg.sendmsg(sk, bytes(MSS))
    host.advance(10 * MS)
    input.receive(sk, segment(sk))
    assert sk.min_rtt_us == 10_000
    host.advance(301_000 * MS)
    sendmsg.sendmsg(sk, bytes(100))
    host.advance(50 * MS)
    input.receive(sk, segment(sk))
    assert sk.min_rtt_us == 10_000, "although the window of 300 s is over"
    sendmsg.sendmsg(sk, bytes(2 * MSS))
    host.advance(50 * MS)
    input.receive(sk, segment(sk))
    assert sk.min_rtt_us == 50_000


def test_retransmitted_data_gives_no_sample_without_timestamps_and_one_with() -> None:
    for timestamps, srtt in ((False, 20_000), (True, 20_000 + (60_000 - 20_000) // 8)):
        sk, host = flight(1, timestamps=timestamps, sack=False)
        host.advance(300 * MS)
        assert [s.seq for s in host.take()] == [1]
        resent = sk.rtx_queue.head
        assert resent is not None
        host.advance_to(resent.tx_ns + 60 * MS)
        input.receive(sk, segment(sk, ts=(1, resent.tx_ns // MS) if timestamps else None))
        assert sk.srtt_us >> 3 == srtt


def test_the_window_grows_by_what_is_newly_delivered() -> None:
    sk, _host = flight(10)
    sk.snd_cwnd = 10
    sk.is_cwnd_limited = True
    input.receive(sk, segment(sk, ack=4001))
    assert sk.snd_cwnd == 14, "slow start counts packets, not ACKs"


def test_sacked_data_alone_grows_nothing_unless_the_network_reorders() -> None:
    for reordering, cwnd in ((3, 10), (6, 11)):
        sk, _ = flight(10)
        sk.snd_cwnd, sk.reordering, sk.is_cwnd_limited = 10, reordering, True
        input.receive(sk, segment(sk, ack=1, sack=[(1001, 2001)]))
        assert sk.snd_cwnd == cwnd


def test_acknowledging_the_urgent_byte_ends_urgent_mode() -> None:
    host = FakeHost()
    sk = established(host, mss=MSS)
    sendmsg.sendmsg(sk, b"ab!", const.MSG_OOB)
    assert sk.snd_up > sk.snd_una
    input.receive(sk, segment(sk))
    assert sk.snd_up == sk.snd_una


def test_new_room_in_the_window_is_used_at_once() -> None:
    sk, host = flight(5)
    sk.snd_cwnd = 5
    sendmsg.sendmsg(sk, bytes(3 * MSS))
    assert host.take() == []
    input.receive(sk, segment(sk, ack=2001))
    assert sum(s.length for s in host.take()) == 3 * MSS
