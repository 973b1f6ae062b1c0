"""`pytcp neigh`, `route`, `addr`, `link`: a running stack as iproute2's `ip` shows a kernel, text and JSON.

Options of `ip` that stand before the object there (-4, -6, -s, -j) are options of the command here.
What iproute2 ends a line with is there too: scripts have been seen to count on it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from pytcp.cli.inspect import client

Facts = Mapping[str, Any]
FOREVER = 0xFFFFFFFF

_STATES = ("none", "incomplete", "reachable", "stale", "delay", "probe", "failed", "noarp", "permanent")


def _families(ipv4: bool, ipv6: bool, default: tuple[int, ...]) -> tuple[int, ...]:
    if ipv4 and ipv6:
        raise click.UsageError("-4 and -6: leave both out for all.")
    return (4,) if ipv4 else (6,) if ipv6 else default


def _selectors(words: Sequence[str], allowed: Sequence[str], plain: str) -> dict[str, str]:
    """`show dev eth0 nud stale` as {"dev": "eth0", "nud": "stale"}; a word without a key means `plain`."""
    found: dict[str, str] = {}
    rest = client.selected(words)
    while rest:
        key = rest.pop(0) if rest[0] in allowed else plain
        if not rest:
            raise click.UsageError(f"{key} needs a value.")
        if key in found:
            raise client.unexpected(rest[0])
        found[key] = rest.pop(0)
    return found


def _interfaces(chosen: client.Running, name: str | None) -> list[Facts]:
    found = [dev for dev in chosen.ask("get", "interfaces") if name in (None, dev["name"])]
    if not found:
        raise click.ClickException(f'Device "{name}" does not exist.')
    return found


def _on_device(chosen: client.Running, name: str | None) -> client.Running:
    """The stack, if it has an interface of that name (None: any will do)."""
    if name is not None and name not in (dev["name"] for dev in chosen.ask("get", "interfaces")):
        raise click.ClickException(f'Cannot find device "{name}"')
    return chosen


def _prefix(text: str) -> Callable[[str], bool]:
    """The test whether an address lies in a prefix."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise click.UsageError(f"an address or prefix is expected rather than {text!r}.") from None

    def inside(address: str) -> bool:
        found = ipaddress.ip_address(address)
        return found.version == network.version and found in network

    return inside


FAMILY = (
    click.option("-4", "ipv4", is_flag=True, help="Only IPv4."),
    click.option("-6", "ipv6", is_flag=True, help="Only IPv6."),
)
STATISTICS = click.option("-s", "--statistics", is_flag=True, help="With statistics.")


# --- neigh ---


@click.command("neigh")
@click.argument("words", metavar="[show] [[to] PREFIX] [dev NAME] [nud STATE]", nargs=-1)
@FAMILY[0]
@FAMILY[1]
@STATISTICS
@client.options("-p", "--pretty")
def neigh(stack: client.Choice, show: client.Show, words: tuple[str, ...], ipv4: bool, ipv6: bool, statistics: bool) -> None:
    """Neighbours of a running stack (ARP and NDP): `ip neigh`, for pytcp.

    Exit status: 0 done; 1 no stack to ask, or no such interface; 2 wrong usage.

    \b
    Examples:
      pytcp neigh
      pytcp neigh -s show dev tap0 nud stale
    """
    families = _families(ipv4, ipv6, (4, 6))
    wanted = _selectors(words, ("to", "dev", "nud"), "to")
    inside = _prefix(wanted["to"]) if "to" in wanted else None
    state = wanted.get("nud", "all").lower()
    if state not in (*_STATES, "all"):
        raise click.UsageError(f"nud state {state!r} is not one of all, {', '.join(_STATES)}.")
    found = [
        entry
        for entry in _on_device(stack(), wanted.get("dev")).ask("get", "neighbours")
        if entry["family"] in families
        and wanted.get("dev") in (None, entry["dev"])
        and state in ("all", entry["state"].lower())
        and (inside is None or inside(entry["dst"]))
    ]
    if show is not None:
        show([_neigh_json(entry, statistics, "dev" not in wanted) for entry in found])
        return
    for entry in found:
        click.echo(neigh_line(entry, statistics=statistics, dev="dev" not in wanted))


def neigh_line(entry: Facts, *, statistics: bool = False, dev: bool = True) -> str:
    """One line of `ip neigh`; `dev`: name the device, which is left out where it was asked for."""
    parts = [entry["dst"]]
    if dev:
        parts.append(f"dev {entry['dev']}")
    if entry["lladdr"]:
        parts.append(f"lladdr {entry['lladdr']}")
    if entry["router"]:
        parts.append("router")
    if statistics:
        ages = "/".join(str(entry[name] // 1000) for name in ("used", "confirmed", "updated"))
        parts.append(f" used {ages}probes {entry['probes']}")
    parts.append(entry["state"])
    return " ".join(parts) + " "


def _neigh_json(entry: Facts, statistics: bool, dev: bool) -> Facts:
    found = {"dst": entry["dst"]}
    if dev:
        found["dev"] = entry["dev"]
    if entry["lladdr"]:
        found["lladdr"] = entry["lladdr"]
    if entry["router"]:
        found["router"] = None
    if statistics:
        found |= {name: entry[name] // 1000 for name in ("used", "confirmed", "updated")} | {"probes": entry["probes"]}
    return {**found, "state": [entry["state"]]}


# --- route ---


@click.command("route")
@click.argument("words", metavar="[show] [PREFIX] [dev NAME]", nargs=-1)
@FAMILY[0]
@FAMILY[1]
@client.options("-p", "--pretty")
def route(stack: client.Choice, show: client.Show, words: tuple[str, ...], ipv4: bool, ipv6: bool) -> None:
    """Routes of a running stack: `ip route` (IPv4) and `ip -6 route`, for pytcp.

    Exit status: 0 done; 1 no stack to ask, or no such interface; 2 wrong usage.

    \b
    Examples:
      pytcp route
      pytcp route -6 -j
    """
    families = _families(ipv4, ipv6, (4,))
    wanted = _selectors(words, ("root", "dev"), "exact")
    exact = wanted.get("exact")
    if exact is not None and exact != "default":
        _prefix(exact)
        exact = _destination(str(ipaddress.ip_network(exact, strict=False)))
    found = [
        entry
        for entry in _on_device(stack(), wanted.get("dev")).ask("get", "routes")
        if entry["family"] in families and wanted.get("dev") in (None, entry["dev"]) and exact in (None, _destination(f"{entry['dst']}/{entry['prefixlen']}"))
    ]
    if show is not None:
        show([_route_json(entry, "dev" not in wanted) for entry in found])
        return
    for entry in found:
        click.echo(route_line(entry, dev="dev" not in wanted))


def _destination(prefix: str) -> str:
    """A prefix as `ip` writes it: default, and hosts without a length."""
    if prefix in ("0.0.0.0/0", "::/0"):
        return "default"
    address, _, plen = prefix.partition("/")
    return address if int(plen) == (128 if ":" in address else 32) else prefix


def _route_pairs(entry: Facts) -> list[tuple[str, str, Any]]:
    """(JSON key, word, value) of what a route has, in order; a word alone stands for itself."""
    pairs: list[tuple[str, str, Any]] = []
    if entry["type"] != "unicast":
        pairs.append(("type", "", entry["type"]))
    pairs.append(("dst", "", _destination(f"{entry['dst']}/{entry['prefixlen']}")))
    if entry["gateway"]:
        pairs.append(("gateway", "via", entry["gateway"]))
    dev = entry["dev"] or ("lo" if entry["family"] == 6 else None)
    if dev:
        pairs.append(("dev", "dev", dev))
    if entry["origin"] != "static":
        pairs.append(("protocol", "proto", entry["origin"]))
    if entry["family"] == 4 and entry["dev"] and not entry["gateway"]:
        pairs.append(("scope", "scope", "link"))
    if entry["source"]:
        pairs.append(("prefsrc", "src", entry["source"]))
    if entry["metric"] or entry["family"] == 6:
        pairs.append(("metric", "metric", entry["metric"]))
    return pairs


_METRICS = ("mtu", "advmss", "initcwnd", "initrwnd", "quickack")


def route_line(entry: Facts, *, dev: bool = True) -> str:
    """One line of `ip route`."""
    words = [f"{word} {value}" if word else str(value) for key, word, value in _route_pairs(entry) if dev or key != "dev"]
    if entry["expires_s"] is not None:
        words.append(f"expires {entry['expires_s']}sec")
    words += [f"{name} {'lock ' if name == 'mtu' and entry['mtu_lock'] else ''}{entry[name]}" for name in _METRICS if entry[name]]
    if entry["family"] == 6:
        return " ".join([*words, f"pref {entry['preference']}"])
    return " ".join(words) + " "


def _route_json(entry: Facts, dev: bool) -> Facts:
    found = {key: value for key, _, value in _route_pairs(entry) if dev or key != "dev"}
    found["flags"] = []
    if entry["expires_s"] is not None:
        found["expires"] = entry["expires_s"]
    metrics = {name: entry[name] for name in _METRICS if entry[name]}
    if metrics:
        found["metrics"] = [metrics]
    if entry["family"] == 6:
        found["pref"] = entry["preference"]
    return found


# --- link and addr ---


@click.command("link")
@click.argument("words", metavar="[show] [[dev] NAME]", nargs=-1)
@STATISTICS
@click.option("-br", "--brief", is_flag=True, help="One line per interface.")
@client.options("-p", "--pretty")
def link(stack: client.Choice, show: client.Show, words: tuple[str, ...], statistics: bool, brief: bool) -> None:
    """Interfaces of a running stack: `ip link`, for pytcp. Packets are counted as they come: a super-frame is one.

    Exit status: 0 done; 1 no stack to ask, or no such interface; 2 wrong usage.

    \b
    Examples:
      pytcp link -s
      pytcp link show dev tap0
    """
    wanted = _selectors(words, ("dev",), "dev")
    found = _interfaces(stack(), wanted.get("dev"))
    if show is not None:
        show([_brief_json(dev) if brief else _link_json(dev, mode=True) | (_stats_json(dev) if statistics else {}) for dev in found])
        return
    for dev in found:
        if brief:
            click.echo(f"{dev['name']:<16} {_operstate(dev):<14} {dev['address'] + ' ' if dev['address'] else ''}<{','.join(flags(dev))}> ")
            continue
        for line in [*link_lines(dev, mode=True), *(stats_lines(dev) if statistics else [])]:
            click.echo(line)


@click.command("addr")
@click.argument("words", metavar="[show] [[dev] NAME]", nargs=-1)
@FAMILY[0]
@FAMILY[1]
@STATISTICS
@click.option("-br", "--brief", is_flag=True, help="One line per interface.")
@client.options("-p", "--pretty")
def addr(stack: client.Choice, show: client.Show, words: tuple[str, ...], ipv4: bool, ipv6: bool, statistics: bool, brief: bool) -> None:
    """Addresses of a running stack: `ip addr`, for pytcp.

    Exit status: 0 done; 1 no stack to ask, or no such interface; 2 wrong usage.

    \b
    Examples:
      pytcp addr
      pytcp addr -br
    """
    families = _families(ipv4, ipv6, (4, 6))
    only = families[0] if len(families) == 1 else None
    wanted = _selectors(words, ("dev",), "dev")
    found = _interfaces(stack(), wanted.get("dev"))
    addresses = {dev["name"]: [entry for entry in dev["addresses"] if entry["family"] in families] for dev in found}
    if only is not None:
        found = [dev for dev in found if addresses[dev["name"]]]
    if show is not None:
        show([_addr_json(dev, addresses[dev["name"]], brief=brief, only=only) | (_stats_json(dev) if statistics and not brief else {}) for dev in found])
        return
    for dev in found:
        entries = addresses[dev["name"]]
        if brief:
            click.echo(f"{dev['name']:<16} {_operstate(dev):<14} " + "".join(f"{entry['address']}/{entry['prefixlen']} " for entry in entries))
            continue
        for line in [*link_lines(dev, only=only), *addr_lines(dev["name"], entries), *(stats_lines(dev) if statistics else [])]:
            click.echo(line)


def flags(dev: Facts) -> list[str]:
    """The flags of an interface, as `ip` names them."""
    kind = {"loopback": ["LOOPBACK"], "ether": ["BROADCAST", "MULTICAST"], "none": ["POINTOPOINT", "MULTICAST", "NOARP"]}[dev["kind"]]
    return [*kind, *(["UP", "LOWER_UP"] if dev["up"] else [])]


def _operstate(dev: Facts) -> str:
    return "DOWN" if not dev["up"] else "UP" if dev["kind"] == "ether" else "UNKNOWN"


def _broadcast(dev: Facts) -> str:
    return "00:00:00:00:00:00" if dev["kind"] == "loopback" else "ff:ff:ff:ff:ff:ff"


def link_lines(dev: Facts, *, mode: bool = False, only: int | None = None) -> list[str]:
    """The two lines of an interface; `mode` stands in `ip link` only. Asked for one family, the kernel
    tells nothing of the link layer, and for IPv6 nothing of queueing and group either."""
    words = [f"{dev['index']}: {dev['name']}: <{','.join(flags(dev))}> mtu {dev['mtu']}"]
    if only != 6:
        words.append(f"qdisc {dev['qdisc']}")
    words.append(f"state {_operstate(dev)}")
    if mode:
        words.append("mode DEFAULT")
    if only != 6:
        words.append("group default")
    lines = [" ".join([*words, f"qlen {dev['txqlen']}"])]
    if only is None:
        lines.append(f"    link/{dev['kind']} " + (f"{dev['address']} brd {_broadcast(dev)}" if dev["address"] else ""))
    return lines


def _link_json(dev: Facts, *, mode: bool = False) -> dict[str, Any]:
    found = {"ifindex": dev["index"], "ifname": dev["name"], "flags": flags(dev), "mtu": dev["mtu"], "qdisc": dev["qdisc"], "operstate": _operstate(dev)}
    if mode:
        found["linkmode"] = "DEFAULT"
    found |= {"group": "default", "txqlen": dev["txqlen"], "link_type": dev["kind"]}
    if dev["address"]:
        found |= {"address": dev["address"], "broadcast": _broadcast(dev)}
    return found


def _brief_json(dev: Facts) -> dict[str, Any]:
    address = {"address": dev["address"]} if dev["address"] else {}
    return {"ifname": dev["name"], "operstate": _operstate(dev), **address, "flags": flags(dev)}


# (heading, least width, key of the snapshot, key of the JSON); no device here has what has no key
_RX = (("bytes", 10, "bytes", "bytes"), ("packets", 7, "packets", "packets"), ("errors", 6, "", "errors"), ("dropped", 7, "dropped", "dropped"),
       ("missed", 7, "", "over_errors"), ("mcast", 7, "", "multicast"))  # fmt: skip
_TX = (*_RX[:4], ("carrier", 7, "", "carrier_errors"), ("collsns", 7, "", "collisions"))


def _stats(dev: Facts, way: str) -> list[tuple[str, int, int, str]]:
    """(heading, width, value, JSON key)"""
    counts = [(heading, least, (dev[way].get(key) or 0) if key else 0, name) for heading, least, key, name in (_RX if way == "rx" else _TX)]
    return [(heading, max(least, len(str(value))), value, name) for heading, least, value, name in counts]


def stats_lines(dev: Facts) -> list[str]:
    """The four lines -s adds."""
    lines = []
    for way in ("rx", "tx"):
        counts = _stats(dev, way)
        label = f"{way.upper()}:"
        heading = "".join(f"{heading:>{width if place else width - len(label)}} " for place, (heading, width, _, _) in enumerate(counts))
        lines.append(f"    {label}{heading}{'':10}")
        lines.append("    " + "".join(f"{value:>{width}} " for _, width, value, _ in counts))
    return lines


def _stats_json(dev: Facts) -> dict[str, Any]:
    return {"stats64": {way: {name: value for _, _, value, name in _stats(dev, way)} for way in ("rx", "tx")}}


def _address_flags(entry: Facts) -> list[str]:
    """In iproute2's order."""
    names = ("secondary", "deprecated", "tentative", "dadfailed", "optimistic", "dynamic")
    found = [name for name in names if entry.get(name) and not (name == "tentative" and entry.get("dadfailed"))]
    return [*found, "mngtmpaddr"] if entry.get("autoconf") else found


def addr_lines(name: str, entries: Iterable[Facts]) -> list[str]:
    """The two lines of each address of interface `name`."""
    lines = []
    for entry in entries:
        words = [("inet" if entry["family"] == 4 else "inet6"), f"{entry['address']}/{entry['prefixlen']}", f"scope {entry['scope']}", *_address_flags(entry)]
        lines.append("    " + " ".join([*words, name if entry["family"] == 4 else ""]))
        lines.append("       " + " ".join(f"{word}_lft {_lifetime(entry[f'{word}_s'])}" for word in ("valid", "preferred")))
    return lines


def _lifetime(seconds: int | None) -> str:
    return "forever" if seconds is None else f"{seconds}sec"


def _addr_json(dev: Facts, entries: Iterable[Facts], *, brief: bool, only: int | None) -> dict[str, Any]:
    """`only`: see `link_lines`."""
    if brief:
        found: dict[str, Any] = {"ifname": dev["name"], "operstate": _operstate(dev)}
    else:
        found = _link_json(dev)
        untold = {None: (), 4: ("link_type", "address", "broadcast"), 6: ("qdisc", "group", "link_type", "address", "broadcast")}
        for key in untold[only]:
            found.pop(key, None)
    found["addr_info"] = [_address_json(dev["name"], entry, brief) for entry in entries]
    return found


def _address_json(name: str, entry: Facts, brief: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"local": entry["address"], "prefixlen": entry["prefixlen"]}
    if brief:
        return found
    found = {"family": "inet" if entry["family"] == 4 else "inet6", **found, "scope": entry["scope"], **dict.fromkeys(_address_flags(entry), True)}
    if entry["family"] == 4:
        found["label"] = name
    lifetimes = {f"{word}_life_time": FOREVER if entry[f"{word}_s"] is None else entry[f"{word}_s"] for word in ("valid", "preferred")}
    return found | lifetimes
