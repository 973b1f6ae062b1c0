"""What `tools/compare-kernel` does with scripts of stimuli: random ones (`--fuzz states`, `--fuzz states.KIND`) and .pkt files.

A script that differs is run twice more, and counts only if it differs every time. `--keep FOLDER` writes each that does as a
script for `pytcp drill`, made smaller and with what the kernel did as its expectations: it passes there and fails on pytcp.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator

from pytcp.drill.errors import DrillError
from pytcp.drill.packets import Addresses
from pytcp.drill.record import Recorder
from pytcp.drill.run import Settings, make_target, setup_for
from pytcp.wire.addr import parse_ip

from .compare import Difference
from .fuzz import Case, judge, random_cases, settled, smaller
from .generate import KINDS
from .player import Notes, script_of
from .recording import dump

AGAIN = 2
AROUND = 4  # actions before a difference that are shown
CHOICES = ("states", *[f"states.{kind}" for kind in KINDS])


def cases(asked: argparse.Namespace) -> Iterator[tuple[str, list[Case]]]:
    """Scripts by kind. Raises DrillError for a file that is no script of stimuli."""
    if asked.fuzz:
        kind = asked.fuzz.partition(".")[2]
        for name in (kind,) if kind else KINDS:
            yield name, random_cases(name, range(asked.seed, asked.seed + asked.count))
    for path in asked.files:
        case = Case(path.stem, path.read_text(), _mode(path.read_text()))
        script_of(case.text.splitlines(), case.name, case.ip)
        yield str(path), [case]


def run(asked: argparse.Namespace) -> int:
    """Exit status: 0 the same everywhere, 1 a difference. Raises DrillError where the machine does not let us, or for a wrong file."""
    if asked.record:
        for _, scripts in cases(asked):
            case = next(iter(judge(scripts[:1])))
            asked.record.write_text(dump(case))
            print(f"{asked.record}: {case.name}, {'differs' if case.differs else 'the same'}")
            return 0
    began = time.monotonic()
    differ = count = 0
    for kind, scripts in cases(asked):
        found = settled(list(judge(scripts)), AGAIN)
        count += len(scripts)
        differ += len(found)
        for case in found:
            print(json.dumps(_plain(case)) if asked.json else show(case, asked.verbose), flush=True)
            if asked.keep and not case.failed:
                asked.keep.mkdir(parents=True, exist_ok=True)
                (asked.keep / f"{case.name}.pkt").write_text(recorded(small(case)))
        if not asked.json:
            print(f"{kind}: {len(scripts) - len(found)} of {len(scripts)} the same", flush=True)
    if not asked.json:
        print(f"{count - differ} of {count} the same, {time.monotonic() - began:.0f} s")
    return 1 if differ else 0


def small(case: Case) -> Case:
    """The script without what its first difference does not need."""
    first = case.differences[0]
    return smaller(case, lambda one: bool(one.differences) and alike(one.differences[0], first))


def alike(one: Difference, other: Difference) -> bool:
    """Whether two differences are probably the same one: of one kind, of the same fields or with the same flags."""
    if one.kind != other.kind:
        return False
    if one.kind == "packet":
        return [_flags(text) for text in (one.kernel, one.ours)] == [_flags(text) for text in (other.kernel, other.ours)]
    return one.kind in ("time", "stamp") or one.kernel.split(" ")[:2] == other.kernel.split(" ")[:2]


def _flags(packet: str) -> str:
    words = packet.partition("] ")[2].split(" ")
    return words[3] if len(words) > 3 else packet


def recorded(case: Case) -> str:
    """The script with what the kernel does, for `pytcp drill`."""
    script = script_of(case.text.splitlines(), case.name, case.ip)
    setup = setup_for(script, case.ip, Settings())
    text = Recorder(script, make_target("kernel", setup), setup, Addresses(parse_ip(setup.local), parse_ip(setup.remote))).record()
    return f"--ip_version={case.ip}\n{text}"


def show(case: Case, verbose: bool) -> str:
    """The first difference, and with `verbose` the events around it, side by side."""
    if case.failed:
        return f"{case.name}: could not be run: {case.failed}"
    first = case.differences[0]
    assert case.kernel is not None and case.ours is not None
    text = f"{case.name} ({case.ip}), {first.kind} behind action {first.step}\n  kernel {first.kernel}\n  pytcp  {first.ours}"
    return f"{text}\n{_beside(case.kernel, case.ours, first.step)}" if verbose else text


def _beside(kernel: Notes, ours: Notes, step: int) -> str:
    lines: list[tuple[int, str]] = []
    for number, action in enumerate(kernel.steps, 1):
        if step - AROUND <= number <= step + 1:
            result = f" = {action.result}" if action.result else ""
            lines.append((action.t_us, f"{number:3} {action.t_us / 1e6:.6f}  {action.text.partition(' = ')[0]}{result}"))
    for name, run in (("kernel", kernel), ("pytcp", ours)):
        lines += [(p.t_us, f"    {p.t_us / 1e6:.6f}  {name:6} > {p.text}") for p in run.sent if step - AROUND <= p.step <= step + 1]
    return "\n".join(text for _, text in sorted(lines, key=lambda line: line[0]))


def _plain(case: Case) -> dict[str, object]:
    return {"name": case.name, "ip": case.ip, "failed": case.failed, "differences": [dict(one._asdict()) for one in case.differences], "script": case.text}


def _mode(text: str) -> str:
    return next((line.partition("=")[2].strip() for line in text.splitlines() if line.startswith("--ip_version=")), "ipv4")


def main(asked: argparse.Namespace) -> int:
    """As `run`; 77 where the machine does not let us, 2 for a file that is none."""
    try:
        return run(asked)
    except (DrillError, OSError) as error:
        verdict = getattr(error, "verdict", "error")
        print(f"tools/compare-kernel: {'skipped: ' if verdict == 'skipped' else ''}{error}", file=sys.stderr)
        return 77 if verdict == "skipped" else 2
