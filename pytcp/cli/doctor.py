"""`pytcp doctor`: a table of `lab.machine`'s findings, and one line of verdict."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import warnings

import click

from pytcp.cli import screen
from pytcp.lab import rootless
from pytcp.lab.machine import MISSING, OK, OPTIONAL, PROGRAMS, Check, examine

COLOURS = {OK: "green", OPTIONAL: "yellow", MISSING: "red"}
HEADINGS = ("", "what", "found", "what to do")


def table(checks: list[Check]) -> list[str]:
    """A line for each finding; where the terminal is too narrow, what to do is below what was found."""
    marks = [click.style(check.status, fg=COLOURS[check.status]) for check in checks]
    rows = [[mark, check.name, check.detail, check.remedy] for mark, check in zip(marks, checks, strict=True)]
    lines = screen.table([screen.bold(*HEADINGS), *rows])
    if screen.fits(lines):
        return lines
    lines = []
    name = max(len(check.name) for check in checks)
    indent = " " * (len(OPTIONAL) + name + 4)
    for mark, check in zip(marks, checks, strict=True):
        head = f"{mark}{'':{len(OPTIONAL) - len(check.status)}}  {check.name:<{name}}  "
        first, *more = screen.wrapped(check.detail, indent)
        lines += [head + first.strip(), *more]
        if check.remedy:
            lines += screen.wrapped(f"-> {check.remedy}", indent, indent + "   ")
    return lines


def verdict(checks: list[Check]) -> tuple[str, int]:
    """The last line, and the exit status: 1 when something the testbed or the demo needs is missing."""
    missing = [check.name for check in checks if check.status == MISSING]
    optional = sum(check.status == OPTIONAL for check in checks)
    if missing and set(missing) <= set(PROGRAMS):
        return f"doctor: the demo needs {', '.join(missing)}; the testbed works", 1
    if missing:
        return f"doctor: the testbed does not work here: {', '.join(missing)}", 1
    if optional:
        return f"doctor: everything needed is here ({optional} optional {'thing is' if optional == 1 else 'things are'} not)", 0
    return "doctor: everything is here", 0


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(as_json: bool) -> int:
    """Say what is missing on this machine for pytcp, and what to do about it.

    Opens a TAP device and makes a network namespace to see whether that works, and removes both. Exit status 1 when something
    that the testbed or the demo needs is missing.
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
    click.echo("\n".join([*table(checks), text]))
    return status
