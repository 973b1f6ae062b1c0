"""Whatever a name server, or somebody in its place, sends: the resolver ignores it or reads it, and raises nothing."""

from __future__ import annotations

import socket as stdlib

import dns.message
import dns.rdatatype
import dns.rrset
from hypothesis import given
from hypothesis import strategies as st

from pytcp.sockets.hosts import parse_hosts, parse_resolv_conf
from pytcp.sockets.resolver import EAI_NODATA, _match, _read

QUERY = dns.message.make_query("host.example", "A", id=0x1234)
RESPONSE = dns.message.make_response(QUERY)
RESPONSE.answer.append(dns.rrset.from_text("host.example.", 60, "IN", "CNAME", "other.example."))
RESPONSE.answer.append(dns.rrset.from_text("other.example.", 60, "IN", "A", "10.0.0.1", "10.0.0.2"))
WIRE = RESPONSE.to_wire()
FAILURES = {stdlib.EAI_NONAME, stdlib.EAI_FAIL, EAI_NODATA}


def take(wire: bytes) -> None:
    """What the resolver does with a datagram."""
    kind, response = _match({dns.rdatatype.A: QUERY}, wire)
    if response is None:
        return
    assert (kind, response.id) == (dns.rdatatype.A, 0x1234)
    addresses, _, failure = _read(response)
    assert all(len(address) == 4 for address in addresses)
    assert failure in FAILURES


def test_the_response_that_is_mutated_below_is_a_good_one() -> None:
    _, response = _match({dns.rdatatype.A: QUERY}, WIRE)
    addresses, canonical, _ = _read(response)
    assert (set(addresses), canonical) == ({bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))}, "other.example")


@given(st.binary(max_size=600))
def test_any_bytes(wire: bytes) -> None:
    take(wire)
    take(WIRE[:12] + wire)
    take(WIRE[: len(QUERY.to_wire())] + wire)


@given(st.lists(st.tuples(st.integers(0, len(WIRE) - 1), st.integers(0, 255)), min_size=1, max_size=8), st.integers(0, len(WIRE)))
def test_a_response_with_bytes_changed_or_cut_off(changes: list[tuple[int, int]], end: int) -> None:
    wire = bytearray(WIRE)
    for at, value in changes:
        wire[at] = value
    take(bytes(wire))
    take(bytes(wire[:end]))


@given(st.text(max_size=400), st.dictionaries(st.sampled_from(["LOCALDOMAIN", "RES_OPTIONS"]), st.text(max_size=60)))
def test_any_text_as_the_systems_files(text: str, environ: dict[str, str]) -> None:
    config = parse_resolv_conf(text, environ)
    assert 1 <= len(config.nameservers) <= 3
    assert 0 <= config.ndots <= 15 and 1 <= config.timeout <= 30 and 1 <= config.attempts <= 5
    parse_hosts(text)
