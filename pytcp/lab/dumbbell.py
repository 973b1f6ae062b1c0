"""Several senders, one bottleneck, one receiver: the topology in which flows compete.

Each sender is a host of its own behind a delay of its own; they share the queue before the bottleneck (`link.shared`). The way back has
the same delay and no bottleneck. A capture has an interface for each sender: what it sends, before the bottleneck drops any, and receives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytcp.link.emulator import Impairment
from pytcp.link.shared import Shared

from .record import Row

if TYPE_CHECKING:
    from pytcp.link.frame import Link

    from .hosts import Host
    from .world import World

NET4, NET6 = "10.1.0", "fd01:"
RECEIVER = 254  # last byte of its addresses; senders are 1, 2, ...


class Dumbbell:
    """Hosts joined. `shared.there` is the way to the receiver, with its counters; its queue is in the record of the run."""

    def __init__(self, world: World, senders: Sequence[Host], receiver: Host, bottleneck: Impairment, *, access: Sequence[int] = (), mtu: int = 1500) -> None:
        """bottleneck: rate, queue, delay and accidents towards the receiver. access: ns one way between each sender and it. mtu: bytes of IP."""
        if not 0 < len(senders) < RECEIVER:
            raise ValueError(f"1 to {RECEIVER - 1} senders, not {len(senders)}")
        self.name = "bottleneck"
        self.shared = Shared(
            world.heap, there=bottleneck, back=Impairment(delay_ns=bottleneck.delay_ns), seed=world.seed, mtu=mtu, far_mac=bytes((2, 1, 0, 0, 0, RECEIVER))
        )
        self._addresses(receiver, self.shared.far, RECEIVER)
        for number, sender in enumerate(senders, 1):
            delay = access[number - 1] if access else 0
            port = self.shared.port(sender.name, bytes((2, 1, 0, 0, 0, number)), delay)
            self._addresses(sender, world.captured(port, sender.name), number)
            self._know(sender, RECEIVER)
            self._know(receiver, number)
        world.wires.append(self)

    def queues(self) -> Iterable[Row]:
        """The queue before the bottleneck now: packets, bytes, and drops and marks so far."""
        way = self.shared.there
        packets, size = way.queued
        counters = way.counters
        yield {"queue": self.name, "packets": packets, "bytes": size, "drops": counters.overflowed + counters.dropped, "marks": counters.marked}

    @staticmethod
    def _addresses(host: Host, link: Link, number: int) -> None:
        addresses = f"{NET4}.{number}", f"{NET6}:{number:x}"
        dev = host.stack.add_interface(link, [f"{addresses[0]}/24", f"{addresses[1]}/64"], name=f"eth{len(host.interfaces)}", gro=True)
        host.interfaces.append(dev)
        if not host.address4:
            host.address4, host.address6 = addresses

    @staticmethod
    def _know(host: Host, number: int) -> None:
        """The neighbour's Ethernet address, so that no run begins with a search for it."""
        mac = bytes((2, 1, 0, 0, 0, number))
        dev = host.interfaces[-1]
        dev.neigh4.add_permanent(bytes((10, 1, 0, number)), mac)
        dev.neigh6.add_permanent(bytes.fromhex("fd01") + bytes(13) + bytes((number,)), mac)

