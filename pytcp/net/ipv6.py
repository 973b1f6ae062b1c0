"""IPv6 in and out (RFC 8200) for everything but established TCP.

In: header and address checks, the chain of extension headers (`exthdrs`), and the way up. Out: header,
fragments, and the neighbour. Multicast counts on arrival, wanted or not. Every packet has a flow label
that is the same for its whole flow (RFC 6437); neighbour discovery has none.
Counters: Ip6In*, Ip6Out*, Ip6Frag*. Sysctls: hop_limit, auto_flowlabels.
"""

from __future__ import annotations

import errno
from struct import Struct
from typing import TYPE_CHECKING

from pytcp.link.frame import TxFrame
from pytcp.wire.addr import IP6_LOOPBACK, is_link_local, is_multicast
from pytcp.wire.icmpv6 import IPPROTO_ICMPV6, PARAMETER_PROBLEM, UNKNOWN_NEXT_HEADER
from pytcp.wire.ipv6 import (
    IPPROTO_DSTOPTS,
    IPPROTO_FRAGMENT,
    IPPROTO_HOPOPTS,
    IPPROTO_NONE,
    IPPROTO_ROUTING,
    IPPROTO_TCP,
    IPPROTO_UDP,
    FragmentHeader,
    build_header,
)

from . import exthdrs, fragments, icmpv6, udp, uso
from .packet import TO_MULTICAST, TO_US, Packet

if TYPE_CHECKING:
    from pytcp.link.frame import RxFrame

    from .interface import Interface
    from .route import Dst
    from .stack import Stack

_HEADER = Struct(">IHBB16s16s").unpack_from


def receive(stack: Stack, dev: Interface, data: bytes, kind: int, frame: RxFrame) -> None:
    """One packet from a device; `data` is the frame behind its link-layer header, padding included."""
    mib = stack.mib
    size = len(data)
    mib.Ip6InReceives += 1
    mib.Ip6InOctets += size
    if not dev.ip6:
        mib.Ip6InDiscards += 1
        return
    if size < 40:
        mib.Ip6InHdrErrors += 1
        return
    word, plen, proto, hops, src, dst = _HEADER(data)
    if word >> 28 != 6:
        mib.Ip6InHdrErrors += 1
        return
    tos = word >> 20 & 0xFF
    stack.mib.count_ect6(tos, uso.segments(frame, size - 48) if frame.gso_size else 1)
    multicast = dst[0] == 0xFF
    if not dev.loopback and (src == IP6_LOOPBACK or dst == IP6_LOOPBACK or (multicast and dst[1] & 0x0F <= 1)):
        mib.Ip6InHdrErrors += 1
        return
    if src[0] == 0xFF:
        mib.Ip6InHdrErrors += 1
        return
    if not plen and frame.gso_size:
        plen = size - 40  # a super-frame longer than the field can say (BIG TCP)
    if 40 + plen > size:
        mib.Ip6InTruncatedPkts += 1
        return
    pkt = Packet(6, dev, data[: 40 + plen], kind, frame.csum)
    pkt.off = 40
    pkt.src = src
    pkt.dst = dst
    pkt.proto = proto
    pkt.tos = tos
    pkt.ttl = hops
    pkt.flow = word & 0xFFFFF
    pkt.gso_type = frame.gso_type
    pkt.gso_size = frame.gso_size
    pkt.counted = frame.counted
    pkt.frame_len = len(frame.data)
    pkt.source_mac = bytes(frame.data[6:12]) if dev.mac else b""
    pkt.dkind = TO_MULTICAST if multicast else TO_US
    if proto == IPPROTO_HOPOPTS and not exthdrs.hop_by_hop(stack, pkt):
        return
    if multicast:
        mib.Ip6InMcastPkts += 1
        mib.Ip6InMcastOctets += size
        if dst not in dev.groups and not dev.loopback:
            return
    elif not _is_ours(stack, dev, dst):
        mib.Ip6InAddrErrors += 1
        return
    deliver(stack, pkt)


def _is_ours(stack: Stack, dev: Interface, dst: bytes) -> bool:
    owner = stack.local6.get(dst)
    if owner is None:
        return False
    return dev.loopback or not is_link_local(dst) or owner is dev


def deliver(stack: Stack, pkt: Packet) -> None:
    """Walk the extension headers of a packet for us and hand it to its protocol."""
    mib = stack.mib
    while True:
        proto = pkt.proto
        if proto == IPPROTO_DSTOPTS:
            if not exthdrs.destination(stack, pkt):
                return
        elif proto == IPPROTO_ROUTING:
            if not exthdrs.routing(stack, pkt):
                return
        elif proto == IPPROTO_FRAGMENT:
            whole = fragments.add6(stack, pkt, pkt.off)
            if whole is None:
                return
            pkt = whole
        else:
            break
    heard = stack.raw_deliver(pkt)
    if proto == IPPROTO_TCP:
        mib.Ip6InDelivers += 1
        stack.receive_tcp(pkt)
    elif proto == IPPROTO_UDP:
        mib.Ip6InDelivers += 1
        udp.receive(stack, pkt)
    elif proto == IPPROTO_ICMPV6:
        mib.Ip6InDelivers += 1
        icmpv6.receive(stack, pkt)
    elif proto == IPPROTO_NONE or heard:
        mib.Ip6InDelivers += 1
    else:
        mib.Ip6InUnknownProtos += 1
        icmpv6.send_error(stack, pkt, PARAMETER_PROBLEM, UNKNOWN_NEXT_HEADER, pkt.pointer)


# --- out ---


def output(
    stack: Stack,
    dst: Dst,
    saddr: bytes,
    proto: int,
    payload: bytes,
    *,
    tclass: int = 0,
    flow: int = 0,
    hops: int = -1,
    fragment: bool = True,
    mtu: int = 0,
    gso_size: int = 0,
) -> int:
    """Send one packet, in fragments where it must be.

    hops: -1 = what a router advertised, or the sysctl; 1 for multicast. mtu: bytes of a packet, 0 = the
    path's. gso_size: `payload` is a UDP header and so many bytes of each of many datagrams (`uso`).
    Returns 0, or -EMSGSIZE for one that is too long and must not be fragmented.
    """
    mib = stack.mib
    daddr = dst.daddr
    size = 40 + len(payload)
    if size > (mtu or dst.mtu) and not fragment:
        return -errno.EMSGSIZE
    mib.Ip6OutRequests += 1
    mib.Ip6OutOctets += size
    multicast = is_multicast(daddr)
    if multicast:
        mib.Ip6OutMcastPkts += 1
        mib.Ip6OutMcastOctets += size
    if hops < 0:
        hops = 1 if multicast else dst.hoplimit or stack.sysctl.hop_limit
    limit = mtu or dst.mtu
    room = dst.dev.room
    if gso_size:
        header = build_header(saddr, daddr, proto, len(payload), tclass=tclass, flow=flow, hop_limit=hops)
        mib.Ip6OutTransmits += 1
        uso.output(dst, room + header, payload, gso_size)
        return 0
    if size <= limit:
        head = room + build_header(saddr, daddr, proto, len(payload), tclass=tclass, flow=flow, hop_limit=hops) + payload
        mib.Ip6OutTransmits += 1
        dst.neigh.output(TxFrame(head, (), len(head)))
        return 0
    ident = stack.idents.fragment6()
    chunk = limit - 40 - 8 & ~7
    for offset in range(0, len(payload), chunk):
        part = payload[offset : offset + chunk]
        piece = FragmentHeader(proto, offset, offset + chunk < len(payload), ident, part).emit()
        head = room + build_header(saddr, daddr, IPPROTO_FRAGMENT, len(piece), tclass=tclass, flow=flow, hop_limit=hops) + piece
        mib.Ip6FragCreates += 1
        mib.Ip6OutTransmits += 1
        dst.neigh.output(TxFrame(head, (), len(head)))
    mib.Ip6FragOKs += 1
    return 0
