"""Flows that share a bottleneck: who gets how much of it, and what their queue costs the others.

Each flow has a host of its own with a congestion control of its own; they start one after the other and send as fast as they may through
one queue to one receiver. Shares are counted at the receiver, after a warm-up. `--set flows=cubic+cubic+bbr` mixes any number of flows,
`--set aqm=codel` manages the queue, `--set extra=40ms` gives each flow a round trip that much longer than that of the one before.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Literal

import trio

from pytcp.lab.distribution import percentile
from pytcp.lab.dumbbell import Dumbbell
from pytcp.lab.experiment import ExperimentError, Figure, Figures, Table, experiment
from pytcp.lab.units import MS, SECOND, Bytes, SomeRate, SomeTime, Time, nearest
from pytcp.lab.wires import CoDel, Impairment, Red
from pytcp.lab.workloads import TCP_CONGESTION, Bulk, jain
from pytcp.lab.world import World
from pytcp.sockets.socket import IPPROTO_TCP, Socket
from pytcp.tcp import cong

if TYPE_CHECKING:
    from pytcp.lab.real import Real

ENDLESS = 1 << 50  # bytes to send


@experiment(
    "fairness",
    "Flows that share a bottleneck: shares, Jain's index, the queue",
    variants={name: {"flows": name} for name in ("cubic+cubic", "cubic+reno", "cubic+bbr", "bbr+bbr")},
    figures=(
        Figure("share_1", "share of the first flow", "{:.1%}"),
        Figure("share_2", "share of the second flow", "{:.1%}"),
        Figure("jain", "Jain's index", "{:.3f}"),
        Figure("utilisation", "bottleneck used", "{:.1%}"),
        Figure("queue_ms", "mean delay in the queue (ms)", "{:.1f}"),
        Figure("queue_p99_ms", "99th percentile (ms)", "{:.1f}"),
        Figure("drops", "packets dropped"),
        Figure("marks", "packets marked"),
        Figure("retransmits", "segments sent again"),
    ),
    real="every second flow is the kernel's, the others are pytcp's; one emulated bottleneck, a receiver of pytcp's.",
)
def run(
    world: World,
    flows: str = "cubic+cubic",
    rate: SomeRate = 20_000_000,
    rtt: Time = 40 * MS,
    extra: Time = 0,
    queue: Bytes = 100_000,
    aqm: Literal["droptail", "codel", "red"] = "droptail",
    ecn: bool = False,
    stagger: Time = 1 * SECOND,
    warmup: Time = 4 * SECOND,
    duration: SomeTime = 10 * SECOND,
) -> Figures:
    controls = split(flows)
    if ecn and aqm == "droptail":
        raise ExperimentError("ecn: a droptail queue marks nothing; --set aqm=codel or red")
    senders = [world.host(f"{name} {number}", {"net.ipv4.tcp_ecn": int(ecn)}) for number, name in enumerate(controls, 1)]
    receiver = world.host("receiver")
    managed = CoDel(ecn=ecn) if aqm == "codel" else Red(ecn=ecn) if aqm == "red" else aqm
    wire = Dumbbell(
        world, senders, receiver, Impairment(rate=rate, delay_ns=rtt // 2, queue_packets=0, queue_bytes=queue, aqm=managed),
        access=[number * extra // 2 for number in range(len(senders))],
    )  # fmt: skip
    way = wire.shared.there
    transfers: list[Bulk] = []
    delays: list[int] = []  # in the queue, ns, once a millisecond

    def start(number: int) -> None:
        def controlled(socket: Socket) -> None:
            socket.setsockopt(IPPROTO_TCP, TCP_CONGESTION, controls[number].encode())

        transfers.append(Bulk(senders[number], receiver, ENDLESS, upload=True, port=5001 + number, prepare_sender=controlled))

    def look() -> None:
        delays.append(way.queued[1] * 8 * SECOND // rate)
        world.heap.call_later(MS, look)

    for number in range(len(senders)):
        world.heap.call_later(number * stagger, partial(start, number))
    world.run(limit=(len(senders) - 1) * stagger + warmup)
    before = [transfer.received for transfer in transfers]
    counted = way.counters.overflowed + way.counters.dropped, way.counters.marked, way.counters.delivered_bytes
    for sender in senders:
        sender.mark()
    look()
    world.run(limit=duration)
    return {
        **shares([transfer.received - start for transfer, start in zip(transfers, before, strict=True)]),
        "utilisation": (way.counters.delivered_bytes - counted[2]) * 8 * SECOND / (rate * duration),
        "queue_ms": statistics.fmean(delays) / MS,
        "queue_p99_ms": percentile(sorted(delays), 99) / MS,
        "drops": way.counters.overflowed + way.counters.dropped - counted[0],
        "marks": way.counters.marked - counted[1],
        "retransmits": sum(sender.counters["TcpRetransSegs"] for sender in senders),
    }


@run.over_tap()
async def over_tap(
    real: Real,
    flows: str = "cubic+cubic",
    rate: SomeRate = 20_000_000,
    rtt: Time = 40 * MS,
    queue: Bytes = 100_000,
    stagger: Time = 1 * SECOND,
    warmup: Time = 4 * SECOND,
    duration: SomeTime = 10 * SECOND,
) -> Figures:
    from pytcp.lab.mixed import mixed

    controls = split(flows)
    delays: list[int] = []
    async with mixed(real, controls, Impairment(rate=rate, delay_ns=rtt // 2, queue_packets=0, queue_bytes=queue)) as running:
        way = running.way
        for number in range(len(controls)):
            if number:
                await trio.sleep(stagger / SECOND)
            running.start(number)
        await trio.sleep(warmup / SECOND)
        before, delivered, overflowed, began = list(running.received), way.counters.delivered_bytes, way.counters.overflowed, trio.current_time()
        while trio.current_time() < began + duration / SECOND:
            delays.append(way.queued[1] * 8 * SECOND // rate)
            await trio.sleep(0.005)
        seconds = trio.current_time() - began
        received = [total - start for total, start in zip(running.received, before, strict=True)]
        drops = way.counters.overflowed - overflowed
        used = (way.counters.delivered_bytes - delivered) * 8 / (rate * seconds)
    real.tables.append(Table("Flows", ("", "whose", "share"), [(f"{number} {name}", "kernel" if number % 2 == 0 else "pytcp", f"{part / sum(received):.1%}")
              for number, (name, part) in enumerate(zip(controls, received, strict=True), 1)]))  # fmt: skip
    return {
        **shares(received),
        "utilisation": used,
        "queue_ms": statistics.fmean(delays) / MS,
        "queue_p99_ms": percentile(sorted(delays), 99) / MS,
        "drops": drops,
    }


def split(flows: str) -> list[str]:
    """The congestion control of each flow. Raises ExperimentError."""
    controls = flows.split("+")
    for name in controls:
        if name not in cong.available():
            raise ExperimentError(f"flows: there is no congestion control {name!r}; {nearest(name, cong.available())}")
    return controls


def shares(received: list[int]) -> dict[str, float]:
    """Of the bytes that arrived, by flow, and how fair that is."""
    total = sum(received)
    return {**{f"share_{number}": part / total for number, part in enumerate(received, 1)}, "jain": jain(received)}
