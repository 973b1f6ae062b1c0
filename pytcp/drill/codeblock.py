"""`%{ python }%` blocks: what tcp_info says at that moment, as Python variables, and asserts about it.

The blocks of a script share one namespace, so names persist from block to block. They run at once, not after the last
event as in the original: a failing assert stops the run where it fails. A block is the script's own code and can do
what Python can do: run only scripts you would run as programs.
"""

from __future__ import annotations

from typing import Any

from .constants import CODE_NAMES
from .errors import Mismatch, Where


class Blocks:
    """The namespace of one run's blocks."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = dict(CODE_NAMES)

    def run(self, source: str, info: dict[str, int], where: Where) -> None:
        """Run one block. Raises Mismatch for anything it raises."""
        self.names.update((f"tcpi_{name}", value) for name, value in info.items())
        try:
            exec(compile(source, "<code block>", "exec"), self.names)
        except AssertionError as error:
            raise Mismatch(f"assert failed{_said(error)}", where, self._report(source, error)) from None
        except (Exception, SystemExit) as error:
            raise Mismatch(f"code block: {type(error).__name__}: {error}", where, self._report(source, error)) from None

    def _report(self, source: str, error: BaseException) -> str:
        """The line that failed and the fields it names."""
        line = _line_of(error)
        lines = source.split("\n")
        text = lines[line - 1].strip() if 0 < line <= len(lines) else source.strip()
        used = sorted({name for name in self.names if name.startswith("tcpi_") and name in source})
        shown = [f"    {name} = {self.names[name]}" for name in used]
        return "\n".join([f"  {text}", *shown])


def _said(error: AssertionError) -> str:
    return f": {error.args[0]}" if error.args else ""


def _line_of(error: BaseException) -> int:
    at = error.__traceback__
    line = 0
    while at is not None:
        if at.tb_frame.f_code.co_filename == "<code block>":
            line = at.tb_lineno
        at = at.tb_next
    return line
