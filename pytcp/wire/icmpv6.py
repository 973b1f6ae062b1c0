"""ICMPv6 echo and errors (RFC 4443). Neighbour discovery is `ndp`, multicast listeners are `mld`.

The checksum covers a pseudo-header, so `emit` wants both addresses. `icmp.quoted` reads an error's
quote here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from pytcp.wire.checksum import checksum, pseudo6
from pytcp.wire.errors import TruncatedError

IPPROTO_ICMPV6 = 58

DEST_UNREACH = 1
PACKET_TOO_BIG = 2
TIME_EXCEEDED = 3
PARAMETER_PROBLEM = 4
ECHO = 128
ECHO_REPLY = 129

NO_ROUTE = 0
ADMIN_PROHIBITED = 1
BEYOND_SCOPE = 2
ADDR_UNREACH = 3
PORT_UNREACH = 4
POLICY_FAIL = 5
REJECT_ROUTE = 6

HOP_LIMIT_EXPIRED = 0
REASSEMBLY_EXPIRED = 1

ERRONEOUS_HEADER = 0
UNKNOWN_NEXT_HEADER = 1
UNKNOWN_OPTION = 2
INCOMPLETE_CHAIN = 3  # RFC 7112

MAX_QUOTE = 1280 - 40 - 8  # the error must fit the minimum MTU, RFC 4443 §2.4 (c)

_HEADER = Struct(">BBHI")
_HALVES = Struct(">BBHHH")


def seal(message: bytes, src: bytes, dst: bytes) -> bytes:
    """An ICMPv6 message, its checksum field 0, with the checksum for these addresses."""
    csum = checksum(message, pseudo6(src, dst, IPPROTO_ICMPV6, len(message)))
    return message[:2] + csum.to_bytes(2, "big") + message[4:]


@dataclass(frozen=True, slots=True)
class Echo:
    """Echo request, or reply."""

    ident: int
    seq: int
    data: bytes = b""
    reply: bool = False
    code: int = 0

    @property
    def type(self) -> int:
        return ECHO_REPLY if self.reply else ECHO

    def emit(self, src: bytes, dst: bytes) -> bytes:
        return seal(_HALVES.pack(self.type, self.code, 0, self.ident, self.seq) + self.data, src, dst)


@dataclass(frozen=True, slots=True)
class Error:
    """Any error: `info` is the MTU of PACKET_TOO_BIG, the pointer of PARAMETER_PROBLEM, else unused and 0."""

    type: int
    code: int
    quote: bytes
    info: int = 0

    def emit(self, src: bytes, dst: bytes) -> bytes:
        return seal(_HEADER.pack(self.type, self.code, 0, self.info) + self.quote, src, dst)


@dataclass(frozen=True, slots=True)
class Other:
    """A message of another type; `rest` is everything behind the checksum."""

    type: int
    code: int
    rest: bytes = b""

    def emit(self, src: bytes, dst: bytes) -> bytes:
        return seal(bytes((self.type, self.code, 0, 0)) + self.rest, src, dst)


Icmpv6Message = Echo | Error | Other


def parse(data: bytes | bytearray | memoryview) -> Icmpv6Message:
    """An ICMPv6 message; types below 128 are errors (RFC 4443 §2.1), known or not. Raises TruncatedError.

    The checksum is not verified: `checksum.transport_ok`.
    """
    if len(data) < 8:
        raise TruncatedError("ICMPv6 header is cut off")
    kind, code, _, info = _HEADER.unpack_from(data)
    if kind < ECHO:
        return Error(kind, code, bytes(data[8:]), info)
    if kind in (ECHO, ECHO_REPLY):
        return Echo(info >> 16, info & 0xFFFF, bytes(data[8:]), kind == ECHO_REPLY, code)
    return Other(kind, code, bytes(data[4:]))
