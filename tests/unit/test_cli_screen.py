"""What is printed where: on a terminal of some width, in a pipe, on an output that is closed, as JSON instead of a table."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pytcp.cli import doctor, screen
from pytcp.lab.machine import OK, OPTIONAL, Check
from pytcp.lab.record import Record

from .terminal import on_a_terminal, unstyled


def test_a_table_cuts_no_cell_sets_figures_to_the_right_and_ends_without_blanks() -> None:
    rows = [["name", "n", "words"], ["a", "1", ""], ["longer", click.style("1,000", fg="red"), "end"]]
    lines = screen.table(rows, right=(1,))
    assert [click.unstyle(line) for line in lines] == ["name        n  words", "a           1", "longer  1,000  end"]


def test_a_ruled_table_breaks_headings_and_no_figures() -> None:
    lines = screen.ruled(["", "name\nhere", "n"], [["first", "1,000", "2"], ["second", "", "3.5%"]], dim=(1,))
    assert [click.unstyle(line) for line in lines] == [
        "         name",
        "         here     n",
        "───────────────────",
        "first   1,000     2",
        "second         3.5%",
    ]
    assert not any("\x1b[1m\x1b[0m" in line or "\x1b[2m\x1b[0m" in line for line in lines), "nothing is styled that is not there"


CHECKS = [
    Check("python", OK, "CPython 3.11.2, /a/path/that/is/longer/than/what/is/left/of/the/line/bin/python"),
    Check("C helpers", OPTIONAL, "none", "unset PYTCP_NO_C"),
]


def test_the_doctor_says_everything_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "width", lambda: 60)
    assert [click.unstyle(line) for line in doctor.table(CHECKS)] == [
        "ok        python     CPython 3.11.2,",
        "                     /a/path/that/is/longer/than/what/is/left/of/the/line/bin/python",
        "optional  C helpers  none",
        "                     -> unset PYTCP_NO_C",
    ]


def test_where_there_is_room_a_finding_of_the_doctors_is_one_line() -> None:
    lines = [click.unstyle(line) for line in doctor.table(CHECKS)]
    assert len(lines) == 1 + len(CHECKS)
    assert lines[2].split() == ["optional", "C", "helpers", "none", "unset", "PYTCP_NO_C"]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    record = Record({}, ["10.0.0.1:40000>10.0.0.2:80"])
    record.events.append({"t_ns": 0, "flow": "10.0.0.1:40000>10.0.0.2:80", "kind": "retransmit", "seq": 1448, "end_seq": 2896, "segs": 1, "cause": "lost"})
    record.write_jsonl(tmp_path / "t.jsonl")
    return str(tmp_path / "t.jsonl")


def test_no_color_means_no_escape_sequences(trace: str) -> None:
    assert "\x1b[" in on_a_terminal(80, "trace", trace)
    assert "\x1b[" not in on_a_terminal(80, "trace", trace, env={"NO_COLOR": "1"})


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_sentences_end_where_the_terminal_does_and_figures_are_whole(trace: str, columns: int) -> None:
    listed = on_a_terminal(columns, "lab", "list").splitlines()
    assert columns - 20 < max(map(len, listed)) <= columns
    said = unstyled(on_a_terminal(columns, "lab", "run", "tso-autosizing", "--set", "size=10kB", "-j", "1"))
    assert "…" not in said
    assert re.search(r"^TcpOutSegs +1,397 +\d+ +1,397 +\d+$", said, re.MULTILINE)
    shown = [unstyled(line) for line in on_a_terminal(columns, "trace", trace).splitlines()]
    assert max(map(len, shown)) <= columns
    assert "retransmit 1,448-2,896" in shown[2]
    assert "it counts as lost" in shown[-1]


def test_what_explains_a_connection_fits_60_columns(tmp_path: Path) -> None:
    record = Record({}, ["10.0.0.1:40000>10.0.0.2:80"])
    flow = {"flow": "10.0.0.1:40000>10.0.0.2:80"}
    record.events.append({"t_ns": 0, **flow, "kind": "gate", "old": "app", "new": "cwnd"})
    record.events.append({"t_ns": 30_000_000, **flow, "kind": "ack", "una": 1448, "wnd": 65160, "sacks": [], "delivered": 1, "rtt_us": 30_000})
    record.events.append({"t_ns": 50_000_000, **flow, "kind": "gate", "old": "cwnd", "new": "app"})
    record.write_jsonl(tmp_path / "t.jsonl")
    lines = unstyled(on_a_terminal(60, "explain", str(tmp_path / "t.jsonl"))).splitlines()
    assert lines[0] == "10.0.0.1:40000 > 10.0.0.2:80"
    assert any(line.startswith("  cwnd") for line in lines)
    assert max(map(len, lines)) <= 60


# --- outputs that are closed ---


@pytest.mark.parametrize("words", [("trace", "{trace}"), ("lab", "run", "tso-autosizing", "--set", "size=10kB"), ("lab", "list")])
def test_a_command_without_a_standard_output_does_its_work(trace: str, words: tuple[str, ...]) -> None:
    words = tuple(word.format(trace=trace) for word in words)
    done = subprocess.run([sys.executable, "-m", "pytcp", *words], stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1), timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_no_file_gets_the_number_of_a_standard_output_that_is_closed(tmp_path: Path) -> None:
    """Else what is printed would go into it."""
    program = "import click, os; from pytcp.cli.main import run_command; run_command(click.Command('x', callback=lambda: print(os.open('/dev/null', 0))), 'x')"
    done = subprocess.run(["sh", "-c", f'exec 0<&- 1>&-; exec "{sys.executable}" -c "{program}"'], stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    with_output = subprocess.run(["sh", "-c", f'exec 0<&-; exec "{sys.executable}" -c "{program}"'], capture_output=True, text=True, timeout=60, check=False)
    assert int(with_output.stdout) > 2


# --- JSON ---


@click.command(cls=screen.WithJson)
@click.argument("what", nargs=-1, type=click.Choice(["idle", "bulk"]))
@click.option("--runs", type=int)
@screen.json_option("JSON.")
def measure(what: tuple[str, ...], runs: int | None, json_file: str | None) -> None:
    """Says what it was given."""
    if json_file is None or not screen.write_json(json_file, {"what": what, "runs": runs}):
        click.echo(f"table of {' '.join(what)}")


@pytest.mark.parametrize("words", ["--json idle", "idle --json", "idle --json -", "--json - idle", "--json=- idle", "--json --runs 3 idle"])
def test_json_without_a_file_is_printed_instead_of_the_table(words: str) -> None:
    result = CliRunner().invoke(measure, words.split())
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"what": ["idle"], "runs": 3 if "--runs" in words else None}


def test_without_json_and_without_arguments_there_is_a_table() -> None:
    for words in ([], ["idle"], ["--runs", "3"]):
        result = CliRunner().invoke(measure, words)
        assert (result.exit_code, result.stdout.partition(" of ")[0]) == (0, "table"), result.output


def test_json_with_a_file_is_written_there_beside_the_table(tmp_path: Path) -> None:
    for number, words in enumerate((["--json", "{}", "idle"], ["idle", "--json", "{}"])):
        file = tmp_path / f"{number}.json"
        result = CliRunner().invoke(measure, [word.format(file) for word in words])
        assert result.stdout == "table of idle\n"
        assert json.loads(file.read_text())["what"] == ["idle"]
