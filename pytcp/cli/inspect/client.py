"""The asking side of the control socket: which stacks run, which one is meant, questions and answers.

Nothing of the stack is imported here, so that `pytcp ss` starts as fast as a script may expect.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from pytcp.sockets import rundir

F = TypeVar("F", bound=Callable[..., Any])
PATIENCE = 10.0  # seconds without a word until a stack counts as stuck
SHOW = ("show", "list", "ls", "lst")
VERBS = ("add", "append", "change", "chg", "del", "delete", "flush", "get", "prepend", "replace", "restore", "save", "set", "test")
GREETING = 2.0  # the same, when only asked who it is


@dataclass(frozen=True)
class Running:
    """A stack that can be asked."""

    pid: int
    path: Path
    name: str = ""
    command: str = ""
    addresses: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What tells it from the others: its process, and which of the process's stacks."""
        return self.path.stem

    def describe(self) -> str:
        where = ", ".join(self.addresses) or "no address"
        return f"{self.label} ({self.name or '?'}, {where})"

    def ask(self, verb: str, what: str, **more: object) -> Iterator[Any]:
        """The values that answer one question. Raises click.ClickException when there is no answer, OSError when it is an error."""
        return _ask(self.path, {verb: what, **more}, PATIENCE)

    def follow(self, what: str, until: float | None, **more: object) -> Iterator[Any]:
        """Values as they come, until a time of `time.monotonic` (None: for ever) or the end of the stack. Raises as `ask`."""
        return _ask(self.path, {"get": what, **more}, None, endless=True, until=until)


def _ask(path: Path, question: dict[str, object], patience: float | None, *, endless: bool = False, until: float | None = None) -> Iterator[Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as conn:
        conn.settimeout(patience)
        try:
            conn.connect(str(path))
            conn.sendall(json.dumps(question).encode() + b"\n")
            for line in _lines(conn, until):
                value = json.loads(line)
                if isinstance(value, dict) and "done" in value:
                    return
                if isinstance(value, dict) and "error" in value:
                    raise Answered(value["error"], value["message"])
                yield value
        except TimeoutError:
            raise click.ClickException(f"the stack of process {path.stem} does not answer") from None
        except (ConnectionError, FileNotFoundError):
            raise click.ClickException(f"the stack of process {path.stem} has ended") from None
        except ValueError:
            raise click.ClickException(f"the stack of process {path.stem} speaks another language: another version of pytcp?") from None
    if not endless:
        raise click.ClickException(f"the stack of process {path.stem} ended while it was answering")


def _lines(conn: socket.socket, until: float | None) -> Iterator[bytes]:
    """Lines as they come; ends with the other side, or at `until`."""
    data = b""
    while True:
        if until is not None:
            left = until - time.monotonic()
            if left <= 0:
                return
            conn.settimeout(left)
        try:
            more = conn.recv(1 << 16)
        except TimeoutError:
            if until is None:
                raise
            return
        if not more:
            return
        *whole, data = (data + more).split(b"\n")
        yield from whole


class Answered(OSError):
    """The stack's own errno and words."""

    @property
    def is_unknown(self) -> bool:
        """Whether what was asked for does not exist."""
        return self.errno == errno.ENOENT


def running() -> list[Running]:
    """The stacks that can be asked, by process. One that is busy is listed without its name."""
    found = []
    for pid, path in rundir.sockets():
        if rundir.refuses(path):
            continue
        try:
            about = next(_ask(path, {"get": "stack"}, GREETING))
        except (click.ClickException, OSError, StopIteration):
            found.append(Running(pid, path))
            continue
        found.append(Running(pid, path, about["name"], about["command"], tuple(about["addresses"])))
    return found


def choose(wanted: str | None) -> Running:
    """The stack that is meant: by process, by program name, or the only one. Raises click.ClickException."""
    stacks = running()
    if wanted is not None:
        fitting = [stack for stack in stacks if wanted in (stack.label, stack.name, os.path.splitext(stack.name)[0], stack.command)]
        # the first stack of a process answers for it
        fitting = fitting or [stack for stack in stacks if wanted == str(stack.pid)]
    else:
        fitting = stacks
    if len(fitting) == 1:
        return fitting[0]
    there = "; ".join(stack.describe() for stack in fitting or stacks)
    if not stacks:
        raise click.ClickException(f"no stack is running (looked into {', '.join(map(str, rundir.candidates()))})")
    if not fitting:
        raise click.ClickException(f"no stack {wanted!r}; there are: {there}")
    if wanted is None:
        raise click.ClickException(f"several stacks are running, choose with --stack: {there}")
    raise click.ClickException(f"several stacks are called {wanted!r}, choose by process: {there}")


def options(*pretty: str) -> Callable[[F], F]:
    """Add --stack and --json, and `pretty` as the names of the option to indent JSON.

    The command gets `stack`, which chooses one when it is called (after everything else was found in
    order), and `show`, which prints a value as JSON, or is None when JSON is not wanted."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def collect(*args: Any, wanted: str | None, as_json: bool, indent: bool, **rest: Any) -> Any:
            show = functools.partial(print_json, indent=indent) if as_json else None
            return command(*args, stack=functools.partial(choose, wanted), show=show, **rest)

        decorated: Any = collect
        for option in (
            click.option("--stack", "wanted", metavar="NAME|PID", envvar="PYTCP_STACK", help="Which running stack, when there are several (or $PYTCP_STACK)."),
            click.option(*pretty, "indent", is_flag=True, help="Indent the JSON."),
            click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON."),
        ):
            decorated = option(decorated)
        result: F = decorated
        return result

    return decorate


def selected(words: Sequence[str]) -> list[str]:
    """The words that choose what is shown, without a `show` before them. Raises click.UsageError for another of iproute2's verbs."""
    if words and words[0] in VERBS:
        raise click.UsageError(f"read-only: {usage()}, no {words[0]!r}.")
    return list(words[1:] if words and words[0] in SHOW else words)


def unexpected(*words: str) -> click.UsageError:
    """The complaint about words that have no place in the command that runs."""
    return click.UsageError(f"{' '.join(words)!r} is not expected here: {usage()}.")


def usage() -> str:
    """The arguments of the command that runs, as its help shows them."""
    parameters = click.get_current_context().command.params
    return " ".join(parameter.metavar or "" for parameter in parameters if isinstance(parameter, click.Argument))


def say(text: str) -> None:
    """A line on standard error that says which command speaks."""
    click.echo(f"{click.get_current_context().command_path}: {text}", err=True)


def print_json(value: object, indent: bool = False) -> None:
    """JSON on one line, or indented."""
    click.echo(json.dumps(value, indent=4) if indent else json.dumps(value, separators=(",", ":")))


Choice = Callable[[], Running]
Show = Callable[[object], None] | None
