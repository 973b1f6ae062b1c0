"""A peer that lies: any ACK, any SACK blocks, any window, any timestamps, at any time.

Nothing of it may raise, and whatever the sender believes, its books must agree with its queues
(`recount`). The program goes on writing, timers fire, completions come late.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pytcp.tcp import const, input, sendmsg, tsq, xmit
from pytcp.tcp.sock import Sock
from tests.unit.harness import MS, FakeHost, established, segment
from tests.unit.recount import SENDING, check

MSS = 1000

# where a number lies: something the connection knows, and a distance from it
anchors = st.sampled_from(["una", "nxt", "write", "marker", "high"])
distance = st.one_of(
    st.integers(-3, 3), st.integers(-8, 8).map(lambda n: n * MSS), st.integers(-70_000, 70_000), st.sampled_from([1 << 31, -(1 << 31), 1 << 30])
)
place = st.tuples(anchors, distance)
steps = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 30_000)),
    st.tuples(st.just("wait"), st.sampled_from([0, 1_000, 100_000, 5 * MS, 50 * MS, 300 * MS, 5000 * MS])),
    st.tuples(st.just("complete"), st.integers(1, 4)),
    *[
        st.tuples(
            st.just("peer"),
            place,
            st.lists(st.tuples(place, place), max_size=4),
            st.sampled_from([0, 1, 999, 3000, 65_535, 1 << 20, 1 << 29]),
            st.sampled_from([0, 0, 0, const.ECE, const.CWR, const.ECE | const.CWR, const.PSH, const.URG]),
            st.sampled_from([0, 0, 0, 1, -1, 1000, -1000]),
            st.sampled_from([0, 0, 0, 1, 600]),
            st.sampled_from([1, 1, 1, 2, 40]),
            st.tuples(st.integers(-5, 5), st.integers(-2000, 10)),
        )
        for _ in range(3)
    ],
)


class Victim:
    def __init__(self, **fields: Any) -> None:
        self.host = FakeHost(complete="manual")
        self.sk: Sock = established(self.host, mss=MSS, srtt_us=20_000, **fields)
        self.sk.sndbuf = 100_000
        self.sk.snd_cwnd = 20
        self.written = 0

    def where(self, at: tuple[str, int]) -> int:
        sk = self.sk
        base = {"una": sk.snd_una, "nxt": sk.snd_nxt, "write": sk.write_seq, "marker": sk.undo_marker or sk.snd_una, "high": sk.high_seq}
        return base[at[0]] - sk.iss + at[1]

    def do_write(self, size: int) -> None:
        if self.sk.state == const.ESTABLISHED:
            try:
                self.written += sendmsg.sendmsg(self.sk, bytes(size))
            except OSError:
                return

    def do_wait(self, ns: int) -> None:
        self.host.advance(ns)

    def do_complete(self, n: int) -> None:
        ring = self.host.in_ring
        for _ in range(min(n, len(ring))):
            tsq.wfree(*ring.pop(0))

    def do_peer(
        self,
        ack: tuple[str, int],
        blocks: list[tuple[tuple[str, int], tuple[str, int]]],
        window: int,
        flags: int,
        ahead: int,
        length: int,
        nsegs: int,
        ts: tuple[int, int],
    ) -> None:
        sk = self.sk
        if sk.state == const.CLOSE:
            return
        seg = segment(
            sk,
            const.ACK | flags,
            seq=sk.rcv_nxt - sk.irs + ahead,
            ack=self.where(ack),
            payload=bytes(length),
            window=window,
            sack=[(self.where(a), self.where(b)) for a, b in blocks],
            ts=((1000 + ts[0]) & 0xFFFFFFFF, (self.host.now_ns // MS + ts[1]) & 0xFFFFFFFF) if sk.tstamp_ok else None,
            nsegs=nsegs,
        )
        input.receive(sk, seg)

    def run(self, script: list[tuple[Any, ...]]) -> None:
        for step in script:
            getattr(self, "do_" + step[0])(*step[1:])
            sk = self.sk
            check(sk)
            if sk.state in SENDING:
                assert sk.snd_una <= sk.snd_nxt <= sk.write_seq
                assert sk.write_seq == sk.iss + 1 + self.written + (sk.state != const.ESTABLISHED)
                assert sk.snd_ssthresh >= 2
                assert 0 <= sk.rack_reo_wnd_steps <= 255
                assert sk.undo_retrans >= -1
                assert 1 <= sk.reordering <= 300
                assert sk.rto_min_us * 1000 <= sk.rto_ns <= sk.rto_max_ns
        # the peer comes to its senses: what was written still gets through
        sk = self.sk
        self.do_complete(len(self.host.in_ring))
        self.host.complete = "at_once"
        for _ in range(300):
            if sk.state not in SENDING or sk.snd_una == sk.write_seq:
                break
            # (its numbers have to pass the largest one a window was ever taken from)
            behind = max(sk.snd_wl1 + 1 - sk.rcv_nxt, 0)
            input.receive(sk, segment(sk, window=1 << 20, payload=bytes(behind), ts=(2000, self.host.now_ns // MS) if sk.tstamp_ok else None))
            self.host.advance(1500 * MS)
            check(sk)
        assert sk.state not in SENDING or sk.snd_una == sk.write_seq


relaxed = settings(max_examples=200)
scripts = st.lists(steps, min_size=5, max_size=60)


@relaxed
@given(scripts)
def test_no_ack_stream_unbalances_a_sack_sender(script: list[tuple[Any, ...]]) -> None:
    Victim(cc="cubic").run(script)


@relaxed
@given(scripts)
def test_no_ack_stream_unbalances_a_reno_sender(script: list[tuple[Any, ...]]) -> None:
    Victim(sack=False).run(script)


@relaxed
@given(scripts)
def test_no_ack_stream_unbalances_a_sender_with_timestamps_and_ecn(script: list[tuple[Any, ...]]) -> None:
    Victim(timestamps=True, cc="cubic", ecn_flags=1).run(script)


@relaxed
@given(scripts)
def test_no_ack_stream_unbalances_a_sender_that_has_closed(script: list[tuple[Any, ...]]) -> None:
    victim = Victim()
    victim.do_write(25_000)
    victim.sk.state = const.FIN_WAIT1
    victim.sk.shutdown |= const.SEND_SHUTDOWN
    xmit.send_fin(victim.sk)
    victim.run(script)
