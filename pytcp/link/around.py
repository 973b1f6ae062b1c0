"""A link around another one: what capture, delay and emulated wire have in common.

They are put between the stack and a device (or another of their kind), look like the device, and pass on what they do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .frame import Link, RxFrame, TxFrame


class Around:
    """Looks like `inner`. A subclass sends, closes, and says what becomes of received frames."""

    def __init__(self, inner: Link) -> None:
        self.inner = inner
        self.name = inner.name
        self.mac = inner.mac
        self.mtu = inner.mtu
        self.features = inner.features
        self.gso_max_size = inner.gso_max_size
        self.rx: Callable[[RxFrame], None] = self._no_rx
        self.rx_end: Callable[[], None] = self._no_rx_end
        inner.rx = self._received
        inner.rx_end = self._received_end

    def fileno(self) -> int:
        return self.inner.fileno()

    def poll(self, budget: int) -> int:
        return self.inner.poll(budget)

    def send(self, frames: Sequence[TxFrame]) -> int:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def _received(self, frame: RxFrame) -> None:
        raise NotImplementedError

    def _received_end(self) -> None:
        self.rx_end()

    def _no_rx(self, frame: RxFrame) -> None:
        """Nobody listens yet: a received frame is lost."""

    def _no_rx_end(self) -> None:
        """Nobody listens yet."""
