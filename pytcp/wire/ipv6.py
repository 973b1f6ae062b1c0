"""IPv6 headers and extension headers (RFC 8200), and the options in hop-by-hop and destination headers.

`walk` steps over a packet's extension headers without judging what is in them; the options are
`iter_options`' business, and what a host does about each is the receiver's. `Ipv6` and the headers
are values for building and taking packets apart; a header's payload is everything behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from pytcp.wire.errors import TruncatedError, WireError

IPPROTO_HOPOPTS = 0
IPPROTO_TCP = 6
IPPROTO_UDP = 17
IPPROTO_ROUTING = 43
IPPROTO_FRAGMENT = 44
IPPROTO_ICMPV6 = 58
IPPROTO_NONE = 59
IPPROTO_DSTOPTS = 60

IPV6_HLEN = 40
IPV6_MIN_MTU = 1280

OPT_PAD1 = 0
OPT_PADN = 1
OPT_TUNNEL_LIMIT = 0x04  # RFC 2473
OPT_ROUTER_ALERT = 0x05  # RFC 2711
OPT_JUMBO = 0xC2  # RFC 2675
OPT_HOME_ADDRESS = 0xC9  # RFC 6275

# what to do with an unknown option: the two high bits of its type (RFC 8200 §4.2)
ACTION_SKIP = 0
ACTION_DISCARD = 1
ACTION_ERROR = 2
ACTION_ERROR_UNICAST = 3

_HEADER = Struct(">IHBB16s16s")
_FRAGMENT = Struct(">BBHI")


def build_header(src: bytes, dst: bytes, next_header: int, payload_length: int, *, tclass: int = 0, flow: int = 0, hop_limit: int = 64) -> bytes:
    """The 40 bytes; `payload_length` counts extension headers and what follows them, `flow` is the 20-bit label."""
    return _HEADER.pack(0x60000000 | tclass << 20 | flow, payload_length, next_header, hop_limit, src, dst)


@dataclass(frozen=True, slots=True)
class Ipv6:
    """A packet as a value; `payload` begins with the extension headers, if any."""

    src: bytes
    dst: bytes
    next_header: int
    payload: bytes = b""
    tclass: int = 0
    flow: int = 0
    hop_limit: int = 64

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview, quoted: bool = False) -> Ipv6:
        """Bytes behind the payload length are dropped. Raises WireError.

        `quoted`: the packet inside an ICMPv6 error, whose end may be missing.
        """
        if len(data) < IPV6_HLEN:
            raise TruncatedError("IPv6 header is cut off")
        word, length, next_header, hop_limit, src, dst = _HEADER.unpack_from(data)
        if word >> 28 != 6:
            raise WireError("IP version is not 6")
        if length > len(data) - IPV6_HLEN and not quoted:
            raise TruncatedError("IPv6 payload length is beyond the end", 4)
        payload = bytes(data[IPV6_HLEN : IPV6_HLEN + length])
        return cls(src, dst, next_header, payload, word >> 20 & 0xFF, word & 0xFFFFF, hop_limit)

    def emit(self) -> bytes:
        head = build_header(self.src, self.dst, self.next_header, len(self.payload), tclass=self.tclass, flow=self.flow, hop_limit=self.hop_limit)
        return head + self.payload


# ---- walking a packet ------------------------------------------------------------------------


class Extension(NamedTuple):
    """One extension header met on a walk."""

    kind: int  # its protocol number
    offset: int
    length: int  # bytes
    pointer: int  # offset of the byte that named it: what a parameter problem about it points to


class Walk(NamedTuple):
    """Where a packet's upper-layer header is."""

    extensions: tuple[Extension, ...]
    proto: int  # of the upper layer; of the part behind the first fragment header, when that is not the first fragment
    offset: int
    pointer: int  # offset of the byte that said `proto`


def walk(data: bytes | bytearray | memoryview, next_header: int, offset: int = IPV6_HLEN, end: int | None = None, pointer: int = 6) -> Walk:
    """Step over hop-by-hop, routing, fragment and destination headers from `offset` up to `end`.

    Stops behind the header of a later fragment, since what follows it is no header. `pointer` is where
    `next_header` was read. Raises TruncatedError with the offset of the header that does not fit.
    """
    end = len(data) if end is None else end
    found: list[Extension] = []
    while next_header in (IPPROTO_HOPOPTS, IPPROTO_ROUTING, IPPROTO_FRAGMENT, IPPROTO_DSTOPTS):
        if offset + 8 > end:
            raise TruncatedError("IPv6 extension header is cut off", offset)
        length = 8 if next_header == IPPROTO_FRAGMENT else 8 + 8 * data[offset + 1]
        if offset + length > end:
            raise TruncatedError("IPv6 extension header is cut off", offset)
        found.append(Extension(next_header, offset, length, pointer))
        later = next_header == IPPROTO_FRAGMENT and (data[offset + 2] << 8 | data[offset + 3]) & 0xFFF8 != 0
        next_header, pointer = data[offset], offset
        offset += length
        if later:
            break
    return Walk(tuple(found), next_header, offset, pointer)


class Ipv6Option(NamedTuple):
    """One option of a hop-by-hop or destination header. Padding is an option too (kinds 0 and 1)."""

    kind: int
    data: bytes = b""
    offset: int = 0  # of its type byte, where it was read

    @property
    def action(self) -> int:
        """What a host that does not know it must do (ACTION_*)."""
        return self.kind >> 6

    def emit(self) -> bytes:
        return b"\0" if self.kind == OPT_PAD1 else bytes((self.kind, len(self.data))) + self.data


def iter_options(data: bytes | bytearray | memoryview, offset: int, end: int) -> Iterator[Ipv6Option]:
    """The options in `data[offset:end]`, padding included. Raises TruncatedError for one that does not fit."""
    while offset < end:
        kind = data[offset]
        if kind == OPT_PAD1:
            yield Ipv6Option(kind, b"", offset)
            offset += 1
            continue
        if offset + 2 > end or offset + 2 + data[offset + 1] > end:
            raise TruncatedError("IPv6 option is cut off", offset)
        length = data[offset + 1]
        yield Ipv6Option(kind, bytes(data[offset + 2 : offset + 2 + length]), offset)
        offset += 2 + length


def pad(length: int) -> bytes:
    """The Pad1 or PadN option that brings `length` bytes of options and their two-byte header to a multiple of 8."""
    gap = -(length + 2) & 7
    if gap < 2:
        return bytes(gap)
    return bytes((OPT_PADN, gap - 2)) + bytes(gap - 2)


# ---- headers as values -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OptionsHeader:
    """Hop-by-hop or destination options; which of the two, the header before says."""

    next_header: int
    options: tuple[Ipv6Option, ...] = ()
    payload: bytes = b""

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> OptionsHeader:
        """Offsets of the options count from the header's start. Raises TruncatedError."""
        if len(data) < 8 or len(data) < 8 + 8 * data[1]:
            raise TruncatedError("IPv6 options header is cut off")
        size = 8 + 8 * data[1]
        return cls(data[0], tuple(iter_options(data, 2, size)), bytes(data[size:]))

    def emit(self) -> bytes:
        """The header, padded to a multiple of 8 where the options do not reach one."""
        raw = b"".join([option.emit() for option in self.options])
        raw += pad(len(raw))
        return bytes((self.next_header, (len(raw) + 2) // 8 - 1)) + raw + self.payload


@dataclass(frozen=True, slots=True)
class RoutingHeader:
    """Any routing header; `data` is what is specific to its type, 4 bytes and a multiple of 8 more."""

    next_header: int
    routing_type: int
    segments_left: int
    data: bytes = bytes(4)
    payload: bytes = b""

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> RoutingHeader:
        """Raises TruncatedError."""
        if len(data) < 8 or len(data) < 8 + 8 * data[1]:
            raise TruncatedError("IPv6 routing header is cut off")
        size = 8 + 8 * data[1]
        return cls(data[0], data[2], data[3], bytes(data[4:size]), bytes(data[size:]))

    def emit(self) -> bytes:
        """Raises ValueError when `data` has a size no header can have."""
        if len(self.data) & 7 != 4:
            raise ValueError("routing data must be 4 bytes and a multiple of 8 more")
        return bytes((self.next_header, len(self.data) // 8, self.routing_type, self.segments_left)) + self.data + self.payload


@dataclass(frozen=True, slots=True)
class FragmentHeader:
    """Fragment header (RFC 8200 §4.5); `offset` is in bytes. Reserved bits are not kept."""

    next_header: int
    offset: int
    more: bool
    ident: int
    payload: bytes = b""

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> FragmentHeader:
        """Raises TruncatedError."""
        if len(data) < 8:
            raise TruncatedError("IPv6 fragment header is cut off")
        next_header, _, field, ident = _FRAGMENT.unpack_from(data)
        return cls(next_header, field & 0xFFF8, bool(field & 1), ident, bytes(data[8:]))

    def emit(self) -> bytes:
        """Raises ValueError when the offset is no multiple of 8."""
        if self.offset & 7:
            raise ValueError("a fragment offset is a multiple of 8")
        return _FRAGMENT.pack(self.next_header, 0, self.offset | self.more, self.ident) + self.payload
