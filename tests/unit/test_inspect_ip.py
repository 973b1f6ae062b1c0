"""`pytcp neigh`, `route`, `link` and `addr` print what iproute2's `ip` printed for the same facts.

Expected lines and JSON were printed by ip (iproute2 6.1.0) in a namespace of a Linux 6.18 kernel; `·`
stands for a space. Left out are what only a veth has (`@if2`, link-netns, link_index).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from pytcp.cli.inspect import client, ip
from pytcp.cli.main import cli

Facts = dict[str, Any]


class Kernel:
    """Facts in the place of a stack."""

    pid = 1
    command = "python3"

    def __init__(self, facts: dict[str, list[Facts]]) -> None:
        self.facts = facts

    def ask(self, verb: str, what: str) -> Any:
        return iter(self.facts[what])


Run = Callable[..., str]


def neighbour(dst: str, lladdr: str | None, state: str, ages: tuple[int, int, int] = (0, 0, 0), probes: int = 0, router: bool = False) -> Facts:
    used, confirmed, updated = (age * 1000 + 400 for age in ages)
    return {
        "family": 6 if ":" in dst else 4, "dst": dst, "dev": "v0", "lladdr": lladdr, "router": router, "state": state, "probes": probes,
        "used": used, "confirmed": confirmed, "updated": updated,
    }  # fmt: skip


def route(dst: str, prefixlen: int, **more: Any) -> Facts:
    six = ":" in dst
    return {
        "family": 6 if six else 4, "type": "unicast", "dst": dst, "prefixlen": prefixlen, "gateway": None, "dev": "v0", "origin": "static", "source": None,
        "metric": 1024 if six else 0, "mtu": 0, "mtu_lock": False, "advmss": 0, "initcwnd": 0, "initrwnd": 0, "quickack": 0,
        "expires_s": None, "preference": "medium", **more,
    }  # fmt: skip


def address(text: str, prefixlen: int, scope: str = "global", **more: Any) -> Facts:
    return {"family": 6 if ":" in text else 4, "address": text, "prefixlen": prefixlen, "scope": scope, "valid_s": None, "preferred_s": None, **more}


def interface(
    index: int, name: str, kind: str, mac: str | None, mtu: int, addresses: list[Facts], rx: tuple[int, int], tx: tuple[int, int], **more: Any
) -> Facts:
    counts = {way: {"bytes": size, "packets": packets, "dropped": 0} for way, (size, packets) in (("rx", rx), ("tx", tx))}
    same = {"up": True, "qdisc": "noqueue", "txqlen": 1000}
    return {"index": index, "name": name, "kind": kind, "address": mac, "mtu": mtu, **same, "addresses": addresses, **counts, **more}


MAC = "2a:86:d2:50:02:db"
LO = interface(1, "lo", "loopback", "00:00:00:00:00:00", 65536, [address("127.0.0.1", 8, "host"), address("::1", 128, "host")], (0, 0), (0, 0))
V0 = interface(
    2, "v0", "ether", MAC, 1500,
    [
        address("10.5.0.1", 24), address("192.0.2.9", 32), address("10.5.0.3", 24, secondary=True),
        address("fd07::1", 64, deprecated=True, tentative=True, preferred_s=0),
        address("fd06::1", 64, tentative=True, dynamic=True, valid_s=1000, preferred_s=100),
        address("fe80::2886:d2ff:fe50:2db", 64, "link"),
    ],
    (503848, 52), (9152, 42),
)  # fmt: skip
FACTS = {
    "neighbours": [
        neighbour("10.5.0.2", "5a:28:cf:14:dd:e3", "REACHABLE", (23, 23, 23), 1),
        neighbour("10.5.0.9", "02:00:00:00:00:09", "PERMANENT", (159, 159, 159)),
        neighbour("10.5.0.77", None, "FAILED", (3, 63, 0), 6),
        neighbour("fd05::77", None, "INCOMPLETE", (0, 60, 0), 4),
        neighbour("fe80::5828:cfff:fe14:dde3", "5a:28:cf:14:dd:e3", "STALE", (312, 312, 276), 1),
    ],
    "routes": [
        route("0.0.0.0", 0, gateway="10.5.0.2"),
        route("10.5.0.0", 24, origin="kernel", source="10.5.0.1"),
        route("10.6.0.0", 16, gateway="10.5.0.2", metric=5, mtu=1400, advmss=1300, initcwnd=20, initrwnd=30),
        route("10.7.0.0", 16, gateway="10.5.0.2", mtu=1400, mtu_lock=True),
        route("10.8.0.0", 16, type="unreachable", dev=None),
        route("10.9.0.0", 16, type="blackhole", dev=None),
        route("10.10.0.0", 16, type="prohibit", dev=None),
        route("10.11.0.0", 16, type="throw", dev=None),
        route("10.12.0.0", 16, source="10.5.0.1"),
        route("fd05::", 64, origin="kernel", metric=256),
        route("fd08::", 64, type="unreachable", dev=None),
        route("fd09::", 64, gateway="fd05::2", expires_s=299, mtu=1300),
        route("fe80::", 64, origin="kernel", metric=256),
        route("::", 0, gateway="fd05::2"),
    ],
    "interfaces": [LO, V0],
}  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("route", "-6")`: what the command prints about FACTS."""
    monkeypatch.setattr(client, "choose", lambda wanted: Kernel(FACTS))

    def call(*words: str, status: int = 0) -> str:
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == status, result.output
        return result.output

    return call


def dotted(text: str) -> str:
    return text.replace(" ", "·")


def test_neighbours(run: Run) -> None:
    assert (
        dotted(run("neigh"))
        == """\
10.5.0.2·dev·v0·lladdr·5a:28:cf:14:dd:e3·REACHABLE·
10.5.0.9·dev·v0·lladdr·02:00:00:00:00:09·PERMANENT·
10.5.0.77·dev·v0·FAILED·
fd05::77·dev·v0·INCOMPLETE·
fe80::5828:cfff:fe14:dde3·dev·v0·lladdr·5a:28:cf:14:dd:e3·STALE·
"""
    )


def test_neighbours_with_their_ages(run: Run) -> None:
    assert (
        dotted(run("neigh", "-s"))
        == """\
10.5.0.2·dev·v0·lladdr·5a:28:cf:14:dd:e3··used·23/23/23probes·1·REACHABLE·
10.5.0.9·dev·v0·lladdr·02:00:00:00:00:09··used·159/159/159probes·0·PERMANENT·
10.5.0.77·dev·v0··used·3/63/0probes·6·FAILED·
fd05::77·dev·v0··used·0/60/0probes·4·INCOMPLETE·
fe80::5828:cfff:fe14:dde3·dev·v0·lladdr·5a:28:cf:14:dd:e3··used·312/312/276probes·1·STALE·
"""
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("-6 show nud stale", "fe80::5828:cfff:fe14:dde3·dev·v0·lladdr·5a:28:cf:14:dd:e3·STALE·"),
        ("show nud failed", "10.5.0.77·dev·v0·FAILED·"),
        ("show 10.5.0.2", "10.5.0.2·dev·v0·lladdr·5a:28:cf:14:dd:e3·REACHABLE·"),
        ("show to fd05::/64", "fd05::77·dev·v0·INCOMPLETE·"),
        ("show dev v0 nud permanent", "10.5.0.9·lladdr·02:00:00:00:00:09·PERMANENT·"),
    ],
)
def test_neighbours_selected(run: Run, words: str, line: str) -> None:
    assert dotted(run("neigh", *words.split())) == line + "\n"


def test_a_router_is_marked() -> None:
    assert dotted(ip.neigh_line(neighbour("fe80::1", MAC, "STALE", router=True))) == f"fe80::1·dev·v0·lladdr·{MAC}·router·STALE·"


def test_neighbours_as_json(run: Run) -> None:
    assert run("neigh", "-j", "-s", "show", "10.5.0.2") == (
        '[{"dst":"10.5.0.2","dev":"v0","lladdr":"5a:28:cf:14:dd:e3","used":23,"confirmed":23,"updated":23,"probes":1,"state":["REACHABLE"]}]\n'
    )
    assert run("neigh", "-j", "show", "10.5.0.77") == '[{"dst":"10.5.0.77","dev":"v0","state":["FAILED"]}]\n'


def test_routes(run: Run) -> None:
    assert (
        dotted(run("route"))
        == """\
default·via·10.5.0.2·dev·v0·
10.5.0.0/24·dev·v0·proto·kernel·scope·link·src·10.5.0.1·
10.6.0.0/16·via·10.5.0.2·dev·v0·metric·5·mtu·1400·advmss·1300·initcwnd·20·initrwnd·30·
10.7.0.0/16·via·10.5.0.2·dev·v0·mtu·lock·1400·
unreachable·10.8.0.0/16·
blackhole·10.9.0.0/16·
prohibit·10.10.0.0/16·
throw·10.11.0.0/16·
10.12.0.0/16·dev·v0·scope·link·src·10.5.0.1·
"""
    )
    assert (
        dotted(run("route", "-6"))
        == """\
fd05::/64·dev·v0·proto·kernel·metric·256·pref·medium
unreachable·fd08::/64·dev·lo·metric·1024·pref·medium
fd09::/64·via·fd05::2·dev·v0·metric·1024·expires·299sec·mtu·1300·pref·medium
fe80::/64·dev·v0·proto·kernel·metric·256·pref·medium
default·via·fd05::2·dev·v0·metric·1024·pref·medium
"""
    )


def test_routes_as_json(run: Run) -> None:
    assert run("route", "-j") == (
        '[{"dst":"default","gateway":"10.5.0.2","dev":"v0","flags":[]},'
        '{"dst":"10.5.0.0/24","dev":"v0","protocol":"kernel","scope":"link","prefsrc":"10.5.0.1","flags":[]},'
        '{"dst":"10.6.0.0/16","gateway":"10.5.0.2","dev":"v0","metric":5,"flags":[],"metrics":[{"mtu":1400,"advmss":1300,"initcwnd":20,"initrwnd":30}]},'
        '{"dst":"10.7.0.0/16","gateway":"10.5.0.2","dev":"v0","flags":[],"metrics":[{"mtu":1400}]},'
        '{"type":"unreachable","dst":"10.8.0.0/16","flags":[]},{"type":"blackhole","dst":"10.9.0.0/16","flags":[]},'
        '{"type":"prohibit","dst":"10.10.0.0/16","flags":[]},{"type":"throw","dst":"10.11.0.0/16","flags":[]},'
        '{"dst":"10.12.0.0/16","dev":"v0","scope":"link","prefsrc":"10.5.0.1","flags":[]}]\n'
    )
    assert run("route", "-6", "-j") == (
        '[{"dst":"fd05::/64","dev":"v0","protocol":"kernel","metric":256,"flags":[],"pref":"medium"},'
        '{"type":"unreachable","dst":"fd08::/64","dev":"lo","metric":1024,"flags":[],"pref":"medium"},'
        '{"dst":"fd09::/64","gateway":"fd05::2","dev":"v0","metric":1024,"flags":[],"expires":299,"metrics":[{"mtu":1300}],"pref":"medium"},'
        '{"dst":"fe80::/64","dev":"v0","protocol":"kernel","metric":256,"flags":[],"pref":"medium"},'
        '{"dst":"default","gateway":"fd05::2","dev":"v0","metric":1024,"flags":[],"pref":"medium"}]\n'
    )


def test_one_route(run: Run) -> None:
    assert dotted(run("route", "show", "default")) == "default·via·10.5.0.2·dev·v0·\n"
    assert dotted(run("route", "10.8.0.0/16")) == "unreachable·10.8.0.0/16·\n"


def test_links(run: Run) -> None:
    assert (
        dotted(run("link", "-s"))
        == """\
1:·lo:·<LOOPBACK,UP,LOWER_UP>·mtu·65536·qdisc·noqueue·state·UNKNOWN·mode·DEFAULT·group·default·qlen·1000
····link/loopback·00:00:00:00:00:00·brd·00:00:00:00:00:00
····RX:··bytes·packets·errors·dropped··missed···mcast···········
·············0·······0······0·······0·······0·······0·
····TX:··bytes·packets·errors·dropped·carrier·collsns···········
·············0·······0······0·······0·······0·······0·
2:·v0:·<BROADCAST,MULTICAST,UP,LOWER_UP>·mtu·1500·qdisc·noqueue·state·UP·mode·DEFAULT·group·default·qlen·1000
····link/ether·2a:86:d2:50:02:db·brd·ff:ff:ff:ff:ff:ff
····RX:··bytes·packets·errors·dropped··missed···mcast···········
········503848······52······0·······0·······0·······0·
····TX:··bytes·packets·errors·dropped·carrier·collsns···········
··········9152······42······0·······0·······0·······0·
"""
    )


def test_counts_of_ten_digits_keep_the_columns() -> None:
    busy = LO | {"rx": {"bytes": 9599433239, "packets": 266136, "dropped": 0}}
    assert [dotted(line) for line in ip.stats_lines(busy)[:2]] == [
        "····RX:··bytes·packets·errors·dropped··missed···mcast···········",
        "····9599433239··266136······0·······0·······0·······0·",
    ]


def test_links_as_json(run: Run) -> None:
    [lo, _] = json.loads(run("link", "-s", "-j"))
    assert json.dumps(lo, separators=(",", ":")) == (
        '{"ifindex":1,"ifname":"lo","flags":["LOOPBACK","UP","LOWER_UP"],"mtu":65536,"qdisc":"noqueue","operstate":"UNKNOWN","linkmode":"DEFAULT",'
        '"group":"default","txqlen":1000,"link_type":"loopback","address":"00:00:00:00:00:00","broadcast":"00:00:00:00:00:00","stats64":{"rx":{"bytes":0,'
        '"packets":0,"errors":0,"dropped":0,"over_errors":0,"multicast":0},"tx":{"bytes":0,"packets":0,"errors":0,"dropped":0,"carrier_errors":0,'
        '"collisions":0}}}'
    )


def test_brief(run: Run) -> None:
    assert dotted(run("link", "-br")) == (
        "lo···············UNKNOWN········00:00:00:00:00:00·<LOOPBACK,UP,LOWER_UP>·\n"
        "v0···············UP·············2a:86:d2:50:02:db·<BROADCAST,MULTICAST,UP,LOWER_UP>·\n"
    )
    assert dotted(run("addr", "-br", "show", "lo")) == "lo···············UNKNOWN········127.0.0.1/8·::1/128·\n"
    assert run("addr", "-br", "-j", "lo") == (
        '[{"ifname":"lo","operstate":"UNKNOWN","addr_info":[{"local":"127.0.0.1","prefixlen":8},{"local":"::1","prefixlen":128}]}]\n'
    )


def test_a_link_that_is_down_or_has_no_addresses() -> None:
    assert ip.link_lines(V0 | {"up": False}, mode=True)[0] == (
        "2: v0: <BROADCAST,MULTICAST> mtu 1500 qdisc noqueue state DOWN mode DEFAULT group default qlen 1000"
    )
    assert ip.flags({"kind": "none", "up": True}) == ["POINTOPOINT", "MULTICAST", "NOARP", "UP", "LOWER_UP"]
    assert dotted(ip.link_lines(V0 | {"kind": "none", "address": None})[1]) == "····link/none·"


def test_addresses(run: Run) -> None:
    assert (
        dotted(run("addr"))
        == """\
1:·lo:·<LOOPBACK,UP,LOWER_UP>·mtu·65536·qdisc·noqueue·state·UNKNOWN·group·default·qlen·1000
····link/loopback·00:00:00:00:00:00·brd·00:00:00:00:00:00
····inet·127.0.0.1/8·scope·host·lo
·······valid_lft·forever·preferred_lft·forever
····inet6·::1/128·scope·host·
·······valid_lft·forever·preferred_lft·forever
2:·v0:·<BROADCAST,MULTICAST,UP,LOWER_UP>·mtu·1500·qdisc·noqueue·state·UP·group·default·qlen·1000
····link/ether·2a:86:d2:50:02:db·brd·ff:ff:ff:ff:ff:ff
····inet·10.5.0.1/24·scope·global·v0
·······valid_lft·forever·preferred_lft·forever
····inet·192.0.2.9/32·scope·global·v0
·······valid_lft·forever·preferred_lft·forever
····inet·10.5.0.3/24·scope·global·secondary·v0
·······valid_lft·forever·preferred_lft·forever
····inet6·fd07::1/64·scope·global·deprecated·tentative·
·······valid_lft·forever·preferred_lft·0sec
····inet6·fd06::1/64·scope·global·tentative·dynamic·
·······valid_lft·1000sec·preferred_lft·100sec
····inet6·fe80::2886:d2ff:fe50:2db/64·scope·link·
·······valid_lft·forever·preferred_lft·forever
"""
    )


def test_addresses_of_one_family(run: Run) -> None:
    assert (
        dotted(run("addr", "-4", "show", "dev", "lo"))
        == """\
1:·lo:·<LOOPBACK,UP,LOWER_UP>·mtu·65536·qdisc·noqueue·state·UNKNOWN·group·default·qlen·1000
····inet·127.0.0.1/8·scope·host·lo
·······valid_lft·forever·preferred_lft·forever
"""
    )
    assert run("addr", "-6", "-j", "lo") == (
        '[{"ifindex":1,"ifname":"lo","flags":["LOOPBACK","UP","LOWER_UP"],"mtu":65536,"operstate":"UNKNOWN","txqlen":1000,"addr_info":[{"family":"inet6",'
        '"local":"::1","prefixlen":128,"scope":"host","valid_life_time":4294967295,"preferred_life_time":4294967295}]}]\n'
    )


def test_addresses_as_json(run: Run) -> None:
    [v0] = json.loads(run("addr", "-j", "v0"))
    assert [json.dumps(entry, separators=(",", ":")) for entry in v0["addr_info"][2:5]] == [
        '{"family":"inet","local":"10.5.0.3","prefixlen":24,"scope":"global","secondary":true,"label":"v0","valid_life_time":4294967295,'
        '"preferred_life_time":4294967295}',
        '{"family":"inet6","local":"fd07::1","prefixlen":64,"scope":"global","deprecated":true,"tentative":true,"valid_life_time":4294967295,'
        '"preferred_life_time":0}',
        '{"family":"inet6","local":"fd06::1","prefixlen":64,"scope":"global","tentative":true,"dynamic":true,"valid_life_time":1000,"preferred_life_time":100}',
    ]


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        ("link show nope", 1, 'Error: Device "nope" does not exist.'),
        ("neigh show nud bogus", 2, "nud state 'bogus' is not one of all, none, incomplete,"),
        ("neigh show dev", 2, "dev needs a value."),
        ("neigh 10.5.0.300", 2, "an address or prefix is expected rather than '10.5.0.300'."),
        ("route show 10.0.0.0/8 11.0.0.0/8", 2, "'11.0.0.0/8' is not expected here: [show] [PREFIX] [dev NAME]."),
        ("route get 10.5.0.9", 2, "read-only: [show] [PREFIX] [dev NAME], no 'get'."),
        ("route get", 2, "read-only: [show] [PREFIX] [dev NAME], no 'get'."),
        ("route add 10.6.0.0/16 dev v0", 2, "read-only: [show] [PREFIX] [dev NAME], no 'add'."),
        ("route del default", 2, "read-only: [show] [PREFIX] [dev NAME], no 'del'."),
        ("neigh flush dev v0", 2, "read-only: [show] [[to] PREFIX] [dev NAME] [nud STATE], no 'flush'."),
        ("link set nosuch up", 2, "read-only: [show] [[dev] NAME], no 'set'."),
        ("addr add 10.1.1.1 dev v0", 2, "read-only: [show] [[dev] NAME], no 'add'."),
        ("addr -4 -6", 2, "-4 and -6"),
    ],
)
def test_wrong_usage_is_one_line(run: Run, words: str, status: int, complaint: str) -> None:
    assert complaint in run(*words.split(), status=status)


@pytest.mark.parametrize("words", ["route add default", "neigh flush", "link set nosuch up", "addr add 10.1.1.1 dev x"])
def test_wrong_usage_is_told_before_a_stack_is_looked_for(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "running", list)
    result = CliRunner().invoke(cli, words.split())
    assert result.exit_code == 2
    assert "read-only: [show]" in result.output
