"""TIME-WAIT and the orphan's FIN_WAIT2: what a mini block answers, when it ends, who may replace it."""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.tcp import api, const, timewait
from pytcp.tcp.sock import Sock
from pytcp.tcp.timewait import TimeWait

from .endpoint import LOCAL, MS, Peer, World, client, connection

SECOND = 1000 * MS


def waiting(world: World | None = None, *, fin: bool = True, data: int = 100, **syn: Any) -> tuple[World, Peer, TimeWait]:
    """The block after a close by us: TIME_WAIT, or without the peer's FIN FIN_WAIT2. The peer sent `data` bytes."""
    world, peer, sk = connection(world, **syn)
    ts = (syn["ts"][0] + 10, 0) if "ts" in syn else None
    if data:
        peer.send("P.", 1, data, ack=1, win=511, ts=ts)
        api.recv(sk, data)
    api.close(sk)
    peer.send(".", 1 + data, ack=2, win=511, ts=ts)
    if fin:
        peer.send("F.", 1 + data, ack=2, win=511, ts=ts)
    peer.heard()
    (block,) = world.table.values()
    assert isinstance(block, TimeWait)
    return world, peer, block


# ---------------------------------------------------------------- TIME_WAIT (all measured)


@pytest.mark.parametrize(
    ("flags", "seq", "length", "ack", "answered"),
    [
        ("P.", 1, 100, 2, True),  # old data
        ("P.", 102, 10, 2, True),  # new data
        ("F.", 101, 0, 2, True),  # the FIN again
        ("S", 1, 0, None, True),  # a SYN with an old number
        (".", 102, 0, 500, False),  # a bare ACK, of what we never sent
        (".", 102, 0, 2, False),  # a bare ACK, right
        (".", 101, 0, 2, True),  # an old bare ACK
        ("R", 90, 0, None, False),  # a RST that is not exact
    ],
)
def test_answers_in_time_wait(flags: str, seq: int, length: int, ack: int | None, answered: bool) -> None:
    world, peer, block = waiting()
    peer.send(flags, seq, length, ack=ack, win=511)
    answers = peer.heard_all()
    assert [(str(answer), answer.window) for answer in answers] == ([(". 2:2 ack 102", 64512)] if answered else [])
    assert list(world.table.values()) == [block]


def test_answers_without_data_are_limited() -> None:
    world, peer, _ = waiting()
    peer.send("S", 1)
    peer.send("S", 1)
    assert peer.heard() == [". 2:2 ack 102"]
    peer.send("P.", 1, 100, ack=2)
    peer.send("P.", 1, 100, ack=2)
    assert peer.heard() == [". 2:2 ack 102"] * 2
    assert world.mib.TCPACKSkippedTimeWait == 1
    world.advance(501 * MS)
    peer.send("S", 1)
    assert len(peer.heard()) == 1


def test_it_lasts_a_minute_whatever_tcp_fin_timeout_says() -> None:
    world, _, _ = waiting(World(tcp_fin_timeout=2))
    world.advance(59 * SECOND)
    assert world.table
    world.advance(4 * SECOND)
    assert (world.table, world.mib.sockstat.tw, world.mib.TcpCurrEstab) == ({}, 0, 0)


def test_a_repeated_fin_or_a_late_ack_starts_the_minute_again_a_syn_does_not() -> None:
    for flags, seq, prolongs in (("F.", 101, True), (".", 102, True), ("S", 1, False)):
        world, peer, _ = waiting()
        world.advance(50 * SECOND)
        peer.send(flags, seq, ack=2)
        world.advance(20 * SECOND)
        assert bool(world.table) is prolongs


def test_a_reset_kills_it_unless_rfc_1337_is_followed() -> None:
    for rfc1337 in (0, 1):
        world, peer, _ = waiting(World(tcp_rfc1337=rfc1337))
        peer.send("R", 102)
        assert peer.heard() == []
        assert bool(world.table) is bool(rfc1337)


def test_its_answers_have_the_sockets_tos_and_a_fresh_ttl() -> None:
    _, peer, sk = connection()
    sk.tos = 0xB8
    sk.ttl = 9
    api.close(sk)
    peer.send(".", 1, ack=2, win=511)
    peer.send("F.", 1, ack=2, win=511)
    answer = peer.heard_all()[-1]
    peer.send("F.", 1, ack=2, win=511)
    again = peer.hear()
    assert (answer.tos, again.tos, again.ttl) == (0xB8, 0xB8, 64)


def test_its_answers_carry_timestamps() -> None:
    world, peer, block = waiting(ts=(5000, 0))
    world.advance(7 * MS)
    peer.send("F.", 101, ack=2, ts=(5020, 0))
    answer = peer.hear()
    assert answer.ts == ((world.now_ns // MS + block.ts_offset) & 0xFFFFFFFF, 5010)


def test_old_timestamps_are_answered_and_counted() -> None:
    world, peer, _ = waiting(ts=(5000, 0))
    peer.send(".", 102, ack=2, ts=(5009, 0))
    assert peer.heard() == [". 2:2 ack 102"]
    assert world.mib.PAWSTimewait == 1


# ---------------------------------------------------------------- a new SYN


def test_a_syn_above_the_old_numbers_opens_a_new_connection_65537_above_ours() -> None:
    world, peer, _ = waiting()
    peer.send("S", 90_000, mss=1460)
    # our old snd_nxt is 2
    assert peer.heard() == ["S. 65539:65539 ack 90001"]
    assert world.mib.sockstat.tw == 0
    peer.send(".", 90_001, ack=65540)
    assert world.accepted(world.listeners[b"", 8080]).state == const.ESTABLISHED


@pytest.mark.parametrize("seq", [102, 101, -5000])
def test_a_syn_at_or_below_the_old_numbers_is_refused_without_timestamps(seq: int) -> None:
    world, peer, block = waiting()
    peer.send("S", seq, mss=1460)
    assert peer.heard() == [". 2:2 ack 102"]
    assert list(world.table.values()) == [block]


def test_a_newer_timestamp_opens_it_whatever_the_number() -> None:
    for tsval, opened in ((5011, True), (5010, False), (5009, False)):
        _, peer, _ = waiting(ts=(5000, 0))
        peer.send("S", -5000, mss=1460, ts=(tsval, 0))
        assert peer.hear().flags == ("S." if opened else ".")


def test_with_a_full_syn_queue_the_proven_peer_still_gets_in() -> None:
    _, peer, _ = waiting(World(tcp_syncookies=2))
    peer.send("S", 90_000, mss=1460, ws=7, sack=True)
    assert peer.hear().order == ["mss", "nop", "nop", "sackok", "nop", "ws"]


def test_without_a_listener_the_new_syn_is_only_acknowledged() -> None:
    world, peer, sk = client()
    api.close(sk)
    peer.send(".", 1, ack=2)
    peer.send("F.", 1, ack=2)
    peer.heard()
    peer.send("S", 90_000, mss=1460)
    assert peer.heard() == [". 2:2 ack 2"]
    assert world.table


# ---------------------------------------------------------------- FIN_WAIT2


def test_the_fin_turns_fin_wait2_into_time_wait_for_a_minute() -> None:
    world, peer, block = waiting(World(tcp_fin_timeout=30), fin=False)
    assert block.substate == const.FIN_WAIT2
    world.advance(20 * SECOND)
    peer.send("F.", 101, ack=2)
    assert peer.heard() == [". 2:2 ack 102"]
    assert block.substate == const.TIME_WAIT
    world.advance(50 * SECOND)
    assert world.table


@pytest.mark.parametrize(
    ("flags", "seq", "length", "answers", "lives"),
    [
        (".", 101, 0, [], True),  # a duplicate ACK
        ("P.", 1, 100, [". 2:2 ack 101"], True),  # old data
        ("P.", 51, 51, ["R 2:2"], False),  # its last byte is new
        (".", 101 + 70_000, 0, [". 2:2 ack 101"], True),  # beyond the window
        ("P.", 101, 10, ["R 2:2"], False),  # new data
        ("FP.", 101, 10, ["R 2:2"], False),
        ("S", 101, 0, ["R. -2:-2 ack 102"], False),
        ("R", 101, 0, [], False),
    ],
)
def test_answers_in_fin_wait2(flags: str, seq: int, length: int, answers: list[str], lives: bool) -> None:
    world, peer, _ = waiting(fin=False)
    peer.send(flags, seq, length, ack=2 if "." in flags else None)
    heard = peer.heard_all()
    if answers and answers[0].startswith("R. "):
        assert [(segment.flags, segment.ack) for segment in heard] == [("R.", 102)]
    else:
        assert [str(segment) for segment in heard] == answers
    assert bool(world.table) is lives
    assert world.mib.TCPAbortOnData == 0


# ---------------------------------------------------------------- how many, and how they are counted


def test_at_tcp_max_tw_buckets_the_connection_just_ends() -> None:
    world = World(tcp_max_tw_buckets=1)
    waiting(world)
    world2_peer = Peer(world, 50001)
    world2_peer.syn()
    world2_peer.heard()
    world2_peer.send(".", 1, ack=1, win=511)
    sk = world.accepted(world.listeners[b"", 8080])
    api.close(sk)
    world2_peer.send("F.", 1, ack=2, win=511)
    assert world.mib.TCPTimeWaitOverflow == 1
    assert len(world.table) == 1


def test_blocks_set_for_four_seconds_or_less_count_as_killed() -> None:
    for timeout, counted in ((2, (0, 1)), (4, (0, 1)), (5, (1, 0)), (60, (1, 0))):
        world, _, _ = waiting(World(tcp_fin_timeout=timeout), fin=False)
        assert (world.mib.TW, world.mib.TWKilled) == counted


def test_the_block_holds_the_port_until_it_ends() -> None:
    world, _, block = waiting()
    assert block in world.held[8080]
    world.advance(65 * SECOND)
    assert block not in world.held.get(8080, ())


# ---------------------------------------------------------------- connect() over it


def old_connection(*, ts: tuple[int, int] | None, **sysctls: Any) -> tuple[World, Peer, Sock]:
    """TIME_WAIT of a connection from our port 45001, and a second socket bound there."""
    world = World(**sysctls)
    peer = Peer(world, 80)

    def bound() -> Sock:
        sk = world.socket()
        sk.reuseaddr = True
        api.bind(sk, b"", 45001)
        return sk

    sk = world.connecting(peer, bound())
    syn = peer.hear()
    answer = None if ts is None else (ts[0], 0)
    assert (ts is None) == (syn.ts is None)
    peer.send("S.", 0, ack=1, mss=1460, ws=7, sack=True, ts=answer)
    api.close(sk)
    peer.send(".", 1, ack=2, ts=answer)
    peer.send("F.", 1, ack=2, ts=answer)
    peer.heard()
    return world, peer, bound()


def test_an_explicitly_bound_port_takes_over_a_time_wait_with_timestamps() -> None:
    world, peer, sk = old_connection(ts=(5000, 0), tcp_tw_reuse=0)
    first = peer.local_isn
    world.advance(10 * MS)
    api_error = None
    try:
        api.connect(sk, peer.addr, peer.port)
    except OSError as error:
        api_error = error
    assert isinstance(api_error, BlockingIOError)
    syn = peer.hear()
    # sequence numbers still relative to the first connection: snd_nxt 2 + 65537; 45 segments of 1448
    assert (peer.local_isn, str(syn), syn.window) == (first, "S 65539:65539", 65160)
    assert syn.ts is not None and syn.ts[1] == 5000
    assert (world.mib.TWRecycled, world.mib.sockstat.tw) == (1, 0)


def test_without_timestamps_it_does_not() -> None:
    world, peer, sk = old_connection(ts=None, tcp_timestamps=0, tcp_tw_reuse=1)
    world.advance(5 * SECOND)
    with pytest.raises(OSError, match="4-tuple"):
        api.connect(sk, peer.addr, peer.port)
    assert sk.state == const.CLOSE


@pytest.mark.parametrize(
    ("reuse", "delay_ms", "after_ms", "usable"),
    [(1, 1000, 1300, True), (1, 1000, 300, False), (1, 100, 300, True), (1, 1, 10, True), (0, 1000, 1300, False), (2, 1000, 1300, False)],
)
def test_an_automatic_port_obeys_tcp_tw_reuse_and_its_delay(reuse: int, delay_ms: int, after_ms: int, usable: bool) -> None:
    world, _, sk = old_connection(ts=(5000, 0), tcp_tw_reuse=reuse, tcp_tw_reuse_delay=delay_ms)
    world.advance(after_ms * MS)
    (block,) = world.table.values()
    assert timewait.reusable(sk, block, True) is usable


def test_tcp_tw_reuse_2_is_for_loopback() -> None:
    world, _, sk = old_connection(ts=(5000, 0), tcp_tw_reuse=2)
    world.advance(1300 * MS)
    (block,) = world.table.values()
    for address, usable in ((b"\x7f\x00\x00\x01", True), (LOCAL, False), (bytes(15) + b"\x01", True), (bytes(10) + b"\xff\xff\x7f\x00\x00\x01", True)):
        block.daddr = address
        assert timewait.reusable(sk, block, True) is usable


def test_fin_wait2_is_never_reused_automatically() -> None:
    world, _, block = waiting(World(tcp_tw_reuse=1), fin=False, ts=(5000, 0))
    world.advance(5 * SECOND)
    assert timewait.reusable(world.socket(), block, True) is False


def test_paws_has_no_memory_beyond_2147_seconds() -> None:
    world = World()
    now = timewait.now_s(world)
    for age, rst, rejected in ((10, False, True), (2146, False, True), (2147, False, False), (59, True, True), (60, True, False)):
        assert timewait.paws_reject(world, 1000, now - age, 999, rst) is rejected
    assert not timewait.paws_reject(world, 1000, now, 1000, False)
    assert not timewait.paws_reject(world, 0, now, 999, False)
    # 2 is newer than 0xFFFFFFFE
    assert not timewait.paws_reject(world, 0xFFFFFFFE, now, 2, False)
