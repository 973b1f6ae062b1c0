"""What the runner wants of a stack under test, and how a run is set up.

A `Target` has time (ns since the start of the script), takes packets, shows what the stack sends, runs commands, and
has the system calls of `Calls`. `begin` starts a call; the `Pending` it returns says when it is over and how.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pytcp.tcp.profiles import DEFAULT as DEFAULT_PROFILE

from .script import Packet

Handle = Any  # a socket, epoll set, pipe end or file of the target
Addr = tuple[str, int]

IP_MODES = ("ipv4", "ipv6", "ipv4-mapped")


class Null:
    """A NULL buffer of so many bytes."""

    def __init__(self, size: int) -> None:
        self.size = size


@dataclass(slots=True)
class Setup:
    """How one script is run."""

    ip: str = "ipv4"
    local: str = "192.168.0.1"
    remote: str = "192.0.2.1"
    gateway: str = "192.168.0.2"
    prefix: int = 16
    bind_port: int = 8080
    connect_port: int = 8080
    mtu: int = 1500
    mss: int = 0  # gso_size of injected packets that are longer
    tolerance_ns: int = 4_000_000
    tolerance_percent: float = 12.5
    stamp_tick_ns: int = 0
    strict_segments: bool = False
    compat: bool = False
    hz: int = 0  # timer tick of the modelled kernel, 1/s; 0: the stack's default
    profile: str = DEFAULT_PROFILE  # which kernel is modelled
    timeout_s: float = 60.0
    folder: Path = field(default_factory=Path)
    macros: dict[str, str] = field(default_factory=dict)

    @property
    def family4(self) -> bool:
        """IPv4 on the wire."""
        return self.ip != "ipv6"


@dataclass(slots=True)
class Pending:
    """A system call under way, or over."""

    done: bool = False
    value: Any = None
    error: OSError | None = None
    began_ns: int = 0
    ended_ns: int = 0


class Calls(Protocol):
    """System calls. Each may raise OSError; those that can block do it as `Target.begin` says."""

    def socket(self, family: int, kind: int, proto: int) -> Handle: ...
    def bind(self, handle: Handle, address: Addr) -> int: ...
    def listen(self, handle: Handle, backlog: int) -> int: ...
    def accept(self, handle: Handle, flags: int) -> Any: ...
    def connect(self, handle: Handle, address: Addr | None) -> Any: ...
    def send(self, handle: Handle, parts: list[bytes] | Null, flags: int, call: str, address: Addr | None) -> Any: ...
    def recv(self, handle: Handle, size: int | Null, flags: int, call: str) -> Any: ...
    def recvmsg(self, handle: Handle, size: int, control: int, flags: int) -> Any: ...
    def setsockopt(self, handle: Handle, level: int, name: int, value: int | bytes) -> int: ...
    def getsockopt(self, handle: Handle, level: int, name: int, size: int) -> bytes: ...
    def shutdown(self, handle: Handle, how: int) -> int: ...
    def close(self, handle: Handle) -> Any: ...
    def getfl(self, handle: Handle) -> int: ...
    def setfl(self, handle: Handle, flags: int) -> int: ...
    def ioctl(self, handle: Handle, request: int) -> int: ...
    def poll(self, handles: list[tuple[Handle, int]], timeout_ms: int) -> Any: ...
    def epoll_create(self) -> Handle: ...
    def epoll_ctl(self, epoll: Handle, op: int, handle: Handle, events: int, data: int) -> int: ...
    def epoll_wait(self, epoll: Handle, most: int, timeout_ms: int) -> Any: ...
    def pipe(self) -> tuple[Handle, Handle]: ...
    def open(self, path: str, flags: int) -> Handle: ...
    def splice(self, source: Handle, sink: Handle, size: int, flags: int) -> Any: ...
    def sendfile(self, sink: Handle, source: Handle, offset: int | None, size: int) -> Any: ...


class Target(Protocol):
    """A stack under test, for one run."""

    name: str
    captured: deque[tuple[int, bytes]]  # (time, IP packet) the stack sent and nobody has looked at

    @property
    def calls(self) -> Calls: ...

    def open(self) -> None:
        """Build it. Raises CannotRun."""

    def close(self) -> None:
        """Remove everything."""

    def start(self) -> None:
        """The clock starts at 0."""

    def now(self) -> int:
        """ns since `start`."""

    def epoch_ns(self) -> int:
        """The wall clock at `start`, ns since 1970."""

    @property
    def patience_ns(self) -> int:
        """How long a call that does not block may take."""

    def wait(self, until_ns: int, done: Callable[[], bool]) -> None:
        """Let time pass until `until_ns`, or until `done()` (looked at whenever something happened)."""

    def check(self, packet: Packet, injected: bool) -> None:
        """Raises Unsupported for a packet that means something this target does not have."""

    def inject(self, data: bytes, gso_size: int) -> None:
        """Give the stack an IP packet."""

    def begin(self, function: Callable[..., Any], *args: Any) -> Pending:
        """Start a call, which may block."""

    def shell(self, text: str, cleanup: bool) -> None:
        """Run a command. Raises Mismatch when it fails, Unsupported when this target does not know it."""

    def info(self, handle: Handle) -> dict[str, int]:
        """tcp_info of a socket, names without `tcpi_`."""
