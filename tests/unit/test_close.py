"""Ends of connections: who sends FIN and who RST, orphans, lingering, FIN_WAIT2 (linux-sockets §1)."""

from __future__ import annotations

import errno
from struct import pack
from typing import Any

import pytest

from pytcp.tcp import api, close, const, sockopt_tcp
from pytcp.tcp.sock import Sock
from pytcp.tcp.timewait import TimeWait

from .endpoint import MS, Peer, World, client, connection
from .test_handshake import near

SECOND = 1000 * MS
SOL_SOCKET, SO_LINGER, IPPROTO_TCP = 1, 13, 6


def linger(sk: Sock, seconds: int) -> None:
    api.setsockopt(sk, SOL_SOCKET, SO_LINGER, pack("ii", 1, seconds))


def orphan(world: World | None = None, *, fin_acked: bool = False, **options: int) -> tuple[World, Peer]:
    """A connection of 10 ms RTT closed by us, its FIN heard."""
    world, peer, sk = connection(world, rtt_ms=10)
    for name, value in options.items():
        api.setsockopt(sk, IPPROTO_TCP, getattr(sockopt_tcp, name), value)
    assert api.close(sk) == 0
    assert peer.heard() == ["F. 1:1 ack 1"]
    if fin_acked:
        peer.send(".", 1, ack=2, win=511)
    return world, peer


def state(world: World) -> str:
    """State of the one connection in the table."""
    if not world.table:
        return "none"
    (entry,) = world.table.values()
    return const.STATE_NAMES[entry.substate if isinstance(entry, TimeWait) else entry.state]


# ---------------------------------------------------------------- close with something unread


@pytest.mark.parametrize(("length", "read"), [(100, 0), (100, 99), (1, 0)])
def test_unread_data_is_told_to_the_peer_by_a_reset(length: int, read: int) -> None:
    world, peer, sk = connection()
    peer.send("P.", 1, length, ack=1, win=511)
    api.recv(sk, read)
    peer.heard()
    api.close(sk)
    answer = peer.hear()
    assert (str(answer), answer.window) == (f"R. 1:1 ack {1 + length}", 64512)
    assert (world.mib.TCPAbortOnClose, world.mib.TcpEstabResets, state(world)) == (1, 1, "none")


def test_unsent_data_is_dropped_with_it() -> None:
    _, peer, sk = connection()
    api.sendmsg(sk, bytes(100_000))
    sent = sk.snd_nxt - sk.iss
    peer.send("P.", 1, 10, ack=1, win=511)
    peer.heard()
    api.close(sk)
    assert peer.heard() == [f"R. {sent}:{sent} ack 11"]


def test_a_fin_alone_is_not_unread_data() -> None:
    world, peer, sk = connection()
    peer.send("F.", 1, ack=1, win=511)
    peer.heard()
    api.close(sk)
    assert peer.heard() == ["F. 1:1 ack 2"]
    assert state(world) == "LAST_ACK"


def test_data_before_a_fin_counts_until_it_is_read() -> None:
    for read, expected in ((0, "R. 1:1 ack 12"), (10, "F. 1:1 ack 12")):
        _, peer, sk = connection()
        peer.send("FP.", 1, 10, ack=1, win=511)
        if read:
            api.recv(sk, read)
        peer.heard()
        api.close(sk)
        assert peer.heard() == [expected]


# ---------------------------------------------------------------- late data


def test_data_after_close_resets_a_fin_wait1_orphan() -> None:
    for ack in (1, 2):
        world, peer = orphan()
        peer.send("P.", 1, 100, ack=ack, win=511)
        answer = peer.hear()
        assert (str(answer), answer.window) == (f"R {ack}:{ack}", 0)
        assert (state(world), world.mib.TCPAbortOnData, world.mib.TcpEstabResets) == ("none", 1, 0)


def test_data_after_close_resets_a_fin_wait2_mini_block_uncounted() -> None:
    world, peer = orphan(fin_acked=True)
    peer.send("P.", 1, 100, ack=2, win=511)
    assert peer.heard() == ["R 2:2"]
    assert (state(world), world.mib.TCPAbortOnData) == ("none", 0)


def test_old_data_repeated_to_an_orphan_is_only_acknowledged() -> None:
    world, peer, sk = connection()
    peer.send("P.", 1, 100, ack=1, win=511)
    api.recv(sk, 100)
    api.close(sk)
    peer.heard()
    peer.send("P.", 1, 100, ack=1, win=511)
    assert peer.heard() == [". 2:2 ack 101"]
    assert state(world) == "FIN_WAIT1"


# ---------------------------------------------------------------- SO_LINGER


def _shut_and_acked(sk: Sock, peer: Peer) -> None:
    api.shutdown(sk, api.SHUT_WR)
    peer.send(".", 1, ack=2, win=511)


def _closing(sk: Sock, peer: Peer) -> None:
    api.shutdown(sk, api.SHUT_WR)
    peer.send("F.", 1, ack=1, win=511)


def _last_ack(sk: Sock, peer: Peer) -> None:
    peer.send("F.", 1, ack=1, win=511)
    api.shutdown(sk, api.SHUT_WR)


LINGER0: dict[str, tuple[Any, list[str]]] = {
    "ESTABLISHED": (lambda sk, peer: None, ["R. 1:1 ack 1"]),
    "ESTABLISHED, unacknowledged": (lambda sk, peer: api.sendmsg(sk, bytes(3000)), ["R. 3001:3001 ack 1"]),
    "CLOSE_WAIT": (lambda sk, peer: peer.send("F.", 1, ack=1, win=511), ["R. 1:1 ack 2"]),
    "FIN_WAIT1": (lambda sk, peer: api.shutdown(sk, api.SHUT_WR), ["R. 2:2 ack 1"]),
    "FIN_WAIT2": (_shut_and_acked, ["R. 2:2 ack 1"]),
    "CLOSING": (_closing, []),
    "LAST_ACK": (_last_ack, []),
}


@pytest.mark.parametrize("name", LINGER0)
def test_linger_zero_aborts(name: str) -> None:
    prepare, sent = LINGER0[name]
    world, peer, sk = connection()
    prepare(sk, peer)
    assert const.STATE_NAMES[sk.state] == name.split(",")[0]
    peer.heard()
    linger(sk, 0)
    assert api.close(sk) == 0
    assert peer.heard() == sent
    assert (state(world), world.mib.TCPAbortOnData) == ("none", 1)


def test_linger_zero_in_syn_sent_is_silent() -> None:
    world = World()
    peer = Peer(world, 80)
    sk = world.connecting(peer)
    peer.heard()
    linger(sk, 0)
    api.close(sk)
    assert (peer.heard(), state(world), world.held) == ([], "none", {})


def test_linger_zero_does_not_touch_time_wait() -> None:
    world, peer, sk = connection()
    _shut_and_acked(sk, peer)
    peer.send("F.", 1, ack=2, win=511)
    peer.heard()
    linger(sk, 0)
    api.close(sk)
    assert (peer.heard(), state(world)) == ([], "TIME_WAIT")


def test_lingering_close_waits_for_the_ack_of_the_fin_not_for_the_peers_close() -> None:
    world, peer, sk = connection()
    linger(sk, 5)
    assert api.close(sk) == 5 * SECOND
    assert peer.heard() == ["F. 1:1 ack 1"]
    assert api.lingering(sk)
    assert world.mib.sockstat.orphan == 0, "not an orphan while the program waits"
    peer.send(".", 1, ack=2, win=511)
    assert not api.lingering(sk)
    api.finish_close(sk)
    assert state(world) == "FIN_WAIT2"


def test_when_the_linger_time_is_over_the_orphan_goes_on_retransmitting() -> None:
    world, peer, sk = connection()
    linger(sk, 1)
    api.sendmsg(sk, bytes(3000))
    assert api.close(sk) == SECOND
    world.advance(SECOND)
    assert api.lingering(sk)
    api.finish_close(sk)
    peer.heard()
    assert (state(world), world.mib.sockstat.orphan) == ("FIN_WAIT1", 1)
    world.advance(5 * SECOND)
    assert peer.heard()
    peer.send(".", 1, ack=3002, win=511)
    assert state(world) == "FIN_WAIT2"


def test_nothing_is_waited_for_where_nothing_is_outstanding() -> None:
    _, peer, sk = connection()
    _shut_and_acked(sk, peer)
    linger(sk, 5)
    assert api.close(sk) == 0


# ---------------------------------------------------------------- orphans


def test_a_silent_peer_gets_the_fin_for_112_seconds() -> None:
    world, peer = orphan()
    start = world.now_ns
    world.advance(100 * SECOND)
    assert near([(fin.t_ns - start) / 1e9 for fin in peer.heard_all()], [0.22, 0.44, 0.90, 1.77, 3.49, 6.91, 13.83, 27.65, 55.04])
    assert state(world) == "FIN_WAIT1"
    world.advance(14 * SECOND)
    assert (state(world), world.mib.sockstat.orphan, world.mib.TCPAbortOnTimeout) == ("none", 0, 1)


@pytest.mark.parametrize(("retries", "fins", "gone"), [(1, 4, 1.77), (2, 5, 3.5), (3, 5, 3.5)])
def test_tcp_orphan_retries_is_a_time_not_a_count(retries: int, fins: int, gone: float) -> None:
    world, peer = orphan(World(tcp_orphan_retries=retries))
    world.advance(int((gone - 0.1) * 1e9))
    assert state(world) == "FIN_WAIT1"
    assert len(peer.heard_all()) == fins - 1
    world.advance(200 * MS)
    assert (state(world), peer.heard()) == ("none", [])
    peer.send(".", 1, ack=2, win=511)
    assert peer.heard() == ["R 2:2"]


def test_an_orphan_behind_a_closed_window_probes_three_times() -> None:
    world, peer, sk = connection(World(tcp_orphan_retries=3), rtt_ms=10)
    peer.send(".", 1, ack=1, win=0)
    api.sendmsg(sk, bytes(3000))
    api.close(sk)
    start = world.now_ns
    world.advance(4 * SECOND)
    assert near([(probe.t_ns - start) / 1e9 for probe in peer.heard_all()], [0.22, 0.64, 1.51])
    assert state(world) == "none"


def test_a_dubious_icmp_error_shortens_an_orphans_life() -> None:
    world, _, sk = connection()
    sk.sk_err_soft = errno.EHOSTUNREACH
    assert close.orphan_retries(sk, alive=True) == 8
    assert close.orphan_retries(sk, alive=False) == 0
    world.sysctl.tcp_orphan_retries = 5
    assert close.orphan_retries(sk, alive=True) == 5
    assert close.orphan_retries(sk, alive=False) == 0


def test_more_orphans_than_tcp_max_orphans_are_reset_at_close() -> None:
    world = World(tcp_max_orphans=1)
    lsk = world.listening()
    first, second = connection(world, port=1, lsk=lsk), connection(world, port=2, lsk=lsk)
    api.close(first[2])
    assert first[1].heard() == ["F. 1:1 ack 1"]
    api.close(second[2])
    assert second[1].heard() == ["F. 1:1 ack 1", "R. 2:2 ack 1"]
    assert (world.mib.TCPAbortOnMemory, world.mib.sockstat.orphan) == (1, 1)


def test_close_before_the_syn_is_answered_ends_the_attempt() -> None:
    world = World()
    peer = Peer(world, 80)
    sk = world.connecting(peer)
    peer.heard()
    api.close(sk)
    assert (peer.heard(), world.table, world.held) == ([], {}, {})
    world.advance(10 * SECOND)
    assert peer.heard() == []
    assert world.mib.TcpAttemptFails == 0


# ---------------------------------------------------------------- FIN_WAIT2


def last_seen(world: World, limit_s: int) -> float:
    """Seconds until the table is empty."""
    start = world.now_ns
    while world.table and world.now_ns < start + limit_s * SECOND:
        world.advance(20 * MS)
    return (world.now_ns - start) / 1e9


@pytest.mark.parametrize(("timeout", "gone"), [(1, 1.0), (2, 2.03), (5, 5.2)])
def test_an_orphan_in_fin_wait2_lasts_tcp_fin_timeout(timeout: int, gone: float) -> None:
    world, peer = orphan(World(tcp_fin_timeout=timeout), fin_acked=True)
    assert abs(last_seen(world, 70) - gone) < 0.3
    peer.send("F.", 1, ack=2, win=511)
    assert peer.heard() == ["R 2:2"]


def test_fin_wait2_lasts_at_least_three_and_a_half_rto() -> None:
    _, _, sk = connection(World(tcp_fin_timeout=1))
    sk.rto_ns = 1504 * MS
    assert close.fin_time(sk) == 5264 * MS
    sk.sysctl.tcp_fin_timeout = 6
    assert close.fin_time(sk) == 6 * SECOND


def test_what_exceeds_a_minute_is_spent_twice_once_as_a_full_socket() -> None:
    # measured: TCP_LINGER2 66 is over after 12.2 s, twice what exceeds the 60 s of TIME-WAIT
    world, peer, sk = connection()
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_LINGER2, 66)
    api.close(sk)
    peer.send(".", 1, ack=2, win=511)
    (entry,) = world.table.values()
    assert entry is sk
    start = world.now_ns
    world.advance(6500 * MS)
    (entry,) = world.table.values()
    assert isinstance(entry, TimeWait)
    last_seen(world, 90)
    assert abs((world.now_ns - start) / 1e9 - 12.2) < 0.4


@pytest.mark.parametrize(("value", "gone"), [(1, 1.01), (3, 3.16)])
def test_tcp_linger2_overrides_tcp_fin_timeout(value: int, gone: float) -> None:
    world, _ = orphan(World(tcp_fin_timeout=5), fin_acked=True, TCP_LINGER2=value)
    assert abs(last_seen(world, 70) - gone) < 0.3


def test_a_negative_tcp_linger2_resets_when_the_fin_is_acknowledged() -> None:
    world, peer = orphan(fin_acked=True, TCP_LINGER2=-1)
    assert peer.heard() == ["R 2:2"]
    assert state(world) == "none"


def test_a_negative_tcp_linger2_resets_at_close_in_fin_wait2() -> None:
    world, peer, sk = connection()
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_LINGER2, -1)
    _shut_and_acked(sk, peer)
    peer.heard()
    api.close(sk)
    assert peer.heard() == ["R. 2:2 ack 1"]
    assert (state(world), world.mib.TCPAbortOnLinger) == ("none", 1)


def test_an_open_handle_waits_in_fin_wait2_for_ever() -> None:
    world, peer, sk = connection(World(tcp_fin_timeout=1))
    _shut_and_acked(sk, peer)
    world.advance(300 * SECOND)
    assert state(world) == "FIN_WAIT2"
    peer.heard()
    api.close(sk)
    assert abs(last_seen(world, 10) - 1) < 0.3


# ---------------------------------------------------------------- both ways


def test_fins_that_cross_meet_in_closing_and_end_in_time_wait() -> None:
    world, peer = orphan()
    peer.send("F.", 1, ack=1, win=511)
    assert (peer.heard(), state(world)) == ([". 2:2 ack 2"], "CLOSING")
    peer.send(".", 2, ack=2, win=511)
    assert state(world) == "TIME_WAIT"


def test_the_side_that_closes_second_needs_no_time_wait() -> None:
    world, peer, sk = connection()
    peer.send("F.", 1, ack=1, win=511)
    peer.heard()
    api.close(sk)
    assert peer.heard() == ["F. 1:1 ack 2"]
    peer.send(".", 2, ack=2, win=511)
    assert (state(world), world.mib.sockstat.orphan, world.mib.TcpCurrEstab) == ("none", 0, 0)


def test_half_a_connection_goes_on_sending() -> None:
    world, peer, sk = connection()
    peer.send("F.", 1, ack=1, win=511)
    world.advance(50 * MS)
    assert peer.heard() == [". 1:1 ack 2"]
    api.sendmsg(sk, bytes(1000))
    assert peer.heard() == ["P. 1:1001 ack 2"]
    peer.send(".", 2, ack=1001, win=511)
    api.shutdown(sk, api.SHUT_WR)
    assert peer.heard() == ["F. 1001:1001 ack 2"]
    peer.send(".", 2, ack=1002, win=511)
    assert (sk.state, state(world)) == (const.CLOSE, "none")


def test_the_fin_waits_behind_queued_data_and_rides_on_the_last_segment() -> None:
    _, peer, sk = connection(win=1000)
    peer.send(".", 1, ack=1, win=8)
    api.sendmsg(sk, bytes(2500))
    api.shutdown(sk, api.SHUT_WR)
    peer.heard()
    assert sk.state == const.FIN_WAIT1
    while sk.state == const.FIN_WAIT1:
        peer.send(".", 1, ack=sk.snd_nxt - sk.iss, win=511)
        flags = [segment.flags for segment in peer.heard_all()]
        if flags:
            assert flags[-1] == "FP."
    assert sk.state == const.FIN_WAIT2


def test_the_gauge_of_established_connections_counts_half_closed_ones() -> None:
    world, peer, sk = client()
    assert world.mib.TcpCurrEstab == 1
    peer.send("F.", 1, ack=1)
    assert (sk.state, world.mib.TcpCurrEstab) == (const.CLOSE_WAIT, 1)
    api.close(sk)
    assert world.mib.TcpCurrEstab == 0


def test_disconnect_keeps_the_device_and_the_wish_for_time_stamps_and_forgets_the_mss_and_where_peeking_was() -> None:
    _, _, sk = connection()
    for level, option, value in ((1, 62, 3), (1, 37, 0x12), (1, 42, 5), (6, 2, 500), (6, 37, 2000)):
        api.setsockopt(sk, level, option, value)
    api.setsockopt(sk, 1, 47, 100_000)
    api.disconnect(sk)
    assert [api.getsockopt(sk, 1, option) for option in (62, 37, 42)] == [3, 0x12, -1]
    assert (api.getsockopt(sk, 6, 2), sk.user_mss) == (1460, 0)
    assert (sk.tx_delay_ns, sk.pacing_status) == (2_000_000, 1)


def test_disconnect_keeps_what_the_program_set() -> None:
    _, _, sk = connection()
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_NODELAY, 1)
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_KEEPIDLE, 11)
    api.disconnect(sk)
    assert api.getsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_NODELAY) == 1
    assert api.getsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_KEEPIDLE) == 11
    assert (sk.snd_cwnd, sk.srtt_us, sk.receive_queue, sk.hashed) == (10, 0, None, False)


def test_everything_is_given_back_at_the_end() -> None:
    world, peer, sk = connection()
    api.sendmsg(sk, bytes(100_000))
    peer.send("P.", 1, 1000, ack=1, win=511)
    api.close(sk)
    assert (sk.wmem_queued, sk.rmem_alloc, sk.wmem_alloc, sk.packets_out, len(sk.write_queue)) == (0, 0, 1, 0, 0)
    assert sk.user is None
    world.advance(200 * SECOND)
    assert world.heap.next_deadline() is None
