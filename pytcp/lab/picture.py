"""A record as PNG or SVG: the panels of the report on one time axis, drawn by matplotlib.

Each thing is drawn with all its points: paper has no zoom. matplotlib is imported when a picture is made; it needs no display.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import palette
from .timeline import MARKS, Timeline

MISSING = "pictures need matplotlib: pip install 'matplotlib>=3.9'"
DASHES = {"solid": "-", "dash": "--", "dot": ":"}
MARKERS = {"state": "|", "probe": ">", "ca_state": "D", "rto": "X", "tlp": "^", "undo": "o", "ecn": "s", "hystart": "v"}
INK, SOFT, GRID = "#16202c", "#5b6878", "#e9edf1"


def draw(
    path: str | Path, lines: Sequence[Timeline], queues: Sequence[tuple[str, dict[str, list[Any]]]], span_ns: int, what: Sequence[str], title: str = ""
) -> None:
    """Write the panels named in `what` (of `palette.WHAT`) to a file; its suffix says the format (.png, .svg, .pdf).

    queues: (name, columns of its samples). Raises ImportError without matplotlib, ValueError for a format it has not, and OSError."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(MISSING) from None
    panels = _panels(lines, queues, what)
    if not panels:
        raise ValueError("the record has nothing of that")
    unit = palette.time_unit(span_ns)
    heights = [height for height, _, _ in panels]
    style: dict[Any, Any] = {
        "font.size": 9, "axes.edgecolor": GRID, "axes.labelcolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT, "text.color": INK, "axes.grid": True,
        "grid.color": GRID, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "font.family": "sans-serif",
    }  # fmt: skip
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(11, sum(heights) + 0.45 * len(panels) + (0.7 if title else 0.3)), dpi=130, layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for axis, (_, heading, paint) in zip(axes, panels, strict=True):
            axis.set_title(heading, loc="left", fontsize=10, fontweight="bold", color=INK)
            paint(axis, palette.UNITS[unit])
            axis.tick_params(length=0)
        axes[-1].set_xlabel(f"time ({unit})")
        axes[-1].set_xlim(0, max(span_ns, 1) / palette.UNITS[unit])
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold")
        figure.savefig(path)


def _panels(lines: Sequence[Timeline], queues: Sequence[tuple[str, dict[str, list[Any]]]], what: Sequence[str]) -> list[tuple[float, str, Any]]:
    """(height in inches, heading, function that paints it on an axis) of what there is to show."""
    panels: list[tuple[float, str, Any]] = []
    if "sequence" in what:
        for line in lines:
            if line.xmit["t"]:
                heading = "Time–sequence" + (f": {line.name}" if len(lines) > 1 else "")
                panels.append((3.4 if len(lines) == 1 else 2.4, heading, lambda axis, unit, line=line: _sequence(axis, unit, line)))
    if "gates" in what and any(line.gates["t"] for line in lines):
        panels.append((0.12 + 0.2 * len(lines), "What held the sender back", lambda axis, unit: _gates(axis, unit, lines)))
    if "events" in what and any(line.marks["t"] for line in lines):
        panels.append((0.12 + 0.2 * len(lines), "Events", lambda axis, unit: _events(axis, unit, lines)))
    for panel in palette.PANELS:
        if panel.name in what and any(any(line.series.get(one.column, ())) for line in lines for one in panel.lines):
            flows = [(line.name, line.series, palette.TRACKS[i % len(palette.TRACKS)]) for i, line in enumerate(lines)]
            panels.append((panel.height / 110, panel.title, lambda axis, unit, panel=panel, flows=flows: _series(axis, unit, panel, flows)))
    if "queue" in what:
        for queue, columns in queues:
            if any(any(columns.get(line.column, ())) for line in palette.QUEUE.lines):
                flow = [("", columns, palette.TRACKS[0])]
                panels.append((1.3, f"Queue: {queue}", lambda axis, unit, flow=flow: _series(axis, unit, palette.QUEUE, flow)))
    return panels


def _sequence(axis: Any, unit: int, line: Timeline) -> None:
    from matplotlib.ticker import EngFormatter

    x = line.xmit
    low, high = min(x["seq"]), max(seq + size for seq, size in zip(x["seq"], x["len"], strict=True))
    if line.edge["t"]:
        axis.step([t / unit for t in line.edge["t"]], line.edge["seq"], where="post", color=palette.EDGE, linewidth=0.9, linestyle="--", label="window edge")
    if line.acks["t"]:
        axis.step([t / unit for t in line.acks["t"]], line.acks["una"], where="post", color=INK, linewidth=0.8, label="ACK")
    if line.sacks["t"]:
        axis.vlines([t / unit for t in line.sacks["t"]], line.sacks["seq"], line.sacks["end"], color=palette.SACK, linewidth=0.8, alpha=0.5, label="SACK")
    if line.lost["t"]:
        middle = [(low + high) / 2 for low, high in zip(line.lost["seq"], line.lost["end"], strict=True)]
        axis.scatter([t / unit for t in line.lost["t"]], middle, s=14, marker="x", linewidths=0.9, color=INK, label="lost", zorder=4)
    for why in line.sizes():
        chosen = [
            place for place, (name, rtx) in enumerate(zip(x["why"], x["rtx"], strict=True)) if (why == "retransmit" if rtx else name == why)
        ]
        times, colour = [x["t"][i] / unit for i in chosen], palette.WHY.get(why, palette.OTHER)
        axis.vlines(times, [x["seq"][i] for i in chosen], [x["seq"][i] + x["len"][i] for i in chosen], color=colour, linewidth=2.4, label=why)
        if why == "retransmit":  # single segments would be too small to be seen
            axis.scatter(times, [x["seq"][i] + x["len"][i] / 2 for i in chosen], s=9, marker="s", color=colour, linewidths=0, zorder=3)
    pad = (high - low) * 0.04
    axis.set_ylim(low - pad, high + pad)
    axis.yaxis.set_major_formatter(EngFormatter(sep=""))
    axis.set_ylabel("bytes")
    _legend(axis)


def _gates(axis: Any, unit: int, lines: Sequence[Timeline]) -> None:
    for gate in palette.GATES:
        label: str | None = gate
        for row, line in enumerate(lines):
            bands = zip(line.gates["t"], line.gates["end"], line.gates["gate"], strict=True)
            spans = [(start / unit, (end - start) / unit) for start, end, name in bands if name == gate]
            if spans:
                axis.broken_barh(spans, (row - 0.4, 0.8), color=palette.GATES[gate], label=label, linewidth=0)
                label = None
    _rows(axis, lines)


def _events(axis: Any, unit: int, lines: Sequence[Timeline]) -> None:
    for kind in dict.fromkeys(kind for line in lines for kind in line.marks["kind"]):
        at = [(t / unit, row) for row, line in enumerate(lines) for t, name in zip(line.marks["t"], line.marks["kind"], strict=True) if name == kind]
        colour, marker = palette.MARKS.get(kind, palette.OTHER), MARKERS.get(kind, "o")
        axis.scatter(*zip(*at, strict=True), s=28, marker=marker, color=colour, label=MARKS.get(kind, kind), zorder=3)
    _rows(axis, lines)


def _rows(axis: Any, lines: Sequence[Timeline]) -> None:
    axis.set_ylim(len(lines) - 0.5, -0.5)
    axis.set_yticks(range(len(lines)), [line.name for line in lines], fontsize=8)
    axis.grid(False)
    _legend(axis)


def _series(axis: Any, unit: int, panel: palette.Panel, flows: Sequence[tuple[str, dict[str, list[Any]], str]]) -> None:
    """Lines of one flow in the colours of their columns; of several the first column, in the colours of the flows."""
    from matplotlib.ticker import EngFormatter

    for name, series, colour in flows:
        for line in panel.lines if len(flows) == 1 else panel.lines[:1]:
            values = series.get(line.column, ())
            if not any(values):
                continue
            times = [t / unit for t in series["t"]]
            if line.column in palette.STEPS:
                grown = [i for i in range(1, len(values)) if (values[i] or 0) > (values[i - 1] or 0)]
                label = f"{line.name} ({max(value or 0 for value in values):,})"
                level = [series["packets"][i] or 0 for i in grown]
                axis.scatter([times[i] for i in grown], level, s=12, marker="x", linewidths=0.8, color=line.colour, label=label)
                continue
            scaled = [float("nan") if value is None else value / line.scale for value in values]
            label, colour_ = (line.name, line.colour) if len(flows) == 1 else (name, colour)
            axis.step(times, scaled, where="post", color=colour_, linewidth=1.1, linestyle=DASHES[line.dash], label=label)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(EngFormatter(sep=""))
    axis.set_ylabel(panel.label)
    _legend(axis)


def _legend(axis: Any) -> None:
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), frameon=False, fontsize=8, handlelength=1.4, borderaxespad=0.3)
