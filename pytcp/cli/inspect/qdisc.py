"""`pytcp qdisc`: the queueing disciplines and transmit rings of a running stack, as iproute2's `tc` shows a kernel's, text and JSON.

The ring has no counterpart in `tc`; -d adds a line for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from pytcp.cli.inspect import client

Facts = Mapping[str, Any]


def size(value: int) -> str:
    """Bytes as tc prints them."""
    for unit, name, near in ((1 << 20, "Mb", 1024), (1 << 10, "Kb", 16)):
        whole = round(value / unit)
        if value >= unit and abs(whole * unit - value) < near:
            return f"{whole}{name}"
    return f"{value}b"


def rate(value: int) -> str:
    """Bytes a second as bits a second: the next unit as long as nothing is lost by it, or the number would have seven digits."""
    bits = value * 8
    for unit in ("", "K", "M", "G"):
        if bits < 1000 or (bits % 1000 and bits < 1_000_000):
            return f"{bits}{unit}bit"
        bits //= 1000
    return f"{bits}Tbit"


def duration(us: int) -> str:
    """Microseconds as tc prints times."""
    if us >= 1_000_000:
        return f"{us / 1_000_000:.3g}s"
    if us >= 1000:
        return f"{us / 1000:.3g}ms"
    return f"{us}us"


def _count(value: int) -> str:
    return f"{value}p"


def _plain(value: object) -> str:
    return str(value)


# option of `tc -j` -> how its value is printed
_OPTIONS: Mapping[str, Mapping[str, Callable[[Any], str]]] = {
    "pfifo": {"limit": _count},
    "fq": {
        "limit": _count, "flow_limit": _count, "buckets": _plain, "orphan_mask": _plain, "quantum": size, "initial_quantum": size, "maxrate": rate,
        "low_rate_threshold": rate, "refill_delay": duration, "horizon": duration,
    },
    "htb": {"rate": rate, "ceil": rate, "burst": size, "cburst": size},
}  # fmt: skip


def _options(entry: Facts) -> str:
    words = []
    for name, value in entry["options"].items():
        if name == "pacing":
            words.append("nopacing")
        elif value is None:
            words.append(name)
        else:
            words.append(f"{name} {_OPTIONS[entry['kind']][name](value)}")
    # pfifo's line ends where it ends, all others with a space
    return " ".join(words) + ("" if entry["kind"] == "pfifo" else " " if words else "")


def _statistics(entry: Facts) -> list[str]:
    lines = [
        f" Sent {entry['bytes']} bytes {entry['packets']} pkt (dropped {entry['drops']}, overlimits {entry['overlimits']} requeues {entry['requeues']}) ",
        f" backlog {size(entry['backlog'])} {entry['qlen']}p requeues {entry['requeues']}",
    ]
    if entry["kind"] == "fq":
        found = entry["statistics"]
        lines.append(f"  flows {found['flows']} (inactive {found['inactive']} throttled {found['throttled']})")
        more = "".join(f" {name} {found[name]}" for name in ("flows_plimit", "pkts_too_long", "horizon_drops", "horizon_caps") if name in found)
        lines.append(f"  gc {found['gc']} highprio {found['highprio']} throttled {found['throttled_times']}{more}")
    return lines


def _ring(ring: Facts) -> str:
    more = "".join(f" {name} {ring[name]}" for name in ("late", "missed", "stalls", "signals") if name in ring)
    return f"  ring {ring['mode']} {ring['held']}p of {ring['limit']} unsent {ring['unsent']}p completed {ring['completed']} dropped {ring['dropped']}{more}"


def lines(entry: Facts, *, dev: bool, statistics: bool, details: bool) -> list[str]:
    """The lines of one discipline. dev: name its interface."""
    head = f"qdisc {entry['kind']} {entry['handle']} {'dev ' + entry['dev'] + ' ' if dev else ''}root refcnt 2 {_options(entry)}"
    return [head, *(_statistics(entry) if statistics else []), *([_ring(entry["ring"])] if details else [])]


def as_json(entry: Facts, *, dev: bool, statistics: bool, details: bool) -> dict[str, Any]:
    """One discipline as `tc -j` has it, with the ring beside it."""
    found: dict[str, Any] = {"kind": entry["kind"], "handle": entry["handle"]}
    if dev:
        found["dev"] = entry["dev"]
    found |= {"root": True, "refcnt": 2, "options": dict(entry["options"])}
    if statistics:
        found |= {name: entry[name] for name in ("bytes", "packets", "drops", "overlimits", "requeues", "backlog", "qlen")}
        found |= entry["statistics"]
    if details:
        found["ring"] = dict(entry["ring"])
    return found


def _wanted(words: Sequence[str]) -> str | None:
    rest = client.selected(words)
    if not rest:
        return None
    if len(rest) == 2 and rest[0] == "dev":
        return rest[1]
    raise client.unexpected(*rest)


@click.command("qdisc")
@click.argument("words", metavar="[show] [dev NAME]", nargs=-1)
@click.option("-s", "--statistics", is_flag=True, help="With statistics.")
@click.option("-d", "--details", is_flag=True, help="With the transmit ring behind it.")
@client.options("-p", "--pretty")
def command(stack: client.Choice, show: client.Show, words: tuple[str, ...], statistics: bool, details: bool) -> None:
    """Queueing disciplines of a running stack: `tc qdisc show`, for pytcp. -d adds the transmit ring.

    \b
    Examples:
      pytcp qdisc -s
      pytcp qdisc -s -d show dev tap0
    """
    name = _wanted(words)
    found = [entry for entry in stack().ask("get", "qdiscs") if name in (None, entry["dev"])]
    if not found:
        raise click.ClickException(f'Cannot find device "{name}"')
    how = {"dev": name is None, "statistics": statistics, "details": details}
    if show is not None:
        show([as_json(entry, **how) for entry in found])
        return
    for entry in found:
        for line in lines(entry, **how):
            click.echo(line)
