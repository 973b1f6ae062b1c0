"""Stories: what is made of figures, and the sentences that follow from them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pytcp.lab import explain
from pytcp.lab.explain import Story, conclusion, of_flow
from pytcp.lab.record import Record
from pytcp.tcp import gates

S = 1_000_000_000
MS = 1_000_000


def story(**fields: Any) -> Story:
    """10 s, 62 % of them against the peer's window."""
    shut = {"rwnd": (6_200 * MS, 9_000_000), "app": (3_500 * MS, 1_000_000), "cwnd": (300 * MS, 0)}
    return Story("a:1>b:2", **{"ns": 10 * S, "gates": shut, "sent": 10_000_000, "mss": 1448, "srtt_us": 40_000, "snd_wnd": 60_000} | fields)


def test_a_full_window_is_turned_into_the_rate_it_allows() -> None:
    """60,000 bytes per 40 ms are 1,500,000 bytes/s, 12 Mbit/s."""
    assert conclusion(story()) == (
        "For 62% of its 10 s the peer's window was full: 60 kB per round trip of 40 ms allow 12 Mbit/s; raise the peer's receive buffer."
        " For another 35% the program had nothing to send."
    )


def test_a_round_trip_that_only_the_reader_makes_long_is_the_readers() -> None:
    assert "most likely the program there reads too slowly" in conclusion(story(min_rtt_us=10_000))
    assert "at times it was closed: the program there reads too slowly" in conclusion(story(zero_window=True))
    assert "it is closed: the program there does not read" in conclusion(story(zero_window=True, snd_wnd=0))


def test_an_idle_program_is_said_to_be_idle_and_the_rest_explained() -> None:
    shut = {"app": (9_300 * MS, 9_000_000), "nagle": (700 * MS, 1_000_000)}
    assert conclusion(story(gates=shut)) == (
        "For 93% of its 10 s the program had nothing to send. Of the rest, most went by while Nagle's algorithm held a small segment until the one before"
        " was acknowledged; set TCP_NODELAY, or write each message in one call (7.0% of the time)."
    )


def test_the_ends_of_large_writes_are_no_reason_to_change_a_socket_option() -> None:
    """131,072 bytes are two super-segments of 65,160 and 752 bytes, which wait for a completion unless the next write comes first."""
    shut = {"autocork": (6 * S, 752 * 100), "app": (4 * S, 100 * 2 * 65_160)}
    assert conclusion(story(gates=shut, sent=100 * 131_072)) == (
        "For 60% of its 10 s small writes waited for the host's queue to empty (autocork): 0.6% of the bytes, the ends of writes, which the program's next"
        " write would have sent. For another 40% the program had nothing to send."
    )


def test_a_program_that_waits_for_answers_is_told_from_an_idle_one() -> None:
    shut = {"app": (10 * S, 10_000_000)}
    assert conclusion(story(gates=shut, busy_us=9_600_000)) == (
        "Throughout its 10 s the program had nothing to send, with data on its way for 96% of the time: it waits for round trips of 40 ms, not for room;"
        " send more at once."
    )
    assert conclusion(story(gates=shut, busy_us=2_000_000)).endswith("Data was on its way for 20% of the time.")
    assert conclusion(story(gates=shut, busy_us=100_000)) == "Throughout its 10 s the program had nothing to send."


def test_data_is_on_its_way_from_the_first_byte_to_the_acknowledgement_of_the_last() -> None:
    """2 ms to 7 ms, the second piece within it, then from 9 ms to the end at 10."""
    record = Record()
    fields = {"segs": 1, "gso_size": 0, "flags": "P.", "rtx": 0, "why": "queue", "quota": 1, "max_segs": 1, "cwnd": 10, "inflight": 0}
    for t, seq in ((2, 0), (3, 100), (9, 200)):
        record.events.append({"t_ns": t * MS, "flow": "f", "kind": "xmit", "seq": seq, "end_seq": seq + 100, **fields})
    for t, una in ((5, 100), (7, 200), (10, 200)):
        record.events.append({"t_ns": t * MS, "flow": "f", "kind": "ack", "una": una, "wnd": 1, "sacks": [], "delivered": 1, "rtt_us": 10})
    record.events.sort(key=lambda row: row["t_ns"])
    assert of_flow(record, "f").busy_us == 6000


def test_short_messages_do_not_tell_the_mss_and_whole_segments_do() -> None:
    record = Record()
    fields = {"segs": 1, "gso_size": 0, "flags": "P.", "rtx": 0, "quota": 1, "max_segs": 1, "cwnd": 10, "inflight": 0}
    record.events.append({"t_ns": 0, "flow": "f", "kind": "xmit", "seq": 0, "end_seq": 100, "why": "queue", **fields})
    assert of_flow(record, "f").mss == 0
    record.events.append({"t_ns": 1, "flow": "f", "kind": "xmit", "seq": 100, "end_seq": 1548, "why": "cwnd", **fields})
    assert of_flow(record, "f").mss == 1448


def test_a_receiver_is_told_who_knows_more() -> None:
    text = conclusion(story(gates={"app": (10 * S, 100)}, sent=100, received=5_000_000))
    assert text == "Throughout its 10 s the program had nothing to send. It received 5 MB: what limited that, the sender's side knows."


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"min_rtt_us": 20_000}, "The round trip is 20 ms longer than the shortest one: the path is full"),
        ({"min_rtt_us": 39_000, "segs": 1000, "again": 20}, "Losses keep it small"),
        ({"min_rtt_us": 39_000, "ns": 400 * MS}, "The connection lived for 10 round trips only"),
        ({"min_rtt_us": 39_000}, "It had room to grow"),
        ({"min_rtt_us": 38_001}, "It had room to grow"),
    ],
)
def test_a_full_congestion_window_has_four_causes(fields: dict[str, Any], words: str) -> None:
    told = story(**{"gates": {"cwnd": (10 * S, 10_000_000)}, "cwnd": 50} | fields)
    text = conclusion(told)
    assert "the congestion window was full: 50 packets, 72.4 kB per round trip of 40 ms allow 14.5 Mbit/s" in text
    assert words in text


def test_losses_are_counted_and_named() -> None:
    lost = Counter({"rack": 18, "rto": 2})
    text = conclusion(story(segs=10_000, again=21, lost=lost, probes=1, timeouts=1, timeout_ms=450, recovery_ns=S, needless=3))
    assert text.endswith(
        " 21 of 10,000 segments (0.2%) were sent again (marked lost: 18 because one sent later was delivered, 2 because the retransmission timer fired,"
        " 1 as probes of the end of a flight); 1 timeout cost 450 ms; the window was reduced or repairing for 10% of the time;"
        " 3 of that proved needless, so the path reorders or delays packets rather than losing them."
    )


@pytest.mark.parametrize("gate", gates.NAMES)
def test_every_gate_has_a_meaning_without_any_figures(gate: str) -> None:
    bare = Story("a:1>b:2", ns=S, gates={gate: (S, 0)})
    assert explain.meaning(bare, gate)
    assert conclusion(bare).startswith("Throughout its 1 s ")


def test_a_connection_that_never_opened_says_so() -> None:
    record = Record()
    for t, old, new in ((0, "CLOSE", "SYN_SENT"), (5, "SYN_SENT", "CLOSE")):
        record.events.append({"t_ns": t, "flow": "f", "kind": "state", "old": old, "new": new})
    assert conclusion(of_flow(record, "f")) == "The connection was tried, and never open."


def test_samples_serve_where_there_are_no_events() -> None:
    record = Record({}, ["f"])
    for t, gate, una in ((0, "cwnd", 0), (3 * S, "rwnd", 5000), (4 * S, "rwnd", 9000)):
        record.series.append({"t_ns": t, "flow": "f", "gate": gate, "snd_nxt": una, "srtt_us": 20_000, "cwnd": 10, "snd_wnd": 30_000})
    told = of_flow(record, "f")
    assert told.gates == {"cwnd": (3 * S, 0), "rwnd": (1 * S, 0)}
    assert (told.sent, told.srtt_us, told.cwnd, told.snd_wnd) == (9000, 20_000, 10, 30_000)


def test_time_in_recovery_is_from_state_to_state() -> None:
    record = Record()
    for t, old, new in ((1, "Open", "Disorder"), (2, "Disorder", "Recovery"), (5, "Recovery", "Open"), (6, "Open", "CWR")):
        record.events.append({"t_ns": t * MS, "flow": "f", "kind": "ca_state", "old": old, "new": new, "cwnd": 1, "ssthresh": 1})
    record.events.append({"t_ns": 8 * MS, "flow": "f", "kind": "tsq", "wmem_alloc": 1, "limit": 0})
    assert of_flow(record, "f").recovery_ns == 5 * MS


@pytest.mark.parametrize(
    ("make", "number", "text"),
    [
        (explain.rate, 1_500_000, "12 Mbit/s"),
        (explain.rate, 10, "80 bit/s"),
        (explain.size, 1, "1 byte"),
        (explain.size, 65_536, "65.5 kB"),
        (explain.span, 999, "999 ns"),
        (explain.span, 1_234_000, "1.23 ms"),
        (explain.percent, 0.62, "62%"),
        (explain.percent, 0.034, "3.4%"),
        (explain.percent, 0.0001, "under 0.1%"),
    ],
)
def test_figures_are_short(make: Any, number: float, text: str) -> None:
    assert make(number) == text
