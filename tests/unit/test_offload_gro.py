"""Coalescing: which received segments become one super-frame, and which do not.

Expected merges are what a Linux 6.18 TAP in NAPI mode did with the same frames (test_offload_kernel
asks the running kernel again); the bytes of a merged frame are built with scapy. Each statement is
made to the C loop and to its Python twin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from pytcp import native
from pytcp.link import gro, offload
from pytcp.link.frame import CSUM_NONE, CSUM_UNNECESSARY, GSO_TCPV4, GSO_TCPV6, RxBuf, RxFrame, TxFrame

WRAP = 1 << 32
TIMESTAMPS = (("NOP", None), ("NOP", None), ("Timestamp", (1, 2)))

Coalescer = Callable[[list[bytes]], list[RxFrame]]
Told = list[tuple[int, int, int]]


def through_c(frames: list[bytes], link_header: int = 14) -> list[RxFrame]:
    coalescer = gro.Gro(link_header)
    for frame in frames:
        coalescer.feed(RxFrame(memoryview(frame)))
    return coalescer.flush()


@pytest.fixture(params=["C", "Python"])
def coalesce(request: pytest.FixtureRequest) -> Coalescer:
    if request.param == "Python":
        return lambda frames: gro.coalesce_py([RxFrame(memoryview(f)) for f in frames])
    if not native.HAVE_C:
        pytest.skip(native.reason)
    return through_c


def segment(
    seq: int,
    size: int = 100,
    flags: str = "A",
    *,
    ack: int = 5,
    window: int = 1000,
    options: tuple[Any, ...] = TIMESTAMPS,
    v6: bool = False,
    src: str = "02:00:00:00:00:02",
    sport: int = 1000,
    reserved: int = 0,
    df: bool = True,
    trailer: bytes = b"",
    **ip: Any,
) -> bytes:
    """One frame; `seq` counts from 50 before the wrap."""
    if v6:
        network = IPv6(**{"src": "fd00::1", "dst": "fd00::2", **ip})
    else:
        network = IP(**{"src": "10.0.0.1", "dst": "10.0.0.2", "id": 1, "flags": "DF" if df else 0, **ip})
    seq = (seq - 50) % WRAP
    transport = TCP(sport=sport, dport=80, seq=seq, ack=ack, flags=flags, window=window, options=list(options), reserved=reserved)
    return bytes(Ether(dst="02:00:00:00:00:01", src=src) / network / transport / Raw(b"x" * size)) + trailer


def told(frames: list[RxFrame]) -> Told:
    """(sequence number as given to `segment`, payload bytes, gso_size) of TCP frames."""
    out = []
    for frame in frames:
        packet = Ether(bytes(frame.data))
        ip = packet[IP] if IP in packet else packet[IPv6]
        size = len(frame.data) - 14 - len(bytes(ip)) + len(bytes(ip[TCP].payload))
        out.append(((ip[TCP].seq + 50) % WRAP, size, frame.gso_size))
    return out


def test_neighbours_become_one_frame_with_the_segment_size_beside_it(coalesce: Coalescer) -> None:
    for v6 in (False, True):
        (frame,) = coalesce([segment(0, v6=v6), segment(100, v6=v6), segment(200, 60, v6=v6)])
        assert (frame.gso_type, frame.gso_size, frame.csum) == (GSO_TCPV6 if v6 else GSO_TCPV4, 100, CSUM_UNNECESSARY)
        expected = bytearray(segment(0, 260, v6=v6))
        l4 = 54 if v6 else 34
        # the checksum field holds the pseudo-header's sum: addresses, protocol, 32 + 260 bytes
        addresses = 0xFD00 + 1 + 0xFD00 + 2 if v6 else 0x0A00 + 1 + 0x0A00 + 2
        total = addresses + 6 + 32 + 260
        expected[l4 + 16 : l4 + 18] = ((total & 0xFFFF) + (total >> 16)).to_bytes(2, "big")
        assert bytes(frame.data) == bytes(expected)


def test_cutting_a_merged_frame_gives_back_what_was_merged(coalesce: Coalescer) -> None:
    frames = [segment(i * 100, id=i + 1, ack=77) for i in range(9)] + [segment(900, 30, "FPA", id=10, ack=77)]
    (merged,) = coalesce(frames)
    assert offload.segment(TxFrame(merged.data, (), len(merged.data), merged.gso_type, merged.gso_size, 34, 16)) == frames


@pytest.mark.parametrize("v6", [False, True])
def test_signed_segments_stay_apart_each_with_its_digest(coalesce: Coalescer, v6: bool) -> None:
    frames = [segment(i * 100, options=(("NOP", None), ("NOP", None), ("MD5", bytes([i]) * 16)), v6=v6) for i in range(4)]
    assert [bytes(frame.data) for frame in coalesce(frames)] == frames


def test_a_single_frame_stays_as_it_is(coalesce: Coalescer) -> None:
    only = segment(0)
    (frame,) = coalesce([only])
    assert bytes(frame.data) == only and frame.gso_size == 0
    assert coalesce([]) == []


@pytest.mark.parametrize("flag", ["PA", "FA", "FPA"])
def test_psh_and_fin_join_and_end_a_merge(coalesce: Coalescer, flag: str) -> None:
    frames = coalesce([segment(0), segment(100, flags=flag), segment(200)])
    assert told(frames) == [(0, 200, 100), (200, 100, 0)]
    assert Ether(bytes(frames[0].data))[TCP].flags == flag


@pytest.mark.parametrize("flags", ["PA", "FA", "S", "RA", "UA"])
def test_a_frame_with_an_ending_flag_is_not_held(coalesce: Coalescer, flags: str) -> None:
    # the second one begins a merge of its own
    assert told(coalesce([segment(0, flags=flags), segment(100), segment(200)])) == [(0, 100, 0), (100, 200, 100)]


@pytest.mark.parametrize("flags", ["RA", "UA", "SA", "AE", "AC", ""])
def test_another_flag_than_psh_or_fin_prevents_a_merge(coalesce: Coalescer, flags: str) -> None:
    assert told(coalesce([segment(0), segment(100, flags=flags)])) == [(0, 100, 0), (100, 100, 0)]


def test_equal_ece_and_ae_merge_because_they_may_be_accecn(coalesce: Coalescer) -> None:
    assert told(coalesce([segment(0, flags="AE"), segment(100, flags="AE")])) == [(0, 200, 100)]
    assert told(coalesce([segment(0, reserved=1), segment(100, reserved=1)])) == [(0, 200, 100)]
    assert told(coalesce([segment(0, reserved=1), segment(100)])) == [(0, 100, 0), (100, 100, 0)]


@pytest.mark.parametrize("second", ["A", "AC", "AEC"])
def test_cwr_is_never_merged(coalesce: Coalescer, second: str) -> None:
    assert told(coalesce([segment(0, flags="AC"), segment(100, flags=second)])) == [(0, 100, 0), (100, 100, 0)]
    assert told(coalesce([segment(0, flags="AC"), segment(100), segment(200)])) == [(0, 100, 0), (100, 200, 100)]


def test_a_shorter_segment_joins_and_ends_a_merge(coalesce: Coalescer) -> None:
    assert told(coalesce([segment(0), segment(100, 50), segment(150)])) == [(0, 150, 100), (150, 100, 0)]


def test_a_longer_segment_begins_another_merge(coalesce: Coalescer) -> None:
    assert told(coalesce([segment(0), segment(100, 101), segment(201, 101)])) == [(0, 100, 0), (100, 202, 101)]


def test_a_pure_acknowledgement_is_never_merged_and_keeps_its_place(coalesce: Coalescer) -> None:
    assert told(coalesce([segment(0), segment(100, 0, ack=9), segment(100)])) == [(0, 100, 0), (100, 0, 0), (100, 100, 0)]


def test_fin_without_payload_is_not_merged(coalesce: Coalescer) -> None:
    assert told(coalesce([segment(0), segment(100, 0, "FA")])) == [(0, 100, 0), (100, 0, 0)]


@pytest.mark.parametrize(
    "change",
    [
        {"ack": 6},
        {"window": 999},
        {"options": (("NOP", None), ("NOP", None), ("Timestamp", (2, 2)))},
        {"options": ()},
        {"tos": 1},
        {"ttl": 63},
        {"id": 3},
        {"trailer": b"\0\0"},
    ],
)
def test_any_other_difference_sends_the_held_frame_up_first(coalesce: Coalescer, change: dict[str, Any]) -> None:
    result = told(coalesce([segment(0), segment(100, **change)]))
    assert [r[0] for r in result] == [0, 100] and all(r[2] == 0 for r in result)


def test_df_has_to_agree_but_need_not_be_set(coalesce: Coalescer) -> None:
    assert told(coalesce([segment(0, df=True), segment(100, df=False)])) == [(0, 100, 0), (100, 100, 0)]
    assert told(coalesce([segment(0, df=False), segment(100, df=False)])) == [(0, 200, 100)]


def test_ipv4_ids_are_all_equal_or_count_up(coalesce: Coalescer) -> None:
    def ids(*values: int) -> Told:
        return told(coalesce([segment(i * 100, id=ident) for i, ident in enumerate(values)]))

    assert ids(5, 5, 5) == ids(65535, 0, 1) == [(0, 300, 100)]
    assert ids(1, 1, 2) == ids(1, 2, 2) == [(0, 200, 100), (200, 100, 0)]
    assert ids(1, 77, 3) == [(0, 100, 0), (100, 100, 0), (200, 100, 0)]


def test_a_gap_or_a_repetition_is_not_merged(coalesce: Coalescer) -> None:
    assert told(coalesce([segment(0), segment(200), segment(300)])) == [(0, 100, 0), (200, 200, 100)]
    assert told(coalesce([segment(0), segment(0), segment(100)])) == [(0, 100, 0), (0, 200, 100)]


def test_a_wrong_checksum_passes_by_and_is_left_to_the_stack(coalesce: Coalescer) -> None:
    bad = segment(100)[:-1] + b"y"
    frames = coalesce([segment(0), bad, segment(100)])
    assert [bytes(frames[0].data), frames[0].csum] == [bad, CSUM_NONE]
    assert told(frames[1:]) == [(0, 200, 100)]


def test_a_checksum_found_right_is_not_checked_again(coalesce: Coalescer) -> None:
    assert [f.csum for f in coalesce([segment(0), segment(500)])] == [CSUM_UNNECESSARY] * 2


@pytest.mark.parametrize(
    "odd",
    [
        segment(100, options=TIMESTAMPS)[:24] + b"\1\1" + segment(100)[26:],  # IP checksum wrong
        segment(100, 0, options=())[:46] + b"\xf0" + segment(100, 0, options=())[47:],  # header beyond the end
        segment(100)[:46] + b"\x40" + segment(100)[47:],  # header of 16 bytes
        segment(100)[:44],
        segment(100)[:20],
        b"",
        bytes(Ether() / ARP()) + bytes(40),
        bytes(Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1000, dport=80) / Raw(bytes(100))),
    ],
)
def test_what_is_no_sound_tcp_passes_by_a_held_frame(coalesce: Coalescer, odd: bytes) -> None:
    frames = coalesce([segment(0), odd, segment(100)])
    assert bytes(frames[0].data) == odd
    assert told(frames[1:]) == [(0, 200, 100)]


def test_fragments_and_ip_options_are_not_touched(coalesce: Coalescer) -> None:
    fragment = bytes(Ether() / IP(src="10.0.0.1", dst="10.0.0.2", flags="MF") / TCP(sport=1000, dport=80) / Raw(b"x" * 100))
    packet = Ether(segment(100))
    packet[IP].options = [IPOption_NOP()] * 4
    del packet[IP].ihl, packet[IP].len, packet[IP].chksum
    optioned = bytes(packet)
    frames = coalesce([segment(0), fragment, optioned, segment(100)])
    assert [bytes(f.data) for f in frames[:2]] == [fragment, optioned]
    assert told(frames[2:]) == [(0, 200, 100)]


def test_flows_are_held_apart(coalesce: Coalescer) -> None:
    a, b = [segment(0), segment(100)], [segment(0, sport=1001), segment(100, sport=1001)]
    frames = coalesce([a[0], b[0], a[1], b[1]])
    assert told(frames) == [(0, 200, 100)] * 2
    assert [Ether(bytes(f.data))[TCP].sport for f in frames] == [1000, 1001]


@pytest.mark.parametrize("change", [{"sport": 1001}, {"dst": "10.0.0.3"}, {"src": "02:00:00:00:00:03"}, {"v6": True}])
def test_another_flow_does_not_end_a_merge(coalesce: Coalescer, change: dict[str, Any]) -> None:
    assert told(coalesce([segment(0), segment(100, **change), segment(100)])) == [(0, 200, 100), (100, 100, 0)]


def test_the_ipv6_flow_label_makes_another_flow_the_traffic_class_and_hop_limit_do_not(coalesce: Coalescer) -> None:
    assert told(coalesce([segment(0, v6=True, fl=1), segment(100, v6=True, fl=2), segment(100, v6=True, fl=1)])) == [(0, 200, 100), (100, 100, 0)]
    for field in ("tc", "hlim"):
        frames = [segment(0, v6=True, **{field: 1}), segment(100, v6=True, **{field: 2}), segment(100, v6=True, **{field: 1})]
        assert told(coalesce(frames)) == [(0, 100, 0), (100, 100, 0), (100, 100, 0)]


def test_a_merged_frame_fills_an_ip_packet_at_most(coalesce: Coalescer) -> None:
    full = [segment(i * 1448, 1448) for i in range(46)]
    assert told(coalesce(full)) == [(0, 45 * 1448, 1448), (45 * 1448, 1448, 0)]
    # 65535 bytes of IP exactly: 40 of headers, 51 segments of 1260 and one of 1235
    exact = [segment(i * 1260, 1260, options=()) for i in range(51)] + [segment(51 * 1260, 1235, options=())]
    assert told(coalesce(exact)) == [(0, 65495, 1260)]
    above = [*exact[:-1], segment(51 * 1260, 1236, options=())]
    assert told(coalesce(above)) == [(0, 51 * 1260, 1260), (51 * 1260, 1236, 0)]


def test_at_most_64_flows_wait_and_the_oldest_goes_up_first(coalesce: Coalescer) -> None:
    frames = [segment(0, sport=p) for p in range(1, 66)] + [segment(100, sport=p) for p in (1, 2)]
    result = coalesce(frames)
    got = [(Ether(bytes(f.data))[TCP].sport, told([f])[0][1]) for f in result]
    # 65 pushes 1 out, then 1's second frame pushes 2 out, then 2's pushes 3 out
    assert got == [(1, 100), (2, 100), (3, 100), *((p, 100) for p in range(4, 66)), (1, 100), (2, 100)]


def test_a_super_frame_of_the_device_passes(coalesce: Coalescer) -> None:
    whole = RxFrame(memoryview(segment(0)), GSO_TCPV4, 50, CSUM_UNNECESSARY)
    assert gro.coalesce_py([whole, RxFrame(memoryview(segment(100)))])[0] is whole
    coalescer = gro.Gro()
    coalescer.feed(whole)
    coalescer.feed(RxFrame(memoryview(segment(100))))
    assert coalescer.flush()[0] is whole


def test_buffers_are_kept_until_the_next_batch() -> None:
    pool: list[RxBuf] = []
    buf = RxBuf(4096, pool)
    frame = segment(0)
    buf.mem[: len(frame)] = frame
    coalescer = gro.Gro()
    coalescer.feed(RxFrame(buf.view[: len(frame)], buf=buf))
    coalescer.flush()
    assert buf.taken == 1 and pool == []
    coalescer.feed(RxFrame(memoryview(segment(100))))
    assert buf.taken == 0 and pool == [buf]


def test_a_large_merge_lies_in_a_buffer_that_is_reused_when_nobody_took_it() -> None:
    frames = [segment(i * 1448, 1448) for i in range(45)]
    if not native.HAVE_C:
        pytest.skip(native.reason)
    coalescer = gro.Gro()

    def once() -> RxFrame:
        for frame in frames:
            coalescer.feed(RxFrame(memoryview(frame)))
        (merged,) = coalescer.flush()
        return merged

    first = once()
    assert first.buf is not None
    second = once()
    assert second.buf is first.buf
    first.buf.taken += 1
    third = once()
    assert third.buf is not first.buf
    first.buf.release()
    assert third.buf is not None
    third.buf.taken += 1
    assert once().buf is first.buf


def test_a_buffer_taken_and_given_back_at_once_is_not_given_to_two() -> None:
    if not native.HAVE_C:
        pytest.skip(native.reason)
    output = gro.Output()
    buf = output.reserve(1000)
    buf.taken += 1
    buf.release()
    buf.taken += 1
    other = output.reserve(1000)
    assert other is not buf
    other.taken += 1
    assert output.reserve(1000) not in (buf, other)
    buf.release()
    other.release()
    assert output.pool == [buf, other]


def test_a_small_merge_does_not_hold_a_large_buffer() -> None:
    (merged,) = through_c([segment(0), segment(100)])
    assert merged.buf is None


def test_more_than_a_batch_is_coalesced_in_pieces() -> None:
    coalescer = gro.Gro()
    for i in range(gro.MAX_BATCH + 2):
        coalescer.feed(RxFrame(memoryview(segment(i * 100))))
    assert told(coalescer.flush()) == [(0, gro.MAX_BATCH * 100, 100), (gro.MAX_BATCH * 100, 200, 100)]
    assert coalescer.flush() == []


def test_only_ethernet_and_bare_ip_are_known() -> None:
    with pytest.raises(ValueError):
        gro.Gro(18)
    assert told_bare(gro.Gro(0), [segment(0)[14:], segment(100)[14:]]) == [(200, 100)]


def told_bare(coalescer: gro.Gro, frames: list[bytes]) -> list[tuple[int, int]]:
    for frame in frames:
        coalescer.feed(RxFrame(memoryview(frame)))
    return [(len(f.data) - 52, f.gso_size) for f in coalescer.flush()]


CHANGES: list[dict[str, Any]] = [{}] * 5 + [{"flags": f} for f in ("PA", "FA", "RA", "AEC")] + [{"ack": 6}, {"window": 3}, {"options": ()}]


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[bytes], int]:
    """Batches in which much merges and anything may be wrong."""
    link_header = draw(st.sampled_from([14, 0]))
    frames: list[bytes] = []
    position: dict[tuple[bool, int], int] = {}
    for _ in range(draw(st.integers(0, 12))):
        flow = (draw(st.booleans()), draw(st.integers(1, 2)))
        seq = position.get(flow, 0) + draw(st.sampled_from([0, 0, 0, 0, 0, 1]))
        size = draw(st.sampled_from([20, 20, 20, 20, 19, 21, 0]))
        change: dict[str, Any] = draw(st.sampled_from(CHANGES))
        if not flow[0]:
            change = {**change, "id": draw(st.sampled_from([1, len(frames)]))}
        frame = bytearray(segment(seq, size, v6=flow[0], sport=flow[1], **change))
        position[flow] = seq + size
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
            frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
        end = draw(st.sampled_from([None, None, None, None, draw(st.integers(0, len(frame)))]))
        frames.append(bytes(frame[14 - link_header : end]))
    return frames, link_header


def seen(frames: list[RxFrame]) -> list[tuple[bytes, int, int, int]]:
    return [(bytes(f.data), f.gso_type, f.gso_size, f.csum) for f in frames]


@pytest.mark.skipif(not native.HAVE_C, reason=native.reason)
@given(batches())
def test_c_and_python_coalesce_alike(batch: tuple[list[bytes], int]) -> None:
    frames, link_header = batch
    twin = gro.coalesce_py([RxFrame(memoryview(f)) for f in frames], link_header)
    if len(frames) < 2:
        twin = [RxFrame(memoryview(f)) for f in frames]
    assert seen(through_c(frames, link_header)) == seen(twin)


@pytest.mark.skipif(not native.HAVE_C, reason=native.reason)
@given(st.lists(st.binary(max_size=90), min_size=2, max_size=8), st.sampled_from([0, 14]))
def test_c_and_python_agree_on_noise(frames: list[bytes], link_header: int) -> None:
    frames = [b"\x45\0" + f if link_header == 0 else f for f in frames]
    twin = gro.coalesce_py([RxFrame(memoryview(f)) for f in frames], link_header)
    assert seen(through_c(frames, link_header)) == seen(twin)


@given(batches())
def test_no_byte_of_payload_is_lost_or_invented(batch: tuple[list[bytes], int]) -> None:
    frames, link_header = batch
    out = through_c(frames, link_header)
    count = sum(f.gso_size == 0 for f in out)
    merged = [f for f in out if f.gso_size]
    hdr = [link_header + (60 if f.gso_type == GSO_TCPV6 else 40) for f in merged]
    options = [(f.data[h - 8] >> 4) * 4 - 20 for f, h in zip(merged, hdr, strict=True)]
    segments = [-(-(len(f.data) - h - o) // f.gso_size) for f, h, o in zip(merged, hdr, options, strict=True)]
    assert count + sum(segments) == len(frames)
    heads = sum((n - 1) * (h + o) for n, h, o in zip(segments, hdr, options, strict=True))
    assert sum(len(f.data) for f in out) + heads == sum(map(len, frames))
