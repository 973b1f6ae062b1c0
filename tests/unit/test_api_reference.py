"""docs/api is what the docstrings say now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytcp

ROOT = Path(pytcp.__file__).parents[1]


def test_the_reference_is_up_to_date() -> None:
    program = [sys.executable, str(ROOT / "tools" / "lib" / "apidocs.py"), "--check"]
    result = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
