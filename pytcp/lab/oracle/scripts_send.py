"""Random workloads of a sender that `generate` leaves open: options and sizes that change in mid-flight, urgent data, late acknowledgements, long flows.

In a part of them the peer opens the connection (`config["passive"]`). See `generate`.
"""

from __future__ import annotations

from random import Random
from typing import Any

from .draw import Step, a_pause, a_size, a_write, an_ack, the_end


def _opener(rng: Random, config: dict[str, Any]) -> None:
    if rng.random() < 0.4:
        config["passive"] = True


def _served(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Writes, options and acknowledgements of a connection that the peer has opened."""
    config["passive"] = True
    steps: list[Step] = []
    for _ in range(rng.randrange(4, 20)):
        info: Step = {"do": "info", "label": "between"}
        steps.append(rng.choice((a_write(rng, config["mss"]), a_write(rng, config["mss"]), an_ack(rng), an_ack(rng), a_pause(rng), info)))
    return the_end(rng, steps)


def _toggles(rng: Random, config: dict[str, Any]) -> list[Step]:
    """TCP_NODELAY, TCP_CORK, MSG_MORE and SO_SNDBUF change while data are in flight or held back."""
    _opener(rng, config)
    mss = config["mss"]
    if rng.random() < 0.3:
        config["htb"] = {"rate": rng.choice(("100kbit", "1mbit", "10mbit")), "burst": 9100 if config.get("mtu") else 1600}
    steps: list[Step] = []
    for _ in range(rng.randrange(8, 30)):
        draw = rng.random()
        if draw < 0.35:
            n = rng.choice((1, 10, 100, 100, 500, mss - 1, mss, mss + 1, 2 * mss + 50, 3 * mss))
            steps.append({"do": "write", "n": n, "flags": rng.choice(("", "", "more", "more", "eor", "oob")), "times": rng.choice((1, 1, 1, 2, 4))})
        elif draw < 0.7:
            name, values = rng.choice(
                (
                    ("nodelay", (0, 1, 1)), ("cork", (0, 1)), ("cork", (0, 1)), ("notsent_lowat", (1, 4000, 0)), ("sndbuf", (1, 4608, 20000, 500000)),
                    ("max_pacing", (100000, 1000000, 2000000000)), ("maxseg", (100, 536, 1200)), ("cc", ("reno", "cubic")),
                )
            )  # fmt: skip
            steps.append({"do": "sockopt", "name": name, "val": rng.choice(values)})
        elif draw < 0.83:
            steps.append(an_ack(rng))
        elif draw < 0.95:
            steps.append(a_pause(rng))
        else:
            steps.append({"do": "wait_ms", "ms": rng.choice((205, 230))})
    return the_end(rng, steps)


def _urgent(rng: Random, config: dict[str, Any]) -> list[Step]:
    """Urgent bytes among others, held by Nagle's rule, by the window, by cwnd."""
    _opener(rng, config)
    mss = config["mss"]
    steps: list[Step] = []
    for _ in range(rng.randrange(5, 20)):
        draw = rng.random()
        if draw < 0.35:
            n = rng.choice((1, 1, 5, 100, mss, 3 * mss + 10, 20 * mss))
            steps.append({"do": "write", "n": n, "flags": rng.choice(("oob", "oob", "oob|more", "oob|eor"))})
        elif draw < 0.6:
            steps.append(a_write(rng, mss))
        elif draw < 0.8:
            steps.append(an_ack(rng))
        elif draw < 0.85:
            steps.append({"do": "ack", "segs": rng.choice((0, 1)), "win": rng.choice((0, 100, mss, 20000))})
        else:
            steps.append(a_pause(rng))
    return the_end(rng, steps)


def _resized(rng: Random, config: dict[str, Any]) -> list[Step]:
    """The path's MTU gets smaller, the device's changes: queued and lost segments are cut anew."""
    _opener(rng, config)
    config["pre"] = [pair for pair in config["pre"] if pair[0] != "notsent_lowat"]
    mss = config["mss"]
    steps: list[Step] = []
    for _ in range(rng.randrange(5, 16)):
        draw = rng.random()
        if draw < 0.4:
            steps.append({"do": "write", "n": a_size(rng, mss), "flags": rng.choice(("", "", "more", "eor"))})
        elif draw < 0.55:
            steps.append({"do": "too_big", "mtu": rng.choice((0, 68, 500, 552, 576, 1000, 1280, 1400, 1499))})
        elif draw < 0.65:
            steps.append({"do": "mtu", "val": rng.choice((600, 1000, 1280, 1500, 1500, 9000))})
        elif draw < 0.7:
            steps.append({"do": "sockopt", "name": "maxseg", "val": rng.choice((88, 536, 1000, 1460))})
        elif draw < 0.85:
            steps.append(an_ack(rng))
        elif draw < 0.95:
            steps.append(a_pause(rng))
        else:
            steps.append({"do": "wait_ms", "ms": 230})
    return the_end(rng, steps)


def _zerocopy(rng: Random, config: dict[str, Any]) -> list[Step]:
    """MSG_ZEROCOPY and copied writes in turn, through loss and a small buffer."""
    _opener(rng, config)
    mss = config["mss"]
    config["pre"].append(["zerocopy", 1])
    steps: list[Step] = []
    for _ in range(rng.randrange(4, 16)):
        draw = rng.random()
        if draw < 0.55:
            flags = rng.choice(("zerocopy", "zerocopy", "zerocopy|more", "zerocopy|eor", "", "more"))
            steps.append({"do": "write", "n": rng.choice((1, 100, mss, 4096, 5000, 20000, 100000)), "flags": flags, "times": rng.choice((1, 1, 3, 20))})
        elif draw < 0.75:
            steps.append(an_ack(rng))
        elif draw < 0.85:
            n = rng.randrange(2, 12)
            steps.append({"do": "deliver", "n": n, "drop": [rng.randrange(n)], "every": 1})
        elif draw < 0.95:
            steps.append(a_pause(rng))
        else:
            steps.append({"do": "hostmem", "label": "between"})
    return the_end(rng, steps)


def _late(rng: Random, config: dict[str, Any]) -> list[Step]:
    """What seemed lost was late: timeouts and fast retransmissions that the originals' acknowledgements prove wrong (F-RTO, undo, D-SACK)."""
    _opener(rng, config)
    mss = config["mss"]
    rtt = int(config["hs_ms"] * 1000)
    steps: list[Step] = []
    for _ in range(rng.randrange(1, 4)):
        size = rng.randrange(1, 25) * mss + rng.choice((0, 0, 77))
        steps += [{"do": "write", "n": size}, {"do": "wait_us", "us": rtt}]
        draw = rng.random()
        if draw < 0.35:
            # everything is late, by a timer or two
            steps.append({"do": "wait_ms", "ms": rng.choice((30, 100, 230, 260, 700))})
            steps += [{"do": "deliver", "n": rng.randrange(1, 8), "every": rng.choice((1, 2))} for _ in range(rng.randrange(1, 6))]
        elif draw < 0.7:
            # one overtook the others
            n = rng.randrange(2, 14)
            order = list(range(n))
            order.insert(rng.randrange(n), order.pop(rng.randrange(n)))
            if rng.random() < 0.4:
                order.insert(rng.randrange(n), order.pop(rng.randrange(n)))
            steps.append({"do": "deliver", "n": n, "order": order, "every": 1})
            steps.append(a_pause(rng))
            steps.append({"do": "deliver", "n": rng.randrange(1, 10), "every": 1})
        else:
            n = rng.randrange(3, 12)
            steps.append({"do": "deliver", "n": n, "drop": [0], "every": 1})
            steps.append(rng.choice((a_pause(rng), {"do": "wait_ms", "ms": 230})))
            # the first arrives after all, and its copy, too
            steps.append({"do": "ack", "segs": rng.choice((1, 2))})
            steps += [{"do": "deliver", "n": rng.randrange(1, 8), "every": 1} for _ in range(rng.randrange(1, 4))]
        if rng.random() < 0.4:
            steps.append({"do": "dup", "n": rng.randrange(1, 5)})
        steps.append(rng.choice((a_pause(rng), {"do": "info", "label": "between"}, {"do": "write", "n": a_size(rng, mss)})))
        if rng.random() < 0.7:
            steps += [{"do": "deliver", "n": 40, "every": 1}, {"do": "ack", "upto": "all"}]
    return the_end(rng, steps)


def _long(rng: Random, config: dict[str, Any]) -> list[Step]:
    """A long flow, each segment acknowledged one RTT later, some lost: slow start and its exits, recovery, the growth behind it."""
    _opener(rng, config)
    config["win"] = 1 << 20
    config["wscale"] = 7
    config["pre"] = [["sndbuf", 4000000]] if rng.random() < 0.7 else []
    config["cc"] = rng.choice(("reno", "cubic", "cubic"))
    config["hs_ms"] = rng.choice((5, 10, 20, 40, 80))
    config["mss"] = rng.choice((1460, 1460, 1448, 1000))
    config.pop("mtu", None)
    rtt = int(config["hs_ms"] * 1000)
    n = rng.choice((100000, 300000, 600000))
    segments = n // config["mss"]
    drop = sorted(rng.sample(range(segments), rng.choice((0, 0, 1, 1, 2, 5))))
    if rng.random() < 0.2:
        first = rng.randrange(segments)
        drop = list(range(first, first + rng.randrange(2, 30)))
    steps: list[Step] = [{"do": "auto", "mode": "each", "us": rtt, "drop": drop}]
    if config["pre"]:
        steps.append({"do": "write", "n": n})
    else:
        steps.append({"do": "stream", "n": n, "chunk": 65536, "ms": 1500})
    for _ in range(rng.randrange(2, 6)):
        steps += [{"do": "wait_ms", "ms": config["hs_ms"] * rng.choice((1, 2, 3))}, {"do": "info", "label": "between"}]
        if rng.random() < 0.2:
            # the path gets longer or shorter
            steps.append({"do": "auto", "mode": "each", "us": int(rtt * rng.choice((0.7, 1.3, 2)))})
    return the_end(rng, steps)


def _large(rng: Random, config: dict[str, Any]) -> list[Step]:
    """As `long`, for some seconds: whether and where HyStart ends slow start, CUBIC's and Reno's growth behind a loss."""
    steps = _long(rng, config)
    n = rng.choice((1500000, 3000000))
    first = rng.randrange(40, 400)
    steps[0]["drop"] = rng.choice(([], [], [first], [first, first + 300], list(range(first, first + rng.randrange(1, 20)))))
    config["pre"] = [["sndbuf", 4000000]]
    config["hs_ms"] = rng.choice((10, 20, 50, 80, 110))
    config["mss"] = 1460
    steps[0]["us"] = int(config["hs_ms"] * 1000)
    return [steps[0], {"do": "write", "n": n}] + [{"do": "wait_ms", "ms": 200}, {"do": "info", "label": "between"}] * rng.randrange(4, 12)


def _validated(rng: Random, config: dict[str, Any]) -> list[Step]:
    """A program that does not fill cwnd, in rounds, with rests: validation, restart, what a loss then does."""
    _opener(rng, config)
    rtt = int(config["hs_ms"] * 1000)
    steps: list[Step] = [{"do": "auto", "mode": rng.choice(("frame", "two", "each")), "us": rtt}]
    for _ in range(rng.randrange(4, 14)):
        steps.append({"do": "write", "n": rng.choice((100, 1000, 5000, 15000, 15000, 40000))})
        steps.append({"do": "wait_us", "us": rng.choice((rtt // 2, rtt + 1000, 3 * rtt, 30000))})
        if rng.random() < 0.1:
            steps.append({"do": "wait_ms", "ms": rng.choice((210, 450, 650))})
        if rng.random() < 0.3:
            steps.append({"do": "info", "label": "between"})
    return the_end(rng, steps)


def _bbr_loss(rng: Random, config: dict[str, Any]) -> list[Step]:
    """BBR before a peer that loses, waits and limits."""
    config["cc"] = "bbr"
    config["hs_ms"] = max(config["hs_ms"], 3)
    mss = config["mss"]
    rtt = int(config["hs_ms"] * 1000)
    steps: list[Step] = []
    for _ in range(rng.randrange(2, 6)):
        steps += [{"do": "write", "n": rng.choice((1000, 10 * mss, 30 * mss))}, {"do": "wait_us", "us": rtt}]
        for _ in range(rng.randrange(1, 4)):
            n = rng.randrange(1, 12)
            steps.append({"do": "deliver", "n": n, "every": 1, "drop": sorted(rng.sample(range(n), min(n, rng.choice((0, 0, 1, 2)))))})
            steps.append({"do": "wait_us", "us": rng.choice((200, 1000, rtt))})
        steps.append({"do": "info", "label": "between"})
    return the_end(rng, steps)


SCRIPTS = {
    "served": _served, "toggles": _toggles, "urgent": _urgent, "resized": _resized, "zerocopy": _zerocopy, "late": _late, "long": _long, "large": _large,
    "validated": _validated, "bbr_loss": _bbr_loss,
}  # fmt: skip
