"""recv: bytes, ends and errors in Linux's order (linux-sockets §1, §7)."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from pytcp.tcp import const, input, recv
from pytcp.tcp.sock import Sock

from .harness import MS, FakeHost, established, make_sock, segment


def receiver(**fields: Any) -> tuple[Sock, FakeHost]:
    host = FakeHost()
    sk = established(host, **{"rcv_wnd": 60000, "ato_jiffies": 10, "lrcvtime_ns": host.now_ns - MS, **fields})
    sk.rcv_wup = sk.rcv_nxt
    return sk, host


def hear(sk: Sock, payload: bytes, flags: int = const.ACK) -> None:
    input.receive(sk, segment(sk, flags, payload=payload))


def fails(sk: Sock, flags: int = 0) -> int:
    """The errno of a recv() that fails."""
    with pytest.raises(OSError) as caught:
        recv.recv(sk, 100, flags)
    assert caught.value.errno is not None
    return caught.value.errno


# ---------------------------------------------------------------- bytes


def test_a_read_takes_what_is_there_across_segments_and_no_more_than_asked() -> None:
    sk, _ = receiver()
    for piece in (b"abc", b"defgh", b"i"):
        hear(sk, piece)
    assert recv.recv(sk, 4) == b"abcd"
    assert recv.recv(sk, 100) == b"efghi"
    assert fails(sk) == errno.EAGAIN


def test_recv_into_fills_the_front_of_a_buffer() -> None:
    sk, _ = receiver()
    hear(sk, b"abc")
    hear(sk, b"def")
    buf = bytearray(b"........")
    assert recv.recv_into(sk, memoryview(buf)[:5]) == 5
    assert buf == b"abcde..."
    assert recv.recv_into(sk, buf) == 1
    assert buf == b"fbcde..."


def test_a_buffer_of_words_is_filled_byte_by_byte() -> None:
    sk, _ = receiver()
    hear(sk, b"\1\0\0\0\2\0\0\0")
    words = memoryview(bytearray(8)).cast("I")
    assert recv.recv_into(sk, words) == 8
    assert words.tobytes() == b"\1\0\0\0\2\0\0\0"


def test_peeking_leaves_the_data_and_the_mark_of_what_was_read() -> None:
    sk, _ = receiver()
    hear(sk, b"abcdefghij")
    assert recv.recv(sk, 4, const.MSG_PEEK) == b"abcd"
    assert recv.recv(sk, 4, const.MSG_PEEK) == b"abcd"
    assert recv.recv(sk, 100) == b"abcdefghij"


def test_so_peek_off_moves_on_with_peeks_and_back_with_reads() -> None:
    """linux-sockets f03."""
    sk, _ = receiver()
    hear(sk, b"abcdefghij")
    sk.peek_off = 0
    assert recv.recv(sk, 4, const.MSG_PEEK) == b"abcd"
    assert recv.recv(sk, 4, const.MSG_PEEK) == b"efgh"
    assert sk.peek_off == 8
    assert recv.recv(sk, 3) == b"abc"
    assert sk.peek_off == 5
    assert recv.recv(sk, 4, const.MSG_PEEK) == b"ij"
    assert recv.recv(sk, 100) == b"defghij"
    assert sk.peek_off == 0


def test_msg_trunc_throws_bytes_away_and_tells_how_many() -> None:
    sk, _ = receiver()
    hear(sk, b"abcdefghij")
    assert len(recv.recv(sk, 4, const.MSG_TRUNC)) == 4
    assert recv.recv(sk, 2) == b"ef"
    assert len(recv.recv(sk, 100, const.MSG_TRUNC | const.MSG_PEEK)) == 4
    buf = bytearray(b"..")
    assert recv.recv_into(sk, buf, const.MSG_TRUNC) == 2
    assert buf == b".."
    assert recv.recv(sk, 100) == b"ij"


def test_msg_waitall_returns_what_there_is() -> None:
    sk, _ = receiver()
    hear(sk, b"abc")
    assert recv.recv(sk, 100, const.MSG_WAITALL) == b"abc"


def test_immutable_payload_that_is_read_whole_is_not_copied() -> None:
    sk, _ = receiver()
    payload = bytes(range(200))
    seg = segment(sk, payload=payload)
    seg.payload = payload
    input.receive(sk, seg)
    assert recv.recv(sk, 1000) is payload


# ---------------------------------------------------------------- the end of the stream


def test_data_before_a_fin_is_read_first_then_the_end_for_ever() -> None:
    sk, _ = receiver()
    hear(sk, b"bye", const.ACK | const.FIN)
    assert recv.recv(sk, 100) == b"bye"
    assert recv.recv(sk, 100) == b""
    assert recv.recv(sk, 100) == b""
    assert sk.copied_seq == sk.rcv_nxt
    assert sk.rmem_alloc == 0


def test_peeking_at_the_end_does_not_consume_it() -> None:
    sk, _ = receiver()
    hear(sk, b"", const.ACK | const.FIN)
    assert recv.recv(sk, 100, const.MSG_PEEK) == b""
    assert sk.rmem_alloc == 704
    assert recv.recv(sk, 100) == b""
    assert sk.rmem_alloc == 0


def test_after_shutdown_for_reading_queued_data_is_still_read() -> None:
    sk, _ = receiver()
    hear(sk, b"abc")
    sk.shutdown |= const.RCV_SHUTDOWN
    assert recv.recv(sk, 100) == b"abc"
    assert recv.recv(sk, 100) == b""
    hear(sk, b"def")
    assert recv.recv(sk, 100) == b"def"


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("state", [const.CLOSE, const.LISTEN])
def test_a_socket_without_connection_is_not_connected(state: int) -> None:
    sk = make_sock(state=state)
    assert fails(sk) == errno.ENOTCONN
    assert fails(sk, const.MSG_PEEK) == errno.ENOTCONN


def test_while_connecting_there_is_nothing_yet() -> None:
    assert fails(make_sock(state=const.SYN_SENT)) == errno.EAGAIN


def test_a_reset_is_reported_once_after_the_queued_data_then_the_stream_has_ended() -> None:
    sk, _ = receiver()
    hear(sk, b"last words")
    hear(sk, b"", const.RST)
    assert recv.recv(sk, 100) == b"last words"
    assert fails(sk) == errno.ECONNRESET
    assert recv.recv(sk, 100) == b""


def test_a_reset_after_the_peers_fin_is_not_reported_to_readers() -> None:
    """linux-sockets §1: the error is EPIPE, and only writers and SO_ERROR see it."""
    sk, _ = receiver()
    hear(sk, b"", const.ACK | const.FIN)
    hear(sk, b"", const.RST)
    assert recv.recv(sk, 100) == b""
    assert sk.sk_err == errno.EPIPE


def test_an_error_of_the_path_is_reported_once_and_the_connection_goes_on() -> None:
    sk, _ = receiver(sk_err=errno.EHOSTUNREACH)
    assert fails(sk) == errno.EHOSTUNREACH
    assert fails(sk) == errno.EAGAIN


def test_asking_for_nothing_gives_nothing() -> None:
    sk, _ = receiver()
    assert recv.recv(sk, 0) == b""
    hear(sk, b"abc")
    assert recv.recv(sk, 0) == b""
    assert recv.recv(sk, 100) == b"abc"


def test_a_failing_read_still_sends_an_ack_that_is_overdue() -> None:
    sk, host = receiver(rcv_mss=100, ack_pending=const.ACK_SCHED)
    sk.rcv_nxt = sk.copied_seq = sk.rcv_nxt + 200
    assert fails(sk) == errno.EAGAIN
    assert len(host.take()) == 1


# ---------------------------------------------------------------- what there is to read


def test_siocinq_counts_bytes_not_the_fin_while_tcp_inq_stays_positive_at_the_end() -> None:
    sk, _ = receiver()
    hear(sk, b"x" * 100, const.ACK | const.FIN)
    assert (recv.inq(sk), recv.inq_hint(sk)) == (100, 101)
    recv.recv(sk, 100)
    assert (recv.inq(sk), recv.inq_hint(sk)) == (0, 1)
    with pytest.raises(OSError, match="Invalid argument"):
        recv.inq(make_sock(state=const.LISTEN))
    assert recv.inq(make_sock(state=const.SYN_SENT)) == 0


def test_unread_means_payload_not_a_fin() -> None:
    sk, _ = receiver()
    assert not recv.unread(sk)
    hear(sk, b"abc", const.ACK | const.FIN)
    assert recv.unread(sk)
    recv.recv(sk, 3, const.MSG_PEEK)
    assert recv.unread(sk)
    recv.recv(sk, 3)
    assert not recv.unread(sk)
    only_fin, _ = receiver()
    hear(only_fin, b"", const.ACK | const.FIN)
    assert not recv.unread(only_fin)


def test_the_program_is_woken_by_data_only_from_so_rcvlowat_on_but_by_a_fin_always() -> None:
    sk, host = receiver(rcvlowat=10)
    hear(sk, b"123456789")
    assert host.woken == []
    hear(sk, b"0")
    assert host.woken == [(sk, const.POLLIN)]
    recv.recv(sk, 100)
    hear(sk, b"", const.ACK | const.FIN)
    assert host.woken[1] == (sk, const.POLLIN | const.POLLRDHUP)


def test_a_window_nearly_full_makes_readable_whatever_so_rcvlowat_says() -> None:
    sk, _ = receiver(rcvlowat=50000, rcv_wnd=1100, rcv_mss=1000)
    sk.rcv_wup = sk.rcv_nxt
    assert not recv.readable(sk, sk.rcvlowat)
    sk.rcv_nxt += 100
    assert recv.readable(sk, sk.rcvlowat)


def test_an_orphan_wakes_nobody() -> None:
    sk, host = receiver(sock_flags=const.SF_DEAD)
    hear(sk, b"abc")
    assert host.woken == []
