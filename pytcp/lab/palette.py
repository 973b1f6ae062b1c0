"""What every picture of a record shows, and in which colours: in a report, as PNG or SVG, in a terminal.

One colour for one idea: cwnd blue, the peer's window amber, pacing green, nothing more to send grey, retransmits red.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

UNITS = {"ns": 1, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}

TRACKS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#dc2626", "#0891b2", "#ca8a04", "#be185d", "#4d7c0f", "#64748b")

WHY: Mapping[str, str] = {
    "cwnd": "#3b82f6",
    "cwnd/2": "#06b6d4",
    "window": "#f59e0b",
    "autosize": "#10b981",
    "gso_max": "#8b5cf6",
    "write": "#64748b",
    "queue": "#94a3b8",
    "nagle-tail": "#ec4899",
    "urgent": "#84cc16",
    "probe": "#eab308",
    "mtu-probe": "#ca8a04",
    "mss": "#a16207",
    "again": "#b45309",
    "tlp": "#f97316",
    "retransmit": "#ef4444",
}
GATES: Mapping[str, str] = {
    "app": "#cbd5e1",
    "sndbuf": "#a16207",
    "cork": "#a78bfa",
    "nagle": "#ec4899",
    "autocork": "#d946ef",
    "tso_defer": "#14b8a6",
    "tsq": "#6366f1",
    "cwnd": "#3b82f6",
    "rwnd": "#f59e0b",
    "pacing": "#10b981",
    "host_queue": "#475569",
    "neighbour": "#78716c",
}
MARKS: Mapping[str, str] = {
    "state": "#64748b",
    "ca_state": "#f97316",
    "rto": "#ef4444",
    "tlp": "#eab308",
    "probe": "#0891b2",
    "undo": "#10b981",
    "ecn": "#8b5cf6",
    "hystart": "#3b82f6",
}
SACK, EDGE, OTHER = "#a855f7", "#d97706", "#888888"


class Line(NamedTuple):
    """A column of samples as a line: values are divided by `scale` to be in `unit`."""

    column: str
    name: str
    scale: float
    unit: str
    colour: str
    dash: str = "solid"  # solid, dash or dot


class Panel(NamedTuple):
    """Lines that share an axis."""

    name: str
    title: str
    label: str
    height: int  # pixels on a screen
    lines: tuple[Line, ...]


PANELS = (
    Panel(
        "cwnd", "Congestion window", "segments", 190,
        (
            Line("cwnd", "cwnd", 1, " segments", "#3b82f6"),
            Line("inflight", "in flight", 1, " segments", "#10b981"),
            Line("ssthresh", "ssthresh", 1, " segments", "#ef4444", "dash"),
        ),
    ),
    Panel("rtt", "Round-trip time", "ms", 140, (Line("srtt_us", "srtt", 1000, " ms", "#8b5cf6"), Line("rttvar_us", "rttvar", 1000, " ms", "#d946ef", "dot"))),
    Panel("rate", "Pacing rate", "bit/s", 140, (Line("pacing_rate", "pacing rate", 0.125, "bit/s", "#10b981"),)),
    Panel(
        "windows", "Windows", "bytes", 140,
        (Line("snd_wnd", "the peer's window", 1, " bytes", "#d97706"), Line("rcv_wnd", "our window", 1, " bytes", "#0891b2", "dash")),
    ),
)  # fmt: skip
QUEUE = Panel(
    "queue", "Queue", "packets", 140,
    (Line("packets", "packets", 1, " packets", "#0891b2"), Line("drops", "dropped", 1, "", "#ef4444"), Line("marks", "marked", 1, "", "#8b5cf6")),
)  # fmt: skip
STEPS = ("drops", "marks")  # counters, drawn as a mark wherever they grow

# what may be asked for by name, in the order in which it is shown
WHAT = ("sequence", "gates", "events", *(panel.name for panel in PANELS), "queue")


def time_unit(span_ns: int) -> str:
    """The unit in which an axis of this length reads best."""
    return max((name for name, size in UNITS.items() if span_ns >= 2 * size), key=UNITS.__getitem__, default="ns")
