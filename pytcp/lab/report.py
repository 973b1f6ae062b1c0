"""One HTML file that shows a run, or several variants of an experiment side by side; it opens without a network.

On top the figures with the published ones beside them; then the time–sequence graph of each flow, the gates that held the sender
back, events, and the sampled series, all on one time axis; then where the time went and why super-segments had their sizes; at the
bottom settings and versions. Pointing at a super-segment says why it had its size and what held the next one back.

The chart is Plotly's, its JavaScript embedded (`report.js` decides what to draw for what is in view, `report.css` how the page
looks). A Content-Security-Policy in the page forbids every request, so that a mistake here cannot make one.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pytcp
from pytcp.tcp import trace

from . import palette
from . import timeline as timelines
from .experiment import Table
from .named import write_whole
from .palette import Panel
from .record import Record
from .timeline import Timeline

MISSING = "reports need plotly: pip install 'plotly>=6'"
HOW = (
    "Drag to zoom, shift-drag to pan; Ctrl and wheel, or + and −, to zoom in time; arrows to move; a click on a name in a legend hides it. "
    "Point at a super-segment to see why it had its size, and what held the next one back."
)
PACKED_FROM = 1 << 20  # characters of data that are kept as they are; more are deflated
FIRST = 4  # flows shown when the page opens; a click shows another

SYMBOLS = {
    "state": "line-ns-open", "ca_state": "diamond", "rto": "x", "tlp": "triangle-up", "probe": "triangle-right", "undo": "circle", "ecn": "square",
    "hystart": "star-triangle-down",
}  # fmt: skip
COLOURS: Mapping[str, Mapping[str, str]] = {"why": palette.WHY, "gates": palette.GATES, "marks": palette.MARKS}

Figures = Mapping[str, Mapping[str, Any]]


Tables = Mapping[str, Sequence[Table]]  # by variant


class Column(NamedTuple):
    """How a figure is shown: its name, its label, a format for numbers."""

    key: str
    label: str
    form: str = ""
    claimed: bool = True  # False: shown beside the published one, which it is not meant to reproduce


def write_html(
    path: str | Path,
    records: Mapping[str, Record] | Sequence[Record],
    figures: Figures | None = None,
    published: Figures | None = None,
    *,
    title: str = "",
    summary: str = "",
    columns: Iterable[Column] = (),
    compare: tuple[str, str] | None = None,
    notes: Sequence[tuple[str, Sequence[str]]] = (),
    tables: Tables | None = None,
) -> None:
    """Write the report of one record, or of several to compare.

    records: by variant, or in order. figures, published: variant -> figure -> value; those published stand beside ours.
    title, summary: of the page; by default the experiment's. columns: which figures, how labelled; others follow as they are.
    compare: (before, after): a column of ratios. notes: (heading, sentences), as differences and sources.
    tables: what each variant shows beside its figures.
    Raises ImportError when plotly is not installed, and OSError, which leaves no half of a page behind."""
    named = dict(records) if isinstance(records, Mapping) else _named(records)
    if not named:
        raise ValueError("no record to report")
    page = build(named, figures or {}, published or {}, title=title, summary=summary, columns=tuple(columns), compare=compare, notes=notes, tables=tables)
    write_whole(path, page)


def require() -> None:
    """Raises ImportError, saying what to install, where reports cannot be made."""
    if importlib.util.find_spec("plotly") is None:
        raise ImportError(MISSING)


def _named(records: Sequence[Record]) -> dict[str, Record]:
    """Records by their variant, numbered where that does not tell them apart."""
    found: dict[str, Record] = {}
    for number, record in enumerate(records, 1):
        name = str(record.meta.get("variant") or record.meta.get("experiment") or f"run {number}")
        found[name if name not in found else f"{name} ({number})"] = record
    return found


def build(
    records: Mapping[str, Record],
    figures: Figures,
    published: Figures,
    *,
    title: str = "",
    summary: str = "",
    columns: Sequence[Column] = (),
    compare: tuple[str, str] | None = None,
    notes: Sequence[tuple[str, Sequence[str]]] = (),
    tables: Tables | None = None,
) -> str:
    """The page as text."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ImportError(MISSING) from None
    first = next(iter(records.values()))
    heading = title or str(first.meta.get("experiment") or "a run")
    lines = _timelines(records)
    variants, flows = first_shown(lines)
    body = "\n".join(
        part
        for part in (
            f"<header><div><h1>{escape(heading)}</h1>{_paragraphs(summary)}<p class=note>{escape(_about(records))}</p></div><div class=bar>"
            '<button id="theme">dark</button></div></header>',
            figures_table(figures, published, columns, compare),
            '<section class=time><h2>In time</h2><div class=bar id="variants"></div><div class=bar id="flows"></div>'
            f'<div class="bar screen"><span class=note>{HOW}</span><button class=push id="reset">show everything</button></div>',
            '<div id="chart" role="img" aria-label="time–sequence graph and series"></div><p class=note id="drawn"></p>',
            _left_out(records) + "</section>",
            f"<div class=columns>{''.join(_flow_tables(line) for line in lines if line.variant in variants and line.flow in flows)}</div>",
            _tables(tables or {}),
            "".join(f"<h2>{escape(head)}</h2>" + "".join(f"<p>{_prose(text)}</p>" for text in sentences) for head, sentences in notes if sentences),
            _settings(records),
            f"<footer>Made by pytcp {escape(pytcp.__version__)}. All data are in this file; it asks for nothing.</footer>",
        )
        if part
    )
    data = json.dumps(page_data(heading, records, lines), separators=(",", ":"), allow_nan=False)
    return _page(heading, body, data, get_plotlyjs())


def _page(heading: str, body: str, data: str, plotly: str) -> str:
    here = resources.files(__package__)
    css, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    if len(data) > PACKED_FROM:
        kind, safe = "application/zlib", base64.b64encode(zlib.compress(data.encode())).decode()
    else:
        # inside <script> only "</" and "<!--" could end or bend the element
        kind, safe = "application/json", data.replace("<", "\\u003c")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(heading)}</title>
<link rel="icon" href="data:,">
<style>{css}</style>
</head>
<body>
<main>
{body}
</main>
<script type="{kind}" id="data">{safe}</script>
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""


# --- what the chart draws ---


def _timelines(records: Mapping[str, Record]) -> list[Timeline]:
    found = []
    for variant, record in records.items():
        flows = timelines.flows_of(record)
        for flow in flows:
            name = flow if len(records) == 1 else variant if len(flows) == 1 else f"{variant}: {flow}"
            found.append(timelines.timeline(record, flow, name, variant))
    return found


def first_shown(lines: Sequence[Timeline]) -> tuple[list[str], list[str]]:
    """The variants and the flows that an open page shows: those that have sent most, each in all variants, as many as are legible."""
    variants = list(dict.fromkeys(line.variant for line in lines))[: 2 * FIRST]
    payload: dict[str, int] = {}
    count: dict[str, int] = {}
    for line in lines:
        if line.variant in variants:
            payload[line.flow] = payload.get(line.flow, 0) + sum(line.xmit["len"])
            count[line.flow] = count.get(line.flow, 0) + 1
    flows: list[str] = []
    room = FIRST
    for flow in sorted(payload, key=lambda flow: -payload[flow]):
        if flows and (count[flow] > room or not payload[flow]):
            break
        flows.append(flow)
        room -= count[flow]
    return variants, [flow for flow in payload if flow in flows]


def page_data(title: str, records: Mapping[str, Record], lines: Sequence[Timeline]) -> dict[str, Any]:
    """Everything `report.js` needs, as JSON values. Words are numbered: `words[n]`."""
    words: dict[str, int] = {}

    def word(text: str | None) -> int | None:
        return None if text is None else words.setdefault(text, len(words))

    span = max(end - start for start, end in (record.span_ns() for record in records.values()))
    tracks = [_track(line, colour, word) for line, colour in zip(lines, _colours(lines), strict=True)]
    return {
        "title": title,
        "unit": palette.time_unit(span),
        "span": max(span, 1),
        "variants": list(dict.fromkeys(line.variant for line in lines)),
        # who sends comes first
        "flows": list(dict.fromkeys(line.flow for line in sorted(lines, key=lambda line: not line.sends))),
        "shown": dict(zip(("variants", "flows"), first_shown(lines), strict=True)),
        "tracks": tracks,
        "panels": [_panel(panel) for panel in palette.PANELS],
        "queues": _queues(records),
        "words": list(words),
        "why": trace.WHY,
        "causes": trace.CAUSE,
        "losses": trace.LOST,
        "gates": timelines.GATES,
        "marks": timelines.MARKS,
        "symbols": SYMBOLS,
        "colours": {**COLOURS, "sack": palette.SACK, "edge": palette.EDGE},
    }


def _colours(lines: Sequence[Timeline]) -> list[str]:
    """The first flow of each variant in the first colours, in the order of the variants; then the second flow of each."""
    variants = list(dict.fromkeys(line.variant for line in lines))
    number: dict[str, int] = dict.fromkeys(variants, 0)
    found = []
    for line in lines:
        place = number[line.variant] * len(variants) + variants.index(line.variant)
        number[line.variant] += 1
        found.append(palette.TRACKS[place % len(palette.TRACKS)])
    return found


def _track(line: Timeline, colour: str, word: Any) -> dict[str, Any]:
    xmit = dict(line.xmit)
    xmit["why"] = [word(why) for why in xmit["why"]]
    xmit["flags"] = [word(flags) for flags in xmit["flags"]]
    xmit["cause"] = [word(cause) for cause in xmit["cause"]]
    xmit["held"] = [[number for gate, ns in held for number in (word(gate), ns)] for held in xmit["held"]]
    series = {name: values for name, values in line.series.items() if name != "gate" and any(values)}
    series["t"] = line.series["t"]
    return {
        "name": line.name,
        "variant": line.variant,
        "flow": line.flow,
        "sends": line.sends,
        "colour": colour,
        "classes": [name for name in COLOURS["why"] if name in line.sizes()] + [name for name in line.sizes() if name not in COLOURS["why"]],
        "xmit": xmit,
        "acks": line.acks,
        "sacks": line.sacks,
        "lost": {**line.lost, "why": [word(why) for why in line.lost["why"]]},
        "edge": line.edge,
        "gates": {**line.gates, "gate": [word(gate) for gate in line.gates["gate"]]},
        "marks": {"t": line.marks["t"], "kind": [word(kind) for kind in line.marks["kind"]], "text": [word(text) for text in line.marks["text"]]},
        "series": series,
    }


def _panel(panel: Panel) -> dict[str, Any]:
    lines = []
    for line in panel.lines:
        drawn = {"column": line.column, "name": line.name, "scale": line.scale, "suffix": line.unit, "colour": line.colour, "dash": line.dash}
        lines.append({**drawn, "steps": True, "at": "packets"} if line.column in palette.STEPS else drawn)
    return {**panel._asdict(), "lines": lines}


def _queues(records: Mapping[str, Record]) -> list[dict[str, Any]]:
    """A panel for each queue that ever held, dropped or marked something; variants of one queue share it."""
    names = dict.fromkeys(name for record in records.values() for name in record.queue_names())
    panels = []
    for queue in names:
        tracks = []
        for place, (variant, record) in enumerate(records.items()):
            start, _ = record.span_ns()
            rows = [row for row in record.queues if row["queue"] == queue]
            series = {column: [row.get(column) for row in rows] for column, *_ in palette.QUEUE.lines}
            series = {column: values for column, values in series.items() if any(values)}
            if series:
                colour = palette.TRACKS[place % len(palette.TRACKS)]
                series["t"] = [row["t_ns"] - start for row in rows]
                tracks.append({"name": f"{variant} {queue}", "variant": variant, "flow": queue, "colour": colour, "series": series})
        if tracks:
            panels.append({**_panel(palette.QUEUE._replace(name=f"queue {queue}", title=f"Queue: {queue}")), "tracks": tracks})
    return panels


# --- what stands around it ---


def figures_table(figures: Figures, published: Figures, columns: Sequence[Column], compare: tuple[str, str] | None = None) -> str:
    """Figures as an HTML table, those published beside ours; "" when there are none."""
    variants = list(figures or published)
    published = {variant: published[variant] for variant in variants if variant in published}
    keys = dict.fromkeys(key for source in (figures, published) for values in source.values() for key in values)
    shown = [column for column in columns if column.key in keys]
    shown += [Column(key, key) for key in keys if key not in {column.key for column in columns}]
    if not shown:
        return ""
    ratios = compare is not None and set(compare) <= set(figures)
    groups, heads = ["<th></th>"], ["<th></th>"]
    for variant in variants:
        both = bool(published.get(variant))
        groups.append(f"<th colspan={1 + both}>{escape(variant)}</th>")
        heads += ["<th>published</th><th>here</th>" if both else "<th>here</th>"]
    if ratios and compare is not None:
        groups.append(f"<th colspan=2>{escape(compare[1])} / {escape(compare[0])}</th>")
        heads.append("<th>published</th><th>here</th>")
    rows = []
    for column in shown:
        cells = [f"<th>{escape(column.label)}</th>"]
        for variant in variants:
            if published.get(variant):
                cells.append(f"<td class=published>{_value(published[variant].get(column.key), column.form)}</td>")
            cells.append(f"<td class=ours>{_value(figures.get(variant, {}).get(column.key), column.form)}</td>")
        if ratios and compare is not None:
            for kind, source in (("published", published), ("ours", figures)):
                before, after = (source.get(variant, {}).get(column.key) for variant in compare)
                ratio = _ratio(before, after)
                unclaimed = kind == "ours" and ratio and not column.claimed
                cells.append(f"<td class={'published' if unclaimed else kind}>{ratio}{' (not claimed)' if unclaimed else ''}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f"<h2>Figures</h2><div class=wide><table><thead><tr class=groups>{''.join(groups)}</tr><tr>{''.join(heads)}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _tables(tables: Tables) -> str:
    """Tables of the variants, those of one title beside each other."""
    titles = dict.fromkeys(table.title for found in tables.values() for table in found)
    parts = []
    for title in titles:
        shown = [(variant, table) for variant, found in tables.items() for table in found if table.title == title]
        columns = []
        for variant, table in shown:
            head = "".join(f"<th>{escape(name)}</th>" for name in table.header)
            rows = "".join(f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in table.rows)
            caption = f"<p class=note>{escape(variant)}</p>" if len(tables) > 1 else ""
            columns.append(f"<div>{caption}<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></div>")
        parts.append(f"<h2>{escape(title)}</h2><div class=columns>{''.join(columns)}</div>")
    return "".join(parts)


def _value(value: Any, form: str = "") -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return escape(str(value))
    if form:
        return escape(form.format(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _ratio(before: Any, after: Any) -> str:
    numbers = all(isinstance(value, (int, float)) for value in (before, after))
    return f"{after / before:.2f}" if numbers and before else ""


def _flow_tables(line: Timeline) -> str:
    """Where a flow's time went, and why its super-segments had their sizes."""
    parts = []
    times = line.gate_times()
    whole = sum(times.values())
    if whole:
        rows = "".join(
            f"<tr>{_named_cell(gate, 'gates')}"
            f"<td>{ns / 1e6:,.3f} ms</td><td>{ns / whole:.1%}</td><td class=words>{escape(timelines.GATES.get(gate, ''))}</td></tr>"
            for gate, ns in times.items()
        )
        parts.append(f"<div><h2>Where the time went: {escape(line.name)}</h2><div class=wide><table><tbody>{rows}</tbody></table></div></div>")
    sizes = line.sizes()
    if sizes:
        rows = "".join(
            f"<tr>{_named_cell(why, 'why')}<td>{number:,}</td><td>{segs / number:.1f}</td>"
            f"<td>{size:,}</td><td class=words>{escape(trace.WHY.get(why, 'sent again' if why == 'retransmit' else ''))}</td></tr>"
            for why, (number, segs, size) in sizes.items()
        )
        head = "<thead><tr><th>reason</th><th>super-segments</th><th>mean segments</th><th>bytes</th><th></th></tr></thead>"
        title = f"<h2>Why super-segments had their sizes: {escape(line.name)}</h2>"
        parts.append(f"<div>{title}<div class=wide><table>{head}<tbody>{rows}</tbody></table></div></div>")
    return "".join(parts)


def _named_cell(name: str, group: str) -> str:
    """The head of a row, with the colour that the chart gives the name."""
    return f'<th><span class=swatch style="background:{COLOURS[group].get(name, palette.OTHER)}"></span>{escape(name)}</th>'


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{_prose(part.strip())}</p>" for part in text.split("\n\n") if part.strip())


def _prose(text: str) -> str:
    """Text with `code` in it."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _about(records: Mapping[str, Record]) -> str:
    first = next(iter(records.values()))
    words = [f"{name} {first.meta[name]}" for name in ("profile", "seed") if first.meta.get(name) not in (None, "")]
    if len(records) > 1:
        words.insert(0, f"{len(records)} variants")
    return " · ".join(words)


def _left_out(records: Mapping[str, Record]) -> str:
    missing = [
        f"{name}: {count:,} {table}" for name, record in records.items() for table, count in record.left_out.items()
    ]
    return f'<p class="note failure">Not recorded, because a table was full: {escape("; ".join(missing))}.</p>' if missing else ""


def _settings(records: Mapping[str, Record]) -> str:
    """What the runs went by: one row a setting, one column a variant; a value all share is written once."""
    rows: dict[str, dict[str, str]] = {}
    for variant, record in records.items():
        for key, value in record.meta.items():
            for name, item in value.items() if isinstance(value, Mapping) else [("", value)]:
                label = f"{key}: {name}" if name else key
                rows.setdefault(label, {})[variant] = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    if not rows:
        return ""
    body = []
    for label, values in rows.items():
        if len(values) == len(records) and len(set(values.values())) == 1:
            cells = f"<td colspan={len(records)}>{escape(next(iter(values.values())))}</td>"
        else:
            cells = "".join(f"<td>{escape(values.get(variant, ''))}</td>" for variant in records)
        body.append(f"<tr><th>{escape(label)}</th>{cells}</tr>")
    head = "<thead><tr><th></th>" + "".join(f"<th>{escape(variant)}</th>" for variant in records) + "</tr></thead>" if len(records) > 1 else ""
    table = f"<table class=settings>{head}<tbody>{''.join(body)}</tbody></table>"
    return f"<details><summary>Settings and versions</summary><div class=wide>{table}</div></details>"
