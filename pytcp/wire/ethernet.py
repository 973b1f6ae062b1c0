"""Ethernet II and 802.3 frames with 802.1Q tags (IEEE 802.3 §3.2.6, 802.1Q §9.6).

A type field below 0x600 is a length and the frame carries LLC: Linux swallows those for IP. Tags with
VLAN 0 are priority only and a host reads the frame as untagged (linux: vlan_do_receive; even twice).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from pytcp.wire.errors import TruncatedError

ETH_HLEN = 14
ETH_P_802_3_MIN = 0x0600  # from here on a type, below a length
ETH_P_IP = 0x0800
ETH_P_ARP = 0x0806
ETH_P_RARP = 0x8035
ETH_P_8021Q = 0x8100
ETH_P_IPV6 = 0x86DD
ETH_P_8021AD = 0x88A8

_TWO = Struct(">HH")


def header(dst: bytes, src: bytes, ethertype: int) -> bytes:
    """The 14 bytes of an untagged frame."""
    return dst + src + ethertype.to_bytes(2, "big")


@dataclass(frozen=True, slots=True)
class VlanTag:
    """One 802.1Q (or 802.1ad) tag."""

    vid: int
    pcp: int = 0
    dei: bool = False
    tpid: int = ETH_P_8021Q

    def emit(self) -> bytes:
        return _TWO.pack(self.tpid, self.pcp << 13 | self.dei << 12 | self.vid)


def walk_tags(frame: bytes | bytearray | memoryview) -> tuple[int, int, tuple[VlanTag, ...]]:
    """(type or length, offset behind it, tags) of a frame. Raises TruncatedError when the frame ends before the type."""
    tags: list[VlanTag] = []
    at = 12
    while True:
        if len(frame) < at + 2:
            raise TruncatedError("Ethernet header is cut off", at)
        ethertype = frame[at] << 8 | frame[at + 1]
        at += 2
        if ethertype != ETH_P_8021Q and ethertype != ETH_P_8021AD:
            return ethertype, at, tuple(tags)
        if len(frame) < at + 2:
            raise TruncatedError("VLAN tag is cut off", at)
        tci = frame[at] << 8 | frame[at + 1]
        tags.append(VlanTag(tci & 0xFFF, tci >> 13, bool(tci & 0x1000), ethertype))
        at += 2


@dataclass(frozen=True, slots=True)
class Ethernet:
    """A frame as a value, without preamble and FCS. `ethertype` None: 802.3, the field holds the payload's length."""

    dst: bytes
    src: bytes
    ethertype: int | None
    payload: bytes = b""
    tags: tuple[VlanTag, ...] = ()

    @classmethod
    def parse(cls, frame: bytes | bytearray | memoryview) -> Ethernet:
        """Padding behind an 802.3 length is dropped; behind a type it cannot be told from payload. Raises WireError."""
        kind, at, tags = walk_tags(frame)
        dst, src = bytes(frame[:6]), bytes(frame[6:12])
        if kind >= ETH_P_802_3_MIN:
            return cls(dst, src, kind, bytes(frame[at:]), tags)
        if at + kind > len(frame):
            raise TruncatedError("802.3 length is beyond the end", at - 2)
        return cls(dst, src, None, bytes(frame[at : at + kind]), tags)

    def emit(self) -> bytes:
        """The frame, unpadded: Linux leaves the 60-byte minimum to the device."""
        kind = len(self.payload) if self.ethertype is None else self.ethertype
        return b"".join([self.dst, self.src, *[tag.emit() for tag in self.tags], kind.to_bytes(2, "big"), self.payload])
