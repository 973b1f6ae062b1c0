"""Ethernet, ARP, UDP, the virtio-net header and addresses."""

from __future__ import annotations

import sys

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Dot1Q, Ether

from pytcp.wire.addr import (
    IP4_ANY,
    IP4_BROADCAST,
    IP6_ALL_NODES,
    IP6_ALL_ROUTERS,
    IP6_ANY,
    IP6_LOOPBACK,
    MAC_BROADCAST,
    MAC_ZERO,
    eui64,
    format_ip,
    format_mac,
    is_link_local,
    is_multicast,
    multicast_mac,
    parse_ip,
    parse_mac,
    solicited_node,
)
from pytcp.wire.arp import REPLY, REQUEST, Arp
from pytcp.wire.checksum import transport_ok
from pytcp.wire.errors import TruncatedError, WireError
from pytcp.wire.ethernet import ETH_P_8021AD, ETH_P_ARP, ETH_P_IP, ETH_P_IPV6, Ethernet, VlanTag, header, walk_tags
from pytcp.wire.udp import Udp, build_header, full_checksum
from pytcp.wire.virtio import F_NEEDS_CSUM, GSO_TCPV4, HDR_LEN_MRG, VnetHeader

HOST, PEER = parse_mac("02:00:00:00:00:11"), parse_mac("02:00:00:00:00:12")
A, B = parse_ip("10.78.0.2"), parse_ip("10.78.0.1")
A6, B6 = parse_ip("fd78::2"), parse_ip("fd78::1")


# ---- addresses -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("10.78.0.2", b"\x0a\x4e\x00\x02"),
        ("0.0.0.0", IP4_ANY),
        ("255.255.255.255", IP4_BROADCAST),
        ("::", IP6_ANY),
        ("::1", IP6_LOOPBACK),
        ("ff02::1", IP6_ALL_NODES),
        ("ff02::2", IP6_ALL_ROUTERS),
        ("2001:db8::1:0:0:1", bytes.fromhex("20010db8000000000001000000000001")),
        ("::ffff:10.78.0.2", bytes(10) + b"\xff\xff\x0a\x4e\x00\x02"),
    ],
)
def test_ip_addresses_have_one_text_each(text: str, raw: bytes) -> None:
    assert parse_ip(text) == raw and format_ip(memoryview(raw)) == text


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.256", "fd78::g", "10.0.0.1/24"])
def test_what_is_no_ip_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_ip(text)


def test_ethernet_addresses_as_text() -> None:
    assert format_mac(HOST) == "02:00:00:00:00:11"
    assert parse_mac("02-00-00-00-00-12") == b"\x02\x00\x00\x00\x00\x12"
    for text in ("02:00:00:00:00", "02:00:00:00:00:11:22", "0g:00:00:00:00:11"):
        with pytest.raises(ValueError):
            parse_mac(text)


def test_groups_are_told_from_single_stations() -> None:
    for group in ("224.0.0.1", "239.255.255.255", "ff02::1"):
        assert is_multicast(parse_ip(group))
    for single in ("223.255.255.255", "240.0.0.1", "fe80::1", "::1"):
        assert not is_multicast(parse_ip(single))
    assert is_multicast(MAC_BROADCAST) and is_multicast(parse_mac("33:33:00:00:00:01"))
    assert not is_multicast(HOST) and not is_multicast(MAC_ZERO)


def test_link_local_addresses() -> None:
    assert is_link_local(parse_ip("fe80::1")) and is_link_local(parse_ip("febf::1")) and is_link_local(parse_ip("169.254.1.1"))
    assert not is_link_local(parse_ip("fec0::1")) and not is_link_local(A) and not is_link_local(A6)


def test_groups_map_to_ethernet_addresses_as_the_rfcs_say() -> None:
    # RFC 1112 §6.4: the low 23 bits, so 225.128.0.1 and 224.0.0.1 share one; RFC 2464 §7: the low 32
    assert format_mac(multicast_mac(parse_ip("224.0.0.1"))) == "01:00:5e:00:00:01"
    assert format_mac(multicast_mac(parse_ip("225.128.0.1"))) == "01:00:5e:00:00:01"
    assert format_mac(multicast_mac(parse_ip("ff02::1:ff28:9c5a"))) == "33:33:ff:28:9c:5a"


def test_the_solicited_node_group_of_rfc_4291_section_2_7_1() -> None:
    assert format_ip(solicited_node(parse_ip("4037::01:800:200e:8c6c"))) == "ff02::1:ff0e:8c6c"


def test_the_interface_identifier_of_rfc_2464_section_4() -> None:
    # its example: 34-56-78-9A-BC-DE gives 36-56-78-FF-FE-9A-BC-DE
    assert format_ip(eui64(parse_mac("34:56:78:9a:bc:de"))) == "fe80::3656:78ff:fe9a:bcde"
    assert format_ip(eui64(HOST, A6[:8])) == "fd78::ff:fe00:11"


# ---- Ethernet --------------------------------------------------------------------------------


def test_an_untagged_frame() -> None:
    raw = HOST + PEER + b"\x08\x00payload"
    assert Ethernet.parse(raw) == Ethernet(HOST, PEER, ETH_P_IP, b"payload")
    assert Ethernet(HOST, PEER, ETH_P_IP, b"payload").emit() == raw == header(HOST, PEER, ETH_P_IP) + b"payload"
    assert walk_tags(raw) == (ETH_P_IP, 14, ())


def test_tags_are_taken_off_however_many_there_are() -> None:
    frame = Ethernet(HOST, PEER, ETH_P_IPV6, b"x", (VlanTag(0xFFF, 7, True, ETH_P_8021AD), VlanTag(0), VlanTag(5, 3)))
    raw = frame.emit()
    assert raw[12:24] == bytes.fromhex("88a8ffff 81000000 81006005")
    assert Ethernet.parse(raw) == frame
    assert walk_tags(raw)[:2] == (ETH_P_IPV6, 26)


def test_an_802_3_frame_is_as_long_as_it_says() -> None:
    raw = HOST + PEER + b"\x00\x03" + b"\x42\x42\x03" + bytes(43)
    assert Ethernet.parse(raw) == Ethernet(HOST, PEER, None, b"\x42\x42\x03")
    assert Ethernet(HOST, PEER, None, b"\x42\x42\x03").emit() == raw[:17]
    with pytest.raises(TruncatedError):
        Ethernet.parse(raw[:16])


def test_types_begin_at_1536() -> None:
    assert Ethernet.parse(HOST + PEER + b"\x06\x00").ethertype == 0x600
    with pytest.raises(TruncatedError):
        Ethernet.parse(HOST + PEER + b"\x05\xff")


@pytest.mark.parametrize("raw", [b"", bytes(13), bytes(12) + b"\x81\x00\x00", bytes(12) + b"\x81\x00\x00\x05\x08"])
def test_frames_cut_off_in_the_header_are_refused(raw: bytes) -> None:
    with pytest.raises(TruncatedError):
        Ethernet.parse(raw)


def test_scapy_builds_the_same_frame() -> None:
    theirs = Ether(dst="02:00:00:00:00:11", src="02:00:00:00:00:12") / Dot1Q(vlan=5, prio=3) / b"x"
    theirs[Dot1Q].type = ETH_P_ARP
    assert Ethernet(HOST, PEER, ETH_P_ARP, b"x", (VlanTag(5, 3),)).emit() == bytes(theirs)


# ---- ARP -------------------------------------------------------------------------------------


def test_an_arp_request_by_hand_and_by_scapy() -> None:
    packet = Arp(REQUEST, PEER, A, MAC_ZERO, B)
    raw = bytes.fromhex("0001 0800 06 04 0001 020000000012 0a4e0002 000000000000 0a4e0001")
    assert packet.emit() == raw
    assert raw == bytes(ARP(op=1, hwsrc="02:00:00:00:00:12", psrc="10.78.0.2", hwdst="00:00:00:00:00:00", pdst="10.78.0.1"))
    assert Arp.parse(raw + bytes(18)) == packet  # padded to the minimum frame


def test_arp_for_other_address_sizes() -> None:
    packet = Arp(REPLY, b"\1\2\3\4", A6, b"\5\6\7\x08", B6, 32, ETH_P_IPV6)
    assert Arp.parse(packet.emit()) == packet


@pytest.mark.parametrize("size", [0, 7, 8, 27])
def test_cut_off_arp_is_refused(size: int) -> None:
    with pytest.raises(TruncatedError):
        Arp.parse(Arp(REQUEST, PEER, A, MAC_ZERO, B).emit()[:size])


def test_arp_addresses_of_unequal_length_are_the_callers_error() -> None:
    with pytest.raises(ValueError, match="equal length"):
        Arp(REQUEST, PEER, A, b"", B).emit()


# ---- UDP -------------------------------------------------------------------------------------


def test_scapy_builds_the_same_datagram() -> None:
    theirs = IP(src="10.78.0.2", dst="10.78.0.1") / UDP(sport=40000, dport=5000) / b"hello"
    assert Udp(40000, 5000, b"hello").emit(A, B) == bytes(theirs)[20:]


def test_a_datagram_parses_back_to_itself_and_the_rest_is_cut() -> None:
    packet = Udp(1, 65535, b"abc")
    raw = packet.emit(A6, B6)
    assert transport_ok(raw, A6, B6, 17)
    assert Udp.parse(raw + b"PAD") == packet
    assert Udp.parse(raw).emit() == raw


def test_a_sum_of_zero_is_sent_as_ffff_because_zero_means_none() -> None:
    # a data word that brings the whole sum to ffff, whose complement would be 0
    base = build_header(1, 2, 10, 0) + b"\0\0"
    word = full_checksum(A, B, base)
    raw = Udp(1, 2, word.to_bytes(2, "big")).emit(A, B)
    assert raw[6:8] == b"\xff\xff" and transport_ok(raw, A, B, 17)


def test_without_addresses_a_datagram_has_no_checksum() -> None:
    assert Udp(1, 2, b"x").emit()[6:8] == b"\0\0"
    assert Udp(1, 2, b"x", checksum=0).emit(A, B)[6:8] == b"\0\0"


@pytest.mark.parametrize(("raw", "error"), [("0001000200080", TruncatedError), ("0001000200070000", WireError), ("0001000200090000", TruncatedError)])
def test_broken_udp_headers_are_refused(raw: str, error: type[WireError]) -> None:
    with pytest.raises(error):
        Udp.parse(bytes.fromhex(raw[: len(raw) & ~1]))


# ---- virtio-net ------------------------------------------------------------------------------


def test_the_virtio_header_is_ten_or_twelve_bytes() -> None:
    header = VnetHeader(F_NEEDS_CSUM, GSO_TCPV4, 54, 1448, 34, 16)
    raw = header.emit()
    assert len(raw) == 10 and raw[:2] == b"\x01\x01"
    assert VnetHeader.parse(raw + b"frame") == header
    merged = VnetHeader(F_NEEDS_CSUM, GSO_TCPV4, 54, 1448, 34, 16, 1)
    assert len(merged.emit()) == 12 and VnetHeader.parse(merged.emit(), HDR_LEN_MRG) == merged


def test_the_virtio_header_is_in_the_machines_byte_order() -> None:
    assert VnetHeader(hdr_len=54).emit()[2:4] == (54).to_bytes(2, sys.byteorder)


@pytest.mark.parametrize(("size", "there"), [(10, 9), (12, 11)])
def test_a_cut_off_virtio_header_is_refused(size: int, there: int) -> None:
    with pytest.raises(TruncatedError):
        VnetHeader.parse(bytes(there), size)


def test_a_virtio_header_of_another_size_is_the_callers_error() -> None:
    with pytest.raises(ValueError, match="10 or 12"):
        VnetHeader.parse(bytes(20), 11)
