"""Listening to a stack's decisions: rows for files and people, of some connections and kinds, any number of listeners at a time.

`Listener` makes of each event (`tcp.trace`) a plain dict, {"t_ns", "flow", "kind", ...}, and hands it to a function. `attach` gives
one to a stack and to every connection it has; `detach` takes it away again, and then nothing listens and nothing costs.
A flow is called `10.0.0.1:40000>10.0.0.2:80`, our end first. Rows are made inside the engine's pass: the function must be short.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any

from pytcp.tcp.sock import Sock
from pytcp.wire.addr import format_ip

from .tcp_host import TcpHost

if TYPE_CHECKING:
    from pytcp.tcp.trace import Tracer

Row = dict[str, Any]


def flow_name(sk: Sock) -> str:
    """Both ends of a connection, ours first."""
    return f"{_end(sk.saddr, sk.sport)}>{_end(sk.daddr, sk.dport)}"


def _end(addr: bytes, port: int) -> str:
    text = format_ip(addr)
    return f"[{text}]:{port}" if len(addr) == 16 else f"{text}:{port}"


class Listener:
    """A `Tracer` that makes rows of what it hears of the connections and kinds that are wanted."""

    def __init__(
        self,
        deliver: Callable[[Row], object],
        *,
        kinds: Collection[str] = (),
        ports: Collection[int] = (),
        peers: Iterable[IPv4Network | IPv6Network] = (),
    ) -> None:
        """deliver: is given each row. kinds: of events; ports: of either end; peers: networks of the other end. Empty: all."""
        self._deliver = deliver
        self._kinds = frozenset(kinds)
        self._ports = frozenset(ports)
        self._peers = tuple(peers)
        self._names: dict[Sock, str | None] = {}  # None: not wanted

    def event(self, sk: Sock, kind: str, **fields: Any) -> None:
        """See `tcp.trace.Tracer`."""
        if not sk.daddr:
            return  # a listening socket
        try:
            name = self._names[sk]
        except KeyError:
            name = self._names[sk] = flow_name(sk) if self._wanted(sk) else None
        if kind == "state" and fields["new"] == "CLOSE":
            del self._names[sk]
        if name is not None and (not self._kinds or kind in self._kinds):
            self._deliver({"t_ns": sk.host.now_ns, "flow": name, "kind": kind, **fields})

    def _wanted(self, sk: Sock) -> bool:
        if self._ports and sk.sport not in self._ports and sk.dport not in self._ports:
            return False
        return not self._peers or any(ip_address(sk.daddr) in peer for peer in self._peers)


class Fan:
    """Several tracers of one stack."""

    def __init__(self, tracers: tuple[Tracer, ...]) -> None:
        self.tracers = tracers

    def event(self, sk: Sock, kind: str, **fields: Any) -> None:
        """See `tcp.trace.Tracer`."""
        for tracer in self.tracers:
            tracer.event(sk, kind, **fields)


def attach(stack: TcpHost, tracer: Tracer) -> None:
    """Let `tracer` hear of every connection of `stack`, those that exist included, beside who listens already."""
    _set(stack, (*_listening(stack), tracer))


def detach(stack: TcpHost, tracer: Tracer) -> None:
    """`tracer` hears no more; harmless when it does not listen."""
    _set(stack, tuple(other for other in _listening(stack) if other is not tracer))


@contextlib.contextmanager
def every_stack(tracer: Tracer) -> Iterator[None]:
    """Give `tracer` to every stack made in the block that gets none of its own."""
    before = TcpHost.tracer
    TcpHost.tracer = tracer
    try:
        yield
    finally:
        TcpHost.tracer = before


def count(stack: TcpHost) -> int:
    """How many listen."""
    return len(_listening(stack))


def _listening(stack: TcpHost) -> tuple[Tracer, ...]:
    tracer = stack.tracer
    if tracer is None:
        return ()
    return tracer.tracers if isinstance(tracer, Fan) else (tracer,)


def _set(stack: TcpHost, tracers: tuple[Tracer, ...]) -> None:
    old = stack.tracer
    new = None if not tracers else tracers[0] if len(tracers) == 1 else Fan(tracers)
    stack.tracer = new
    for entry in list(stack.table.values()):
        # a connection that has a tracer of its own keeps it
        if isinstance(entry, Sock) and entry.trace is old:
            entry.trace = new
