"""`--record`: what a run did, as a script that passes where it was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pytcp.cli.drill import command
from pytcp.drill.run import Settings, record_file, run_text

HERE = Path(__file__).parent
RECORDED = [
    "handshake/blocking_connect",
    "handshake/refused",
    "data/fast_retransmit_by_sack",
    "data/poll_wakes_for_data",
    "close/linger_waits_for_the_ack",
    "keepalive/silence_ends_the_connection",
    "paws/old_timestamp_is_refused",
    "simultaneous/open",
    "urgent/sent",
    "reorder/two_holes_newest_first",
]


@pytest.mark.parametrize("name", RECORDED)
def test_what_was_recorded_passes(name: str) -> None:
    text = record_file(HERE / f"{name}.pkt")
    assert "\n" in text
    result = run_text(text, "recorded.pkt")
    assert result.verdict == "pass", f"{result.report}\n{text}"


@pytest.mark.tap
@pytest.mark.parametrize("name", RECORDED[:3])
def test_what_was_recorded_on_the_kernel_passes_there(name: str) -> None:
    text = record_file(HERE / f"{name}.pkt", "kernel")
    result = run_text(text, "recorded.pkt", "kernel", settings=Settings({"tolerance_usecs": "20000"}))
    assert result.verdict == "pass", f"{result.report}\n{text}"


def test_results_and_packets_are_those_of_the_run(tmp_path: Path) -> None:
    wrong = (HERE / "data" / "read_in_pieces.pkt").read_text().replace("read(4, ..., 1000) = 100", "read(4, ..., 1000) = 77").replace("ack 301", "ack 999")
    (tmp_path / "wrong.pkt").write_text(wrong)
    text = record_file(tmp_path / "wrong.pkt")
    assert "read(4, ..., 1000) = 100\n" in text
    assert "> . 1:1(0) ack 301 win" in text


def test_the_command_prints_the_script() -> None:
    where = str(HERE / "data" / "blocking_read.pkt")
    done = CliRunner().invoke(command, [where, "--record"], standalone_mode=False)
    assert done.return_value == 0
    assert "+0...0.04 read(4, ..., 1000) = 100" in done.output
    assert CliRunner().invoke(command, [str(HERE), "--record"]).exit_code == 2
