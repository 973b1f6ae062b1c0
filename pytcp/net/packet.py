"""A received IP packet off the fast path: checked, classified, and handed from room to room.

Established TCP never gets here (`interface`); everything else is rare enough that the packet is
copied out of the device's buffer once and taken apart at leisure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytcp.wire.ipv4 import Ipv4Option

    from .interface import Interface

# where the frame went (Linux: pkt_type)
HOST = 0
BROADCAST = 1
MULTICAST = 2
OTHERHOST = 3

# what the IP destination is to us
TO_US = 0
TO_BROADCAST = 1
TO_MULTICAST = 2


class Packet:
    """One packet; `data` starts at the IP header and ends where the packet does."""

    __slots__ = (
        "family",
        "dev",
        "data",
        "off",  # of the upper-layer header
        "src",
        "dst",
        "proto",
        "tos",  # traffic class
        "ttl",  # hop limit
        "ident",
        "kind",  # of the frame: HOST, BROADCAST, MULTICAST
        "dkind",  # of the destination: TO_US, TO_BROADCAST, TO_MULTICAST
        "csum",  # the frame's CSUM_*
        "frag",  # IPv4: flags and offset
        "options",  # IPv4, as `ipopts` read them; None: no options
        "flow",  # IPv6 flow label
        "pointer",  # IPv6: offset of the byte that named `proto`
        "fragmented",  # it was put together from fragments, or had a fragment header
        "gso_type",
        "gso_size",
        "counted",
        "frame_len",  # bytes of the frame, for truesize
        "source_mac",
    )

    def __init__(self, family: int, dev: Interface, data: bytes, kind: int, csum: int) -> None:
        self.family = family
        self.dev = dev
        self.data = data
        self.off = 0
        self.src = b""
        self.dst = b""
        self.proto = 0
        self.tos = 0
        self.ttl = 0
        self.ident = 0
        self.kind = kind
        self.dkind = TO_US
        self.csum = csum
        self.frag = 0
        self.options: list[Ipv4Option] | None = None
        self.flow = 0
        self.pointer = 6
        self.fragmented = False
        self.gso_type = 0
        self.gso_size = 0
        self.counted = False  # of how many segments a super-frame is made is known
        self.frame_len = len(data) + 14
        self.source_mac = b""
