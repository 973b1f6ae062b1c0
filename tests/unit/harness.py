"""A socket under a microscope: engine tests without a network, in virtual time.

`FakeHost` is the engine's whole world: it records what is transmitted, runs timers when time is
moved, and completes transmissions when told. `established(...)` makes a connection past its handshake,
with sequence numbers that straddle the wrap; `ack(...)` and `data(...)` make the peer's segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import unpack_from
from typing import Any, NamedTuple

from pytcp.clock.heap import TimerHeap
from pytcp.tcp import cong as congestion
from pytcp.tcp import const, gates, rwnd, tsq
from pytcp.tcp.fastopen import HostState
from pytcp.tcp.mib import TcpMib
from pytcp.tcp.seq import unwrap
from pytcp.tcp.skb import PageFrag, Skb
from pytcp.tcp.sock import NEVER, Sock
from pytcp.tcp.sysctl import TcpSysctl
from pytcp.wire.tcp import Segment

MS = 1_000_000
US = 1_000
# our data starts 3000 bytes below the wrap, the peer's 2000 below: both cross it early
SND_ISN = (1 << 32) - 3000
RCV_ISN = (1 << 32) - 2000


class Sent(NamedTuple):
    """One (super-)segment the engine gave to the host; seq and ack relative to the ISNs."""

    t_ns: int
    flags: str
    seq: int
    ack: int
    length: int
    window: int
    gso_size: int
    options: bytes
    payload: bytes
    ecn: int
    urg: int

    @property
    def segs(self) -> int:
        return -(-self.length // self.gso_size) if self.gso_size else 1


def flag_text(bits: int) -> str:
    return "".join(c for c, b in zip("SFRPUEW.", (2, 1, 4, 8, 0x20, 0x40, 0x80, 0x10), strict=True) if bits & b)


class FakeDst:
    """What the engine reads of a route."""

    def __init__(self, mtu: int = 1500) -> None:
        self.mtu = mtu
        self.initcwnd = 0
        self.initrwnd = 0
        self.ecn = False
        self.advmss = 0
        self.quickack = False
        self.gso_max_size = 65536


class FakeHost:
    """The Host protocol, recorded."""

    def __init__(self, *, complete: str = "at_once") -> None:
        self.heap = TimerHeap(now_ns=10_000 * MS)
        self.sysctl = TcpSysctl()
        self.mib = TcpMib()
        self.page_frag = PageFrag()
        self.fastopen = HostState()
        self.complete = complete  # "at_once" as veth and tun do, "manual"
        self.sent: list[Sent] = []
        self.in_ring: list[tuple[Sock, Skb | None, int]] = []
        self.woken: list[tuple[Any, int]] = []
        self.replies: list[tuple[bytes, bytes]] = []
        self.refuse = 0
        self.kicks = 0
        self._random = 0x12345678
        self.iif = 2

    @property
    def now_ns(self) -> int:
        return self.heap.now_ns

    def fresh_route(self, sk: Sock) -> int:
        return 0

    def transmit(self, sk: Sock, th: bytes, parts: Sequence[Any], length: int, skb: Skb | None, gso_size: int, truesize: int, ecn: int) -> int:
        if self.refuse:
            return self.refuse
        seq, ack = unpack_from("!II", th, 4)
        off_flags, window, _csum, urg = unpack_from("!HHHH", th, 12)
        payload = b"".join(bytes(p) for p in parts)
        assert len(payload) == length, "payload buffers and length must agree"
        total = sk.pseudo_base + len(th) + length
        while total > 0xFFFF:
            total = (total & 0xFFFF) + (total >> 16)
        assert _csum == total, "the checksum field carries the folded pseudo-header sum"
        self.sent.append(
            Sent(
                self.heap.now_ns,
                flag_text(off_flags & 0xFF),
                unwrap(seq, sk.snd_una) - sk.iss,
                unwrap(ack, sk.rcv_nxt) - sk.irs if off_flags & const.ACK else 0,
                length,
                window,
                gso_size,
                th[20:],
                payload,
                ecn,
                urg,
            )
        )
        if self.complete == "at_once":
            tsq.wfree(sk, skb, truesize)
        else:
            self.in_ring.append((sk, skb, truesize))
        return 0

    def complete_all(self) -> None:
        """The device has taken everything in the ring."""
        ring, self.in_ring = self.in_ring, []
        for sk, skb, truesize in ring:
            tsq.wfree(sk, skb, truesize)

    def looped(self, sk: Sock, th: bytes, length: int, gso_size: int, ecn: int) -> tuple[bytes, bool]:
        return bytes(34) + th, True

    def reply(self, family: int, src: bytes, dst: bytes, th: bytes, payload: bytes, tos: int, ttl: int, mark: Any, flowlabel: int = 0, dev_if: int = 0) -> None:
        self.replies.append((th, payload))

    def arm(self, sk: Any, when_ns: int) -> None:
        self.heap.call_at(when_ns, sk.on_timer)

    def disarm(self, sk: Any) -> None:
        pass  # who is called without a deadline looks at its fields and does nothing

    def wake(self, sk: Sock, events: int) -> None:
        self.woken.append((sk, events))

    def route(self, sk: Sock) -> None:
        sk.dst = FakeDst()

    def bind_port(self, sk: Sock, port: int) -> int:
        return port or 40000

    def hash(self, sk: Any) -> None:
        pass

    def unhash(self, sk: Any) -> None:
        pass

    def release_port(self, sk: Sock) -> None:
        pass

    def listener(self, family: int, addr: bytes, port: int) -> Sock | None:
        return None

    def is_local(self, addr: bytes, dev_if: int = 0) -> bool:
        return True

    def new_sock(self, family: int) -> Sock:
        return Sock(self, family)

    def dev_index(self, name: str) -> int:
        return {"lo": 1, "eth0": 2}.get(name, 0)

    def dev_name(self, index: int) -> str:
        return {1: "lo", 2: "eth0"}.get(index, "")

    def bind_device(self, sk: Sock, index: int) -> None:
        sk.bound_dev_if = index

    def rehash(self, sk: Sock) -> None:
        pass

    def random32(self) -> int:
        self._random = (self._random * 1103515245 + 12345) & 0xFFFFFFFF
        return self._random

    def realtime_ns(self) -> int:
        return self.heap.now_ns

    def secret(self) -> bytes:
        return bytes(range(16))

    def throttled(self, sk: Sock) -> None:
        self.kicks += 1

    def advance(self, ns: int) -> None:
        """Move time on by `ns`, firing timers at their instants."""
        self.advance_to(self.heap.now_ns + ns)

    def advance_to(self, when_ns: int) -> None:
        heap = self.heap
        while True:
            deadline = heap.next_deadline()
            if deadline is None or deadline > when_ns:
                break
            heap.now_ns = max(heap.now_ns, deadline)
            heap.run_due()
        heap.now_ns = when_ns

    def take(self) -> list[Sent]:
        """What was sent since the last call."""
        sent, self.sent = self.sent, []
        return sent


def make_sock(host: FakeHost | None = None, **fields: Any) -> Sock:
    """A Sock with the given fields, otherwise as socket() leaves it."""
    sk = Sock(host or FakeHost(), 4)
    congestion.assign(sk, fields.pop("cc", "reno"))
    for name, value in fields.items():
        setattr(sk, name, value)
    return sk


def established(
    host: FakeHost | None = None,
    *,
    cc: str = "reno",
    mss: int = 1000,
    window: int = 1 << 20,
    wscale: int = 7,
    sack: bool = True,
    timestamps: bool = False,
    srtt_us: int = 0,
    **fields: Any,
) -> Sock:
    """A connection just past its handshake: snd_una = ISN+1, peer's window `window` bytes."""
    sk = make_sock(host, cc=cc)
    sk.state = const.ESTABLISHED
    sk.saddr, sk.daddr = b"\x0a\x00\x00\x01", b"\x0a\x00\x00\x02"
    sk.sport, sk.dport = 8080, 40000
    sk.pseudo_base = 0x0A00 + 1 + 0x0A00 + 2 + 6
    sk.dst = FakeDst(mss + 40 + (12 if timestamps else 0))
    sk.iss = (1 << 32) + SND_ISN
    sk.snd_una = sk.snd_nxt = sk.write_seq = sk.pushed_seq = sk.snd_sml = sk.snd_up = sk.iss + 1
    sk.irs = (1 << 32) + RCV_ISN
    sk.rcv_nxt = sk.copied_seq = sk.rcv_wup = sk.irs + 1
    sk.snd_wl1 = sk.irs
    sk.snd_wnd = sk.max_window = window
    sk.snd_wscale = sk.rcv_wscale = wscale
    sk.wscale_ok = True
    sk.sack_ok = sack
    sk.tstamp_ok = timestamps
    sk.tcp_header_len = 32 if timestamps else 20
    sk.mss_clamp = mss + (12 if timestamps else 0)
    sk.advmss = mss
    sk.mss_cache = mss
    sk.pmtu_cookie = sk.dst.mtu
    sk.rcv_mss = mss
    sk.rcv_wnd = sk.rcv_ssthresh = sk.window_clamp = 65535
    rwnd.init_buffer_space(sk)
    sk.rcv_wnd = min(sk.window_clamp, 65535)
    sk.sndbuf = 4 << 20
    sk.rtt_seq = sk.snd_nxt
    sk.high_seq = sk.snd_nxt
    sk.cwnd_stamp = sk.lsndtime_ns = sk.wstamp_ns = sk.host.now_ns
    congestion.init(sk)
    gates.begin(sk)
    if srtt_us:
        from pytcp.tcp import rtt

        rtt.rtt_estimator(sk, srtt_us)
        rtt.set_rto(sk)
        rtt.update_rtt_min(sk, srtt_us, False)
    for name, value in fields.items():
        setattr(sk, name, value)
    return sk


def segment(
    sk: Sock,
    flags: int = const.ACK,
    *,
    seq: int | None = None,
    ack: int | None = None,
    payload: bytes = b"",
    window: int | None = None,
    sack: Sequence[tuple[int, int]] = (),
    ts: tuple[int, int] | None = None,
    tos: int = 0,
    nsegs: int = 1,
    gso_size: int = 0,
    urg: int = 0,
) -> Segment:
    """A segment from the peer, as the wire carries it. `seq`, `ack`, `sack` relative to the ISNs
    (default: exactly what is expected next, everything acknowledged); `window` in bytes."""
    seg = Segment()
    seg.family = 4
    seg.src, seg.dst = sk.daddr, sk.saddr
    seg.sport, seg.dport = sk.dport, sk.sport
    seg.seq = (sk.rcv_nxt if seq is None else sk.irs + seq) & 0xFFFFFFFF
    seg.ack = (sk.snd_nxt if ack is None else sk.iss + ack) & 0xFFFFFFFF
    seg.flags = flags
    seg.window = (sk.snd_wnd if window is None else window) >> (0 if flags & const.SYN else sk.snd_wscale)
    seg.urg_ptr = urg
    seg.payload = memoryview(payload)
    seg.length = len(payload)
    seg.options.sack = tuple(((sk.iss + left) & 0xFFFFFFFF, (sk.iss + right) & 0xFFFFFFFF) for left, right in sack)
    seg.saw_tstamp = ts is not None
    seg.tsval, seg.tsecr = ts or (0, 0)
    seg.tos = tos
    seg.nsegs = nsegs
    seg.gso_size = gso_size
    seg.truesize = ((54 + len(payload) + 64 + 63) // 64) * 64 + 576
    return seg


__all__ = ["MS", "NEVER", "RCV_ISN", "SND_ISN", "US", "FakeDst", "FakeHost", "Sent", "established", "flag_text", "make_sock", "segment"]
