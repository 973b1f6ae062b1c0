"""From super-frames to the packets a wire would carry, for whoever judges packets one by one.

A received frame says that its checksum may be unfinished but not where it lies, so the L4 header is
looked up here; a sent one carries the place along. The result is always finished frames: at most one
segment each, checksums complete.
"""

from __future__ import annotations

from pytcp.wire.checksum import ones_sum, pseudo

from . import offload
from .frame import CSUM_NONE, Buffer, RxFrame, TxFrame

ETH_HLEN = 14
VLAN_TPIDS = (0x8100, 0x88A8)
TCP = 6
UDP = 17
CSUM_OFFSET = {TCP: 16, UDP: 6}
EXTENSION_HEADERS = (0, 43, 60)  # hop-by-hop, routing, destination options (RFC 8200)


def network_offset(data: Buffer) -> tuple[int, int]:
    """(EtherType, offset of the network header) behind at most two VLAN tags; (0, 0) when cut short."""
    offset = 12
    for _ in range(3):
        if len(data) < offset + 2:
            break
        kind = data[offset] << 8 | data[offset + 1]
        if kind not in VLAN_TPIDS:
            return kind, offset + 2
        offset += 4
    return 0, 0


def transport(data: Buffer) -> tuple[int, int, int] | None:
    """(network offset, L4 offset, protocol) of an unfragmented TCP or UDP packet, else None."""
    kind, l3 = network_offset(data)
    if kind == 0x0800:
        if len(data) < l3 + 20 or data[l3 + 6] & 0x3F or data[l3 + 7]:
            return None
        proto = data[l3 + 9]
        l4 = l3 + (data[l3] & 15) * 4
    elif kind == 0x86DD:
        if len(data) < l3 + 40:
            return None
        proto = data[l3 + 6]
        l4 = l3 + 40
        while proto in EXTENSION_HEADERS:
            if len(data) < l4 + 8:
                return None
            proto = data[l4]
            l4 += (data[l4 + 1] + 1) * 8
    else:
        return None
    if proto not in CSUM_OFFSET or len(data) < l4 + CSUM_OFFSET[proto] + 2:
        return None
    return l3, l4, proto


def sent_packets(frame: TxFrame) -> list[bytes]:
    """The finished packets of a frame on its way out."""
    if frame.gso_size or frame.csum_start:
        return offload.segment(frame)
    return [b"".join((frame.head, *frame.parts))]


def received_packets(frame: RxFrame) -> list[bytes]:
    """The finished packets of a received frame, copied. A checksum nobody has to check is made anew."""
    data = frame.data
    place = None if frame.csum == CSUM_NONE and not frame.gso_size else transport(data)
    if place is None:
        return [bytes(data)]
    l3, l4, proto = place
    head_len = l4 + 8 if proto == UDP else l4 + (data[l4 + 12] >> 4) * 4
    if not l4 + 8 <= head_len <= len(data):
        return [bytes(data)]  # an impossible header length: for the receiver to refuse
    head = bytearray(data[:head_len])
    if data[l3] >> 4 == 4:
        end = l3 + (data[l3 + 2] << 8 | data[l3 + 3])
        src, dst = data[l3 + 12 : l3 + 16], data[l3 + 16 : l3 + 20]
    else:
        end = l3 + 40 + (data[l3 + 4] << 8 | data[l3 + 5])
        src, dst = data[l3 + 8 : l3 + 24], data[l3 + 24 : l3 + 40]
    if frame.gso_size or not head_len <= end <= len(data):
        end = len(data)
    field = l4 + CSUM_OFFSET[proto]
    head[field : field + 2] = ones_sum(b"", pseudo(bytes(src), bytes(dst), proto, end - l4)).to_bytes(2, "big")
    whole = TxFrame(head, (data[head_len:end],), end, frame.gso_type, frame.gso_size, l4, CSUM_OFFSET[proto])
    return offload.segment(whole)
