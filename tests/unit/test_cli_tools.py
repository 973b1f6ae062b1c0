"""What ping and traceroute print. Formats and roundings are those of iputils and of Butskoy's traceroute."""

from __future__ import annotations

import pytest

from pytcp.cli.nc import ports
from pytcp.cli.ping import answer_line, milliseconds, statistics
from pytcp.cli.traceroute import hop_line
from pytcp.lab.traceroute import Probe
from pytcp.sockets.open import Ping


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0000417, "0.041"), (0.000999, "0.999"), (0.001234, "1.23"), (0.01239, "12.3"), (0.09999, "99.9"), (0.1, "100"), (1.2345, "1234")]
)
def test_round_trips_are_cut_to_three_digits(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (Ping(7, "10.0.0.1", 0.0005, 63), "64 bytes from 10.0.0.1: icmp_seq=7 ttl=63 time=0.500 ms"),
        (Ping(1, "10.0.0.9", None, 64, (3, 1)), "From 10.0.0.9 icmp_seq=1 Destination Host Unreachable"),
        (Ping(2, "10.0.0.9", None, 64, (11, 0)), "From 10.0.0.9 icmp_seq=2 Time to live exceeded"),
        (Ping(3, "fd00::9", None, 64, (1, 3)), "From fd00::9 icmp_seq=3 Destination unreachable: Address unreachable"),
        (Ping(4, "10.0.0.9", None, 64, (12, 1)), "From 10.0.0.9 icmp_seq=4 ICMP type 12 code 1"),
        (Ping(5, "", None, 0), ""),
    ],
)
def test_each_outcome_of_a_request_has_its_line(answer: Ping, line: str) -> None:
    assert answer_line(answer, 56) == line


def test_the_summary_counts_losses_and_errors_and_spreads() -> None:
    answers = [Ping(1, "10.0.0.1", 0.001, 64), Ping(2, "10.0.0.1", 0.003, 64), Ping(3, "10.0.0.9", None, 64, (3, 1))]
    assert statistics("host", 3, answers, 2.0456) == [
        "--- host ping statistics ---",
        "3 packets transmitted, 2 received, +1 errors, 33.3333% packet loss, time 2045ms",
        # the mean of 1 and 3 is 2, and both are 1 away from it
        "rtt min/avg/max/mdev = 1.000/2.000/3.000/1.000 ms",
    ]


def test_a_run_that_was_stopped_before_its_first_request_has_lost_nothing() -> None:
    assert statistics("host", 0, [], 0.0)[1] == "0 packets transmitted, 0 received, 0% packet loss, time 0ms"


def probe(source: str, ms: float | None, note: str = "") -> Probe:
    return Probe(3, source, None if ms is None else ms / 1000, note)


@pytest.mark.parametrize(
    ("probes", "line"),
    [
        ([probe("10.0.0.1", 0.5), probe("10.0.0.1", 0.25), probe("", None)], " 3  10.0.0.1 (10.0.0.1)  0.500 ms  0.250 ms *"),
        ([probe("", None), probe("10.0.0.1", 1), probe("10.0.0.2", 2)], " 3  * 10.0.0.1 (10.0.0.1)  1.000 ms 10.0.0.2 (10.0.0.2)  2.000 ms"),
        ([probe("", None)] * 3, " 3  * * *"),
        ([probe("10.0.0.1", 12.3456, "!H")], " 3  10.0.0.1 (10.0.0.1)  12.346 ms !H"),
    ],
)
def test_a_hop_is_one_line_that_names_each_router_where_it_changes(probes: list[Probe], line: str) -> None:
    assert hop_line(probes) == line


def test_without_names_an_address_appears_once() -> None:
    assert hop_line([probe("fd00::1", 1), probe("fd00::1", 2)], bare=True) == " 3  fd00::1  1.000 ms  2.000 ms"


def test_a_port_or_a_range_of_ports() -> None:
    assert ports("80") == (80,)
    assert ports("20-22") == (20, 21, 22)
