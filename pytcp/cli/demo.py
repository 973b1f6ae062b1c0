"""`pytcp demo`: runs the main job (`lab.mainjob`) and prints what came of it."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

    from pytcp.lab.mainjob import Report


def table(report: Report) -> Table:
    """The transfers, one a line."""
    from rich.table import Column, Table

    result = Table(Column("transfer", no_wrap=True), "wire", "bytes", "seconds", "Gbit/s", "retransmits", "checks", box=None, padding=(0, 2, 0, 0))
    for column in result.columns[2:]:
        column.justify = "right"
    for t in report.transfers:
        good = t.checks > 0 and t.good == t.checks
        result.add_row(
            t.name,
            t.wire,
            f"{t.bytes:,}",
            f"{t.seconds:.3f}",
            f"{t.gbps:.2f}",
            "" if t.retransmits is None else f"{t.retransmits:,}",
            f"[{'green' if good else 'red'}]{t.good}/{t.checks}[/]",
        )
    return result


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


@click.command("demo")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), metavar="FILE", help="Write the table and the checks as JSON.")
@click.option("--pcap", type=click.Path(dir_okay=False), metavar="FILE", help="Where the capture goes; by default a file in the temporary folder.")
@click.option("--seed", default=1, show_default=True, help="Of the data and of the wire's accidents.")
def command(json_file: str | None, pcap: str | None, seed: int) -> int:
    """Exchange real data with a real Linux peer, and check every byte.

    curl fetches 100 MiB from pytcp's HTTP server (IPv4), pytcp fetches 100 MiB from a web server in the peer's namespace (IPv6), a kernel
    socket sends and receives for 3 seconds each way, a hundred connections echo at once, both sides ping; then transfers again
    with 1 % loss, 1 % reordering, 0.1 % duplication and 0.1 % corruption on the wire. Needs root or user namespaces. Exit status 1 when a check fails.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from pytcp.lab import rootless
    from pytcp.lab.mainjob import MainJob, Sizes

    pcap = pcap or os.path.join(tempfile.gettempdir(), f"pytcp-demo-{os.getuid()}.pcapng")
    for path in filter(None, (json_file, pcap)):
        writable(path)
    rootless.enter()
    errors = Console(stderr=True)
    bar = Progress(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=errors, transient=True)
    task = bar.add_task("starting", total=None)

    def progress(text: str, share: float | None) -> None:
        changes: dict[str, Any] = {"description": text, "total": None if share is None else 1.0}
        bar.update(task, completed=share or 0.0, **changes)

    with bar:
        report = MainJob(Sizes(), progress, pcap=pcap, seed=seed).run()
    Console(width=None if sys.stdout.isatty() else 120).print(table(report))
    for check in report.failed:
        click.echo(f"failed: {check.name}{f' ({check.detail})' if check.detail else ''}")
    click.echo(f"capture: {report.pcap} ({report.pcap_packets:,} packets); {report.seconds:.1f} s in all")
    if json_file:
        Path(json_file).write_text(json.dumps(report.as_json(), indent=2) + "\n")
    click.echo(verdict(report))
    return 1 if report.failed else 0
