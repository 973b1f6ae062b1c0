"""The pytest plugin: a project's own scripts are tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

GOOD = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 close(3) = 0\n"
BAD = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 > . 1:1(0) ack 1\n"


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in a folder of its own, with the plugin named, whether it is installed or not."""
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-m", "pytest", "-p", "pytcp.drill.pytest_plugin", "-p", "no:cacheprovider", "-q", *arguments]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    (tmp_path / "good.pkt").write_text(GOOD)
    return tmp_path


def test_scripts_are_not_collected_unless_wanted(folder: Path) -> None:
    assert run_pytest(folder).returncode == 5  # no tests


def test_scripts_are_tests(folder: Path) -> None:
    done = run_pytest(folder, "--drill-target", "pytcp", "--drill-ip", "all", "-v")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_a_failure_is_shown_as_the_runner_shows_it(folder: Path) -> None:
    (folder / "bad.pkt").write_text(BAD)
    (folder / "pytest.ini").write_text("[pytest]\ndrill_target = pytcp\n")
    done = run_pytest(folder)
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "bad.pkt:2: no packet came" in done.stdout
    assert "Traceback" not in done.stdout


def test_macros_and_the_limit_are_settings(folder: Path) -> None:
    (folder / "good.pkt").write_text(GOOD.replace("3", "SOCKET") + "+2 %{ pass }%\n")
    ini = "[pytest]\ndrill_target = pytcp\ndrill_define =\n    SOCKET=3\n    OTHER = 4\n"
    (folder / "pytest.ini").write_text(ini)
    assert run_pytest(folder).returncode == 0
    (folder / "pytest.ini").write_text(ini + "drill_timeout = 1\n")
    assert "the limit is 1 s" in run_pytest(folder).stdout


def test_the_settings_of_the_documentation_are_taken(folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "drill.md").read_text()
    ini = re.search(r"    # pytest\.ini\n((?:    .*\n)+)", page)
    assert ini is not None
    (folder / "pytest.ini").write_text(textwrap.dedent(ini[1]))
    done = run_pytest(folder, "-m", "not tap")
    assert "3 passed, 3 deselected" in done.stdout, done.stderr


def test_kernel_runs_can_be_left_out(folder: Path) -> None:
    done = run_pytest(folder, "--drill-target", "both", "-m", "not tap")
    assert "1 passed, 1 deselected" in done.stdout


@pytest.mark.parametrize(("setting", "says"), [("drill_target = frob", "pytcp, kernel, both, none"), ("drill_ip = 4", "ipv4, ipv6, ipv4-mapped, all")])
def test_a_setting_that_makes_no_sense_is_said_before_any_test(folder: Path, setting: str, says: str) -> None:
    (folder / "pytest.ini").write_text(f"[pytest]\n{setting}\n")
    done = run_pytest(folder)
    assert done.returncode == 4
    assert f"ERROR: {setting}: there are {says}" in done.stderr
