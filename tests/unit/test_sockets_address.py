"""Socket addresses: what programs write, what the engine keeps, what programs get to see."""

from __future__ import annotations

import errno
import socket

import pytest

from pytcp.sockets.address import AF_INET, AF_INET6, build, encode_name, host_port, numeric, parse

V4 = bytes((10, 0, 0, 2))
V6 = bytes.fromhex("fd00") + bytes(13) + b"\x02"


def test_addresses_become_network_order_bytes() -> None:
    assert parse(AF_INET, ("10.0.0.2", 80)) == (V4, 80, 0)
    assert parse(AF_INET6, ("fd00::2", 65535)) == (V6, 65535, 0)
    assert parse(AF_INET6, ("fd00::2", 80, 0, 3)) == (V6, 80, 3)
    assert parse(AF_INET6, ("fe80::1%7", 80))[2] == 7
    assert parse(AF_INET, (b"10.0.0.2", 80)) == (V4, 80, 0)


def test_the_wildcard_is_empty_however_it_is_written() -> None:
    for family, host in ((AF_INET, ""), (AF_INET, "0.0.0.0"), (AF_INET6, ""), (AF_INET6, "::")):
        assert parse(family, (host, 0)) == (b"", 0, 0)


def test_a_mapped_address_is_ipv4_inside_and_mapped_outside() -> None:
    assert parse(AF_INET6, ("::ffff:10.0.0.2", 80)) == (V4, 80, 0)
    assert build(AF_INET6, V4, 80) == ("::ffff:10.0.0.2", 80, 0, 0)


def test_programs_see_what_the_standard_library_would_show() -> None:
    assert build(AF_INET, V4, 80) == ("10.0.0.2", 80)
    assert build(AF_INET, b"", 80) == ("0.0.0.0", 80)
    assert build(AF_INET6, V6, 80) == ("fd00::2", 80, 0, 0)
    assert build(AF_INET6, b"", 80) == ("::", 80, 0, 0)


@pytest.mark.parametrize("name", ["localhost", "example.com", "10.0.0", "10.0.0.256", "fd00:::1", "", "10.0.0.2\0"])
def test_names_are_refused_by_an_error_that_says_why(name: str) -> None:
    with pytest.raises(socket.gaierror, match="not a numeric IPv4 or IPv6 address"):
        numeric(name)


def test_letters_beyond_ascii_are_encoded_by_idna_2008() -> None:
    assert encode_name("Faß.example") == b"xn--fa-hia.example"  # IDNA 2003 would make it fass.example
    assert encode_name("Plain.example") == b"Plain.example"
    with pytest.raises(socket.gaierror, match="not a host name"):
        encode_name("\u2026.example\u00ad\u0378")


def test_brackets_around_ipv6_are_taken_off() -> None:
    assert numeric("[fd00::2]") == (AF_INET6, "fd00::2")
    assert host_port("fd00::2", 80) == "[fd00::2]:80"
    assert host_port("10.0.0.2", 80) == "10.0.0.2:80"


def test_an_address_of_the_other_family_is_not_supported() -> None:
    for family, host in ((AF_INET, "fd00::2"), (AF_INET6, "10.0.0.2")):
        with pytest.raises(OSError, match="and this is an IPv") as caught:
            parse(family, (host, 80))
        assert caught.value.errno == errno.EAFNOSUPPORT


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_overflows_as_in_the_standard_library(port: int) -> None:
    with pytest.raises(OverflowError):
        parse(AF_INET, ("10.0.0.2", port))


@pytest.mark.parametrize("address", ["10.0.0.2:80", ("10.0.0.2",), ("10.0.0.2", "80"), (1, 2), ("10.0.0.2", 80, 0, 0), None])
def test_other_shapes_are_type_errors(address: object) -> None:
    with pytest.raises(TypeError):
        parse(AF_INET, address)


def test_a_zone_is_an_interface_index_of_this_stack() -> None:
    with pytest.raises(socket.gaierror, match="interface index"):
        parse(AF_INET6, ("fe80::1%eth0", 80))
