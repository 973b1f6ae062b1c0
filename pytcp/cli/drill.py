"""`pytcp drill`: packetdrill scripts on pytcp in virtual time, or on this machine's kernel."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

import click

from pytcp.drill.batch import Job, default_processes, find_scripts, run_jobs
from pytcp.drill.errors import DrillError, ScriptError
from pytcp.drill.parser import OPTIONS
from pytcp.drill.report import printable
from pytcp.drill.run import TARGETS, Result, Settings, record_file
from pytcp.drill.target import IP_MODES
from pytcp.drill.verdict import as_json, as_junit, exit_status, table
from pytcp.lab.named import naming
from pytcp.tcp import profiles


def _pairs(words: tuple[str, ...], what: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise click.BadParameter(f"{word!r} is not NAME=VALUE", param_hint=what)
        found[name] = value if equals else None
    return found


def _show(result: Result, verbose: bool, quiet: bool, told: set[str]) -> None:
    """told: reasons why scripts were skipped; the machine's is the same for all of them, and said once."""
    if quiet:
        return
    if result.verdict == "pass" and not verbose:
        return
    click.echo(f"{result.verdict:12} {result.target:6} {result.ip:11} {result.seconds:8.3f} s  {printable(result.file)}")
    if result.verdict == "pass":
        return
    if result.verdict == "skipped":
        if result.reason not in told:
            click.echo(f"    {result.reason}")
        told.add(result.reason)
        return
    click.echo("\n".join(f"    {line}" for line in (result.report or result.reason).split("\n")))


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("--target", type=click.Choice([*TARGETS, "both"]), default="pytcp", show_default=True, help="What the scripts test.")
@click.option("--ip", "modes", type=click.Choice([*IP_MODES, "all"]), multiple=True, default=("ipv4",), show_default=True, help="May be given several times.")
@click.option("-D", "macros", multiple=True, metavar="NAME=VALUE", help="Define a macro.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="A script option (tolerance_usecs=10000), stronger than the script's own.")
@click.option("--timeout", type=click.FloatRange(0.001), default=60.0, show_default=True, help="Seconds of the script's time after which it fails.")
@click.option("-j", "processes", type=click.IntRange(1), default=None, help="Scripts run at a time  [default: processors; 1 on the kernel, where time is real]")
@click.option("--strict", is_flag=True, help="One packet of the script is one packet on the wire (--strict_segments).")
@click.option("--compat", is_flag=True, help="As the original: packets after the last event go unnoticed.")
@click.option("--hz", type=click.IntRange(100, 1000), default=250, show_default=True, help="Timer tick of the kernel pytcp models, 1/s.")
@click.option("--profile", type=click.Choice(profiles.NAMES), help="Kernel pytcp models  [default: linux-6.18; beside a tested kernel, the nearest to it]")
@click.option("--json", "json_", is_flag=True, help="Results as JSON on standard output.")
@click.option("--junit", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Write results as JUnit XML.")
@click.option("--record", is_flag=True, help="Print the script that says what really happened, instead of comparing (one script, one target).")
@click.option("-v", "--verbose", is_flag=True, help="Name the scripts that pass, too.")
def command(
    files: tuple[str, ...],
    target: str,
    modes: tuple[str, ...],
    macros: tuple[str, ...],
    options: tuple[str, ...],
    timeout: float,
    processes: int | None,
    strict: bool,
    compat: bool,
    hz: int,
    profile: str | None,
    json_: bool,
    junit: Path | None,
    record: bool,
    verbose: bool,
) -> int:
    """Run packetdrill scripts (files, or folders of *.pkt).

    Exit status: 0 when all passed, 77 when the target cannot run on this machine, else 1. A script contains commands and
    Python that run as you: run only what you would run anyway.
    """
    targets = TARGETS if target == "both" else (target,)
    profile = profile or (profiles.nearest(os.uname().release) if target == "both" else profiles.DEFAULT)
    ips = IP_MODES if "all" in modes else tuple(dict.fromkeys(modes))
    defined = _pairs(options, "--option")
    for name in defined:
        if name not in OPTIONS:
            raise click.BadParameter(f"no script option {name!r}; there are {', '.join(sorted(OPTIONS))}", param_hint="--option")
    settings = Settings(defined, {name: value or "" for name, value in _pairs(macros, "-D").items()}, timeout, compat, strict, hz, profile)
    if junit is not None and not junit.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(junit.parent)!r}", param_hint="--junit")
    scripts = find_scripts(files)
    if not scripts:
        raise click.UsageError("no scripts there")
    if record:
        if len(scripts) != 1 or len(targets) != 1 or len(ips) != 1:
            raise click.UsageError("--record takes one script, one target and one mode.")
        try:
            with contextlib.redirect_stdout(sys.stderr):  # what code blocks print is not our output
                text = record_file(scripts[0], targets[0], ips[0], settings)
        except DrillError as error:
            click.echo(f"{error.verdict}: {error.show(scripts[0]) if isinstance(error, ScriptError) else error.reason}", err=True)
            return 77 if error.verdict == "skipped" else 1
        click.echo(text, nl=False)
        return 0
    jobs = [Job(script, name, ip) for name in targets for ip in ips for script in scripts]
    told: set[str] = set()
    results = run_jobs(jobs, settings, processes or default_processes(targets), lambda result: _show(result, verbose, json_, told))
    if json_:
        click.echo(as_json(results))
    else:
        click.echo(table(results))
    if junit is not None:
        with naming(junit):
            junit.write_text(as_junit(results), encoding="utf-8")
    return exit_status(results)
