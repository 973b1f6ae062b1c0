"""Sysctls by name, and counters by nstat's names."""

from __future__ import annotations

import errno

import pytest

from pytcp.net import sysctl
from pytcp.net.counters import Mib
from pytcp.net.sysctl import Sysctl, UnknownSysctl


def test_a_value_is_read_and_written_by_its_dotted_or_slashed_name() -> None:
    values = Sysctl()
    sysctl.set_(values, "net.ipv4.icmp_ratelimit", 5)
    sysctl.set_(values, "net/ipv4/ipfrag_time", "12")
    assert (values.icmp_ratelimit, sysctl.get(values, "net/ipv4/ipfrag_time")) == (5, 12)


def test_names_of_one_interface_mean_the_whole_stack() -> None:
    values = Sysctl()
    sysctl.set_(values, "net.ipv6.conf.eth0.dad_transmits", 3)
    sysctl.set_(values, "net.ipv4.neigh.eth0.ucast_solicit", 7)
    assert sysctl.get(values, "net.ipv6.conf.default.dad_transmits") == 3
    assert values.neigh4_ucast_solicit == 7


def test_triples_take_three_numbers() -> None:
    values = Sysctl()
    sysctl.set_(values, "net.ipv4.tcp_rmem", "4096 65536 1048576")
    assert values.tcp_rmem == (4096, 65536, 1048576)
    with pytest.raises(OSError, match="takes 3 numbers") as caught:
        sysctl.set_(values, "net.ipv4.tcp_rmem", 4096)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("net.ipv4.tcp_autocorking", 2),
        ("net.ipv4.ip_default_ttl", 0),
        ("net.ipv4.ip_default_ttl", 256),
        ("net.ipv6.conf.all.accept_ra", 3),
        ("net.ipv4.icmp_ratelimit", "soon"),
        ("net.ipv4.ip_local_port_range", (61000, 60000)),
        ("pytcp.hystart_reset", "never"),
    ],
)
def test_what_the_kernel_would_refuse_is_einval(name: str, value: int | str | tuple[int, int]) -> None:
    with pytest.raises(OSError) as caught:
        sysctl.set_(Sysctl(), name, value)
    assert caught.value.errno == errno.EINVAL


def test_an_unknown_name_is_enoent_and_near_ones_are_named() -> None:
    with pytest.raises(UnknownSysctl, match=r"net\.ipv4\.tcp_autocorking") as caught:
        sysctl.get(Sysctl(), "net.ipv4.tcp_autocork")
    assert caught.value.errno == errno.ENOENT


def test_a_variant_is_one_of_its_words() -> None:
    values = Sysctl()
    sysctl.set_(values, "pytcp.autosize_at", "sendmsg")
    assert values.autosize_at == "sendmsg"


def test_a_tick_follows_hz() -> None:
    values = Sysctl()
    sysctl.set_(values, "pytcp.hz", 1000)
    assert values.tick_ns == 1_000_000


def test_the_listing_has_every_name_once_and_linux_defaults() -> None:
    listing = sysctl.dump(Sysctl())
    assert len(listing) == len(sysctl.TABLE)
    # from a fresh namespace of the modelled kernel
    assert listing["net.ipv4.icmp_ratemask"] == 6168
    assert listing["net.ipv4.ipfrag_high_thresh"] == 4194304
    assert listing["net.ipv6.ip6frag_time"] == 60
    assert listing["net.ipv4.neigh.default.unres_qlen_bytes"] == 212992
    assert listing["net.ipv6.conf.all.router_solicitations"] == -1


def test_counters_are_listed_by_the_names_nstat_prints() -> None:
    mib = Mib()
    mib.IpInReceives += 3
    mib.DelayedACKs += 1
    mib.IPReversePathFilter += 1
    mib.count("IcmpMsgInType8")
    mib.count("IcmpMsgInType8")
    assert mib.snapshot() == {"IcmpMsgInType8": 2, "IpInReceives": 3, "TcpExtDelayedACKs": 1, "TcpExtIPReversePathFilter": 1}
    everything = mib.snapshot(zeros=True)
    assert everything["UdpNoPorts"] == 0
    assert everything["Ip6InReceives"] == 0
    assert everything["TcpActiveOpens"] == 0
