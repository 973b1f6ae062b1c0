"""What Linux 6.18 answered to ACKs, SACKs and silence, the engine answers.

Recordings under tests/data/receive_t: loss detection and recovery (RACK, TLP, PRR, F-RTO, undo, reneging,
NewReno), RTT and RTO, cwnd-limited growth, ECN as sender, a zero-window probe, long flows ACK by ACK
(HyStart's exits, CUBIC and Reno through a loss), and `random_*`: writes, losses and blocks by chance,
half of the receivers liars.
"""

from __future__ import annotations

import pytest

from .ack_side import DATA, replay

CASES = sorted(path.stem for path in DATA.glob("*.json"))


@pytest.mark.parametrize("name", CASES)
def test_the_engine_answers_as_linux_did(name: str) -> None:
    result = replay(name)
    assert result.differences == []
    assert result.compared >= 2
