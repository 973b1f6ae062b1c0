"""TCP small queues: no socket fills the host's transmit ring (linux-tcp §3.5, §4)."""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.tcp import const, input, sendmsg, timers, tsq, xmit
from pytcp.tcp.skb import Skb
from pytcp.tcp.sock import Sock
from pytcp.tcp.sockopt import setsockopt

from .harness import MS, FakeHost, established, segment

BASE = 832


def sender(rate: int, cwnd: int = 100, **fields: Any) -> tuple[Sock, FakeHost]:
    """A host that completes when told; bursts of two segments, at `rate` bytes/s."""
    host = FakeHost(complete="manual")
    sk = established(host, mss=1000, srtt_us=20_000, **fields)
    sk.snd_cwnd = cwnd
    sk.pacing_rate = rate
    return sk, host


def test_two_bursts_are_in_the_ring_and_the_third_goes_once_the_limit_is_not_exceeded() -> None:
    """limit = max(2·2832, rate >> 10) = 5664. The test is made before a burst is added: 1, 2833, 5665 > 5664."""
    sk, host = sender(1000)
    sendmsg.sendmsg(sk, bytes(20_000))
    assert [s.segs for s in host.take()] == [2, 2]
    assert sk.wmem_alloc == 1 + 2 * (BASE + 2000)
    assert sk.tsq_throttled


def test_a_fast_flow_may_have_a_millisecond_of_its_rate_in_the_ring() -> None:
    """10 MB/s: 9765 bytes > 5664: bursts of 9 segments, truesize 9832, limit 2·9832."""
    sk, host = sender(10_000_000)
    sendmsg.sendmsg(sk, bytes(60_000))
    assert [s.segs for s in host.take()] == [9, 9]
    sk, host = sender(100_000_000)
    sk.gso_max_segs = 2
    sendmsg.sendmsg(sk, bytes(200_000))
    # 97656 bytes: 35 bursts of 2832 make 99120, and the 36th is refused
    assert len(host.take()) == 35


def test_tcp_limit_output_bytes_caps_it() -> None:
    sk, host = sender(100_000_000)
    sk.gso_max_segs = 2
    sk.sysctl.tcp_limit_output_bytes = 8000
    sendmsg.sendmsg(sk, bytes(200_000))
    assert len(host.take()) == 3, "1 + 2·2832 is not more than 8000, 1 + 3·2832 is"


@pytest.mark.parametrize(("limit", "sent"), [(2832, 0), (2833, 0), (2834, 1)])
def test_who_calls_the_socket_after_a_completion_holds_a_byte_of_its_charge(limit: int, sent: int) -> None:
    """One burst of 2832 is left in the ring, 1 is the socket's own, and 1 more makes 2834. Measured (tests/drill/tsq)."""
    sk, host = sender(1000)
    sk.sysctl.tcp_limit_output_bytes = limit
    sendmsg.sendmsg(sk, bytes(20_000))
    assert len(host.take()) == 2
    tsq.wfree(*host.in_ring.pop(0))
    assert len(host.take()) == sent
    assert sk.wmem_alloc == 1 + (1 + sent) * 2832


def test_what_waits_for_a_delayed_departure_is_allowed_for() -> None:
    """TCP_TX_DELAY 10 ms at 100,000 bytes/s: 2·10^5·10^4/2^20 = 1907 bytes on top of 2·2832: 7571."""
    sk, _ = sender(100_000)
    sendmsg.sendmsg(sk, bytes(20_000))
    skb = sk.rtx_queue.head
    assert skb is not None
    assert sk.rtx_queue.qlen == 2
    setsockopt(sk, 6, 37, 10_000)
    sk.pacing_rate = 100_000
    for charged, factor, limit in ((7571, 0, 0), (7572, 0, 7571), (4 * 2832 + 1907, 1, 0)):
        sk.wmem_alloc = charged
        assert tsq.small_queue_check(sk, skb, factor) == limit


@pytest.mark.parametrize(("factor", "limit"), [(0, 2 * (BASE + 2000)), (1, 0)])
def test_retransmissions_have_twice_the_room(factor: int, limit: int) -> None:
    sk, _ = sender(1000)
    sendmsg.sendmsg(sk, bytes(20_000))
    skb = Skb(0, const.ACK, BASE + 2000)
    sk.wmem_alloc = 6000
    assert tsq.small_queue_check(sk, skb, factor) == limit


def test_with_one_skb_in_flight_nothing_is_throttled() -> None:
    """The ACK clock could not restart the flow: 0 or 1 skb in the retransmit queue pass."""
    sk, _ = sender(1000)
    skb = Skb(0, const.ACK, BASE + 2000)
    sk.wmem_alloc = 1 << 20
    assert not tsq.small_queue_check(sk, skb, 0)
    sk.rtx_queue.append(Skb(0, const.ACK, BASE))
    assert not tsq.small_queue_check(sk, skb, 0)
    sk.rtx_queue.append(Skb(0, const.ACK, BASE))
    assert tsq.small_queue_check(sk, skb, 0)


def test_one_completion_restarts_a_throttled_sender() -> None:
    sk, host = sender(1000)
    sendmsg.sendmsg(sk, bytes(20_000))
    host.take()
    tsq.wfree(*host.in_ring.pop(0))
    assert [s.segs for s in host.take()] == [2]
    assert sk.tsq_throttled, "and it is over the limit again"


def test_completions_of_an_unthrottled_socket_send_nothing() -> None:
    sk, host = sender(1000)
    sk.nonagle = const.NAGLE_CORK
    sendmsg.sendmsg(sk, bytes(2500))
    host.take()
    host.complete_all()
    assert (host.take(), sk.wmem_alloc) == ([], 1)


def test_the_host_is_asked_to_look_for_completions_once() -> None:
    sk, host = sender(1000)
    sendmsg.sendmsg(sk, bytes(20_000))
    asked = host.kicks
    assert asked == 1
    input.receive(sk, segment(sk, ack=1))
    assert host.kicks == asked


def test_bare_acks_are_charged_two_bytes() -> None:
    sk, host = sender(1000)
    xmit.send_ack(sk)
    xmit.send_ack(sk)
    assert sk.wmem_alloc == 5
    host.complete_all()
    assert sk.wmem_alloc == 1


def test_the_completion_of_a_bare_ack_calls_nobody() -> None:
    """Pure ACKs are freed by the kernel's __sock_wfree, which knows nothing of small queues."""
    sk, host = sender(1000)
    sendmsg.sendmsg(sk, bytes(20_000))
    sent = len(host.take())
    xmit.send_ack(sk)
    host.take()
    tsq.wfree(*host.in_ring.pop())
    assert (sent, host.take(), sk.tsq_throttled) == (2, [], True)
    host.complete_all()
    assert host.take() != []


def test_a_missed_completion_frees_and_leaves_the_flag_to_the_next() -> None:
    """The race of tcp_push (linux-tcp §2.4): count decremented, flag read too early, nobody called."""
    sk, host = sender(1000)
    sk.sysctl.push_barrier = 0
    sendmsg.sendmsg(sk, bytes(20_000))
    host.take()
    charged = sk.wmem_alloc
    assert tsq.wfree_missed(sk, *host.in_ring.pop(0)[1:])
    assert (sk.wmem_alloc, sk.tsq_throttled, host.take()) == (charged - BASE - 2000, True, [])
    tsq.wfree(*host.in_ring.pop(0))
    assert [s.segs for s in host.take()] == [2, 2]
    sk.tsq_throttled = False
    assert not tsq.wfree_missed(sk, *host.in_ring.pop(0)[1:]), "nobody waited"


def test_a_completion_resends_what_is_lost_before_new_data() -> None:
    sk, host = sender(1000, cwnd=10)
    for _ in range(6):
        sendmsg.sendmsg(sk, bytes(1000), const.MSG_EOR)
        host.complete_all()
    sendmsg.sendmsg(sk, bytes(20_000))
    host.complete_all()
    host.take()
    host.advance(30 * MS)
    host.refuse = -105
    input.receive(sk, segment(sk, ack=1, sack=[(1001, 6001)]))
    assert sk.lost_out > sk.retrans_out
    host.refuse = 0
    sk.snd_cwnd = 20
    sk.tsq_throttled = True
    sk.wmem_alloc += BASE
    tsq.wfree(sk, None, BASE)
    sent = host.take()
    assert sent[0].seq == 1
    assert sent[-1].seq > 6001


@pytest.mark.parametrize("state", [const.CLOSE, const.FIN_WAIT2, const.TIME_WAIT, const.SYN_SENT])
def test_where_nothing_may_be_sent_a_completion_only_frees(state: int) -> None:
    sk, host = sender(1000)
    sendmsg.sendmsg(sk, bytes(20_000))
    host.take()
    sk.state = state
    host.complete_all()
    assert (host.take(), sk.wmem_alloc) == ([], 1)


def test_an_original_still_in_our_own_ring_is_not_resent() -> None:
    """A probe or RTO before the frame even left would be absurd (TCPSpuriousRtxHostQueues)."""
    sk, host = sender(1 << 30)
    sendmsg.sendmsg(sk, bytes(1000))
    host.take()
    host.advance(300 * MS)
    assert (host.take(), sk.mib.TCPTimeouts) == ([], 1)
    assert sk.mib.TCPSpuriousRtxHostQueues >= 1
    assert sk.tsq_throttled
    host.complete_all()
    assert [s.seq for s in host.take()] == [1], "the completion resends it"


def test_completions_inside_the_call_do_not_start_sending_in_the_middle_of_sending() -> None:
    """A host that completes at once, while frames it took before are still out and the socket is throttled."""
    sk, host = sender(1000)
    sendmsg.sendmsg(sk, bytes(20_000))
    assert sk.tsq_throttled
    host.take()
    host.complete = "at_once"
    xmit.write_xmit(sk, 1000, 0, 1)
    assert [s.seq for s in host.take()] == []
    tsq.wfree(*host.in_ring.pop(0))
    seqs = [s.seq for s in host.take()]
    assert seqs == sorted(set(seqs)), "each burst once"
    assert sk.packets_out == sum(skb.pcount for skb in sk.rtx_queue)
    timers.clear_all(sk)
