"""Byte-exact over a wire that loses, reorders, duplicates and corrupts, in both directions, with a real kernel as peer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio

from pytcp.lab.testbed import Testbed
from pytcp.lab.wired import open_wired
from pytcp.link.emulator import Emulator, Impairment

from .exchange import Pair, duplex

pytestmark = pytest.mark.tap

SIZE = 2 << 20
MS = 1_000_000

WIRES: Mapping[str, Impairment] = {
    "1 % loss": Impairment(loss=0.01),
    "5 % loss": Impairment(loss=0.05),
    "1 % late by 2 ms": Impairment(reorder=0.01, reorder_delay_ns=2 * MS),
    "every 20th late by 5 ms": Impairment(reorder_gap=20, reorder_delay_ns=5 * MS),
    "2 % duplicated": Impairment(duplicate=0.02),
    "1 % corrupted": Impairment(corrupt=0.01),
    "a bit of everything": Impairment(loss=0.01, reorder=0.01, reorder_delay_ns=MS, duplicate=0.001, corrupt=0.001),
    "10 ms and a short queue at 200 Mbit/s": Impairment(rate=200_000_000, delay_ns=5 * MS, queue_packets=50),
}
PEERS: Mapping[str, Mapping[str, int]] = {
    "SACK on": {},
    "SACK off": {"net.ipv4.tcp_sack": 0},
    "timestamps off": {"net.ipv4.tcp_timestamps": 0},
}


async def transfer(tb: Testbed, wire: Impairment, family: int, size: int) -> Emulator:
    """Both directions at once, first opened by the kernel and then by us; returns the wire."""
    with trio.fail_after(60):
        async with open_wired(tb.link, tb.addresses, tx=wire, rx=wire, seed=7) as wired:
            p = Pair(tb, wired.stack)
            async with p.kernel_connects(family) as (kernel, ours):
                await duplex(kernel.stream, ours, size)
            async with p.pytcp_connects(family) as (kernel, ours):
                await duplex(kernel.stream, ours, size)
    return wired.wire


@pytest.mark.parametrize("wire", WIRES)
def test_byte_exact_whatever_the_wire_does(wire: str) -> None:
    async def main() -> None:
        emulator = await transfer(tb, WIRES[wire], 4, SIZE)
        for counters in (emulator.outward.counters, emulator.inward.counters):
            accidents = counters.lost + counters.reordered + counters.duplicated + counters.corrupted + counters.overflowed
            assert accidents > 0, "a wire without accidents proves nothing"

    with Testbed() as tb:
        trio.run(main)


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("peer", PEERS)
def test_byte_exact_over_a_bad_wire_whatever_the_peer_can_do(peer: str, family: int) -> None:
    with Testbed(sysctls=PEERS[peer]) as tb:
        emulator = trio.run(transfer, tb, WIRES["a bit of everything"], family, SIZE)
        assert emulator.outward.counters.lost > 0
        assert emulator.inward.counters.lost > 0


def test_a_cable_that_was_out_for_half_a_second_only_delays() -> None:
    async def main() -> None:
        with trio.fail_after(60):
            async with open_wired(tb.link, tb.addresses, tx=Impairment()) as wired:

                async def unplug() -> None:
                    await trio.sleep(0.002)
                    wired.wire.up = False
                    await trio.sleep(0.5)
                    wired.wire.up = True

                async with Pair(tb, wired.stack).kernel_connects(4) as (kernel, ours), trio.open_nursery() as nursery:
                    nursery.start_soon(unplug)
                    await duplex(kernel.stream, ours, 16 << 20)
        assert wired.wire.outward.counters.down + wired.wire.inward.counters.down > 0

    with Testbed() as tb:
        trio.run(main)
