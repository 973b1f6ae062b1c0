"""The wire and the numbers of a scripted conversation: what a replayed recording needs besides the stack."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.frame import GSO_TCPV4, RxFrame, TxFrame
from pytcp.link.offload import segment
from pytcp.tcp.sock import Sock
from pytcp.wire.addr import parse_ip

from . import script_calls as calls
from . import script_wire as wire

MS = 1_000_000
TICK = 4 * MS
READ_LATE = 25 * MS  # the script stamps frames when it reads them, at worst after reading the table
OURS = {4: parse_ip("10.79.0.1"), 6: parse_ip("fd00:79::1")}
PEER = {4: parse_ip("10.79.0.2"), 6: parse_ip("fd00:79::2")}
PEER_ISN = 0xFFFFFC00


def granularity(delay_ns: int) -> int:
    """How coarse the timer wheel is for a delay."""
    ticks = delay_ns // TICK
    return (0 if ticks < 63 else 8 if ticks < 504 else 64 if ticks < 4032 else 512) * TICK


class ScriptLink:
    """A TAP without offloads: keeps what the stack sends, and gives it what the script says."""

    def __init__(self, runtime: VirtualRuntime, mtu: int) -> None:
        self.runtime = runtime
        self.name = "t0"
        self.mac = wire.OUR_MAC
        self.mtu = mtu
        self.features = 0
        self.gso_max_size = 65536
        self.sent: deque[tuple[int, bytes]] = deque()
        self.rx: Callable[[RxFrame], None]  # set by the interface
        self.rx_end: Callable[[], None]

    def fileno(self) -> int:
        return -1

    def poll(self, budget: int) -> int:
        return 0

    def send(self, frames: Sequence[TxFrame]) -> int:
        for frame in frames:
            for data in segment(frame):
                self.sent.append((self.runtime.heap.now_ns, bytes(data)))
        return len(frames)

    def close(self) -> None:
        """Nothing to give back."""

    def inject(self, data: bytes, gso_size: int = 0) -> None:
        """The peer writes a frame; the stack takes it in a pass of its own."""
        self.runtime.heap.call_later(0, lambda: self._deliver(data, gso_size))
        self.runtime.run_for(0)

    def _deliver(self, data: bytes, gso_size: int) -> None:
        self.rx(RxFrame(memoryview(data), GSO_TCPV4 if gso_size else 0, gso_size))
        self.rx_end()


class Conn:
    """One connection of a case: the script's socket and what both sides' numbers are relative to."""

    def __init__(self, number: int, family: int) -> None:
        self.number = number
        self.family = family
        self.peer_port = 30000 + number
        self.port = 10000 + number
        self.sk: Sock | None = None
        self.listener: Sock | None = None
        self.edges: calls.Edges | None = None
        self.isn: int | None = None  # ours
        self.again = 0  # what is to be added to a number of the kernel's later connections on the same ports to have ours
        self.scale = 0  # ours, once both sides agreed
        self.peer_scale = 0
        self.syn_scales: dict[str, int | None] = {}
        self.echo: dict[int, int] = {}  # the kernel's TSval -> ours
        self.ts_offset: int | None = None
        self.flow: dict[int, int] = {}
        self.sent: deque[tuple[int, dict[str, Any]]] = deque()
        self.expected: deque[tuple[int, dict[str, Any]]] = deque()
        self.ends: set[int] = set()  # relative numbers at which writes ended
        self.written = 1
        self.last_event = 0  # when the last thing happened, in the recording's time
        self.linger: tuple[Sock, int, int] | None = None  # socket, begin and end of a close() that waits
        self.lingered_ns = 0
        self.before_listen: list[str] = []


def tick_phase(steps: list[dict[str, Any]]) -> int:
    """Where in a tick the case began, ns: its timers fired at tick boundaries, and were read some 30 us later."""
    cause = 0
    late = []
    for step in steps:
        at = int(step["t"] * 1_000_000_000)
        if "kernel" not in step:
            cause = at
        elif at - cause > MS:
            late.append(at % TICK)
    if not late:
        return 0
    boundary = max(late, key=lambda r: (sum((other - r) % TICK < MS // 4 for other in late), -r))
    return (30_000 - boundary) % TICK
