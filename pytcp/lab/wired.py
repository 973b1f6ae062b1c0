"""A stack behind instruments: an emulated wire, a capture, or both, between it and its device.

Both want the runtime's clock before there is a stack, so this makes the runtime, the chain of links and the stack in the
right order: stack -> capture -> emulated wire -> device. The capture sees what the stack sends and receives, not what the
wire lost on the way in.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import trio

from pytcp.clock.real import RealRuntime
from pytcp.link.emulator import Emulator, Impairment
from pytcp.link.frame import Link
from pytcp.link.pcapng import Capture, PcapngWriter
from pytcp.sockets.open import TrioStack, open_stack


class Wired:
    """What `open_wired` gives: the stack, and the wire if there is one."""

    def __init__(self, stack: TrioStack, emulator: Emulator | None) -> None:
        self.stack = stack
        self._emulator = emulator

    @property
    def wire(self) -> Emulator:
        """The emulated wire; may be changed while it runs. Raises LookupError when none was asked for."""
        if self._emulator is None:
            raise LookupError("this stack has no emulated wire")
        return self._emulator


@contextlib.asynccontextmanager
async def open_wired(
    link: Link,
    addresses: Iterable[str],
    *,
    tx: Impairment | None = None,
    rx: Impairment | None = None,
    seed: int = 0,
    writer: PcapngWriter | None = None,
    label: str | None = None,
    **options: Any,
) -> AsyncIterator[Wired]:
    """`open_stack` on `link` in real time, seen through the instruments asked for.

    tx, rx: what the wire does to packets from and to the stack; `seed` decides its accidents. None for both: no wire.
    writer: record to it, as interface `label`; the caller closes it. options: `open_stack`'s.
    """
    runtime = RealRuntime()
    emulator = None
    if tx is not None or rx is not None:
        link = emulator = Emulator(link, runtime.heap, seed, tx=tx, rx=rx)
    if writer is not None:
        link = Capture(link, writer, label, realtime_ns=runtime.realtime_ns)
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(runtime.run)
        try:
            async with open_stack(link=link, addresses=addresses, runtime=runtime, **options) as stack:
                yield Wired(stack, emulator)
        except BaseException as exc:
            # raised again outside the nursery, which would wrap it into a group
            raised = exc
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised
