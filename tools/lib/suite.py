"""tools/suite: run a folder of packetdrill scripts and say what changed against the ledger.

The ledger, tests/drill/suite.csv, has a line per script, target and mode: name and verdict, nothing of the script. Runs
are in compat mode, with the macros the suite's own runner gives.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import Counter
from pathlib import Path

from pytcp.drill.batch import Job, default_processes, find_scripts, run_jobs
from pytcp.drill.run import TARGETS, Result, Settings
from pytcp.drill.target import IP_MODES
from pytcp.drill.verdict import counts, table

LEDGER = Path(__file__).parents[2] / "tests" / "drill" / "suite.csv"
# cookies of the addresses used here under the key of the suite's defaults.sh
COOKIES = {"ipv4": "3021b9d889017eeb", "ipv6": "e7041978eab92f14", "ipv4-mapped": "3021b9d889017eeb"}

HZ = 1000  # what the scripts' timers assume

Key = tuple[str, str, str]


def read_ledger(path: Path) -> dict[Key, str]:
    """Verdicts by (script, target, mode)."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {(row["script"], row["target"], row["ip"]): row["verdict"] for row in csv.DictReader(file)}


def write_ledger(path: Path, verdicts: dict[Key, str]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("script", "target", "ip", "verdict"))
        writer.writerows((*key, verdict) for key, verdict in sorted(verdicts.items()))


def main() -> int:
    """Exit status 0 when nothing got worse."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="gtests/net/tcp of google/packetdrill, outside of this checkout")
    parser.add_argument("--target", choices=[*TARGETS, "both"], default="pytcp")
    parser.add_argument("--ip", choices=[*IP_MODES, "all"], default="ipv4")
    parser.add_argument("--update", action="store_true", help="write the verdicts into the ledger")
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    parser.add_argument("-j", type=int, default=0, help="scripts at a time")
    parser.add_argument("-v", action="store_true", help="why scripts did not pass")
    asked = parser.parse_args()

    targets = TARGETS if asked.target == "both" else (asked.target,)
    scripts = find_scripts([asked.folder])
    ledger = read_ledger(asked.ledger)
    began = time.monotonic()
    results: list[Result] = []
    for target in targets:
        for ip in IP_MODES if asked.ip == "all" else (asked.ip,):
            settings = Settings({}, {"TFO_COOKIE": COOKIES[ip], "CODE": "host_unreachable"}, 60.0, compat=True, hz=HZ)
            jobs = [Job(script, target, ip) for script in scripts]
            done = run_jobs(jobs, settings, asked.j or default_processes([target]))
            for result in done:
                result.ip = ip  # a script with an address family of its own is counted in the mode that was asked for
            results += done
    changes: Counter[str] = Counter()
    for result in results:
        result.file = str(Path(result.file).relative_to(asked.folder))
        key = result.file, result.target, result.ip
        before = ledger.get(key)
        if before != result.verdict:
            kind = "new" if before is None else "better" if result.verdict == "pass" else "worse" if before == "pass" else "other"
            changes[kind] += 1
            if before is not None:
                print(f"{kind:7} {result.target} {result.ip} {result.file}: {before} -> {result.verdict} {result.reason}")
        if asked.v and result.verdict != "pass":
            print(f"{result.verdict:12} {result.target} {result.ip} {result.file}:{result.line}: {result.reason}")
        ledger[key] = result.verdict
    print(table(results))
    print(f"{counts(results)['pass']} of {len(results)} pass, {time.monotonic() - began:.1f} s; against the ledger: {dict(changes) or 'no change'}")
    if asked.update:
        write_ledger(asked.ledger, ledger)
    return 1 if changes["worse"] else 0


if __name__ == "__main__":
    sys.exit(main())
