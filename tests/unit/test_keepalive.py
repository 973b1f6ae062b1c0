"""Keepalive: probe times, what restarts the idle time, and how a dead peer is given up (all measured)."""

from __future__ import annotations

import errno
from itertools import pairwise

import pytest

from pytcp.tcp import api, const, icmp_err, sockopt_socket, sockopt_tcp
from pytcp.tcp.sock import Sock

from .endpoint import MS, Peer, World, connection
from .test_handshake import near

SECOND = 1000 * MS
IPPROTO_TCP, SOL_SOCKET = 6, 1
PROBE = ". 0:0 ack 1"


def enable(sk: Sock, idle: int = 1, interval: int = 1, count: int = 3) -> None:
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_KEEPIDLE, idle)
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_KEEPINTVL, interval)
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_KEEPCNT, count)
    api.setsockopt(sk, SOL_SOCKET, sockopt_socket.SO_KEEPALIVE, 1)


def watched(idle: int = 1, interval: int = 1, count: int = 3) -> tuple[World, Peer, Sock, int]:
    world, peer, sk = connection()
    enable(sk, idle, interval, count)
    return world, peer, sk, world.now_ns


def heard(peer: Peer, start: int) -> tuple[list[str], list[float]]:
    segments = peer.heard_all()
    return [str(segment) for segment in segments], [(segment.t_ns - start) / 1e9 for segment in segments]


def test_a_silent_peer_gets_keepcnt_probes_and_one_interval_later_a_reset() -> None:
    world, peer, sk, start = watched()
    world.advance(6 * SECOND)
    lines, times = heard(peer, start)
    assert lines == [PROBE] * 3 + ["R. 1:1 ack 1"]
    assert near(times, [1.03, 2.06, 3.09, 4.11])
    assert api.take_error(sk) == errno.ETIMEDOUT
    assert (sk.state, world.mib.TCPKeepAlive, world.mib.TCPAbortOnTimeout) == (const.CLOSE, 3, 1)
    assert world.table == {}


def test_an_answered_probe_starts_the_idle_time_again() -> None:
    world, peer, sk, start = watched()
    for _ in range(4):
        world.advance(1030 * MS)
        lines, _ = heard(peer, start)
        assert lines == [PROBE]
        peer.send(".", 1, ack=1, win=511)
    assert sk.state == const.ESTABLISHED


@pytest.mark.parametrize("flags", [".", "P."])
def test_any_segment_restarts_the_idle_time(flags: str) -> None:
    world, peer, sk, start = watched(idle=2)
    world.advance(1500 * MS)
    peer.send(flags, 1, 10 if flags == "P." else 0, ack=1, win=511)
    world.advance(1900 * MS)
    assert PROBE not in heard(peer, start)[0]
    world.advance(250 * MS)
    assert len([line for line in heard(peer, start)[0] if line.startswith(". 0:0")]) == 1
    assert sk.state == const.ESTABLISHED


def test_nothing_is_sent_while_data_is_in_flight() -> None:
    world, peer, sk, start = watched()
    api.sendmsg(sk, b"x")
    world.advance(5 * SECOND)
    assert PROBE not in heard(peer, start)[0]
    assert world.mib.TCPKeepAlive == 0


def test_nothing_is_sent_while_data_waits_behind_a_closed_window() -> None:
    world, peer, sk, _start = watched()
    peer.send(".", 1, ack=1, win=0)
    api.sendmsg(sk, bytes(100))
    world.advance(5 * SECOND)
    assert world.mib.TCPKeepAlive == 0
    assert world.mib.TCPWinProbe > 0
    assert sk.state == const.ESTABLISHED


def test_it_works_in_half_closed_connections() -> None:
    for half in ("FIN_WAIT2", "CLOSE_WAIT"):
        world, peer, sk = connection()
        if half == "FIN_WAIT2":
            api.shutdown(sk, api.SHUT_WR)
            peer.send(".", 1, ack=2, win=511)
        else:
            peer.send("F.", 1, ack=1, win=511)
        enable(sk)
        world.advance(400 * MS)
        peer.heard()
        world.advance(8 * SECOND)
        assert world.mib.TCPKeepAlive == 3
        assert sk.state == const.CLOSE


def test_keepidle_lowered_while_on_counts_from_the_last_segment() -> None:
    world, peer, sk, start = watched(idle=3)
    world.advance(2500 * MS)
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_KEEPIDLE, 1)
    world.advance(10 * MS)
    lines, times = heard(peer, start)
    assert (lines, near(times, [2.51])) == ([PROBE], True)


def test_keepidle_changed_while_off_is_only_remembered() -> None:
    world, peer, sk = connection()
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_KEEPIDLE, 1)
    world.advance(5 * SECOND)
    assert peer.heard() == []


def test_switching_it_off_stops_the_probes() -> None:
    world, peer, sk, _ = watched()
    world.advance(1100 * MS)
    peer.heard()
    api.setsockopt(sk, SOL_SOCKET, sockopt_socket.SO_KEEPALIVE, 0)
    world.advance(10 * SECOND)
    assert (peer.heard(), sk.state) == ([], const.ESTABLISHED)


def test_it_starts_with_the_connection_when_set_before() -> None:
    world = World()
    lsk = world.listening()
    enable(lsk)
    _, peer, child = connection(world, lsk=lsk)
    world.advance(1100 * MS)
    assert peer.heard() == [PROBE]
    client_peer = Peer(world, 80)
    sk = world.socket()
    enable(sk)
    world.connecting(client_peer, sk)
    client_peer.heard()
    client_peer.send("S.", 0, ack=1, mss=1460)
    client_peer.heard()
    world.advance(1100 * MS)
    assert client_peer.heard() == [PROBE]
    assert child.state == const.ESTABLISHED


@pytest.mark.parametrize(("timeout", "probes", "end"), [(2500, 2, 3.08), (500, 1, 2.04), (1500, 1, 2.04)])
def test_tcp_user_timeout_replaces_the_count_but_one_probe_is_sent(timeout: int, probes: int, end: float) -> None:
    world, peer, sk, start = watched(count=9)
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_USER_TIMEOUT, timeout)
    world.advance(6 * SECOND)
    lines, times = heard(peer, start)
    assert lines == [PROBE] * probes + ["R. 1:1 ack 1"]
    assert abs(times[-1] - end) < 0.05
    assert api.take_error(sk) == errno.ETIMEDOUT


def test_an_icmp_error_about_a_probe_is_out_of_the_window() -> None:
    world, peer, sk, _ = watched()
    world.advance(1100 * MS)
    icmp_err.error(world, sk, 4, bytes(4) + (sk.iss & 0xFFFFFFFF).to_bytes(4, "big"), 3, 1, 0, bytes(4))
    assert world.mib.OutOfWindowIcmps == 1
    world.advance(5 * SECOND)
    assert api.take_error(sk) == errno.ETIMEDOUT
    peer.heard()


def test_an_icmp_error_inside_the_window_is_the_reason_given_at_the_end() -> None:
    world, _, sk, _ = watched()
    world.advance(1100 * MS)
    icmp_err.error(world, sk, 4, bytes(4) + ((sk.iss + 1) & 0xFFFFFFFF).to_bytes(4, "big"), 3, 1, 0, bytes(4))
    world.advance(5 * SECOND)
    assert api.take_error(sk) == errno.EHOSTUNREACH


def test_the_defaults_are_two_hours_75_seconds_and_nine_probes() -> None:
    world, peer, sk = connection()
    api.setsockopt(sk, SOL_SOCKET, sockopt_socket.SO_KEEPALIVE, 1)
    start = world.now_ns
    world.advance(9000 * SECOND)
    lines, times = heard(peer, start)
    assert lines == [PROBE] * 9 + ["R. 1:1 ack 1"]
    # the timer wheel is 131 s coarse two hours ahead, 2 s at 75 s
    assert 7200 <= times[0] < 7200 + 140
    assert all(75 <= b - a < 78 for a, b in pairwise(times))
