"""`pytcp doctor`: a table of `lab.machine`'s findings, and one line of verdict."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import warnings

import click

from pytcp.lab import rootless
from pytcp.lab.machine import MISSING, OK, OPTIONAL, Check, examine

MARKS = {OK: "[green]ok[/]", OPTIONAL: "[yellow]optional[/]", MISSING: "[red]missing[/]"}


def verdict(checks: list[Check]) -> tuple[str, int]:
    """The last line, and the exit status: 1 when something the testbed needs is missing."""
    missing = [check.name for check in checks if check.status == MISSING]
    optional = sum(check.status == OPTIONAL for check in checks)
    if missing:
        return f"doctor: the testbed does not work here: {', '.join(missing)}", 1
    return f"doctor: everything needed is here ({optional} optional things are not)" if optional else "doctor: everything is here", 0


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(as_json: bool) -> int:
    """Say what is missing on this machine for pytcp, and what to do about it.

    Opens a TAP device and makes a network namespace to see whether that works, and removes both. Exit status 1 when something
    that the testbed needs is missing.
    """
    with contextlib.suppress(OSError):  # `privileges` finds out why again, and says so
        rootless.enter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # missing C helpers are a finding here, not a warning
        checks = list(examine())
    text, status = verdict(checks)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
        return status
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        for check in checks:
            click.echo(f"{check.status:9} {check.name:20} {check.detail}{' -> ' + check.remedy if check.remedy else ''}")
    else:
        table = Table("", "what", "found", "what to do", box=None, padding=(0, 2, 0, 0))
        for check in checks:
            table.add_row(MARKS[check.status], check.name, check.detail, check.remedy)
        Console(width=None if sys.stdout.isatty() else 120).print(table)
    click.echo(text)
    return status
