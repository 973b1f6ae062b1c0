"""Explicit congestion notification, RFC 3168, both directions (linux-tcp §8.10)."""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.tcp import const, ecn, input, sendmsg, xmit
from pytcp.tcp.const import ACK, CWR, ECE, SYN
from pytcp.tcp.sock import Sock
from pytcp.wire.tcp import Segment

from .harness import MS, FakeHost, established, make_sock, segment

MSS = 1000


def ecn_flow(**fields: Any) -> tuple[Sock, FakeHost]:
    host = FakeHost()
    sk = established(host, mss=MSS, srtt_us=20_000, ecn_flags=ecn.OK, **fields)
    sk.nonagle = const.NAGLE_OFF
    return sk, host


# ---------------------------------------------------------------- negotiation


@pytest.mark.parametrize(("tcp_ecn", "flags"), [(0, 0), (1, ECE | CWR), (2, 0)])
def test_only_mode_one_asks_for_it(tcp_ecn: int, flags: int) -> None:
    sk = make_sock()
    sk.host.route(sk)
    sk.sysctl.tcp_ecn = tcp_ecn
    assert ecn.syn_flags(sk) == flags
    assert bool(sk.ecn_flags & ecn.OK) is bool(flags)


@pytest.mark.parametrize(("flags", "agreed"), [(ECE, True), (0, False), (ECE | CWR, False), (CWR, False)])
def test_a_synack_agrees_by_ece_alone(flags: int, agreed: bool) -> None:
    """A peer that reflects the flags it got understands nothing (RFC 3168 §6.1.1)."""
    sk = make_sock(ecn_flags=ecn.OK)
    seg = Segment()
    seg.flags = SYN | ACK | flags
    ecn.rcv_synack(sk, seg)
    assert bool(sk.ecn_flags & ecn.OK) is agreed


@pytest.mark.parametrize(("flags", "agreed"), [(ECE | CWR, True), (ECE, False), (0, False)])
def test_a_crossing_syn_agrees_by_both(flags: int, agreed: bool) -> None:
    sk = make_sock(ecn_flags=ecn.OK)
    seg = Segment()
    seg.flags = SYN | flags
    ecn.rcv_syn(sk, seg)
    assert bool(sk.ecn_flags & ecn.OK) is agreed


# ---------------------------------------------------------------- as sender


def test_new_data_is_ect0_and_nothing_else_is() -> None:
    sk, host = ecn_flow()
    sendmsg.sendmsg(sk, bytes(MSS))
    xmit.send_ack(sk)
    host.advance(400 * MS)
    data, pure, *resent = host.take()
    assert (data.ecn, pure.ecn) == (ecn.ECT_0, ecn.NOT_ECT)
    assert resent
    assert all(s.ecn == ecn.NOT_ECT for s in resent)


def test_without_agreement_nothing_is_marked() -> None:
    host = FakeHost()
    sk = established(host, mss=MSS)
    sendmsg.sendmsg(sk, bytes(MSS))
    input.receive(sk, segment(sk, ACK | ECE))
    assert (host.take()[0].ecn, sk.ca_state) == (0, const.CA_OPEN)


def test_an_echo_reduces_the_window_once_a_round_trip_and_is_answered_on_new_data() -> None:
    sk, host = ecn_flow()
    sendmsg.sendmsg(sk, bytes(10 * MSS))
    host.take()
    host.advance(20 * MS)
    input.receive(sk, segment(sk, ACK | ECE, ack=1001))
    assert (sk.ca_state, sk.snd_ssthresh, sk.high_seq) == (const.CA_CWR, 5, sk.snd_nxt)
    input.receive(sk, segment(sk, ACK | ECE, ack=2001))
    assert sk.snd_ssthresh == 5
    sendmsg.sendmsg(sk, bytes(4 * MSS))
    input.receive(sk, segment(sk, ack=10_001))
    sent = [s for s in host.take() if s.length]
    assert ["W" in s.flags for s in sent] == [True] + [False] * (len(sent) - 1)
    assert not sk.ecn_flags & ecn.QUEUE_CWR


def test_the_reduction_ends_when_something_behind_it_is_acknowledged() -> None:
    sk, host = ecn_flow()
    sendmsg.sendmsg(sk, bytes(10 * MSS))
    host.advance(20 * MS)
    input.receive(sk, segment(sk, ACK | ECE, ack=1001))
    sendmsg.sendmsg(sk, bytes(4 * MSS))
    input.receive(sk, segment(sk, ack=10_001))
    assert sk.ca_state == const.CA_CWR, "exactly high_seq is not enough: CWR must reach the receiver"
    input.receive(sk, segment(sk, ack=11_001))
    assert (sk.ca_state, sk.snd_cwnd) == (const.CA_OPEN, 5)


def test_loss_during_the_reduction_goes_on_with_it() -> None:
    """Measured: Recovery entered from CWR keeps CWR's ssthresh and high_seq."""
    sk, host = ecn_flow()
    for _ in range(10):
        sendmsg.sendmsg(sk, bytes(MSS), const.MSG_EOR)
    host.advance(20 * MS)
    input.receive(sk, segment(sk, ACK | ECE, ack=1001))
    high = sk.high_seq
    sendmsg.sendmsg(sk, bytes(4 * MSS))
    input.receive(sk, segment(sk, ack=5001))
    assert sk.snd_nxt > high
    input.receive(sk, segment(sk, ack=5001, sack=[(6001, 9001)]))
    assert (sk.ca_state, sk.snd_ssthresh, sk.high_seq) == (const.CA_RECOVERY, 5, high)
    input.receive(sk, segment(sk, ack=10_001))
    assert sk.ca_state == const.CA_OPEN


def test_marked_deliveries_are_counted() -> None:
    sk, host = ecn_flow()
    sendmsg.sendmsg(sk, bytes(4 * MSS))
    host.advance(20 * MS)
    input.receive(sk, segment(sk, ACK | ECE, ack=3001))
    assert (sk.delivered, sk.delivered_ce, sk.mib.TCPDeliveredCE) == (3, 3, 3)


# ---------------------------------------------------------------- as receiver


def test_a_ce_mark_is_echoed_until_the_sender_has_reduced() -> None:
    sk, host = ecn_flow()
    flags = []
    for tos, bits in ((2, 0), (3, 0), (2, 0), (2, CWR), (2, 0)):
        input.receive(sk, segment(sk, ACK | bits, payload=bytes(MSS), tos=tos))
        if not host.sent:
            xmit.send_ack(sk)
        flags.append(host.take()[-1].flags)
    assert flags == [".", "E.", "E.", ".", "."]


def test_a_ce_mark_is_acknowledged_at_once() -> None:
    sk, host = ecn_flow()
    sk.quick, sk.pingpong = 0, 3
    sk.ato_jiffies = 10
    sk.lrcvtime_ns = host.now_ns
    input.receive(sk, segment(sk, payload=bytes(MSS), tos=2))
    assert host.take() == []
    input.receive(sk, segment(sk, payload=bytes(100), tos=3))
    assert [s.flags for s in host.take()] == ["E."]
    assert sk.pingpong == 0


def test_the_echo_is_on_data_and_probes_as_well() -> None:
    sk, host = ecn_flow()
    sk.ecn_flags |= ecn.DEMAND_CWR
    sendmsg.sendmsg(sk, bytes(10))
    xmit.send_control(sk, ACK, sk.snd_una - 1)
    assert [s.flags for s in host.take()] == ["PE.", "E."]


def test_a_not_ect_segment_among_marked_ones_is_taken_for_a_retransmission() -> None:
    sk, _ = ecn_flow()
    sk.quick = 0
    ecn.data_ecn_check(sk, segment(sk, payload=bytes(MSS), tos=0))
    assert sk.quick == 0
    ecn.data_ecn_check(sk, segment(sk, payload=bytes(MSS), tos=2))
    ecn.data_ecn_check(sk, segment(sk, payload=bytes(MSS), tos=0))
    assert sk.quick == 2


def test_a_timeout_queues_cwr_too() -> None:
    sk, host = ecn_flow()
    sendmsg.sendmsg(sk, bytes(5 * MSS))
    host.advance(600 * MS)
    assert sk.ca_state == const.CA_LOSS
    host.take()
    input.receive(sk, segment(sk, ack=1001))
    sk.snd_cwnd = 20
    sendmsg.sendmsg(sk, bytes(MSS))
    new = [s for s in host.take() if s.seq > 5000]
    assert ["W" in s.flags for s in new] == [True]
