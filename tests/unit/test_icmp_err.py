"""ICMP errors: what each means to a connection in each stage, and which are believed (measured tables)."""

from __future__ import annotations

import errno
import struct
from typing import Any

import pytest

from pytcp.tcp import api, const, icmp_err, sockopt_ip
from pytcp.tcp.sock import Sock

from .endpoint import MS, Peer, World, connection

IPPROTO_IP = 0
# type, code, errno (0: no effect)
TABLE4 = [
    (3, 0, "ENETUNREACH"), (3, 1, "EHOSTUNREACH"), (3, 2, "ENOPROTOOPT"), (3, 3, "ECONNREFUSED"), (3, 5, "EOPNOTSUPP"), (3, 6, "ENETUNREACH"),
    (3, 7, "EHOSTDOWN"), (3, 8, "ENONET"), (3, 9, "ENETUNREACH"), (3, 10, "EHOSTUNREACH"), (3, 11, "ENETUNREACH"), (3, 12, "EHOSTUNREACH"),
    (3, 13, "EHOSTUNREACH"), (3, 14, "EHOSTUNREACH"), (3, 15, "EHOSTUNREACH"), (3, 16, ""), (11, 0, "EHOSTUNREACH"), (11, 1, ""), (12, 0, "EPROTO"),
    (4, 0, ""), (5, 0, ""),
]  # fmt: skip
TABLE6 = [
    (1, 0, "ENETUNREACH"), (1, 1, "EACCES"), (1, 2, "EHOSTUNREACH"), (1, 3, "EHOSTUNREACH"), (1, 4, "ECONNREFUSED"), (1, 5, "EACCES"), (1, 6, "EACCES"),
    (1, 7, "EPROTO"), (3, 0, "EHOSTUNREACH"), (3, 1, "EHOSTUNREACH"), (4, 0, "EPROTO"), (4, 1, "EPROTO"), (4, 2, "EPROTO"),
]  # fmt: skip
TABLE = [(4, *row) for row in TABLE4] + [(6, *row) for row in TABLE6]
# errors that end a half-open connection: measured for every code
HALF_OPEN4 = {(3, 0), (3, 1), (11, 0), (12, 0)}
HALF_OPEN6 = {(1, 1), (1, 4), (1, 5), (1, 6), (1, 7), (4, 0), (4, 1), (4, 2)}


ROUTER = bytes([192, 0, 2, 1])


def number(name: str) -> int:
    return getattr(errno, name) if name else 0


def inject(world: World, sk: Any, offset: int, kind: int, code: int, info: int = 0, family: int = 4) -> None:
    """An error that quotes the sequence number `offset` behind our ISN."""
    isn = sk.iss if isinstance(sk, Sock) else sk.snt_isn
    icmp_err.error(world, sk, family, struct.pack("!HHI", sk.sport, sk.dport, (isn + offset) & 0xFFFFFFFF), kind, code, info, ROUTER)


def opening(family: int) -> tuple[World, Sock]:
    world = World()
    return world, world.connecting(Peer(world, 80, family=family))


@pytest.mark.parametrize(("family", "kind", "code", "name"), TABLE)
def test_an_error_about_our_syn_ends_the_attempt(family: int, kind: int, code: int, name: str) -> None:
    world, sk = opening(family)
    inject(world, sk, 0, kind, code, family=family)
    assert sk.state == (const.CLOSE if name else const.SYN_SENT)
    assert api.take_error(sk) == number(name)
    assert world.mib.TcpAttemptFails == bool(name)


@pytest.mark.parametrize(("family", "kind", "code", "name"), TABLE)
def test_an_established_connection_keeps_it_as_the_soft_error(family: int, kind: int, code: int, name: str) -> None:
    world, _, sk = connection()
    inject(world, sk, 1, kind, code, family=family)
    assert (sk.state, api.poll(sk)) == (const.ESTABLISHED, const.POLLOUT)
    assert api.take_error(sk) == number(name)
    assert api.take_error(sk) == 0


@pytest.mark.parametrize(("family", "kind", "code", "name"), TABLE)
def test_with_recverr_it_is_the_pending_error_at_once(family: int, kind: int, code: int, name: str) -> None:
    world, _, sk = connection()
    api.setsockopt(sk, IPPROTO_IP, sockopt_ip.IP_RECVERR, 1)
    inject(world, sk, 1, kind, code, family=family)
    assert api.poll(sk) == (const.POLLOUT | const.POLLERR if name else const.POLLOUT)
    with pytest.raises(OSError) as caught:
        api.recv(sk, 10)
    assert caught.value.errno == (number(name) or errno.EAGAIN)
    assert sk.state == const.ESTABLISHED
    with pytest.raises(OSError) as caught:
        api.read_error_queue(sk)
    assert caught.value.errno == errno.EAGAIN, "nothing is queued for a connected socket"


@pytest.mark.parametrize(("family", "kind", "code", "name"), [*TABLE, (6, 2, 0, "")])
def test_which_errors_end_a_half_open_connection(family: int, kind: int, code: int, name: str) -> None:
    world = World()
    lsk = world.listening(family=family)
    peer = Peer(world, family=family)
    peer.syn()
    peer.heard()
    (request,) = world.table.values()
    inject(world, request, 0, kind, code, family=family)
    ends = (kind, code) in (HALF_OPEN4 if family == 4 else HALF_OPEN6)
    assert len(lsk.syn_queue) == (not ends)
    assert world.mib.ListenDrops == ends
    peer.send(".", 1, ack=1)
    assert peer.heard() == (["R 1:1"] if ends else [])
    assert name == "" or number(name) > 0


def test_an_error_about_another_number_leaves_a_half_open_connection_alone() -> None:
    world = World()
    lsk = world.listening()
    Peer(world).syn()
    (request,) = world.table.values()
    for offset in (-1, 1):
        inject(world, request, offset, 3, 1)
    assert (len(lsk.syn_queue), world.mib.OutOfWindowIcmps) == (1, 2)


@pytest.mark.parametrize(("quoted", "believed"), [(-1, False), (0, False), (1, True), (50, True), (101, True), (102, False), (1 << 31, False)])
def test_the_quoted_number_must_be_in_flight(quoted: int, believed: bool) -> None:
    world, _, sk = connection()
    api.sendmsg(sk, bytes(100))
    inject(world, sk, quoted, 3, 3)
    assert api.take_error(sk) == (errno.ECONNREFUSED if believed else 0)
    assert world.mib.OutOfWindowIcmps == (not believed)


def test_a_connecting_socket_with_recverr_queues_the_error_with_the_segments_head() -> None:
    world = World()
    peer = Peer(world, 80)
    sk = world.socket()
    api.setsockopt(sk, IPPROTO_IP, sockopt_ip.IP_RECVERR, 1)
    world.connecting(peer, sk)
    inject(world, sk, 0, 3, 1)
    assert api.poll(sk) & const.POLLERR
    record = api.read_error_queue(sk)
    assert (record.errno, record.origin, record.type, record.code, record.info, record.data, record.offender) == (errno.EHOSTUNREACH, 2, 3, 1, 0, 0, ROUTER)
    assert record.payload == sk.sport.to_bytes(2, "big") + (80).to_bytes(2, "big") + (sk.iss & 0xFFFFFFFF).to_bytes(4, "big")
    assert api.take_error(sk) == 0, "reading the queue has cleared it"


def test_switching_recverr_off_empties_the_queue() -> None:
    world = World()
    sk = world.socket()
    api.setsockopt(sk, IPPROTO_IP, sockopt_ip.IP_RECVERR, 1)
    world.connecting(Peer(world, 80), sk)
    inject(world, sk, 0, 3, 1)
    api.setsockopt(sk, IPPROTO_IP, sockopt_ip.IP_RECVERR, 0)
    with pytest.raises(BlockingIOError):
        api.read_error_queue(sk)


def test_errors_for_closed_sockets_and_time_wait_go_unheard() -> None:
    world, peer, sk = connection()
    api.shutdown(sk, api.SHUT_WR)
    peer.send(".", 1, ack=2, win=511)
    peer.send("F.", 1, ack=2, win=511)
    (block,) = world.table.values()
    icmp_err.error(world, block, 4, bytes(8), 3, 1, 0, ROUTER)
    inject(world, sk, 2, 3, 1)
    assert (api.take_error(sk), len(world.table), world.mib.OutOfWindowIcmps) == (0, 1, 0)


# ---------------------------------------------------------------- path MTU


def test_fragmentation_needed_resends_the_flight_in_smaller_segments() -> None:
    world, peer, sk = connection()
    api.sendmsg(sk, bytes(2920))
    peer.heard()
    sk.dst.mtu = 1000
    inject(world, sk, 1, 3, 4, 1000)
    assert max(segment.length for segment in peer.heard_all()) == 960
    assert api.take_error(sk) == 0


def test_packet_too_big_below_1280_is_ignored() -> None:
    for mtu, believed in ((0, False), (68, False), (1279, False), (1280, True)):
        world = World()
        lsk = world.listening(family=6)
        peer = Peer(world, family=6)
        peer.syn()
        peer.heard()
        peer.send(".", 1, ack=1, win=511)
        sk = world.accepted(lsk)
        api.sendmsg(sk, bytes(2880))
        sk.dst.mtu = mtu
        sk.dst.mtu = max(mtu, 1280) if believed else 1500
        inject(world, sk, 1, 2, 0, mtu, family=6)
        assert (sk.pmtu_cookie == 1280) is believed


# ---------------------------------------------------------------- RFC 6069


def retransmitted_twice() -> tuple[World, Peer, Sock]:
    """One segment in flight whose RTO has fired twice."""
    world, peer, sk = connection()
    api.sendmsg(sk, bytes(100))
    while sk.backoff < 2:
        world.advance(20 * MS)
    peer.heard()
    return world, peer, sk


@pytest.mark.parametrize(("family", "kind", "code", "reverts"), [(4, 3, 0, True), (4, 3, 1, True), (4, 3, 3, False), (6, 1, 0, True), (6, 1, 3, False)])
def test_an_unreachable_path_takes_back_one_doubling(family: int, kind: int, code: int, reverts: bool) -> None:
    world, peer, sk = retransmitted_twice()
    rto = sk.rto_ns
    inject(world, sk, 1, kind, code, family=family)
    assert sk.backoff == (1 if reverts else 2)
    assert sk.rto_ns == (rto // 2 if reverts else rto)
    if reverts:
        head = sk.rtx_queue.head
        assert head is not None
        world.advance_to(head.tx_ns + sk.rto_ns + 40 * MS)
        assert peer.heard() == ["P. 1:101 ack 1"]


def test_only_the_number_being_retransmitted_counts() -> None:
    world, _, sk = retransmitted_twice()
    inject(world, sk, 50, 3, 1)
    assert sk.backoff == 2


def test_a_reverted_timer_that_is_over_retransmits_at_once() -> None:
    world, peer, sk = retransmitted_twice()
    world.advance(sk.rto_ns * 3 // 4)
    assert peer.heard() == []
    inject(world, sk, 1, 3, 1)
    assert peer.heard() == ["P. 1:101 ack 1"]
