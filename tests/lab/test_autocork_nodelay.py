"""autocork-nodelay: the 40 ms tail is there only where a completion is missed and the second write is still held."""

from __future__ import annotations

import pytest

from pytcp.lab.experiment import Setting
from pytcp.lab.runs import run_all

Figures = dict[str, dict[str, float]]
SHORT = [("requests", "4k"), ("connections", "32"), ("rate", "2500"), ("writes", "2k")]


@pytest.fixture(scope="module")
def tail() -> Figures:
    """Large enough for p99.99: the sixth largest of 60,000."""
    return {name: outcome.figures for name, outcome in run_all("autocork-nodelay", ["mainline", "any_nonagle"], sets=[("writes", "100")]).outcomes.items()}


@pytest.fixture(scope="module")
def short() -> Figures:
    return {name: outcome.figures for name, outcome in run_all("autocork-nodelay", sets=SHORT).outcomes.items()}


def test_missed_completions_show_as_a_delayed_ack_in_the_far_tail(tail: Figures) -> None:
    for percentile in ("p99.99", "p99.999", "send_p99.99", "send_p99.999"):
        assert 40 < tail["mainline"][percentile] < 50
        assert tail["any_nonagle"][percentile] < 6
    assert tail["mainline"]["p100"] < 60
    assert tail["mainline"]["missed"] > 0


def test_the_rest_of_the_distribution_stays(tail: Figures) -> None:
    for percentile in ("p50", "p75", "p90", "p99"):
        assert tail["mainline"][percentile] == pytest.approx(tail["any_nonagle"][percentile], rel=0.05)
    assert tail["mainline"]["p99.9"] == pytest.approx(tail["any_nonagle"]["p99.9"], rel=0.15)
    assert tail["mainline"]["send_p99.9"] == pytest.approx(tail["any_nonagle"]["send_p99.9"], rel=0.1)


def test_mainline_with_reliable_completions_has_no_tail(short: Figures) -> None:
    """The thread's conclusion: not the rule was wrong but a completion that called nobody."""
    reliable = short["mainline-reliable"]
    assert reliable["TCPAutoCorking"] >= 4_000, "the second write of every answer is held"
    assert reliable["p100"] < 6
    assert reliable["over_10ms"] == 0


def test_a_late_completion_is_no_missed_one(short: Figures) -> None:
    assert short["mainline-late"]["p100"] < 6
    assert short["mainline-late"]["over_10ms"] == 0


@pytest.mark.parametrize("variant", ["any_nonagle", "nodelay_only"])
def test_neither_variant_holds_a_nodelay_socket(short: Figures, variant: str) -> None:
    assert short[variant]["TCPAutoCorking"] == 0
    assert short[variant]["p100"] < 6


def test_the_reviewers_question_any_nonagle_takes_the_cork_away(short: Figures) -> None:
    """TCP_CORK sets nonagle, too, so `any_nonagle` sends a corked socket's writes without gathering; `nodelay_only` does not."""
    corked = {name: short[name]["packets_cork"] for name in ("mainline", "any_nonagle", "nodelay_only")}
    assert corked["nodelay_only"] == corked["mainline"]
    assert corked["any_nonagle"] > 1.3 * corked["mainline"]
    both = {name: short[name]["packets_cork_nodelay"] for name in corked}
    assert both["nodelay_only"] == both["any_nonagle"] > 1.3 * both["mainline"]
    assert len({short[name]["packets_plain"] for name in corked}) == 1


def test_the_same_seed_gives_the_same_digits_and_another_one_does_not() -> None:
    few: list[tuple[str, Setting]] = [("requests", "300"), ("connections", "8"), ("writes", "50")]
    first, again, other = (run_all("autocork-nodelay", ["mainline"], seed=seed, sets=few, processes=1).as_json() for seed in (5, 5, 6))
    assert first == again
    assert first["variants"] != other["variants"]
