"""Addresses as text and bytes. Inside the stack an address is `bytes` of 4, 6 or 16: compared, hashed and sliced as it lies in the packet."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

MAC_BROADCAST = b"\xff" * 6
MAC_ZERO = bytes(6)
IP4_ANY = bytes(4)
IP4_BROADCAST = b"\xff" * 4
IP6_ANY = bytes(16)
IP6_LOOPBACK = bytes(15) + b"\x01"
IP6_ALL_NODES = bytes.fromhex("ff02000000000000 0000000000000001")
IP6_ALL_ROUTERS = bytes.fromhex("ff02000000000000 0000000000000002")

_SOLICITED_NODE = bytes.fromhex("ff02000000000000 00000001ff")


def parse_ip(text: str) -> bytes:
    """4 or 16 bytes of a dotted or colon address. Raises ValueError when it is neither, TypeError when it is no string."""
    if not isinstance(text, str):  # ip_address takes a number, too
        raise TypeError(f"an address is a string like '10.0.0.1', not {text!r}")
    return ip_address(text).packed


def format_ip(addr: bytes | bytearray | memoryview) -> str:
    """The address as people write it, IPv6 compressed (RFC 5952)."""
    raw = bytes(addr)
    if len(raw) == 4:
        return str(IPv4Address(raw))
    if raw.startswith(b"\0" * 10 + b"\xff\xff"):
        return "::ffff:" + str(IPv4Address(raw[12:]))
    return str(IPv6Address(raw))


def parse_mac(text: str) -> bytes:
    """6 bytes of "02:00:00:00:00:01" (or with "-"). Raises ValueError."""
    raw = bytes.fromhex(text.replace(":", " ").replace("-", " "))
    if len(raw) != 6:
        raise ValueError(f"not an Ethernet address: {text!r}")
    return raw


def format_mac(mac: bytes | bytearray | memoryview) -> str:
    """Link-layer address of any length as "02:00:00:00:00:01"."""
    return bytes(mac).hex(":")


def is_multicast(addr: bytes) -> bool:
    """Whether an IPv4 (224/4), IPv6 (ff00::/8) or Ethernet (group bit, broadcast too) address names a group."""
    size = len(addr)
    if size == 4:
        return addr[0] & 0xF0 == 0xE0
    return bool(addr[0] & 1) if size == 6 else addr[0] == 0xFF


def is_link_local(addr: bytes) -> bool:
    """fe80::/10 or 169.254/16."""
    return addr[0] == 0xFE and addr[1] & 0xC0 == 0x80 if len(addr) == 16 else addr[:2] == b"\xa9\xfe"


def multicast_mac(group: bytes) -> bytes:
    """The Ethernet address a group is sent to: low 23 bits for IPv4 (RFC 1112 §6.4), low 32 for IPv6 (RFC 2464 §7)."""
    if len(group) == 4:
        return bytes((0x01, 0x00, 0x5E, group[1] & 0x7F, group[2], group[3]))
    return b"\x33\x33" + group[12:]


def solicited_node(addr: bytes) -> bytes:
    """The solicited-node group of a unicast IPv6 address (RFC 4291 §2.7.1)."""
    return _SOLICITED_NODE + addr[13:]


def eui64(mac: bytes, prefix: bytes = b"\xfe\x80\0\0\0\0\0\0") -> bytes:
    """Address in an 8-byte prefix, link-local by default, with the modified EUI-64 of `mac` (RFC 2464 §4)."""
    return prefix + bytes((mac[0] ^ 2, mac[1], mac[2], 0xFF, 0xFE, mac[3], mac[4], mac[5]))
