"""The host around TCP does what a Linux 6.18 kernel did: recorded conversations, replayed frame by frame."""

from __future__ import annotations

from typing import Any

import pytest

from .host_replay import load, replay

SUBJECTS = ("arp", "ndp", "ipv4-in", "ipv4-frag", "ipv6-in", "ipv6-ext", "ipv6-frag", "icmp4", "icmp4-errors", "icmp6", "icmp6-errors", "pmtu", "link")
CASES = [pytest.param(case, id=f"{subject}/{case['name']}") for subject in SUBJECTS for case in load(subject)]


@pytest.mark.parametrize("case", CASES)
def test_the_stack_answers_as_the_kernel_did(case: dict[str, Any]) -> None:
    assert replay(case) == []
