"""A trace as a table: when, which connection, what was decided, and why, one line per event.

Where the terminal has less than ONE_LINE columns the reason is below what happened, if it does not fit behind it; where it has more, words
that do not fit end in `…`. Nothing else is ever cut.

Connections have numbers; a heading says which is which when one first appears. Times count from the first line and stand where they
change, beside the time since the connection's previous event. Words for reasons are those of `tcp.trace` and `tcp.gates`.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from pytcp.tcp import gates
from pytcp.tcp.trace import CAUSE, LOST, UNDO, WHY

Row = dict[str, Any]

FAULTS = ("lost", "retransmit", "rto", "tlp", "probe")
COLOURS = {
    "xmit": "green", "stop": "yellow", "gate": "yellow", "autocork": "yellow", "tso_defer": "yellow", "tsq": "yellow", "ack": "blue", "recv": "cyan",
    "window": "cyan", "ca_state": "magenta", "undo": "magenta", "ecn": "magenta", "hystart": "magenta", **dict.fromkeys(FAULTS, "red"),
}  # fmt: skip
ONE_LINE = 100  # columns: figures and reasons in one word take 83
NO_SSTHRESH = 0x7FFFFFFF


class Cells(NamedTuple):
    """What a row says: what happened, the reason in one word, and in figures and words."""

    what: str
    why: str = ""
    words: str = ""


HEADING = Cells("what", "why")


def span(ns: int) -> str:
    """A time as a number of at most four digits and a unit."""
    for size, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us")):
        if ns >= size:
            value = ns / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
    return f"{ns} ns"


def _range(row: Row) -> str:
    return f"{row['seq']:,}-{row['end_seq']:,}"


def _many(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _xmit(row: Row) -> Cells:
    segs = row["segs"]
    what = f"{_range(row)}  {segs}x{row['gso_size']}" if row["gso_size"] else _range(row)
    why = row["why"]
    figures = f"at most {_many(row['max_segs'], 'segment')}" if why in ("autosize", "gso_max") else f"cwnd {row['cwnd']}, {row['inflight']} out"
    return Cells(f"{what} {row['flags']}", why, f"{figures}; {WHY[why]}")


def _stop(row: Row) -> Cells:
    gate, limit = row["gate"], row["limit"]
    figures = {
        "tsq": f"{row['wmem_alloc']:,} bytes of memory in the host, limit {limit:,}",
        "cwnd": f"full at {_many(limit, 'packet')}",
        "rwnd": f"full at {limit:,} bytes",
        "pacing": f"{span(max(limit, 0))} to go",
    }
    return Cells(f"{row['queued']:,} bytes wait", gate, figures.get(gate, ""))


def _ack(row: Row) -> Cells:
    rtt = f", rtt {span(row['rtt_us'] * 1000)}" if row["rtt_us"] >= 0 else ""
    sacks = " ".join(f"{low:,}-{high:,}" for low, high in row["sacks"])
    words = f"{_many(row['delivered'], 'packet')} delivered{rtt}" + (f"; SACK {sacks}" if sacks else "")
    return Cells(f"to {row['una']:,}, window {row['wnd']:,}", "", words)


def _hystart(row: Row) -> Cells:
    base = f"base delay {span(row['delay_min_us'] * 1000)}"
    if row["detector"] == "train":
        return Cells(f"cwnd {row['cwnd']}", "train", f"acknowledgements kept coming for {span(row['round_us'] * 1000)}, {base}")
    return Cells(f"cwnd {row['cwnd']}", "delay", f"the round trip grew to {span(row['rtt_us'] * 1000)}, {base}")


def _ca_state(row: Row) -> Cells:
    ssthresh = f", ssthresh {row['ssthresh']}" if row["ssthresh"] < NO_SSTHRESH else ""
    return Cells(f"{row['old']} -> {row['new']}", "", f"cwnd {row['cwnd']}{ssthresh}")


def _autocork(row: Row) -> Cells:
    words = f"{row['wmem_alloc']:,} bytes of memory in the host, more than its {row['truesize']:,}; full at {row['size_goal']:,}"
    return Cells(f"{row['length']:,} bytes stay", "", words)


_ECN = {"ece": "the peer echoes a congestion mark", "ce": "a packet came with a congestion mark", "cwr": "the peer is told that the window was reduced"}

_CELLS: dict[str, Callable[[Row], Cells]] = {
    "state": lambda row: Cells(f"{row['old']} -> {row['new']}"),
    "xmit": _xmit,
    "stop": _stop,
    "gate": lambda row: Cells(f"{row['old']} -> {row['new']}", "", gates.WORDS[row["new"]]),
    "autocork": _autocork,
    "tso_defer": lambda row: Cells(f"{row['length']:,} bytes", "held" if row["wait"] else "go", row["why"]),
    "tsq": lambda row: Cells("the host has enough", "", f"{row['wmem_alloc']:,} bytes of memory, limit {row['limit']:,}"),
    "ack": _ack,
    "recv": lambda row: Cells(f"{_range(row)}  {_many(row['segs'], 'segment')}"),
    "window": lambda row: Cells(f"{row['wnd']:,} offered, to {row['edge']:,}"),
    "ca_state": _ca_state,
    "lost": lambda row: Cells(_range(row), row["why"], LOST[row["why"]] + ("; its retransmission, too" if row["again"] else "")),
    "retransmit": lambda row: Cells(_range(row), row["cause"], CAUSE[row["cause"]]),
    "rto": lambda row: Cells(f"after {span(row['rto_us'] * 1000)}", "", f"{_many(row['inflight'], 'packet')} out, {_many(row['backoff'], 'doubling')} so far"),
    "tlp": lambda row: Cells("new data" if row["new"] else "the last segment again", "", f"{_many(row['inflight'], 'packet')} out, no ACK for two round trips"),
    "probe": lambda row: Cells(_many(row["probes"], "unanswered probe"), "", f"the peer's window is {row['wnd']:,}"),
    "undo": lambda row: Cells(f"cwnd {row['cwnd']}", row["why"], UNDO[row["why"]]),
    "ecn": lambda row: Cells(f"cwnd {row['cwnd']}", row["what"], _ECN[row["what"]]),
    "hystart": _hystart,
}


def cells(row: Row) -> Cells:
    """What a row says; an event of another version as it says it."""
    try:
        return _CELLS[row["kind"]](row)
    except (KeyError, TypeError, ValueError):
        return Cells(" ".join(f"{name}={value}" for name, value in row.items() if name not in ("t_ns", "flow", "kind")))


class Table:
    """Makes lines of rows; remembers what it needs of the rows before."""

    def __init__(self, width: int | None = None) -> None:
        """width: of the terminal. None: whole lines."""
        self._width = width
        self._start: int | None = None
        self._now = -1
        self._last: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    def lines(self, row: Row) -> list[str]:
        """The line of a row, behind headings where its connection is new."""
        flow, t_ns, kind = row["flow"], row["t_ns"], row["kind"]
        found = []
        if self._start is None:
            self._start = t_ns
            found += self._lines("time", "since", "", "event", HEADING, bold=True)
        number = self._numbers.get(flow)
        if number is None:
            number = self._numbers[flow] = len(self._numbers) + 1
            found += self._lines("", "", f"#{number}", flow.replace(">", " > "), Cells(""), bold=True)
        last = self._last.get(flow, t_ns)
        time = f"{(t_ns - self._start) / 1e9:.6f}" if t_ns != self._now else ""
        self._now = self._last[flow] = t_ns
        since = f"+{span(t_ns - last)}" if t_ns > last else ""
        colour = "red" if kind == "xmit" and row.get("rtx") else COLOURS.get(kind)
        return found + self._lines(time, since, f"#{number}", kind, cells(row), colour=colour)

    def _lines(self, time: str, since: str, number: str, event: str, cells: Cells, *, bold: bool = False, colour: str | None = None) -> list[str]:
        more: list[str] = []
        if self._width is None or self._width >= ONE_LINE:
            parts = [f"{time:>12} {since:>9} {number:>4} ", f"{event:<10} ", f"{cells.what:<32} ", f"{cells.why:<10} ", cells.words]
            over = sum(map(len, parts)) - (self._width or sys.maxsize)
            if over > 0 and cells.words:
                parts[-1] = cells.words[: max(len(cells.words) - over - 1, 0)] + "…"
        else:
            parts = [f"{time:>9} {since:>8} {number:>3} ", f"{event:<10} ", cells.what, "", ""]
            reason = ": ".join(filter(None, (cells.why, cells.words)))
            if reason and sum(map(len, parts)) + 2 + len(reason) <= self._width:
                parts[-1] = f"  {reason}"
            elif reason:
                indent = " " * len(parts[0])
                more = [click.style(line, dim=True) for line in textwrap.wrap(reason, self._width, initial_indent=indent, subsequent_indent=indent)]
        while parts and not parts[-1].strip():
            parts.pop()
        parts[-1] = parts[-1].rstrip()
        if bold:
            return [click.style("".join(parts), bold=True)]
        styles: tuple[dict[str, Any], ...] = ({"dim": True}, {"fg": colour}, {}, {"fg": colour}, {"dim": True})
        return ["".join(click.style(part, **style) for part, style in zip(parts, styles, strict=False) if part), *more]
