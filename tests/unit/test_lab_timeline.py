"""A flow as columns: which gate held back the next super-segment, where the window's edge was, what time went where."""

from __future__ import annotations

from typing import Any

from pytcp.lab.record import Record
from pytcp.lab.timeline import INFINITE_SSTHRESH, flows_of, timeline


def record(*events: dict[str, Any], series: tuple[dict[str, Any], ...] = ()) -> Record:
    made = Record({}, ["a"])
    for row in series:
        made.series.append({"flow": "a", **row})
    for row in events:
        made.events.append({"flow": "a", **row})
    return made


def xmit(t_ns: int, seq: int, segs: int = 1, why: str = "cwnd", rtx: int = 0) -> dict[str, Any]:
    return {"t_ns": t_ns, "kind": "xmit", "seq": seq, "end_seq": seq + segs * 1000, "segs": segs, "gso_size": 1000, "rtx": rtx, "why": why}


def gate(t_ns: int, old: str, new: str) -> dict[str, Any]:
    return {"t_ns": t_ns, "kind": "gate", "old": old, "new": new}


def test_times_count_from_the_first_row_of_the_record() -> None:
    line = timeline(record(xmit(5_000, 0), xmit(7_000, 1000)), "a")
    assert line.xmit["t"] == [0, 2_000]
    assert line.xmit["len"] == [1000, 1000]


def test_each_gate_counts_for_the_stretch_between_two_super_segments_that_it_was_shut() -> None:
    events = (gate(0, "app", "cwnd"), xmit(100, 0), gate(400, "cwnd", "pacing"), xmit(1000, 1000), xmit(1000, 2000), gate(1000, "pacing", "app"))
    line = timeline(record(*events), "a")
    assert line.xmit["held"][0] == [("pacing", 600), ("cwnd", 300)]  # the longest first
    assert line.xmit["held"][1] == []  # the next left at the same moment


def test_without_gate_events_the_stop_that_ended_the_attempt_is_what_held() -> None:
    stop = {"t_ns": 100, "kind": "stop", "gate": "tsq", "queued": 1, "wmem_alloc": 1, "limit": 1}
    line = timeline(record(xmit(100, 0), stop, xmit(350, 1000)), "a")
    assert line.xmit["held"] == [[("tsq", 250)], []]


def test_gate_time_adds_up_to_the_record() -> None:
    line = timeline(record(gate(10, "app", "cwnd"), gate(40, "cwnd", "rwnd"), xmit(100, 0)), "a")
    assert line.gate_times() == {"rwnd": 60, "cwnd": 30}
    later = timeline(record(xmit(0, 0), gate(10, "app", "cwnd"), gate(40, "cwnd", "app"), xmit(100, 0)), "a")
    assert sum(later.gate_times().values()) == 100
    assert later.gate_times()["app"] == 70


def test_gates_come_from_the_samples_where_nothing_was_traced() -> None:
    line = timeline(record(series=({"t_ns": 0, "gate": "app"}, {"t_ns": 10, "gate": "cwnd"}, {"t_ns": 20, "gate": "cwnd"}, {"t_ns": 50, "gate": "app"})), "a")
    assert line.gates == {"t": [0, 10], "end": [10, 50], "gate": ["app", "cwnd"]}


def test_retransmits_are_a_class_of_their_own_and_the_largest_class_comes_first() -> None:
    line = timeline(record(xmit(0, 0, 2, "cwnd"), xmit(1, 2000, 10, "autosize"), xmit(2, 0, 1, "mss", rtx=1)), "a")
    assert line.sizes() == {"autosize": (1, 10, 10_000), "cwnd": (1, 2, 2000), "retransmit": (1, 1, 1000)}
    assert list(line.sizes()) == ["autosize", "cwnd", "retransmit"]


def test_the_windows_edge_is_kept_where_it_moved() -> None:
    told = ((0, 0, 100, []), (5, 40, 60, []), (9, 50, 90, [[70, 80]]))
    acks = [{"t_ns": t, "kind": "ack", "una": una, "wnd": wnd, "sacks": sacks} for t, una, wnd, sacks in told]
    line = timeline(record(*acks), "a")
    assert line.edge == {"t": [0, 9], "seq": [100, 140]}
    assert line.acks["una"] == [0, 40, 50]
    assert line.sacks == {"t": [9], "seq": [70], "end": [80]}


def test_acknowledgements_and_edge_come_from_the_samples_where_nothing_was_traced() -> None:
    sampled = ({"t_ns": 0, "snd_una": 0, "snd_wnd": 10}, {"t_ns": 1, "snd_una": 0, "snd_wnd": 10}, {"t_ns": 2, "snd_una": 5, "snd_wnd": 20})
    line = timeline(record(series=sampled), "a")
    assert line.acks["t"] == [0, 2]
    assert line.edge == {"t": [0, 2], "seq": [10, 25]}


def test_an_infinite_ssthresh_and_an_unlimited_rate_are_no_points_of_a_line() -> None:
    sampled = ({"t_ns": 0, "ssthresh": INFINITE_SSTHRESH, "pacing_rate": (1 << 64) - 1}, {"t_ns": 1, "ssthresh": 10, "pacing_rate": 1000})
    line = timeline(record(series=sampled), "a")
    assert line.series["ssthresh"] == [None, 10]
    assert line.series["pacing_rate"] == [None, 1000]


def test_marks_say_what_happened_and_those_that_come_by_the_thousand_stay_out() -> None:
    events = [{"t_ns": 1, "kind": "ca_state", "old": "Open", "new": "Recovery"}, {"t_ns": 2, "kind": "rto", "backoff": 1}, {"t_ns": 3, "kind": "tsq"}]
    line = timeline(record(*events), "a")
    assert line.marks["kind"] == ["ca_state", "rto"]
    assert line.marks["text"] == ["Open → Recovery", "retransmission timeout: backoff 1"]
    assert line.counts["tsq"] == 1


def test_a_retransmit_knows_what_it_was_sent_for_and_what_was_given_up_is_kept() -> None:
    lost = {"t_ns": 5, "kind": "lost", "seq": 1000, "end_seq": 2000, "segs": 1, "why": "rack", "again": 0}
    again = {"t_ns": 6, "kind": "retransmit", "seq": 1000, "end_seq": 2000, "segs": 1, "cause": "lost"}
    line = timeline(record(xmit(0, 0, 3), lost, xmit(6, 1000, 1, "again", rtx=1), again), "a")
    assert line.xmit["cause"] == [None, "lost"]
    assert line.lost == {"t": [5], "seq": [1000], "end": [2000], "why": ["rack"]}


def test_a_trace_without_samples_still_says_what_cwnd_and_window_were() -> None:
    sent = {**xmit(1, 0), "cwnd": 10, "inflight": 3}
    line = timeline(record(sent, {"t_ns": 4, "kind": "ack", "una": 1000, "wnd": 500, "sacks": []}), "a")
    assert line.series == {"t": [0, 3], "cwnd": [10, 10], "inflight": [3, 3], "snd_una": [None, 1000], "snd_wnd": [None, 500]}


def test_flows_are_those_named_then_those_that_only_rows_name() -> None:
    made = record(xmit(0, 0))
    made.events.append({"t_ns": 1, "flow": "b", "kind": "rto"})
    assert flows_of(made) == ["a", "b"]
    assert timeline(made, "b").xmit["t"] == []
