"""Files whose errors have the file's name (that the disk is full is said by a write, which knows none), and which are whole or not there."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """For the writing of the file `path`. Raises what is raised inside; an OSError without a name gets this one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file (UTF-8) that is there when all of it is: what was there before stays until then. Raises OSError with the file's name."""
    target = Path(path).resolve()
    there = target.exists()
    if there and not (target.is_file() and os.access(target.parent, os.W_OK)):  # a pipe, /dev/stdout, or where only the file may be written
        with naming(path):
            target.write_text(text, encoding="utf-8")
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        if there:
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        part.replace(target)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error
        raise
