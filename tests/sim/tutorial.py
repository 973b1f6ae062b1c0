"""Runs docs/tutorial.md from top to bottom: its Python blocks in one namespace, each compared with the text block behind it.

Readers run a block as a whole (a notebook) or paste it into a prompt, which takes an empty line for the end of a class, and wants one there.

    python -m tests.sim.tutorial        writes what the blocks print into the page, for a person to review
"""

from __future__ import annotations

import codeop
import contextlib
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytcp

PAGE = Path(pytcp.__file__).parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<text>.*?)```\n)?", re.DOTALL)


def whole(code: str, line: int, namespace: dict[str, Any]) -> None:
    """Run a block as a program. line: of the page, before it."""
    # blank lines before it, so that a traceback names the line of the page
    exec(compile("\n" * line + code, str(PAGE), "exec"), namespace)


def at_a_prompt(code: str, line: int, namespace: dict[str, Any]) -> None:
    """Run a block as an interactive interpreter does that gets it line by line, and an empty one at the end."""
    compiled = codeop.CommandCompiler()
    statement = ""
    for number, text in enumerate([*code.splitlines(), ""], line):
        statement = f"{statement}\n{text}" if statement else "\n" * number + text
        program = compiled(statement, str(PAGE), "single")
        if program is not None:
            exec(program, namespace)
            statement = ""


def run(page: str, how: Callable[[str, int, dict[str, Any]], None] = whole) -> Iterator[tuple[re.Match[str], str]]:
    """Each block as it is run, with what it printed. how: `whole` or `at_a_prompt`."""
    namespace: dict[str, Any] = {"__name__": "tutorial"}
    for block in BLOCK.finditer(page):
        line = page[: block.start("code")].count("\n")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            how(block["code"], line, namespace)
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
