"""What a run left behind: samples, queues and events as plain rows, written and read as JSON lines or CSV.

A `Record` is filled while an experiment runs (`record.series.append(...)`) and read by plots, reports, sweeps and `pytcp explain`.
Rows are dicts of integers and short strings; times are nanoseconds of the run's clock, sequence numbers count payload bytes from 0.

Three tables:

- `series`: t_ns, flow, and what was sampled of the flow (cwnd and ssthresh in segments, srtt_us, rttvar_us, inflight in segments,
  pacing_rate in bytes/s, snd_wnd and rcv_wnd in bytes, gate, snd_una, snd_nxt);
- `queues`: t_ns, queue, packets and bytes in it, drops and marks since the start;
- `events`: t_ns, flow, kind, and the fields of the trace event of that kind.

Memory is bounded. A full table of samples keeps every second row of each flow and from then on takes every second one (every
fourth, ...), so that it still spans the run; a full table of events keeps its beginning. `left_out` counts what is missing.

File format, one JSON object a line: first `{"record": 1, "meta": {...}, "flows": [...], "left_out": {...}}`, then
`{"series": row}`, `{"queues": row}` or `{"events": row}`, each table in order of time.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]

FORMAT = 1
TABLES = ("series", "queues", "events")
LIMIT = 250_000  # rows of a table; about 100 MB of dicts
SERIES = ("cwnd", "ssthresh", "srtt_us", "rttvar_us", "inflight", "pacing_rate", "snd_wnd", "rcv_wnd", "gate", "snd_una", "snd_nxt")
QUEUES = ("packets", "bytes", "drops", "marks")
# columns that every row of a table has: the time, whose it is, and for an event what happened
KEYS: Mapping[str, tuple[str, ...]] = {"series": ("t_ns", "flow"), "queues": ("t_ns", "queue"), "events": ("t_ns", "flow", "kind")}


class RecordError(ValueError):
    """A file is no record; the message names the file and the line."""


class Table(list[Row]):
    """Rows in order of time, at most `limit` of them. `key`: the column by which samples are thinned, "" to keep the first rows."""

    __slots__ = ("_seen", "key", "left_out", "limit", "stride")

    def __init__(self, key: str = "", limit: int = LIMIT) -> None:
        super().__init__()
        if limit < 2:
            raise ValueError(f"limit {limit} is below 2")
        self.key = key
        self.limit = limit
        self.left_out = 0
        self.stride = 1  # one row in `stride` is kept
        self._seen: dict[Any, int] = {}  # rows offered so far, by key

    def append(self, row: Row) -> None:
        """Take a row; when the table is full, thin it or count the row as left out."""
        if self.key:
            name = row[self.key]
            number = self._seen.get(name, 0)
            self._seen[name] = number + 1
            if number % self.stride:
                self.left_out += 1
                return
            while len(self) >= self.limit and self._thin():
                if number % self.stride:
                    self.left_out += 1
                    return
        if len(self) >= self.limit:
            self.left_out += 1
            return
        super().append(row)

    def extend(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.append(row)

    def _thin(self) -> bool:
        """Drop every second row of each key; False when that frees nothing (more keys than rows)."""
        kept: list[Row] = []
        position: dict[Any, int] = {}
        for row in self:
            name = row[self.key]
            place = position.get(name, 0)
            position[name] = place + 1
            if not place % 2:
                kept.append(row)
        dropped = len(self) - len(kept)
        self.left_out += dropped
        self.stride *= 2
        self[:] = kept
        return dropped > 0


class Record:
    """One run. `meta`: experiment, variant, seed, profile, settings, versions and whatever else describes it; `flows`: their names
    in the order in which to show them."""

    def __init__(self, meta: Mapping[str, Any] | None = None, flows: Iterable[str] = (), *, limit: int = LIMIT) -> None:
        """limit: rows kept of each table."""
        self.meta: dict[str, Any] = dict(meta or {})
        self.flows: list[str] = list(flows)
        self.series = Table("flow", limit)
        self.queues = Table("queue", limit)
        self.events = Table("", limit)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in ("meta", "flows", *TABLES))

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.table(name))} {name}" for name in TABLES)
        return f"<Record {self.title}: {counts}>"

    @property
    def title(self) -> str:
        """The experiment and its variant, as a heading."""
        words = [str(self.meta[name]) for name in ("experiment", "variant") if self.meta.get(name)]
        return " / ".join(words) or "a run"

    @property
    def left_out(self) -> dict[str, int]:
        """Rows that the limit kept out, of each table that lacks some."""
        return {name: self.table(name).left_out for name in TABLES if self.table(name).left_out}

    def table(self, name: str) -> Table:
        """`series`, `queues` or `events`."""
        found: Table = getattr(self, name)
        return found

    def samples(self, flow: str, column: str) -> tuple[list[int], list[Any]]:
        """Times in ns and values of a column of `series`, where the flow has one."""
        return _pairs(self.series, "flow", flow, column)

    def queue(self, queue: str, column: str) -> tuple[list[int], list[Any]]:
        """Times in ns and values of a column of `queues`."""
        return _pairs(self.queues, "queue", queue, column)

    def queue_names(self) -> list[str]:
        """The queues sampled, in order of appearance."""
        return list(dict.fromkeys(row["queue"] for row in self.queues))

    def happened(self, *kinds: str, flow: str | None = None) -> Iterator[Row]:
        """Events of these kinds (of all without one), of one flow or of all."""
        for row in self.events:
            if (not kinds or row["kind"] in kinds) and (flow is None or row["flow"] == flow):
                yield row

    def span_ns(self) -> tuple[int, int]:
        """The first and the last time in any table; (0, 0) for an empty record."""
        times = [self.table(name)[place]["t_ns"] for name in TABLES if self.table(name) for place in (0, -1)]
        return (min(times), max(times)) if times else (0, 0)

    # --- JSON lines ---

    def write_jsonl(self, path: str | Path) -> None:
        """Write the record; `Record.read_jsonl` gives an equal one. Raises OSError, and TypeError for values JSON has no form for."""
        with open(path, "w", encoding="utf-8") as file:
            head = {"record": FORMAT, "meta": self.meta, "flows": self.flows, "left_out": self.left_out}
            print(json.dumps(head, allow_nan=False), file=file)
            for name in TABLES:
                for row in self.table(name):
                    print(json.dumps({name: row}, separators=(",", ":"), allow_nan=False), file=file)

    @classmethod
    def read_jsonl(cls, path: str | Path, *, limit: int = LIMIT) -> Record:
        """Read what `write_jsonl` wrote. Raises OSError, and RecordError naming the line of the first mistake."""
        lines = read_rows(path)
        _, head = next(lines)
        record = cls(head["meta"], head["flows"], limit=limit)
        for name, count in head["left_out"].items():
            record.table(name).left_out = count
        for name, row in lines:
            record.table(name).append(row)
        return record

    # --- CSV ---

    def write_csv(self, folder: str | Path) -> list[Path]:
        """One tidy file per table that has rows (series.csv, queues.csv, events.csv) and meta.json, into `folder`, made if absent.

        Lists, as the SACK blocks of an `ack`, are written as JSON. Returns the files. Raises OSError."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        written = []
        for name in TABLES:
            rows = self.table(name)
            if not rows:
                continue
            columns = dict.fromkeys(KEYS[name])
            for row in rows:
                columns.update(dict.fromkeys(row))
            path = target / f"{name}.csv"
            with open(path, "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(columns)
                for row in rows:
                    writer.writerow([_cell(row.get(column)) for column in columns])
            written.append(path)
        path = target / "meta.json"
        path.write_text(json.dumps({"meta": self.meta, "flows": self.flows, "left_out": self.left_out}, indent=2) + "\n", encoding="utf-8")
        return [*written, path]


def read_rows(path: str | Path) -> Iterator[tuple[str, Row]]:
    """A file line by line, without keeping it: ("record", the head with its meta, flows and left_out), then (table, row).

    Raises OSError, and RecordError naming the line of the first mistake, when it is reached."""
    last = dict.fromkeys(TABLES, -1)
    number = 0
    with open(path, "rb") as file:
        try:
            for raw in file:
                number += 1
                line = _object(raw, number)
                if number == 1:
                    yield "record", _head(line)
                    continue
                name, row = _row(line)
                if row["t_ns"] < last[name]:
                    raise RecordError(f"t_ns goes back from {last[name]} to {row['t_ns']}")
                last[name] = row["t_ns"]
                yield name, row
        except RecordError as error:
            raise RecordError(f"{path}:{number}: {error}") from None
    if not number:
        raise RecordError(f"{path}:1: empty, no record")


def _head(line: Mapping[str, Any]) -> Row:
    if "record" not in line:
        raise RecordError('no record: the first line has no "record"')
    if line["record"] != FORMAT:
        raise RecordError(f"format {line['record']!r}; this version reads {FORMAT}")
    meta, flows, left_out = line.get("meta", {}), line.get("flows", []), line.get("left_out", {})
    if not isinstance(meta, dict):
        raise RecordError('"meta" is no object')
    if not isinstance(flows, list) or not all(isinstance(flow, str) for flow in flows):
        raise RecordError('"flows" is no list of names')
    if not isinstance(left_out, dict) or not all(name in TABLES and _is_count(count) for name, count in left_out.items()):
        raise RecordError(f'"left_out" counts rows of {", ".join(TABLES)}')
    return {"meta": meta, "flows": flows, "left_out": left_out}


def _pairs(rows: Iterable[Row], key: str, name: str, column: str) -> tuple[list[int], list[Any]]:
    times, values = [], []
    for row in rows:
        if row[key] == name and (value := row.get(column)) is not None:
            times.append(row["t_ns"])
            values.append(value)
    return times, values


def _cell(value: Any) -> Any:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, (list, tuple, dict)) else value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _object(raw: bytes, number: int) -> dict[str, Any]:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError) as error:
        if number > 1 and not raw.endswith(b"\n"):
            raise RecordError(f"cut off within this line; `head -n {number - 1}` of it has what is whole") from None
        if number == 1:
            raise RecordError("no record, which is JSON lines as `pytcp lab run --record` and --trace write them") from None
        if isinstance(error, UnicodeDecodeError):
            raise RecordError("not UTF-8") from None
        raise RecordError(f"not JSON: {error}") from None
    if not isinstance(line, dict):
        raise RecordError("not an object")
    return line


def _row(line: Mapping[str, Any]) -> tuple[str, Row]:
    """The table and the row of a line, with what every row of that table must have."""
    if len(line) != 1 or next(iter(line)) not in KEYS:
        raise RecordError(f"a line is one of {', '.join(TABLES)}, not {', '.join(map(repr, line)) or 'nothing'}")
    name, row = next(iter(line.items()))
    if not isinstance(row, dict):
        raise RecordError(f"{name}: the row is no object")
    for column in KEYS[name]:
        value = row.get(column)
        if column == "t_ns" and not _is_count(value):
            raise RecordError(f"{name}: t_ns is {value!r}, not nanoseconds")
        if column != "t_ns" and not isinstance(value, str):
            raise RecordError(f"{name}: {column} is {value!r}, not a name")
    return name, row
