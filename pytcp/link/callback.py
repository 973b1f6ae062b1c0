"""A device whose wire is the program: packets out go to a function, packets in are handed to `feed`.

For stacks inside a program, over whatever carries packets: a VPN's own protocol, a message queue, a radio, a test. Needs
no privilege and no kernel device. Packets are finished (at most one MTU long, checksums filled in) and begin with the IP
header, or with an Ethernet header when `mac` is given. `feed` may be called from any task or callback of the stack's thread,
also from inside `transmit`: the stack sees the packet in its next pass, never inside the call. Both queues are bounded.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .frame import CSUM_NONE, CSUM_UNNECESSARY, Buffer, LinkDown, RxFrame, TxFrame

if TYPE_CHECKING:
    from pytcp.clock.heap import Timer
    from pytcp.clock.runtime import Runtime

LIMIT = 1000  # packets waiting to come in
BUDGET = 64  # packets per pass


class CallbackLink:
    """A link between a stack and two functions of a program."""

    def __init__(
        self,
        transmit: Callable[[bytes], object],
        *,
        name: str = "cb0",
        mtu: int = 1500,
        mac: bytes = b"",
        checked: bool = False,
        limit: int = LIMIT,
        runtime: Runtime | None = None,
    ) -> None:
        """transmit: takes a packet of the stack's; when it returns False the packet was not taken, and is offered again
        0.1 ms later. It must not wait, and an exception of it ends the stack.

        mtu: longest packet in bytes, without Ethernet header. mac: our address on an Ethernet; b"" for bare IP.
        checked: the carrier vouches for the packets, so that their checksums need not be verified.
        limit: packets fed and not yet taken in. runtime: whose timers bring them in; the stack tells it, unless another link
        (a capture, an emulated wire) lies between the two. Raises ValueError.
        """
        if len(mac) not in (0, 6):
            raise ValueError("mac has six bytes, or none")
        if mtu < 68:
            raise ValueError("an MTU is 68 bytes or more (RFC 791)")
        self.name = name
        self.mtu = mtu
        self.mac = mac
        self.features = 0
        self.gso_max_size = 65536
        self.rx: Callable[[RxFrame], None] = self._no_rx
        self.rx_end: Callable[[], None] = self._no_rx_end
        self.limit = limit
        self.closed = False
        self.rx_packets = 0
        self.rx_bytes = 0
        self.rx_dropped = 0  # fed when nobody listened, when `limit` were waiting, or too long
        self.tx_packets = 0
        self.tx_bytes = 0
        self._transmit = transmit
        self._csum = CSUM_UNNECESSARY if checked else CSUM_NONE
        self._longest = mtu + (18 if mac else 0)
        self._runtime = runtime
        self._waiting: deque[bytes] = deque()
        self._timer: Timer | None = None

    def attached(self, runtime: Runtime) -> None:
        """A stack took this device into service."""
        self._runtime = runtime

    # --- the program's side ---

    def feed(self, packet: Buffer) -> bool:
        """A packet for the stack, which is copied unless it is `bytes`. False when it was dropped."""
        if self.closed or self._runtime is None or len(self._waiting) >= self.limit or not 0 < len(packet) <= self._longest:
            self.rx_dropped += 1
            return False
        self._waiting.append(bytes(packet))
        if self._timer is None:
            self._timer = self._runtime.heap.call_later(0, self._deliver)
        return True

    def lose(self, reason: str = "") -> None:
        """The carrier is gone: connections over this device fail at once instead of timing out."""
        runtime = self._runtime
        if runtime is not None and self in runtime.links:
            down = LinkDown(errno.ENETDOWN, reason or f"{self.name} was lost")
            runtime.remove_link(self)
            for told in runtime.link_down:
                told(self, down)

    def _deliver(self) -> None:
        self._timer = None
        waiting = self._waiting
        count = min(len(waiting), BUDGET)
        for _ in range(count):
            packet = waiting.popleft()
            self.rx_packets += 1
            self.rx_bytes += len(packet)
            self.rx(RxFrame(memoryview(packet), csum=self._csum))
        if count:
            self.rx_end()
        if waiting and self._timer is None and self._runtime is not None:
            self._timer = self._runtime.heap.call_later(0, self._deliver)

    # --- the stack's side ---

    def fileno(self) -> int:
        return -1

    def poll(self, budget: int) -> int:
        return 0

    def send(self, frames: Sequence[TxFrame]) -> int:
        """Give packets to `transmit`; see `Link.send`."""
        for number, frame in enumerate(frames):
            packet = b"".join((frame.head, *frame.parts))
            if not self.closed and self._transmit(packet) is False:
                return number
            self.tx_packets += 1
            self.tx_bytes += len(packet)
        return len(frames)

    def close(self) -> None:
        """Forget what waits; nothing is taken any more."""
        self.closed = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _no_rx(self, frame: RxFrame) -> None:
        """Nobody listens yet: a received packet is lost."""

    def _no_rx_end(self) -> None:
        """Nobody listens yet."""
