"""The scripts of tools/: their help, an interrupted set-up, and why tests are skipped. None of them sets this machine up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the tools and what their set-up looks at, in which nothing is set up, and programs of ours in bin/."""
    for folder in ("tools", "csrc"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    program(tmp_path / "bin" / "cc", "exit 0")
    return tmp_path


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_help_of_the_tests_is_ours_and_then_pytests(checkout: Path) -> None:
    (checkout / "tools" / "lib" / "setup.sh").write_text(f'pytcp_setup() {{ :; }}\nPYTCP_ROOT={checkout}\nPYTCP_PYTHON={checkout}/bin/python\n')
    program(checkout / "bin" / "python", 'echo "$@"')
    done = subprocess.run(["bash", str(checkout / "tools" / "test"), "--help"], capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "usage: tools/test [ARGUMENTS]"
    assert lines[-1] == "-m pytest --help"
    for name in ("PYTCP_REQUIRE_TAP=1", "PYTCP_REQUIRE_C=1", "PYTCP_NO_C=1", "PYTCP_REQUIRE_BROWSER=1"):
        assert f"    {name} " in done.stdout
    assert "Arguments are pytest's" in done.stdout


@pytest.mark.parametrize(("tool", "script"), [("suite", "suite.py"), ("apidocs", "apidocs.py")])
def test_a_tool_calls_itself_as_it_is_called(tool: str, script: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "lib" / script), "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(f"usage: tools/{tool} ")


def test_ctrl_c_in_a_set_up_is_one_line_and_leaves_no_log(checkout: Path) -> None:
    python = """
    if [ "$1" = -m ]; then
        trap 'echo "Traceback (most recent call last):" >&2; trap - INT; kill -INT $$' INT
        echo > started
        i=0; while [ $i -lt 200 ]; do sleep 0.05; i=$((i + 1)); done
    fi"""
    program(checkout / "bin" / "python", python)
    (checkout / "tmp").mkdir()
    env = {**os.environ, "PATH": f"{checkout}/bin:{os.environ['PATH']}", "PYTHON": f"{checkout}/bin/python", "TMPDIR": f"{checkout}/tmp"}
    setup = "set -euo pipefail; . tools/lib/setup.sh; pytcp_setup; echo set up"
    shell, pipe = ["bash", "-c", setup], subprocess.PIPE
    child = subprocess.Popen(shell, cwd=checkout, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    while not (checkout / "started").exists():
        assert child.poll() is None
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "setup: interrupted"
    assert "Traceback" not in err
    assert not list((checkout / "tmp").iterdir())


def test_what_is_skipped_says_why(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("import pytest\n\ndef test_one():\n    pytest.skip('no such device here')\n")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run([sys.executable, "-m", "pytest", *options, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert "SKIPPED [1] " in done.stdout
    assert "no such device here" in done.stdout
