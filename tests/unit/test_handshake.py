"""Active and simultaneous open, and what every connection starts with (RFC 9293 §3.5, RFC 6298 §5.7).

Times are those of a kernel's timer wheel with 4 ms ticks: a timer of 1 s fires up to 36 ms late.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest

from pytcp.tcp import api, const, sockopt_tcp
from pytcp.tcp.sock import Sock
from pytcp.wire.tcpopt import Mss, WindowScale

from .endpoint import MS, REMOTE6, Peer, World, client, connection

SOL_SOCKET, SO_RCVBUF, IPPROTO_TCP = 1, 8, 6
SECOND = 1000 * MS


def opening(**sysctls: Any) -> tuple[World, Peer, Sock]:
    """A socket whose SYN has left and been heard."""
    world = World(**sysctls)
    peer = Peer(world, 80)
    sk = world.connecting(peer)
    peer.heard()
    return world, peer, sk


# ---------------------------------------------------------------- the SYN


def test_the_syn_offers_44_segments_of_window_and_scale_10() -> None:
    world = World()
    peer = Peer(world, 80)
    sk = world.connecting(peer)
    syn = peer.hear()
    assert (str(syn), syn.window, syn.option(Mss).value, syn.option(WindowScale).shift) == ("S 0:0", 44 * 1460, 1460, 10)
    assert sk.state == const.SYN_SENT
    assert world.mib.TcpActiveOpens == 1


def test_an_ipv6_syn_offers_45_segments_of_1440() -> None:
    world = World()
    peer = Peer(world, 80, family=6)
    world.connecting(peer)
    syn = peer.hear()
    assert (syn.window, syn.option(Mss).value) == (64800, 1440)


def test_an_ipv4_mapped_address_makes_an_ipv6_socket_speak_ipv4() -> None:
    world = World()
    peer = Peer(world, 80)
    sk = world.socket(6)
    world.connecting(peer, sk)
    assert peer.hear().option(Mss).value == 1460


def test_an_ipv6_only_socket_refuses_a_mapped_address() -> None:
    world = World()
    sk = world.socket(6)
    sk.v6only = True
    with pytest.raises(OSError) as caught:
        api.connect(sk, Peer(world).addr, 80)
    assert caught.value.errno == errno.ENETUNREACH
    assert sk.state == const.CLOSE


def test_an_ipv4_socket_refuses_an_ipv6_address() -> None:
    with pytest.raises(OSError) as caught:
        api.connect(World().socket(), REMOTE6, 80)
    assert caught.value.errno == errno.EAFNOSUPPORT


# SO_RCVBUF, rcvbuf, SYN window, wscale, clamp once established: measured before connect (linux-tcp §14)
RCVBUFS = [
    (1, 2304, 1152, 0, 1152),
    (2304, 4608, 1460, 0, 2304),
    (4096, 8192, 2920, 0, 2920),
    (10000, 20000, 8760, 0, 8540),
    (30000, 60000, 29200, 0, 28540),
    (65536, 131072, 64240, 1, 64076),
    (200000, 400000, 65535, 2, 198540),
    (5000000, 8388608, 65535, 7, 4192844),
]


@pytest.mark.parametrize(("asked", "rcvbuf", "window", "wscale", "clamp"), RCVBUFS)
def test_the_syn_window_follows_so_rcvbuf(asked: int, rcvbuf: int, window: int, wscale: int, clamp: int) -> None:
    world = World()
    sk = world.socket()
    api.setsockopt(sk, SOL_SOCKET, SO_RCVBUF, asked)
    peer = Peer(world, 80)
    world.connecting(peer, sk)
    syn = peer.hear()
    assert (sk.rcvbuf, syn.window, syn.option(WindowScale).shift) == (rcvbuf, window, wscale)
    peer.send("S.", 0, ack=1, mss=1460, ws=7, sack=True)
    assert sk.window_clamp == clamp


def test_tcp_maxseg_lowers_what_is_announced_and_what_is_sent() -> None:
    world = World()
    sk = world.socket()
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_MAXSEG, 500)
    peer = Peer(world, 80)
    world.connecting(peer, sk)
    assert peer.hear().option(Mss).value == 500
    peer.send("S.", 0, ack=1, mss=1460, ws=7, sack=True)
    assert api.tcp_info(sk).snd_mss == 500


def test_a_window_clamp_set_before_chooses_the_scale() -> None:
    world = World()
    sk = world.socket()
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_WINDOW_CLAMP, 65535)
    peer = Peer(world, 80)
    world.connecting(peer, sk)
    assert peer.hear().option(WindowScale).shift == 0


# ---------------------------------------------------------------- the SYN again, and giving up


def syn_times(world: World, peer: Peer, sk: Sock, limit_s: int = 140) -> tuple[list[float], float]:
    """(seconds of every SYN after the first, second of giving up)."""
    start = world.now_ns
    while sk.state == const.SYN_SENT and world.now_ns < start + limit_s * SECOND:
        deadline = world.heap.next_deadline()
        assert deadline is not None
        world.advance_to(deadline)
    return [(syn.t_ns - start) / 1e9 for syn in peer.heard_all()], (world.now_ns - start) / 1e9


def near(times: list[float], expected: list[float]) -> bool:
    """Within the wheel's granularity: a 256 ms bucket from 4 s on, 2 s from 33 s on."""
    return len(times) == len(expected) and all(abs(t - e) < (0.04 if e < 4 else 0.3 if e < 33 else 2.1) for t, e in zip(times, expected, strict=True))


def test_four_linear_timeouts_then_doubling_and_etimedout_after_133_seconds() -> None:
    world, peer, sk = opening()
    times, end = syn_times(world, peer, sk)
    assert near(times, [1.016, 2.034, 3.058, 4.086, 5.106, 7.12, 11.38, 19.57, 35.70, 67.95])
    assert abs(end - 133.5) < 2.1
    assert api.take_error(sk) == errno.ETIMEDOUT
    assert (world.mib.TCPSynRetrans, world.mib.TcpAttemptFails, world.mib.TCPAbortOnTimeout) == (10, 1, 1)


@pytest.mark.parametrize(
    ("syncnt", "linear", "expected", "end"),
    [
        (1, 4, [1.0, 2.03], 3.07),
        (2, 4, [1.0, 2.03, 3.05, 4.08, 5.1], 7.12),
        (2, 0, [1.01, 3.02], 7.19),
        (1, 2, [1.01, 2.03], 3.07),
    ],
)
def test_a_syn_gives_up_by_count_or_by_time_whichever_is_first(syncnt: int, linear: int, expected: list[float], end: float) -> None:
    world = World(tcp_syn_linear_timeouts=linear)
    sk = world.socket()
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_SYNCNT, syncnt)
    peer = Peer(world, 80)
    world.connecting(peer, sk)
    peer.heard()
    times, over = syn_times(world, peer, sk)
    assert near(times, expected)
    assert abs(over - end) < 0.3


def test_tcp_user_timeout_ends_an_attempt_on_time() -> None:
    world = World()
    sk = world.socket()
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_USER_TIMEOUT, 2500)
    peer = Peer(world, 80)
    world.connecting(peer, sk)
    peer.heard()
    times, over = syn_times(world, peer, sk)
    assert near(times, [1.02, 2.04])
    assert 2.5 <= over < 2.56
    assert api.take_error(sk) == errno.ETIMEDOUT


def test_an_icmp_error_is_reported_instead_of_etimedout() -> None:
    world, peer, sk = opening()
    sk.sk_err_soft = errno.EHOSTUNREACH
    syn_times(world, peer, sk)
    assert api.take_error(sk) == errno.EHOSTUNREACH


# ---------------------------------------------------------------- SYN_SENT


@pytest.mark.parametrize(
    ("flags", "ack", "answer"),
    [
        ("S.", 500, ["R 500:500"]),
        ("S.", 0, ["R 0:0"]),
        (".", 500, ["R 500:500"]),
        (".", 1, []),
        ("R.", 500, []),
        ("R", 0, []),
        ("F.", 1, []),
        ("SR", 0, []),
        ("-", 0, []),
    ],
)
def test_what_does_not_answer_our_syn(flags: str, ack: int, answer: list[str]) -> None:
    _, peer, sk = opening()
    peer.send(flags, 0, ack=ack)
    assert peer.heard() == answer
    assert sk.state == const.SYN_SENT


def test_a_wrong_ack_makes_the_syn_leave_again_two_ticks_later_once() -> None:
    world, peer, _ = opening()
    world.advance(50 * MS)
    peer.send("S.", 0, ack=500)
    assert peer.heard() == ["R 500:500"]
    world.advance(12 * MS)
    assert peer.heard() == ["S 0:0"]
    peer.send("S.", 0, ack=500)
    world.advance(500 * MS)
    assert peer.heard() == ["R 500:500"], "after the first repetition the timer keeps its pace"


def test_a_reset_with_the_right_ack_refuses_the_connection() -> None:
    world, peer, sk = opening()
    peer.send("R.", 0, ack=1)
    assert (sk.state, peer.heard()) == (const.CLOSE, [])
    assert world.mib.TcpAttemptFails == 1
    with pytest.raises(ConnectionRefusedError):
        api.connect(sk, peer.addr, 80)


def test_a_syn_ack_that_echoes_another_timestamp_is_reset() -> None:
    world, peer, sk = opening()
    ours = (world.now_ns // MS + sk.ts_offset) & 0xFFFFFFFF
    for tsecr in (ours - 1, ours + 1):
        peer.send("S.", 0, ack=1, mss=1460, ts=(5000, tsecr))
        assert peer.heard() == ["R 1:1"]
    assert world.mib.PAWSActive == 2
    peer.send("S.", 0, ack=1, mss=1460, ts=(5000, ours))
    assert sk.state == const.ESTABLISHED


# ---------------------------------------------------------------- ESTABLISHED


def test_the_third_ack_completes_the_handshake() -> None:
    world, peer, sk = opening()
    world.advance(10 * MS)
    peer.send("S.", 0, ack=1, mss=1460, ws=7, sack=True)
    third = peer.hear()
    assert (str(third), third.window) == (". 1:1 ack 1", 64512)
    info = api.tcp_info(sk)
    assert (info.state, info.snd_cwnd, info.rtt, info.rto) == (const.ESTABLISHED, 10, 10_000, 212_000)
    assert world.woken[-1][1] & const.POLLOUT


def test_with_timestamps_segments_are_twelve_bytes_shorter() -> None:
    _, _, sk = client(ts=(5000, 0))
    info = api.tcp_info(sk)
    assert (info.snd_mss, info.advmss, sk.window_clamp) == (1448, 1448, 64088)


@pytest.mark.parametrize(("offered", "used"), [(None, 536), (0, 536), (1, 48), (47, 48), (48, 48), (1460, 1460), (9000, 1460), (65535, 1460)])
def test_the_peers_mss_is_believed_between_48_and_our_own(offered: int | None, used: int) -> None:
    _, _, sk = client(mss=offered)
    assert api.tcp_info(sk).snd_mss == used


def test_ipv6_assumes_1220_without_an_mss_option() -> None:
    world = World()
    peer = Peer(world, 80, family=6)
    sk = world.connecting(peer)
    peer.heard()
    peer.send("S.", 0, ack=1, ws=7)
    assert api.tcp_info(sk).snd_mss == 1220


def test_without_the_peers_window_scale_neither_side_scales() -> None:
    _, peer, sk = client(ws=None)
    assert (sk.rcv_wscale, sk.snd_wscale, sk.wscale_ok) == (0, 0, False)
    assert sk.window_clamp <= 65535
    peer.send("P.", 1, 1000, ack=1)
    api.recv(sk, 1000)
    assert sk.snd_wnd == 65535


def test_a_scale_above_14_counts_as_14() -> None:
    _, _, sk = client(ws=200)
    assert sk.snd_wscale == 14


def test_the_window_of_the_syn_ack_is_not_scaled() -> None:
    _, _, sk = client(win=1000)
    assert (sk.snd_wnd, sk.max_window) == (1000, 1000)


def test_one_repeated_syn_is_forgiven_two_start_at_one_segment() -> None:
    for waited, cwnd in ((1.1, 10), (2.2, 1)):
        world, peer, sk = opening()
        world.advance(int(waited * SECOND))
        peer.send("S.", 0, ack=1, mss=1460, ws=7, sack=True)
        info = api.tcp_info(sk)
        # no RTT sample: the RTO falls back to 3 s, rttvar to 750 ms (measured)
        assert (info.snd_cwnd, info.rto, info.rtt, info.rttvar, info.snd_ssthresh) == (cwnd, 3_000_000, 0, 750_000, 0x7FFFFFFF)


def test_the_echo_of_the_first_syn_undoes_the_punishment() -> None:
    world, peer, sk = opening()
    first = (world.now_ns // MS + sk.ts_offset) & 0xFFFFFFFF
    world.advance(2200 * MS)
    peer.send("S.", 0, ack=1, mss=1460, ws=7, sack=True, ts=(5000, first))
    assert api.tcp_info(sk).snd_cwnd == 10


@pytest.mark.parametrize("option", [(sockopt_tcp.TCP_QUICKACK, 0), (sockopt_tcp.TCP_DEFER_ACCEPT, 3)])
def test_a_patient_client_delays_the_third_ack_by_200_ms(option: tuple[int, int]) -> None:
    world = World()
    sk = world.socket()
    api.setsockopt(sk, IPPROTO_TCP, *option)
    peer = Peer(world, 80)
    world.connecting(peer, sk)
    peer.heard()
    peer.send("S.", 0, ack=1, mss=1460, ws=7, sack=True)
    answered = world.now_ns
    world.advance(199 * MS)
    assert peer.heard() == []
    world.advance(20 * MS)
    third = peer.hear()
    assert str(third) == ". 1:1 ack 1"
    assert 200 * MS <= third.t_ns - answered <= 212 * MS
    assert world.mib.DelayedACKs == 1


def test_data_written_meanwhile_carries_the_delayed_third_ack() -> None:
    world = World()
    sk = world.socket()
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_DEFER_ACCEPT, 3)
    peer = Peer(world, 80)
    world.connecting(peer, sk)
    peer.heard()
    peer.send("S.", 0, ack=1, mss=1460, ws=7, sack=True)
    world.advance(20 * MS)
    api.sendmsg(sk, bytes(100))
    assert peer.heard() == ["P. 1:101 ack 1"]
    world.advance(190 * MS)
    assert "P" in "".join(peer.heard()) or world.mib.DelayedACKs == 0


# ---------------------------------------------------------------- ECN


def test_tcp_ecn_1_asks_for_ecn_and_believes_ece_alone() -> None:
    for answer, agreed in (("SE.", True), ("S.", False), ("SEW.", False)):
        world = World(tcp_ecn=1)
        peer = Peer(world, 80)
        sk = world.connecting(peer)
        assert peer.hear().flags == "SEW"
        peer.send(answer, 0, ack=1, mss=1460, ws=7, sack=True)
        assert bool(api.tcp_info(sk).options & 8) is agreed


def test_the_first_repetition_gives_up_ecn_unless_told_otherwise() -> None:
    for fallback, flags in ((1, "S"), (0, "SEW")):
        world = World(tcp_ecn=1, tcp_ecn_fallback=fallback)
        peer = Peer(world, 80)
        world.connecting(peer)
        peer.heard()
        world.advance(1100 * MS)
        assert peer.hear().flags == flags


# ---------------------------------------------------------------- simultaneous open (RFC 9293 figure 8)


def test_a_crossing_syn_is_answered_by_a_syn_ack_from_the_same_number() -> None:
    _, peer, sk = opening()
    peer.send("S", 0, 10, mss=1460, ws=7, sack=True)
    assert peer.heard() == ["S. 0:0 ack 1"]
    assert sk.state == const.SYN_RECV
    assert sk.rcv_nxt == sk.irs + 1, "data that came with the SYN is dropped"


@pytest.mark.parametrize("last", ["S.", "."])
def test_the_crossed_handshake_ends_with_the_others_syn_ack_or_ack(last: str) -> None:
    world, peer, sk = opening()
    peer.send("S", 0, mss=1460, ws=7, sack=True)
    peer.heard()
    peer.send(last, 0 if last == "S." else 1, ack=1, win=511)
    assert sk.state == const.ESTABLISHED
    assert api.poll(sk) == const.POLLOUT
    assert api.sendmsg(sk, b"x") == 1
    assert "P. 1:2 ack 1" in peer.heard()
    assert world.mib.TcpCurrEstab == 1


def test_the_timer_repeats_the_syn_ack_of_a_crossed_handshake() -> None:
    world, peer, _ = opening()
    peer.send("S", 0, mss=1460, ws=7, sack=True)
    peer.heard()
    world.advance(1100 * MS)
    assert peer.heard() == ["S. 0:0 ack 1"]


def test_a_reset_in_the_crossed_handshake_ends_it() -> None:
    _, peer, sk = opening()
    peer.send("S", 0, mss=1460, ws=7, sack=True)
    peer.send("R", 1)
    assert sk.state == const.CLOSE
    assert api.take_error(sk) == errno.ECONNRESET


# ---------------------------------------------------------------- connecting again


def test_a_socket_connects_again_after_disconnect_above_its_old_numbers() -> None:
    world, _, sk = client()
    old = sk.write_seq
    api.disconnect(sk)
    again = Peer(world, 80)
    world.connecting(again, sk)
    assert again.hear().flags == "S"
    # the largest window of the old connection plus 2 lies between (SIOCOUTQ 65410 after a 65408 byte window)
    assert sk.iss & 0xFFFFFFFF == (old + 65535 + 2) & 0xFFFFFFFF


def test_a_connect_without_a_route_leaves_nothing_behind() -> None:
    world = World()
    world.unreachable = OSError(errno.ENETUNREACH, "Network is unreachable")
    sk = world.socket()
    with pytest.raises(OSError) as caught:
        api.connect(sk, Peer(world).addr, 80)
    assert caught.value.errno == errno.ENETUNREACH
    assert (sk.state, sk.dport, sk.bound_port, world.held, world.table) == (const.CLOSE, 0, 0, {}, {})
    world.unreachable = None
    peer = Peer(world, 80)
    world.connecting(peer, sk)
    assert peer.hear().flags == "S"


def test_our_port_is_given_back_after_a_refusal() -> None:
    world, peer, sk = opening()
    assert sk.bound_port
    peer.send("R.", 0, ack=1)
    assert world.held == {}


def test_a_passive_connection_starts_like_an_active_one() -> None:
    _, _, sk = connection()
    info = api.tcp_info(sk)
    assert (info.state, info.snd_cwnd, info.snd_mss, info.total_retrans) == (const.ESTABLISHED, 10, 1460, 0)
    assert (sk.window_clamp, info.rcv_space) == (64076, 14600)
