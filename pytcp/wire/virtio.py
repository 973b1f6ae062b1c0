"""`struct virtio_net_hdr`: what a TAP with IFF_VNET_HDR puts before each frame (virtio 1.2 §5.1.6).

10 bytes, or 12 with the count of merged buffers (TUNSETVNETHDRSZ). The fields are in the machine's
own byte order, as a TUN device has them unless told otherwise. With NEEDS_CSUM the frame's checksum
field holds the folded pseudo-header sum, and the device sums from `csum_start` to the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from pytcp.wire.errors import TruncatedError

F_NEEDS_CSUM = 1
F_DATA_VALID = 2

GSO_NONE = 0
GSO_TCPV4 = 1
GSO_UDP = 3  # IP fragmentation of UDP; no longer offered
GSO_TCPV6 = 4
GSO_UDP_L4 = 5
GSO_ECN = 0x80  # first segment carries CWR

HDR_LEN = 10
HDR_LEN_MRG = 12

HEADER = Struct("=BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
HEADER_MRG = Struct("=BBHHHHH")


@dataclass(frozen=True, slots=True)
class VnetHeader:
    """The header as a value; `num_buffers` None makes it the 10-byte one."""

    flags: int = 0
    gso_type: int = GSO_NONE
    hdr_len: int = 0  # bytes of headers a segment repeats
    gso_size: int = 0  # payload bytes per segment
    csum_start: int = 0  # from the start of the frame
    csum_offset: int = 0  # of the field, from csum_start
    num_buffers: int | None = None

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview, size: int = HDR_LEN) -> VnetHeader:
        """From the first `size` (10 or 12) bytes. Raises TruncatedError."""
        if len(data) < size:
            raise TruncatedError("virtio-net header is cut off")
        if size == HDR_LEN:
            return cls(*HEADER.unpack_from(data))
        if size == HDR_LEN_MRG:
            return cls(*HEADER_MRG.unpack_from(data))
        raise ValueError(f"a virtio-net header has 10 or 12 bytes, not {size}")

    def emit(self) -> bytes:
        fixed = (self.flags, self.gso_type, self.hdr_len, self.gso_size, self.csum_start, self.csum_offset)
        return HEADER.pack(*fixed) if self.num_buffers is None else HEADER_MRG.pack(*fixed, self.num_buffers)
