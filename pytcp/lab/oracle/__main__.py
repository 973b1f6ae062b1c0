"""tools/compare-kernel: a scripted sender or receiver on this machine's kernel and on pytcp, side by side.

A FILE is a workload or a recording (JSON, docs/compare-kernel.md). It is run live on the kernel, in a network namespace of
its own, and then on pytcp: over a TAP with the same peer, and in virtual time with the kernel's run as the clock. Prints the
first difference of each, or "same". Needs root; exits with 77 where the machine does not let it. Random workloads: --fuzz.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytcp.drill.target_kernel import urgent
from pytcp.lab.netns import TestbedError
from pytcp.lab.states.command import CHOICES as STATES
from pytcp.lab.states.command import main as states

from .compare import Difference, compare
from .generate import KINDS, workload
from .recording import check, dump, load, record, run_on_kernel
from .replay import best
from .script import Failed, Runner
from .show import beside
from .tap_side import TapSide

SKIPPED = 77
DATA = Path(__file__).parents[3] / "tests" / "data"
FOLDERS = ("send", "workloads")


def workloads(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is to be run."""
    if asked.fuzz:
        for seed in range(asked.seed, asked.seed + asked.count):
            yield workload(seed, asked.fuzz)
    paths = [path for folder in FOLDERS for path in sorted((DATA / folder).glob("*.json"))] if asked.all else asked.files
    for path in paths:
        try:
            data = load(path)
            check(data)
        except (OSError, ValueError) as error:
            parser().error(f"{path}: {getattr(error, 'strerror', None) or error}")
        data.setdefault("name", path.stem)
        yield data


def judge(data: dict[str, Any], asked: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Result of one workload as a dict, and the text of what differs."""
    kernel = run_on_kernel(data)
    result: dict[str, Any] = {"name": data["name"], "what": data.get("what", "")}
    text = ""
    on = asked.on or ("virtual" if asked.fuzz else "both")
    for side in ("virtual", "tap") if on == "both" else (on,):
        if side == "virtual":
            ours, differences = best(data, kernel, lambda twin: compare(kernel, twin))
        else:
            with TapSide(data["config"]) as tap:
                ours = Runner(data, tap).run()
            # a Python stack acts later, which sizes and timers that follow round trips of microseconds show
            differences = compare(kernel, ours, times=False, live=True)
        result[side] = [_plain(difference) for difference in differences]
        if differences:
            text += f"{data['name']}, {side}: {differences[0].text()}\n"
            if asked.verbose:
                text += beside(kernel, ours, differences[0].at_us)
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
        (asked.keep / f"{data['name']}.json").write_text(dump({**data, "runs": [kernel]}))
    return result, text


def _plain(difference: Difference) -> dict[str, Any]:
    return dict(difference._asdict())


def parser() -> argparse.ArgumentParser:
    """The command line."""
    about = (__doc__ or "").split("\n\n")
    out = argparse.ArgumentParser(prog="tools/compare-kernel", description=about[0].partition(": ")[2], epilog=about[1])
    out.add_argument("files", nargs="*", type=Path, metavar="FILE", help="workload or recording (JSON), or a script of stimuli (.pkt)")
    out.add_argument("--all", action="store_true", help="every recorded workload of tests/data")
    out.add_argument(
        "--fuzz", choices=(*KINDS, *STATES), metavar="KIND", help=f"random workloads: {', '.join(KINDS)}; random scripts in every state: {', '.join(STATES)}"
    )
    out.add_argument("--seed", type=int, default=0, help="of the first random workload")
    out.add_argument("--count", type=int, default=100, help="random workloads")
    out.add_argument("--on", choices=("virtual", "tap", "both"), help="how pytcp is run (both; random workloads: virtual)")
    out.add_argument("--record", type=Path, metavar="OUT", help="write a recording of FILE (or of one random workload) instead of comparing")
    out.add_argument("--runs", type=int, default=5, help="of a recording (5)")
    out.add_argument("--keep", type=Path, metavar="FOLDER", help="keep each kernel run there, to be replayed")
    out.add_argument("--json", action="store_true", help="results as JSON, one workload a line")
    out.add_argument("-v", "--verbose", action="store_true", help="events around a difference, side by side")
    return out


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 the same everywhere, 1 a difference, 77 the machine does not let us."""
    asked = parser().parse_args(argv)
    if not (asked.files or asked.all or asked.fuzz):
        parser().error("name a FILE, --all or --fuzz KIND")
    if asked.fuzz in STATES or (asked.files and all(path.suffix == ".pkt" for path in asked.files)):
        return states(asked)
    urgent()
    began = time.monotonic()
    same = count = 0
    for data in workloads(asked):
        try:
            if asked.record:
                asked.record.write_text(dump(record(data, asked.runs)))
                print(f"{asked.record}: {data['name']}, {asked.runs} runs")
                return 0
            result, text = judge(data, asked)
        except TestbedError as error:
            print(f"tools/compare-kernel: skipped: {error.strerror}", file=sys.stderr)
            return SKIPPED
        except (Failed, OSError, KeyError) as error:
            # of a step, too: a field that it needs, a name the kernel does not know
            print(f"{data['name']}: {f'no {error}' if isinstance(error, KeyError) else error}", file=sys.stderr)
            count += 1
            continue
        count += 1
        same += not text
        if asked.json:
            print(json.dumps(result), flush=True)
        else:
            print(text.rstrip() if text else f"{data['name']}: same", flush=True)
    if not asked.json:
        print(f"{same} of {count} the same, {time.monotonic() - began:.0f} s")
    return 0 if same == count else 1


if __name__ == "__main__":
    sys.exit(main())
