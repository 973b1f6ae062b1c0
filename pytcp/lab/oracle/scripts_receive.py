"""Random workloads of a receiver: buffers, windows, acknowledgements, what arrives out of order, how it is read, how it ends.

In about half of them the peer opens the connection (`config["passive"]`). See `generate`.
"""

from __future__ import annotations

from random import Random
from typing import Any

from .draw import Step, a_pause, the_end

BUFFERS = (1, 2304, 4096, 6000, 10000, 20000, 30000, 65536, 100000, 200000, 1000000)
READS = (1, 100, 1000, 1460, 3000, 10000, 40000, 1000000, 1000000)


def _opener(rng: Random, config: dict[str, Any]) -> int:
    """Who opens; returns the size of the peer's segments."""
    if rng.random() < 0.5:
        config["passive"] = True
    room = (config.get("mtu") or 1500) - 40 - (12 if config["ts"] else 0)
    return int(rng.choice((room, room, room, min(room, 1000), min(room, 536), min(room, 100), rng.randrange(1, room + 1))))


def _data(rng: Random, n: int, **more: Any) -> Step:
    return {"do": "data", "n": n, "flags": rng.choice((".", ".", "P."))} | more


def _read(rng: Random) -> Step:
    return {"do": "read", "n": rng.choice(READS)}


def _receive_config(rng: Random, config: dict[str, Any]) -> None:
    """Sysctls and options that shape the window."""
    sysctls = config.setdefault("sysctls", {})
    for name, values in (
        ("tcp_rmem", ("4096 131072 33554432", "4096 20000 200000", "4096 87380 6291456", "4096 5000 8000", "10000 60000 60000", "4096 1000000 6291456")),
        ("tcp_shrink_window", (1, 1)), ("tcp_moderate_rcvbuf", (0, 0)), ("tcp_app_win", (1, 2, 5, 31)),
        ("tcp_window_scaling", (0,)), ("tcp_dsack", (0,)), ("tcp_comp_sack_nr", (0, 1, 5)), ("tcp_rto_min_us", (5000, 50000)),
    ):  # fmt: skip
        if rng.random() < 0.08:
            sysctls[f"net.ipv4.{name}"] = rng.choice(values)
    if rng.random() < 0.4:
        config["pre"].append(["rcvbuf", rng.choice(BUFFERS)])
    if rng.random() < 0.12:
        config["pre"].append(["window_clamp", rng.choice((0, 1, 2000, 5000, 20000, 60000, 1000000))])
    if rng.random() < 0.1:
        config["pre"].append(["maxseg", rng.choice((88, 500, 1000, 1400))])


def _rcvbuf(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Buffers and clamps set before and after, data that fill them, reads that do not empty them."""
    mss = _opener(rng, config)
    _receive_config(rng, config)
    steps: list[Step] = []
    for _ in range(rng.randrange(4, 14)):
        draw = rng.random()
        if draw < 0.5:
            n = rng.choice((mss, mss, mss, rng.randrange(1, mss + 1)))
            steps.append(_data(rng, n, times=rng.choice((1, 5, 10, 30, 60)), gap_us=rng.choice((0, 0, 200, 2000))))
        elif draw < 0.75:
            steps.append(_read(rng))
        elif draw < 0.83:
            clamp, mark = ("window_clamp", (0, 1, 3000, 30000, 500000)), ("rcvlowat", (1, 5000, 100000))
            name, values = rng.choice((("rcvbuf", BUFFERS), ("rcvbuf", BUFFERS), clamp, mark))
            steps.append({"do": "sockopt", "name": name, "val": rng.choice(values)})
        elif draw < 0.88:
            steps.append({"do": "wait_ms", "ms": rng.choice((5, 45, 220))})
        else:
            steps.append({"do": "info", "label": "between"})
    return the_end(rng, [*steps, {"do": "read", "n": 1000000}])


def _sizes(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Segments and super-frames of every size, so that every size of a buffer's piece comes: what fits, and which window."""
    if rng.random() < 0.5:
        config["mtu"], config["mss"] = rng.choice(((9000, 8960), (4000, 3960), (3000, 2960), (5000, 4960)))
    _opener(rng, config)
    _receive_config(rng, config)
    room = (config.get("mtu") or 1500) - 52
    steps: list[Step] = []
    for _ in range(rng.randrange(5, 25)):
        if rng.random() < 0.4:
            size = rng.choice((room, room, 536, 1000, rng.randrange(60, room + 1)))
            step = _data(rng, min(size * rng.randrange(2, 45) + rng.choice((0, 0, 1, 100)), 60000), gso=size)
        else:
            step = _data(rng, rng.choice((room, rng.randrange(1, room + 1), rng.randrange(1, room + 1), rng.randrange(1, 200))), times=rng.choice((1, 1, 3, 8)))
        steps.append(step)
        if rng.random() < 0.35:
            steps.append(_read(rng))
        if rng.random() < 0.3:
            steps.append({"do": "info", "label": "between"})
        if rng.random() < 0.2:
            steps.append(a_pause(rng))
    return the_end(rng, [*steps, {"do": "read", "n": 1000000}])


def _holes(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Out of order, twice, overlapping; a small buffer, so that the socket collapses and prunes; reads in between."""
    mss = _opener(rng, config)
    _receive_config(rng, config)
    config["sack"] = config["sack"] or rng.random() < 0.8
    steps: list[Step] = []
    at = 0  # all before has been sent in order
    for _ in range(rng.randrange(6, 30)):
        draw = rng.random()
        if draw < 0.2:
            steps.append(_data(rng, mss, at=at))
            at += mss
        elif draw < 0.7:
            # in units of a segment, of a part of it, or anywhere
            ahead = rng.choice((rng.randrange(1, 12) * mss, rng.randrange(1, 40) * mss, rng.randrange(-mss, 12 * mss), rng.randrange(-3, 8) * max(mss // 2, 1)))
            n = rng.choice((mss, mss, max(mss // 2, 1), 1, rng.randrange(1, mss + 1)))
            steps.append(_data(rng, n, at=max(at + ahead, 0)))
        elif draw < 0.76:
            run = rng.randrange(2, 20)
            first = rng.randrange(1, 10)
            order = list(range(first, first + run))
            rng.shuffle(order)
            steps += [_data(rng, mss, at=at + i * mss) for i in order]
        elif draw < 0.82:
            run = rng.randrange(2, 10)
            steps.append({"do": "data", "n": run * mss, "gso": mss, "flags": ".", "at": at + rng.choice((0, mss, 3 * mss))})
        elif draw < 0.9:
            steps.append(_read(rng))
        elif draw < 0.93:
            steps.append({"do": "sockopt", "name": "rcvbuf", "val": rng.choice(BUFFERS)})
        elif draw < 0.96:
            steps.append({"do": "info", "label": "between"})
        else:
            steps.append(a_pause(rng))
    # the holes are filled
    steps += [_data(rng, mss, at=at + i * mss) for i in range(rng.randrange(0, 12))]
    return the_end(rng, [*steps, {"do": "info", "label": "filled"}, {"do": "read", "n": 1000000}, {"do": "wait_ms", "ms": 3}])


def _prune(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Memory runs out: tiny segments behind holes, in order and not, a buffer made smaller when it is full."""
    mss = _opener(rng, config)
    config["pre"].append(["rcvbuf", rng.choice((3000, 6000, 10000, 20000, 30000))])
    if rng.random() < 0.2:
        config.setdefault("sysctls", {})["net.ipv4.tcp_shrink_window"] = 1
    steps: list[Step] = []
    at = 0
    for _ in range(rng.randrange(3, 9)):
        n = rng.choice((1, 10, 100, 300, mss))
        times = rng.choice((5, 20, 60))
        draw = rng.random()
        if draw < 0.45:
            gap = rng.choice((1, n, mss))
            start = at + gap
            steps += [_data(rng, n, at=start + i * (n + rng.choice((0, 0, 1, 10)))) for i in range(times)]
        elif draw < 0.8:
            steps.append(_data(rng, n, at=at, times=1))
            at += n
            steps += [_data(rng, n, at=at + i * n) for i in range(times)]
            at += n * times
        else:
            steps.append({"do": "sockopt", "name": "rcvbuf", "val": rng.choice((1, 3000, 10000, 100000))})
        if rng.random() < 0.4:
            steps.append(_read(rng))
        if rng.random() < 0.4:
            steps.append({"do": "info", "label": "between"})
        if rng.random() < 0.3:
            steps.append(a_pause(rng))
    return the_end(rng, [*steps, {"do": "read", "n": 1000000}, {"do": "wait_ms", "ms": 3}])


def _acks(rng: Random, config: dict[str, Any]) -> list[Step]:
    """When an acknowledgement is due: quick, every second segment, delayed, with an answer."""
    mss = _opener(rng, config)
    if rng.random() < 0.3:
        config.setdefault("sysctls", {})["net.ipv4.tcp_pingpong_thresh"] = rng.choice((1, 2, 3, 10))
    if rng.random() < 0.2:
        config["pre"].append(["quickack", rng.choice((0, 1))])
    if rng.random() < 0.25:
        config["pre"].append(["rcvbuf", rng.choice((4096, 7500, 20000, 200000))])
    steps: list[Step] = []
    for _ in range(rng.randrange(10, 40)):
        draw = rng.random()
        if draw < 0.45:
            step = _data(rng, rng.choice((mss, mss, 1, 10, 100, mss - 1 or 1, rng.randrange(1, mss + 1))))
            if rng.random() < 0.25:
                step |= {"times": rng.choice((2, 3, 7)), "gap_us": rng.choice((0, 500, 6000, 12000, 41000))}
            steps.append(step)
        elif draw < 0.6:
            steps.append({"do": "read", "n": rng.choice((1, 100, 1000000, 1000000, 1000000))})
        elif draw < 0.7:
            steps.append({"do": "write", "n": rng.choice((1, 10, 100, 1000, 3000))})
        elif draw < 0.77:
            steps.append({"do": "ack", "upto": "all"})
        elif draw < 0.84:
            steps.append({"do": "sockopt", "name": "quickack", "val": rng.choice((0, 0, 1, 1, 2, 3, 5))})
        elif draw < 0.97:
            steps.append(
                {"do": "wait_us", "us": rng.choice((200, 1500, 4500, 8000, 15000, 25000, 39000, 41000, 60000, 120000))} if draw < 0.93
                else {"do": "wait_ms", "ms": rng.choice((210, 260))}
            )  # fmt: skip
        else:
            steps.append({"do": "info", "label": "between"})
    return the_end(rng, steps)


def _requests(rng: Random, config: dict[str, Any]) -> list[Step]:
    """A server: request, answer, pause; the acknowledgement rides on the answer or does not."""
    _opener(rng, config)
    steps: list[Step] = []
    think = rng.choice((0, 300, 5000, 30000, 45000))
    for _ in range(rng.randrange(3, 14)):
        steps.append(_data(rng, rng.choice((1, 100, 500, 1400, 3000)) if rng.random() < 0.8 else 100, gso=0))
        if steps[-1]["n"] > 1400:
            steps[-1]["gso"] = 1400
        steps.append({"do": "read", "n": 1000000})
        steps.append({"do": "wait_us", "us": think + rng.randrange(0, 300)})
        if rng.random() < 0.9:
            steps.append({"do": "write", "n": rng.choice((1, 100, 1000, 5000, 30000))})
        steps.append({"do": "wait_us", "us": int(config["hs_ms"] * 1000)})
        if rng.random() < 0.8:
            steps.append({"do": "ack", "upto": "all"})
        steps.append({"do": "wait_us", "us": rng.choice((100, 2000, 20000, 50000, 250000))})
        if rng.random() < 0.15:
            steps.append({"do": "info", "label": "between"})
    return the_end(rng, steps)


def _compress(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Many segments behind a hole: acknowledgements with SACK are compressed by RTT and number."""
    mss = _opener(rng, config)
    config["sack"] = True
    config["ts"] = rng.random() < 0.6
    config["hs_ms"] = rng.choice((1, 5, 10, 20, 40, 80))
    mss = min(mss, 1448)
    for name, values in (
        ("tcp_comp_sack_nr", (0, 1, 5, 44, 200)), ("tcp_comp_sack_delay_ns", (0, 100000, 300000, 2000000, 20000000)),
        ("tcp_comp_sack_slack_ns", (0, 1000000)),
    ):  # fmt: skip
        if rng.random() < 0.15:
            config.setdefault("sysctls", {})[f"net.ipv4.{name}"] = rng.choice(values)
    config["pre"].append(["rcvbuf", 200000])
    steps: list[Step] = []
    at = 0
    for _ in range(rng.randrange(2, 7)):
        for _ in range(rng.choice((0, 2, 8))):
            steps.append(_data(rng, mss, at=at))
            at += mss
        hole = rng.choice((1, 1, 2)) * mss
        gap = rng.choice((30, 100, 400, 1200, 3000))
        for i in range(rng.randrange(3, 30)):
            if rng.random() < 0.08:
                continue
            steps.append(_data(rng, mss, at=at + hole + i * mss))
            if rng.random() < 0.08:
                steps.append(_data(rng, mss, at=at + hole + rng.randrange(0, i + 1) * mss))
            if gap:
                steps.append({"do": "wait_us", "us": gap})
        if rng.random() < 0.3:
            steps.append({"do": "write", "n": 100})
        if rng.random() < 0.3:
            steps += [{"do": "wait_us", "us": int(config["hs_ms"] * 1000)}, {"do": "ack", "upto": "all"}]
        if rng.random() < 0.8:
            # closed, from either end
            filled = [_data(rng, mss, at=at + i * mss) for i in range(32)]
            steps += filled[: rng.choice((1, 2, 32))]
            at += 32 * mss if len(steps) and steps[-1].get("at") == at + 31 * mss else 0
            steps.append({"do": "read", "n": 1000000})
        if rng.random() < 0.3:
            steps.append({"do": "info", "label": "between"})
    return the_end(rng, steps)


def _flagged(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Reads that look, drop or wait; low-water marks; urgent bytes."""
    mss = _opener(rng, config)
    if rng.random() < 0.3:
        config["pre"].append(["oobinline", 1])
    if rng.random() < 0.3:
        config["pre"].append(["rcvbuf", rng.choice((3000, 10000, 30000))])
    steps: list[Step] = []
    for _ in range(rng.randrange(8, 30)):
        draw = rng.random()
        if draw < 0.4:
            step = _data(rng, rng.choice((mss, 1, 100, rng.randrange(1, mss + 1))), times=rng.choice((1, 1, 2, 5)))
            if rng.random() < 0.15:
                step |= {"flags": "PU.", "urg": rng.choice((1, 10, step["n"], step["n"] + 1, step["n"] + 500, 0)), "times": 1}
            if rng.random() < 0.1:
                step |= {"ahead": rng.choice((mss, 100)), "times": 1}
            steps.append(step)
        elif draw < 0.8:
            flags = rng.choice(("", "peek", "peek", "trunc", "waitall", "peek|trunc", "oob", "oob|peek", "peek|waitall"))
            steps.append({"do": "read", "n": rng.choice(READS[:-1]), "flags": flags})
        elif draw < 0.86:
            steps.append({"do": "readable"})
        elif draw < 0.92:
            name, values = rng.choice((("rcvlowat", (0, 1, 1000, 30000)), ("oobinline", (0, 1)), ("peek_off", (-1, 0, 100))))
            steps.append({"do": "sockopt", "name": name, "val": rng.choice(values)})
        elif draw < 0.96:
            steps.append(a_pause(rng))
        else:
            steps.append({"do": "info", "label": "between"})
    return the_end(rng, steps)


def _flood(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Megabytes in super-frames, round by round, some with a hole; the program reads all, a part, or not in time."""
    mss = min(_opener(rng, config), 1448)
    if rng.random() < 0.3:
        _receive_config(rng, config)
    gso = min(rng.choice((2, 10, 20, 44)), 60000 // mss)
    rtt = int(config["hs_ms"] * 1000)
    steps: list[Step] = []
    at = 0
    burst = rng.choice((1, 2, 4))
    lazy = rng.random() < 0.3
    for _ in range(rng.randrange(10, 40)):
        hole = rng.randrange(burst) if rng.random() < 0.15 else -1
        for i in range(burst):
            if i == hole:
                continue
            steps.append({"do": "data", "n": gso * mss, "gso": mss, "flags": ".", "at": at + i * gso * mss})
        if hole >= 0:
            steps += [a_pause(rng), {"do": "data", "n": gso * mss, "gso": mss, "flags": ".", "at": at + hole * gso * mss}]
        at += burst * gso * mss
        if not lazy or rng.random() < 0.4:
            steps.append({"do": "read", "n": rng.choice((1000000, 1000000, 50000)), "times": rng.choice((1, 1, 3))})
        steps.append({"do": "wait_us", "us": rng.choice((100, rtt // 2, rtt))})
        if rng.random() < 0.15:
            steps.append({"do": "info", "label": "between"})
        if rng.random() < 0.4 and burst < 16:
            burst *= 2
    return the_end(rng, [*steps, {"do": "read", "n": 10000000}])


def _knock(rng: Random, mss: int) -> Step:
    """What a peer does before a closed window, or the program that closed it."""
    step: Step = rng.choice(
        (
            _data(rng, 1), _data(rng, mss), {"do": "ack", "upto": "all", "shift": -1}, _data(rng, 1, ahead=rng.choice((0, 1, 1000, 60000))),
            _read(rng), {"do": "read", "n": mss}, {"do": "read", "n": rng.randrange(1, 3000)}, {"do": "wait_ms", "ms": rng.choice((3, 45, 210))},
            {"do": "info", "label": "between"}, {"do": "write", "n": 100}, _data(rng, min(3 * mss, 60000), gso=mss),
        )
    )  # fmt: skip
    return step


def _zero(rng: Random, config: dict[str, Any]) -> list[Step]:
    """The window closes on the peer, who probes; reads open it, a little or much."""
    mss = _opener(rng, config)
    config["pre"].append(["rcvbuf", rng.choice((2304, 4096, 6000, 10000, 20000, 40000))])
    if rng.random() < 0.2:
        config.setdefault("sysctls", {})[f"net.ipv4.{rng.choice(('tcp_shrink_window', 'tcp_window_scaling'))}"] = 1
    gso = rng.random() < 0.3
    steps: list[Step] = []
    for _ in range(rng.randrange(2, 6)):
        if gso:
            steps.append({"do": "data", "n": min(10 * mss, 60000), "gso": mss, "times": rng.choice((1, 2, 4)), "flags": "."})
        else:
            steps.append(_data(rng, mss, times=rng.choice((5, 15, 40))))
        steps += [_knock(rng, mss) for _ in range(rng.randrange(1, 7))]
        if rng.random() < 0.5:
            steps.append({"do": "read", "n": 1000000})
    return the_end(rng, steps)


def _ecn(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Marks of the network: what the receiver echoes, what the sender answers."""
    mss = _opener(rng, config)
    config["ecn"] = rng.random() < 0.9
    config.setdefault("sysctls", {})["net.ipv4.tcp_ecn"] = rng.choice((1, 1, 1, 2))
    steps: list[Step] = []
    for _ in range(rng.randrange(6, 25)):
        draw = rng.random()
        if draw < 0.4:
            flags = rng.choice((".", "P.", "P.", "W.", "PW."))
            steps.append({"do": "data", "n": rng.choice((mss, mss, 100)), "flags": flags, "ecn": rng.choice((0, 2, 2, 2, 3, 3, 1))})
            if rng.random() < 0.2:
                steps[-1]["ahead"] = mss
        elif draw < 0.6:
            steps.append({"do": "write", "n": rng.choice((100, 1460, 5000, 20000, 40000))})
        elif draw < 0.8:
            ack: Step = rng.choice(({"upto": "all"}, {"segs": 1}, {"segs": 2}, {"segs": 0, "blocks": [[1, 2]]}))
            steps.append({"do": "ack", "flags": rng.choice((".", ".", "E.", "E.", "W.", "EW."))} | ack)
        elif draw < 0.9:
            steps.append(a_pause(rng))
        elif draw < 0.95:
            steps.append({"do": "read", "n": 1000000})
        else:
            steps.append({"do": "info", "label": "between"})
        if rng.random() < 0.05:
            steps.append({"do": "wait_ms", "ms": 230})
    return the_end(rng, steps)


def _closing(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Ends: of the peer, of the program, with data unread and unsent, and what still comes afterwards."""
    mss = _opener(rng, config)
    steps: list[Step] = []
    if rng.random() < 0.3:
        config["pre"].append(["linger2", rng.choice((-1, 1, 3))])
    before = rng.randrange(0, 5)
    steps += [
        rng.choice((_data(rng, mss), {"do": "write", "n": rng.choice((100, 3000, 50000))}, {"do": "ack", "upto": "all"}, _read(rng))) for _ in range(before)
    ]
    fin = rng.choice(("F.", "FP."))
    enders: list[Step] = [
        {"do": "data", "n": rng.choice((0, 100)), "flags": fin}, {"do": "shutdown"}, {"do": "close"}, {"do": "ack", "upto": "all", "flags": "R"},
        {"do": "ack", "upto": "all", "flags": "R."}, {"do": "data", "n": 0, "flags": fin, "ahead": 100}, {"do": "data", "n": 100, "flags": ".", "at": 0},
    ]  # fmt: skip
    for _ in range(rng.randrange(2, 9)):
        draw = rng.random()
        if draw < 0.45:
            steps.append(rng.choice(enders[:3] * 3 + enders))
        elif draw < 0.6:
            steps.append({"do": "ack"} | rng.choice(({"upto": "all"}, {"segs": 1}, {"upto": "all", "win": 0}, {"upto": "all", "win": 20000})))
        elif draw < 0.7:
            steps.append(_data(rng, rng.choice((1, mss))))
        elif draw < 0.8:
            steps.append(rng.choice((_read(rng), {"do": "write", "n": 1000}, {"do": "readable"}, {"do": "writable"})))
        elif draw < 0.95:
            steps.append({"do": "wait_ms", "ms": rng.choice((1, 5, 45, 230))})
        else:
            steps.append({"do": "info", "label": "between"})
    return [*steps, {"do": "wait_ms", "ms": 20}, {"do": "ack", "upto": "all"}, {"do": "wait_ms", "ms": 3}]


SCRIPTS = {
    "rcvbuf": _rcvbuf, "sizes": _sizes, "holes": _holes, "prune": _prune, "acks": _acks, "requests": _requests, "compress": _compress, "flagged": _flagged,
    "flood": _flood, "zero": _zero, "ecn": _ecn, "closing": _closing,
}  # fmt: skip
