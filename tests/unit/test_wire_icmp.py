"""ICMP, ICMPv6, neighbour discovery, IGMP and MLD: round trips, scapy's answers, quotes."""

from __future__ import annotations

import pytest
from scapy.layers.inet import ICMP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoRequest,
    ICMPv6MLDMultAddrRec,
    ICMPv6MLReport2,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6ND_Redirect,
    ICMPv6ND_RS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptMTU,
    ICMPv6NDOptPrefixInfo,
    ICMPv6NDOptRDNSS,
    ICMPv6NDOptRouteInfo,
    ICMPv6NDOptSrcLLAddr,
    ICMPv6PacketTooBig,
    ICMPv6ParamProblem,
    IPv6,
)

from pytcp.wire import icmp, icmpv6, igmp, mld, ndp
from pytcp.wire.addr import parse_ip, parse_mac, solicited_node
from pytcp.wire.checksum import checksum, transport_ok
from pytcp.wire.errors import TruncatedError, WireError
from pytcp.wire.ipv4 import Ipv4
from pytcp.wire.ipv6 import FragmentHeader, Ipv6, OptionsHeader
from pytcp.wire.tcp import TcpHeader
from pytcp.wire.udp import Udp

A, B = parse_ip("10.78.0.2"), parse_ip("10.78.0.1")
A6, B6 = parse_ip("fd78::2"), parse_ip("fd78::1")
LL = parse_ip("fe80::12")
PEER = parse_mac("02:00:00:00:00:12")

QUOTE = Ipv4(B, A, 6, TcpHeader(80, 1000, 0xFFFFFFF0, 5, 0x10).emit(B, A)).emit()


# ---- ICMP ------------------------------------------------------------------------------------

MESSAGES4: list[icmp.IcmpMessage] = [
    icmp.Echo(7, 1, b"abc"),
    icmp.Echo(0xFFFF, 0xFFFF, b"", reply=True, code=3),
    icmp.Unreachable(icmp.PORT_UNREACH, QUOTE),
    icmp.Unreachable(icmp.FRAG_NEEDED, QUOTE, 1400),
    icmp.SourceQuench(QUOTE),
    icmp.Redirect(1, A, QUOTE),
    icmp.TimeExceeded(icmp.REASSEMBLY_EXPIRED, QUOTE),
    icmp.ParameterProblem(255, QUOTE, 1),
    icmp.Timestamp(1, 2, 3, 4, 0xFFFFFFFF),
    icmp.Timestamp(1, 2, 3, 4, 5, reply=True, rest=b"x"),
    icmp.Other(99, 1, b"abcdef"),
    icmp.Other(icmp.TIMESTAMP, 0, bytes(15)),  # too short to hold the three times
]


@pytest.mark.parametrize("message", MESSAGES4)
def test_icmp_messages_parse_back_to_themselves_with_a_right_checksum(message: icmp.IcmpMessage) -> None:
    raw = message.emit()
    assert icmp.parse(raw) == message
    assert checksum(raw) == 0 and raw[0] == message.type


@pytest.mark.parametrize("size", range(8))
def test_icmp_below_eight_bytes_is_refused(size: int) -> None:
    with pytest.raises(TruncatedError):
        icmp.parse(icmp.Echo(7, 1).emit()[:size])


def test_scapy_builds_the_same_icmp_messages() -> None:
    assert icmp.Echo(7, 1, b"abc").emit() == bytes(ICMP(type=8, id=7, seq=1) / b"abc")
    assert icmp.Unreachable(4, QUOTE, 1400).emit() == bytes(ICMP(type=3, code=4, nexthopmtu=1400) / QUOTE)
    assert icmp.Redirect(1, A, QUOTE).emit() == bytes(ICMP(type=5, code=1, gw="10.78.0.2") / QUOTE)
    assert icmp.ParameterProblem(20, QUOTE).emit() == bytes(ICMP(type=12, ptr=20) / QUOTE)
    assert icmp.Timestamp(1, 2, 3, 4, 5, reply=True).emit() == bytes(ICMP(type=14, id=1, seq=2, ts_ori=3, ts_rx=4, ts_tx=5))


def test_a_quote_names_the_connection_it_is_about() -> None:
    inner = icmp.quoted(QUOTE[:28])
    assert (inner.family, inner.src, inner.dst, inner.proto) == (4, B, A, 6)
    assert (inner.sport, inner.dport, inner.seq) == (80, 1000, 0xFFFFFFF0)


def test_a_quote_is_read_behind_ipv4_options_and_ipv6_extension_headers() -> None:
    tcp = TcpHeader(80, 1000, 7).emit()
    assert icmp.quoted(Ipv4(B, A, 6, tcp, options=b"\x94\x04\0\0").emit()[:32]).seq == 7
    inner = icmp.quoted(Ipv6(B6, A6, 60, OptionsHeader(44, (), FragmentHeader(6, 0, True, 9, tcp).emit()).emit()).emit())
    assert (inner.family, inner.src, inner.dst, inner.proto, inner.seq) == (6, B6, A6, 6, 7)


@pytest.mark.parametrize(
    "quote",
    [
        b"",
        QUOTE[:19],
        QUOTE[:27],  # RFC 792 promises eight bytes behind the header
        b"\x55" + QUOTE[1:],
        Ipv4(B, A, 6, bytes(20), frag_offset=8).emit(),
        Ipv6(B6, A6, 6, bytes(7)).emit(),
        Ipv6(B6, A6, 6, bytes(20)).emit()[:40],
        Ipv6(B6, A6, 60, bytes(4)).emit(),
        Ipv6(B6, A6, 44, FragmentHeader(6, 8, False, 9, bytes(20)).emit()).emit(),
        Ipv6(B6, A6, 44, FragmentHeader(6, 256, False, 9, bytes(20)).emit()).emit(),
    ],
)
def test_a_quote_without_an_upper_header_is_refused(quote: bytes) -> None:
    with pytest.raises(WireError):
        icmp.quoted(quote)


def test_an_error_of_linux_quotes_up_to_548_bytes() -> None:
    # 576 in all (RFC 1812 §4.3.2.3); a header with options leaves less
    assert icmp.quote_limit() == 548
    assert icmp.quote_limit(24) == 544
    assert icmpv6.MAX_QUOTE == 1232


# ---- ICMPv6 ----------------------------------------------------------------------------------

QUOTE6 = Ipv6(B6, A6, 17, Udp(1, 53, b"x").emit(B6, A6)).emit()

MESSAGES6: list[icmpv6.Icmpv6Message] = [
    icmpv6.Echo(7, 1, b"abc"),
    icmpv6.Echo(0xFFFF, 0xFFFF, b"", reply=True, code=3),
    icmpv6.Error(icmpv6.DEST_UNREACH, icmpv6.PORT_UNREACH, QUOTE6),
    icmpv6.Error(icmpv6.PACKET_TOO_BIG, 0, QUOTE6, 0xFFFFFFFF),
    icmpv6.Error(icmpv6.PARAMETER_PROBLEM, icmpv6.UNKNOWN_NEXT_HEADER, QUOTE6, 6),
    icmpv6.Error(100, 1, QUOTE6),
    icmpv6.Other(200, 1, b"abcdef"),
]


@pytest.mark.parametrize("message", MESSAGES6)
def test_icmpv6_messages_parse_back_to_themselves_with_a_right_checksum(message: icmpv6.Icmpv6Message) -> None:
    raw = message.emit(A6, B6)
    assert icmpv6.parse(raw) == message
    assert transport_ok(raw, A6, B6, 58) and raw[0] == message.type


@pytest.mark.parametrize("size", range(8))
def test_icmpv6_below_eight_bytes_is_refused(size: int) -> None:
    with pytest.raises(TruncatedError):
        icmpv6.parse(bytes(size))


def scapy6(message: object) -> bytes:
    """Scapy's bytes of an ICMPv6 message from A6 to B6."""
    return bytes(IPv6(src="fd78::2", dst="fd78::1") / message)[40:]


def test_scapy_builds_the_same_icmpv6_messages() -> None:
    assert icmpv6.Echo(7, 1, b"abc").emit(A6, B6) == scapy6(ICMPv6EchoRequest(id=7, seq=1, data=b"abc"))
    assert icmpv6.Error(1, 4, QUOTE6).emit(A6, B6) == scapy6(ICMPv6DestUnreach(code=4) / QUOTE6)
    assert icmpv6.Error(2, 0, QUOTE6, 1400).emit(A6, B6) == scapy6(ICMPv6PacketTooBig(mtu=1400) / QUOTE6)
    assert icmpv6.Error(4, 1, QUOTE6, 40).emit(A6, B6) == scapy6(ICMPv6ParamProblem(code=1, ptr=40) / QUOTE6)


# ---- neighbour discovery ---------------------------------------------------------------------

PREFIX = ndp.PrefixInfo(parse_ip("2001:db8::"), 64, True, True, 86400, 14400)

DISCOVERY: list[ndp.NdpMessage] = [
    ndp.RouterSolicit((ndp.SourceLinkAddr(PEER),)),
    ndp.RouterAdvert(64, True, True, ndp.PREF_LOW, 1800, 30000, 1000, (ndp.SourceLinkAddr(PEER), ndp.LinkMtu(1400), PREFIX)),
    ndp.RouterAdvert(options=(ndp.RouteInfo(A6[:8], 48, ndp.PREF_HIGH, 60), ndp.Rdnss(60, (A6, B6)), ndp.UnknownOption(31, bytes(14)))),
    ndp.NeighborSolicit(A6, (ndp.Nonce(b"abcdef"),), code=1),
    ndp.NeighborSolicit(A6),
    ndp.NeighborAdvert(A6, True, False, True, (ndp.TargetLinkAddr(PEER),)),
    ndp.NeighborAdvert(A6, solicited=True),
    ndp.Redirect(LL, A6, (ndp.TargetLinkAddr(PEER), ndp.Redirected(bytes(48)))),
    ndp.RouterSolicit((ndp.UnknownOption(ndp.OPT_MTU, bytes(14)), ndp.UnknownOption(ndp.OPT_RDNSS, bytes(6)))),
]


@pytest.mark.parametrize("message", DISCOVERY)
def test_discovery_messages_parse_back_to_themselves_with_a_right_checksum(message: ndp.NdpMessage) -> None:
    raw = message.emit(A6, B6)
    assert ndp.parse(raw) == message
    assert transport_ok(raw, A6, B6, 58) and raw[0] in ndp.TYPES


def test_scapy_builds_the_same_discovery_messages() -> None:
    source, target = ICMPv6NDOptSrcLLAddr(lladdr="02:00:00:00:00:12"), ICMPv6NDOptDstLLAddr(lladdr="02:00:00:00:00:12")
    assert ndp.RouterSolicit((ndp.SourceLinkAddr(PEER),)).emit(A6, B6) == scapy6(ICMPv6ND_RS() / source)
    assert ndp.NeighborSolicit(A6, (ndp.SourceLinkAddr(PEER),)).emit(A6, B6) == scapy6(ICMPv6ND_NS(tgt="fd78::2") / source)
    ours = ndp.NeighborAdvert(A6, True, True, True, (ndp.TargetLinkAddr(PEER),))
    assert ours.emit(A6, B6) == scapy6(ICMPv6ND_NA(tgt="fd78::2", R=1, S=1, O=1) / target)
    assert ndp.NeighborAdvert(A6, override=True).emit(A6, B6) == scapy6(ICMPv6ND_NA(tgt="fd78::2", R=0, S=0, O=1))
    assert ndp.Redirect(LL, A6).emit(A6, B6) == scapy6(ICMPv6ND_Redirect(tgt="fe80::12", dst="fd78::2"))


def test_scapy_builds_the_same_router_advertisement() -> None:
    route = ndp.RouteInfo(parse_ip("2001:db8:1::"), 48, ndp.PREF_HIGH, 60)
    options = (ndp.LinkMtu(1400), PREFIX, ndp.Rdnss(60, (A6,)), route)
    ours = ndp.RouterAdvert(64, False, True, ndp.PREF_HIGH, 1800, 30000, 1000, options)
    theirs = (
        ICMPv6ND_RA(chlim=64, M=0, O=1, prf=1, routerlifetime=1800, reachabletime=30000, retranstimer=1000)
        / ICMPv6NDOptMTU(mtu=1400)
        / ICMPv6NDOptPrefixInfo(prefix="2001:db8::", prefixlen=64, L=1, A=1, validlifetime=86400, preferredlifetime=14400)
        / ICMPv6NDOptRDNSS(lifetime=60, dns=["fd78::2"])
        / ICMPv6NDOptRouteInfo(plen=48, prf=1, rtlifetime=60, prefix="2001:db8:1::")
    )
    assert ours.emit(A6, B6) == scapy6(theirs)


def test_a_link_address_of_a_longer_option_comes_with_its_padding() -> None:
    raw = ndp.NeighborSolicit(A6).emit(A6, B6) + bytes((1, 2)) + PEER + bytes(8)
    message = ndp.parse(raw)
    assert isinstance(message, ndp.NeighborSolicit) and message.options == (ndp.SourceLinkAddr(PEER + bytes(8)),)


def test_of_several_options_of_a_kind_the_first_is_taken() -> None:
    options = (ndp.Nonce(b"abcdef"), ndp.SourceLinkAddr(PEER), ndp.SourceLinkAddr(bytes(6)))
    assert ndp.first(options, ndp.SourceLinkAddr) == ndp.SourceLinkAddr(PEER)
    assert ndp.first(options, ndp.TargetLinkAddr) is None


@pytest.mark.parametrize("message", DISCOVERY[:2] + DISCOVERY[4:5] + DISCOVERY[6:7])
def test_an_option_of_length_zero_or_beyond_the_end_spoils_the_message(message: ndp.NdpMessage) -> None:
    raw = message.emit(A6, B6)
    for tail in (b"\x0e\x00" + bytes(6), b"\x0e\x02" + bytes(6), b"\x0e", b"\x0e\x01" + bytes(5)):
        with pytest.raises(WireError):
            ndp.parse(raw + tail)


@pytest.mark.parametrize(("kind", "size"), [(133, 8), (134, 16), (135, 24), (136, 24), (137, 40)])
def test_cut_off_discovery_messages_are_refused(kind: int, size: int) -> None:
    assert ndp.parse(bytes((kind,)) + bytes(size - 1))
    for short in range(1, size):
        with pytest.raises(TruncatedError):
            ndp.parse(bytes((kind,)) + bytes(short - 1))


@pytest.mark.parametrize("raw", [b"", bytes(40), b"\x84" + bytes(40), b"\x8a" + bytes(40)])
def test_other_messages_are_not_discovery(raw: bytes) -> None:
    with pytest.raises(WireError):
        ndp.parse(raw)


# ---- groups ----------------------------------------------------------------------------------

GROUP, GROUP6 = parse_ip("239.1.2.3"), solicited_node(A6)


@pytest.mark.parametrize(
    "message",
    [
        igmp.Igmp(igmp.QUERY, bytes(4), 100),
        igmp.Igmp(igmp.QUERY, GROUP, 10, b"\x02\x7d\0\x01" + A),
        igmp.Igmp(igmp.LEAVE, GROUP),
        igmp.ReportV3((igmp.GroupRecord(igmp.TO_EXCLUDE, GROUP), igmp.GroupRecord(igmp.ALLOW, GROUP, (A, B), b"auxd"))),
        igmp.ReportV3(()),
    ],
)
def test_igmp_messages_parse_back_to_themselves_with_a_right_checksum(message: igmp.Igmp | igmp.ReportV3) -> None:
    assert igmp.parse(message.emit()) == message
    assert checksum(message.emit()) == 0


def test_igmp_messages_by_hand() -> None:
    # 1600 + ef01 + 0203 = 10704 -> 0705, complement f8fa
    assert igmp.Igmp(igmp.REPORT_V2, GROUP).emit() == bytes.fromhex("1600 f8fa ef010203")
    # 2200 + 0001 + 0400 + ef01 + 0203 = 11705 -> 1706, complement e8f9
    assert igmp.ReportV3((igmp.GroupRecord(igmp.TO_EXCLUDE, GROUP),)).emit() == bytes.fromhex("2200 e8f9 0000 0001 04 00 0000 ef010203")


def test_scapy_builds_the_same_igmp_messages() -> None:
    layer = pytest.importorskip("scapy.layers.igmp", reason="this scapy has IGMP elsewhere")
    assert igmp.Igmp(igmp.REPORT_V2, GROUP).emit() == bytes(layer.IGMP(type=0x16, mrcode=0, gaddr="239.1.2.3"))
    records = [layer.IGMPv3_MR_Group(rtype=4, maddr="239.1.2.3"), layer.IGMPv3_MR_Group(rtype=1, maddr="239.1.2.3", srcaddrs=["10.78.0.2"])]
    ours = igmp.ReportV3((igmp.GroupRecord(igmp.TO_EXCLUDE, GROUP), igmp.GroupRecord(igmp.IS_INCLUDE, GROUP, (A,))))
    assert ours.emit() == bytes(layer.IGMPv3_MR(records=records))


@pytest.mark.parametrize(
    "message",
    [
        mld.Mld(mld.QUERY, bytes(16), 10000),
        mld.Mld(mld.QUERY, GROUP6, 1000, b"\x02\x7d\0\x01" + A6),
        mld.Mld(mld.DONE, GROUP6),
        mld.ReportV2((igmp.GroupRecord(igmp.TO_EXCLUDE, GROUP6), igmp.GroupRecord(igmp.BLOCK, GROUP6, (A6, B6), b"auxd"))),
        mld.ReportV2(()),
    ],
)
def test_mld_messages_parse_back_to_themselves_with_a_right_checksum(message: mld.Mld | mld.ReportV2) -> None:
    assert mld.parse(message.emit(A6, B6)) == message
    assert transport_ok(message.emit(A6, B6), A6, B6, 58)


def test_scapy_builds_the_same_mld_report() -> None:
    records = [ICMPv6MLDMultAddrRec(rtype=4, dst="ff02::1:ff00:2"), ICMPv6MLDMultAddrRec(rtype=5, dst="ff02::1:ff00:2", sources=["fd78::1"])]
    ours = mld.ReportV2((igmp.GroupRecord(igmp.TO_EXCLUDE, GROUP6), igmp.GroupRecord(igmp.ALLOW, GROUP6, (B6,))))
    assert ours.emit(A6, B6) == scapy6(ICMPv6MLReport2(records=records))


def test_sources_of_a_query_are_read_as_far_as_they_are_there() -> None:
    assert igmp.Igmp(igmp.QUERY, GROUP, 10, b"\x02\x7d\0\x02" + A + B).sources == (A, B)
    assert igmp.Igmp(igmp.QUERY, GROUP, 10, b"\x02\x7d\0\x02" + A + B[:3]).sources == (A,)
    assert igmp.Igmp(igmp.QUERY, GROUP, 10).sources == ()
    assert mld.Mld(mld.QUERY, GROUP6, 10, b"\x02\x7d\0\x02" + A6 + B6).sources == (A6, B6)
    assert mld.Mld(mld.QUERY, GROUP6, 10, b"\x02\x7d\xff\xff" + A6 + B6[:15]).sources == (A6,)


def test_coded_times_are_linear_below_the_sign_bit_and_floating_above() -> None:
    # RFC 3376 §4.1.1: 0x80 is mantissa 0, exponent 0: 16 << 3; 0xff is (15 | 16) << 10
    assert [igmp.decode_time(code) for code in (0, 1, 127, 0x80, 0xFF)] == [0, 1, 127, 128, 31744]
    # RFC 3810 §5.1.3: 0x8000 is 0x1000 << 3; 0xffff is 0x1fff << 10
    assert [igmp.decode_time(code, 12) for code in (32767, 0x8000, 0xFFFF)] == [32767, 32768, 8387584]


@pytest.mark.parametrize("raw", [b"", bytes(7), b"\x22" + bytes(6) + b"\x01", b"\x22" + bytes(6) + b"\x01" + b"\x01\x00\x00\x01" + GROUP + b"abc"])
def test_broken_igmp_is_refused(raw: bytes) -> None:
    with pytest.raises(TruncatedError):
        igmp.parse(raw)


@pytest.mark.parametrize("raw", [b"", b"\x82" + bytes(22), b"\x8f" + bytes(6), b"\x8f" + bytes(6) + b"\x01", b"\x85" + bytes(30)])
def test_broken_mld_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        mld.parse(raw)
