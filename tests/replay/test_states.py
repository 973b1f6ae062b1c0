"""Random scripts in every state of TCP: recorded ones again in virtual time, and a few live on this machine's kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytcp.drill.errors import ScriptError
from pytcp.drill.run import run_file
from pytcp.lab.states.command import show
from pytcp.lab.states.compare import compare
from pytcp.lab.states.fuzz import judge, random_cases, settled
from pytcp.lab.states.generate import KINDS, random_script
from pytcp.lab.states.player import script_of
from pytcp.lab.states.recording import load, replay
from pytcp.lab.states.twin import play

ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "tests" / "data" / "states").glob("*.json"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pytcp.lab.oracle", *arguments], cwd=ROOT, text=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
def test_what_the_kernel_did_pytcp_does(path: Path) -> None:
    case = load(path)
    assert case.kernel is not None
    assert compare(case.kernel, replay(case)) == []


def test_every_kind_is_recorded() -> None:
    assert {path.stem.rpartition("-")[0] for path in RECORDED} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_a_script(kind: str) -> None:
    """The same one every time, in the language, and as good when it is played from its text."""
    text, ip = random_script(kind, 7)
    assert (text, ip) == random_script(kind, 7)
    assert text != random_script(kind, 8)[0]
    script = script_of(text.splitlines(), kind, ip)
    first, second = play(script, ip), play(script_of(text.splitlines(), kind, ip), ip)
    assert len(first.steps) == len(script.events)
    assert compare(first, second) == []


CONNECTED = [
    "0 socket(..., SOCK_STREAM|SOCK_NONBLOCK, IPPROTO_TCP) = 3",
    ".01 connect(3, ..., ...) = ...",
    ".02 < S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>",
    ".03 read(3, ..., 100) = ...",
    ".04 < F. 1:1(0) ack 1 win 1000",
]


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("0 socket", "`sysctl -q net.ipv4.tcp_sack=0`\n0 socket", "packet"),
        ("3, ..., 100)", "3, ..., 0)", "result"),
        ("win 1000", "win 999", "socket"),
        ("F. 1:1(0) ack 1", "F. 1:1(0) ack 9", "packet"),
        ("F. 1:1(0)", "F. 1:2(1)", "packet"),
        ("F. 1:1(0) ack 1", ". 70000:70000(0) ack 1", "packet"),
    ],
)
def test_what_is_done_otherwise_is_a_difference(old: str, new: str, kind: str) -> None:
    """Packets, results, readiness and tcp_info are each looked at; of what follows from one another the first is named first."""
    text = "\n".join(CONNECTED)
    first, second = (play(script_of(one.splitlines(), "one", "ipv4"), "ipv4") for one in (text, text.replace(old, new)))
    assert compare(first, second)[0].kind == kind


def test_a_counter_alone_is_a_difference() -> None:
    notes = play(script_of(CONNECTED, "one", "ipv4"), "ipv4")
    other = replace(notes, counters=notes.counters | {"TcpExtTCPChallengeACK": 1})
    assert [difference.kind for difference in compare(notes, other)] == ["counters"]


def test_a_script_of_stimuli_does_not_block() -> None:
    with pytest.raises(ScriptError, match="SOCK_NONBLOCK"):
        script_of(["0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3"], "blocks", "ipv4")


@pytest.mark.tap
def test_the_kernel_and_pytcp_do_the_same_live() -> None:
    """Two scripts of each kind, all at once. What differs three times in a row does not do so because the machine is busy."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    judged = list(judge([case for kind in KINDS for case in random_cases(kind, (40, 41))]))
    assert len(judged) == 2 * len(KINDS)
    assert all(case.kernel is not None and case.ours is not None for case in judged)
    assert not [show(case, True) for case in settled(judged, 2)]


@pytest.mark.tap
def test_a_difference_becomes_a_script(tmp_path: Path) -> None:
    """Linux takes an urgent byte that never came out of a TCP header (docs/compare-kernel.md), pytcp does not: that is shown, and kept as a test."""
    lines = [
        "0 socket(..., SOCK_STREAM|SOCK_NONBLOCK, IPPROTO_TCP) = 3",
        "+.01 connect(3, ..., ...) = ...",
        "+.01 < S. 0:0(0) ack 1 win 65535 <mss 1000>",
        "+.01 read(3, ..., 0) = ...",
        "+.01 < .U 1:1(0) ack 1 win 1000 urg 1",
        "+.01 < F. 1:1(0) ack 1 win 1000",
        "+.01 < . 2:2(0) ack 1 win 1000",
        "+.01 recv(3, ..., 1, MSG_OOB) = ...",
    ]
    path, kept = tmp_path / "urgent.pkt", tmp_path / "kept"
    path.write_text("\n".join(lines) + "\n")
    done = run(str(path), "-v", "--keep", str(kept))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "kernel 3: poll IN|PRI|OUT|RDHUP" in done.stdout
    script = kept / "urgent.pkt"
    assert run_file(script, "kernel").verdict == "pass"
    assert "read(" not in script.read_text()  # it was made smaller
