"""Scenery for tests of the host: two stacks on a pipe, or one stack and a scripted wire, in virtual time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.frame import RxFrame, TxFrame
from pytcp.link.offload import segment
from pytcp.link.pipe import ALL_FEATURES, PipeEnd, pipe_pair
from pytcp.net.interface import Interface
from pytcp.net.stack import Stack
from pytcp.tcp import api
from pytcp.tcp.sock import Sock
from pytcp.wire.addr import parse_ip
from pytcp.wire.ethernet import Ethernet
from pytcp.wire.ipv4 import Ipv4
from pytcp.wire.ipv6 import Ipv6

MS = 1_000_000
S = 1_000_000_000
HOST_MAC = b"\x02\x00\x00\x00\x00\x11"
PEER_MAC = b"\x02\x00\x00\x00\x00\x12"
HOST4 = parse_ip("10.0.0.1")
PEER4 = parse_ip("10.0.0.2")
HOST6 = parse_ip("fd00::1")
PEER6 = parse_ip("fd00::2")
CLOSED = 7


class Wire:
    """A device whose other end is the test: it keeps what is sent, whole, and hears what it is told."""

    def __init__(self, runtime: VirtualRuntime, *, mtu: int = 1500, features: int = 0) -> None:
        self.runtime = runtime
        self.name = "eth0"
        self.mac = HOST_MAC
        self.mtu = mtu
        self.features = features
        self.gso_max_size = 65536
        self.room = 1 << 30
        self.sent: list[bytes] = []
        self.frames: list[TxFrame] = []
        self.rx: Callable[[RxFrame], None]
        self.rx_end: Callable[[], None]

    def fileno(self) -> int:
        return -1

    def poll(self, budget: int) -> int:
        return 0

    def send(self, frames: Any) -> int:
        taken = frames[: self.room]
        for frame in taken:
            self.frames.append(frame)
            self.sent += [bytes(packet) for packet in segment(frame)]
        return len(taken)

    def close(self) -> None:
        """Nothing to give back."""

    def hears(self, packet: Ipv4 | Ipv6 | bytes, *, to: bytes = HOST_MAC, ethertype: int = 0) -> None:
        """A frame from the peer, dealt with at once."""
        kind = ethertype or (0x0800 if isinstance(packet, Ipv4) else 0x86DD)
        data = packet if isinstance(packet, bytes) else packet.emit()
        self.hears_frame(Ethernet(to, PEER_MAC, kind, data).emit())

    def hears_frame(self, data: bytes) -> None:
        def arrive() -> None:
            self.rx(RxFrame(memoryview(data)))
            self.rx_end()

        self.runtime.heap.call_later(0, arrive)
        self.runtime.run_for(0)

    def packets(self) -> list[Ipv4 | Ipv6]:
        """The IP packets sent since the last call, in order."""
        frames = [Ethernet.parse(frame) for frame in self.sent]
        self.sent.clear()
        return [Ipv4.parse(f.payload) if f.ethertype == 0x0800 else Ipv6.parse(f.payload) for f in frames if f.ethertype in (0x0800, 0x86DD)]


def one_host(*, neighbours: bool = True, mtu: int = 1500, features: int = 0) -> tuple[VirtualRuntime, Stack, Interface, Wire]:
    """A host on a scripted wire, knowing its peer's MAC unless told not to."""
    runtime = VirtualRuntime()
    stack = Stack(runtime, seed=7)
    wire = Wire(runtime, mtu=mtu, features=features)
    dev = stack.add_interface(wire, ["10.0.0.1/24", "fd00::1/64"])
    stack.add_route("default", via="10.0.0.2")
    stack.add_route("default", via="fd00::2")
    if neighbours:
        dev.neigh4.add_permanent(PEER4, PEER_MAC)
        dev.neigh6.add_permanent(PEER6, PEER_MAC)
    runtime.run_for(0)
    return runtime, stack, dev, wire


def two_hosts(*, features: int = ALL_FEATURES, mtu: int = 1500, delay_ns: int = 500_000) -> tuple[VirtualRuntime, Stack, Stack, tuple[PipeEnd, PipeEnd]]:
    """Two hosts on a pipe: 10.0.0.1, fd00::1 and 10.0.0.2, fd00::2."""
    runtime = VirtualRuntime()
    ends = pipe_pair(runtime.heap, delay_ns=delay_ns, features=features, mtu=mtu)
    first, second = Stack(runtime, seed=1), Stack(runtime, seed=2)
    first.add_interface(ends[0], ["10.0.0.1/24", "fd00::1/64"])
    second.add_interface(ends[1], ["10.0.0.2/24", "fd00::2/64"])
    return runtime, first, second, ends


class Watcher:
    """What a socket object is to the host: it is told of readiness."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def notify(self, events: int) -> None:
        self.told.append(events)


def dial(stack: Stack, addr: bytes, port: int) -> Sock:
    """A socket that has begun to connect."""
    sk = stack.new_sock(4 if len(addr) == 4 else 6)
    sk.user = Watcher()
    stack.now()
    with contextlib.suppress(BlockingIOError):
        api.connect(sk, addr, port)
    stack.flush()
    return sk


def serve(stack: Stack, family: int, port: int) -> Sock:
    """A listening socket."""
    sk = stack.new_sock(family)
    sk.user = Watcher()
    api.bind(sk, b"", port)
    api.listen(sk, 16)
    return sk


def transfer(runtime: VirtualRuntime, source: Sock, sink: Sock, data: bytes, step_ns: int = MS) -> bytes:
    """Send `data` through a connection and return what came out."""
    hosts = [sk.host for sk in (source, sink)]
    at = 0
    out = bytearray()
    for _ in range(100_000):
        for host in hosts:
            assert isinstance(host, Stack)
            host.now()
        try:
            while at < len(data):
                at += api.sendmsg(source, data[at : at + 65536], 0)
        except BlockingIOError:
            pass
        runtime.run_for(step_ns)
        try:
            while chunk := api.recv(sink, 1 << 20, 0):
                out += chunk
        except BlockingIOError:
            pass
        if len(out) >= len(data):
            return bytes(out)
    raise AssertionError(f"only {len(out)} of {len(data)} bytes came through")
