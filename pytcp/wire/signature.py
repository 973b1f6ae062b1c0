"""The digest of RFC 2385 §2.0: what the MD5 option of a TCP segment carries.

MD5 over the pseudo-header, the fixed TCP header with a checksum of zero, the payload, and the key, in this
order; the options are not covered, but their length is, in the pseudo-header's length and in the data
offset. For IPv6 the pseudo-header is RFC 8200 §8.1's, as Linux, the BSDs and the routers have it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import md5
from struct import Struct

_LENGTH4 = Struct(">HH").pack
_LENGTH6 = Struct(">II").pack

IPPROTO_TCP = 6
FIXED_HEADER = 20
CHECKSUM = 16  # where the checksum stands in it


def digest(key: bytes, src: bytes, dst: bytes, header: bytes | memoryview, payload: Iterable[bytes | bytearray | memoryview]) -> bytes:
    """The 16 bytes of signature of one segment.

    header: the TCP header, options included; what its checksum field holds does not matter. payload: the segment's
    bytes in pieces. Addresses are 4 or 16 bytes each."""
    parts = list(payload)
    size = len(header) + sum(map(len, parts))
    total = md5(src + dst, usedforsecurity=False)
    total.update(_LENGTH4(IPPROTO_TCP, size) if len(src) == 4 else _LENGTH6(size, IPPROTO_TCP))
    total.update(bytes(header[:CHECKSUM]) + b"\0\0" + bytes(header[CHECKSUM + 2 : FIXED_HEADER]))
    for part in parts:
        total.update(part)
    total.update(key)
    return total.digest()
