"""The main job in small, its command with Ctrl-C, the benchmark's parts, and the README's example."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pytcp.lab.mainjob import MIB, MainJob, Sizes

pytestmark = pytest.mark.tap

ROOT = Path(__file__).parents[2]
Program = Callable[[str], str]


def test_the_main_job_in_small(program: Program, tmp_path: Path) -> None:
    program("curl")
    capture = tmp_path / "demo.pcapng"
    sizes = Sizes(clean=8 * MIB, impaired=8 * MIB, seconds=0.3, connections=20, each=10_000)
    told: dict[str, list[float]] = {}

    def progress(text: str, share: float | None) -> None:
        if share is not None:
            told.setdefault(text, []).append(share)

    report = MainJob(sizes, progress, pcap=str(capture)).run()
    assert not report.failed
    for transfer in report.transfers:
        if "pings" not in transfer.name:
            shares = told[f"{transfer.wire}: {transfer.name}"]
            assert shares == sorted(shares) and shares[-1] <= 1, transfer.name
    for flood in ("the kernel sends", "pytcp sends"):
        assert any(0 < share < 1 for share in told[f"clean: {flood}"]), flood
    assert len(report.checks) > 20
    assert {t.bytes for t in report.transfers if "fetches" in t.name} == {8 * MIB}
    assert report.pcap_packets > 0
    if shutil.which("tshark"):
        read = subprocess.run(["tshark", "-r", str(capture), "-T", "fields", "-e", "tcp.port"], capture_output=True, check=True)
        assert len(read.stdout.splitlines()) == report.pcap_packets


def test_a_capture_for_which_there_is_no_room_is_a_failed_check_with_its_file(program: Program) -> None:
    program("curl")
    sizes = Sizes(clean=MIB, impaired=MIB, seconds=0.1, connections=2, each=1000)
    report = MainJob(sizes, lambda text, share: None, pcap="/dev/full").run()
    [detail] = [check.detail for check in report.failed if check.name.endswith("the capture is complete")]
    assert detail == "/dev/full: No space left on device"


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize(
    ("signum", "of_sigint"),
    [*((signum, signal.SIG_DFL) for signum in SIGNALS), (signal.SIGTERM, signal.SIG_IGN)],  # ignored: a shell script's background jobs
    ids=["SIGINT", "SIGTERM", "SIGHUP", "SIGTERM to a background job"],
)
def test_an_interrupted_demo_says_one_line_and_leaves_no_namespace_and_no_file(signum: signal.Signals, of_sigint: signal.Handlers, tmp_path: Path) -> None:
    on = partial(signal.signal, signal.SIGINT, of_sigint)
    argv = [sys.executable, "-m", "pytcp", "demo"]
    demo = subprocess.Popen(argv, stderr=subprocess.PIPE, cwd=ROOT, preexec_fn=on, env={**os.environ, "TMPDIR": str(tmp_path)})
    mine = f"pytcp-{demo.pid}-"
    deadline = time.monotonic() + 20
    while not any(name.startswith(mine) for name in os.listdir("/run/netns")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    assert len(list(tmp_path.iterdir())) == 2  # the data and the capture
    demo.send_signal(signum)
    _, errors = demo.communicate(timeout=20)
    assert demo.returncode == 130
    assert errors.decode().strip().splitlines()[-1] == "pytcp demo: interrupted"
    assert b"Traceback" not in errors
    assert not any(name.startswith(mine) for name in os.listdir("/run/netns"))
    assert not list(tmp_path.iterdir())


def test_the_benchmark_measures_every_target(program: Program, tmp_path: Path) -> None:
    for name in ("cc", "unshare"):
        program(name)
    out = tmp_path / "bench.json"
    argv = [sys.executable, "-m", "pytcp.cli.bench", "--sources", str(ROOT / "tools" / "bench_src"), "--json", str(out)]
    subprocess.run([*argv, "--runs", "1", "--seconds", "0.1", "--connections", "50"], cwd=ROOT, check=True, capture_output=True, timeout=120)
    report = json.loads(out.read_text())
    keys = ["bulk_out_gbps", "bulk_in_gbps", "rr_p50_us", "rr_p99_us", "rr_per_s", "rpc_per_s", "conn_per_s"]
    for target in (report, report["bare_loop"], report["kernel_veth"]):
        assert all(target[key] > 0 for key in keys)
        assert "idle_bytes_per_conn" in target
    assert report["bare_loop"]["idle_bytes_per_conn"] is None


def test_the_readmes_example_runs_and_prints_what_it_says(program: Program, tmp_path: Path) -> None:
    program("curl")
    text = (ROOT / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    assert len([line for line in code[1].splitlines() if line.strip()]) <= 15
    example = tmp_path / "example.py"
    example.write_text(code[1])
    done = subprocess.run([sys.executable, str(example)], cwd=ROOT, capture_output=True, check=True, timeout=60)
    assert done.stdout == b"Hello from Python's own TCP\n"
