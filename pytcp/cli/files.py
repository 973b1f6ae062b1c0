"""Files that a command is to write: looked at with its options, before anything is set up."""

from __future__ import annotations

import os
from typing import Any

import click


class NewFile(click.Path):
    """A file to write, in a folder that is there; `-` is standard output where `allow_dash` says so."""

    def __init__(self, *, allow_dash: bool = False) -> None:
        super().__init__(dir_okay=False, allow_dash=allow_dash)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        file = os.fsdecode(super().convert(value, param, ctx))
        if not (self.allow_dash and file == "-") and not os.path.isdir(os.path.dirname(file) or "."):
            self.fail(f"{file}: there is no such folder", param, ctx)
        return file
