"""What Linux 6.18 did in recorded workloads, pytcp does in virtual time: frames, windows, acknowledgements, results, tcp_info, counters.

The recordings (`tools/compare-kernel --record`, docs/compare-kernel.md) cover what the older ones under tests/data/send leave
open: what limits a sender, BBR, pacing, reading, right-sizing, probes, records, a hostile peer. Where the kernel's five runs
differ they follow their round-trip times, and pytcp is given those of the run it is compared with.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytcp.lab.oracle.compare import HOST, compare
from pytcp.lab.oracle.generate import KINDS, workload
from pytcp.lab.oracle.recording import dump, load, stability
from pytcp.lab.oracle.replay import best, replay

FILES = sorted((Path(__file__).parent.parent / "data" / "workloads").glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_pytcp_does_what_linux_did(path: Path) -> None:
    recording = load(path)
    run = recording["runs"][0]
    _, found = best(recording, run, lambda twin: compare(run, twin))
    assert not found, "\n".join(difference.text() for difference in found)


def test_there_is_a_recording_on_every_subject() -> None:
    subjects = {path.stem.partition("_")[0] for path in FILES}
    assert {"chrono", "bbr", "pacing", "reader", "drs", "probe", "eor", "host", "hostile"} <= subjects
    assert {"served", "sizes", "holes", "resized", "urgent", "toggles", "late", "sack"} <= subjects


def test_a_difference_is_found() -> None:
    """Any number of a recorded frame, window, result or counter changed by one is a difference."""
    recording = load(next(path for path in FILES if path.stem == "reader_slow"))
    run = recording["runs"][0]
    twin = replay(recording, run)
    assert compare(run, twin) == []
    for kind, field in (("reply", "win"), ("reply", "ack"), ("read", "ret"), ("info", "rmem"), ("info", "rcv_ssthresh")):
        event = next(event for event in twin["events"] if event["ev"] == kind)
        kept = event[field]
        event[field] = kept + 1
        assert [difference.kind for difference in compare(run, twin)][:1] == ["frame" if kind in HOST else kind], (kind, field)
        event[field] = kept
    twin["counters"]["TcpExtTCPHPHits"] = twin["counters"].get("TcpExtTCPHPHits", 0) + 1
    assert [difference.kind for difference in compare(run, twin)] == ["counter"]


def test_a_recording_is_written_as_it_is_read(tmp_path: Path) -> None:
    recording = load(FILES[0])
    path = tmp_path / "again.json"
    path.write_text(dump(recording))
    assert load(path) == recording
    assert path.read_text() == FILES[0].read_text()


def test_stability_ends_where_runs_part() -> None:
    run = load(next(path for path in FILES if path.stem == "reader_slow"))["runs"][0]
    other = {**run, "events": [dict(event) for event in run["events"]]}
    third = [event for event in other["events"] if event["ev"] in HOST][2]
    third["win"] += 1000
    result = stability([run, other])
    assert not result["frame_boundaries_and_flags_identical"]
    assert result["first_difference_at_frame"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_names_one_workload(kind: str) -> None:
    assert workload(7, kind) == workload(7, kind)
    assert workload(7, kind)["script"] != workload(8, kind)["script"]
