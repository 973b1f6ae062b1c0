"""The engine's rooms refer to each other in cycles; any of them may be the first one imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pytcp.tcp

ROOMS = sorted(p.stem for p in Path(pytcp.tcp.__file__).parent.glob("*.py") if p.stem != "__init__")


@pytest.mark.parametrize("room", [*ROOMS, "cong.cubic"])
def test_a_room_can_be_imported_first(room: str) -> None:
    subprocess.run([sys.executable, "-c", f"import pytcp.tcp.{room}"], check=True, timeout=60)
