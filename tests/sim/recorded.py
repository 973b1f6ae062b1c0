"""A record of a real transfer in virtual time: the engine's own trace, sampled every millisecond."""

from __future__ import annotations

from typing import Any

from pytcp.lab.record import Record
from pytcp.lab.units import MS, SECOND
from pytcp.lab.workloads import Bulk
from pytcp.lab.world import World
from pytcp.link.emulator import Impairment
from pytcp.tcp import gates


class Sink:
    """A tracer that writes down the connections of one host whose payload leaves it."""

    def __init__(self, record: Record, heap: Any, queue: Any = None) -> None:
        self.record = record
        self.heap = heap
        self.queue = queue
        self.names: dict[Any, str] = {}
        self._tick()

    def event(self, sk: Any, kind: str, **fields: Any) -> None:
        flow = self.names.setdefault(sk, f"flow {len(self.names) + 1}" if self.names else "bulk")
        self.record.events.append({"t_ns": self.heap.now_ns, "flow": flow, "kind": kind, **fields})

    def _tick(self) -> None:
        now = self.heap.now_ns
        for sk, flow in self.names.items():
            if sk.gate_since_ns < 0:
                continue
            start = sk.iss + 1
            self.record.series.append({
                "t_ns": now, "flow": flow, "cwnd": sk.snd_cwnd, "ssthresh": sk.snd_ssthresh, "srtt_us": sk.srtt_us >> 3, "rttvar_us": sk.rttvar_us >> 2,
                "inflight": sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out, "pacing_rate": sk.pacing_rate, "snd_wnd": sk.snd_wnd,
                "rcv_wnd": sk.rcv_wnd, "gate": gates.NAMES[sk.gate], "snd_una": sk.snd_una - start, "snd_nxt": sk.snd_nxt - start,
            })  # fmt: skip
        if self.queue is not None:
            waiting = [size for departure, size in self.queue._queue if departure > now]
            counters = self.queue.counters
            drops = counters.overflowed + counters.lost
            row = {"packets": len(waiting), "bytes": sum(waiting), "drops": drops, "marks": counters.marked}
            self.record.queues.append({"t_ns": now, "queue": "bottleneck", **row})
        self.heap.call_later(MS, self._tick)


def bulk(
    control: str = "cubic", size: int = 3_000_000, *, rate: int = 50_000_000, delay: int = 20 * MS, queue: int = 150_000, loss: float = 0.0, seed: int = 1
) -> Record:
    """One upload of `size` bytes through a bottleneck."""
    world = World(control, seed, "", [("", "net.ipv4.tcp_congestion_control", control)])
    client, server = world.host("client"), world.host("server")
    wire = world.wire(client, server, delay=delay, receive="gro", there=Impairment(rate=rate, queue_bytes=queue, loss=loss))
    settings = {"rate": f"{rate // 10**6}Mbit", "delay": f"{delay // MS}ms", "queue": queue, "loss": loss, "size": size}
    record = Record({"experiment": "bulk", "variant": control, "seed": seed, "profile": "6.18", "settings": settings, "versions": {"pytcp": "0.1.0"}}, ["bulk"])
    assert wire.emulator is not None
    client.stack.tracer = Sink(record, world.heap, wire.emulator.outward)
    transfer = Bulk(client, server, size, upload=True)
    world.run(lambda: transfer.done, limit=60 * SECOND)
    world.close()
    return record
