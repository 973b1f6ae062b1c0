"""Plots of a record in a terminal: lines in Braille dots, the gates as a band of letters, events as marks.

A Braille character is a grid of two by four dots, so a panel of 100 by 8 characters has 200 by 32 points. Without colours (a pipe, a
log) lines are told apart by their legend's order only, gates by their letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.text import Text

from . import palette
from .palette import Panel
from .timeline import MARKS, Timeline

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row, by column
LETTERS = {
    "app": "a", "sndbuf": "s", "cork": "k", "nagle": "n", "autocork": "o", "tso_defer": "d", "tsq": "q", "cwnd": "c", "rwnd": "w", "pacing": "p",
    "host_queue": "h", "neighbour": "b",
}  # fmt: skip
SIGNS = {"state": "│", "probe": "▶", "ca_state": "◆", "rto": "✖", "tlp": "▲", "undo": "●", "ecn": "■", "hystart": "▼"}
LEFT, MOST_LEFT = 9, 24  # columns of the labels at the left, at least and at most


class Canvas:
    """Characters of a panel; `x` in 0..1 of the time shown, `y` in 0..1 of its height."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.bits = [[0] * width for _ in range(height)]
        self.colours = [[""] * width for _ in range(height)]

    def column(self, x: float) -> int:
        """The column of dots at `x`, within the canvas."""
        return min(max(int(x * self.width * 2), 0), self.width * 2 - 1)

    def row(self, y: float) -> int:
        """The row of dots at `y`, 0 at the top."""
        return self.height * 4 - 1 - min(max(int(y * self.height * 4), 0), self.height * 4 - 1)

    def dot(self, column: int, row: int, colour: str) -> None:
        line, cell = row >> 2, column >> 1
        self.bits[line][cell] |= DOTS[row & 3][column & 1]
        self.colours[line][cell] = colour

    def bar(self, column: int, low: float, high: float, colour: str) -> None:
        """Dots from `low` to `high` of one column."""
        for row in range(self.row(high), self.row(low) + 1):
            self.dot(column, row, colour)

    def steps(self, points: Iterable[tuple[float, float | None]], colour: str) -> None:
        """A line that stays at each value until the next."""
        last: tuple[int, float] | None = None
        for x, y in points:
            column = self.column(x)
            if last is not None:
                for between in range(last[0], column + 1):
                    self.dot(between, self.row(last[1]), colour)
                if y is not None:
                    self.bar(column, min(last[1], y), max(last[1], y), colour)
            elif y is not None:
                self.dot(column, self.row(y), colour)
            last = None if y is None else (column, y)

    def lines(self) -> list[Text]:
        """The rows from top to bottom."""
        rows = []
        for bits, colours in zip(self.bits, self.colours, strict=True):
            text = Text(no_wrap=True)
            for value, colour in zip(bits, colours, strict=True):
                text.append(chr(0x2800 + value) if value else " ", style=colour or None)
            rows.append(text)
        return rows


def short(value: float) -> str:
    """A number in at most six characters: 1448, 12.5k, 3.1M."""
    for limit, factor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.4g}"


def draw(lines: Sequence[Timeline], queues: Sequence[tuple[str, dict[str, list[Any]]]], span_ns: int, what: Sequence[str], width: int, height: int = 8) -> Text:
    """The panels named in `what` (of `palette.WHAT`), one below the other, `width` columns in all.

    queues: (name, columns of its samples). height: lines of a panel."""
    span = max(span_ns, 1)
    names = [line.name for line in lines] if len(lines) > 1 and {"gates", "events"} & set(what) else []
    left = max([LEFT, *(min(len(name) + 2, MOST_LEFT) for name in names)])
    inner = max(width - left - 1, 20)
    parts: list[Text] = []
    for name in palette.WHAT:
        if name not in what:
            continue
        if name == "sequence":
            for line in lines:
                parts += _sequence(line, span, inner, height * 2, left, len(lines) > 1)
        elif name == "gates":
            parts += _gates(lines, span, inner, left)
        elif name == "events":
            parts += _events(lines, span, inner, left)
        elif name == "queue":
            for place, (queue, columns) in enumerate(queues):
                parts += _series(palette.QUEUE._replace(title=f"Queue: {queue}"), [("", columns, palette.TRACKS[place])], span, inner, height, left)
        else:
            [panel] = (panel for panel in palette.PANELS if panel.name == name)
            flows = [(line.name, line.series, palette.TRACKS[i % len(palette.TRACKS)]) for i, line in enumerate(lines)]
            parts += _series(panel, flows, span, inner, height, left)
    if parts:
        parts.append(_axis(span, inner, left))
    return Text("\n").join(parts)


def _frame(title: str, legend: Iterable[tuple[str, str]], canvas: Canvas, low: float, high: float, label: str, left: int) -> list[Text]:
    """A panel with its heading and the labels of its axis."""
    head = Text(" " * left + title, style="bold", no_wrap=True)
    head.append(f"  {label}", style="dim not bold")
    for name, colour in legend:
        head.append("  ")
        head.append("━ ", style=f"{colour} not bold")
        head.append(name, style="not bold")
    rows = [head]
    marks = {0: high, canvas.height // 2: (low + high) / 2, canvas.height - 1: low}
    for number, line in enumerate(canvas.lines()):
        mark = Text(f"{short(marks[number]) if number in marks else '':>{left - 2}} ", style="dim")
        rows.append(mark.append("┤" if number in marks else "│", style="dim").append_text(line))
    return [*rows, Text("")]


def _series(panel: Panel, flows: Sequence[tuple[str, dict[str, list[Any]], str]], span: int, width: int, height: int, left: int) -> list[Text]:
    """Lines of one flow in the colours of their columns; of several flows the first column, in the colours of the flows."""
    shown = []
    for flow, series, colour in flows:
        for line in panel.lines if len(flows) == 1 else panel.lines[:1]:
            if line.column not in palette.STEPS and any(series.get(line.column, ())):
                values = [None if value is None else value / line.scale for value in series[line.column]]
                shown.append((line.name if len(flows) == 1 else flow, line.colour if len(flows) == 1 else colour, series["t"], values))
    if not shown:
        return []
    most = max(value for *_, values in shown for value in values if value is not None)
    canvas = Canvas(width, height)
    for _, colour, times, values in reversed(shown):
        canvas.steps(((t / span, None if value is None else value / most * 0.999) for t, value in zip(times, values, strict=True)), colour)
    note = panel.label
    for column, word in (("drops", "dropped"), ("marks", "marked")):
        total = sum(max((value for value in series.get(column, ()) if value), default=0) for _, series, _ in flows)
        if total:
            note += f", {total:,} {word}"
    return _frame(panel.title, [(name, colour) for name, colour, *_ in shown], canvas, 0, most, note, left)


def _sequence(line: Timeline, span: int, width: int, height: int, left: int, several: bool) -> list[Text]:
    x = line.xmit
    if not x["t"]:
        return []
    low, high = min(x["seq"]), max(seq + size for seq, size in zip(x["seq"], x["len"], strict=True))
    reach = max(high - low, 1)
    canvas = Canvas(width, height)
    canvas.steps(((t / span, (una - low) / reach) for t, una in zip(line.acks["t"], line.acks["una"], strict=True)), "bright_black")
    for t, seq, size, why, rtx in zip(x["t"], x["seq"], x["len"], x["why"], x["rtx"], strict=True):
        colour = palette.WHY["retransmit"] if rtx else palette.WHY.get(why, palette.OTHER)
        canvas.bar(canvas.column(t / span), (seq - low) / reach, (seq + size - low) / reach, colour)
    legend = [(why, palette.WHY.get(why, palette.OTHER)) for why in line.sizes()]
    return _frame(f"Time–sequence{': ' + line.name if several else ''}", [*legend, ("ACK", "bright_black")], canvas, low, high, "bytes", left)


def _label(line: Timeline, left: int) -> Text:
    name = line.name if len(line.name) <= left - 2 else "…" + line.name[-(left - 3) :]  # addresses differ at their ends
    return Text(f"{name:>{left - 2}}  ", style="dim", no_wrap=True)


def _gates(lines: Sequence[Timeline], span: int, width: int, left: int) -> list[Text]:
    """One row a flow: in each column the letter of the gate that was shut most of it."""
    names = [gate for gate in palette.GATES if any(gate in line.gates["gate"] for line in lines)]
    if not names:
        return []
    head = Text(" " * left + "What held the sender back", style="bold", no_wrap=True)
    for gate in names:
        head.append("  ").append(f"{LETTERS[gate]} ", style=f"{palette.GATES[gate]} not bold").append(gate, style="not bold")
    rows = [head]
    for line in lines:
        row = _label(line, left)
        span_at = 0
        gates = line.gates
        for cell in range(width):
            low, high = span * cell // width, span * (cell + 1) // width
            times: dict[str, int] = {}
            while span_at < len(gates["t"]) and gates["end"][span_at] <= low:
                span_at += 1
            place = span_at
            while place < len(gates["t"]) and gates["t"][place] < high:
                times[gates["gate"][place]] = times.get(gates["gate"][place], 0) + min(gates["end"][place], high) - max(gates["t"][place], low)
                place += 1
            gate = max(times, key=times.__getitem__, default="")
            row.append(LETTERS.get(gate, "?") if gate else " ", style=f"black on {palette.GATES.get(gate, palette.OTHER)}" if gate else None)
        rows.append(row)
    return [*rows, Text("")]


def _events(lines: Sequence[Timeline], span: int, width: int, left: int) -> list[Text]:
    kinds = list(dict.fromkeys(kind for line in lines for kind in line.marks["kind"]))
    if not kinds:
        return []
    head = Text(" " * left + "Events", style="bold", no_wrap=True)
    for kind in kinds:
        head.append("  ").append(f"{SIGNS.get(kind, '•')} ", style=f"{palette.MARKS.get(kind, palette.OTHER)} not bold")
        head.append(MARKS.get(kind, kind), style="not bold")
    rows = [head]
    for line in lines:
        cells = [Text(" ")] * width
        for t, kind in zip(line.marks["t"], line.marks["kind"], strict=True):
            cells[min(t * width // span, width - 1)] = Text(SIGNS.get(kind, "•"), style=palette.MARKS.get(kind, palette.OTHER))
        rows.append(_label(line, left).append_text(Text("").join(cells)))
    return [*rows, Text("")]


def _axis(span: int, width: int, left: int) -> Text:
    """Round times below the lowest panel."""
    unit = palette.time_unit(span)
    step = round_step(span, max(2, width // 14))
    row = ""
    for t in range(0, span + 1, step):
        label = f"{t / palette.UNITS[unit]:g}"
        place = t * width // span - len(label) // 2
        if not row or place > len(row):
            row = row.ljust(place) + label
    return Text(" " * left + row + f" {unit}", style="dim", no_wrap=True)


def round_step(span: int, most: int) -> int:
    """The least of 1, 2, 5, 10, 20, ... ns that divides `span` into at most `most` steps."""
    step = 1
    while True:
        for factor in (1, 2, 5):
            if step * factor * most >= span:
                return step * factor
        step *= 10
