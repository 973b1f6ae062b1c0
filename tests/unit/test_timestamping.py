"""SO_TIMESTAMPING of what is sent (linux-sockets §6; recordings f09, f11)."""

from __future__ import annotations

import errno

import pytest

from pytcp.tcp import api
from pytcp.tcp.sock import Sock
from pytcp.tcp.timestamping import ACKED, OPT_ID, OPT_ID_TCP, OPT_STATS, OPT_TSONLY, SCHED, SND, SOFTWARE, TX_ACK, TX_SCHED, TX_SOFTWARE, stats

from .endpoint import MS, Peer, World, connection

SOL_SOCKET, SO_TIMESTAMPING = 1, 37
ALL = TX_SCHED | TX_SOFTWARE | TX_ACK | SOFTWARE | OPT_ID | OPT_TSONLY


def stamped(flags: int = ALL) -> tuple[World, Peer, Sock]:
    world, peer, sk = connection()
    api.setsockopt(sk, SOL_SOCKET, SO_TIMESTAMPING, flags)
    return world, peer, sk


def records(sk: Sock) -> list[tuple[int, int]]:
    """(kind, number) of what the error queue holds."""
    found = []
    while sk.error_queue:
        report = api.read_error_queue(sk)
        assert (report.errno, report.origin) == (errno.ENOMSG, 4)
        found.append((report.info, report.data))
    return found


@pytest.mark.parametrize("flags", [1 << 16, 1 << 12, 1 << 19, -1, OPT_ID_TCP | OPT_TSONLY])
def test_flags_that_do_not_go_together_are_refused(flags: int) -> None:
    """f12: OPT_ID_TCP needs OPT_ID, OPT_STATS needs OPT_TSONLY, bit 19 does not exist."""
    _, _, sk = connection()
    with pytest.raises(OSError) as caught:
        api.setsockopt(sk, SOL_SOCKET, SO_TIMESTAMPING, flags)
    assert caught.value.errno == errno.EINVAL
    assert api.getsockopt(sk, SOL_SOCKET, SO_TIMESTAMPING) == 0


def test_bytes_are_not_numbered_without_a_connection() -> None:
    world = World()
    for sk in (world.socket(), world.listening()):
        with pytest.raises(OSError) as caught:
            api.setsockopt(sk, SOL_SOCKET, SO_TIMESTAMPING, OPT_ID | TX_ACK)
        assert caught.value.errno == errno.EINVAL
        api.setsockopt(sk, SOL_SOCKET, SO_TIMESTAMPING, TX_ACK)


def test_the_last_byte_of_a_write_is_watched() -> None:
    _, peer, sk = stamped()
    api.sendmsg(sk, bytes(4000))
    assert records(sk) == [(SCHED, 3999), (SND, 3999)]
    peer.send(".", 1, ack=2921, win=511)
    assert records(sk) == []
    peer.send(".", 1, ack=4001, win=511)
    assert records(sk) == [(ACKED, 3999)]


def test_a_retransmission_leaves_again_and_is_acknowledged_once() -> None:
    world, peer, sk = stamped()
    api.sendmsg(sk, bytes(100))
    records(sk)
    world.advance(1500 * MS)
    times = len([line for line in peer.heard() if line.startswith("P. 1:101")]) - 1
    assert times >= 2
    assert records(sk) == [(SCHED, 99), (SND, 99)] * times
    peer.send(".", 1, ack=101, win=511)
    assert records(sk) == [(ACKED, 99)]


def test_the_wish_goes_with_its_byte_when_the_window_splits_the_write() -> None:
    """Window 896 of 3000 bytes: what leaves first does not hold the last byte (f11)."""
    world = World()
    lsk = world.listening()
    peer = Peer(world)
    peer.syn(win=1000)
    peer.heard()
    peer.send(".", 1, ack=1, win=7)
    sk = world.accepted(lsk)
    api.setsockopt(sk, SOL_SOCKET, SO_TIMESTAMPING, ALL)
    api.sendmsg(sk, bytes(3000))
    assert records(sk) == []
    peer.send(".", 1, ack=897, win=511)
    assert records(sk) == [(SCHED, 2999), (SND, 2999)]


def test_numbers_begin_with_what_is_unacknowledged_or_with_what_is_unwritten() -> None:
    for flags, number in ((ALL, 149), (ALL | OPT_ID_TCP, 99)):
        _, _, sk = connection()
        api.sendmsg(sk, bytes(50))
        api.setsockopt(sk, SOL_SOCKET, SO_TIMESTAMPING, flags)
        api.setsockopt(sk, 6, 1, 1)
        api.sendmsg(sk, bytes(100))
        assert (SND, number) in records(sk)


def test_a_record_carries_the_packet_unless_it_is_to_have_none() -> None:
    """Ethernet, IPv4 and TCP headers are 54 bytes."""
    _, peer, sk = stamped(TX_SOFTWARE | TX_ACK)
    api.sendmsg(sk, b"hello")
    report = api.read_error_queue(sk)
    assert (len(report.payload), report.payload[-5:], report.data) == (59, b"hello", 0)
    peer.send(".", 1, ack=6, win=511)
    assert api.read_error_queue(sk).payload == b"hello"


def test_figures_of_the_connection_come_with_the_acknowledgement() -> None:
    """The 27 attributes of Linux 6.18 fill 256 bytes (f09)."""
    _, peer, sk = stamped(TX_ACK | OPT_ID | OPT_TSONLY | OPT_STATS)
    api.sendmsg(sk, bytes(100))
    peer.send(".", 1, ack=101, win=511)
    payload = api.read_error_queue(sk).payload
    assert len(payload) == 256
    attributes = {}
    at = 0
    while at < len(payload):
        size, kind = int.from_bytes(payload[at : at + 2], "little"), int.from_bytes(payload[at + 2 : at + 4], "little")
        attributes[kind] = int.from_bytes(payload[at + 4 : at + size], "little")
        at += -(-size // 4) * 4
    assert len(attributes) == 27
    snd_cwnd, data_segs_out, bytes_sent = 8, 4, 18
    assert (attributes[snd_cwnd], attributes[data_segs_out], attributes[bytes_sent]) == (10, 1, 100)
    assert stats(sk) != payload[:-1]
