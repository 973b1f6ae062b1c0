"""Challenge ACKs and the clock that limits them (RFC 5961; 500 ms per connection, shared by all kinds)."""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.tcp import api, challenge, const

from .endpoint import MS, Peer, World, connection
from .harness import established, segment

CHALLENGE = ". 1001:1001 ack 1"


def sent(**sysctls: Any) -> tuple[World, Peer, Any]:
    """A connection on which we sent 1000 bytes, acknowledged."""
    world, peer, sk = connection(World(**sysctls))
    api.sendmsg(sk, bytes(1000))
    peer.send(".", 1, ack=1001, win=511)
    peer.heard()
    return world, peer, sk


def test_a_reset_inside_the_window_is_challenged_once_in_half_a_second() -> None:
    world, peer, sk = sent()
    peer.send("R", 11)
    assert peer.heard() == [CHALLENGE]
    world.advance(20 * MS)
    peer.send("R", 21)
    assert peer.heard() == []
    world.advance(600 * MS)
    peer.send("R", 31)
    assert peer.heard() == [CHALLENGE]
    assert (world.mib.TCPChallengeACK, world.mib.TCPACKSkippedChallenge, sk.state) == (2, 1, const.ESTABLISHED)


def test_resets_syns_and_acks_of_the_future_share_the_limit() -> None:
    world, peer, _ = sent()
    provocations: list[tuple[str, int, int | None]] = [("R", 11, None), ("S", 1, None), (".", 1, 5000)]
    for flags, seq, ack in provocations:
        peer.send(flags, seq, ack=ack)
        assert peer.heard() == [CHALLENGE]
        for again, number, number2 in provocations:
            peer.send(again, number, ack=number2)
        assert peer.heard() == []
        world.advance(600 * MS)
    assert (world.mib.TCPChallengeACK, world.mib.TCPACKSkippedChallenge, world.mib.TCPSYNChallenge) == (3, 9, 4)


def test_the_exact_reset_is_believed() -> None:
    _, peer, sk = sent()
    peer.send("R", 1)
    assert sk.state == const.CLOSE


@pytest.mark.parametrize("ms", [0, 100, 500, 1000])
def test_tcp_invalid_ratelimit_is_the_pause(ms: int) -> None:
    world, peer, _ = sent(tcp_invalid_ratelimit=ms)
    peer.send("R", 11)
    peer.heard()
    world.advance((ms - 4) * MS if ms else 0)
    peer.send("R", 11)
    assert bool(peer.heard()) is (ms == 0)
    world.advance(8 * MS)
    peer.send("R", 11)
    assert peer.heard() == [CHALLENGE]


def test_a_budget_per_second_lies_between_half_and_one_and_a_half_times_the_limit() -> None:
    world = World(tcp_challenge_ack_limit=100, tcp_invalid_ratelimit=0)
    world, peer, sk = connection(world)
    for _ in range(3):
        for _ in range(200):
            challenge.send_challenge_ack(sk)
        assert 50 <= len(peer.heard()) < 150
        world.advance(1000 * MS)


def test_without_a_limit_there_is_no_budget() -> None:
    world, peer, sk = connection(World(tcp_invalid_ratelimit=0))
    for _ in range(300):
        challenge.send_challenge_ack(sk)
    assert len(peer.heard()) == 300
    assert world.mib.TCPChallengeACK == 300


def test_segments_with_data_or_a_fin_are_always_answered() -> None:
    sk = established()
    counter = "TCPACKSkippedSeq"
    assert not challenge.oow_rate_limited(sk, segment(sk), counter)
    assert challenge.oow_rate_limited(sk, segment(sk), counter)
    assert not challenge.oow_rate_limited(sk, segment(sk, payload=b"x"), counter)
    assert not challenge.oow_rate_limited(sk, segment(sk, const.ACK | const.FIN), counter)
    assert challenge.oow_rate_limited(sk, segment(sk, const.SYN, payload=b"x"), counter)
    assert sk.mib.TCPACKSkippedSeq == 2
