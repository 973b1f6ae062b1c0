"""Which errors are the world's, and the one line that tells them."""

from __future__ import annotations

import sys

BROKEN = "connection broken: "  # how a stream of ours begins


def broken(error: BaseException) -> bool:
    """Whether it is trio's word for a connection that failed; trio is not imported, for it need not be there."""
    trio = sys.modules.get("trio")
    return trio is not None and isinstance(error, trio.BrokenResourceError)


def expected(error: BaseException) -> bool:
    """Is this the world's fault (one line is enough), or ours (a traceback is wanted)?"""
    if isinstance(error, BaseExceptionGroup):
        return all(map(expected, error.exceptions))
    return isinstance(error, OSError) or broken(error)


def one_line(error: BaseException) -> str:
    """What to tell a person: the deepest single cause of a group, without a traceback."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if broken(error) and not str(error) and error.__cause__ is not None:  # trio's own streams leave the words to the cause
        error = error.__cause__
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror}"
    return str(error).removeprefix(BROKEN) or type(error).__name__
