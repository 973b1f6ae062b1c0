"""What we send to a group or as a broadcast, heard by our own sockets as well.

Linux gives every broadcast back to the host, and a multicast where the interface has joined the group
and the sender left IP_MULTICAST_LOOP on (measured on 6.18). The copy arrives as if from the interface it
left by, whole even where fragments went out, in an event of its own: never inside the call that sent it.
Counters: IpInReceives, IpExtInMcastPkts, IpExtInBcastPkts and their octets, Ip6InReceives, Ip6InMcastPkts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytcp.link.frame import CSUM_UNNECESSARY, GSO_UDP_L4
from pytcp.wire import ipv4 as wire4
from pytcp.wire import ipv6 as wire6
from pytcp.wire.ipv4 import IPPROTO_UDP

from . import ipv4, ipv6, packet, uso
from .packet import Packet
from .route import BROADCAST, MULTICAST, Dst

if TYPE_CHECKING:
    from .stack import Stack


def send(stack: Stack, dst: Dst, saddr: bytes, datagram: bytes, tos: int, ttl: int, loop: bool, gso_size: int = 0) -> None:
    """Have a UDP datagram that goes to `dst` heard here too, if it is one that is. loop: IP_MULTICAST_LOOP. gso_size: it is many (`uso`)."""
    if dst.kind == BROADCAST or (dst.kind == MULTICAST and loop and dst.daddr in dst.dev.groups):
        stack.heap.call_at(stack.heap.now_ns, partial(_arrive, stack, dst, saddr, datagram, tos, ttl, gso_size))


def _arrive(stack: Stack, dst: Dst, saddr: bytes, datagram: bytes, tos: int, ttl: int, gso_size: int) -> None:
    if stack.closed:
        return
    mib = stack.mib
    daddr = dst.daddr
    multicast = dst.kind == MULTICAST
    kind = packet.MULTICAST if multicast else packet.BROADCAST
    if dst.family == 4:
        size = 20 + len(datagram)
        pkt = Packet(4, dst.dev, wire4.build_header(saddr, daddr, IPPROTO_UDP, size, tos=tos, ttl=ttl) + datagram, kind, CSUM_UNNECESSARY)
        mib.IpInReceives += 1
        mib.IpExtInOctets += size
        if multicast:
            mib.IpExtInMcastPkts += 1
            mib.IpExtInMcastOctets += size
        else:
            mib.IpExtInBcastPkts += 1
            mib.IpExtInBcastOctets += size
    else:
        size = 40 + len(datagram)
        pkt = Packet(6, dst.dev, wire6.build_header(saddr, daddr, IPPROTO_UDP, len(datagram), tclass=tos, hop_limit=ttl) + datagram, kind, CSUM_UNNECESSARY)
        mib.Ip6InReceives += 1
        mib.Ip6InOctets += size
        mib.Ip6InMcastPkts += 1
        mib.Ip6InMcastOctets += size
    pkt.off = size - len(datagram)
    if gso_size:
        pkt.gso_type, pkt.gso_size, pkt.counted = GSO_UDP_L4, gso_size, True
    (mib.count_ect if dst.family == 4 else mib.count_ect6)(tos, uso.segments(pkt, len(datagram) - 8))
    pkt.src, pkt.dst, pkt.proto, pkt.tos, pkt.ttl = saddr, daddr, IPPROTO_UDP, tos, ttl
    pkt.dkind = packet.TO_MULTICAST if multicast else packet.TO_BROADCAST
    (ipv4 if dst.family == 4 else ipv6).deliver(stack, pkt)
