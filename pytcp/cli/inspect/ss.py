"""`pytcp ss`: the sockets of a running stack, as iproute2's `ss` shows a kernel's."""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import click

from pytcp.cli.inspect import client, ssfilter, ssinfo
from pytcp.cli.inspect.columns import Column, render

Facts = dict[str, Any]

COLUMNS = (
    Column("Netid"),
    Column("State"),
    Column("Recv-Q"),
    Column("Send-Q"),
    Column("Local Address", right=True),
    Column("Port", ":"),
    Column("Peer Address", right=True),
    Column("Port", ":"),
    Column("Process", ""),
)
NETID, STATE = 0, 1  # the columns that are not always there
STATE_WORDS = {"ESTABLISHED": "ESTAB", "CLOSE": "UNCONN", "FIN_WAIT1": "FIN-WAIT-1", "FIN_WAIT2": "FIN-WAIT-2"}


@dataclass(frozen=True)
class Wanted:
    """What a table shows."""

    numeric: bool = False
    memory: bool = False
    info: bool = False
    extended: bool = False
    options: bool = False
    processes: bool = False
    why: bool = False
    oneline: bool = False
    netid: bool = False
    state: bool = True
    header: bool = True


@click.command("ss")
@click.argument("filter_", metavar="[FILTER]", nargs=-1)
@click.option("-t", "--tcp", is_flag=True, help="TCP sockets.")
@click.option("-u", "--udp", is_flag=True, help="UDP sockets. Without -t and -u: both.")
@click.option("-a", "--all", "everything", is_flag=True, help="In every state, listening ones too.")
@click.option("-l", "--listening", is_flag=True, help="Only listening ones.")
@click.option("-n", "--numeric", is_flag=True, help="Ports as numbers, rates to the last digit.")
@click.option("-i", "--info", is_flag=True, help="Internal TCP information: congestion control, round trips, windows, totals.")
@click.option("-m", "--memory", is_flag=True, help="Socket memory.")
@click.option("-o", "--options", is_flag=True, help="Timers.")
@click.option("-e", "--extended", is_flag=True, help="Timers, inode, cookie, mark, open directions.")
@click.option("-p", "--processes", is_flag=True, help="The process.")
@click.option("-4", "--ipv4", is_flag=True, help="Only IPv4.")
@click.option("-6", "--ipv6", is_flag=True, help="Only IPv6.")
@click.option("-O", "--oneline", is_flag=True, help="One line per socket.")
@click.option("-H", "--no-header", is_flag=True, help="No headings.")
@click.option("--why", is_flag=True, help="What each connection waited for, longest first, on a line of its own (docs/why.md); ss has no such option.")
@click.option("-s", "--summary", is_flag=True, help="Only totals.")
@client.options("--pretty")
def command(
    stack: client.Choice, show: client.Show, filter_: tuple[str, ...], tcp: bool, udp: bool, everything: bool, listening: bool,
    ipv4: bool, ipv6: bool, no_header: bool, summary: bool, **what: bool,
) -> None:  # fmt: skip
    """Sockets of a running stack: `ss` of iproute2, for pytcp.

    FILTER is ss's: state established, sport = :443, dst 10.0.0.0/8, joined by and, or, not and parentheses.
    Sockets without a descriptor show fd=-1. --json prints every fact of every socket shown.

    Exit status: 0 done, also when no socket fits; 1 no stack to ask; 2 wrong usage.

    \b
    Examples:
      pytcp ss -tin
      pytcp ss -tan state time-wait dport = :80
      pytcp ss -lnt --stack server.py
    """
    protocols = [name for name, on in (("udp", udp), ("tcp", tcp)) if on] or ["udp", "tcp"]
    try:
        states, test = ssfilter.parse(filter_, protocols[-1])
    except ssfilter.FilterError as error:
        raise click.UsageError(str(error)) from error
    chosen = stack()
    if summary:
        totals = next(chosen.ask("get", "sockstat"))
        if show is not None:
            show(totals)
        else:
            click.echo(summarize(totals))
        return
    if states is None:
        states = ssfilter.ALL if everything else ssfilter.IDLE if listening else ssfilter.USUAL
    families = {family for family, on in ((4, ipv4), (6, ipv6)) if on} or {4, 6}
    found = [
        facts
        for facts in chosen.ask("get", "sockets", protocols=protocols)
        if facts["state"] in states and facts["family"] in families and test(facts)
    ]  # fmt: skip
    if show is not None:
        show([{**facts, "pid": chosen.pid, "command": chosen.command} for facts in found])
        return
    wanted = Wanted(netid=len(protocols) > 1, state=len(states) > 1, header=not no_header, **what)
    for line in table(found, wanted, chosen.command, chosen.pid, _screen()):
        click.echo(line)


def _screen() -> int | None:
    """The terminal's width, None when the output goes elsewhere."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None if sys.stdout.isatty() else None
    except (OSError, ValueError):
        return None


def table(sockets: Iterable[Facts], wanted: Wanted, command_name: str, pid: int, screen: int | None = None) -> list[str]:
    """The lines `ss` prints for `sockets`."""
    shown = [place for place in range(len(COLUMNS)) if (place != NETID or wanted.netid) and (place != STATE or wanted.state)]
    rows = []
    for facts in sockets:
        row = _row(facts, wanted, command_name, pid)
        rows.append([row[place] for place in shown])
    columns = [COLUMNS[place] for place in shown]
    return render(columns, rows, header=wanted.header, screen=screen)


def _row(facts: Facts, wanted: Wanted, command_name: str, pid: int) -> list[str]:
    local, local_port = _endpoint(facts, "local", wanted.numeric)
    remote, remote_port = _endpoint(facts, "remote", wanted.numeric)
    state = facts["state"]
    return [
        facts["protocol"],
        STATE_WORDS.get(state, state.replace("_", "-")),
        f"{facts['recv_q']:<6}",  # as wide as the heading even where there is none
        f"{facts['send_q']:<6}",
        local,
        local_port,
        remote,
        remote_port,
        _process(facts, wanted, command_name, pid),
    ]


def _endpoint(facts: Facts, side: str, numeric: bool) -> tuple[str, str]:
    """Address and port as ss writes them: * for IPv6's wildcard that takes IPv4 too."""
    address = facts[side]
    if address == "::" and not facts.get("v6only"):
        address = "*"
    elif ":" in address:
        address = f"[{address}]"
    if facts["device"] and side == "local":
        address += f"%{facts['device']}"
    port = facts[f"{side}_port"]
    if not port:
        return address, "*"
    return address, str(port) if numeric else service(port, facts["protocol"])


@functools.cache
def service(port: int, protocol: str) -> str:
    """The name of a port, or its number."""
    try:
        return socket.getservbyport(port, protocol)
    except OSError:
        return str(port)


def _process(facts: Facts, wanted: Wanted, command_name: str, pid: int) -> str:
    """The last column: what belongs to the socket, and on a line of its own what belongs to its traffic."""
    words = []
    if wanted.processes:
        words.append(ssinfo.users(facts, command_name, pid))
    if wanted.options or wanted.extended:
        words.append(ssinfo.timer(facts))
    if wanted.extended:
        words.append(ssinfo.details(facts))
    first = "".join(f" {word}" for word in words if word)
    lines = [first]
    if wanted.memory or wanted.info:
        words = []
        if wanted.memory and "memory" in facts:
            words.append(ssinfo.memory(facts))
        if wanted.info and "info" in facts:
            words.append(ssinfo.info(facts, options=wanted.options or wanted.extended, numeric=wanted.numeric))
            words.append(ssinfo.md5keys(facts))
        lines.append("".join(f" {word}" for word in words if word))
    if wanted.why and facts.get("gates"):
        lines.append(f" {ssinfo.why(facts)}")
    return ("" if wanted.oneline else "\n\t").join(lines)


def summarize(totals: Facts) -> str:
    """`ss -s`."""
    tcp, udp, frag = ({int(family): count for family, count in totals[name].items()} for name in ("tcp", "udp", "frag"))
    sockets = {family: tcp[family] + udp[family] for family in (4, 6)}
    total = sum(sockets.values())
    estab, orphaned, timewait = (totals[name] for name in ("estab", "orphaned", "timewait"))
    lines = [
        f"Total: {total}",
        f"TCP:   {sum(tcp.values()) + timewait} (estab {estab}, closed {orphaned + timewait}, orphaned {orphaned}, timewait {timewait})",
        "",
        "Transport Total     IP        IPv6",
    ]
    for name, counts in (("RAW", {4: 0, 6: 0}), ("UDP", udp), ("TCP", tcp), ("INET", sockets), ("FRAG", frag)):
        lines.append(f"{name}\t  {counts[4] + counts[6]:<9} {counts[4]:<9} {counts[6]:<9}")
    return "\n".join(lines)
