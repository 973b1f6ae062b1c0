"""What the kernel did with a script of stimuli, as JSON: to be compared with pytcp again, without a kernel.

`script`, `ip`, and `kernel`: `Notes` with its steps (time, us; text; result; sockets by descriptor), packets (`sent`: time, action before it, text,
timestamp, connection), counters, and the instants of the actions, ns (`times_ns`). A step, and a packet, are a line; of a socket there is what
has changed since the step before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .compare import UNTOLD
from .fuzz import Case
from .player import Notes, Sent, Step, script_of
from .twin import play


def dump(case: Case) -> str:
    """A recording of a case that was run on the kernel."""
    assert case.kernel is not None
    notes = asdict(case.kernel)
    before: dict[int, dict[str, Any]] = {}
    for step in notes["steps"]:
        now = {fd: {name: value for name, value in seen.items() if name not in UNTOLD} for fd, seen in step["sockets"].items()}
        step["sockets"] = {fd: dict(seen.items() - before.get(fd, {}).items()) for fd, seen in now.items()}
        before = now
    parts = [f' "{name}": {_lines(value) if name in ("steps", "sent") else json.dumps(value)}' for name, value in notes.items()]
    head = {"kernel_release": os.uname().release, "name": case.name, "ip": case.ip}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    return "{\n" + ",\n".join([*lines, f' "script": {_lines(case.text.splitlines())}', *parts]) + "\n}\n"


def _lines(items: Sequence[object]) -> str:
    return "[\n" + ",\n".join("  " + json.dumps(item, separators=(",", ":")) for item in items) + "\n ]"


def load(path: Path) -> Case:
    """A recording. Raises OSError, ValueError, KeyError for what is none."""
    data = json.loads(path.read_text())
    steps: list[Step] = []
    before: dict[int, dict[str, Any]] = {}
    for step in data["steps"]:
        before = {int(fd): before.get(int(fd), {}) | seen for fd, seen in step["sockets"].items()}
        steps.append(Step(step["t_us"], step["text"], step["result"], before))
    sent = [Sent(**one) for one in data["sent"]]
    notes = Notes(steps, sent, data["counters"], data["times_ns"], data["end_ns"], data["boot_ns"])
    return Case(data["name"], "\n".join(data["script"]) + "\n", data["ip"], notes)


def replay(case: Case) -> Notes:
    """The same stimuli on pytcp, at the kernel's instants."""
    return play(script_of(case.text.splitlines(), case.name, case.ip), case.ip, case.kernel)
