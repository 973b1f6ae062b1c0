"""One bottleneck that several links share: many hosts at the near side, one at the far side, as in a dumbbell.

What the near hosts send meets in one queue before one transmitter (`emulator.Direction`); what the far host sends is carried back and
given to the port whose address it bears, broadcasts to all. Each near port has a delay of its own, so that flows of different round-trip
times can compete. A port is a `Link` for a stack's interface, or joined to a device of the real world (`attach`), so that a kernel may
stand at it.

Hosts at the near side do not hear each other: nothing of theirs is addressed to one another in an experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytcp.clock.heap import TimerHeap

from .cut import received_packets, sent_packets
from .dice import whole
from .emulator import OFFLOADS, Direction, Impairment
from .frame import F_RXCSUM, Link, RxFrame, TxFrame

PLAIN = Impairment()


class Port:
    """One place at a shared bottleneck; `Shared.port` and `Shared.far` are such."""

    def __init__(self, shared: Shared, name: str, mac: bytes, mtu: int, delay_ns: int) -> None:
        heap = shared.heap
        self.name = name
        self.mac = mac
        self.mtu = mtu
        self.features = OFFLOADS | F_RXCSUM  # frames are cut and completed here
        self.gso_max_size = 65536
        self.rx: Callable[[RxFrame], None] = self._no_rx
        self.rx_end: Callable[[], None] = self._no_rx_end
        self._shared = shared
        access = Impairment(delay_ns=delay_ns)
        self._out = Direction(heap, access, 0, self._leave)
        self._in = Direction(heap, access, 0, self._to_stack)
        self._batch: list[bytes] = []
        self.refused = 0  # packets that an attached device did not take

    def fileno(self) -> int:
        return -1

    def poll(self, budget: int) -> int:
        return 0

    def send(self, frames: Sequence[TxFrame]) -> int:
        """Take all frames: what the bottleneck has no room for it drops and counts."""
        self._out.enter([packet for frame in frames for packet in sent_packets(frame)])
        return len(frames)

    def close(self) -> None:
        """Lose what is on its way between this port and the bottleneck."""
        self._out.close()
        self._in.close()

    def attach(self, device: Link) -> None:
        """Put a device here in place of a stack: what it receives is sent, what arrives is written to it. The runtime polls it.

        The port takes the Ethernet address of whoever sends, as a switch learns it."""

        def received(frame: RxFrame) -> None:
            source = bytes(frame.data[6:12])
            if source != self.mac:
                self._shared.move(self, source)
            self._batch += received_packets(frame)

        def ended() -> None:
            batch, self._batch = self._batch, []
            self._out.enter(batch)

        def written(packets: list[bytes]) -> None:
            taken = device.send([TxFrame(packet, (), len(packet)) for packet in packets])
            self.refused += len(packets) - taken

        device.rx = received
        device.rx_end = ended
        self._in.deliver = written

    def arrive(self, packets: list[bytes]) -> None:
        """Packets from the bottleneck."""
        self._in.enter(packets)

    def _to_stack(self, packets: list[bytes]) -> None:
        for packet in packets:
            self.rx(RxFrame(memoryview(packet)))
        self.rx_end()

    def _leave(self, packets: list[bytes]) -> None:
        self._shared.enter(self, packets)

    def _no_rx(self, frame: RxFrame) -> None:
        """Nobody listens yet: a received frame is lost."""

    def _no_rx_end(self) -> None:
        """Nobody listens yet."""


class Shared:
    """The bottleneck. `there` is what happens to packets towards the far side, `back` from it."""

    def __init__(self, heap: TimerHeap, *, there: Impairment = PLAIN, back: Impairment = PLAIN, seed: int = 0, mtu: int = 1500, far_mac: bytes) -> None:
        """seed: of everything random. mtu: bytes of IP. far_mac: Ethernet address of the host at the far side."""
        self.heap = heap
        self.mtu = mtu
        self.there = Direction(heap, there, seed * 2, self._to_far)
        self.back = Direction(heap, back, seed * 2 + 1, self._to_near)
        self.far = Port(self, "far", far_mac, mtu, 0)
        self.near: dict[bytes, Port] = {}

    def port(self, name: str, mac: bytes, delay_ns: int = 0) -> Port:
        """A place at the near side, with the Ethernet address of who will be there. delay_ns: one way, besides the bottleneck's."""
        if mac in self.near or mac == self.far.mac:
            raise ValueError(f"{name}: the Ethernet address is taken")
        port = self.near[mac] = Port(self, name, mac, self.mtu, whole("delay_ns", delay_ns))
        return port

    def move(self, port: Port, mac: bytes) -> None:
        """Who is at `port` has this Ethernet address. An address of somebody else's stays his."""
        if mac not in self.near and mac != self.far.mac:
            del self.near[port.mac]
            port.mac = mac
            self.near[mac] = port

    def enter(self, port: Port, packets: list[bytes]) -> None:
        """Packets that `port` sends reach the bottleneck."""
        (self.back if port is self.far else self.there).enter(packets)

    def _to_far(self, packets: list[bytes]) -> None:
        self.far.arrive(packets)

    def _to_near(self, packets: list[bytes]) -> None:
        for port in self.near.values():
            mine = [packet for packet in packets if packet[:6] == port.mac or packet[0] & 1]
            if mine:
                port.arrive(mine)
