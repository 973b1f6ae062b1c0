"""Super-frames cut to packets, in both directions; checksums checked by scapy."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from pytcp.link.cut import ip_version, received_packets, sent_packets
from pytcp.link.frame import CSUM_NONE, CSUM_UNNECESSARY, GSO_TCPV4, GSO_TCPV6, RxFrame, TxFrame

ETHER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
IP4 = ETHER / IP(src="192.0.2.1", dst="192.0.2.2")
IP6 = ETHER / IPv6(src="2001:db8::1", dst="2001:db8::2")


def damaged(packet: bytes, field: int) -> bytes:
    """`packet` with an unfinished checksum: any other value will do, nobody may look at it."""
    wrong = bytearray(packet)
    wrong[field] ^= 0x55
    wrong[field + 1] ^= 0xAA
    return bytes(wrong)


def received(data: bytes, gso_type: int = 0, gso_size: int = 0, csum: int = CSUM_NONE) -> list[bytes]:
    return received_packets(RxFrame(memoryview(data), gso_type, gso_size, csum))


@pytest.mark.parametrize(
    ("packet", "field"),
    [
        (IP4 / TCP(seq=0xFFFFFFF0) / b"hello", 34 + 16),
        (IP4 / UDP(sport=5, dport=6) / b"odd", 34 + 6),
        (IP6 / TCP() / b"hello!", 54 + 16),
        (IP6 / UDP(sport=5, dport=6) / b"", 54 + 6),
        (IP6 / IPv6ExtHdrDestOpt() / UDP(sport=5, dport=6) / b"behind an extension header", 62 + 6),
    ],
)
def test_a_checksum_nobody_had_to_check_is_finished(packet: Packet, field: int) -> None:
    right = bytes(packet)
    assert received(damaged(right, field), csum=CSUM_UNNECESSARY) == [right]


def test_a_checksum_the_device_did_not_vouch_for_is_left_alone() -> None:
    wrong = damaged(bytes(IP4 / TCP() / b"hello"), 50)
    assert received(wrong, csum=CSUM_NONE) == [wrong]


def test_padding_behind_the_ip_packet_is_not_summed() -> None:
    right = bytes(IP4 / UDP(sport=5, dport=6) / b"x") + b"trailer!"
    assert received(damaged(right, 40), csum=CSUM_UNNECESSARY) == [right]


def test_a_checksum_that_comes_out_as_zero_is_written_as_all_ones() -> None:
    # the last word brings the sum to 0xffff, its complement to zero, which would say "no checksum" (RFC 768)
    base = IP(src="0.0.0.0", dst="0.0.0.0") / UDP(sport=0, dport=0, chksum=0) / bytes(2)
    total = 17 + 10 + 10  # protocol and length in the pseudo-header, length in the header
    packet = bytearray(bytes(ETHER / base))
    packet[-2:] = (0xFFFF - total).to_bytes(2, "big")
    (out,) = received(bytes(packet), csum=CSUM_UNNECESSARY)
    assert out[40:42] == b"\xff\xff"


@pytest.mark.parametrize(
    "data",
    [
        bytes(ETHER / ARP()),
        bytes(IP4 / Raw(b"x" * 30))[:30],
        bytes(ETHER / IP(src="192.0.2.1", dst="192.0.2.2", flags="MF") / TCP() / b"fragment"),
        bytes(ETHER / IP(src="192.0.2.1", dst="192.0.2.2", proto=6) / b"short"),
        bytes(ETHER / IP(src="192.0.2.1", dst="192.0.2.2", proto=132) / bytes(40)),
        bytes(ETHER),
        b"",
    ],
)
def test_what_is_not_a_whole_tcp_or_udp_packet_passes_unchanged(data: bytes) -> None:
    assert received(data, csum=CSUM_UNNECESSARY) == [data]


def test_a_length_field_that_lies_beyond_the_frame_passes_unchanged() -> None:
    data = bytes(ETHER / IP(src="192.0.2.1", dst="192.0.2.2", len=1000) / TCP())
    assert received(data, csum=CSUM_UNNECESSARY) == [data]


@pytest.mark.parametrize(("base", "gso_type", "header"), [(IP4, GSO_TCPV4, 54), (IP6, GSO_TCPV6, 74)])
def test_a_received_super_frame_becomes_its_packets(base: Packet, gso_type: int, header: int) -> None:
    payload = bytes(i * 13 & 255 for i in range(2900))
    whole = bytes(base / TCP(seq=0xFFFFFA00, flags="PA") / payload)
    packets = received(damaged(whole, header - 4), gso_type=gso_type, gso_size=1448, csum=CSUM_UNNECESSARY)
    assert [len(packet) - header for packet in packets] == [1448, 1448, 4]
    parsed = [Ether(packet) for packet in packets]
    assert [p[TCP].seq for p in parsed] == [0xFFFFFA00, 0xFFFFFFA8, 0x550]
    assert [str(p[TCP].flags) for p in parsed] == ["A", "A", "PA"]
    for packet in parsed:
        claimed = packet[TCP].chksum
        del packet[TCP].chksum
        assert Ether(bytes(packet))[TCP].chksum == claimed


def test_a_super_frame_with_headers_that_contradict_the_device_passes_whole() -> None:
    data = bytes(ETHER / ARP()) + bytes(3000)
    assert received(data, gso_type=GSO_TCPV4, gso_size=1448, csum=CSUM_UNNECESSARY) == [data]


def test_a_sent_frame_with_nothing_owed_is_only_joined() -> None:
    assert sent_packets(TxFrame(b"head", (b"one", b"two"))) == [b"headonetwo"]


def test_the_ip_version_is_known_with_and_without_an_ethernet_header() -> None:
    assert ip_version(bytes(IP4)) == 4
    assert ip_version(bytes(IP6)) == 6
    assert ip_version(bytes(IP4)[14:], 0) == 4
    assert ip_version(bytes(IP6)[14:], 0) == 6
    assert ip_version(bytes(ETHER / ARP())) == 0
    assert ip_version(bytes(IP6)[:53]) == 0
    assert ip_version(bytes(IP4)[:33]) == 0
