"""`pytcp demo`: runs the main job (`lab.mainjob`) and prints what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

    from pytcp.lab.mainjob import Report


def table(report: Report) -> Table:
    """The transfers, one a line, and a line for the checks that belong to none."""
    from rich.table import Column, Table

    result = Table(Column("transfer", no_wrap=True), "wire", "bytes", "seconds", "Gbit/s", "retransmits", "checks", box=None, padding=(0, 2, 0, 0))
    for column in result.columns[2:]:
        column.justify = "right"
    for t in report.transfers:
        result.add_row(
            t.name,
            t.wire,
            f"{t.bytes:,}",
            f"{t.seconds:.3f}",
            f"{t.gbps:.2f}",
            "" if t.retransmits is None else f"{t.retransmits:,}",
            share(t.good, t.checks),
        )
    good, checks = report.rest
    if checks:
        result.add_row("the wire, the capture, the clean-up", "", "", "", "", "", share(good, checks))
    return result


def share(good: int, checks: int) -> str:
    """`good/checks`, green when all are good and there are any."""
    return f"[{'green' if checks and good == checks else 'red'}]{good}/{checks}[/]"


def legend(report: Report) -> list[str]:
    """What the table's words mean, as far as they are in it."""
    lines = []
    if any(t.wire == "impaired" for t in report.transfers):
        lines.append(f"impaired: {report.impairment}, each way")
    clean = [t for t in report.transfers if t.wire == "clean"]
    if needless := sum(t.duplicates for t in clean):
        again = sum(t.retransmits or 0 for t in clean)
        lines.append(f"clean: of {again:,} retransmits {needless:,} were needless, tail-loss probes at a thread that was too busy to answer in time")
    return lines


def verdict(report: Report) -> str:
    """The last line."""
    failed = len(report.failed)
    return f"demo: {len(report.checks) - failed} checks passed, {failed} failed"


def writable(path: str) -> None:
    """Fail now rather than after the work. Raises click.FileError."""
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise click.FileError(path, error.strerror or str(error)) from error


@contextlib.contextmanager
def fresh_capture() -> Iterator[str]:
    """A new file in the temporary folder; removed again when the work fails or is interrupted."""
    number, path = tempfile.mkstemp(prefix="pytcp-demo-", suffix=".pcapng")
    os.close(number)
    try:
        yield path
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        raise


@click.command("demo")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), metavar="FILE", help="Write the table and the checks as JSON.")
@click.option("--pcap", type=click.Path(dir_okay=False), metavar="FILE", help="Where the capture goes; by default a new file in the temporary folder.")
@click.option("--seed", default=1, show_default=True, help="Of the data and of the wire's accidents.")
def command(json_file: str | None, pcap: str | None, seed: int) -> int:
    """Exchange real data with a real Linux peer, and check what arrives.

    curl fetches 100 MiB from pytcp's HTTP server (IPv4), pytcp fetches 100 MiB from a web server in the peer's namespace (IPv6), a kernel
    socket sends and receives for 3 seconds each way, a hundred connections echo at once, both sides ping; then transfers again
    with 1 % loss, 1 % reordering, 0.1 % duplication and 0.1 % corruption on the wire. Files are compared by SHA-256, echoes byte by byte; of the
    two 3 s floods only bytes and time are counted. Needs root or user namespaces. Exit status 1 when a check fails.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from pytcp.lab import rootless
    from pytcp.lab.mainjob import MainJob, Sizes

    for path in filter(None, (json_file, pcap)):
        writable(path)
    rootless.enter()
    errors = Console(stderr=True)
    bar = Progress(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=errors, transient=True)
    task = bar.add_task("starting", total=None)

    def progress(text: str, share: float | None) -> None:
        changes: dict[str, Any] = {"description": text, "total": None if share is None else 1.0}
        bar.update(task, completed=share or 0.0, **changes)

    with contextlib.nullcontext(pcap) if pcap else fresh_capture() as capture, bar:
        report = MainJob(Sizes(), progress, pcap=capture, seed=seed).run()
    Console(width=None if sys.stdout.isatty() else 120).print(table(report))
    for line in legend(report):
        click.echo(line)
    for check in report.failed:
        click.echo(f"failed: {check.name}{f' ({check.detail})' if check.detail else ''}")
    click.echo(f"capture: {report.pcap} ({report.pcap_packets:,} packets); {report.seconds:.1f} s in all")
    if json_file:
        Path(json_file).write_text(json.dumps(report.as_json(), indent=2) + "\n")
    click.echo(verdict(report))
    return 1 if report.failed else 0
