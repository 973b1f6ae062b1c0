"""tools/suite: run a folder of packetdrill scripts and say what changed against the ledger.

The ledger, tests/drill/suite.csv, has a line per script, target and mode: name and verdict, nothing of the script. Runs
are in compat mode, with the macros the suite's own runner gives. With --original PACKETDRILL each script is also given to
that program, on the same kernel, and the verdicts that differ are printed.
"""

from __future__ import annotations

import argparse
import csv
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytcp.drill.batch import Job, default_processes, find_scripts, run_jobs
from pytcp.drill.run import TARGETS, Result, Settings
from pytcp.drill.target import IP_MODES
from pytcp.drill.verdict import counts, table
from pytcp.tcp.profiles import DEFAULT, nearest

LEDGER = Path(__file__).parents[2] / "tests" / "drill" / "suite.csv"
# cookies of the addresses used here under the key of the suite's defaults.sh
COOKIES = {"ipv4": "3021b9d889017eeb", "ipv6": "e7041978eab92f14", "ipv4-mapped": "3021b9d889017eeb"}

HZ = 1000  # what the scripts' timers assume

# how the suite's runner calls the original, mode by mode
ADDRESSES = {
    "ipv4": "--local_ip=192.168.0.1 --gateway_ip=192.168.0.1 --netmask_ip=255.255.0.0 --remote_ip=192.0.2.1",
    "ipv6": "--mtu=1520 --local_ip=fd3d:0a0b:17d6::1 --gateway_ip=fd3d:0a0b:17d6:8888::1 --remote_ip=fd3d:fa7b:d17d::1",
}
ADDRESSES["ipv4-mapped"] = ADDRESSES["ipv4"]
ORIGINAL_COOKIES = {**COOKIES, "ipv6": "c1d1e9742a47a9bc"}
ENTER = "mount --bind /bin/bash /bin/sh && ip link set lo up && exec "  # scripts use bash's &>
RETRIES = 3  # real time on a machine that may be busy: what passes once, passes

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


def original_verdict(packetdrill: Path, script: Path, ip: str) -> tuple[str, str]:
    """Verdict of the original program on the machine's kernel, and the last thing it said."""
    recverr = "SOL_IP IP_RECVERR" if ip == "ipv4" else "SOL_IPV6 IPV6_RECVERR"
    level, kind = recverr.split()
    # a script that gives addresses means them; the program would let its command line decide
    addresses = "" if "--local_ip" in script.read_text(errors="replace") else ADDRESSES[ip]
    call = (
        f"{shlex.quote(str(packetdrill.resolve()))} --send_omit_free --ip_version={ip}{'-ipv6' if ip == 'ipv4-mapped' else ''} {addresses} "
        f"-D TFO_COOKIE={ORIGINAL_COOKIES[ip]} -D CODE=host_unreachable -D CMSG_LEVEL_IP={level} -D CMSG_TYPE_RECVERR={kind} {shlex.quote(script.name)}"
    )
    said = ""
    for _ in range(RETRIES):
        done = subprocess.run(["unshare", "-n", "-m", "bash", "-c", ENTER + call], cwd=script.parent, capture_output=True, text=True, timeout=180, check=False)
        if done.returncode == 0:
            return "pass", ""
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[0]
    return "fail", said


def compare_with_original(packetdrill: Path, folder: Path, modes: Sequence[str]) -> int:
    """Give every script to both programs on the machine's kernel; print what differs. Returns how many do."""
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
    if "cubic" not in allowed:
        sys.exit("tools/suite: packetdrill needs cubic: sysctl -w net.ipv4.tcp_allowed_congestion_control='" + " ".join([*allowed, "cubic"]) + "'")
    differing = 0
    for ip in modes:
        settings = Settings({}, {"TFO_COOKIE": COOKIES[ip], "CODE": "host_unreachable"}, 60.0, compat=True)
        tally: Counter[tuple[str, str]] = Counter()
        for script in map(Path, find_scripts([folder])):
            theirs, said = original_verdict(packetdrill, script, ip)
            for _ in range(RETRIES):
                (result,) = run_jobs([Job(str(script), "kernel", ip)], settings, 1)
                if result.verdict == "pass":
                    break
            tally[theirs, result.verdict] += 1
            if theirs != result.verdict:
                differing += 1
                print(f"{ip} {script.relative_to(folder)}:\n    packetdrill: {theirs} {said}\n    pytcp drill: {result.verdict} {result.reason}", flush=True)
        for (theirs, ours), number in sorted(tally.items()):
            print(f"{ip}: packetdrill {theirs}, pytcp drill {ours}: {number}")
    return differing


def main() -> int:
    """Exit status 0 when nothing got worse."""
    parser = argparse.ArgumentParser(prog="tools/suite", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="gtests/net/tcp of google/packetdrill, outside of this checkout")
    parser.add_argument("--target", choices=[*TARGETS, "both"], default="pytcp")
    parser.add_argument("--ip", choices=[*IP_MODES, "all"], default="ipv4")
    parser.add_argument("--update", action="store_true", help="write the verdicts into the ledger")
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    parser.add_argument("-j", type=int, default=0, help="scripts at a time")
    parser.add_argument("-v", action="store_true", help="why scripts did not pass")
    parser.add_argument("--original", type=Path, metavar="PACKETDRILL", help="compare with this program on the machine's kernel instead (root)")
    asked = parser.parse_args()
    if asked.original:
        return 1 if compare_with_original(asked.original, asked.folder, IP_MODES if asked.ip == "all" else (asked.ip,)) else 0

    targets = TARGETS if asked.target == "both" else (asked.target,)
    profile = nearest(os.uname().release) if asked.target == "both" else DEFAULT
    try:
        scripts = find_scripts([asked.folder])
    except FileNotFoundError:
        scripts = []
    if not scripts:
        parser.error(f"no scripts in {asked.folder}")
    ledger = read_ledger(asked.ledger)
    began = time.monotonic()
    results: list[Result] = []
    for target in targets:
        for ip in IP_MODES if asked.ip == "all" else (asked.ip,):
            settings = Settings({}, {"TFO_COOKIE": COOKIES[ip], "CODE": "host_unreachable"}, 60.0, compat=True, hz=HZ, profile=profile)
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
