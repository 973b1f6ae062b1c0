"""Tests against a real kernel: skipped with the reason where the machine has no TAP, failed where it was promised one.

`PYTCP_REQUIRE_TAP=1` is that promise; CI makes it, so that a broken machine cannot pass for a green run.
"""

from __future__ import annotations

import functools
import os
import shutil

import pytest

from pytcp.lab import machine


@functools.cache
def obstacle() -> str:
    """Why no testbed can be made here; empty when one can."""
    for check in (machine.kernel, machine.privileges, machine.tun_device, machine.tap_offloads, machine.namespaces):
        found = check()
        if found.status == machine.MISSING:
            return f"{found.name}: {found.detail} ({found.remedy})"
    return ""


def unavailable(reason: str) -> None:
    if os.environ.get("PYTCP_REQUIRE_TAP") == "1":
        pytest.fail(f"PYTCP_REQUIRE_TAP=1, but {reason}", pytrace=False)
    pytest.skip(reason)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("tap") and obstacle():
        unavailable(obstacle())


@pytest.fixture
def program() -> object:
    """`program("curl")`: the test needs that program."""

    def need(name: str) -> str:
        where = shutil.which(name)
        if where is None:
            unavailable(f"{name} is not installed (apt-get install {machine.PROGRAMS.get(name, ('', name))[1]})")
        assert where is not None
        return where

    return need
