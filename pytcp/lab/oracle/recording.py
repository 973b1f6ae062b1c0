"""Recordings of workloads: JSON with an event a line, and what was the same in all runs.

A recording is a workload with `runs` (the first ones in full), `kernel`, `hz`, and `stability` over all
runs: up to which frame boundaries, flags and gso_size agree, how far each frame's time moves, whether
counters, results and states agree. docs/compare-kernel.md describes every field.
"""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path
from typing import Any

from .compare import FRAME_FIELDS, HOST, LOOSE, UNCOMPARED
from .kernel_side import KernelSide, jiffies_at
from .script import Runner

CONFIG = (
    "mss", "wscale", "sack", "ts", "win", "hs_ms", "cc", "pre", "passive", "ecn", "sysctls", "mtu", "gso_max_size", "gso_max_segs", "offload", "htb",
    "repeat_acks",
)  # fmt: skip
STEPS = tuple(name.removeprefix("do_") for name in vars(Runner) if name.startswith("do_"))


def check(data: Any) -> None:
    """Raises ValueError for what is no workload: a part is missing, or a name is not known."""
    if not isinstance(data, dict) or not isinstance(data.get("config"), dict) or not isinstance(data.get("script"), list):
        if isinstance(data, dict) and "steps" in data:
            raise ValueError("a recording of the receiving side, not a workload: pytest tests/replay plays those")
        raise ValueError("no workload: it has no config and script")
    for name in ("mss", "win"):
        if not isinstance(data["config"].get(name), int):
            raise ValueError(f"config has no number {name!r}")
    for name in data["config"]:
        _known(name, CONFIG, "config has")
    for at, step in enumerate(data["script"], 1):
        if not isinstance(step, dict):
            raise ValueError(f"step {at} is not an object with 'do'")
        _known(step.get("do"), STEPS, f"step {at} does")


def _known(name: Any, names: tuple[str, ...], where: str) -> None:
    if name not in names:
        near = difflib.get_close_matches(str(name), names)
        raise ValueError(f"{where} {name!r}, which is unknown; {'near' if near else 'known'}: {', '.join(near or names)}")


def run_on_kernel(workload: dict[str, Any]) -> dict[str, Any]:
    """One run of a workload on the running kernel. Raises TestbedError where the machine does not let us."""
    with KernelSide(workload["config"]) as side:
        run = Runner(workload, side).run()
        run["handshake"]["jiffies"] = jiffies_at(run["handshake"]["clock_us"] * 1000)
    return run


def record(workload: dict[str, Any], runs: int, keep: int = 1) -> dict[str, Any]:
    """The recording of `runs` runs, `keep` of them in full."""
    done = [run_on_kernel(workload) for _ in range(runs)]
    head = {name: workload[name] for name in ("name", "what", "config", "script") if name in workload}
    return {"kernel": os.uname().release, "hz": 250} | head | {"stability": stability(done), "runs": done[:keep]}


def _host(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in run["events"] if event["ev"] in HOST]


def _exact(run: dict[str, Any], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Events of some kinds without what moves from run to run."""
    ignored = UNCOMPARED | LOOSE.keys()
    return [{name: value for name, value in event.items() if name not in ignored} for event in run["events"] if event["ev"] in names]


def stability(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What is the same in all runs."""
    views = [[tuple(str(event.get(name)) for name in FRAME_FIELDS) for event in _host(run)] for run in runs]
    shortest = min(map(len, views))
    common = next((i for i in range(shortest) if any(view[i] != views[0][i] for view in views)), shortest)
    same = all(view == views[0] for view in views)
    out: dict[str, Any] = {"runs": len(runs), "frame_boundaries_and_flags_identical": same}
    if not same:
        out["first_difference_at_frame"] = common
    times = [[event["t"] for event in _host(run)][:common] for run in runs]
    out["frame_time_us_min_max"] = [[min(column), max(column)] for column in zip(*times, strict=True)]
    tcp = [{name: value for name, value in run["counters"].items() if name.startswith("Tcp")} for run in runs]
    out["counters_identical"] = all(counters == tcp[0] for counters in tcp)
    out["info_identical"] = all(_exact(run, ("info", "hostmem")) == _exact(runs[0], ("info", "hostmem")) for run in runs)
    calls = ("write", "read", "writable", "readable")
    out["results_identical"] = all(_exact(run, calls) == _exact(runs[0], calls) for run in runs)
    return out


def load(path: Path) -> dict[str, Any]:
    """A workload or a recording. Raises OSError, or ValueError for what is no JSON."""
    with path.open() as file:
        try:
            data: dict[str, Any] = json.load(file)
        except ValueError as error:  # not UTF-8, too
            raise ValueError(f"neither JSON, as workloads and recordings are, nor a .pkt script: {error}") from None
    return data


def dump(recording: dict[str, Any]) -> str:
    """The recording's text: small things on one line, an event on a line of its own."""
    parts = []
    for name, value in recording.items():
        if name != "runs":
            parts.append(f" {json.dumps(name)}: {_list(value) if name == 'script' else json.dumps(value)}")
            continue
        runs = []
        for run in value:
            fields = [f"   {json.dumps(key)}: {_list(item, 4) if key == 'events' else json.dumps(item)}" for key, item in run.items()]
            runs.append("  {\n" + ",\n".join(fields) + "\n  }")
        parts.append(' "runs": [\n' + ",\n".join(runs) + "\n ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _list(items: list[Any], indent: int = 2) -> str:
    pad = " " * indent
    return "[\n" + ",\n".join(pad + json.dumps(item, separators=(",", ":")) for item in items) + "\n" + pad[1:] + "]"
