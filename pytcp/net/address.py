"""IPv6 addresses of an interface: duplicate detection, lifetimes, and the choice of a source.

A new address is tentative until nobody objected to a probe (RFC 4862 §5.4): a random wait up to 1 s, a
solicitation from :: with a nonce (RFC 7527), a second's silence. Until then it receives nothing and
sends nothing. `dad_transmits` 0, or `dad=False` for addresses a person gave, makes it valid at once.
Source selection is RFC 6724 §5 as far as a host without mobility and temporary addresses needs it.
Sysctls: dad_transmits, enhanced_dad, optimistic_dad, ndisc_notify.
"""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING

from pytcp.wire.addr import eui64, format_ip, is_link_local, is_multicast, solicited_node

from . import addr as A
from . import ndp, router
from .route import METRIC_KERNEL6, Route

if TYPE_CHECKING:
    from pytcp.clock.heap import Timer

    from .interface import Interface
    from .stack import Stack

_S = 1_000_000_000
FOREVER = 1 << 62


class Address6:
    """One IPv6 address of an interface."""

    __slots__ = (
        "addr", "plen", "dev", "tentative", "optimistic", "dadfailed", "origin", "valid_until_ns", "preferred_until_ns",
        "nonce", "probes", "timer", "expiry",
    )  # fmt: skip

    def __init__(self, addr: bytes, plen: int, dev: Interface, origin: str) -> None:
        self.addr = addr
        self.plen = plen
        self.dev = dev
        self.tentative = False  # being probed, or found to be somebody else's
        self.optimistic = False  # tentative, but used meanwhile (RFC 4429)
        self.dadfailed = False
        self.origin = origin  # static, kernel (link-local), ra
        self.valid_until_ns = FOREVER
        self.preferred_until_ns = FOREVER
        self.nonce = b""
        self.probes = 0
        self.timer: Timer | None = None
        self.expiry: Timer | None = None

    def deprecated(self, now_ns: int) -> bool:
        """Its preferred lifetime is over: not for new connections where there is another."""
        return now_ns >= self.preferred_until_ns

    def __repr__(self) -> str:
        state = "dadfailed" if self.dadfailed else "tentative" if self.tentative else "valid"
        return f"<Address6 {format_ip(self.addr)}/{self.plen} {self.dev.name} {state}>"


def find(dev: Interface, addr: bytes) -> Address6 | None:
    """The interface's address of that value, in whatever state."""
    for entry in dev.addresses6:
        if entry.addr == addr:
            return entry
    return None


def add(stack: Stack, dev: Interface, addr: bytes, plen: int, *, dad: bool, origin: str = "static") -> Address6:
    """Give the interface an address and the route to its prefix. Raises OSError EEXIST."""
    if find(dev, addr) is not None:
        raise OSError(errno.EEXIST, f"{dev.name} has {format_ip(addr)} already")
    dev.ip6 = True
    entry = Address6(addr, plen, dev, origin)
    dev.addresses6.append(entry)
    stack.join(dev, solicited_node(addr))
    if plen < 128 and origin != "ra" and not any(route.dev is dev for route in stack.routes6.find(addr, plen)):
        stack.routes6.add(Route(addr, plen, dev, metric=METRIC_KERNEL6, origin="kernel"))
    if dad and stack.sysctl.dad_transmits and not dev.loopback:
        entry.tentative = True
        if stack.sysctl.enhanced_dad:
            entry.nonce = stack.random.randbytes(6)
        if stack.sysctl.optimistic_dad:
            entry.optimistic = True
            stack.local6[addr] = dev
            _probe(stack, entry)
        else:
            entry.timer = stack.heap.call_at(stack.heap.now_ns + stack.random.randrange(_S), partial(_probe, stack, entry))
    else:
        stack.local6[addr] = dev
    stack.routes_changed()
    return entry


def remove(stack: Stack, dev: Interface, addr: bytes) -> None:
    """Take an address away, and the route of its prefix with the last one in it. Raises OSError EADDRNOTAVAIL."""
    entry = find(dev, addr)
    if entry is None:
        raise OSError(errno.EADDRNOTAVAIL, f"{dev.name} has no address {format_ip(addr)}")
    dev.addresses6.remove(entry)
    for timer in (entry.timer, entry.expiry):
        if timer is not None:
            timer.cancel()
    if stack.local6.get(addr) is dev:
        del stack.local6[addr]
    stack.leave(dev, solicited_node(addr))
    if not any(other.plen == entry.plen and A.same_prefix(other.addr, addr, entry.plen) for other in dev.addresses6):
        for route in stack.routes6.find(addr, entry.plen):
            if route.dev is dev and route.origin == "kernel":
                stack.routes6.remove(route)
    stack.routes_changed()


def start(stack: Stack, dev: Interface, *, dad: bool, autoconf: bool) -> None:
    """IPv6 begins on an interface: the link-local address, and the question for routers if wanted."""
    dev.ip6 = True
    dev.autoconf = autoconf
    if dev.mac:
        add(stack, dev, eui64(dev.mac), 64, dad=dad, origin="kernel")
    if autoconf and not dad:
        router.start_solicitation(stack, dev)


def stop(stack: Stack, dev: Interface) -> None:
    """IPv6 ends on an interface: its MTU is below 1280, or the interface goes."""
    for entry in list(dev.addresses6):
        remove(stack, dev, entry.addr)
    for route in stack.routes6.routes():
        if route.dev is dev:
            stack.routes6.remove(route)
    router.stop(dev)
    dev.neigh6.flush()
    dev.ip6 = False


# --- duplicate address detection ---


def _probe(stack: Stack, entry: Address6) -> None:
    """Send a probe, or be content after the last one's silence."""
    if entry.probes < stack.sysctl.dad_transmits:
        entry.probes += 1
        ndp.send_probe(stack, entry)
        entry.timer = stack.call_later(entry.dev.neigh6.retrans_ns, partial(_probe, stack, entry))
        return
    entry.timer = None
    entry.tentative = entry.optimistic = False
    stack.local6[entry.addr] = entry.dev
    stack.routes_changed()
    if stack.sysctl.ndisc_notify:
        ndp.announce(stack, entry)
    if entry.origin == "kernel" and entry.dev.autoconf:
        router.start_solicitation(stack, entry.dev)


def conflict(stack: Stack, entry: Address6) -> None:
    """Somebody else has the address that is being probed: it stays unusable."""
    entry.dadfailed = True
    entry.optimistic = False
    if entry.timer is not None:
        entry.timer.cancel()
        entry.timer = None
    if stack.local6.get(entry.addr) is entry.dev:
        del stack.local6[entry.addr]
        stack.routes_changed()


# --- lifetimes ---


def set_lifetimes(stack: Stack, entry: Address6, valid_s: int, preferred_s: int) -> None:
    """Lifetimes counted from now, s; 0xffffffff = for ever. The address goes when `valid_s` ends."""
    now = stack.heap.now_ns
    entry.valid_until_ns = FOREVER if valid_s == router.INFINITY else now + valid_s * _S
    entry.preferred_until_ns = FOREVER if preferred_s == router.INFINITY else now + preferred_s * _S
    if entry.expiry is not None:
        entry.expiry.cancel()
        entry.expiry = None
    if entry.valid_until_ns != FOREVER:
        entry.expiry = stack.call_later(valid_s * _S, partial(remove, stack, entry.dev, entry.addr))
    stack.routes_changed()


# --- source selection ---


def select(stack: Stack, dev: Interface, daddr: bytes) -> bytes:
    """The source address for packets to `daddr` that leave by `dev`; b"" when there is none."""
    scope = A.scope6(daddr)
    local_only = is_multicast(daddr) or is_link_local(daddr)
    now = stack.heap.now_ns
    best = b""
    best_rank: tuple[int, ...] = ()
    for owner in (dev,) if local_only else stack.interfaces:
        for entry in owner.addresses6:
            if (entry.tentative and not entry.optimistic) or not owner.up or (owner is not dev and is_link_local(entry.addr)):
                continue
            own = A.scope6(entry.addr)
            rank = (
                entry.addr == daddr,  # rule 1
                own if own < scope else 32 - own,  # rule 2: the smallest scope that reaches, else the largest
                not entry.deprecated(now) and not entry.optimistic,  # rule 3
                owner is dev,  # rule 5
                A.common_bits(entry.addr, daddr) if entry.plen == 128 else min(A.common_bits(entry.addr, daddr), entry.plen),  # rule 8
            )
            # of equals the address added last (measured: Linux keeps the newest first)
            if rank >= best_rank:
                best, best_rank = entry.addr, rank
    return best
