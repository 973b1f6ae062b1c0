"""The SACK scoreboard and its Reno stand-in (linux-tcp §8.4; RFC 2018, 2883, 6675)."""

from __future__ import annotations

import pytest

from pytcp.tcp import const, input, sack, sendmsg, xmit
from pytcp.tcp.sock import Sock

from .harness import MS, FakeHost, established, segment

MSS = 1000
BASE = 832


def flight(packets: int, *, bursts: int = 1, sack_ok: bool = True) -> tuple[Sock, FakeHost]:
    """`packets` segments of 1000 bytes in flight since 20 ms, `bursts` to an skb."""
    host = FakeHost()
    sk = established(host, mss=MSS, srtt_us=20_000, sack=sack_ok)
    sk.snd_cwnd = 1000
    sk.nonagle = const.NAGLE_OFF
    for _ in range(packets // bursts):
        sendmsg.sendmsg(sk, bytes(bursts * MSS), const.MSG_EOR)
        host.advance(10_000)
    assert (len(sk.rtx_queue), sk.packets_out) == (packets // bursts, packets)
    for skb in sk.rtx_queue:
        skb.eor = False
    host.advance(20 * MS)
    host.take()
    return sk, host


def ack(sk: Sock, upto: int, *blocks: tuple[float, float]) -> None:
    """ACK `upto` segments and SACK [a, b), in segments (fractions allowed)."""
    input.receive(sk, segment(sk, ack=1 + upto * MSS, sack=[(round(1 + a * MSS), round(1 + b * MSS)) for a, b in blocks]))


def board(sk: Sock) -> str:
    """One letter per segment of the retransmit queue: . in flight, S SACKed, L lost, R resent."""
    out = ""
    for skb in sk.rtx_queue:
        tag = "S" if skb.sacked & const.SACKED_ACKED else "R" if skb.sacked & const.SACKED_RETRANS else "L" if skb.sacked & const.LOST else "."
        out += tag * skb.pcount
    return out


# ---------------------------------------------------------------- blocks that can be true


@pytest.mark.parametrize(
    ("start", "end", "dsack", "valid"),
    [
        (3001, 4001, False, True),
        (9001, 10_001, False, True),  # up to snd_nxt
        (9001, 10_002, False, False),  # beyond
        (4001, 4001, False, False),  # empty
        (5001, 4001, False, False),  # reversed
        (2001, 3001, False, False),  # at snd_una: it would be acknowledged
        (1001, 2001, False, False),
        (1001, 2001, True, True),  # below snd_una: a duplicate
        (1001, 2501, True, False),  # a duplicate must lie below as a whole
        (1, 501, True, False),  # older than the episode that could be undone
        (1, 1501, True, True),  # reaching into it
    ],
)
def test_a_block_must_be_about_what_was_sent(start: int, end: int, dsack: bool, valid: bool) -> None:
    sk, _ = flight(10)
    ack(sk, 2)
    sk.undo_marker = sk.iss + 1001
    assert sack.block_valid(sk, dsack, sk.iss + start, sk.iss + end) is valid


def test_a_duplicate_without_an_episode_to_undo_is_no_use() -> None:
    sk, _ = flight(10)
    ack(sk, 2)
    assert not sack.block_valid(sk, True, sk.iss + 1001, sk.iss + 2001)


def test_a_straddling_duplicate_is_at_most_a_window_long() -> None:
    sk, _ = flight(10)
    ack(sk, 4)
    sk.undo_marker = sk.iss + 3001
    sk.max_window = 2000
    assert sack.block_valid(sk, True, sk.iss + 2001, sk.iss + 4001)
    assert not sack.block_valid(sk, True, sk.iss + 2000, sk.iss + 4001)


def test_impossible_blocks_are_counted_and_overtaken_ones_are_not() -> None:
    sk, _ = flight(10)
    ack(sk, 4)
    ack(sk, 4, (20, 21))
    assert sk.mib.TCPSACKDiscard == 1
    ack(sk, 3, (2, 3))
    assert (sk.mib.TCPSACKDiscard, sk.mib.TCPDSACKRecv) == (1, 1), "an old ACK's first block looks like a duplicate"


# ---------------------------------------------------------------- tagging


def test_covered_segments_are_tagged_and_leave_the_flight() -> None:
    sk, _ = flight(10)
    ack(sk, 0, (4, 6))
    assert board(sk) == "....SS...."
    assert (sk.sacked_out, sk.delivered) == (2, 2)
    assert sack.highest_sack_seq(sk) == sk.iss + 1 + 6 * MSS


def test_a_burst_is_torn_at_segment_boundaries_only() -> None:
    sk, _ = flight(10, bursts=10)
    ack(sk, 0, (2.5, 5.5))
    assert board(sk) == "...SS....."
    assert [skb.length for skb in sk.rtx_queue] == [3000, 2000, 5000]
    assert sk.wmem_queued == 10 * MSS + 3 * BASE


def test_less_than_a_segment_is_not_believed() -> None:
    sk, _ = flight(4)
    ack(sk, 0, (1.2, 1.9))
    assert board(sk) == "...."
    sk, _ = flight(4, bursts=4)
    ack(sk, 0, (0.5, 1.4))
    assert board(sk).count("S") == 0


def test_a_repeated_block_tags_nothing_again() -> None:
    sk, _ = flight(10)
    sk.sysctl.tcp_recovery = 4  # (no early recovery)
    for _ in range(3):
        ack(sk, 0, (4, 5))
    assert (sk.sacked_out, sk.delivered) == (1, 1)


def test_a_block_that_grows_to_both_sides_tags_the_new_parts() -> None:
    sk, _ = flight(10)
    ack(sk, 0, (4, 5))
    ack(sk, 0, (3, 7))
    assert board(sk)[3:7] == "SSSS"
    assert sk.sacked_out == 4


def test_blocks_around_known_ones_tag_what_lies_between() -> None:
    sk, _ = flight(12)
    ack(sk, 0, (2, 3), (5, 6), (8, 9))
    assert [i for i, c in enumerate(board(sk)) if c == "S"] == [2, 5, 8]
    ack(sk, 0, (1, 10))
    assert [i for i, c in enumerate(board(sk)) if c == "S"] == list(range(1, 10))


def test_overlapping_blocks_each_tag_the_segments_they_hold_whole() -> None:
    """The first block ends inside segment 5, which only the second one holds: it starts again at the highest SACK."""
    sk, _ = flight(10)
    sk.sysctl.tcp_recovery = 4
    ack(sk, 0, (4, 5.5), (5, 6))
    assert board(sk) == "....SS...."


def test_of_two_blocks_with_one_start_the_longer_tags() -> None:
    sk, _ = flight(10)
    sk.sysctl.tcp_recovery = 4
    ack(sk, 0, (4, 4.5), (4, 5))
    assert board(sk) == "....S....."


def test_a_hole_filled_below_the_last_segment_leaves_the_highest_sack_where_it_is() -> None:
    """FACK must not fall back: the next SACK below it would look like new information."""
    sk, _ = flight(10)
    sk.sysctl.tcp_recovery = 4
    ack(sk, 0, (9, 10))
    assert sack.highest_sack_seq(sk) == sk.snd_nxt
    ack(sk, 0, (3, 4), (9, 10))
    assert sack.highest_sack_seq(sk) == sk.snd_nxt
    assert sk.reord_seen == 1
    ack(sk, 0, (5, 6), (3, 4), (9, 10))
    assert (sk.sacked_out, sk.reord_seen) == (3, 2)


def test_an_old_ack_may_still_bring_sacks_but_delivers_nothing() -> None:
    """Measured: tcpi_delivered stays, the scoreboard learns."""
    sk, _ = flight(10)
    ack(sk, 2)
    ack(sk, 1, (5, 6))
    assert (board(sk), sk.sacked_out, sk.delivered) == ("...S....", 1, 2)


def test_a_fin_behind_sacked_data_stays_in_flight() -> None:
    """A receiver that has the data but not the FIN: the FIN is split off and can be lost by itself."""
    host = FakeHost()
    sk = established(host, mss=MSS, srtt_us=20_000)
    sk.nonagle = const.NAGLE_CORK
    sendmsg.sendmsg(sk, bytes(900))
    sk.snd_cwnd = 0
    sendmsg.sendmsg(sk, bytes(2100))
    sk.snd_cwnd = 10
    sk.state = const.FIN_WAIT1
    xmit.send_fin(sk)
    assert [s.flags for s in host.take()] == ["FP."]
    input.receive(sk, segment(sk, ack=1, sack=[(1001, 3001)]))
    assert [(skb.length, bool(skb.flags & const.FIN), bool(skb.sacked & const.SACKED_ACKED)) for skb in sk.rtx_queue] == [
        (1000, False, False),
        (2000, False, True),
        (0, True, False),
    ]
    assert sk.packets_out == 4


# ---------------------------------------------------------------- merging


def test_neighbouring_sacked_segments_merge_and_free_their_overhead() -> None:
    sk, _ = flight(10)
    sk.sysctl.tcp_recovery = 4
    ack(sk, 0, (4, 5))
    ack(sk, 0, (4, 6))
    ack(sk, 0, (4, 7))
    assert [skb.pcount for skb in sk.rtx_queue] == [1, 1, 1, 1, 3, 1, 1, 1]
    assert sk.wmem_queued == 10 * MSS + 8 * BASE
    assert (sk.mib.TCPSackMerged, sk.packets_out, sk.sacked_out) == (2, 10, 3)


def test_part_of_a_burst_is_shifted_without_a_new_skb() -> None:
    sk, _ = flight(8, bursts=4)
    sk.sysctl.tcp_recovery = 4
    ack(sk, 0, (3, 4))
    assert [skb.pcount for skb in sk.rtx_queue] == [3, 1, 4]
    ack(sk, 0, (3, 6))
    assert [(skb.pcount, skb.length, bool(skb.sacked)) for skb in sk.rtx_queue] == [(3, 3000, False), (3, 3000, True), (2, 2000, False)]
    assert sk.mib.TCPSackShifted == 1


def test_closing_a_hole_joins_both_sides() -> None:
    sk, _ = flight(10)
    sk.sysctl.tcp_recovery = 4
    ack(sk, 0, (3, 4), (5, 6))
    ack(sk, 0, (3, 6))
    assert [skb.pcount for skb in sk.rtx_queue] == [1, 1, 1, 3, 1, 1, 1, 1]


def test_the_end_of_a_record_keeps_segments_apart() -> None:
    sk, _ = flight(4)
    sk.sysctl.tcp_recovery = 4
    second = sk.rtx_queue.head
    assert second is not None
    assert second.next is not None
    second.next.eor = True
    ack(sk, 0, (1, 2))
    ack(sk, 0, (1, 3))
    assert [skb.pcount for skb in sk.rtx_queue] == [1, 1, 1, 1]
    assert (sk.sacked_out, sk.mib.TCPSackMerged) == (2, 0)


def test_merged_segments_are_acknowledged_piece_by_piece() -> None:
    sk, _ = flight(10)
    sk.sysctl.tcp_recovery = 4
    for right in (2, 3, 4, 5):
        ack(sk, 0, (1, right))
    ack(sk, 3)
    assert (sk.sacked_out, sk.packets_out, sk.delivered) == (2, 7, 5), "of 1..4 SACKed, 3 and 4 are left"


# ---------------------------------------------------------------- duplicates


def resent_head() -> tuple[Sock, FakeHost]:
    """Ten in flight, 1..3 SACKed: the head was resent, and the original may still be on its way."""
    sk, host = flight(10)
    ack(sk, 0, (1, 4))
    assert (sk.total_retrans, sk.undo_retrans, sk.ca_state) == (1, 1, const.CA_RECOVERY)
    return sk, host


def test_a_block_below_the_acknowledgement_is_a_duplicate() -> None:
    sk, _ = resent_head()
    ack(sk, 4)
    ack(sk, 4, (0, 1))
    assert (sk.mib.TCPDSACKRecv, sk.mib.TCPDSACKRecvSegs, sk.dsack_dups) == (1, 1, 1)
    assert sk.undo_retrans == 0
    assert sk.delivered == 5, "the copy was delivered, too"


def test_a_duplicate_that_comes_with_the_first_ack_of_its_data_counts_as_well() -> None:
    """The ACK between was lost: the DSACK names data this very ACK acknowledges."""
    sk, _ = resent_head()
    ack(sk, 4, (0, 1))
    assert (sk.mib.TCPDSACKRecv, sk.undo_retrans) == (1, 0)
    assert sk.mib.TCPDSACKUndo + sk.mib.TCPFullUndo + sk.mib.TCPPartialUndo == 1


def test_a_block_inside_the_second_is_a_duplicate_out_of_order() -> None:
    sk, _ = resent_head()
    ack(sk, 0, (2, 3), (1, 4))
    assert (sk.mib.TCPDSACKOfoRecv, sk.mib.TCPDSACKRecv) == (1, 0)


def test_more_duplicates_than_retransmissions_are_the_networks_own() -> None:
    sk, _ = flight(10)
    ack(sk, 4)
    ack(sk, 4, (0, 1))
    assert (sk.mib.TCPDSACKIgnoredDubious, sk.mib.TCPDSACKRecvSegs) == (1, 0)


def test_a_duplicate_longer_than_a_window_is_not_believed() -> None:
    sk, _ = resent_head()
    ack(sk, 4)
    sk.max_window = 500
    ack(sk, 4, (0, 1))
    assert (sk.mib.TCPDSACKIgnoredDubious, sk.dsack_dups) == (1, 0)


@pytest.mark.parametrize("reord_seen", [0, 1])
def test_a_duplicate_widens_racks_window_only_where_reordering_was_seen(reord_seen: int) -> None:
    sk, _ = resent_head()
    ack(sk, 4)
    sk.reord_seen = reord_seen
    ack(sk, 4, (0, 1))
    assert sk.rack_dsack_seen is bool(reord_seen)


# ---------------------------------------------------------------- reordering


def test_a_late_segment_raises_the_reordering_metric_to_its_distance() -> None:
    """Segment 2 is SACKed when 8 already was: 9 - 2 = 7 segments."""
    sk, _ = flight(12)
    sk.sysctl.tcp_recovery = 4
    ack(sk, 0, (8, 9))
    ack(sk, 0, (2, 3), (8, 9))
    assert (sk.reordering, sk.reord_seen, sk.mib.TCPSACKReorder) == (7, 1, 1)


def test_a_hole_filled_by_the_original_is_reordering_too() -> None:
    sk, _ = flight(12)
    sk.sysctl.tcp_recovery = 4
    ack(sk, 0, (6, 7))
    ack(sk, 7)
    assert (sk.reordering, sk.mib.TCPSACKReorder) == (7, 1)


def test_the_metric_is_bounded_and_small_displacements_only_count() -> None:
    sk, _ = flight(12)
    sk.sysctl.tcp_recovery = 4
    sk.sysctl.tcp_max_reordering = 5
    ack(sk, 0, (3, 4))
    ack(sk, 0, (2, 4))
    assert (sk.reordering, sk.reord_seen) == (3, 1)
    ack(sk, 0, (11, 12), (2, 4))
    ack(sk, 0, (4, 5), (11, 12))
    assert sk.reordering == 5


def test_retransmitted_segments_say_nothing_about_reordering() -> None:
    sk, _ = resent_head()
    ack(sk, 4)
    assert sk.reord_seen == 0


# ---------------------------------------------------------------- without SACK


def test_duplicate_acks_stand_for_delivered_packets() -> None:
    sk, _ = flight(10, sack_ok=False)
    sack.add_reno_sack(sk, 2, False)
    assert (sk.sacked_out, sk.delivered) == (2, 2)
    sack.add_reno_sack(sk, 0, False)
    assert sk.sacked_out == 2


@pytest.mark.parametrize(("acked", "left", "delivered"), [(1, 3, 1), (2, 2, 1), (4, 0, 1), (6, 0, 3)])
def test_an_acknowledgement_eats_the_duplicates_it_explains(acked: int, left: int, delivered: int) -> None:
    """One packet was the hole, the others were the duplicates' packets."""
    sk, _ = flight(10, sack_ok=False)
    sk.sacked_out = 3
    sk.packets_out -= acked
    sack.remove_reno_sacks(sk, acked)
    assert (sk.sacked_out, sk.delivered) == (left, delivered)


def test_more_duplicates_than_packets_mean_reordering() -> None:
    """5 in flight, at least one is missing: no more than 4 can have arrived."""
    sk, _ = flight(5, sack_ok=False)
    sack.add_reno_sack(sk, 7, False)
    assert (sk.sacked_out, sk.reordering, sk.mib.TCPRenoReorder) == (4, 5, 1)


# ---------------------------------------------------------------- attacks


def test_a_peer_cannot_tear_the_queue_apart_without_bound() -> None:
    """CVE-2019-11478: where half of the queue's memory is more than sndbuf and two 64 KiB skbs, only its first
    and last skb are split. 400 segments in ten skbs are 408,320 bytes, the bound 2·(72,400 + 132,224) = 409,248."""
    sk, _ = flight(400, bursts=40)
    sk.sysctl.tcp_recovery = 4
    sk.sndbuf = 72_400
    ack(sk, 0, (202, 203))
    assert (len(sk.rtx_queue), sk.sacked_out, sk.mib.TCPWqueueTooBig) == (12, 1, 0), "a skb becomes three"
    ack(sk, 0, (242, 243), (202, 203))
    assert (len(sk.rtx_queue), sk.sacked_out, sk.mib.TCPWqueueTooBig) == (12, 1, 1)
    ack(sk, 0, (398, 399))
    assert (len(sk.rtx_queue), sk.sacked_out, sk.mib.TCPWqueueTooBig) == (14, 2, 1)
