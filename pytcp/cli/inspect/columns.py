"""The table `ss` prints: columns as wide as their widest entry, joined by one character or none.

In a pipe that is all. On a terminal the columns are laid out line by line, as many as fit, and the room
left on each line is given to its columns in equal parts, what does not divide evenly to the last ones; a
column wider than the terminal has a line of its own and wraps. So the table ends where the screen does,
unless the last entry of all is the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Column(NamedTuple):
    """One column: its heading, what stands before it (unless it is the first), and to which side it is set."""

    heading: str
    before: str = " "
    right: bool = False


def widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], header: bool, screen: int | None) -> list[int]:
    """The width of each column, with what stands before it. `screen`: the terminal's width, None for a pipe."""
    found = []
    first = True
    for number, column in enumerate(columns):
        # the very last entry is not measured, which shows when it is the longest of its column
        measured = [row[number] for row in (rows if number < len(columns) - 1 else rows[:-1])]
        most = max(map(len, [column.heading, *measured] if header else measured), default=0)
        width = most if first or not most else most + len(column.before)
        found.append(width if screen is None else min(width, screen))
        first = first and not width
    return found if screen is None else _spread(found, screen)


def _spread(found: list[int], screen: int) -> list[int]:
    """Give the room left on every line of the screen to the columns on it."""
    line: list[int] = []
    used = 0
    for number, width in enumerate(found):
        if line and used + width > screen:
            _share(found, line, screen - used)
            line, used = [], 0
        if width:
            line.append(number)
            used += width
    _share(found, line, screen - used)
    return found


def _share(found: list[int], line: list[int], room: int) -> None:
    each, over = divmod(room, len(line)) if line else (0, 0)
    for place, number in enumerate(reversed(line)):
        found[number] += each + (place < over)


def render(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, header: bool = True, screen: int | None = None) -> list[str]:
    """The lines of the table, headings first if wanted."""
    room = widths(columns, rows, header, screen)
    lines = []
    for row in [[column.heading for column in columns], *rows] if header else rows:
        parts: list[str] = []
        for column, text, width in zip(columns, row, room, strict=True):
            if width or text:
                before = column.before if parts else ""
                set_to = str.rjust if column.right else str.ljust
                parts.append(before + set_to(text, width - len(before)))
        lines.append("".join(parts))
    return lines
