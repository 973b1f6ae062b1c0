"""MSG_ZEROCOPY: memory of the program's in the send queue, and the notice that gives it back (linux-sockets §6; recording f14)."""

from __future__ import annotations

import errno

import pytest

from pytcp.tcp import api, const
from pytcp.tcp.icmp_err import QueuedError
from pytcp.tcp.sock import Sock
from pytcp.tcp.zerocopy import MSG_ZEROCOPY

from .endpoint import Peer, World, connection

SOL_SOCKET, SO_SNDBUF, SO_ZEROCOPY = 1, 7, 60


def zerocopy_connection() -> tuple[World, Peer, Sock]:
    world, peer, sk = connection()
    api.setsockopt(sk, SOL_SOCKET, SO_ZEROCOPY, 1)
    return world, peer, sk


def notices(sk: Sock) -> list[tuple[int, int]]:
    """Ranges of calls that are over."""
    found = []
    while sk.error_queue:
        report: QueuedError = api.read_error_queue(sk)
        assert (report.errno, report.origin, report.code) == (0, 5, 1)
        found.append((report.info, report.data))
    return found


def test_the_last_byte_s_acknowledgement_is_the_notice() -> None:
    _, peer, sk = zerocopy_connection()
    assert api.send_zerocopy(sk, [bytes(3000)], MSG_ZEROCOPY) == 3000
    peer.send(".", 1, ack=3000, win=511)
    assert notices(sk) == []
    assert not api.poll(sk) & const.POLLERR
    peer.send(".", 1, ack=3001, win=511)
    assert api.poll(sk) & const.POLLERR
    assert notices(sk) == [(0, 0)]


def test_calls_that_share_an_skb_share_a_notice() -> None:
    """As Linux 6.18: Nagle's rule holds the second call back, the third is appended to it, and both are over with the last byte."""
    _, peer, sk = zerocopy_connection()
    for _ in range(3):
        api.send_zerocopy(sk, [bytes(100)], MSG_ZEROCOPY)
    peer.heard_all()
    peer.send(".", 1, ack=101, win=511)
    assert notices(sk) == [(0, 0)]
    assert [(segment.seq, segment.length) for segment in peer.heard_all() if segment.length] == [(101, 200)]
    peer.send(".", 1, ack=201, win=511)
    assert notices(sk) == []
    peer.send(".", 1, ack=301, win=511)
    assert notices(sk) == [(1, 2)]


def test_notices_of_neighbours_are_one_until_it_is_read() -> None:
    _, peer, sk = zerocopy_connection()
    for number in range(2):
        api.send_zerocopy(sk, [bytes(100)], MSG_ZEROCOPY)
        peer.send(".", 1, ack=101 + 100 * number, win=511)
    assert notices(sk) == [(0, 1)]


def test_a_buffer_costs_the_pages_it_lies_in() -> None:
    """Two skbs of a call that part in the middle of a page are both charged for it."""
    _, _, sk = zerocopy_connection()
    api.setsockopt(sk, SOL_SOCKET, SO_SNDBUF, 1_000_000)
    api.setsockopt(sk, 6, 3, 1)
    assert api.send_zerocopy(sk, [bytes(70_000)], MSG_ZEROCOPY) == 70_000
    skbs = [*sk.rtx_queue, *sk.write_queue]
    assert sum(skb.length for skb in skbs) == 70_000
    assert sk.wmem_queued >= 832 * 2 + 4096 * (-(-70_000 // 4096) + 1)


def test_the_memory_is_not_copied() -> None:
    """What the program writes into its buffer too early is what a retransmission sends."""
    world, peer, sk = zerocopy_connection()
    peer.heard_all()
    memory = bytearray(b"a" * 500)
    api.send_zerocopy(sk, [memory], MSG_ZEROCOPY)
    memory[:] = b"b" * 500
    world.advance(1_000_000_000)
    payloads = [head.payload for *_, head, _tos, _ttl in world.wire if len(head.payload) == 500]
    assert payloads[0] == b"a" * 500
    assert set(payloads[1:]) == {b"b" * 500}


def test_a_call_that_fails_has_no_number() -> None:
    _, _, sk = zerocopy_connection()
    api.shutdown(sk, api.SHUT_WR)
    with pytest.raises(OSError) as caught:
        api.send_zerocopy(sk, [bytes(10)], MSG_ZEROCOPY)
    assert caught.value.errno == errno.EPIPE
    assert sk.zerocopy_id == 0


def test_without_the_option_the_flag_means_nothing() -> None:
    _, peer, sk = connection()
    api.send_zerocopy(sk, [bytes(10)], MSG_ZEROCOPY)
    peer.send(".", 1, ack=11, win=511)
    assert sk.error_queue is None


def test_an_empty_call_has_no_number() -> None:
    _, _, sk = zerocopy_connection()
    assert api.send_zerocopy(sk, [b"", b""], MSG_ZEROCOPY) == 0
    assert sk.zerocopy_id == 0


def test_pieces_fill_an_skb_by_seventeen() -> None:
    """MAX_SKB_FRAGS; each skb is pushed and goes as it is. Nagle holds only the last one, while others are unacknowledged."""
    _, peer, sk = zerocopy_connection()
    api.setsockopt(sk, SOL_SOCKET, SO_SNDBUF, 1_000_000)
    peer.heard()
    assert api.send_zerocopy(sk, [b"x"] * 40, MSG_ZEROCOPY) == 40
    assert peer.heard() == ["P. 1:18 ack 1", "P. 18:35 ack 1"]
    peer.send(".", 1, ack=35, win=511)
    assert peer.heard() == ["P. 35:41 ack 1"]
    assert notices(sk) == []
    peer.send(".", 1, ack=41, win=511)
    assert notices(sk) == [(0, 0)]


def test_a_piece_costs_a_page_of_send_memory() -> None:
    """17 pieces of a byte are 17 pages, 69,632 bytes: more than the 46,080 of a young socket, so the call takes no more than one skb."""
    _, _, sk = zerocopy_connection()
    assert sk.sndbuf == 46_080
    assert api.send_zerocopy(sk, [b"x"] * 40, MSG_ZEROCOPY) == 17
    assert sk.wmem_queued == 832 + 17 * 4096


def test_a_reset_gives_everything_back() -> None:
    _, peer, sk = zerocopy_connection()
    for _ in range(2):
        api.send_zerocopy(sk, [bytes(3000)], MSG_ZEROCOPY)
    peer.send("R.", 1, ack=1)
    assert notices(sk) == [(0, 1)]
    assert api.getsockopt(sk, SOL_SOCKET, 4) == errno.ECONNRESET


def test_a_segment_in_the_hosts_queue_still_holds_the_memory() -> None:
    world, peer, sk = zerocopy_connection()
    world.complete = "manual"
    api.send_zerocopy(sk, [bytes(100)], MSG_ZEROCOPY)
    peer.send(".", 1, ack=101, win=511)
    assert notices(sk) == []
    world.complete_all()
    assert notices(sk) == [(0, 0)]


@pytest.mark.parametrize("sizes", [(3000,), (100, 3000), (3000, 100), (70_000, 1)])
def test_calls_and_ordinary_writes_may_alternate(sizes: tuple[int, ...]) -> None:
    _, peer, sk = zerocopy_connection()
    api.setsockopt(sk, SOL_SOCKET, SO_SNDBUF, 1_000_000)
    total = 0
    for size in sizes:
        api.sendmsg(sk, b"p" * 50)
        assert api.send_zerocopy(sk, [b"z" * size], MSG_ZEROCOPY) == size
        total += size + 50
    acked = 0
    while acked < total:
        reached = max((segment.seq + segment.length - 1 for segment in peer.heard_all() if segment.length), default=acked)
        acked = max(acked, reached)
        peer.send(".", 1, ack=acked + 1, win=511)
    assert notices(sk) == [(0, len(sizes) - 1)]
    assert sk.wmem_queued == 0
