"""When a message reaches the device: a short one where it is made, super-segments with the end of the call."""

from __future__ import annotations

from collections.abc import Sequence

from pytcp.lab.units import MS, US
from pytcp.lab.world import World
from pytcp.link.frame import TxFrame
from pytcp.sockets.socket import Socket


def written(size: int) -> list[int]:
    """Packets in flight at the moment each frame of one write reaches the device."""
    world = World(seed=1)
    client, server = world.host("client"), world.host("server")
    world.wire(client, server, delay=10 * US)
    server.listen(80, lambda accepted: None)
    connected: list[Socket] = []
    client.connect(server, 80, connected.append)
    world.run(lambda: bool(connected), limit=100 * MS)
    [socket] = connected
    assert socket.sk is not None
    sk, seen = socket.sk, []
    link = client.interfaces[0].link
    send = link.send

    def spy(frames: Sequence[TxFrame]) -> int:
        seen.extend(sk.packets_out for frame in frames if frame.skb is not None)
        return send(frames)

    link.send = spy  # type: ignore[method-assign]
    assert socket.send(bytes(size)) == size
    return seen


def test_a_short_message_is_with_the_device_before_the_call_does_its_books() -> None:
    assert written(1) == [0]


def test_super_segments_leave_with_the_end_of_the_call() -> None:
    # two, since a burst takes no more than half the window
    assert written(10 * 1448) == [10, 10]
