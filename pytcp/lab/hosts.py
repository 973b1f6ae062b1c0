"""A host of an experiment: a stack, its sockets without trio, its counters since a moment.

Programs of experiments are callbacks: a socket's `notify` runs at the end of the pass that brought the news, as a
thread woken by the kernel would. No task is switched, so a simulated packet costs little more than the stack's own work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pytcp.net import sysctl
from pytcp.net.stack import Stack
from pytcp.sockets.address import AF_INET, AF_INET6
from pytcp.sockets.socket import SO_REUSEADDR, SOL_SOCKET, Socket, StackHost
from pytcp.tcp.const import POLLOUT

from .record import Row
from .sampler import Listener

if TYPE_CHECKING:
    from pytcp.clock.virtual import VirtualRuntime
    from pytcp.net.interface import Interface
    from pytcp.tcp.sock import Sock
    from pytcp.tcp.trace import Tracer

__all__ = ["AF_INET", "AF_INET6", "Host"]


class Host(StackHost):
    """One host; `World.host` makes it. stack: the whole stack, for what is not here."""

    def __init__(self, name: str, runtime: VirtualRuntime, *, seed: int, sysctls: Iterable[tuple[str, int | float | str]] = (), zero_ns: int = 0) -> None:
        """zero_ns: the time from which experiments count. Raises OSError for a sysctl that is not one, or a value it does not take."""
        self.name = name
        super().__init__(Stack(runtime, seed=seed))
        for key, value in sysctls:
            sysctl.set_(self.stack.sysctl, key, value if isinstance(value, int) else str(value))
        self.interfaces: list[Interface] = []
        self.address4 = ""
        self.address6 = ""
        self._zero_ns = zero_ns
        self._tracers: list[Tracer] = []
        self._since: dict[str, int] = {}

    # --- sockets ---

    def socket(self, family: int = AF_INET) -> Socket:
        """A non-blocking TCP socket."""
        return Socket(self, family)

    def listen(self, port: int, accepted: Callable[[Socket], object], *, prepare: Callable[[Socket], object] | None = None, backlog: int = 4096) -> Socket:
        """Listen on a port of both families; `accepted` gets each connection. prepare: options, before `listen`."""
        listener = self.socket(AF_INET6)
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        if prepare is not None:
            prepare(listener)
        listener.bind(("::", port))
        listener.listen(backlog)

        def notify(mask: int) -> None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    accepted(listener.accept()[0])

        listener.notify = notify
        return listener

    def connect(
        self,
        to: Host,
        port: int,
        connected: Callable[[Socket], object] | None = None,
        *,
        family: int = AF_INET,
        prepare: Callable[[Socket], object] | None = None,
    ) -> Socket:
        """Connect to a host's port; `connected` gets the socket when it is. prepare: options, before the SYN."""
        socket = self.socket(family)
        if prepare is not None:
            prepare(socket)

        def notify(mask: int) -> None:
            if mask & POLLOUT:
                socket.connect((host, port))  # raises what came of it
                socket.notify = _ignore
                if connected is not None:
                    connected(socket)

        socket.notify = notify
        host = to.address4 if family == AF_INET else to.address6
        with contextlib.suppress(BlockingIOError):
            socket.connect((host, port))
        return socket

    # --- what the engine decides ---

    def trace(self, *kinds: str) -> list[Row]:
        """The trace events (`pytcp.tcp.trace`) of these kinds, of all without any, from now on; of connections made from now on.

        Rows have t_ns (since the experiment began) and kind beside the event's own fields."""
        listener = Listener(self.stack.heap, self._zero_ns, kinds)
        self.add_tracer(listener)
        return listener.rows

    def add_tracer(self, tracer: Tracer) -> None:
        """Tell one more sink what connections made from now on do."""
        self._tracers.append(tracer)
        self.stack.tracer = tracer if len(self._tracers) == 1 else self

    def event(self, sk: Sock, kind: str, **fields: Any) -> None:
        """For several sinks the host itself is the engine's tracer."""
        for tracer in self._tracers:
            tracer.event(sk, kind, **fields)

    # --- counters ---

    def mark(self) -> None:
        """Counters count from here, as after `nstat -n`."""
        self._since = self.counters_total()

    def counters_total(self) -> dict[str, int]:
        """All counters since the stack was made."""
        return {name: value for name, value in vars(self.stack.mib).items() if isinstance(value, int)}

    @property
    def counters(self) -> dict[str, int]:
        """Counters since `mark`; one that did not move is 0."""
        since = self._since
        return _Zeros((name, value - since.get(name, 0)) for name, value in self.counters_total().items())


class _Zeros(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return 0


def _ignore(mask: int) -> None:
    """Nobody waits."""
