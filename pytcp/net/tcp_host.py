"""What the TCP engine asks of the host (`tcp.sock.Host`): sending, routes, ports, timers, wake-ups.

`transmit` is the send side's hot path: one IP header from the cached `Dst` per super-segment, one
`TxFrame`, one put into the device's ring. Payload is never touched. Whatever is not the usual case (a
neighbour that is not known for certain, a path MTU that shrank below the segment, a route that
changed) leaves it for the slow functions below.

The demux table maps the bytes remote address + local address + remote port + local port, as they lie
in a received packet, to whoever `receive(seg)`s them: a Sock, a half-open request, a TIME-WAIT block.
Who is bound to a device (SO_BINDTODEVICE; a link-local IPv6 peer does it, too) has the device's index
behind these bytes, so that the fast path misses him and `receive_tcp`, which knows the device, finds him.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from copy import copy
from functools import partial
from hashlib import blake2b
from random import Random
from struct import Struct
from typing import TYPE_CHECKING, Any

from pytcp.link.frame import CSUM_NONE, GSO_ECN, GSO_TCPV4, GSO_TCPV6, TxFrame
from pytcp.link.offload import segment
from pytcp.tcp import gates, icmp_err
from pytcp.tcp import input as tcp_input
from pytcp.tcp.const import CLOSE, CWR, LISTEN, SYN_SENT
from pytcp.tcp.fastopen import HostState
from pytcp.tcp.reset import closed_port
from pytcp.tcp.seq import unwrap
from pytcp.tcp.skb import PageFrag
from pytcp.tcp.sock import Sock
from pytcp.tcp.sockopt_ip import local_port_range
from pytcp.tcp.timewait import TimeWait, reusable, take_over
from pytcp.tcp.tsq import handler, release, wfree, wfree_missed
from pytcp.wire.addr import format_ip, is_link_local
from pytcp.wire.checksum import transport_ok
from pytcp.wire.errors import WireError
from pytcp.wire.icmp import DEST_UNREACH, FRAG_NEEDED
from pytcp.wire.icmpv6 import PACKET_TOO_BIG
from pytcp.wire.ipv4 import IPPROTO_TCP, build_header
from pytcp.wire.tcp import parse_segment

from . import icmp, icmpv6, ipv4
from .addr import V4MAPPED
from .neighbour import CONNECTED, VALID
from .packet import HOST, TO_US, Packet
from .ports import PortTable
from .route import BROADCAST, MULTICAST, STALE
from .truesize import bare_rx_truesize, rx_truesize

if TYPE_CHECKING:
    from pytcp.clock.heap import Timer, TimerHeap
    from pytcp.link.frame import Buffer
    from pytcp.link.txthread import ThreadRing
    from pytcp.tcp.skb import Skb
    from pytcp.tcp.trace import Tracer
    from pytcp.wire.icmp import Quoted

    from .counters import Mib
    from .interface import Interface
    from .pmtu import PmtuCache
    from .route import Dst
    from .stack import Stack
    from .sysctl import Sysctl

_HEAD4 = Struct(">HHHHHH8s").pack  # version, IHL, TOS; length; id; DF; TTL, protocol; checksum; addresses
_HEAD6 = Struct(">IHBB32s").pack
_PORTS = Struct(">HH").pack
_WORDS = {4: Struct(">4H").unpack, 16: Struct(">16H").unpack}
_FLOW = Struct(">HHB").pack
_IFINDEX = Struct(">I").pack

IP_MAX = 0xFFFF  # what a length field can say
REFLECT_RESET = 2  # bit of flowlabel_reflect

PMTUDISC_DONT = 0
PMTUDISC_WANT = 1
PMTUDISC_DO = 2
PMTUDISC_PROBE = 3
PMTUDISC_INTERFACE = 4
PMTUDISC_OMIT = 5


Sock.receive = tcp_input.receive  # type: ignore[method-assign, assignment]  # one call less per segment


def _demux_key(entry: Any) -> bytes:
    """The key of an endpoint in the demux table."""
    key: bytes = entry.daddr + entry.saddr + _PORTS(entry.dport, entry.sport)
    return key + _IFINDEX(entry.bound_dev_if) if entry.bound_dev_if else key


def sum_words(addresses: bytes) -> int:
    """Sum of two addresses as 16-bit words, not folded: what a pseudo-header is made of."""
    return sum(_WORDS[len(addresses) // 2](addresses))


def _heard_by(listeners: list[Sock] | None, iif: int) -> list[Sock]:
    """Those of the listeners that hear by a device: the ones bound to it, else the ones bound to none."""
    if not listeners:
        return []
    bound = [sk for sk in listeners if sk.bound_dev_if == iif]
    return bound or [sk for sk in listeners if not sk.bound_dev_if]


class TcpHost:
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
        self.now_ns = self.heap.now_ns
        self.gen = 0  # of routes and addresses; a Dst with another one is looked up again
        self.page_frag = PageFrag()
        self.table: dict[bytes, Any] = {}
        self.ports = PortTable(self.random)
        self._listeners: dict[tuple[bytes, int], list[Sock]] = {}
        self._armed: dict[Any, Timer] = {}
        self._wakes: dict[Sock, int] = {}
        self._called: list[Sock] = []  # sockets that a batch of completions calls
        self._owed: list[tuple[Sock, Skb | None, int]] = []  # completions of frames that were dropped
        self._threads: list[ThreadRing] = []  # the rings that other threads complete
        self.fastopen = HostState()
        self._secret = self.random.randbytes(16)
        self._reset_flow = 0  # label a RST takes over from the segment it answers
        self.iif = 0  # device index of the segment that `receive_tcp` has in hand
        self.in_pass = False
        self.closed = False

    # --- supplied by Stack ---

    def dst(self, daddr: bytes, saddr: bytes = b"", oif: Any = None) -> Dst:
        raise NotImplementedError

    def arrival(self, pkt: Packet) -> Interface:
        raise NotImplementedError

    def kick(self) -> None:
        raise NotImplementedError

    def realtime_ns(self) -> int:
        raise NotImplementedError

    # --- sending ---

    def transmit(self, sk: Sock, th: bytes, parts: Sequence[Buffer], length: int, skb: Skb | None, gso_size: int, truesize: int, ecn: int) -> int:
        """Send one super-segment of `sk` (see `tcp.sock.Host.transmit`).

        Returns 0, a negative errno when it could not be sent at all (EMSGSIZE, EHOSTUNREACH, ...),
        or 1 when the device's queue was full and the segment was dropped."""
        dst = sk.dst
        if dst.gen != self.gen:
            error = self._reroute(sk)
            if error:
                return error
            dst = sk.dst
        dev = dst.dev
        mib = self.mib
        hh = dst.neigh.hh
        size = len(th) + length
        if sk.family == 4:
            size += 20
            if (size - length + gso_size if gso_size else size) > dst.mtu and (sk.pmtu_disc < PMTUDISC_PROBE or size > dev.mtu):
                return self._too_big(sk, dst, th, parts, length, gso_size, (skb, truesize))
            ident = sk.ip_id
            sk.ip_id = ident + (-(-length // gso_size) if gso_size else 1)
            ident &= 0xFFFF
            disc = sk.pmtu_disc
            df = 0x4000 if disc == 2 or (disc == 1 and not dst.mtu_lock) else 0
            vihl = 0x4500 | sk.tos & 0xFC | ecn
            ttl = sk.ttl << 8 | 6
            # a super-frame may be longer than the field can say (BIG TCP)
            total = size if size <= IP_MAX else 0
            # pseudo_base is the sum of the addresses and the protocol number
            csum = 65534 - (sk.pseudo_base - 7 + vihl + total + ident + df + ttl) % 65535
            ip = _HEAD4(vihl, total, ident, df, ttl, csum, sk.saddr + sk.daddr)
            mib.IpOutRequests += 1
            mib.IpOutTransmits += 1
            mib.IpExtOutOctets += size
            gso_type = GSO_TCPV4
            whole = dev.tso4
            l4 = 20
        else:
            if (size - length + gso_size if gso_size else size) + 40 > dst.mtu and (sk.pmtu_disc < PMTUDISC_PROBE or size + 40 > dev.mtu6):
                return self._too_big(sk, dst, th, parts, length, gso_size, (skb, truesize))
            word = 0x60000000 | (sk.tos & 0xFC | ecn) << 20 | sk.flowlabel
            # a super-segment beyond 64 KiB never leaves the host as one packet: its length is the frame's
            ip = _HEAD6(word, size if size <= IP_MAX else 0, 6, sk.ttl, sk.saddr + sk.daddr)
            size += 40
            mib.Ip6OutRequests += 1
            mib.Ip6OutTransmits += 1
            mib.Ip6OutOctets += size
            gso_type = GSO_TCPV6
            whole = dev.tso6
            l4 = 40
        if hh is not None:
            room = len(hh)
            if not gso_size:
                gso_type = 0
            elif th[13] & CWR:
                # the device sets CWR on the first segment only
                gso_type |= GSO_ECN
            frame = TxFrame(hh + ip + th, parts, room + size, gso_type, gso_size, room + l4, 16, sk, skb, truesize)
            if whole and dev.up:
                if dev.put(frame):
                    dev.tx_packets += 1
                    return 0
                dev.tx_dropped += 1
                return 1
            return 0 if dev.xmit(frame) else 1
        room = len(dst.neigh.header)
        frame = TxFrame(bytes(room) + ip + th, parts, room + size, gso_type if gso_size else 0, gso_size, room + l4, 16, sk, skb, truesize)
        self._confirm(sk, dst)
        dst.neigh.output(frame)
        if skb is not None and not dst.neigh.state & VALID:
            gates.hold(sk, gates.NEIGHBOUR)
        return 0

    def looped(self, sk: Sock, th: bytes, length: int, gso_size: int, ecn: int) -> tuple[bytes, bool]:
        """The headers `transmit` has just put before a segment, as it made them, and whether the device cuts super-segments itself."""
        dst = sk.dst
        link = dst.neigh.hh if dst.neigh.hh is not None else bytes(len(dst.neigh.header))
        tos = sk.tos & 0xFC | ecn
        size = len(th) + length
        if sk.family == 4:
            ident = sk.ip_id - (-(-length // gso_size) if gso_size else 1)
            df = sk.pmtu_disc == PMTUDISC_DO or (sk.pmtu_disc == PMTUDISC_WANT and not dst.mtu_lock)
            ip = build_header(sk.saddr, sk.daddr, IPPROTO_TCP, 20 + size, tos=tos, ident=ident & 0xFFFF, frag=0x4000 if df else 0, ttl=sk.ttl)
            return link + ip + th, dst.dev.tso4
        return link + _HEAD6(0x60000000 | tos << 20 | sk.flowlabel, size, IPPROTO_TCP, sk.ttl, sk.saddr + sk.daddr) + th, dst.dev.tso6

    def _confirm(self, sk: Sock, dst: Dst) -> None:
        """An ACK that came since the neighbour was last confirmed proves that packets reach it."""
        neigh = dst.neigh
        neigh.prover = sk
        if sk.rcv_tstamp_ns > neigh.confirmed_ns and not neigh.state & CONNECTED:
            neigh.confirmed_ns = sk.rcv_tstamp_ns

    def _reroute(self, sk: Sock) -> int:
        """Routes or addresses changed: look the way up again. Returns 0 or a negative errno."""
        try:
            sk.dst = self.dst(sk.daddr, sk.saddr, self.device(sk.bound_dev_if) if sk.bound_dev_if else None)
        except OSError:
            if sk.family == 4:
                self.mib.IpOutNoRoutes += 1
            else:
                self.mib.Ip6OutNoRoutes += 1
            return -errno.EHOSTUNREACH
        return 0

    def _too_big(self, sk: Sock, dst: Dst, th: bytes, parts: Sequence[Buffer], length: int, gso_size: int, owner: tuple[Skb | None, int]) -> int:
        """The path MTU shrank below a segment made for the old one.

        With DF (and always for IPv6) it is dropped and the connection told as a router would tell it,
        though of IPv6 the last, shorter one leaves if it fits; without DF every segment goes in fragments."""
        stack: Stack = self  # type: ignore[assignment]  # Stack is the one class made of this
        mib = self.mib
        addresses = sk.saddr + sk.daddr
        size = len(th) + length
        if sk.family == 4:
            ident = sk.ip_id & 0xFFFF
            sk.ip_id += -(-length // gso_size) if gso_size else 1
            df = sk.pmtu_disc == PMTUDISC_DO or (sk.pmtu_disc == PMTUDISC_WANT and not dst.mtu_lock)
            ip = build_header(sk.saddr, sk.daddr, IPPROTO_TCP, min(size + 20, IP_MAX), tos=sk.tos, ident=ident, frag=0x4000 if df else 0, ttl=sk.ttl)
            frame = TxFrame(ip + th, parts, size + 20, GSO_TCPV4 if gso_size else 0, gso_size, 20, 16)
        else:
            df = True
            ip = _HEAD6(0x60000000 | sk.tos << 20 | sk.flowlabel, min(size, IP_MAX), IPPROTO_TCP, sk.ttl, addresses)
            frame = TxFrame(ip + th, parts, size + 40, GSO_TCPV6 if gso_size else 0, gso_size, 40, 16)
        for packet in segment(frame):
            if not df:
                ipv4.output(stack, dst, sk.saddr, IPPROTO_TCP, packet[20:], tos=sk.tos, ttl=sk.ttl, ident=ident)
                ident += 1
            elif sk.family == 4:
                mib.IpFragFails += 1
                icmp.local_error(stack, packet, DEST_UNREACH, FRAG_NEEDED, dst.mtu)
            elif len(packet) <= dst.mtu:
                mib.Ip6OutRequests += 1
                mib.Ip6OutTransmits += 1
                mib.Ip6OutOctets += len(packet)
                room = dst.dev.room
                dst.neigh.output(TxFrame(room + packet, (), len(room) + len(packet)))
            else:
                mib.Ip6FragFails += 1
                icmpv6.local_error(stack, packet, PACKET_TOO_BIG, 0, dst.mtu)
        if df:
            return -errno.EMSGSIZE
        self._owed.append((sk, *owner))
        self.kick()
        return 0

    def reply(self, family: int, src: bytes, dst: bytes, th: bytes, payload: bytes, tos: int, ttl: int, mark: Any, flowlabel: int = 0, dev_if: int = 0) -> None:
        """Send a segment that belongs to no Sock; `src` is ours. Lost when there is no route."""
        if not dev_if and family == 6 and is_link_local(dst):
            dev_if = self.iif
        try:
            way = self.dst(dst, src, self.device(dev_if) if dev_if else None)
        except OSError:
            if family == 4:
                self.mib.IpOutNoRoutes += 1
            else:
                self.mib.Ip6OutNoRoutes += 1
            return
        mib = self.mib
        size = len(th) + len(payload)
        if family == 4:
            size += 20
            mib.IpOutRequests += 1
            mib.IpOutTransmits += 1
            mib.IpExtOutOctets += size
            ip = build_header(src, dst, IPPROTO_TCP, size, tos=tos, frag=0x4000, ttl=ttl or self.sysctl.ip_default_ttl)
            l4 = 20
        else:
            if not flowlabel and self.sysctl.auto_flowlabels:
                flowlabel = self._reset_flow or self.flow_label(src, dst, int.from_bytes(th[:2], "big"), int.from_bytes(th[2:4], "big"), IPPROTO_TCP)
            ip = _HEAD6(0x60000000 | tos << 20 | flowlabel, size, IPPROTO_TCP, ttl or self.sysctl.hop_limit, src + dst)
            size += 40
            mib.Ip6OutRequests += 1
            mib.Ip6OutTransmits += 1
            mib.Ip6OutOctets += size
            l4 = 40
        room = len(way.dev.room)
        frame = TxFrame(way.dev.room + ip + th, (payload,) if payload else (), room + size, 0, 0, room + l4, 16)
        way.neigh.output(frame)

    def completed(self, owner: Sock, skb: Skb | None, truesize: int) -> None:
        """TX completion of a batch: a ring has handed a frame to its device."""
        if release(owner, skb, truesize):
            self._called.append(owner)

    def completions_over(self) -> None:
        """The batch of completions is over: the sockets it called may send."""
        if self._called:
            waiting, self._called = self._called, []
            for owner in waiting:
                handler(owner)

    def orphaned(self, owner: Sock, skb: Skb | None, truesize: int) -> None:
        """A frame that is released when it is queued."""
        wfree(owner, skb, truesize)

    def throttled(self, sk: Sock) -> None:
        """See `tcp.sock.Host.throttled`."""
        for ring in self._threads:
            if ring.throttle(sk, sk.sysctl.push_barrier):
                return
        self.kick()

    def completion_missed(self, owner: Sock, skb: Skb | None, truesize: int) -> bool:
        """A TX completion that calls nobody (`link.delayed`); whether somebody waited for it."""
        return wfree_missed(owner, skb, truesize)

    def dropped(self, frame: TxFrame) -> None:
        """A frame that was accepted will never leave: its owner is released, though not from inside this call."""
        if frame.owner is not None:
            self._owed.append((frame.owner, frame.skb, frame.truesize))
            self.kick()

    def _release_owed(self) -> None:
        if self._owed:
            owed, self._owed = self._owed, []
            for owner, skb, truesize in owed:
                wfree(owner, skb, truesize)

    # --- paths ---

    def route(self, sk: Any) -> None:
        """Find the way to `sk.daddr` (see `tcp.sock.Host.route`). Raises OSError."""
        oif = None
        if sk.bound_dev_if:
            try:
                oif = self.device(sk.bound_dev_if)
            except OSError:
                raise OSError(errno.ENODEV if sk.family == 4 else errno.ENETUNREACH, f"no device with index {sk.bound_dev_if}") from None
        dst = self.dst(sk.daddr, sk.saddr or sk.bound_addr, oif)
        if dst.kind in (BROADCAST, MULTICAST):
            raise OSError(errno.ENETUNREACH, f"{format_ip(sk.daddr)} is no single host")
        sk.dst = dst
        # equal bytes need not be kept twice
        sk.daddr = dst.daddr
        saddr = sk.saddr or sk.bound_addr
        sk.saddr = dst.saddr if not saddr or saddr == dst.saddr else saddr
        sk.pseudo_base = sum_words(sk.saddr + sk.daddr) + IPPROTO_TCP
        if not sk.ip_id:
            sk.ip_id = self.random.randrange(1, 0x10000)
        if not sk.txhash:
            sk.txhash = self.random.randrange(1, 1 << 32)
        if sk.family == 6 and not sk.flowlabel and self.sysctl.auto_flowlabels:
            sk.flowlabel = self.flow_label(sk.saddr, sk.daddr, sk.sport, sk.dport, IPPROTO_TCP)

    def rehash(self, sk: Any) -> None:
        """Another flow hash, and with it another flow label."""
        sk.txhash = self.random.randrange(1, 1 << 32)
        if sk.family == 6 and self.sysctl.auto_flowlabels:
            sk.flowlabel = self.random.randrange(1, 1 << 20)

    def flow_label(self, src: bytes, dst: bytes, sport: int, dport: int, proto: int) -> int:
        """The label of a flow: the same until the stack is made anew, never 0 (RFC 6437)."""
        digest = blake2b(src + dst + _FLOW(sport, dport, proto), digest_size=4, key=self._secret).digest()
        return int.from_bytes(digest, "big") & 0xFFFFF or 1

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
        seg.truesize = rx_truesize(pkt.frame_len, seg.length) if pkt.dev.mac or pkt.dev.loopback else bare_rx_truesize(pkt.frame_len)
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
        if self.sysctl.ip_no_pmtu_disc:
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
        while self._wakes:
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
