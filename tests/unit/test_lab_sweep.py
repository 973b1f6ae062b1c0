"""Sweeps: one table, the same wherever its points ran and however often they were interrupted; what is done is kept."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pytcp.cli.main import cli
from pytcp.lab import sweep as sweeps
from pytcp.lab.experiment import ExperimentError
from pytcp.lab.sweep import Outcome, Point, Results, Sweep, on_dask, on_processes, plan, run

TOY = '''
import time
from pathlib import Path
from pytcp.lab.experiment import Figure, Figures, experiment
from pytcp.lab.units import MS, Time
from pytcp.lab.workloads import Bulk
from pytcp.lab.world import World

@experiment("toy", "A short download", variants={"plain": {}, "nosack": {"net.ipv4.tcp_sack": 0}}, figures=(Figure("seconds", "seconds", "{:.4f}"),))
def run(world: World, rtt: Time = 1 * MS, nap: int = 0, fail: str = "") -> Figures:
    time.sleep(nap / 1000)
    if fail and Path(fail).exists() and world.seed == 1:
        raise ValueError("as asked")
    client, server = world.host("client"), world.host("server")
    world.wire(client, server, delay=rtt // 2)
    download = Bulk(server, client, 20_000)
    world.run(lambda: download.done)
    return {"seconds": download.seconds, "draw": world.rng("a figure").random()}
'''


@pytest.fixture
def toy(tmp_path: Path) -> str:
    path = tmp_path / "toy.py"
    path.write_text(TOY)
    return str(path)


def here(sweep: Sweep, points: Sequence[Point]) -> Results:
    """Run points in this process, the last first."""
    for point in reversed(points):
        yield point, sweeps.run_point(sweep.which, point, sweep.profile, sweep.sets)


def small(toy: str) -> Sweep:
    return plan(toy, {"rtt": ["1ms", "10ms"], "cc": ["reno", "cubic"]}, range(2))


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_plan_is_all_variants_by_all_values_by_all_seeds(toy: str) -> None:
    planned = small(toy)
    assert len(planned.points) == 2 * 2 * 2 * 2
    assert planned.points[0] == Point("plain", 0, (("rtt", "1ms"), ("cc", "reno")))
    assert len(set(planned.points)) == len(planned.points)


def test_variants_that_a_cell_makes_equal_are_one_point_of_it(toy: str) -> None:
    planned = plan(toy, {"net.ipv4.tcp_sack": ["0", "1"]})
    assert [(point.variant, point.settings[0][1]) for point in planned.points] == [("nosack", "0"), ("plain", "1")]
    assert len(plan(toy, {"net.ipv4.tcp_sack": ["0", "1"]}, variants=["plain", "nosack"]).points) == 4


@pytest.mark.parametrize(
    ("grid", "sets", "says"),
    [
        ({"rt": ["1ms"]}, [], "near: rtt"),
        ({"rtt": ["1ms", "5parsec"]}, [], "unknown unit 'parsec'"),
        ({"rtt": ["1ms", ""]}, [], "needs values"),
        ({"cc": ["reno", "cubix"]}, [], "cubix"),
        ({"seed": ["1"]}, [], "use --seeds"),
        ({"variant": ["plain"]}, [], "use --variant"),
        ({"rtt": ["1ms"]}, [("rtt", "2ms")], "set as well"),
        ({}, [("net.ipv4.tcp_sac", "0")], "near: net.ipv4.tcp_sack"),
    ],
)
def test_what_cannot_be_set_is_refused_before_anything_runs(toy: str, grid: dict[str, list[str]], sets: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(ExperimentError, match=says):
        plan(toy, grid, sets=sets)


def test_the_table_has_settings_seed_figures_and_versions(toy: str, tmp_path: Path) -> None:
    planned = plan(toy, {"rtt": ["1ms", "10ms"]}, [7], ["plain"], [("net.ipv4.tcp_sack", "0")])
    assert run(planned, tmp_path / "out.csv", here) == []
    first, second = rows(tmp_path / "out.csv")
    assert [first[key] for key in ("experiment", "variant", "seed", "rtt", "net.ipv4.tcp_sack", "profile")] == ["toy", "plain", "7", "1ms", "0", "linux-6.18"]
    assert first["pytcp"] == sweeps.versions()["pytcp"]
    # handshake, then 20 kB in ten segments and four: two rounds more
    assert float(second["seconds"]) == pytest.approx(10 * float(first["seconds"]), rel=0.02)
    assert float(second["seconds"]) == pytest.approx(0.03, rel=0.02)
    assert not (tmp_path / "out.csv.journal").exists()


def test_where_points_run_cannot_be_seen_in_the_table(toy: str, tmp_path: Path) -> None:
    planned = small(toy)
    run(planned, tmp_path / "here.csv", here)
    run(planned, tmp_path / "processes.csv", partial(on_processes, processes=2))
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "processes.csv").read_bytes()


def test_a_dask_cluster_gives_the_same_table(toy: str, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="needs pip install -e .[test]")
    planned = small(toy)
    run(planned, tmp_path / "here.csv", here)
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        run(planned, tmp_path / "dask.csv", partial(on_dask, address=cluster.scheduler_address))
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "dask.csv").read_bytes()


def test_an_interrupted_sweep_keeps_what_it_has_and_goes_on_from_there(toy: str, tmp_path: Path) -> None:
    planned = small(toy)
    run(planned, tmp_path / "whole.csv", here)

    def interrupt(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    out = tmp_path / "out.csv"
    with pytest.raises(KeyboardInterrupt):
        run(planned, out, here, interrupt)
    assert len(rows(out)) == 5
    ran: list[Point] = []

    def counting(sweep: Sweep, points: Sequence[Point]) -> Results:
        ran.extend(points)
        yield from here(sweep, points)

    run(planned, out, counting)
    assert len(ran) == len(planned.points) - 5
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_journal_that_ends_in_half_a_line_loses_that_line_only(toy: str, tmp_path: Path) -> None:
    planned = small(toy)
    out = tmp_path / "out.csv"

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(planned, out, here, stop)
    journal = tmp_path / "out.csv.journal"
    journal.write_bytes(journal.read_bytes()[:-9])
    assert len(sweeps.Journal(journal, planned).found) == 2
    run(planned, out, here)
    assert len(rows(out)) == len(planned.points)


def test_a_longer_sweep_takes_over_what_a_shorter_one_left(toy: str, tmp_path: Path) -> None:
    journal = sweeps.Journal(tmp_path / "j", plan(toy, {}, range(2), ["plain"]))
    keep = journal.open()
    keep(Point("plain", 1, ()), Outcome({"seconds": 1.0}))
    assert set(sweeps.Journal(tmp_path / "j", plan(toy, {}, range(9), ["plain"])).found) == {Point("plain", 1, ())}


def test_results_of_another_experiment_file_or_profile_are_not_mixed_in(toy: str, tmp_path: Path) -> None:
    planned = small(toy)
    path = tmp_path / "j"
    sweeps.Journal(path, planned).open()
    with pytest.raises(ExperimentError, match=r"profile linux-6\.18 and not"):
        sweeps.Journal(path, planned._replace(profile="5.4"))
    Path(toy).write_text(TOY + "\n")
    with pytest.raises(ExperimentError, match="its file has changed"):
        sweeps.Journal(path, planned)
    path.write_text("nonsense\n")
    with pytest.raises(ExperimentError, match="no journal"):
        sweeps.Journal(path, planned)


def test_a_run_that_fails_has_a_row_that_says_why_and_is_tried_again(toy: str, tmp_path: Path) -> None:
    flag, out = tmp_path / "flag", tmp_path / "out.csv"
    flag.touch()
    planned = plan(toy, {}, range(3), ["plain"], [("fail", str(flag))])
    assert run(planned, out, here) == [Point("plain", 1, ())]
    failed = rows(out)[1]
    assert failed["seconds"] == ""
    assert failed["error"].startswith(f"{toy}:13: ValueError: as asked")
    flag.unlink()
    assert run(planned, out, here) == []
    assert "error" not in rows(out)[0]
    assert all(row["seconds"] for row in rows(out))


def test_parquet_holds_the_same_table_with_numbers_as_numbers(toy: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pip install -e .[test]")
    planned = plan(toy, {"rtt": ["1ms"]}, range(2))
    run(planned, tmp_path / "t.csv", here)
    run(planned, tmp_path / "t.parquet", here)
    found = parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert [{key: str(value) for key, value in row.items()} for row in found] == rows(tmp_path / "t.csv")
    assert isinstance(found[0]["seconds"], float)


# --- processes ---


def of_session(session: int) -> list[int]:
    """Processes that live in a session."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if entry.name.isdigit() and words[3] == str(session) and words[0] != "Z":
            found.append(int(entry.name))
    return found


def test_ending_a_sweep_early_ends_its_processes(toy: str) -> None:
    before = set(multiprocessing.active_children())
    planned = plan(toy, {}, range(6), ["plain"], [("nap", "100")])
    results = on_processes(planned, planned.points, 2)
    next(results)
    children = [child.pid for child in set(multiprocessing.active_children()) - before]
    assert children
    results.close()  # type: ignore[attr-defined]
    # not by active_children(): the pool's own thread may have waited for a child and not said so yet
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_a_sweep_that_is_ended_from_outside(toy: str, tmp_path: Path, number: int) -> None:
    words = [sys.executable, "-m", "pytcp", "lab", "sweep", toy, "--seeds", "1000", "--set", "nap=100", "-j", "2", "--out", str(tmp_path / "out.csv")]
    journal = tmp_path / "out.csv.journal"
    running = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        give_up = time.monotonic() + 60
        while (not journal.exists() or len(journal.read_bytes().split(b"\n")) < 4) and time.monotonic() < give_up:
            time.sleep(0.05)
        assert len(of_session(running.pid)) >= 3
        if number == signal.SIGINT:
            os.killpg(running.pid, number)  # as a terminal does
        else:
            running.kill()
        _, errors = running.communicate(timeout=60)
        while of_session(running.pid) and time.monotonic() < give_up:
            time.sleep(0.05)
        assert of_session(running.pid) == []
    finally:
        for pid in of_session(running.pid):
            os.kill(pid, signal.SIGKILL)
    assert len(journal.read_bytes().split(b"\n")) >= 4
    if number == signal.SIGINT:
        assert running.returncode == 130
        assert "the same command goes on from there" in errors
        assert "Traceback" not in errors
        assert len(rows(tmp_path / "out.csv")) == len(journal.read_text().splitlines()) - 1


def test_processes_never_hear_a_ctrl_c_not_even_while_they_start(toy: str) -> None:
    before = set(multiprocessing.active_children())
    planned = plan(toy, {}, range(4), ["plain"], [("nap", "100")])
    results = on_processes(planned, planned.points, 2)
    next(results)
    for child in set(multiprocessing.active_children()) - before:
        [blocked] = [line.split()[1] for line in Path(f"/proc/{child.pid}/status").read_text().splitlines() if line.startswith("SigBlk:")]
        assert int(blocked, 16) >> (signal.SIGINT - 1) & 1
    results.close()  # type: ignore[attr-defined]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # we do


def test_an_experiment_that_wants_the_machine_to_itself_has_one_process(toy: str) -> None:
    before = set(multiprocessing.active_children())
    planned = plan(toy, {}, range(4), ["plain"], [("nap", "100")])
    planned.experiment.serial = True
    results = on_processes(planned, planned.points)
    next(results)
    assert len(set(multiprocessing.active_children()) - before) == 1
    results.close()  # type: ignore[attr-defined]


# --- the command ---


def command(*words: str) -> Result:
    return CliRunner().invoke(cli, ["lab", "sweep", *words])


def test_the_command_writes_the_table_and_shows_medians(toy: str, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    done = command(toy, "--grid", "rtt=1ms,10ms", "--seeds", "2", "--variant", "plain", "-j", "1", "--out", str(out))
    assert done.exit_code == 0, done.stderr
    assert len(rows(out)) == 4
    assert "0.0300" in done.stdout
    assert "4 runs in" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--grid", "rtt"], "'rtt' is not KEY=VALUE"),
        (["--grid", "rt=1ms"], "near: rtt"),
        (["--out", "t.parkett"], "near: .parquet"),
        (["--dask", "tcp://127.0.0.1:1", "--seeds", "1"], "no Dask scheduler at tcp://127.0.0.1:1"),
    ],
)
def test_mistakes_are_named_before_anything_runs(toy: str, tmp_path: Path, words: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "--dask" in words:
        pytest.importorskip("distributed", reason="needs pip install -e .[test]")
        monkeypatch.setattr(sweeps, "DASK_TIMEOUT", 1)
    done = command(toy, *words)
    assert done.exit_code == (1 if "--dask" in words else 2)
    assert says in done.stderr
    assert not list(tmp_path.glob("*sweep*"))


def test_the_journal_is_readable_json(toy: str, tmp_path: Path) -> None:
    sweeps.Journal(tmp_path / "j", small(toy)).open()(Point("plain", 0, (("rtt", "1ms"),)), Outcome({"seconds": 0.5}))
    head, row = (json.loads(line) for line in (tmp_path / "j").read_text().splitlines())
    assert head["sweep"]["experiment"] == "toy"
    assert row == {"variant": "plain", "seed": 0, "settings": [["rtt", "1ms"]], "figures": {"seconds": 0.5}, "error": ""}
