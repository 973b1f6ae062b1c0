"""`pytcp sysctl`: the settings of a running stack, as procps' `sysctl` reads and writes a kernel's.

Ranges and names are judged by the stack. Several variables are all tried; the exit status is 1 when one failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import click

from pytcp.cli.inspect import client

Value = int | str | list[int]


@click.command("sysctl")
@click.argument("variables", metavar="[VARIABLE[=VALUE]]...", nargs=-1)
@click.option("-a", "--all", "everything", is_flag=True, help="All variables.")
@click.option("-w", "--write", is_flag=True, help="Set: every argument is VARIABLE=VALUE.")
@click.option("-n", "--values", is_flag=True, help="Only values.")
@click.option("-N", "--names", is_flag=True, help="Only names.")
@click.option("-q", "--quiet", is_flag=True, help="Do not repeat what was set.")
@click.option("-e", "--ignore", is_flag=True, help="Unknown variables are no error.")
@click.option("--explain", is_flag=True, help="With each its meaning, default, range and origin.")
@click.option("-r", "--pattern", metavar="REGEX", help="Only variables whose name it matches. With -a.")
@client.options("--pretty")
def command(
    stack: client.Choice, show: client.Show, variables: tuple[str, ...], everything: bool, write: bool, values: bool, names: bool, quiet: bool,
    ignore: bool, explain: bool, pattern: str | None,
) -> int:  # fmt: skip
    """Settings of a running stack: `sysctl` of procps, for pytcp.

    Names and ranges are Linux's, the stack's own begin with pytcp. A name may also be that of a branch
    (net.ipv4.neigh). What Linux keeps per interface is one value here, under each of its names.
    Exit status: 0 done; 1 a variable that is not there or not to be set so, or no stack; 2 wrong usage.
    Setting pytcp.profile gives all of TCP's the defaults of another kernel (docs/variants.md).

    \b
    Examples:
      pytcp sysctl -a -r rmem
      pytcp sysctl net.ipv4.tcp_ecn
      pytcp sysctl --explain pytcp
      pytcp sysctl -w net.ipv4.tcp_rmem='4096 87380 1000000'
    """
    if not variables and not everything:
        raise click.UsageError("name a variable, or -a for all.")
    if values and names:
        raise click.UsageError("-n shows values only, -N names only: choose.")
    if explain and (values or names):
        raise click.UsageError("--explain shows more, -n and -N show less: choose.")
    for variable in variables if write else ():
        if "=" not in variable:
            raise click.UsageError(f"{variable!r} sets nothing; -w takes VARIABLE=VALUE.")
    try:
        matches = re.compile(pattern or "").search
    except re.error as error:
        raise click.BadParameter(f"{pattern!r} is no regular expression: {error}", param_hint="--pattern") from error
    chosen = stack()
    present: dict[str, Value] = next(chosen.ask("get", "sysctls"))
    found: dict[str, Value] = {name: value for name, value in present.items() if everything and matches(name)}
    status = 0
    for variable in variables:
        name, sets, new = (part.strip() for part in variable.partition("="))
        try:
            if sets:
                next(chosen.ask("set", "sysctl", name=name, value=new))
                if not quiet:
                    found[dotted(name)] = new
            else:
                found |= _read(chosen, present, name)
        except client.Answered as error:
            if not (ignore and error.is_unknown):
                said = str(error.strerror)
                client.say(_unknown(name, present) if error.is_unknown and said.startswith("no sysctl ") else said)
                status = 1
    if explain:
        facts = [entry for entry in chosen.ask("get", "explanations") if entry["name"] in found]
        if show is not None:
            show(facts)
            return status
        click.echo("\n\n".join(map(explained, facts)))
        return status
    if show is not None:
        show(found)
        return status
    for name, value in found.items():
        click.echo(name if names else text(value) if values else f"{name} = {text(value)}")
    return status


def explained(entry: dict[str, Any]) -> str:
    """One setting as people want it told."""
    lines = [f"{entry['name']} = {text(entry['value'])}", f"    {entry['meaning']}", f"    default {text(entry['default'])}"]
    if entry["allowed"]:
        lines[-1] += f"; takes {entry['allowed']}"
    if entry["origin"]:
        lines.append(f"    {entry['origin']}")
    return "\n".join(lines)


def _unknown(name: str, present: Iterable[str]) -> str:
    from pytcp.lab.units import near

    found = near(dotted(name), present)
    return f"no sysctl {name!r}" + (f"; near: {', '.join(found)}" if found else "; all: pytcp sysctl -a")


def _read(chosen: client.Running, present: dict[str, Value], name: str) -> dict[str, Value]:
    """One variable, or all of a branch."""
    branch = {entry: value for entry, value in present.items() if entry.startswith(dotted(name).rstrip(".") + ".")}
    return branch or {dotted(name): next(chosen.ask("get", "sysctl", name=name))["value"]}


def dotted(name: str) -> str:
    """net/ipv4/tcp_sack is net.ipv4.tcp_sack."""
    return name.replace("/", ".")


def text(value: Value) -> str:
    """A value as the kernel's files have it."""
    return "\t".join(map(str, value)) if isinstance(value, list) else str(value)
