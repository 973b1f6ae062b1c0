"""From super-frames to the packets a wire would carry, for whoever judges packets one by one.

The result is always finished frames: at most one segment each, checksums complete. A received frame
says that nobody has to check its checksum, but not whether the field is filled in or holds only the
pseudo-header's sum; so it is computed anew. What cannot be cut (headers that contradict the device's
word) passes as it is: the receiver will refuse it.
"""

from __future__ import annotations

from pytcp.wire.checksum import checksum, pseudo

from .frame import CSUM_NONE, Buffer, RxFrame, TxFrame
from .offload import ETHERNET, as_tx, segment

ETH_P_IP = b"\x08\x00"
ETH_P_IPV6 = b"\x86\xdd"


def ip_version(packet: Buffer, link_header: int = ETHERNET) -> int:
    """4 or 6 when `packet` holds the whole of that basic header, else 0."""
    if len(packet) < link_header + 20:
        return 0
    version = packet[link_header] >> 4
    if link_header and packet[12:14] != (ETH_P_IP if version == 4 else ETH_P_IPV6):
        return 0
    if version == 4 or (version == 6 and len(packet) >= link_header + 40):
        return version
    return 0


def sent_packets(frame: TxFrame) -> list[bytes]:
    """The finished packets of a frame on its way out. Raises ValueError as `segment` does."""
    if frame.gso_size or frame.csum_start:
        return segment(frame)
    return [b"".join((frame.head, *frame.parts))]


def received_packets(frame: RxFrame, link_header: int = ETHERNET) -> list[bytes]:
    """The finished packets of a received frame, copied."""
    data = frame.data
    if not frame.gso_size:
        return [bytes(data) if frame.csum == CSUM_NONE else _checksummed(data, link_header)]
    try:
        return segment(as_tx(data, frame.gso_type, frame.gso_size, link_header))
    except ValueError:
        return [bytes(data)]


def _checksummed(data: memoryview, link_header: int) -> bytes:
    packet = bytearray(data)
    version = ip_version(data, link_header)
    if version == 0 or (version == 4 and (data[link_header + 6] & 0x3F or data[link_header + 7])):
        return bytes(packet)  # not IP, or a fragment
    try:
        place = as_tx(data, 0, 0, link_header)
    except ValueError:
        return bytes(packet)
    l4 = place.csum_start
    if version == 4:
        end = link_header + int.from_bytes(data[link_header + 2 : link_header + 4], "big")
        addresses = bytes(data[link_header + 12 : link_header + 20])
    else:
        end = link_header + 40 + int.from_bytes(data[link_header + 4 : link_header + 6], "big")
        addresses = bytes(data[link_header + 8 : link_header + 40])
    field = l4 + place.csum_offset
    if not link_header + 20 <= l4 < field + 2 <= end <= len(packet):
        return bytes(packet)
    half = len(addresses) // 2
    proto = 6 if place.csum_offset == 16 else 17
    packet[field : field + 2] = bytes(2)
    csum = checksum(packet[l4:end], pseudo(addresses[:half], addresses[half:], proto, end - l4))
    packet[field : field + 2] = (csum or 0xFFFF).to_bytes(2, "big")
    return bytes(packet)
