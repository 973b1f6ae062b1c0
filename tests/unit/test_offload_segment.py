"""Segmentation: what a super-frame becomes on a wire that carries only MTU frames.

Expected frames are built segment by segment with scapy, which computes every length and checksum on
its own; C and Python have to agree on everything else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from pytcp import native
from pytcp.link import offload
from pytcp.link.frame import GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, TxFrame

WRAP = 1 << 32
TIMESTAMPS = [("NOP", None), ("NOP", None), ("Timestamp", (123456, 654321))]

Segmenter = Callable[[TxFrame], list[bytes]]


@pytest.fixture(params=["C", "Python"])
def segment(request: pytest.FixtureRequest) -> Segmenter:
    if request.param == "Python":
        return offload.segment_py
    if not native.HAVE_C:
        pytest.skip(native.reason)
    return offload.segment


def data(n: int) -> bytes:
    return bytes(i * 7 & 0xFF for i in range(n))


def ether() -> Any:
    return Ether(dst="02:00:00:00:00:01", src="02:00:00:00:00:02")


def ip4(**fields: Any) -> Any:
    return IP(**{"src": "10.0.0.1", "dst": "10.0.0.2", "id": 0xFFFF, "flags": "DF", **fields})


def ip6(**fields: Any) -> Any:
    return IPv6(**{"src": "fd00::1", "dst": "fd00::2", "fl": 0x12345, "tc": 2, **fields})


def tcp(**fields: Any) -> Any:
    return TCP(**{"sport": 4242, "dport": 80, "seq": WRAP - 1000, "ack": 99, "flags": "PA", "window": 512, "options": TIMESTAMPS, **fields})


def super_frame(headers: Any, payload: bytes, gso_size: int, gso_type: int, cuts: tuple[int, ...] = ()) -> TxFrame:
    """A frame as the stack hands it to a device; `cuts` divides the payload among several buffers."""
    head = bytes(headers)
    inner = headers[UDP] if UDP in headers else headers[TCP]
    edges = [0, *cuts, len(payload)]
    parts = [payload[a:b] for a, b in itertools.pairwise(edges)]
    offset = 6 if UDP in headers else 16
    return TxFrame(head, parts, len(head) + len(payload), gso_type, gso_size, len(head) - len(bytes(inner)), offset)


def test_each_segment_has_its_own_sequence_number_id_length_and_checksums(segment: Segmenter) -> None:
    payload = data(2500)
    frames = segment(super_frame(ether() / ip4() / tcp(), payload, 1000, GSO_TCPV4))
    assert frames == [
        bytes(ether() / ip4(id=0xFFFF) / tcp(seq=WRAP - 1000, flags="A") / Raw(payload[:1000])),
        bytes(ether() / ip4(id=0x0000) / tcp(seq=0, flags="A") / Raw(payload[1000:2000])),
        bytes(ether() / ip4(id=0x0001) / tcp(seq=1000, flags="PA") / Raw(payload[2000:])),
    ]


def test_ipv6_segments_keep_flow_label_and_traffic_class(segment: Segmenter) -> None:
    payload = data(2000)
    frames = segment(super_frame(ether() / ip6() / tcp(), payload, 1428, GSO_TCPV6))
    assert frames == [
        bytes(ether() / ip6() / tcp(flags="A") / Raw(payload[:1428])),
        bytes(ether() / ip6() / tcp(seq=428) / Raw(payload[1428:])),
    ]


def test_fin_and_psh_are_on_the_last_segment_only(segment: Segmenter) -> None:
    frames = segment(super_frame(ether() / ip4() / tcp(flags="FPAU", urgptr=5), data(300), 100, GSO_TCPV4))
    assert [str(Ether(f)[TCP].flags) for f in frames] == ["AU", "AU", "FPAU"]


def test_classic_ecn_reports_cwr_once(segment: Segmenter) -> None:
    frames = segment(super_frame(ether() / ip4() / tcp(flags="ACE"), data(300), 100, GSO_TCPV4 | GSO_ECN))
    assert [str(Ether(f)[TCP].flags) for f in frames] == ["AEC", "AE", "AE"]


def test_the_accecn_counter_is_on_every_segment(segment: Segmenter) -> None:
    frames = segment(super_frame(ether() / ip4() / tcp(flags="ACE", reserved=1), data(300), 100, GSO_TCPV4))
    assert [(str(Ether(f)[TCP].flags), Ether(f)[TCP].reserved) for f in frames] == [("AEC", 1)] * 3


def test_udp_segments_have_length_and_checksum_of_their_own(segment: Segmenter) -> None:
    payload = data(1100)
    frames = segment(super_frame(ether() / ip4(flags=0, id=7) / UDP(sport=1, dport=2), payload, 500, GSO_UDP_L4))
    assert frames == [
        bytes(ether() / ip4(flags=0, id=7) / UDP(sport=1, dport=2) / Raw(payload[:500])),
        bytes(ether() / ip4(flags=0, id=8) / UDP(sport=1, dport=2) / Raw(payload[500:1000])),
        bytes(ether() / ip4(flags=0, id=9) / UDP(sport=1, dport=2) / Raw(payload[1000:])),
    ]
    frames = segment(super_frame(ether() / ip6() / UDP(sport=1, dport=2), payload, 600, GSO_UDP_L4))
    assert frames == [bytes(ether() / ip6() / UDP(sport=1, dport=2) / Raw(p)) for p in (payload[:600], payload[600:])]


@pytest.mark.parametrize(("size", "gso_size"), [(12800, 100), (12701, 100), (65507, 1472), (1001, 1000), (127, 1)])
def test_as_many_udp_segments_as_one_call_may_send(segment: Segmenter, size: int, gso_size: int) -> None:
    payload = data(size)
    pieces = [payload[at : at + gso_size] for at in range(0, size, gso_size)]
    four = segment(super_frame(ether() / ip4(flags=0) / UDP(sport=1, dport=2), payload, gso_size, GSO_UDP_L4, (1, size // 2)))
    assert four == [bytes(ether() / ip4(flags=0, id=0xFFFF + i & 0xFFFF) / UDP(sport=1, dport=2) / Raw(piece)) for i, piece in enumerate(pieces)]
    bare = segment(super_frame(ip6() / UDP(sport=1, dport=2), payload, gso_size, GSO_UDP_L4))
    assert bare == [bytes(ip6() / UDP(sport=1, dport=2) / Raw(piece)) for piece in pieces]


def test_a_udp_checksum_of_zero_is_sent_as_ffff(segment: Segmenter) -> None:
    # 0x0a00 + 1 + 0x0a00 + 2 + 17 + 10 (pseudo-header), 1 + 2 + 10 (header) and the payload add up to 0xffff
    payload = (0xFFFF - (0x0A00 + 1 + 0x0A00 + 2 + 17 + 10) - (1 + 2 + 10)).to_bytes(2, "big")
    frames = segment(super_frame(ether() / ip4() / UDP(sport=1, dport=2), payload * 2, 2, GSO_UDP_L4))
    assert [f[40:42] for f in frames] == [b"\xff\xff"] * 2


def test_a_tcp_checksum_of_zero_stays_zero(segment: Segmenter) -> None:
    # as in Linux, whose tcp_gso_segment does not mangle it
    frame = super_frame(ether() / ip4() / TCP(sport=1, dport=2, seq=0, ack=0, flags="A", window=0), b"\0\0\0\0", 2, GSO_TCPV4)
    rest = 0xFFFF - (0x0A00 + 1 + 0x0A00 + 2 + 6 + 22) - (1 + 2 + 0x5010)
    frame.parts = (rest.to_bytes(2, "big"), b"\0\0")
    assert segment(frame)[0][50:52] == b"\0\0"


def test_a_payload_that_fits_is_one_segment_with_all_its_flags(segment: Segmenter) -> None:
    for size in (0, 1, 1448):
        headers = ether() / ip4() / tcp(flags="FPAC")
        assert segment(super_frame(headers, data(size), 1448, GSO_TCPV4 | GSO_ECN)) == [bytes(headers / Raw(data(size)))]


def test_payload_may_lie_in_any_buffers_and_also_behind_the_headers(segment: Segmenter) -> None:
    payload = data(3000)
    whole = segment(super_frame(ether() / ip4() / tcp(), payload, 999, GSO_TCPV4))
    assert segment(super_frame(ether() / ip4() / tcp(), payload, 999, GSO_TCPV4, (1, 1, 998, 1000, 2999))) == whole
    frame = super_frame(ether() / ip4() / tcp(), payload, 999, GSO_TCPV4)
    frame.head = bytearray(bytes(frame.head) + payload[:1500])
    frame.parts = (memoryview(payload)[1500:],)
    assert segment(frame) == whole


def test_ip_options_vlan_tags_and_links_without_ethernet(segment: Segmenter) -> None:
    payload = data(200)
    options = {"options": b"\x94\x04\0\0"}  # router alert
    for link in (ether(), ether() / Dot1Q(vlan=3), ether() / Dot1Q(vlan=3) / Dot1Q(vlan=4)):
        for ip in (ip4(**options), ip4()):
            frames = segment(super_frame(link / ip / tcp(), payload, 100, GSO_TCPV4))
            first, second = ip.copy(), ip.copy()
            second.id = 0
            assert frames == [bytes(link / first / tcp(flags="A") / Raw(payload[:100])), bytes(link / second / tcp(seq=WRAP - 900) / Raw(payload[100:]))]
    assert segment(super_frame(ip6() / tcp(), payload, 100, GSO_TCPV6)) == [
        bytes(ip6() / tcp(flags="A") / Raw(payload[:100])),
        bytes(ip6() / tcp(seq=WRAP - 900) / Raw(payload[100:])),
    ]


def test_a_frame_that_is_no_super_frame_only_gets_its_checksum(segment: Segmenter) -> None:
    headers = ether() / ip4() / tcp()
    frame = super_frame(headers, data(101), 0, GSO_NONE, (33, 34))
    head = bytearray(frame.head)
    # 0x1403 for the addresses, the protocol, 32 header bytes and 101 of payload; and IP's own length and sum
    head[50:52] = (0x1403 + 6 + 32 + 101).to_bytes(2, "big")
    expected = bytes(headers / Raw(data(101)))
    head[14:34] = expected[14:34]
    frame.head = head
    assert segment(frame) == [expected]
    complete = offload.complete_checksum(frame)
    assert b"".join((complete.head, *complete.parts)) == expected
    assert (complete.csum_start, complete.parts, complete.length) == (0, frame.parts, frame.length)
    assert frame.head[50:52] == (0x1403 + 6 + 32 + 101).to_bytes(2, "big")


def test_completing_nothing_gives_the_frame_itself() -> None:
    frame = TxFrame(b"x" * 14, (), 14)
    assert offload.complete_checksum(frame) is frame


def test_a_completed_checksum_of_zero_is_written_as_ffff() -> None:
    frame = TxFrame(bytes(14) + b"\xff\xff\0\0", (), 18, csum_start=14, csum_offset=2)
    assert bytes(offload.complete_checksum(frame).head[14:]) == b"\xff\xff\xff\xff"


def test_a_checksum_field_outside_the_header_is_refused() -> None:
    with pytest.raises(ValueError, match="50"):
        offload.complete_checksum(TxFrame(bytes(51), (), 51, csum_start=34, csum_offset=16))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda f: setattr(f, "gso_type", GSO_TCPV6),
        lambda f: setattr(f, "gso_type", 2),
        lambda f: setattr(f, "csum_start", 0),
        lambda f: setattr(f, "csum_start", 38),
        lambda f: setattr(f, "head", f.head[:40]),
        lambda f: setattr(f, "head", f.head[:46] + b"\x40" + f.head[47:]),
        lambda f: setattr(f, "head", f.head[:46] + b"\xf0" + f.head[47:]),
        lambda f: setattr(f, "head", f.head[:14] + b"\x55" + f.head[15:]),
        lambda f: (setattr(f, "gso_size", 65535), setattr(f, "parts", (bytes(65535),))),
    ],
)
def test_contradictory_super_frames_are_refused(segment: Segmenter, spoil: Callable[[TxFrame], object]) -> None:
    frame = super_frame(ether() / ip4() / tcp(), data(300), 100, GSO_TCPV4)
    spoil(frame)
    with pytest.raises(ValueError):
        segment(frame)


needs_c = pytest.mark.skipif(not native.HAVE_C, reason=native.reason)


def outcome(function: Segmenter, frame: TxFrame) -> list[bytes] | str:
    try:
        return function(frame)
    except ValueError as refused:
        return str(refused)


@st.composite
def mangled_frames(draw: st.DrawFn) -> TxFrame:
    """Frames that are often right, and often have a few wrong bytes or facts."""
    v6, udp = draw(st.booleans()), draw(st.booleans())
    link = draw(st.sampled_from([None, ether(), ether() / Dot1Q(vlan=3)]))
    ip = ip6() if v6 else ip4(id=draw(st.integers(0, 65535)), options=draw(st.sampled_from([b"", b"\x94\x04\0\0"])))
    l4 = UDP(sport=1, dport=2) if udp else tcp(seq=draw(st.integers(0, WRAP - 1)), flags=draw(st.integers(0, 255)), reserved=draw(st.integers(0, 7)))
    headers = ip / l4 if link is None else link / ip / l4
    payload = draw(st.binary(max_size=400))
    cuts = tuple(sorted(draw(st.lists(st.integers(0, len(payload)), max_size=4))))
    gso_type = GSO_UDP_L4 if udp else GSO_TCPV6 if v6 else GSO_TCPV4
    frame = super_frame(headers, payload, draw(st.integers(1, 120)), gso_type | draw(st.sampled_from([0, GSO_ECN])), cuts)
    head = bytearray(frame.head)
    for at, value in draw(st.lists(st.tuples(st.integers(0, len(head) - 1), st.integers(0, 255)), max_size=3)):
        head[at] = value
    frame.head = bytes(head[: draw(st.one_of(st.just(len(head)), st.integers(0, len(head))))])
    if draw(st.integers(0, 4)) == 0:
        frame.csum_start = draw(st.integers(0, 80))
    if draw(st.integers(0, 4)) == 0:
        frame.gso_type = draw(st.integers(0, 255))
    return frame


@needs_c
@given(mangled_frames())
def test_c_and_python_cut_alike(frame: TxFrame) -> None:
    assert outcome(offload.segment, frame) == outcome(offload.segment_py, frame)


@needs_c
@settings(max_examples=40)
@given(st.integers(0, 70000), st.integers(1, 65483), st.lists(st.integers(0, 70000), max_size=5))
def test_c_and_python_cut_large_frames_alike(size: int, gso_size: int, cuts: list[int]) -> None:
    gso_size = max(gso_size, size // 500)
    edges = tuple(sorted(c for c in cuts if c <= size))
    for l4, gso_type in ((tcp(), GSO_TCPV4), (UDP(sport=1, dport=2), GSO_UDP_L4)):
        frame = super_frame(ether() / ip4() / l4, bytes(size), gso_size, gso_type, edges)
        assert outcome(offload.segment, frame) == outcome(offload.segment_py, frame)


@needs_c
@settings(max_examples=300)
@given(
    head=st.binary(min_size=1, max_size=120),
    places=st.tuples(st.integers(0, 130), st.integers(0, 130), st.integers(0, 130)),
    mode=st.integers(0, 7),
    gso_size=st.integers(0, 100),
    parts=st.lists(st.binary(max_size=60), max_size=4),
    room=st.integers(0, 4000),
)
def test_the_c_loop_stays_within_its_buffers_whatever_it_is_told(
    head: bytes, places: tuple[int, int, int], mode: int, gso_size: int, parts: list[bytes], room: int
) -> None:
    # the loop checks its arguments itself: a canary behind the output stays alive
    assert native.lib is not None
    out = bytearray(b"\xa5" * (room + 64))
    views = [native.ffi.from_buffer(p) for p in parts]
    vec = native.ffi.new("struct pytcp_part[]", [(v, len(v)) for v in views])
    l3, l4, hdr_len = places
    count = native.lib.pytcp_segment(head, len(head), l3, l4, hdr_len, mode, gso_size, vec, len(parts), native.ffi.from_buffer(out), room)
    assert out[room:] == b"\xa5" * 64
    if count > 0:
        payload = len(head) - hdr_len + sum(map(len, parts))
        assert count == max(1, -(-payload // gso_size)) and payload + count * hdr_len <= room
    else:
        assert count in (-1, -2) and out == b"\xa5" * (room + 64)
