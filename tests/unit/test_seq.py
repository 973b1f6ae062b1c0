"""Sequence numbers unwrapped next to a number already known (RFC 9293 §3.4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytcp.tcp import seq

CYCLE = 1 << 32


@given(st.integers(CYCLE, 5 * CYCLE), st.integers(-(1 << 31), (1 << 31) - 1))
def test_any_number_within_half_a_cycle_comes_back(near: int, distance: int) -> None:
    number = near + distance
    assert seq.unwrap(number & 0xFFFFFFFF, near) == number


@pytest.mark.parametrize(
    ("wire", "near", "number"),
    [
        (0, CYCLE + 0xFFFFFFFF, 2 * CYCLE),  # one ahead, across the wrap
        (0xFFFFFFFF, 2 * CYCLE, 2 * CYCLE - 1),  # one behind, across the wrap
        (5, CYCLE + 5, CYCLE + 5),
        (0x80000004, CYCLE + 5, CYCLE + 0x80000004),  # 2^31 - 1 ahead is still ahead
        (0x80000005, CYCLE + 5, CYCLE + 5 - 0x80000000),  # exactly half a cycle counts as behind
    ],
)
def test_the_nearer_candidate_is_taken(wire: int, near: int, number: int) -> None:
    assert seq.unwrap(wire, near) == number


def test_an_initial_number_leaves_room_below() -> None:
    """ISN 0 minus a whole window must not become negative."""
    assert seq.initial(0) - 0x40000000 > 0
    assert seq.initial(0xFFFFFFFF) & 0xFFFFFFFF == 0xFFFFFFFF
