"""fq: a queue per socket, served in turn, each frame not before its departure time (sch_fq; Linux 3.12, EDT 4.20).

Flows are sockets; frames without one are sorted into `orphan_mask + 1` flows by a hash of addresses and ports. New flows come
before old ones. A flow sends until its credit is used up, then it goes to the end of the old ones and gets `quantum`
bytes; a new one begins with `initial_quantum`, so that the first window leaves at once. A flow whose first frame may not leave
yet waits in a tree by time and costs nothing meanwhile.

TCP stamps each segment with its departure time (`pacing`, EDT): sk_pacing_status becomes FQ with the first frame of a
socket that comes by, and the socket's own timer rests. What is stamped further ahead than `horizon` is dropped (Linux 5.8), or
sent at the horizon. `maxrate` bounds every flow besides. Frames without a socket carry no stamp.

Not modelled: priority bands (6.7) and ce_threshold; nothing here sets a priority. Times are exact: there is no timer_slack.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from pytcp.link.frame import TxFrame

from .base import NEVER, Hooks, Qdisc, wire_size

NS = 1_000_000_000
UNLIMITED = 0xFFFFFFFFFFFFFFFF
GC_AGE_NS = 3 * NS  # a flow without frames is forgotten after so long, when there are many
GC_FLOWS = 1024
IP_TYPES = (b"\x08\x00", b"\x86\xdd")
WITH_PORTS = (6, 17)


@dataclass(frozen=True, slots=True)
class Fq:
    """Settings under `tc`'s names. limit, flow_limit: frames in all, and of one flow. quantum, initial_quantum: bytes; 0: two and ten
    frames of the device. maxrate: bytes/s of a flow. orphan_mask: flows of frames without a socket, less one. pacing: keep departure times.
    refill_delay_ns: a flow that was idle so long gets its quantum anew. low_rate_threshold: bytes/s of `maxrate` below which a frame at a time
    is charged. horizon_ns, horizon_drop: how far ahead a departure may lie, and what becomes of others. Raises ValueError."""

    limit: int = 10_000
    flow_limit: int = 100
    quantum: int = 0
    initial_quantum: int = 0
    maxrate: int = UNLIMITED
    orphan_mask: int = 1023
    pacing: bool = True
    refill_delay_ns: int = 40_000_000
    low_rate_threshold: int = 550_000 // 8
    horizon_ns: int = 10 * NS
    horizon_drop: bool = True

    def __post_init__(self) -> None:
        for name in ("limit", "flow_limit", "quantum", "initial_quantum", "refill_delay_ns", "low_rate_threshold", "horizon_ns", "orphan_mask"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is negative")
        if self.maxrate <= 0:
            raise ValueError("maxrate is positive")


def flow_of(head: bytes, link_header: int) -> bytes:
    """Addresses, protocol and, of TCP and UDP, ports of a packet; of anything else its link-layer header."""
    ip = head[link_header:]
    version = ip[0] >> 4 if ip and (not link_header or head[12:14] in IP_TYPES) else 0
    if version == 4:
        ports = 4 * (ip[0] & 15)
        return ip[9:10] + ip[12:20] + (ip[ports : ports + 4] if ip[9] in WITH_PORTS else b"")
    if version == 6:
        return ip[6:7] + ip[8:40] + (ip[40:44] if ip[6] in WITH_PORTS else b"")
    return head[:link_header]


class Flow:
    """Frames of one socket, and what it may send."""

    __slots__ = ("frames", "credit", "time_next_ns", "age_ns", "listed", "throttled")

    def __init__(self, credit: int) -> None:
        self.frames: deque[tuple[TxFrame, int]] = deque()  # with the departure time
        self.credit = credit  # bytes
        self.time_next_ns = 0  # before this nothing of it leaves
        self.age_ns = 0  # when it last ran empty
        self.listed = False  # among the new or the old flows, or throttled
        self.throttled = False


class FqQdisc(Qdisc):
    kind = "fq"

    def __init__(self, settings: Fq, hooks: Hooks, mtu: int) -> None:
        """mtu: bytes of the device's longest frame."""
        super().__init__(hooks)
        self.settings = settings
        self.quantum = settings.quantum or 2 * mtu
        self.initial_quantum = settings.initial_quantum or 10 * mtu
        self.flows: dict[Any, Flow] = {}
        self._new: deque[Flow] = deque()
        self._old: deque[Flow] = deque()
        self._delayed: list[tuple[int, int, Flow]] = []  # heap of throttled flows by time
        self._order = 0
        self.gc_flows = 0
        self.throttled = 0  # times a flow was
        self.flows_plimit = 0  # dropped: too many of one flow
        self.pkts_too_long = 0  # would have taken more than a second at maxrate
        self.horizon_drops = 0
        self.horizon_caps = 0

    # --- in ---

    def enqueue(self, frame: TxFrame, now_ns: int) -> bool:
        settings = self.settings
        if self.qlen >= settings.limit:
            return False
        owner = frame.owner
        when = now_ns
        if owner is not None and settings.pacing:
            when = self.hooks.departure(owner)
            if when > now_ns + settings.horizon_ns:
                if settings.horizon_drop:
                    self.horizon_drops += 1
                    return False
                self.horizon_caps += 1
                when = now_ns + settings.horizon_ns
        flow = self._flow(frame, owner, now_ns)
        if len(flow.frames) >= settings.flow_limit:
            self.flows_plimit += 1
            return False
        flow.frames.append((frame, when))
        if not flow.listed:
            flow.listed = True
            if now_ns > flow.age_ns + settings.refill_delay_ns and flow.credit < self.quantum:
                flow.credit = self.quantum
            self._new.append(flow)
        return True

    def _flow(self, frame: TxFrame, owner: Any, now_ns: int) -> Flow:
        key = owner
        if owner is None:
            key = crc32(flow_of(bytes(frame.head), self.hooks.link_header)) & self.settings.orphan_mask
        flow = self.flows.get(key)
        if flow is None:
            if len(self.flows) >= GC_FLOWS:
                self._collect(now_ns)
            flow = self.flows[key] = Flow(self.initial_quantum)
            flow.age_ns = now_ns
            if owner is not None and self.settings.pacing:
                self.hooks.adopted(owner)
        return flow

    def _collect(self, now_ns: int) -> None:
        gone = [key for key, flow in self.flows.items() if not flow.listed and now_ns > flow.age_ns + GC_AGE_NS]
        for key in gone:
            del self.flows[key]
        self.gc_flows += len(gone)

    # --- out ---

    def dequeue(self, now_ns: int) -> TxFrame | None:
        new, old = self._new, self._old
        delayed = self._delayed
        while delayed and delayed[0][0] <= now_ns:
            flow = heapq.heappop(delayed)[2]
            flow.throttled = False
            old.append(flow)
        while new or old:
            source = new or old
            flow = source[0]
            if flow.credit <= 0:
                flow.credit += self.quantum
                source.popleft()
                old.append(flow)
                continue
            if not flow.frames:
                source.popleft()
                # once around with the old ones, or new flows would starve them
                if source is new and old:
                    old.append(flow)
                else:
                    flow.listed = False
                    flow.age_ns = now_ns
                continue
            frame, when = flow.frames[0]
            when = max(when, flow.time_next_ns)
            if when > now_ns:
                source.popleft()
                flow.time_next_ns = when
                flow.throttled = True
                self.throttled += 1
                self._order += 1
                heapq.heappush(delayed, (when, self._order, flow))
                continue
            flow.frames.popleft()
            size = wire_size(frame)[0]
            flow.credit -= size
            if self.settings.pacing and self.settings.maxrate != UNLIMITED:
                self._charge(flow, size, now_ns)
            return frame
        return None

    def _charge(self, flow: Flow, size: int, now_ns: int) -> None:
        """`maxrate`: when the flow may go on."""
        rate = self.settings.maxrate
        if rate <= self.settings.low_rate_threshold:
            flow.credit = 0
        else:
            # a whole quantum is charged at its end
            size = max(size, self.quantum)
            if flow.credit > 0:
                return
        length_ns = size * NS // rate
        if length_ns > NS:
            length_ns = NS
            self.pkts_too_long += 1
        if flow.time_next_ns:
            # who comes late may use up to half the gap
            length_ns -= min(length_ns // 2, now_ns - flow.time_next_ns)
        flow.time_next_ns = now_ns + length_ns

    def next_ns(self) -> int:
        return self._delayed[0][0] if self._delayed else NEVER

    def drain(self) -> list[TxFrame]:
        frames = [frame for flow in self.flows.values() for frame, _ in flow.frames]
        self.flows.clear()
        self._new.clear()
        self._old.clear()
        self._delayed.clear()
        return frames

    # --- looking ---

    def options(self) -> dict[str, Any]:
        settings = self.settings
        options: dict[str, Any] = {"limit": settings.limit, "flow_limit": settings.flow_limit, "buckets": 1024, "orphan_mask": settings.orphan_mask}
        if not settings.pacing:
            options["pacing"] = False
        options |= {"quantum": self.quantum, "initial_quantum": self.initial_quantum}
        if settings.maxrate != UNLIMITED:
            options["maxrate"] = settings.maxrate
        return options | {
            "low_rate_threshold": settings.low_rate_threshold,
            "refill_delay": settings.refill_delay_ns // 1000,
            "horizon": settings.horizon_ns // 1000,
            "horizon_drop" if settings.horizon_drop else "horizon_cap": None,
        }

    def statistics(self) -> dict[str, Any]:
        statistics = {
            "flows": len(self.flows),
            "inactive": sum(not flow.listed for flow in self.flows.values()),
            "throttled": sum(flow.throttled for flow in self.flows.values()),
            "gc": self.gc_flows,
            "highprio": 0,
            "throttled_times": self.throttled,
        }
        rare = {
            "flows_plimit": self.flows_plimit,
            "pkts_too_long": self.pkts_too_long,
            "horizon_drops": self.horizon_drops,
            "horizon_caps": self.horizon_caps,
        }
        return statistics | {name: count for name, count in rare.items() if count}
