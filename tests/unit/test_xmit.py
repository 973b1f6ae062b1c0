"""write_xmit and what it puts on the wire: order of the tests, headers, FIN, SYN, bare segments (linux-tcp §3)."""

from __future__ import annotations

from struct import unpack

import pytest

from pytcp.tcp import const, input, sendmsg, xmit
from pytcp.tcp.const import ACK, FIN, PSH, RST, SYN
from pytcp.tcp.sock import NEVER, Sock

from .harness import MS, FakeHost, established, make_sock, segment


def lengths(host: FakeHost) -> list[int]:
    return [s.length for s in host.take()]


# ---------------------------------------------------------------- what may leave


def test_the_receivers_window_takes_whole_segments_and_what_nagle_allows_of_the_rest() -> None:
    """2600 bytes of window: two segments; 600 more only with NODELAY, as no small segment is out."""
    host = FakeHost()
    sk = established(host, mss=1000, window=2600, wscale=0)
    sk.snd_cwnd = 20
    sendmsg.sendmsg(sk, bytes(5000))
    # half the window bounds an skb to one segment: 1300 → 1000
    assert lengths(host) == [1000, 1000]
    assert sk.write_seq - sk.snd_nxt == 3000


def test_the_first_segment_of_the_queue_must_fit_whole() -> None:
    host = FakeHost()
    sk = established(host, mss=1000, window=999, wscale=0)
    sk.max_window = 1 << 20
    sendmsg.sendmsg(sk, bytes(1000))
    assert lengths(host) == []
    assert sk.pending == const.PENDING_PROBE0
    input.receive(sk, segment(sk, ack=1, window=1000))
    assert lengths(host) == [1000]


def test_new_data_moves_to_the_retransmit_queue_and_starts_the_timer() -> None:
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=20_000, sack=False)
    sendmsg.sendmsg(sk, bytes(1500))
    assert (sk.packets_out, sk.snd_nxt - sk.snd_una, len(sk.rtx_queue), len(sk.write_queue)) == (2, 1500, 1, 0)
    assert (sk.pending, sk.rtx_deadline) == (const.PENDING_RETRANS, host.now_ns + sk.rto_ns)
    assert sk.mib.TCPOrigDataSent == 2
    host.advance(5 * MS)
    armed = sk.rtx_deadline
    sk.nonagle = const.NAGLE_OFF
    sendmsg.sendmsg(sk, bytes(1000))
    assert sk.rtx_deadline == armed, "more data does not restart it"


def test_with_sack_the_loss_probe_stands_in_for_the_rto() -> None:
    sk = established(mss=1000, srtt_us=20_000)
    sendmsg.sendmsg(sk, bytes(1500))
    assert sk.pending == const.PENDING_LOSS_PROBE


def test_segments_and_bytes_are_counted() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(2500))
    xmit.send_ack(sk)
    assert (sk.segs_out, sk.data_segs_out, sk.bytes_sent, sk.mib.TcpOutSegs) == (4, 3, 2500, 4)


def test_a_refused_transmission_stays_queued_and_charges_nothing() -> None:
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=20_000)
    host.refuse = -105
    sendmsg.sendmsg(sk, bytes(1500))
    assert (sk.packets_out, sk.wmem_alloc, sk.snd_nxt) == (0, 1, sk.snd_una)
    assert sk.ca_state == const.CA_OPEN
    assert sk.pending == const.PENDING_PROBE0, "somebody has to try again"
    host.refuse = 0
    host.advance(300 * MS)
    # the probe timer sends the first segment as a probe, the rest follows its ACK
    assert host.take()[0].length == 1000


def test_a_packet_our_own_host_drops_is_congestion() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    host.refuse = 1
    sendmsg.sendmsg(sk, bytes(100))
    assert (sk.ca_state, sk.snd_ssthresh) == (const.CA_CWR, 5)


# ---------------------------------------------------------------- headers


def test_an_established_header_has_timestamps_and_the_scaled_window() -> None:
    host = FakeHost()
    sk = established(host, mss=1000, timestamps=True)
    sk.ts_offset, sk.ts_recent = 7, 99
    sendmsg.sendmsg(sk, b"abc")
    sent = host.take()[0]
    assert unpack("!BBBBII", sent.options) == (1, 1, 8, 10, host.now_ns // MS + 7, 99)
    assert sent.window == sk.rcv_wnd >> sk.rcv_wscale


def test_holes_in_what_we_received_are_reported_on_data_as_well() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sk.selective_acks = [(sk.rcv_nxt + 1000, sk.rcv_nxt + 2000)]
    sendmsg.sendmsg(sk, b"abc")
    left = (sk.rcv_nxt + 1000) & 0xFFFFFFFF
    assert host.take()[0].options == bytes((1, 1, 5, 10)) + left.to_bytes(4, "big") + (left + 1000 & 0xFFFFFFFF).to_bytes(4, "big")


def test_numbers_wrap_on_the_wire() -> None:
    """Our ISN is 3000 below 2^32: the fourth segment of 1000 crosses it."""
    host = FakeHost()
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytes(10_000))
    th = xmit.established_header(sk, ACK, sk.snd_nxt, 0)
    assert int.from_bytes(th[4:8], "big") == 10_001 - 3000
    assert int.from_bytes(th[8:12], "big") == sk.rcv_nxt & 0xFFFFFFFF


# ---------------------------------------------------------------- bare segments


@pytest.mark.parametrize(
    ("window", "wscale", "seq"),
    [
        (5000, 0, 3001),
        (1000, 0, 1001),  # the window shrank below what is out: its edge
        (2900, 7, 3001),  # within the rounding of a scaled window
        (2900, 0, 2901),
    ],
)
def test_a_bare_ack_is_numbered_within_the_peers_window(window: int, wscale: int, seq: int) -> None:
    host = FakeHost()
    sk = established(host, mss=1000, wscale=wscale)
    sk.wscale_ok = wscale > 0
    sendmsg.sendmsg(sk, bytes(3000))
    host.take()
    sk.snd_wnd = window
    xmit.send_ack(sk)
    sent = host.take()[0]
    assert (sent.flags, sent.seq, sent.length) == (".", seq, 0)


def test_a_closed_socket_acknowledges_nothing() -> None:
    host = FakeHost()
    sk = established(host)
    sk.state = const.CLOSE
    xmit.send_ack(sk)
    assert host.take() == []


def test_a_control_segment_is_queued_nowhere_and_says_whether_it_left() -> None:
    host = FakeHost()
    sk = established(host)
    assert xmit.send_control(sk, RST | ACK, sk.snd_nxt) == 0
    assert [s.flags for s in host.take()] == ["R."]
    assert (len(sk.rtx_queue), sk.snd_nxt, sk.rtx_deadline) == (0, sk.snd_una, NEVER)
    host.refuse = 1
    assert xmit.send_control(sk, ACK, sk.snd_una - 1) == 1
    assert sk.wmem_alloc == 1


def test_urgent_data_ahead_is_announced_by_bare_acks_too() -> None:
    """Measured: behind a closed window, every ACK says URG with the distance to the urgent byte's end."""
    host = FakeHost()
    sk = established(host, mss=1000)
    sk.snd_wnd = 0
    sendmsg.sendmsg(sk, b"abc")
    sendmsg.sendmsg(sk, b"!", const.MSG_OOB)
    xmit.send_ack(sk)
    assert [(s.flags, s.urg) for s in host.take()] == [("U.", 4)]
    sk.snd_up = sk.snd_una
    xmit.send_ack(sk)
    assert [s.flags for s in host.take()] == ["."]


# ---------------------------------------------------------------- FIN and SYN


def finish(sk: Sock) -> None:
    sk.state = const.FIN_WAIT1
    xmit.send_fin(sk)


def test_a_fin_rides_on_unsent_data_and_takes_a_sequence_number() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sk.nonagle = const.NAGLE_CORK
    sendmsg.sendmsg(sk, bytes(300))
    finish(sk)
    assert [(s.flags, s.length) for s in host.take()] == [("FP.", 300)]
    assert sk.snd_nxt == sk.write_seq == sk.iss + 302


def test_a_fin_alone_is_a_segment_without_payload() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    finish(sk)
    assert [(s.flags, s.seq, s.length) for s in host.take()] == [("F.", 1, 0)]
    assert sk.packets_out == 1


def test_a_fin_behind_a_closed_window_waits_for_it() -> None:
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=20_000)
    sk.snd_wnd = 0
    finish(sk)
    assert host.take() == []
    input.receive(sk, segment(sk, ack=1, window=1000))
    assert [s.flags for s in host.take()] == ["F."]


def test_a_fin_on_a_burst_stays_with_its_last_segment() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sk.snd_cwnd = 4
    sk.nonagle = const.NAGLE_CORK
    sendmsg.sendmsg(sk, bytes(5500))
    finish(sk)
    assert [(s.flags, s.length) for s in host.take()] == [("P.", 2000), ("P.", 2000)]
    sk.nonagle = 0
    input.receive(sk, segment(sk, ack=4001))
    assert [(s.flags, s.length) for s in host.take()] == [("FP.", 1500)]


def test_a_syn_is_queued_like_data_and_its_window_is_not_scaled() -> None:
    host = FakeHost()
    sk = make_sock(host, state=const.SYN_SENT, iss=(1 << 32) + 0xFFFFFFFF, rcv_wnd=64_240, rcv_wscale=7, advmss=1460)
    host.route(sk)
    assert xmit.send_syn(sk, SYN) == 0
    sent = host.take()[0]
    assert (sent.flags, sent.length, sent.window, sent.options[:4]) == ("S", 0, 64_240, b"\2\4\5\xb4")
    assert sk.snd_nxt == sk.write_seq == sk.iss + 1
    assert (sk.packets_out, len(sk.rtx_queue), sk.pending) == (1, 1, const.PENDING_RETRANS)


# ---------------------------------------------------------------- the end


def test_dropping_the_queues_gives_all_memory_back() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sk.snd_cwnd = 4
    sendmsg.sendmsg(sk, bytearray(9000))
    held = sk.slab
    xmit.free_queues(sk)
    assert (sk.wmem_queued, sk.packets_out, len(sk.rtx_queue), len(sk.write_queue)) == (0, 0, 0, 0)
    assert (held.refs, sk.slab, sk.tsorted.head) == (0, None, None)


def test_payload_in_the_ring_survives_what_happens_to_its_skb() -> None:
    """The clone in the TX ring shows the bytes as sent, though the skb is trimmed, split and freed meanwhile."""
    host = FakeHost(complete="manual")
    sk = established(host, mss=1000, srtt_us=20_000)
    data = bytes(i * 13 % 256 for i in range(4000))
    seen: list[tuple[list[memoryview], bytes]] = []
    transmit = host.transmit

    def watched(sk: Sock, th: bytes, parts: list[memoryview], *rest: object) -> int:
        seen.append((parts, b"".join(map(bytes, parts))))
        return transmit(sk, th, parts, *rest)  # type: ignore[arg-type]

    host.transmit = watched  # type: ignore[assignment, method-assign]
    sendmsg.sendmsg(sk, bytearray(data))
    assert [len(b) for _, b in seen] == [4000]
    input.receive(sk, segment(sk, ack=1001, sack=[(2001, 3001)]))
    input.receive(sk, segment(sk, ack=4001))
    sendmsg.sendmsg(sk, bytearray(b"\xff" * 4000))
    for parts, as_sent in seen:
        assert b"".join(map(bytes, parts)) == as_sent
    host.complete_all()
    assert sk.wmem_alloc == 1


def test_flags_of_the_wire_are_those_asked_for() -> None:
    host = FakeHost()
    sk = established(host)
    for flags, text in ((ACK, "."), (ACK | PSH, "P."), (FIN | ACK, "F.")):
        xmit.send_control(sk, flags, sk.snd_nxt)
        assert host.take()[0].flags == text
