"""Prefixes, scopes and the classes of addresses a host tells apart; the rest is `wire.addr`.

Scopes are RFC 4007's numbers.
"""

from __future__ import annotations

import ipaddress

from pytcp.wire.addr import IP4_BROADCAST, IP6_LOOPBACK, is_multicast

LOOPBACK4 = b"\x7f\x00\x00\x01"
ALL_HOSTS4 = b"\xe0\x00\x00\x01"
INTERFACE_NODES6 = b"\xff\x01" + bytes(13) + b"\x01"
V4MAPPED = bytes(10) + b"\xff\xff"

SCOPE_INTERFACE = 1
SCOPE_LINK = 2
SCOPE_SITE = 5
SCOPE_GLOBAL = 14


def parse_prefix(text: str) -> tuple[bytes, int]:
    """`10.0.0.2/24` as (address, prefix length); host bits are kept, no length means one host. Raises ValueError, TypeError."""
    if not isinstance(text, str):  # ipaddress takes a number for an address, too
        raise TypeError(f"a prefix is a string like '10.0.0.2/24', not {text!r}")
    try:
        iface = ipaddress.ip_interface(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an address and prefix length like '10.0.0.2/24'") from None
    return iface.ip.packed, iface.network.prefixlen


def parse_own(text: str) -> tuple[bytes, int]:
    """The same for an address of our own, which is one host's. Raises ValueError, TypeError."""
    addr, plen = parse_prefix(text)
    if is_multicast(addr):
        raise ValueError(f"{text!r} is a multicast address, which no host can have")
    if not any(addr) or addr == IP4_BROADCAST:
        raise ValueError(f"{text!r} is no host's address")
    return addr, plen


def mask_bits(addr: bytes, plen: int) -> int:
    """The first `plen` bits of an address as a number: what a route table is keyed by."""
    return int.from_bytes(addr, "big") >> (len(addr) * 8 - plen)


def masked(addr: bytes, plen: int) -> bytes:
    """The address with everything behind the first `plen` bits zero."""
    size = len(addr)
    return (mask_bits(addr, plen) << (size * 8 - plen)).to_bytes(size, "big")


def same_prefix(a: bytes, b: bytes, plen: int) -> bool:
    """Whether two addresses of one family agree in their first `plen` bits."""
    return len(a) == len(b) and mask_bits(a, plen) == mask_bits(b, plen)


def common_bits(a: bytes, b: bytes) -> int:
    """Length of the common prefix of two addresses, bits."""
    return len(a) * 8 - (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).bit_length()


def subnet_broadcast(addr: bytes, plen: int) -> bytes:
    """The directed broadcast address of an IPv4 subnet."""
    return (int.from_bytes(addr, "big") | (1 << (32 - plen)) - 1).to_bytes(4, "big")


def is_loopback(addr: bytes) -> bool:
    return addr[0] == 127 if len(addr) == 4 else addr == IP6_LOOPBACK


def is_v4mapped(addr: bytes) -> bool:
    return addr[:12] == V4MAPPED


def scope6(addr: bytes) -> int:
    """RFC 4007 scope of an IPv6 address; loopback counts as link-local (RFC 6724 §3.1)."""
    if addr[0] == 0xFF:
        return addr[1] & 0x0F
    if addr[0] == 0xFE:
        if addr[1] & 0xC0 == 0x80:
            return SCOPE_LINK
        if addr[1] & 0xC0 == 0xC0:
            return SCOPE_SITE
    if addr == IP6_LOOPBACK:
        return SCOPE_LINK
    return SCOPE_GLOBAL
