"""fairness --real: pytcp and the kernel share a bottleneck."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from scapy.utils import RawPcapNgReader

from pytcp.lab.experiment import ExperimentError
from pytcp.lab.record import Record
from pytcp.lab.runs import run_all_real

pytestmark = pytest.mark.tap


def packets_of_interfaces(capture: Path) -> Counter[str]:
    """How many packets each interface of a capture has, by its name."""
    with RawPcapNgReader(str(capture)) as packets:
        return Counter(about.ifname.decode() for _, about in packets)


def test_a_kernel_and_a_stack_share_what_the_bottleneck_carries(tmp_path: Path) -> None:
    sets = [("rate", "8Mbit"), ("queue", "40kB"), ("stagger", "500ms"), ("warmup", "1s"), ("duration", "3s"), ("flows", "cubic+cubic+reno")]
    result = run_all_real("fairness", ["cubic+cubic"], sets=list(sets), record=str(tmp_path / "run.jsonl"), pcap=str(tmp_path / "run.pcapng"))
    outcome = result.outcomes["cubic+cubic"]
    figures = outcome.figures
    assert [row[1] for row in outcome.tables[0].rows] == ["pytcp", "kernel", "pytcp"]
    assert sum(figures[f"share_{number}"] for number in (1, 2, 3)) == pytest.approx(1)
    assert min(figures[f"share_{number}"] for number in (1, 2, 3)) > 0.03
    assert figures["drops"] > 0  # the queue was full: they did compete
    assert figures["queue_p99_ms"] <= 40
    record = Record.read_jsonl(tmp_path / "run.jsonl")
    assert {"cubic 1", "reno 3"} <= set(record.flows)  # of ours there is a trace, of the kernel's none
    assert max(row["bytes"] for row in record.queues) <= 40_000
    assert record.meta["peer"].startswith("Linux")
    packets = packets_of_interfaces(tmp_path / "run.pcapng")
    assert all(packets[sender] > 100 for sender in ("cubic 1", "kernel's cubic 2", "reno 3"))


def test_flows_are_those_of_the_variant_and_a_congestion_control_that_is_none_is_named() -> None:
    sets = [("rate", "8Mbit"), ("warmup", "100ms"), ("duration", "100ms"), ("stagger", "0s")]
    outcome = run_all_real("fairness", ["cubic+reno"], sets=list(sets)).outcomes["cubic+reno"]
    assert [row[:2] for row in outcome.tables[0].rows] == [("1 cubic", "pytcp"), ("2 reno", "kernel")]
    with pytest.raises(ExperimentError, match="no congestion control 'timid'; there are: reno, cubic, bbr"):
        run_all_real("fairness", ["cubic+cubic"], sets=[("flows", "cubic+timid")])
