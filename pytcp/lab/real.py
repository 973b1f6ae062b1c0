"""`pytcp lab run --real`: a variant of an experiment over a TAP, with this machine's kernel as the peer.

The function given to `Experiment.over_tap` gets a `Real`: a stack with the variant's settings, a testbed, a delay line between them that
keeps super-frames whole, and the counters of both sides since the start. Time is real here, and figures vary with the machine.
"""

from __future__ import annotations

import inspect
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from pytcp.clock.real import RealRuntime
from pytcp.link.delayed import Delayed
from pytcp.link.delayline import DelayLine
from pytcp.link.frame import F_TSO4, F_TSO6, Link
from pytcp.link.pcapng import Capture, PcapngWriter
from pytcp.sockets.open import TrioStack, open_stack

from . import units
from .experiment import Experiment, ExperimentError, Outcome, Setting, Table, checked, empty_record
from .named import naming
from .record import Record, Row
from .sampler import Sampler
from .testbed import Testbed

if TYPE_CHECKING:
    from .experiment import Settings

TIMEOUT = 120.0  # seconds a kernel socket waits for the other side


class Real:
    """One variant over a TAP. stack: pytcp's; testbed: the kernel's side, with `socket()` for its programs."""

    def __init__(self, stack: TrioStack, testbed: Testbed, line: DelayLine, record: Record | None = None, writer: PcapngWriter | None = None) -> None:
        """record: to be filled. writer: of the capture."""
        self.stack = stack
        self.testbed = testbed
        self.record = record
        self._began_ns = stack.runtime.heap.now_ns
        self.tables: list[Table] = []
        self._line = line
        self._writer = writer
        self._kernel_before: Mapping[str, int] = {}

    def watch(self, stack: TrioStack, name: str, queues: Callable[[], Iterable[Row]] = tuple) -> None:
        """Write down what the connections of `stack` do from now on, as flow `name`. queues: rows of the queues now, without t_ns."""
        if self.record is not None:
            stack.net.tracer = Sampler(self.record, stack.runtime.heap, self._began_ns, name, queues)

    def captured(self, link: Link, name: str) -> Link:
        """`link`, with what passes it in the capture as interface `name` if there is one: for links beside the stack's own."""
        return link if self._writer is None else Capture(link, self._writer, name, realtime_ns=self.stack.runtime.realtime_ns)

    def set_delay(self, one_way_ns: int) -> None:
        """The delay of each direction from now on; both sides' counters count from here."""
        self._line.delay_ns = one_way_ns
        self._kernel_before = self.testbed.nstat()

    def cut_segments(self) -> None:
        """From now on the kernel gets every segment by itself, as from a wire without receive offload."""
        self._line.features &= ~(F_TSO4 | F_TSO6)
        for dev in self.stack.net.interfaces:
            if not dev.loopback:
                dev.tso4 = dev.tso6 = False

    async def quiet(self) -> None:
        """Wait until nothing is under way between the two; what arrived last has had its answer."""
        while self._line.pending:
            await trio.sleep(0.005)

    @property
    def counters(self) -> Mapping[str, int]:
        """pytcp's counters."""
        return self.stack.net.mib.snapshot(zeros=True)

    @property
    def kernel_counters(self) -> Mapping[str, int]:
        """The kernel's counters in its namespace since `set_delay`."""
        return {name: value - self._kernel_before.get(name, 0) for name, value in self.testbed.nstat().items()}

    def show_counters(self, names: Iterable[str]) -> None:
        """A table of counters of both sides."""
        ours, theirs = self.counters, self.kernel_counters
        rows: list[tuple[str, ...]] = [(name, f"{ours.get(name, 0):,}", f"{theirs.get(name, 0):,}") for name in names]
        self.tables.append(Table("Counters", ("", "pytcp", "kernel"), rows))

    # --- the kernel's programs, in threads ---

    async def kernel_sends(self, size: int, port: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """A kernel socket that accepts one connection and sends `size` bytes on it."""
        await self._kernel(port, partial(_send, size=size), task_status)

    async def kernel_receives(self, port: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """A kernel socket that accepts one connection and reads it to its end."""
        await self._kernel(port, _receive, task_status)

    async def kernel_asks(self, port: int, request: int, answer: int, count: int, interval: float) -> list[float]:
        """A kernel socket that connects to pytcp and asks `count` times, `interval` seconds apart; the seconds each answer took."""

        def ask() -> list[float]:
            times = []
            with self.testbed.socket() as client:
                client.settimeout(TIMEOUT)
                client.connect((self.testbed.address4, port))
                for _ in range(count):
                    began = time.monotonic()
                    client.sendall(bytes(request))
                    left = answer
                    while left:
                        left -= len(client.recv(left))
                    times.append(time.monotonic() - began)
                    time.sleep(interval)
            return times

        return await trio.to_thread.run_sync(ask)

    async def _kernel(self, port: int, program: Callable[[socket.socket], None], task_status: trio.TaskStatus[None]) -> None:
        with self.testbed.socket() as listener:
            listener.settimeout(TIMEOUT)
            listener.bind((self.testbed.peer4, port))
            listener.listen(1)
            task_status.started()

            def serve() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(TIMEOUT)
                    program(connection)

            await trio.to_thread.run_sync(serve)


def _send(connection: socket.socket, size: int) -> None:
    connection.sendall(bytes(size))
    connection.shutdown(socket.SHUT_WR)
    _receive(connection)


def _receive(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def run_real(
    chosen: Experiment, variant: str, sets: Sequence[tuple[str, Setting]] = (), profile: str = "", pcap: str = "", record: str = ""
) -> Outcome:
    """Run a variant over a TAP. pcap, record: files to write.

    Raises ExperimentError where the experiment cannot, OSError (TestbedError) where the machine does not let us."""
    over_tap = chosen.real_run
    if over_tap is None:
        raise ExperimentError(f"{chosen.name} runs in virtual time only. {chosen.real}".rstrip())
    settings = chosen.resolve(variant, sets, profile)
    known = over_tap.parameters
    for key, _ in sets:
        if key in chosen.parameters and key not in known:
            raise ExperimentError(f"{key} is not used with --real; {units.nearest(key, known) if known else ''}".rstrip("; "))
    given = (*chosen.settings, *chosen.variants[variant], *(key for key, _ in sets))
    parameters = {key: settings.parameters[key] for key in given if key in known}
    completions: str | Delayed = "reaped"
    if over_tap.completions is not None:
        asked = inspect.signature(over_tap.completions).parameters
        completions = over_tap.completions(**{key: settings.parameters[key] for key in asked})
    writer = PcapngWriter(pcap) if pcap else None
    kept = empty_record(chosen, variant, settings, peer=f"Linux {os.uname().release}") if record else None
    try:
        with Testbed(sysctls=over_tap.sysctls, mtu=over_tap.mtu) as testbed:
            outcome = trio.run(_main, testbed, settings, partial(over_tap.run, **parameters), completions, writer, kept)
    finally:
        if writer is not None:
            writer.close()
    if writer is not None and writer.error is not None:
        raise OSError(writer.error.errno, writer.error.strerror, pcap)
    if kept is not None:
        with naming(record):
            kept.write_jsonl(record)
    return outcome


async def _main(
    testbed: Testbed, settings: Settings, over_tap: Callable[[Real], Any], completions: str | Delayed, writer: PcapngWriter | None, record: Record | None
) -> Outcome:
    runtime = RealRuntime()
    line = DelayLine(testbed.link, runtime.heap, 0)
    link: Link = line if writer is None else Capture(line, writer, "pytcp", realtime_ns=runtime.realtime_ns)
    sysctls = {name: value if isinstance(value, int) else str(value) for host, name, value in settings.sysctls if not host}
    outcome: Outcome | Exception
    async with trio.open_nursery() as nursery:
        await nursery.start(runtime.run)
        try:
            async with open_stack(
                link=link, addresses=testbed.addresses, runtime=runtime, profile=settings.profile, sysctls=sysctls, seed=0, tx_mode=completions
            ) as stack:
                real = Real(stack, testbed, line, record, writer)
                real.watch(stack, "pytcp")
                outcome = Outcome(checked(await over_tap(real)), real.tables)
        except Exception as error:
            outcome = error  # raised again outside the nursery, which would wrap it into a group
        nursery.cancel_scope.cancel()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
