"""Urgent data: the mark, the byte beside the stream, and recv(MSG_OOB) (linux-sockets f05, f06, RFC 6093)."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from pytcp.tcp import const, input, recv, urgent
from pytcp.tcp.sock import Sock

from .harness import MS, FakeHost, established, segment
from .receive_replay import cases, replay

OOB = const.MSG_OOB


@pytest.mark.parametrize("name", cases("random_urg*"))
def test_marks_bytes_and_reads_are_the_kernels(name: str) -> None:
    run = replay(name)
    assert run.differences == []
    assert run.compared > 2


def receiver(**fields: Any) -> tuple[Sock, FakeHost]:
    host = FakeHost()
    sk = established(host, **{"rcv_wnd": 60000, "ato_jiffies": 10, "lrcvtime_ns": host.now_ns - MS, **fields})
    sk.rcv_wup = sk.rcv_nxt
    return sk, host


def hear(sk: Sock, payload: bytes, urg: int | None = None, seq: int | None = None) -> None:
    """A segment whose urgent pointer, if any, is `urg`."""
    flags = const.ACK | const.PSH | (const.URG if urg is not None else 0)
    input.receive(sk, segment(sk, flags, payload=payload, urg=urg or 0, seq=seq))


def fails(sk: Sock, flags: int = 0) -> int:
    with pytest.raises(OSError) as caught:
        recv.recv(sk, 100, flags)
    assert caught.value.errno is not None
    return caught.value.errno


def test_the_urgent_byte_is_the_one_before_the_pointer_and_not_part_of_the_stream() -> None:
    sk, host = receiver()
    assert fails(sk, OOB) == errno.EINVAL
    hear(sk, b"abcX", urg=4)
    assert any(events & const.POLLPRI for _, events in host.woken)
    assert not urgent.at_mark(sk)
    assert recv.inq(sk) == 3
    assert recv.recv(sk, 1, OOB | const.MSG_PEEK) == b"X"
    assert recv.recv(sk, 100) == b"abc"
    assert urgent.at_mark(sk)
    assert recv.recv(sk, 10, OOB) == b"X"
    assert fails(sk, OOB) == errno.EINVAL
    hear(sk, b"def")
    assert urgent.at_mark(sk)
    assert recv.recv(sk, 100) == b"def"
    assert not urgent.at_mark(sk)


def test_a_second_urgent_byte_replaces_an_unread_first_which_stays_in_the_stream() -> None:
    sk, _ = receiver()
    hear(sk, b"12Y", urg=3)
    hear(sk, b"34Z", urg=3)
    assert recv.recv(sk, 100) == b"12Y34"
    assert recv.recv(sk, 10, OOB) == b"Z"
    assert fails(sk) == errno.EAGAIN


def test_a_byte_that_is_announced_but_has_not_come_is_waited_for() -> None:
    sk, _ = receiver()
    hear(sk, b"ab", urg=10)
    assert fails(sk, OOB) == errno.EAGAIN
    assert recv.recv(sk, 100) == b"ab"
    hear(sk, b"cdefghij")
    assert recv.recv(sk, 10, OOB) == b"j"
    assert recv.recv(sk, 100) == b"cdefghi"


def test_with_so_oobinline_the_byte_stays_in_the_stream_behind_the_mark() -> None:
    sk, _ = receiver(rx_opt_oobinline=True)
    hear(sk, b"abcXdef", urg=4)
    assert fails(sk, OOB) == errno.EINVAL
    assert recv.inq(sk) == 7
    assert recv.recv(sk, 100) == b"abc"
    assert urgent.at_mark(sk)
    assert recv.recv(sk, 100) == b"Xdef"


def test_tcp_stdurg_makes_the_pointer_name_the_byte_itself() -> None:
    sk, _ = receiver()
    sk.sysctl.tcp_stdurg = 1
    hear(sk, b"abXd", urg=2)
    assert recv.recv(sk, 1, OOB) == b"X"


def test_a_read_stops_before_the_mark_even_within_a_segment() -> None:
    sk, _ = receiver()
    hear(sk, b"abXcd", urg=3)
    assert recv.recv(sk, 100) == b"ab"
    assert recv.recv(sk, 100) == b"cd"


def test_a_read_that_starts_at_the_mark_skips_the_byte_whether_taken_or_not() -> None:
    for take in (True, False):
        sk, _ = receiver()
        hear(sk, b"Xcd", urg=1)
        if take:
            recv.recv(sk, 1, OOB)
        assert recv.recv(sk, 100) == b"cd"
        assert fails(sk, OOB) == errno.EINVAL


def test_a_lone_urgent_byte_is_not_readable_but_its_memory_is_freed() -> None:
    sk, _ = receiver()
    hear(sk, b"X", urg=1)
    assert fails(sk) == errno.EAGAIN
    assert sk.rmem_alloc == 0


def test_an_old_pointer_or_one_below_what_was_received_is_ignored() -> None:
    sk, _ = receiver()
    hear(sk, b"abcdef")
    hear(sk, b"", urg=0, seq=3)
    assert sk.urg_data == urgent.NONE


def test_a_pointer_without_a_byte_ends_when_the_connection_does() -> None:
    sk, _ = receiver()
    hear(sk, b"ab", urg=10)
    input.receive(sk, segment(sk, const.ACK | const.FIN))
    assert recv.recv(sk, 10, OOB) == b""


def test_urgent_data_switches_header_prediction_off_until_it_is_read_past() -> None:
    sk, _ = receiver()
    hear(sk, b"a")
    assert bool(sk.pred)
    hear(sk, b"bXc", urg=2)
    assert not bool(sk.pred)
    recv.recv(sk, 100)
    recv.recv(sk, 100)
    assert bool(sk.pred)


def test_the_next_urgent_byte_in_line_is_not_turned_into_data_by_a_newer_one() -> None:
    """Both bytes of send("A", MSG_OOB); send("B", MSG_OOB) stay out of the stream when the reader is at the first."""
    sk, _ = receiver()
    hear(sk, b"A", urg=1)
    hear(sk, b"B", urg=1)
    assert recv.recv(sk, 1, OOB) == b"B"
    assert fails(sk) == errno.EAGAIN
    assert sk.copied_seq == sk.rcv_nxt


def test_a_socket_that_never_had_a_connection_has_no_urgent_data() -> None:
    sk, _ = receiver(urg_data=urgent.VALID, state=const.CLOSE)
    assert fails(sk, OOB) == errno.ENOTCONN
