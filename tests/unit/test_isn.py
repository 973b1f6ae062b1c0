"""Initial sequence numbers: RFC 6528's clock plus hash, and the timestamp offset from the same hash."""

from __future__ import annotations

from pytcp.tcp import isn

from .endpoint import LOCAL, MS, REMOTE, World


def test_the_isn_of_a_4_tuple_moves_on_with_the_clock_every_64_ns() -> None:
    host = World()
    first, _ = isn.choose(host, LOCAL, REMOTE, 8080, 50000)
    host.advance(64 * MS)
    later, _ = isn.choose(host, LOCAL, REMOTE, 8080, 50000)
    assert (later - first) & 0xFFFFFFFF == 1_000_000


def test_the_clock_wraps_in_274_seconds() -> None:
    host = World()
    first, _ = isn.choose(host, LOCAL, REMOTE, 8080, 50000)
    host.advance((1 << 32) * 64)
    assert isn.choose(host, LOCAL, REMOTE, 8080, 50000)[0] == first


def test_each_part_of_the_4_tuple_changes_the_isn() -> None:
    host = World()
    numbers = {
        isn.choose(host, LOCAL, REMOTE, 8080, 50000)[0],
        isn.choose(host, LOCAL, REMOTE, 8081, 50000)[0],
        isn.choose(host, LOCAL, REMOTE, 8080, 50001)[0],
        isn.choose(host, REMOTE, LOCAL, 8080, 50000)[0],
    }
    assert len(numbers) == 4


def test_the_timestamp_offset_stays_for_a_4_tuple_and_differs_between_ports() -> None:
    host = World()
    offset = isn.choose(host, LOCAL, REMOTE, 8080, 50000)[1]
    host.advance(1000 * MS)
    assert isn.choose(host, LOCAL, REMOTE, 8080, 50000)[1] == offset
    assert isn.choose(host, LOCAL, REMOTE, 8080, 50001)[1] != offset


def test_tcp_timestamps_2_sends_the_bare_clock() -> None:
    host = World()
    host.sysctl.tcp_timestamps = 2
    assert isn.choose(host, LOCAL, REMOTE, 8080, 50000)[1] == 0


def test_another_secret_gives_other_numbers() -> None:
    host, other = World(), World()
    other.secret = lambda: bytes(16)  # type: ignore[method-assign]
    assert isn.choose(host, LOCAL, REMOTE, 1, 2) != isn.choose(other, LOCAL, REMOTE, 1, 2)
