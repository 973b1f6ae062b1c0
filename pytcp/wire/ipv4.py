"""IPv4 headers and their options (RFC 791 §3.1; router alert RFC 2113).

`Ipv4` is the packet as a value. Options stay bytes in it; `walk_options` cuts them apart and checks
them as Linux's ip_options_compile does, naming the byte an ICMP parameter problem points to. Record
route and timestamp are values that can record one more hop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from struct import Struct

from pytcp.wire.checksum import checksum
from pytcp.wire.errors import TruncatedError, WireError

IPPROTO_ICMP = 1
IPPROTO_IGMP = 2
IPPROTO_TCP = 6
IPPROTO_UDP = 17
IPPROTO_RAW = 255

IP_RF = 0x8000  # reserved
IP_DF = 0x4000
IP_MF = 0x2000
IP_OFFSET = 0x1FFF  # in units of 8 bytes

IPOPT_END = 0
IPOPT_NOP = 1
IPOPT_RR = 7
IPOPT_TIMESTAMP = 68
IPOPT_SEC = 130
IPOPT_LSRR = 131
IPOPT_CIPSO = 134
IPOPT_SID = 136
IPOPT_SSRR = 137
IPOPT_RA = 148
ROUTER_ALERT = b"\x94\x04\x00\x00"

IPOPT_COPIED = 0x80  # bit of the type: goes into every fragment

IPOPT_TS_TSONLY = 0
IPOPT_TS_TSANDADDR = 1
IPOPT_TS_PRESPEC = 3
_TS_PAIRS = (IPOPT_TS_TSANDADDR, IPOPT_TS_PRESPEC)

MAX_OPTIONS = 40

_HEADER = Struct(">BBHHHBBH4s4s")
_unpack_header = _HEADER.unpack_from


def build_header(
    src: bytes,
    dst: bytes,
    proto: int,
    total_length: int,
    *,
    tos: int = 0,
    ident: int = 0,
    frag: int = IP_DF,
    ttl: int = 64,
    options: bytes = b"",
) -> bytes:
    """A header with its checksum. `frag` is the flags-and-offset field, `total_length` counts the header.

    Raises ValueError when `options` is not a multiple of 4 bytes or above 40.
    """
    size = len(options)
    if size & 3 or size > MAX_OPTIONS:
        raise ValueError(f"IPv4 options must be padded to 4 and at most 40 bytes, not {size}")
    vihl = 0x45 + (size >> 2)
    head = _HEADER.pack(vihl, tos, total_length, ident, frag, ttl, proto, 0, src, dst) + options
    return head[:10] + checksum(head).to_bytes(2, "big") + head[12:]


def header_ok(data: bytes | bytearray | memoryview) -> bool:
    """Whether the header checksum is right; the header itself must have been found whole."""
    return checksum(data[: (data[0] & 15) * 4]) == 0


@dataclass(frozen=True, slots=True)
class Ipv4:
    """A packet as a value. `frag_offset` is in bytes."""

    src: bytes
    dst: bytes
    proto: int
    payload: bytes = b""
    tos: int = 0
    ident: int = 0
    df: bool = True
    mf: bool = False
    frag_offset: int = 0
    ttl: int = 64
    options: bytes = b""
    reserved: bool = False
    checksum: int | None = field(default=None, compare=False)  # as received; None: `emit` computes it

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview, quoted: bool = False) -> Ipv4:
        """Bytes behind the total length are dropped, the checksum is not verified (`header_ok`). Raises WireError.

        `quoted`: the packet inside an ICMP error, whose end is missing (RFC 1122 §3.2.2); total length is not held against it.
        """
        if len(data) < 20:
            raise TruncatedError("IPv4 header is cut off")
        vihl, tos, total, ident, frag, ttl, proto, csum, src, dst = _unpack_header(data)
        size = (vihl & 15) * 4
        if vihl >> 4 != 4:
            raise WireError("IP version is not 4")
        if size < 20:
            raise WireError("IPv4 header length is below 20")
        if size > len(data):
            raise TruncatedError("IPv4 header is cut off")
        if not quoted:
            if total < size:
                raise WireError("IPv4 total length is below the header length", 2)
            if total > len(data):
                raise TruncatedError("IPv4 total length is beyond the end", 2)
        end = max(total, size)
        return cls(
            src,
            dst,
            proto,
            bytes(data[size:end]),
            tos,
            ident,
            bool(frag & IP_DF),
            bool(frag & IP_MF),
            (frag & IP_OFFSET) * 8,
            ttl,
            bytes(data[20:size]),
            bool(frag & IP_RF),
            csum,
        )

    def emit(self) -> bytes:
        """The packet. Raises ValueError for unpadded options and for an offset that is no multiple of 8."""
        if self.frag_offset & 7:
            raise ValueError("a fragment offset is a multiple of 8")
        frag = self.reserved << 15 | self.df << 14 | self.mf << 13 | self.frag_offset >> 3
        total = 20 + len(self.options) + len(self.payload)
        head = build_header(self.src, self.dst, self.proto, total, tos=self.tos, ident=self.ident, frag=frag, ttl=self.ttl, options=self.options)
        if self.checksum is not None:
            head = head[:10] + self.checksum.to_bytes(2, "big") + head[12:]
        return head + self.payload


@dataclass(frozen=True, slots=True)
class RecordRoute:
    """Record route (7), or the recorded part of LSRR (131) and SSRR (137): slots filled from the front."""

    slots: bytes  # 4 bytes per address
    pointer: int = 4  # of the next free slot, counted from the option's first byte as 1
    kind: int = IPOPT_RR

    @property
    def full(self) -> bool:
        """No whole slot is left at the pointer."""
        return self.pointer > len(self.slots)

    def record(self, addr: bytes) -> RecordRoute:
        """With `addr` in the next slot; itself when full (RFC 791: the packet goes on without)."""
        if self.full:
            return self
        at = self.pointer - 4
        return replace(self, slots=self.slots[:at] + addr + self.slots[at + 4 :], pointer=self.pointer + 4)

    def emit(self) -> bytes:
        return bytes((self.kind, 3 + len(self.slots), self.pointer)) + self.slots


@dataclass(frozen=True, slots=True)
class TimestampOption:
    """Internet timestamp (68): times in ms since midnight UT, with or without the address of who stamped."""

    slots: bytes  # 4 or 8 bytes per hop
    flag: int = IPOPT_TS_TSONLY
    pointer: int = 5
    overflow: int = 0  # hops that found no slot

    @property
    def full(self) -> bool:
        """No slot is left at the pointer."""
        return self.pointer > len(self.slots) + 4

    @property
    def wanted(self) -> bytes | None:
        """The address whose stamp the next slot waits for (flag PRESPEC), or None: anybody's, or none."""
        at = self.pointer - 5
        return self.slots[at : at + 4] if self.flag == IPOPT_TS_PRESPEC and not self.full else None

    def record(self, addr: bytes, ms: int) -> TimestampOption:
        """With one more stamp. A hop without a slot is counted; itself when `wanted` is another, or the flag unknown."""
        if self.full:
            return replace(self, overflow=min(self.overflow + 1, 15))
        stamp = (ms & 0xFFFFFFFF).to_bytes(4, "big")
        if self.flag in _TS_PAIRS:
            if self.wanted not in (None, addr):
                return self
            stamp = addr + stamp
        elif self.flag != IPOPT_TS_TSONLY:
            return self
        at = self.pointer - 5
        width = len(stamp)
        return replace(self, slots=self.slots[:at] + stamp + self.slots[at + width :], pointer=self.pointer + width)

    def emit(self) -> bytes:
        return bytes((IPOPT_TIMESTAMP, 4 + len(self.slots), self.pointer, self.overflow << 4 | self.flag)) + self.slots


@dataclass(frozen=True, slots=True)
class OtherOption:
    """Any other option: router alert, security, stream id, ..., unknown. `data` is what follows the length byte."""

    kind: int
    data: bytes

    def emit(self) -> bytes:
        return bytes((self.kind, 2 + len(self.data))) + self.data


Ipv4Option = RecordRoute | TimestampOption | OtherOption


def walk_options(options: bytes | bytearray | memoryview) -> Iterator[tuple[int, Ipv4Option]]:
    """(offset in `options`, option) for each option that is neither NOP nor END, checked as Linux checks on input.

    Raises WireError with the offset, from the start of the IPv4 header, that a parameter problem names:
    the option for a bad length and for a second one where there may be one, its length byte where it is
    too short for its kind, its pointer for one before the first slot or at a slot that does not fit.
    """
    raw = bytes(options)
    end = len(raw)
    at = 0
    seen: set[int] = set()
    while at < end:
        kind = raw[at]
        if kind == IPOPT_END:
            return
        if kind == IPOPT_NOP:
            at += 1
            continue
        size = raw[at + 1] if at + 1 < end else 0
        if size < 2 or at + size > end:
            raise WireError("IPv4 option has a bad length", 20 + at)
        yield at, _read_option(20 + at, kind, raw[at + 2 : at + size], seen)
        at += size


def _read_option(at: int, kind: int, body: bytes, seen: set[int]) -> Ipv4Option:
    match kind:
        case 7:
            _once(at, kind, seen)
            return _record_route(at, body)
        case 131 | 137:
            return _source_route(at, kind, body, seen)
        case 68:
            _once(at, kind, seen)
            return _timestamp(at, body)
        case 148 if len(body) < 2:
            raise WireError("router alert is too short", at + 1)
        case 134:
            # no domain of interpretation is configured, so none is known
            raise WireError("CIPSO label of an unknown domain", at + 1 if len(body) < 6 else at + 2)
    return OtherOption(kind, body)


def _once(at: int, kind: int, seen: set[int]) -> None:
    if kind in seen:
        raise WireError("IPv4 option appears twice", at)
    seen.add(kind)


def _pointer(at: int, body: bytes) -> int:
    if len(body) < 1:
        raise WireError("route option has no pointer", at + 1)
    if body[0] < 4:
        raise WireError("route pointer is before the first slot", at + 2)
    return body[0]


def _record_route(at: int, body: bytes) -> RecordRoute:
    pointer, size = _pointer(at, body), len(body) + 2
    if pointer <= size < pointer + 3:
        raise WireError("route pointer is at half a slot", at + 2)
    return RecordRoute(body[1:], pointer)


def _source_route(at: int, kind: int, body: bytes, seen: set[int]) -> RecordRoute:
    pointer = _pointer(at, body)
    # loose and strict exclude each other (RFC 1812 §5.2.4.1)
    _once(at, IPOPT_LSRR, seen)
    return RecordRoute(body[1:], pointer, kind)


def _timestamp(at: int, body: bytes) -> TimestampOption:
    if len(body) < 2:
        raise WireError("timestamp option has no flags", at + 1)
    option = TimestampOption(body[2:], body[1] & 15, body[0], body[1] >> 4)
    size = len(body) + 2
    if option.pointer < 5:
        raise WireError("timestamp pointer is before the first slot", at + 2)
    if option.pointer > size:
        if option.overflow == 15:
            raise WireError("timestamp overflow is full", at + 3)
    elif size < option.pointer + 3 or (option.flag in _TS_PAIRS and size < option.pointer + 7):
        raise WireError("timestamp pointer is at half a slot", at + 2)
    return option
