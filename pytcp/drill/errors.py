"""The ways a run can end other than in a pass; each becomes a verdict (`verdict.Result`).

`ScriptError` is the script's fault and says where; `Mismatch` is the stack's; `Unsupported` is ours; `CannotRun` is
the machine's. Nothing else leaves the parser or the runner, whatever the script says.
"""

from __future__ import annotations

from dataclasses import dataclass

SHOWN = 160  # characters of a line


def shortened(line: str) -> str:
    """As much of a line as people look at."""
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}..."


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a script: line and column from 1, and the text of that line."""

    line: int
    column: int
    text: str


class DrillError(Exception):
    """Base of all verdicts but pass."""

    verdict = "error"

    def __init__(self, reason: str, where: Where | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where


class ScriptError(DrillError):
    """The script is not in the language, or asks for nonsense; `show` gives line, column and a caret."""

    verdict = "error"

    def show(self, name: str = "script") -> str:
        """The message as a compiler would print it, two or three lines."""
        if self.where is None:
            return f"{name}: {self.reason}"
        at = self.where
        first = max(at.column - 1 - SHOWN // 2, 0) if len(at.text) > SHOWN else 0
        cut = "..." if first else ""
        # a caret under a tab needs the tab again
        margin = "".join("\t" if char == "\t" else " " for char in cut + at.text[first : at.column - 1])
        return f"{name}:{at.line}:{at.column}: {self.reason}\n{cut}{shortened(at.text[first:])}\n{margin}^"


class Mismatch(DrillError):
    """The stack did something else than the script says. `report` is the whole story in several lines."""

    verdict = "fail"

    def __init__(self, reason: str, where: Where | None = None, report: str = "") -> None:
        super().__init__(reason, where)
        self.report = report


class Unsupported(DrillError):
    """Part of the language, or of the system, that this target does not have."""

    verdict = "unsupported"


class CannotRun(DrillError):
    """The machine cannot run this target: no privilege, no TUN."""

    verdict = "skipped"
