"""What all tests share: the `tap` marker, and no test that fails because the machine is slow.

A test marked `tap` needs root, network namespaces and /dev/net/tun. Where they are missing it is
skipped and says why, unless PYTCP_REQUIRE_TAP=1 declares that they have to be there: then it fails.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("pytcp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pytcp")

# in a child, because it leaves the network namespace for good
PROBE = """
import ctypes, fcntl, os, struct
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x40000000):  # CLONE_NEWNET
    raise SystemExit("no network namespace: " + os.strerror(ctypes.get_errno()))
try:
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, 0x400454CA, struct.pack("16sH22x", b"", 0x1002))  # TUNSETIFF: IFF_TAP | IFF_NO_PI
except OSError as failed:
    raise SystemExit(f"no TAP device: {failed}")
"""


@functools.cache
def why_no_tap() -> str:
    """Why TAP tests cannot run here; empty when they can."""
    if os.geteuid() != 0:
        return "not root"
    probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return "" if probe.returncode == 0 else probe.stderr.strip() or f"probe ended with {probe.returncode}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("tap") is None:
        return
    reason = why_no_tap()
    if reason and os.environ.get("PYTCP_REQUIRE_TAP") == "1":
        pytest.fail(f"PYTCP_REQUIRE_TAP=1, but {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)
