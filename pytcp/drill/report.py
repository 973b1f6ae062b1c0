"""What a failed run tells a person: the difference side by side, the last packets, the line of the script."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pytcp.wire.describe import describe_packet

from .packets import Difference

LAST_PACKETS = 10


class Trace:
    """The last packets of a run, in either direction."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, str, bytes]] = deque(maxlen=LAST_PACKETS)
        self.count = 0

    def add(self, time_ns: int, direction: str, data: bytes) -> None:
        """`direction`: ">" sent by the stack, "<" injected."""
        self._last.append((time_ns, direction, data))
        self.count += 1

    def lines(self) -> list[str]:
        return [f"  {seconds(time)} {direction} {describe_packet(data)}" for time, direction, data in self._last]


def printable(text: str) -> str:
    """A text that terminals and XML can show: what is a control character, or none at all, becomes one that says so."""
    return "".join(char if char.isprintable() or char in "\t\n" else "\N{REPLACEMENT CHARACTER}" for char in text)


def seconds(time_ns: int) -> str:
    """A time as scripts write it."""
    return f"{time_ns / 1e9:.6f}"


def side_by_side(differences: Sequence[Difference]) -> str:
    """A table of fields: expected, got."""
    rows = [("", "expected", "got"), *[(item.name, item.expected, item.got) for item in differences]]
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    return "\n".join(f"  {name:<{widths[0]}}  {expected:<{widths[1]}}  {got}".rstrip() for name, expected, got in rows)


def with_trace(text: str, trace: Trace) -> str:
    """A report and the packets before it."""
    lines = trace.lines()
    if not lines:
        return text
    return "\n".join([*([text] if text else []), f"  last {len(lines)} of {trace.count} packets (> sent by the stack, < injected):", *lines])
