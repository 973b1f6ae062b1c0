"""The `pytcp` command itself: names its subcommands, imports the one that is called, turns errors into one line.

Exit status: 0 done; 1 the work failed (one line on standard error says why); 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

import pytcp

from . import screen
from .errors import broken, expected, one_line

COMMANDS: Mapping[str, str] = {
    "addr": "Addresses of a running stack, as ip addr.",
    "demo": "The main job: real data to and from a Linux peer, checked.",
    "doctor": "What is missing on this machine, and what to do about it.",
    "drill": "Run packetdrill scripts on pytcp, or on this machine's kernel.",
    "explain": "Where the time of a connection went, and what would help.",
    "http": "Serve a folder, or fetch a URL, over pytcp.",
    "iperf3": "Throughput to and from any iperf3, as client or server.",
    "lab": "Experiments in virtual time, beside published figures.",
    "link": "Interfaces of a running stack, as ip -s link.",
    "nc": "Connect or listen, and copy standard input and output.",
    "neigh": "Neighbours of a running stack, as ip neigh.",
    "nstat": "Counters of a running stack, as nstat; for Prometheus.",
    "ping": "Send ICMP echo requests.",
    "qdisc": "Queueing disciplines and transmit rings of a running stack, as tc -s qdisc.",
    "route": "Routes of a running stack, as ip route.",
    "run": "Run a trio or anyio program on a stack.",
    "ss": "Sockets of a running stack, as ss.",
    "sysctl": "Settings of a running stack, as sysctl.",
    "testbed": "A shell, or a command, on the Linux peer of a stack made for it.",
    "trace": "What TCP decides and why, line by line.",
    "traceroute": "The hops to a host.",
}

# commands that do not live in a module of their name
ELSEWHERE: Mapping[str, str] = {
    "addr": "inspect.ip:addr",
    "link": "inspect.ip:link",
    "neigh": "inspect.ip:neigh",
    "nstat": "inspect.nstat:command",
    "qdisc": "inspect.qdisc:command",
    "route": "inspect.ip:route",
    "ss": "inspect.ss:command",
    "sysctl": "inspect.sysctl:command",
}


# how click calls the kinds of numbers in "'x' is not a valid ..." and in help
click.IntRange.name = "integer"
click.FloatRange.name = "number"


class LazyGroup(click.Group):
    """A group that knows its commands' names and imports only the one that runs: `pytcp doctor` must work where trio does not.

    running: the command that was called, for messages."""

    running = ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = ELSEWHERE.get(cmd_name, f"{cmd_name}:command").partition(":")
        command: click.Command = getattr(importlib.import_module(f"pytcp.cli.{module}"), name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
            self.running = " ".join([ctx.command_path, str(name), *_subcommands(command, rest)])
            return name, command, rest
        except click.UsageError:
            from pytcp.lab.units import near

            found = near(args[0], sorted(COMMANDS), 0.6)
            hint = f"near: {', '.join(found)}. {ctx.command_path} --help lists all." if found else f"there are: {', '.join(sorted(COMMANDS))}."
            raise click.UsageError(f"No such command {args[0]!r}; {hint}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


def _subcommands(command: click.Command | None, words: list[str]) -> list[str]:
    """The words of a call, behind a command, that are commands of it."""
    if isinstance(command, click.Group) and words and words[0] in command.commands:
        return [words[0], *_subcommands(command.commands[words[0]], words[1:])]
    return []


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(pytcp.__version__, prog_name="pytcp")
def cli() -> None:
    """A TCP/IP stack in Python that behaves like Linux, segment for segment.

    Commands that need a network make their own testbed: a namespace with a real Linux kernel in it, behind a TAP device,
    gone when they end. That takes root, or user namespaces for ordinary users; `pytcp doctor` says what is missing. With --tap,
    --tun or --veth they attach to a device of yours instead.

    ss, nstat, sysctl, neigh, route, addr, link, qdisc, explain and trace look into a stack that runs, in whatever program.
    """


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is what happened, or what a failure happened on the way out of: one more Ctrl-C can break any clean-up."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or (isinstance(error, BaseExceptionGroup) and any(map(_interrupted, error.exceptions))):
            return True
        error = error.__cause__ or error.__context__
    return False


def _terminate(signum: int, frame: Any) -> None:
    """SIGTERM and SIGHUP, as if they were Ctrl-C: trio's handler knows where an interruption does no harm."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # a program under `pytcp run` has changed it
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def complain(error: click.ClickException, name: str) -> None:
    """What is wrong with a call: its usage, and one line; of other failures the line alone."""
    ctx = getattr(error, "ctx", None)
    if ctx is not None and error.message == ctx.get_help():  # a group without a command: click raises its help
        click.echo(error.message, err=True)
        return
    if isinstance(error, click.UsageError) and ctx is not None:
        click.echo(f"{ctx.get_usage()}\nTry '{ctx.command_path} --help' for help.\n", err=True)
        name = ctx.command_path
    click.echo(f"{name}: {error.format_message()}", err=True)


def _open_standard_streams() -> None:
    """/dev/null for each of the three that whoever called us has closed: a device opened later would get its number, and what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115  # for the life of the process


def run_command(command: click.Command, name: str) -> int:
    """Run a command line to its exit status; SIGTERM and SIGHUP clean up as Ctrl-C does, errors of the world are one line."""
    _open_standard_streams()
    logging.getLogger("pytcp.link.pcapng").addHandler(logging.NullHandler())  # the command itself says which file is full
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A background job of a script. Ctrl-C stays unheard, being blocked; the handler is there for the others below, who
        # could not end trio's loop in good order without it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _terminate)
    try:
        status = command.main(prog_name=name, standalone_mode=False, color=False if screen.plain() else None)
    except click.ClickException as error:
        complain(error, getattr(command, "running", "") or name)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{getattr(command, 'running', '') or name}: interrupted", err=True)
        return 130
    except (Exception, BaseExceptionGroup) as error:
        if not (isinstance(error, OSError | BaseExceptionGroup) or broken(error)):
            raise
        name = getattr(command, "running", "") or name
        if _interrupted(error):
            click.echo(f"{name}: interrupted", err=True)
            return 130
        if not expected(error):
            raise
        click.echo(f"{name}: {one_line(error)}", err=True)
        return 1
    return status if isinstance(status, int) else 0


def main() -> NoReturn:
    """The `pytcp` command."""
    try:
        status = run_command(cli, "pytcp")
    except KeyboardInterrupt:  # once more, while the first was obeyed
        status = 130
    finally:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
    sys.exit(status)
