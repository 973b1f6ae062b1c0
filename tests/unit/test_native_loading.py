"""How the package finds its C helpers, does without them, or insists on them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytcp
from pytcp import native

STALE = """
import sys, types
module = types.ModuleType("pytcp._native")
module.lib = types.SimpleNamespace(PYTCP_ABI=-1)
module.ffi = None
sys.modules["pytcp._native"] = module
"""
MISSING = """
import sys
sys.modules["pytcp._native"] = None
"""
REPORT = """
from pytcp import native
print(native.HAVE_C, native.lib is None, native.ffi is None, native.reason, sep="|")
"""


def load(before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTCP_NO_C", "PYTCP_REQUIRE_C")}
    return subprocess.run(
        [sys.executable, "-c", before + REPORT], env={**clean, **environment}, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def test_the_twins_can_be_forced_without_a_warning() -> None:
    done = load(PYTCP_NO_C="1")
    assert done.stdout == "False|True|True|PYTCP_NO_C=1\n" and done.stderr == ""


def test_missing_helpers_are_a_warning() -> None:
    done = load(MISSING)
    assert done.stdout.startswith("False|True|True|not built")
    assert "RuntimeWarning: pytcp runs without its C helpers" in done.stderr


def test_helpers_of_other_sources_are_not_used() -> None:
    done = load(STALE)
    assert done.stdout.startswith("False|True|True|built from other sources")
    assert "RuntimeWarning" in done.stderr


@pytest.mark.parametrize(("before", "environment"), [(MISSING, {}), (STALE, {}), ("", {"PYTCP_NO_C": "1"})])
def test_required_helpers_that_are_missing_are_an_error(before: str, environment: dict[str, str]) -> None:
    done = load(before, PYTCP_REQUIRE_C="1", **environment)
    assert done.returncode != 0 and "ImportError: pytcp: C helpers required" in done.stderr


def test_header_and_door_name_the_same_interface() -> None:
    header = Path(pytcp.__file__).parent.parent / "csrc" / "pytcp.h"
    if not header.exists():
        pytest.skip("installed without sources")
    text = header.read_text()
    assert int(re.findall(r"PYTCP_ABI = (\d+);", text)[0]) == native.ABI
    functions = set(re.findall(r"\b(pytcp_\w+)\(", text))
    assert functions == {name for name in vars(native.Lib) if name.startswith("pytcp_")}


@pytest.mark.skipif(not native.HAVE_C, reason=native.reason)
def test_impossible_arguments_of_batched_input_and_output_are_refused() -> None:
    assert native.lib is not None
    out = native.ffi.new("char[64]")
    rx = native.ffi.new("struct pytcp_rx[1]")
    assert native.lib.pytcp_read_batch(0, out, 10, 10, 1, rx) < 0
    assert native.lib.pytcp_read_batch(0, out, 64, 4, 1, rx) < 0
    assert native.lib.pytcp_write_frames(1, out, 64, 1, 65, 0, 0) < 0
    assert native.lib.pytcp_write_frames(1, out, 64, 1, 64, 0, 13) < 0
    # nothing to do is no error, not even on a bad descriptor
    assert native.lib.pytcp_write_frames(-1, out, 64, 1, 64, 1, 0) == 0
    assert native.lib.pytcp_read_batch(-1, out, 64, 0, 0, rx) == 0


THREADS = """
from pytcp.clock.virtual import VirtualRuntime
from pytcp.lab.litmus import stuck_in_ring, stuck_sockets, verdicts
from pytcp.link.txthread import ThreadRing
heap = VirtualRuntime().heap
for ask in (
    lambda: ThreadRing(None, heap, print, print, print),
    lambda: stuck_sockets("plain", rounds=1),
    lambda: stuck_in_ring(True, pushes=1),
):
    try:
        ask()
    except RuntimeError as error:
        print(error)
print(len(verdicts()))
"""


def test_threads_beside_python_are_refused_without_the_helpers() -> None:
    environment = {**os.environ, "PYTCP_NO_C": "1", "PYTCP_REQUIRE_C": ""}
    done = subprocess.run([sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    assert done.stdout.splitlines() == [
        "a transmit thread needs the C helpers, and there are none: PYTCP_NO_C=1",
        "no C helpers: PYTCP_NO_C=1",
        "no C helpers: PYTCP_NO_C=1",
        "11",
    ]
