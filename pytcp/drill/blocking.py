"""Blocking system calls over sockets that never block: what the kernel does with a sleeping thread.

A call that may block is a generator: it yields when it has to wait, is resumed whenever something happened in the
stack, and returns the result. `Sleeper` runs one; the target resumes it after each step of virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from .target import Pending

Waits = Generator[None, None, Any]


class Sleeper:
    """A call under way."""

    def __init__(self, calling: Callable[..., Any], args: tuple[Any, ...], now: Callable[[], int]) -> None:
        self.pending = Pending(began_ns=now())
        self._now = now
        self._generator: Waits | None = None
        try:
            value = calling(*args)
        except OSError as error:
            self._end(None, error)
            return
        if not isinstance(value, Generator):
            self._end(value, None)
            return
        self._generator = value
        self.resume()

    def _end(self, value: Any, error: OSError | None) -> None:
        pending = self.pending
        pending.done, pending.value, pending.error, pending.ended_ns = True, value, error, self._now()

    def resume(self) -> bool:
        """Look again; whether the call is over."""
        if not self.pending.done:
            assert self._generator is not None
            try:
                next(self._generator)
            except StopIteration as stop:
                self._end(stop.value, None)
            except OSError as error:
                self._end(None, error)
        return self.pending.done

    def abandon(self) -> None:
        """The run is over."""
        if self._generator is not None:
            self._generator.close()
