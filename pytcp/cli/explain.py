"""`pytcp explain`: where the time of a connection went, of a running stack or from a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytcp.cli import screen
from pytcp.cli.inspect import client, ssfilter

if TYPE_CHECKING:
    from pytcp.lab.explain import Story

WIDTH = 100  # of sentences
BAR = 30
BESIDE_BAR = 55  # columns of the table that are not the bar's
_EIGHTHS = " ▏▎▍▌▋▊▉"
COLOURS = {
    "app": "bright_black", "sndbuf": "cyan", "cork": "yellow", "nagle": "yellow", "autocork": "yellow", "tso_defer": "yellow", "tsq": "magenta",
    "cwnd": "blue", "rwnd": "green", "pacing": "cyan", "host_queue": "magenta", "neighbour": "red",
}  # fmt: skip


@click.command("explain", context_settings={"allow_interspersed_args": False})
@click.argument("words", metavar="[FILE [FLOW]... | PROGRAM.py [ARGUMENTS]... | FILTER]", nargs=-1, type=click.UNPROCESSED)
@click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON: a list of connections.")
@click.option("--stack", "wanted", metavar="NAME|PID", envvar="PYTCP_STACK", help="Which running stack, when there are several (or $PYTCP_STACK).")
def command(words: tuple[str, ...], as_json: bool, wanted: str | None) -> int:
    """Where a connection's time went: what it waited for, what was lost and why, and what would help.

    Without FILE: the connections of a running stack; FILTER is ss's (dport = :443, dst 10.0.0.0/8). FILE is a trace recorded with
    --trace or a record of `pytcp lab`; FLOW names connections in it, or parts of their names. A PROGRAM.py is run, in virtual time if it
    uses that, and its connections are explained.

    \b
    Examples:
      pytcp explain
      pytcp explain dst 10.99.0.1
      pytcp explain t.jsonl
      pytcp explain t.jsonl :80
      pytcp explain transfer.py
    """
    status = 0
    if not words or not _is_file(words[0]):
        found = _running(words, wanted)
    elif words[0].endswith(".py"):
        status, found = _program(words)
    else:
        found = _recorded(Path(words[0]), words[1:])
    stories = [story for story in found if story.ns]
    if len(found) > len(stories):
        click.echo(f"({len(found) - len(stories)} that never opened: refused, or not answered)", err=True)
    if as_json:
        click.echo(json.dumps([story.as_json() for story in stories]))
        return status
    for place, story in enumerate(stories):
        if place:
            click.echo()
        for line in show(story):
            click.echo(line)
    return status


def _is_file(word: str) -> bool:
    path = Path(word)
    if path.is_file():
        return True
    if path.suffix in (".jsonl", ".json", ".py"):
        raise click.UsageError(f"{word!r} does not exist.")
    return False


def _running(words: Sequence[str], wanted: str | None) -> list[Story]:
    from pytcp.lab.explain import of_socket

    try:
        states, test = ssfilter.parse(words, "tcp")
    except ssfilter.FilterError as error:
        raise click.UsageError(str(error)) from error
    chosen = client.choose(wanted)
    found = [
        of_socket(facts)
        for facts in chosen.ask("get", "sockets", protocols=["tcp"])
        if facts.get("gates") and facts["state"] in (states or ssfilter.ALL) and test(facts)
    ]
    if not found:
        raise click.ClickException(f"no connection{' that fits' if words else ''} in {chosen.describe()}")
    return found


def _program(words: Sequence[str]) -> tuple[int, list[Story]]:
    """Run a program and listen to its stacks; its exit status comes first."""
    from pytcp.cli.run import execute
    from pytcp.lab.explain import flows, of_flow
    from pytcp.lab.record import Record
    from pytcp.net.tracer import Listener, every_stack

    record = Record()
    with every_stack(Listener(record.events.append)):
        status = execute(None, tuple(words))
    return status, [of_flow(record, name) for name in flows(record)]


def _recorded(path: Path, words: Sequence[str]) -> list[Story]:
    from pytcp.lab.explain import flows, of_flow
    from pytcp.lab.record import Record, RecordError

    try:
        record = Record.read_jsonl(path)
    except RecordError as error:
        raise click.ClickException(str(error)) from None
    names = flows(record)
    found = [of_flow(record, name) for name in names if not words or any(word in name for word in words)]
    if not found:
        there = ", ".join(names)
        raise click.ClickException(f"{path}: no flow {' or '.join(words)!r}; there are: {there}" if names else f"{path}: no connection in it")
    if record.left_out.get("events"):
        click.echo(f"{path}: {record.left_out['events']:,} later events are left out: the figures are of the beginning", err=True)
    return found


def bar(share: float, width: int = BAR) -> str:
    """A bar of eighths of a character."""
    eighths = round(share * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def show(story: Story) -> list[str]:
    """The lines that explain one connection."""
    from pytcp.lab import explain

    open_for = f"open for {explain.span(story.ns)}" if story.ns else "never open"
    speed = f" ({explain.rate(story.sent * 1e9 / story.ns)})" if story.sent and story.ns else ""
    name = click.style(story.name.replace(">", " > "), bold=True)
    what = f"{open_for}, {explain.size(story.sent)} sent{speed}, {explain.size(story.received)} received"
    lines = [f"{name}  {what}"]
    if screen.width() and not screen.fits(lines):
        lines = [name, *screen.wrapped(what, "  ")]
    wide = max(5, min(BAR, (screen.width() or screen.PIPE) - BESIDE_BAR))
    if story.order:
        lines += ["", f"  {'waited for':<10} {'time':>9} {'share':>7}  {'':<{wide}} {'bytes':>9} {'share':>7}"]
    for gate in story.order:
        ns, sent = story.gates[gate]
        share = story.share(gate)
        drawn = click.style(f"{bar(share, wide):<{wide}}", fg=COLOURS[gate])
        of_bytes = f"{sent / story.sent:7.1%}" if story.sent else f"{'':>7}"
        here = "  now" if gate == story.now else ""
        lines.append(f"  {gate:<10} {explain.span(ns):>9} {share:7.1%}  {drawn} {explain.size(sent):>9} {of_bytes}{here}".rstrip())
    facts = _facts(story)
    if facts:
        lines += ["", *screen.wrapped(facts, "  ", most=WIDTH)]
    return [*lines, "", *screen.wrapped(explain.conclusion(story), "  ", most=WIDTH)]


def _facts(story: Story) -> str:
    from pytcp.lab import explain

    parts = []
    if story.srtt_us:
        least = f" (least {explain.span(story.min_rtt_us * 1000)})" if story.min_rtt_us else ""
        parts.append(f"round trip {explain.span(story.srtt_us * 1000)}{least}")
    if story.cwnd:
        parts.append(f"cwnd {story.cwnd} {f'x {story.mss} bytes' if story.mss else 'packets'}" + (f" by {story.congestion}" if story.congestion else ""))
    if story.snd_wnd or story.zero_window:
        parts.append(f"window of the peer {story.snd_wnd:,} bytes")
    if story.pacing_rate:
        parts.append(f"pacing rate {explain.rate(story.pacing_rate)}")
    if story.again:
        parts.append(f"{story.again:,} of {story.segs:,} segments sent again")
    return "; ".join(parts)
