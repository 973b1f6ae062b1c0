"""IGMP of the three versions (RFC 1112 appendix I, RFC 2236, RFC 3376): queries, reports, leaves.

`code` is the maximum response time in the version's own coding; `decode_time` reads version 3's
floating form, for IGMP and for MLD alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from pytcp.wire.checksum import checksum
from pytcp.wire.errors import TruncatedError

QUERY = 0x11
REPORT_V1 = 0x12
REPORT_V2 = 0x16
LEAVE = 0x17
REPORT_V3 = 0x22

# group record types, the same in MLDv2
IS_INCLUDE = 1
IS_EXCLUDE = 2
TO_INCLUDE = 3
TO_EXCLUDE = 4
ALLOW = 5
BLOCK = 6

ALL_IGMPV3_ROUTERS = b"\xe0\x00\x00\x16"
ALL_SYSTEMS = b"\xe0\x00\x00\x01"
ALL_ROUTERS = b"\xe0\x00\x00\x02"

_RECORD = Struct(">BBH")
_REPORT = Struct(">B5xH")


def decode_time(code: int, mantissa: int = 4) -> int:
    """A coded time: itself below 2^(mantissa+3), else floating with 3 bits of exponent (RFC 3376 §4.1.1; MLD: 12 bits of mantissa)."""
    if code < 1 << (mantissa + 3):
        return code
    return (code & (1 << mantissa) - 1 | 1 << mantissa) << ((code >> mantissa & 7) + 3)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One group of a report, of either family."""

    kind: int
    group: bytes
    sources: tuple[bytes, ...] = ()
    aux: bytes = b""

    def emit(self) -> bytes:
        return _RECORD.pack(self.kind, len(self.aux) // 4, len(self.sources)) + self.group + b"".join(self.sources) + self.aux


def parse_records(raw: bytes, count: int, width: int) -> tuple[GroupRecord, ...]:
    """`count` records with addresses of `width` bytes. Raises TruncatedError."""
    records: list[GroupRecord] = []
    at = 0
    for _ in range(count):
        if at + 4 + width > len(raw):
            raise TruncatedError("group record is cut off", at)
        kind, aux, sources = _RECORD.unpack_from(raw, at)
        first = at + 4 + width
        last = first + sources * width
        end = last + 4 * aux
        if end > len(raw):
            raise TruncatedError("group record is cut off", at)
        records.append(GroupRecord(kind, raw[at + 4 : first], tuple(raw[i : i + width] for i in range(first, last, width)), raw[last:end]))
        at = end
    return tuple(records)


@dataclass(frozen=True, slots=True)
class Igmp:
    """Query, version 1 or 2 report, or leave: 8 bytes. `rest` is version 3's part of a query, or junk."""

    type: int
    group: bytes
    code: int = 0
    rest: bytes = b""

    @property
    def sources(self) -> tuple[bytes, ...]:
        """Sources a version 3 query asks about, as far as they are there."""
        count = int.from_bytes(self.rest[2:4], "big")
        return tuple(self.rest[i : i + 4] for i in range(4, min(4 + 4 * count, len(self.rest) - 3), 4))

    def emit(self) -> bytes:
        message = bytes((self.type, self.code, 0, 0)) + self.group + self.rest
        return message[:2] + checksum(message).to_bytes(2, "big") + message[4:]


@dataclass(frozen=True, slots=True)
class ReportV3:
    """Version 3 report."""

    records: tuple[GroupRecord, ...]

    def emit(self) -> bytes:
        message = _REPORT.pack(REPORT_V3, len(self.records)) + b"".join([record.emit() for record in self.records])
        return message[:2] + checksum(message).to_bytes(2, "big") + message[4:]


def parse(data: bytes | bytearray | memoryview) -> Igmp | ReportV3:
    """An IGMP message; the checksum is not verified. Raises TruncatedError."""
    if len(data) < 8:
        raise TruncatedError("IGMP message is cut off")
    raw = bytes(data)
    if raw[0] == REPORT_V3:
        return ReportV3(parse_records(raw[8:], int.from_bytes(raw[6:8], "big"), 4))
    return Igmp(raw[0], raw[4:8], raw[1], raw[8:])
