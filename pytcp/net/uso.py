"""Super-frames of UDP: many datagrams of one size, with the headers of the first (UDP_SEGMENT, and what a device received so).

Out: the device cuts them (`link.frame.F_USO`), or `Interface` does before one that cannot, or this module when even the headers of
the whole would be too long for any: Linux's bound is what a device takes, Ethernet header included. In: `pieces` is the cut at the
endpoint that did not ask for them whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytcp.link.frame import GSO_UDP_L4, TxFrame
from pytcp.link.offload import segment

from .truesize import cut_truesize

if TYPE_CHECKING:
    from pytcp.link.frame import RxFrame

    from .packet import Packet
    from .route import Dst

_GSO_MAX_SIZE4 = 65536  # gso_ipv4_max_size: what a device takes of IPv4 does not grow with gso_max_size


def output(dst: Dst, header: bytes, datagram: bytes, gso_size: int) -> None:
    """Send a super-frame.

    header: room for the link's, and IP's. datagram: UDP header with the sum of the pseudo-header, and payload. gso_size: bytes of
    payload in each datagram."""
    start = len(header)
    frame = TxFrame(header + datagram[:8], (memoryview(datagram)[8:],), start + len(datagram), GSO_UDP_L4, gso_size, start, 6)
    limit = dst.dev.link.gso_max_size
    if frame.length < (limit if dst.family == 6 else min(limit, _GSO_MAX_SIZE4)):
        dst.neigh.output(frame)
        return
    for piece in segment(frame):
        dst.neigh.output(TxFrame(piece, (), len(piece)))


def size_of(pkt: Packet, payload: int) -> int:
    """Bytes of each of the datagrams that a received packet with `payload` bytes of UDP data is, 0 when it is one."""
    return pkt.gso_size if pkt.gso_type == GSO_UDP_L4 and 0 < pkt.gso_size < payload else 0


def segments(frame: RxFrame | Packet, payload: int) -> int:
    """How many packets a received one of `payload` bytes of UDP data counts as: one unless whoever merged them told."""
    if frame.gso_type != GSO_UDP_L4 or not frame.counted or not 0 < frame.gso_size < payload:
        return 1
    return -(-payload // frame.gso_size)


def pieces(pkt: Packet, data: bytes, gso_size: int) -> Iterator[tuple[bytes, int]]:
    """(payload, truesize) of each datagram of a received super-frame. data: UDP header and payload."""
    headers = pkt.off + 8
    for at in range(8, len(data), gso_size):
        payload = data[at : at + gso_size]
        yield payload, cut_truesize(pkt.frame_len, headers, len(payload))
