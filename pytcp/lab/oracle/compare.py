"""Two runs of a workload side by side: what must be equal, what may differ by how much, the first difference.

Exact: the host's frames and replies in order (boundaries, flags, gso_size, window, acknowledgement, SACK blocks, echoed timestamps),
results of calls, readiness, memory and every field of tcp_info but those that measure time. Those may differ
by a microsecond's noise multiplied (`LOOSE`). Times: `AT_ONCE_US` where a cause is near, a tick elsewhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

HOST = ("frame", "reply")
FRAME_FIELDS = ("ev", "seq", "flags", "gso_size", "ack", "win", "sack", "rtx", "ecn", "urg")
# info fields that measure time or follow from it: relative and absolute tolerance
LOOSE: dict[str, tuple[float, int]] = {
    "rtt": (0.05, 300), "rttvar": (0.3, 300), "min_rtt": (0.05, 60), "rto": (0.02, 4000), "pacing_rate": (0.06, 2000), "delivery_rate": (0.2, 4000),
    "busy_time": (0.02, 8000), "rwnd_limited": (0.02, 8000), "sndbuf_limited": (0.02, 8000), "rcv_rtt": (0.1, 1000), "last_data_sent": (0, 8),
    "last_data_recv": (0, 8), "last_ack_recv": (0, 8), "total_rto_time": (0.02, 8), "ato": (0, 4000),
}  # fmt: skip
UNCOMPARED = {"t", "ev", "label", "t_end", "fackets", "last_ack_sent", "pmtu", "rehash", "received_ce", "accecn_fail_mode", "accecn_opt_seen", "options"}
# counters of the machine below TCP, of bytes, or of the peer's checks that pytcp's device does not make
COUNTER_PREFIXES = ("Tcp",)
TICK_US = 4000
AT_ONCE_US = 400


class Difference(NamedTuple):
    """The first place where two runs part."""

    kind: str  # frame, timestamps, time, result, info, counter
    number: int  # among events of its kind
    kernel: Any
    ours: Any
    at_us: int

    def text(self) -> str:
        return f"{self.kind} {self.number} at {self.at_us} us\n  kernel {self.kernel}\n  pytcp  {self.ours}"


def _view(event: dict[str, Any] | None) -> dict[str, Any] | None:
    if event is None:
        return None
    return {name: event[name] for name in FRAME_FIELDS if name in event}


def _same_stamps(k: dict[str, Any], o: dict[str, Any], times: bool) -> bool:
    """The echo is what the peer sent last (and, live, when it sent it); a frame's own time stamp is its time, in ms, to a tick."""
    val, echo = k["ts"]
    mine = o.get("ts", (0, 0))
    return not times or (mine[1] == echo and abs(mine[0] - val) <= (TICK_US + abs(o["t"] - k["t"])) // 1000 + 1)


def compare(kernel: dict[str, Any], ours: dict[str, Any], *, times: bool = True, counters: bool = True, live: bool = False) -> list[Difference]:
    """Every difference; frames behind the first that differs are not compared, and nothing else that came later.

    live: both ran in real time, the second more slowly; fields that measure time are not compared."""
    found: list[Difference] = []
    theirs = [event for event in kernel["events"] if event["ev"] in HOST]
    mine = [event for event in ours["events"] if event["ev"] in HOST]
    limit = 1 << 60
    causes = sorted(event["t"] for event in kernel["events"] if event["ev"] not in (*HOST, "info", "hostmem", "released"))
    for i in range(max(len(theirs), len(mine))):
        k = theirs[i] if i < len(theirs) else None
        o = mine[i] if i < len(mine) else None
        if k is not None and o is not None and k.get("win") is None:
            o = {name: value for name, value in o.items() if name in k or name == "rtx"}
        if _view(k) != _view(o):
            limit = min(event["t"] for event in (k, o) if event is not None)
            found.append(Difference("frame", i, _view(k), _view(o), limit))
            break
        if k is not None and o is not None and "ts" in k and not _same_stamps(k, o, times):
            found.append(Difference("timestamps", i, (k["ts"], _view(k)), (o.get("ts"), _view(o)), k["t"]))
        if times and k is not None and o is not None:
            since = min((k["t"] - t for t in causes if t <= k["t"]), default=k["t"])
            allowed = AT_ONCE_US if since <= AT_ONCE_US else TICK_US + AT_ONCE_US
            if abs(k["t"] - o["t"]) > allowed:
                found.append(Difference("time", i, (k["t"], _view(k)), (o["t"], _view(o)), k["t"]))
    for name in ("write", "read", "sockopt", "writable", "readable", "info", "hostmem", "released"):
        first = [event for event in kernel["events"] if event["ev"] == name]
        second = [event for event in ours["events"] if event["ev"] == name]
        for i, (k, o) in enumerate(zip(first, second, strict=False)):
            if k["t"] >= limit:
                break
            differ = [field for field in _fields(k, o) if not (live and field in LOOSE)]
            if differ:
                found.append(Difference(name, i, {f: k.get(f) for f in differ}, {f: o.get(f) for f in differ}, k["t"]))
                break
    if counters and limit == 1 << 60:
        wanted = kernel["counters"]
        have = ours["counters"]
        names = sorted(n for n in {*wanted, *have} if n.startswith(COUNTER_PREFIXES) and wanted.get(n, 0) != have.get(n, 0))
        if names:
            last = kernel["events"][-1]["t"] if kernel["events"] else 0
            found.append(Difference("counter", 0, {n: wanted.get(n, 0) for n in names}, {n: have.get(n, 0) for n in names}, last))
    found.sort(key=lambda difference: difference.at_us)
    return found


def _fields(k: dict[str, Any], o: dict[str, Any]) -> list[str]:
    out = []
    for name, value in k.items():
        if name in UNCOMPARED:
            continue
        other = o.get(name)
        if name in LOOSE and other is not None:
            relative, absolute = LOOSE[name]
            if abs(value - other) <= max(relative * max(abs(value), abs(other)), absolute):
                continue
        elif value == other:
            continue
        out.append(name)
    return out
