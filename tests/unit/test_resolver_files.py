"""resolv.conf and hosts as resolv.conf(5) and hosts(5) describe them; destination selection as RFC 6724 does."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from pytcp.sockets.hosts import parse_hosts, parse_resolv_conf
from pytcp.sockets.precedence import _compare, policy


def test_without_a_file_the_name_server_is_this_host() -> None:
    config = parse_resolv_conf("")
    assert (config.nameservers, config.search, config.ndots, config.timeout, config.attempts) == (("127.0.0.1",), (), 1, 5, 2)


def test_what_is_not_understood_is_skipped_and_limits_are_silent() -> None:
    config = parse_resolv_conf(
        "# comment\n; comment\nnameserver\nnameserver name.example\nnameserver 10.0.0.1\nnameserver fe80::1%2\nnameserver 10.0.0.3\nnameserver 10.0.0.4\n"
        "options ndots:99 timeout:99 attempts:99 ndots:x unknown rotate edns0 use-vc no-aaaa\nsortlist 10.0.0.0\n"
    )
    assert config.nameservers == ("10.0.0.1", "fe80::1%2", "10.0.0.3")
    assert (config.ndots, config.timeout, config.attempts) == (15, 30, 5)
    assert config.rotate and config.edns0 and config.use_vc and config.no_aaaa


def test_the_last_of_search_and_domain_counts_and_the_environment_last_of_all() -> None:
    text = "search one.example two.example.\ndomain three.example\n"
    assert parse_resolv_conf(text).search == ("three.example",)
    assert parse_resolv_conf(text + "search a.example b.example").search == ("a.example", "b.example")
    config = parse_resolv_conf(text + "options ndots:3", {"LOCALDOMAIN": "env.example", "RES_OPTIONS": "ndots:2 timeout:1"})
    assert (config.search, config.ndots, config.timeout) == (("env.example",), 2, 1)


def test_a_host_may_have_several_lines_and_names_are_compared_without_case() -> None:
    hosts = parse_hosts("10.0.0.1 One one.example # uno\n10.0.0.2 one\n10.0.0.1 ONE\nbad line\n#10.0.0.3 one\n::1 one")
    assert hosts.addresses("one.") == [(bytes((10, 0, 0, 1)), "One"), (bytes((10, 0, 0, 2)), "one"), (bytes(15) + b"\x01", "one")]
    assert hosts.by_address[bytes((10, 0, 0, 1))] == "One"
    assert hosts.addresses("two") == []


@pytest.mark.parametrize(
    ("address", "precedence", "label"),
    [
        ("::1", 50, 0),
        ("2001:db8::1", 40, 1),
        ("10.0.0.1", 35, 4),
        ("2002::1", 30, 2),
        ("2001::1", 5, 5),
        ("fd00::1", 3, 13),
        ("fec0::1", 1, 11),
        ("3ffe::1", 1, 12),
    ],
)
def test_the_policy_table_is_that_of_rfc_6724(address: str, precedence: int, label: int) -> None:
    assert policy(ip_address(address).packed) == (precedence, label)


@pytest.mark.parametrize(
    ("better", "its_source", "worse", "other_source"),
    [
        # the examples of RFC 6724 §10.2
        ("2001:db8:1::1", "2001:db8:1::2", "198.51.100.121", "169.254.13.78"),
        ("198.51.100.121", "198.51.100.117", "2001:db8:1::1", "fe80::1"),
        ("2001:db8:1::1", "2001:db8:1::2", "10.1.2.3", "10.1.2.4"),
        ("fe80::1", "fe80::2", "2001:db8:1::1", "2001:db8:1::2"),
        ("2001:db8:1::1", "2001:db8:1::2", "2002:c633:6401::1", "2002:c633:6401::2"),
        # §5 rule 9: the longer common prefix
        ("2001:db8:1::1", "2001:db8:1::2", "2001:db8:2::1", "2001:db8:1::2"),
    ],
)
def test_destinations_are_ordered_as_in_the_examples_of_rfc_6724(better: str, its_source: str, worse: str, other_source: str) -> None:
    first = (ip_address(better).packed, ip_address(its_source).packed)
    second = (ip_address(worse).packed, ip_address(other_source).packed)
    assert _compare(first, second) < 0 < _compare(second, first)


def test_a_destination_without_a_source_comes_last() -> None:
    reachable, not_reachable = (ip_address("10.0.0.1").packed, ip_address("10.0.0.2").packed), (ip_address("2001:db8::1").packed, b"")
    assert _compare(reachable, not_reachable) < 0
