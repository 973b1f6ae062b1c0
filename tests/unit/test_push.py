"""The end of a write: autocorking, Nagle as Minshall changed it, cork, push (linux-tcp §2, §14)."""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.tcp import const, input, push, sendmsg, xmit
from pytcp.tcp.sock import Sock
from pytcp.tcp.sockopt import setsockopt

from .harness import MS, FakeHost, established, segment

IPPROTO_TCP, TCP_NODELAY, TCP_CORK = 6, 1, 3


def nodelay(sk: Sock, on: bool = True) -> None:
    setsockopt(sk, IPPROTO_TCP, TCP_NODELAY, int(on))


def cork(sk: Sock, on: bool = True) -> None:
    setsockopt(sk, IPPROTO_TCP, TCP_CORK, int(on))


def lengths(host: FakeHost) -> list[int]:
    return [s.length for s in host.take()]


def in_ring(first: int, **fields: Any) -> tuple[Sock, FakeHost]:
    """NODELAY, and one packet of `first` bytes waiting in the host's transmit ring."""
    host = FakeHost(complete="manual")
    sk = established(host, mss=1000, srtt_us=20_000, **fields)
    nodelay(sk)
    sendmsg.sendmsg(sk, bytes(first))
    assert lengths(host) == [first]
    return sk, host


# ---------------------------------------------------------------- autocorking


@pytest.mark.parametrize(("second", "goes"), [(100, False), (499, False), (500, False), (501, True), (900, True)])
def test_a_write_is_held_if_the_packet_in_the_ring_is_not_smaller(second: int, goes: bool) -> None:
    """wmem_alloc = 1 + base + 500 against the tail's base + second: held iff 500 ≥ second, to the byte."""
    sk, host = in_ring(500)
    sendmsg.sendmsg(sk, bytes(second))
    assert lengths(host) == ([second] if goes else [])
    assert sk.mib.TCPAutoCorking == (0 if goes else 1)


def test_nodelay_does_not_prevent_corking() -> None:
    sk, host = in_ring(500)
    assert sk.nonagle & const.NAGLE_OFF
    sendmsg.sendmsg(sk, bytes(10))
    assert lengths(host) == []


def test_the_counter_counts_holds_not_held_writes() -> None:
    sk, host = in_ring(500)
    for _ in range(4):
        sendmsg.sendmsg(sk, bytes(50))
    assert (lengths(host), sk.mib.TCPAutoCorking) == ([], 1)
    host.complete_all()
    assert lengths(host) == [200]
    sendmsg.sendmsg(sk, bytes(50))
    assert sk.mib.TCPAutoCorking == 2


def test_the_tail_goes_when_it_outgrows_what_the_ring_holds() -> None:
    """700 in the ring; 100, 300, 200, 99 are 699 and 1 makes 700: still held. 50 more makes 750 (measured)."""
    sk, host = in_ring(700)
    for n in (100, 300, 200, 99, 1):
        sendmsg.sendmsg(sk, bytes(n))
    assert lengths(host) == []
    sendmsg.sendmsg(sk, bytes(50))
    assert lengths(host) == [750]


def test_the_completion_releases_the_held_bytes_in_one_packet() -> None:
    sk, host = in_ring(500)
    sendmsg.sendmsg(sk, bytes(100))
    sendmsg.sendmsg(sk, bytes(100))
    host.complete_all()
    sent = host.take()
    assert [(s.length, s.flags) for s in sent] == [(200, "P.")]
    assert sk.tsq_throttled is False


def test_an_acknowledgement_releases_them_too() -> None:
    sk, host = in_ring(500)
    sendmsg.sendmsg(sk, bytes(100))
    input.receive(sk, segment(sk, ack=1))
    assert lengths(host) == [100]


def test_nothing_is_held_when_everything_before_it_is_acknowledged() -> None:
    """The retransmit queue is empty, although the device still has the frame."""
    sk, host = in_ring(500)
    input.receive(sk, segment(sk, ack=501))
    sendmsg.sendmsg(sk, bytes(100))
    assert lengths(host) == [100]


def test_the_end_of_a_record_is_not_held() -> None:
    sk, host = in_ring(500)
    sendmsg.sendmsg(sk, bytes(100), const.MSG_EOR)
    assert lengths(host) == [100]


def test_a_full_skb_is_not_held() -> None:
    sk, host = in_ring(500, window=4000)
    sendmsg.sendmsg(sk, bytes(2000))
    assert lengths(host) == [2000], "the size goal is half the window"


def test_pure_acks_in_the_ring_hold_nothing() -> None:
    """They are charged 2: 1 + 2 is less than any skb."""
    host = FakeHost(complete="manual")
    sk = established(host, mss=1000)
    nodelay(sk)
    sendmsg.sendmsg(sk, bytes(100))
    host.complete_all()
    for _ in range(50):
        xmit.send_ack(sk)
    assert sk.wmem_alloc == 101
    host.take()
    sendmsg.sendmsg(sk, bytes(10))
    assert lengths(host) == [10]


def test_corking_can_be_switched_off() -> None:
    sk, host = in_ring(500)
    sk.sysctl.tcp_autocorking = 0
    sendmsg.sendmsg(sk, bytes(100))
    assert (lengths(host), sk.mib.TCPAutoCorking) == ([100], 0)


def test_autocorking_is_tested_before_more_to_come() -> None:
    """The hold is counted, and its release by the completion ignores MSG_MORE: NODELAY lets it go (measured)."""
    sk, host = in_ring(500)
    sendmsg.sendmsg(sk, bytes(100), const.MSG_MORE)
    assert sk.mib.TCPAutoCorking == 1
    host.complete_all()
    assert [(s.length, s.flags) for s in host.take()] == [(100, ".")]


def test_a_completion_does_not_release_what_a_cork_holds() -> None:
    sk, host = in_ring(500)
    cork(sk)
    sendmsg.sendmsg(sk, bytes(100))
    assert sk.mib.TCPAutoCorking == 1, "the counter counts all the same"
    host.complete_all()
    assert lengths(host) == []


@pytest.mark.parametrize(
    ("variant", "nonagle", "held"),
    [
        ("mainline", const.NAGLE_OFF, True),
        ("any_nonagle", const.NAGLE_OFF, False),
        ("nodelay_only", const.NAGLE_OFF, False),
        ("any_nonagle", const.NAGLE_CORK, False),  # what got the first patch reverted
        ("nodelay_only", const.NAGLE_CORK, True),
        ("any_nonagle", 0, True),
    ],
)
def test_the_two_patches_of_2023(variant: str, nonagle: int, held: bool) -> None:
    sk, _ = in_ring(500)
    sk.sysctl.autocork_nodelay = variant
    sk.nonagle = const.NAGLE_CORK
    sendmsg.sendmsg(sk, bytes(100), const.MSG_MORE)
    skb = sk.write_queue.tail
    assert skb is not None
    sk.nonagle = nonagle
    assert push.should_autocork(sk, skb, 65_000) is held


# ---------------------------------------------------------------- Nagle and Minshall


def test_a_small_segment_waits_for_an_earlier_small_one() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(10))
    sendmsg.sendmsg(sk, bytes(20))
    sendmsg.sendmsg(sk, bytes(30))
    assert lengths(host) == [10]
    input.receive(sk, segment(sk, ack=11))
    assert lengths(host) == [50]


def test_a_small_segment_does_not_wait_for_full_ones() -> None:
    """Minshall: only an earlier *small* segment holds a small one back."""
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(1000))
    sendmsg.sendmsg(sk, bytes(10))
    assert lengths(host) == [1000, 10]
    sendmsg.sendmsg(sk, bytes(10))
    assert lengths(host) == []
    input.receive(sk, segment(sk, ack=1001))
    assert lengths(host) == [], "the small one is still out"
    input.receive(sk, segment(sk, ack=1011))
    assert lengths(host) == [10]


def test_a_burst_that_ends_in_a_piece_counts_as_small() -> None:
    """snd_sml: an skb shorter than its segments (2500 < 3·1000)."""
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(2500))
    assert sk.snd_sml == sk.snd_nxt
    sendmsg.sendmsg(sk, bytes(10))
    assert lengths(host) == [2500]


def test_a_full_segment_never_waits() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(10))
    sendmsg.sendmsg(sk, bytes(990))
    assert lengths(host) == [10]
    sendmsg.sendmsg(sk, bytes(10))
    assert lengths(host) == [1000]


def test_nodelay_sends_what_waited() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(10))
    sendmsg.sendmsg(sk, bytes(20))
    host.take()
    nodelay(sk)
    assert lengths(host) == [20]
    sendmsg.sendmsg(sk, bytes(30))
    assert lengths(host) == [30]
    nodelay(sk, False)
    sendmsg.sendmsg(sk, bytes(30))
    assert lengths(host) == []


def test_a_fin_takes_waiting_bytes_along() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(10))
    sendmsg.sendmsg(sk, bytes(20))
    sk.state = const.FIN_WAIT1
    xmit.send_fin(sk)
    assert [(s.length, s.flags) for s in host.take()] == [(10, "P."), (20, "FP.")]


def test_records_do_not_merge_while_they_wait() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(10))
    sendmsg.sendmsg(sk, bytes(20), const.MSG_EOR)
    sendmsg.sendmsg(sk, bytes(30), const.MSG_EOR)
    # the first record is not the tail any more, so Nagle has no say over it
    assert lengths(host) == [10, 20]
    input.receive(sk, segment(sk, ack=31))
    assert lengths(host) == [30]


# ---------------------------------------------------------------- cork


def test_a_cork_holds_partial_segments_only() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    cork(sk)
    sendmsg.sendmsg(sk, bytes(2300))
    assert lengths(host) == [2000]
    cork(sk, False)
    assert lengths(host) == [300]


def test_a_cork_is_stronger_than_nodelay() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    nodelay(sk)
    cork(sk)
    sendmsg.sendmsg(sk, bytes(100))
    assert lengths(host) == []
    nodelay(sk)
    assert lengths(host) == [100], "setting NODELAY again pushes what is queued, once"
    sendmsg.sendmsg(sk, bytes(100))
    assert lengths(host) == []


def test_pulling_the_cork_of_a_nodelay_socket_sends_behind_small_data_in_flight() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    nodelay(sk)
    sendmsg.sendmsg(sk, bytes(10))
    cork(sk)
    sendmsg.sendmsg(sk, bytes(20))
    host.take()
    cork(sk, False)
    assert lengths(host) == [20]


def test_pulling_the_cork_leaves_the_rest_to_nagle() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(10))
    cork(sk)
    sendmsg.sendmsg(sk, bytes(20))
    host.take()
    cork(sk, False)
    assert lengths(host) == []


def test_more_to_come_holds_for_one_push_only() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    nodelay(sk)
    sendmsg.sendmsg(sk, bytes(100), const.MSG_MORE)
    assert lengths(host) == []
    sendmsg.sendmsg(sk, bytes(1))
    assert lengths(host) == [101]


def test_an_acknowledgement_releases_more_to_come_without_a_push() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(1000))
    sendmsg.sendmsg(sk, bytes(100), const.MSG_MORE)
    assert lengths(host) == [1000]
    input.receive(sk, segment(sk, ack=1001))
    assert [(s.length, s.flags) for s in host.take()] == [(100, ".")]


def test_a_corked_tail_leaves_after_an_rto_with_push() -> None:
    """The "200 ms ceiling" is the probe timer: the RTO (srtt + 200 ms), in ticks, never re-armed by writes."""
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=10_000)
    cork(sk)
    start = host.now_ns
    sendmsg.sendmsg(sk, bytes(100))
    host.advance(50 * MS)
    sendmsg.sendmsg(sk, bytes(100))
    assert host.sent == []
    host.advance(200 * MS)
    sent = host.take()
    assert [(s.length, s.flags) for s in sent] == [(200, "P.")]
    assert 212 * MS <= sent[0].t_ns - start <= 220 * MS


# ---------------------------------------------------------------- PSH on the wire


def test_push_is_forced_on_bursts_but_not_on_single_segments() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(3000), const.MSG_MORE)
    assert [(s.segs, s.flags) for s in host.take()] == [(3, "P.")]
    input.receive(sk, segment(sk))
    sendmsg.sendmsg(sk, bytes(1000), const.MSG_MORE)
    assert [(s.segs, s.flags) for s in host.take()] == [(1, ".")]
