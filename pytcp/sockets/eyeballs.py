"""Connecting to a name that has several addresses: one attempt after the other, overlapping (RFC 8305 §5).

The next attempt starts when the one before has failed, or after `STAGGER` when it has not finished; the
first connection wins and the others are closed. With one address it is a plain connect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import trio

if TYPE_CHECKING:
    from .streams import TcpStream

T = TypeVar("T")

STAGGER = 0.25  # seconds, the Connection Attempt Delay that RFC 8305 §8 recommends


async def open_first(targets: Sequence[T], connect: Callable[[T], Awaitable[TcpStream]]) -> TcpStream:
    """The first of `connect(target)` that succeeds.

    Raises the OSError when there was one target, else one with the errno of the first failure, caused by the group of all."""
    winner: TcpStream | None = None
    errors: list[OSError] = []

    async def attempt(target: T, failed: trio.Event) -> None:
        nonlocal winner
        try:
            stream = await connect(target)
        except OSError as exc:
            errors.append(exc)
            failed.set()
            return
        if winner is not None:
            stream.socket.close()  # both were ready in one turn
            return
        winner = stream
        nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            for target in targets:
                failed = trio.Event()
                nursery.start_soon(attempt, target, failed)
                with trio.move_on_after(STAGGER):
                    await failed.wait()
    except BaseException:
        if winner is not None:
            winner.socket.close()
        raise
    if winner is None:
        if len(errors) == 1:
            raise errors[0]
        first = errors[0]
        raise OSError(first.errno, f"{first.strerror} (and {len(errors) - 1} more addresses failed)") from ExceptionGroup("attempts to connect", errors)
    return winner
