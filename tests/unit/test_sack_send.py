"""SACK blocks we report, D-SACK, and the compression of duplicate ACKs (RFC 2018, RFC 2883, linux-tcp §14)."""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.tcp import const, input, recv, sack_send
from pytcp.tcp.sock import NEVER, Sock

from .harness import MS, US, FakeHost, Sent, established, segment
from .receive_replay import cases, host_of, replay

# s05: a stall of the recording machine delayed one segment by 4 ms, which its receiver RTT shows
IGNORED = frozenset({"rcv_rtt"})


@pytest.mark.parametrize("name", cases("s0[45]*"))
def test_blocks_and_compressed_acks_are_the_kernels(name: str) -> None:
    run = replay(name, IGNORED)
    assert run.differences == []
    assert run.compared > 5


def receiver(**fields: Any) -> tuple[Sock, FakeHost]:
    """Established, nothing quick about its ACKs."""
    host = FakeHost()
    sk = established(host, **{"rcv_wnd": 60000, "ato_jiffies": 10, "lrcvtime_ns": host.now_ns - MS, **fields})
    sk.rcv_wup = sk.rcv_nxt
    # a window that grows would grant quick ACKs
    sk.rcv_ssthresh = sk.window_clamp
    sk.sysctl.clamp_follows_ratio = 0
    return sk, host


def hear(sk: Sock, seq: int, end: int) -> list[Sent]:
    """The peer's bytes [seq, end), relative; what we send at once."""
    input.receive(sk, segment(sk, seq=seq, payload=bytes(end - seq)))
    return host_of(sk).take()


def blocks(sk: Sock) -> list[tuple[int, int]]:
    return [(left - sk.irs, right - sk.irs) for left, right in sk.selective_acks]


# ---------------------------------------------------------------- blocks


def test_the_newest_block_comes_first_and_at_most_four_are_kept() -> None:
    sk, _ = receiver()
    for seq in (2001, 4001, 6001, 8001, 10001):
        hear(sk, seq, seq + 100)
    assert blocks(sk) == [(10001, 10101), (8001, 8101), (6001, 6101), (4001, 4101)]


def test_a_block_that_grows_moves_to_the_front() -> None:
    sk, _ = receiver()
    for seq in (2001, 4001, 6001):
        hear(sk, seq, seq + 100)
    hear(sk, 2101, 2201)
    assert blocks(sk) == [(2001, 2201), (6001, 6101), (4001, 4101)]


def test_a_block_that_reaches_another_swallows_it() -> None:
    sk, _ = receiver()
    for seq in (2001, 2201, 6001):
        hear(sk, seq, seq + 100)
    hear(sk, 2101, 2201)
    assert blocks(sk) == [(2001, 2301), (6001, 6101)]


def test_blocks_below_the_acknowledged_data_are_forgotten() -> None:
    sk, _ = receiver()
    hear(sk, 101, 201)
    hear(sk, 301, 401)
    hear(sk, 1, 101)
    assert blocks(sk) == [(301, 401)]
    hear(sk, 201, 301)
    assert blocks(sk) == []


def test_without_sack_no_blocks_are_kept() -> None:
    sk, _ = receiver(sack_ok=False)
    assert len(hear(sk, 1001, 1101)) == 1
    assert blocks(sk) == []


# ---------------------------------------------------------------- duplicates


def test_old_data_is_reported_once_in_front_of_the_blocks() -> None:
    sk, _ = receiver()
    hear(sk, 1, 501)
    hear(sk, 1001, 1101)
    (sent,) = hear(sk, 101, 301)
    # NOP NOP SACK with two blocks: 101..301, then 1001..1101
    assert len(sent.options) == 20
    left = int.from_bytes(sent.options[4:8], "big")
    assert (left - sk.irs) & 0xFFFFFFFF == 101
    assert sk.duplicate_sack is None
    assert (sk.mib.TCPDSACKOldSent, sk.mib.DelayedACKLost) == (1, 1)


def test_a_repetition_within_the_out_of_order_data_is_reported_too() -> None:
    sk, _ = receiver()
    hear(sk, 1001, 1201)
    (sent,) = hear(sk, 1051, 1101)
    assert len(sent.options) == 20
    assert (sk.mib.TCPDSACKOfoSent, sk.mib.TCPOFOMerge) == (1, 1)


def test_tcp_dsack_0_reports_no_duplicates() -> None:
    sk, _ = receiver()
    sk.sysctl.tcp_dsack = 0
    hear(sk, 1, 501)
    (sent,) = hear(sk, 101, 301)
    assert sent.options == b""
    assert sk.mib.TCPDSACKOldSent == 0


def test_what_a_filled_hole_had_repeated_is_reported() -> None:
    """The kernel reports the repeated part only, not all of what was in the queue (recorded)."""
    sk, host = receiver()
    hear(sk, 101, 151)
    hear(sk, 301, 601)
    input.receive(sk, segment(sk, seq=1, payload=bytes(400)))
    (sent,) = host.take()
    edges = [(int.from_bytes(sent.options[at : at + 4], "big") - sk.irs) & 0xFFFFFFFF for at in (4, 8)]
    assert sent.ack == 601
    assert edges == [101, 151]


# ---------------------------------------------------------------- compression


def test_the_first_three_duplicate_acks_go_at_once_the_next_wait_for_a_timer() -> None:
    sk, host = receiver(srtt_us=0)
    sk.srtt_us = sk.rcv_rtt_us = 8000 * 8
    assert [len(hear(sk, 1001 + 100 * i, 1101 + 100 * i)) for i in range(6)] == [1, 1, 1, 0, 0, 0]
    start = host.now_ns
    host.advance(2 * MS)
    (sent,) = host.take()
    # 5 % of 8 ms, and 100 us slack (recorded: 515 us)
    assert sent.t_ns - start == 500 * US
    assert sk.mib.TCPAckCompressed == 2


def test_the_compression_timer_is_capped_by_tcp_comp_sack_delay_ns() -> None:
    sk, host = receiver()
    sk.rcv_rtt_us = 100_000 * 8
    for i in range(4):
        hear(sk, 1001 + 100 * i, 1101 + 100 * i)
    assert sk.compressed_ack_deadline == host.now_ns + 1_000_000 + 100_000


def test_the_smaller_of_receivers_and_senders_rtt_counts() -> None:
    sk, host = receiver()
    sk.rcv_rtt_us, sk.srtt_us = 10_000 * 8, 4_000 * 8
    for i in range(4):
        hear(sk, 1001 + 100 * i, 1101 + 100 * i)
    assert sk.compressed_ack_deadline == host.now_ns + 200_000 + 100_000


def test_after_tcp_comp_sack_nr_acks_one_is_sent() -> None:
    sk, host = receiver()
    sk.sysctl.tcp_comp_sack_nr = 5
    sk.rcv_rtt_us = 10_000 * 8
    assert [len(hear(sk, 1001 + 10 * i, 1011 + 10 * i)) for i in range(9)] == [1, 1, 1, 0, 0, 0, 0, 0, 1]
    assert sk.mib.TCPAckCompressed == 5
    assert sk.compressed_ack_deadline == NEVER
    host.advance(2 * MS)
    assert host.take() == []


def test_tcp_comp_sack_nr_0_switches_compression_off() -> None:
    sk, _ = receiver()
    sk.sysctl.tcp_comp_sack_nr = 0
    assert [len(hear(sk, 1001 + 10 * i, 1011 + 10 * i)) for i in range(6)] == [1] * 6


def test_a_third_block_sends_what_was_held_back_first() -> None:
    sk, _ = receiver()
    sk.rcv_rtt_us = 10_000 * 8
    for i in range(4):
        hear(sk, 1001 + 100 * i, 1101 + 100 * i)
    hear(sk, 3001, 3101)
    (flushed,) = hear(sk, 5001, 5101)
    assert len(flushed.options) == 4 + 2 * 8, "the third block was not yet known"


def test_each_new_hole_gives_three_more_acks_at_once() -> None:
    sk, host = receiver()
    sk.rcv_rtt_us = 10_000 * 8
    for i in range(5):
        hear(sk, 1001 + 100 * i, 1101 + 100 * i)
    hear(sk, 1, 1001)
    recv.recv(sk, 5000)
    host.take()
    assert [len(hear(sk, 2001 + 100 * i, 2101 + 100 * i)) for i in range(4)] == [1, 1, 1, 0]


def test_quick_acks_are_not_compressed() -> None:
    sk, _ = receiver(quick=6)
    assert [len(hear(sk, 1001 + 10 * i, 1011 + 10 * i)) for i in range(10)] == [1] * 9 + [0]


def test_closing_the_hole_is_acknowledged_at_once_and_covers_the_held_back_acks() -> None:
    sk, host = receiver()
    sk.rcv_rtt_us = 10_000 * 8
    for i in range(5):
        hear(sk, 1001 + 100 * i, 1101 + 100 * i)
    (sent,) = hear(sk, 1, 1001)
    assert (sent.ack, sent.options) == (1501, b"")
    assert (sk.compressed_ack, sk.compressed_ack_deadline) == (0, NEVER)
    host.advance(3 * MS)
    assert host.take() == []


def test_flush_without_anything_held_back_sends_nothing() -> None:
    sk, host = receiver(state=const.ESTABLISHED)
    sack_send.flush(sk)
    sack_send.compressed_timer(sk)
    assert host.take() == []
