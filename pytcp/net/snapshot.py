"""What a running stack looks like from outside: plain dicts of numbers and words, ready for JSON.

Sockets as inet_diag reports them (queues, timer, memory, tcp_info) with their gates, counters, sysctls, neighbours,
routes, interfaces with their addresses. Nothing is formatted here and nothing of the stack changes:
`pytcp ss` and its family make the tables people know (`cli.inspect`), over a control socket
(`sockets.control`). Addresses are text, times ms unless a name says otherwise, all ages count from now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pytcp.link.txring import LIMIT
from pytcp.tcp import gates
from pytcp.tcp.const import (
    LISTEN,
    PENDING_LOSS_PROBE,
    PENDING_PROBE0,
    PENDING_REO_TIMEOUT,
    PENDING_RETRANS,
    STATE_NAMES,
    SYN_RECV,
)
from pytcp.tcp.info import TcpInfo, tcp_info
from pytcp.tcp.md5 import Keys, option_memory
from pytcp.tcp.request import Request
from pytcp.tcp.sock import NEVER, Sock
from pytcp.tcp.timewait import TimeWait
from pytcp.wire.addr import format_ip, format_mac

from . import addr as A
from . import sysctl
from .address import FOREVER
from .neighbour import STATE_NAMES as NEIGH_STATES
from .route import KIND_NAMES

if TYPE_CHECKING:
    from .datagram import UdpSocket
    from .interface import Interface
    from .neighbour import Neighbour
    from .route import Route
    from .stack import Stack

Facts = dict[str, Any]

_MS = 1_000_000
_S = 1_000_000_000
_AF_INET6 = 10
_ANY = {4: "0.0.0.0", 6: "::"}
_TCP_INFO = tuple(field.name for field in fields(TcpInfo))
_RETRANSMITS = (PENDING_RETRANS, PENDING_REO_TIMEOUT, PENDING_LOSS_PROBE)


# --- sockets ---


def sockets(stack: Stack, protocols: tuple[str, ...] = ("tcp", "udp")) -> Iterator[Facts]:
    """One dict per endpoint: UDP before TCP, IPv4 before IPv6, listeners before connections, as `ss` lists them.

    The list of endpoints is taken at the first step, what each has to say when its turn comes: whoever
    pauses between two sees the later ones as they are then.
    """
    if "udp" in protocols:
        for udp in sorted(stack.udp.endpoints(), key=lambda sock: sock.family):
            if not udp.closed:
                yield _udp(stack, udp)
    if "tcp" in protocols:
        entries = [*stack.listeners(), *stack.table.values()]
        for family in (4, 6):
            for entry in entries:
                if _shown_family(entry) == family and entry.hashed:
                    yield tcp(stack, entry)


def tcp(stack: Stack, entry: Sock | Request | TimeWait) -> Facts:
    """One TCP endpoint: a socket, a half-open connection, or what is left of a closed one."""
    family = _shown_family(entry)
    facts: Facts = {
        "protocol": "tcp",
        "family": family,
        "local": _text(entry.saddr or getattr(entry, "bound_addr", b""), family),
        "local_port": entry.sport or getattr(entry, "bound_port", 0),
        "remote": _text(entry.daddr, family),
        "remote_port": entry.dport,
        "device": None,
        "mark": entry.mark,
        "cookie": _cookie(entry),
        "inode": 0,
        "fd": None,
        "timer": None,
    }
    now = stack.heap.now_ns
    if isinstance(entry, TimeWait):
        return facts | {"state": STATE_NAMES[entry.substate], "recv_q": 0, "send_q": 0, "timer": _timer("timewait", entry.expires_ns - now, 0)}
    if isinstance(entry, Request):
        return facts | {"state": STATE_NAMES[SYN_RECV], "recv_q": 0, "send_q": 0, "timer": _timer("on", entry.expires_ns - now, entry.num_timeout)}
    listening = entry.state == LISTEN
    facts |= {
        "state": STATE_NAMES[entry.state],
        "recv_q": len(entry.accept_queue) if listening else max(0, entry.rcv_nxt - entry.copied_seq),
        "send_q": entry.backlog if listening else entry.write_seq - entry.snd_una,
        "v6only": bool(entry.v6only),
        "shutdown": entry.shutdown,
        "timer": _sock_timer(entry, now),
        "memory": _memory(entry.rmem_alloc, entry.rcvbuf, entry.wmem_alloc - 1, entry.sndbuf, entry.forward_alloc, entry.wmem_queued, option_memory(entry)),
        "congestion": entry.ca.name if entry.ca is not None else entry.cong_name or entry.sysctl.tcp_congestion_control,
        "info": _info(tcp_info(entry)),
        "gate": gates.NAMES[entry.gate],
        "gates": {name: figures for name, figures in gates.times(entry).items() if figures != (0, 0)},
    }
    if entry.md5:
        facts["md5keys"] = _keys(entry.md5)
    if entry.user is not None:
        facts["inode"] = _cookie(entry.user)
        facts["fd"] = _descriptor(entry.user)
    return facts


def _udp(stack: Stack, sock: UdpSocket) -> Facts:
    family = sock.family
    saddr = sock.saddr
    return {
        "protocol": "udp",
        "family": family,
        "state": "ESTABLISHED" if sock.rport else "CLOSE",
        "recv_q": sock.rmem,
        "send_q": 0,
        "local": _text(saddr, family),
        "local_port": sock.lport,
        "remote": _text(sock.raddr, family),
        "remote_port": sock.rport,
        "device": sock.dev.name if sock.dev is not None else None,
        "mark": 0,
        "cookie": _cookie(sock),
        "inode": _cookie(sock),
        "fd": -1,
        "timer": None,
        # an address that is not IPv4's excludes IPv4 as the option does
        "v6only": sock.v6only or bool(saddr and not A.is_v4mapped(saddr)),
        "shutdown": 0,
        "memory": _memory(sock.rmem, sock.rcvbuf, 0, stack.sysctl.wmem_default, 0, 0),
    }


def _info(info: TcpInfo) -> dict[str, int]:
    # dataclasses.asdict takes five times as long, for nested ones
    return {name: getattr(info, name) for name in _TCP_INFO}


def _shown_family(entry: Any) -> int:
    """4 or 6: an IPv4 connection of an IPv6 socket shows as what its program sees, an IPv4-mapped one."""
    if entry.family == 6:
        return 6
    if isinstance(entry, Request):
        return int(entry.listener.family)
    if isinstance(entry, TimeWait):
        return 4
    if entry.parent is not None:
        return int(entry.parent.family)
    return 6 if getattr(entry.user, "family", 0) == _AF_INET6 else 4


def _text(addr: bytes, family: int) -> str:
    if not addr:
        return _ANY[family]
    text = format_ip(addr)
    return f"::ffff:{text}" if family == 6 and len(addr) == 4 else text


def _cookie(thing: object) -> int:
    """A number that tells one socket from every other alive."""
    return id(thing) >> 4 & 0xFFFFFFFF


def _descriptor(user: Any) -> int:
    """The descriptor a program knows its socket by; -1 for one that is only an object."""
    fileno = getattr(user, "fileno", None)
    try:
        return int(fileno()) if fileno is not None else -1
    except OSError:
        return -1


def _memory(r: int, rb: int, t: int, tb: int, f: int, w: int, o: int = 0) -> dict[str, int]:
    """The memory inet_diag reports (SK_MEMINFO), without backlog and drops: no socket here has those."""
    facts = {"rmem_alloc": r, "rcvbuf": rb, "wmem_alloc": t, "sndbuf": tb, "forward_alloc": f, "wmem_queued": w}
    return facts | {"optmem": o} if o else facts


def _keys(keys: Keys) -> list[Facts]:
    """The keys of TCP_MD5SIG, as inet_diag tells root."""
    return [{"address": format_ip(key.addr), "prefix_len": key.prefix_len, "key": list(key.secret)} for key in keys]


def _timer(kind: str, left_ns: int, retrans: int) -> Facts:
    return {"kind": kind, "ms": max(0, left_ns) // _MS, "retrans": retrans}


def _sock_timer(sk: Sock, now: int) -> Facts | None:
    """The one timer inet_diag reports of a socket, by the time it was set for (the wheel may fire it later)."""
    if sk.rtx_deadline < NEVER:
        if sk.pending in _RETRANSMITS:
            return _timer("on", sk.rtx_deadline - now, sk.retransmits)
        if sk.pending == PENDING_PROBE0:
            return _timer("persist", sk.rtx_deadline - now, sk.probes_out)
    if sk.keep_deadline < NEVER:
        return _timer("keepalive", sk.keep_expires_ns - now, sk.probes_out)
    return None


def sockstat(stack: Stack) -> Facts:
    """Totals, as /proc/net/sockstat and `ss -s`."""
    listeners = stack.listeners()
    entries = list(stack.table.values())
    socks = [*listeners, *(entry for entry in entries if isinstance(entry, Sock))]
    gauges = stack.mib.sockstat
    endpoints = stack.udp.endpoints()
    return {
        "tcp": {4: sum(_shown_family(sk) == 4 for sk in socks), 6: sum(_shown_family(sk) == 6 for sk in socks)},
        "udp": {4: sum(sock.family == 4 for sock in endpoints), 6: sum(sock.family == 6 for sock in endpoints)},
        "frag": {4: len(stack.frags4), 6: len(stack.frags6)},
        "estab": stack.mib.TcpCurrEstab,
        "orphaned": gauges.orphan,
        "timewait": gauges.tw,
        "synrecv": sum(isinstance(entry, Request) for entry in entries),
    }


# --- numbers and settings ---


def counters(stack: Stack) -> dict[str, int]:
    """Every counter by the name `nstat` gives it, zeros too."""
    return stack.mib.snapshot(zeros=True)


def sysctls(stack: Stack) -> dict[str, Any]:
    """Every sysctl by name; those of several numbers are lists."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in sysctl.dump(stack.sysctl).items()}


def explanations(stack: Stack) -> list[Facts]:
    """Every sysctl with its meaning, default, range and origin, by name."""
    return [sysctl.explain(stack.sysctl, entry) for entry in sorted(sysctl.TABLE)]


# --- neighbours, routes, interfaces ---


def neighbours(stack: Stack) -> list[Facts]:
    """The neighbour entries of all interfaces, IPv4 first; what needs no asking has none."""
    tables = [dev.neigh4 for dev in stack.interfaces] + [dev.neigh6 for dev in stack.interfaces]
    now = stack.heap.now_ns
    return [_neighbour(neigh, now) for table in tables for neigh in table.entries.values()]


def _neighbour(neigh: Neighbour, now: int) -> Facts:
    return {
        "family": neigh.table.family,
        "dst": format_ip(neigh.addr),
        "dev": neigh.table.dev.name,
        "lladdr": format_mac(neigh.mac) if neigh.mac else None,
        "router": neigh.is_router,
        "state": NEIGH_STATES[neigh.state],
        "probes": neigh.probes,
        "used": (now - neigh.used_ns) // _MS,
        "confirmed": (now - neigh.confirmed_ns) // _MS,
        "updated": (now - neigh.updated_ns) // _MS,
    }


def routes(stack: Stack) -> list[Facts]:
    """The routing tables, in the order `ip route` lists them."""
    now = stack.heap.now_ns
    four = sorted(stack.routes4.routes(), key=lambda route: (route.prefix, -route.plen, route.metric))
    # the kernel walks its IPv6 tree upwards: inner prefixes before those around them
    six = sorted(stack.routes6.routes(), key=lambda route: (_last(route), -route.plen, route.metric))
    return [_route(route, now) for route in (*four, *six)]


def _last(route: Route) -> int:
    bits = 8 * len(route.prefix)
    return int.from_bytes(route.prefix, "big") | (1 << bits - route.plen) - 1


def _route(route: Route, now: int) -> Facts:
    return {
        "family": 4 if len(route.prefix) == 4 else 6,
        "type": KIND_NAMES[route.kind],
        "dst": format_ip(route.prefix),
        "prefixlen": route.plen,
        "gateway": format_ip(route.gateway) if route.gateway else None,
        "dev": route.dev.name if route.dev is not None else None,
        "origin": route.origin,
        "source": format_ip(route.source) if route.source else None,
        "metric": route.metric,
        "mtu": route.mtu,
        "mtu_lock": route.mtu_lock,
        "advmss": route.advmss,
        "initcwnd": route.initcwnd,
        "initrwnd": route.initrwnd,
        "quickack": int(route.quickack),
        "expires_s": max(0, route.expires_ns - now) // _S if route.expires_ns else None,
        "preference": ("high", "medium", "low")[route.preference],
    }


def interfaces(stack: Stack) -> list[Facts]:
    """The interfaces with addresses and statistics; a count nobody keeps is None."""
    return [_interface(stack, dev) for dev in stack.interfaces]


def _interface(stack: Stack, dev: Interface) -> Facts:
    link: Any = dev.link
    while hasattr(link, "inner"):
        link = link.inner
    peer = getattr(link, "peer", None)
    return {
        "index": dev.index,
        "name": dev.name,
        "kind": "loopback" if dev.loopback else "ether" if dev.mac else "none",
        "address": format_mac(dev.mac) if dev.mac else None,
        "mtu": dev.mtu,
        "up": dev.up,
        "qdisc": "noqueue" if dev.qdisc is None else dev.qdisc.kind,
        "txqlen": LIMIT if dev.qdisc is not None else dev.ring.limit,
        "addresses": _addresses(stack, dev),
        "rx": {"bytes": getattr(link, "rx_bytes", getattr(peer, "tx_bytes", None)), "packets": dev.rx_packets, "dropped": dev.rx_dropped},
        "tx": {"bytes": getattr(link, "tx_bytes", None), "packets": dev.tx_packets, "dropped": dev.tx_dropped},
    }


def qdiscs(stack: Stack) -> list[Facts]:
    """The queueing discipline of each interface, under the names of `tc -j`, and the ring behind it."""
    return [_qdisc(dev) for dev in stack.interfaces]


_QDISC_COUNTS = ("bytes", "packets", "drops", "overlimits", "requeues", "backlog", "qlen")


def _qdisc(dev: Interface) -> Facts:
    qdisc = dev.qdisc
    ring = dev.ring
    facts: Facts = {"dev": dev.name}
    if qdisc is None:
        facts |= {"kind": "noqueue", "handle": "0:", "options": {}, **dict.fromkeys(_QDISC_COUNTS, 0), "statistics": {}}
    else:
        facts |= {"kind": qdisc.kind, "handle": f"{0x8000 + dev.index:x}:", "options": qdisc.options()}
        facts |= {name: getattr(qdisc, name) for name in _QDISC_COUNTS} | {"statistics": qdisc.statistics()}
    facts["ring"] = {
        "mode": ring.mode,
        "limit": ring.limit,
        "held": len(ring),
        "unsent": len(ring.queue),
        "completed": ring.completed,
        "dropped": ring.dropped,
        **ring.statistics(),
    }
    return facts


def _addresses(stack: Stack, dev: Interface) -> list[Facts]:
    now = stack.heap.now_ns
    found: list[Facts] = []
    seen: list[tuple[bytes, int]] = []
    for addr, plen in dev.addresses4:
        secondary = any(bits == plen and A.same_prefix(addr, other, plen) for other, bits in seen)
        seen.append((addr, plen))
        scope = "host" if A.is_loopback(addr) else "link" if addr[:2] == b"\xa9\xfe" else "global"
        found.append({"family": 4, "address": format_ip(addr), "prefixlen": plen, "scope": scope, "secondary": secondary, "valid_s": None, "preferred_s": None})
    # the kernel lists the widest scope first, the newest of one scope first
    newest_first = dev.addresses6[::-1]
    for entry in sorted(newest_first, key=lambda entry: -A.scope6(entry.addr)):
        scope = "host" if A.is_loopback(entry.addr) else {A.SCOPE_LINK: "link", A.SCOPE_SITE: "site"}.get(A.scope6(entry.addr), "global")
        found.append({
            "family": 6,
            "address": format_ip(entry.addr),
            "prefixlen": entry.plen,
            "scope": scope,
            "tentative": entry.tentative,
            "optimistic": entry.optimistic,
            "dadfailed": entry.dadfailed,
            "deprecated": entry.deprecated(now),
            "dynamic": entry.valid_until_ns != FOREVER,
            "autoconf": entry.origin == "ra",
            "valid_s": _left(entry.valid_until_ns, now),
            "preferred_s": _left(entry.preferred_until_ns, now),
        })  # fmt: skip
    return found


def _left(until_ns: int, now: int) -> int | None:
    """Whole seconds left; None: for ever."""
    return None if until_ns == FOREVER else max(0, until_ns - now) // _S
