"""Gates: each conversation here shuts exactly one gate for a time known beforehand; the rest is the program's."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytcp.tcp import chrono, close, const, gates, input, mtu_probe, poll, probe0, sendmsg, sockopt, sockopt_socket, timers, zerocopy
from pytcp.tcp.sock import Sock

from .harness import MS, US, FakeHost, established, segment

SOL_TCP = 6
TCP_CORK = 3


def spent(sk: Sock) -> dict[str, tuple[int, int]]:
    """Gates that were shut for some time or held some bytes."""
    return {name: figures for name, figures in gates.times(sk).items() if figures != (0, 0)}


def conversation(complete: str = "at_once", **fields: object) -> tuple[FakeHost, Sock]:
    host = FakeHost(complete=complete)
    return host, established(host, **{"mss": 1000} | fields)  # type: ignore[arg-type]


def test_an_idle_connection_waits_for_the_program() -> None:
    host, sk = conversation()
    host.advance(50 * MS)
    assert spent(sk) == {"app": (50 * MS, 0)}


def test_looking_changes_nothing_and_an_idle_connection_keeps_no_sums() -> None:
    host, sk = conversation()
    for _ in range(3):
        host.advance(10 * MS)
        gates.times(sk)
    assert sk.gate_sums is None
    assert spent(sk) == {"app": (30 * MS, 0)}


def test_with_everything_sent_the_program_is_missing_however_long_the_ack_takes() -> None:
    host, sk = conversation()
    sendmsg.sendmsg(sk, bytes(100))
    host.advance(30 * MS)
    input.receive(sk, segment(sk))
    host.advance(10 * MS)
    assert spent(sk) == {"app": (40 * MS, 100)}
    assert chrono.times_us(sk)[0] == 28_000, "the seventh tick of 4 ms is the last before the ACK; busy_time is another question"


def test_a_writer_who_waits_for_send_memory_with_everything_sent_is_held_by_sndbuf() -> None:
    """5000 bytes of buffer are two skbs of 2000; the ACK of one of them makes room."""
    host, sk = conversation(window=4096, sndbuf=5000, sndbuf_locked=True, snd_cwnd=20)
    assert sendmsg.sendmsg(sk, bytes(20_000)) == 4000
    host.advance(8 * MS)
    input.receive(sk, segment(sk, ack=2001))
    assert not sk.nospace, "the writer was woken"
    host.advance(3 * MS)
    assert spent(sk) == {"sndbuf": (8 * MS, 0), "app": (3 * MS, 4000)}


def test_a_refused_write_and_a_poll_that_says_no_wait_for_memory_too() -> None:
    for ask in (lambda sk: sendmsg.sendmsg(sk, bytes(1)), poll.poll):
        host, sk = conversation(window=1 << 20, sndbuf=5000, sndbuf_locked=True, snd_cwnd=20)
        sendmsg.sendmsg(sk, bytes(4000))
        sk.wmem_queued = 5000
        host.advance(2 * MS)
        with contextlib.suppress(BlockingIOError):
            ask(sk)
        host.advance(5 * MS)
        assert spent(sk) == {"app": (2 * MS, 4000), "sndbuf": (5 * MS, 0)}


def test_cork_holds_until_it_is_pulled() -> None:
    host, sk = conversation()
    sockopt.setsockopt(sk, SOL_TCP, TCP_CORK, 1)
    sendmsg.sendmsg(sk, bytes(300))
    host.advance(70 * MS)
    sockopt.setsockopt(sk, SOL_TCP, TCP_CORK, 0)
    assert sum(s.length for s in host.take()) == 300
    assert spent(sk) == {"cork": (70 * MS, 300)}


def test_msg_more_is_a_cork() -> None:
    host, sk = conversation()
    sendmsg.sendmsg(sk, bytes(300), const.MSG_MORE)
    host.advance(40 * MS)
    sendmsg.sendmsg(sk, bytes(100))
    assert spent(sk) == {"cork": (40 * MS, 400)}, "the second write leaves with the first, by the same opening of the gate"


def test_nagle_holds_a_small_segment_behind_an_unacknowledged_small_one() -> None:
    host, sk = conversation()
    sendmsg.sendmsg(sk, bytes(100))
    sendmsg.sendmsg(sk, bytes(150))
    host.advance(25 * MS)
    input.receive(sk, segment(sk, ack=101))
    assert spent(sk) == {"app": (0, 100), "nagle": (25 * MS, 150)}


def test_a_cork_ends_with_the_timer_that_sends_what_it_held() -> None:
    host, sk = conversation(srtt_us=2000)
    sendmsg.sendmsg(sk, bytes(300), const.MSG_MORE)
    after = probe0.base_ns(sk)
    host.advance(after + 20 * MS)
    assert sum(s.length for s in host.take()) == 300
    figures = spent(sk)
    corked, _ = figures["cork"]
    assert after <= corked < after + 2 * sk.sysctl.tick_ns, "the wheel's step comes to it"
    assert figures == {"cork": (corked, 300), "app": (after + 20 * MS - corked, 0)}


def test_autocork_holds_a_small_write_until_the_completion() -> None:
    host, sk = conversation("manual", nonagle=const.NAGLE_OFF)
    sendmsg.sendmsg(sk, bytes(150))
    sendmsg.sendmsg(sk, bytes(100))
    host.advance(3 * MS)
    host.complete_all()
    assert spent(sk) == {"app": (0, 150), "autocork": (3 * MS, 100)}


def test_tso_defer_holds_a_burst_while_the_next_ack_is_near() -> None:
    """8 of 10 segments are out, the ACK is due 300 us after they left. At 200 us 1500 bytes are written: room for 2000, which
    is less than a third of the window (3333), and the ACK is 100 us away, less than half an RTT."""
    host, sk = conversation(srtt_us=300, snd_cwnd=10)
    sendmsg.sendmsg(sk, bytes(8000))
    host.advance(200 * US)
    sendmsg.sendmsg(sk, bytes(1500))
    assert sum(s.length for s in host.take()) == 8000
    host.advance(100 * US)
    input.receive(sk, segment(sk, ack=8001))
    assert spent(sk) == {"app": (200 * US, 8000), "tso_defer": (100 * US, 1500)}


def test_a_deferral_for_want_of_window_is_the_windows() -> None:
    """As above, with 2000 bytes written: all that cwnd leaves. A longer burst would need cwnd, so cwnd is what is missing."""
    host, sk = conversation(srtt_us=300, snd_cwnd=10)
    sendmsg.sendmsg(sk, bytes(8000))
    host.advance(200 * US)
    sendmsg.sendmsg(sk, bytes(2000))
    host.advance(100 * US)
    input.receive(sk, segment(sk, ack=8001))
    assert spent(sk) == {"app": (200 * US, 8000), "cwnd": (100 * US, 2000)}


def test_small_queues_hold_until_the_device_has_taken_something() -> None:
    """Bursts of two, at most 8000 bytes of truesize: 1 + 2·2832 is not more than that, 1 + 3·2832 is; the fourth waits."""
    host, sk = conversation("manual", srtt_us=20_000, snd_cwnd=100, gso_max_segs=2)
    sk.sysctl.tcp_limit_output_bytes = 8000
    sendmsg.sendmsg(sk, bytes(8000))
    host.advance(2 * MS)
    host.complete_all()
    assert spent(sk) == {"app": (0, 6000), "tsq": (2 * MS, 2000)}


def test_a_full_congestion_window_holds_until_the_ack() -> None:
    host, sk = conversation(snd_cwnd=4)
    sendmsg.sendmsg(sk, bytes(6000))
    host.advance(40 * MS)
    input.receive(sk, segment(sk, ack=4001))
    host.advance(5 * MS)
    assert spent(sk) == {"app": (5 * MS, 4000), "cwnd": (40 * MS, 2000)}


def test_the_peers_window_holds_also_when_it_closes() -> None:
    """40 ms with a full window, 500 ms with a window of zero; tcp_info's chrono says the same."""
    host, sk = conversation(window=2000, wscale=0, srtt_us=20_000)
    sendmsg.sendmsg(sk, bytes(5000))
    host.advance(40 * MS)
    input.receive(sk, segment(sk, ack=2001, window=0))
    host.advance(500 * MS)
    assert sk.mib.TCPWinProbe > 0
    input.receive(sk, segment(sk, ack=2001, window=10_000))
    assert spent(sk) == {"app": (0, 2000), "rwnd": (540 * MS, 3000)}
    assert chrono.times_us(sk)[1] == 540_000


def test_pacing_holds_until_the_departure_time() -> None:
    """Bursts of two segments (976 bytes a millisecond, and no bonus at 40 ms) at 1,000,000 bytes/s: the second is due after 2 ms."""
    host, sk = conversation(srtt_us=40_000, snd_cwnd=100, pacing_status=1, data_segs_out=10)
    sk.pacing_rate = 1_000_000
    sendmsg.sendmsg(sk, bytes(4000))
    host.advance(2 * MS)
    assert sum(s.length for s in host.take()) == 4000
    assert spent(sk) == {"app": (0, 2000), "pacing": (2 * MS, 2000)}


def test_a_retransmission_is_held_while_the_original_is_in_the_hosts_queue() -> None:
    """The RTO finds the segment where it was left; 50 ms later the device takes it, and the retransmission leaves."""
    host, sk = conversation("manual", sack=False, srtt_us=20_000)
    start = host.now_ns
    sendmsg.sendmsg(sk, bytes(1000))
    due = timers.rtx_expiry(sk)
    host.advance_to(due)
    assert sk.mib.TCPSpuriousRtxHostQueues == 1
    host.advance(50 * MS)
    host.complete_all()
    assert [s.length for s in host.take()] == [1000, 1000]
    host.advance(7 * MS)
    assert spent(sk) == {"app": (due - start + 7 * MS, 1000), "host_queue": (50 * MS, 0)}


def test_a_hold_stays_over_what_is_decided_meanwhile() -> None:
    """While the original of a retransmission is in the host a write comes, for which cwnd has no room: afterwards cwnd is the gate."""
    host, sk = conversation("manual", sack=False, srtt_us=20_000)
    sendmsg.sendmsg(sk, bytes(1000))
    host.advance_to(timers.rtx_expiry(sk))
    host.advance(10 * MS)
    sendmsg.sendmsg(sk, bytes(1000))
    assert gates.NAMES[sk.gate] == "host_queue"
    host.advance(10 * MS)
    host.complete_all()
    assert gates.NAMES[sk.gate] == "cwnd", "one packet is in flight again, and after an RTO that is all"
    assert spent(sk)["host_queue"] == (20 * MS, 0)


def test_lost_data_that_waits_for_cwnd_waits_although_nothing_new_is_queued() -> None:
    """After the RTO five segments are lost and cwnd is one: the first goes. Its ACK makes cwnd two: two go, and two wait for the next ACK."""
    host, sk = conversation(srtt_us=20_000, snd_cwnd=10)
    sendmsg.sendmsg(sk, bytes(5000))
    host.advance(30 * MS)
    timers.retransmit_timer(sk)
    host.advance(20 * MS)
    assert (sk.lost_out, sk.retrans_out, gates.NAMES[sk.gate]) == (5, 1, "cwnd")
    input.receive(sk, segment(sk, ack=1001))
    assert (sk.lost_out, sk.retrans_out, gates.NAMES[sk.gate]) == (4, 2, "cwnd")
    host.advance(6 * MS)
    input.receive(sk, segment(sk, ack=5001))
    assert spent(sk) == {"app": (30 * MS, 5000), "cwnd": (26 * MS, 0)}


def test_data_behind_a_probe_of_the_path_waits_for_cwnd_and_says_so_once() -> None:
    """11 of 12 packets are out: a probe would need room for two more, and what must follow it is there. Nothing is sent until an ACK comes."""
    host, sk = conversation(mss=1460, srtt_us=10_000, snd_cwnd=12)
    sendmsg.sendmsg(sk, bytes(11 * 1460))
    host.sysctl.tcp_mtu_probing = mtu_probe.FROM_THE_START
    mtu_probe.init(sk)
    sk.trace = changes = Changes()
    for _ in range(3):
        sendmsg.sendmsg(sk, bytes(20_000))
    host.advance(5 * MS)
    assert spent(sk) == {"app": (0, 11 * 1460), "cwnd": (5 * MS, 0)}
    assert changes.seen == [("app", "cwnd")]


class Changes:
    """Every gate event."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def event(self, sk: Sock, kind: str, **fields: Any) -> None:
        if kind == "gate":
            self.seen.append((fields["old"], fields["new"]))


def test_a_zero_copy_writer_waits_for_send_memory_like_any_other() -> None:
    host, sk = conversation(sndbuf=5000, sndbuf_locked=True, snd_cwnd=20)
    sendmsg.sendmsg(sk, bytes(4000))
    sk.wmem_queued = 5000
    sockopt.setsockopt(sk, 1, sockopt_socket.SO_ZEROCOPY, 1)
    with pytest.raises(BlockingIOError):
        zerocopy.send(sk, [bytes(100)], zerocopy.MSG_ZEROCOPY)
    host.advance(5 * MS)
    assert spent(sk) == {"app": (0, 4000), "sndbuf": (5 * MS, 0)}


def test_nothing_counts_before_the_handshake_or_after_the_end() -> None:
    host, sk = conversation()
    fresh = Sock(host, 4)
    host.advance(10 * MS)
    assert spent(fresh) == {}
    close.done(sk)
    host.advance(10 * MS)
    assert spent(sk) == {"app": (10 * MS, 0)}


def test_the_fin_is_no_payload() -> None:
    host, sk = conversation(snd_cwnd=2)
    sendmsg.sendmsg(sk, bytes(2500))
    sk.shutdown |= const.SEND_SHUTDOWN
    close.send_no_more(sk)
    host.advance(4 * MS)
    input.receive(sk, segment(sk, ack=2001))
    assert "F" in host.take()[-1].flags
    assert sum(held for _, held in gates.times(sk).values()) == 2500


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["write", "more", "ack", "some", "shrink", "wait", "complete"]), st.integers(1, 9000)), max_size=40), st.booleans())
def test_times_add_up_to_the_life_of_the_connection_and_bytes_to_what_was_sent(steps: list[tuple[str, int]], manual: bool) -> None:
    host, sk = conversation("manual" if manual else "at_once", srtt_us=2000, sndbuf=30_000, sndbuf_locked=True)
    start = host.now_ns
    for step, n in steps:
        if step in ("write", "more"):
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                sendmsg.sendmsg(sk, bytes(n), const.MSG_MORE if step == "more" else 0)
        elif step == "ack":
            input.receive(sk, segment(sk, ack=sk.snd_nxt - sk.iss))
        elif step == "some":
            input.receive(sk, segment(sk, ack=max(sk.snd_una, sk.snd_nxt - n) - sk.iss))
        elif step == "shrink":
            input.receive(sk, segment(sk, ack=sk.snd_una - sk.iss, window=n))
        elif step == "complete":
            host.complete_all()
        host.advance(n * US * 10)
        if sk.write_queue.head is None and sk.lost_out <= sk.retrans_out and not sk.nospace and sk.state == const.ESTABLISHED:
            assert gates.NAMES[sk.gate] in ("app", "host_queue"), "nothing is queued, lost or waited for"
        elif sk.write_queue.head is not None:
            assert gates.NAMES[sk.gate] not in ("app", "sndbuf"), "something is queued"
        assert sum(ns for ns, _ in gates.times(sk).values()) == host.now_ns - start
        assert sum(sent for _, sent in gates.times(sk).values()) == sk.snd_nxt - sk.iss - 1
