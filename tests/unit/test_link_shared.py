"""A bottleneck that several links share: one queue for all, an answer only for whom it is, a delay for each."""

from __future__ import annotations

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.emulator import Impairment
from pytcp.link.frame import RxFrame, TxFrame
from pytcp.link.shared import Port, Shared

FAR, A, B = (bytes((2, 0, 0, 0, 0, number)) for number in (9, 1, 2))
MS = 1_000_000


class World:
    def __init__(self, **options: Impairment) -> None:
        self.runtime = VirtualRuntime()
        self.shared = Shared(self.runtime.heap, far_mac=FAR, **options)
        self.heard: dict[str, list[tuple[int, bytes]]] = {}
        self.listen(self.shared.far)

    def port(self, name: str, mac: bytes, delay_ns: int = 0) -> Port:
        port = self.shared.port(name, mac, delay_ns)
        self.listen(port)
        return port

    def listen(self, port: Port) -> None:
        heard = self.heard.setdefault(port.name, [])
        port.rx = lambda frame: heard.append((self.runtime.heap.now_ns, bytes(frame.data)))
        port.rx_end = lambda: None


def frame(to: bytes, size: int = 1000) -> TxFrame:
    data = to + bytes(size - len(to))
    return TxFrame(data, (), len(data))


def test_all_near_hosts_queue_before_one_transmitter() -> None:
    world = World(there=Impairment(rate=8_000_000))  # 1000 bytes a millisecond
    a, b = world.port("a", A), world.port("b", B)
    a.send([frame(FAR), frame(FAR)])
    b.send([frame(FAR)])
    world.runtime.run_for(10 * MS)
    assert [when for when, _ in world.heard["far"]] == [MS, 2 * MS, 3 * MS]
    assert world.shared.there.counters.delivered == 3


def test_a_full_queue_drops_whoever_comes() -> None:
    world = World(there=Impairment(rate=8_000_000, queue_packets=2))
    world.port("a", A).send([frame(FAR), frame(FAR)])
    world.port("b", B).send([frame(FAR)])
    assert world.shared.there.counters.overflowed == 1
    assert world.shared.there.queued == (2, 2000)


def test_an_answer_reaches_whom_it_is_for_and_a_broadcast_everybody() -> None:
    world = World()
    world.port("a", A)
    world.port("b", B)
    world.shared.far.send([frame(B), frame(b"\xff" * 6), frame(bytes(6))])
    world.runtime.run_for(MS)
    assert [data[:6] for _, data in world.heard["a"]] == [b"\xff" * 6]
    assert [data[:6] for _, data in world.heard["b"]] == [B, b"\xff" * 6]
    assert world.heard["far"] == []


def test_each_port_has_a_delay_of_its_own_both_ways() -> None:
    world = World(there=Impairment(delay_ns=MS), back=Impairment(delay_ns=MS))
    near, remote = world.port("near", A), world.port("remote", B, 10 * MS)
    near.send([frame(FAR)])
    remote.send([frame(FAR)])
    world.runtime.run_for(20 * MS)
    assert [when for when, _ in world.heard["far"]] == [MS, 11 * MS]
    began = world.runtime.heap.now_ns
    world.shared.far.send([frame(A), frame(B)])
    world.runtime.run_for(20 * MS)
    assert (world.heard["near"][0][0] - began, world.heard["remote"][0][0] - began) == (MS, 11 * MS)


def test_an_address_is_taken_once() -> None:
    world = World()
    world.port("a", A)
    for mac in (A, FAR):
        with pytest.raises(ValueError, match="taken"):
            world.shared.port("again", mac)


def test_a_device_may_stand_in_for_a_stack() -> None:
    class Device:
        """As a TAP: what the kernel behind it sends comes up, what is written is its."""

        def __init__(self) -> None:
            self.written: list[bytes] = []
            self.room = 1
            self.rx = lambda frame: None
            self.rx_end = lambda: None

        def send(self, frames: list[TxFrame]) -> int:
            taken = frames[: self.room]
            self.written += [bytes(one.head) for one in taken]
            return len(taken)

    world = World()
    port, device = world.port("kernel", A), Device()
    port.attach(device)  # type: ignore[arg-type]
    source = bytes((2, 0, 0, 0, 0, 77))  # the port learns it
    device.rx(RxFrame(memoryview(FAR + source + bytes(900))))  # type: ignore[call-arg, arg-type]
    assert world.heard["far"] == []  # a batch is not over yet
    device.rx_end()
    world.runtime.run_for(MS)
    assert len(world.heard["far"]) == 1
    world.shared.far.send([frame(source), frame(source), frame(A)])
    world.runtime.run_for(MS)
    assert [data[:6] for data in device.written] == [source]
    assert port.refused == 1
