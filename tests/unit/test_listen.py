"""LISTEN: which segments open a connection, the two queues, and what a child inherits."""

from __future__ import annotations

import errno
from struct import pack
from typing import Any

import pytest

from pytcp.tcp import api, const, sockopt_ip, sockopt_socket, sockopt_tcp
from pytcp.wire.tcpopt import Mss, WindowScale

from .endpoint import LOCAL, MS, Peer, World, connection
from .test_handshake import RCVBUFS

SOL_SOCKET, IPPROTO_TCP, IPPROTO_IP = 1, 6, 0
SYN_ACK = "S. 0:0 ack 1"


def half_open(world: World, port: int, **syn: Any) -> Peer:
    """A peer whose SYN was sent; what it heard is still to be read."""
    peer = Peer(world, port)
    peer.syn(**syn)
    return peer


def established_peer(world: World, port: int) -> Peer:
    peer = half_open(world, port)
    peer.heard()
    peer.send(".", 1, ack=1, win=511)
    return peer


# ---------------------------------------------------------------- segments at a listener


@pytest.mark.parametrize(
    ("flags", "ack", "answer"),
    [
        (".", 5000, ["R 5000:5000"]),
        ("S.", 5000, ["R 5000:5000"]),
        ("F.", 5000, ["R 5000:5000"]),
        ("F", 0, []),
        ("-", 0, []),
        ("SF", 0, []),
        ("SR", 0, []),
        ("R", 0, []),
        ("R.", 5000, []),
    ],
)
def test_what_is_not_a_syn(flags: str, ack: int, answer: list[str]) -> None:
    world = World()
    world.listening()
    peer = Peer(world)
    peer.local_isn = 0
    peer.send(flags, 0, ack=ack, mss=1460)
    assert peer.heard() == answer
    assert world.table == {}


def test_push_and_urgent_do_not_spoil_a_syn() -> None:
    world = World()
    world.listening()
    peer = Peer(world)
    peer.send("SPU", 0, mss=1460, ws=7, sack=True)
    assert peer.heard() == [SYN_ACK]


def test_the_syn_ack_offers_44_segments_or_45_with_timestamps() -> None:
    for syn, window in (({}, 64240), ({"ts": (5000, 0)}, 65160)):
        world = World()
        world.listening()
        answer = half_open(world, 50000, **syn).hear()
        assert (answer.window, answer.option(Mss).value, answer.option(WindowScale).shift) == (window, 1460, 10)


def test_data_in_a_syn_is_not_taken() -> None:
    world = World()
    lsk = world.listening()
    peer = Peer(world)
    peer.send("S", 0, 100, mss=1460)
    assert peer.heard() == [SYN_ACK]
    peer.send(".", 1, ack=1)
    assert api.inq(world.accepted(lsk)) == 0


@pytest.mark.parametrize(("asked", "rcvbuf", "window", "wscale", "clamp"), RCVBUFS)
def test_the_syn_ack_window_follows_so_rcvbuf(asked: int, rcvbuf: int, window: int, wscale: int, clamp: int) -> None:
    world = World()
    lsk = world.socket()
    api.setsockopt(lsk, SOL_SOCKET, sockopt_socket.SO_RCVBUF, asked)
    api.bind(lsk, b"", 8080)
    api.listen(lsk, 5)
    peer = half_open(world, 50000)
    answer = peer.hear()
    assert (answer.window, answer.option(WindowScale).shift) == (window, wscale)
    peer.send(".", 1, ack=1, win=511)
    child = world.accepted(lsk)
    assert (child.rcvbuf, child.window_clamp) == (rcvbuf, clamp)


def test_a_syn_without_a_way_back_is_dropped() -> None:
    world = World()
    world.listening()
    world.unreachable = OSError(errno.ENETUNREACH, "Network is unreachable")
    assert half_open(world, 50000).heard() == []
    assert world.mib.ListenDrops == 1


# AE, CWR, ECE of the SYN and the IP ECN field; accepted or not (tcp_ecn 2, measured)
ECN_SYNS = [("S", 0, False), ("SE", 0, False), ("SW", 0, False), ("SEW", 0, True), ("SEW", 2, False), ("SA", 0, False), ("SEA", 0, False), ("SWA", 0, False)]
ECN_SYNS += [("SEWA", bits, True) for bits in (0, 1, 2, 3)]


@pytest.mark.parametrize(("flags", "ip_ecn", "accepted"), ECN_SYNS)
@pytest.mark.parametrize("tcp_ecn", [0, 1, 2])
def test_ecn_is_accepted_from_a_plain_request(flags: str, ip_ecn: int, accepted: bool, tcp_ecn: int) -> None:
    world = World(tcp_ecn=tcp_ecn)
    lsk = world.listening()
    peer = Peer(world)
    peer.send(flags, 0, mss=1460, ws=7, sack=True, tos=ip_ecn)
    accepted = accepted and tcp_ecn > 0
    answer = peer.hear()
    assert (answer.flags, answer.tos) == ("SE." if accepted else "S.", 0)
    peer.send(".", 1, ack=1)
    assert bool(api.tcp_info(world.accepted(lsk)).options & 8) is accepted


def test_tcp_reflect_tos_answers_with_the_syns_dscp() -> None:
    for reflect, tos in ((0, 0x20), (1, 0xB8)):
        world = World(tcp_reflect_tos=reflect)
        lsk = world.listening()
        api.setsockopt(lsk, IPPROTO_IP, sockopt_ip.IP_TOS, 0x20)
        peer = half_open(world, 50000, tos=0xBB)
        assert peer.hear().tos == tos
        peer.send(".", 1, ack=1)
        api.sendmsg(world.accepted(lsk), b"x")
        assert peer.hear().tos & ~3 == tos


# ---------------------------------------------------------------- queues


def test_backlog_plus_one_established_connections_wait_and_further_syns_are_dropped() -> None:
    world = World()
    lsk = world.listening(backlog=1)
    for port in (1, 2):
        established_peer(world, port)
    for port in (3, 4):
        assert half_open(world, port).heard() == []
    assert (world.mib.ListenOverflows, world.mib.ListenDrops) == (2, 2)
    assert api.tcp_info(lsk).unacked == 2
    assert api.tcp_info(lsk).sacked == 1
    world.accepted(lsk)
    assert half_open(world, 5).heard() == [SYN_ACK]


def test_backlog_plus_one_half_open_connections_then_cookies() -> None:
    world = World()
    world.listening(backlog=2)
    answers = [half_open(world, port).hear().order for port in range(1, 9)]
    full, cookie = ["mss", "nop", "nop", "sackok", "nop", "ws"], ["mss"]
    assert answers == [full] * 3 + [cookie] * 5
    assert (world.mib.SyncookiesSent, world.mib.TCPReqQFullDoCookies) == (5, 5)


def test_without_cookies_a_full_syn_queue_drops() -> None:
    world = World(tcp_syncookies=0)
    world.listening(backlog=2)
    assert [half_open(world, port).heard() for port in range(1, 6)] == [[SYN_ACK]] * 3 + [[]] * 2
    assert (world.mib.TCPReqQFullDrop, world.mib.ListenDrops) == (2, 2)


def test_without_cookies_the_last_quarter_of_the_syn_backlog_is_not_for_strangers() -> None:
    world = World(tcp_syncookies=0, tcp_max_syn_backlog=8)
    world.listening(backlog=100)
    answered = [bool(half_open(world, port).heard()) for port in range(1, 10)]
    assert answered == [True] * 7 + [False] * 2


def test_a_final_ack_that_finds_the_accept_queue_full_is_ignored_and_the_syn_ack_repeated() -> None:
    world = World(tcp_syncookies=0)
    lsk = world.listening(backlog=1)
    peers = [half_open(world, port) for port in (1, 2)]
    for peer in peers:
        peer.heard()
    peers[0].send(".", 1, ack=1)
    third = half_open(world, 3)
    third.heard()
    peers[1].send(".", 1, ack=1)
    third.send(".", 1, ack=1)
    assert third.heard() == []
    assert (world.mib.ListenOverflows, world.mib.ListenDrops) == (1, 1)
    world.advance(4000 * MS)
    assert third.heard() == [SYN_ACK] * 2, "at 1 and 3 s, although it was acknowledged (measured)"
    world.accepted(lsk)
    third.send("P.", 1, 10, ack=1)
    assert third.heard() == [". 1:1 ack 11"]
    assert api.inq(lsk.accept_queue[-1]) == 10


def test_tcp_abort_on_overflow_resets_instead() -> None:
    world = World(tcp_syncookies=0, tcp_abort_on_overflow=1)
    world.listening(backlog=1)
    first, second = half_open(world, 1), half_open(world, 2)
    for peer in (first, second):
        peer.heard()
    first.send(".", 1, ack=1)
    third = half_open(world, 3)
    third.heard()
    second.send(".", 1, ack=1)
    third.send(".", 1, ack=1)
    assert third.heard() == ["R 1:1"]
    assert world.mib.EmbryonicRsts == 1


def test_listen_bounds_the_backlog_by_somaxconn() -> None:
    for asked, used in ((5, 5), (4096, 4096), (5000, 4096), (-1, 4096), (0, 0)):
        world = World()
        sk = world.socket()
        api.bind(sk, b"", 8080)
        api.listen(sk, asked)
        assert sk.backlog == used
    api.listen(sk, 7)
    assert sk.backlog == 7


def test_a_listener_without_a_port_gets_one() -> None:
    world = World()
    sk = world.socket()
    api.listen(sk, 5)
    assert sk.sport == sk.bound_port != 0
    peer = Peer(world, 50000, sk.sport)
    peer.syn()
    assert peer.heard() == [SYN_ACK]


def test_two_listeners_cannot_share_a_port() -> None:
    world = World()
    world.listening()
    other = world.socket()
    other.reuseaddr = True
    with pytest.raises(OSError) as caught:
        api.bind(other, b"", 8080)
        api.listen(other, 5)
    assert caught.value.errno == errno.EADDRINUSE
    assert other.state == const.CLOSE


def test_closing_a_listener_resets_what_nobody_accepted_and_forgets_what_is_half_open() -> None:
    world = World()
    lsk = world.listening()
    done, half = established_peer(world, 1), half_open(world, 2)
    half.heard()
    assert api.close(lsk) == 0
    assert done.heard() == ["R. 1:1 ack 1"]
    assert world.mib.TcpEstabResets == 1
    half.send(".", 1, ack=1)
    assert half.heard() == ["R 1:1"]
    assert (world.table, world.held, world.listeners) == ({}, {}, {})
    world.advance(120_000 * MS)
    assert half.heard() == []


def test_shutdown_of_a_listener_ends_it_and_listen_works_again() -> None:
    world = World()
    lsk = world.listening()
    api.shutdown(lsk, api.SHUT_WR)
    assert lsk.state == const.LISTEN
    api.shutdown(lsk, api.SHUT_RD)
    assert lsk.state == const.CLOSE
    assert half_open(world, 1).heard() == ["R. 0:0 ack 1"]
    api.listen(lsk, 5)
    assert half_open(world, 2).heard() == [SYN_ACK]


def test_the_listener_is_woken_for_each_completed_child() -> None:
    world = World()
    lsk = world.listening()
    established_peer(world, 1)
    established_peer(world, 2)
    assert [events for sk, events in world.woken if sk is lsk] == [const.POLLIN] * 2


def test_a_child_reset_while_it_waits_is_still_accepted_and_reports_it() -> None:
    world = World()
    lsk = world.listening()
    peer = established_peer(world, 1)
    peer.send("P.", 1, 10, ack=1)
    peer.send("R.", 11, ack=1)
    child = world.accepted(lsk)
    assert len(api.recv(child, 100)) == 10
    with pytest.raises(ConnectionResetError):
        api.recv(child, 100)


def test_an_ipv6_wildcard_listener_takes_ipv4_connections() -> None:
    world = World()
    lsk = world.listening(family=6)
    peer = established_peer(world, 1)
    child = world.accepted(lsk)
    assert (child.family, child.saddr) == (4, LOCAL)
    api.sendmsg(child, b"x")
    assert peer.heard() == ["P. 1:2 ack 1"]


# ---------------------------------------------------------------- inheritance (measured)

INT_OPTIONS = [
    (IPPROTO_TCP, sockopt_tcp.TCP_NODELAY, 1, 1),
    (IPPROTO_TCP, sockopt_tcp.TCP_MAXSEG, 700, 700),
    (IPPROTO_TCP, sockopt_tcp.TCP_CORK, 1, 1),
    (IPPROTO_TCP, sockopt_tcp.TCP_KEEPIDLE, 11, 11),
    (IPPROTO_TCP, sockopt_tcp.TCP_KEEPINTVL, 12, 12),
    (IPPROTO_TCP, sockopt_tcp.TCP_KEEPCNT, 13, 13),
    (IPPROTO_TCP, sockopt_tcp.TCP_SYNCNT, 3, 3),
    (IPPROTO_TCP, sockopt_tcp.TCP_LINGER2, 7, 7),
    (IPPROTO_TCP, sockopt_tcp.TCP_WINDOW_CLAMP, 20000, 20000),
    (IPPROTO_TCP, sockopt_tcp.TCP_QUICKACK, 0, 0),
    (IPPROTO_TCP, sockopt_tcp.TCP_THIN_LINEAR_TIMEOUTS, 1, 1),
    (IPPROTO_TCP, sockopt_tcp.TCP_USER_TIMEOUT, 777, 777),
    (IPPROTO_TCP, sockopt_tcp.TCP_NOTSENT_LOWAT, 555, 555),
    (IPPROTO_TCP, sockopt_tcp.TCP_SAVE_SYN, 1, 1),
    (IPPROTO_TCP, sockopt_tcp.TCP_INQ, 1, 1),
    (IPPROTO_TCP, sockopt_tcp.TCP_TX_DELAY, 10, 10),
    (IPPROTO_TCP, sockopt_tcp.TCP_RTO_MAX_MS, 5000, 5000),
    (IPPROTO_TCP, sockopt_tcp.TCP_RTO_MIN_US, 50000, 52000),
    (IPPROTO_TCP, sockopt_tcp.TCP_DELACK_MAX_US, 50000, 52000),
    (SOL_SOCKET, sockopt_socket.SO_REUSEADDR, 1, 1),
    (SOL_SOCKET, sockopt_socket.SO_KEEPALIVE, 1, 1),
    (SOL_SOCKET, sockopt_socket.SO_OOBINLINE, 1, 1),
    (SOL_SOCKET, sockopt_socket.SO_PRIORITY, 3, 0),
    (SOL_SOCKET, sockopt_socket.SO_RCVLOWAT, 50, 50),
    (SOL_SOCKET, sockopt_socket.SO_SNDBUF, 10000, 20000),
    (SOL_SOCKET, sockopt_socket.SO_RCVBUF, 10000, 20000),
    (SOL_SOCKET, sockopt_socket.SO_MARK, 5, 5),
    (SOL_SOCKET, sockopt_socket.SO_REUSEPORT, 1, 1),
    (SOL_SOCKET, sockopt_socket.SO_PEEK_OFF, 5, 5),
    (SOL_SOCKET, sockopt_socket.SO_INCOMING_CPU, 1, 1),
    (SOL_SOCKET, sockopt_socket.SO_DONTROUTE, 1, 1),
    (IPPROTO_IP, sockopt_ip.IP_TOS, 8, 8),
    (IPPROTO_IP, sockopt_ip.IP_TTL, 9, 9),
    (IPPROTO_IP, sockopt_ip.IP_RECVERR, 1, 1),
    (IPPROTO_IP, sockopt_ip.IP_MTU_DISCOVER, 0, 0),
    (IPPROTO_IP, sockopt_ip.IP_MINTTL, 2, 2),
]


@pytest.mark.parametrize(("level", "name", "value", "child_value"), INT_OPTIONS)
def test_an_accepted_child_inherits(level: int, name: int, value: int, child_value: int) -> None:
    world = World()
    lsk = world.listening()
    api.setsockopt(lsk, level, name, value)
    _, _, child = connection(world, lsk=lsk)
    assert api.getsockopt(child, level, name) == child_value


def test_listen_forgets_what_was_said_of_quick_acks() -> None:
    world = World()
    sk = world.socket()
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_QUICKACK, 0)
    assert api.getsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_QUICKACK) == 0
    api.listen(sk, 5)
    assert api.getsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_QUICKACK) == 1


def test_a_child_inherits_pacing_linger_and_congestion_control() -> None:
    world = World()
    lsk = world.listening()
    api.setsockopt(lsk, SOL_SOCKET, sockopt_socket.SO_MAX_PACING_RATE, 100_000)
    api.setsockopt(lsk, SOL_SOCKET, sockopt_socket.SO_LINGER, pack("ii", 1, 5))
    api.setsockopt(lsk, IPPROTO_TCP, sockopt_tcp.TCP_CONGESTION, b"reno")
    _, _, child = connection(world, lsk=lsk)
    assert (child.max_pacing_rate, child.linger, child.cong_name) == (100_000, 5, "reno")
    assert child.ca is not lsk.ca


def test_a_childs_options_are_its_own() -> None:
    world = World()
    lsk = world.listening()
    api.setsockopt(lsk, IPPROTO_TCP, sockopt_tcp.TCP_INQ, 1)
    _, _, child = connection(world, lsk=lsk)
    api.setsockopt(child, IPPROTO_TCP, sockopt_tcp.TCP_INQ, 0)
    assert api.getsockopt(lsk, IPPROTO_TCP, sockopt_tcp.TCP_INQ) == 1


# ---------------------------------------------------------------- TCP_SAVE_SYN


def test_saved_headers_are_read_once_and_a_short_buffer_keeps_them() -> None:
    world = World()
    lsk = world.listening()
    api.setsockopt(lsk, IPPROTO_TCP, sockopt_tcp.TCP_SAVE_SYN, 1)
    _, peer, child = connection(world, lsk=lsk)
    with pytest.raises(OSError) as caught:
        api.getsockopt(child, IPPROTO_TCP, sockopt_tcp.TCP_SAVED_SYN, 10)
    assert caught.value.errno == errno.EINVAL
    saved = api.getsockopt(child, IPPROTO_TCP, sockopt_tcp.TCP_SAVED_SYN, 200)
    assert isinstance(saved, bytes)
    # 20 bytes of IPv4, 20 of TCP, 12 of options: MSS, SACK permitted, NOP NOP, NOP window scale
    assert len(saved) == 52
    assert saved[0] == 0x45 and saved[12:20] == peer.addr + LOCAL
    assert saved[20:24] == pack("!HH", peer.port, 8080) and saved[33] == const.SYN
    assert api.getsockopt(child, IPPROTO_TCP, sockopt_tcp.TCP_SAVED_SYN, 200) == b""


def test_nothing_is_saved_unless_asked() -> None:
    _, _, child = connection()
    assert api.getsockopt(child, IPPROTO_TCP, sockopt_tcp.TCP_SAVED_SYN, 200) == b""
