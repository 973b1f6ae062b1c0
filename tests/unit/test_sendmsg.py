"""From the program's bytes to super-segments: what a write takes, where it is cut, how the buffer grows
(linux-tcp §1)."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from pytcp.tcp import cong, const, input, sendmsg, tso, xmit
from pytcp.tcp.cong.base import CongestionControl
from pytcp.tcp.sock import Sock
from pytcp.tcp.sockopt import getsockopt, setsockopt

from .harness import MS, FakeHost, established, make_sock, segment

SOL_SOCKET, SO_SNDBUF = 1, 7
IPPROTO_TCP, TCP_NOTSENT_LOWAT = 6, 25
BASE = 832  # memory charged per skb beside its payload


def queued(sk: Sock) -> list[int]:
    """Payload lengths of the skbs not sent yet."""
    return [skb.length for skb in sk.write_queue]


def held(mss: int = 1000, **fields: Any) -> tuple[Sock, FakeHost]:
    """A connection that cannot send: everything written stays in the write queue."""
    host = FakeHost()
    sk = established(host, mss=mss, **fields)
    sk.snd_cwnd = 0
    return sk, host


# ---------------------------------------------------------------- buffer sizes


@pytest.mark.parametrize(
    ("mss", "max_tcp_header", "first"),
    [
        # 2 · 10 · (roundup_pow2(mss + header + 320) + 256)
        (1460, 192, 46_080),
        (1460, 320, 87_040),
        (8960, 192, 332_800),
        (536, 192, 46_080),  # 1048 is more than 1024
    ],
)
def test_the_first_sndbuf_is_two_initial_windows_of_skbs(mss: int, max_tcp_header: int, first: int) -> None:
    host = FakeHost()
    host.sysctl.max_tcp_header = max_tcp_header
    sk = established(host, mss=mss)
    sk.sndbuf = host.sysctl.tcp_wmem[1]
    sendmsg.init_sndbuf(sk)
    assert sk.sndbuf == first


def test_a_congestion_control_may_want_three_windows() -> None:
    class Bulky(CongestionControl):
        name = "bulky"
        sndbuf_factor = 3

    sk = established(mss=1460)
    sk.ca = Bulky()
    sk.sndbuf = 16384
    sendmsg.init_sndbuf(sk)
    assert sk.sndbuf == 69_120, "as BBR's on Linux"
    assert "bulky" not in cong.available()


@pytest.mark.parametrize(("value", "sndbuf"), [(0, 4608), (1, 4608), (2304, 4608), (2305, 4610), (10_000, 20_000), (1 << 30, 2 * 4194304)])
def test_so_sndbuf_is_doubled_between_its_bounds(value: int, sndbuf: int) -> None:
    sk = make_sock()
    setsockopt(sk, SOL_SOCKET, SO_SNDBUF, value)
    assert getsockopt(sk, SOL_SOCKET, SO_SNDBUF) == sndbuf
    sendmsg.init_sndbuf(sk)
    assert sk.sndbuf == sndbuf, "a chosen size is not tuned"


def test_sndbuf_grows_with_the_congestion_window_up_to_tcp_wmem() -> None:
    sk = established(mss=1460)
    sk.sndbuf = 46_080
    sk.snd_cwnd = 40
    sendmsg.sndbuf_expand(sk)
    assert sk.sndbuf == 2 * 40 * 2304
    sk.snd_cwnd = 20
    sendmsg.sndbuf_expand(sk)
    assert sk.sndbuf == 2 * 40 * 2304, "it never shrinks here"
    sk.snd_cwnd = 5000
    sendmsg.sndbuf_expand(sk)
    assert sk.sndbuf == 4_194_304


def test_reordering_counts_when_the_window_is_small() -> None:
    """A sender must be able to keep `reordering` + 1 packets in flight to see three duplicate ACKs."""
    sk = established(mss=1460)
    sk.sndbuf, sk.snd_cwnd, sk.reordering = 0, 2, 30
    sendmsg.sndbuf_expand(sk)
    assert sk.sndbuf == 2 * 31 * 2304


def test_sndbuf_grows_only_for_a_writer_that_waits_while_the_window_is_not_full() -> None:
    host = FakeHost()
    sk = established(host, mss=1460)
    sk.sndbuf, sk.snd_cwnd = 46_080, 40
    sendmsg.sendmsg(sk, bytes(14_600))
    input.receive(sk, segment(sk, ack=1461))
    assert sk.sndbuf == 46_080, "nobody waits for room"
    sk.nospace = True
    input.receive(sk, segment(sk, ack=2921))
    assert sk.sndbuf >= 2 * 40 * 2304
    sk.sndbuf, sk.nospace = 46_080, True
    sk.snd_cwnd = sk.packets_out - 1
    sk.ca_state = const.CA_RECOVERY
    sendmsg.check_space(sk)
    assert sk.sndbuf == 46_080, "the window is what limits"


def test_growing_the_buffer_counts_as_using_the_window() -> None:
    """The buffer kept cwnd from being used: it must not decay for that (tcp_new_space)."""
    host = FakeHost()
    sk = established(host, mss=1000)
    sk.cwnd_stamp = host.now_ns
    host.advance(700 * MS)
    sk.nospace = True
    sendmsg.check_space(sk)
    assert sk.cwnd_stamp == host.now_ns


# ---------------------------------------------------------------- room


def test_a_write_is_taken_until_a_new_skb_would_be_needed() -> None:
    """sndbuf 20000: 22 segments of 1460 fill the first skb; each 5 pushed out of it make room that is
    refilled without a test: 32120 + 2·7300 (measured: 46,720 at IW10)."""
    host = FakeHost()
    sk = established(host, mss=1460, window=65_535, srtt_us=20_000)
    sk.pacing_rate = 1460 * 10 * 2 * 50
    sk.min_rtt_us = 20_000
    sk.sysctl.tcp_min_tso_segs = 5
    sk.sndbuf = 20_000
    assert sendmsg.sendmsg(sk, bytes(1_000_000)) == 46_720
    assert sk.nospace
    with pytest.raises(BlockingIOError):
        sendmsg.sendmsg(sk, b"x")


def test_the_tail_is_filled_however_full_the_buffer_is() -> None:
    sk, _ = held()
    sk.sndbuf = 5000
    sendmsg.sendmsg(sk, bytes(10_000))
    assert sk.wmem_queued == BASE + 10_000
    assert sendmsg.sendmsg(sk, bytes(100)) == 100
    assert queued(sk) == [10_100]


def test_notsent_lowat_holds_back_new_skbs_only() -> None:
    sk, _ = held()
    setsockopt(sk, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1)
    assert sendmsg.sendmsg(sk, bytes(100)) == 100
    assert sendmsg.sendmsg(sk, bytes(100)) == 100, "into the tail skb"
    skb = sk.write_queue.tail
    assert skb is not None
    skb.eor = True
    with pytest.raises(BlockingIOError):
        sendmsg.sendmsg(sk, bytes(100))


def test_the_socket_is_writable_up_to_two_thirds_of_sndbuf() -> None:
    """sndbuf − queued ≥ queued/2."""
    sk, _ = held()
    sk.sndbuf = 3000
    sk.wmem_queued = 2000
    assert sendmsg.stream_is_writeable(sk)
    sk.wmem_queued = 2002
    assert not sendmsg.stream_is_writeable(sk)


def test_writability_wants_less_than_half_of_notsent_lowat_unsent() -> None:
    sk, _ = held()
    sk.sndbuf = 1 << 20
    setsockopt(sk, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1000)
    sendmsg.sendmsg(sk, bytes(499))
    assert sendmsg.stream_is_writeable(sk)
    sendmsg.sendmsg(sk, bytes(1))
    assert not sendmsg.stream_is_writeable(sk)


def test_the_waiting_writer_is_woken_when_a_third_is_free() -> None:
    host = FakeHost()
    sk = established(host, mss=1000, window=4000)
    sk.snd_cwnd = 20
    sk.sndbuf = 9000
    sk.sndbuf_locked = True
    taken = sendmsg.sendmsg(sk, bytes(20_000))
    assert taken < 20_000
    assert sk.nospace
    upto = 1
    while not host.woken:
        assert sk.wmem_queued * 3 > 2 * sk.sndbuf
        upto += 1000
        input.receive(sk, segment(sk, ack=upto))
    assert host.woken[0] == (sk, const.POLLOUT)
    assert sk.wmem_queued * 3 <= 2 * sk.sndbuf
    assert not sk.nospace


# ---------------------------------------------------------------- errors


def test_before_the_handshake_is_over_a_write_must_wait() -> None:
    sk = make_sock(state=const.SYN_SENT)
    with pytest.raises(BlockingIOError):
        sendmsg.sendmsg(sk, b"x")
    assert sk.nospace


@pytest.mark.parametrize("state", [const.CLOSE, const.LISTEN, const.FIN_WAIT1, const.FIN_WAIT2, const.LAST_ACK, const.CLOSING])
def test_where_nothing_can_be_sent_any_more_it_is_a_broken_pipe(state: int) -> None:
    sk = make_sock(state=state)
    with pytest.raises(BrokenPipeError):
        sendmsg.sendmsg(sk, b"x")


def test_a_pending_error_is_reported_once() -> None:
    sk = make_sock(state=const.CLOSE, sk_err=errno.ECONNRESET)
    with pytest.raises(ConnectionResetError):
        sendmsg.sendmsg(sk, b"x")
    with pytest.raises(BrokenPipeError):
        sendmsg.sendmsg(sk, b"x")


def test_after_shutdown_of_the_sending_side_it_is_a_broken_pipe() -> None:
    sk = established(shutdown=const.SEND_SHUTDOWN)
    with pytest.raises(BrokenPipeError):
        sendmsg.sendmsg(sk, b"x")


def test_an_empty_write_does_nothing() -> None:
    host = FakeHost()
    sk = established(host)
    assert sendmsg.sendmsg(sk, b"") == 0
    assert (host.sent, len(sk.write_queue)) == ([], 0)


# ---------------------------------------------------------------- where bytes go


def test_skbs_are_filled_to_the_size_goal_and_no_further() -> None:
    """Peer's largest window 20000: the goal is half of it in whole segments, 10 of 1000."""
    sk, _ = held(window=20_000)
    sendmsg.sendmsg(sk, bytes(25_000))
    assert queued(sk) == [10_000, 10_000, 5_000]
    sendmsg.sendmsg(sk, bytes(6_000))
    assert queued(sk) == [10_000, 10_000, 10_000, 1_000]


def test_memory_is_payload_plus_a_base_per_skb() -> None:
    sk, _ = held(window=20_000)
    sendmsg.sendmsg(sk, bytes(25_000))
    assert sk.wmem_queued == 25_000 + 3 * BASE


def test_seventeen_pieces_fill_an_skb_however_small_they_are() -> None:
    """One program writes 10 bytes to each of two corked sockets in turn, 60 times: 170, 170, 170, 90 (measured on 6.18 over loopback, each
    but the last with PSH). To one of them alone its bytes lie in one piece."""
    for others, lengths in ((1, [170, 170, 170, 90]), (0, [600])):
        sk, host = held()
        other = established(host, mss=1000)
        sk.nonagle = other.nonagle = const.NAGLE_CORK
        for _ in range(60):
            sendmsg.sendmsg(sk, bytes(10))
            if others:
                sendmsg.sendmsg(other, bytes(10))
        assert queued(sk) == lengths
        assert all(skb.flags & const.PSH for skb in sk.write_queue)


def test_max_skb_frags_lowers_the_number() -> None:
    sk, host = held()
    other = established(host, mss=1000)
    sk.sysctl.max_skb_frags = 4
    for _ in range(10):
        sendmsg.sendmsg(sk, bytes(10))
        sendmsg.sendmsg(other, b"x", const.MSG_MORE)
    assert queued(sk) == [40, 40, 20]


def test_a_long_write_takes_a_piece_for_every_page_it_lies_in() -> None:
    """32 KiB pages: 60000 bytes from the start of one lie in two; 5536 are left in the second; 100000 more in four."""
    sk, host = held(mss=1000, window=1 << 20)
    sk.max_window = 1 << 20
    sk.gso_max_size = 200_000
    sendmsg.sendmsg(sk, bytes(60_000))
    assert sk.write_queue.tail is not None
    assert (sk.write_queue.tail.nr_frags, host.page_frag.left) == (2, 5536)
    sendmsg.sendmsg(sk, bytes(100_000))
    assert (queued(sk), sk.write_queue.tail.nr_frags) == ([160_000], 5)
    sk.sysctl.max_skb_frags = 6
    sendmsg.sendmsg(sk, bytes(39_000))
    assert queued(sk) == [160_000 + 3840 + 32768, 39_000 - 3840 - 32768], "one page more, then it is full"


def test_what_is_cut_off_keeps_its_share_of_the_pieces() -> None:
    sk, host = held()
    other = established(host, mss=1000)
    for _ in range(10):
        sendmsg.sendmsg(sk, bytes(100))
        sendmsg.sendmsg(other, b"x", const.MSG_MORE)
    skb = sk.write_queue.head
    assert skb is not None
    rest = tso.fragment(sk, skb, 250, 1000)
    assert (skb.nr_frags, rest.nr_frags) == (3, 8), "the third is cut through"


def test_an_end_of_record_is_not_run_over() -> None:
    sk, _ = held()
    sendmsg.sendmsg(sk, bytes(100), const.MSG_EOR)
    sendmsg.sendmsg(sk, bytes(200))
    assert queued(sk) == [100, 200]


def test_a_write_of_several_skbs_marks_only_the_last_as_record_end() -> None:
    sk, _ = held(window=20_000)
    sendmsg.sendmsg(sk, bytes(15_000), const.MSG_EOR)
    assert [skb.eor for skb in sk.write_queue] == [False, True]


def test_push_is_on_the_last_skb_of_a_write() -> None:
    sk, _ = held(window=40_000)
    sendmsg.sendmsg(sk, bytes(30_000))
    assert [bool(skb.flags & const.PSH) for skb in sk.write_queue] == [False, True]
    assert sk.pushed_seq == sk.write_seq


def test_more_to_come_means_no_push() -> None:
    sk, _ = held()
    sendmsg.sendmsg(sk, bytes(100), const.MSG_MORE)
    assert not any(skb.flags & const.PSH for skb in sk.write_queue)


def test_a_write_that_is_continued_takes_the_push_back() -> None:
    """The first bytes of a call clear PSH on the skb they are appended to."""
    sk, _ = held()
    sendmsg.sendmsg(sk, bytes(100))
    sendmsg.sendmsg(sk, bytes(100), const.MSG_MORE)
    assert [bool(skb.flags & const.PSH) for skb in sk.write_queue] == [False]


def test_half_the_peers_largest_window_is_pushed_at_the_latest() -> None:
    """forced_push: write_seq beyond pushed_seq + max_window/2; 20000/2 = 10 segments of 1000."""
    sk, _ = held(window=20_000)
    sendmsg.sendmsg(sk, bytes(10_000), const.MSG_MORE)
    assert [bool(skb.flags & const.PSH) for skb in sk.write_queue] == [False]
    sendmsg.sendmsg(sk, bytes(1), const.MSG_MORE)
    assert [bool(skb.flags & const.PSH) for skb in sk.write_queue] == [False, True]


def test_urgent_data_is_cut_by_segments_and_pointed_to() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, b"ab")
    sendmsg.sendmsg(sk, b"c!", const.MSG_OOB)
    plain, urgent = host.take()
    assert (plain.flags, plain.urg) == ("P.", 0)
    assert (urgent.flags, urgent.urg) == ("PU.", 2), "the byte behind the urgent one, as BSD counts"
    assert sk.snd_up == sk.write_seq


def test_every_segment_ahead_of_urgent_data_announces_it() -> None:
    host = FakeHost()
    sk = established(host, mss=1000, window=1 << 18)
    sk.snd_cwnd = 0
    sendmsg.sendmsg(sk, bytes(2500))
    sendmsg.sendmsg(sk, b"!", const.MSG_OOB)
    assert queued(sk) == [2500, 1], "an urgent write fills skbs to one segment only"
    sk.snd_cwnd = 10
    xmit.push_pending_frames(sk, 1000, 0)
    assert [(s.length, s.urg) for s in host.take()] == [(1000, 2501), (1000, 1501), (501, 501)], "one segment at a time"
    input.receive(sk, segment(sk, ack=2502))
    sendmsg.sendmsg(sk, b"x")
    assert host.take()[0].flags == "P.", "over once it is acknowledged"


def test_an_urgent_pointer_further_than_64_kib_says_ffff() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sk.snd_cwnd = 0
    sendmsg.sendmsg(sk, bytes(70_000))
    sendmsg.sendmsg(sk, b"!", const.MSG_OOB)
    sk.snd_cwnd = 1
    xmit.push_pending_frames(sk, 1000, 0)
    assert [(s.flags, s.urg) for s in host.take()] == [("U.", 0xFFFF)]


def test_any_contiguous_buffer_is_taken_as_bytes() -> None:
    host = FakeHost()
    sk = established(host)
    words = memoryview(bytearray(range(16))).cast("I")
    assert sendmsg.sendmsg(sk, words) == 16
    assert host.take()[0].payload == bytes(range(16))
