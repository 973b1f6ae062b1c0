"""tso-autosizing: how many super-segments 2 MB become, sized in sendmsg or at transmit time."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytcp.lab.experiment import Setting
from pytcp.lab.runs import Result, run_all

DOCS = Path(__file__).parents[2] / "docs" / "experiments.md"


@pytest.fixture(scope="module")
def result() -> Result:
    return run_all("tso-autosizing", processes=1)


def test_two_megabytes_are_exactly_1382_segments(result: Result) -> None:
    """2,000,000 / 1448; no window edge and no wake-up of the writer cuts one in two."""
    assert {outcome.figures["data_segments"] for outcome in result.outcomes.values()} == {1382}
    # SYN, the handshake's ACK and the ACK of the peer's FIN; ours rides on data
    assert {outcome.figures["TcpOutSegs"] for outcome in result.outcomes.values()} == {1385}


def test_packets_fall_as_published(result: Result) -> None:
    before, after = (result.outcomes[name].figures for name in ("sendmsg", "xmit"))
    assert 540 <= before["IpOutRequests"] <= 640
    assert 205 <= after["IpOutRequests"] <= 250
    assert 540 <= before["IpInReceives"] <= 640
    assert 195 <= after["IpInReceives"] <= 240
    for figures in (before, after):
        assert 0.32 <= figures["elapsed"] <= 0.37
        assert figures["mbit"] == pytest.approx(44.25, rel=0.01)


def test_each_round_doubles_and_sendmsg_made_pairs_for_all_of_them(result: Result) -> None:
    rounds = {name: outcome.tables[0].rows for name, outcome in result.outcomes.items()}
    for rows in rounds.values():
        assert [int(row[1]) for row in rows] == [10, 20, 40, 80, 160, 320, 640, 112]
    assert [row[3] for row in rounds["sendmsg"][:6]] == [f"{count}x2" for count in (5, 10, 20, 40, 80, 160)]
    # half of the first window, 14,600 bytes, holds ten segments
    assert rounds["xmit"][6][3].startswith("63x10")


def test_the_published_number_of_segments_is_taken_apart(result: Result) -> None:
    for outcome in result.outcomes.values():
        parts = outcome.tables[1]
        assert parts.title == "TcpOutSegs of the thread, 1397"
        assert [int(row[1]) for row in parts.rows] == [1382, 3, 11, 1]


def test_the_page_has_these_figures(result: Result) -> None:
    before, after = (result.outcomes[name].figures for name in ("sendmsg", "xmit"))
    assert f"| packets to IP | 599 | {before['IpOutRequests']} | 232 | {after['IpOutRequests']} |" in DOCS.read_text()
    assert f"| packets from IP | 600 | {before['IpInReceives']} | 221 | {after['IpInReceives']} |" in DOCS.read_text()
    assert f"| TcpOutSegs | 1397 | {before['TcpOutSegs']} | 1397 | {after['TcpOutSegs']} |" in DOCS.read_text()


def test_what_is_not_of_this_connection_is_named_not_counted(result: Result) -> None:
    for outcome in result.outcomes.values():
        assert outcome.figures["IpOutRequests_and_control"] == outcome.figures["IpOutRequests"] + 11
        assert outcome.figures["IpInReceives_and_control"] == outcome.figures["IpInReceives"] + 13


def test_growing_bursts_undo_the_difference_in_queued_skbs() -> None:
    """pytcp.grow_skb, 6.10: a burst takes from the skb behind it."""
    figures = run_all("tso-autosizing", ["xmit"], sets=[("pytcp.grow_skb", 1)], processes=1).outcomes["xmit"].figures
    assert figures["IpOutRequests"] < 185


def test_a_larger_first_window_makes_larger_bursts() -> None:
    """64 KB instead of 20 segments, today's first window: half of it holds 22."""
    larger: list[tuple[str, Setting]] = [("pytcp.init_rwnd", 0), ("net.ipv4.tcp_rmem", "4096 131072 6291456")]
    figures = run_all("tso-autosizing", ["xmit"], sets=larger, processes=1).outcomes["xmit"].figures
    assert figures["IpOutRequests"] < 195


WITHOUT_GRO: tuple[str, Setting] = ("receive", "segments")
CANNOT_GROW: list[tuple[str, Setting]] = [
    ("pytcp.init_rwnd", 0),
    ("net.ipv4.tcp_rmem", "4096 4194304 6291456"),
    ("net.ipv4.tcp_moderate_rcvbuf", 0),
]


def packets_in(*sets: tuple[str, Setting]) -> set[float]:
    outcomes = run_all("tso-autosizing", sets=[WITHOUT_GRO, *sets], processes=1).outcomes
    return {outcome.figures["IpInReceives"] for outcome in outcomes.values()}


def test_a_receiver_without_gro_acknowledges_every_second_segment_whatever_left_in_one() -> None:
    """1382 segments, the first sixteen one by one: 16 + 1366 / 2 = 699 ACKs, and with the SYN-ACK and the FIN 701, before and after."""
    assert packets_in(*CANNOT_GROW) == {1 + 16 + (1382 - 16) // 2 + 1} == {701}


def test_since_6_6_an_odd_segment_with_push_is_acknowledged_too() -> None:
    """Each burst of an odd number of segments ends in one that nothing waits for, and that carries PSH."""
    counts = packets_in(*CANNOT_GROW, ("pytcp.ack_full_push", 1))
    assert all(701 < count < 740 for count in counts)


def test_a_window_that_grows_with_each_segment_is_told_of_with_each() -> None:
    """Quick ACKs: the way back carries nearly one packet per segment, and again the cut of the bursts is nothing to it."""
    counts = packets_in()
    assert all(1180 <= count <= 1300 for count in counts)
    assert max(counts) / min(counts) < 1.03
