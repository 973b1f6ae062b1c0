"""Whatever the bytes: parsing gives a value or raises WireError, and what we emit parses back to itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytcp.wire import icmp, icmpv6, igmp, ipv4, ipv6, mld, ndp, tcp
from pytcp.wire.arp import Arp
from pytcp.wire.checksum import checksum, transport_ok
from pytcp.wire.describe import describe, describe_packet
from pytcp.wire.errors import WireError
from pytcp.wire.ethernet import ETH_P_8021AD, ETH_P_8021Q, Ethernet, VlanTag
from pytcp.wire.tcpopt import AUTH_AO, AUTH_BROKEN
from pytcp.wire.udp import Udp
from pytcp.wire.virtio import HDR_LEN_MRG, VnetHeader

A6, B6 = bytes.fromhex("fd780000000000000000000000000002"), bytes.fromhex("fd780000000000000000000000000001")

u8, u16, u32 = st.integers(0, 0xFF), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)
addr4, addr6, mac = (st.binary(min_size=n, max_size=n) for n in (4, 16, 6))
data = st.binary(max_size=64)
words = st.binary(max_size=40).map(lambda raw: raw[: len(raw) & ~3])


# ---- any bytes -------------------------------------------------------------------------------

PARSERS: dict[str, Callable[[bytes], Any]] = {
    "ethernet": Ethernet.parse,
    "arp": Arp.parse,
    "ipv4": ipv4.Ipv4.parse,
    "ipv4-quoted": lambda raw: ipv4.Ipv4.parse(raw, quoted=True),
    "ipv4-options": lambda raw: list(ipv4.walk_options(raw)),
    "ipv6": ipv6.Ipv6.parse,
    "ipv6-walk": lambda raw: ipv6.walk(raw, raw[0] if raw else 0, 0),
    "ipv6-options": lambda raw: list(ipv6.iter_options(raw, 0, len(raw))),
    "ipv6-options-header": ipv6.OptionsHeader.parse,
    "ipv6-routing": ipv6.RoutingHeader.parse,
    "ipv6-fragment": ipv6.FragmentHeader.parse,
    "icmp": icmp.parse,
    "icmp-quote": icmp.quoted,
    "icmpv6": icmpv6.parse,
    "ndp": ndp.parse,
    "ndp-options": ndp.parse_options,
    "igmp": igmp.parse,
    "mld": mld.parse,
    "udp": Udp.parse,
    "tcp": tcp.TcpHeader.parse,
    "tcp-options": tcp.parse_options,
    "segment": lambda raw: tcp.parse_segment(memoryview(raw), 0, len(raw), 4, b"", b""),
    "virtio": VnetHeader.parse,
    "virtio-mrg": lambda raw: VnetHeader.parse(raw, HDR_LEN_MRG),
}

# random bytes rarely begin like a header: half the examples get a beginning that leads further in
STARTS = st.sampled_from(
    [
        b"",
        b"\x45\x00\x00\x14" + bytes(16),
        b"\x4f\x00\x00\x3c" + bytes(16),
        b"\x60\x00\x00\x00\x00\x10\x2c\x40" + bytes(32),
        b"\x60\x00\x00\x00\x00\x00\x00\x40" + bytes(32),
        b"\x22\x00\x00\x00\x00\x00\x00\x03",
        b"\x8f\x00\x00\x00\x00\x00\x00\x03",
        bytes((ndp.ROUTER_ADVERT,)) + bytes(15),
        bytes((ndp.NEIGHBOR_SOLICIT,)) + bytes(23),
        bytes(12) + b"\xf0\x02" + bytes(6),
        bytes(12) + b"\x80\x10" + bytes(6) + b"\x01\x01\x08\x0a",
        bytes(12) + b"\xf0\x10" + bytes(6) + b"\x01\x01\x08\x0a" + bytes(8) + b"\x01\x01\x05",
        bytes(12) + b"\x81\x00\x00\x00",
    ]
)
any_bytes = st.builds(lambda start, rest: bytes(start + rest), STARTS, st.binary(max_size=120))


@pytest.mark.parametrize("name", PARSERS)
@given(raw=any_bytes)
def test_any_bytes_parse_or_raise_wire_error(name: str, raw: bytes) -> None:
    try:
        PARSERS[name](raw)
    except WireError as error:
        assert 0 <= error.offset <= 20 + len(raw)


@given(any_bytes, st.sampled_from([b"\x08\x00", b"\x86\xdd", b"\x08\x06", b"\x81\x00", b"\x00\x20"]))
def test_any_frame_can_be_described_in_one_line(raw: bytes, kind: bytes) -> None:
    for line in (describe(raw), describe(bytes(12) + kind + raw), describe_packet(raw)):
        assert line and "\n" not in line


@given(st.sampled_from([1, 2, 6, 17, 58, 99]), any_bytes)
def test_any_upper_layer_can_be_described_in_one_line(proto: int, raw: bytes) -> None:
    for packet in (ipv4.Ipv4(bytes(4), bytes(4), proto, raw).emit(), ipv6.Ipv6(bytes(16), bytes(16), proto, raw).emit()):
        line = describe_packet(packet)
        assert line.startswith("IP") and "\n" not in line


@given(any_bytes)
def test_tcp_options_lose_no_byte(raw: bytes) -> None:
    assert tcp.emit_options(tcp.parse_options(raw)) == raw


@given(any_bytes)
def test_a_tcp_header_that_parses_is_emitted_as_it_came(raw: bytes) -> None:
    try:
        header = tcp.TcpHeader.parse(raw)
    except WireError:
        return
    assert header.emit() == raw


# ---- the engine's view against the complete one ----------------------------------------------

SYN = 0x02
tcp_options = st.lists(
    st.one_of(
        st.just(tcp.Nop()),
        st.builds(tcp.Mss, u16),
        st.builds(tcp.WindowScale, u8),
        st.just(tcp.SackPermitted()),
        st.builds(lambda blocks: tcp.Sack(tuple(blocks)), st.lists(st.tuples(u32, u32), min_size=1, max_size=4)),
        st.builds(tcp.Timestamps, u32, u32),
        st.builds(tcp.FastOpen, st.binary(max_size=16), st.booleans()),
        st.builds(tcp.Md5, st.binary(min_size=16, max_size=16)),
        st.builds(lambda kind, counters: tcp.AccEcn(kind, tuple(counters)), st.sampled_from([172, 174]), st.lists(st.integers(0, 0xFFFFFF), max_size=3)),
        st.builds(tcp.Unknown, st.sampled_from([29, 77, 253, 255]), st.binary(max_size=8)),
    ),
    max_size=6,
).map(tuple)
short_options = tcp_options.filter(lambda options: len(tcp.emit_options(options)) <= 40)
headers = st.builds(tcp.TcpHeader, u16, u16, u32, u32, st.integers(0, 0x1FF), u16, u16, short_options, data, st.integers(0, 7))


@given(headers)
def test_tcp_headers_parse_back_to_themselves(header: tcp.TcpHeader) -> None:
    raw = header.emit(A6, B6)
    parsed = tcp.TcpHeader.parse(raw)
    padding = (tcp.Eol(bytes((-len(tcp.emit_options(header.options)) & 3) - 1)),) if len(tcp.emit_options(header.options)) & 3 else ()
    assert parsed.options == header.options + padding
    assert (parsed.sport, parsed.dport, parsed.seq, parsed.ack, parsed.flags) == (header.sport, header.dport, header.seq, header.ack, header.flags)
    assert (parsed.window, parsed.urg_ptr, parsed.payload, parsed.reserved) == (header.window, header.urg_ptr, header.payload, header.reserved)
    assert transport_ok(raw, A6, B6, 6)


def last(options: tuple[tcp.Option, ...], kind: type, default: Any) -> Any:
    found = [option for option in options if isinstance(option, kind)]
    return found[-1] if found else default


@given(headers, st.sampled_from([b"", tcp.opt_timestamp_aligned(0xFFFFFFFF, 5)]))
def test_the_segment_holds_what_the_complete_header_says(header: tcp.TcpHeader, prefix: bytes) -> None:
    options = tcp.opt_pad(prefix + tcp.emit_options(header.options))
    if len(options) > 40:
        return
    raw = tcp.build_header(header.sport, header.dport, header.seq, header.ack, header.flags, header.window, header.urg_ptr, options) + header.payload
    seg = tcp.parse_segment(memoryview(bytes(3) + raw + bytes(2)), 3, 3 + len(raw), 6, A6, B6)
    assert (seg.sport, seg.dport, seg.seq, seg.ack, seg.flags) == (header.sport, header.dport, header.seq, header.ack, header.flags)
    assert (seg.window, seg.urg_ptr, seg.doff, seg.length) == (header.window, header.urg_ptr, 5 + len(options) // 4, len(header.payload))
    assert bytes(seg.payload) == header.payload and seg.options_raw == options
    every = tcp.parse_options(options)
    signatures = [option for option in every if isinstance(option, tcp.Md5) or (isinstance(option, tcp.Unknown) and option.kind in (19, 29))]
    if seg.options.md5 == AUTH_BROKEN:
        # condemned, so nobody looks at the rest
        odd = [option for option in signatures if not isinstance(option, tcp.Md5)]
        assert odd or len(signatures) > 1 or isinstance(every[-1], tcp.Malformed)
        return
    assert seg.options.md5 in (None, AUTH_AO, last(every, tcp.Md5, tcp.Md5(b"?")).digest)
    assert seg.options.md5 is not None or not any(isinstance(option, tcp.Md5) for option in signatures)
    stamps = last(every, tcp.Timestamps, None)
    assert seg.saw_tstamp == (stamps is not None)
    assert (seg.tsval, seg.tsecr) == ((stamps.tsval, stamps.tsecr) if stamps else (0, 0))
    assert seg.options.sack == last(every, tcp.Sack, tcp.Sack(())).blocks
    accecn = last(every, tcp.AccEcn, None)
    assert seg.options.accecn == (accecn.emit() if accecn else None)
    on_syn = every if header.flags & SYN else ()
    sizes = [option.value for option in on_syn if isinstance(option, tcp.Mss) and option.value]
    assert seg.options.mss == (sizes[-1] if sizes else None)
    scale = last(on_syn, tcp.WindowScale, None)
    assert seg.options.wscale == (scale.shift if scale else None)
    assert seg.options.sack_perm == (tcp.SackPermitted() in on_syn)
    cookies = [option.cookie for option in on_syn if isinstance(option, tcp.FastOpen) and len(option.cookie) % 2 == 0]
    assert seg.options.tfo_cookie == (cookies[-1] if cookies and len(cookies[-1]) != 2 else None)


# ---- everything else, there and back ---------------------------------------------------------


ethertypes = st.one_of(st.none(), st.integers(0x600, 0xFFFF).filter(lambda kind: kind not in (ETH_P_8021Q, ETH_P_8021AD)))
tags = st.lists(st.builds(VlanTag, st.integers(0, 0xFFF), st.integers(0, 7), st.booleans(), st.sampled_from([ETH_P_8021Q, ETH_P_8021AD])), max_size=3)


@given(st.builds(Ethernet, mac, mac, ethertypes, data, tags.map(tuple)))
def test_frames_parse_back_to_themselves(frame: Ethernet) -> None:
    assert Ethernet.parse(frame.emit()) == frame


@given(st.integers(0, 20), st.integers(0, 20), st.data())
def test_arp_packets_parse_back_to_themselves(hlen: int, plen: int, draw: st.DataObject) -> None:
    hardware, protocol = st.binary(min_size=hlen, max_size=hlen), st.binary(min_size=plen, max_size=plen)
    packet = draw.draw(st.builds(Arp, u16, hardware, protocol, hardware, protocol, u16, u16))
    assert Arp.parse(packet.emit()) == packet


@given(st.builds(ipv4.Ipv4, addr4, addr4, u8, data, u8, u16, st.booleans(), st.booleans(), st.integers(0, 8191).map(lambda n: n * 8), u8, words, st.booleans()))
def test_ipv4_packets_parse_back_to_themselves(packet: ipv4.Ipv4) -> None:
    raw = packet.emit()
    assert ipv4.Ipv4.parse(raw + b"pad") == packet and ipv4.header_ok(raw)


ipv4_options = st.one_of(
    st.builds(
        lambda n, at, kind: ipv4.RecordRoute(bytes(4 * n), 4 + 4 * min(at, n), kind), st.integers(0, 4), st.integers(0, 4), st.sampled_from([7, 131, 137])
    ),
    st.builds(lambda n, at, over: ipv4.TimestampOption(bytes(4 * n), 0, 5 + 4 * min(at, n), over), st.integers(0, 4), st.integers(0, 4), st.integers(0, 14)),
    st.builds(ipv4.OtherOption, st.sampled_from([30, 130, 136, 148]), st.binary(min_size=2, max_size=6)),
)


@given(ipv4_options, st.integers(0, 3))
def test_ipv4_options_parse_back_to_themselves(option: ipv4.Ipv4Option, nops: int) -> None:
    raw = b"\x01" * nops + option.emit()
    assert list(ipv4.walk_options(raw + bytes(-len(raw) & 3))) == [(nops, option)]


@given(st.builds(ipv6.Ipv6, addr6, addr6, u8, data, u8, st.integers(0, 0xFFFFF), u8))
def test_ipv6_packets_parse_back_to_themselves(packet: ipv6.Ipv6) -> None:
    assert ipv6.Ipv6.parse(packet.emit() + b"pad") == packet


@given(st.lists(st.builds(ipv6.Ipv6Option, st.integers(2, 255), st.binary(max_size=20)), max_size=5), u8, data)
def test_ipv6_options_come_back_with_nothing_but_padding_added(options: list[ipv6.Ipv6Option], next_header: int, payload: bytes) -> None:
    parsed = ipv6.OptionsHeader.parse(ipv6.OptionsHeader(next_header, tuple(options), payload).emit())
    assert [(option.kind, option.data) for option in parsed.options if option.kind > 1] == [(option.kind, option.data) for option in options]
    assert sum(option.kind <= 1 for option in parsed.options) <= 1
    assert (parsed.next_header, parsed.payload) == (next_header, payload)


@given(st.lists(st.sampled_from([0, 43, 60]), max_size=6), st.sampled_from([6, 17, 58, 59, 99]), data)
def test_a_walk_finds_the_payload_behind_any_chain(kinds: list[int], proto: int, payload: bytes) -> None:
    raw, names = payload, [*kinds, proto]
    for kind, following in zip(reversed(kinds), reversed(names[1:]), strict=True):
        raw = ipv6.RoutingHeader(following, 9, 0, bytes(12), raw).emit() if kind == 43 else ipv6.OptionsHeader(following, (), raw).emit()
    where = ipv6.walk(ipv6.Ipv6(A6, B6, names[0], raw).emit(), names[0])
    assert [extension.kind for extension in where.extensions] == kinds
    assert where.proto == proto and where.offset == 40 + len(raw) - len(payload)


icmp_messages = st.one_of(
    st.builds(icmp.Echo, u16, u16, data, st.booleans(), u8),
    st.builds(icmp.Unreachable, u8, data, u16),
    st.builds(icmp.SourceQuench, data, u8),
    st.builds(icmp.Redirect, u8, addr4, data),
    st.builds(icmp.TimeExceeded, u8, data),
    st.builds(icmp.ParameterProblem, u8, data, u8),
    st.builds(icmp.Timestamp, u16, u16, u32, u32, u32, st.booleans(), u8, data),
    st.builds(icmp.Other, st.integers(15, 255), u8, data.map(lambda raw: bytes(4) + raw)),
)


@given(icmp_messages)
def test_icmp_messages_parse_back_to_themselves(message: icmp.IcmpMessage) -> None:
    raw = message.emit()
    assert icmp.parse(raw) == message and checksum(raw) == 0


icmpv6_messages = st.one_of(
    st.builds(icmpv6.Echo, u16, u16, data, st.booleans(), u8),
    st.builds(icmpv6.Error, st.integers(0, 127), u8, data, u32),
    st.builds(icmpv6.Other, st.integers(130, 255), u8, data.map(lambda raw: bytes(4) + raw)),
)


@given(icmpv6_messages)
def test_icmpv6_messages_parse_back_to_themselves(message: icmpv6.Icmpv6Message) -> None:
    raw = message.emit(A6, B6)
    assert icmpv6.parse(raw) == message and transport_ok(raw, A6, B6, 58)


ndp_options = st.lists(
    st.one_of(
        st.builds(ndp.SourceLinkAddr, mac),
        st.builds(ndp.TargetLinkAddr, mac),
        st.builds(ndp.PrefixInfo, addr6, u8, st.booleans(), st.booleans(), u32, u32),
        st.builds(ndp.Redirected, st.integers(0, 8).map(lambda n: b"p" * (8 * n))),
        st.builds(ndp.LinkMtu, u32),
        st.builds(ndp.Nonce, mac),
        st.builds(ndp.RouteInfo, st.sampled_from([b"", b"r" * 8, b"r" * 16]), u8, st.integers(0, 3), u32),
        st.builds(lambda lifetime, servers: ndp.Rdnss(lifetime, tuple(servers)), u32, st.lists(addr6, min_size=1, max_size=3)),
        st.builds(ndp.UnknownOption, st.sampled_from([0, 31, 200]), st.integers(0, 3).map(lambda n: b"u" * (6 + 8 * n))),
    ),
    max_size=4,
).map(tuple)


ndp_messages = st.one_of(
    st.builds(ndp.RouterSolicit, ndp_options, u8),
    st.builds(ndp.RouterAdvert, u8, st.booleans(), st.booleans(), st.integers(0, 3), u16, u32, u32, ndp_options, u8),
    st.builds(ndp.NeighborSolicit, addr6, ndp_options, u8),
    st.builds(ndp.NeighborAdvert, addr6, st.booleans(), st.booleans(), st.booleans(), ndp_options, u8),
    st.builds(ndp.Redirect, addr6, addr6, ndp_options, u8),
)


@given(ndp_messages)
def test_discovery_messages_parse_back_to_themselves(message: ndp.NdpMessage) -> None:
    raw = message.emit(A6, B6)
    assert ndp.parse(raw) == message and transport_ok(raw, A6, B6, 58)


def records(addr: st.SearchStrategy[bytes]) -> st.SearchStrategy[tuple[igmp.GroupRecord, ...]]:
    record = st.builds(lambda kind, group, sources, aux: igmp.GroupRecord(kind, group, tuple(sources), aux), u8, addr, st.lists(addr, max_size=3), words)
    return st.lists(record, max_size=3).map(tuple)


@given(st.one_of(st.builds(igmp.Igmp, u8.filter(lambda kind: kind != igmp.REPORT_V3), addr4, u8, data), st.builds(igmp.ReportV3, records(addr4))))
def test_igmp_messages_parse_back_to_themselves(message: igmp.Igmp | igmp.ReportV3) -> None:
    raw = message.emit()
    assert igmp.parse(raw) == message and checksum(raw) == 0
    if isinstance(message, igmp.Igmp):
        assert all(len(source) == 4 for source in message.sources)


@given(st.one_of(st.builds(mld.Mld, st.sampled_from([130, 131, 132]), addr6, u16, data), st.builds(mld.ReportV2, records(addr6))))
def test_mld_messages_parse_back_to_themselves(message: mld.Mld | mld.ReportV2) -> None:
    raw = message.emit(A6, B6)
    assert mld.parse(raw) == message and transport_ok(raw, A6, B6, 58)
    if isinstance(message, mld.Mld):
        assert all(len(source) == 16 for source in message.sources)


@given(st.builds(Udp, u16, u16, data))
def test_datagrams_parse_back_to_themselves(packet: Udp) -> None:
    raw = packet.emit(A6, B6)
    assert Udp.parse(raw + b"pad") == packet and transport_ok(raw, A6, B6, 17)


@given(st.builds(VnetHeader, u8, u8, u16, u16, u16, u16, st.one_of(st.none(), u16)))
def test_virtio_headers_parse_back_to_themselves(header: VnetHeader) -> None:
    raw = header.emit()
    assert VnetHeader.parse(raw + b"frame", len(raw)) == header
