"""SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING of what is received: the time with each read (docs/linux-sockets.md, measured on 6.18)."""

from __future__ import annotations

import select
import struct

import pytest

from pytcp.sockets.socket import MSG_PEEK, Socket
from pytcp.tcp import api, rx_timestamps
from pytcp.tcp.timestamping import SOFTWARE

from .endpoint import MS as ENGINE_MS
from .endpoint import Peer, World, connection
from .test_sockets_socket import B4, MS, PORT, Two, fails, two

assert two  # the fixture
SOL_SOCKET = 1
RX_SOFTWARE = rx_timestamps.RX_SOFTWARE


def times(control: list[tuple[int, int, bytes]]) -> list[tuple[int, int]]:
    """(kind, ns since 1970)."""
    found = []
    for level, kind, data in control:
        if level == SOL_SOCKET:
            seconds, part = struct.unpack_from("=qq", data)
            found.append((kind, seconds * 1_000_000_000 + part * (1000 if kind in (29, 63) else 1)))
    return found


def read(sock: Socket, size: int, flags: int = 0) -> list[tuple[int, int]]:
    return times(sock.recvmsg(size, 200, flags)[1])


def arrival(two: Two) -> int:
    """When what was sent now comes to the other end of the wire."""
    return two.runtime.realtime_ns() + MS


def send(two: Two, sock: Socket, data: bytes, gap_ms: int = 100) -> int:
    """Returns when it came."""
    came = arrival(two)
    sock.send(data)
    two.run(gap_ms)
    return came


@pytest.mark.parametrize(
    ("option", "value", "kinds"),
    [
        (29, 1, [29]), (35, 1, [35]), (63, 1, [63]), (64, 1, [64]), (37, RX_SOFTWARE | SOFTWARE, [37]), (65, RX_SOFTWARE | SOFTWARE, [65]),
        (37, RX_SOFTWARE, []), (29, 0, []),
    ],
)  # fmt: skip
def test_a_read_says_when_the_last_of_its_data_had_come(two: Two, option: int, value: int, kinds: list[int]) -> None:
    client, server = two.pair()
    server.setsockopt(SOL_SOCKET, option, value)
    for _ in range(2):
        came = send(two, client, b"data")
        for flags in (MSG_PEEK, 0):
            stamps = read(server, 100, flags)
            assert [kind for kind, _ in stamps] == kinds
            for _, ns in stamps:
                assert 0 <= came // 1000 * 1000 <= ns <= came + MS


def test_segments_that_were_merged_have_the_time_of_the_last(two: Two) -> None:
    client, server = two.pair()
    server.setsockopt(SOL_SOCKET, 35, 1)
    client.setsockopt(6, 1, 1)
    came = [send(two, client, b"0123456789") for _ in range(3)]
    for size in (5, 5, 12, 100):
        [(_, ns)] = read(server, size)
        assert came[2] <= ns < came[2] + MS
    with fails(11):
        server.recvmsg(1, 200)


def test_chunks_have_their_own() -> None:
    world, peer, sk = connection()
    api.setsockopt(sk, SOL_SOCKET, 29, 1)
    came = []
    for number in range(40):
        came.append(world.realtime_ns())
        peer.send("P.", 1 + 1460 * number, 1460, ack=1, win=511)
        world.advance(10 * ENGINE_MS)
    lengths = [chunk.length for chunk in sk.receive_queue]
    assert len(lengths) > 1
    taken = 0
    for length in lengths:
        taken += length // 1460
        for size in (1, length - 1):
            assert len(api.recv(sk, size)) == size
            assert rx_timestamps.of_read(sk, sk.copied_seq) == came[taken - 1]
    peer.send("P.", 1 + 1460 * 40, 10, ack=1, win=511)
    assert len(sk.rx_stamps) == 1, "what was read is forgotten when more comes"


def test_what_came_before_anybody_asked_has_no_time(two: Two) -> None:
    client, server = two.pair()
    send(two, client, b"early")
    server.setsockopt(SOL_SOCKET, 29, 1)
    client.send(b"")
    two.run()
    assert read(server, 100) == []
    send(two, client, b"late")
    assert [kind for kind, _ in read(server, 100)] == [29]
    client.close()
    two.run()
    assert server.poll() & select.POLLIN
    assert server.recvmsg(100, 200) == (b"", [], 0, None)


def test_both_kinds_come_before_what_is_left_to_read(two: Two) -> None:
    client, server = two.pair()
    for level, option, value in ((1, 29, 1), (1, 37, RX_SOFTWARE | SOFTWARE), (6, 36, 1)):
        server.setsockopt(level, option, value)
    send(two, client, b"data")
    assert [kind for _, kind, _ in server.recvmsg(2, 200)[1]] == [29, 37, 36]


def test_a_listeners_children_keep_times(two: Two) -> None:
    listener = two.listener()
    listener.setsockopt(SOL_SOCKET, 29, 1)
    client = two.a.socket()
    with pytest.raises(BlockingIOError):
        client.connect(("10.0.0.2", 7000))
    two.run()
    server, _ = listener.accept()
    came = send(two, client, b"data")
    [(kind, ns)] = read(server, 100)
    assert kind == 29
    assert abs(ns - came) < MS


def test_one_of_the_four_kinds_is_on_and_two_are_told_for_the_last(two: Two) -> None:
    sock = two.a.socket()
    kinds = (29, 35, 63, 64)
    for option, value, states in ((29, 1, [1, 0, 0, 0]), (35, 1, [0, 1, 0, 0]), (63, 7, [0, 0, 1, 0]), (64, 1, [0, 0, 1, 1]), (29, 0, [0, 0, 0, 0])):
        sock.setsockopt(SOL_SOCKET, option, value)
        assert [sock.getsockopt(SOL_SOCKET, kind) for kind in kinds] == states
    # one flag for both: the names of 64 bits
    sock.setsockopt(SOL_SOCKET, 63, 1)
    sock.setsockopt(SOL_SOCKET, 37, SOFTWARE)
    assert [sock.getsockopt(SOL_SOCKET, kind) for kind in kinds] == [1, 0, 0, 0]


def test_what_waited_behind_a_hole_has_the_time_it_came() -> None:
    world, peer, sk = connection()
    api.setsockopt(sk, SOL_SOCKET, 29, 1)
    early = world.realtime_ns()
    peer.send("P.", 1001, 1000, ack=1, win=511)
    world.advance(50 * ENGINE_MS)
    peer.send("P.", 1, 1000, ack=1, win=511)
    # the queue ends with what had come first
    api.recv(sk, 2000)
    assert rx_timestamps.of_read(sk, sk.copied_seq) == early


def test_a_signed_connection_keeps_times_and_looks_at_signatures() -> None:
    world = World()
    sk = world.socket()
    api.setsockopt(sk, SOL_SOCKET, 29, 1)
    key = struct.pack("=HH4s", 2, 0, b"\x0a\0\0\x01").ljust(128, b"\0") + struct.pack("=BBHi80s", 0, 0, 3, 0, b"key")
    api.setsockopt(sk, 6, 14, key)
    assert type(sk) is rx_timestamps.SignedStamped
    other = world.socket()
    api.setsockopt(other, 6, 14, key)
    api.setsockopt(other, SOL_SOCKET, 29, 1)
    assert type(other) is rx_timestamps.SignedStamped


def test_the_wish_outlives_the_connection() -> None:
    world, peer, sk = connection()
    api.setsockopt(sk, SOL_SOCKET, 29, 1)
    peer.send("P.", 1, 1000, ack=1, win=511)
    api.disconnect(sk)
    assert api.getsockopt(sk, SOL_SOCKET, 29) == 1
    server = Peer(world, 80)
    world.connecting(server, sk)
    server.heard()
    server.send("S.", 0, ack=1, mss=1460, ws=7, sack=True)
    server.send("P.", 1, 10, ack=1, win=511)
    came = world.realtime_ns()
    api.recv(sk, 100)
    assert rx_timestamps.of_read(sk, sk.copied_seq) == came


def test_the_wish_outlives_a_connection_that_was_refused(two: Two) -> None:
    client = two.a.socket()
    client.setsockopt(SOL_SOCKET, 35, 1)
    with pytest.raises(BlockingIOError):
        client.connect((B4, PORT))
    two.run()
    with pytest.raises(ConnectionRefusedError):
        client.connect((B4, PORT))
    listener = two.listener()
    with pytest.raises(BlockingIOError):
        client.connect((B4, PORT))
    two.run()
    server, _ = listener.accept()
    came = send(two, server, b"data")
    assert [(kind, came <= ns <= came + MS) for kind, ns in read(client, 100)] == [(35, True)]


def test_what_was_pruned_has_the_time_it_came_again() -> None:
    world, peer, sk = connection()
    api.setsockopt(sk, SOL_SOCKET, 35, 1)
    peer.send("P.", 3001, 1000, ack=1, win=511)
    rcvbuf, sk.rcvbuf, sk.rcvbuf_locked = sk.rcvbuf, 1, True
    peer.send("P.", 2001, 1000, ack=1, win=511)  # no room: what is farther away goes
    assert (sk.mib.OfoPruned, len(sk.ofo_queue)) == (1, 1)
    sk.rcvbuf = rcvbuf
    world.advance(10_000 * ENGINE_MS)
    for seq in (1, 1001, 3001):
        peer.send("P.", seq, 1000, ack=1, win=511)
    assert len(api.recv(sk, 5000)) == 4000
    assert rx_timestamps.of_read(sk, sk.copied_seq) == world.realtime_ns()
