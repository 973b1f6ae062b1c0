"""ICMP redirects: a gateway says that another one is nearer (RFC 792, RFC 1122 §3.2.2.2, RFC 4861 §8).

Believed only from the gateway in use for that destination. What is learnt is a host route: for 300 s in
IPv4, for good in IPv6.
Sysctls: accept_redirects, shared_media, secure_redirects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytcp.wire.addr import is_link_local, is_multicast
from pytcp.wire.ndp import Redirected, TargetLinkAddr, first

from . import udp
from .neighbour import STALE, VALID
from .route import METRIC_RA6, Route

if TYPE_CHECKING:
    from pytcp.wire.ndp import Redirect

    from .packet import Packet
    from .stack import Stack

LIFETIME_NS = 300 * 1_000_000_000
HIGHEST_CODE = 3


def receive4(stack: Stack, pkt: Packet, message: bytes) -> None:
    """An IPv4 redirect: `message` is the whole ICMP message."""
    sysctl = stack.sysctl
    gateway = message[4:8]
    quote = message[8:]
    if message[1] > HIGHEST_CODE or len(quote) < 28 or quote[0] >> 4 != 4 or not sysctl.accept_redirects4:
        return
    target = quote[16:20]
    dev = pkt.dev
    if gateway in stack.local4 or gateway in stack.broadcast4 or is_multicast(gateway) or gateway[0] in (0, 127, 255):
        return
    now = stack.heap.now_ns
    try:
        old = stack.routes4.lookup(target, now)
        way = stack.routes4.lookup(gateway, now)
    except OSError:
        return
    if old is None or old.gateway != pkt.src or old.dev is not dev:
        return
    on_link = way is not None and not way.gateway and way.dev is dev
    if not sysctl.shared_media and (not on_link or (sysctl.secure_redirects and not _is_default(stack, gateway))):
        return
    neigh = dev.neigh4.get(gateway)
    if not neigh.state & VALID:
        # ask for it; its answer, and the next redirect, will do
        neigh.resolve()
        return
    if not on_link:
        return
    for route in stack.routes4.find(target, 32):
        if route.origin == "redirect":
            stack.routes4.remove(route)
    route = Route(target, 32, dev, gateway=gateway, origin="redirect")
    route.expires_ns = now + LIFETIME_NS
    stack.routes4.add(route)
    stack.expire_route(route)
    stack.routes_changed()


def _is_default(stack: Stack, gateway: bytes) -> bool:
    return any(route.gateway == gateway for route in stack.routes4.find(bytes(4), 0))


def receive6(stack: Stack, pkt: Packet, message: Redirect) -> None:
    """An IPv6 redirect, valid as a message."""
    dev = pkt.dev
    target = message.target
    destination = message.destination
    on_link = target == destination
    if not is_link_local(pkt.src) or is_multicast(destination) or is_multicast(target) or not (on_link or is_link_local(target)):
        return
    if not stack.sysctl.accept_redirects6 or stack.sysctl.forwarding6:
        return
    about = first(message.options, Redirected)
    if about is not None and not udp.concerns(stack, about.packet, dev):
        return
    try:
        old = stack.routes6.lookup(destination, stack.heap.now_ns, dev)
    except OSError:
        return
    if old is None or old.gateway != pkt.src:
        return
    mac = first(message.options, TargetLinkAddr)
    if mac is not None:
        if len(mac.addr) != 6:
            return
        dev.neigh6.get(target).update(mac.addr, STALE, override=True)
    if not on_link:
        dev.neigh6.get(target).is_router = True
    for route in stack.routes6.find(destination, 128):
        if route.origin == "redirect":
            stack.routes6.remove(route)
    stack.routes6.add(Route(destination, 128, dev, gateway=b"" if on_link else target, metric=METRIC_RA6, origin="redirect"))
    stack.routes_changed()
