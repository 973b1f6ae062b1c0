"""push-barrier: the bad state is where the models say, on the machine's processors, and in a server's tail."""

from __future__ import annotations

import pytest

from pytcp.lab import litmus
from pytcp.lab.runs import Result, run_all

Figures = dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def result() -> Result:
    """A completion in a thousand is missed, so that 10,000 answers show it; races as long as they have to be."""
    sets = [("requests", "10k"), ("connections", "64"), ("rate", "5k"), ("missed", "1e-3"), ("rounds", "500k")]
    return run_all("push-barrier", sets=sets)


def figures(result: Result) -> Figures:
    return {name: outcome.figures for name, outcome in result.outcomes.items()}


def test_the_bad_state_is_reached_only_where_a_store_may_wait(result: Result) -> None:
    """Store buffers make it possible; the barrier removes it if the other side's decrement is a barrier, too, and not otherwise."""
    before, after = figures(result)["without"], figures(result)["with"]
    assert before["bad_sc"] == after["bad_sc"] == 0
    assert before["bad_tso"] > 0 == after["bad_tso"]
    assert before["bad_tso_plain"] > 0 < after["bad_tso_plain"]
    assert before["bad_printed"] > 0 < after["bad_printed"], "the test as printed in the thread"


def test_every_row_of_the_enumeration_is_shown(result: Result) -> None:
    for outcome in result.outcomes.values():
        table = next(table for table in outcome.tables if table.title == "Every order of steps")
        assert len(table.rows) == len(litmus.verdicts())


def test_two_processors_do_it_without_the_fence_and_never_with_it(result: Result) -> None:
    """A short form of the races in tests/unit/test_litmus.py, which go on for ten million rounds."""
    why = litmus.why_no_race()
    if why:
        assert all("held_for_good" not in outcome.figures for outcome in result.outcomes.values())
        assert any(why in row[0] for outcome in result.outcomes.values() for table in outcome.tables for row in table.rows)
        pytest.skip(why)
    assert figures(result)["without"]["held_for_good"] == 1
    assert figures(result)["with"]["held_for_good"] == 0


def test_the_tail_is_a_delayed_ack_without_the_barrier(result: Result) -> None:
    before, after = figures(result)["without"], figures(result)["with"]
    for percentile in ("p99.99", "p99.999"):
        assert 40 < before[percentile] < 50
        assert after[percentile] < 6
    for percentile in ("p50", "p75", "p90", "p99"):
        assert before[percentile] == pytest.approx(after[percentile], rel=0.05)
