"""Two runs of a script of stimuli: the first difference, and all of its kind of place.

Exact: packets (all fields, options in order), which action they came behind, results of calls, readiness, queues, tcp_info
without what measures time or memory, counters of TCP. Times of packets: 2 ms behind an action, a tick and a little
elsewhere; timestamps a millisecond.
"""

from __future__ import annotations

import select
from typing import Any, NamedTuple

from pytcp.lab.oracle.compare import LOOSE, UNCOMPARED

from .player import Notes, Sent

SOON_US = 2_000
TICK_US = 5_000
TOGETHER_US = 1_000
UNTOLD = UNCOMPARED | {"pacing_rate", "max_pacing_rate", "delivery_rate", "busy_time", "rwnd_limited", "sndbuf_limited", "rcv_rtt"}
COUNTERS = ("Tcp",)
NEVER_MS = 1_000_000
BY_STAMP = {"rtt", "rttvar", "min_rtt", "rto", "snd_wscale", "snd_wnd"}


KINDS = ("result", "packet", "time", "stamp", "socket", "counters")  # behind one action, in this order
LOOSELY = LOOSE | {"min_rtt": (0.05, 1100), "rtt": (0.05, 1100)}  # an echo counts milliseconds


class Difference(NamedTuple):
    """Where two runs part."""

    at_us: int
    step: int  # the action it was seen behind
    kind: str  # of KINDS
    kernel: str
    ours: str


def compare(kernel: Notes, ours: Notes) -> list[Difference]:
    """All differences, in the order of time; nothing behind the first packet that differs."""
    found: list[Difference] = []
    limit = 1 << 60
    # the timestamp of a SYN cookie carries options in its low bits
    cookies = bool(kernel.counters.get("TcpExtSyncookiesSent"))
    for k, o in _pairs(_ordered(kernel.sent), _ordered(ours.sent)):
        if k is None or o is None or k.text != o.text:
            one = k or o
            assert one is not None
            limit = min(x.t_us for x in (k, o) if x is not None)
            found.append(Difference(limit, one.step, "packet", _packet(k), _packet(o)))
            break
        since = min((k.t_us - step.t_us for step in kernel.steps if step.t_us <= k.t_us), default=k.t_us)
        if cookies and since >= SOON_US:
            continue  # a round trip measured by that timestamp is up to 64 ms longer, and timers with it
        if abs(k.t_us - o.t_us) > (SOON_US if since < SOON_US and k.step == o.step else TICK_US):
            found.append(Difference(k.t_us, k.step, "time", f"{_packet(k)} at {k.t_us} us", f"at {o.t_us} us"))
        elif not cookies and abs((k.stamp or 0) - (o.stamp or 0)) > (1 if since < SOON_US else TICK_US // 1000):
            found.append(Difference(k.t_us, k.step, "stamp", f"{_packet(k)} TS val {k.stamp}", f"TS val {o.stamp}"))
    for number, (a, b) in enumerate(zip(kernel.steps, ours.steps, strict=True), 1):
        if a.t_us > limit:
            break
        if a.result != b.result:
            found.append(Difference(a.t_us, number, "result", a.result, b.result))
        for fd in sorted({*a.sockets, *b.sockets}):
            theirs, mine = a.sockets.get(fd), b.sockets.get(fd)
            if theirs is None or mine is None:
                found.append(Difference(a.t_us, number, "socket", f"{fd}: {theirs and 'open'}", f"{mine and 'open'}"))
                continue
            differ = [name for name in theirs if _differs(name, theirs[name], mine.get(name)) and not (cookies and name in BY_STAMP)]
            if differ:
                shown = [", ".join(f"{name} {_value(name, seen.get(name))}" for name in differ) for seen in (theirs, mine)]
                found.append(Difference(a.t_us + 1, number, "socket", f"{fd}: {shown[0]}", shown[1]))
    if limit == 1 << 60:
        names = sorted({*kernel.counters, *ours.counters})
        differ = [n for n in names if n.startswith(COUNTERS) and kernel.counters.get(n, 0) != ours.counters.get(n, 0)]
        if differ:
            shown = [", ".join(f"{n} {run.counters.get(n, 0)}" for n in differ) for run in (kernel, ours)]
            found.append(Difference(1 << 59, len(kernel.steps), "counters", *shown))
    return sorted(found, key=lambda difference: (difference.step, KINDS.index(difference.kind), difference.at_us))


def _ordered(sent: list[Sent]) -> list[Sent]:
    """Timers of several connections that are due in one tick fire in any order."""
    out: list[Sent] = []
    for one in sent:
        at = len(out)
        while at and one.t_us - out[at - 1].t_us < TOGETHER_US and one.flow < out[at - 1].flow:
            at -= 1
        out.insert(at, one)
    return out


def _pairs(first: list[Sent], second: list[Sent]) -> list[tuple[Sent | None, Sent | None]]:
    size = max(len(first), len(second))
    return [(first[i] if i < len(first) else None, second[i] if i < len(second) else None) for i in range(size)]


def _packet(sent: Sent | None) -> str:
    return sent.text if sent is not None else "nothing"


def _value(name: str, value: Any) -> str:
    if name != "poll" or not isinstance(value, int):
        return str(value)
    return "|".join(bit for bit in ("IN", "PRI", "OUT", "ERR", "HUP", "RDHUP") if value & getattr(select, f"POLL{bit}")) or "0"


def _differs(name: str, one: Any, other: Any) -> bool:
    if name in UNTOLD or one == other:
        return False
    if name in LOOSELY and isinstance(one, int) and isinstance(other, int):
        if name.startswith("last_") and min(one, other) > NEVER_MS:
            return False  # since the host was booted
        relative, absolute = LOOSELY[name]
        return abs(one - other) > max(relative * max(abs(one), abs(other)), absolute)
    return True
