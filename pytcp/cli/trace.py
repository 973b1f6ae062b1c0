"""`pytcp trace`: what a stack decides and why, as it happens, of a program, or from a file."""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from pytcp.cli import screen
from pytcp.cli.inspect import client
from pytcp.cli.traceview import Row, Table
from pytcp.tcp.trace import KINDS

Net = ipaddress.IPv4Network | ipaddress.IPv6Network


def _kinds(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> frozenset[str]:
    """Kinds of events, given one by one or joined by commas."""
    kinds = frozenset(kind for text in value for kind in text.split(","))
    for kind in sorted(kinds - frozenset(KINDS)):
        near = difflib.get_close_matches(kind, KINDS)
        raise click.BadParameter(f"no kind {kind!r}; " + (f"like it: {', '.join(near)}" if near else f"there are {', '.join(KINDS)}"), ctx, param)
    return kinds


def _peers(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[Net, ...]:
    """Addresses and networks."""
    try:
        return tuple(ipaddress.ip_network(text, strict=False) for text in value)
    except ValueError as error:
        raise click.BadParameter(f"{error}; give 10.0.0.2 or 10.0.0.0/8", ctx, param) from None


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


class Enough(Exception):
    """As many events as were wanted."""


@click.command("trace", context_settings={"allow_interspersed_args": False})
@click.argument("target", required=False, type=click.Path(path_type=Path), metavar="[FILE|PROGRAM.py]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
@click.option("--port", "ports", type=click.IntRange(1, 65535), multiple=True, help="Only connections with this port at either end; may be repeated.")
@click.option("--peer", "peers", callback=_peers, multiple=True, metavar="ADDRESS|NETWORK", help="Only connections to it; may be repeated.")
@click.option("--kind", "kinds", callback=_kinds, multiple=True, metavar="KIND[,KIND]...", shell_complete=_complete, help="Only these events.  [default: all]")
@click.option("-n", "--count", type=click.IntRange(1), help="End after so many events.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Of a running stack: end after so long.")
@click.option("-j", "--json", "as_json", is_flag=True, help="One JSON object per line instead of a table.")
@click.option("--stack", "wanted", metavar="NAME|PID", envvar="PYTCP_STACK", help="Which running stack, when there are several (or $PYTCP_STACK).")
def command(
    target: Path | None, arguments: tuple[str, ...], ports: tuple[int, ...], peers: tuple[Net, ...], kinds: frozenset[str],
    count: int | None, seconds: float | None, as_json: bool, wanted: str | None,
) -> int:  # fmt: skip
    """Every decision of TCP, and why: super-segments and what gave each its size, what stopped the sender, acknowledgements, losses.

    Without FILE it shows what happens in a running stack from now on. A PROGRAM.py is run, in virtual time if it uses that, and all
    its stacks are shown. Any other FILE is a trace that was recorded with --trace (nc, http, run, iperf3) or a record of `pytcp lab`.
    Options come before FILE. Kinds: docs/why.md; what was sent and what held it is --kind xmit,stop,gate.

    \b
    Examples:
      pytcp trace --kind xmit,stop,gate
      pytcp trace --peer 10.99.0.1 --port 80 --seconds 10 --json
      pytcp trace --kind xmit transfer.py
      pytcp nc 10.99.0.1 7000 --trace t.jsonl < file; pytcp trace --kind lost,retransmit,rto t.jsonl
    """
    if arguments and (target is None or target.suffix != ".py"):
        raise click.UsageError(f"{arguments[0]!r}: only a PROGRAM.py takes arguments; options come before the file.")
    if seconds is not None and target is not None:
        raise click.UsageError("--seconds goes with a running stack.")
    show = _printer(count, as_json)
    with contextlib.suppress(Enough, BrokenPipeError):
        if target is None:
            return _running(client.choose(wanted), show, sorted(kinds), ports, peers, seconds)
        if not target.is_file():
            raise click.UsageError(f"{str(target)!r} does not exist." if not target.exists() else f"{str(target)!r} is no file.")
        if target.suffix == ".py":
            return _program(target, arguments, show, kinds, ports, peers)
        return _recorded(target, show, kinds, ports, peers)
    return 0


def _printer(count: int | None, as_json: bool) -> Callable[[Row], None]:
    """What is done with each row; raises Enough behind the last one."""
    table = Table(screen.width())
    seen = 0

    def show(row: Row) -> None:
        nonlocal seen
        if as_json:
            click.echo(json.dumps(row, separators=(",", ":")))
        else:
            for line in table.lines(row):
                click.echo(line)
        seen += 1
        if seen == count:
            raise Enough

    return show


def _running(
    stack: client.Running, show: Callable[[Row], None], kinds: list[str], ports: tuple[int, ...], peers: tuple[Net, ...], seconds: float | None
) -> int:
    if sys.stderr.isatty():
        click.echo(f"{stack.describe()}: Ctrl-C ends", err=True)
    until = None if seconds is None else time.monotonic() + seconds
    lost = 0
    with contextlib.suppress(KeyboardInterrupt):
        for row in stack.follow("trace", until, kinds=kinds, ports=ports, peers=[str(peer) for peer in peers]):
            if "lost" in row:
                lost += row["lost"]
                click.echo(f"({row['lost']:,} events lost: more than this terminal takes; choose with --kind, --port, --peer)", err=True)
            else:
                show(row)
    return 0


def _program(
    target: Path, arguments: tuple[str, ...], show: Callable[[Row], None], kinds: frozenset[str], ports: tuple[int, ...], peers: tuple[Net, ...]
) -> int:
    from pytcp.cli.run import execute
    from pytcp.net.tracer import Listener, every_stack

    rows: list[Row] = []

    def deliver(row: Row) -> None:
        # a reader who has enough must not stop the stack in the middle of a pass
        rows.append(row)
        if len(rows) > 1000:
            flush()

    ended = False

    def flush() -> None:
        nonlocal ended
        while rows:
            row = rows.pop(0)
            if not ended:
                try:
                    show(row)
                except (Enough, BrokenPipeError):
                    ended = True

    with every_stack(Listener(deliver, kinds=kinds, ports=ports, peers=peers)):
        status = execute(None, (str(target), *arguments))
    flush()
    return status


def _recorded(target: Path, show: Callable[[Row], None], kinds: frozenset[str], ports: tuple[int, ...], peers: tuple[Net, ...]) -> int:
    from pytcp.lab.record import RecordError, read_rows

    wanted: dict[str, bool] = {}
    left_out = 0
    try:
        for table, row in read_rows(target):
            if table == "record":
                left_out = row["left_out"].get("events", 0)
            elif table == "events" and (not kinds or row["kind"] in kinds):
                flow = row["flow"]
                if flow not in wanted:
                    wanted[flow] = _fits(flow, ports, peers)
                if wanted[flow]:
                    show(row)
    except RecordError as error:
        raise click.ClickException(str(error)) from None
    if left_out:
        click.echo(f"({left_out:,} later events are not in {target})", err=True)
    return 0


def _fits(flow: str, ports: tuple[int, ...], peers: tuple[Net, ...]) -> bool:
    """Whether a flow is meant, by its name; a name that says nothing of addresses is meant when nothing was asked for."""
    if not ports and not peers:
        return True
    ends = list(_ends(flow))
    if len(ends) != 2:
        return False
    if ports and not any(port in ports for _, port in ends):
        return False
    return not peers or any(ends[1][0] in peer for peer in peers)


def _ends(flow: str) -> Iterator[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    for end in flow.split(">"):
        host, _, port = end.rpartition(":")
        with contextlib.suppress(ValueError):
            yield ipaddress.ip_address(host.strip("[]")), int(port)
