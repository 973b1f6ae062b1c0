"""Benchmarks as ratios: one kernel client against pytcp, against the bare loop, and against the kernel over veth.

Machines are noisy and of many kinds, so an absolute figure says little. Each measurement here is taken in turn on three
targets with the same client program (`tools/bench_src/client.c`), the turns repeat, and the medians are printed side by side:

- pytcp: trio programs (`lab/services.py`) on a stack on a clean TAP with offloads;
- bare_loop: Python moving super-frames through the same kind of TAP with no TCP logic (`lab/bareloop.py`), the limit;
- kernel_veth: the kernel's own server (`server.c`) in another namespace over a veth pair.

The peer's congestion control is pinned. Nothing asserts on a result.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

import pytcp
from pytcp.lab import services
from pytcp.lab.bareloop import BareLoop
from pytcp.lab.netns import Namespace, TestbedError
from pytcp.lab.testbed import Testbed

Result = Mapping[str, float]
KERNEL, PEER = "10.98.0.2", "10.98.0.1"


@dataclass(frozen=True)
class Mode:
    """One way to run the client, and which of its figures is which of ours."""

    client: str
    port: int
    size: int
    keys: Mapping[str, str]


TX = Mode("tx", services.DISCARD, 1, {"bulk_in_gbps": "gbps"})
RX = Mode("rx", services.SOURCE, 1, {"bulk_out_gbps": "gbps"})
RR = Mode("rr", services.ECHO, 1, {"rr_p50_us": "p50_us", "rr_p99_us": "p99_us", "rr_per_s": "rate"})
RPC = Mode("rpc", services.RPC, services.RPC_SIZE, {"rpc_per_s": "rate"})
CONN = Mode("conn", services.DISCARD, 1, {"conn_per_s": "rate"})
MODES: Mapping[str, Sequence[Mode]] = {"bulk": (RX, TX), "rr": (RR,), "rpc": (RPC,), "conn": (CONN,)}
KEYS = ("bulk_out_gbps", "bulk_in_gbps", "rr_p50_us", "rr_p99_us", "rr_per_s", "rpc_per_s", "conn_per_s", "idle_bytes_per_conn")
TARGETS = ("pytcp", "bare_loop", "kernel_veth")


@dataclass
class Programs:
    """The C programs, compiled."""

    client: str
    server: str
    awake: str

    def argv(self, mode: Mode, address: str, seconds: float) -> list[str]:
        return [self.client, mode.client, address, str(mode.port), str(seconds), str(mode.size)]


@contextlib.contextmanager
def compiled(sources: Path) -> Iterator[Programs]:
    """Compile client.c, server.c and awake.c of `sources` into a folder that goes away. Raises TestbedError without a compiler."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if compiler is None:
        raise TestbedError(errno.ENOENT, "the benchmark's client is in C and there is no compiler: apt-get install gcc libc6-dev")
    with tempfile.TemporaryDirectory(prefix="pytcp-bench-") as folder:
        for name in ("client", "server", "awake"):
            subprocess.run([compiler, "-O2", "-o", f"{folder}/{name}", str(sources / f"{name}.c")], check=True)
        yield Programs(f"{folder}/client", f"{folder}/server", f"{folder}/awake")


@contextlib.contextmanager
def awake(programs: Programs) -> Iterator[None]:
    """Keep every processor from halting meanwhile: on each spins a program that gives way to any other (SCHED_IDLE).

    What it takes to wake a halted processor, in a virtual machine the price of the hypervisor, is then out of every round trip."""
    with contextlib.ExitStack() as ends:
        for processor in sorted(os.sched_getaffinity(0)):
            child = subprocess.Popen([programs.awake, str(processor), str(os.getpid())])
            ends.callback(child.wait)
            ends.callback(child.kill)
        yield


def _parse(mode: Mode, child: subprocess.Popen[bytes]) -> Result:
    out, err = child.communicate(timeout=30)
    if child.returncode != 0:
        raise TestbedError(errno.EIO, f"benchmark client {mode.client}: {err.decode().strip() or child.returncode}")
    figures = json.loads(out)
    return {ours: figures[theirs] for ours, theirs in mode.keys.items()}


def measure_bare_loop(programs: Programs, mode: Mode, seconds: float) -> Result:
    """The client against the loop without TCP logic."""
    with Testbed() as tb:
        loop = BareLoop(tb.link.fileno(), tb.link.mac, tb.address4)
        child = tb.popen(programs.argv(mode, tb.address4, seconds), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        pidfd = os.pidfd_open(child.pid)
        try:
            loop.run(pidfd)
        finally:
            os.close(pidfd)
        return _parse(mode, child)


def _join(client: Namespace, server: Namespace, congestion: str) -> None:
    """A veth pair between two namespaces, with the congestion control pinned by its routes (see lab/testbed.py)."""
    with client.netlink() as ip, server.netlink() as other:
        fd = os.open(server.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            ip.link("add", ifname="veth0", kind="veth", peer={"ifname": "veth1", "net_ns_fd": fd})
        finally:
            os.close(fd)
        for end, name, address in ((ip, "veth0", PEER), (other, "veth1", KERNEL)):
            index = end.link_lookup(ifname=name)[0]
            end.link("set", index=index, state="up")
            end.addr("add", index=index, address=address, prefixlen=24)
            end.route("replace", dst="10.98.0.0/24", oif=index, scope=253, proto=2, prefsrc=address, metrics={"cc_algo": congestion})


def measure_kernel(programs: Programs, mode: Mode, seconds: float) -> Result:
    """The client against the kernel's own TCP over veth."""
    with Namespace() as near, Namespace() as far:
        _join(near, far, "cubic")
        server = far.popen([programs.server, str(services.RPC_SIZE)], stdout=subprocess.PIPE)
        assert server.stdout is not None
        server.stdout.readline()
        child = near.popen(programs.argv(mode, KERNEL, seconds), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            return _parse(mode, child)
        finally:
            far.stop(server)
            server.stdout.close()


async def _serve(stack: pytcp.TrioStack, nursery: trio.Nursery) -> None:
    for port, handler in services.SERVICES.items():
        await nursery.start(stack.serve_tcp, handler, port)


async def _ended(child: subprocess.Popen[bytes]) -> None:
    pidfd = os.pidfd_open(child.pid)
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def measure_pytcp(programs: Programs, mode: Mode, seconds: float, sysctls: Mapping[str, int | str] | None = None) -> Result:
    """The client against trio programs on pytcp, in this process."""
    with Testbed() as tb:

        async def program() -> subprocess.Popen[bytes]:
            async with pytcp.open_stack(link=tb.link, addresses=tb.addresses, sysctls=sysctls) as stack, trio.open_nursery() as nursery:
                await _serve(stack, nursery)
                child = tb.popen(programs.argv(mode, tb.address4, seconds), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                await _ended(child)
                nursery.cancel_scope.cancel()
            return child

        return _parse(mode, trio.run(program))


MEASURES: Mapping[str, Callable[[Programs, Mode, float], Result]] = {
    "pytcp": measure_pytcp,
    "bare_loop": measure_bare_loop,
    "kernel_veth": measure_kernel,
}


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_idle(programs: Programs, count: int, seconds: float) -> Result:
    """Memory of `count` accepted connections that say nothing (growth of the resident set, program's streams included, one
    task for all), the share of a processor they cost while they stay for `seconds`, and what one full garbage collection costs."""
    mode = Mode("idle", services.DISCARD, count, {})
    with Testbed() as tb:

        async def program() -> Result:
            async with pytcp.open_stack(link=tb.link, addresses=tb.addresses) as stack:
                held: list[Any] = []
                listeners = await stack.open_tcp_listeners(services.DISCARD, backlog=4096)
                gc.collect()
                before = _resident()
                child = tb.popen(programs.argv(mode, tb.address4, 0), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                with trio.move_on_after(60 + count / 100):
                    while len(held) < count:
                        held.append(await listeners[0].accept())
                if len(held) < count:
                    raise TestbedError(errno.ETIMEDOUT, f"only {len(held)} of {count} connections came")
                await trio.sleep(1)
                cpu = time.process_time()
                gc.collect()
                collected = time.process_time() - cpu
                grown = _resident() - before
                cpu, start = time.process_time(), time.monotonic()
                await trio.sleep(seconds)
                idle_cpu = (time.process_time() - cpu) / (time.monotonic() - start)
                tb.stop(child)
                return {"idle_bytes_per_conn": grown / count, "idle_cpu": idle_cpu, "idle_gc_ms": collected * 1e3, "idle_connections": count}

        return trio.run(program)


def measure_checksum(seconds: float) -> Result:
    """The Internet checksum over 64 KiB, in Gbit/s: as used, and its pure-Python twin."""
    from pytcp.wire.checksum import checksum, checksum_py

    data = os.urandom(1 << 16)
    result = {}
    for key, function in (("checksum_gbps", checksum), ("checksum_py_gbps", checksum_py)):
        rounds = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            for _ in range(16):
                function(data)
            rounds += 16
        result[key] = rounds * len(data) * 8 / elapsed / 1e9
    return result


def run(
    what: Sequence[str],
    sources: Path,
    runs: int,
    seconds: float,
    connections: int,
    progress: Callable[[str], None],
    sysctls: Mapping[str, int | str] | None = None,
    no_halt: bool = False,
) -> dict[str, Any]:
    """Measure `what` (keys of MODES, `idle`, `checksum`) and return the report: medians by key, per target, with the samples.

    sysctls: of pytcp's stack while the client is at work. no_halt: no processor halts meanwhile (`awake`)."""
    measures: dict[str, Callable[[Programs, Mode, float], Result]] = {**MEASURES, "pytcp": partial(measure_pytcp, sysctls=sysctls)}
    samples: dict[str, dict[str, list[float]]] = {target: {} for target in TARGETS}

    def keep(target: str, result: Result) -> None:
        for key, value in result.items():
            samples[target].setdefault(key, []).append(value)

    with compiled(sources) as programs, awake(programs) if no_halt else contextlib.nullcontext():
        if "idle" in what:  # first: memory that earlier measurements left free would make it look cheaper
            progress(f"holding {connections} idle connections")
            keep("pytcp", measure_idle(programs, connections, seconds))
        for number in range(1, runs + 1):
            for name in what:
                for mode in MODES.get(name, ()):
                    for target in TARGETS:
                        progress(f"run {number}/{runs}: {'/'.join(mode.keys)} of {target}")
                        keep(target, measures[target](programs, mode, seconds))
    if "checksum" in what:
        progress("checksum")
        keep("pytcp", measure_checksum(min(seconds, 1.0)))
    medians = {target: {key: statistics.median(values) for key, values in found.items()} for target, found in samples.items()}
    return {
        **{key: medians["pytcp"].get(key) for key in KEYS},
        **{key: value for key, value in medians["pytcp"].items() if key not in KEYS},
        **{target: {key: medians[target].get(key) for key in KEYS} for target in TARGETS[1:]},
        "machine": {"kernel": platform.release(), "python": platform.python_version(), "processors": len(os.sched_getaffinity(0))},
        "runs": runs,
        "sysctls": dict(sysctls or {}),
        "no_halt": no_halt,
        "seconds": seconds,
        "samples": samples,
    }
