"""Tests against a real kernel and real programs. A missing program skips its test, as a missing TAP does (tests/conftest.py)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest

from pytcp.lab.machine import PROGRAMS


@pytest.fixture
def program() -> Callable[[str], str]:
    """`program("curl")`: the path of a program the test needs. PYTCP_REQUIRE_TAP=1 promises those as well."""

    def need(name: str) -> str:
        where = shutil.which(name)
        if where is None:
            reason = f"{name} is not installed (apt-get install {PROGRAMS.get(name, ('', name))[1]})"
            if os.environ.get("PYTCP_REQUIRE_TAP") == "1":
                pytest.fail(f"PYTCP_REQUIRE_TAP=1, but {reason}", pytrace=False)
            pytest.skip(reason)
        return where

    return need
