"""The trace: decisions told where they are made, with the reason of the branch that was taken."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pytcp.tcp
from pytcp.tcp import close, const, ecn, input, sendmsg, timers, trace, tso, xmit
from pytcp.tcp.sock import Sock

from .harness import MS, US, FakeHost, established, segment

TCP = Path(pytcp.tcp.__file__).parent


class Told:
    """A tracer that remembers."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def event(self, sk: Sock, kind: str, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})

    def of(self, kind: str, *names: str) -> list[Any]:
        """What was told of one kind: the fields named, a tuple where there are several."""
        found = [[event[name] for name in names] for event in self.events if event["kind"] == kind]
        return [values[0] if len(names) == 1 else tuple(values) for values in found]


def traced(host: FakeHost | None = None, **fields: Any) -> tuple[Sock, Told]:
    sk = established(host, **{"mss": 1000, "srtt_us": 300} | fields)
    sk.trace = told = Told()
    return sk, told


def test_a_super_segment_says_where_it_lies_and_what_it_might_have_had() -> None:
    """Of cwnd 10 one burst takes half, the next all that is left, which is 5 too; then there is no room."""
    sk, told = traced(snd_cwnd=10)
    sendmsg.sendmsg(sk, bytes(12_000))
    assert told.of("xmit", "seq", "end_seq", "segs", "gso_size", "flags", "rtx") == [(0, 5000, 5, 1000, "P.", 0), (5000, 10_000, 5, 1000, "P.", 0)]
    assert told.of("xmit", "why", "quota", "cwnd", "inflight") == [("cwnd/2", 5, 10, 0), ("cwnd", 5, 10, 5)]
    assert told.of("stop", "gate", "queued", "limit") == [("cwnd", 2000, 10)]
    assert told.of("gate", "old", "new") == [("app", "cwnd")]


def test_a_write_that_leaves_whole_is_all_there_was() -> None:
    sk, told = traced()
    sendmsg.sendmsg(sk, bytes(2500))
    assert told.of("xmit", "end_seq", "segs", "why") == [(2500, 3, "queue")]
    assert told.of("stop", "gate") == []


def test_the_window_cuts_and_stops() -> None:
    sk, told = traced(snd_wnd=2600, nonagle=const.NAGLE_OFF)
    sendmsg.sendmsg(sk, bytes(4000))
    assert told.of("xmit", "end_seq", "why") == [(2600, "window")]
    assert told.of("stop", "gate", "queued", "limit") == [("rwnd", 1400, 2600)]
    input.receive(sk, segment(sk, ack=2601, window=10_000))
    assert told.of("gate", "old", "new") == [("app", "rwnd"), ("rwnd", "app")]


def test_a_nagled_tail_stays_and_names_its_gate() -> None:
    sk, told = traced(nonagle=const.NAGLE_CORK)
    sendmsg.sendmsg(sk, bytes(2500))
    assert told.of("xmit", "end_seq", "why") == [(2000, "nagle-tail")]
    assert told.of("stop", "gate", "queued") == [("cork", 500)]


def test_the_pacing_rate_and_the_device_limit_a_burst() -> None:
    """At 3,000,000 bytes/s a millisecond is 2929 bytes, 2 segments (RTT 40 ms: no bonus); with a device that takes 2 segments it is the device."""
    sk, told = traced(srtt_us=40_000, snd_cwnd=100)
    sk.pacing_rate = 3_000_000
    sendmsg.sendmsg(sk, bytes(5000))
    assert told.of("xmit", "segs", "why", "max_segs") == [(2, "autosize", 2), (2, "autosize", 2), (1, "queue", 2)]
    sk, told = traced(srtt_us=300, snd_cwnd=100, gso_max_size=2500)
    sendmsg.sendmsg(sk, bytes(4000))
    assert told.of("xmit", "segs", "why") == [(2, "gso_max"), (2, "gso_max")]


def test_a_message_boundary_is_the_writes_doing() -> None:
    sk, told = traced(snd_cwnd=0)
    for _ in range(2):
        sendmsg.sendmsg(sk, bytes(1500), const.MSG_EOR)
    sk.snd_cwnd = 20
    xmit.push_pending_frames(sk, 1000, const.NAGLE_OFF)
    assert told.of("xmit", "end_seq", "why") == [(1500, "write"), (3000, "queue")]


def test_urgent_data_goes_segment_by_segment() -> None:
    sk, told = traced(snd_cwnd=0)
    sendmsg.sendmsg(sk, bytes(2500), const.MSG_OOB)
    sk.snd_cwnd = 20
    xmit.push_pending_frames(sk, 1000, 0)
    assert told.of("xmit", "end_seq", "why", "flags") == [(1000, "urgent", "U."), (2000, "urgent", "U."), (2500, "queue", "PU.")]


def test_each_exit_of_the_deferral_is_told() -> None:
    sk, told = traced(snd_cwnd=10)
    sendmsg.sendmsg(sk, bytes(8000))
    host_of(sk).advance(200 * US)
    sendmsg.sendmsg(sk, bytes(1500))
    assert told.of("tso_defer", "wait", "why", "length")[-1] == (1, trace.DEFER[tso.DEFER], 1500)
    assert [wait for wait in told.of("tso_defer", "wait")[:-1] if wait] == [], "the first bursts left"
    assert told.of("stop", "gate")[-1] == "tso_defer"


def test_autocork_and_small_queues_say_what_lies_in_the_host() -> None:
    """150 bytes in the ring charge 1 + 832 + 150; a tail of 100 charges 932 and stays behind it."""
    sk, told = traced(FakeHost(complete="manual"), nonagle=const.NAGLE_OFF)
    sendmsg.sendmsg(sk, bytes(150))
    sendmsg.sendmsg(sk, bytes(100))
    assert told.of("autocork", "length", "truesize", "wmem_alloc") == [(100, 932, 983)]
    sk, told = traced(FakeHost(complete="manual"), srtt_us=20_000, snd_cwnd=100, gso_max_segs=2)
    sk.sysctl.tcp_limit_output_bytes = 8000
    sendmsg.sendmsg(sk, bytes(8000))
    assert told.of("tsq", "wmem_alloc", "limit") == [(8497, 8000)]
    assert told.of("stop", "gate", "wmem_alloc", "limit") == [("tsq", 8497, 8000)]


def test_an_acknowledgement_says_what_it_brought() -> None:
    sk, told = traced(snd_cwnd=10)
    sendmsg.sendmsg(sk, bytes(5000))
    host_of(sk).advance(20 * MS)
    input.receive(sk, segment(sk, ack=1001, window=60_000, sack=((2001, 3001), (4001, 5001))))
    assert told.of("ack", "una", "wnd", "sacks", "delivered", "rtt_us") == [(1000, 59_904, [[2000, 3000], [4000, 5000]], 3, 20_000)]


def test_a_loss_is_told_from_the_mark_to_the_retransmission_and_the_state() -> None:
    """RACK: of five segments the first is missing while four sent later were delivered; reordering is not expected with three SACKed."""
    sk, told = traced(srtt_us=20_000, snd_cwnd=10)
    sendmsg.sendmsg(sk, bytes(5000))
    host_of(sk).advance(20 * MS)
    input.receive(sk, segment(sk, ack=1, sack=((1001, 5001),)))
    assert told.of("lost", "seq", "end_seq", "segs", "why", "again") == [(0, 1000, 1, "rack", 0)]
    assert told.of("ca_state", "old", "new")[-1] == ("Open", "Recovery")
    assert told.of("retransmit", "seq", "segs", "cause") == [(0, 1, "lost")]
    assert told.of("xmit", "seq", "rtx", "why")[-1] == (0, 1, "again")
    input.receive(sk, segment(sk, ack=5001))
    assert told.of("ca_state", "new")[-1] == "Open"


def test_a_timeout_gives_everything_up_and_resends_one_segment() -> None:
    sk, told = traced(srtt_us=20_000, snd_cwnd=10)
    sk.sysctl.tcp_early_retrans = 0
    sendmsg.sendmsg(sk, bytes(3000))
    rto_us = sk.rto_ns // 1000
    host_of(sk).advance_to(timers.rtx_expiry(sk))
    assert told.of("rto", "rto_us", "backoff", "inflight") == [(rto_us, 0, 3)]
    assert told.of("lost", "seq", "end_seq", "why") == [(0, 3000, "rto")]
    assert told.of("ca_state", "old", "new") == [("Open", "Loss")]
    assert told.of("xmit", "seq", "end_seq", "rtx", "why")[-1] == (0, 1000, 1, "mss")
    assert told.of("retransmit", "cause") == ["rto"]
    input.receive(sk, segment(sk, ack=3001))
    assert told.of("ca_state", "new")[-1] == "Open"


def test_a_loss_probe_is_told_and_its_copy_too() -> None:
    sk, told = traced(srtt_us=20_000, snd_cwnd=10)
    sendmsg.sendmsg(sk, bytes(3000))
    host_of(sk).advance_to(timers.rtx_expiry(sk))
    assert told.of("tlp", "new", "inflight") == [(0, 3)]
    assert told.of("retransmit", "seq", "end_seq", "cause") == [(2000, 3000, "tlp")]


def test_a_reduction_taken_back_says_what_proved_it_needless() -> None:
    """The ACK that ends recovery reports the one retransmission as a duplicate: the loss was none."""
    sk, told = traced(srtt_us=20_000, snd_cwnd=10)
    sendmsg.sendmsg(sk, bytes(5000))
    host_of(sk).advance(20 * MS)
    input.receive(sk, segment(sk, ack=1, sack=((1001, 5001),)))
    host_of(sk).advance(20 * MS)
    input.receive(sk, segment(sk, ack=5001, sack=((1, 1001),)))
    assert told.of("undo", "why") == ["full"]
    assert told.of("undo", "cwnd") == [sk.snd_cwnd]


def test_arrivals_and_the_window_we_offer_count_from_the_peers_first_byte() -> None:
    sk, told = traced()
    input.receive(sk, segment(sk, seq=1, payload=bytes(1000), flags=const.ACK | const.PSH))
    input.receive(sk, segment(sk, seq=3001, payload=bytes(1000)))
    assert told.of("recv", "seq", "end_seq", "segs") == [(0, 1000, 1), (3000, 4000, 1)]
    assert told.of("window", "edge")[-1] == sk.rcv_wup + sk.rcv_wnd - sk.irs - 1


def test_ecn_is_told_both_ways() -> None:
    sk, told = traced(snd_cwnd=10, ecn_flags=ecn.OK)
    input.receive(sk, segment(sk, seq=1, payload=bytes(500), tos=ecn.CE))
    assert told.of("ecn", "what") == ["ce"]
    sendmsg.sendmsg(sk, bytes(3000))
    input.receive(sk, segment(sk, seq=501, ack=1001, flags=const.ACK | const.ECE))
    assert told.of("ecn", "what") == ["ce", "ece"]
    sendmsg.sendmsg(sk, bytes(3000))
    input.receive(sk, segment(sk, seq=501, ack=3001))
    assert told.of("ecn", "what") == ["ce", "ece", "cwr"]


def test_a_closed_window_is_probed_in_sight() -> None:
    sk, told = traced(snd_wnd=0, srtt_us=20_000)
    sendmsg.sendmsg(sk, bytes(1000))
    host_of(sk).advance(1000 * MS)
    assert told.of("probe", "probes", "wnd")[:2] == [(1, 0), (2, 0)]


def test_the_end_is_a_state() -> None:
    sk, told = traced()
    close.done(sk)
    assert told.of("state", "old", "new") == [("ESTABLISHED", "CLOSE")]


class Doubting:
    """Holds what is said about each new super-segment against the connection as it is then."""

    def __init__(self) -> None:
        self.whys: set[str] = set()

    def event(self, sk: Sock, kind: str, **told: Any) -> None:
        if kind != "xmit" or told["rtx"] or told["end_seq"] == told["seq"]:
            return
        why, segs, quota, end = told["why"], told["segs"], told["quota"], told["end_seq"]
        room = told["cwnd"] - told["inflight"]
        edge = sk.snd_una + sk.snd_wnd - sk.iss - 1
        written = sk.write_seq - sk.iss - 1
        self.whys.add(why)
        assert end <= min(edge, written)
        if why == "cwnd":
            assert segs == quota == room
        elif why == "cwnd/2":
            assert segs == quota == max(told["cwnd"] // 2, 1) < room
        elif why in ("autosize", "gso_max"):
            assert segs == quota == told["max_segs"] <= room
            assert (why == "gso_max") == ((segs + 1) * 1000 > sk.gso_max_size)
        elif why == "window":
            assert edge - 1000 < end < written
        elif why == "nagle-tail":
            # of this message: others may wait behind it
            assert sk.write_queue.head is not None
            rest = sk.write_queue.head.next
            assert rest is not None
            assert 0 < rest.length < 1000
            assert (end - told["seq"]) % 1000 == 0
        elif why == "queue":
            assert end == written
        else:
            assert why == "write"
            assert end < written
            assert end - told["seq"] < quota * 1000


def converse(steps: list[tuple[str, int]], tracer: Doubting, **fields: Any) -> None:
    host = FakeHost()
    sk = established(host, **{"mss": 1000, "srtt_us": 40_000} | fields)
    sk.trace = tracer
    flags = {"write": 0, "more": const.MSG_MORE, "message": const.MSG_EOR}
    for step, n in steps:
        if step in flags:
            with suppress(BlockingIOError):
                sendmsg.sendmsg(sk, bytes(n), flags[step])
        elif step == "ack":
            input.receive(sk, segment(sk, ack=max(sk.snd_una, sk.snd_nxt - n % 3000) - sk.iss))
        elif step == "window":
            input.receive(sk, segment(sk, ack=sk.snd_una - sk.iss, window=n))
        elif step == "cwnd":
            sk.snd_cwnd = n % 30 + 1
        elif step == "rate":
            sk.pacing_rate = n * 1000
        elif step == "nonagle":
            sk.nonagle = n % 3
        host.advance(n % 50 * MS // 10)


STEPS = st.tuples(st.sampled_from(["write", "more", "message", "ack", "window", "cwnd", "rate", "nonagle"]), st.integers(1, 20_000))


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=40), st.sampled_from([65_000, 4500]))
@example([("write", 1), ("write", 1), ("write", 1), ("message", 13864), ("window", 2944), ("nonagle", 8), ("write", 134), ("ack", 1), ("ack", 1)], 65_000)
def test_the_reason_of_a_size_is_true_whatever_happens(steps: list[tuple[str, int]], gso_max_size: int) -> None:
    converse(steps, Doubting(), gso_max_size=gso_max_size)


def test_every_reason_of_new_data_comes_up_in_such_conversations() -> None:
    """So that the test above is about all of them (urgent data, loss probes and window probes have tests of their own)."""
    doubting = Doubting()
    converse([("cwnd", 9), ("write", 20_000)], doubting)
    converse([("cwnd", 29), ("rate", 3000), ("write", 9000)], doubting)
    converse([("cwnd", 29), ("write", 20_000)], doubting, gso_max_size=4500)
    converse([("nonagle", 1), ("window", 2600), ("write", 9000)], doubting)
    converse([("nonagle", 2), ("write", 2500)], doubting)
    converse([("window", 1), ("message", 1500), ("message", 1500), ("nonagle", 1), ("window", 20_000)], doubting)
    assert doubting.whys == {"cwnd", "cwnd/2", "autosize", "gso_max", "window", "nagle-tail", "queue", "write"}


def test_every_reason_has_words() -> None:
    """The letters of the branches in the source are the keys of the tables people read."""
    source = {name: (TCP / f"{name}.py").read_text() for name in ("xmit", "retransmit", "probe0", "tlp", "rack", "undo", "fastopen_client")}
    whys = set(re.findall(r'why = "([^"]+)"', source["xmit"] + source["retransmit"])) | {"queue", "write", "probe", "mtu-probe", "mss"}
    assert whys == set(trace.WHY)
    assert set(re.findall(r'mark_skb_lost\(sk, skb, "(\w+)"', source["rack"] + source["retransmit"] + source["fastopen_client"])) == set(trace.LOST)
    assert {value for name, value in vars(tso).items() if name.startswith(("NOW_", "DEFER"))} == set(trace.DEFER)


def test_nothing_of_the_trace_runs_when_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("xmit", "stop", "tso_defer", "ack", "recv", "ca_state", "lost", "retransmit"):
        monkeypatch.setattr(trace, name, None)
    sk = established(mss=1000, srtt_us=300)
    sendmsg.sendmsg(sk, bytes(12_000))
    host_of(sk).advance(300 * US)
    input.receive(sk, segment(sk, ack=2001, sack=((3001, 9001),)))
    host_of(sk).advance(3000 * MS)
    input.receive(sk, segment(sk, seq=1, payload=bytes(500), ack=10_001))
    assert sk.total_retrans > 0
    assert sk.bytes_received == 500


def host_of(sk: Sock) -> FakeHost:
    assert isinstance(sk.host, FakeHost)
    return sk.host
