"""The trace: decisions told where they are made, with the reason of the branch that was taken."""

from __future__ import annotations

from typing import Any

from pytcp.tcp import const, input, sendmsg
from pytcp.tcp.sock import Sock

from .harness import FakeHost, established, segment


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


def test_nothing_is_told_when_nobody_listens() -> None:
    sk = established(mss=1000)
    assert sk.trace is None
    sendmsg.sendmsg(sk, bytes(12_000))
    assert sk.host.take()  # type: ignore[attr-defined]
