"""UDP (RFC 768). A checksum of 0 means none was made: fine over IPv4, not over IPv6 (RFC 8200 §8.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct

from pytcp.wire.checksum import checksum, pseudo
from pytcp.wire.errors import TruncatedError, WireError

IPPROTO_UDP = 17

_HEADER = Struct(">HHHH")


def build_header(sport: int, dport: int, length: int, csum: int) -> bytes:
    """The 8 bytes; `length` counts header and data, `csum` is the field's value (0xffff where the sum is 0)."""
    return _HEADER.pack(sport, dport, length, csum)


def full_checksum(src: bytes, dst: bytes, datagram: bytes | bytearray | memoryview) -> int:
    """The field's value for a datagram whose checksum field is 0: a sum of 0 is sent as 0xffff."""
    return checksum(datagram, pseudo(src, dst, IPPROTO_UDP, len(datagram))) or 0xFFFF


@dataclass(frozen=True, slots=True)
class Udp:
    """A datagram as a value."""

    sport: int
    dport: int
    payload: bytes = b""
    checksum: int | None = field(default=None, compare=False)  # as received, 0 = none; None: `emit` computes it

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> Udp:
        """Bytes behind the length field are dropped; the checksum is not verified. Raises WireError."""
        if len(data) < 8:
            raise TruncatedError("UDP header is cut off")
        sport, dport, length, csum = _HEADER.unpack_from(data)
        if length < 8:
            raise WireError("UDP length is below 8", 4)
        if length > len(data):
            raise TruncatedError("UDP length is beyond the end", 4)
        return cls(sport, dport, bytes(data[8:length]), csum)

    def emit(self, src: bytes = b"", dst: bytes = b"") -> bytes:
        """The datagram; addresses are needed for a checksum to be computed, without them it has none."""
        datagram = build_header(self.sport, self.dport, 8 + len(self.payload), self.checksum or 0) + self.payload
        if self.checksum is None and src:
            datagram = datagram[:6] + full_checksum(src, dst, datagram).to_bytes(2, "big") + self.payload
        return datagram
