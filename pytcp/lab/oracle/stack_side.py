"""pytcp with one connection, as a `Side`: a whole stack, its device a wire that ends in the script.

`StackSide` is what virtual and real time share. `VirtualSide` lets time pass event by event; `replay`
gives it what a run on the kernel was given.
"""

from __future__ import annotations

import contextlib
import heapq
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pytcp.clock.heap import TimerHeap
from pytcp.clock.runtime import Runtime
from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.frame import CSUM_UNNECESSARY, F_CSUM, F_RXCSUM, F_TSO4, GSO_TCPV4, RxFrame, TxFrame
from pytcp.link.offload import segment
from pytcp.link.txring import TxRing
from pytcp.net import sysctl
from pytcp.net.stack import Stack
from pytcp.net.truesize import GOOD_LINEAR, SKB, rx_truesize
from pytcp.sockets.socket import Socket, StackHost
from pytcp.tcp.info import TcpInfo
from pytcp.tcp.skb import PAGE_FRAG, PAGE_LEAST

from .frames import HOST_IP, HOST_MAC, LISTEN_PORT, PEER4, PEER_IP, PEER_MAC, PEER_PORT, VNET, HostFrame, parse
from .kernel_side import MSG, OPTIONS, call, flat

if TYPE_CHECKING:
    from pytcp.tcp.sock import Sock


class Wire:
    """The device: frames of the stack are kept, frames of the script arrive."""

    def __init__(self, heap: Any, mtu: int, offload: bool) -> None:
        self.heap = heap
        self.name = "tap0"
        self.mac = HOST_MAC
        self.mtu = mtu
        self.features = F_CSUM | F_TSO4 | F_RXCSUM if offload else 0
        self.gso_max_size = 65536
        self.rx: Callable[[RxFrame], None] = lambda frame: None
        self.rx_end: Callable[[], None] = lambda: None
        self.sent: deque[HostFrame] = deque()

    def fileno(self) -> int:
        return -1

    def poll(self, budget: int) -> int:
        return 0

    def send(self, frames: Sequence[TxFrame]) -> int:
        now = self.heap.now_ns // 1000
        for frame in frames:
            if frame.gso_size and not self.features:
                heads = [(bytes(data), 0) for data in segment(frame)]
            else:
                heads = [(bytes(frame.head), frame.gso_size)]
            for head, gso_size in heads:
                parsed = parse(head, gso_size, now)
                if parsed is not None:
                    self.sent.append(parsed)
        return len(frames)

    def close(self) -> None:
        """Nothing to let go of."""


class LateHeap(TimerHeap):
    """A timer heap whose next timer can be made late, as a machine's is now and then."""

    def postpone(self, by_ns: int) -> bool:
        """The next timer comes `by_ns` later; False if it has been postponed already."""
        when_ns, count, timer = self._heap[0]
        if timer.when_ns != when_ns:
            return False
        # the timer itself keeps the time it was set to
        heapq.heapreplace(self._heap, (when_ns + by_ns, count, timer))
        return True


class SpacedRing(TxRing):
    """A transmit queue that takes time: `times` are the instants at which the frames behind the next one are made, ns."""

    def __init__(self, link: Any, heap: TimerHeap, on_complete: Callable[[Any, Any, int], bool | None]) -> None:
        super().__init__(link, heap, on_complete, "orphan")
        self.times: list[int] = []

    def put(self, frame: TxFrame) -> bool:
        """As the kernel's: what a call sends leaves within tens of microseconds, and loss detection sees in which order."""
        taken = super().put(frame)
        self.flush()
        if self.times:
            self.heap.now_ns = max(self.heap.now_ns, self.times.pop(0))
            if self.look is not None:
                self.look()
        return taken

    look: Callable[[], int] | None = None  # the stack looks at the clock


class HeldRing(TxRing):
    """A transmit queue whose frames leave one by one when told to, and are completed as they do: a class behind the socket."""

    free = 0  # so many frames leave at once

    def put(self, frame: TxFrame) -> bool:
        """Queue a frame; there is always room."""
        self.queue.append(frame)
        if self.free:
            self.free -= 1
            self.release()
        return True

    def post(self, frame: TxFrame) -> bool:
        """The same."""
        return self.put(frame)

    def flush(self) -> None:
        """Nothing leaves by itself."""

    def release(self) -> bool:
        """The oldest frame leaves. False when there is none."""
        if not self.queue:
            return False
        frame = self.queue.pop(0)
        self.link.send([frame])
        if frame.owner is not None:
            self.on_complete(frame.owner, frame.skb, frame.truesize)
        return True


class StackSide:
    """See the module."""

    name = "pytcp"

    def __init__(self, config: dict[str, Any], runtime: Runtime, link: Any) -> None:
        self.config = config
        self.runtime = runtime
        self.link = link
        self.stack = Stack(runtime, seed=1)
        for name, value in config.get("sysctls", {}).items():
            self.sysctl(name, value)
        link.gso_max_size = config.get("gso_max_size", 65536)
        dev = self.stack.add_interface(link, [f"{HOST_IP}/24"], tx_mode="orphan", ipv6=False)
        dev.neigh4.add_permanent(PEER4, PEER_MAC)
        self.dev = dev
        self.sock: Socket

    @property
    def sk(self) -> Sock:
        """The engine's socket."""
        sk = self.sock.sk or self._closed
        assert sk is not None
        return sk

    _closed: Sock | None = None  # the program is done with it

    def replace_ring(self, ring: TxRing) -> None:
        """From now on frames wait in `ring`."""
        rings = self.stack._rings
        rings[rings.index(self.dev.ring)] = ring
        self.dev.ring = ring
        self.dev.put = ring.put

    # --- the program ---

    def _socket(self) -> None:
        self.sock = Socket(StackHost(self.stack), socket.AF_INET)
        self._limit_gso()
        if self.config.get("cc"):
            self.setsockopt("cc", self.config["cc"])
        for name, value in self.config.get("pre", []):
            self.setsockopt(name, value)

    def _limit_gso(self) -> None:
        if self.config.get("gso_max_segs"):
            self.sk.gso_max_segs = self.config["gso_max_segs"]

    def connect(self) -> None:
        self._socket()
        with contextlib.suppress(BlockingIOError):
            self.sock.connect((PEER_IP, PEER_PORT))

    def listen(self) -> None:
        self._socket()
        self.sock.bind((HOST_IP, LISTEN_PORT))
        self.sock.listen(5)

    def accept(self) -> None:
        self.sock = self.sock.accept_socket()
        self._limit_gso()

    def write(self, size: int, flags: tuple[str, ...]) -> int | str:
        return self._call(lambda: self.sock.send(bytes(size), sum(MSG[word] for word in flags)))

    def read(self, size: int, flags: tuple[str, ...]) -> int | str:
        return self._call(lambda: len(self.sock.recv(size, sum(MSG[word] for word in flags))))

    def setsockopt(self, name: str, value: int | str) -> int | str:
        level, number = OPTIONS[name]
        return self._call(lambda: self.sock.setsockopt(level, number, value.encode() if isinstance(value, str) else value))

    def shutdown(self) -> None:
        self._call(lambda: self.sock.shutdown(socket.SHUT_WR))

    def close(self) -> None:
        self._closed = self.sk
        self._call(self.sock.close)

    def sysctl(self, name: str, value: int | str) -> None:
        sysctl.set_(self.stack.sysctl, name if name.startswith("net.") else f"net.ipv4.{name}", value)

    def mtu(self, mtu: int) -> None:
        self.dev.set_mtu(mtu)

    def _call(self, function: Callable[[], object]) -> int | str:
        return call(function)

    def writable(self) -> bool:
        return bool(self.sock.poll() & (select.POLLOUT | select.POLLERR))

    def readable(self) -> bool:
        return bool(self.sock.poll() & (select.POLLIN | select.POLLHUP))

    def info(self) -> dict[str, int]:
        self.stack.now()
        sk = self.sk
        info = self.sock.info()
        values = flat({field.name: getattr(info, field.name) for field in fields(TcpInfo)})
        return values | {
            "rmem": sk.rmem_alloc,
            "rcvbuf": sk.rcvbuf,
            "wmem_alloc": sk.wmem_alloc - 1,
            "sndbuf": sk.sndbuf,
            "wmem_queued": sk.wmem_queued,
            "fwd_alloc": sk.forward_alloc & 0xFFFFFFFF,  # SO_MEMINFO is unsigned
            "clamp": sk.window_clamp,
        }

    def counters(self) -> dict[str, int]:
        return self.stack.mib.snapshot()


class VirtualSide(StackSide):
    """In virtual time. `start_ns` is when the machine stands at the beginning: its ticks are multiples of 4 ms."""

    def __init__(self, config: dict[str, Any], start_ns: int) -> None:
        self.heap = LateHeap(start_ns)
        runtime = VirtualRuntime(self.heap)
        self.wire = Wire(runtime.heap, config.get("mtu") or 1500, bool(config.get("offload", True)))
        super().__init__(config, runtime, self.wire)
        self.virtual = runtime
        self.held: HeldRing | None = None
        self.spaced = SpacedRing(self.wire, self.heap, self.stack.orphaned)
        self.spaced.look = self.stack.now
        self.replace_ring(self.spaced)

    def __enter__(self) -> VirtualSide:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stack.close()

    def now_us(self) -> int:
        return self.virtual.heap.now_ns // 1000

    def run_until(self, when_ns: int) -> None:
        """Let time pass; never back."""
        if when_ns > self.virtual.heap.now_ns:
            self.virtual.run_until(when_ns)

    def fire_late(self, after_ns: int, when_ns: int) -> None:
        """Timers due between the two times fire at `when_ns`, as late as the kernel's did."""
        heap = self.virtual.heap
        self.run_until(after_ns)
        due = heap.next_deadline()
        if due is not None and heap.now_ns < when_ns and due <= when_ns:
            heap.now_ns = when_ns
            self.virtual.run_for(0)

    def _call(self, function: Callable[[], object]) -> int | str:
        result = super()._call(function)
        self.virtual.run_for(0)
        return result

    def connect(self) -> None:
        super().connect()
        self.virtual.run_for(0)

    def frames(self) -> list[HostFrame]:
        sent = list(self.wire.sent)
        self.wire.sent.clear()
        return sent

    def inject(self, vnet: bytes, frame: bytes) -> None:
        gso_size = VNET.unpack(vnet)[3]
        received = RxFrame(memoryview(frame), GSO_TCPV4 if gso_size else 0, gso_size, CSUM_UNNECESSARY)

        def arrive() -> None:
            self.wire.rx(received)
            self.wire.rx_end()

        self._build(len(frame))
        self.virtual.heap.call_later(0, arrive)
        self.virtual.run_for(0)

    def _build(self, size: int) -> None:
        """Peer and program are one task of the kernel's, and it builds a frame of the peer's in the page it copies the program's bytes to."""
        if size <= GOOD_LINEAR:
            page = self.stack.page_frag
            page.skb = None
            left = (page.left & ~63) - rx_truesize(size) + SKB
            page.left = left if left >= PAGE_LEAST else PAGE_FRAG - rx_truesize(size) + SKB

    def hold(self) -> None:
        """Frames wait from now on until `release`."""
        self.held = HeldRing(self.wire, self.virtual.heap, self.stack.orphaned)
        self.replace_ring(self.held)

    def release(self) -> None:
        """The oldest held frame leaves, and its socket may go on."""
        if self.held is not None:
            self.stack.now()
            self.held.release()
            self.virtual.run_for(0)


