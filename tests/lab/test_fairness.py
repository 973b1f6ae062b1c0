"""fairness: shares of a bottleneck, and what is known about who gets how much."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytcp.lab.experiment import ExperimentError, Outcome, run_variant
from pytcp.lab.record import Record

DOCS = Path(__file__).parents[2] / "docs" / "experiments.md"

SHORT = (("rate", "6Mbit"), ("queue", "30000"), ("warmup", "2s"), ("duration", "6s"))


def share(*sets: tuple[str, str], record: str = "") -> Outcome:
    return run_variant("fairness", "cubic+cubic", 1, sets=[*SHORT, *sets], record=record)


def test_shares_are_of_the_whole_and_the_bottleneck_is_full() -> None:
    figures = share(("flows", "cubic+cubic+reno")).figures
    assert sum(figures[f"share_{number}"] for number in (1, 2, 3)) == pytest.approx(1)
    assert 1 / 3 <= figures["jain"] <= 1
    assert 0.95 <= figures["utilisation"] <= 1 + 2 * 1514 * 8 / 36e6  # a packet at each end of the measurement
    assert figures["queue_p99_ms"] <= 30_000 * 8 / 6e6 * 1000
    assert figures["drops"] > 0


def test_reno_with_twice_the_round_trip_gets_less_than_half_of_what_the_other_gets() -> None:
    """Rate goes as 1/RTT under equal loss (Mathis et al. 1997), and the queue adds to both round trips."""
    figures = share(("flows", "reno+reno"), ("extra", "80ms"), ("queue", "15000"), ("duration", "15s")).figures
    assert figures["share_2"] < 0.4


def test_bbr_keeps_a_shallow_queue_from_cubic_its_share() -> None:
    """BBR version 1 does not heed loss: in a queue of half a bandwidth-delay product it takes far more than half."""
    figures = share(("flows", "cubic+bbr"), ("queue", "15000")).figures
    assert figures["share_2"] > 0.7


def test_codel_keeps_the_queue_short_and_marks_instead_of_dropping() -> None:
    tail, codel = share(("queue", "100kB")).figures, share(("queue", "100kB"), ("aqm", "codel"), ("ecn", "yes")).figures
    assert codel["queue_ms"] < tail["queue_ms"] / 4
    assert codel["marks"] > 0
    assert codel["drops"] == codel["retransmits"] == 0
    assert codel["jain"] > 0.8


def test_the_record_has_every_flow_and_the_queue_they_share(tmp_path: Path) -> None:
    share(("duration", "1s"), record=str(tmp_path / "run.jsonl"))
    record = Record.read_jsonl(tmp_path / "run.jsonl")
    assert {"cubic 1", "cubic 2"} <= set(record.flows)
    assert record.queue_names() == ["bottleneck"]
    assert max(row["bytes"] for row in record.queues) <= 30_000


@pytest.mark.parametrize(("sets", "says"), [([("flows", "cubic+cubik")], "near: cubic"), ([("ecn", "yes")], "droptail queue marks nothing")])
def test_what_cannot_be_is_said(sets: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(ExperimentError, match=says):
        share(*sets)


def test_the_page_has_these_figures_of_the_pair_that_seeds_change() -> None:
    """BBR begins its cycle of gains at random."""
    figures = run_variant("fairness", "cubic+bbr").figures
    table = DOCS.read_text().partition("## Flows that compete")[2]
    column = {cells[1]: cells[4] for cells in ([cell.strip() for cell in line.split("|")] for line in table.splitlines()) if len(cells) == 7}
    assert column[""] == "cubic+bbr"
    assert column["share of the first"] == f"{figures['share_1'] * 100:.1f} %"
    assert column["Jain's index"] == f"{figures['jain']:.3f}"
    assert column["mean delay in the queue"] == f"{figures['queue_ms']:.1f} ms"
    assert column["packets dropped"] == f"{figures['drops']:,}"
