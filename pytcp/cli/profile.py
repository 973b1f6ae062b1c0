"""`tools/profile`: runs `lab.profile` and prints what one operation costs, layer by layer."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pytcp.cli import screen
from pytcp.cli.main import run_command

WHAT = ("bulk", "rr", "rpc", "conn", "all")
WORKS = {"bulk": ("out", "in"), "rr": ("rr",), "rpc": ("rpc",), "conn": ("conn",)}


@click.command("profile", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("what", nargs=-1, type=click.Choice(WHAT))
@click.option("--seconds", default=2.0, show_default=True, type=click.FloatRange(0.3), help="Length of each of two runs, one without the profiler.")
@click.option("--functions", default=0, show_default=True, type=click.IntRange(0), metavar="N", help="Print the N dearest functions, too.")
@click.option("--sources", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of client.c.", hidden=True)
def command(what: tuple[str, ...], seconds: float, functions: int, sources: Path) -> int:
    """Show where the time of one super-segment, round trip or connection goes, over a clean TAP with a kernel client.

    WHAT is any of bulk, rr, rpc, conn; all by default. Calls are exact; the microseconds of a layer are its share of the
    profiled time, laid out over what the operation costs without a profiler. Needs root and a C compiler.
    """
    from pytcp.lab import profile

    names = [name for choice in WHAT[:-1] if not what or "all" in what or choice in what for name in WORKS[choice]]
    errors = screen.console(stderr=True)
    for number, name in enumerate(names):
        with errors.status(f"profiling {profile.WORKS[name].unit}"):
            report = profile.run((name,), sources, seconds)[name]
        rows = [screen.bold("layer", "calls", "us", "share")]
        for layer, cost in report.layers.items():
            if cost.calls >= 0.05:
                rows.append([layer, f"{cost.calls:.1f}", f"{cost.us:.1f}", f"{cost.us / report.us:.0%}"])
        rows.append(["in all", f"{sum(cost.calls for cost in report.layers.values()):.1f}", f"{report.us:.1f}", ""])
        size = f" of {report.payload:,.0f} bytes" if report.payload else ""
        click.echo(("\n" if number else "") + f"one {report.unit}{size}, of {report.count:,} in {seconds:g} s")
        click.echo("\n".join(screen.table(rows, right=(1, 2, 3))))
        if functions:
            own = [[function, f"{cost.calls:.1f}", f"{cost.us:.1f}", layer] for layer, function, cost in report.functions[:functions]]
            click.echo("\n".join(screen.table([screen.bold("function", "calls", "us", "layer"), *own], right=(1, 2))))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(command, "tools/profile"))
