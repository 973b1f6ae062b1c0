"""IPv4 in and out (RFC 791, RFC 1122 §3.2) for everything but established TCP.

In: header checks, what the destination is to us, options, reassembly, and the way up. The host is
weak (any of its addresses on any interface) and no router. Out: header, fragments, and the neighbour.
A packet from nowhere good (loopback, multicast, broadcast or own source) is dropped without a word.
Counters: IpIn*, IpOut*, IpFrag*, IpExt*, IPReversePathFilter. Sysctls: rp_filter, ip_default_ttl.
"""

from __future__ import annotations

import errno
from struct import Struct
from typing import TYPE_CHECKING

from pytcp.link.frame import TxFrame
from pytcp.wire.addr import IP4_ANY, IP4_BROADCAST, is_multicast
from pytcp.wire.errors import WireError
from pytcp.wire.icmp import DEST_UNREACH, FRAG_NEEDED, PARAMETER_PROBLEM, PROT_UNREACH
from pytcp.wire.ipv4 import IP_DF, IP_MF, IP_OFFSET, IPOPT_COPIED, IPPROTO_ICMP, IPPROTO_IGMP, IPPROTO_TCP, IPPROTO_UDP, build_header, header_ok

from . import fragments, icmp, ipopts, udp, uso
from .packet import TO_BROADCAST, TO_MULTICAST, TO_US, Packet

if TYPE_CHECKING:
    from pytcp.link.frame import RxFrame

    from .interface import Interface
    from .route import Dst
    from .stack import Stack

_HEADER = Struct(">BBHHHBBH4s4s").unpack_from

MAX_LENGTH = 65535


def receive(stack: Stack, dev: Interface, data: bytes, kind: int, frame: RxFrame) -> None:
    """One packet from a device; `data` is the frame behind its link-layer header, padding included."""
    mib = stack.mib
    size = len(data)
    mib.IpInReceives += 1
    mib.IpExtInOctets += size
    if size < 20:
        mib.IpInHdrErrors += 1
        return
    vihl, tos, total, ident, frag, ttl, proto, _, src, dst = _HEADER(data)
    if not total and frame.gso_size:
        total = size  # a super-frame longer than the field can say (BIG TCP)
    hlen = (vihl & 15) * 4
    if vihl >> 4 != 4 or hlen < 20:
        mib.IpInHdrErrors += 1
        return
    stack.mib.count_ect(tos, uso.segments(frame, size - hlen - 8) if frame.gso_size else 1)
    if hlen > size:
        mib.IpInHdrErrors += 1
        return
    if not header_ok(data):
        mib.IpExtInCsumErrors += 1
        mib.IpInHdrErrors += 1
        return
    if total > size:
        mib.IpExtInTruncatedPkts += 1
        return
    if total < hlen:
        mib.IpInHdrErrors += 1
        return
    pkt = Packet(4, dev, data[:total], kind, frame.csum)
    pkt.off = hlen
    pkt.src = src
    pkt.dst = dst
    pkt.proto = proto
    pkt.tos = tos
    pkt.ttl = ttl
    pkt.ident = ident
    pkt.frag = frag
    pkt.gso_type = frame.gso_type
    pkt.gso_size = frame.gso_size
    pkt.counted = frame.counted
    pkt.frame_len = len(frame.data)
    if not _classify(stack, pkt):
        return
    if hlen > 20 and not _read_options(stack, pkt):
        return
    if pkt.dkind == TO_MULTICAST:
        mib.IpExtInMcastPkts += 1
        mib.IpExtInMcastOctets += total
    elif pkt.dkind == TO_BROADCAST:
        mib.IpExtInBcastPkts += 1
        mib.IpExtInBcastOctets += total
    if frag & (IP_MF | IP_OFFSET):
        whole = fragments.add4(stack, pkt)
        if whole is None:
            return
        pkt = whole
    deliver(stack, pkt)


def _classify(stack: Stack, pkt: Packet) -> bool:
    """Decide what the destination is to us; False: the packet is dropped (and counted, where Linux does)."""
    src = pkt.src
    dst = pkt.dst
    dev = pkt.dev
    if is_multicast(dst):
        pkt.dkind = TO_MULTICAST
        if dev.loopback:
            return True
        if src[0] == 127 or is_multicast(src) or src == IP4_BROADCAST or (src == IP4_ANY and dst[:3] != b"\xe0\0\0"):
            return False
        return dst in dev.groups
    if dst == IP4_BROADCAST or dst in stack.broadcast4:
        pkt.dkind = TO_BROADCAST
    elif dst in stack.local4 or (dev.loopback and dst[0] == 127):
        pkt.dkind = TO_US
    if dev.loopback:
        return True
    if src[0] == 127 or is_multicast(src) or src == IP4_BROADCAST or dst[0] == 127 or dst == IP4_ANY:
        return False
    if src == IP4_ANY:
        return dst == IP4_BROADCAST
    if src in stack.local4:
        return False
    if pkt.dkind == TO_US and dst not in stack.local4:
        stack.mib.IpInAddrErrors += 1
        return False
    return not stack.sysctl.rp_filter or _reverse_path_ok(stack, pkt)


def _reverse_path_ok(stack: Stack, pkt: Packet) -> bool:
    """RFC 3704: strict (1) wants the route back through the same interface, loose (2) any route."""
    try:
        route = stack.routes4.lookup(pkt.src, stack.heap.now_ns)
    except OSError:
        route = None
    if route is not None and (stack.sysctl.rp_filter == 2 or route.dev is pkt.dev):
        return True
    stack.mib.IPReversePathFilter += 1
    return False


def _read_options(stack: Stack, pkt: Packet) -> bool:
    own = pkt.dst if pkt.dkind == TO_US else pkt.dev.primary4
    try:
        ipopts.receive(pkt, own, ipopts.ms_since_midnight(stack.realtime_ns()))
    except ipopts.SourceRouted:
        return False
    except WireError as error:
        stack.mib.IpInHdrErrors += 1
        icmp.send_error(stack, pkt, PARAMETER_PROBLEM, 0, error.offset << 24)
        return False
    return True


def deliver(stack: Stack, pkt: Packet) -> None:
    """Hand a whole packet for us to its protocol."""
    mib = stack.mib
    proto = pkt.proto
    heard = stack.raw_deliver(pkt)
    if proto == IPPROTO_TCP:
        mib.IpInDelivers += 1
        stack.receive_tcp(pkt)
    elif proto == IPPROTO_UDP:
        mib.IpInDelivers += 1
        udp.receive(stack, pkt)
    elif proto == IPPROTO_ICMP:
        mib.IpInDelivers += 1
        icmp.receive(stack, pkt)
    elif proto == IPPROTO_IGMP or heard:
        mib.IpInDelivers += 1
    else:
        mib.IpInUnknownProtos += 1
        icmp.send_error(stack, pkt, DEST_UNREACH, PROT_UNREACH, 0)


# --- out ---


def output(
    stack: Stack,
    dst: Dst,
    saddr: bytes,
    proto: int,
    payload: bytes,
    *,
    tos: int = 0,
    ttl: int = 0,
    df: bool = False,
    ident: int | None = None,
    options: bytes = b"",
    mtu: int = 0,
    gso_size: int = 0,
) -> int:
    """Send one datagram, in fragments where it must be.

    ident: None takes the next number of the destination's own counter. mtu: bytes of a packet, 0 = the
    path's. gso_size: `payload` is a UDP header and so many bytes of each of many datagrams (`uso`).
    Returns 0, or -EMSGSIZE for one that would need fragments but has DF: the sender is then also
    told by ICMP, as Linux tells it.
    """
    mib = stack.mib
    size = 20 + len(options) + len(payload)
    mib.IpOutRequests += 1
    mib.IpExtOutOctets += size
    daddr = dst.daddr
    if is_multicast(daddr):
        mib.IpExtOutMcastPkts += 1
        mib.IpExtOutMcastOctets += size
    elif dst.neigh.mac == b"\xff" * 6:
        mib.IpExtOutBcastPkts += 1
        mib.IpExtOutBcastOctets += size
    if ident is None:
        ident = stack.idents.ipv4(daddr, proto, stack.heap.now_ns // stack.sysctl.tick_ns)
    if ttl == 0:
        ttl = 1 if is_multicast(daddr) else stack.sysctl.ip_default_ttl
    limit = mtu or dst.mtu
    if gso_size:
        header = build_header(saddr, daddr, proto, size, tos=tos, ident=ident, frag=IP_DF if df else 0, ttl=ttl, options=options)
        mib.IpOutTransmits += 1
        uso.output(dst, dst.dev.room + header, payload, gso_size)
        return 0
    if size > limit:
        if df:
            mib.IpFragFails += 1
            header = build_header(saddr, daddr, proto, size, tos=tos, ident=ident, frag=IP_DF, ttl=ttl, options=options)
            icmp.local_error(stack, header + payload[:576], DEST_UNREACH, FRAG_NEEDED, limit)
            return -errno.EMSGSIZE
        _output_fragments(stack, dst, saddr, proto, payload, tos, ttl, ident, options, limit)
        return 0
    head = dst.dev.room + build_header(saddr, daddr, proto, size, tos=tos, ident=ident, frag=IP_DF if df else 0, ttl=ttl, options=options) + payload
    mib.IpOutTransmits += 1
    dst.neigh.output(TxFrame(head, (), len(head)))
    return 0


def _output_fragments(stack: Stack, dst: Dst, saddr: bytes, proto: int, payload: bytes, tos: int, ttl: int, ident: int, options: bytes, mtu: int) -> None:
    mib = stack.mib
    room = dst.dev.room
    offset = 0
    end = len(payload)
    while offset < end:
        chunk = mtu - 20 - len(options) & ~7
        more = offset + chunk < end
        part = payload[offset : offset + chunk]
        total = 20 + len(options) + len(part)
        header = build_header(saddr, dst.daddr, proto, total, tos=tos, ident=ident, frag=(IP_MF if more else 0) | offset >> 3, ttl=ttl, options=options)
        head = room + header + part
        mib.IpFragCreates += 1
        mib.IpOutTransmits += 1
        dst.neigh.output(TxFrame(head, (), len(head)))
        if offset == 0:
            options = _copied(options)
        offset += chunk
    mib.IpFragOKs += 1


def _copied(options: bytes) -> bytes:
    """Which options go into later fragments: those whose type says so (RFC 791 §3.1)."""
    kept = b""
    at = 0
    while at < len(options) and options[at] != 0:
        size = 1 if options[at] == 1 else options[at + 1]
        if options[at] & IPOPT_COPIED:
            kept += options[at : at + size]
        at += size
    return kept + bytes(-len(kept) & 3)
