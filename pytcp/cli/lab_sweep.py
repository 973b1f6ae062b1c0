"""`pytcp lab sweep`: an experiment over a grid of settings and many seeds."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytcp.cli import screen
from pytcp.cli.files import NewFile
from pytcp.tcp import profiles

if TYPE_CHECKING:
    from pytcp.lab.sweep import Sweep

SHOWN = 40  # rows of the summary


def pairs(words: Sequence[str], option: str) -> list[tuple[str, str]]:
    """KEY=VALUE words of an option."""
    found = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{word!r} is not KEY=VALUE", param_hint=option)
        found.append((key.strip(), value.strip()))
    return found


@click.command("sweep", short_help="An experiment over a grid of settings and many seeds, as one table.")
@click.argument("name")
@click.option("--grid", "grids", multiple=True, metavar="KEY=V1,V2,...", help="A setting and its values; may be given several times: all combinations run.")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1), help="Runs of each combination, with seeds from --seed on.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="The first seed.")
@click.option("--variant", "variants", multiple=True, metavar="NAME", help="Only this variant; may be given several times.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="A setting of every run.")
@click.option("--profile", type=click.Choice(profiles.NAMES), help="Kernel whose defaults the hosts have.  [default: the experiment's]")
@click.option("--out", type=NewFile(path_type=Path), help="The table, .csv or .parquet.  [default: NAME-sweep.csv]")
@click.option("-j", "processes", type=click.IntRange(1), default=None, help="Runs at a time.  [default: processors]")
@click.option("--dask", "address", metavar="ADDRESS", help="Run on this Dask scheduler (tcp://host:8786) instead.")
def sweep(
    name: str,
    grids: tuple[str, ...],
    seeds: int,
    seed: int,
    variants: tuple[str, ...],
    sets: tuple[str, ...],
    profile: str | None,
    out: Path | None,
    processes: int | None,
    address: str | None,
) -> int:
    """Run an experiment over a grid of settings, and write one tidy table.

    What is done is kept: after Ctrl-C the same command goes on where it was. Exit status 1 when runs failed (their rows say why).

    \b
    Examples:
      pytcp lab sweep scaling-ratio --grid rtt=10ms,100ms --grid cc=reno,cubic --seeds 20
      pytcp lab sweep ./mine.py --grid size=1MB,10MB --out mine.parquet
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from pytcp.lab import sweep as sweeps
    from pytcp.lab.experiment import ExperimentError

    from .lab import complaint

    grid: dict[str, list[str]] = {}
    for key, values in pairs(grids, "--grid"):
        grid.setdefault(key, []).extend(value.strip() for value in values.split(","))
    errors = screen.console(stderr=True)
    try:
        planned = sweeps.plan(name, grid, range(seed, seed + seeds), variants, pairs(sets, "--set"), profile or "")
        target = out or Path(f"{planned.experiment.name}-sweep.csv")
        sweeps.writer(target)
        start = partial(sweeps.on_dask, address=address) if address else partial(sweeps.on_processes, processes=processes or 0)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        done = 0
        try:
            with Progress(*columns, console=errors, transient=True) as bar:
                task = bar.add_task(planned.experiment.name, total=len(planned.points))

                def progress(through: int, total: int) -> None:
                    nonlocal done
                    done = through
                    bar.update(task, completed=through)

                failed = sweeps.run(planned, target, start, progress)
        except KeyboardInterrupt:
            click.echo(f"{done} of {len(planned.points)} runs are in {target}; the same command goes on from there", err=True)
            raise
    except ExperimentError as error:
        raise complaint(error) from None
    _summary(planned, target, grid)
    for point in failed[:5]:
        settings = ", ".join(f"{key}={value}" for key, value in point.settings)
        click.echo(f"failed: {point.variant}, seed {point.seed}{', ' + settings if settings else ''}", err=True)
    if failed:
        count = f"{len(failed)} of {len(planned.points)} runs failed"
        click.echo(f"{count}; column {sweeps.ERROR} of {target} says why; the same command tries them again", err=True)
    return 1 if failed else 0


def _summary(planned: Sweep, target: Path, grid: Mapping[str, Sequence[str]]) -> None:
    """Medians over the seeds, with their range, of the figures that the experiment describes."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in _rows(target):
        groups.setdefault((row["variant"], *(str(row[key]) for key in grid)), []).append(row)
    described = planned.experiment.figures
    figures = [figure for figure in described if any(row.get(figure.key) not in (None, "") for rows in groups.values() for row in rows)]
    headings = ["variant", *grid, *("\n".join(textwrap.wrap(figure.label, 12, break_long_words=False)) for figure in figures)]
    lines = []
    for key, rows in list(groups.items())[:SHOWN]:
        cells = []
        for figure in figures:
            values = [float(row[figure.key]) for row in rows if row.get(figure.key) not in (None, "")]
            cells.append(_spread(values, figure.form))
        lines.append([*key, *cells])
    if figures:
        click.echo("\n".join(screen.ruled(headings, lines, left=1 + len(grid))))
        if len(groups) > SHOWN:
            click.echo(click.style(f"and {len(groups) - SHOWN} more", dim=True))
    click.echo(f"{len(planned.points):,} runs in {target}")


def _rows(target: Path) -> list[Mapping[str, Any]]:
    if target.suffix.lower() == ".parquet":
        import pyarrow.parquet

        rows: list[Mapping[str, Any]] = pyarrow.parquet.read_table(target).to_pylist()
        return rows
    import csv

    with open(target, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _spread(values: Sequence[float], form: str) -> str:
    """The median, and the range where there is one."""
    if not values:
        return ""
    middle = form.format(statistics.median(values))
    low, high = form.format(min(values)), form.format(max(values))
    return middle if low == high else f"{middle}  {low}–{high}"
