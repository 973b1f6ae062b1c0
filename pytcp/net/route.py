"""Routes: longest prefix, lower metric, and the cached answer (`Dst`) that packets use.

A `Dst` is what Linux calls a dst_entry: the device, the neighbour of the next hop, the source
address and the path MTU for one destination. Sockets keep a reference; it is good while its `gen` is
the stack's (any change of routes, addresses or links bumps that). Path MTU changes are written into
the shared `Dst` itself, so that every socket sees them at its next send (`pmtu`).

Sysctls: net.ipv4.route.min_adv_mss, net.ipv6.route.min_adv_mss. Counters: IpOutNoRoutes, Ip6OutNoRoutes.
"""

from __future__ import annotations

import errno
from bisect import insort
from typing import TYPE_CHECKING

from pytcp.wire.addr import format_ip

from . import addr as A

if TYPE_CHECKING:
    from .interface import Interface
    from .neighbour import Neighbour

UNICAST = 1
LOCAL = 2
BROADCAST = 3
MULTICAST = 5
BLACKHOLE = 6
UNREACHABLE = 7
PROHIBIT = 8
THROW = 9

_KINDS = {"unicast": UNICAST, "local": LOCAL, "blackhole": BLACKHOLE, "unreachable": UNREACHABLE, "prohibit": PROHIBIT, "throw": THROW}

KIND_NAMES = {number: name for name, number in _KINDS.items()}

_ERRORS = {BLACKHOLE: errno.EINVAL, UNREACHABLE: errno.EHOSTUNREACH, PROHIBIT: errno.EACCES}

STALE = -1  # Dst.gen of a way that is not to be used again

METRIC_KERNEL6 = 256
METRIC_RA6 = 1024


class Route:
    """One line of the routing table."""

    __slots__ = (
        "prefix", "plen", "gateway", "dev", "source", "metric", "kind", "mtu", "mtu_lock", "advmss", "initcwnd", "initrwnd",
        "ecn", "quickack", "origin", "expires_ns", "preference",
    )  # fmt: skip

    def __init__(
        self,
        prefix: bytes,
        plen: int,
        dev: Interface | None,
        *,
        gateway: bytes = b"",
        source: bytes = b"",
        metric: int = 0,
        kind: int = UNICAST,
        mtu: int = 0,
        mtu_lock: bool = False,
        advmss: int = 0,
        initcwnd: int = 0,
        initrwnd: int = 0,
        ecn: bool = False,
        quickack: bool = False,
        origin: str = "static",
        preference: int = 1,
    ) -> None:
        self.prefix = A.masked(prefix, plen)
        self.plen = plen
        self.gateway = gateway  # b"": the destination itself is on the link
        self.dev = dev
        self.source = source  # preferred source address
        self.metric = metric
        self.kind = kind
        self.mtu = mtu  # 0: the device's
        self.mtu_lock = mtu_lock
        self.advmss = advmss
        self.initcwnd = initcwnd
        self.initrwnd = initrwnd
        self.ecn = ecn  # connections may use ECN whatever tcp_ecn says
        self.quickack = quickack  # every segment is acknowledged at once
        self.origin = origin  # static, kernel, ra, redirect
        self.expires_ns = 0  # 0: never
        self.preference = preference  # among routes of one metric, lowest first (RFC 4191)

    def __repr__(self) -> str:
        via = f" via {format_ip(self.gateway)}" if self.gateway else ""
        dev = f" dev {self.dev.name}" if self.dev is not None else ""
        return f"<Route {format_ip(self.prefix)}/{self.plen}{via}{dev} metric {self.metric}>"


class RouteTable:
    """The routes of one address family."""

    def __init__(self, size: int) -> None:
        """`size` is the length of an address in bytes, 4 or 16."""
        self.bits = size * 8
        self._by_plen: dict[int, dict[int, list[Route]]] = {}
        self._plens: list[int] = []  # longest first, as negative numbers

    def add(self, route: Route) -> None:
        """Enter a route. Raises OSError EEXIST for one of the same prefix, metric, gateway and device."""
        nets = self._by_plen.get(route.plen)
        if nets is None:
            nets = self._by_plen[route.plen] = {}
            insort(self._plens, -route.plen)
        same = nets.setdefault(A.mask_bits(route.prefix, route.plen), [])
        for other in same:
            if other.metric == route.metric and (other.gateway, other.dev) == (route.gateway, route.dev):
                raise OSError(errno.EEXIST, f"{route!r} exists")
        at = 0
        while at < len(same) and (same[at].metric, same[at].preference) <= (route.metric, route.preference):
            at += 1
        same.insert(at, route)

    def remove(self, route: Route) -> None:
        """Take a route out. Raises OSError ESRCH when it is not there."""
        nets = self._by_plen.get(route.plen, {})
        key = A.mask_bits(route.prefix, route.plen)
        same = nets.get(key, [])
        if route not in same:
            raise OSError(errno.ESRCH, f"{route!r} is not in the table")
        same.remove(route)
        if not same:
            del nets[key]
        if not nets:
            del self._by_plen[route.plen]
            self._plens.remove(-route.plen)

    def routes(self) -> list[Route]:
        """All routes, longest prefix first, then by metric."""
        return [route for minus in self._plens for same in self._by_plen[-minus].values() for route in same]

    def find(self, prefix: bytes, plen: int) -> list[Route]:
        """The routes to exactly this prefix, lowest metric first."""
        return list(self._by_plen.get(plen, {}).get(A.mask_bits(prefix, plen), ()))

    def lookup(self, dst: bytes, now_ns: int, oif: Interface | None = None) -> Route | None:
        """The route a packet to `dst` takes, restricted to `oif` when that is given; None: no route.

        Routes of devices that are down, expired ones and `throw` routes do not count. Raises OSError
        with the errno of an unreachable, prohibit or blackhole route.
        """
        number = int.from_bytes(dst, "big")
        bits = self.bits
        for minus in self._plens:
            same = self._by_plen[-minus].get(number >> (bits + minus))
            if same is None:
                continue
            for route in same:
                kind = route.kind
                if kind == THROW:
                    return None
                if kind in _ERRORS:
                    raise OSError(_ERRORS[kind], f"{route!r} refuses {format_ip(dst)}")
                dev = route.dev
                if dev is None or not dev.up or (oif is not None and dev is not oif):
                    continue
                if route.expires_ns and route.expires_ns <= now_ns:
                    continue
                return route
        return None


def kind_of(name: str) -> int:
    """The number of a route type by iproute2's name. Raises ValueError."""
    if name not in _KINDS:
        raise ValueError(f"route type {name!r} is not one of {', '.join(_KINDS)}")
    return _KINDS[name]


class Dst:
    """The cached way to one destination."""

    __slots__ = (
        "family", "daddr", "saddr", "dev", "gateway", "neigh", "kind", "gen", "mtu", "route_mtu", "mtu_lock", "advmss", "advmss_metric",
        "min_advmss", "initcwnd", "initrwnd", "ecn", "quickack", "gso_max_size", "hoplimit", "route",
    )  # fmt: skip

    def __init__(
        self, daddr: bytes, saddr: bytes, dev: Interface, neigh: Neighbour, kind: int, gen: int, mtu: int, min_advmss: int, route: Route | None
    ) -> None:
        self.family = 4 if len(daddr) == 4 else 6
        self.daddr = daddr
        self.saddr = saddr  # source address when the sender has none
        self.dev = dev
        self.gateway = route.gateway if route is not None else b""
        self.neigh = neigh
        self.kind = kind
        self.gen = gen  # valid while it is the stack's
        self.route_mtu = mtu  # without a learnt path MTU
        self.mtu = mtu  # bytes of an IP packet the path takes
        self.mtu_lock = route.mtu_lock if route is not None else False  # send without DF: the path MTU is too small to be tracked
        self.advmss_metric = route.advmss if route is not None else 0
        self.min_advmss = min_advmss
        self.advmss = 0  # MSS to advertise; follows the MTU
        self.initcwnd = route.initcwnd if route is not None else 0
        self.initrwnd = route.initrwnd if route is not None else 0
        self.ecn = route.ecn if route is not None else False
        self.quickack = route.quickack if route is not None else False
        self.gso_max_size = dev.link.gso_max_size  # IP length of the largest super-segment
        self.hoplimit = 0  # 0: the sysctl or what the router advertised
        self.route = route
        self.set_mtu(mtu, self.mtu_lock)

    def set_mtu(self, mtu: int, lock: bool) -> None:
        """Change the path MTU, and with it the MSS to advertise."""
        self.mtu = mtu
        self.mtu_lock = lock
        if self.advmss_metric:
            self.advmss = self.advmss_metric
        elif self.family == 4:
            self.advmss = min(max(mtu - 40, self.min_advmss), 65535 - 40)
        else:
            mss = max(mtu - 60, self.min_advmss)
            self.advmss = mss if mss <= 65535 - 20 else 65535

    def __repr__(self) -> str:
        lock = " lock" if self.mtu_lock else ""
        return f"<Dst {format_ip(self.daddr)} dev {self.dev.name} src {format_ip(self.saddr) if self.saddr else '-'} mtu {self.mtu}{lock}>"
