"""From super-frames to the packets a wire would carry, for whoever judges packets one by one.

The result is always finished frames: at most one segment each, checksums complete. A received frame
says that nobody has to check its checksum, but not whether the field is filled in or holds only the
pseudo-header's sum, nor where it lies; so it is computed anew. What cannot be cut (headers that contradict the device's
word) passes as it is: the receiver will refuse it.
"""

from __future__ import annotations

from pytcp.wire.checksum import checksum, pseudo

from .frame import CSUM_NONE, Buffer, RxFrame, TxFrame
from .offload import ETHERNET, segment

ETH_P_IP = b"\x08\x00"
ETH_P_IPV6 = b"\x86\xdd"
CSUM_OFFSET = {6: 16, 17: 6}  # TCP, UDP
EXTENSION_HEADERS = (0, 43, 60)  # RFC 8200


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


def transport(packet: Buffer, link_header: int = ETHERNET) -> tuple[int, int] | None:
    """(protocol, offset of its header) of a TCP or UDP packet that is no fragment, else None. IPv6
    extension headers of 8-byte units (hop-by-hop, routing, destination options) are passed over."""
    version = ip_version(packet, link_header)
    if version == 4:
        proto = packet[link_header + 9]
        l4 = link_header + (packet[link_header] & 15) * 4
        if l4 < link_header + 20 or packet[link_header + 6] & 0x3F or packet[link_header + 7]:
            return None
    elif version == 6:
        proto = packet[link_header + 6]
        l4 = link_header + 40
        while proto in EXTENSION_HEADERS:
            if len(packet) < l4 + 8:
                return None
            proto, l4 = packet[l4], l4 + (packet[l4 + 1] + 1) * 8
    else:
        return None
    if proto not in CSUM_OFFSET or len(packet) < l4 + CSUM_OFFSET[proto] + 2:
        return None
    return proto, l4


def sent_packets(frame: TxFrame) -> list[bytes]:
    """The finished packets of a frame on its way out. Raises ValueError as `segment` does."""
    if frame.gso_size or frame.csum_start:
        return segment(frame)
    return [b"".join((frame.head, *frame.parts))]


def received_packets(frame: RxFrame, link_header: int = ETHERNET) -> list[bytes]:
    """The finished packets of a received frame, copied."""
    data = frame.data
    if not frame.gso_size and frame.csum == CSUM_NONE:
        return [bytes(data)]
    place = transport(data, link_header)
    if place is None:
        return [bytes(data)]
    proto, l4 = place
    if not frame.gso_size:
        return [_checksummed(data, link_header, proto, l4)]
    try:
        return segment(TxFrame(data, (), len(data), frame.gso_type, frame.gso_size, l4, CSUM_OFFSET[proto]))
    except ValueError:
        return [bytes(data)]


def _checksummed(data: memoryview, link_header: int, proto: int, l4: int) -> bytes:
    if data[link_header] >> 4 == 4:
        end = link_header + int.from_bytes(data[link_header + 2 : link_header + 4], "big")
        addresses = bytes(data[link_header + 12 : link_header + 20])
    else:
        end = link_header + 40 + int.from_bytes(data[link_header + 4 : link_header + 6], "big")
        addresses = bytes(data[link_header + 8 : link_header + 40])
    packet = bytearray(data)
    field = l4 + CSUM_OFFSET[proto]
    if field + 2 <= end <= len(packet):
        half = len(addresses) // 2
        packet[field : field + 2] = bytes(2)
        csum = checksum(packet[l4:end], pseudo(addresses[:half], addresses[half:], proto, end - l4))
        packet[field : field + 2] = (csum or 0xFFFF).to_bytes(2, "big")
    return bytes(packet)
