"""One line per frame. Lines marked `TCPDUMP` are what tcpdump 4.99 -nSt prints for these frames, letter for letter."""

from __future__ import annotations

import pytest

from pytcp.wire import icmp, icmpv6, igmp, mld, ndp
from pytcp.wire.addr import MAC_BROADCAST, parse_ip, parse_mac, solicited_node
from pytcp.wire.arp import Arp
from pytcp.wire.describe import describe, describe_packet
from pytcp.wire.ethernet import ETH_P_ARP, ETH_P_IP, ETH_P_IPV6, Ethernet, VlanTag, header
from pytcp.wire.ipv4 import ROUTER_ALERT, Ipv4
from pytcp.wire.ipv6 import FragmentHeader, Ipv6, Ipv6Option, OptionsHeader, RoutingHeader
from pytcp.wire.tcp import (
    AccEcn,
    Eol,
    FastOpen,
    Malformed,
    Md5,
    Mss,
    Nop,
    Option,
    Sack,
    SackPermitted,
    TcpHeader,
    Timestamps,
    Unknown,
    WindowScale,
)
from pytcp.wire.udp import Udp

HOST, PEER = parse_mac("02:00:00:00:00:11"), parse_mac("02:00:00:00:00:12")
A, B = parse_ip("10.78.0.2"), parse_ip("10.78.0.1")
A6, B6 = parse_ip("fd78::2"), parse_ip("fe80::11")


def ip4(proto: int, payload: bytes, **fields: object) -> bytes:
    """A frame from A to B."""
    return header(HOST, PEER, ETH_P_IP) + Ipv4(A, B, proto, payload, **fields).emit()  # type: ignore[arg-type]


def ip6(next_header: int, payload: bytes) -> bytes:
    """A frame from A6 to B6."""
    return header(HOST, PEER, ETH_P_IPV6) + Ipv6(A6, B6, next_header, payload).emit()


def tcp4(seq: int = 1, ack: int = 0, flags: int = 0x10, window: int = 0, urg: int = 0, options: tuple[Option, ...] = (), payload: bytes = b"") -> bytes:
    """A TCP segment from A:1000 to B:80 in a frame."""
    return ip4(6, TcpHeader(1000, 80, seq, ack, flags, window, urg, options, payload).emit(A, B))


def icmp4(message: icmp.IcmpMessage) -> bytes:
    return ip4(1, message.emit())


def icmp6(message: icmpv6.Icmpv6Message | ndp.NdpMessage | mld.Mld | mld.ReportV2) -> bytes:
    return ip6(58, message.emit(A6, B6))


UDP_QUOTE = Ipv4(B, A, 17, Udp(1, 53001, b"hello").emit(B, A)).emit()
TCP_QUOTE = Ipv4(B, A, 6, TcpHeader(80, 1000, seq=7).emit(B, A)).emit()
QUOTE6 = Ipv6(B6, A6, 17, Udp(1, 53001, b"hello").emit(B6, A6)).emit()
TO4 = "IP 10.78.0.2 > 10.78.0.1: "
TO6 = "IP6 fd78::2 > fe80::11: "
TCP4 = "IP 10.78.0.2.1000 > 10.78.0.1.80: "
ARP_TAIL = ", length 28"

TCPDUMP: list[tuple[bytes, str]] = [
    (
        tcp4(0xFFFFFFF0, flags=2, window=64240, options=(Mss(1460), SackPermitted(), Timestamps(1, 0), Nop(), WindowScale(7))),
        TCP4 + "Flags [S], seq 4294967280, win 64240, options [mss 1460,sackOK,TS val 1 ecr 0,nop,wscale 7], length 0",
    ),
    (
        tcp4(1, 2, 0x12, 65160, options=(Mss(1460), Nop(), Nop(), SackPermitted(), Nop(), WindowScale(7))),
        TCP4 + "Flags [S.], seq 1, ack 2, win 65160, options [mss 1460,nop,nop,sackOK,nop,wscale 7], length 0",
    ),
    (
        tcp4(1, 5, 0x10, 77, options=(Nop(), Nop(), Timestamps(5, 6), Nop(), Nop(), Sack(((10, 20), (30, 40))))),
        TCP4 + "Flags [.], ack 5, win 77, options [nop,nop,TS val 5 ecr 6,nop,nop,sack 2 {10:20}{30:40}], length 0",
    ),
    (tcp4(1, 5, 0), TCP4 + "Flags [none], win 0, length 0"),
    (tcp4(1, 5, 0x14), TCP4 + "Flags [R.], seq 1, ack 5, win 0, length 0"),
    (tcp4(1, 5, 0x04), TCP4 + "Flags [R], seq 1, win 0, length 0"),
    (tcp4(1, 5, 0x11), TCP4 + "Flags [F.], seq 1, ack 5, win 0, length 0"),
    (tcp4(1, flags=2, options=(FastOpen(b"", True),)), TCP4 + "Flags [S], seq 1, win 0, options [exp-tfo cookiereq], length 0"),
    (tcp4(1, flags=2, options=(FastOpen(b"12345678", True),)), TCP4 + "Flags [S], seq 1, win 0, options [exp-tfo cookie 3132333435363738], length 0"),
    (
        tcp4(options=(Unknown(29, b"\1\2abcdefghijkl"), Eol())),
        TCP4 + "Flags [.], ack 0, win 0, options [tcp-ao keyid 1 rnextkeyid 2 mac 0x6162636465666768696a6b6c,eol], length 0",
    ),
    (tcp4(options=(Nop(), Eol(b"ab"))), TCP4 + "Flags [.], ack 0, win 0, options [nop,eol], length 0"),
    (ip4(17, Udp(53000, 5001, b"hello").emit(A, B)), "IP 10.78.0.2.53000 > 10.78.0.1.5001: UDP, length 5"),
    (ip6(17, Udp(53000, 5001, b"hello").emit(A6, B6)), "IP6 fd78::2.53000 > fe80::11.5001: UDP, length 5"),
    (icmp4(icmp.Echo(7, 1, b"x" * 8)), TO4 + "ICMP echo request, id 7, seq 1, length 16"),
    (icmp4(icmp.Echo(7, 1, b"x" * 8, True)), TO4 + "ICMP echo reply, id 7, seq 1, length 16"),
    (icmp4(icmp.Unreachable(0, UDP_QUOTE)), TO4 + "ICMP net 10.78.0.2 unreachable, length 41"),
    (icmp4(icmp.Unreachable(1, UDP_QUOTE)), TO4 + "ICMP host 10.78.0.2 unreachable, length 41"),
    (icmp4(icmp.Unreachable(2, UDP_QUOTE)), TO4 + "ICMP 10.78.0.2 protocol 17 unreachable, length 41"),
    (icmp4(icmp.Unreachable(3, UDP_QUOTE)), TO4 + "ICMP 10.78.0.2 udp port 53001 unreachable, length 41"),
    (icmp4(icmp.Unreachable(3, TCP_QUOTE)), TO4 + "ICMP 10.78.0.2 tcp port 1000 unreachable, length 48"),
    (icmp4(icmp.Unreachable(4, TCP_QUOTE, 1400)), TO4 + "ICMP 10.78.0.2 unreachable - need to frag (mtu 1400), length 48"),
    (icmp4(icmp.Unreachable(4, TCP_QUOTE)), TO4 + "ICMP 10.78.0.2 unreachable - need to frag, length 48"),
    (icmp4(icmp.Unreachable(5, UDP_QUOTE)), TO4 + "ICMP 10.78.0.2 unreachable - source route failed, length 41"),
    (icmp4(icmp.Unreachable(13, UDP_QUOTE)), TO4 + "ICMP host 10.78.0.2 unreachable - admin prohibited filter, length 41"),
    (icmp4(icmp.TimeExceeded(0, TCP_QUOTE)), TO4 + "ICMP time exceeded in-transit, length 48"),
    (icmp4(icmp.TimeExceeded(1, TCP_QUOTE)), TO4 + "ICMP ip reassembly time exceeded, length 48"),
    (icmp4(icmp.ParameterProblem(20, TCP_QUOTE)), TO4 + "ICMP parameter problem - octet 20, length 48"),
    (icmp4(icmp.Redirect(1, A, TCP_QUOTE)), TO4 + "ICMP redirect 10.78.0.2 to host 10.78.0.2, length 48"),
    (icmp4(icmp.Redirect(2, A, TCP_QUOTE)), TO4 + "ICMP redirect-tos 10.78.0.2 to net 10.78.0.2, length 48"),
    (icmp4(icmp.SourceQuench(TCP_QUOTE)), TO4 + "ICMP source quench, length 48"),
    (icmp4(icmp.Timestamp(1, 2, 3, 4, 5)), TO4 + "ICMP time stamp query id 1 seq 2, length 20"),
    (ip4(6, TcpHeader(1000, 80, 1, flags=2).emit(A, B), options=ROUTER_ALERT), TCP4 + "Flags [S], seq 1, win 0, length 0"),
    (ip4(2, igmp.Igmp(igmp.QUERY, bytes(4), 100).emit()), TO4 + "igmp query v2"),
    (ip4(2, igmp.Igmp(igmp.REPORT_V2, b"\xef\1\2\3").emit()), TO4 + "igmp v2 report 239.1.2.3"),
    (ip4(2, igmp.Igmp(igmp.LEAVE, b"\xef\1\2\3").emit()), TO4 + "igmp leave 239.1.2.3"),
    (header(MAC_BROADCAST, PEER, ETH_P_ARP) + Arp(1, PEER, A, bytes(6), B).emit(), "ARP, Request who-has 10.78.0.1 tell 10.78.0.2" + ARP_TAIL),
    (header(HOST, PEER, ETH_P_ARP) + Arp(1, PEER, A, HOST, B).emit(), "ARP, Request who-has 10.78.0.1 (02:00:00:00:00:11) tell 10.78.0.2" + ARP_TAIL),
    (header(HOST, PEER, ETH_P_ARP) + Arp(2, PEER, A, HOST, B).emit(), "ARP, Reply 10.78.0.2 is-at 02:00:00:00:00:12" + ARP_TAIL),
    (icmp6(icmpv6.Echo(7, 1, b"x" * 8)), TO6 + "ICMP6, echo request, id 7, seq 1, length 16"),
    (icmp6(icmpv6.Error(1, 0, QUOTE6)), TO6 + "ICMP6, destination unreachable, unreachable route fd78::2, length 61"),
    (icmp6(icmpv6.Error(1, 3, QUOTE6)), TO6 + "ICMP6, destination unreachable, unreachable address fd78::2, length 61"),
    (icmp6(icmpv6.Error(1, 4, QUOTE6)), TO6 + "ICMP6, destination unreachable, unreachable port, fd78::2 udp port 53001, length 61"),
    (icmp6(icmpv6.Error(2, 0, QUOTE6, 1400)), TO6 + "ICMP6, packet too big, mtu 1400, length 61"),
    (icmp6(icmpv6.Error(3, 0, QUOTE6)), TO6 + "ICMP6, time exceeded in-transit for fd78::2, length 61"),
    (icmp6(icmpv6.Error(3, 1, QUOTE6)), TO6 + "ICMP6, time exceeded in-transit (reassembly), length 61"),
    (icmp6(icmpv6.Error(4, 1, QUOTE6, 40)), TO6 + "ICMP6, parameter problem, next header - octet 40, length 61"),
    (icmp6(ndp.NeighborSolicit(A6, (ndp.SourceLinkAddr(PEER),))), TO6 + "ICMP6, neighbor solicitation, who has fd78::2, length 32"),
    (icmp6(ndp.NeighborAdvert(A6)), TO6 + "ICMP6, neighbor advertisement, tgt is fd78::2, length 24"),
    (icmp6(ndp.RouterSolicit((ndp.SourceLinkAddr(PEER),))), TO6 + "ICMP6, router solicitation, length 16"),
    (icmp6(ndp.RouterAdvert(64, lifetime=1800)), TO6 + "ICMP6, router advertisement, length 16"),
    (icmp6(ndp.Redirect(A6, B6)), TO6 + "ICMP6, redirect, fe80::11 to fd78::2, length 40"),
    (ip6(59, b""), TO6 + "no next header"),
]


@pytest.mark.parametrize(("frame", "line"), TCPDUMP)
def test_frames_read_as_tcpdump_prints_them(frame: bytes, line: str) -> None:
    assert describe(frame) == line
    assert describe(memoryview(bytearray(frame))) == line


OURS: list[tuple[bytes, str]] = [
    # the sequence range wraps; data on port 80 is not called HTTP
    (tcp4(0xFFFFFFF0, 5, 0x18, 77, payload=b"x" * 32), TCP4 + "Flags [P.], seq 4294967280:16, ack 5, win 77, length 32"),
    (tcp4(1, 5, 0x1FF, 77, 3, payload=b"ab"), TCP4 + "Flags [FSRP.UEWe], seq 1:3, ack 5, win 77, urg 3, length 2"),
    (tcp4(1, flags=2, options=(FastOpen(b""), Eol())), TCP4 + "Flags [S], seq 1, win 0, options [tfo cookiereq,eol], length 0"),
    (tcp4(options=(Md5(bytes(range(16))), Eol())), TCP4 + "Flags [.], ack 0, win 0, options [md5 000102030405060708090a0b0c0d0e0f,eol], length 0"),
    (tcp4(options=(AccEcn(172, (1, 2, 3)), Eol())), TCP4 + "Flags [.], ack 0, win 0, options [accecn0 e0b 1 ceb 2 e1b 3,eol], length 0"),
    (
        tcp4(options=(AccEcn(174, (1, 2)), AccEcn(174, ()), Nop(), Nop())),
        TCP4 + "Flags [.], ack 0, win 0, options [accecn1 e1b 1 ceb 2,accecn1,nop,nop], length 0",
    ),
    (
        tcp4(options=(Unknown(77, b"ab"), Malformed(b"\x02\x09\0\0"))),
        TCP4 + "Flags [.], ack 0, win 0, options [unknown-77 0x6162,bad opt 0x02090000], length 0",
    ),
    (ip4(6, bytes.fromhex("03e80050")), TCP4 + "[|tcp]"),
    (ip4(6, bytes.fromhex("03e80050") + bytes(16)), TCP4 + "[tcp: TCP data offset is below 5]"),
    (ip4(17, bytes.fromhex("03e80050000700 00")), "IP 10.78.0.2.1000 > 10.78.0.1.80: [udp: UDP length is below 8]"),
    (ip4(99, b"hello"), TO4 + "ip-proto-99 5"),
    (ip4(58, b"hello"), TO4 + "ip-proto-58 5"),
    (ip6(1, b"hello"), TO6 + "ip-proto-1 5"),
    (ip4(1, b"\x03\x03"), TO4 + "ICMP [|icmp], length 2"),
    (icmp4(icmp.Unreachable(3, b"")), TO4 + "ICMP [|icmp], length 8"),
    (icmp4(icmp.Other(99, 1)), TO4 + "ICMP type-#99 code 1, length 8"),
    (ip4(17, bytes(16), mf=True, df=False, ident=77), TO4 + "ip-proto-17 frag (id 77, offset 0, length 16, more)"),
    (ip4(17, bytes(16), frag_offset=1480, df=False, ident=77), TO4 + "ip-proto-17 frag (id 77, offset 1480, length 16)"),
    (ip6(44, FragmentHeader(17, 1480, True, 77, bytes(16)).emit()), TO6 + "frag (id 77, offset 1480, length 16, more) ip-proto-17"),
    (ip6(44, FragmentHeader(59, 0, False, 77).emit()), TO6 + "frag (id 77, offset 0, length 0) no next header"),
    (
        ip6(60, OptionsHeader(43, (), RoutingHeader(6, 0, 1, bytes(20), TcpHeader(1000, 80, 1, flags=2).emit()).emit()).emit()),
        "IP6 fd78::2.1000 > fe80::11.80: DSTOPT RT6 (type=0, segleft=1) Flags [S], seq 1, win 0, length 0",
    ),
    (
        ip6(0, OptionsHeader(58, (Ipv6Option(5, bytes(2)),), mld.ReportV2((igmp.GroupRecord(4, solicited_node(A6)),)).emit(A6, B6)).emit()),
        TO6 + "HBH ICMP6, multicast listener report v2, 1 group record(s) [to_ex ff02::1:ff00:2 0 source(s)], length 28",
    ),
    (icmp6(mld.Mld(mld.QUERY, bytes(16), 1000)), TO6 + "ICMP6, multicast listener query max resp delay: 1000 addr: ::, length 24"),
    (ip4(2, igmp.ReportV3((igmp.GroupRecord(4, b"\xef\1\2\3", (A,)),)).emit()), TO4 + "igmp v3 report, 1 group record(s) [to_ex 239.1.2.3 1 source(s)]"),
    (icmp6(icmpv6.Other(200, 0, bytes(4))), TO6 + "ICMP6, unknown icmp6 type (200), length 8"),
    (header(HOST, PEER, ETH_P_ARP) + Arp(9, PEER, A, HOST, B).emit(), "ARP, op 9, 10.78.0.2 (02:00:00:00:00:12) to 10.78.0.1 (02:00:00:00:00:11)" + ARP_TAIL),
    (header(HOST, PEER, ETH_P_ARP) + bytes(7), "[|arp]"),
    (header(HOST, PEER, 0x88CC) + b"hello", "02:00:00:00:00:12 > 02:00:00:00:00:11, ethertype 0x88cc, length 19"),
    (Ethernet(HOST, PEER, None, b"\x42\x42\x03").emit(), "02:00:00:00:00:12 > 02:00:00:00:00:11, 802.3, length 3"),
    (
        Ethernet(HOST, PEER, ETH_P_ARP, Arp(2, PEER, A, HOST, B).emit(), (VlanTag(5, 3),)).emit(),
        "vlan 5, p 3, ARP, Reply 10.78.0.2 is-at 02:00:00:00:00:12" + ARP_TAIL,
    ),
    (header(HOST, PEER, ETH_P_IP) + b"\x45\x00", "IP [|ip]"),
    (header(HOST, PEER, ETH_P_IP) + b"\x44" + bytes(20), "IP [ip: IPv4 header length is below 20]"),
    (header(HOST, PEER, ETH_P_IPV6) + b"\x60" + bytes(20), "IP6 [|ip6]"),
    (header(HOST, PEER, ETH_P_IP) + b"\x50" + bytes(20), "IP, version 5"),
    (b"abc", "[|ether]"),
    (b"", "[|ether]"),
]


@pytest.mark.parametrize(("frame", "line"), OURS)
def test_what_tcpdump_has_no_words_for_reads_in_ours(frame: bytes, line: str) -> None:
    assert describe(frame) == line


def test_a_packet_without_link_layer_reads_the_same() -> None:
    frame, line = TCPDUMP[0]
    assert describe_packet(frame[14:]) == line
    assert describe_packet(b"") == "IP [|ip]"


def test_the_headers_of_a_super_frame_are_enough_when_its_length_is_given() -> None:
    frame = tcp4(1, 5, 0x18, 77, payload=bytes(60000))
    line = TCP4 + "Flags [P.], seq 1:60001, ack 5, win 77, length 60000"
    assert describe(frame[:54], len(frame)) == describe(frame) == line
    assert describe(frame[:54]) == "IP [|ip]"
