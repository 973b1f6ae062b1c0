"""`pytcp nstat`: the counters of a running stack, as iproute2's `nstat` shows a kernel's, or for Prometheus.

What `nstat` showed last is remembered per stack beside its socket, so that the next call shows what was
added since. -a asks for the totals instead; they are remembered as well, unless -s says not to.
"""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from pytcp.cli.inspect import client, prometheus
from pytcp.cli.inspect.nstat_order import rank

GAUGES = ("TcpCurrEstab",)  # no counters: nstat leaves them out


@click.command("nstat")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("-a", "--ignore", is_flag=True, help="Totals since the stack began, not what was added since the last call.")
@click.option("-z", "--zeros", is_flag=True, help="Also counters that are zero.")
@click.option("-s", "--noupdate", is_flag=True, help="Do not remember this call for the next one.")
@click.option("-n", "--nooutput", is_flag=True, help="Only remember.")
@click.option("-r", "--reset", is_flag=True, help="Forget the last call.")
@click.option("--prometheus", "exposition", is_flag=True, help="Totals in Prometheus' text format; with --connections tcp_info of each connection.")
@click.option("--connections", is_flag=True, help="With --prometheus: also what each TCP connection knows about itself.")
@client.options("-p", "--pretty")
def command(
    stack: client.Choice, show: client.Show, patterns: tuple[str, ...], ignore: bool, zeros: bool, noupdate: bool, nooutput: bool, reset: bool,
    exposition: bool, connections: bool,
) -> None:  # fmt: skip
    """Counters of a running stack: `nstat` of iproute2, for pytcp.

    PATTERN is a shell pattern for names, upper and lower case being the same; several show what any of them fits.

    Exit status: 0 done; 1 no stack to ask; 2 wrong usage.

    \b
    Examples:
      pytcp nstat                        what happened since the last call
      pytcp nstat -az 'TcpExt*Retrans*'
      pytcp nstat --prometheus
    """
    if connections and not exposition:
        raise click.UsageError("--connections goes with --prometheus.")
    chosen = stack()
    totals: dict[str, int] = next(chosen.ask("get", "counters"))
    if exposition:
        sockets = chosen.ask("get", "sockets", protocols=["tcp"]) if connections else ()
        click.echo(prometheus.expose(totals, next(chosen.ask("get", "sockstat")), chosen.ask("get", "interfaces"), sockets), nl=False)
        return
    memory = Memory(chosen.path)
    before = {} if ignore or reset else memory.read()
    if not noupdate:
        memory.write(totals)
    if nooutput:
        return
    shown = select(totals, before, patterns, zeros)
    if show is not None:
        show({"kernel": shown})
        return
    for line in lines(shown):
        click.echo(line)


def select(totals: Mapping[str, int], before: Mapping[str, int], patterns: Iterable[str], zeros: bool) -> dict[str, int]:
    """What was added to `before`, of the counters that fit, in the kernel's order."""
    wanted = [pattern.lower() for pattern in patterns]
    found = {}
    for name in sorted(totals, key=rank):
        value = totals[name] - before.get(name, 0)
        if name not in GAUGES and (value or zeros) and (not wanted or any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in wanted)):
            found[name] = value
    return found


def lines(shown: Mapping[str, int]) -> list[str]:
    """The table; the last column, an average over time, is for nstat's daemon, and 0 without one."""
    return ["#kernel", *(f"{name:<32}{value:<16}{0.0:6.1f}" for name, value in shown.items())]


class Memory:
    """The totals at the last call. It is of no use for another stack, nor readable by other users."""

    def __init__(self, socket: Path) -> None:
        self.path = socket.with_suffix(".nstat")
        self._socket = socket

    def read(self) -> dict[str, int]:
        """The totals, none when there was no call."""
        try:
            kept = json.loads(self.path.read_text(encoding="ascii"))
            totals = kept["totals"] if kept["socket"] == self._identity() else {}
            return {name: value for name, value in totals.items() if isinstance(value, int)}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}

    def write(self, totals: Mapping[str, int]) -> None:
        """Remember; where that cannot be done the next call shows more than it should, and this one says so."""
        fresh = self.path.with_suffix(f".nstat-{os.getpid()}")
        try:
            fresh.write_text(json.dumps({"socket": self._identity(), "totals": totals}), encoding="ascii")
            fresh.replace(self.path)
        except OSError as error:
            client.say(f"cannot remember this call: {error.strerror}")

    def _identity(self) -> list[int]:
        """Which socket this is, whatever it is called."""
        found = self._socket.stat()
        return [found.st_ino, found.st_ctime_ns]
