"""TCP's sysctls (Linux's names and defaults, 6.18) and pytcp's variants, as one flat object.

The engine reads `sk.sysctl.tcp_autocorking`: one attribute, no lookup by string. `TABLE` describes
each for people and programs (`pytcp.net.sysctl` reads and writes by dotted name and checks ranges).
Ranges are those the kernel accepts (measured, linux-sockets §7).
"""

from __future__ import annotations

from typing import NamedTuple

Value = int | tuple[int, ...]

PROFILES = ("linux-3.18", "linux-5.15", "linux-6.6", "linux-6.18", "mainline")


class TcpSysctl:
    """Values in force on one stack. Times carry their unit in the name or in `TABLE`."""

    tcp_abort_on_overflow: int = 0
    tcp_app_win: int = 31
    tcp_autocorking: int = 1
    tcp_base_mss: int = 1024
    tcp_challenge_ack_limit: int = 0x7FFFFFFF
    tcp_comp_sack_delay_ns: int = 1_000_000
    tcp_comp_sack_nr: int = 44
    tcp_comp_sack_slack_ns: int = 100_000
    tcp_dsack: int = 1
    tcp_early_retrans: int = 3
    tcp_ecn: int = 2
    tcp_ecn_fallback: int = 1
    tcp_fastopen: int = 1
    tcp_fastopen_blackhole_timeout_sec: int = 0
    tcp_fastopen_key: str = "00000000-00000000-00000000-00000000"
    tcp_fin_timeout: int = 60
    tcp_frto: int = 2
    tcp_invalid_ratelimit: int = 500
    tcp_keepalive_intvl: int = 75
    tcp_keepalive_probes: int = 9
    tcp_keepalive_time: int = 7200
    tcp_limit_output_bytes: int = 4194304
    tcp_max_orphans: int = 131072
    tcp_max_reordering: int = 300
    tcp_max_syn_backlog: int = 1024
    tcp_max_tw_buckets: int = 65536
    tcp_min_rtt_wlen: int = 300
    tcp_min_snd_mss: int = 48
    tcp_min_tso_segs: int = 2
    tcp_moderate_rcvbuf: int = 1
    tcp_mtu_probe_floor: int = 48
    tcp_mtu_probing: int = 0
    tcp_probe_interval: int = 600
    tcp_probe_threshold: int = 8
    tcp_no_metrics_save: int = 1
    tcp_notsent_lowat: int = 0xFFFFFFFF
    tcp_orphan_retries: int = 0
    tcp_pacing_ca_ratio: int = 120
    tcp_pacing_ss_ratio: int = 200
    tcp_pingpong_thresh: int = 1
    tcp_recovery: int = 1
    tcp_reflect_tos: int = 0
    tcp_reordering: int = 3
    tcp_retrans_collapse: int = 1
    tcp_retries1: int = 3
    tcp_retries2: int = 15
    tcp_rfc1337: int = 0
    tcp_rmem: tuple[int, int, int] = (4096, 131072, 33554432)
    tcp_rto_max_ms: int = 120000
    tcp_rto_min_us: int = 200000
    tcp_sack: int = 1
    tcp_shrink_window: int = 0
    tcp_slow_start_after_idle: int = 1
    tcp_stdurg: int = 0
    tcp_syn_linear_timeouts: int = 4
    tcp_syn_retries: int = 6
    tcp_synack_retries: int = 5
    tcp_syncookies: int = 1
    tcp_thin_linear_timeouts: int = 0
    tcp_timestamps: int = 1
    tcp_tso_rtt_log: int = 9
    tcp_tso_win_divisor: int = 3
    tcp_tw_reuse: int = 2
    tcp_tw_reuse_delay: int = 1000
    tcp_window_scaling: int = 1
    tcp_wmem: tuple[int, int, int] = (4096, 16384, 4194304)
    tcp_workaround_signed_windows: int = 0
    tcp_congestion_control: str = "cubic"
    # net.core
    somaxconn: int = 4096
    rmem_max: int = 4194304
    wmem_max: int = 4194304
    rmem_default: int = 212992
    wmem_default: int = 212992
    max_skb_frags: int = 17
    # net.ipv4 beside tcp_*
    ip_local_port_range: tuple[int, int] = (32768, 60999)
    ip_default_ttl: int = 64
    ip_no_pmtu_disc: int = 0
    min_pmtu: int = 552
    # net.ipv6
    hop_limit: int = 64
    # pytcp.*: facts of the modelled kernel's configuration, and variants of its algorithms (`profiles`)
    profile: str = PROFILES[3]
    hz: int = 250
    max_tcp_header: int = 192
    skb_base_truesize: int = 832
    autocork_nodelay: str = "mainline"
    autocork_cond: str = "rtx_nonempty"
    push_barrier: int = 1
    autosize_at: str = "xmit"
    tsq_cap: str = "always"
    half_cwnd_cap: int = 1
    keep_cwnd_limited: int = 1
    grow_skb: int = 1
    tso_defer_max_us: int = 1000
    hystart_reset: str = "update"
    init_rwnd: int = 0
    drs: str = "unqueued"
    rcvbuf_low_rtt_us: int = 0
    rcvbuf_sets_clamp: int = 0
    comp_sack_rtt_percent: int = 5
    ack_full_push: int = 1
    scaling_ratio_default: int = 128
    scaling_ratio_measured: int = 1
    clamp_follows_ratio: int = 1
    # parameters of the module tcp_cubic
    cubic_beta: int = 717
    cubic_fast_convergence: int = 1
    cubic_hystart: int = 1
    cubic_hystart_ack_delta_us: int = 2000
    cubic_hystart_detect: int = 3
    cubic_hystart_low_window: int = 16
    cubic_initial_ssthresh: int = 0
    cubic_tcp_friendliness: int = 1

    def __init__(self) -> None:
        # of its own, not its class's: CPython 3.11 specialises loads of the former only
        for cls in reversed(type(self).__mro__[:-1]):
            self.__dict__.update((name, getattr(cls, name)) for name in cls.__annotations__ if hasattr(cls, name))
        self.fastopen_key_known = False  # the key was set or has been made
        self.update_derived()

    def update_derived(self) -> None:
        """Recompute what the hot path wants ready; called after any write."""
        self.tick_ns: int = 1_000_000_000 // self.hz
        self.ato_min: int = self.hz // 25  # TCP_ATO_MIN = TCP_DELACK_MIN, jiffies
        # gaps up to this leave an ACK timeout of ato_min as it is (an odd ato_min never stays)
        self.ato_short_ns: int = -1 if self.ato_min & 1 else self.ato_min // 2 * self.tick_ns
        self.sized_by_sendmsg: bool = self.autosize_at == "sendmsg"
        self.tso_defer_max_ns: int = self.tso_defer_max_us * 1000 or 1 << 62
        self.tsq_capped_paced: bool = self.tsq_cap == "always"


class Entry(NamedTuple):
    """One sysctl as people see it."""

    name: str  # dotted, e.g. net.ipv4.tcp_sack
    attr: str
    low: int | None
    high: int | None
    meaning: str
    origin: str = ""  # where it comes from: releases and commits
    words: tuple[str, ...] = ()  # the values of a variant that is chosen by name


def _ipv4(attr: str, low: int | None, high: int | None, meaning: str, origin: str = "") -> Entry:
    return Entry(f"net.ipv4.{attr}", attr, low, high, meaning, origin)


def _pytcp(attr: str, low: int, high: int, meaning: str, origin: str) -> Entry:
    return Entry(f"pytcp.{attr}", attr, low, high, meaning, origin)


def _choice(attr: str, words: tuple[str, ...], meaning: str, origin: str) -> Entry:
    return Entry(f"pytcp.{attr}", attr, None, None, meaning, origin, words)


_I31 = 0x7FFFFFFF


def _cubic(name: str, meaning: str) -> Entry:
    return Entry(f"pytcp.tcp_cubic.{name}", f"cubic_{name}", None, _I31, meaning, f"/sys/module/tcp_cubic/parameters/{name}")


TABLE: tuple[Entry, ...] = (
    _ipv4("tcp_abort_on_overflow", 0, 255, "answer a full accept queue with RST instead of silence"),
    _ipv4("tcp_app_win", 0, 31, "share 1/2^n of the window kept from being offered; 31 = none"),
    _ipv4("tcp_autocorking", 0, 1, "hold a small write while earlier data is still in the host queue"),
    _ipv4("tcp_base_mss", None, _I31, "MSS black-hole detection falls back to"),
    _ipv4("tcp_challenge_ack_limit", 0, _I31, "challenge ACKs per second and host; INT_MAX = no limit"),
    _ipv4("tcp_comp_sack_delay_ns", 0, _I31, "longest delay of a compressed SACK, ns"),
    _ipv4("tcp_comp_sack_nr", 0, 255, "most SACKs compressed into one; 0 = off"),
    _ipv4("tcp_comp_sack_slack_ns", 0, _I31, "slack of the SACK compression timer, ns"),
    _ipv4("tcp_dsack", 0, 255, "report duplicates received by DSACK (RFC 2883)"),
    _ipv4("tcp_early_retrans", 0, 4, "3, 4: tail loss probes on"),
    _ipv4("tcp_ecn", 0, 2, "0 off, 1 request and accept, 2 accept only"),
    _ipv4("tcp_ecn_fallback", 0, 1, "repeat a SYN without ECN when the first got no answer"),
    _ipv4("tcp_fastopen", None, _I31, "bits: 1 client, 2 server, 4 client without cookie, 0x200 server without, 0x400 every listener"),
    _ipv4("tcp_fastopen_blackhole_timeout_sec", 0, _I31, "pause of Fast Open after SYNs with it were swallowed, s; 0 = none"),
    _ipv4("tcp_fastopen_key", None, None, "key of Fast Open cookies, and after a comma one that is accepted as well"),
    _ipv4("tcp_fin_timeout", None, 120000, "seconds an orphan stays in FIN_WAIT2"),
    _ipv4("tcp_frto", 0, 255, "detect spurious RTOs (RFC 5682)"),
    _ipv4("tcp_invalid_ratelimit", 0, _I31, "ms between answers to invalid segments, per socket"),
    _ipv4("tcp_keepalive_intvl", None, 120000, "seconds between keepalive probes"),
    _ipv4("tcp_keepalive_probes", 0, 255, "unanswered probes before the connection is reset"),
    _ipv4("tcp_keepalive_time", None, 120000, "idle seconds before the first keepalive probe"),
    _ipv4("tcp_limit_output_bytes", 0, _I31, "TSQ: most bytes (truesize) one socket keeps in the host queue"),
    _ipv4("tcp_max_orphans", 0, _I31, "closed connections the host keeps until they are over"),
    _ipv4("tcp_max_reordering", 0, _I31, "upper bound of the reordering metric, packets"),
    _ipv4("tcp_max_syn_backlog", 0, _I31, "half-open connections remembered per listener"),
    _ipv4("tcp_max_tw_buckets", 0, _I31, "TIME_WAIT entries kept on the host"),
    _ipv4("tcp_min_rtt_wlen", 0, 86400, "window of the minimum-RTT filter, s"),
    _ipv4("tcp_min_snd_mss", 48, 65535, "smallest MSS used, whatever the peer asks for"),
    _ipv4("tcp_min_tso_segs", 1, _I31, "smallest autosized TSO burst, segments"),
    _ipv4("tcp_moderate_rcvbuf", 0, 1, "grow the receive buffer with the connection (DRS)"),
    _ipv4("tcp_mtu_probe_floor", 48, 65535, "smallest MSS of MTU probing"),
    _ipv4("tcp_mtu_probing", 0, 255, "0 off, 1 after a black hole, 2 always"),
    _ipv4("tcp_probe_interval", 0, 0xFFFFFFFF, "seconds after which MTU probing searches again"),
    _ipv4("tcp_probe_threshold", None, _I31, "bytes between bottom and top at which the search ends"),
    _ipv4("tcp_no_metrics_save", 1, 1, "RTT and cwnd of closed connections are not remembered; here they never are"),
    _ipv4("tcp_notsent_lowat", 0, 0xFFFFFFFF, "default TCP_NOTSENT_LOWAT, bytes"),
    _ipv4("tcp_orphan_retries", 0, 255, "retries of a closed connection; 0 = 8"),
    _ipv4("tcp_pacing_ca_ratio", 0, 1000, "pacing rate in congestion avoidance, % of cwnd/srtt"),
    _ipv4("tcp_pacing_ss_ratio", 0, 1000, "pacing rate in slow start, % of cwnd/srtt"),
    _ipv4("tcp_pingpong_thresh", 1, 255, "replies before delayed-ACK mode counts as interactive"),
    _ipv4("tcp_recovery", 0, 255, "RACK: 1 on, 2 static reorder window, 4 no 3-SACK shortcut"),
    _ipv4("tcp_reflect_tos", 0, 1, "answer a SYN with its own DSCP"),
    _ipv4("tcp_reordering", 1, 256, "initial reordering metric, packets"),
    _ipv4("tcp_retrans_collapse", 0, 255, "merge small neighbours on retransmission"),
    _ipv4("tcp_retries1", 0, 255, "RTOs before the route is suspected"),
    _ipv4("tcp_retries2", 0, 255, "RTOs, as a time model, before the connection is given up"),
    _ipv4("tcp_rfc1337", 0, 255, "ignore RST in TIME_WAIT"),
    _ipv4("tcp_rmem", 1, _I31, "receive buffer: minimum, default, maximum, bytes"),
    _ipv4("tcp_rto_max_ms", 1000, 120000, "largest RTO, ms"),
    _ipv4("tcp_rto_min_us", 1, _I31, "smallest variance term of the RTO, us"),
    _ipv4("tcp_sack", 0, 255, "offer selective acknowledgements (RFC 2018)"),
    _ipv4("tcp_shrink_window", 0, 1, "let the offered window's right edge move left"),
    _ipv4("tcp_slow_start_after_idle", 0, 255, "decay cwnd over an idle RTO (RFC 2861)"),
    _ipv4("tcp_stdurg", 0, 255, "urgent pointer as RFC 1122 instead of BSD"),
    _ipv4("tcp_syn_linear_timeouts", 0, 127, "SYN retries before the RTO starts doubling"),
    _ipv4("tcp_syn_retries", 1, 127, "SYN retries beside the linear ones"),
    _ipv4("tcp_synack_retries", 0, 255, "SYN-ACK retries"),
    _ipv4("tcp_syncookies", 0, 255, "0 off, 1 when the SYN queue is full, 2 always"),
    _ipv4("tcp_thin_linear_timeouts", 0, 255, "no RTO backoff for streams of less than 4 packets"),
    _ipv4("tcp_timestamps", 0, 255, "0 off, 1 with a random offset, 2 without"),
    _ipv4("tcp_tso_rtt_log", 0, 255, "short RTTs get larger TSO bursts: RTT/2^n us halves the bonus"),
    _ipv4("tcp_tso_win_divisor", 0, 255, "share of the window a burst must reach to go at once"),
    _ipv4("tcp_tw_reuse", 0, 2, "reuse TIME_WAIT ports for new connections: 0 no, 1 yes, 2 loopback"),
    _ipv4("tcp_tw_reuse_delay", 1, 32768, "ms a port rests before it is reused"),
    _ipv4("tcp_window_scaling", 0, 255, "offer window scaling (RFC 7323)"),
    _ipv4("tcp_wmem", 1, _I31, "send buffer: minimum, default, maximum, bytes"),
    _ipv4("tcp_workaround_signed_windows", 0, 255, "never offer a first window above 32767"),
    _ipv4("tcp_congestion_control", None, None, "default congestion control"),
    Entry("net.core.somaxconn", "somaxconn", 0, _I31, "largest accept queue"),
    Entry("net.core.rmem_max", "rmem_max", 2304, _I31, "largest SO_RCVBUF"),
    Entry("net.core.wmem_max", "wmem_max", 4608, _I31, "largest SO_SNDBUF"),
    Entry("net.core.rmem_default", "rmem_default", 2304, _I31, "receive buffer of other sockets"),
    Entry("net.core.wmem_default", "wmem_default", 4608, _I31, "send buffer of other sockets"),
    Entry("net.core.max_skb_frags", "max_skb_frags", 1, 17, "fragments of one super-segment"),
    _ipv4("ip_local_port_range", 1, 65535, "ephemeral ports, first and last"),
    _ipv4("ip_no_pmtu_disc", 0, 3, "path MTU discovery off"),
    Entry("net.ipv4.route.min_pmtu", "min_pmtu", 68, _I31, "smallest path MTU believed"),
    _choice("profile", PROFILES, "kernel whose defaults all TCP sysctls take when it is set", ""),
    _pytcp("hz", 100, 1000, "timer tick of the modelled kernel, 1/s", "CONFIG_HZ"),
    _pytcp("max_tcp_header", 128, 512, "MAX_TCP_HEADER of the modelled kernel", "192; 320 with wireless drivers configured"),
    _pytcp("skb_base_truesize", 576, 4096, "memory charged per skb beside its payload, bytes", "832 measured on 6.18; 1280 to 6.2, 896 to 6.13"),
    _choice(
        "autocork_nodelay", ("mainline", "any_nonagle", "nodelay_only"), "sockets autocorking spares",
        "f3f32a356c0d, reverted the same day; never released",
    ),
    _choice(
        "autocork_cond", ("rtx_nonempty", "not_head", "none"), "what must be ahead of a held write",
        "3.14 none; 4.15 not_head; 4.17 rtx_nonempty (114f39feab36)",
    ),
    _pytcp("push_barrier", 0, 1, "fence between setting THROTTLED and re-reading the charge: no completion misses the flag", "6.8 (7267e8dcad6b)"),
    _choice("autosize_at", ("xmit", "sendmsg"), "where bursts are sized to the pacing rate", "xmit since 3.19 (605ad7f184b6)"),
    _choice(
        "tsq_cap", ("always", "unpaced_only"), "sockets whose TSQ limit tcp_limit_output_bytes caps",
        "unpaced_only 5.0 (c73e5807e4f6) to 6.15; always again 6.16 (c4221a8cc3a7)",
    ),
    _pytcp("half_cwnd_cap", 0, 1, "one burst takes at most half of cwnd", "3.18 (d649a7a81f3b)"),
    _pytcp("keep_cwnd_limited", 0, 1, "that cwnd was the limit is not forgotten for a larger burst of the same window", "6.1 (f4ce91ce12a7)"),
    _pytcp("grow_skb", 0, 1, "pull bytes from the next skb when quota allows", "6.10 (8ee602c63520)"),
    _pytcp("tso_defer_max_us", 0, _I31, "longest wait for the ACK that makes a deferred burst larger, us; 0 = half of srtt", "1000 since 6.18"),
    _choice(
        "hystart_reset", ("update", "update_gated", "cong_avoid"), "where HyStart's round is reset",
        "5.16 update_gated (4e1fddc98d25); 6.14 update (25c1a9ca53db)",
    ),
    _pytcp("init_rwnd", 0, 65535, "first receive window at most so many segments of 1460 bytes; 0 = what the buffer holds", "20 until 4.20 (a337531b942b)"),
    _pytcp("scaling_ratio_default", 1, 255, "window per 256 buffer bytes before any was measured", "65 in 6.6 (dfa2f0483360), 128 since 6.10 (697a6c8cec03)"),
    _pytcp("scaling_ratio_measured", 0, 1, "measure the ratio on what is received", "6.6 (dfa2f0483360)"),
    _choice(
        "drs", ("unqueued", "copied"), "what a receive buffer grows by: bytes read less those queued, or bytes read and 16 segments",
        "unqueued since 6.16",
    ),
    _pytcp("rcvbuf_low_rtt_us", 0, _I31, "RTT below which a receive buffer grows less, us; 0 = none", "1000 after 6.18 (ecfea98b7d0d, tcp_rcvbuf_low_rtt)"),
    _pytcp("rcvbuf_sets_clamp", 0, 1, "SO_RCVBUF moves window_clamp at once", "after 6.18"),
    _pytcp("comp_sack_rtt_percent", 1, 1000, "delay of a compressed SACK, % of the RTT", "33 after 6.18 (416dd649f3aa, tcp_comp_sack_rtt_percent)"),
    _pytcp("ack_full_push", 0, 1, "a full segment with PSH, too, is acknowledged when the program has read all", "6.6 (4720852ed9af)"),
    _pytcp("clamp_follows_ratio", 0, 1, "window_clamp follows a changed scaling_ratio", "6.11 (a2cbb1603943)"),
    _cubic("beta", "what a loss leaves of the window, of 1024"),
    _cubic("fast_convergence", "a second loss below the last maximum gives room to others"),
    _cubic("hystart", "leave slow start before it overflows the bottleneck"),
    _cubic("hystart_ack_delta_us", "ACKs closer than this, us, belong to one train"),
    _cubic("hystart_detect", "detectors: 1 ACK trains, 2 growing delay"),
    _cubic("hystart_low_window", "HyStart begins at this window, packets"),
    _cubic("initial_ssthresh", "first slow start threshold without HyStart, packets; 0 = none"),
    _cubic("tcp_friendliness", "grow no slower than Reno would"),
)
