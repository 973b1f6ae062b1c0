"""What a device's offloads do, done here when the device has none: TSO, USO and checksums.

A super-frame travels whole as far as it can (pytcp.link.frame) and is cut where a carrier takes only
MTU frames: a plain TAP, an emulated wire that drops single packets, a capture. The result is what
Linux's software GSO sends (tcp_gso_segment, udp_gso_segment): each segment has the super-frame's
headers with its own length and sequence number, IPv4 ids count up by one with or without DF, FIN and
PSH stay on the last segment only, and checksums are complete. CWR stays on the first only when
`gso_type` has GSO_ECN (classic ECN, RFC 3168); without it the flag is part of AccECN's ACE counter
and is repeated, as Linux does since 6.15. The opposite direction is pytcp.link.gro.
"""

from __future__ import annotations

from typing import Any

from pytcp.link.frame import GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, TxFrame
from pytcp.native import ffi, lib
from pytcp.wire.checksum import ones_sum, ones_sum_py

ETHERNET = 14
TCP, UDP = 6, 17
FIN_PSH = 0x09
CWR = 0x80
VLAN_TPIDS = (b"\x81\x00", b"\x88\xa8")
MAX_IP = 65535

# a scratch output is overwritten at once: zeroing it would cost as much as the copy
new_scratch: Any = ffi.new_allocator(should_clear_after_alloc=False) if ffi is not None else None


class Layout:
    """Where the headers of a super-frame lie."""

    __slots__ = ("l3", "l4", "hdr_len", "v6", "udp", "cwr_once", "payload")

    def __init__(self, frame: TxFrame) -> None:
        """Raises ValueError for a frame that is not a super-frame of TCP or UDP."""
        head = frame.head
        size = len(head)
        kind = frame.gso_type & ~GSO_ECN
        l4 = frame.csum_start
        # an IP header is a multiple of four bytes, an Ethernet header is not
        l3 = ETHERNET if l4 & 2 else 0
        while l3 and bytes(head[l3 - 2 : l3]) in VLAN_TPIDS:
            l3 += 4
        if kind not in (GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4) or frame.gso_size <= 0:
            raise ValueError(f"no segmentation for gso_type {frame.gso_type:#x}, gso_size {frame.gso_size}")
        self.udp = kind == GSO_UDP_L4
        if l4 + (8 if self.udp else 20) > size or l4 - l3 < 20:
            raise ValueError(f"no room for the headers in {size} bytes with the checksum from {l4}")
        version = head[l3] >> 4
        self.v6 = version == 6
        if self.v6:
            sound = l4 - l3 >= 40 and kind != GSO_TCPV4
        else:
            sound = version == 4 and (head[l3] & 15) * 4 == l4 - l3 and kind != GSO_TCPV6
        self.hdr_len = l4 + (8 if self.udp else (head[l4 + 12] >> 4) * 4)
        if not sound or self.hdr_len > size or self.hdr_len - l4 < (8 if self.udp else 20):
            raise ValueError("the headers contradict gso_type or csum_start")
        self.payload = size - self.hdr_len + sum(map(len, frame.parts))
        if self.hdr_len - l3 + min(self.payload, frame.gso_size) > MAX_IP:
            raise ValueError(f"segments of {frame.gso_size} bytes do not fit into an IP packet")
        self.l3 = l3
        self.l4 = l4
        self.cwr_once = bool(frame.gso_type & GSO_ECN)

    @property
    def mode(self) -> int:
        """The PYTCP_SEG_* bits of csrc/pytcp.h."""
        return (1 if self.v6 else 0) | (2 if self.udp else 0) | (4 if self.cwr_once else 0)

    def count(self, gso_size: int) -> int:
        """How many frames it will be cut into; headers without payload are one."""
        return max(1, -(-self.payload // gso_size))


def segment(frame: TxFrame) -> list[bytes]:
    """The complete frames that `frame` stands for, in order: many for a super-frame, else one.

    Raises ValueError for a super-frame whose headers are not what its gso_type says."""
    gso_size = frame.gso_size
    if not gso_size:
        whole = complete_checksum(frame)
        return [b"".join((whole.head, *whole.parts))]
    layout = Layout(frame)
    if lib is None:
        return _cut_py(frame, layout)
    size = layout.payload + layout.count(gso_size) * layout.hdr_len
    out = new_scratch("uint8_t[]", size)
    cut_into(frame, layout, out, size)
    stride = layout.hdr_len + gso_size
    view = ffi.buffer(out, size)
    return [view[i : i + stride] for i in range(0, size, stride)]


def segment_py(frame: TxFrame) -> list[bytes]:
    """Twin of `segment` without C."""
    if not frame.gso_size:
        return segment(frame)
    return _cut_py(frame, Layout(frame))


def cut_into(frame: TxFrame, layout: Layout, out: Any, size: int) -> int:
    """Write the segments one behind the other to the `size` bytes at cdata `out`; returns their number.

    Needs C. Frame i begins at i * (layout.hdr_len + frame.gso_size)."""
    assert lib is not None
    head = ffi.from_buffer(frame.head)
    views = [ffi.from_buffer(part) for part in frame.parts]
    parts = ffi.new("struct pytcp_part[]", [(view, len(view)) for view in views])
    count = lib.pytcp_segment(head, len(head), layout.l3, layout.l4, layout.hdr_len, layout.mode, frame.gso_size, parts, len(views), out, size)
    if count < 0:
        raise ValueError(f"super-frame refused by the segmentation loop ({count})")
    return count


def _cut_py(frame: TxFrame, layout: Layout) -> list[bytes]:
    l3, l4, hdr_len, gso_size = layout.l3, layout.l4, layout.hdr_len, frame.gso_size
    data = b"".join((frame.head, *frame.parts))
    header = bytearray(data[:hdr_len])
    ip = memoryview(header)[l3:l4]
    th = memoryview(header)[l4:]
    addresses = bytes(ip[8:40] if layout.v6 else ip[12:20])
    pseudo = ones_sum_py(addresses, UDP if layout.udp else TCP)
    ip_id = int.from_bytes(ip[4:6], "big")
    seq = int.from_bytes(th[4:8], "big")
    flags = 0 if layout.udp else th[13]
    frames = []
    end = len(data)
    for index, at in enumerate(range(hdr_len, max(end, hdr_len + 1), gso_size)):
        payload = data[at : at + gso_size]
        size = len(th) + len(payload)
        if layout.v6:
            ip[4:6] = (len(ip) - 40 + size).to_bytes(2, "big")
        else:
            ip[2:4] = (len(ip) + size).to_bytes(2, "big")
            ip[4:6] = (ip_id + index & 0xFFFF).to_bytes(2, "big")
            ip[10:12] = bytes(2)
            ip[10:12] = (ones_sum_py(ip) ^ 0xFFFF).to_bytes(2, "big")
        if layout.udp:
            th[4:6] = size.to_bytes(2, "big")
            field = 6
        else:
            th[4:8] = (seq + at - hdr_len & 0xFFFFFFFF).to_bytes(4, "big")
            kept = flags if at + gso_size >= end else flags & ~FIN_PSH
            th[13] = kept & ~CWR if index and layout.cwr_once else kept
            field = 16
        th[field : field + 2] = bytes(2)
        csum = ones_sum_py(bytes(th) + payload, pseudo + size) ^ 0xFFFF
        if layout.udp and not csum:
            csum = 0xFFFF  # zero would say that there is none
        th[field : field + 2] = csum.to_bytes(2, "big")
        frames.append(bytes(header) + payload)
    return frames


def complete_checksum(frame: TxFrame) -> TxFrame:
    """`frame` with the checksum at csum_start + csum_offset filled in (itself when none is owed).

    The field holds the pseudo-header's sum, as for a device. The payload is not joined. A result of
    zero is written as 0xffff for every protocol, as Linux's skb_checksum_help does. Raises ValueError
    when the field lies outside the header."""
    start = frame.csum_start
    if not start:
        return frame
    field = start + frame.csum_offset
    if field + 2 > len(frame.head):
        raise ValueError(f"checksum field at {field} is not among the {len(frame.head)} header bytes")
    head = bytearray(frame.head)
    total = ones_sum(head[start:])
    odd = (len(head) - start) & 1
    for part in frame.parts:
        here = ones_sum(part)
        if odd:  # the bytes of this part are the other halves of their words
            here = here >> 8 | (here & 0xFF) << 8
        total += here
        odd ^= len(part) & 1
    csum = total % 0xFFFF ^ 0xFFFF  # in 1..0xffff, so never the zero that means "none" to UDP
    head[field] = csum >> 8
    head[field + 1] = csum & 0xFF
    return TxFrame(
        head,
        frame.parts,
        frame.length,
        gso_type=frame.gso_type,
        gso_size=frame.gso_size,
        owner=frame.owner,
        skb=frame.skb,
        truesize=frame.truesize,
    )
