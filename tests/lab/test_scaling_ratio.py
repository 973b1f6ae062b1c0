"""scaling-ratio: a window half as large takes twice as long, and why one variant stops at 65,535."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytcp.lab.runs import Result, run_all

DOCS = Path(__file__).parents[2] / "docs" / "experiments.md"


@pytest.fixture(scope="module")
def result() -> Result:
    return run_all("scaling-ratio", processes=1)


def test_the_old_default_takes_twice_as_long(result: Result) -> None:
    before, after = (result.outcomes[name].figures["seconds"] for name in ("65-never", "128-never"))
    assert 40 <= before <= 46
    assert 21 <= after <= 23
    assert 1.85 <= before / after <= 2.12


def test_with_the_clamp_following_the_measured_ratio_counts(result: Result) -> None:
    assert 16 <= result.outcomes["128-always"].figures["seconds"] <= 17
    assert 21 <= result.outcomes["65-always"].figures["seconds"] <= 22


def test_65_always_stops_at_the_largest_unscaled_window(result: Result) -> None:
    stuck, free = result.outcomes["65-always"].figures, result.outcomes["128-always"].figures
    # the same buffer, the same measured ratio, the same clamp: 170/256 of twice 65,536 bytes
    assert stuck["window_clamp"] == free["window_clamp"] == 131072 * 170 // 256
    # 32,120 fits 16 bits, so the first clamp asked for no scale, and the scale stays as it was in the SYN
    assert (stuck["window_scale"], free["window_scale"]) == (0, 1)
    assert stuck["largest_window"] == 65535 < free["largest_window"]


def test_without_the_clamp_nothing_measured_moves_the_window(result: Result) -> None:
    for name, default in (("65-never", 65), ("128-never", 128)):
        figures = result.outcomes[name].figures
        assert figures["payload_share"] == 170 / 256
        # the default's share of the buffer in whole segments of 1460 bytes
        assert figures["largest_window"] == figures["first_window"] == 131072 * default // 256 // 1460 * 1460


def test_the_page_has_these_figures(result: Result) -> None:
    never65, never128, always65, always128 = (result.outcomes[name].figures for name in ("65-never", "128-never", "65-always", "128-always"))
    rows = (("seconds", "{:.1f}", "40", "22"), ("largest_window", "{:,}", "", ""), ("window_clamp", "{:,}", "", ""))
    for key, form, slow, fast in rows:
        cells = [slow, form.format(never65[key]), fast, *(form.format(of[key]) for of in (never128, always65, always128))]
        line = f"| {key.replace('_', ' ') if key != 'window_clamp' else key} | {' | '.join(cells)} |".replace("|  |", "| |")
        assert line in DOCS.read_text()


def test_the_largest_segments_make_the_difference_larger() -> None:
    """At MSS 8948 clamps of 24,332 and 56,588 hold two whole segments and six."""
    slow, fast = (o.figures["seconds"] for o in run_all("scaling-ratio", ["65-never", "128-never"], sets=[("mtu", "9000")], processes=1).outcomes.values())
    assert slow / fast == pytest.approx(3, rel=0.02)


def test_the_same_seed_gives_the_same_digits() -> None:
    first, again = (run_all("scaling-ratio", ["128-always"], seed=3, sets=[("size", "1MB")], processes=1).as_json() for _ in range(2))
    assert first == again
