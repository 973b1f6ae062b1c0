"""What a segment does to a connection, state by state (RFC 9293 §3.10.7, RFC 5961, linux-tcp §8.12, §12)."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from pytcp.tcp import close, const, input, recv, sendmsg
from pytcp.tcp.sock import Sock

from .harness import MS, RCV_ISN, SND_ISN, FakeHost, Sent, established, segment
from .receive_replay import Host, cases, host_of, replay

ACK, FIN, RST, SYN, PSH = const.ACK, const.FIN, const.RST, const.SYN, const.PSH


@pytest.mark.parametrize("name", cases("random_states*", "p02*", "x01*", "e01*"))
def test_every_state_answers_hostile_segments_as_the_kernel_does(name: str) -> None:
    run = replay(name)
    assert run.differences == []


def receiver(**fields: Any) -> tuple[Sock, FakeHost]:
    host = Host(SND_ISN, RCV_ISN)
    sk = established(host, **{"rcv_wnd": 60000, "ato_jiffies": 10, "lrcvtime_ns": host.now_ns - MS, **fields})
    sk.rcv_wup = sk.rcv_nxt
    host.entry = sk
    return sk, host


def hear(sk: Sock, flags: int = ACK, **more: Any) -> list[Sent]:
    """A segment of the peer; what we send at once."""
    input.receive(sk, segment(sk, flags, **more))
    return host_of(sk).take()


def orphan(sk: Sock) -> Sock:
    """The program closes."""
    close.close(sk)
    return sk


# ---------------------------------------------------------------- header prediction


def test_the_expected_data_and_ack_take_the_fast_path() -> None:
    sk, host = receiver(pred=True, forward_alloc=4096)
    hear(sk, payload=b"x" * 100)
    assert sk.mib.TCPHPHits == 1
    sendmsg.sendmsg(sk, b"y" * 100)
    host.take()
    hear(sk, ack=101)
    assert sk.mib.TCPHPAcks == 1


def test_psh_does_not_matter_to_prediction() -> None:
    sk, _ = receiver(pred=True, forward_alloc=4096)
    hear(sk, ACK | PSH, payload=b"x")
    assert sk.mib.TCPHPHits == 1


@pytest.mark.parametrize(
    "unexpected",
    [{"window": 1 << 19}, {"seq": 2}, {"flags": ACK | FIN}, {"flags": ACK | const.URG}, {"flags": ACK | const.ECE}, {"ts": (1, 1)}],
)
def test_anything_else_in_the_header_takes_the_slow_path(unexpected: dict[str, Any]) -> None:
    sk, _ = receiver(pred=True, forward_alloc=4096)
    seg = segment(sk, **{"payload": b"x", **unexpected})
    if "ts" in unexpected:
        seg.doff = 8
    input.receive(sk, seg)
    assert sk.mib.TCPHPHits == 0


def test_a_timestamp_older_than_the_newest_takes_the_slow_path() -> None:
    sk, _ = receiver(timestamps=True, pred=True, forward_alloc=4096, ts_recent=100)
    for tsval, hits in ((99, 0), (100, 1), (101, 2)):
        seg = segment(sk, payload=b"x", ts=(tsval, 0))
        seg.doff = 8
        input.receive(sk, seg)
        assert sk.mib.TCPHPHits == hits


def test_prediction_keeps_to_the_window() -> None:
    """6.17: data beyond the window is not taken on the fast path either."""
    sk, _ = receiver(pred=True, forward_alloc=1 << 16, rcv_wnd=100)
    hear(sk, payload=b"x" * 50)
    hear(sk, payload=b"x" * 51)
    assert (sk.mib.TCPHPHits, sk.mib.BeyondWindow) == (1, 1)


def test_a_super_segment_counts_its_segments() -> None:
    sk, _ = receiver()
    seg = segment(sk, payload=bytes(44000), gso_size=1000, nsegs=44)
    seg.truesize = 832 + 45056
    input.receive(sk, seg)
    hear(sk)
    assert (sk.segs_in, sk.data_segs_in, sk.bytes_received) == (45, 44, 44000)


# ---------------------------------------------------------------- RST


@pytest.mark.parametrize(("seq", "ends"), [(1, True), (0, False), (2, False), (60000, False), (60002, False), (-1, False)])
def test_only_an_exact_reset_is_believed_others_in_the_window_are_challenged(seq: int, ends: bool) -> None:
    sk, _ = receiver()
    sent = hear(sk, RST, seq=seq)
    assert (sk.state == const.CLOSE) is ends
    challenged = 1 < seq <= 60001
    assert len(sent) == challenged
    assert sk.mib.TCPChallengeACK == challenged


def test_a_reset_at_the_right_edge_of_the_highest_sack_is_believed() -> None:
    sk, _ = receiver()
    hear(sk, seq=301, payload=b"x" * 100)
    hear(sk, seq=101, payload=b"x" * 100)
    hear(sk, RST, seq=201)
    assert sk.state == const.ESTABLISHED
    hear(sk, RST, seq=401)
    assert sk.state == const.CLOSE


@pytest.mark.parametrize(
    ("state", "ends"), [(const.ESTABLISHED, False), (const.CLOSE_WAIT, True), (const.LAST_ACK, True), (const.CLOSING, True), (const.FIN_WAIT2, False)]
)
def test_after_the_peers_fin_its_reset_may_carry_the_fins_own_number(state: int, ends: bool) -> None:
    """Even when that lies below the window (x01)."""
    sk, _ = receiver(state=state)
    hear(sk, RST, seq=0)
    assert (sk.state == const.CLOSE) is ends


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (const.ESTABLISHED, errno.ECONNRESET),
        (const.CLOSE_WAIT, errno.EPIPE),
        (const.FIN_WAIT1, errno.ECONNRESET),
        (const.FIN_WAIT2, errno.ECONNRESET),
        (const.LAST_ACK, errno.ECONNRESET),
    ],
)
def test_the_error_of_a_reset_depends_on_what_the_program_still_expected(state: int, error: int) -> None:
    sk, host = receiver(state=state)
    hear(sk, RST)
    assert (sk.state, sk.sk_err) == (const.CLOSE, error)
    assert host.woken


def test_a_reset_of_a_closed_socket_is_nothing() -> None:
    sk, _ = receiver(state=const.CLOSE)
    input.reset(sk)
    assert sk.sk_err == 0


# ---------------------------------------------------------------- SYN, sequence numbers


def test_a_syn_is_challenged_wherever_it_lies_and_counted_as_an_error() -> None:
    for seq in (1, 50000, 100000):
        sk, _ = receiver()
        (sent,) = hear(sk, SYN, seq=seq)
        assert (sent.flags, sent.ack) == (".", 1)
        assert (sk.mib.TCPSYNChallenge, sk.mib.TcpInErrs) == (1, 1)


def test_challenges_are_limited_to_two_a_second_for_all_kinds_together() -> None:
    """p02."""
    sk, host = receiver()
    assert len(hear(sk, RST, seq=11)) == 1
    assert hear(sk, SYN) == []
    assert hear(sk, ack=5000) == []
    assert sk.mib.TCPACKSkippedChallenge == 2
    host.advance(500 * MS)
    assert len(hear(sk, SYN)) == 1


def test_dataless_segments_out_of_window_are_answered_twice_a_second_data_always() -> None:
    sk, _ = receiver()
    assert len(hear(sk, seq=-10)) == 1
    assert hear(sk, seq=-10) == []
    assert sk.mib.TCPACKSkippedSeq == 1
    for _ in range(2):
        assert len(hear(sk, seq=100000, payload=b"x")) == 1


def test_a_keepalive_probe_is_answered() -> None:
    sk, _ = receiver()
    hear(sk, payload=b"abc")
    sk.rcv_wup = sk.rcv_nxt
    (sent,) = hear(sk, seq=3)
    assert sent.ack == 4


def test_a_keepalive_probe_with_an_old_byte_is_answered_with_a_dsack() -> None:
    sk, _ = receiver()
    hear(sk, payload=b"abc")
    sk.rcv_wup = sk.rcv_nxt
    (sent,) = hear(sk, seq=3, payload=b"c")
    assert (sent.ack, len(sent.options)) == (4, 12)


@pytest.mark.parametrize("flags", [0, PSH, FIN, const.URG])
def test_a_segment_without_ack_rst_and_syn_is_dropped(flags: int) -> None:
    sk, _ = receiver()
    assert hear(sk, flags, payload=b"x") == []
    assert sk.rcv_nxt - sk.irs == 1


def test_an_ack_of_what_was_never_sent_is_challenged_and_its_data_dropped() -> None:
    sk, _ = receiver()
    (sent,) = hear(sk, ack=5000, payload=b"x")
    assert sent.ack == 1
    assert not sk.receive_queue


# ---------------------------------------------------------------- FIN and closing


def test_a_fin_is_acknowledged_late_and_moves_to_close_wait() -> None:
    sk, host = receiver()
    assert hear(sk, ACK | FIN, payload=b"bye") == []
    assert (sk.state, sk.shutdown) == (const.CLOSE_WAIT, const.RCV_SHUTDOWN)
    host.advance(50 * MS)
    assert host.take()[0].ack == 5


def test_a_repeated_fin_is_acknowledged_at_once() -> None:
    sk, host = receiver()
    hear(sk, ACK | FIN)
    host.advance(50 * MS)
    host.take()
    (sent,) = hear(sk, ACK | FIN, seq=1)
    assert sent.ack == 2
    assert sk.state == const.CLOSE_WAIT


def test_nothing_can_follow_a_fin() -> None:
    """c18: dropped without a word."""
    sk, host = receiver()
    hear(sk, ACK | FIN)
    host.advance(50 * MS)
    host.take()
    assert hear(sk, seq=2, payload=b"more") == []
    assert sk.rcv_nxt - sk.irs == 2


def test_a_repetition_that_goes_on_past_the_fin_resets() -> None:
    """Recorded: the kernel takes it for data nobody will read."""
    sk, _ = receiver()
    hear(sk, ACK | FIN)
    (reset,) = hear(sk, seq=1, payload=b"more")
    assert (reset.flags, reset.seq) == ("R", 1)
    assert (sk.state, sk.sk_err, sk.mib.TCPAbortOnData) == (const.CLOSE, errno.EPIPE, 1)


def test_our_fin_acknowledged_leads_to_fin_wait2_and_the_peers_to_time_wait() -> None:
    sk, host = receiver()
    close.send_no_more(sk)
    assert sk.state == const.FIN_WAIT1
    hear(sk, ack=2)
    assert sk.state == const.FIN_WAIT2
    (last,) = hear(sk, ACK | FIN, ack=2)
    assert (last.flags, last.seq, last.ack) == (".", 2, 2)
    assert sk.state == const.CLOSE, "the socket is over, a mini block waits in its place"
    assert isinstance(host, Host)
    assert host.entry is not sk
    assert host.entry is not None
    assert recv.recv(sk, 10) == b""


def test_fins_that_cross_lead_through_closing() -> None:
    """c34."""
    sk, _ = receiver()
    close.send_no_more(sk)
    (sent,) = hear(sk, ACK | FIN, ack=1)[-1:]
    assert (sk.state, sent.flags, sent.ack) == (const.CLOSING, ".", 2)
    hear(sk, seq=2, ack=2)
    assert sk.state == const.CLOSE


def test_the_ack_of_our_fin_in_last_ack_ends_the_connection() -> None:
    sk, _ = receiver()
    hear(sk, ACK | FIN)
    close.send_no_more(sk)
    assert sk.state == const.LAST_ACK
    hear(sk, ack=1)
    assert sk.state == const.LAST_ACK
    hear(sk, ack=2)
    assert (sk.state, sk.sk_err) == (const.CLOSE, 0)


def test_data_for_an_open_handle_is_taken_in_fin_wait() -> None:
    sk, _ = receiver()
    close.send_no_more(sk)
    hear(sk, ack=1, payload=b"late")
    hear(sk, ack=2, payload=b"later")
    assert recv.recv(sk, 100) == b"latelater"


def test_new_data_for_a_program_that_has_closed_is_answered_by_a_reset() -> None:
    """c08."""
    sk, host = receiver()
    orphan(sk)
    host.take()
    (reset,) = hear(sk, ack=1, payload=b"late")
    assert (reset.flags, reset.seq) == ("R", 1)
    assert (sk.state, sk.mib.TCPAbortOnData) == (const.CLOSE, 1)


def test_data_with_the_ack_of_an_orphans_fin_is_answered_by_a_reset() -> None:
    """c09."""
    sk, host = receiver()
    orphan(sk)
    host.take()
    (reset,) = hear(sk, ack=2, payload=b"late")
    assert (reset.flags, reset.seq) == ("R", 2)


def test_old_data_does_not_reset_an_orphan() -> None:
    """c10."""
    sk, host = receiver()
    hear(sk, payload=b"early")
    recv.recv(sk, 100)
    orphan(sk)
    host.take()
    (sent,) = hear(sk, seq=1, ack=1, payload=b"early")
    assert sent.flags == "."
    assert sk.state == const.FIN_WAIT1


def test_an_orphan_whose_fin_is_acknowledged_becomes_a_mini_block() -> None:
    sk, host = receiver()
    orphan(sk)
    hear(sk, ack=2)
    assert sk.state == const.CLOSE
    assert isinstance(host, Host)
    assert host.entry is not None
    assert host.entry is not sk


def test_an_orphan_with_negative_linger2_is_reset_instead() -> None:
    """c26."""
    sk, host = receiver(linger2=-1)
    orphan(sk)
    host.take()
    (reset,) = hear(sk, ack=2)
    assert (reset.flags, reset.seq) == ("R", 2)
    assert sk.state == const.CLOSE


def test_an_orphans_long_fin_wait2_begins_as_a_full_socket() -> None:
    sk, _ = receiver(linger2=70)
    orphan(sk)
    hear(sk, ack=2)
    assert sk.state == const.FIN_WAIT2


def test_a_fin_with_the_ack_of_an_orphans_fin_goes_straight_to_time_wait() -> None:
    sk, host = receiver()
    orphan(sk)
    host.take()
    (sent,) = hear(sk, ACK | FIN, ack=2)
    assert (sent.flags, sent.ack) == (".", 2)
    assert sk.state == const.CLOSE
