"""One run of an experiment: a virtual clock, the hosts on it, the wires between them, and what is written down.

Nothing here decides anything about TCP: hosts are whole stacks, and the wire carries their frames.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.frame import Link
from pytcp.link.pcapng import Capture, PcapngWriter

from . import units, wires
from .experiment import RunError, Setting, Table
from .hosts import Host
from .record import Record, Row
from .sampler import Sampler
from .units import SECOND

START = SECOND


class World:
    """What the function of an experiment gets first.

    variant: the name of the variant that runs. seed: of everything random; `rng` gives independent generators.
    """

    def __init__(
        self,
        variant: str = "",
        seed: int = 0,
        profile: str = "",
        sysctls: Iterable[tuple[str, str, Setting]] = (),
        pcap: str = "",
        record: Record | None = None,
    ) -> None:
        """sysctls: (host or "" for all, name, value). pcap: file that records what passes the wires. record: to be filled."""
        self.variant = variant
        self.seed = seed
        self.profile = profile
        self.runtime = VirtualRuntime()
        self.heap = self.runtime.heap
        self.heap.now_ns = START  # hosts have been up: 0 stands for "never" in a kernel's time stamps
        self.hosts: dict[str, Host] = {}
        self.wires: list[wires.Joined] = []
        self.tables: list[Table] = []
        self.record = record
        self._sysctls = list(sysctls)
        self._writer = PcapngWriter(Path(pcap)) if pcap else None

    def rng(self, purpose: str) -> random.Random:
        """A generator of this run's own for one purpose: what one draws does not move the others."""
        return random.Random(f"{self.seed} {purpose}")

    @property
    def now_ns(self) -> int:
        """Virtual time since the experiment began, ns."""
        return self.heap.now_ns - START

    def host(self, name: str, sysctls: dict[str, Setting] | None = None) -> Host:
        """A host with its own stack. sysctls: set over the profile's, before those of the experiment, the variant and the user."""
        if name in self.hosts:
            raise ValueError(f"there is a host {name!r} already")
        given: list[tuple[str, Setting]] = [("pytcp.profile", self.profile)] if self.profile else []
        given += (sysctls or {}).items()
        given += [(key, value) for to, key, value in self._sysctls if to in ("", name)]
        host = Host(name, self.runtime, seed=self.rng(f"host {name}").getrandbits(64), sysctls=given, zero_ns=START)
        if self.record is not None:
            host.add_tracer(Sampler(self.record, self.heap, START, name, self._queues))
        self.hosts[name] = host
        return host

    def wire(self, near: Host, far: Host, **options: Any) -> wires.Wire:
        """Join two hosts; options as of `wires.Wire`."""
        wire = wires.Wire(self.runtime, near, far, number=len(self.wires), seed=self.seed, zero_ns=START, writer=self._writer, **options)
        self.wires.append(wire)
        return wire

    def captured(self, link: Link, name: str) -> Link:
        """`link`, with what passes it in the capture as interface `name` if there is one: for what joins hosts otherwise than `wire`."""
        return link if self._writer is None else Capture(link, self._writer, name, realtime_ns=self.runtime.realtime_ns)

    def run(self, until: Callable[[], bool] | None = None, *, limit: int = 3600 * SECOND) -> None:
        """Let time pass until `until()` holds (asked after every pass), at most `limit` ns from now.

        Without `until` exactly `limit` passes. Raises TimeoutError when it does not come true."""
        runtime = self.runtime
        end = self.heap.now_ns + limit
        if until is None:
            runtime.run_until(end)
            return
        step = runtime.step
        while not until():
            if not step(end):
                what = "nothing more will happen" if runtime.next_event_ns() is None else f"the limit of {units.show(limit, units.TIME)} is over"
                raise TimeoutError(f"at {self.now_ns / 1e9:.3f} s of virtual time {what}, and the workload is not done")

    def show(self, title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table to print beside the figures."""
        self.tables.append(Table(title, tuple(header), [tuple(map(str, row)) for row in rows]))

    def _queues(self) -> Iterable[Row]:
        for wire in self.wires:
            yield from wire.queues()

    def check_hosts(self) -> None:
        """Every host that a setting names was there. Raises RunError."""
        for to, name, _ in self._sysctls:
            if to and to not in self.hosts:
                raise RunError(f"there is no host {to!r} for {to}:{name}; {units.nearest(to, self.hosts)}")

    @property
    def capture_error(self) -> OSError | None:
        """What ended the capture early."""
        return None if self._writer is None else self._writer.error

    def close(self) -> None:
        """End all stacks and the capture."""
        for host in self.hosts.values():
            host.stack.close()
        if self._writer is not None:
            self._writer.close()
