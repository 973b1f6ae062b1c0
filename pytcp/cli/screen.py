"""How commands print: the terminal's width, whether colours are wanted, tables whose cells are never cut, JSON to a file or instead.

A table that is wider than the terminal runs over its edge, as it does in a pipe: a figure that ends in `…` says nothing.
With NO_COLOR (no-color.org) there are no escape sequences at all, bold ones neither.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pytcp.cli.files import NewFile
from pytcp.lab.named import naming

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])
STDOUT = "-"
PIPE = 120  # columns that are counted on where standard output is no terminal


def plain() -> bool:
    """Whether the user wants no colours, and nothing like them."""
    return bool(os.environ.get("NO_COLOR"))


def width() -> int | None:
    """Columns of the terminal on standard output; None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def console(*, stderr: bool = False, columns: int | None = None, **options: Any) -> Console:
    """A console of rich: as wide as its terminal, or as `columns`; PIPE columns on a standard output that is no terminal."""
    from rich.console import Console

    if columns is None and not stderr and not sys.stdout.isatty():
        columns = PIPE
    return Console(stderr=stderr, width=columns, color_system=None if plain() else "auto", **options)


def bold(*words: str) -> list[str]:
    """Headings."""
    return [click.style(word, bold=True) if word else "" for word in words]


def table(rows: Sequence[Sequence[str]], right: Collection[int] = (), gap: int = 2) -> list[str]:
    """Lines of a table; cells may be styled (`click.style`). right: the columns that are set to the right. gap: blanks between two."""
    sizes = [max(len(click.unstyle(cell)) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for place, (cell, size) in enumerate(zip(row, sizes, strict=True)):
            padding = " " * (size - len(click.unstyle(cell)))
            cells.append(padding + cell if place in right else cell + padding)
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def ruled(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, dim: Collection[int] = ()) -> list[str]:
    """A table with a rule below its headings, which may have several lines each. left: columns set to the left. dim: columns not stressed."""
    parts = [heading.split("\n") for heading in headings]
    high = max(map(len, parts))
    above = [bold(*(part[row - high + len(part)] if row >= high - len(part) else "" for part in parts)) for row in range(high)]
    below = [[click.style(cell, dim=True) if cell and place in dim else cell for place, cell in enumerate(row)] for row in rows]
    lines = table([*above, *below], right=range(left, len(headings)))
    return [*lines[:high], "─" * max(len(click.unstyle(line)) for line in lines), *lines[high:]]


def fits(lines: Sequence[str]) -> bool:
    """Whether no line is wider than the terminal, or than PIPE columns where there is none."""
    edge = width() or PIPE
    return all(len(click.unstyle(line)) <= edge for line in lines)


def wrapped(text: str, indent: str = "", hanging: str | None = None, most: int = PIPE) -> list[str]:
    """`text` in lines of the terminal's width, `most` at the utmost, by words that stay whole. hanging: before all but the first line."""
    edge = min(width() or most, most)
    after = indent if hanging is None else hanging
    return textwrap.wrap(text, edge, initial_indent=indent, subsequent_indent=after, break_long_words=False, break_on_hyphens=False)


class WithJson(click.Command):
    """A command with `json_option`: after a bare --json comes another option, or what its arguments may be, but no file's name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        choices = [param.type.choices for param in self.params if isinstance(param, click.Argument) and isinstance(param.type, click.Choice)]
        words = {str(word) for chosen in choices for word in chosen}
        pairs = zip(args, [*args[1:], ""], strict=False)  # of no words there is no next one either
        return super().parse_args(ctx, [f"--json={STDOUT}" if word == "--json" and after in words else word for word, after in pairs])


def json_option(text: str) -> Callable[[F], F]:
    """--json [FILE], given to the command as `json_file`: a path, STDOUT (bare, or `-`), or None. text: its help."""
    return click.option("--json", "json_file", is_flag=False, flag_value=STDOUT, type=NewFile(allow_dash=True), metavar="[FILE]", help=text)


def write_json(file: str, value: object) -> bool:
    """Write `value` to a file, or print it. Whether it was printed, so that nothing else may be."""
    text = json.dumps(value, indent=2) + "\n"
    if file == STDOUT:
        click.echo(text, nl=False)
    else:
        with naming(file):
            Path(file).write_text(text)
    return file == STDOUT
