"""Whole connections without a network: our end in virtual time, the other end written segment by segment.

`World` is a host with a demux table, ports and listeners, and with no device: what the engine sends is
parsed and kept. A `Peer` is one remote port; `peer.send("S", mss=1460)` delivers a segment made of real
header bytes, and `peer.heard()` tells what came back, one line per segment, numbers relative to each
side's ISN as in tcpdump. The peer's ISN lies just below 2^32, ours where the test wants it.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from struct import pack
from typing import Any

from pytcp.tcp import api, const, reset, timewait
from pytcp.tcp.sock import Sock
from pytcp.wire.checksum import pseudo
from pytcp.wire.tcp import TcpHeader, build_header, parse_segment
from pytcp.wire.tcpopt import (
    FastOpen,
    Mss,
    Nop,
    Sack,
    SackPermitted,
    Timestamps,
    WindowScale,
    opt_fastopen,
    opt_mss,
    opt_pad,
    opt_sack_perm,
    opt_timestamp,
    opt_wscale,
)

from .harness import MS, FakeDst, FakeHost

LOCAL = b"\x0a\x4f\x00\x01"
REMOTE = b"\x0a\x4f\x00\x02"
LOCAL6 = b"\xfd" + bytes(14) + b"\x01"
REMOTE6 = b"\xfd" + bytes(14) + b"\x02"
PEER_ISN = (1 << 32) - 150
LETTERS = {"S": 2, "F": 1, "R": 4, "P": 8, "U": 0x20, "E": 0x40, "W": 0x80, "A": 0x100, ".": 0x10}
SHORT = {Mss: "mss", Nop: "nop", WindowScale: "ws", SackPermitted: "sackok", Timestamps: "ts", Sack: "sack", FastOpen: "fo"}


def bits(flags: str) -> int:
    return sum(LETTERS[letter] for letter in flags if letter != "-")


def letters(flags: int) -> str:
    return "".join(letter for letter, bit in LETTERS.items() if flags & bit) or "-"


class Heard:
    """One segment of ours as the peer received it."""

    def __init__(self, t_ns: int, head: TcpHeader, tos: int, ttl: int, base: tuple[int, int], shift: int) -> None:
        self.t_ns = t_ns
        self.flags = letters(head.flags)
        self.seq = _relative(head.seq, base[0])
        self.ack = _relative(head.ack, base[1]) if head.flags & const.ACK else None
        self.length = len(head.payload)
        self.window = head.window << (0 if head.flags & const.SYN else shift)
        self.options = head.options
        self.order = [SHORT.get(type(option), "?") for option in head.options]
        self.tos = tos
        self.ttl = ttl

    def option(self, kind: type) -> Any:
        return next((option for option in self.options if isinstance(option, kind)), None)

    @property
    def ts(self) -> tuple[int, int] | None:
        option = self.option(Timestamps)
        return None if option is None else (option.tsval, option.tsecr)

    def __str__(self) -> str:
        ack = "" if self.ack is None else f" ack {self.ack}"
        return f"{self.flags} {self.seq}:{self.seq + self.length}{ack}"

    __repr__ = __str__


def _relative(number: int, base: int) -> int:
    distance = (number - base) & 0xFFFFFFFF
    return distance if distance < 1 << 31 else distance - (1 << 32)


class World(FakeHost):
    """Our host."""

    def __init__(self, **sysctls: Any) -> None:
        super().__init__()
        for name, value in sysctls.items():
            assert hasattr(self.sysctl, name), name
            setattr(self.sysctl, name, value)
        self.sysctl.update_derived()
        self.table: dict[bytes, Any] = {}
        self.listeners: dict[tuple[bytes, int], Sock] = {}
        self.held: dict[int, set[Any]] = {}
        self.wire: list[tuple[int, bytes, bytes, TcpHeader, int, int]] = []
        self.mtu = 1500
        self.next_port = 40000
        self.unreachable: OSError | None = None
        self.users: list[Sock] = []

    # --- what the engine asks for ---

    def fresh_route(self, sk: Sock) -> int:
        return 0

    def transmit(self, sk: Sock, th: bytes, parts: Sequence[Any], length: int, skb: Any, gso_size: int, truesize: int, ecn: int) -> int:
        if self.refuse:
            return self.refuse
        payload = b"".join(bytes(p) for p in parts)
        self._record(sk.saddr, sk.daddr, th, payload, sk.tos | ecn, sk.ttl, gso_size)
        if self.complete == "at_once":
            from pytcp.tcp import tsq

            tsq.wfree(sk, skb, truesize)
        else:
            self.in_ring.append((sk, skb, truesize))
        return 0

    def reply(self, family: int, src: bytes, dst: bytes, th: bytes, payload: bytes, tos: int, ttl: int, mark: Any, flowlabel: int = 0, dev_if: int = 0) -> None:
        self._record(src, dst, th, payload, tos, ttl, 0)

    def _record(self, src: bytes, dst: bytes, th: bytes, payload: bytes, tos: int, ttl: int, gso_size: int) -> None:
        total = pseudo(src, dst, 6, len(th) + len(payload))
        assert (int.from_bytes(th[16:18], "big") - total) % 0xFFFF == 0, "the checksum field carries the pseudo-header sum"
        head = TcpHeader.parse(th + payload)
        size = gso_size or len(payload) or 1
        for at in range(0, len(payload) or 1, size):
            last = at + size >= len(payload)
            flags = head.flags if last else head.flags & ~(const.FIN | const.PSH)
            part = replace(head, seq=(head.seq + at) & 0xFFFFFFFF, flags=flags, payload=payload[at : at + size])
            self.wire.append((self.now_ns, src + pack("!H", head.sport), dst + pack("!H", head.dport), part, tos, ttl))

    def route(self, sk: Any) -> None:
        if self.unreachable is not None:
            raise self.unreachable
        dst = FakeDst(self.mtu)
        dst.advmss = self.mtu - (40 if sk.family == 4 else 60)
        sk.dst = dst
        if not sk.saddr:
            sk.saddr = LOCAL if sk.family == 4 else LOCAL6
        sk.pseudo_base = pseudo(sk.saddr, sk.daddr, 6, 0)

    def is_local(self, addr: bytes, dev_if: int = 0) -> bool:
        return addr in (LOCAL, LOCAL6)

    def bind_port(self, sk: Sock, port: int) -> int:
        if port:
            others = [other for other in self.held.get(port, ()) if other is not sk]
            if any(not (sk.reuseaddr and other.reuseaddr) or getattr(other, "state", 0) == const.LISTEN for other in others):
                raise OSError(errno.EADDRINUSE, "in use")
        else:
            while self.next_port in self.held:
                self.next_port += 1
            port = self.next_port
        self._hold(sk, port)
        return port

    def _hold(self, who: Any, port: int) -> None:
        self.held.setdefault(port, set()).add(who)

    def _let_go(self, who: Any, port: int) -> None:
        holders = self.held.get(port, set())
        holders.discard(who)
        if not holders:
            self.held.pop(port, None)

    def release_port(self, sk: Sock) -> None:
        self._let_go(sk, sk.bound_port)

    def hash(self, sk: Any) -> None:
        if getattr(sk, "state", 0) == const.LISTEN:
            self.listeners[sk.bound_addr, sk.bound_port] = sk
        else:
            key = sk.daddr + sk.saddr + pack("!HH", sk.dport, sk.sport)
            other = self.table.get(key)
            if other is not None and getattr(sk, "state", 0) == const.SYN_SENT:
                if not isinstance(other, timewait.TimeWait) or not timewait.reusable(sk, other, False):
                    raise OSError(errno.EADDRNOTAVAIL, "4-tuple in use")
                timewait.take_over(sk, other)
            assert key not in self.table
            self.table[key] = sk
            sk.demux_key = key
            if isinstance(sk, timewait.TimeWait):
                self._hold(sk, sk.sport)
            elif isinstance(sk, Sock) and not sk.bound_port:
                sk.bound_port = sk.sport
                self._hold(sk, sk.sport)
        sk.hashed = True

    def unhash(self, sk: Any) -> None:
        if not sk.hashed:
            return
        sk.hashed = False
        key: bytes | None = sk.demux_key
        name = (getattr(sk, "bound_addr", b""), getattr(sk, "bound_port", 0))
        if self.listeners.get(name) is sk:
            del self.listeners[name]
        elif key is not None and self.table.get(key) is sk:
            del self.table[key]
        if isinstance(sk, timewait.TimeWait):
            self._let_go(sk, sk.sport)

    def listener(self, family: int, addr: bytes, port: int) -> Sock | None:
        return self.listeners.get((addr, port)) or self.listeners.get((b"", port))

    # --- what arrives ---

    def deliver(self, data: bytes, family: int, src: bytes, dst: bytes, tos: int = 0, ttl: int = 64) -> None:
        """One TCP segment, IP header and all, for whoever it is for."""
        l4 = 20 if family == 4 else 40
        seg = parse_segment(memoryview(data), l4, len(data), family, src, dst)
        seg.tos = tos
        seg.ttl = ttl
        seg.truesize = (len(data) + 14 + 64 + 63) // 64 * 64 + 576
        self.mib.TcpInSegs += 1
        entry = self.table.get(src + dst + pack("!HH", seg.sport, seg.dport)) or self.listener(family, dst, seg.dport)
        if entry is None:
            reset.closed_port(self, seg)
        else:
            entry.receive(seg)

    # --- what programs do ---

    def socket(self, family: int = 4) -> Sock:
        sk = Sock(self, family)
        sk.user = object()
        return sk

    def listening(self, port: int = 8080, backlog: int = 5, family: int = 4) -> Sock:
        sk = self.socket(family)
        sk.reuseaddr = True
        api.bind(sk, b"", port)
        api.listen(sk, backlog)
        return sk

    def accepted(self, lsk: Sock) -> Sock:
        child = api.accept(lsk)
        child.user = object()
        return child

    def connecting(self, peer: Peer, sk: Sock | None = None) -> Sock:
        """A socket whose SYN to `peer` has just left."""
        sk = sk or self.socket(peer.family)
        with suppress(BlockingIOError):
            api.connect(sk, peer.addr, peer.port)
        peer.local_port = sk.sport
        peer.local_isn = sk.iss & 0xFFFFFFFF
        return sk


class Peer:
    """One remote endpoint."""

    def __init__(self, world: World, port: int = 50000, local_port: int = 8080, *, isn: int = PEER_ISN, family: int = 4, wscale: int = 7) -> None:
        self.world = world
        self.family = family
        self.addr = REMOTE if family == 4 else REMOTE6
        self.local = LOCAL if family == 4 else LOCAL6
        self.port = port
        self.local_port = local_port
        self.isn = isn
        self.local_isn: int | None = None
        self.wscale = wscale
        self.shift = 0  # of our windows, once our SYN or SYN-ACK said so
        self._read = len(world.wire)

    def send(
        self,
        flags: str,
        seq: int = 0,
        length: int = 0,
        *,
        ack: int | None = None,
        win: int = 65535,
        mss: int | None = None,
        ws: int | None = None,
        sack: bool = False,
        ts: tuple[int, int] | None = None,
        data: bytes | None = None,
        tos: int = 0,
        urg: int = 0,
        fo: bytes | None = None,
    ) -> None:
        """A segment; `seq`, `ack` relative to the ISNs (while ours is unknown: absolute), `win` the 16-bit field."""
        opts = b""
        if ts is not None:
            opts += b"\x01\x01" + opt_timestamp(*ts)
        if mss is not None:
            opts += opt_mss(mss)
        if sack:
            opts += opt_sack_perm() + b"\x01\x01"
        if ws is not None:
            opts += b"\x01" + opt_wscale(ws)
        if fo is not None:
            opts += opt_fastopen(fo)
        number = bits(flags)
        payload = bytes(length) if data is None else data
        ack_number = ((self.local_isn or 0) + (ack or 0)) & 0xFFFFFFFF
        head = build_header(self.port, self.local_port, self.isn + seq, ack_number, number, win, urg, opt_pad(opts))
        segment = head + payload
        if self.family == 4:
            ip = pack("!BBHHHBBH4s4s", 0x45, tos, 20 + len(segment), 0, 0, 64, 6, 0, self.addr, self.local)
        else:
            ip = pack("!IHBB16s16s", 6 << 28 | tos << 20, len(segment), 6, 64, self.addr, self.local)
        self.world.deliver(ip + segment, self.family, self.addr, self.local, tos)

    def syn(self, **options: Any) -> None:
        """The SYN of an ordinary peer, without timestamps unless `ts` is given."""
        defaults: dict[str, Any] = {"mss": 1460, "ws": self.wscale, "sack": True}
        self.send("S", 0, **(defaults | options))

    def heard_all(self) -> list[Heard]:
        """Segments that reached this peer since the last call."""
        me = self.addr + pack("!H", self.port)
        out = []
        wire = self.world.wire
        for t_ns, src, dst, head, tos, ttl in wire[self._read :]:
            if dst != me or src[-2:] != pack("!H", self.local_port):
                continue
            if head.flags & const.SYN:
                if self.local_isn is None:
                    self.local_isn = head.seq
                scale = next((option for option in head.options if isinstance(option, WindowScale)), None)
                self.shift = scale.shift if scale is not None else 0
            out.append(Heard(t_ns, head, tos, ttl, (self.local_isn or 0, self.isn), self.shift))
        self._read = len(wire)
        return out

    def heard(self) -> list[str]:
        """The same as text, one line per segment."""
        return [str(segment) for segment in self.heard_all()]

    def hear(self) -> Heard:
        """The one segment that came."""
        (segment,) = self.heard_all()
        return segment


def connection(world: World | None = None, *, port: int = 50000, lsk: Sock | None = None, rtt_ms: int = 0, **syn: Any) -> tuple[World, Peer, Sock]:
    """An accepted connection to a listener on 8080 whose handshake took `rtt_ms` and is forgotten."""
    world = world or World()
    lsk = lsk or world.listener(4, LOCAL, 8080) or world.listening()
    peer = Peer(world, port)
    peer.syn(**syn)
    peer.heard()
    world.advance(rtt_ms * MS)
    ts = (syn["ts"][0], 0) if "ts" in syn else None
    peer.send(".", 1, ack=1, win=511, ts=ts)
    child = world.accepted(lsk)
    peer.heard()
    return world, peer, child


def client(world: World | None = None, **synack: Any) -> tuple[World, Peer, Sock]:
    """A connection we opened, its handshake forgotten."""
    world = world or World()
    peer = Peer(world, 80)
    sk = world.connecting(peer)
    peer.heard()
    defaults: dict[str, Any] = {"mss": 1460, "ws": 7, "sack": True}
    peer.send("S.", 0, ack=1, **(defaults | synack))
    peer.heard()
    return world, peer, sk


__all__ = ["LOCAL", "LOCAL6", "MS", "PEER_ISN", "REMOTE", "REMOTE6", "Heard", "Peer", "World", "client", "connection"]
