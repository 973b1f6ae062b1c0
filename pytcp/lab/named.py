"""Errors of files with the file's name: that the disk is full is said by a write, which knows none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """For the writing of the file `path`. Raises what is raised inside; an OSError without a name gets this one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error
