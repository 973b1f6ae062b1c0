"""Records: what is written is read again, a mistake in a file is shown with its line, and memory has a bound."""

from __future__ import annotations

import csv
import json
from itertools import pairwise
from pathlib import Path

import pytest

from pytcp.lab.record import Record, RecordError


def small() -> Record:
    record = Record({"experiment": "demo", "variant": "after", "seed": 1, "settings": {"rtt": "40ms"}}, ["a", "b"])
    record.series.append({"t_ns": 0, "flow": "a", "cwnd": 10, "gate": "app"})
    record.series.append({"t_ns": 5, "flow": "b", "cwnd": 11, "srtt_us": 40_000})
    record.queues.append({"t_ns": 3, "queue": "bottleneck", "packets": 2, "bytes": 3028, "drops": 0, "marks": 0})
    record.events.append({"t_ns": 1, "flow": "a", "kind": "xmit", "seq": 0, "end_seq": 2896, "segs": 2, "why": "cwnd"})
    record.events.append({"t_ns": 9, "flow": "a", "kind": "ack", "una": 2896, "sacks": [[4344, 5792]]})
    return record


def test_a_record_read_is_the_record_written(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    small().write_jsonl(path)
    assert Record.read_jsonl(path) == small()
    small().write_jsonl(tmp_path / "again.jsonl")
    assert path.read_bytes() == (tmp_path / "again.jsonl").read_bytes()


def test_each_line_is_an_object_that_names_its_table(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    small().write_jsonl(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["record", "series", "series", "queues", "events", "events"]


def test_what_is_asked_of_a_record() -> None:
    record = small()
    assert record.samples("a", "cwnd") == ([0], [10])
    assert record.samples("a", "srtt_us") == ([], [])  # never sampled for a
    assert record.queue("bottleneck", "bytes") == ([3], [3028])
    assert [row["t_ns"] for row in record.happened("ack", flow="a")] == [9]
    assert list(record.happened("ack", flow="b")) == []
    assert record.span_ns() == (0, 9)
    assert record.title == "demo / after"
    assert Record().span_ns() == (0, 0)


def test_tidy_csv_has_a_file_per_table_and_a_column_per_field(tmp_path: Path) -> None:
    names = [path.name for path in small().write_csv(tmp_path / "new" / "folder")]
    assert names == ["series.csv", "queues.csv", "events.csv", "meta.json"]
    with open(tmp_path / "new" / "folder" / "events.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {"t_ns": "1", "flow": "a", "kind": "xmit", "seq": "0", "end_seq": "2896", "segs": "2", "why": "cwnd", "una": "", "sacks": ""}
    assert json.loads(rows[1]["sacks"]) == [[4344, 5792]]
    assert json.loads((tmp_path / "new" / "folder" / "meta.json").read_text())["meta"]["seed"] == 1


HEAD = b'{"record": 1}\n'
GOOD = b'{"series": {"t_ns": 7, "flow": "a"}}\n'


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (b"", 1, "empty"),
        (b"t,cwnd\n", 1, "no record, which is JSON lines as `pytcp lab run --record` and --trace write them"),
        (b"\x0a\x0d\x0d\x0a\xff", 1, "no record, which is JSON lines"),
        (b"[]\n", 1, "not an object"),
        (b'{"meta": {}}\n', 1, 'no "record"'),
        (b'{"record": 2}\n', 1, "reads 1"),
        (b'{"record": 1, "meta": 3}\n', 1, "meta"),
        (b'{"record": 1, "flows": [3]}\n', 1, "names"),
        (b'{"record": 1, "left_out": {"series": -1}}\n', 1, "left_out"),
        (HEAD + GOOD + b'{"series": {"t_ns": 8, "flow": "a"\n', 3, "not JSON"),
        (HEAD + GOOD + b'{"series": {"t_ns": 8, "flow": "a"', 3, "cut off within this line; `head -n 2` of it has what is whole"),
        (HEAD + GOOD + b'{"series": {"t_ns": 8, "flow": "\xc3', 3, "cut off within this line"),
        (HEAD + GOOD + b"\n", 3, "not JSON"),
        (HEAD + b'{"serie": {}}\n', 2, "'serie'"),
        (HEAD + b"{}\n", 2, "nothing"),
        (HEAD + b'{"series": []}\n', 2, "no object"),
        (HEAD + b'{"series": {"flow": "a"}}\n', 2, "t_ns is None"),
        (HEAD + b'{"series": {"t_ns": 1.5, "flow": "a"}}\n', 2, "t_ns is 1.5"),
        (HEAD + b'{"series": {"t_ns": true, "flow": "a"}}\n', 2, "t_ns is True"),
        (HEAD + b'{"queues": {"t_ns": 1, "flow": "a"}}\n', 2, "queue is None"),
        (HEAD + b'{"events": {"t_ns": 1, "flow": "a"}}\n', 2, "kind is None"),
        (HEAD + GOOD + b'{"series": {"t_ns": 6, "flow": "a"}}\n', 3, "goes back from 7 to 6"),
        (HEAD + b'{"events": {"t_ns": 1, "flow": "\xff", "kind": "ack"}}\n', 2, "not UTF-8"),
    ],
)
def test_a_mistake_in_a_file_is_shown_with_its_line(tmp_path: Path, content: bytes, line: int, says: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordError) as raised:
        Record.read_jsonl(path)
    assert str(raised.value).startswith(f"{path}:{line}: ")
    assert says in str(raised.value)


def test_values_that_json_has_no_form_for_are_refused(tmp_path: Path) -> None:
    record = Record({"ratio": float("nan")})
    with pytest.raises(ValueError):
        record.write_jsonl(tmp_path / "run.jsonl")


def test_a_full_table_of_samples_still_spans_the_run_for_every_flow() -> None:
    record = Record(limit=100)
    for number in range(10_000):
        record.series.append({"t_ns": number, "flow": "ab"[number % 2], "cwnd": number})
    assert len(record.series) <= 100
    assert record.left_out == {"series": 10_000 - len(record.series)}
    for flow in "ab":
        times, _ = record.samples(flow, "cwnd")
        steps = {later - earlier for earlier, later in pairwise(times)}
        assert len(times) >= 25
        assert len(steps) == 1  # evenly spread
        assert times[-1] >= 10_000 - 2 * max(steps)


def test_a_full_table_of_events_keeps_its_beginning() -> None:
    record = Record(limit=3)
    record.events.extend({"t_ns": number, "flow": "a", "kind": "ack"} for number in range(5))
    assert [row["t_ns"] for row in record.events] == [0, 1, 2]
    assert record.left_out == {"events": 2}


def test_more_flows_than_rows_cannot_be_thinned_but_are_bounded() -> None:
    record = Record(limit=4)
    record.series.extend({"t_ns": 0, "flow": str(number)} for number in range(50))
    assert len(record.series) == 4
    assert record.left_out == {"series": 46}


def test_what_was_left_out_survives_the_file(tmp_path: Path) -> None:
    record = Record(limit=3)
    record.events.extend({"t_ns": number, "flow": "a", "kind": "ack"} for number in range(5))
    record.write_jsonl(tmp_path / "run.jsonl")
    assert Record.read_jsonl(tmp_path / "run.jsonl").left_out == {"events": 2}
