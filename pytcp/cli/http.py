"""`pytcp http`: serve a folder, get a URL."""

from __future__ import annotations

import os
import re
import sys
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

import click

from pytcp.cli import network, screen
from pytcp.cli.errors import one_line
from pytcp.cli.files import NewFile
from pytcp.lab.named import naming

FIGURES = 34  # columns of the progress for bytes and speed
MARGIN = 20  # at least, for URL and bar

if TYPE_CHECKING:
    from pytcp.sockets.http import Access, Response


@click.group("http")
def command() -> None:
    """Serve a folder, or fetch a URL, over pytcp."""


@command.command("serve")
@network.options
@click.argument("folder", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-p", "--port", default=8080, show_default=True, type=click.IntRange(1, 65535))
@click.option("--quiet", is_flag=True, help="No line for each request.")
def serve(where: network.Where, folder: Path, port: int, quiet: bool) -> int:
    """Serve FOLDER until Ctrl-C; prints its URLs.

    \b
    Example:
      pytcp http serve . --peer 'curl -s http://$PYTCP4:8080/'
    """
    return network.run(where, partial(_serve, folder=folder, port=port, quiet=quiet))


async def _serve(net: network.Network, folder: Path, port: int, quiet: bool) -> int:
    from pytcp.sockets.http import FileServer

    def log(access: Access) -> None:
        note = "" if access.complete else " (incomplete)"
        click.echo(f"{access.status} {access.method} {access.target} {access.sent:,} bytes in {access.seconds:.3f} s{note}", err=True)

    for host in net.hosts():
        click.echo(f"http://{host}:{port}/")
    if net.testbed is not None and net.testbed.named:
        click.echo(f"try: ip netns exec {net.testbed.name} curl http://{net.hosts()[0]}:{port}/", err=True)
    await net.stack.serve_tcp(FileServer(folder, on_request=None if quiet else log), port)
    return 0


@command.command("get")
@network.options
@click.argument("url")
@click.option("-o", "--output", metavar="FILE", type=NewFile(allow_dash=True), help="Where to put it; - is standard output. Default: a new file, named by URL.")
@click.option("-C", "--continue", "resume", is_flag=True, help="Fetch what is missing of a FILE that was begun.")
@click.option("-r", "--range", "span", metavar="FIRST-LAST", help="Only these bytes, counted from 0; LAST may be left out, or FIRST for the last so many.")
@click.option("-H", "--header", "headers", metavar="'NAME: VALUE'", multiple=True, help="A header field to send; may be repeated.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def get(where: network.Where, url: str, output: str | None, resume: bool, span: str | None, headers: tuple[str, ...], quiet: bool) -> int:
    """Fetch URL (http://), with progress. Exit status 1 unless the answer is 2xx and complete.

    A file that is there is written over only when -o names it. With --continue the server is asked for the rest of FILE; one that sends
    all of it again, because it knows no ranges, begins it anew, and a file that is complete already is left as it is.

    \b
    Example:
      pytcp http get http://10.99.0.1:8000/file --peer 'python3 -m http.server -d /srv'
    """
    from pytcp.sockets.http.client import split_url

    try:
        split_url(url)
    except ValueError as error:
        raise click.BadParameter(f"{error}; it must look like http://10.99.0.1:8080/path", param_hint="URL") from error
    if resume and (span is not None or output == "-"):
        raise click.UsageError("--continue needs a file, and takes its range from it.")
    if span is not None and not re.fullmatch(r"\d+-\d*|-\d+", span):
        raise click.BadParameter("it must look like 0-499, 500- or -500", param_hint="--range")
    first, _, last = (span or "").partition("-")
    if first and last and int(last) < int(first):
        raise click.BadParameter(f"{span}: its end is before its beginning", param_hint="--range")
    fields = [_field(text) for text in headers]
    output = output or _named_by(url, resume)
    target = _Output(output, os.path.getsize(output) if resume and os.path.exists(output) else 0)
    if target.begun:
        span = f"{target.begun}-"
    if span is not None:
        fields.append(("Range", f"bytes={span}"))
    return network.run(where, partial(_get, url=url, target=target, fields=fields, quiet=quiet))


def _named_by(url: str, resume: bool) -> str:
    """The file that a URL's last part names. Raises click.UsageError for one that is there, unless it is to be continued."""
    name = os.path.basename(urlsplit(url).path) or "index.html"
    if os.path.isdir(name):
        raise click.UsageError(f"{name} is a folder here: -o FILE says where to put it.")
    if os.path.lexists(name) and not resume:
        raise click.UsageError(f"{name} exists: -o {name} writes over it, -C continues it.")
    return name


def _field(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isprintable():
        raise click.BadParameter(f"{text!r} is not like 'Name: value'", param_hint="--header")
    return name.strip(), value.strip()


async def _get(net: network.Network, url: str, target: _Output, fields: list[tuple[str, str]], quiet: bool) -> int:
    import trio
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from pytcp.sockets.http import HttpError
    from pytcp.sockets.http import get as fetch

    errors = screen.console(stderr=True)
    off = quiet or not errors.is_terminal  # a log wants no bar, least of all a half-drawn one
    # an address in brackets is no markup
    room = max(errors.width - FIGURES, MARGIN)
    wide = min(40, max(MARGIN // 2, room - len(url) - 1))
    columns = (TextColumn("{task.description}", markup=False), BarColumn(wide), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=errors, disable=off)
    task = bar.add_task(url if len(url) < room - wide else f"…{url[wide + 2 - room :]}", total=None)

    def progress(done: int, total: int | None) -> None:
        bar.update(task, completed=target.begun + done, total=None if total is None else target.begun + total)

    part = not target.begun and any(name == "Range" for name, _ in fields)
    try:
        with bar, target:
            response = await fetch(net.connect, url, headers=fields, sink=target.write, progress=progress, on_response=target.begins)
    except (HttpError, trio.BrokenResourceError) as error:
        raise click.ClickException(f"{url}: {one_line(error)}") from error
    if target.begun and response.status == 416 and (response.header("content-range") or "").endswith(f"/{target.begun}"):
        click.echo(f"{target.name} is complete", err=True)
        return 0
    if not 200 <= response.status < 300:
        network.say(f"{url}: {response.status} {response.reason}")
        return 1
    if part and response.status != 206:
        network.say(f"{url}: the server knows no ranges and sent all of it")
    return 0


class _Output:
    """The file to write to, made when the first byte comes: an error answer leaves no empty file, and none is lost.

    begun: bytes of it that are there, and asked to be continued.
    """

    def __init__(self, name: str, begun: int = 0) -> None:
        self.name = name
        self.begun = begun
        self.file: BinaryIO | None = sys.stdout.buffer if name == "-" else None

    def begins(self, response: Response) -> None:
        """The head of the answer: does it continue the file? Raises HttpError when it sends another part than was asked for."""
        from pytcp.sockets.http import HttpError

        if self.begun and response.status == 206:
            part = response.header("content-range") or ""
            if not part.startswith(f"bytes {self.begun}-"):
                raise HttpError(f"asked for the bytes from {self.begun} on, the server sends {part!r}")
        elif self.begun and 200 <= response.status < 300:
            self.begun = 0

    def write(self, data: bytes | bytearray) -> None:
        with self._naming():
            if self.file is None:
                self.file = open(self.name, "ab" if self.begun else "wb")  # noqa: SIM115
            self.file.write(data)

    def _naming(self) -> AbstractContextManager[None]:
        return naming("standard output" if self.name == "-" else self.name)

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        with self._naming():
            if self.file is not None and self.name != "-":
                self.file.close()
            elif self.file is not None:
                self.file.flush()
