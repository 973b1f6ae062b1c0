"""The Internet checksum (RFC 1071), its incremental update (RFC 1624) and the pseudo-headers.

A ones' complement sum of 16-bit words is arithmetic modulo 65535, so the Python twin reads the whole
buffer as one big integer and takes the remainder: linear, and no loop in Python. The C function is
the same sum and is used for buffers long enough to repay the call. Payload that a device will
checksum is never summed at all (`csum_start`), so this runs for control packets and plain links.
"""

from __future__ import annotations

from struct import Struct

from pytcp.native import ffi, lib

Buffer = bytes | bytearray | memoryview

_PSEUDO4 = Struct(">4H").unpack
_PSEUDO6 = Struct(">16H").unpack

C_MIN = 96  # bytes below which the big-integer remainder is quicker than a call through cffi


def ones_sum_py(buf: Buffer, start: int = 0) -> int:
    """Twin of `ones_sum` without C."""
    total = int.from_bytes(buf, "big")
    if len(buf) & 1:
        total <<= 8
    total += start
    # 0 and 65535 are the same number here; only a sum of nothing but zeros folds to 0
    return total % 0xFFFF or (0xFFFF if total else 0)


def checksum_py(buf: Buffer, start: int = 0) -> int:
    """Twin of `checksum` without C."""
    return ones_sum_py(buf, start) ^ 0xFFFF


def ones_sum(buf: Buffer, start: int = 0) -> int:
    """Ones' complement sum of `buf` as big-endian 16-bit words, an odd last byte padded with zero.

    `start` (below 2^32) is added first, folded or not: a pseudo-header or an earlier part of even
    length. Returns the sum folded to 16 bits, not complemented.
    """
    size = len(buf)
    if lib is not None and size >= C_MIN:
        return lib.pytcp_ones_sum(ffi.from_buffer(buf), size, start)
    return ones_sum_py(buf, start)


def checksum(buf: Buffer, start: int = 0) -> int:
    """The 16-bit value for a checksum field that is zero in `buf`; 0 when a filled-in field is right."""
    return ones_sum(buf, start) ^ 0xFFFF


def incremental(csum: int, old16: int, new16: int) -> int:
    """`csum` after the 16-bit word `old16` under it became `new16` (RFC 1624 equation 3)."""
    total = (csum ^ 0xFFFF) + (old16 ^ 0xFFFF) + new16
    total = (total & 0xFFFF) + (total >> 16)
    return ((total & 0xFFFF) + (total >> 16)) ^ 0xFFFF


def pseudo4(src: bytes, dst: bytes, proto: int, length: int) -> int:
    """Unfolded sum of the IPv4 pseudo-header (RFC 9293 §3.1); `length` counts the L4 header and data."""
    a, b, c, d = _PSEUDO4(src + dst)
    total: int = a + b + c + d + proto + length
    return total


def pseudo6(src: bytes, dst: bytes, proto: int, length: int) -> int:
    """Unfolded sum of the IPv6 pseudo-header (RFC 8200 §8.1); `length` is that of the upper-layer packet."""
    total: int = sum(_PSEUDO6(src + dst)) + proto + (length >> 16) + (length & 0xFFFF)
    return total


def pseudo(src: bytes, dst: bytes, proto: int, length: int) -> int:
    """`pseudo4` or `pseudo6`, by the size of the addresses."""
    return pseudo4(src, dst, proto, length) if len(src) == 4 else pseudo6(src, dst, proto, length)


def transport_ok(data: Buffer, src: bytes, dst: bytes, proto: int) -> bool:
    """Whether the checksum inside `data` (L4 header and data, whole) is right for these addresses."""
    return checksum(data, pseudo(src, dst, proto, len(data))) == 0
