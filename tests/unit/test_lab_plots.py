"""Plots of a record: dots where the values are, gates by their letters, and files of the format asked for."""

from __future__ import annotations

import csv
import struct
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from pytcp.cli.main import cli
from pytcp.lab import palette
from pytcp.lab.braille import Canvas, draw, round_step, short
from pytcp.lab.record import Record
from pytcp.lab.timeline import Timeline, timeline

MS = 1_000_000


def record(variant: str = "one", seed: int = 1) -> Record:
    made = Record({"experiment": "demo", "variant": variant, "seed": seed}, ["bulk"])
    for t in range(0, 100, 10):
        made.series.append({"t_ns": t * MS, "flow": "bulk", "cwnd": 10 if t < 50 else 20, "srtt_us": 40_000})
        made.queues.append({"t_ns": t * MS, "queue": "bottleneck", "packets": t // 10, "bytes": 0, "drops": 4 if t == 90 else 0, "marks": 0})
    made.events.append({"t_ns": 0, "flow": "bulk", "kind": "gate", "old": "app", "new": "cwnd"})
    made.events.append({"t_ns": 0, "flow": "bulk", "kind": "xmit", "seq": 0, "end_seq": 1000, "segs": 1, "rtx": 0, "why": "cwnd"})
    made.events.append({"t_ns": 45 * MS, "flow": "bulk", "kind": "gate", "old": "cwnd", "new": "rwnd"})
    made.events.append({"t_ns": 60 * MS, "flow": "bulk", "kind": "rto"})
    made.events.append({"t_ns": 90 * MS, "flow": "bulk", "kind": "xmit", "seq": 0, "end_seq": 1000, "segs": 1, "rtx": 1, "why": "mss"})
    return made


def text(*what: str, lines: list[Timeline] | None = None, width: int = 60) -> list[str]:
    made = record()
    queue = {"t": [row["t_ns"] for row in made.queues], **{name: [row[name] for row in made.queues] for name in ("packets", "drops", "marks")}}
    return draw(lines or [timeline(made, "bulk")], [("bottleneck", queue)], 90 * MS, what, width).plain.split("\n")


def test_a_dot_is_where_its_value_is() -> None:
    canvas = Canvas(4, 2)
    canvas.dot(0, 0, "")  # the topmost dot at the left
    canvas.dot(7, 7, "")  # the lowest at the right
    assert [line.plain for line in canvas.lines()] == ["⠁   ", "   ⢀"]
    assert (canvas.row(0), canvas.row(0.999), canvas.column(0), canvas.column(1)) == (7, 0, 0, 7)


def test_a_line_of_steps_stays_until_the_next_value() -> None:
    canvas = Canvas(10, 1)
    canvas.steps([(0, 0.0), (0.5, 0.99), (0.9, 0.99)], "")
    [row] = [line.plain for line in canvas.lines()]
    assert row[:5] == "⣀⣀⣀⣀⣀"
    assert set(row[6:9]) == {"⠉"}


def test_a_gap_in_the_values_is_a_gap_in_the_line() -> None:
    canvas = Canvas(10, 1)
    canvas.steps([(0, 0.0), (0.2, None), (0.8, 0.0), (0.99, 0.0)], "")
    [row] = [line.plain for line in canvas.lines()]
    assert row[4:7] == "   "
    assert row[0] != " "
    assert row[9] != " "


def test_a_panel_has_the_greatest_value_at_its_top_and_a_step_where_it_grew() -> None:
    rows = text("cwnd")
    assert rows[0].split()[:3] == ["Congestion", "window", "segments"]
    assert rows[1].split()[0] == "20"
    inner = [row[9:] for row in rows[1:9]]
    top = inner[0]
    where = next(place for place, cell in enumerate(top) if cell != " ")
    assert where == pytest.approx(len(top) * 50 / 90, abs=1.5)


def test_the_band_of_gates_has_the_letter_of_the_gate_that_was_shut() -> None:
    rows = text("gates")
    band = rows[1][9:].strip()
    assert set(band) == {"c", "w"}
    assert band.count("c") == pytest.approx(len(band) / 2, abs=1)
    assert "c cwnd" in rows[0]
    assert "w rwnd" in rows[0]


def test_events_are_marks_with_a_legend() -> None:
    rows = text("events")
    assert "✖ retransmission timeout" in rows[0]
    assert rows[1].index("✖") == pytest.approx(9 + 50 * 60 / 90, abs=1)


def test_the_queue_says_what_it_dropped() -> None:
    assert "4 dropped" in text("queue")[0]


def test_of_several_flows_each_has_a_line_and_a_row_of_its_own() -> None:
    lines = [timeline(record(), "bulk", name) for name in ("before", "after")]
    assert [row.split()[0] for row in text("gates", lines=lines)[1:3]] == ["before", "after"]
    assert "before" in text("cwnd", lines=lines)[0]


def test_nothing_to_show_is_nothing() -> None:
    empty = timeline(Record({}, ["a"]), "a")
    assert draw([empty], [], 0, palette.WHAT, 80).plain == ""


def test_numbers_and_steps_are_round() -> None:
    assert [short(value) for value in (0, 1448, 12_500, 3_100_000, 25e9, 0.25)] == ["0", "1448", "12.5k", "3.1M", "25G", "0.25"]
    assert [round_step(span, 8) for span in (8, 9, 90 * MS, 1)] == [1, 2, 20 * MS, 1]


# --- the command ---


def plot(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["lab", "plot", *map(str, arguments)])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path in paths:
        record(path.stem).write_jsonl(path)
    return paths


def test_the_command_draws_all_there_is_in_the_terminal(files: list[Path]) -> None:
    done = plot(files[0], "--width", "80")
    assert done.exit_code == 0, done.stderr
    for heading in ("demo / one", "Time–sequence", "What held the sender back", "Events", "Congestion window", "Queue: bottleneck"):
        assert heading in done.stdout
    assert max(map(len, done.stdout.split("\n"))) <= 120
    assert "Pacing rate" not in done.stdout  # never sampled


def test_pictures_are_what_their_suffix_says_and_hold_the_panels(files: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs pip install -e .[test]")
    done = plot(*files, "--png", tmp_path / "a.png", "--svg", tmp_path / "a")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == ""
    png = (tmp_path / "a.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    assert width == 1430
    assert height > 600
    svg = (tmp_path / "a.svg").read_text()  # the suffix was added
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert svg.count("<!-- Congestion window -->") == 1
    assert svg.count("<!-- Time–sequence: ") == 2


def test_tables_go_into_a_folder_each(files: list[Path], tmp_path: Path) -> None:
    assert plot(*files, "--csv", tmp_path / "out").exit_code == 0
    with open(tmp_path / "out" / "two" / "series.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 10


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--what", "cwn"], "there is no 'cwn'; near: cwnd"),
        (["--flow", "bulc"], "there is no flow 'bulc'; near: bulk"),
        (["--what", "rate"], "the record has nothing of that"),
        (["--what", "rate", "--png", "never.png"], "the record has nothing of that"),
    ],
)
def test_what_is_not_there_is_named_with_what_is_near(files: list[Path], arguments: list[str], says: str) -> None:
    done = plot(files[0], *arguments)
    assert done.exit_code != 0
    assert says in done.stderr
    assert not Path("never.png").exists()


def test_a_file_that_is_no_record_is_shown_with_its_line(tmp_path: Path, files: list[Path]) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text(files[0].read_text() + '{"series": {"t_ns": 1}}\n')
    done = plot(broken)
    assert done.exit_code == 1
    number = len(files[0].read_text().splitlines()) + 1
    assert f"{broken}:{number}: series: flow is None" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytcp.lab import picture

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    lines: list[Any] = [timeline(record(), "bulk")]
    with pytest.raises(ImportError, match=r"pip install 'matplotlib>=3\.9'"):
        picture.draw("x.png", lines, [], 1, ["cwnd"])
