"""Profiles: the defaults of other kernels than 6.18, whose are the defaults of `sysctl`.

A profile sets every sysctl of `sysctl.TABLE`: the value of its column here where there is a line, else
6.18's. Each line says what it is known from: "doc", the release's own ip-sysctl page; "commit", the
commit that changed it, named in `sysctl.TABLE`; "measured", on a running 6.18.44; "computed", from
structure sizes of an x86-64 build. Releases are the .0 ones, without what stable updates brought later.

`mainline` is what was merged after 6.18. It has not been compared with a running kernel.
`pytcp.profile`, `open_stack(profile=...)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .sysctl import PROFILES, TABLE, TcpSysctl

if TYPE_CHECKING:
    from .sysctl import Value

NAMES = PROFILES
DEFAULT = TcpSysctl.profile
NOT_COMPARED = ("mainline",)

_INT_MAX = 0x7FFFFFFF


class Row(NamedTuple):
    """One setting through the releases of `NAMES`."""

    attr: str
    values: tuple[Value | str, ...]
    source: str  # doc, commit, measured, computed


def _row(attr: str, source: str, *values: Value | str) -> Row:
    return Row(attr, values, source)


ROWS: tuple[Row, ...] = (
    #     attribute                source              3.18               5.15            6.6             6.18           mainline
    _row("tcp_rmem", "doc", (4096, 87380, 6291456), (4096, 131072, 6291456), (4096, 131072, 6291456), (4096, 131072, 33554432), (4096, 131072, 33554432)),
    _row("rmem_max", "commit", 212992, 212992, 212992, 4194304, 4194304),
    _row("wmem_max", "commit", 212992, 212992, 212992, 4194304, 4194304),
    _row("somaxconn", "doc", 128, 4096, 4096, 4096, 4096),
    _row("ip_local_port_range", "doc", (32768, 61000), (32768, 60999), (32768, 60999), (32768, 60999), (32768, 60999)),
    _row("tcp_limit_output_bytes", "doc", 131072, 1048576, 1048576, 4194304, 4194304),
    _row("tcp_challenge_ack_limit", "doc", 100, 1000, _INT_MAX, _INT_MAX, _INT_MAX),
    _row("tcp_pacing_ca_ratio", "doc", 200, 120, 120, 120, 120),
    _row("tcp_tso_rtt_log", "commit", 0, 0, 9, 9, 9),
    _row("tcp_comp_sack_nr", "doc", 0, 44, 44, 44, 44),
    _row("tcp_syn_linear_timeouts", "doc", 0, 0, 4, 4, 4),
    _row("tcp_tw_reuse", "doc", 0, 2, 2, 2, 2),
    _row("tcp_ecn_fallback", "doc", 0, 1, 1, 1, 1),
    _row("tcp_pingpong_thresh", "commit", 1, 3, 1, 1, 1),
    _row("max_tcp_header", "computed", 320, 320, 320, 192, 192),
    _row("skb_base_truesize", "computed", 896, 1280, 896, 832, 832),
    _row("push_barrier", "commit", 0, 0, 0, 1, 1),
    _row("autosize_at", "commit", "sendmsg", "xmit", "xmit", "xmit", "xmit"),
    _row("tsq_cap", "commit", "always", "unpaced_only", "unpaced_only", "always", "always"),
    _row("keep_cwnd_limited", "commit", 0, 0, 1, 1, 1),
    _row("grow_skb", "commit", 0, 0, 0, 1, 1),
    _row("tso_defer_max_us", "commit", 0, 0, 0, 1000, 1000),
    _row("hystart_reset", "commit", "cong_avoid", "cong_avoid", "update_gated", "update", "update"),
    _row("init_rwnd", "commit", 20, 0, 0, 0, 0),
    _row("scaling_ratio_default", "commit", 128, 128, 65, 128, 128),
    _row("scaling_ratio_measured", "commit", 0, 0, 1, 1, 1),
    _row("clamp_follows_ratio", "commit", 0, 0, 0, 1, 1),
    _row("drs", "commit", "copied", "copied", "copied", "unqueued", "unqueued"),
    _row("rcvbuf_low_rtt_us", "commit", 0, 0, 0, 0, 1000),
    _row("rcvbuf_sets_clamp", "commit", 0, 0, 0, 0, 1),
    _row("comp_sack_rtt_percent", "doc", 5, 5, 5, 5, 33),
    _row("ack_full_push", "commit", 0, 0, 1, 1, 1),
)


def settings(name: str) -> dict[str, Value | str]:
    """Attribute → value of a profile, for every sysctl of `sysctl.TABLE` but the profile's name and a secret key. Raises KeyError."""
    if name not in NAMES:
        raise KeyError(name)
    column = NAMES.index(name)
    values = {entry.attr: getattr(TcpSysctl, entry.attr) for entry in TABLE if entry.attr not in ("profile", "tcp_fastopen_key")}
    values |= {row.attr: row.values[column] for row in ROWS}
    return values


def apply(sysctl: TcpSysctl, name: str) -> None:
    """Set every TCP sysctl to what it is in `name`; what the user had set before is lost. Raises KeyError."""
    for attr, value in settings(name).items():
        setattr(sysctl, attr, value)
    sysctl.profile = name
    sysctl.update_derived()


def nearest(release: str) -> str:
    """The profile for a kernel that calls itself `release` (`uname -r`): the youngest that is not younger than it.

    Kernels before the first get the first, text that is no release the default. `mainline` is never the answer.
    """
    number = _number(release)
    if number is None:
        return DEFAULT
    known = [(_number(name.partition("-")[2]) or (0, 0), name) for name in NAMES if name not in NOT_COMPARED]
    return max([pair for pair in known if pair[0] <= number] or known[:1])[1]


def _number(release: str) -> tuple[int, int] | None:
    major, _, rest = release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
