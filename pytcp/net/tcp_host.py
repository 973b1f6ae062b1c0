"""What the TCP engine asks of the host (`tcp.sock.Host`): ports, timers, wake-ups, and sending (`tcp_output`).

The demux table maps the bytes remote address + local address + remote port + local port, as they lie
in a received packet, to whoever `receive(seg)`s them: a Sock, a half-open request, a TIME-WAIT block.
Who is bound to a device (SO_BINDTODEVICE; a link-local IPv6 peer does it, too) has the device's index
behind these bytes, so that the fast path misses him and `receive_tcp`, which knows the device, finds him.
"""

from __future__ import annotations

import errno
from copy import copy
from functools import partial
from hashlib import blake2b
from random import Random
from struct import Struct
from typing import TYPE_CHECKING, Any

from pytcp.link.frame import CSUM_NONE
from pytcp.tcp import icmp_err
from pytcp.tcp import input as tcp_input
from pytcp.tcp.const import CLOSE, LISTEN, SYN_SENT
from pytcp.tcp.fastopen import HostState
from pytcp.tcp.reset import closed_port
from pytcp.tcp.seq import unwrap
from pytcp.tcp.skb import PageFrag
from pytcp.tcp.sock import Sock
from pytcp.tcp.sockopt_ip import local_port_range
from pytcp.tcp.timewait import TimeWait, reusable, take_over
from pytcp.wire.checksum import transport_ok
from pytcp.wire.errors import WireError
from pytcp.wire.icmp import DEST_UNREACH, FRAG_NEEDED
from pytcp.wire.icmpv6 import PACKET_TOO_BIG
from pytcp.wire.ipv4 import IPPROTO_TCP
from pytcp.wire.tcp import parse_segment

from .addr import V4MAPPED
from .packet import HOST, TO_US, Packet
from .ports import PortTable
from .route import STALE
from .tcp_output import PMTUDISC_DONT, PMTUDISC_INTERFACE, PMTUDISC_OMIT, REFLECT_RESET, TcpOutput
from .truesize import bare_rx_truesize, rx_truesize

if TYPE_CHECKING:
    from pytcp.clock.heap import Timer, TimerHeap
    from pytcp.tcp.trace import Tracer
    from pytcp.wire.icmp import Quoted

    from .counters import Mib
    from .interface import Interface
    from .pmtu import PmtuCache
    from .sysctl import Sysctl

_PORTS = Struct(">HH").pack
_IFINDEX = Struct(">I").pack


Sock.receive = tcp_input.receive  # type: ignore[method-assign, assignment]  # one call less per segment


def _demux_key(entry: Any) -> bytes:
    """The key of an endpoint in the demux table."""
    key: bytes = entry.daddr + entry.saddr + _PORTS(entry.dport, entry.sport)
    return key + _IFINDEX(entry.bound_dev_if) if entry.bound_dev_if else key


def _heard_by(listeners: list[Sock] | None, iif: int) -> list[Sock]:
    """Those of the listeners that hear by a device: the ones bound to it, else the ones bound to none."""
    if not listeners:
        return []
    bound = [sk for sk in listeners if sk.bound_dev_if == iif]
    return bound or [sk for sk in listeners if not sk.bound_dev_if]


class TcpHost(TcpOutput):
    """The TCP side of a stack; `Stack` derives from it and owns what it refers to."""

    heap: TimerHeap
    sysctl: Sysctl
    mib: Mib
    random: Random
    pmtu: PmtuCache
    interfaces: list[Interface]
    local4: dict[bytes, Interface]  # addresses of ours
    local6: dict[bytes, Interface]
    tracer: Tracer | None = None  # told of decisions: given to every new socket, and to every new connection that has none

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = self.heap.now_ns
        self.page_frag = PageFrag()
        self.table: dict[bytes, Any] = {}
        self.ports = PortTable(self.random)
        self._listeners: dict[tuple[bytes, int], list[Sock]] = {}
        self._armed: dict[Any, Timer] = {}
        self._wakes: dict[Sock, int] = {}
        self.fastopen = HostState()
        self.in_pass = False
        self.closed = False

    # --- supplied by Stack ---

    def arrival(self, pkt: Packet) -> Interface:
        raise NotImplementedError

    def realtime_ns(self) -> int:
        raise NotImplementedError

    # --- demux ---

    def receive_tcp(self, pkt: Packet) -> None:
        """A TCP packet off the fast path: opening, unusual headers, or nobody's."""
        if pkt.kind != HOST or pkt.dkind != TO_US:
            return
        mib = self.mib
        mib.TcpInSegs += 1
        data = memoryview(pkt.data)
        off = pkt.off
        end = len(data)
        if pkt.csum == CSUM_NONE and end - off >= 20 and not transport_ok(data[off:], pkt.src, pkt.dst, IPPROTO_TCP):
            mib.TcpInCsumErrors += 1
            mib.TcpInErrs += 1
            return
        try:
            seg = parse_segment(data, off, end, pkt.family, pkt.src, pkt.dst)
        except WireError:
            mib.TcpInErrs += 1
            return
        seg.tos = pkt.tos
        seg.ttl = pkt.ttl
        if pkt.gso_size and seg.length > pkt.gso_size:
            seg.gso_size = pkt.gso_size
            if pkt.counted:
                seg.nsegs = -(-seg.length // pkt.gso_size)
        loopback = pkt.dev.loopback
        seg.truesize = rx_truesize(pkt.frame_len, seg.length, pkt.gso_size or loopback) if pkt.dev.mac or loopback else bare_rx_truesize(pkt.frame_len)
        iif = self.iif = self.arrival(pkt).index
        key = pkt.src + pkt.dst + _PORTS(seg.sport, seg.dport)
        entry: Any = self.table.get(key)
        if entry is None:
            entry = self.table.get(key + _IFINDEX(iif))
        if entry is None:
            entry = self._find_listener(pkt.family, pkt.dst, seg.dport, iif, pkt.src + _PORTS(seg.sport, seg.dport))
        if entry is None:
            if self.sysctl.flowlabel_reflect & REFLECT_RESET:
                self._reset_flow = pkt.flow
            closed_port(self, seg)
            self._reset_flow = 0
        else:
            entry.receive(seg)

    def tcp_error(self, pkt: Packet, quote: Quoted, kind: int, code: int, info: int) -> None:
        """An ICMP error in `pkt` about a TCP segment: tell the connection it belongs to."""
        family = pkt.family
        key = quote.dst + quote.src + _PORTS(quote.dport, quote.sport)
        entry = self.table.get(key)
        if entry is None:
            entry = self.table.get(key + _IFINDEX(self.arrival(pkt).index))
        if entry is None:
            if family == 4:
                self.mib.IcmpInErrors += 1
            else:
                self.mib.Icmp6InErrors += 1
            return
        too_big = (kind == DEST_UNREACH and code == FRAG_NEEDED) if family == 4 else kind == PACKET_TOO_BIG
        if too_big and isinstance(entry, Sock) and self._in_flight(entry, quote.seq):
            info = self._learn_path_mtu(entry, info)
            if entry.pmtu_disc in (PMTUDISC_DONT, PMTUDISC_INTERFACE, PMTUDISC_OMIT):
                # the connection finds the new MTU at its next send; nothing is resent for it
                return
        icmp_err.error(self, entry, family, quote.l4, kind, code, info, pkt.src)

    def _in_flight(self, sk: Sock, seq32: int) -> bool:
        """Whether a quoted sequence number is one an honest router can have seen (RFC 5927)."""
        return sk.state not in (CLOSE, LISTEN) and sk.snd_una <= unwrap(seq32, sk.snd_una) <= sk.snd_nxt

    def _learn_path_mtu(self, sk: Sock, mtu: int) -> int:
        """Write a report into the route; returns the MTU the connection is to use, `mtu` where the report is not believed."""
        dst = sk.dst
        if dst.gen != self.gen:
            if self._reroute(sk):
                return mtu
            dst = sk.dst
        if not self.pmtu.update(dst, mtu) or (dst.gen != self.gen and self._reroute(sk)):
            return mtu
        return int(sk.dst.mtu)

    def hash(self, sk: Any) -> None:
        """Enter an endpoint into the demux table (see `tcp.sock.Host.hash`). Raises OSError EADDRNOTAVAIL."""
        if not isinstance(sk, Sock):
            self._hash_mini(sk)
            return
        if sk.state == LISTEN:
            self._listeners.setdefault((sk.bound_addr, sk.bound_port), []).append(sk)
            sk.demux_key = None
            sk.hashed = True
            return
        key = _demux_key(sk)
        other = self.table.get(key)
        if other is None and sk.bound_dev_if:
            other = self.table.get(key[: -len(_IFINDEX(0))])  # one that is not bound hears by this device, too
        if other is not None and other is not sk and sk.state == SYN_SENT:
            if not isinstance(other, TimeWait) or not reusable(sk, other, self.ports.was_auto(sk, sk.sport)):
                raise OSError(errno.EADDRNOTAVAIL, "the 4-tuple is in use")
            take_over(sk, other)
        sk.demux_key = key
        sk.hashed = True
        self.table[key] = sk
        if sk.trace is None:
            sk.trace = self.tracer
        if sk.state != SYN_SENT and not sk.bound_port:
            sk.bound_port = sk.sport
            self.ports.add(sk, sk.sport)

    def _hash_mini(self, entry: Any) -> None:
        """A request or a TIME-WAIT block takes its place in the table; the latter holds its port."""
        key = entry.demux_key = _demux_key(entry)
        self.table[key] = entry
        entry.hashed = True
        if isinstance(entry, TimeWait):
            # the socket it comes from still holds the port: one chosen for it stays open to further connections
            self.ports.add(entry, entry.sport, self.ports.chosen(entry.sport))

    def unhash(self, sk: Any) -> None:
        """Take an endpoint out of the demux table (see `tcp.sock.Host.unhash`)."""
        if not sk.hashed:
            return
        sk.hashed = False
        key = sk.demux_key
        if key is None:
            same = self._listeners.get((sk.bound_addr, sk.bound_port), [])
            if sk in same:
                same.remove(sk)
                if not same:
                    del self._listeners[sk.bound_addr, sk.bound_port]
            return
        if self.table.get(key) is sk:
            del self.table[key]
        if isinstance(sk, TimeWait):
            self.ports.remove(sk, sk.sport)

    def listeners(self) -> list[Sock]:
        """Every LISTEN socket."""
        return [sk for same in self._listeners.values() for sk in same]

    def listener(self, family: int, addr: bytes, port: int) -> Sock | None:
        """The LISTEN socket that a SYN to this address and port reaches; a bound address wins over a device, that over neither."""
        return self._find_listener(family, addr, port, self.iif, b"")

    def _find_listener(self, family: int, addr: bytes, port: int, iif: int, flow: bytes) -> Sock | None:
        listeners = self._listeners
        found = _heard_by(listeners.get((addr, port)), iif)
        if not found and family == 4:
            found = _heard_by(listeners.get((V4MAPPED + addr, port)), iif)
        if not found:
            anywhere = listeners.get((b"", port))
            if anywhere is None:
                return None
            found = _heard_by([sk for sk in anywhere if sk.family == family], iif)
            if not found and family == 4:
                found = _heard_by([sk for sk in anywhere if not sk.v6only], iif)
        if not found:
            return None
        if len(found) == 1:
            return found[0]
        # SO_REUSEPORT spreads flows over the group, the same flow always to the same member
        digest = blake2b(flow + addr, digest_size=4, key=self._secret).digest()
        return found[int.from_bytes(digest, "big") % len(found)]

    def is_local(self, addr: bytes, dev_if: int = 0) -> bool:
        """Whether a program may bind to `addr`: an address of ours (of that device), or any with ip_nonlocal_bind."""
        if len(addr) == 4:
            return addr in self.local4 or addr[0] == 127 or bool(self.sysctl.ip_nonlocal_bind)
        dev = self.local6.get(addr)
        return dev is not None and (not dev_if or dev.index == dev_if)

    def bind_device(self, sk: Sock, index: int) -> None:
        """SO_BINDTODEVICE, in any state; a connection looks its way up anew (see `tcp.sock.Host.bind_device`)."""
        if index == sk.bound_dev_if:
            return
        if sk.demux_key is None or not sk.hashed:
            sk.bound_dev_if = index
        else:
            self.unhash(sk)
            sk.bound_dev_if = index
            sk.demux_key = _demux_key(sk)
            sk.hashed = True
            self.table.setdefault(sk.demux_key, sk)
        if sk.dst is not None:
            sk.dst = copy(sk.dst)
            sk.dst.gen = STALE

    def new_sock(self, family: int) -> Sock:
        """A Sock of this host."""
        sk = Sock(self, family)
        sk.trace = self.tracer
        sk.ttl = self.sysctl.ip_default_ttl if family == 4 else self.sysctl.hop_limit
        if self.sysctl.ip_no_pmtu_disc and family == 4:
            sk.pmtu_disc = PMTUDISC_DONT
        return sk

    # --- ports ---

    def bind_port(self, sk: Sock, port: int) -> int:
        """Reserve a local port, 0 = any (see `tcp.sock.Host.bind_port`). Raises OSError."""
        if port:
            self.ports.bind(sk, port)
        elif sk.daddr:
            port = self.ports.connect_any(sk, local_port_range(sk), partial(self._tuple_free, sk), errno.EADDRNOTAVAIL)
        else:
            port = self.ports.bind_any(sk, local_port_range(sk))
        sk.bound_port = port
        return port

    def _tuple_free(self, sk: Sock, port: int) -> bool:
        key = sk.daddr + sk.saddr + _PORTS(sk.dport, port)
        other = self.table.get(key)
        if other is None and sk.bound_dev_if:
            other = self.table.get(key + _IFINDEX(sk.bound_dev_if))
        return other is None or (isinstance(other, TimeWait) and reusable(sk, other, True))

    def release_port(self, sk: Sock) -> None:
        """`sk` holds its port no longer."""
        if sk.bound_port:
            self.ports.remove(sk, sk.bound_port)
            sk.bound_port = 0

    # --- time and wake-ups ---

    def arm(self, sk: Any, when_ns: int) -> None:
        """Have `sk.on_timer()` called at `when_ns` or earlier; each endpoint has one entry in the heap."""
        if self.closed:
            return
        old = self._armed.get(sk)
        if old is not None:
            if old.when_ns <= when_ns:
                return
            old.cancel()
        self._armed[sk] = self.heap.call_at(when_ns, partial(self._fire, sk))

    def disarm(self, sk: Any) -> None:
        """`sk` waits for no timer any more: the heap's entry lets go of it."""
        timer = self._armed.pop(sk, None)
        if timer is not None:
            timer.cancel()

    def _fire(self, sk: Any) -> None:
        del self._armed[sk]
        self.now_ns = self.heap.now_ns
        sk.on_timer()

    def wake(self, sk: Sock, events: int) -> None:
        """Remember readiness bits for `sk.user`; delivered together at the end of the pass."""
        wakes = self._wakes
        wakes[sk] = wakes.get(sk, 0) | events
        if not self.in_pass:
            self.kick()

    def _deliver_wakes(self) -> None:
        """Tell the users of what has come until now; what they do may make more to tell."""
        wakes, self._wakes = self._wakes, {}
        for sk, events in wakes.items():
            user = sk.user
            if user is not None:
                user.notify(events)

    # --- devices ---

    def device(self, index: int) -> Interface:
        """The interface of an index. Raises OSError ENODEV."""
        for dev in self.interfaces:
            if dev.index == index:
                return dev
        raise OSError(errno.ENODEV, f"no interface {index}")

    def dev_index(self, name: str) -> int:
        """The index of an interface's name, 0 = none (see `tcp.sock.Host`)."""
        return next((dev.index for dev in self.interfaces if dev.name == name), 0)

    def dev_name(self, index: int) -> str:
        """The name of an interface's index, "" = none (see `tcp.sock.Host`)."""
        return next((dev.name for dev in self.interfaces if dev.index == index), "")

    # --- numbers ---

    def random32(self) -> int:
        return self.random.getrandbits(32)

    def secret(self) -> bytes:
        """16 bytes, fixed for the life of the stack."""
        return self._secret
