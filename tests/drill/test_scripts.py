"""Our own scripts: each passes on pytcp, in every mode, and on the kernel of this machine.

The kernel's runs are real time on a machine that does other things, too: they get 20 ms where the script has not asked
for more. In virtual time every script keeps the tolerance it has.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytcp.drill.parser import parse
from pytcp.drill.run import Settings, run_file

HERE = Path(__file__).parent
SCRIPTS = sorted(HERE.rglob("*.pkt"))
NAMES = [str(path.relative_to(HERE)) for path in SCRIPTS]
SUBJECTS = {
    "handshake", "fastopen", "options", "data", "delack", "close", "window", "paws", "rfc5961", "keepalive", "simultaneous", "reorder", "urgent", "icmp", "ecn",
    "timewait", "mtu_probing", "nagle", "cork", "more", "eor", "tso", "autocork", "cwnd", "cubic", "pacing", "sndbuf", "notsent", "rcvbuf", "scaling_ratio",
    "shrink", "drs", "tsq", "md5",
}  # fmt: skip
RELAXED = Settings({"tolerance_usecs": "20000"})


def modes(path: Path) -> list[str]:
    """The modes a script is for."""
    fixed = parse(path.read_text(), str(path)).options.get("ip_version")
    return [fixed] if fixed else ["ipv4", "ipv6", "ipv4-mapped"]


CASES = [pytest.param(path, ip, id=f"{name}-{ip}") for path, name in zip(SCRIPTS, NAMES, strict=True) for ip in modes(path)]


@pytest.mark.parametrize(("path", "ip"), CASES)
def test_script_passes_on_pytcp(path: Path, ip: str) -> None:
    result = run_file(path, "pytcp", ip)
    assert result.verdict == "pass", result.report


@pytest.mark.tap
@pytest.mark.parametrize("path", SCRIPTS, ids=NAMES)
def test_script_passes_on_the_kernel(path: Path) -> None:
    result = run_file(path, "kernel", modes(path)[0], RELAXED)
    assert result.verdict == "pass", result.report


def test_there_are_scripts_on_every_subject() -> None:
    assert {path.parent.name for path in SCRIPTS} == SUBJECTS
    assert len(SCRIPTS) >= 60


@pytest.mark.parametrize("path", SCRIPTS, ids=NAMES)
def test_script_says_what_it_is_about(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("// ")
    assert first.rstrip(".") != "//"
