"""Half-open connections: SYN-ACKs in time, and every segment a mini block may meet."""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.tcp import api, const, sockopt_tcp
from pytcp.tcp.request import Request

from .endpoint import MS, Peer, World, connection
from .test_handshake import near

SECOND = 1000 * MS
SYN_ACK = "S. 0:0 ack 1"
IPPROTO_TCP = 6


def half_open(defer: int = 0, *, backlog: int = 5, syn: dict[str, Any] | None = None, **sysctls: Any) -> tuple[World, Peer, Any]:
    """A request whose SYN-ACK was heard; the listener."""
    world = World(**sysctls)
    lsk = world.listening(backlog=backlog)
    if defer:
        api.setsockopt(lsk, IPPROTO_TCP, sockopt_tcp.TCP_DEFER_ACCEPT, defer)
    peer = Peer(world)
    peer.syn(**(syn or {}))
    assert peer.hear().flags == "S."
    (request,) = world.table.values()
    assert isinstance(request, Request)
    return world, peer, lsk


def heard_at(world: World, peer: Peer, seconds: int, start: int) -> list[float]:
    world.advance(seconds * SECOND)
    return [(segment.t_ns - start) / 1e9 for segment in peer.heard_all()]


# ---------------------------------------------------------------- time


def test_five_repetitions_then_the_request_is_forgotten_after_63_seconds() -> None:
    world, peer, lsk = half_open()
    times = heard_at(world, peer, 62, world.now_ns)
    assert near(times, [1.02, 3.03, 7.28, 15.47, 31.60])
    assert len(lsk.syn_queue) == 1
    world.advance(6 * SECOND)
    assert (len(lsk.syn_queue), world.table) == (0, {})
    assert (world.mib.TCPTimeouts, world.mib.TCPSynRetrans, world.mib.TcpRetransSegs) == (6, 5, 5)
    peer.send(".", 1, ack=1)
    assert peer.heard() == ["R 1:1"]


def test_tcp_synack_retries_and_tcp_syncnt_count_repetitions() -> None:
    world, peer, _ = half_open(tcp_synack_retries=2)
    assert near(heard_at(world, peer, 20, world.now_ns), [1.03, 3.04])
    world = World()
    lsk = world.listening()
    api.setsockopt(lsk, IPPROTO_TCP, sockopt_tcp.TCP_SYNCNT, 1)
    peer = Peer(world)
    peer.syn()
    peer.heard()
    assert near(heard_at(world, peer, 20, world.now_ns), [1.03])


def test_old_requests_are_given_up_earlier_when_more_than_half_the_queue_waits() -> None:
    world = World()
    lsk = world.listening(backlog=8)
    peers = [Peer(world, port) for port in range(1, 6)]
    for peer in peers:
        peer.syn()
        peer.heard()
    # 5 of 8, none of them young after a second: two repetitions are enough, until no more than half the queue waits
    world.advance(8 * SECOND)
    assert len(lsk.syn_queue) == 4
    assert sorted(len(peer.heard_all()) for peer in peers) == [2, 3, 3, 3, 3]


def test_a_syn_ack_that_was_repeated_gives_no_rtt_and_no_penalty_the_first_time() -> None:
    for waited, cwnd in ((0.01, 10), (1.5, 10), (3.5, 1)):
        world, peer, lsk = half_open()
        world.advance(int(waited * SECOND))
        peer.send(".", 1, ack=1, win=511)
        info = api.tcp_info(world.accepted(lsk))
        assert info.snd_cwnd == cwnd
        assert info.rto == (212_000 if waited < 1 else 3_000_000)
        assert info.total_rto == (0 if waited < 1 else 1 if waited < 3 else 2)


def test_the_echo_of_the_first_syn_ack_forgives_two_repetitions() -> None:
    world, peer, lsk = half_open(syn={"ts": (5000, 0)})
    (request,) = world.table.values()
    first = request.snt_tsval_first
    world.advance(3500 * MS)
    peer.send(".", 1, ack=1, win=511, ts=(8500, first))
    assert api.tcp_info(world.accepted(lsk)).snd_cwnd == 10


# ---------------------------------------------------------------- segments


def test_a_repeated_syn_is_answered_at_most_twice_a_second() -> None:
    world, peer, _ = half_open()
    answers = []
    for pause in (100, 100, 500):
        world.advance(pause * MS)
        peer.syn()
        answers.append(peer.heard())
    assert answers == [[SYN_ACK], [], [SYN_ACK]]
    assert (world.mib.TCPACKSkippedSynRecv, world.mib.TCPSynRetrans) == (1, 2)


def test_a_repeated_syn_restarts_the_timer() -> None:
    world, peer, _ = half_open()
    world.advance(900 * MS)
    peer.syn()
    peer.heard()
    world.advance(900 * MS)
    assert peer.heard() == []
    world.advance(200 * MS)
    assert peer.heard() == [SYN_ACK]


@pytest.mark.parametrize("ack", [0, 2, 100, -1])
def test_a_wrong_acknowledgement_is_reset_and_the_request_lives(ack: int) -> None:
    world, peer, lsk = half_open()
    peer.send(".", 1, ack=ack)
    assert peer.heard() == [f"R {ack}:{ack}"]
    peer.send(".", 1, ack=1)
    assert len(lsk.accept_queue) == 1
    assert world.mib.EmbryonicRsts == 0


def test_a_segment_outside_the_window_is_told_where_we_stand() -> None:
    for shift, window in ((None, 64240), (7, 62 << 10)):
        world, peer, lsk = half_open(syn={"ws": shift})
        peer.send(".", 1 + 70_000, ack=1)
        answer = peer.hear()
        assert (str(answer), answer.window) == (". 1:1 ack 1", window)
        peer.send(".", 1 + 70_000, ack=1)
        assert peer.heard() == [], "the same clock limits these answers"
        assert (len(lsk.accept_queue), world.mib.TCPACKSkippedSynRecv) == (0, 1)


def test_a_reset_in_the_window_ends_it_silently() -> None:
    world, peer, lsk = half_open()
    peer.send("R", 1)
    assert (peer.heard(), len(lsk.syn_queue), world.table) == ([], 0, {})
    assert (world.mib.EmbryonicRsts, world.mib.TcpAttemptFails) == (1, 1)


def test_a_reset_outside_the_window_does_not() -> None:
    for seq in (0, 2 + 64240):
        _, peer, lsk = half_open()
        peer.send("R", seq)
        assert (peer.heard(), len(lsk.syn_queue)) == ([], 1)


def test_a_syn_inside_the_window_resets_the_attempt() -> None:
    world, peer, lsk = half_open()
    peer.send("S", 50)
    answer = peer.hear()
    assert (answer.flags, answer.ack, answer.window) == ("R.", 51, 0)
    assert len(lsk.syn_queue) == 0
    assert world.mib.EmbryonicRsts == 1


def test_a_segment_without_ack_is_ignored() -> None:
    _, peer, lsk = half_open()
    for flags in ("F", "P", "-"):
        peer.send(flags, 1, 5)
        assert peer.heard() == []
    assert len(lsk.syn_queue) == 1


def test_the_final_ack_may_repeat_the_syn() -> None:
    _, peer, lsk = half_open()
    peer.send("S.", 0, 10, ack=1)
    assert len(lsk.accept_queue) == 1


def test_data_and_a_fin_may_complete_the_handshake() -> None:
    world, peer, lsk = half_open()
    peer.send("FP.", 1, 10, ack=1, win=511)
    child = lsk.accept_queue[0]
    assert (child.state, api.inq(child)) == (const.CLOSE_WAIT, 10)
    world.advance(200 * MS)
    assert peer.heard() == [". 1:1 ack 12"]


def test_an_old_timestamp_is_answered_and_not_believed() -> None:
    world, peer, lsk = half_open(syn={"ts": (5000, 0)})
    peer.send(".", 1, ack=1, ts=(4999, 0))
    assert peer.heard() == [". 1:1 ack 1"]
    assert (len(lsk.accept_queue), world.mib.PAWSEstab) == (0, 1)


def test_an_echo_of_a_timestamp_we_never_sent_is_not_believed() -> None:
    world, peer, lsk = half_open(syn={"ts": (5000, 0)})
    (request,) = world.table.values()
    sent = request.snt_tsval_first
    peer.send(".", 1, ack=1, ts=(5001, sent + 1))
    assert (len(lsk.accept_queue), world.mib.TSEcrRejected) == (0, 1)
    peer.send(".", 1, ack=1, ts=(5001, sent))
    assert len(lsk.accept_queue) == 1


def test_the_child_echoes_the_newest_timestamp() -> None:
    _, peer, child = connection(ts=(5000, 0))
    peer.send("P.", 1, 10, ack=1, ts=(5007, 0), win=511)
    assert peer.hear().ts is not None
    assert child.ts_recent == 5007


# ---------------------------------------------------------------- TCP_DEFER_ACCEPT (measured)


@pytest.mark.parametrize(("seconds", "again"), [(1, 1.02), (3, 3.03), (5, 7.25), (10, 15.43)])
def test_a_bare_ack_is_dropped_until_the_period_ends_with_one_more_syn_ack(seconds: int, again: float) -> None:
    world, peer, lsk = half_open(seconds)
    start = world.now_ns
    peer.send(".", 1, ack=1)
    assert (peer.heard(), len(lsk.accept_queue), world.mib.TCPDeferAcceptDrop) == ([], 0, 1)
    assert near(heard_at(world, peer, int(again) + 1, start), [again])
    peer.send(".", 1, ack=1)
    assert len(lsk.accept_queue) == 1


@pytest.mark.parametrize(("flags", "length"), [("P.", 10), ("F.", 0)])
def test_data_or_a_fin_completes_a_deferred_handshake_at_once(flags: str, length: int) -> None:
    _, peer, lsk = half_open(10)
    peer.send(".", 1, ack=1)
    peer.send(flags, 1, length, ack=1)
    assert len(lsk.accept_queue) == 1


def test_a_deferred_peer_that_stays_silent_gets_its_syn_acks_and_is_forgotten() -> None:
    world, peer, lsk = half_open(1)
    assert near(heard_at(world, peer, 62, world.now_ns), [1.02, 3.03, 7.28, 15.47, 31.60])
    world.advance(6 * SECOND)
    assert len(lsk.syn_queue) == 0
