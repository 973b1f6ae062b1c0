"""A transmit ring that a C thread empties: frames are written while Python works (`csrc/txthread.c`).

Elsewhere one thread sends and completes, and the second look at `wmem_alloc` after setting THROTTLED
sees what the first one saw. Here a completion may come at any instant, as in a kernel with several
processors, and the order of the sender's store and its second look is the processor's business. So that
step is one C function, with the fence or without (`pytcp.push_barrier`; Linux 6.8, 7267e8dcad6b).

The engine's `wmem_alloc` stays a plain integer. Completions are reaped by the next pass or program call
and debited then; what both threads share is a count and a flag per socket with frames in the ring, in
C. A completion that finds the flag up signals an eventfd, which has a pass reap it and call the socket; all
others are silent. A completion that should have been called and was not (no fence) leaves the socket
to the peer's acknowledgement.

Every buffer is kept alive until its frame is reaped. Closing ends the thread before anything is freed; a
ring that is forgotten, or alive when the interpreter ends, ends its thread too.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

from pytcp.clock.heap import TimerHeap
from pytcp.native import ffi, lib, reason

from .descriptor import VNET_F_NEEDS_CSUM, VNET_HDR, VNET_HDR_LEN, DescriptorLink
from .frame import Link, RxFrame, TxFrame
from .txring import LIMIT, TxRing

ENTRIES = 1024
SOCKETS = 2 * ENTRIES
CROWDED = 256  # frames that are with the thread before a flush looks for completions
IDLE_FLAGGED = 64  # sockets with THROTTLED up and no frame in the ring that are remembered


class _Account:
    """A socket's place in the ring."""

    __slots__ = ("index", "charged", "frames")

    def __init__(self, index: int) -> None:
        self.index = index
        self.charged = 0  # truesize of its frames that are not reaped
        self.frames = 0


class Signal:
    """The eventfd as something a runtime polls: readable when a completion found THROTTLED."""

    mac = b""
    mtu = 0
    features = 0
    gso_max_size = 0
    rx: Callable[[RxFrame], None]
    rx_end: Callable[[], None]

    def __init__(self, fd: int, name: str, rung: Callable[[], bool], reap: Callable[[], None]) -> None:
        """rung(): whether the thread has signalled since it was last asked. reap(): look at the ring."""
        self.fd = fd
        self.name = name
        self.rung = rung
        self.reap = reap

    def fileno(self) -> int:
        return self.fd

    def poll(self, budget: int) -> int:
        if self.rung():
            # emptied before the ring is looked at: a signal that comes in between is not lost
            with contextlib.suppress(BlockingIOError):
                os.read(self.fd, 8)
            self.reap()
        return 0

    def send(self, frames: Any) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """The ring owns the descriptor."""


class ThreadRing(TxRing):
    """A transmit ring with a thread of its own."""

    __slots__ = (
        "on_uncharge", "on_called", "completions", "_q", "_device", "_hdr_len", "_accounts", "_free", "_idle", "_kept", "_parts", "_called", "_stats",
        "_seen", "_signals", "_close", "__weakref__",
    )  # fmt: skip

    def __init__(
        self,
        link: Link,
        heap: TimerHeap,
        on_complete: Callable[[Any, Any, int], bool | None],
        on_uncharge: Callable[[Any, Any, int], Any],
        on_called: Callable[[Any], None],
        limit: int = LIMIT,
    ) -> None:
        """on_uncharge(owner, skb, truesize): a frame is completed. on_called(owner): one of its completions found THROTTLED. on_complete:
        both, for frames still held when the ring is closed. limit: frames held, at most 1024.

        Raises ValueError for a link that is no device of the kernel's or cuts super-frames itself, RuntimeError without
        the C helpers, OSError when the thread cannot be started."""
        super().__init__(link, heap, on_complete, limit=limit)
        if lib is None:
            raise RuntimeError(f"a transmit thread needs the C helpers, and there are none: {reason}")
        if not isinstance(link, DescriptorLink):
            raise ValueError(f"a transmit thread needs a device of the kernel's, not {type(link).__name__} {link.name!r}")
        if link.cuts:
            raise ValueError(f"a transmit thread writes frames whole, and {link.name} takes no super-frames: open it with vnet_hdr=True or gso=False")
        if limit > ENTRIES:
            raise ValueError(f"limit is at most {ENTRIES} with a transmit thread")
        self.mode = "thread"
        self._lazy = False
        self.on_uncharge = on_uncharge
        self.on_called = on_called
        self._device = link
        self._hdr_len = link.vnet_hdr_len
        error = ffi.new("int *")
        self._q = lib.pytcp_txq_open(link.fileno(), ENTRIES, SOCKETS, error)
        if self._q == ffi.NULL:
            raise OSError(error[0], f"transmit thread of {link.name}: {os.strerror(error[0])}")
        self._close = weakref.finalize(self, lib.pytcp_txq_close, self._q)
        self.completions = Signal(lib.pytcp_txq_eventfd(self._q), f"{link.name} completions", self._rung, self.reap)
        self.signal = self.completions
        self._accounts: dict[Any, _Account] = {}
        self._free = list(range(SOCKETS))
        self._idle: dict[Any, _Account] = {}  # THROTTLED is up, and nothing in the ring takes it down
        self._kept: list[Any] = []  # the buffers of the frames in `done`
        self._parts = ffi.new("struct pytcp_part[]", lib.PYTCP_TX_PARTS)
        self._called = ffi.new("uint8_t[]", ENTRIES)
        self._stats = ffi.new("struct pytcp_txstats *")
        self._seen = (0, 0, 0, 0)
        self._signals = 0

    def flush(self) -> None:
        """Give what waits to the thread."""
        queue = self.queue
        if not queue or self._q is None:
            return
        if len(self.done) >= CROWDED:
            self._debit(call_later=True)
        self.queue = []
        for frame in queue:
            self._post(frame)
        self.done += queue
        self._flushed_ns = self.heap.now_ns
        lib.pytcp_txq_publish(self._q)  # type: ignore[union-attr]

    def _post(self, frame: TxFrame) -> None:
        buffers = (frame.head, *frame.parts)
        if len(buffers) > lib.PYTCP_TX_PARTS:  # type: ignore[union-attr]
            buffers = (b"".join(buffers),)
        parts = self._parts
        kept = []
        for i, buffer in enumerate(buffers):
            view = ffi.from_buffer(buffer)
            kept.append(view)
            parts[i].base = view
            parts[i].len = len(view)
        self._kept.append(kept)
        hdr = b""
        if self._hdr_len:
            if frame.csum_start:
                hdr = VNET_HDR.pack(VNET_F_NEEDS_CSUM, frame.gso_type, len(frame.head), frame.gso_size, frame.csum_start, frame.csum_offset)
                hdr += bytes(self._hdr_len - VNET_HDR_LEN)
            else:
                hdr = bytes(self._hdr_len)
        index = lib.PYTCP_TX_NOBODY  # type: ignore[union-attr]
        if frame.owner is not None:
            account = self._account(frame.owner)
            account.charged += frame.truesize
            account.frames += 1
            index = account.index
        # pure ACKs (they have no skb) complete without a look at THROTTLED, as in the kernel
        error = lib.pytcp_txq_put(self._q, index, frame.truesize, frame.skb is None, hdr, len(hdr), parts, len(buffers))  # type: ignore[union-attr]
        if error:
            raise AssertionError(f"the C ring refused a frame: {os.strerror(-error)}")

    def _account(self, owner: Any) -> _Account:
        account = self._accounts.get(owner)
        if account is None:
            account = self._idle.pop(owner, None) or _Account(self._free.pop())
            self._accounts[owner] = account
        return account

    def throttle(self, owner: Any, fence: int) -> bool:
        """Set THROTTLED of `owner`, fence if told to, look at its charge again; what was completed meanwhile is debited.

        False when it has no frame in the ring: what is charged to it waits elsewhere."""
        self.flush()
        account = self._accounts.get(owner)
        if account is None:
            # the flag must be up when its frames get here
            account = self._idle.pop(owner, None) or _Account(self._free.pop())
            lib.pytcp_txq_throttle(self._q, account.index, fence)  # type: ignore[union-attr]
            self._idle_flagged(owner, account)
            return False
        if lib.pytcp_txq_throttle(self._q, account.index, fence) < account.charged:  # type: ignore[union-attr]
            self._debit(call_later=True)
        return True

    def reap(self) -> None:
        """Debit what the thread has completed, and call the sockets that waited for it."""
        for owner in self._debit():
            self.on_called(owner)
        if self.feeder is not None:
            self.feeder()

    def settle(self, now_ns: int) -> None:
        """A program's call begins: the thread may have completed frames meanwhile."""
        self.reap()

    def _debit(self, call_later: bool = False) -> list[Any]:
        """Take completed frames off; returns the owners to be called, or has a pass call them."""
        if self._q is None or not self.done:
            return []
        count = lib.pytcp_txq_reap(self._q, self._called, ENTRIES)  # type: ignore[union-attr]
        if not count:
            return []
        frames = self.done[:count]
        del self.done[:count]
        del self._kept[:count]
        owners = []
        for i, frame in enumerate(frames):
            owner = frame.owner
            if owner is None:
                continue
            self.completed += 1
            account = self._accounts[owner]
            account.charged -= frame.truesize
            account.frames -= 1
            if self._called[i]:
                owners.append(owner)
            if not account.frames:
                self._leave(owner, account)
            self.on_uncharge(owner, frame.skb, frame.truesize)
        self._count()
        if call_later and owners:
            for owner in owners:
                self.heap.call_later(0, lambda owner=owner: self.on_called(owner))  # type: ignore[misc]
            return []
        return owners

    def _leave(self, owner: Any, account: _Account) -> None:
        """The last frame of a socket is completed; a flag that is still up stays up until another completion finds it."""
        del self._accounts[owner]
        if lib.pytcp_txq_throttled(self._q, account.index):  # type: ignore[union-attr]
            self._idle_flagged(owner, account)
        else:
            self._free.append(account.index)

    def _idle_flagged(self, owner: Any, account: _Account) -> None:
        self._idle[owner] = account
        if len(self._idle) > IDLE_FLAGGED:
            # the longest forgotten one: called once for nothing, which it would be at its next completion
            oldest, place = next(iter(self._idle.items()))
            del self._idle[oldest]
            lib.pytcp_txq_unthrottle(self._q, place.index)  # type: ignore[union-attr]
            self._free.append(place.index)
            self.heap.call_later(0, lambda: self.on_called(oldest))

    def _count(self) -> None:
        """Carry the thread's counters over to the device's."""
        stats = self._stats
        lib.pytcp_txq_stats(self._q, stats)  # type: ignore[union-attr]
        now = (stats.written, stats.bytes, stats.carrier_errors, stats.errors)
        device = self._device
        was, self._seen = self._seen, now
        device.tx_packets += now[0] - was[0]
        device.tx_bytes += now[1] - was[1]
        device.tx_carrier_errors += now[2] - was[2]
        device.tx_errors += now[3] - was[3]

    def _rung(self) -> bool:
        """Every pass asks: cheaper than a read that finds nothing."""
        stats = self._stats
        lib.pytcp_txq_stats(self._q, stats)  # type: ignore[union-attr]
        heard, self._signals = self._signals, stats.signals
        return heard != self._signals

    def statistics(self) -> dict[str, int]:
        """stalls: times the device was full; signals: completions a socket waited for."""
        if self._q is not None:
            self._count()
        return {"stalls": self._stats.stalls, "signals": self._stats.signals}

    def close(self) -> None:
        if self._q is not None:
            self._debit()
            self._count()
            self._close()
            self._q = None
        self._kept.clear()
        self._accounts.clear()
        self._idle.clear()
        super().close()
