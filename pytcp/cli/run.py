"""`pytcp run`: a trio or anyio program, as it is, on a stack."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import click

from pytcp.cli import network

if TYPE_CHECKING:
    from pytcp.lab.testbed import Testbed
    from pytcp.link.frame import Link
    from pytcp.link.pcapng import PcapngWriter
    from pytcp.sockets.open import TrioStack


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@network.options
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m; all arguments are the program's.")
@click.option("--nameserver", metavar="ADDRESS", multiple=True, help="Ask this name server instead of resolv.conf's; may be repeated.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[PROGRAM] [ARGUMENTS]...")
def command(where: network.Where, module: str | None, nameserver: tuple[str, ...], arguments: tuple[str, ...]) -> int:
    """Run a Python program that uses trio or anyio, unchanged, with its sockets and its names on pytcp.

    What follows PROGRAM is the program's own. Its sockets are those it makes through trio, anyio, httpx, hypercorn,
    trio-websocket and the like; anyio's default backend becomes trio. What goes past trio finds an empty network.
    In a testbed the program sees $PYTCP4, $PYTCP6, $PEER4 and $PEER6.

    The exit status is the program's. `pytcp ss` and its kin look into the stack meanwhile.

    \b
    Examples:
      pytcp run server.py --port 8000
      pytcp run --peer 'sleep 1; curl -s http://$PYTCP4:8000/' -m hypercorn -k trio -w 0 -b 0.0.0.0:8000 app:app
      pytcp run --tap tap0 --address 10.0.0.2/24 --gateway 10.0.0.1 --nameserver 9.9.9.9 fetch.py
    """
    for server in nameserver:
        if not _numeric(server):
            raise click.UsageError(f"--nameserver {server!r} is not an IPv4 or IPv6 address.")
    if module is None:
        if not arguments:
            raise click.UsageError("Missing PROGRAM, or -m MODULE.")
        if not os.path.isfile(arguments[0]):
            wrong = "is a directory" if os.path.isdir(arguments[0]) else "is no file" if os.path.exists(arguments[0]) else "does not exist"
            raise click.UsageError(f"PROGRAM {arguments[0]!r} {wrong}.")
    from pytcp.lab.launch import Launcher

    with network._place(where) as (link, testbed, addresses), network.recorded(where) as recording, _environment(testbed):
        launcher = Launcher(_opener(where, link, testbed, addresses, recording.writer), nameserver)
        with _secluded(addresses), launcher.installed():
            status = execute(module, arguments)
        if not launcher.runs:
            network.say("the program never called trio.run, so nothing of it was on pytcp")
    return recording.status(status)


def _numeric(text: str) -> bool:
    from pytcp.sockets.address import numeric

    try:
        numeric(text)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _environment(testbed: Testbed | None) -> Iterator[None]:
    before = dict(os.environ)
    if testbed is not None:
        os.environ.update(PYTCP4=testbed.address4, PYTCP6=testbed.address6, PEER4=testbed.peer4, PEER6=testbed.peer6)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _secluded(addresses: tuple[str, ...]) -> Iterator[None]:
    """A namespace for the program's kernel sockets where there can be one, else the machine's."""
    from pytcp.lab.launch import secluded
    from pytcp.lab.netns import TestbedError

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(secluded(addresses))
        except TestbedError as error:
            network.say(f"what goes past trio uses this machine's network ({error.strerror})")
        yield


def _opener(
    where: network.Where, link: Link, testbed: Testbed | None, addresses: tuple[str, ...], writer: PcapngWriter | None
) -> Callable[[], contextlib.AbstractAsyncContextManager[TrioStack]]:
    # before trio runs: an interrupt in the middle of an import can be lost
    from pytcp.lab.wired import open_wired

    @contextlib.asynccontextmanager
    async def open_one() -> AsyncIterator[TrioStack]:
        async with (
            open_wired(_again(link), addresses, writer=writer, **where.stack_options()) as wired,
            network._peer_command(where, testbed),
        ):
            yield wired.stack

    return open_one


def _again(link: Link) -> Link:
    """The same device for a stack that will close it: a program may call trio.run more than once."""
    from pytcp.link.packet import PacketLink
    from pytcp.link.tap import Tap

    return link.duplicate() if isinstance(link, Tap | PacketLink) else link


def execute(module: str | None, arguments: tuple[str, ...]) -> int:
    """Run the program as the interpreter would; returns its exit status, and prints the traceback of what it raises."""
    argv, path = sys.argv, list(sys.path)
    try:
        if module is not None:
            sys.argv = [module, *arguments]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(arguments)
            sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as stop:
        return _exit_status(stop.code)
    except Exception as error:
        traceback.print_exception(type(error), error, _of_the_program(error.__traceback__))
        return 1
    finally:
        sys.argv = argv
        sys.path[:] = path
    return 0


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    click.echo(str(code), err=True)
    return 1


def _of_the_program(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without what started the program."""
    while trace is not None and (trace.tb_frame.f_code.co_filename == __file__ or "runpy" in trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace
