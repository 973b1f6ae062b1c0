"""The vectorised checksum against its twin and against sums done by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytcp import native
from pytcp.wire.checksum import ones_sum_py

pytestmark = pytest.mark.skipif(not native.HAVE_C, reason=native.reason)


def ones_sum(data: bytes, start: int = 0, at: int = 0) -> int:
    """The C sum of data[at:], which begins at any alignment."""
    assert native.lib is not None
    whole = native.ffi.from_buffer(data)
    return native.lib.pytcp_ones_sum(whole + at, len(data) - at, start)


def test_the_example_of_rfc_1071() -> None:
    # section 3: 0001 f203 f4f5 f6f7 add up to 2ddf0, folded ddf2
    assert ones_sum(bytes.fromhex("0001f203f4f5f6f7")) == 0xDDF2


def test_an_odd_last_byte_is_the_high_half_of_its_word() -> None:
    assert ones_sum(b"\x12") == 0x1200
    assert ones_sum(b"\0\0\x12") == 0x1200


def test_nothing_sums_to_the_start() -> None:
    assert ones_sum(b"") == 0
    assert ones_sum(b"", 0x12345) == 0x2346
    assert ones_sum(b"", 0xFFFFFFFF) == 0xFFFF


def test_only_zeros_sum_to_zero() -> None:
    assert ones_sum(bytes(4096)) == 0
    assert ones_sum(b"\xff" * 4096) == 0xFFFF
    assert ones_sum(b"\0\1", 0xFFFE) == 0xFFFF


@pytest.mark.parametrize("size", [*range(140), 1447, 1448, 1500, 4095, 65535, 65536, 1 << 20])
def test_every_length_and_alignment(size: int) -> None:
    data = b"\xff\xfe\xfd" + bytes(i * i * 31 + i & 0xFF for i in range(size))
    for at in range(3):
        assert ones_sum(data, 0, at) == ones_sum_py(data[at:])
    # carries out of every word
    assert ones_sum(b"\xff" * size) == ones_sum_py(b"\xff" * size)


@given(st.binary(max_size=300), st.integers(0, 0xFFFFFFFF), st.integers(0, 8))
def test_c_and_python_sum_alike(data: bytes, start: int, at: int) -> None:
    at = min(at, len(data))
    assert ones_sum(data, start, at) == ones_sum_py(data[at:], start)
