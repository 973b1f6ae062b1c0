"""traceroute: who is on the way to a host, found by packets that live too short.

A probe with a hop limit of n is reported by the n-th router (ICMP time exceeded); the host itself answers by port unreachable
(UDP probes, to ports nobody serves, one after the other from 33434) or by an echo reply (ICMP probes). Several probes are under way
together, and hops are given in order. RFC 1393 is a different thing; this is Van Jacobson's method, with the letters of Butskoy's traceroute
for what else a router may report.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from pytcp.sockets.address import numeric, parse, show

if TYPE_CHECKING:
    from pytcp.net.ping import Reply
    from pytcp.sockets.open import TrioStack

PORT = 33434
SIMULTANEOUS = 16

TIME_EXCEEDED = {4: 11, 6: 3}
UNREACHABLE = {4: 3, 6: 1}
PORT_UNREACHABLE = {4: 3, 6: 4}
LETTERS = {4: {0: "!N", 1: "!H", 2: "!P", 4: "!F", 5: "!S", 9: "!X", 10: "!X", 13: "!X"}, 6: {0: "!N", 1: "!X", 2: "!S", 3: "!H"}}


@dataclass
class Probe:
    """One probe and what came of it. rtt: seconds, None without an answer. note: a letter for an error of the way."""

    hop: int
    source: str = ""
    rtt: float | None = None
    note: str = ""
    final: bool = False  # the host itself, or the end of the way
    done: trio.Event = field(default_factory=trio.Event)


Send = Callable[[Probe], None]


async def traceroute(
    stack: TrioStack,
    host: str,
    *,
    icmp: bool = False,
    first: int = 1,
    hops: int = 30,
    queries: int = 3,
    wait: float = 5.0,
    port: int = PORT,
    length: int = 60,
    simultaneous: int = SIMULTANEOUS,
    on_hop: Callable[[list[Probe]], object] | None = None,
) -> list[list[Probe]]:
    """The hops on the way to a numeric host, each a list of its probes, up to and with the one that answers as the host.

    icmp: echo requests instead of UDP. queries: probes per hop. wait: seconds for an answer. length: bytes of a probe's IP packet.
    on_hop: called with each hop as it is known, in order. Raises OSError without a route.
    """
    family = 4 if numeric(host)[0] == 2 else 6
    room = max(0, length - (28 if family == 4 else 48))
    probes = [Probe(hop) for hop in range(first, hops + 1) for _ in range(queries)]
    found: list[list[Probe]] = []
    failure: list[OSError] = []
    with (_icmp if icmp else _udp)(stack, host, family, port, room) as send:
        limiter = trio.Semaphore(simultaneous)
        async with trio.open_nursery() as nursery:

            async def ask(probe: Probe) -> None:
                try:
                    with trio.move_on_after(wait):
                        await probe.done.wait()
                finally:
                    probe.done.set()
                    limiter.release()

            async def launch() -> None:
                for probe in probes:
                    await limiter.acquire()
                    try:
                        send(probe)
                    except OSError as exc:
                        failure.append(exc)
                        nursery.cancel_scope.cancel()
                        return
                    stack.flush()
                    nursery.start_soon(ask, probe)

            nursery.start_soon(launch)
            for at in range(0, len(probes), queries):
                hop = probes[at : at + queries]
                for probe in hop:
                    await probe.done.wait()
                found.append(hop)
                if on_hop is not None:
                    on_hop(hop)
                if any(probe.final for probe in hop):
                    break
            nursery.cancel_scope.cancel()
    if failure:
        raise failure[0]
    return found


def _answered(stack: TrioStack, probe: Probe, source: str, sent_ns: int) -> None:
    probe.source = source
    probe.rtt = (stack.net.heap.now_ns - sent_ns) / 1e9
    probe.done.set()


def _judge(probe: Probe, family: int, kind: int, code: int) -> None:
    """What an ICMP error means for the way."""
    if kind != TIME_EXCEEDED[family]:
        probe.final = True
        if kind != UNREACHABLE[family]:
            probe.note = f"!<{kind}-{code}>"
        elif code != PORT_UNREACHABLE[family]:
            probe.note = LETTERS[family].get(code, f"!{code}")


@contextlib.contextmanager
def _udp(stack: TrioStack, host: str, family: int, port: int, room: int) -> Iterator[Send]:
    target = parse(2 if family == 4 else 10, (host, 0))[0]
    socket = stack.net.udp.socket(family)
    socket.recverr = socket.recverr6 = True
    asked: dict[int, tuple[Probe, int]] = {}
    following = port

    def ready(events: int) -> None:
        socket.so_error()
        with contextlib.suppress(BlockingIOError):
            while True:
                report = socket.recv_error()
                probe, sent_ns = asked.pop(report.dport, (None, 0))
                if probe is not None and report.origin != "local":
                    _judge(probe, family, report.type, report.code)
                    _answered(stack, probe, show(report.offender), sent_ns)
        with contextlib.suppress(BlockingIOError):
            while True:
                datagram = socket.recv()
                probe, sent_ns = asked.pop(datagram.sport, (None, 0))
                if probe is not None and datagram.source == target:
                    probe.final = True
                    _answered(stack, probe, show(datagram.source), sent_ns)

    def send(probe: Probe) -> None:
        nonlocal following
        socket.so_error()
        socket.ttl = socket.hops = probe.hop
        asked[following] = probe, stack.now()
        socket.sendto(bytes(0x40 + i % 0x40 for i in range(room)), target, following)
        following = following + 1 if following < 0xFFFF else port

    socket.on_ready = ready
    try:
        yield send
    finally:
        socket.close()


@contextlib.contextmanager
def _icmp(stack: TrioStack, host: str, family: int, port: int, room: int) -> Iterator[Send]:
    asked: dict[int, tuple[Probe, int]] = {}

    def replied(reply: Reply) -> None:
        probe, sent_ns = asked.pop(reply.seq, (None, 0))
        if probe is not None:
            if reply.error is None:
                probe.final = True
            else:
                _judge(probe, family, *reply.error)
            _answered(stack, probe, show(reply.source), sent_ns)

    pinger = stack.net.ping.open(parse(2 if family == 4 else 10, (host, 0))[0], replied)

    def send(probe: Probe) -> None:
        pinger.ttl = probe.hop
        now = stack.now()
        asked[pinger.send(bytes(0x40 + i % 0x40 for i in range(room)))] = probe, now

    try:
        yield send
    finally:
        pinger.close()
