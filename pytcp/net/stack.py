"""A host: devices, addresses, routes, counters and clocks put together around the TCP engine.

    runtime = VirtualRuntime()                     # or the real-time one, under trio
    stack = Stack(runtime, seed=1)
    eth0 = stack.add_interface(Tap("tap0"), ["10.0.0.2/24", "fd00::2/64"])
    stack.add_route("default", via="10.0.0.1")

Everything runs in one thread. What happens inside a pass of the runtime (frames, timers) gathers
wake-ups and frames to send; both go out when the pass ends. What a program's call sends leaves with
`flush`, or with the pass that the call has asked for. `close` ends it all: links, timers, queues.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pytcp.link.delayed import Delayed, DelayedRing
from pytcp.link.frame import check_name
from pytcp.link.pipe import PipeEnd
from pytcp.link.qdisc import Settings, settings
from pytcp.link.txring import TxRing
from pytcp.link.txthread import ThreadRing
from pytcp.tcp.profiles import DEFAULT as DEFAULT_PROFILE
from pytcp.tcp.tsq import called, uncharge
from pytcp.wire.addr import IP4_BROADCAST, IP6_ALL_NODES, IP6_ANY, IP6_LOOPBACK, format_ip, is_link_local, is_multicast, multicast_mac, parse_ip
from pytcp.wire.icmp import DEST_UNREACH, HOST_UNREACH
from pytcp.wire.icmpv6 import ADDR_UNREACH
from pytcp.wire.icmpv6 import DEST_UNREACH as DEST_UNREACH6
from pytcp.wire.ipv6 import IPV6_MIN_MTU

from . import addr as A
from . import address, arp, icmp, icmpv6, sysctl
from .counters import Mib
from .fragments import Reassembly
from .ident import Idents
from .interface import Interface
from .neighbour import NOARP, Neighbour
from .ping import PingTable
from .pmtu import PmtuCache
from .ratelimit import HostLimit, PeerLimit
from .route import BROADCAST, LOCAL, MULTICAST, STALE, UNICAST, Dst, Route, RouteTable, kind_of
from .tcp_host import TcpHost
from .ticks import expiry
from .udp import UdpTable

if TYPE_CHECKING:
    from pytcp.clock.heap import Timer, TimerHeap
    from pytcp.clock.runtime import Tunables
    from pytcp.link.frame import Link, TxFrame

    from .packet import Packet

DSTS = 8192  # cached routes

_LO_MTU = 65536
IP_MAX_MTU = 0xFFFF  # what the length field of an IPv4 header can say


class Runtime(Protocol):
    """What drives a stack (see `clock.runtime`)."""

    heap: TimerHeap
    before_pass: list[Callable[[], None]]
    after_pass: list[Callable[[], None]]
    tunables: Tunables | None

    def now(self) -> int: ...

    def realtime_ns(self) -> int: ...

    def kick(self) -> None: ...

    def add_link(self, link: Link) -> None: ...

    def remove_link(self, link: Link) -> None: ...


class Stack(TcpHost):
    """One host. `seed` makes everything random the same in every run; None takes it from the system."""

    def __init__(self, runtime: Runtime, *, seed: int | None = None, profile: str = DEFAULT_PROFILE) -> None:
        """profile: the kernel whose defaults its sysctls have (`tcp.profiles`). Raises OSError EINVAL for one that is not known."""
        self.runtime = runtime
        self.heap = runtime.heap
        self.random = random.Random(seed)
        self.sysctl = sysctl.Sysctl()
        runtime.tunables = self.sysctl
        if profile != DEFAULT_PROFILE:
            sysctl.set_(self.sysctl, "pytcp.profile", profile)
        self.mib = Mib()
        super().__init__()
        self.interfaces: list[Interface] = []
        self._rings: list[TxRing] = []
        self.local4: dict[bytes, Interface] = {}
        self.local6: dict[bytes, Interface] = {}
        self.broadcast4: dict[bytes, Interface] = {}
        self.routes4 = RouteTable(4)
        self.routes6 = RouteTable(16)
        self.pmtu = PmtuCache(self)
        self.frags4 = Reassembly(self, 4)
        self.frags6 = Reassembly(self, 6)
        self.udp = UdpTable(self)
        self.ping = PingTable(self)
        self.icmp_peer_limit = PeerLimit()
        self.icmp6_peer_limit = PeerLimit()
        self.icmp_host_limit = HostLimit(self.random)
        self.raw: list[Callable[[Packet], bool]] = []  # shown every packet; True: it was theirs
        self._dsts: dict[tuple[bytes, bytes, Interface | None], Dst] = {}
        self._dsts_to: dict[bytes, list[Dst]] = {}
        self.idents = Idents(self.random)
        runtime.before_pass.append(self._before_pass)
        runtime.after_pass.append(self._after_pass)
        self.lo = self._add_loopback()

    # --- the pass ---

    def _before_pass(self) -> None:
        self.in_pass = True
        self.now_ns = self.heap.now_ns
        for ring in self._rings:
            if ring.done:
                ring.reap()
        if self._owed:
            self._release_owed()

    def _after_pass(self) -> None:
        while self._wakes:
            self._deliver_wakes()
        for ring in self._rings:
            if ring.queue:
                ring.flush()
        self.in_pass = False

    def now(self) -> int:
        """Refresh the stack's time from the clock and return it, ns: the first thing a program's call does."""
        now = self.now_ns = self.runtime.now()
        for ring in self._rings:
            if ring.done:
                ring.settle(now)
        return now

    def flush(self) -> None:
        """Hand what was sent to the devices: the last thing a program's call does."""
        for ring in self._rings:
            if ring.queue:
                ring.flush()

    def kick(self) -> None:
        """Have a pass run soon."""
        self.runtime.kick()

    def realtime_ns(self) -> int:
        return self.runtime.realtime_ns()

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> Timer:
        """Run `callback` after `delay_ns` on the modelled kernel's timer wheel (`ticks`)."""
        return self.heap.call_at(expiry(self.heap.now_ns, delay_ns, self.sysctl.tick_ns), partial(self._timed, callback))

    def _timed(self, callback: Callable[[], None]) -> None:
        self.now_ns = self.heap.now_ns
        callback()

    # --- interfaces and addresses ---

    def _add_loopback(self) -> Interface:
        link = PipeEnd(self.heap, "lo", bytes(6), _LO_MTU, _lo_features(), 0, 1 << 20)
        lo = Interface(self, link, "lo", 1, TxRing(link, self.heap, self.orphaned, "orphan"), gro=False, loopback=True)
        self.interfaces.append(lo)
        lo.put = self._first_looped
        self.local4[A.LOOPBACK4] = lo
        lo.addresses4.append((A.LOOPBACK4, 8))
        address.add(self, lo, IP6_LOOPBACK, 128, dad=False)
        return lo

    def _first_looped(self, frame: TxFrame) -> bool:
        """The loopback's ring is looked after from its first frame on: most stacks never talk to themselves."""
        lo = self.lo
        self.serve_ring(lo.ring)
        lo.put = lo.ring.put
        return lo.put(frame)

    def serve_ring(self, ring: TxRing) -> None:
        """Look after the loopback's ring in every pass and call, before those of devices."""
        if ring not in self._rings:
            self._rings = [ring, *self._rings]

    def add_interface(
        self,
        link: Link,
        addresses: Iterable[str] = (),
        *,
        name: str | None = None,
        tx_mode: str | Delayed = "reaped",
        tx_usecs: int = 0,
        tx_frames: int = 0,
        qdisc: str | Settings | None = None,
        gro: bool = False,
        dad: bool = False,
        ipv6: bool = True,
        autoconf: bool = False,
    ) -> Interface:
        """Put a device into service, up, with addresses like "10.0.0.2/24" and "fd00::2/64".

        tx_mode, tx_usecs, tx_frames: completion of the transmit ring (`link.txring`, a `link.delayed.Delayed`, or "thread": `link.txthread`).
        qdisc: a queueing discipline before it, "pfifo", "fq" or settings of `link.qdisc`. gro: coalesce
        received segments, for a device that does not. dad: probe the given IPv6 addresses and the
        link-local one before use (RFC 4862) instead of believing them at once. ipv6: give the interface
        a link-local address. autoconf: send router solicitations.
        Raises TypeError and ValueError for what is no link, address or name, OSError EEXIST for what is there already.
        """
        self.check_open()
        wanted, specs = self._checked(link, name, addresses)
        if qdisc is not None:
            qdisc = settings(qdisc)
        ring: TxRing
        if tx_mode == "thread":
            ring = self._thread_ring(link)
        elif isinstance(tx_mode, Delayed):
            ring = DelayedRing(link, self.heap, self.completed, self.completion_missed, tx_mode)
        else:
            ring = TxRing(link, self.heap, self.orphaned if tx_mode == "orphan" else self.completed, tx_mode, tx_usecs, tx_frames)
        ring.on_end = self.completions_over
        dev = Interface(self, link, wanted, len(self.interfaces) + 1, ring, gro=gro)
        if qdisc is not None:
            dev.set_qdisc(qdisc)
        self.interfaces.append(dev)
        self._rings.append(ring)
        dev.groups[A.ALL_HOSTS4] = 1
        dev.groups[IP6_ALL_NODES] = 1
        dev.groups[A.INTERFACE_NODES6] = 1
        if ipv6 and dev.mtu >= IPV6_MIN_MTU:
            address.start(self, dev, dad=dad, autoconf=autoconf)
        for spec in specs:
            self.add_address(dev, spec, dad=dad)
        self.runtime.add_link(link)
        if self.sysctl.arp_notify:
            arp.announce(dev)
        return dev

    def _thread_ring(self, link: Link) -> ThreadRing:
        ring = ThreadRing(link, self.heap, self.completed, uncharge, called)
        try:
            self.runtime.add_link(ring.completions)
        except ValueError:
            ring.close()
            raise
        self._threads.append(ring)
        return ring

    def _checked(self, link: Link, name: str | None, addresses: Iterable[str]) -> tuple[str, list[str]]:
        """The name and the addresses of a new interface; nothing has changed when they cannot be."""
        if not hasattr(link, "send") or not hasattr(link, "mtu"):
            raise TypeError(f"a link is a device like Tap('tap0'), not {link!r}")
        wanted = link.name if name is None else name
        check_name(wanted)
        if self.dev_index(wanted):
            raise OSError(errno.EEXIST, f"there is an interface {wanted!r}")
        if isinstance(addresses, str) or not isinstance(addresses, Iterable):
            raise TypeError(f"addresses are a list of strings like '10.0.0.2/24', not {addresses!r}")
        specs = list(addresses)
        found: set[bytes] = set()
        for spec in specs:
            addr, _ = A.parse_own(spec)
            if addr in found or addr in self.local4 or addr in self.local6:
                raise OSError(errno.EEXIST, f"{spec} is there already")
            if addr == IP6_LOOPBACK:
                raise ValueError(f"{spec!r} is the loopback's address")
            found.add(addr)
        return wanted, specs

    def interface(self, name: str) -> Interface:
        """The interface of a name. Raises OSError ENODEV."""
        for dev in self.interfaces:
            if dev.name == name:
                return dev
        raise OSError(errno.ENODEV, f"no interface {name!r}")

    def arrival(self, pkt: Packet) -> Interface:
        """By which interface a packet counts as come: one to an address of ours that went over the loopback, by the
        interface that has the address."""
        dev = pkt.dev
        return (self.local4 if pkt.family == 4 else self.local6).get(pkt.dst, dev) if dev.loopback else dev

    def add_address(self, dev: Interface, spec: str, *, dad: bool = False) -> None:
        """Give an interface one more address, with the route to its subnet. Raises ValueError, TypeError, OSError EEXIST."""
        addr, plen = A.parse_own(spec)
        if len(addr) == 16:
            address.add(self, dev, addr, plen, dad=dad)
            return
        if addr in self.local4:
            raise OSError(errno.EEXIST, f"{spec} is there already")
        dev.addresses4.append((addr, plen))
        self.local4[addr] = dev
        if plen < 31:
            self.broadcast4[A.subnet_broadcast(addr, plen)] = dev
        if plen < 32 and not any(route.dev is dev for route in self.routes4.find(addr, plen)):
            self.routes4.add(Route(addr, plen, dev, source=addr, origin="kernel"))
        self.routes_changed()

    def remove_address(self, dev: Interface, spec: str) -> None:
        """Take an address away, and the route that came with it. Raises OSError EADDRNOTAVAIL."""
        addr, plen = A.parse_prefix(spec)
        if len(addr) == 16:
            address.remove(self, dev, addr)
            return
        if (addr, plen) not in dev.addresses4:
            raise OSError(errno.EADDRNOTAVAIL, f"{dev.name} has no address {spec}")
        dev.addresses4.remove((addr, plen))
        del self.local4[addr]
        others = [other for other, bits in dev.addresses4 if bits == plen and A.same_prefix(other, addr, plen)]
        for route in self.routes4.find(addr, plen):
            if route.dev is dev and route.origin == "kernel":
                self.routes4.remove(route)
                if others:
                    self.routes4.add(Route(others[0], plen, dev, source=others[0], origin="kernel"))
        if not others:
            self.broadcast4.pop(A.subnet_broadcast(addr, plen), None)
        self.routes_changed()

    def link_changed(self, dev: Interface) -> None:
        """An interface went up or down."""
        self.routes_changed()
        if dev.up and self.sysctl.arp_notify:
            arp.announce(dev)

    def change_mtu(self, dev: Interface, mtu: int) -> None:
        """Change an interface's MTU, bytes; below 1280 it loses IPv6. Raises OSError EINVAL."""
        if not 68 <= mtu <= 65535:
            raise OSError(errno.EINVAL, f"MTU {mtu} is outside 68..65535")
        had6 = dev.mtu >= IPV6_MIN_MTU
        dev.mtu = mtu
        dev.mtu6 = mtu
        # who holds a way through it sees the change when it next looks at the MTU, before it looks for another way
        held = {dst for ways in self._dsts_to.values() for dst in ways} | {dst for sk in self.table.values() if (dst := getattr(sk, "dst", None)) is not None}
        for dst in held:
            if dst.dev is dev and dst.mtu == dst.route_mtu and not (dst.route is not None and dst.route.mtu):
                dst.route_mtu = min(mtu, IP_MAX_MTU) if dst.family == 4 else mtu
                dst.set_mtu(dst.route_mtu, dst.mtu_lock)
        if had6 and mtu < IPV6_MIN_MTU:
            address.stop(self, dev)
        elif not had6 and mtu >= IPV6_MIN_MTU:
            address.start(self, dev, dad=False, autoconf=False)
        self.routes_changed()

    def join(self, dev: Interface, group: bytes) -> None:
        """Listen to a multicast group on an interface; counted, as each join needs its own leave."""
        dev.groups[group] = dev.groups.get(group, 0) + 1

    def leave(self, dev: Interface, group: bytes) -> None:
        """Undo one `join`. Raises OSError EADDRNOTAVAIL when there was none."""
        if group not in dev.groups:
            raise OSError(errno.EADDRNOTAVAIL, f"{format_ip(group)} was not joined")
        dev.groups[group] -= 1
        if not dev.groups[group]:
            del dev.groups[group]

    # --- routes ---

    def add_route(
        self,
        prefix: str,
        via: str | None = None,
        dev: Interface | None = None,
        *,
        metric: int | None = None,
        kind: str = "unicast",
        source: str | None = None,
        mtu: int = 0,
        mtu_lock: bool = False,
        advmss: int = 0,
        initcwnd: int = 0,
        initrwnd: int = 0,
        ecn: bool = False,
        quickack: bool = False,
    ) -> Route:
        """Add a route: "10.1.0.0/16", "default" (of the gateway's family) or "default6".

        kind: unicast, unreachable, prohibit, blackhole, throw. mtu_lock: send without DF and do not learn.
        advmss, initcwnd, initrwnd: 0 = by the rules. ecn: let connections use it, whatever tcp_ecn says. quickack: acknowledge every
        segment at once. Raises ValueError and TypeError for bad addresses; OSError ENETUNREACH when the gateway is not on a link, EEXIST."""
        gateway = parse_ip(via) if via is not None else b""
        if prefix in ("default", "default6"):
            six = prefix == "default6" or len(gateway) == 16
            target, plen = (bytes(16) if six else bytes(4)), 0
        else:
            target, plen = A.parse_prefix(prefix)
        number = kind_of(kind)
        table = self.routes4 if len(target) == 4 else self.routes6
        if gateway and dev is None:
            on_link = table.lookup(gateway, self.heap.now_ns)
            if on_link is None or on_link.gateway:
                raise OSError(errno.ENETUNREACH, f"gateway {via} is not on a link")
            dev = on_link.dev
        if dev is None and number == UNICAST:
            raise OSError(errno.ENODEV, f"route to {prefix} has neither gateway nor device")
        if metric is None:
            metric = 0 if len(target) == 4 else 1024
        route = Route(
            target, plen, dev, gateway=gateway, source=parse_ip(source) if source else b"", metric=metric, kind=number,
            mtu=mtu, mtu_lock=mtu_lock, advmss=advmss, initcwnd=initcwnd, initrwnd=initrwnd, ecn=ecn, quickack=quickack,
        )  # fmt: skip
        table.add(route)
        self.routes_changed()
        return route

    def remove_route(self, route: Route) -> None:
        """Take a route out. Raises OSError ESRCH."""
        (self.routes4 if len(route.prefix) == 4 else self.routes6).remove(route)
        self.routes_changed()

    def expire_route(self, route: Route) -> None:
        """Have a route with an end taken out when it comes."""
        self.heap.call_at(route.expires_ns, partial(self._expired, route))

    def _expired(self, route: Route) -> None:
        table = self.routes4 if len(route.prefix) == 4 else self.routes6
        if route in table.find(route.prefix, route.plen):
            table.remove(route)
            self.routes_changed()

    def routes_changed(self) -> None:
        """Cached routes are stale from now on."""
        self.gen += 1
        self._dsts.clear()
        self._dsts_to.clear()

    def forget_ways(self, daddr: bytes) -> None:
        """The cached routes to one destination are stale: who holds one looks again when it next sends."""
        for dst in self._dsts_to.pop(daddr, ()):
            dst.gen = STALE

    def dsts_to(self, daddr: bytes) -> list[Dst]:
        """The cached routes to one destination."""
        return self._dsts_to.get(daddr, [])

    def dst(self, daddr: bytes, saddr: bytes = b"", oif: Interface | None = None) -> Dst:
        """The way to a destination, cached. `saddr` is the sender's address if it has one, `oif` the
        interface it is bound to. Raises OSError: ENETUNREACH without a route, the errno of a route that refuses."""
        key = (daddr, saddr, oif)
        found = self._dsts.get(key)
        if found is not None and found.gen == self.gen:
            return found
        self.check_open()
        if len(self._dsts) >= DSTS:
            self.routes_changed()
        made = self._make_dst(daddr, saddr, oif)
        self.pmtu.apply(made)
        self._dsts[key] = made
        self._dsts_to.setdefault(daddr, []).append(made)
        return made

    def dst_back(self, daddr: bytes, saddr: bytes, about: Packet | None) -> Dst:
        """The way back to where a packet came from: by its device where the address alone does not say. Raises OSError."""
        oif = None
        if about is not None and len(daddr) == 16 and not about.dev.loopback and (is_link_local(daddr) or daddr == IP6_ANY):
            oif = about.dev
        return self.dst(daddr, saddr, oif)

    def _make_dst(self, daddr: bytes, saddr: bytes, oif: Interface | None) -> Dst:
        four = len(daddr) == 4
        local = self.local4 if four else self.local6
        owner = local.get(daddr, self.lo if A.is_loopback(daddr) else None)
        if owner is not None:
            if oif is None or oif is owner:
                return self._dst_on(self.lo, daddr, saddr or (daddr if daddr in local else A.LOOPBACK4), LOCAL, None)
            if not four:
                raise OSError(errno.ENETUNREACH, f"{format_ip(daddr)} is not reached by {oif.name}")
        route = None
        dev = oif
        kind = UNICAST
        if is_multicast(daddr):
            kind = MULTICAST
        elif four and (daddr == IP4_BROADCAST or daddr in self.broadcast4):
            kind = BROADCAST
            dev = oif or self.broadcast4.get(daddr)
        if dev is None or kind == UNICAST:
            try:
                route = (self.routes4 if four else self.routes6).lookup(daddr, self.heap.now_ns, oif)
            except OSError:
                if kind == UNICAST:
                    raise
            if route is not None:
                dev = route.dev
            elif kind == UNICAST and (oif is None if four else not is_link_local(daddr)):
                dev = None  # of IPv4 every address is taken for one on the link of the interface that was asked for
            elif dev is None:
                dev = self._first_device() if kind == MULTICAST or is_link_local(daddr) else None
        if dev is None or not dev.up:
            raise OSError(errno.ENETUNREACH, f"no route to {format_ip(daddr)}")
        return self._dst_on(dev, daddr, saddr, kind, route)

    def _dst_on(self, dev: Interface, daddr: bytes, saddr: bytes, kind: int, route: Route | None) -> Dst:
        four = len(daddr) == 4
        hop = route.gateway if route is not None and route.gateway else daddr
        if not saddr:
            if route is not None and route.source and route.source in (self.local4 if four else self.local6):
                saddr = route.source
            else:
                saddr = self.select4(dev, hop) if four else address.select(self, dev, daddr)
        mtu = (route.mtu if route is not None else 0) or (min(dev.mtu, IP_MAX_MTU) if four else dev.mtu6)
        least = self.sysctl.min_adv_mss if four else self.sysctl.min_adv_mss6
        made = Dst(daddr, saddr, dev, self.neighbour(dev, hop, kind), kind, self.gen, mtu, least, route)
        made.hoplimit = 0 if four else dev.hop_limit
        return made

    def _first_device(self) -> Interface | None:
        for dev in self.interfaces:
            if dev.up and not dev.loopback:
                return dev
        return None

    def neighbour(self, dev: Interface, hop: bytes, kind: int = UNICAST) -> Neighbour:
        """The neighbour entry of a next hop; groups, broadcasts and links without addresses need no asking."""
        table = dev.neigh4 if len(hop) == 4 else dev.neigh6
        if dev.loopback or not dev.mac:
            return Neighbour(table, hop, NOARP, bytes(len(dev.mac)))
        if kind == BROADCAST:
            return Neighbour(table, hop, NOARP, b"\xff" * 6)
        if kind == MULTICAST:
            return Neighbour(table, hop, NOARP, multicast_mac(hop))
        return table.get(hop)

    def select4(self, dev: Interface, target: bytes) -> bytes:
        """The source address towards `target` on `dev`: the primary one of its subnet, else the first; b"" without any."""
        for addr, plen in dev.addresses4:
            if A.same_prefix(addr, target, plen):
                return addr
        if dev.addresses4 and not dev.loopback:
            return dev.addresses4[0][0]
        for other in self.interfaces:
            if other.addresses4 and not other.loopback:
                return other.addresses4[0][0]
        return b""

    # --- neighbours that do not answer ---

    def unreachable(self, neigh: Neighbour, frame: TxFrame) -> None:
        """A packet waited in vain for its neighbour: its sender, which is us, is told by ICMP."""
        room = len(neigh.header)
        data = b"".join((memoryview(frame.head)[room:], *frame.parts))
        self.dropped(frame)
        if len(neigh.addr) == 4:
            icmp.local_error(self, data, DEST_UNREACH, HOST_UNREACH, 0)
        else:
            icmpv6.local_error(self, data, DEST_UNREACH6, ADDR_UNREACH, 0)

    # --- small things rooms share ---

    def raw_deliver(self, pkt: Packet) -> bool:
        """Show a packet to those who listen to all; whether somebody took it for his."""
        heard = False
        for listener in self.raw:
            heard = listener(pkt) or heard
        return heard

    # --- the end ---

    def check_open(self) -> None:
        """Raises OSError ENETDOWN after `close`."""
        if self.closed:
            raise OSError(errno.ENETDOWN, "the stack is closed")

    def close(self) -> None:
        """Stop everything: timers, links, what waits. Sockets are of no use afterwards; a second call does nothing."""
        if self.closed:
            return
        while self._wakes:
            self._deliver_wakes()
        self.closed = True
        for timer in self._armed.values():
            timer.cancel()
        self._armed.clear()
        self.frags4.close()
        self.frags6.close()
        self.pmtu.flush()
        self.udp.close()
        self.ping.close()
        for dev in self.interfaces:
            dev.close()
        self.table.clear()
        self._listeners.clear()
        self._wakes.clear()
        self._owed.clear()
        self.routes_changed()
        self.runtime.before_pass.remove(self._before_pass)
        self.runtime.after_pass.remove(self._after_pass)


def _lo_features() -> int:
    from pytcp.link.pipe import ALL_FEATURES

    return ALL_FEATURES
