"""Events of two runs around a moment, one column each, in tcpdump's manner."""

from __future__ import annotations

from typing import Any

BEFORE, AFTER = 14, 5
WIDTH = 92
_SHOWN = ("snd_cwnd", "snd_ssthresh", "unacked", "rtt", "min_rtt", "pacing_rate", "notsent", "sndbuf", "wmem_queued", "wmem_alloc")


def line(event: dict[str, Any]) -> str:
    """One event as text."""
    kind: str = event["ev"]
    at = f"{event['t']:>9} "
    sack = f" sack {event['sack']}" if event.get("sack") else ""
    if kind == "frame":
        start, end = event["seq"]
        size = f" gso {event['gso_size']}" if event["gso_size"] else ""
        again = " again" if event.get("rtx") else ""
        return f"{at}> {event['flags']} {start}:{end}({end - start}){size}{again}{sack}"
    if kind == "reply":
        return f"{at}> {event['flags']} ack {event['ack']} win {event['win']}{sack}"
    if kind == "ack":
        return f"{at}< ack {event['ack']} win {event['win']}{sack}"
    if kind == "data":
        start, end = event["seq"]
        return f"{at}< {event['flags']} {start}:{end}({end - start})"
    if kind in ("info", "hostmem"):
        return at + kind + " " + " ".join(f"{name} {event[name]}" for name in _SHOWN if name in event)
    rest = " ".join(f"{name} {value}" for name, value in event.items() if name not in ("ev", "t", "t_end"))
    return f"{at}{kind} {rest}"


def beside(kernel: dict[str, Any], ours: dict[str, Any], at_us: int) -> str:
    """Both runs around `at_us`."""
    columns = []
    for run in (kernel, ours):
        events = run["events"]
        i = next((i for i, event in enumerate(events) if event["t"] >= at_us), len(events))
        columns.append([line(event)[:WIDTH] for event in events[max(0, i - BEFORE) : i + AFTER]])
    rows = max(map(len, columns))
    left, right = (column + [""] * (rows - len(column)) for column in columns)
    head = f"  {'kernel':{WIDTH}} | pytcp"
    return "\n".join([head, *(f"  {a:{WIDTH}} | {b}" for a, b in zip(left, right, strict=True))]) + "\n"
