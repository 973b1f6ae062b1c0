"""How what TCP sends leaves the host: segments, replies of no socket, completions, the way to a peer.

`transmit` is the send side's hot path: one IP header from the cached `Dst` per super-segment, one
`TxFrame`, one put into the device's ring. Payload is never touched. Whatever is not the usual case (a
neighbour that is not known for certain, a path MTU that shrank below the segment, a route that
changed) leaves it for the slow functions below.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from struct import Struct
from typing import TYPE_CHECKING, Any

from pytcp.link.frame import GSO_ECN, GSO_TCPV4, GSO_TCPV6, TxFrame
from pytcp.link.offload import segment
from pytcp.tcp import gates
from pytcp.tcp.const import CWR
from pytcp.tcp.sock import Sock
from pytcp.tcp.tsq import called, release, wfree, wfree_missed
from pytcp.wire.addr import format_ip, is_link_local
from pytcp.wire.icmp import DEST_UNREACH, FRAG_NEEDED
from pytcp.wire.icmpv6 import PACKET_TOO_BIG
from pytcp.wire.ipv4 import IPPROTO_TCP, build_header

from . import icmp, icmpv6, ipv4
from .neighbour import CONNECTED, VALID
from .route import BROADCAST, MULTICAST

if TYPE_CHECKING:
    from pytcp.link.frame import Buffer
    from pytcp.link.txthread import ThreadRing
    from pytcp.tcp.skb import Skb

    from .counters import Mib
    from .interface import Interface
    from .pmtu import PmtuCache
    from .route import Dst
    from .stack import Stack
    from .sysctl import Sysctl

_HEAD4 = Struct(">HHHHHH8s").pack  # version, IHL, TOS; length; id; DF; TTL, protocol; checksum; addresses
_HEAD6 = Struct(">IHBB32s").pack
_WORDS = {4: Struct(">4H").unpack, 16: Struct(">16H").unpack}
_FLOW = Struct(">HHB").pack

IP_MAX = 0xFFFF  # what a length field can say
REFLECT_RESET = 2  # bit of flowlabel_reflect

PMTUDISC_DONT = 0
PMTUDISC_WANT = 1
PMTUDISC_DO = 2
PMTUDISC_PROBE = 3
PMTUDISC_INTERFACE = 4
PMTUDISC_OMIT = 5


def sum_words(addresses: bytes) -> int:
    """Sum of two addresses as 16-bit words, not folded: what a pseudo-header is made of."""
    return sum(_WORDS[len(addresses) // 2](addresses))


class TcpOutput:
    """The sending half of `tcp_host.TcpHost`."""

    sysctl: Sysctl
    mib: Mib
    random: Random
    pmtu: PmtuCache
    in_pass: bool

    def __init__(self) -> None:
        self.gen = 0  # of routes and addresses; a Dst with another one is looked up again
        self._owed: list[tuple[Sock, Skb | None, int]] = []  # completions of frames that were dropped
        self._threads: list[ThreadRing] = []  # the rings that other threads complete
        self._secret = self.random.randbytes(16)
        self._reset_flow = 0  # label a RST takes over from the segment it answers
        self.iif = 0  # device index of the segment that `receive_tcp` has in hand

    # --- supplied by Stack and TcpHost ---

    def dst(self, daddr: bytes, saddr: bytes = b"", oif: Any = None) -> Dst:
        raise NotImplementedError

    def device(self, index: int) -> Interface:
        raise NotImplementedError

    def kick(self) -> None:
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
        hh = dst.neigh.hh
        size = len(th) + length
        if sk.family == 4:
            size += 20
            if (size - length + gso_size if gso_size else size) > dst.mtu and (sk.pmtu_disc < PMTUDISC_PROBE or size > dev.mtu):
                return self._too_big(sk, dst, th, parts, length, gso_size, (skb, truesize))
            ident = sk.ip_id
            sk.ip_id = ident + (-(-length // gso_size) if gso_size else 1)
            ident &= 0xFFFF
            df = 0x4000 if (not dst.mtu_lock if sk.pmtu_disc == PMTUDISC_WANT else sk.pmtu_disc == PMTUDISC_DO) else 0
            vihl = 0x4500 | sk.tos & 0xFC | ecn
            ttl = sk.ttl << 8
            # a super-frame may be longer than the field can say (BIG TCP)
            total = size if size <= IP_MAX else 0
            # the words of a header add up to 0 modulo 65535; pseudo_base is the sum of the addresses and the protocol number
            csum = -(sk.pseudo_base + vihl + total + ident + df + ttl) % 65535
            ip = _HEAD4(vihl, total, ident, df, ttl | IPPROTO_TCP, csum, sk.saddr + sk.daddr)
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
            if not whole or not dev.up:
                taken = dev.xmit(frame)
            else:
                if gso_size or self.in_pass:
                    taken = dev.put(frame)
                # somebody may wait for a short message: the peer has it while this call does its books
                elif dev.qdisc is None:
                    taken = dev.ring.post(frame)
                else:
                    taken = dev.put(frame)
                    if taken:
                        dev.ring.flush()
                if taken:
                    dev.tx_packets += 1
                else:
                    dev.tx_dropped += 1
        else:
            room = len(dst.neigh.header)
            frame = TxFrame(bytes(room) + ip + th, parts, room + size, gso_type if gso_size else 0, gso_size, room + l4, 16, sk, skb, truesize)
            self._confirm(sk, dst)
            dst.neigh.output(frame)
            taken = True
            if skb is not None and not dst.neigh.state & VALID:
                gates.hold(sk, gates.NEIGHBOUR)
        mib = self.mib
        if sk.family == 4:
            mib.IpOutRequests += 1
            mib.IpOutTransmits += 1
            mib.IpExtOutOctets += size
        else:
            mib.Ip6OutRequests += 1
            mib.Ip6OutTransmits += 1
            mib.Ip6OutOctets += size
        return 0 if taken else 1

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

    def fresh_route(self, sk: Sock) -> int:
        """Look the way of `sk` up again if it is stale (see `tcp.sock.Host.fresh_route`)."""
        return self._reroute(sk) if sk.dst.gen != self.gen else 0

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

    completed = staticmethod(release)
    """TX completion of a batch: a ring has handed a frame to its device. Whether that calls somebody, behind the batch (`completions_over`)."""

    def completions_over(self, waiting: list[Sock]) -> None:
        """The batch of completions is over: the sockets it called may send."""
        for owner in waiting:
            called(owner)

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
        """Find the way to `sk.daddr` (see `tcp.sock.Host.fresh_route`). Raises OSError."""
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
