"""`tools/bench`: runs `lab.bench` and prints pytcp beside the bare loop and the kernel, as ratios."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from pytcp.cli import screen
from pytcp.cli.main import run_command

WHAT = ("bulk", "rr", "rpc", "conn", "idle", "checksum", "all")
HEADINGS = ("", "pytcp", "aim", "bare loop", "ratio", "kernel", "ratio")


class Row(NamedTuple):
    """A figure's label, key, how to print it, and what the project aims at."""

    label: str
    key: str
    form: str
    aim: str


ROWS = (
    Row("bulk out (Gbit/s)", "bulk_out_gbps", "{:.1f}", ">= 10"),
    Row("bulk in (Gbit/s)", "bulk_in_gbps", "{:.1f}", ">= 12"),
    Row("1-byte round trip, p50 (us)", "rr_p50_us", "{:.0f}", "<= 100"),
    Row("1-byte round trip, p99 (us)", "rr_p99_us", "{:.0f}", ""),
    Row("1-byte round trips per s", "rr_per_s", "{:,.0f}", ""),
    Row("80 KB RPCs per s", "rpc_per_s", "{:,.0f}", ">= 4,000"),
    Row("connect + close per s", "conn_per_s", "{:,.0f}", ">= 2,500"),
    Row("bytes per idle connection", "idle_bytes_per_conn", "{:,.0f}", "~ 4,000"),
    Row("processor share, all idle", "idle_cpu", "{:.2%}", "near 0"),
    Row("full garbage collection (ms)", "idle_gc_ms", "{:.0f}", ""),
    Row("checksum of 64 KiB (Gbit/s)", "checksum_gbps", "{:.1f}", ""),
    Row("in pure Python (Gbit/s)", "checksum_py_gbps", "{:.1f}", ""),
)


def setting(word: str) -> tuple[str, str]:
    """NAME=VALUE. Raises click.BadParameter."""
    name, equals, value = word.partition("=")
    if not equals:
        raise click.BadParameter(f"{word!r} is not NAME=VALUE", param_hint="--sysctl")
    return name, value


def cells(row: Row, report: Mapping[str, Any]) -> list[str] | None:
    """One line of the table: pytcp, then each yardstick and pytcp's share of it; None when it was not measured."""
    ours = report.get(row.key)
    if ours is None:
        return None
    line = [row.label, row.form.format(ours), row.aim]
    for target in ("bare_loop", "kernel_veth"):
        theirs = report[target].get(row.key)
        line += [row.form.format(theirs), f"{ours / theirs:.2f}"] if theirs else ["", ""]
    return line


@click.command("bench", cls=screen.WithJson, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("what", nargs=-1, type=click.Choice(WHAT))
@screen.json_option("Write the report as JSON to a file, or to standard output instead of the table.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1), help="Interleaved runs; the medians are reported.")
@click.option("--seconds", default=2.0, show_default=True, type=click.FloatRange(0.1), help="Length of each measurement.")
@click.option("--sysctl", "sysctls", multiple=True, metavar="NAME=VALUE", help="A setting of pytcp's stack, as net.core.busy_poll=50.")
@click.option("--no-halt", is_flag=True, help="Keep the processors from halting: what waking them costs is the machine's, not the stack's.")
@click.option("--connections", default=10_000, show_default=True, type=click.IntRange(1, 28_000), help="How many for idle.")
@click.option("--sources", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of client.c and server.c.", hidden=True)
def command(
    what: tuple[str, ...], json_file: str | None, runs: int, seconds: float, sysctls: tuple[str, ...], no_halt: bool, connections: int, sources: Path
) -> int:
    """Measure pytcp over a clean TAP with a kernel client, beside the limit of a bare Python loop and the kernel over veth.

    WHAT is any of bulk, rr, rpc, conn, idle, checksum; all by default. Needs root and a C compiler.
    """
    from pytcp.lab import bench

    chosen = [name for name in WHAT[:-1] if not what or "all" in what or name in what]
    errors = screen.console(stderr=True)
    with errors.status("starting") as status:
        report = bench.run(chosen, sources, runs, seconds, connections, status.update, dict(map(setting, sysctls)), no_halt)
    if json_file and screen.write_json(json_file, report):
        return 0
    rows = [screen.bold(*HEADINGS), *filter(None, (cells(row, report) for row in ROWS))]
    click.echo("\n".join(screen.table(rows, right=range(1, len(HEADINGS)))))
    machine = report["machine"]
    click.echo(
        f"medians of {runs} interleaved runs of {seconds:g} s; {machine['processors']} processors{' that do not halt' * no_halt}\n"
        f"Linux {machine['kernel']}, Python {machine['python']}" + "".join(f", {word}" for word in sysctls)
    )
    return 0


if __name__ == "__main__":
    sys.exit(run_command(command, "tools/bench"))
