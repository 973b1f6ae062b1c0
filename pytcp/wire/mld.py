"""Multicast listener discovery for IPv6: version 1 (RFC 2710) and the reports of version 2 (RFC 3810)."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from pytcp.wire.errors import TruncatedError, WireError
from pytcp.wire.icmpv6 import seal
from pytcp.wire.igmp import GroupRecord, parse_records

QUERY = 130
REPORT_V1 = 131
DONE = 132
REPORT_V2 = 143

ALL_MLDV2_ROUTERS = bytes.fromhex("ff02000000000000 0000000000000016")

_V1 = Struct(">BBHHH16s")
_V2 = Struct(">BBHHH")


@dataclass(frozen=True, slots=True)
class Mld:
    """Query, version 1 report or done. `max_delay` as coded (ms, floating in version 2); `rest` is version 2's part of a query."""

    type: int
    group: bytes
    max_delay: int = 0
    rest: bytes = b""

    @property
    def sources(self) -> tuple[bytes, ...]:
        """Sources a version 2 query asks about, as far as they are there."""
        count = int.from_bytes(self.rest[2:4], "big")
        return tuple(self.rest[i : i + 16] for i in range(4, min(4 + 16 * count, len(self.rest) - 15), 16))

    def emit(self, src: bytes, dst: bytes) -> bytes:
        return seal(_V1.pack(self.type, 0, 0, self.max_delay, 0, self.group) + self.rest, src, dst)


@dataclass(frozen=True, slots=True)
class ReportV2:
    """Version 2 report."""

    records: tuple[GroupRecord, ...]

    def emit(self, src: bytes, dst: bytes) -> bytes:
        head = _V2.pack(REPORT_V2, 0, 0, 0, len(self.records))
        return seal(head + b"".join([record.emit() for record in self.records]), src, dst)


def parse(data: bytes | bytearray | memoryview) -> Mld | ReportV2:
    """An ICMPv6 message of types 130, 131, 132 or 143. Raises WireError."""
    kind = data[0] if len(data) else 0
    if kind not in (QUERY, REPORT_V1, DONE, REPORT_V2):
        raise WireError("not a multicast listener message")
    if kind == REPORT_V2:
        if len(data) < 8:
            raise TruncatedError("MLD message is cut off")
        return ReportV2(parse_records(bytes(data[8:]), _V2.unpack_from(data)[4], 16))
    if len(data) < 24:
        raise TruncatedError("MLD message is cut off")
    _, _, _, max_delay, _, group = _V1.unpack_from(data)
    return Mld(kind, group, max_delay, bytes(data[24:]))
