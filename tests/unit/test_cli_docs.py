"""docs/cli.md against the commands: every command is in it, and completion works as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytcp
from pytcp.cli.main import COMMANDS

PAGE = (Path(pytcp.__file__).parents[1] / "docs" / "cli.md").read_text()


def complete(shell: str, *words: str) -> str:
    """What click answers to the completion script of a shell."""
    env = {**os.environ, "_PYTCP_COMPLETE": f"{shell}_complete", "COMP_WORDS": " ".join(("pytcp", *words)), "COMP_CWORD": str(len(words))}
    program = "import sys; sys.argv[0] = 'pytcp'; from pytcp.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=False).stdout


def test_every_command_is_on_the_page() -> None:
    table = PAGE[: PAGE.index("## Which network")]
    named = set(re.findall(r"`([a-z0-9]+)[ `]", table))
    assert set(COMMANDS) <= named


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_page_names_the_variable_that_prints_the_completion_script(shell: str) -> None:
    assert f"_PYTCP_COMPLETE={shell}_source pytcp" in PAGE
    program = "import sys; sys.argv[0] = 'pytcp'; from pytcp.cli.main import main; main()"
    env = {**os.environ, "_PYTCP_COMPLETE": f"{shell}_source"}
    script = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert f"_PYTCP_COMPLETE={shell}_complete" in script.stdout


def test_commands_options_and_values_are_completed() -> None:
    assert {line.partition(",")[2] for line in complete("bash", "tr").splitlines()} == {"trace", "traceroute"}
    assert "plain,--parallel" in complete("bash", "iperf3", "--pa").splitlines()
    assert "plain,G" in complete("bash", "iperf3", "-f", "G").splitlines()
    assert "plain,serve" in complete("bash", "http", "se").splitlines()
