"""docs/tutorial.md runs from top to bottom, and prints what stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("plotly", reason="needs pip install -e .[test]")

ROOT = Path(__file__).parents[2]

RUN = """
import sys
from tests.sim import tutorial
for block, printed in tutorial.run(tutorial.PAGE.read_text(), getattr(tutorial, sys.argv[1])):
    if printed != (block["text"] or ""):
        sys.exit("(python -m tests.sim.tutorial writes it anew)\\nthe page says:\\n" + str(block["text"]) + "the program says:\\n" + printed)
"""


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "tutorial.md").read_text()


@pytest.mark.parametrize("how", ["whole", "at_a_prompt"])
def test_every_block_prints_what_stands_behind_it(tmp_path: Path, how: str) -> None:
    # in a process of its own: what it registers stays for good; in a folder of its own: it writes a report
    command = [sys.executable, "-c", RUN, how]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "transfer.html").stat().st_size > 1_000_000


def test_what_the_page_says_about_its_figures_is_so(page: str) -> None:
    """Independent of the program: two megabytes at 20 Mbit/s, a bottleneck's bandwidth-delay product, who minds random loss."""
    seconds, rate = map(float, re.findall(r"([\d.]+) s, ([\d.]+) Mbit/s", page)[0])
    assert rate == pytest.approx(16 / seconds, abs=0.05)
    assert 0.8 < seconds < 1.2
    slowest = {name: float(high) for name, high in re.findall(r"^(reno|cubic|bbr) +[\d.]+ to +([\d.]+) s", page, re.MULTILINE)}
    assert slowest["bbr"] < min(slowest["reno"], slowest["cubic"])
    shares = dict(re.findall(r"^(share_\d) +([\d.]+)$", page, re.MULTILINE))
    assert float(shares["share_2"]) > 0.6  # "It is not."
    assert sum(map(float, shares.values())) == pytest.approx(1, abs=0.001)
    # a request and its answer over 50 ms each way
    assert "b'HELLO' after 0.100 s" in page or 'b"HELLO" after 0.100 s' in page
