"""Profiles: the defaults of other kernels, as their own documentation and commits have them."""

from __future__ import annotations

import errno

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.net import sysctl
from pytcp.net.stack import Stack
from pytcp.net.sysctl import Sysctl
from pytcp.tcp import profiles
from pytcp.tcp.sysctl import TABLE, TcpSysctl


@pytest.mark.parametrize(
    ("name", "rmem", "limit", "challenge", "linear", "at", "reset", "ratio", "follows"),
    [
        # Documentation/networking/ip-sysctl of each release; linux-tcp §3.5, §6.3, §7.1
        ("linux-3.18", 87380, 131072, 100, 0, "sendmsg", "cong_avoid", (128, 0), 0),
        ("linux-5.15", 131072, 1048576, 1000, 0, "xmit", "cong_avoid", (128, 0), 0),
        ("linux-6.6", 131072, 1048576, 0x7FFFFFFF, 4, "xmit", "update_gated", (65, 1), 0),
        ("linux-6.18", 131072, 4194304, 0x7FFFFFFF, 4, "xmit", "update", (128, 1), 1),
        ("mainline", 131072, 4194304, 0x7FFFFFFF, 4, "xmit", "update", (128, 1), 1),
    ],
)
def test_a_profile_has_the_defaults_of_its_release(
    name: str, rmem: int, limit: int, challenge: int, linear: int, at: str, reset: str, ratio: tuple[int, int], follows: int
) -> None:
    values = Stack(VirtualRuntime(), seed=1, profile=name).sysctl
    assert (values.tcp_rmem[1], values.tcp_limit_output_bytes, values.tcp_challenge_ack_limit, values.tcp_syn_linear_timeouts) == (
        rmem, limit, challenge, linear,
    )  # fmt: skip
    assert (values.autosize_at, values.hystart_reset) == (at, reset)
    assert ((values.scaling_ratio_default, values.scaling_ratio_measured), values.clamp_follows_ratio) == (ratio, follows)
    assert values.profile == name
    assert values.sized_by_sendmsg == (at == "sendmsg"), "derived values follow"


def test_the_default_profile_is_what_the_engine_has_anyway() -> None:
    assert {attr: getattr(TcpSysctl(), attr) for attr in profiles.settings("linux-6.18")} == profiles.settings("linux-6.18")


def test_every_line_names_a_sysctl_once_and_has_a_value_of_its_kind_for_each_profile() -> None:
    known = {entry.attr: entry for entry in TABLE}
    assert len({row.attr for row in profiles.ROWS}) == len(profiles.ROWS)
    for row in profiles.ROWS:
        entry = known[row.attr]
        assert len(row.values) == len(profiles.NAMES)
        assert row.source in ("doc", "commit", "measured", "computed")
        for value in row.values:
            sysctl.set_(Sysctl(), entry.name, value)  # raises for what the table would not take


def test_choosing_a_profile_sets_the_lot() -> None:
    values = Sysctl()
    sysctl.set_(values, "pytcp.profile", "linux-3.18")
    sysctl.set_(values, "net.ipv4.tcp_sack", 0)
    sysctl.set_(values, "net.ipv4.icmp_ratelimit", 7)
    sysctl.set_(values, "pytcp.profile", "linux-6.18")
    assert {name: value for name, value in sysctl.dump(values).items() if value != sysctl.dump(Sysctl())[name]} == {"net.ipv4.icmp_ratelimit": 7}


def test_an_unknown_profile_is_einval_and_all_are_named() -> None:
    with pytest.raises(OSError, match=r"'linux-4\.4' is not one of linux-3\.18, .*mainline") as caught:
        Stack(VirtualRuntime(), seed=1, profile="linux-4.4")
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("release", "profile"),
    [
        ("6.18.44", "linux-6.18"),
        ("6.6.0-14-generic", "linux-6.6"),
        ("6.8.12-pve", "linux-6.6"),
        ("5.15.0-91-generic", "linux-5.15"),
        ("4.4.302", "linux-3.18"),
        ("2.6.32-754.el6.x86_64", "linux-3.18"),
        ("7.1", "linux-6.18"),  # never the one that was not compared
        ("6.18-rc3", "linux-6.18"),
        ("FreeBSD", "linux-6.18"),
    ],
)
def test_a_kernels_own_name_leads_to_the_nearest_profile_that_is_not_younger(release: str, profile: str) -> None:
    assert profiles.nearest(release) == profile
