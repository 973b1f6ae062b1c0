"""Runs docs/tutorial.md from top to bottom: its Python blocks in one namespace, each compared with the text block behind it.

    python -m tests.sim.tutorial        writes what the blocks print into the page, for a person to review
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytcp

PAGE = Path(pytcp.__file__).parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<text>.*?)```\n)?", re.DOTALL)


def run(page: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each block as it is run, with what it printed."""
    namespace: dict[str, Any] = {"__name__": "tutorial"}
    for block in BLOCK.finditer(page):
        line = page[: block.start("code")].count("\n")
        printed = io.StringIO()
        # blank lines before it, so that a traceback names the line of the page
        program = compile("\n" * line + block["code"], str(PAGE), "exec")
        with contextlib.redirect_stdout(printed):
            exec(program, namespace)
        yield block, "".join(f"{text.rstrip()}\n" for text in printed.getvalue().splitlines())


def main() -> None:
    page = PAGE.read_text()
    written = page
    for block, printed in run(page):
        if block["text"] is not None:
            code = block["code"]
            before = f"```python\n{code}```\n\n```text\n"
            place = written.index(before) + len(before)
            written = written[:place] + printed + written[written.index("```\n", place) :]
    PAGE.write_text(written)


if __name__ == "__main__":
    main()
