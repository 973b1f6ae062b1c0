"""`pytcp lab plot`: records in the terminal, as PNG or SVG, as a report, as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytcp.cli import screen
from pytcp.cli.files import NewFile
from pytcp.lab import palette

if TYPE_CHECKING:
    from pytcp.lab.record import Record
    from pytcp.lab.timeline import Drawable


def _what(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    from pytcp.lab.units import nearest

    words = tuple(word for item in value for word in item.split(",") if word)
    for word in words:
        if word not in palette.WHAT:
            raise click.BadParameter(f"there is no {word!r}; {nearest(word, palette.WHAT)}")
    return words or palette.WHAT


@click.command("plot", short_help="Records in the terminal, as PNG, SVG, HTML or CSV.")
@click.argument("files", metavar="RECORD...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--what", multiple=True, callback=_what, metavar="NAME,...", help=f"Of {', '.join(palette.WHAT)}.  [default: all there is]")
@click.option("--flow", "flows", multiple=True, metavar="NAME", help="Only this flow; may be given several times.  [default: those that send]")
@click.option("--png", type=NewFile(path_type=Path), help="Write a picture.")
@click.option("--svg", type=NewFile(path_type=Path), help="Write a drawing.")
@click.option("--html", type=NewFile(path_type=Path), help="Write an interactive report.")
@click.option("--csv", "folder", type=click.Path(file_okay=False, path_type=Path), help="Write tables into a folder; several records into one each.")
@click.option("--width", type=click.IntRange(40), default=None, help="Columns of the terminal.  [default: its width, 120 for a pipe]")
@click.option("--height", type=click.IntRange(2, 100), default=8, show_default=True, help="Lines of a panel.")
def plot(
    files: tuple[Path, ...],
    what: tuple[str, ...],
    flows: tuple[str, ...],
    png: Path | None,
    svg: Path | None,
    html: Path | None,
    folder: Path | None,
    width: int | None,
    height: int,
) -> None:
    """Plot records: one, or several to compare.

    Without --png, --svg, --html or --csv it draws in the terminal.

    \b
    Examples:
      pytcp lab plot run.jsonl --what cwnd,gates
      pytcp lab plot before.jsonl after.jsonl --svg both.svg
    """
    records = _read(files)
    try:
        if folder is not None:
            for name, record in records.items():
                record.write_csv(folder if len(records) == 1 else folder / name)
        if html is not None:
            from pytcp.lab.report import write_html

            write_html(html, records)
        shown = _drawable(records, flows)
        for path in (png, svg):
            if path is not None:
                from pytcp.lab.picture import draw

                suffix = ".png" if path is png else ".svg"
                draw(path if path.suffix == suffix else path.with_name(path.name + suffix), *shown, what, _title(records))
    except (ImportError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    if not any((png, svg, html, folder)):
        _print(records, shown, what, width, height)


def _read(files: Sequence[Path]) -> dict[str, Record]:
    """Records by their variant, or by their file where that does not tell them apart."""
    from pytcp.lab.record import Record, RecordError

    try:
        records = [Record.read_jsonl(file) for file in files]
    except RecordError as error:
        raise click.ClickException(str(error)) from None
    names = [str(record.meta.get("variant") or file.stem) for record, file in zip(records, files, strict=True)]
    if len(set(names)) < len(names):
        names = [file.stem for file in files]
    if len(set(names)) < len(names):
        names = [str(file) for file in files]
    return dict(zip(names, records, strict=True))


def _drawable(records: dict[str, Record], wanted: Sequence[str]) -> Drawable:
    from pytcp.lab.timeline import drawable, flows_of
    from pytcp.lab.units import nearest

    known = dict.fromkeys(flow for record in records.values() for flow in flows_of(record))
    for flow in wanted:
        if flow not in known:
            raise click.BadParameter(f"there is no flow {flow!r}; {nearest(flow, known)}", param_hint="--flow")
    return drawable(records, wanted)


def _title(records: dict[str, Record]) -> str:
    first = next(iter(records.values()))
    return first.title if len(records) == 1 else f"{first.meta.get('experiment') or 'runs'}: {', '.join(records)}"


def _print(records: dict[str, Record], shown: Drawable, what: Sequence[str], width: int | None, height: int) -> None:
    from pytcp.lab.braille import draw

    console = screen.console(columns=width, highlight=False)
    picture = draw(*shown, what, console.width, height)
    if not picture:
        raise click.ClickException("the record has nothing of that")
    console.print(_title(records), style="bold", markup=False)
    console.print()
    console.print(picture, soft_wrap=True)
    for name, record in records.items():
        for table, count in record.left_out.items():
            console.print(f"{name}: {count:,} rows of {table} are not in the record: its table was full", style="dim", markup=False)
