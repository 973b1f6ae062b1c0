"""Random workloads by seed: parameters and scripts in which many rules of the send and receive side meet.

`workload(seed, kind)` is a pure function of its arguments. Kinds are the subjects of docs/compare-kernel.md; `mixed` joins three
of them. Scripts are short (a second or so), never wait for what may not come, and name sizes in bytes.
"""

from __future__ import annotations

from random import Random
from typing import Any

from . import scripts_receive, scripts_send
from .draw import Step, a_config, a_pause, a_segment, a_write, an_ack, an_option, some_flags, the_end

# what `mixed` is made of
JOINED = ("writes", "bulk", "loss", "window", "idle", "host_queue", "pacing", "reader", "drs", "probe", "chrono", "eor", "hostile")


def workload(seed: int, kind: str = "mixed") -> dict[str, Any]:
    """The workload of a seed."""
    rng = Random(f"{kind} {seed}")
    subjects = rng.sample(JOINED, 3) if kind == "mixed" else [kind]
    config = a_config(rng, subjects[0])
    script: list[Step] = []
    for subject in subjects:
        # one after the other, none shutting down what the next needs
        part = _SCRIPTS[subject](rng, config)
        script += part if subject == subjects[-1] else [step for step in part if step["do"] not in ("shutdown", "prime")]
    return {"name": f"{kind}_{seed}", "what": f"random workload, {' then '.join(subjects)}, seed {seed}", "config": config, "script": script}


def _writes(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Small and odd writes, options between them, acknowledgements when they come."""
    steps: list[Step] = []
    for _ in range(rng.randrange(6, 25)):
        draw = rng.random()
        if draw < 0.45:
            steps.append(a_write(rng, config["mss"]))
        elif draw < 0.65:
            steps.append(an_ack(rng))
        elif draw < 0.8:
            steps.append(a_pause(rng))
        elif draw < 0.92:
            steps.append(an_option(rng))
        elif draw < 0.96:
            steps.append({"do": "wait_ms", "ms": rng.choice((100, 220, 260))})
        else:
            steps.append({"do": "info", "label": "between"})
    return the_end(rng, steps)


def _bulk(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Much data, an acknowledgement pattern, perhaps a second burst."""
    steps: list[Step] = []
    rtt = int(config["hs_ms"] * 1000)
    for _ in range(rng.choice((1, 1, 2, 3))):
        steps.append({"do": "auto", "mode": rng.choice(("frame", "two")), "us": rtt + rng.choice((0, 0, 300))})
        if rng.random() < 0.5:
            steps.append({"do": "write", "n": rng.choice((50000, 100000, 200000, 400000))})
            steps.append({"do": "wait_ms", "ms": rng.choice((5, 20, 60, 150))})
        else:
            steps.append({"do": "stream", "n": rng.choice((100000, 300000, 600000)), "chunk": rng.choice((1000, 5000, 16384, 65536)), "ms": 400})
        steps.append({"do": "info", "label": "sent"})
        steps.append(a_pause(rng))
    return the_end(rng, steps)


def _loss(rng: Random, config: dict[str, Any]) -> list[Step]:
    """The peer receives with holes, out of order, twice."""
    steps: list[Step] = []
    if rng.random() < 0.5:
        steps += [{"do": "write", "n": 10 * config["mss"]}, {"do": "wait_us", "us": int(config["hs_ms"] * 1000)}, {"do": "ack", "upto": "all"}]
    for _ in range(rng.randrange(2, 6)):
        size = rng.randrange(1, 30) * config["mss"] + rng.choice((0, 0, rng.randrange(config["mss"])))
        steps.append({"do": "write", "n": size, "flags": rng.choice(("", "", "eor"))})
        if rng.random() < 0.7:
            steps.append({"do": "wait_us", "us": int(config["hs_ms"] * 1000) + rng.randrange(0, 500)})
        for _ in range(rng.randrange(1, 6)):
            n = rng.randrange(1, 14)
            step: Step = {"do": "deliver", "n": n, "every": rng.choice((1, 1, 2))}
            if rng.random() < 0.7:
                step["drop"] = sorted(rng.sample(range(n), min(n, rng.choice((1, 1, 2, 3)))))
            if rng.random() < 0.2:
                order = list(range(n))
                i = rng.randrange(n)
                order.insert(rng.randrange(n), order.pop(i))
                step["order"] = order
            steps.append(step)
            if rng.random() < 0.5:
                steps.append(a_pause(rng))
        if rng.random() < 0.15:
            steps.append({"do": "wait_ms", "ms": rng.choice((230, 300))})
        if rng.random() < 0.2:
            steps.append({"do": "info", "label": "between"})
    return the_end(rng, steps)


def _window(rng: Random, config: dict[str, Any]) -> list[Step]:
    """The peer's window shrinks, closes and opens."""
    steps: list[Step] = []
    mss = config["mss"]
    for _ in range(rng.randrange(3, 10)):
        draw = rng.random()
        if draw < 0.4:
            steps.append(a_write(rng, mss))
        else:
            win = rng.choice((0, 1, 100, mss - 1, mss, mss + 100, 3 * mss, 10 * mss + 5, 20000, 65535, config["win"]))
            steps.append({"do": "ack", "win": win} | rng.choice(({"upto": "all"}, {"segs": 1}, {"segs": 3}, {"segs": 0})))
        if rng.random() < 0.5:
            steps.append(a_pause(rng))
        if rng.random() < 0.15:
            steps.append(an_option(rng))
        if rng.random() < 0.15:
            steps.append({"do": "wait_ms", "ms": rng.choice((210, 270))})
    return the_end(rng, steps)


def _idle(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Bursts with silences in between: cwnd validation and restart."""
    steps: list[Step] = [{"do": "auto", "mode": rng.choice(("frame", "two")), "us": int(config["hs_ms"] * 1000) + 50}]
    for _ in range(rng.randrange(2, 6)):
        steps.append({"do": "write", "n": rng.choice((1000, 20000, 50000, 150000)), "times": rng.choice((1, 1, 2))})
        steps.append({"do": "wait_ms", "ms": rng.choice((5, 20, 50, 100, 150, 250, 450))})
        if rng.random() < 0.4:
            steps.append({"do": "info", "label": "between"})
    return the_end(rng, steps)


def _host_queue(rng: Random, config: dict[str, Any]) -> list[Step]:
    """A class before the device: autocork and small queues."""
    config["htb"] = {"rate": rng.choice(("100kbit", "200kbit", "500kbit", "1mbit", "5mbit", "20mbit")), "burst": rng.choice((1600, 1600, 3000, 6000))}
    if config.get("mtu"):
        config["htb"]["burst"] = 9100
    if rng.random() < 0.3:
        config.setdefault("sysctls", {})["net.ipv4.tcp_limit_output_bytes"] = rng.choice((4000, 7504, 8000, 20000, 50000))
    steps: list[Step] = [{"do": "prime"}] if rng.random() < 0.6 else []
    for _ in range(rng.randrange(4, 14)):
        draw = rng.random()
        if draw < 0.55:
            step = a_write(rng, config["mss"])
            step["n"] = min(step["n"], 20 * config["mss"])
            steps.append(step)
        elif draw < 0.7:
            steps.append(an_ack(rng))
        elif draw < 0.85:
            steps.append(a_pause(rng))
        elif draw < 0.93:
            steps.append(an_option(rng))
        else:
            steps.append({"do": "hostmem", "label": "between"})
    return the_end(rng, steps)


def _pacing(rng: Random, config: dict[str, Any]) -> list[Step]:
    """SO_MAX_PACING_RATE: the internal timer."""
    rate = rng.choice((20000, 50000, 100000, 300000, 1000000, 3000000, 10000000, 50000000))
    config["pre"].append(["max_pacing", rate])
    steps: list[Step] = [{"do": "auto", "mode": rng.choice(("frame", "two")), "us": int(config["hs_ms"] * 1000) + 50}]
    for _ in range(rng.randrange(1, 5)):
        steps.append({"do": "write", "n": min(rate // 8, rng.choice((1000, 5000, 20000, 100000))) or 1000, "times": rng.choice((1, 1, 4))})
        steps.append({"do": "wait_ms", "ms": rng.choice((2, 10, 50, 100))})
        if rng.random() < 0.15:
            steps.append({"do": "sockopt", "name": "max_pacing", "val": rng.choice((rate // 2, rate * 3))})
    return the_end(rng, steps)


def _bbr(rng: Random, config: dict[str, Any]) -> list[Step]:
    """BBR: startup, drain, the first gain cycles."""
    config["cc"] = "bbr"
    steps: list[Step] = [{"do": "auto", "mode": rng.choice(("frame", "two")), "us": int(max(config["hs_ms"], 2) * 1000) + rng.choice((0, 50, 500))}]
    config["hs_ms"] = max(config["hs_ms"], 2)
    for _ in range(rng.randrange(1, 4)):
        if rng.random() < 0.5:
            steps.append({"do": "stream", "n": rng.choice((60000, 200000)), "chunk": 16384, "ms": 300})
        else:
            steps.append({"do": "write", "n": rng.choice((1000, 20000, 100000))})
        steps += [{"do": "wait_ms", "ms": rng.choice((5, 30, 100))}, {"do": "info", "label": "between"}]
    return the_end(rng, steps)


def _reader(rng: Random, config: dict[str, Any]) -> list[Step]:
    """The peer sends, the program reads when it likes."""
    if rng.random() < 0.5:
        config["pre"].append(["rcvbuf", rng.choice((1, 2304, 4096, 6000, 10000, 20000, 30000, 65536, 200000))])
    if rng.random() < 0.2:
        config["pre"].append(["rcvlowat", rng.choice((1000, 3000, 10000, 50000))])
    if rng.random() < 0.1:
        config["pre"].append(["window_clamp", rng.choice((2000, 5000, 20000, 60000))])
    mss = min(config["mss"], 1460)
    steps: list[Step] = []
    for _ in range(rng.randrange(6, 25)):
        draw = rng.random()
        if draw < 0.5:
            steps.append(a_segment(rng, mss))
        elif draw < 0.75:
            steps.append({"do": "read", "n": rng.choice((100, 1000, 3000, 10000, 1000000, 1000000)), "times": rng.choice((1, 1, 1, 3))})
        elif draw < 0.88:
            steps.append(a_pause(rng))
        elif draw < 0.92:
            steps.append({"do": "write", "n": rng.randrange(1, 2000)})
        elif draw < 0.95:
            steps.append({"do": "sockopt", "name": rng.choice(("rcvlowat", "quickack", "rcvbuf")), "val": rng.choice((0, 1, 2000, 50000))})
        elif draw < 0.97:
            steps.append({"do": "readable"})
        else:
            steps.append({"do": "info", "label": "between"})
    steps += [{"do": "wait_ms", "ms": rng.choice((5, 60, 230))}, {"do": "read", "n": 1000000}, {"do": "wait_ms", "ms": 3}]
    return the_end(rng, steps)


def _drs(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Rounds of data that the program reads at once: the buffer follows the rate."""
    mss = min(config["mss"], 1460)
    gso = rng.choice((0, 0, 4, 10, 40))
    steps: list[Step] = []
    burst = rng.choice((4, 8, 16))
    for _ in range(rng.randrange(4, 12)):
        if gso:
            steps.append({"do": "data", "n": gso * mss, "gso": mss, "times": max(1, burst // gso), "flags": "."})
        else:
            steps.append({"do": "data", "n": mss, "times": min(burst, 60), "flags": "."})
        if rng.random() < 0.85:
            steps.append({"do": "read", "n": 1000000})
        steps.append({"do": "wait_us", "us": rng.choice((200, 1000, 3000, 5000))})
        if rng.random() < 0.3:
            steps.append({"do": "info", "label": "between"})
        burst = burst * rng.choice((1, 2, 2)) if burst < 100 else burst
    steps.append({"do": "read", "n": 1000000})
    return the_end(rng, steps)


def _probe(rng: Random, config: dict[str, Any]) -> list[Step]:
    """The window closes and the peer is slow to open it."""
    mss = config["mss"]
    steps: list[Step] = [{"do": "write", "n": rng.randrange(1, 8) * mss + rng.choice((0, 100))}, {"do": "wait_ms", "ms": 2}]
    steps += [{"do": "ack", "upto": "all", "win": rng.choice((0, 0, 0, 1, 100, mss - 1))}]
    steps += [{"do": "write", "n": rng.choice((1, 100, mss, 3 * mss + 50)), "flags": some_flags(rng)}]
    for _ in range(rng.randrange(1, 4)):
        steps.append({"do": "wait_ms", "ms": rng.choice((150, 230, 450))})
        steps.append(
            rng.choice(
                (
                    {"do": "ack", "segs": 0, "win": 0}, {"do": "ack", "segs": 0, "win": rng.choice((50, mss, 20000))}, {"do": "dup", "n": 1},
                    {"do": "write", "n": rng.randrange(1, 2000)}, {"do": "shutdown"}, {"do": "ack", "upto": "all"},
                )
            )
        )  # fmt: skip
    return the_end(rng, steps)


def _chrono(rng: Random, config: dict[str, Any]) -> list[Step]:
    """What limits the sender changes, and tcp_info says for how long each did."""
    config["pre"] = [["sndbuf", rng.choice((5000, 10000, 30000))]] if rng.random() < 0.5 else []
    mss = config["mss"]
    steps: list[Step] = []
    for _ in range(rng.randrange(3, 9)):
        write: Step = {"do": "write", "n": rng.choice((1000, 10 * mss, 100000))}
        steps.append(rng.choice((write, {"do": "stream", "n": 20000, "chunk": 3000, "ms": 20}, {"do": "writable"})))
        steps.append({"do": "wait_ms", "ms": rng.choice((3, 10, 30, 60))})
        steps.append({"do": "info", "label": "between"})
        steps.append({"do": "ack", "upto": "all", "win": rng.choice((0, mss, 3 * mss, 10 * mss, 65535, config["win"]))})
        steps.append({"do": "wait_ms", "ms": rng.choice((1, 5, 20))})
    return the_end(rng, steps)


def _eor(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Records marked by MSG_EOR through loss, probes and the queue before the device."""
    steps: list[Step] = []
    for _ in range(rng.randrange(2, 6)):
        sizes = (100, 400, 1000, config["mss"], 2 * config["mss"], 5000)
        steps += [
            {"do": "write", "n": rng.choice(sizes), "flags": rng.choice(("eor", "eor", "", "more", "more|eor"))} for _ in range(rng.randrange(1, 6))
        ]
        steps.append({"do": "wait_us", "us": int(config["hs_ms"] * 1000)})
        n = rng.randrange(1, 10)
        steps.append({"do": "deliver", "n": n, "every": 1, "drop": sorted(rng.sample(range(n), min(n, rng.choice((0, 1, 2)))))})
        steps.append(a_pause(rng))
        steps.append({"do": "deliver", "n": rng.randrange(1, 8), "every": 1})
    return the_end(rng, steps)


def _hostile(rng: Random, config: dict[str, Any]) -> list[Step]:
    """A peer that acknowledges, selects and sends what it should not."""
    mss = min(config["mss"], 1460)
    steps: list[Step] = [{"do": "write", "n": rng.randrange(1, 12) * mss}, {"do": "wait_ms", "ms": 1}]
    for _ in range(rng.randrange(6, 20)):
        draw = rng.random()
        blocks = [sorted((rng.randrange(-4, 14), rng.randrange(-4, 14) + rng.choice((0, 0, 0.3)))) for _ in range(rng.choice((1, 1, 2, 3)))]
        if draw < 0.3:
            step: Step = {"do": "ack", "segs": rng.choice((0, 0, 1, 2)), "blocks": blocks}
        elif draw < 0.4:
            step = {"do": "ack", "beyond": rng.choice((1, mss, 100000))}
        elif draw < 0.5:
            step = {"do": "ack", "behind": rng.choice((1, mss, 70000, 2000000)), "blocks": blocks[:1]}
        elif draw < 0.6:
            step = {"do": "ack", "segs": 0, "shift": rng.choice((-1, -100, 1, 1000, 100000)), "flags": rng.choice((".", ".", "R", "R.", "S", "S."))}
        elif draw < 0.68:
            step = {"do": "ack", "segs": 1, "age": rng.choice((1, 1000, 100000))}
        elif draw < 0.85:
            step = a_segment(rng, mss)
            step["ahead"] = rng.choice((-mss, -10, -100, 0, 0, 100, 3 * mss, 60000, 200000))
            if rng.random() < 0.1:
                step["flags"] = rng.choice(("F.", "FP.", "SP.", "P", "U."))
            if rng.random() < 0.15:
                step["age"] = rng.choice((1, 1000))
        elif draw < 0.92:
            step = {"do": "write", "n": rng.randrange(1, 3 * mss)}
        else:
            step = {"do": "read", "n": 100000}
        steps.append(step)
        if rng.random() < 0.5:
            steps.append(a_pause(rng))
        if rng.random() < 0.08:
            steps.append({"do": "wait_ms", "ms": rng.choice((220, 520))})
    return the_end(rng, steps)


_SCRIPTS = {
    "writes": _writes, "bulk": _bulk, "loss": _loss, "window": _window, "idle": _idle, "host_queue": _host_queue, "pacing": _pacing, "bbr": _bbr,
    "reader": _reader, "drs": _drs, "probe": _probe, "chrono": _chrono, "eor": _eor, "hostile": _hostile,
} | scripts_receive.SCRIPTS | scripts_send.SCRIPTS  # fmt: skip
KINDS = (*_SCRIPTS, "mixed")
