"""A flow of a record as columns, ready to draw: super-segments and why each had its size, what held the next one back,
acknowledgements, SACK blocks, the window's edge, gates, marks.

Plots and the HTML report draw these columns; nothing here knows of either. Times are ns since the record began, sequence numbers
payload bytes from 0. Words for people are in `GATES` and
`MARKS` here and in `tcp.trace.WHY`, so that every picture says the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pytcp.tcp.gates import WORDS

from .record import Record, Row

# what keeps a sender from sending (`gate`)
GATES: Mapping[str, str] = WORDS

# events that are drawn as marks, with the words for them
MARKS: Mapping[str, str] = {
    "state": "state of the connection",
    "ca_state": "congestion state",
    "rto": "retransmission timeout",
    "tlp": "tail loss probe",
    "probe": "window probe",
    "undo": "reduction undone",
    "ecn": "congestion experienced (ECN)",
    "hystart": "HyStart left slow start",
    "autocork": "autocorked",
    "tsq": "throttled by small queues",
    "tso_defer": "deferred",
    "window": "window",
}
# marks that come by the thousand and are left to the gates unless asked for
FREQUENT = frozenset({"autocork", "tsq", "tso_defer", "window"})

# values that stand for "none yet"
INFINITE_SSTHRESH = 0x7FFFFFFF
UNLIMITED_RATE = 0xFFFFFFFF  # bytes/s; also all larger ones


@dataclass(slots=True)
class Timeline:
    """One flow. Each group is a dict of equally long columns."""

    name: str
    flow: str
    variant: str
    # t, seq, len, segs, gso, rtx, why, flags, cwnd, inflight, quota, max, cause (of a retransmit), held: [(gate, ns), ...] until the next
    xmit: dict[str, list[Any]]
    acks: dict[str, list[Any]]  # t, una, rtt (us)
    sacks: dict[str, list[int]]  # t, seq, end
    lost: dict[str, list[Any]]  # t, seq, end, why: segments given up
    edge: dict[str, list[int]]  # t, seq: how far the peer lets us send
    gates: dict[str, list[Any]]  # t, end, gate
    marks: dict[str, list[Any]]  # t, kind, text
    series: dict[str, list[Any]]  # t, and the sampled columns
    counts: Counter[str] = field(default_factory=Counter)  # events by kind

    @property
    def sends(self) -> bool:
        """It has sent payload: a FIN alone makes no sender."""
        return any(self.xmit["len"])

    def gate_times(self) -> dict[str, int]:
        """ns spent at each gate, the longest first."""
        times: Counter[str] = Counter()
        for start, end, gate in zip(self.gates["t"], self.gates["end"], self.gates["gate"], strict=True):
            times[gate] += end - start
        return dict(times.most_common())

    def sizes(self) -> dict[str, tuple[int, int, int]]:
        """By reason: super-segments, segments, bytes; the most bytes first. Retransmits have a row of their own."""
        found: dict[str, list[int]] = {}
        for why, segs, length, rtx in zip(*(self.xmit[name] for name in ("why", "segs", "len", "rtx")), strict=True):
            row = found.setdefault("retransmit" if rtx else why, [0, 0, 0])
            row[0] += 1
            row[1] += segs
            row[2] += length
        return {why: (row[0], row[1], row[2]) for why, row in sorted(found.items(), key=lambda item: -item[1][2])}


def timeline(record: Record, flow: str, name: str = "", variant: str = "") -> Timeline:
    """The columns of `flow`. name: what to call it in a legend. variant: of the record, where several are compared."""
    start, end = record.span_ns()
    events = [row for row in record.events if row["flow"] == flow]
    series = _series(record, flow, start)
    gates = _gates(events, series, start, end)
    return Timeline(
        name=name or flow,
        flow=flow,
        variant=variant,
        xmit=_xmit(events, gates, start, end),
        acks=_acks(events, series, start),
        sacks=_sacks(events, start),
        lost=_lost(events, start),
        edge=_edge(events, series, start),
        gates=gates,
        marks=_marks(events, start),
        series=series,
        counts=Counter(row["kind"] for row in events),
    )


class Drawable(NamedTuple):
    """What a plot takes: flows, queues as (name, columns), and the length of the time axis in ns."""

    lines: list[Timeline]
    queues: list[tuple[str, dict[str, list[Any]]]]
    span_ns: int


def drawable(records: Mapping[str, Record], flows: Sequence[str] = ()) -> Drawable:
    """Records by their variant, to be drawn together. flows: which; by default those that have sent something, if any has."""
    lines: list[Timeline] = []
    queues = []
    for variant, record in records.items():
        names = [flow for flow in flows_of(record) if not flows or flow in flows]
        named = {flow: flow if len(records) == 1 else variant if len(names) == 1 else f"{variant}: {flow}" for flow in names}
        lines += [timeline(record, flow, name, variant) for flow, name in named.items()]
        start, _ = record.span_ns()
        for queue in record.queue_names():
            rows = [row for row in record.queues if row["queue"] == queue]
            columns = dict.fromkeys(name for row in rows for name in row if name not in ("t_ns", "queue"))
            found = {"t": [row["t_ns"] - start for row in rows], **{name: [row.get(name) for row in rows] for name in columns}}
            queues.append((queue if len(records) == 1 else f"{queue}, {variant}", found))
    senders = [line for line in lines if line.sends]
    span = max(end - start for start, end in (record.span_ns() for record in records.values()))
    return Drawable(senders if senders and not flows else lines, queues, span)


def flows_of(record: Record) -> list[str]:
    """The flows of a record: those it names, then those that only its rows name."""
    return list(dict.fromkeys([*record.flows, *(row["flow"] for row in record.series), *(row["flow"] for row in record.events)]))


def usual(column: str, value: Any) -> Any:
    """`value` of a sampled column, None when it stands for "none yet"."""
    if column == "ssthresh" and value is not None and value >= INFINITE_SSTHRESH:
        return None
    if column in ("srtt_us", "rttvar_us") and value == 0:
        return None  # nothing was measured yet
    if column == "pacing_rate" and value is not None and value >= UNLIMITED_RATE:
        return None
    return value


def _columns(*names: str) -> dict[str, list[Any]]:
    return {name: [] for name in names}


def _series(record: Record, flow: str, start: int) -> dict[str, list[Any]]:
    rows = [row for row in record.series if row["flow"] == flow] or _samples_of(record, flow)
    names = dict.fromkeys(name for row in rows for name in row if name not in ("t_ns", "flow"))
    found: dict[str, list[Any]] = {"t": [row["t_ns"] - start for row in rows]}
    for name in names:
        found[name] = [usual(name, row.get(name)) for row in rows]
    return found


def _samples_of(record: Record, flow: str) -> list[Row]:
    """Samples as far as a trace alone has them: what a super-segment or an acknowledgement said in passing."""
    rows: list[Row] = []
    known: Row = {}
    for row in record.happened("xmit", "ack", flow=flow):
        if row["kind"] == "xmit":
            known = {**known, "cwnd": row.get("cwnd"), "inflight": row.get("inflight")}
        elif row.get("una") is not None:
            known = {**known, "snd_una": row["una"], "snd_wnd": row.get("wnd")}
        rows.append({"t_ns": row["t_ns"], "flow": flow, **known})
    return rows


def _gates(events: Iterable[Row], series: Mapping[str, list[Any]], start: int, end: int) -> dict[str, list[Any]]:
    """Spans of the exclusive gate: from the events, else from the samples."""
    changes: list[tuple[int, str]] = []
    for row in events:
        if row["kind"] == "gate":
            if not changes and row.get("old"):
                changes.append((0, row["old"]))
            changes.append((row["t_ns"] - start, row["new"]))
    if not changes:
        changes = [(t, gate) for t, gate in zip(series["t"], series.get("gate", ()), strict=False) if gate]
    spans = _columns("t", "end", "gate")
    for place, (t, gate) in enumerate(changes):
        until = changes[place + 1][0] if place + 1 < len(changes) else end - start
        if gate and until > t:
            if spans["gate"] and spans["gate"][-1] == gate and spans["end"][-1] == t:
                spans["end"][-1] = until
            else:
                for name, value in (("t", t), ("end", until), ("gate", gate)):
                    spans[name].append(value)
    return spans


def _xmit(events: list[Row], gates: Mapping[str, list[Any]], start: int, end: int) -> dict[str, list[Any]]:
    columns = _columns("t", "seq", "len", "segs", "gso", "rtx", "why", "flags", "cwnd", "inflight", "quota", "max", "cause", "held")
    stops: list[str] = []  # the gate that the last attempt before the next super-segment ran into
    for row in events:
        if row["kind"] == "stop":
            if stops:
                stops[-1] = row["gate"]
            continue
        if row["kind"] == "retransmit" and columns["seq"] and columns["seq"][-1] == row["seq"]:
            columns["cause"][-1] = row["cause"]
        if row["kind"] != "xmit":
            continue
        stops.append("")
        columns["cause"].append(None)
        columns["t"].append(row["t_ns"] - start)
        columns["len"].append(row["end_seq"] - row["seq"])
        for name, key in (("seq", "seq"), ("segs", "segs"), ("gso", "gso_size"), ("rtx", "rtx"), ("why", "why"), ("flags", "flags")):
            columns[name].append(row.get(key))
        for name, key in (("cwnd", "cwnd"), ("inflight", "inflight"), ("quota", "quota"), ("max", "max_segs")):
            columns[name].append(row.get(key))
    times = columns["t"]
    first = 0  # the first span that may still matter
    for place, t in enumerate(times):
        until = times[place + 1] if place + 1 < len(times) else end - start
        while first < len(gates["t"]) and gates["end"][first] <= t:
            first += 1
        held: dict[str, int] = {}
        span = first
        while span < len(gates["t"]) and gates["t"][span] < until:
            gate = gates["gate"][span]
            held[gate] = held.get(gate, 0) + min(gates["end"][span], until) - max(gates["t"][span], t)
            span += 1
        if not held and stops[place] and until > t:
            held = {stops[place]: until - t}
        columns["held"].append(sorted(held.items(), key=lambda item: -item[1]))
    return columns


def _acks(events: Iterable[Row], series: Mapping[str, list[Any]], start: int) -> dict[str, list[Any]]:
    """From the events, else from the samples where snd_una moved."""
    columns = _columns("t", "una", "rtt")
    for row in events:
        if row["kind"] == "ack" and row.get("una") is not None:
            columns["t"].append(row["t_ns"] - start)
            columns["una"].append(row["una"])
            columns["rtt"].append(row.get("rtt_us"))
    if not columns["t"]:
        last = None
        for t, una in zip(series["t"], series.get("snd_una", ()), strict=False):
            if una is not None and una != last:
                last = una
                for name, value in (("t", t), ("una", una), ("rtt", None)):
                    columns[name].append(value)
    return columns


def _sacks(events: Iterable[Row], start: int) -> dict[str, list[int]]:
    columns = _columns("t", "seq", "end")
    for row in events:
        blocks = row.get("sacks") if row["kind"] == "ack" else None
        if isinstance(blocks, (list, tuple)):
            for low, high in blocks:
                columns["t"].append(row["t_ns"] - start)
                columns["seq"].append(low)
                columns["end"].append(high)
    return columns


def _lost(events: Iterable[Row], start: int) -> dict[str, list[Any]]:
    columns = _columns("t", "seq", "end", "why")
    for row in events:
        if row["kind"] == "lost":
            for name, value in (("t", row["t_ns"] - start), ("seq", row["seq"]), ("end", row["end_seq"]), ("why", row.get("why"))):
                columns[name].append(value)
    return columns


def _edge(events: Iterable[Row], series: Mapping[str, list[Any]], start: int) -> dict[str, list[int]]:
    """From acknowledgements that carry `wnd`, else from the samples; only where it moved."""
    columns = _columns("t", "seq")
    points = [(row["t_ns"] - start, row["una"] + row["wnd"]) for row in events if row["kind"] == "ack" and row.get("wnd") is not None]
    if not points and "snd_una" in series and "snd_wnd" in series:
        points = [
            (t, una + wnd) for t, una, wnd in zip(series["t"], series["snd_una"], series["snd_wnd"], strict=True) if una is not None and wnd is not None
        ]
    last = None
    for t, edge in points:
        if edge != last:
            columns["t"].append(t)
            columns["seq"].append(edge)
            last = edge
    return columns


def _marks(events: Iterable[Row], start: int) -> dict[str, list[Any]]:
    columns = _columns("t", "kind", "text")
    for row in events:
        if row["kind"] in MARKS and row["kind"] not in FREQUENT:
            columns["t"].append(row["t_ns"] - start)
            columns["kind"].append(row["kind"])
            columns["text"].append(mark_text(row))
    return columns


def mark_text(row: Row) -> str:
    """One line about an event."""
    extra = ", ".join(f"{name} {value}" for name, value in row.items() if name not in ("t_ns", "flow", "kind", "old", "new"))
    head = f"{row['old']} → {row['new']}" if "old" in row and "new" in row else MARKS.get(row["kind"], row["kind"])
    return f"{head}: {extra}" if extra else head
