"""tools/compare-kernel, in short: a few workloads live on this machine's kernel and on pytcp, in virtual time and over a TAP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytcp.lab.oracle.generate import KINDS, workload
from pytcp.lab.oracle.recording import check, load

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
# what follows round trips of microseconds is not among them: a Python stack answers later than a kernel
FILES = ["send/cork_inflight", "send/autocork_tail_outgrows", "send/eor_inflight", "workloads/reader_slow", "workloads/probe_partial"]
ATTEMPTS = 3


def run(*arguments: str, uid: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pytcp.lab.oracle", *arguments], cwd=ROOT, text=True, capture_output=True, timeout=120, user=uid)


@pytest.mark.tap
def test_both_do_the_same() -> None:
    """A busy machine may make a timer of either late: what differs in one run must not in another."""
    left = FILES
    for _ in range(ATTEMPTS):
        done = run(*(str(DATA / f"{name}.json") for name in left), "--json")
        results = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(results) == len(left), done.stderr
        assert all(set(result) == {"name", "what", "virtual", "tap"} for result in results)
        left = [name for name, result in zip(left, results, strict=True) if result["virtual"] or result["tap"]]
        assert done.returncode == (1 if left else 0)
        if not left:
            return
    pytest.fail(done.stdout)


@pytest.mark.tap
def test_a_difference_is_printed_and_is_exit_status_1(tmp_path: Path) -> None:
    """The kernel is told not to use SACK, pytcp the opposite by the recording: the first ACK of out-of-order data tells."""
    path = tmp_path / "differs.json"
    script = [{"do": "data", "n": 1000, "at": 1000}, {"do": "wait_ms", "ms": 1}]
    config = {"mss": 1000, "wscale": 7, "sack": True, "ts": False, "win": 65535, "hs_ms": 1, "cc": "reno", "pre": [], "sysctls": {"tcp_sack": 0}}
    path.write_text(json.dumps({"name": "differs", "config": config, "script": script}))
    kept = tmp_path / "kept"
    assert run(str(path), "--on", "virtual", "--keep", str(kept)).returncode == 0
    recording = json.loads((kept / "differs.json").read_text())
    recording["config"]["sysctls"] = {}

    from pytcp.lab.oracle.compare import compare
    from pytcp.lab.oracle.replay import replay

    found = compare(recording["runs"][0], replay(recording, recording["runs"][0]))
    assert found and found[0].kind == "frame"
    assert "sack" in found[0].text()


@pytest.mark.tap
def test_a_recording_has_its_stability(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    done = run(str(DATA / "workloads" / "eor_through_loss.json"), "--record", str(path), "--runs", "2")
    assert done.returncode == 0, done.stderr
    recording = json.loads(path.read_text())
    assert recording["stability"]["runs"] == 2
    assert len(recording["runs"]) == 1
    assert {"rtt", "clock_us", "jiffies"} <= set(recording["runs"][0]["handshake"])


def test_without_root_it_is_skipped() -> None:
    if os.geteuid() == 0:
        try:
            done = run(str(DATA / "send" / "cork_inflight.json"), uid=65534)
        except PermissionError:
            pytest.skip("the interpreter is root's alone")
    else:
        done = run(str(DATA / "send" / "cork_inflight.json"))
    assert done.returncode == 77, done.stderr
    assert "needs root" in done.stderr


@pytest.mark.parametrize(("arguments", "says"), [((), "name a FILE"), (("--fuzz", "nothing"), "invalid choice"), (("no-such.json",), "no-such.json")])
def test_wrong_arguments_are_named(arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"config": {"mss": 1460}}, "no number 'win'"),
        ({"config": {"mss": 1460, "win": 1000, "wscal": 7}}, "near: wscale"),
        ({"script": [{"do": "wriet", "n": 5}]}, "step 1 does 'wriet', which is unknown; near: write"),
        ({"script": [5]}, "step 1 is not an object"),
        ({"script": None}, "no config and script"),
    ],
)
def test_what_is_no_workload_is_named(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    path.write_text(json.dumps({"config": {"mss": 1460, "win": 1000}, "script": []} | change))
    done = run(str(path))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("content", [b"root:x:0:0", b"\xff\xfe"])
def test_a_file_that_is_no_json_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    path.write_bytes(content)
    done = run(str(path))
    assert done.returncode == 2
    assert f"{path}: neither JSON, as workloads and recordings are, nor a .pkt script" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.tap
@pytest.mark.parametrize(
    ("change", "says"),
    [({"script": [{"do": "write"}]}, "no 'n'"), ({"config": {"mss": 1460, "win": 1000, "cc": "cubik"}}, "No such file")],
)
def test_a_workload_that_cannot_be_run_counts_as_a_difference(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    path.write_text(json.dumps({"config": {"mss": 1460, "win": 1000}, "script": []} | change))
    done = run(str(path))
    assert (done.returncode, done.stdout.partition(",")[0]) == (1, "0 of 1 the same")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_every_recorded_and_every_random_workload_is_one() -> None:
    for path in sorted(DATA.glob("send/*.json")) + sorted(DATA.glob("workloads/*.json")):
        check(load(path))
    for kind in KINDS:
        for seed in range(20):
            check(workload(seed, kind))
