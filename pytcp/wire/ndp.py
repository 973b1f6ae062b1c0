"""Neighbour discovery messages and options (RFC 4861; preference and routes RFC 4191, DNS RFC 8106, nonce RFC 3971).

`parse` refuses what RFC 4861 §6.1, 7.1 and 8.1 tell every receiver to discard by the message alone: a cut-off
message and an option of length 0 or beyond the end. Hop limit 255, code 0, the checksum and the
addresses are the receiver's checks, since they need the IPv6 header.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import TypeVar

from pytcp.wire.errors import TruncatedError, WireError
from pytcp.wire.icmpv6 import seal

ROUTER_SOLICIT = 133
ROUTER_ADVERT = 134
NEIGHBOR_SOLICIT = 135
NEIGHBOR_ADVERT = 136
REDIRECT = 137
TYPES = range(ROUTER_SOLICIT, REDIRECT + 1)

OPT_SOURCE_LL = 1
OPT_TARGET_LL = 2
OPT_PREFIX = 3
OPT_REDIRECTED = 4
OPT_MTU = 5
OPT_NONCE = 14
OPT_ROUTE = 24
OPT_RDNSS = 25
OPT_DNSSL = 31

INFINITY = 0xFFFFFFFF  # a lifetime that does not end

PREF_MEDIUM = 0
PREF_HIGH = 1
PREF_LOW = 3
_PREF_SHIFT = 3  # of the two preference bits in their byte

_NEIGHBOR = Struct(">BBHI16s")
_RA = Struct(">BBHBBHII")
_REDIRECT = Struct(">BBHI16s16s")
_PREFIX = Struct(">BBIII16s")
_MTU = Struct(">HI")
_ROUTE = Struct(">BBI")
_RDNSS = Struct(">HI")

# ---- options ---------------------------------------------------------------------------------


def _option(kind: int, body: bytes) -> bytes:
    """The option, zero-padded to its unit of eight bytes."""
    body += bytes(-(len(body) + 2) & 7)
    return bytes((kind, (len(body) + 2) // 8)) + body


@dataclass(frozen=True, slots=True)
class SourceLinkAddr:
    """The sender's link-layer address; on Ethernet 6 bytes, in longer options with padding."""

    addr: bytes

    def emit(self) -> bytes:
        return _option(OPT_SOURCE_LL, self.addr)


@dataclass(frozen=True, slots=True)
class TargetLinkAddr:
    """The target's link-layer address."""

    addr: bytes

    def emit(self) -> bytes:
        return _option(OPT_TARGET_LL, self.addr)


@dataclass(frozen=True, slots=True)
class PrefixInfo:
    """A prefix: on-link (L), for addresses (A); lifetimes in seconds."""

    prefix: bytes
    prefix_len: int
    on_link: bool
    autonomous: bool
    valid: int
    preferred: int

    def emit(self) -> bytes:
        flags = self.on_link << 7 | self.autonomous << 6
        return _option(OPT_PREFIX, _PREFIX.pack(self.prefix_len, flags, self.valid, self.preferred, 0, self.prefix))


@dataclass(frozen=True, slots=True)
class Redirected:
    """Start of the packet that was redirected, padded to a multiple of eight."""

    packet: bytes

    def emit(self) -> bytes:
        return _option(OPT_REDIRECTED, bytes(6) + self.packet)


@dataclass(frozen=True, slots=True)
class LinkMtu:
    """MTU everyone on the link uses."""

    mtu: int

    def emit(self) -> bytes:
        return _option(OPT_MTU, _MTU.pack(0, self.mtu))


@dataclass(frozen=True, slots=True)
class Nonce:
    """Random bytes by which a sender knows its own solicitation (RFC 7527)."""

    nonce: bytes

    def emit(self) -> bytes:
        return _option(OPT_NONCE, self.nonce)


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """A more specific route; `prefix` in 0, 8 or 16 bytes, as sent."""

    prefix: bytes
    prefix_len: int
    preference: int
    lifetime: int

    def emit(self) -> bytes:
        return _option(OPT_ROUTE, _ROUTE.pack(self.prefix_len, self.preference << _PREF_SHIFT, self.lifetime) + self.prefix)


@dataclass(frozen=True, slots=True)
class Rdnss:
    """Addresses of name servers."""

    lifetime: int
    servers: tuple[bytes, ...]

    def emit(self) -> bytes:
        return _option(OPT_RDNSS, _RDNSS.pack(0, self.lifetime) + b"".join(self.servers))


@dataclass(frozen=True, slots=True)
class UnknownOption:
    """Any other option, or a known one of a length it cannot have; `data` is what follows the length byte."""

    kind: int
    data: bytes

    def emit(self) -> bytes:
        return _option(self.kind, self.data)


NdpOption = SourceLinkAddr | TargetLinkAddr | PrefixInfo | Redirected | LinkMtu | Nonce | RouteInfo | Rdnss | UnknownOption


def _decode(kind: int, body: bytes) -> NdpOption:
    size = len(body) + 2
    match kind:
        case 1:
            return SourceLinkAddr(body)
        case 2:
            return TargetLinkAddr(body)
        case 3 if size == 32:
            prefix_len, flags, valid, preferred, _, prefix = _PREFIX.unpack(body)
            return PrefixInfo(prefix, prefix_len, bool(flags & 0x80), bool(flags & 0x40), valid, preferred)
        case 4:
            return Redirected(body[6:])
        case 5 if size == 8:
            return LinkMtu(_MTU.unpack(body)[1])
        case 14:
            return Nonce(body)
        case 24 if size <= 24:
            prefix_len, flags, lifetime = _ROUTE.unpack_from(body)
            return RouteInfo(body[6:], prefix_len, flags >> _PREF_SHIFT & 3, lifetime)
        case 25 if size >= 24 and size % 16 == 8:
            return Rdnss(_RDNSS.unpack_from(body)[1], tuple(body[i : i + 16] for i in range(6, len(body), 16)))
    return UnknownOption(kind, body)


def parse_options(data: bytes | bytearray | memoryview) -> tuple[NdpOption, ...]:
    """The options behind a message. Raises WireError for a length of 0, TruncatedError for one beyond the end."""
    raw = bytes(data)
    found: list[NdpOption] = []
    at = 0
    while at < len(raw):
        size = raw[at + 1] * 8 if at + 1 < len(raw) else 8
        if size == 0:
            raise WireError("NDP option of length 0", at)
        if at + size > len(raw):
            raise TruncatedError("NDP option is cut off", at)
        found.append(_decode(raw[at], raw[at + 2 : at + size]))
        at += size
    return tuple(found)


def _emit_options(options: Iterable[NdpOption]) -> bytes:
    return b"".join([option.emit() for option in options])


_T = TypeVar("_T")


def first(options: Iterable[NdpOption], kind: type[_T]) -> _T | None:
    """The first option of a class, or None: of several link-layer addresses the first counts."""
    for option in options:
        if isinstance(option, kind):
            return option
    return None


# ---- messages --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RouterSolicit:
    """Routers, advertise now."""

    options: tuple[NdpOption, ...] = ()
    code: int = 0

    def emit(self, src: bytes, dst: bytes) -> bytes:
        return seal(bytes((ROUTER_SOLICIT, self.code)) + bytes(6) + _emit_options(self.options), src, dst)


@dataclass(frozen=True, slots=True)
class RouterAdvert:
    """A router; `lifetime` in seconds (0: not a default router), `reachable` and `retrans` in ms (0: unspecified)."""

    hop_limit: int = 0
    managed: bool = False
    other: bool = False
    preference: int = PREF_MEDIUM
    lifetime: int = 0
    reachable: int = 0
    retrans: int = 0
    options: tuple[NdpOption, ...] = ()
    code: int = 0

    def emit(self, src: bytes, dst: bytes) -> bytes:
        flags = self.managed << 7 | self.other << 6 | self.preference << _PREF_SHIFT
        head = _RA.pack(ROUTER_ADVERT, self.code, 0, self.hop_limit, flags, self.lifetime, self.reachable, self.retrans)
        return seal(head + _emit_options(self.options), src, dst)


@dataclass(frozen=True, slots=True)
class NeighborSolicit:
    """Who has `target`?"""

    target: bytes
    options: tuple[NdpOption, ...] = ()
    code: int = 0

    def emit(self, src: bytes, dst: bytes) -> bytes:
        return seal(_NEIGHBOR.pack(NEIGHBOR_SOLICIT, self.code, 0, 0, self.target) + _emit_options(self.options), src, dst)


@dataclass(frozen=True, slots=True)
class NeighborAdvert:
    """`target` is here: R, S and O flags."""

    target: bytes
    router: bool = False
    solicited: bool = False
    override: bool = False
    options: tuple[NdpOption, ...] = ()
    code: int = 0

    def emit(self, src: bytes, dst: bytes) -> bytes:
        flags = self.router << 31 | self.solicited << 30 | self.override << 29
        return seal(_NEIGHBOR.pack(NEIGHBOR_ADVERT, self.code, 0, flags, self.target) + _emit_options(self.options), src, dst)


@dataclass(frozen=True, slots=True)
class Redirect:
    """Send for `destination` to `target` (the same address: it is on the link)."""

    target: bytes
    destination: bytes
    options: tuple[NdpOption, ...] = ()
    code: int = 0

    def emit(self, src: bytes, dst: bytes) -> bytes:
        return seal(_REDIRECT.pack(REDIRECT, self.code, 0, 0, self.target, self.destination) + _emit_options(self.options), src, dst)


NdpMessage = RouterSolicit | RouterAdvert | NeighborSolicit | NeighborAdvert | Redirect

_SIZES = {ROUTER_SOLICIT: 8, ROUTER_ADVERT: 16, NEIGHBOR_SOLICIT: 24, NEIGHBOR_ADVERT: 24, REDIRECT: 40}


def parse(data: bytes | bytearray | memoryview) -> NdpMessage:
    """An ICMPv6 message of a type in `TYPES`. Raises WireError."""
    kind = data[0] if len(data) else 0
    size = _SIZES.get(kind)
    if size is None:
        raise WireError("not a neighbour discovery message")
    if len(data) < size:
        raise TruncatedError("NDP message is cut off")
    code = data[1]
    options = parse_options(data[size:])
    match kind:
        case 133:
            return RouterSolicit(options, code)
        case 134:
            _, _, _, hop_limit, flags, lifetime, reachable, retrans = _RA.unpack_from(data)
            preference = flags >> _PREF_SHIFT & 3
            return RouterAdvert(hop_limit, bool(flags & 0x80), bool(flags & 0x40), preference, lifetime, reachable, retrans, options, code)
        case 135:
            return NeighborSolicit(bytes(data[8:24]), options, code)
        case 136:
            flags = data[4]
            return NeighborAdvert(bytes(data[8:24]), bool(flags & 0x80), bool(flags & 0x40), bool(flags & 0x20), options, code)
    return Redirect(bytes(data[8:24]), bytes(data[24:40]), options, code)
