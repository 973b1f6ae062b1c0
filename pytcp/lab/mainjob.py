"""The main job: pytcp and a real Linux exchange real data, and what arrives is checked.

In one run, over a TAP with offloads and then over one behind an emulated wire that loses, reorders, duplicates and corrupts
packets: curl fetches from pytcp's HTTP server (IPv4), pytcp fetches from a web server in the peer's namespace (IPv6), a
kernel socket sends and receives as fast as it can, a hundred connections echo at once, both sides ping. Files are compared by
SHA-256, echoes byte by byte; of the two floods only bytes and time are counted.

A step that fails is a failed check, and the next step runs. Each part has a testbed and a stack of its own; the floods' is not
captured, so that writing the capture is not what they measure.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from pytcp.lab import peer, services
from pytcp.lab.netns import uninterrupted
from pytcp.lab.testbed import Testbed
from pytcp.lab.wired import open_wired
from pytcp.link.emulator import Impairment
from pytcp.link.frame import Buffer
from pytcp.link.pcapng import PcapngWriter
from pytcp.sockets import http

MIB = 1 << 20
HTTP_PORT = 8080
PINGS = 3
WIRE = Impairment(loss=0.01, reorder=0.01, reorder_delay_ns=1_000_000, duplicate=0.001, corrupt=0.001)
WIRE_TEXT = "1 % lost, 1 % reordered, 0.1 % duplicated, 0.1 % corrupted"
SNAPLEN = 128  # headers and a little of the payload
PACKETS_PER_PART = 30_000  # bounds the capture to about 10 MB


@dataclass(frozen=True)
class Sizes:
    """How much is moved: bytes of the clean and of the impaired transfers, seconds of the two floods, connections at once
    and bytes each way on each. The defaults are the demo's; tests use less."""

    clean: int = 100 * MIB
    impaired: int = 16 * MIB
    seconds: float = 3.0
    connections: int = 100
    each: int = 64 * 1024


@dataclass
class Transfer:
    """A line of the table. `retransmits` are the sender's segments, `duplicates` those of which its peer said that they came twice
    (DSACK, RFC 2883); `good` of `checks` passed."""

    name: str
    wire: str
    bytes: int = 0
    seconds: float = 0.0
    retransmits: int | None = None
    good: int = 0
    checks: int = 0
    duplicates: int = 0

    @property
    def gbps(self) -> float:
        return self.bytes * 8 / self.seconds / 1e9 if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "wire": self.wire,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 6),
            "gbps": round(self.gbps, 4),
            "retransmits": self.retransmits,
            "duplicates": self.duplicates,
            "checks": self.checks,
            "failed": self.checks - self.good,
        }


@dataclass(frozen=True)
class Check:
    name: str
    passed: bool
    detail: str = ""


@dataclass
class Report:
    """What was done and found."""

    transfers: list[Transfer] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    pcap: str = ""
    pcap_packets: int = 0
    seconds: float = 0.0
    impairment: str = WIRE_TEXT

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]

    @property
    def rest(self) -> tuple[int, int]:
        """(passed, all) of the checks that belong to no transfer: the emulated wire, the capture, the clean-up."""
        good = len(self.checks) - len(self.failed) - sum(t.good for t in self.transfers)
        return good, len(self.checks) - sum(t.checks for t in self.transfers)

    def as_json(self) -> dict[str, Any]:
        return {
            "transfers": [transfer.as_json() for transfer in self.transfers],
            "checks": [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in self.checks],
            "passed": len(self.checks) - len(self.failed),
            "failed": len(self.failed),
            "impairment": self.impairment,
            "pcap": self.pcap,
            "pcap_packets": self.pcap_packets,
            "seconds": round(self.seconds, 3),
        }


class BoundedWriter(PcapngWriter):
    """A capture that keeps the first `limit` frames and lets the rest pass unrecorded; raise `limit` to go on."""

    limit = 0

    def packet(self, interface: int, time_ns: int, parts: Sequence[Buffer], length: int, direction: int = 0, comments: Sequence[str] = ()) -> None:
        if self.packets < self.limit:
            super().packet(interface, time_ns, parts, length, direction, comments)


FOLDER = "pytcp-demo-"
YOUNG_S = 60  # a folder is locked a moment after it was made


@contextlib.contextmanager
def data_folder() -> Iterator[Path]:
    """A temporary folder. Its removal is not interrupted: who presses Ctrl-C twice would else keep a hundred megabytes.

    It is locked while we live: what a killed one left behind, the next one removes."""
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=FOLDER))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        with uninterrupted():
            shutil.rmtree(folder)
            os.close(lock)


def _remove_abandoned() -> None:
    """Remove folders of ours that nobody locks any more."""
    for folder in Path(tempfile.gettempdir()).glob(FOLDER + "*"):
        try:
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or time.time() - about.st_mtime < YOUNG_S:
                continue
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
        except OSError:
            continue  # somebody's still, or gone already


class MainJob:
    """Runs it. `progress` is told what is going on and, where that is known, what share of it is done."""

    def __init__(self, sizes: Sizes, progress: Callable[[str, float | None], None], *, pcap: str | None = None, seed: int = 1) -> None:
        self.sizes = sizes
        self.progress = progress
        self.seed = seed
        self.report = Report(pcap=pcap or "")
        self.wire = "clean"
        self._transfer: Transfer | None = None

    def run(self) -> Report:
        """Do it all. Raises OSError when there can be no testbed or no capture; what fails later is in the report."""
        start = time.monotonic()
        with data_folder() as self.folder:
            self.progress("making the data", None)
            for number, (name, size) in enumerate((("clean", self.sizes.clean), ("impaired", self.sizes.impaired))):
                (self.folder / name).write_bytes(random.Random(self.seed * 2 + number).randbytes(size))
            with self._capture_file() as writer:
                for wire, steps, captured in (("clean", self._clean, True), ("clean", self._floods, False), ("impaired", self._impaired, True)):
                    self.wire = wire
                    self.progress("setting up the testbed", None)
                    with Testbed() as tb:
                        trio.run(self._part, tb, writer if captured else None, steps)
                        path = tb.path
                    self.check("the testbed leaves nothing behind", not os.path.exists(path))
        self.report.seconds = time.monotonic() - start
        return self.report

    @contextlib.contextmanager
    def _capture_file(self) -> Any:
        if not self.report.pcap:
            yield None
            return
        writer = BoundedWriter(self.report.pcap, comment=f"pytcp demo; the impaired wire: {WIRE_TEXT}", snaplen=SNAPLEN)
        try:
            yield writer
        finally:
            writer.close()
        self.report.pcap_packets = writer.packets
        self.check("the capture is complete", writer.error is None, f"{self.report.pcap}: {writer.error.strerror}" if writer.error else "")

    async def _part(self, tb: Testbed, writer: BoundedWriter | None, steps: Callable[[], Any]) -> None:
        wire = WIRE if self.wire == "impaired" else None
        if writer is not None:
            writer.limit += PACKETS_PER_PART
        self.tb = tb
        self.discarded = 0
        self.echoed = 0
        label = f"{tb.device} ({self.wire})"
        async with (
            open_wired(tb.link, tb.addresses, tx=wire, rx=wire, seed=self.seed, writer=writer, label=label) as self.wired,
            trio.open_nursery() as nursery,
        ):
            self.stack = self.wired.stack
            await nursery.start(self.stack.serve_tcp, http.FileServer(self.folder), HTTP_PORT)
            await nursery.start(self.stack.serve_tcp, self._discard, services.DISCARD)
            await nursery.start(self.stack.serve_tcp, services.source, services.SOURCE)
            await nursery.start(self.stack.serve_tcp, self._echo, services.ECHO)
            await steps()
            nursery.cancel_scope.cancel()

    async def _clean(self) -> None:
        await self._ping("the kernel pings pytcp", self._kernel_ping)
        await self._ping("pytcp pings the kernel", self._our_ping)
        await self._curl(4)
        await self._fetch(6)
        await self._many()

    async def _floods(self) -> None:
        await self._flood("the kernel sends", "tx", services.DISCARD)
        await self._flood("pytcp sends", "rx", services.SOURCE)

    async def _impaired(self) -> None:
        await self._curl(4)
        await self._fetch(6)
        await self._many()
        for direction, counters in (("out", self.wired.wire.outward.counters), ("in", self.wired.wire.inward.counters)):
            for accident in ("lost", "reordered", "duplicated", "corrupted"):
                count = getattr(counters, accident)
                self.check(f"the wire {accident} packets on the way {direction}", count > 0, f"{count} of {counters.packets}")

    # --- bookkeeping ---

    def check(self, name: str, passed: bool, detail: str = "") -> None:
        self.report.checks.append(Check(f"{self.wire}: {name}", passed, detail))
        if self._transfer is not None:
            self._transfer.checks += 1
            self._transfer.good += passed

    @contextlib.asynccontextmanager
    async def step(self, name: str, limit: float) -> AsyncIterator[Transfer]:
        """One line of the table. An error in it, or more than `limit` seconds, is a failed check."""
        self.progress(f"{self.wire}: {name}", None)
        transfer = self._transfer = Transfer(name, self.wire)
        self.report.transfers.append(transfer)
        try:
            with trio.fail_after(limit):
                yield transfer
        except Exception as error:
            self.check(f"{name} finishes", False, describe(error))
        finally:
            self._transfer = None

    @contextlib.asynccontextmanager
    async def _watched(self, name: str, share: Callable[[], float]) -> AsyncIterator[None]:
        """Tell `progress` what share is done, ten times a second meanwhile."""

        async def tell() -> None:
            while True:
                self.progress(f"{self.wire}: {name}", min(share(), 1.0))
                await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell)
            yield
            nursery.cancel_scope.cancel()

    @contextlib.contextmanager
    def _retransmits(self, transfer: Transfer, sender: str) -> Any:
        """Count the segments `sender` retransmits meanwhile, and the needless ones among them."""

        def totals() -> tuple[int, int]:
            counters = self.stack.net.mib.snapshot(zeros=True) if sender == "pytcp" else self.tb.nstat()
            return counters["TcpRetransSegs"], counters["TcpExtTCPDSACKRecvSegs"]

        before = totals()
        yield
        after = totals()
        transfer.retransmits = after[0] - before[0]
        transfer.duplicates = after[1] - before[1]

    # --- the steps ---

    async def _ping(self, name: str, ask: Callable[[int], Any]) -> None:
        async with self.step(name, 20) as transfer:
            for family in (4, 6):
                times = [seconds for seconds in await ask(family) if seconds is not None]
                self.check(f"{name}, IPv{family}", len(times) == PINGS, f"{len(times)} of {PINGS} answered")
                transfer.bytes += 64 * len(times)
                transfer.seconds += sum(times)

    async def _kernel_ping(self, family: int) -> list[float | None]:
        address = self.tb.address4 if family == 4 else self.tb.address6
        return await trio.to_thread.run_sync(partial(self.tb.ping, address, count=PINGS), abandon_on_cancel=True)

    async def _our_ping(self, family: int) -> list[float | None]:
        answers = await self.stack.ping(self.tb.peer4 if family == 4 else self.tb.peer6, count=PINGS, interval=0.01)
        return [answer.rtt for answer in answers]

    async def _curl(self, family: int) -> None:
        async with self.step(f"curl fetches, IPv{family}", 60) as transfer:
            ours, theirs = self.folder / self.wire, self.folder / f"{self.wire}.curl"
            host = self.tb.address4 if family == 4 else f"[{self.tb.address6}]"
            curl = ["curl", "-sS", "--noproxy", "*", "-o", str(theirs), "-w", "%{http_code} %{time_total}", f"http://{host}:{HTTP_PORT}/{self.wire}"]
            size = ours.stat().st_size
            with self._retransmits(transfer, "pytcp"):
                async with self._watched(transfer.name, lambda: theirs.stat().st_size / size if theirs.exists() else 0.0):
                    status, seconds = (await self.tb.run_async(curl)).stdout.split()
            transfer.bytes, transfer.seconds = theirs.stat().st_size, float(seconds)
            self.check(f"curl gets status 200 and {size:,} bytes", status == b"200" and transfer.bytes == size, f"{status.decode()}, {transfer.bytes:,} bytes")
            same = await trio.to_thread.run_sync(lambda: file_sha256(ours) == file_sha256(theirs))
            self.check("what curl got has our file's SHA-256", same)

    async def _fetch(self, family: int) -> None:
        async with self.step(f"pytcp fetches, IPv{family}", 60) as transfer:
            file = self.folder / self.wire
            address = self.tb.peer4 if family == 4 else self.tb.peer6
            host = address if family == 4 else f"[{address}]"
            pieces: list[bytes | bytearray] = []

            def report(done: int, total: int | None) -> None:
                self.progress(f"{self.wire}: {transfer.name}", done / total if total else None)

            async with self._web_server(address):
                start = trio.current_time()
                with self._retransmits(transfer, "kernel"):
                    url = f"http://{host}:{HTTP_PORT}/{self.wire}"
                    response = await http.get(self.stack.open_tcp_stream, url, sink=pieces.append, progress=report)
                transfer.seconds = trio.current_time() - start
            transfer.bytes = response.received
            size = file.stat().st_size
            good = response.status == 200 and response.received == size
            self.check(f"pytcp gets status 200 and {size:,} bytes", good, f"{response.status}, {response.received:,} bytes")
            same = await trio.to_thread.run_sync(lambda: sha256(pieces) == file_sha256(file))
            self.check("what pytcp got has the file's SHA-256", same)

    @contextlib.asynccontextmanager
    async def _web_server(self, address: str) -> AsyncIterator[None]:
        argv = [sys.executable, "-I", peer.__file__, "web", str(self.folder), address, str(HTTP_PORT)]
        server = self.tb.popen(argv, stdout=subprocess.PIPE)
        assert server.stdout is not None
        try:
            await trio.to_thread.run_sync(server.stdout.readline, abandon_on_cancel=True)
            yield
        finally:
            self.tb.stop(server)
            server.stdout.close()

    async def _peer(self, *arguments: str) -> dict[str, Any]:
        """Run one of `lab/peer.py`'s programs in the peer's namespace; what it says."""
        done = await self.tb.run_async([sys.executable, "-I", peer.__file__, *arguments])
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    async def _discard(self, stream: trio.abc.HalfCloseableStream) -> None:
        while data := await stream.receive_some(services.READ):
            self.discarded += len(data)

    async def _echo(self, stream: trio.abc.HalfCloseableStream) -> None:
        await services.echo(stream)
        self.echoed += 1

    async def _flood(self, name: str, mode: str, port: int) -> None:
        async with self.step(name, self.sizes.seconds + 20) as transfer:
            before = self.discarded
            start = trio.current_time()
            with self._retransmits(transfer, "kernel" if mode == "tx" else "pytcp"):
                async with self._watched(name, lambda: (trio.current_time() - start) / self.sizes.seconds):
                    said = await self._peer(mode, self.tb.address4, str(port), str(self.sizes.seconds))
            transfer.bytes, transfer.seconds = said["bytes"], said["seconds"]
            if mode == "tx":
                received = self.discarded - before
                self.check("pytcp received what the kernel sent", received == transfer.bytes, f"{received:,} of {transfer.bytes:,} bytes")
            else:
                self.check("the kernel received from pytcp all the time", transfer.seconds >= self.sizes.seconds, f"{transfer.bytes:,} bytes")

    async def _many(self) -> None:
        count, each = self.sizes.connections, self.sizes.each
        async with self.step(f"{count} echoes at once", 60) as transfer:
            said: list[dict[str, Any]] = []

            async def half(address: str, number: int) -> None:
                said.append(await self._peer("many", address, str(services.ECHO), str(number), str(each)))

            before = self.echoed
            with self._retransmits(transfer, "pytcp"):
                async with self._watched(transfer.name, lambda: (self.echoed - before) / count), trio.open_nursery() as nursery:
                    nursery.start_soon(half, self.tb.address4, count - count // 2)
                    nursery.start_soon(half, self.tb.address6, count // 2)
            transfer.bytes = sum(s["bytes"] for s in said)
            transfer.seconds = max(s["seconds"] for s in said)
            good = sum(s["good"] for s in said)
            self.check(f"{count} connections got back what they sent", good == count, f"{good} of {count}")


def describe(error: BaseException) -> str:
    """An error in a few words: the first cause of a group, a program's last line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, trio.TooSlowError):
        return "took too long"
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stderr or b"").decode(errors="replace").strip().rpartition("\n")[2]
        return f"{os.path.basename(error.cmd[0])} ended with status {error.returncode}{': ' + said if said else ''}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def sha256(pieces: Sequence[bytes | bytearray]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
