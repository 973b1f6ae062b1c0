"""The Internet checksum: RFC examples, scapy's answers, and the C helper against its twin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.utils import checksum as scapy_checksum

from pytcp.wire.checksum import (
    C_MIN,
    checksum,
    checksum_py,
    incremental,
    ones_sum,
    ones_sum_py,
    pseudo,
    pseudo4,
    pseudo6,
    transport_ok,
)

RFC1071 = bytes.fromhex("0001f203f4f5f6f7")


def test_rfc_1071_section_3_example() -> None:
    assert ones_sum(RFC1071) == 0xDDF2
    assert checksum(RFC1071) == 0x220D


def test_a_sum_with_its_own_checksum_in_it_verifies() -> None:
    assert checksum(RFC1071 + checksum(RFC1071).to_bytes(2, "big")) == 0


def test_an_odd_last_byte_counts_as_the_high_half_of_a_word() -> None:
    assert ones_sum(b"\x12\x34\x56") == 0x1234 + 0x5600


def test_nothing_but_zeros_sums_to_zero_and_anything_else_never_does() -> None:
    assert ones_sum(bytes(200)) == 0
    # 0xffff + 0x0001 folds to 1, 0xfffe + 0x0001 to 0xffff: negative zero, not zero
    assert ones_sum(b"\xff\xff\x00\x01") == 1
    assert ones_sum(b"\xff\xfe\x00\x01") == 0xFFFF
    assert ones_sum(b"\xff\xff" * 100) == 0xFFFF


def test_rfc_1624_section_4_example_of_an_incremental_update() -> None:
    # HC = DD2F, m = 5555, m' = 3285: the faulty equation 2 gives FFFF, the right one 0000
    assert incremental(0xDD2F, 0x5555, 0x3285) == 0x0000


def test_pseudo_headers_by_hand() -> None:
    # 0a00 + 0001 + 0a00 + 0002 + 6 + 20
    assert pseudo4(b"\x0a\0\0\1", b"\x0a\0\0\2", 6, 20) == 0x0A00 + 1 + 0x0A00 + 2 + 6 + 20
    src = bytes.fromhex("fd780000000000000000000000000001")
    dst = bytes.fromhex("fd780000000000000000000000000002")
    assert pseudo6(src, dst, 17, 0x12345) == 0xFD78 + 1 + 0xFD78 + 2 + 17 + 1 + 0x2345
    assert pseudo(src, dst, 17, 8) == pseudo6(src, dst, 17, 8)
    assert pseudo(b"\x0a\0\0\1", b"\x0a\0\0\2", 6, 20) == pseudo4(b"\x0a\0\0\1", b"\x0a\0\0\2", 6, 20)


def test_a_datagram_summed_by_hand_verifies_and_a_flipped_bit_does_not() -> None:
    # 10.78.0.2:40000 > 10.78.0.1:5000, "hello"
    datagram = bytearray.fromhex("9c40 1388 000d 0000 68656c6c6f")
    src, dst = b"\x0a\x4e\0\2", b"\x0a\x4e\0\1"
    # 9c40+1388+000d+6865+6c6c+6f00 = 1f3a6, pseudo-header 0a4e+0002+0a4e+0001+0011+000d = 14bd: 20863 -> 0865 -> f79a
    datagram[6:8] = b"\xf7\x9a"
    assert transport_ok(datagram, src, dst, 17)
    for at in range(len(datagram)):
        bad = bytearray(datagram)
        bad[at] ^= 0x10
        assert not transport_ok(bad, src, dst, 17)


@given(st.binary(max_size=300), st.integers(0, 0xFFFFFFFF))
def test_both_twins_give_one_sum(data: bytes, start: int) -> None:
    assert ones_sum(data, start) == ones_sum_py(data, start)
    assert checksum(data, start) == checksum_py(data, start)


@pytest.mark.parametrize("size", [C_MIN - 1, C_MIN, C_MIN + 1, 1499, 1500, 65000, 65535])
def test_both_twins_give_one_sum_around_the_sizes_where_they_change_over(size: int) -> None:
    data = bytes((i * 7 + 3) & 0xFF for i in range(size))
    for start in (0, 1, 0xFFFF, 0xFFFFFFFF):
        assert ones_sum(data, start) == ones_sum_py(data, start)
        assert ones_sum(memoryview(data), start) == ones_sum_py(bytearray(data), start)


@given(st.binary(max_size=300))
def test_scapy_computes_the_same_checksum(data: bytes) -> None:
    assert checksum(data) == scapy_checksum(data)


@given(st.binary(min_size=2, max_size=64), st.binary(max_size=64))
def test_a_buffer_may_be_summed_in_two_parts(head: bytes, tail: bytes) -> None:
    if len(head) & 1:
        head += b"\x55"
    assert ones_sum(tail, ones_sum(head)) == ones_sum(head + tail)


@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=20), st.data())
def test_an_incremental_update_equals_a_new_sum(words: list[int], data: st.DataObject) -> None:
    # a constant word keeps the buffer from being all zero, the one case in which RFC 1624 §3 allows two answers
    words.append(0x4500)
    at = data.draw(st.integers(0, len(words) - 2))
    new = data.draw(st.integers(0, 0xFFFF))
    before = checksum(b"".join(word.to_bytes(2, "big") for word in words))
    changed = [*words[:at], new, *words[at + 1 :]]
    assert incremental(before, words[at], new) == checksum(b"".join(word.to_bytes(2, "big") for word in changed))
