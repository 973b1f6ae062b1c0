"""`pytcp lab`: experiments in virtual time, with the published figures beside ours."""

from __future__ import annotations

import json
import os
import tempfile
import textwrap
from pathlib import Path

import click

from pytcp.cli import screen
from pytcp.cli.lab_plot import plot
from pytcp.cli.lab_sweep import sweep
from pytcp.lab import experiment as experiments
from pytcp.lab.experiment import ExperimentError, Figure, RunError, Setting, Table
from pytcp.lab.record import Record
from pytcp.lab.runs import Result, file_of, run_all, run_all_real
from pytcp.tcp import profiles


def complaint(error: Exception) -> click.ClickException:
    """What becomes of it at the command line: work that failed, or wrong usage."""
    return click.UsageError(str(error)) if isinstance(error, ExperimentError) and not isinstance(error, RunError) else click.ClickException(str(error))


def _settings(words: tuple[str, ...]) -> list[tuple[str, Setting]]:
    found: list[tuple[str, Setting]] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{word!r} is not KEY=VALUE", param_hint="--set")
        found.append((key.strip(), value.strip()))
    return found


@click.group("lab")
def command() -> None:
    """Experiments: hosts, a wire and a workload in virtual time.

    Five replay discussions of the kernel's network list, with the algorithm before and after the patch; `pytcp lab run ./mine.py`
    runs one of your own (docs/experiments.md).
    """


command.add_command(plot)
command.add_command(sweep)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(as_json: bool) -> None:
    """The experiments, their variants and what may be set."""
    found = [experiments.load(name) for name in experiments.names()]
    if as_json:
        rows = [
            {"name": e.name, "title": e.title, "variants": list(e.variants), "parameters": {p.name: p.show() for p in e.parameters.values()}} for e in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    for e in found:
        _echo(f"{e.name}: {e.title}", hanging="    ")
        _echo("variants: " + "; ".join(e.variants), "    ", "        ")
        _echo("--set " + "  ".join(f"{p.name}={p.show()}" for p in e.parameters.values()), "    ", "          ")


@command.command("run")
@click.argument("name")
@click.option("--variant", "variants", multiple=True, metavar="NAME", help="Only this variant; may be given several times.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="A parameter (rtt=40ms), or a sysctl (net.ipv4.tcp_sack=0; client:... for one host).")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of everything random.")
@click.option("--profile", type=click.Choice(profiles.NAMES), help="Kernel whose defaults the hosts have.  [default: the experiment's]")
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON on standard output.")
@click.option("--html", metavar="FILE", default="", help="Write a report: figures, time-sequence graphs, gates, events, queues.")
@click.option("--record", metavar="FILE", default="", help="Write what happened as JSON lines (for `pytcp lab plot`); with several variants a file for each.")
@click.option("--pcap", metavar="FILE", default="", help="Record the packets; with several variants a file for each.")
@click.option("--real", is_flag=True, help="Over a TAP, with this machine's kernel as the peer, where the experiment can. Needs root or user namespaces.")
@click.option("-j", "processes", type=click.IntRange(1), default=None, help="Variants at a time.  [default: processors]")
def run(
    name: str,
    variants: tuple[str, ...],
    sets: tuple[str, ...],
    seed: int,
    profile: str | None,
    as_json: bool,
    html: str,
    record: str,
    pcap: str,
    real: bool,
    processes: int | None,
) -> None:
    """Run an experiment: one of `pytcp lab list`, or a file's path.

    \b
    Examples:
      pytcp lab run scaling-ratio
      pytcp lab run tso-autosizing --set rtt=10ms --set pytcp.grow_skb=1
      pytcp lab run ./mine.py --seed 7 --json
    """
    settings = _settings(sets)
    errors = screen.console(stderr=True)
    for file in filter(None, (html, record, pcap)):
        if not Path(file).absolute().parent.is_dir():
            raise click.UsageError(f"{file}: there is no such folder")
    if html:
        _check_plotly()
    if real:
        from pytcp.lab import rootless

        rootless.enter()
    try:
        with errors.status(f"{name}: running") as status, tempfile.TemporaryDirectory() as scratch:
            through: list[str] = []

            def finished(variant: str) -> None:
                through.append(variant)
                status.update(f"{name}: {', '.join(through)} done")

            kept = record or (f"{scratch}/record.jsonl" if html else "")
            result = run_all_real(
                name, variants, profile=profile or "", sets=settings, pcap=pcap, record=kept, finished=finished
            ) if real else run_all(
                name, variants, seed=seed, profile=profile or "", sets=settings, pcap=pcap, record=kept, processes=processes or 0, finished=finished
            )
            if html:
                status.update(f"{name}: writing {html}")
                _report(result, kept, html)
    except ExperimentError as error:
        raise complaint(error) from None
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2, ensure_ascii=False))
    else:
        show(result, settings, real)


def _check_plotly() -> None:
    """Before a run of a minute, not after it."""
    from pytcp.lab.report import require

    try:
        require()
    except ImportError as error:
        raise complaint(error) from None


def _report(result: Result, record: str, html: str) -> None:
    from pytcp.lab.report import Column, write_html

    chosen = result.experiment
    records = {name: Record.read_jsonl(file_of(record, name, len(result.outcomes))) for name in result.outcomes}
    figures = {name: outcome.figures for name, outcome in result.outcomes.items()}
    columns = [Column(figure.key, figure.label, figure.form, figure.claimed) for figure in shown(result)]
    notes = [("Differences", chosen.differences), ("Fitted", chosen.fitted), ("Published", (chosen.source,))]
    try:
        write_html(
            html, records, figures, chosen.published, title=f"{chosen.name}: {chosen.title}", summary=chosen.doc, columns=columns,
            compare=chosen.compare, notes=[(heading, list(sentences)) for heading, sentences in notes if any(sentences)],
            tables={name: outcome.tables for name, outcome in result.outcomes.items()},
        )  # fmt: skip
    except ImportError as error:
        raise complaint(error) from None


def show(result: Result, settings: list[tuple[str, Setting]], real: bool = False) -> None:
    """Print a result for a person: figures beside the published ones, ratios, tables, and what to make of it. real: it ran over a TAP."""
    chosen = result.experiment
    _echo(f"{chosen.name}: {chosen.title}")
    if real:
        _echo(f"over a TAP, Linux {os.uname().release} as the peer: {chosen.real}")
    if settings:
        _echo("with " + ", ".join(f"{key}={value}" for key, value in settings))
        if len(result.outcomes) < len(chosen.variants) and list(result.outcomes) == chosen.distinct(settings, result.profile):
            _echo("Of variants that do not differ with that, one ran.")
    tables = [_figures(result), _ratios(result)]
    tables += [_plain(table, variant if len(result.outcomes) > 1 else "") for variant, outcome in result.outcomes.items() for table in outcome.tables]
    for lines in filter(None, tables):
        click.echo("\n".join(["", *lines]))
    for heading, sentences in (("Differences", chosen.differences), ("Fitted", chosen.fitted)):
        if sentences and not real:
            click.echo(f"\n{heading}{' (without these settings)' if settings else ''}")
            for sentence in sentences:
                _echo(sentence, "- ", "  ")
    if chosen.source:
        click.echo()
        _echo(f"Published: {chosen.source}")


def _echo(text: str, indent: str = "", hanging: str | None = None) -> None:
    click.echo("\n".join(screen.wrapped(text, indent, hanging)))


def shown(result: Result) -> list[Figure]:
    """The figures to show: those described, then others as they came."""
    chosen = result.experiment
    keys = dict.fromkeys(key for outcome in result.outcomes.values() for key in outcome.figures)
    known = {figure.key: figure for figure in chosen.figures}
    return [figure for figure in chosen.figures if figure.key in keys] + [Figure(key, key, "{:g}") for key in keys if key not in known]


def heading(name: str) -> str:
    """A variant's name over a column, in lines of about a figure's width."""
    return "\n".join(textwrap.wrap(name, 12, break_long_words=False))


def _cell(figures: dict[str, float] | None, figure: Figure) -> str:
    value = None if figures is None else figures.get(figure.key)
    return "" if value is None else figure.form.format(value)


def _figures(result: Result) -> list[str]:
    chosen = result.experiment
    headings = [""]
    columns: list[dict[str, float]] = []
    dim = []
    for name, outcome in result.outcomes.items():
        published = chosen.published.get(name)
        if published:
            dim.append(len(headings))
            headings.append(f"{heading(name)}\npublished")
            columns.append(published)
        headings.append(f"{heading(name)}\nhere" if chosen.published else heading(name))
        columns.append(outcome.figures)
    rows = [[figure.label, *(_cell(figures, figure) for figures in columns)] for figure in shown(result)]
    return screen.ruled(headings, rows, dim=dim)


def _ratios(result: Result) -> list[str]:
    """After to before, published and here; none when not both ran."""
    chosen = result.experiment
    if chosen.compare is None or not set(chosen.compare) <= set(result.outcomes):
        return []
    before, after = chosen.compare
    rows = []
    for figure in shown(result):
        ours = _ratio(result.outcomes[before].figures, result.outcomes[after].figures, figure.key)
        theirs = _ratio(chosen.published.get(before, {}), chosen.published.get(after, {}), figure.key)
        if theirs and ours:
            rows.append([figure.label, theirs, ours + ("" if figure.claimed else " (not claimed)")])
    return screen.ruled([f"{after} / {before}", "published", "here"], rows, dim=(1,)) if rows else []


def _ratio(before: dict[str, float], after: dict[str, float], key: str) -> str:
    if key not in before or key not in after or not before[key]:
        return ""
    return f"{after[key] / before[key]:.2f}"


def _plain(table: Table, variant: str) -> list[str]:
    title = f"{table.title} ({variant})" if variant else table.title
    return [title, *screen.ruled(table.header, table.rows)]
