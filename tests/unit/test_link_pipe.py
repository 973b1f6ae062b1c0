"""The in-process pipe: order, delay, features of the receiving end, bounds."""

from __future__ import annotations

import struct

from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from pytcp.clock.heap import TimerHeap
from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.frame import CSUM_NONE, CSUM_UNNECESSARY, F_CSUM, F_RXCSUM, F_TSO4, GSO_TCPV4, RxFrame, TxFrame
from pytcp.link.pipe import ALL_FEATURES, PipeEnd, pipe_pair

US = 1_000


def listen(end: PipeEnd, heap: TimerHeap) -> list[tuple[int, bytes]]:
    """Record (arrival, bytes) at `end`; the end of a batch is b"|"."""
    log: list[tuple[int, bytes]] = []
    end.rx = lambda frame: log.append((heap.now_ns, bytes(frame.data)))
    end.rx_end = lambda: log.append((heap.now_ns, b"|"))
    return log


def super_frame(payload: bytes, gso_size: int) -> TxFrame:
    """A TCP super-frame as an interface hands it down: pseudo-header sum in the checksum field."""
    packet = bytes(
        Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IP(src="10.0.0.1", dst="10.0.0.2", id=7) / TCP(sport=1, dport=2, seq=0xFFFFFF00, flags="PA")
    )
    head = bytearray(packet)
    total = len(payload) + 20
    head[16:18] = (20 + total).to_bytes(2, "big")
    pseudo = sum(struct.unpack(">4H", bytes((10, 0, 0, 1, 10, 0, 0, 2)))) + 6 + total
    head[50:52] = ((pseudo & 0xFFFF) + (pseudo >> 16)).to_bytes(2, "big")
    half = len(payload) // 2
    return TxFrame(bytes(head), (payload[:half], payload[half:]), 54 + len(payload), GSO_TCPV4, gso_size, 34, 16)


def test_a_frame_arrives_after_the_delay_of_its_direction() -> None:
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap, delay_ns=(30 * US, 50 * US))
    at_b, at_a = listen(b, runtime.heap), listen(a, runtime.heap)
    a.send([TxFrame(b"to b")])
    b.send([TxFrame(b"to a")])
    runtime.run_until_idle()
    assert at_b == [(30 * US, b"to b"), (30 * US, b"|")]
    assert at_a == [(50 * US, b"to a"), (50 * US, b"|")]


def test_without_delay_the_receiver_still_runs_later_and_not_inside_send() -> None:
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap)
    at_b = listen(b, runtime.heap)
    a.send([TxFrame(b"x")])
    assert at_b == []
    runtime.run_until_idle()
    assert at_b == [(0, b"x"), (0, b"|")]


def test_frames_keep_their_order_and_those_of_one_instant_are_one_batch() -> None:
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap, delay_ns=10)
    at_b = listen(b, runtime.heap)
    a.send([TxFrame(b"1", (b"2", b"3")), TxFrame(b"4")])
    runtime.run_until(4)
    a.send([TxFrame(b"5")])
    runtime.run_until_idle()
    assert at_b == [(10, b"123"), (10, b"4"), (10, b"|"), (14, b"5"), (14, b"|")]


def test_the_senders_buffers_are_free_when_send_returns() -> None:
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap)
    at_b = listen(b, runtime.heap)
    slab = bytearray(b"data")
    a.send([TxFrame(b"h", (memoryview(slab),))])
    slab[:] = b"XXXX"
    runtime.run_until_idle()
    assert at_b[0] == (0, b"hdata")


def test_an_end_that_takes_super_frames_gets_them_whole_with_their_facts() -> None:
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap)
    got: list[RxFrame] = []
    b.rx = got.append
    a.send([super_frame(bytes(4000), 1460)])
    runtime.run_until_idle()
    (frame,) = got
    assert (frame.gso_type, frame.gso_size, frame.csum, len(frame.data)) == (GSO_TCPV4, 1460, CSUM_UNNECESSARY, 4054)


def test_an_end_without_tso_gets_mtu_frames_with_right_checksums() -> None:
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap, features=(ALL_FEATURES, F_RXCSUM))
    got: list[RxFrame] = []
    b.rx = got.append
    payload = bytes(i * 7 & 255 for i in range(3000))
    a.send([super_frame(payload, 1460)])
    runtime.run_until_idle()
    assert [frame.gso_size for frame in got] == [0, 0, 0]
    assert [frame.csum for frame in got] == [CSUM_NONE] * 3
    segments = [Ether(bytes(frame.data)) for frame in got]
    assert b"".join(bytes(s[TCP].payload) for s in segments) == payload
    assert [s[TCP].seq for s in segments] == [0xFFFFFF00, 0x4B4, 0xA68]  # the sequence number wraps
    for segment in segments:
        claimed = segment[TCP].chksum
        del segment[TCP].chksum
        assert Ether(bytes(segment))[TCP].chksum == claimed


def test_an_end_that_does_not_take_unfinished_checksums_gets_them_finished() -> None:
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap, features=(ALL_FEATURES, F_CSUM | F_TSO4))
    got: list[RxFrame] = []
    b.rx = got.append
    frame = super_frame(b"hello", 0)
    frame.gso_type = 0
    a.send([frame])
    runtime.run_until_idle()
    segment = Ether(bytes(got[0].data))
    claimed = segment[TCP].chksum
    del segment[TCP].chksum
    assert Ether(bytes(segment))[TCP].chksum == claimed
    assert got[0].csum == CSUM_NONE


def test_a_frame_longer_than_either_mtu_is_lost_and_counted() -> None:
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap, mtu=(9000, 1500))
    at_b = listen(b, runtime.heap)
    assert a.send([TxFrame(bytes(14 + 1500)), TxFrame(bytes(14 + 1500 + 5))]) == 2
    runtime.run_until_idle()
    assert [len(data) for _, data in at_b] == [1514, 1]
    assert a.tx_errors == 1


def test_a_full_pipe_takes_fewer_frames() -> None:
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap, delay_ns=5, limit=2)
    at_b = listen(b, runtime.heap)
    assert a.send([TxFrame(b"1"), TxFrame(b"2"), TxFrame(b"3")]) == 2
    runtime.run_until_idle()
    assert a.send([TxFrame(b"3")]) == 1
    runtime.run_until_idle()
    assert [data for _, data in at_b] == [b"1", b"2", b"|", b"3", b"|"]


def test_what_is_on_the_way_to_a_closed_end_is_lost_without_an_error() -> None:
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap, delay_ns=5)
    at_b = listen(b, runtime.heap)
    a.send([TxFrame(b"1")])
    b.close()
    assert a.send([TxFrame(b"2")]) == 1
    runtime.run_until_idle()
    assert at_b == []


def test_a_receiver_may_answer_at_once() -> None:
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap, delay_ns=5)
    at_a = listen(a, runtime.heap)

    def answer(frame: RxFrame) -> None:
        b.send([TxFrame(b"re: " + bytes(frame.data))])

    b.rx = answer
    a.send([TxFrame(b"1")])
    runtime.run_until_idle()
    assert at_a == [(10, b"re: 1"), (10, b"|")]


def test_a_rate_spaces_frames_by_their_bits_on_an_ethernet_wire() -> None:
    """1000 bytes and 24 of preamble, checksum and gap are 8192 bits: 8.192 us at 1 Gbit/s, each behind the one before."""
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap, delay_ns=30 * US, rate=(1_000_000_000, 0))
    at_b, at_a = listen(b, runtime.heap), listen(a, runtime.heap)
    a.send([TxFrame(bytes(1000)), TxFrame(bytes(1000))])
    b.send([TxFrame(bytes(1000))])
    runtime.run_until_idle()
    assert [at for at, data in at_b if data != b"|"] == [30_000 + 8192, 30_000 + 2 * 8192]
    assert [at for at, data in at_a if data != b"|"] == [30_000], "the other direction has no rate"


def test_at_a_rate_a_super_frame_arrives_when_its_last_segment_has() -> None:
    """2500 bytes in segments of 1000 are three frames, each with 54 bytes of headers and 24 on the wire."""
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap, rate=1_000_000_000)
    at_b = listen(b, runtime.heap)
    a.send([super_frame(bytes(2500), 1000)])
    runtime.run_until_idle()
    assert [at for at, data in at_b if data != b"|"] == [(2500 + 3 * 78) * 8]


def test_what_an_end_takes_may_be_less_than_what_it_does_for_its_stack() -> None:
    runtime = VirtualRuntime()
    a, b = pipe_pair(runtime.heap, rate=1_000_000_000, takes=F_CSUM | F_RXCSUM)
    at_b = listen(b, runtime.heap)
    assert b.features & F_TSO4
    a.send([super_frame(bytes(2500), 1000)])
    runtime.run_until_idle()
    assert [(at, len(data)) for at, data in at_b if data != b"|"] == [(1078 * 8, 1054), (2 * 1078 * 8, 1054), ((2 * 1078 + 578) * 8, 554)]
