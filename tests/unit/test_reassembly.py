"""From segments to a stream: order, overlap, holes, FIN (RFC 9293 §3.10.7.4, linux-tcp §7.6)."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytcp.link.frame import RxBuf
from pytcp.tcp import const, input, reassembly, recv
from pytcp.tcp.sock import Sock

from .harness import MS, FakeHost, Sent, established, segment
from .receive_replay import cases, host_of, replay


@pytest.mark.parametrize("name", cases("random_ofo*", "random_mix*"))
def test_holes_overlaps_and_repetitions_are_answered_as_the_kernel_answers_them(name: str) -> None:
    run = replay(name)
    assert run.differences == []
    assert run.compared > 10


STREAM = bytes(i * 7 % 251 for i in range(20000))


def receiver(**fields: Any) -> tuple[Sock, FakeHost]:
    host = FakeHost()
    sk = established(host, **{"rcv_wnd": 60000, "ato_jiffies": 10, "lrcvtime_ns": host.now_ns - MS, **fields})
    sk.rcv_wup = sk.rcv_nxt
    sk.rcv_ssthresh = sk.window_clamp
    return sk, host


def hear(sk: Sock, seq: int, end: int, flags: int = const.ACK) -> list[Sent]:
    """The peer's bytes [seq, end) of STREAM (number 1 is its first); what we send at once."""
    input.receive(sk, segment(sk, flags, seq=seq, payload=STREAM[seq - 1 : end - 1]))
    return host_of(sk).take()


def read(sk: Sock) -> bytes:
    try:
        return recv.recv(sk, 1 << 20)
    except BlockingIOError:
        return b""


# ---------------------------------------------------------------- in order


def test_data_crosses_the_wrap_of_the_sequence_space() -> None:
    sk, _ = receiver()
    for seq in range(1, 4001, 1000):
        hear(sk, seq, seq + 1000)
    assert sk.rcv_nxt > 1 << 33
    assert read(sk) == STREAM[:4000]
    assert sk.bytes_received == 4000


def test_the_new_part_of_a_segment_that_begins_with_old_data_is_taken() -> None:
    sk, _ = receiver()
    hear(sk, 1, 501)
    hear(sk, 301, 901)
    assert read(sk) == STREAM[:900]
    assert sk.bytes_received == 900
    assert sk.mib.TCPDSACKOldSent == 1


def test_old_data_is_dropped_and_answered_at_once() -> None:
    sk, host = receiver()
    hear(sk, 1, 501)
    read(sk)
    host.take()
    (sent,) = hear(sk, 1, 501)
    assert sent.ack == 501
    assert read(sk) == b""


def test_data_beyond_the_window_is_dropped_and_answered_at_once() -> None:
    sk, host = receiver()
    input.receive(sk, segment(sk, seq=60002, payload=b"x"))
    (sent,) = host.take()
    assert sent.ack == 1
    assert not sk.ofo_queue
    assert sk.mib.BeyondWindow == 1


def test_a_segment_that_ends_beyond_the_window_is_taken_whole_while_nothing_waits_to_be_read() -> None:
    """m03: and dropped when something does."""
    sk, _ = receiver(rcv_wnd=1000)
    hear(sk, 1, 1201)
    assert sk.rcv_nxt - sk.irs == 1201
    sk.rcv_wnd = 500
    sk.rcv_wup = sk.rcv_nxt
    hear(sk, 1201, 1801)
    assert sk.rcv_nxt - sk.irs == 1201
    assert sk.mib.BeyondWindow == 1


def test_data_at_a_closed_window_is_dropped_but_a_bare_fin_gets_in() -> None:
    """z02."""
    sk, host = receiver(rcv_wnd=0, rcvbuf=2304)
    (sent,) = hear(sk, 1, 11)
    assert (sent.ack, sk.mib.TCPZeroWindowDrop) == (1, 1)
    hear(sk, 1, 1, const.ACK | const.FIN)
    assert sk.state == const.CLOSE_WAIT
    host.advance(50 * MS)
    assert host.take()[0].ack == 2


# ---------------------------------------------------------------- out of order


def test_a_filled_hole_delivers_everything_and_is_acknowledged_at_once() -> None:
    sk, _ = receiver()
    hear(sk, 501, 1001)
    hear(sk, 1501, 2001)
    assert read(sk) == b""
    hear(sk, 1, 501)
    assert read(sk) == STREAM[:1000]
    (sent,) = hear(sk, 1001, 1501)
    assert sent.ack == 2001
    assert read(sk) == STREAM[1000:2000]
    assert (sk.mib.TCPOFOQueue, sk.rcv_ooopack) == (2, 2)


def test_a_segment_that_lies_within_what_is_queued_is_dropped() -> None:
    sk, _ = receiver()
    hear(sk, 501, 1001)
    memory = sk.rmem_alloc
    hear(sk, 601, 701)
    assert (sk.mib.TCPOFOMerge, sk.rmem_alloc) == (1, memory)


def test_a_segment_that_covers_what_is_queued_replaces_it() -> None:
    sk, _ = receiver()
    hear(sk, 501, 601)
    hear(sk, 701, 801)
    hear(sk, 901, 1201)
    hear(sk, 451, 1001)
    assert [(c.seq - sk.irs, c.end_seq - sk.irs) for c in sk.ofo_queue] == [(451, 1001), (901, 1201)]
    assert sk.mib.TCPOFOMerge == 2
    hear(sk, 1, 451)
    assert read(sk) == STREAM[:1200]


def test_adjoining_segments_are_merged_where_they_wait() -> None:
    sk, _ = receiver()
    hear(sk, 501, 601)
    hear(sk, 601, 701)
    assert len(sk.ofo_queue) == 1
    assert sk.mib.TCPRcvCoalesce == 1


def test_a_repetition_that_adjoins_a_chunk_higher_in_the_tree_is_taken_in_by_it() -> None:
    """Recorded: of 1-101, 301-401, 201-301 (below the second) the last came to the top of the tree; another
    301-401 meets it first, adjoins it, and is neither dropped nor reported."""
    sk, _ = receiver()
    hear(sk, 51, 101)
    hear(sk, 301, 401)
    hear(sk, 201, 301)
    hear(sk, 301, 401)
    assert [(c.seq - sk.irs, c.end_seq - sk.irs) for c in sk.ofo_queue] == [(51, 101), (201, 401), (301, 401)]
    assert (sk.mib.TCPOFOMerge, sk.mib.TCPDSACKOfoSent) == (0, 0)
    hear(sk, 1, 51)
    hear(sk, 101, 201)
    assert read(sk) == STREAM[:400]
    assert sk.rmem_alloc == 0


def test_out_of_order_data_switches_header_prediction_off_until_the_hole_is_filled() -> None:
    sk, _ = receiver()
    hear(sk, 1, 101)
    assert bool(sk.pred)
    hear(sk, 201, 301)
    assert not bool(sk.pred)
    hear(sk, 101, 201)
    assert bool(sk.pred)


def test_without_sack_the_window_does_not_grow_on_duplicate_acks() -> None:
    for sack, grows in ((True, True), (False, False)):
        sk, _ = receiver(sack_ok=sack, scaling_ratio=170)
        sk.rcv_ssthresh = 20000
        hear(sk, 1001, 2001)
        assert (sk.rcv_ssthresh > 20000) is grows


def test_a_fin_in_the_out_of_order_queue_counts_when_its_turn_comes() -> None:
    sk, _ = receiver()
    hear(sk, 101, 201, const.ACK | const.FIN)
    assert sk.state == const.ESTABLISHED
    hear(sk, 1, 101)
    assert sk.state == const.CLOSE_WAIT
    assert read(sk) == STREAM[:200]
    assert recv.recv(sk, 10) == b""


def test_nothing_that_lies_behind_a_fin_survives_it() -> None:
    sk, _ = receiver()
    hear(sk, 301, 401)
    hear(sk, 1, 101, const.ACK | const.FIN)
    assert not sk.ofo_queue
    assert not sk.selective_acks
    assert read(sk) == STREAM[:100]
    assert sk.rmem_alloc == 0


def test_orphans_and_children_not_yet_accepted_do_not_grow_their_buffer_for_a_hole() -> None:
    for parent, flags, grows in ((None, 0, True), (established(), 0, False), (None, const.SF_DEAD, False)):
        sk, _ = receiver(parent=parent, sock_flags=flags)
        sk.rcvq_space = 40000
        hear(sk, 1001, 2001)
        # 2 * 40000 + the hole's 2000 bytes, at half a byte of window per byte of buffer
        assert (sk.rcvbuf == (80000 + 2000) * 2) is grows


# ---------------------------------------------------------------- IPv6 flow labels


def labelled(sk: Sock, label: int) -> list[Sent]:
    """The peer's first 100 bytes (again) under this flow label."""
    seg = segment(sk, seq=1, payload=STREAM[:100])
    seg.family = 6
    seg.data = memoryview(bytes(14) + (6 << 28 | label).to_bytes(4, "big") + bytes(56))
    seg.l4_off = 54
    input.receive(sk, seg)
    return host_of(sk).take()


def test_old_data_under_a_new_flow_label_makes_us_change_ours_too() -> None:
    """linux-sockets v06, v15: labels 17, 17, 34, 34, 51 change ours twice."""
    sk, _ = receiver()
    changes = []
    for label in (17, 17, 34, 34, 51):
        labelled(sk, label)
        changes.append(sk.mib.TcpDuplicateDataRehash)
    assert changes == [0, 0, 1, 1, 2]


def test_after_an_rto_of_our_own_the_label_has_changed_already() -> None:
    sk, _ = receiver(ca_state=const.CA_LOSS)
    for label in (17, 34):
        labelled(sk, label)
    assert sk.mib.TcpDuplicateDataRehash == 0


# ---------------------------------------------------------------- device buffers


def test_large_payloads_stay_in_the_devices_buffer_until_read_small_ones_are_copied() -> None:
    pool: list[RxBuf] = []
    buf = RxBuf(65536, pool)
    sk, _ = receiver()
    seg = segment(sk, payload=STREAM[:1000])
    seg.payload, seg.rx = buf.view[:1000], buf
    input.receive(sk, seg)
    assert buf.taken == 0
    # a quarter of the buffer: worth keeping
    large = segment(sk, payload=STREAM[:16384], gso_size=1024, nsegs=16)
    buf.view[2000:18384] = STREAM[:16384]
    large.payload, large.rx, large.truesize = buf.view[2000:18384], buf, 832 + 16384
    input.receive(sk, large)
    assert (buf.taken, pool) == (1, [])
    assert recv.recv(sk, 5000)[1000:] == STREAM[:4000]
    assert buf.taken == 1
    assert recv.recv(sk, 50000) == STREAM[4000:16384]
    assert (buf.taken, pool) == (0, [buf])


def test_purging_gives_buffers_and_memory_back() -> None:
    pool: list[RxBuf] = []
    sk, _ = receiver()
    for seq in (1, 30001):
        buf = RxBuf(65536, pool)
        seg = segment(sk, seq=seq, payload=STREAM[:18000], gso_size=1000, nsegs=18)
        seg.payload, seg.rx, seg.truesize = buf.view[:18000], buf, 832 + 20480
        input.receive(sk, seg)
    assert (len(pool), sk.rmem_alloc) == (0, 2 * 21312)
    recv.purge(sk)
    assert len(pool) == 2
    assert sk.rmem_alloc == 0


# ---------------------------------------------------------------- any order


@settings(max_examples=150)
@given(
    pieces=st.lists(st.tuples(st.integers(0, 1999), st.integers(1, 700)), min_size=1, max_size=40),
    reads=st.lists(st.integers(1, 900), max_size=10),
    sack=st.booleans(),
)
def test_whatever_the_order_and_overlap_the_stream_comes_out_whole(pieces: list[tuple[int, int]], reads: list[int], sack: bool) -> None:
    sk, _ = receiver(sack_ok=sack)
    total = 2000
    got = b""
    todo = list(reads)
    # the random pieces first, then the whole stream in order: everything must have arrived exactly once
    for seq, size in [*pieces, *((at, 500) for at in range(0, total, 500))]:
        hear(sk, seq + 1, min(seq + size, total) + 1)
        if todo:
            with contextlib.suppress(BlockingIOError):
                got += recv.recv(sk, todo.pop())
        queued = [*(sk.receive_queue or ()), *(sk.ofo_queue or ())]
        assert sk.rmem_alloc == sum(chunk.truesize for chunk in queued)
        assert all(chunk.end_seq - chunk.seq == chunk.length == sum(len(part) for part, _ in chunk.parts) for chunk in queued)
        ofo = sk.ofo_queue or []
        assert all(a.seq < b.seq for a, b in itertools.pairwise(ofo))
        assert all(left > sk.rcv_nxt for left, _ in sk.selective_acks)
    assert got + read(sk) == STREAM[:total]
    assert sk.rmem_alloc == 0
    assert 0 <= sk.forward_alloc < 4096


def test_queueing_an_empty_segment_changes_nothing() -> None:
    sk, _ = receiver()
    seg = segment(sk)
    seg.seq = seg.end_seq = sk.rcv_nxt
    reassembly.data_queue(sk, seg)
    assert not sk.receive_queue
