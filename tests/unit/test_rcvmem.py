"""Receive memory: what queued segments cost, merging, pages, and a full buffer (linux-tcp §7.6, §14)."""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.tcp import const, input, memory, recv, sendmsg
from pytcp.tcp.sock import Sock

from .harness import MS, FakeHost, established, segment
from .receive_replay import cases, replay


@pytest.mark.parametrize("name", cases("m0*", "gso_*", "random_gso*"))
def test_memory_is_charged_merged_and_pruned_as_in_the_kernel(name: str) -> None:
    run = replay(name)
    assert run.differences == []
    assert run.compared > 1


def receiver(**fields: Any) -> tuple[Sock, FakeHost]:
    host = FakeHost()
    sk = established(host, **{"rcv_wnd": 60000, "ato_jiffies": 10, "lrcvtime_ns": host.now_ns - MS, **fields})
    sk.rcv_wup = sk.rcv_nxt
    return sk, host


def hear(sk: Sock, size: int, seq: int | None = None, truesize: int = 0, ack: int | None = None) -> None:
    seg = segment(sk, seq=seq, payload=bytes(size), ack=ack)
    if truesize:
        seg.truesize = truesize
    input.receive(sk, seg)


# ---------------------------------------------------------------- merging


def test_a_segment_costs_its_truesize_and_a_merged_one_its_truesize_less_the_sk_buff() -> None:
    sk, _ = receiver()
    hear(sk, 1460)
    assert sk.rmem_alloc == 2176
    hear(sk, 1460)
    assert sk.rmem_alloc == 2176 + 2176 - 256
    assert sk.mib.TCPRcvCoalesce == 1


def test_bytes_that_fit_behind_the_last_ones_cost_nothing() -> None:
    """1000 bytes: 54 of headers, 64 of headroom, rounded up to 1152, leave 34."""
    sk, _ = receiver()
    hear(sk, 1000)
    hear(sk, 30)
    assert sk.rmem_alloc == 1728
    hear(sk, 4)
    assert sk.rmem_alloc == 1728
    hear(sk, 1)
    assert sk.rmem_alloc == 1728 + 704 - 256
    # once pieces hang on it nothing is copied behind any more
    hear(sk, 1)
    assert sk.rmem_alloc == 1728 + 2 * (704 - 256)


def test_a_trickle_of_bytes_behind_the_last_ones_makes_one_piece() -> None:
    sk, _ = receiver()
    hear(sk, 1000)
    for _ in range(30):
        hear(sk, 1)
    assert [len(part) for part, _ in sk.receive_queue[0].parts] == [1030]


def test_eighteen_segments_make_a_full_skb_whose_memory_comes_back_at_once() -> None:
    sk, _ = receiver(rcvbuf=1 << 20)
    for _ in range(19):
        hear(sk, 1000)
    assert [chunk.length for chunk in sk.receive_queue] == [18000, 1000]
    whole = 1728 + 17 * 1472
    assert sk.rmem_alloc == whole + 1728
    recv.recv(sk, 17999)
    assert sk.rmem_alloc == whole + 1728
    recv.recv(sk, 1)
    assert sk.rmem_alloc == 1728


def test_super_frames_are_merged_by_their_pages() -> None:
    """44 x 1448 lies in two pieces of 32 KiB: eight of them make 16, a ninth 18, one too many."""
    sk, _ = receiver(rcvbuf=8 << 20, rcv_wnd=4 << 20)
    for _ in range(9):
        hear(sk, 63712, truesize=66368)
    assert [chunk.length for chunk in sk.receive_queue] == [8 * 63712, 63712]
    assert sk.rmem_alloc == 832 + 8 * 65536 + 66368


@pytest.mark.parametrize(("size", "pieces"), [(4096, 1), (8192, 1), (12288, 2), (16384, 1), (28672, 3), (32768, 1), (65536, 2), (69632, 3)])
def test_pages_come_in_the_largest_pieces_that_fit(size: int, pieces: int) -> None:
    assert memory.page_frags(size) == pieces


def test_a_frame_from_the_general_allocator_cannot_be_merged() -> None:
    """3500 bytes: too large for the driver's page pieces, below a page: a 4 KiB object, truesize 4352 (recorded)."""
    sk, _ = receiver()
    hear(sk, 1000)
    hear(sk, 3500, truesize=4352)
    assert sk.rmem_alloc == 1728 + 4352
    assert sk.mib.TCPRcvCoalesce == 0
    # but others may be merged into it
    hear(sk, 1000)
    assert sk.mib.TCPRcvCoalesce == 1


def test_a_fin_is_merged_for_nothing() -> None:
    sk, _ = receiver()
    hear(sk, 100)
    before = sk.rmem_alloc
    input.receive(sk, segment(sk, const.ACK | const.FIN))
    assert (sk.rmem_alloc, sk.mib.TCPRcvCoalesce) == (before, 1)


# ---------------------------------------------------------------- pages


def test_a_segment_that_needs_a_new_page_leaves_the_fast_path() -> None:
    """23 segments of 1460 unread: 12 find room in the pages already taken (w04)."""
    sk, _ = receiver(mss=1460, rcvbuf=1 << 20, pred=True)
    for _ in range(23):
        hear(sk, 1460)
    assert sk.mib.TCPHPHits == 12
    assert sk.forward_alloc == 11 * 4096 - sk.rmem_alloc


def test_send_memory_leaves_room_for_received_segments_in_its_pages() -> None:
    """1219 bytes written cost 832 + 1219 of a page of 4096: a segment of 702 (truesize 1408) fits into the rest and takes the
    fast path, which does not look at the receive buffer; the next one finds no room (measured on 6.18)."""
    sk, _ = receiver(mss=1000, pred=True, rcv_mss=1000)
    sendmsg.sendmsg(sk, bytes(1219))
    assert sk.forward_alloc == 4096 - (832 + 1219)
    sk.rcvbuf = sk.rmem_alloc - 1
    hear(sk, 702, ack=1)
    assert (sk.mib.TCPHPHits, sk.rmem_alloc, sk.forward_alloc) == (1, 1408, 637)
    hear(sk, 702, ack=1)
    assert sk.mib.TCPHPHits == 1


def test_acknowledged_data_gives_whole_pages_back() -> None:
    sk, _ = receiver(mss=1000, pred=True)
    sendmsg.sendmsg(sk, bytes(9000))
    assert sk.wmem_queued + sk.forward_alloc == 3 * 4096
    hear(sk, 10)
    assert (sk.wmem_queued, sk.forward_alloc + sk.rmem_alloc) == (0, 4096)


def test_a_reader_that_keeps_up_gives_all_pages_back() -> None:
    sk, _ = receiver()
    for _ in range(4):
        hear(sk, 10)
        recv.recv(sk, 10)
    assert (sk.forward_alloc, sk.rmem_alloc, sk.mib.TCPHPHits) == (0, 0, 0)


# ---------------------------------------------------------------- a full buffer


def test_one_segment_may_overshoot_the_buffer() -> None:
    sk, _ = receiver(rcvbuf=2304)
    hear(sk, 1460)
    assert sk.rmem_alloc == 2176
    hear(sk, 100, seq=2001)
    assert sk.rmem_alloc == 2176 + 832
    assert sk.mib.PruneCalled == 0


def test_a_locked_full_buffer_drops_out_of_order_data_beyond_what_it_has() -> None:
    sk, _ = receiver(rcvbuf=2304, rcvbuf_locked=True)
    sk.rmem_alloc = 2305
    hear(sk, 100, seq=2001)
    assert (sk.mib.PruneCalled, sk.mib.RcvPruned, sk.mib.TCPOFODrop) == (1, 1, 1)
    assert sk.rcv_ssthresh == min(sk.window_clamp, 2 * sk.advmss)


def test_an_autotuned_full_buffer_grows_to_what_is_used() -> None:
    sk, _ = receiver(rcvbuf=2304)
    sk.sysctl.tcp_moderate_rcvbuf = 0  # not to what the hole will want, too
    sk.rmem_alloc = 5000
    hear(sk, 100, seq=2001)
    assert sk.rcvbuf == 5000
    assert sk.mib.RcvPruned == 0
    assert len(sk.ofo_queue) == 1


def test_in_order_data_drives_out_of_order_data_out_from_the_far_end() -> None:
    """An eighth of the buffer at a time; the SACK state goes with it."""
    sk, _ = receiver(rcvbuf=8000, rcvbuf_locked=True)
    for seq in range(101, 1301, 100):
        hear(sk, 1, seq=seq)
    assert sk.rmem_alloc == 12 * 704
    assert sk.selective_acks
    hear(sk, 10)
    # 8448 is above 8000: two of 704 make up an eighth, and leave 7040
    assert (sk.mib.OfoPruned, len(sk.ofo_queue)) == (1, 10)
    assert not sk.selective_acks
    assert sk.rmem_alloc == 7040 + 704
    assert sk.rcv_nxt - sk.irs == 11


def test_in_order_data_that_finds_no_memory_is_dropped_and_closes_the_window() -> None:
    sk, host = receiver(rcvbuf=2304, rcvbuf_locked=True)
    hear(sk, 1460)
    host.take()
    sk.rmem_alloc += 4000
    sk.forward_alloc = 0  # on the fast path only pages count
    hear(sk, 100)
    (sent,) = host.take()
    assert (sent.window, sk.mib.TCPRcvQDrop) == (0, 1)
    assert sk.rcv_nxt - sk.irs == 1461


def test_an_empty_queue_takes_a_segment_even_without_memory() -> None:
    sk, _ = receiver(rcvbuf=2304, rcvbuf_locked=True)
    sk.rmem_alloc = 9000
    hear(sk, 100)
    assert recv.recv(sk, 1000) == bytes(100)


def test_sparse_skbs_are_copied_together() -> None:
    """Tiny segments in one long skb: more memory than window; collapsed they fit one small head."""
    sk, _ = receiver(rcvbuf=40000, rcvbuf_locked=True, scaling_ratio=128)
    for i in range(40):
        hear(sk, 1 + i % 3)
    queue = sk.receive_queue
    length = sum(chunk.length for chunk in queue)
    end = sk.rcv_nxt
    before = sk.rmem_alloc
    sk.receive_queue = memory.collapse(sk, queue, sk.copied_seq, end)
    assert sk.mib.TCPRcvCollapsed == len(queue)
    (chunk,) = sk.receive_queue
    assert (chunk.length, chunk.truesize) == (length, 832)
    assert sk.rmem_alloc == 832 < before
    assert len(recv.recv(sk, 1000)) == length


def test_collapsing_leaves_dense_skbs_alone_and_fills_whole_pages() -> None:
    sk, _ = receiver(rcvbuf=400000, rcvbuf_locked=True, scaling_ratio=128, rcv_wnd=200000)
    for _ in range(18):
        hear(sk, 1460)
    dense = sk.receive_queue[0]
    for _ in range(900):
        hear(sk, 8)
    out = memory.collapse(sk, sk.receive_queue, sk.copied_seq, sk.rcv_nxt)
    assert out[0] is dense
    assert [chunk.length for chunk in out[1:]] == [3776, 3424]
    assert out[1].truesize == 4096 + 256
    sk.receive_queue = out
    assert sk.rmem_alloc == sum(chunk.truesize for chunk in out)
    assert len(recv.recv(sk, 1 << 20)) == 18 * 1460 + 7200
    assert sk.rmem_alloc == 0


def test_a_fin_is_never_collapsed() -> None:
    sk, _ = receiver(scaling_ratio=128)
    hear(sk, 3)
    recv.recv(sk, 3)
    input.receive(sk, segment(sk, const.ACK | const.FIN, payload=b"end"))
    kept = memory.collapse(sk, sk.receive_queue, sk.copied_seq, sk.rcv_nxt)
    assert kept[0].fin
    assert sk.mib.TCPRcvCollapsed == 0


def test_runs_of_out_of_order_data_are_collapsed_lone_tiny_segments_are_not() -> None:
    sk, _ = receiver(rcvbuf=40000, scaling_ratio=128)
    hear(sk, 1, seq=101)
    hear(sk, 20, seq=301)
    hear(sk, 20, seq=311)
    memory.collapse_ofo_queue(sk)
    assert [(chunk.length, chunk.truesize) for chunk in sk.ofo_queue] == [(1, 704), (30, 832)]
    assert sk.rmem_alloc == 704 + 832
