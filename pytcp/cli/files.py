"""Files that a command is to write: looked at with its options, before anything is set up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class NewFile(click.Path):
    """A file to write, in a folder that is there; `-` is standard output where `allow_dash` says so."""

    def __init__(self, *, allow_dash: bool = False, path_type: type[str] | type[Path] = str) -> None:
        super().__init__(dir_okay=False, allow_dash=allow_dash, path_type=path_type)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        file = os.fsdecode(found)
        if not (self.allow_dash and file == "-") and not os.path.isdir(os.path.dirname(file) or "."):
            self.fail(f"{file}: there is no such folder", param, ctx)
        return found
