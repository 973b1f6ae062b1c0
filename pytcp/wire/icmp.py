"""ICMP for IPv4 (RFC 792; the MTU of code 4 RFC 1191): messages as values, and what an error quotes.

Each message has `code`, because Linux echoes and reports codes it does not know. Errors carry the
start of the packet they are about; `quoted` reads from it what a receiver needs to find its socket:
addresses, protocol and the first eight bytes behind the header.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from pytcp.wire.checksum import checksum
from pytcp.wire.errors import TruncatedError, WireError
from pytcp.wire.ipv4 import Ipv4
from pytcp.wire.ipv6 import IPPROTO_FRAGMENT, IPV6_HLEN, Ipv6, walk

ECHO_REPLY = 0
DEST_UNREACH = 3
SOURCE_QUENCH = 4
REDIRECT = 5
ECHO = 8
TIME_EXCEEDED = 11
PARAMETER_PROBLEM = 12
TIMESTAMP = 13
TIMESTAMP_REPLY = 14

NET_UNREACH = 0
HOST_UNREACH = 1
PROT_UNREACH = 2
PORT_UNREACH = 3
FRAG_NEEDED = 4
SR_FAILED = 5

TTL_EXPIRED = 0
REASSEMBLY_EXPIRED = 1

MAX_ERROR = 576  # bytes of a whole error packet, RFC 1812 §4.3.2.3

_HEADER = Struct(">BBHI")
_HALVES = Struct(">BBHHH")
_BYTES = Struct(">BBHB3x")
_TIMES = Struct(">III")


def _seal(message: bytes) -> bytes:
    """The message with its checksum, the field being 0 so far."""
    return message[:2] + checksum(message).to_bytes(2, "big") + message[4:]


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

    def emit(self) -> bytes:
        return _seal(_HALVES.pack(self.type, self.code, 0, self.ident, self.seq) + self.data)


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Destination unreachable; `mtu` of the next hop with code FRAG_NEEDED (0 from routers before RFC 1191)."""

    code: int
    quote: bytes
    mtu: int = 0

    @property
    def type(self) -> int:
        return DEST_UNREACH

    def emit(self) -> bytes:
        return _seal(_HALVES.pack(DEST_UNREACH, self.code, 0, 0, self.mtu) + self.quote)


@dataclass(frozen=True, slots=True)
class SourceQuench:
    """Source quench, which nobody should send (RFC 6633)."""

    quote: bytes
    code: int = 0

    @property
    def type(self) -> int:
        return SOURCE_QUENCH

    def emit(self) -> bytes:
        return _seal(_HEADER.pack(SOURCE_QUENCH, self.code, 0, 0) + self.quote)


@dataclass(frozen=True, slots=True)
class Redirect:
    """Use `gateway` for the quoted packet's destination."""

    code: int
    gateway: bytes
    quote: bytes

    @property
    def type(self) -> int:
        return REDIRECT

    def emit(self) -> bytes:
        return _seal(bytes((REDIRECT, self.code, 0, 0)) + self.gateway + self.quote)


@dataclass(frozen=True, slots=True)
class TimeExceeded:
    """TTL or reassembly time ran out."""

    code: int
    quote: bytes

    @property
    def type(self) -> int:
        return TIME_EXCEEDED

    def emit(self) -> bytes:
        return _seal(_HEADER.pack(TIME_EXCEEDED, self.code, 0, 0) + self.quote)


@dataclass(frozen=True, slots=True)
class ParameterProblem:
    """The byte at `pointer` of the quoted packet is wrong."""

    pointer: int
    quote: bytes
    code: int = 0

    @property
    def type(self) -> int:
        return PARAMETER_PROBLEM

    def emit(self) -> bytes:
        return _seal(_BYTES.pack(PARAMETER_PROBLEM, self.code, 0, self.pointer) + self.quote)


@dataclass(frozen=True, slots=True)
class Timestamp:
    """Timestamp request, or reply; times in ms since midnight UT. `rest` is whatever follows them."""

    ident: int
    seq: int
    originate: int
    receive: int = 0
    transmit: int = 0
    reply: bool = False
    code: int = 0
    rest: bytes = b""

    @property
    def type(self) -> int:
        return TIMESTAMP_REPLY if self.reply else TIMESTAMP

    def emit(self) -> bytes:
        times = _TIMES.pack(self.originate, self.receive, self.transmit)
        return _seal(_HALVES.pack(self.type, self.code, 0, self.ident, self.seq) + times + self.rest)


@dataclass(frozen=True, slots=True)
class Other:
    """A message of another type; `rest` is everything behind the checksum."""

    type: int
    code: int
    rest: bytes = bytes(4)

    def emit(self) -> bytes:
        return _seal(bytes((self.type, self.code, 0, 0)) + self.rest)


IcmpMessage = Echo | Unreachable | SourceQuench | Redirect | TimeExceeded | ParameterProblem | Timestamp | Other


def parse(data: bytes | bytearray | memoryview) -> IcmpMessage:
    """An ICMP message. Fields the type does not use are not kept, the checksum is not verified. Raises TruncatedError."""
    if len(data) < 8:
        raise TruncatedError("ICMP header is cut off")
    kind, code, _, high, low = _HALVES.unpack_from(data)
    body = bytes(data[8:])
    match kind:
        case 0 | 8:
            return Echo(high, low, body, kind == ECHO_REPLY, code)
        case 3:
            return Unreachable(code, body, low)
        case 4:
            return SourceQuench(body, code)
        case 5:
            return Redirect(code, bytes(data[4:8]), body)
        case 11:
            return TimeExceeded(code, body)
        case 12:
            return ParameterProblem(high >> 8, body, code)
        case 13 | 14 if len(body) >= 12:
            originate, receive, transmit = _TIMES.unpack_from(body)
            return Timestamp(high, low, originate, receive, transmit, kind == TIMESTAMP_REPLY, code, body[12:])
    return Other(kind, code, bytes(data[4:]))


class Quoted(NamedTuple):
    """What an error says about the packet it answers."""

    family: int
    src: bytes  # ours, when the error is about our packet
    dst: bytes
    proto: int
    l4: bytes  # the upper header as far as quoted, at least 8 bytes

    @property
    def sport(self) -> int:
        """Source port, for TCP and UDP."""
        return self.l4[0] << 8 | self.l4[1]

    @property
    def dport(self) -> int:
        """Destination port, for TCP and UDP."""
        return self.l4[2] << 8 | self.l4[3]

    @property
    def seq(self) -> int:
        """TCP sequence number."""
        return int.from_bytes(self.l4[4:8], "big")


def quoted(quote: bytes | bytearray | memoryview) -> Quoted:
    """Read an error's quote, of either family. Raises WireError where it has no whole header and eight bytes more.

    The quote of a later fragment raises too: it holds no upper header.
    """
    if len(quote) == 0:
        raise TruncatedError("the error quotes nothing")
    if quote[0] >> 4 == 4:
        packet = Ipv4.parse(quote, quoted=True)
        family, proto, l4, later = 4, packet.proto, packet.payload, packet.frag_offset > 0
        src, dst = packet.src, packet.dst
    else:
        outer = Ipv6.parse(quote, quoted=True)
        where = walk(quote, outer.next_header)
        family, proto, l4 = 6, where.proto, outer.payload[where.offset - IPV6_HLEN :]
        last = where.extensions[-1] if where.extensions else None
        later = last is not None and last.kind == IPPROTO_FRAGMENT and (quote[last.offset + 2], quote[last.offset + 3] & 0xF8) != (0, 0)
        src, dst = outer.src, outer.dst
    if later:
        raise WireError("the error quotes a later fragment")
    if len(l4) < 8:
        raise TruncatedError("the error quotes too little")
    return Quoted(family, src, dst, proto, l4)


def quote_limit(ip_header: int = 20) -> int:
    """Bytes an error may quote so that the packet stays within 576, given its own IPv4 header's size."""
    return MAX_ERROR - ip_header - 8
