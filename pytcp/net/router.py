"""What routers say: advertisements taken, solicitations sent (RFC 4861 §6.3, RFC 4862 §5.5).

An advertisement must come from a link-local address. It gives a default route, hop limit and neighbour
times, on-link prefixes, and with /64 autonomous prefixes addresses of ours. Solicitations start when
the link-local address is valid and go on, ever more rarely, until a router answers.
Sysctls: accept_ra, accept_ra_defrtr, accept_ra_pinfo, accept_ra_mtu, accept_ra_min_hop_limit, autoconf,
max_addresses, router_solicitations, router_solicitation_interval, router_solicitation_max_interval.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytcp.wire.addr import IP6_ALL_ROUTERS, eui64, is_link_local, is_multicast
from pytcp.wire.ipv6 import IPV6_MIN_MTU
from pytcp.wire.ndp import INFINITY, PREF_HIGH, PREF_LOW, PREF_MEDIUM, LinkMtu, PrefixInfo, SourceLinkAddr, first

from . import address, ndp
from .neighbour import STALE
from .route import METRIC_KERNEL6, METRIC_RA6, Route

if TYPE_CHECKING:
    from pytcp.wire.ndp import RouterAdvert

    from .interface import Interface
    from .packet import Packet
    from .stack import Stack

__all__ = ["INFINITY", "forget", "receive", "start_solicitation", "stop"]

_S = 1_000_000_000
TWO_HOURS = 7200
MAX_REACHABLE_MS = 3_600_000_000 // 1000
_ORDER = {PREF_HIGH: 0, PREF_MEDIUM: 1, PREF_LOW: 2, 2: 1}  # value 2 is reserved and read as medium


def receive(stack: Stack, pkt: Packet, message: RouterAdvert) -> None:
    """One router advertisement, valid as a message."""
    sysctl = stack.sysctl
    dev = pkt.dev
    if not is_link_local(pkt.src) or is_multicast(pkt.src):
        return
    mac = first(message.options, SourceLinkAddr)
    if mac is not None and len(mac.addr) != 6:
        return
    takes = sysctl.accept_ra == 2 or (sysctl.accept_ra and not sysctl.forwarding6)
    own = stack.local6.get(pkt.src) is dev
    if takes:
        _stop_solicitation(dev)
        if not own:
            _times(stack, dev, message)
            if sysctl.accept_ra_defrtr:
                _default_route(stack, dev, pkt.src, message)
    if mac is not None and not own:
        neigh = dev.neigh6.get(pkt.src)
        neigh.update(mac.addr, STALE, override=True)
        neigh.is_router = True
    if not takes:
        return
    if sysctl.accept_ra_pinfo:
        for option in message.options:
            if isinstance(option, PrefixInfo):
                _prefix(stack, dev, option)
    mtu = first(message.options, LinkMtu)
    if mtu is not None and sysctl.accept_ra_mtu and IPV6_MIN_MTU <= mtu.mtu <= dev.mtu and mtu.mtu != dev.mtu6:
        dev.mtu6 = mtu.mtu
        stack.routes_changed()


def _times(stack: Stack, dev: Interface, message: RouterAdvert) -> None:
    """Hop limit and neighbour times; 0 leaves them as they are."""
    if message.hop_limit >= max(stack.sysctl.accept_ra_min_hop_limit, 1):
        dev.hop_limit = message.hop_limit
        stack.routes_changed()
    table = dev.neigh6
    retrans = table.retrans_ns // 1_000_000
    if 0 < message.retrans <= MAX_REACHABLE_MS * 1000:
        # kept in ticks, at least two of them
        tick_ms = 1000 // stack.sysctl.hz
        retrans = max(message.retrans // tick_ms * tick_ms, 2 * tick_ms)
    base = message.reachable or table.base_reachable_ns // 1_000_000
    table.set_times(base, retrans)


def _default_route(stack: Stack, dev: Interface, source: bytes, message: RouterAdvert) -> None:
    old = _route_via(stack, dev, source)
    if old is not None:
        stack.routes6.remove(old)
    if message.lifetime:
        # routes of equal metric are used in the order of their preference
        route = Route(bytes(16), 0, dev, gateway=source, metric=METRIC_RA6, origin="ra", preference=_ORDER[message.preference])
        route.expires_ns = stack.heap.now_ns + message.lifetime * _S
        stack.routes6.add(route)
        stack.expire_route(route)
    stack.routes_changed()


def _route_via(stack: Stack, dev: Interface, source: bytes) -> Route | None:
    for route in stack.routes6.find(bytes(16), 0):
        if route.dev is dev and route.gateway == source and route.origin == "ra":
            return route
    return None


def forget(stack: Stack, dev: Interface, source: bytes) -> None:
    """A neighbour is no longer a router."""
    route = _route_via(stack, dev, source)
    if route is not None:
        stack.routes6.remove(route)
        stack.routes_changed()


def _prefix(stack: Stack, dev: Interface, info: PrefixInfo) -> None:
    if info.preferred > info.valid or is_link_local(info.prefix) or is_multicast(info.prefix):
        return
    if info.on_link:
        _on_link(stack, dev, info)
    if info.autonomous and info.prefix_len == 64 and stack.sysctl.autoconf:
        _autoconfigure(stack, dev, info)


def _on_link(stack: Stack, dev: Interface, info: PrefixInfo) -> None:
    for route in stack.routes6.find(info.prefix, info.prefix_len):
        if route.dev is dev and route.origin == "ra" and not route.gateway:
            stack.routes6.remove(route)
    if info.valid and not any(route.dev is dev and not route.gateway for route in stack.routes6.find(info.prefix, info.prefix_len)):
        route = Route(info.prefix, info.prefix_len, dev, metric=METRIC_KERNEL6, origin="ra")
        stack.routes6.add(route)
        if info.valid != INFINITY:
            route.expires_ns = stack.heap.now_ns + info.valid * _S
            stack.expire_route(route)
    stack.routes_changed()


def _autoconfigure(stack: Stack, dev: Interface, info: PrefixInfo) -> None:
    addr = eui64(dev.mac, info.prefix[:8])
    entry = address.find(dev, addr)
    valid = info.valid
    if entry is None:
        limit = stack.sysctl.max_addresses
        if not valid or (limit and sum(other.origin == "ra" for other in dev.addresses6) >= limit):
            return
        entry = address.add(stack, dev, addr, 64, dad=True, origin="ra")
    elif entry.origin != "ra":
        return
    else:
        # a short lifetime is believed only as far as two hours from now (RFC 4862 §5.5.3 e)
        left = (entry.valid_until_ns - stack.heap.now_ns) // _S
        if valid <= TWO_HOURS and valid <= left:
            valid = min(left, TWO_HOURS)
    address.set_lifetimes(stack, entry, valid, info.preferred)


# --- solicitations ---


def start_solicitation(stack: Stack, dev: Interface) -> None:
    """Ask for routers now and again until one answers."""
    sysctl = stack.sysctl
    if not sysctl.accept_ra or sysctl.forwarding6 or not sysctl.router_solicitations:
        return
    _stop_solicitation(dev)
    _solicit(stack, dev, 0, 0)


def _solicit(stack: Stack, dev: Interface, sent: int, interval_ns: int) -> None:
    sysctl = stack.sysctl
    source = ndp.link_local(dev)
    if not source or not dev.up:
        return
    ndp.send_router_solicit(stack, dev, source, IP6_ALL_ROUTERS)
    sent += 1
    if 0 < sysctl.router_solicitations <= sent:
        return
    # RFC 7559: doubling, each time off by up to a tenth
    base = 2 * interval_ns or sysctl.router_solicitation_interval * _S
    base = min(base, sysctl.router_solicitation_max_interval * _S)
    interval_ns = base * (900_000 + stack.random.randrange(200_001)) // 1_000_000
    dev.router_timer = stack.call_later(interval_ns, partial(_solicit, stack, dev, sent, interval_ns))


def _stop_solicitation(dev: Interface) -> None:
    if dev.router_timer is not None:
        dev.router_timer.cancel()
        dev.router_timer = None


def stop(dev: Interface) -> None:
    """IPv6 ends on the interface."""
    _stop_solicitation(dev)
