"""One device of the stack: frames in, frames out, its addresses and neighbours.

`rx` is the stack's hottest function. A frame for an established IPv4 or IPv6 connection, with nothing
unusual in its headers, goes straight from here to the connection: one look at each header (IPv4 and a TCP
header with timestamps and nothing else: one look at all three), one look into the demux table, one `Segment`.
That the 4-tuple is in the table proves the addresses good, so only the checks that could fail are made:
destination MAC, fragment bits, lengths, the IPv4 header checksum, and TCP's where no device vouches for it.
Everything else takes `_receive`, the slow and complete path. `now` is refreshed per frame: a batch of 64
super-frames lasts over a millisecond.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from pytcp.link.frame import CSUM_NONE, F_CSUM, F_TSO4, F_TSO6, F_USO, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, RxFrame, TxFrame
from pytcp.link.gro import Gro
from pytcp.link.offload import segment
from pytcp.link.qdisc import RING, Hooks, Qdisc, Settings, make
from pytcp.link.txring import LIMIT, TxRing
from pytcp.tcp.pacing import departure, kept_by_qdisc
from pytcp.wire.addr import MAC_BROADCAST
from pytcp.wire.checksum import ones_sum
from pytcp.wire.errors import WireError
from pytcp.wire.ethernet import ETH_P_802_3_MIN, ETH_P_8021AD, ETH_P_8021Q, ETH_P_ARP, ETH_P_IP, ETH_P_IPV6
from pytcp.wire.tcp import NO_OPTIONS, Segment, parse_segment
from pytcp.wire.tcpopt import TS_WORD

from . import arp, ipv4, ipv6, ndp
from .neighbour import NeighTable
from .packet import BROADCAST, HOST, MULTICAST, OTHERHOST
from .truesize import GOOD_LINEAR, rx_truesize

if TYPE_CHECKING:
    from pytcp.clock.heap import Timer
    from pytcp.link.frame import Link

    from .address import Address6
    from .stack import Stack

# destination MAC, type with version and IHL, TOS, length, id, fragment, TTL, protocol, checksum, addresses and ports; sequence
# and acknowledgement number, offset and flags, window, urgent pointer, NOP NOP TS, TSval, TSecr
_IP4_TS = Struct(">6s6x3sBHHHBBH12sIIHH2xHIII").unpack_from
_PLAIN4 = b"\x08\x00\x45"  # type IPv4, no IP options
_IP4 = Struct(">6s6xHBBH2xHBB2x12s").unpack_from  # destination MAC, type, IHL, TOS, length, fragment, TTL, protocol, addresses and ports
_HEADER4 = Struct(">14x20s").unpack_from
_IP6 = Struct(">6s6xHIHBB36s").unpack_from

_MIN4_TS = 14 + 20 + 32
_MIN4 = 14 + 20 + 20
_MIN6 = 14 + 40 + 20

_new_segment = Segment.__new__

_ETHERTYPE = {4: b"\x08\x00", 6: b"\x86\xdd"}
_GSO_FEATURE = {GSO_TCPV4: F_TSO4, GSO_TCPV6: F_TSO6, GSO_UDP_L4: F_USO}


class Interface:
    """A device and what the host knows about it. Made by `Stack.add_interface`."""

    __slots__ = (
        "stack",
        "link",
        "name",
        "index",
        "mac",
        "mtu",
        "mtu6",
        "up",
        "loopback",
        "ring",
        "qdisc",
        "put",
        "gro",
        "tso4",
        "tso6",
        "addresses4",
        "addresses6",
        "neigh4",
        "neigh6",
        "groups",
        "hop_limit",
        "ip6",
        "autoconf",
        "router_timer",
        "room",
        "rx_packets",
        "rx_dropped",
        "tx_packets",
        "tx_dropped",
        "_now",
        "_table",
    )

    def __init__(self, stack: Stack, link: Link, name: str, index: int, ring: TxRing, *, gro: bool, loopback: bool = False) -> None:
        self.stack = stack
        self.link = link
        self.name = name
        self.index = index
        self.mac = link.mac
        self.mtu = link.mtu
        self.mtu6 = link.mtu  # a router may advertise less
        self.up = True
        self.loopback = loopback
        self.ring = ring
        self.qdisc: Qdisc | None = None
        self.put = ring.put  # where a complete frame goes: into the ring, or the queueing discipline before it
        self.gro = Gro() if gro else None
        csum = link.features & F_CSUM
        self.tso4 = bool(csum and link.features & F_TSO4)  # the device takes TCP super-frames as they are
        self.tso6 = bool(csum and link.features & F_TSO6)
        self.addresses4: list[tuple[bytes, int]] = []  # the first of a subnet is its primary address
        self.addresses6: list[Address6] = []
        self.neigh4 = NeighTable(stack, self, 4, arp.solicit)
        self.neigh6 = NeighTable(stack, self, 6, ndp.solicit)
        self.groups: dict[bytes, int] = {}  # multicast groups joined, with how often
        self.hop_limit = 0  # advertised by a router; 0: the sysctl
        self.ip6 = loopback  # IPv6 is on
        self.autoconf = False  # ask for routers
        self.router_timer: Timer | None = None  # the next solicitation
        self.room = bytes(14) if link.mac else b""  # what a packet reserves for the link-layer header
        self.rx_packets = 0
        self.rx_dropped = 0
        self.tx_packets = 0
        self.tx_dropped = 0
        self._now = stack.runtime.now
        self._table = stack.table
        self._listen()
        link.rx_end = self._end if self.gro is None else self._gro_flush

    def __repr__(self) -> str:
        return f"<Interface {self.name} {self.mac.hex(':')} mtu {self.mtu}{'' if self.up else ' down'}>"

    # --- in ---

    def rx(self, frame: RxFrame) -> None:
        """One frame (or super-frame) from the device."""
        stack = self.stack
        stack.now_ns = self._now()
        self.rx_packets += 1
        data = frame.data
        size = len(data)
        if size < _MIN4_TS:
            self._rx_other(frame)
            return
        mac, kind, tos, total, ident, frag, ttl, proto, csum, key, seq, ack, flags, window, urg_ptr, word, tsval, tsecr = _IP4_TS(data)
        end = total + 14
        # a header checksum is right when the words add up to zero modulo 65535; pseudo_base has the addresses and the protocol
        if (
            word != TS_WORD or flags >> 12 != 8 or kind != _PLAIN4 or proto != 6
            or frag & 0x3FFF or mac != self.mac or end < _MIN4_TS or end > size
            or (entry := self._table.get(key)) is None
            or (0x4500 + tos + total + ident + frag + (ttl << 8) + csum + entry.pseudo_base) % 65535
        ):  # fmt: skip
            self._rx_other(frame)
            return
        mib = stack.mib
        mib.IpInReceives += 1
        mib.IpInDelivers += 1
        mib.IpExtInOctets += total
        mib.TcpInSegs += 1
        if not frame.csum and ones_sum(data[34:end], ones_sum(key[:8]) + 6 + total - 20) != 0xFFFF:  # (CSUM_NONE is 0)
            mib.TcpInCsumErrors += 1
            mib.TcpInErrs += 1
            return
        # as parse_segment; `end_seq` is for whoever receives it
        seg = _new_segment(Segment)
        seg.family = 4
        seg.src = entry.daddr
        seg.dst = entry.saddr
        seg.sport = entry.dport
        seg.dport = entry.sport
        seg.seq = seq
        seg.ack = ack
        seg.flags = flags & 0x1FF
        seg.window = window
        seg.urg_ptr = urg_ptr
        seg.doff = 8
        seg.length = length = end - _MIN4_TS
        seg.payload = data[_MIN4_TS:end] if length else b""
        seg.tsval = tsval
        seg.tsecr = tsecr
        seg.saw_tstamp = True
        seg.options = NO_OPTIONS
        seg.data = data
        seg.l4_off = 34
        seg.tos = tos
        seg.ttl = ttl
        gso_size = frame.gso_size
        if gso_size and length > gso_size:
            seg.gso_size = gso_size
            seg.nsegs = nsegs = -(-length // gso_size) if frame.counted else 1
        else:
            seg.gso_size = 0
            seg.nsegs = nsegs = 1
        if tos & 3:
            stack.mib.count_ect(tos, nsegs)
        else:
            mib.IpExtInNoECTPkts += nsegs
        seg.truesize = ((end + 127) & ~63) + 576 if end <= GOOD_LINEAR else rx_truesize(end, length, gso_size)
        seg.rx = frame.buf
        entry.receive(seg)

    def _rx_other(self, frame: RxFrame) -> None:
        """The rest of `rx`, for an established connection whose headers are of another kind (IPv6, other options), and for everything else."""
        data = frame.data
        size = len(data)
        stack = self.stack
        if size >= _MIN4:
            mac, kind, vihl, tos, total, frag, ttl, proto, key = _IP4(data)
            if kind == 0x0800:
                end = total + 14
                if vihl == 0x45 and proto == 6 and not frag & 0x3FFF and mac == self.mac and _MIN4 <= end <= size:
                    entry = self._table.get(key)
                    # a header checksum is right when the words add up to zero modulo 65535
                    if entry is not None and not int.from_bytes(_HEADER4(data)[0], "big") % 65535:
                        mib = stack.mib
                        mib.IpInReceives += 1
                        mib.IpInDelivers += 1
                        mib.IpExtInOctets += total
                        mib.TcpInSegs += 1
                        if frame.csum == CSUM_NONE and ones_sum(data[34:end], ones_sum(key[:8]) + 6 + total - 20) != 0xFFFF:
                            mib.TcpInCsumErrors += 1
                            mib.TcpInErrs += 1
                            return
                        try:
                            seg = parse_segment(data, 34, end, 4, key[:4], key[4:8])
                        except WireError:
                            mib.TcpInErrs += 1
                            return
                        seg.tos = tos
                        seg.ttl = ttl
                        gso_size = frame.gso_size
                        if gso_size and seg.length > gso_size:
                            seg.gso_size = gso_size
                            if frame.counted:
                                seg.nsegs = -(-seg.length // gso_size)
                        if tos & 3:
                            stack.mib.count_ect(tos, seg.nsegs)
                        else:
                            mib.IpExtInNoECTPkts += seg.nsegs
                        seg.truesize = ((end + 127) & ~63) + 576 if end <= GOOD_LINEAR else rx_truesize(end, seg.length, gso_size)
                        seg.rx = frame.buf
                        entry.receive(seg)
                        return
            elif kind == 0x86DD and size >= _MIN6:
                mac, kind, word, plen, proto, ttl, key = _IP6(data)
                if not plen and frame.gso_size:  # a super-frame beyond 64 KiB
                    plen = size - 54
                end = plen + 54
                if proto == 6 and word >> 28 == 6 and mac == self.mac and _MIN6 <= end <= size:
                    entry = self._table.get(key)
                    if entry is not None:
                        self._fast6(frame, word, plen, ttl, key, entry)
                        return
        self._receive(frame)

    def _fast6(self, frame: RxFrame, word: int, plen: int, ttl: int, key: bytes, entry: object) -> None:
        """The rest of `rx` for an IPv6 connection."""
        stack = self.stack
        mib = stack.mib
        data = frame.data
        end = plen + 54
        mib.Ip6InReceives += 1
        mib.Ip6InDelivers += 1
        mib.Ip6InOctets += plen + 40
        mib.TcpInSegs += 1
        if frame.csum == CSUM_NONE and ones_sum(data[54:end], ones_sum(key[:32]) + 6 + plen) != 0xFFFF:
            mib.TcpInCsumErrors += 1
            mib.TcpInErrs += 1
            return
        try:
            seg = parse_segment(data, 54, end, 6, key[:16], key[16:32])
        except WireError:
            mib.TcpInErrs += 1
            return
        tos = word >> 20 & 0xFF
        seg.tos = tos
        seg.ttl = ttl
        gso_size = frame.gso_size
        if gso_size and seg.length > gso_size:
            seg.gso_size = gso_size
            if frame.counted:
                seg.nsegs = -(-seg.length // gso_size)
        stack.mib.count_ect6(tos, seg.nsegs)
        seg.truesize = rx_truesize(end, seg.length, gso_size)
        seg.rx = frame.buf
        entry.receive(seg)  # type: ignore[attr-defined]

    def _end(self) -> None:
        """The device's batch is over; wake-ups and rings are the pass's business."""

    def _gro_feed(self, frame: RxFrame) -> None:
        self.gro.feed(frame)  # type: ignore[union-attr]

    def _gro_flush(self) -> None:
        for frame in self.gro.flush():  # type: ignore[union-attr]
            self.rx(frame)

    def _rx_bare(self, frame: RxFrame) -> None:
        """A packet from a link without link-layer headers."""
        stack = self.stack
        stack.now_ns = self._now()
        self.rx_packets += 1
        data = bytes(frame.data)
        version = data[0] >> 4 if data else 0
        if version not in (4, 6):
            self.rx_dropped += 1
        elif version == 4:
            ipv4.receive(stack, self, data, HOST, frame)
        else:
            ipv6.receive(stack, self, data, HOST, frame)

    def _receive(self, frame: RxFrame) -> None:
        """Whatever is not plain established TCP: sort it by type and look at all of it."""
        data = frame.data
        size = len(data)
        stack = self.stack
        mac = self.mac
        if size < 14:
            self.rx_dropped += 1
            return
        to = bytes(data[:6])
        if to == mac:
            kind = HOST
        elif to[0] & 1:
            kind = BROADCAST if to == MAC_BROADCAST else MULTICAST
        else:
            kind = OTHERHOST
        off = 14
        ethertype = data[12] << 8 | data[13]
        while ethertype in (ETH_P_8021Q, ETH_P_8021AD):
            # a tag for VLAN 0 only carries a priority; there are no VLAN devices
            if size < off + 4 or (data[off] << 8 | data[off + 1]) & 0xFFF:
                self.rx_dropped += 1
                return
            ethertype = data[off + 2] << 8 | data[off + 3]
            off += 4
        if kind == OTHERHOST:
            return
        if ethertype == ETH_P_IP:
            ipv4.receive(stack, self, bytes(data[off:]), kind, frame)
        elif ethertype == ETH_P_IPV6:
            ipv6.receive(stack, self, bytes(data[off:]), kind, frame)
        elif ethertype == ETH_P_ARP:
            arp.receive(stack, self, bytes(data[off:]), kind)
        elif ethertype >= ETH_P_802_3_MIN or bytes(data[off : off + 2]) == b"\xff\xff":
            # below: 802.2 LLC, which the kernel takes and nobody here speaks
            self.rx_dropped += 1

    # --- out ---

    def ll_header(self, mac: bytes, family: int) -> bytes:
        """The link-layer header of an IP packet to `mac`."""
        return mac + self.mac + _ETHERTYPE[family] if self.mac else b""

    def xmit(self, frame: TxFrame) -> bool:
        """Queue a complete frame, cut and with its checksum filled in as far as the device cannot do that.

        Returns False when the queue is full or the device down; `frame` is then lost and not completed."""
        if not self.up:
            self.tx_dropped += 1
            return False
        if not frame.csum_start:
            ok = self.put(frame)
        else:
            features = self.link.features
            if self.qdisc is not None or (features & F_CSUM and (not frame.gso_size or features & _GSO_FEATURE[frame.gso_type & ~GSO_ECN])):
                ok = self.put(frame)
            else:
                ok = self._put_cut(frame)
        if ok:
            self.tx_packets += 1
            if not self.stack.in_pass:
                self.stack.runtime.kick()
        else:
            self.tx_dropped += 1
        return ok

    def _put_cut(self, frame: TxFrame) -> bool:
        """Software segmentation; the owner is charged until the last piece is out."""
        put = self.ring.put
        pieces = segment(frame)
        for piece in pieces[:-1]:
            put(TxFrame(piece, (), len(piece)))
        last = pieces[-1]
        return put(TxFrame(last, (), len(last), owner=frame.owner, skb=frame.skb, truesize=frame.truesize))

    def _leave_qdisc(self, frame: TxFrame) -> None:
        """A queueing discipline, which keeps super-frames whole, gives one to the ring: cut only now (validate_xmit_skb)."""
        features = self.link.features
        if not frame.csum_start or (features & F_CSUM and (not frame.gso_size or features & _GSO_FEATURE[frame.gso_type & ~GSO_ECN])):
            self.ring.put(frame)
            return
        ring = self.ring
        limit, ring.limit = ring.limit, LIMIT  # it has room for one, and the pieces of one frame go together
        if not self._put_cut(frame):
            self.tx_dropped += 1
            self.stack.dropped(frame)
        ring.limit = limit

    def send_raw(self, to: bytes, ethertype: int, payload: bytes) -> None:
        """Send a frame that is not IP (ARP)."""
        head = to + self.mac + ethertype.to_bytes(2, "big") + payload
        self.xmit(TxFrame(head, (), len(head)))

    # --- configuration ---

    def _listen(self) -> None:
        """Tell the device where its frames go; the fast path need not ask whether the interface is up."""
        if not self.up:
            self.link.rx = self._rx_down
        elif not self.mac:
            self.link.rx = self._rx_bare
        elif self.gro is None:
            self.link.rx = self.rx
        else:
            self.link.rx = self._gro_feed

    def _rx_down(self, frame: RxFrame) -> None:
        """A device that is down receives nothing."""

    def close(self) -> None:
        """Out of service: nothing is received or sent any more."""
        self.up = False
        self._listen()
        if self.router_timer is not None:
            self.router_timer.cancel()
        for entry in self.addresses6:
            for timer in (entry.timer, entry.expiry):
                if timer is not None:
                    timer.cancel()
        for table in (self.neigh4, self.neigh6):
            for neigh in table.entries.values():
                neigh.drop()
        self.stack.runtime.remove_link(self.link)
        if self.ring.signal is not None:
            self.stack.runtime.remove_link(self.ring.signal)
        if self.qdisc is not None:
            self.ring.queue += self.qdisc.close()  # released with what the ring holds
        self.ring.close()
        self.link.close()

    def set_up(self, up: bool) -> None:
        """Take the interface up or down: down, its routes do not count and its neighbours are forgotten."""
        if up != self.up:
            self.up = up
            self._listen()
            if not up:
                self.neigh4.flush()
                self.neigh6.flush()
            self.stack.link_changed(self)

    def set_qdisc(self, spec: str | Settings | None) -> None:
        """Put a queueing discipline before the ring (`link.qdisc`), in the place of the one there is, whose frames are lost. None: none.

        spec: "pfifo", "fq" or settings of one's own. Raises ValueError."""
        if self.loopback:
            self.stack.serve_ring(self.ring)
        new = None
        if spec is not None:
            hooks = Hooks(self.stack.heap, self.ring, departure, kept_by_qdisc, self._leave_qdisc, len(self.room))
            new = make(spec, hooks, self.mtu + len(self.room))
        if self.qdisc is not None:
            for frame in self.qdisc.close():
                self.stack.dropped(frame)
        self.qdisc = new
        if new is None:
            self.ring.limit = LIMIT
            self.ring.feeder = None
            self.put = self.ring.put
        else:
            self.ring.limit = RING
            self.ring.feeder = new.run
            self.put = new.put

    def set_mtu(self, mtu: int) -> None:
        """Change the MTU, bytes. Raises OSError EINVAL below 68."""
        self.stack.change_mtu(self, mtu)

    @property
    def primary4(self) -> bytes:
        """The first IPv4 address, or b""."""
        return self.addresses4[0][0] if self.addresses4 else b""
