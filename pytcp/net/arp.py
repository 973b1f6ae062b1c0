"""ARP for Ethernet and IPv4 (RFC 826): answering, learning, asking.

Linux answers a request for any address of the host on any interface (`arp_ignore` 0), learns from
requests for itself only, and takes news about others just for entries it has already. An existing
entry resists a changed MAC for `locktime` after its last change, except from requests for us and
gratuitous requests. A packet that claims our own address is ignored: no defence, no conflict detection.
Sysctls: net.ipv4.conf.all.arp_ignore, arp_announce, arp_accept, arp_notify; neigh.default.locktime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytcp.wire.addr import IP4_ANY, MAC_BROADCAST, MAC_ZERO, is_multicast
from pytcp.wire.arp import ARPHRD_ETHER, ARPHRD_IEEE802, REPLY, REQUEST, Arp
from pytcp.wire.errors import WireError
from pytcp.wire.ethernet import ETH_P_ARP, ETH_P_IP

from .neighbour import REACHABLE, STALE
from .packet import HOST

if TYPE_CHECKING:
    from pytcp.link.frame import TxFrame

    from .interface import Interface
    from .neighbour import Neighbour
    from .stack import Stack


def receive(stack: Stack, dev: Interface, data: bytes, kind: int) -> None:
    """One ARP packet; `kind` is where its frame went (HOST, BROADCAST, MULTICAST)."""
    try:
        arp = Arp.parse(data)
    except WireError:
        return
    if arp.htype not in (ARPHRD_ETHER, ARPHRD_IEEE802) or arp.ptype != ETH_P_IP or len(arp.sha) != 6 or len(arp.spa) != 4:
        return
    if arp.op not in (REQUEST, REPLY):
        return
    target = arp.tpa
    sender = arp.spa
    if target[0] == 127 or is_multicast(target):
        return
    if sender == IP4_ANY:
        # an address probe (RFC 5227): answered, never learnt
        if arp.op == REQUEST and _is_ours(stack, dev, target):
            _reply(dev, arp)
        return
    if _bad_sender(stack, sender):
        return
    if arp.op == REQUEST and _is_ours(stack, dev, target):
        if _on_link(stack, dev, sender):
            dev.neigh4.get(sender).update(arp.sha, STALE, override=True)
        _reply(dev, arp)
        return
    gratuitous = target == sender and (arp.op == REQUEST or arp.tha == arp.sha)
    neigh = dev.neigh4.entries.get(sender)
    if neigh is None:
        if not (stack.sysctl.arp_accept and _on_link(stack, dev, sender) and (gratuitous or arp.op == REPLY)):
            return
        neigh = dev.neigh4.get(sender)
    # the entry is locked for a while after each change, so that the first of two answers stays
    override = gratuitous or stack.heap.now_ns > neigh.updated_ns + dev.neigh4.locktime_ns
    neigh.update(arp.sha, REACHABLE if arp.op == REPLY and kind == HOST else STALE, override=override)


def _is_ours(stack: Stack, dev: Interface, target: bytes) -> bool:
    owner = stack.local4.get(target)
    return owner is not None and (not stack.sysctl.arp_ignore or owner is dev)


def _bad_sender(stack: Stack, sender: bytes) -> bool:
    return sender[0] == 127 or is_multicast(sender) or sender in stack.local4


def _on_link(stack: Stack, dev: Interface, sender: bytes) -> bool:
    """Whether a sender is one we would resolve: a unicast address in a subnet of the interface."""
    if sender in stack.broadcast4 or sender == b"\xff\xff\xff\xff":
        return False
    try:
        route = stack.routes4.lookup(sender, stack.heap.now_ns)
    except OSError:
        return False
    return route is not None and route.dev is dev and not route.gateway


def _reply(dev: Interface, asked: Arp) -> None:
    answer = Arp(REPLY, dev.mac, asked.tpa, asked.sha, asked.spa)
    dev.send_raw(asked.sha, ETH_P_ARP, answer.emit())


def solicit(neigh: Neighbour, waiting: TxFrame | None, unicast: bool) -> None:
    """Ask who has the neighbour's address, as the source of the first packet that waits for it."""
    dev = neigh.table.dev
    stack = neigh.table.stack
    source = b""
    if waiting is not None and not stack.sysctl.arp_announce:
        source = bytes(waiting.head[26:30])
        if source not in stack.local4:
            source = b""
    if not source:
        source = stack.select4(dev, neigh.addr)
    request = Arp(REQUEST, dev.mac, source or IP4_ANY, MAC_ZERO, neigh.addr)
    dev.send_raw(neigh.mac if unicast else MAC_BROADCAST, ETH_P_ARP, request.emit())


def announce(dev: Interface) -> None:
    """A gratuitous request for each address (`arp_notify` when the link comes up)."""
    for addr, _ in dev.addresses4:
        dev.send_raw(MAC_BROADCAST, ETH_P_ARP, Arp(REQUEST, dev.mac, addr, MAC_ZERO, addr).emit())
