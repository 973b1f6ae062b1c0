"""Sysctls by name: TCP's (`tcp.sysctl`) and those of the host around it, with the kernel's ranges.

One value per stack: what Linux keeps per interface (`conf.all`, `conf.default`, `conf.eth0`,
`neigh.default`, ...) is one value here under all those names. Names and defaults are Linux 6.18's
(`net.ipv4.icmp_ratelimit`); the stack's own start with `pytcp.`.
"""

from __future__ import annotations

import difflib
import errno
import re
from typing import cast

from pytcp.tcp import cong, profiles
from pytcp.tcp.sysctl import TABLE as TCP_TABLE
from pytcp.tcp.sysctl import Entry, TcpSysctl

_I31 = 0x7FFFFFFF
Setting = int | str | tuple[int, ...]


class Sysctl(TcpSysctl):
    """All values of one stack, as attributes."""

    # net.core
    busy_poll: int = 0
    # beside the kernel's
    halt_poll: int = 50
    # net.ipv4
    ip_nonlocal_bind: int = 0
    ipfrag_high_thresh: int = 4194304
    ipfrag_time: int = 30
    ipfrag_max_dist: int = 64
    icmp_echo_ignore_all: int = 0
    icmp_echo_ignore_broadcasts: int = 1
    icmp_ratelimit: int = 1000
    icmp_ratemask: int = 6168
    icmp_msgs_per_sec: int = 1000
    icmp_msgs_burst: int = 50
    mtu_expires: int = 600
    min_adv_mss: int = 256
    rp_filter: int = 0
    accept_redirects4: int = 1
    secure_redirects: int = 1
    shared_media: int = 1
    accept_source_route4: int = 0
    arp_ignore: int = 0
    arp_announce: int = 0
    arp_accept: int = 0
    arp_notify: int = 0
    neigh4_base_reachable_time_ms: int = 30000
    neigh4_retrans_time_ms: int = 1000
    neigh4_delay_first_probe_time: int = 5
    neigh4_mcast_solicit: int = 3
    neigh4_ucast_solicit: int = 3
    neigh4_mcast_resolicit: int = 0
    neigh4_unres_qlen_bytes: int = 212992
    neigh4_locktime: int = 100
    neigh4_gc_thresh3: int = 1024
    # net.ipv6
    auto_flowlabels: int = 1
    flowlabel_reflect: int = 0
    bindv6only: int = 0
    ip6frag_high_thresh: int = 4194304
    ip6frag_time: int = 60
    icmp6_ratelimit: int = 100
    icmp6_echo_ignore_all: int = 0
    icmp6_echo_ignore_multicast: int = 0
    max_hbh_opts_number: int = 8
    max_dst_opts_number: int = 8
    mtu_expires6: int = 600
    min_adv_mss6: int = 1220
    forwarding6: int = 0
    dad_transmits: int = 1
    enhanced_dad: int = 1
    optimistic_dad: int = 0
    ndisc_notify: int = 0
    suppress_frag_ndisc: int = 1
    accept_ra: int = 1
    accept_ra_defrtr: int = 1
    accept_ra_pinfo: int = 1
    accept_ra_mtu: int = 1
    accept_ra_min_hop_limit: int = 1
    autoconf: int = 1
    accept_redirects6: int = 1
    router_solicitations: int = -1
    router_solicitation_interval: int = 4
    router_solicitation_max_interval: int = 3600
    max_addresses: int = 16
    neigh6_base_reachable_time_ms: int = 30000
    neigh6_retrans_time_ms: int = 1000
    neigh6_delay_first_probe_time: int = 5
    neigh6_mcast_solicit: int = 3
    neigh6_ucast_solicit: int = 3
    neigh6_mcast_resolicit: int = 0
    neigh6_unres_qlen_bytes: int = 212992
    neigh6_locktime: int = 0
    neigh6_gc_thresh3: int = 1024


def _v4(attr: str, low: int | None, high: int | None, meaning: str) -> Entry:
    return Entry(f"net.ipv4.{attr}", attr, low, high, meaning)


def _conf4(name: str, low: int | None, high: int | None, meaning: str, attr: str = "") -> Entry:
    return Entry(f"net.ipv4.conf.all.{name}", attr or name, low, high, meaning)


def _conf6(name: str, low: int | None, high: int | None, meaning: str, attr: str = "") -> Entry:
    return Entry(f"net.ipv6.conf.all.{name}", attr or name, low, high, meaning)


def _neigh(family: int) -> tuple[Entry, ...]:
    names = (
        ("base_reachable_time_ms", 0, _I31, "mean time an entry is believed after a confirmation, ms"),
        ("retrans_time_ms", 1, _I31, "time between two solicitations, ms"),
        ("delay_first_probe_time", 0, _I31, "seconds between using a stale entry and probing it"),
        ("mcast_solicit", 0, _I31, "broadcast or multicast solicitations before an address counts as unreachable"),
        ("ucast_solicit", 0, _I31, "unicast probes before a stale entry fails"),
        ("mcast_resolicit", 0, _I31, "multicast solicitations after the unicast probes"),
        ("unres_qlen_bytes", 0, _I31, "memory of packets waiting for one address, bytes of truesize"),
        ("locktime", 0, _I31, "time an entry resists replacement, 10 ms units"),
        ("gc_thresh3", 1, _I31, "most entries of one interface"),
    )
    return tuple(Entry(f"net.ipv{family}.neigh.default.{name}", f"neigh{family}_{name}", low, high, meaning) for name, low, high, meaning in names)


TABLE: tuple[Entry, ...] = (
    *TCP_TABLE,
    Entry("net.core.busy_poll", "busy_poll", 0, 1_000_000, "us devices are polled, instead of sleeping, after a frame, timer or call, in real time; 0 off"),
    Entry("pytcp.halt_poll", "halt_poll", 0, 1_000_000, "us devices are polled before a sleep after a short wait (as guest_halt_poll_ns); 0 off"),
    _v4("ip_default_ttl", 1, 255, "TTL of what the host sends"),
    _v4("ip_nonlocal_bind", 0, 1, "allow binding to addresses the host does not have"),
    _v4("ipfrag_high_thresh", 0, None, "memory of incomplete IPv4 datagrams, bytes"),
    _v4("ipfrag_time", 0, _I31, "seconds an incomplete IPv4 datagram is kept"),
    _v4("ipfrag_max_dist", 0, _I31, "fragments of other datagrams from one source that make a queue obsolete"),
    _v4("icmp_echo_ignore_all", 0, 1, "do not answer echo requests"),
    _v4("icmp_echo_ignore_broadcasts", 0, 1, "do not answer echo requests to broadcast or multicast"),
    _v4("icmp_ratelimit", 0, _I31, "ms per ICMP error to one destination; 0 = no limit"),
    _v4("icmp_ratemask", 0, 0xFFFFFFFF, "ICMP types that are limited per destination, as bits"),
    _v4("icmp_msgs_per_sec", 0, _I31, "limited ICMP messages per second, whole host"),
    _v4("icmp_msgs_burst", 0, _I31, "burst of the host-wide limit"),
    Entry("net.ipv4.route.mtu_expires", "mtu_expires", 0, _I31, "seconds a learnt path MTU is kept"),
    Entry("net.ipv4.route.min_adv_mss", "min_adv_mss", 0, _I31, "smallest MSS advertised"),
    _conf4("rp_filter", 0, 2, "check that the source is reachable: 0 no, 1 through the same interface, 2 at all"),
    _conf4("accept_redirects", 0, 1, "follow ICMP redirects", "accept_redirects4"),
    _conf4("secure_redirects", 0, 1, "only to gateways of the default router list"),
    _conf4("shared_media", 0, 1, "the link carries several subnets"),
    _conf4("accept_source_route", 0, 0, "source-routed packets are accepted; here they never are", "accept_source_route4"),
    _conf4("arp_ignore", 0, 8, "which requests are answered: 0 for any local address, 1 for one of the interface"),
    _conf4("arp_announce", 0, 2, "choice of the sender address in requests"),
    _conf4("arp_accept", 0, 2, "make an entry from gratuitous ARP"),
    _conf4("arp_notify", 0, 1, "announce addresses when the link comes up"),
    *_neigh(4),
    Entry("net.ipv6.auto_flowlabels", "auto_flowlabels", 0, 3, "give every flow a label"),
    Entry("net.ipv6.flowlabel_reflect", "flowlabel_reflect", 0, 7, "answer with the label received: 1 established, 2 reset, 4 echo"),
    Entry("net.ipv6.bindv6only", "bindv6only", 0, 1, "IPv6 wildcard sockets do not take IPv4"),
    Entry("net.ipv6.ip6frag_high_thresh", "ip6frag_high_thresh", 0, None, "memory of incomplete IPv6 packets, bytes"),
    Entry("net.ipv6.ip6frag_time", "ip6frag_time", 0, _I31, "seconds an incomplete IPv6 packet is kept"),
    Entry("net.ipv6.icmp.ratelimit", "icmp6_ratelimit", 0, _I31, "ms per ICMPv6 error to one destination; 0 = no limit"),
    Entry("net.ipv6.icmp.echo_ignore_all", "icmp6_echo_ignore_all", 0, 1, "do not answer echo requests"),
    Entry("net.ipv6.icmp.echo_ignore_multicast", "icmp6_echo_ignore_multicast", 0, 1, "do not answer echo requests to multicast"),
    Entry("net.ipv6.max_hbh_opts_number", "max_hbh_opts_number", None, _I31, "unknown hop-by-hop options put up with"),
    Entry("net.ipv6.max_dst_opts_number", "max_dst_opts_number", None, _I31, "unknown destination options put up with"),
    Entry("net.ipv6.route.mtu_expires", "mtu_expires6", 0, _I31, "seconds a learnt path MTU is kept"),
    Entry("net.ipv6.route.min_adv_mss", "min_adv_mss6", 0, _I31, "smallest MSS advertised"),
    _conf6("hop_limit", 1, 255, "hop limit of what the host sends"),
    _conf6("forwarding", 0, 1, "be a router: take nothing from router advertisements", "forwarding6"),
    _conf6("dad_transmits", 0, _I31, "duplicate address probes; 0 = addresses are valid at once"),
    _conf6("enhanced_dad", 0, 1, "put a nonce into duplicate address probes (RFC 7527)"),
    _conf6("optimistic_dad", 0, 1, "use addresses while they are being probed (RFC 4429)"),
    _conf6("ndisc_notify", 0, 1, "send an unsolicited advertisement when an address becomes valid"),
    _conf6("suppress_frag_ndisc", 0, 1, "ignore fragmented neighbour discovery (RFC 6980)"),
    _conf6("accept_ra", 0, 2, "take routes and addresses from router advertisements"),
    _conf6("accept_ra_defrtr", 0, 1, "take default routes"),
    _conf6("accept_ra_pinfo", 0, 1, "take prefixes"),
    _conf6("accept_ra_mtu", 0, 1, "take the MTU option"),
    _conf6("accept_ra_min_hop_limit", 0, 255, "smallest hop limit taken"),
    _conf6("autoconf", 0, 1, "make addresses from advertised prefixes"),
    _conf6("accept_redirects", 0, 1, "follow ICMPv6 redirects", "accept_redirects6"),
    _conf6("router_solicitations", -1, _I31, "router solicitations sent; -1 = until a router answers"),
    _conf6("router_solicitation_interval", 0, _I31, "seconds to the second, doubling after"),
    _conf6("router_solicitation_max_interval", 0, _I31, "largest interval, seconds"),
    _conf6("max_addresses", 0, _I31, "most autoconfigured addresses of an interface; 0 = no limit"),
    *_neigh(6),
)

_BY_NAME = {entry.name: entry for entry in TABLE}
_PER_INTERFACE = re.compile(r"^(net\.ipv[46]\.conf)\.[^.]+\.")
_PER_NEIGH = re.compile(r"^(net\.ipv[46]\.neigh)\.[^.]+\.")


class UnknownSysctl(OSError):
    """There is no sysctl of that name (ENOENT); the message names near ones."""

    def __init__(self, name: str) -> None:
        near = difflib.get_close_matches(name, _BY_NAME, n=3, cutoff=0.6)
        hint = f"; near: {', '.join(near)}" if near else ""
        super().__init__(errno.ENOENT, f"no sysctl {name!r}{hint}")
        self.near = near


def lookup(name: str) -> Entry:
    """The description of a sysctl by its dotted (or slashed) name. Raises UnknownSysctl, TypeError."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a sysctl is a string, not {name!r}")
    dotted = name.replace("/", ".")
    dotted = _PER_INTERFACE.sub(r"\1.all.", dotted)
    dotted = _PER_NEIGH.sub(r"\1.default.", dotted)
    entry = _BY_NAME.get(dotted)
    if entry is None:
        raise UnknownSysctl(name)
    return entry


def get(sysctl: Sysctl, name: str) -> Setting:
    """The value in force. Raises UnknownSysctl."""
    return cast("Setting", getattr(sysctl, lookup(name).attr))


def _as_ints(name: str, value: Setting, count: int) -> tuple[int, ...]:
    if not (isinstance(value, str | int) or (isinstance(value, tuple | list) and all(isinstance(number, int) for number in value))):
        raise TypeError(f"{name} is a number, several in a tuple, or a string of them, not {value!r}")
    try:
        numbers = tuple(int(word, 0) for word in value.split()) if isinstance(value, str) else (value,) if isinstance(value, int) else tuple(value)
    except ValueError:
        raise OSError(errno.EINVAL, f"{name}: {value!r} is not a number") from None
    if len(numbers) != count:
        raise OSError(errno.EINVAL, f"{name} takes {count} number{'s' if count > 1 else ''}, not {len(numbers)}")
    return numbers


def set_(sysctl: Sysctl, name: str, value: Setting) -> None:
    """Write a sysctl: a number, a string as for `sysctl -w`, or a tuple for those of several numbers.

    Raises UnknownSysctl (ENOENT), or OSError EINVAL for what the kernel would refuse to take.
    """
    entry = lookup(name)
    old = getattr(sysctl, entry.attr)
    if entry.attr == "profile":
        profiles.apply(sysctl, _check_word(sysctl, entry, str(value).strip()))
        return
    if isinstance(old, str):
        setattr(sysctl, entry.attr, _check_word(sysctl, entry, str(value).strip()))
    else:
        numbers = _as_ints(name, value, len(old) if isinstance(old, tuple) else 1)
        for number in numbers:
            if (entry.low is not None and number < entry.low) or (entry.high is not None and number > entry.high):
                allowed = f"{number} is outside {entry.low}..{entry.high}" if entry.low != entry.high else f"only {entry.low} is possible"
                raise OSError(errno.EINVAL, f"{name}: {allowed}")
        if entry.attr == "ip_local_port_range" and numbers[0] > numbers[1]:
            raise OSError(errno.EINVAL, f"{name}: the first port is above the last")
        setattr(sysctl, entry.attr, numbers if isinstance(old, tuple) else numbers[0])
    sysctl.update_derived()


def _check_word(sysctl: Sysctl, entry: Entry, word: str) -> str:
    if entry.attr == "tcp_congestion_control":
        if word not in cong.available():
            raise OSError(errno.ENOENT, f"{entry.name}: no congestion control {word!r}; there are {', '.join(cong.available())}")
    elif entry.attr == "tcp_fastopen_key":
        from pytcp.tcp import fastopen

        try:
            word = fastopen.format_key(fastopen.parse_key(word))
            sysctl.fastopen_key_known = True
        except ValueError as error:
            raise OSError(errno.EINVAL, f"{entry.name}: {error}") from None
    else:
        if word not in entry.words:
            raise OSError(errno.EINVAL, f"{entry.name}: {word!r} is not one of {', '.join(entry.words)}")
    return word


def explain(sysctl: Sysctl, entry: Entry) -> dict[str, Setting | list[str] | None]:
    """What one sysctl is: name, value, meaning, default under the profile in force, what it takes, where it comes from."""
    default = profiles.settings(sysctl.profile).get(entry.attr, getattr(Sysctl, entry.attr))
    allowed = " | ".join(cong.available() if entry.attr == "tcp_congestion_control" else entry.words)
    if not allowed and not isinstance(default, str):
        low, high = entry.low, entry.high
        if low is None:
            allowed = "any number" if high is None else f"up to {high}"
        else:
            allowed = f"{low} only" if low == high else f"{low} and more" if high is None else f"{low}..{high}"
    return {
        "name": entry.name,
        "value": getattr(sysctl, entry.attr),
        "meaning": entry.meaning,
        "default": default,
        "allowed": allowed,
        "origin": entry.origin,
    }


def dump(sysctl: Sysctl) -> dict[str, Setting]:
    """Every sysctl by name, sorted: what `sysctl -a` shows."""
    return {entry.name: getattr(sysctl, entry.attr) for entry in sorted(TABLE)}
