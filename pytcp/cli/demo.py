"""`pytcp demo`: runs the main job (`lab.mainjob`) and prints what came of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from pytcp.cli import screen
from pytcp.cli.files import NewFile

if TYPE_CHECKING:
    from pytcp.lab.mainjob import Report

UNFINISHED = 0.999  # what is finished has a clock that stands still
WORDS = 44  # columns of the progress that are not the bar's
HEADINGS = ("transfer", "wire", "size", "seconds", "Gbit/s", "retransmits", "checks")


def table(report: Report) -> list[str]:
    """The transfers, one a line, and a line for the checks that belong to none. 80 columns hold it."""
    rows = [screen.bold(*HEADINGS)]
    for t in report.transfers:
        again = "" if t.retransmits is None else f"{t.retransmits:,}"
        rows.append([t.name, t.wire, size(t.bytes), f"{t.seconds:.3f}", f"{t.gbps:.2f}", again, share(t.good, t.checks)])
    good, checks = report.rest
    if checks:
        rows.append(["wire, capture, cleanup", "", "", "", "", "", share(good, checks)])
    return screen.table(rows, right=range(2, len(HEADINGS)))


def size(number: int) -> str:
    """Bytes in three digits and a unit; the exact number is in the JSON."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1000 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 99.95 else f"{f'{value:.1f}'.removesuffix('.0')} {unit}"


def share(good: int, checks: int) -> str:
    """`good/checks`, green when all are good and there are any."""
    return click.style(f"{good}/{checks}", fg="green" if checks and good == checks else "red")


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


@click.command("demo", cls=screen.WithJson)
@screen.json_option("Write the table and the checks as JSON to a file, or to standard output instead of the table.")
@click.option("--pcap", type=NewFile(), metavar="FILE", help="Where the capture goes; by default a new file in the temporary folder.")
@click.option("--seed", default=1, show_default=True, help="Of the data and of the wire's accidents.")
def command(json_file: str | None, pcap: str | None, seed: int) -> int:
    """Exchange real data with a real Linux peer, and check what arrives.

    curl fetches 100 MiB from pytcp's HTTP server (IPv4), pytcp fetches 100 MiB from a web server in the peer's namespace (IPv6), a kernel
    socket sends and receives for 3 seconds each way, a hundred connections echo at once, both sides ping; then transfers again
    with 1 % loss, 1 % reordering, 0.1 % duplication and 0.1 % corruption on the wire. Files are compared by SHA-256, echoes byte by byte; of the
    two 3 s floods only bytes and time are counted. Needs root or user namespaces. Exit status 1 when a check fails.
    """
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from pytcp.lab import rootless
    from pytcp.lab.mainjob import MainJob, Sizes

    for path in filter(None, (None if json_file == screen.STDOUT else json_file, pcap)):
        writable(path)
    rootless.enter()
    errors = screen.console(stderr=True)
    # what does not fit is the bar's, and the clock stands where nothing is cut
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"), BarColumn(max(8, min(40, errors.width - WORDS))))
    bar = Progress(*columns, console=errors, transient=True)
    task = bar.add_task("starting", total=None)

    def progress(text: str, share: float | None) -> None:
        changes: dict[str, Any] = {"description": text, "total": None if share is None else 1.0}
        bar.update(task, completed=min(share or 0.0, UNFINISHED), **changes)

    with contextlib.nullcontext(pcap) if pcap else fresh_capture() as capture, bar:
        report = MainJob(Sizes(), progress, pcap=capture, seed=seed).run()
    status = 1 if report.failed else 0
    if json_file and screen.write_json(json_file, report.as_json()):
        return status
    for line in table(report):
        click.echo(line)
    for line in legend(report):
        click.echo("\n".join(screen.wrapped(line, hanging="    ")))
    for check in report.failed:
        click.echo(f"failed: {check.name}{f' ({check.detail})' if check.detail else ''}")
    click.echo(f"capture: {report.pcap} ({report.pcap_packets:,} packets); {report.seconds:.1f} s in all")
    click.echo(verdict(report))
    return status
