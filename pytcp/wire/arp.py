"""ARP (RFC 826) for any pair of address lengths; whether they are Ethernet's and IPv4's is the receiver's question."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from pytcp.wire.errors import TruncatedError

REQUEST = 1
REPLY = 2
ARPHRD_ETHER = 1
ARPHRD_IEEE802 = 6  # Linux answers these too

_HEADER = Struct(">HHBBH")


@dataclass(frozen=True, slots=True)
class Arp:
    """An ARP packet: sender and target, hardware (`sha`, `tha`) and protocol (`spa`, `tpa`) addresses."""

    op: int
    sha: bytes
    spa: bytes
    tha: bytes
    tpa: bytes
    htype: int = ARPHRD_ETHER
    ptype: int = 0x0800

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> Arp:
        """Trailing padding is ignored. Raises TruncatedError."""
        if len(data) < 8:
            raise TruncatedError("ARP header is cut off")
        htype, ptype, hlen, plen, op = _HEADER.unpack_from(data)
        end = 8 + 2 * (hlen + plen)
        if len(data) < end:
            raise TruncatedError("ARP addresses are cut off", 8)
        raw = bytes(data[8:end])
        other = hlen + plen
        return cls(op, raw[:hlen], raw[hlen:other], raw[other : other + hlen], raw[other + hlen :], htype, ptype)

    def emit(self) -> bytes:
        """The packet. Raises ValueError when sender and target addresses differ in length."""
        if len(self.sha) != len(self.tha) or len(self.spa) != len(self.tpa):
            raise ValueError("ARP sender and target addresses must be of equal length")
        head = _HEADER.pack(self.htype, self.ptype, len(self.sha), len(self.spa), self.op)
        return b"".join([head, self.sha, self.spa, self.tha, self.tpa])
