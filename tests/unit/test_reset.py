"""Resets for segments that belong to nobody (RFC 9293 §3.5.2): their form is fixed to the bit."""

from __future__ import annotations

import pytest

from .endpoint import Peer, World

# (flags, payload) -> flags, seq, ack of the answer; all measured. The peer's ACK number is 5000.
WITHOUT_ACK = [("S", 0, 1), ("S", 10, 11), ("F", 0, 1), ("SF", 0, 2), ("-", 10, 10), ("P", 3, 3)]
WITH_ACK = [(".", 0), (".", 10), ("S.", 0), ("F.", 0), ("SF.", 7), ("PU.", 3)]


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize(("flags", "length", "ack"), WITHOUT_ACK)
def test_a_segment_without_ack_is_acknowledged_with_sequence_zero(flags: str, length: int, ack: int, family: int) -> None:
    world = World()
    peer = Peer(world, family=family)
    peer.local_isn = 0
    peer.send(flags, 0, length)
    answer = peer.hear()
    assert (answer.flags, answer.seq, answer.ack, answer.length, answer.window, answer.options) == ("R.", 0, ack, 0, 0, ())


@pytest.mark.parametrize(("flags", "length"), WITH_ACK)
def test_a_segment_with_ack_lends_its_number(flags: str, length: int) -> None:
    world = World()
    peer = Peer(world)
    peer.local_isn = 0
    peer.send(flags, 0, length, ack=5000)
    answer = peer.hear()
    assert (answer.flags, answer.seq, answer.ack, answer.window, answer.options) == ("R", 5000, None, 0, ())


@pytest.mark.parametrize("flags", ["R", "R.", "SR", "FR"])
def test_a_reset_is_never_answered(flags: str) -> None:
    world = World()
    peer = Peer(world)
    peer.send(flags, 0, ack=1)
    assert peer.heard() == []
    assert world.mib.TcpOutRsts == 0


def test_the_answer_has_the_offenders_tos_without_its_ecn_bits() -> None:
    peer = Peer(World())
    peer.send("S", 0, tos=0xBB)
    answer = peer.hear()
    assert (answer.tos, answer.ttl) == (0xB8, 64)


def test_resets_are_counted_as_sent_segments_too() -> None:
    world = World()
    peer = Peer(world)
    peer.send("S", 0)
    peer.send("F", 0)
    assert (world.mib.TcpOutRsts, world.mib.TcpOutSegs) == (2, 2)
