"""Who may bind which port (linux-host §6 bind_rules, linux-sockets §7)."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from random import Random

import pytest

from pytcp.net.ports import PortTable
from pytcp.tcp.const import CLOSE, LISTEN
from pytcp.wire.addr import parse_ip

ANY = b""
A = parse_ip("10.0.0.1")
B = parse_ip("127.0.0.1")


@dataclass(eq=False)
class Holder:
    saddr: bytes = ANY
    family: int = 4
    reuseaddr: bool = False
    reuseport: bool = False
    v6only: bool = False
    bound_dev_if: int = 0
    state: int = CLOSE


def _second_may(first: Holder, second: Holder) -> bool:
    table = PortTable(Random(1))
    table.bind(first, 80)
    try:
        table.bind(second, 80)
    except OSError as error:
        assert error.errno == errno.EADDRINUSE
        return False
    return True


@pytest.mark.parametrize(
    ("first", "second", "allowed"),
    [
        (Holder(), Holder(), False),
        (Holder(A), Holder(B), True),
        (Holder(bound_dev_if=2), Holder(bound_dev_if=3), True),
        (Holder(bound_dev_if=2), Holder(), False),
        (Holder(A), Holder(), False),
        (Holder(), Holder(A), False),
        (Holder(reuseaddr=True), Holder(), False),
        (Holder(), Holder(reuseaddr=True), False),
        (Holder(reuseaddr=True), Holder(reuseaddr=True), True),
        (Holder(reuseaddr=True, state=LISTEN), Holder(reuseaddr=True), False),
        (Holder(reuseport=True), Holder(reuseport=True), True),
        (Holder(reuseport=True, state=LISTEN), Holder(reuseport=True), True),
        (Holder(reuseport=True), Holder(reuseaddr=True), False),
        (Holder(family=6), Holder(), False),
        (Holder(), Holder(family=6), False),
        (Holder(family=6, v6only=True), Holder(), True),
        (Holder(), Holder(family=6, v6only=True), True),
        (Holder(family=6), Holder(A), False),
        (Holder(family=6, v6only=True), Holder(A), True),
        (Holder(), Holder(parse_ip("fd00::1"), family=6), True),
        (Holder(family=6), Holder(parse_ip("fd00::1"), family=6), False),
        (Holder(A), Holder(parse_ip("::ffff:10.0.0.1"), family=6), False),
    ],
)
def test_two_holders_of_one_port(first: Holder, second: Holder, allowed: bool) -> None:
    assert _second_may(first, second) is allowed


def test_a_port_is_free_when_its_last_holder_gives_it_back() -> None:
    table = PortTable(Random(1))
    one, two = Holder(reuseport=True), Holder(reuseport=True)
    table.bind(one, 80)
    table.bind(two, 80)
    table.remove(one, 80)
    with pytest.raises(OSError, match="in use"):
        table.bind(Holder(), 80)
    table.remove(two, 80)
    table.bind(Holder(), 80)


def test_ephemeral_ports_cover_the_whole_range_of_both_parities_in_no_order() -> None:
    table = PortTable(Random(1))
    ports = [table.bind_any(Holder(), (32768, 60999)) for _ in range(400)]
    assert len(set(ports)) == 400
    assert all(32768 <= port <= 60999 for port in ports)
    assert 120 < sum(port & 1 for port in ports) < 280
    assert ports != sorted(ports)


def test_bind_0_finds_the_one_port_left() -> None:
    table = PortTable(Random(1))
    for port in (40000, 40001, 40003):
        table.bind(Holder(), port)
    assert table.bind_any(Holder(), (40000, 40003)) == 40002
    with pytest.raises(OSError) as caught:
        table.bind_any(Holder(), (40000, 40003))
    assert caught.value.errno == errno.EADDRINUSE


def test_connections_share_a_port_that_nobody_bound_when_their_tuples_differ() -> None:
    table = PortTable(Random(1))
    first = Holder(A)
    assert table.connect_any(first, (40000, 40000), lambda port: True, errno.EADDRNOTAVAIL) == 40000
    assert table.was_auto(first, 40000)
    assert table.connect_any(Holder(A), (40000, 40000), lambda port: True, errno.EADDRNOTAVAIL) == 40000
    with pytest.raises(OSError) as caught:
        table.connect_any(Holder(A), (40000, 40000), lambda port: False, errno.EADDRNOTAVAIL)
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_connect_does_not_touch_a_port_that_somebody_bound() -> None:
    table = PortTable(Random(1))
    table.bind(Holder(A), 40000)
    with pytest.raises(OSError) as caught:
        table.connect_any(Holder(A), (40000, 40000), lambda port: True, errno.EADDRNOTAVAIL)
    assert caught.value.errno == errno.EADDRNOTAVAIL
