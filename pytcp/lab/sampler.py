"""What is written down while an experiment runs: trace events as rows, and samples of each connection and queue.

Nothing runs by a timer of its own, so a record changes nothing and ends with the run: a connection is sampled when something
happens on it, at most once per `interval` unless its window, threshold or gate has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pytcp.tcp import gates
from pytcp.tcp.const import CLOSE

from .record import Record, Row

if TYPE_CHECKING:
    from pytcp.clock.heap import TimerHeap
    from pytcp.tcp.sock import Sock

FLOWS = 32  # connections of a host that are recorded; later ones would only repeat them
INTERVAL = 500_000  # ns between two samples of a connection that does not change


class Listener:
    """Rows of trace events of some kinds (all without any)."""

    def __init__(self, heap: TimerHeap, zero_ns: int, kinds: Iterable[str]) -> None:
        """zero_ns: the moment that t_ns 0 means."""
        self.rows: list[Row] = []
        self._heap = heap
        self._zero_ns = zero_ns
        self._kinds = frozenset(kinds)

    def event(self, sk: Sock, kind: str, **fields: Any) -> None:
        """See `pytcp.tcp.trace`."""
        if not self._kinds or kind in self._kinds:
            self.rows.append({"t_ns": self._heap.now_ns - self._zero_ns, "kind": kind, **fields})


class Sampler:
    """Fills a `Record` with what one host's connections do."""

    def __init__(self, record: Record, heap: TimerHeap, zero_ns: int, host: str, queues: Callable[[], Iterable[Row]], interval: int = INTERVAL) -> None:
        """host: the name of its flows, numbered from the second on. queues: rows of the queues now, without t_ns."""
        self.record = record
        self.interval = interval
        self._heap = heap
        self._zero_ns = zero_ns
        self._host = host
        self._queues = queues
        self._flows: dict[Sock, _Flow] = {}

    def event(self, sk: Sock, kind: str, **fields: Any) -> None:
        """See `pytcp.tcp.trace`."""
        flow = self._flows.get(sk)
        if flow is None:
            count = len(self._flows)
            if count == FLOWS:
                return
            flow = self._flows[sk] = _Flow(self._host if not count else f"{self._host} {count + 1}")
            self.record.flows.append(flow.name)
        now = self._heap.now_ns - self._zero_ns
        self.record.events.append({"t_ns": now, "flow": flow.name, "kind": kind, **fields})
        changed = (sk.snd_cwnd, sk.snd_ssthresh, sk.gate)
        if now - flow.sampled_ns < self.interval and changed == flow.changed:
            return
        if sk.state == CLOSE:
            return
        flow.sampled_ns = now
        flow.changed = changed
        base = sk.iss + 1
        self.record.series.append(
            {
                "t_ns": now,
                "flow": flow.name,
                "cwnd": sk.snd_cwnd,
                "ssthresh": sk.snd_ssthresh,
                "srtt_us": sk.srtt_us >> 3,
                "rttvar_us": sk.rttvar_us >> 2,
                "inflight": sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out,
                "pacing_rate": sk.pacing_rate,
                "snd_wnd": sk.snd_wnd,
                "rcv_wnd": sk.rcv_wnd,
                "gate": gates.NAMES[sk.gate],
                "snd_una": max(0, sk.snd_una - base),
                "snd_nxt": max(0, sk.snd_nxt - base),
            }
        )
        for row in self._queues():
            self.record.queues.append({"t_ns": now, **row})


class _Flow:
    __slots__ = ("changed", "name", "sampled_ns")

    def __init__(self, name: str) -> None:
        self.name = name
        self.sampled_ns = -INTERVAL
        self.changed: tuple[int, int, int] | None = None
