"""SYN cookies: what survives in a sequence number and in six bits of a timestamp, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.tcp import api, syncookies
from pytcp.tcp.sock import Sock

from .endpoint import LOCAL, MS, REMOTE, Peer, World

SECOND = 1000 * MS


def cookie(syn: dict[str, Any], *, family: int = 4, mtu: int = 9000, **sysctls: Any) -> tuple[World, Peer, Sock]:
    """A peer that has got a cookie; the listener."""
    world = World(tcp_syncookies=2, **sysctls)
    world.mtu = mtu
    lsk = world.listening(family=family)
    peer = Peer(world, family=family)
    peer.send("S", 0, **syn)
    assert peer.heard() == ["S. 0:0 ack 1"]
    assert world.table == {}, "nothing is remembered"
    return world, peer, lsk


@pytest.mark.parametrize(
    ("mss", "kept"), [(100, 536), (536, 536), (1299, 536), (1300, 1300), (1439, 1300), (1440, 1440), (1459, 1440), (1460, 1460), (8960, 1460)]
)
def test_the_mss_is_rounded_down_to_one_of_four(mss: int, kept: int) -> None:
    world, peer, lsk = cookie({"mss": mss})
    peer.send(".", 1, ack=1)
    assert api.tcp_info(world.accepted(lsk)).snd_mss == kept
    assert (world.mib.SyncookiesSent, world.mib.SyncookiesRecv, world.mib.SyncookiesFailed) == (1, 1, 0)


@pytest.mark.parametrize(("mss", "kept"), [(500, 1220), (1419, 1220), (1420, 1420), (1439, 1420), (1440, 1440), (8939, 1440), (8940, 8940), (9000, 8940)])
def test_ipv6_has_a_table_of_its_own(mss: int, kept: int) -> None:
    world, peer, lsk = cookie({"mss": mss}, family=6)
    peer.send(".", 1, ack=1)
    assert api.tcp_info(world.accepted(lsk)).snd_mss == kept


def test_without_timestamps_scale_and_sack_are_lost() -> None:
    world, peer, lsk = cookie({"mss": 1300, "ws": 7, "sack": True}, mtu=1500)
    peer.send(".", 1, ack=1)
    info = api.tcp_info(child := world.accepted(lsk))
    # measured: the first window is 50 x 1300
    assert (info.options, info.snd_mss, info.advmss, info.rcv_wnd, child.window_clamp) == (0, 1300, 1460, 65000, 64076)


@pytest.mark.parametrize(("ws", "sack", "flags"), [(0, True, "S"), (3, True, "SEW"), (7, False, "S"), (14, True, "S"), (None, False, "SEW")])
def test_timestamps_carry_scale_sack_and_ecn(ws: int | None, sack: bool, flags: str) -> None:
    world = World(tcp_syncookies=2, tcp_timestamps=2)
    lsk = world.listening()
    peer = Peer(world)
    peer.send(flags, 0, mss=1460, ws=ws, sack=sack, ts=(5000, 0))
    answer = peer.hear()
    assert answer.ts is not None
    tsval = answer.ts[0]
    now = world.now_ns // MS
    assert now - 64 < tsval <= now
    assert tsval & 0x3F == (15 if ws is None else ws) | sack << 4 | ("E" in flags) << 5
    peer.send(".", 1, ack=1, ts=(5001, tsval))
    child = world.accepted(lsk)
    assert (child.tstamp_ok, child.sack_ok, child.wscale_ok, bool(api.tcp_info(child).options & 8)) == (True, sack, ws is not None, "E" in flags)
    assert child.snd_wscale == (ws or 0)
    assert child.ts_recent == 5001


def test_the_offset_of_the_connection_hides_those_bits() -> None:
    _, peer, lsk = cookie({"mss": 1460, "ws": 7, "sack": True, "ts": (5000, 0)})
    peer.send(".", 1, ack=1, ts=(5001, (peer.world.now_ns // MS) & 0xFFFFFFFF))
    # an echo that is not ours decodes to something else, but not to a crash
    assert len(lsk.accept_queue) <= 1


def test_an_echo_that_claims_what_is_switched_off_is_dropped() -> None:
    world = World(tcp_syncookies=2, tcp_timestamps=2)
    lsk = world.listening()
    peer = Peer(world)
    peer.send("S", 0, mss=1460, ws=7, sack=True, ts=(5000, 0))
    answer = peer.hear()
    assert answer.ts is not None
    world.sysctl.tcp_sack = 0
    peer.send(".", 1, ack=1, ts=(5001, answer.ts[0]))
    assert (peer.heard(), len(lsk.accept_queue)) == ([], 0)


def test_a_cookie_lives_from_one_to_two_minutes() -> None:
    for age, good in ((50, True), (59, True), (121, False)):
        world, peer, lsk = cookie({"mss": 1460})
        world.advance(age * SECOND)
        lsk.last_overflow_ns = world.now_ns
        peer.send(".", 1, ack=1)
        assert bool(lsk.accept_queue) is good
        assert peer.heard() == ([] if good else ["R 1:1"])
        assert world.mib.SyncookiesFailed == (not good)


def test_the_minute_counts_by_the_clock_of_the_host() -> None:
    # made in the last second of a minute, the cookie ages twice in 62 s
    world = World(tcp_syncookies=2)
    world.advance_to(59_500 * MS)
    lsk = world.listening()
    peer = Peer(world)
    peer.send("S", 0, mss=1460)
    peer.heard()
    world.advance(62 * SECOND)
    peer.send(".", 1, ack=1)
    assert len(lsk.accept_queue) == 0
    assert world.mib.SyncookiesFailed == 1


def test_a_listener_that_sent_no_cookie_for_two_minutes_does_not_look_for_one() -> None:
    world, peer, _ = cookie({"mss": 1460})
    world.advance(123 * SECOND)
    peer.send(".", 1, ack=1)
    assert peer.heard() == ["R 1:1"]
    assert world.mib.SyncookiesFailed == 0


def test_a_new_listener_does_not_take_the_cookies_of_the_old() -> None:
    world, peer, lsk = cookie({"mss": 1460})
    api.close(lsk)
    world.listening()
    peer.send(".", 1, ack=1)
    assert peer.heard() == ["R 1:1"]


@pytest.mark.parametrize("ack", [-100, 100, 1 << 24])
def test_a_guessed_cookie_is_reset_and_counted(ack: int) -> None:
    world, peer, lsk = cookie({"mss": 1460})
    peer.send(".", 1, ack=ack)
    assert peer.heard() == [f"R {ack}:{ack}"]
    assert (len(lsk.accept_queue), world.mib.SyncookiesFailed) == (0, 1)


def test_a_cookie_belongs_to_its_4_tuple() -> None:
    world, peer, lsk = cookie({"mss": 1460})
    thief = Peer(world, 50001)
    thief.local_isn = peer.local_isn
    thief.send(".", 1, ack=1)
    assert thief.heard() == ["R 1:1"]
    assert len(lsk.accept_queue) == 0


def test_a_full_accept_queue_ignores_a_good_cookie_for_now() -> None:
    world, peer, lsk = cookie({"mss": 1460})
    lsk.backlog = -1
    peer.send(".", 1, ack=1)
    assert (peer.heard(), world.mib.ListenOverflows, world.mib.ListenDrops) == ([], 1, 1)
    lsk.backlog = 5
    peer.send("P.", 1, 10, ack=1)
    assert api.inq(lsk.accept_queue[0]) == 10
    assert peer.heard() == [". 1:1 ack 11"]
    assert world.mib.SyncookiesRecv == 2


def test_what_the_isn_is_made_of() -> None:
    world, peer, _ = cookie({"mss": 1300})
    assert peer.local_isn is not None
    args = (world, 4, LOCAL, REMOTE, 8080, 50000)
    assert syncookies.check(*args, peer.isn, peer.local_isn) == 1300
    assert syncookies.check(*args, peer.isn + 1, peer.local_isn + 1) == 1300, "the peer's ISN is simply added"
    assert syncookies.check(*args, peer.isn + 100, peer.local_isn) == 0
