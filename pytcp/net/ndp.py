"""Neighbour discovery (RFC 4861): solicitations answered and sent, advertisements believed or not.

What a valid message looks like is the RFC's: hop limit 255, code 0, no option of length 0; fragmented
ones are ignored (RFC 6980). A multicast question is answered with the override flag and our MAC, a
unicast one (the asker knows the MAC) without either. Router and redirect messages have their own rooms.
Sysctls: suppress_frag_ndisc; neigh.default.*. Counters: Icmp6In*, Icmp6Out*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytcp.wire.addr import IP6_ALL_NODES, IP6_ANY, is_multicast, solicited_node
from pytcp.wire.errors import WireError
from pytcp.wire.ipv6 import build_header
from pytcp.wire.ndp import (
    NeighborAdvert,
    NeighborSolicit,
    Nonce,
    Redirect,
    RouterAdvert,
    RouterSolicit,
    SourceLinkAddr,
    TargetLinkAddr,
    first,
    parse,
)

from . import address, icmpv6, redirect, router
from .neighbour import FAILED, REACHABLE, STALE

if TYPE_CHECKING:
    from pytcp.link.frame import TxFrame
    from pytcp.wire.ndp import NdpOption

    from .address import Address6
    from .interface import Interface
    from .neighbour import Neighbour
    from .packet import Packet
    from .stack import Stack

HOPS = 255


def receive(stack: Stack, pkt: Packet, data: bytes) -> None:
    """One neighbour discovery message; its checksum is good and it is counted."""
    if pkt.ttl != HOPS or data[1] != 0 or (pkt.fragmented and stack.sysctl.suppress_frag_ndisc):
        return
    try:
        message = parse(data)
    except WireError:
        return
    match message:
        case NeighborSolicit():
            _solicited(stack, pkt, message)
        case NeighborAdvert():
            _advertised(stack, pkt, message)
        case RouterAdvert():
            router.receive(stack, pkt, message)
        case Redirect():
            redirect.receive6(stack, pkt, message)


def _link_address(options: tuple[NdpOption, ...], kind: type[SourceLinkAddr] | type[TargetLinkAddr]) -> bytes | None:
    """The link-layer address of a message, b"" without one; None: one that is not Ethernet's, so the message is invalid."""
    found = first(options, kind)
    if found is None:
        return b""
    return found.addr if len(found.addr) == 6 else None


def _solicited(stack: Stack, pkt: Packet, message: NeighborSolicit) -> None:
    dev = pkt.dev
    target = message.target
    probe = pkt.src == IP6_ANY
    mac = _link_address(message.options, SourceLinkAddr)
    if is_multicast(target) or mac is None:
        return
    if probe and (mac or pkt.dst[:13] != solicited_node(target)[:13]):
        return
    entry = address.find(dev, target)
    if entry is None:
        return
    if entry.tentative and not (entry.optimistic and not probe):
        if probe and not entry.dadfailed:
            nonce = first(message.options, Nonce)
            if nonce is None or not entry.nonce or nonce.nonce != entry.nonce:
                address.conflict(stack, entry)
        return
    if probe:
        options = (TargetLinkAddr(dev.mac),)
        send(stack, dev, target, IP6_ALL_NODES, NeighborAdvert(target, override=True, options=options).emit(target, IP6_ALL_NODES))
        return
    asked_all = is_multicast(pkt.dst)
    neigh = dev.neigh6.entries.get(pkt.src)
    if neigh is None:
        if asked_all and not mac:
            return
        neigh = dev.neigh6.get(pkt.src)
    neigh.update(mac or None, STALE, override=True)
    # an optimistic address must not displace another owner's entry (RFC 4429 §3.3)
    answer = NeighborAdvert(target, solicited=True, override=asked_all and not entry.optimistic, options=(TargetLinkAddr(dev.mac),) if asked_all else ())
    send(stack, dev, target, pkt.src, answer.emit(target, pkt.src))


def _advertised(stack: Stack, pkt: Packet, message: NeighborAdvert) -> None:
    dev = pkt.dev
    target = message.target
    mac = _link_address(message.options, TargetLinkAddr)
    if is_multicast(target) or (is_multicast(pkt.dst) and message.solicited) or mac is None:
        return
    entry = address.find(dev, target)
    if entry is not None:
        if entry.tentative and not entry.dadfailed:
            address.conflict(stack, entry)
        return
    neigh = dev.neigh6.entries.get(target)
    if neigh is None or neigh.state == FAILED:
        return
    was_router = neigh.is_router
    neigh.update(mac or None, REACHABLE if message.solicited else STALE, override=message.override, weak=True)
    neigh.is_router = message.router
    if was_router and not message.router:
        router.forget(stack, dev, target)


def solicit(neigh: Neighbour, waiting: TxFrame | None, unicast: bool) -> None:
    """Ask who has the neighbour's address: as the source of the first packet that waits, or our link-local address."""
    table = neigh.table
    dev = table.dev
    source = b""
    if waiting is not None:
        source = bytes(waiting.head[22:38])
        entry = address.find(dev, source)
        if entry is None or entry.tentative:
            source = b""
    source = source or link_local(dev) or address.select(table.stack, dev, neigh.addr) or IP6_ANY
    dst = neigh.addr if unicast else solicited_node(neigh.addr)
    options = (SourceLinkAddr(dev.mac),) if source != IP6_ANY else ()
    send(table.stack, dev, source, dst, NeighborSolicit(neigh.addr, options).emit(source, dst), neigh.mac if unicast else b"")


def link_local(dev: Interface) -> bytes:
    """The interface's valid link-local address, or b""."""
    for entry in dev.addresses6:
        if not entry.tentative and entry.addr[0] == 0xFE and entry.addr[1] & 0xC0 == 0x80:
            return entry.addr
    return b""


def send_probe(stack: Stack, entry: Address6) -> None:
    """A duplicate address probe."""
    dst = solicited_node(entry.addr)
    options = (Nonce(entry.nonce),) if entry.nonce else ()
    send(stack, entry.dev, IP6_ANY, dst, NeighborSolicit(entry.addr, options).emit(IP6_ANY, dst))


def announce(stack: Stack, entry: Address6) -> None:
    """An unsolicited advertisement of a new address."""
    options = (TargetLinkAddr(entry.dev.mac),)
    message = NeighborAdvert(entry.addr, override=True, options=options).emit(entry.addr, IP6_ALL_NODES)
    send(stack, entry.dev, entry.addr, IP6_ALL_NODES, message)


def send_router_solicit(stack: Stack, dev: Interface, source: bytes, dst: bytes) -> None:
    """A router solicitation."""
    options = (SourceLinkAddr(dev.mac),) if source != IP6_ANY else ()
    send(stack, dev, source, dst, RouterSolicit(options).emit(source, dst))


def send(stack: Stack, dev: Interface, src: bytes, dst: bytes, message: bytes, mac: bytes = b"") -> None:
    """Send a message with hop limit 255 and no flow label; `mac` spares asking for a unicast destination."""
    from pytcp.link.frame import TxFrame
    from pytcp.wire.addr import multicast_mac

    mib = stack.mib
    icmpv6.count_out(stack, message[0])
    mib.Ip6OutRequests += 1
    mib.Ip6OutTransmits += 1
    mib.Ip6OutOctets += 40 + len(message)
    ip = build_header(src, dst, 58, len(message), hop_limit=HOPS) + message
    if is_multicast(dst):
        mib.Ip6OutMcastPkts += 1
        mib.Ip6OutMcastOctets += 40 + len(message)
        mac = multicast_mac(dst)
    if mac:
        head = dev.ll_header(mac, 6) + ip
        dev.xmit(TxFrame(head, (), len(head)))
    else:
        head = dev.room + ip
        dev.neigh6.get(dst).output(TxFrame(head, (), len(head)))
