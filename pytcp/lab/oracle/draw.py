"""What the kinds of random workloads have in common: configurations, writes, acknowledgements, segments, drawn from a generator.

Everything is a pure function of `rng`. Sizes are bytes.
"""

from __future__ import annotations

from random import Random
from typing import Any

Step = dict[str, Any]
# values of sysctls that shape sending and receiving; drawn one or two at a time
SYSCTLS: dict[str, tuple[int | str, ...]] = {
    "tcp_min_tso_segs": (1, 2, 3, 4, 8, 16, 40),
    "tcp_tso_win_divisor": (0, 1, 2, 3, 5, 10),
    "tcp_tso_rtt_log": (0, 5, 9, 11, 14),
    "tcp_limit_output_bytes": (5000, 7504, 8000, 16384, 65536),
    "tcp_autocorking": (0,),
    "tcp_slow_start_after_idle": (0,),
    "tcp_notsent_lowat": (1, 3000, 16384, 100000),
    "tcp_early_retrans": (0, 3),
    "tcp_recovery": (0, 1, 2, 5),
    "tcp_frto": (0, 2),
    "tcp_reordering": (2, 3, 5, 10),
    "tcp_pacing_ss_ratio": (100, 200, 400),
    "tcp_pacing_ca_ratio": (80, 120, 300),
    "tcp_rto_min_us": (20000, 50000, 200000, 300000),
    "tcp_wmem": ("4096 16384 4194304", "4096 16384 60000", "4096 87380 200000"),
    "tcp_rmem": ("4096 131072 33554432", "4096 20000 200000", "4096 87380 6291456"),
    "tcp_shrink_window": (1,),
    "tcp_moderate_rcvbuf": (0,),
    "tcp_app_win": (1, 2, 31),
    "tcp_dsack": (0,),
    "tcp_sack": (0,),
    "tcp_timestamps": (0,),
    "tcp_window_scaling": (0,),
    "tcp_pingpong_thresh": (1, 3, 10),
    "tcp_comp_sack_nr": (0, 5),
    "tcp_comp_sack_delay_ns": (0, 300000, 2000000),
    "tcp_retries2": (3, 8),
    "tcp_max_reordering": (3, 10),
    "tcp_thin_linear_timeouts": (1,),
}


def a_config(rng: Random, subject: str) -> dict[str, Any]:
    mtu = 9000 if rng.random() < 0.06 else 1500
    mss = rng.choice((1460, 1460, 1460, 1460, 1448, 1440, 1400, 1220, 1000, 536, 536, 300, 100, rng.randrange(89, 1461)))
    if mtu == 9000:
        mss = rng.choice((8960, 8960, 4000, 1460))
    wscale = rng.choice((7, 7, 7, 7, 0, 2, 10, 14, None))
    most = 65535 << (wscale or 0)
    win = rng.choice((1 << 20, 1 << 20, 1 << 20, 65535, 65535, 200000, 30000, 20000, 10000, 5000, 3000, rng.randrange(400, 100000)))
    config: dict[str, Any] = {
        "mss": mss, "wscale": wscale, "sack": rng.random() < 0.88, "ts": rng.random() < 0.35, "win": min(win, most),
        "hs_ms": rng.choice((0.3, 1, 1, 2, 3, 5, 5, 10, 10, 20, 40)), "cc": rng.choice(("reno", "cubic", "cubic")), "pre": [],
    }  # fmt: skip
    if mtu != 1500:
        config["mtu"] = mtu
    pre = config["pre"]
    if rng.random() < 0.35:
        pre.append(["nodelay", 1])
    if rng.random() < 0.3 and subject not in ("chrono", "reader", "drs"):
        pre.append(["sndbuf", rng.choice((1000000, 1000000, 100000, 30000, 10000, 5000, 2000))])
    if rng.random() < 0.08:
        pre.append(["notsent_lowat", rng.choice((1, 1000, 5000, 16384, 65536))])
    if rng.random() < 0.35:
        names = rng.sample(sorted(SYSCTLS), rng.choice((1, 1, 2)))
        config["sysctls"] = {f"net.ipv4.{name}": rng.choice(SYSCTLS[name]) for name in names}
    if rng.random() < 0.06:
        config["gso_max_segs"] = rng.choice((1, 2, 3, 5, 10))
    if rng.random() < 0.05:
        config["gso_max_size"] = rng.choice((8192, 16384, 32768))
    if rng.random() < 0.03:
        config["offload"] = False
    return config


def a_size(rng: Random, mss: int) -> int:
    return rng.choice(
        (
            rng.randrange(1, 100), rng.randrange(1, 1000), mss - 1, mss, mss + 1, 2 * mss, 2 * mss + rng.randrange(1, mss), 3 * mss, 1000, 2000,
            rng.randrange(1, 5 * mss), rng.randrange(1, 20 * mss), rng.randrange(1, 60 * mss), 10 * mss, 100000,
        )
    )  # fmt: skip


def some_flags(rng: Random) -> str:
    return rng.choice(("", "", "", "", "more", "more", "eor", "more|eor"))


def a_write(rng: Random, mss: int) -> Step:
    step: Step = {"do": "write", "n": a_size(rng, mss)}
    flags = some_flags(rng)
    if flags:
        step["flags"] = flags
    if rng.random() < 0.2:
        step["times"] = rng.choice((2, 3, 5, 10))
        step["n"] = min(step["n"], 5000)
    return step


def a_pause(rng: Random) -> Step:
    return rng.choice(
        (
            {"do": "wait_us", "us": rng.randrange(20, 1500)}, {"do": "wait_us", "us": rng.randrange(20, 5000)}, {"do": "wait_ms", "ms": rng.randrange(1, 12)},
            {"do": "wait_ms", "ms": rng.randrange(5, 60)},
        )
    )  # fmt: skip


def an_ack(rng: Random) -> Step:
    return rng.choice(
        (
            {"do": "ack", "upto": "all"}, {"do": "ack", "upto": "all"}, {"do": "ack", "segs": 1}, {"do": "ack", "segs": 2},
            {"do": "ack", "segs": rng.randrange(1, 12)}, {"do": "deliver", "n": rng.randrange(1, 6), "every": 1}, {"do": "deliver", "n": rng.randrange(1, 12)},
        )
    )  # fmt: skip


def an_option(rng: Random) -> Step:
    name, values = rng.choice(
        (("nodelay", (0, 1)), ("cork", (0, 1)), ("cork", (0, 1)), ("notsent_lowat", (1, 4000, 0x7FFFFFFF)), ("sndbuf", (3000, 20000, 500000)))
    )
    return {"do": "sockopt", "name": name, "val": rng.choice(values)}


def the_end(rng: Random, steps: list[Step]) -> list[Step]:
    if rng.random() < 0.25:
        steps.append({"do": "shutdown"})
    steps += [{"do": "wait_ms", "ms": rng.choice((5, 20, 50))}, {"do": "ack", "upto": "all"}, {"do": "wait_ms", "ms": 3}, {"do": "info", "label": "end"}]
    return steps


def a_segment(rng: Random, mss: int) -> Step:
    step: Step = {"do": "data", "n": rng.choice((mss, mss, mss, 100, 1, 500, rng.randrange(1, mss + 1))), "flags": rng.choice((".", "P.", "P."))}
    if rng.random() < 0.4:
        step["times"] = rng.choice((2, 3, 5, 10, 20))
    if rng.random() < 0.3:
        step["gap_us"] = rng.choice((50, 300, 1000, 5000))
    if rng.random() < 0.1:
        step["ahead"] = rng.choice((mss, 2 * mss, 100))
        step.pop("times", None)
    if rng.random() < 0.1:
        step["gso"], step["n"] = mss, mss * rng.choice((2, 4, 10)) + rng.choice((0, 100))
    return step
