"""hystart-reset: a flow that rests between its messages, and the bulk flow that showed what the fix itself broke."""

from __future__ import annotations

import pytest

from pytcp.lab.runs import run_all

SHORT = [("transactions", "500")]


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, float]]:
    return {name: outcome.figures for name, outcome in run_all("hystart-reset", sets=SHORT, processes=1).outcomes.items()}


def test_a_false_train_costs_the_client_a_third_packet_per_transaction(figures: dict[str, dict[str, float]]) -> None:
    assert 2.9 <= figures["cong_avoid"]["out_per_transaction"] <= 3.1
    for fixed in ("update_gated", "update"):
        assert 1.98 <= figures[fixed]["out_per_transaction"] <= 2.05


def test_the_train_is_detected_once_near_30_and_not_at_all_after_the_fix(figures: dict[str, dict[str, float]]) -> None:
    assert figures["cong_avoid"]["TCPHystartTrainDetect"] == 1
    assert 25 <= figures["cong_avoid"]["TCPHystartTrainCwnd"] <= 32
    assert figures["update_gated"]["TCPHystartTrainDetect"] == figures["update"]["TCPHystartTrainDetect"] == 0


def test_the_first_fix_leaves_a_bulk_flow_early_by_its_delay(figures: dict[str, dict[str, float]]) -> None:
    gated = figures["update_gated"]
    assert 500 <= gated["bulk_TCPHystartDelayCwnd"] <= 545
    assert gated["bulk_TCPHystartTrainCwnd"] == 0
    for name in ("cong_avoid", "update"):
        assert 625 <= figures[name]["bulk_TCPHystartTrainCwnd"] <= 640
        assert figures[name]["bulk_TCPHystartDelayCwnd"] == 0
        assert figures[name]["bulk_delivered"] >= gated["bulk_delivered"] + 200_000


def test_a_message_that_does_not_fit_a_super_segment_gains_nothing() -> None:
    """With 64 KiB super-segments 80 KB are two packets, whatever the window, and each half is acknowledged."""
    results = run_all("hystart-reset", sets=[*SHORT, ("gso_max", "65536")], processes=1).outcomes
    assert {round(outcome.figures["out_per_transaction"], 1) for outcome in results.values()} == {4.0}


def test_today_the_same_train_would_cost_more() -> None:
    """6.1 keeps in mind that the window was the limit, the window stands at 20 then, and both sides send halves of 10."""
    results = run_all("hystart-reset", ["cong_avoid", "update"], sets=[*SHORT, ("pytcp.keep_cwnd_limited", 1)], processes=1).outcomes
    before, after = results["cong_avoid"].figures, results["update"].figures
    assert (before["TCPHystartTrainCwnd"], before["server_TCPHystartTrainCwnd"]) == (20, 20)
    assert before["out_per_transaction"] == pytest.approx(4, abs=0.1)
    assert after["out_per_transaction"] == pytest.approx(2, abs=0.05)


def test_a_paced_sender_is_not_hurt() -> None:
    """Under fq the detector wants the whole delay for a train, not half of it: it fires later, at a window of which half holds a message."""
    figures = run_all("hystart-reset", ["cong_avoid"], sets=[*SHORT, ("qdisc", "fq")], processes=1).outcomes["cong_avoid"].figures
    assert figures["TCPHystartTrainDetect"] == 1
    assert figures["TCPHystartTrainCwnd"] >= 40
    assert 1.98 <= figures["out_per_transaction"] <= 2.05
