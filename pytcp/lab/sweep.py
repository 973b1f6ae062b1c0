"""Sweeps: an experiment run over a grid of settings and many seeds, on all processors or a Dask cluster, as one tidy table.

A point of a sweep is a variant, a value for each key of the grid, and a seed. Its figures depend on nothing else, so the table is the
same to the last digit wherever the points ran and in whatever order they came back: rows stand in the order of the plan.

Every finished point is written at once to a journal beside the table (`NAME.csv.journal`, JSON lines). An interrupted sweep leaves
the table of what it has; the same command reads the journal and runs the rest. A journal of another plan, another version of pytcp or an
experiment file that has changed since is refused rather than mixed in.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, NamedTuple

import pytcp

from .experiment import Experiment, ExperimentError, RunError, Setting, load, run_variant
from .runs import processors, starting, workers
from .units import nearest

NO_DASK = "sweeps on a cluster need Dask: pip install 'distributed>=2024.1'"
NO_PARQUET = "Parquet needs pyarrow: pip install pyarrow (or choose a name that ends with .csv)"
DASK_TIMEOUT = 10  # seconds for a scheduler to answer
ERROR = "error"  # the column of what went wrong


class Point(NamedTuple):
    """One run."""

    variant: str
    seed: int
    settings: tuple[tuple[str, str], ...]  # of the grid


class Outcome(NamedTuple):
    """What came of a point: figures, or else what went wrong."""

    figures: Mapping[str, float]
    error: str = ""


class Sweep(NamedTuple):
    """What is to run."""

    which: str  # name or path of the experiment
    experiment: Experiment
    profile: str
    sets: tuple[tuple[str, Setting], ...]  # of every point
    grid: tuple[tuple[str, tuple[str, ...]], ...]
    points: tuple[Point, ...]

    def identity(self) -> dict[str, Any]:
        """What must be the same for results to be mixed; versions included."""
        source = hashlib.sha256(self.experiment.file.read_bytes()).hexdigest()[:16]
        sets = [[key, str(value)] for key, value in self.sets]
        return {"experiment": self.experiment.name, "source": source, "profile": self.profile, "set": sets, **versions()}


def versions() -> dict[str, str]:
    """Of what a figure depends on."""
    return {"pytcp": pytcp.__version__, "python": platform.python_version()}


def plan(
    which: str,
    grid: Mapping[str, Sequence[str]],
    seeds: Sequence[int] = (0,),
    variants: Sequence[str] = (),
    sets: Sequence[tuple[str, Setting]] = (),
    profile: str = "",
) -> Sweep:
    """All points: variants (default: those that differ in a cell) by grid by seeds. Raises ExperimentError for what cannot be set, with what is near it."""
    chosen = load(which)
    names = list(dict.fromkeys(variants)) or list(chosen.variants)
    fixed = {key for key, _ in sets}
    for key, values in grid.items():
        if key in ("seed", "variant"):
            raise ExperimentError(f"{key} is no setting: use --{'seeds' if key == 'seed' else 'variant'}")
        if key in fixed:
            raise ExperimentError(f"{key} is in the grid and set as well")
        if not values or not all(values):
            raise ExperimentError(f"{key}: a grid needs values, as in {key}=1,2")
        for value in values:
            for name in names:
                chosen.resolve(name, [*sets, (key, value)], profile)
    for name in names:
        chosen.resolve(name, sets, profile)
    cells = itertools.product(*([(key, value) for value in dict.fromkeys(values)] for key, values in grid.items()))
    points = [Point(name, seed, cell) for cell in cells for name in (names if variants else chosen.distinct([*sets, *cell], profile)) for seed in seeds]
    columns = tuple((key, tuple(dict.fromkeys(values))) for key, values in grid.items())
    return Sweep(which, chosen, profile or chosen.profile, tuple(sets), columns, tuple(points))


# --- running ---


def run_point(which: str, point: Point, profile: str, sets: Sequence[tuple[str, Setting]]) -> Outcome:
    """Run one point, here. What goes wrong in it is its outcome: the sweep goes on."""
    try:
        return Outcome(run_variant(which, point.variant, point.seed, profile, [*sets, *point.settings]).figures)
    except Exception as error:
        text = " ".join(str(error).split())
        return Outcome({}, text if isinstance(error, ExperimentError) else f"{type(error).__name__}: {text}")


Results = Iterator[tuple[Point, Outcome]]


def on_processes(sweep: Sweep, points: Sequence[Point], processes: int = 0) -> Results:
    """Run points in processes, by default one per processor, one in all for an experiment that wants the machine to itself.

    Yields them as they finish. Ending it early ends the processes."""
    with workers(min(processes or (1 if sweep.experiment.serial else processors()), len(points)) or 1) as pool:
        with starting():
            futures = {pool.submit(run_point, sweep.which, point, sweep.profile, sweep.sets): point for point in points}
        waiting: set[Future[Outcome]] = set(futures)
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in finished:
                yield futures[future], future.result()


def on_dask(sweep: Sweep, points: Sequence[Point], address: str) -> Results:
    """Run points on the workers of a Dask scheduler, which need this version of pytcp, and the experiment's file at the same path.

    Raises ExperimentError without Dask, or when nobody answers at `address`."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise RunError(NO_DASK) from None
    try:
        client = distributed.Client(address, timeout=DASK_TIMEOUT, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise RunError(f"no Dask scheduler at {address}: {error or 'no answer'}") from None
    which = sweep.which if sweep.experiment.builtin else str(sweep.experiment.file)
    _, colon, name = sweep.which.partition(":")
    try:
        strange = {str(where): found for where, found in client.run(versions).items() if found["pytcp"] != pytcp.__version__}
        if strange:
            where, found = next(iter(strange.items()))
            raise RunError(f"the worker {where} has pytcp {found['pytcp']}, not {pytcp.__version__}")
        futures = {client.submit(run_point, which + colon + name, point, sweep.profile, sweep.sets, pure=False): point for point in points}
        try:
            for future in distributed.as_completed(list(futures), loop=client.loop):
                lost = future.exception()  # of the run itself there is none
                yield futures[future], future.result() if lost is None else Outcome({}, f"the worker was lost: {lost}")
        finally:
            client.cancel(list(futures), force=True)
    finally:
        client.close()


# --- what is kept ---


class Journal:
    """Finished points of a sweep, in a file that survives it."""

    def __init__(self, path: Path, sweep: Sweep) -> None:
        """Read what is there. Raises ExperimentError when it belongs to something else, with what differs."""
        self.path = path
        self.found: dict[Point, Outcome] = {}
        self._identity = sweep.identity()
        if path.exists():
            self._read(sweep)

    def _read(self, sweep: Sweep) -> None:
        lines = self.path.read_bytes().split(b"\n")
        try:
            head = json.loads(lines[0])["sweep"]
        except (ValueError, KeyError, TypeError):
            raise RunError(f"{self.path}: no journal of a sweep; remove it, or choose another --out") from None
        for key, value in self._identity.items():
            if head.get(key) != value:
                what = "its file has changed" if key == "source" else f"{key} {head.get(key)} and not {value}"
                raise RunError(f"{self.path} holds results of another sweep: {what}. Remove it, or choose another --out")
        known = set(sweep.points)
        for line in lines[1:]:
            try:
                row = json.loads(line)
                point = Point(row["variant"], row["seed"], tuple((key, value) for key, value in row["settings"]))
                outcome = Outcome(row["figures"], row[ERROR])
            except (ValueError, KeyError, TypeError):
                continue  # the last line of a sweep that was killed in mid-write, or an empty one
            if point in known and not outcome.error:
                self.found[point] = outcome

    def open(self) -> Callable[[Point, Outcome], None]:
        """A function that keeps one more point. The file is written anew, without half a line at its end."""
        partial = self.path.with_name(self.path.name + ".new")
        file = open(partial, "w", encoding="utf-8")  # noqa: SIM115  # it lives as long as the sweep

        def keep(point: Point, outcome: Outcome) -> None:
            row = {"variant": point.variant, "seed": point.seed, "settings": point.settings, "figures": outcome.figures, ERROR: outcome.error}
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()

        file.write(json.dumps({"sweep": self._identity}) + "\n")
        for point, outcome in self.found.items():
            keep(point, outcome)
        os.replace(partial, self.path)
        return keep


def run(
    sweep: Sweep, out: Path, start: Callable[[Sweep, Sequence[Point]], Results], progress: Callable[[int, int], object] = lambda done, total: None
) -> list[Point]:
    """Run what is missing of a sweep and write its table to `out`; returns the points that failed.

    start: `on_processes` or `on_dask`, bound to its options. progress: told how many of how many points are through. When it is
    interrupted, the table of what there is is written and the journal stays. Raises ExperimentError and OSError."""
    write = writer(out)
    journal = Journal(out.with_name(out.name + ".journal"), sweep)
    missing = [point for point in sweep.points if point not in journal.found]
    keep = journal.open()
    results = journal.found
    total = len(sweep.points)
    progress(len(results), total)
    try:
        if missing:
            points = start(sweep, missing)
            try:
                for point, outcome in points:
                    results[point] = outcome
                    keep(point, outcome)
                    progress(len(results), total)
            finally:
                points.close()  # type: ignore[attr-defined]  # a generator: its processes end here, not when it is collected
    finally:
        if results:
            write(out, table(sweep, results))
        else:
            journal.path.unlink()
    failed = [point for point in sweep.points if results[point].error]
    if not failed:
        journal.path.unlink()
    return failed


def table(sweep: Sweep, results: Mapping[Point, Outcome]) -> list[dict[str, Any]]:
    """A row a point, in the order of the plan: what ran, its settings, its figures, versions."""
    keys = dict.fromkeys(key for point in sweep.points if point in results for key in results[point].figures)
    failed = any(outcome.error for outcome in results.values())
    rows = []
    for point in sweep.points:
        if point not in results:
            continue
        outcome = results[point]
        row: dict[str, Any] = {"experiment": sweep.experiment.name, "variant": point.variant, "seed": point.seed, **dict(point.settings)}
        row.update((key, str(value)) for key, value in sweep.sets)
        row.update((key, outcome.figures.get(key)) for key in keys)
        if failed:
            row[ERROR] = outcome.error
        rows.append({**row, "profile": sweep.profile, **versions()})
    return rows


def writer(out: Path) -> Callable[[Path, list[dict[str, Any]]], None]:
    """What writes a table to a file of this name. Raises ExperimentError before anything has run."""
    suffix = out.suffix.lower()
    if suffix == ".csv":
        return _write_csv
    if suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise RunError(NO_PARQUET) from None
        return _write_parquet
    raise ExperimentError(f"{out}: a table is .csv or .parquet; {nearest(suffix, ('.csv', '.parquet'))}")


def _write_csv(out: Path, rows: list[dict[str, Any]]) -> None:
    with open(out, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _write_parquet(out: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), out)
