"""The wire between two hosts of an experiment.

Two kinds, told apart by what happens to packets on it. A plain wire carries super-frames whole and only delays them
(`link.pipe`): the receiver gets what a NIC's receive offload would make of them, one delivery per super-frame, or, with
`receive="segments"`, every segment by itself. A wire with a bottleneck or accidents judges packet by packet (`link.emulator`); its rate is
fixed, a function of time (`Varying(lambda t_ns: ...)`) or a mahimahi trace (`Trace.read(file)`), its queue droptail, `CoDel` or `Red`,
both of which can mark instead of drop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol

from pytcp.link import qdisc as qdiscs
from pytcp.link.aqm import CoDel, Red
from pytcp.link.delayed import Delayed
from pytcp.link.emulator import Emulator, Impairment
from pytcp.link.frame import F_CSUM, F_RXCSUM, Link
from pytcp.link.pcapng import Capture, PcapngWriter
from pytcp.link.pipe import ALL_FEATURES, pipe_pair
from pytcp.link.rates import Since, Trace, Varying

from .record import Row

if TYPE_CHECKING:
    from pytcp.clock.virtual import VirtualRuntime
    from pytcp.net.interface import Interface

    from .hosts import Host

__all__ = ["CoDel", "Completions", "Delayed", "Impairment", "Receive", "Red", "Trace", "Varying", "Wire"]

Completions = str | Delayed  # modes of `link.txring`
Receive = Literal["super", "segments", "gro"]


class Joined(Protocol):
    """Something between hosts that has queues: a `Wire`, a `dumbbell.Dumbbell`."""

    def queues(self) -> Iterable[Row]: ...


class Wire:
    """Two hosts joined; the first wire of a host gives it its addresses (10.0.N.1 and .2, fd00:N::1 and ::2)."""

    def __init__(
        self,
        runtime: VirtualRuntime,
        near: Host,
        far: Host,
        *,
        number: int = 0,
        seed: int = 0,
        zero_ns: int = 0,
        writer: PcapngWriter | None = None,
        delay: int = 0,
        rate: int = 0,
        mtu: int = 1500,
        receive: Receive = "super",
        there: Impairment | None = None,
        back: Impairment | None = None,
        completions: Completions | tuple[Completions, Completions] = "reaped",
        qdisc: str | qdiscs.Settings | None = None,
        gso_max: int = 65536,
    ) -> None:
        """delay: one way, ns. rate: bit/s of both NICs, 0 = infinite. mtu: bytes of IP, 68 to 65535 (ValueError). gso_max: of a super-frame.
        receive: "super": a super-frame sent is one received; "segments": none is coalesced; "gro": what arrives together is.
        there, back: what happens to packets from `near` to `far`, and back. completions: of both transmit rings, or a pair.
        qdisc: before both rings, "pfifo", "fq" or settings of `link.qdisc`.
        zero_ns: the time from which a varying rate counts. writer: records what `near` sends and receives."""
        if not 68 <= mtu <= 65535:
            raise ValueError(f"an mtu of {mtu} bytes; IPv4 has 68 to 65535")
        heap = runtime.heap
        takes = ALL_FEATURES if receive == "super" else F_CSUM | F_RXCSUM
        macs = (bytes((2, 0, 0, number >> 8, number & 255, 1)), bytes((2, 0, 0, number >> 8, number & 255, 2)))
        names = f"{near.name}{number}", f"{far.name}{number}"
        ends = pipe_pair(heap, mtu=mtu, delay_ns=delay, rate=rate, limit=1 << 20, names=names, macs=macs, takes=takes)
        for end in ends:
            end.gso_max_size = gso_max
        self.ends = ends
        self.name = f"{near.name}-{far.name}"
        self.emulator: Emulator | None = None
        first: Link = ends[0]
        if there is not None or back is not None:
            first = self.emulator = Emulator(first, heap, seed, tx=_since(there, zero_ns), rx=_since(back, zero_ns))
        if writer is not None:
            first = Capture(first, writer, near.name, realtime_ns=runtime.realtime_ns)
        gro = receive == "gro"
        modes = completions if isinstance(completions, tuple) else (completions, completions)
        pair = [self._join(near, first, number, 1, modes[0], qdisc, gro), self._join(far, ends[1], number, 2, modes[1], qdisc, gro)]
        for i in (0, 1):
            neighbour = bytes((10, 0, number, 2 - i)), bytes.fromhex(f"fd00{number:04x}") + bytes(11) + bytes((2 - i,))
            pair[i].neigh4.add_permanent(neighbour[0], macs[1 - i])
            pair[i].neigh6.add_permanent(neighbour[1], macs[1 - i])

    def queues(self) -> Iterable[Row]:
        """The queues before the bottlenecks now: packets, bytes, and drops and marks so far."""
        if self.emulator is not None:
            for name, way in (("there", self.emulator.outward), ("back", self.emulator.inward)):
                if way.impairment.rate:
                    packets, size = way.queued
                    drops = way.counters.overflowed + way.counters.dropped
                    yield {"queue": f"{self.name} {name}", "packets": packets, "bytes": size, "drops": drops, "marks": way.counters.marked}

    @staticmethod
    def _join(host: Host, link: Link, number: int, which: int, completions: Completions, qdisc: str | qdiscs.Settings | None, gro: bool) -> Interface:
        addresses = f"10.0.{number}.{which}", f"fd00:{number:x}::{which}"
        name = f"eth{len(host.interfaces)}"
        dev = host.stack.add_interface(link, [f"{addresses[0]}/24", f"{addresses[1]}/64"], name=name, tx_mode=completions, qdisc=qdisc, gro=gro)
        host.interfaces.append(dev)
        if not host.address4:
            host.address4, host.address6 = addresses
        return dev


def _since(what: Impairment | None, zero_ns: int) -> Impairment | None:
    """A rate that varies begins with the experiment."""
    return what if what is None or isinstance(what.rate, int) else replace(what, rate=Since(what.rate, zero_ns))
