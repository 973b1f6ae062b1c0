"""IPv4 and IPv6 headers, options and extension headers: by hand, by scapy, and as Linux judged them."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, UDP, IPOption_RR
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting, PadN, RouterAlert

from pytcp.wire.addr import parse_ip
from pytcp.wire.errors import TruncatedError, WireError
from pytcp.wire.ipv4 import (
    IP_DF,
    IP_MF,
    IPOPT_LSRR,
    IPOPT_TS_PRESPEC,
    IPOPT_TS_TSANDADDR,
    ROUTER_ALERT,
    Ipv4,
    OtherOption,
    RecordRoute,
    TimestampOption,
    header_ok,
    walk_options,
)
from pytcp.wire.ipv4 import build_header as build_header4
from pytcp.wire.ipv6 import (
    ACTION_ERROR,
    ACTION_ERROR_UNICAST,
    ACTION_SKIP,
    OPT_HOME_ADDRESS,
    OPT_JUMBO,
    OPT_PADN,
    OPT_ROUTER_ALERT,
    Extension,
    FragmentHeader,
    Ipv6,
    Ipv6Option,
    OptionsHeader,
    RoutingHeader,
    iter_options,
    pad,
    walk,
)
from pytcp.wire.ipv6 import build_header as build_header6

A, B = parse_ip("10.78.0.2"), parse_ip("10.78.0.1")
A6, B6 = parse_ip("fd78::2"), parse_ip("fd78::1")

# an echo request with three record-route slots and Linux's reply, as recorded (the header up to the data)
RR_REQUEST = bytes.fromhex("49000034000100004001571b0a4e00020a4e0001070f0400000000000000000000000000") + bytes(16)


# ---- IPv4 ------------------------------------------------------------------------------------


def test_an_ipv4_header_by_hand() -> None:
    built = build_header4(A, B, 6, 40, tos=0xB9, ident=0x1234, frag=IP_DF, ttl=63)
    # 45b9+0028+1234+4000+3f06+0a4e+0002+0a4e+0001 = ebba -> 1445
    assert built == bytes.fromhex("45b90028 12344000 3f061445 0a4e0002 0a4e0001")
    assert header_ok(built)


def test_a_recorded_ipv4_packet_with_options_is_read_field_by_field() -> None:
    packet = Ipv4.parse(RR_REQUEST)
    assert (packet.src, packet.dst, packet.proto, packet.ttl, packet.ident) == (A, B, 1, 64, 1)
    assert not packet.df and not packet.mf and packet.frag_offset == 0
    assert packet.options == bytes.fromhex("070f0400000000000000000000000000")
    assert packet.payload == bytes(16)
    assert packet.checksum == 0x571B and header_ok(RR_REQUEST)
    assert packet.emit() == RR_REQUEST


def test_one_wrong_bit_breaks_the_header_checksum() -> None:
    for at in range(36):
        bad = bytearray(RR_REQUEST)
        bad[at] ^= 0x04
        if bad[0] >> 4 == 4 and (bad[0] & 15) * 4 == 36:
            assert not header_ok(bad)


def test_bytes_behind_the_total_length_are_padding() -> None:
    assert Ipv4.parse(Ipv4(A, B, 17, b"x").emit() + bytes(25)).payload == b"x"


@pytest.mark.parametrize(
    "packet",
    [
        Ipv4(A, B, 17, b"x" * 16, tos=3, ident=7, df=False, mf=True, frag_offset=1480, ttl=1),
        Ipv4(A, B, 255, reserved=True, df=True),
        Ipv4(A, B, 2, b"hello", options=ROUTER_ALERT),
        Ipv4(A, B, 1, frag_offset=8191 * 8, options=bytes(40)),
    ],
)
def test_ipv4_packets_parse_back_to_themselves(packet: Ipv4) -> None:
    raw = packet.emit()
    assert Ipv4.parse(raw) == packet and header_ok(raw)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", TruncatedError),
        (b"\x45" + bytes(18), TruncatedError),
        (b"\x65" + bytes(19), WireError),  # version 6
        (b"\x44\0\0\x14" + bytes(16), WireError),  # 16 bytes of header
        (b"\x46\0\0\x14" + bytes(16), TruncatedError),  # 24 bytes of header, 20 there
        (b"\x46\0\0\x14" + bytes(20), WireError),  # total length 20, header 24
        (b"\x45\0\0\x15" + bytes(16), TruncatedError),  # total length 21, 20 there
    ],
)
def test_broken_ipv4_headers_are_refused(raw: bytes, error: type[WireError]) -> None:
    with pytest.raises(error):
        Ipv4.parse(raw)


def test_a_quoted_packet_may_be_shorter_than_it_says() -> None:
    raw = Ipv4(A, B, 6, bytes(1000)).emit()[:28]
    with pytest.raises(TruncatedError):
        Ipv4.parse(raw)
    assert len(Ipv4.parse(raw, quoted=True).payload) == 8


@pytest.mark.parametrize("packet", [Ipv4(A, B, 6, options=b"\x01"), Ipv4(A, B, 6, options=bytes(44)), Ipv4(A, B, 6, frag_offset=4)])
def test_ipv4_packets_that_cannot_be_are_the_callers_error(packet: Ipv4) -> None:
    with pytest.raises(ValueError, match=r"multiple of 8|padded to 4"):
        packet.emit()


def test_scapy_builds_the_same_ipv4_packet() -> None:
    ours = Ipv4(A, B, 17, b"\0\1\0\2\0\x08\0\0", tos=0xB8, ident=77, df=False, mf=True, frag_offset=64, ttl=5, options=RecordRoute(bytes(8)).emit() + b"\0")
    theirs = IP(
        src="10.78.0.2", dst="10.78.0.1", proto=17, tos=0xB8, id=77, flags="MF", frag=8, ttl=5, options=[IPOption_RR(pointer=4, routers=["0.0.0.0"] * 2)]
    )
    assert ours.emit() == bytes(theirs / UDP(sport=1, dport=2, chksum=0))
    assert ours.mf and bytes(theirs)[6] << 8 == IP_MF


# Options in an echo request to Linux 6.18 and what it did: the options of its reply, the pointer of its
# parameter problem counted from the first option byte, or nothing (source routes, which it does not accept).
NOTHING = None
RECORDED: list[tuple[str, str | int | None]] = [
    ("07030000", 2),
    ("07030400", "07030400"),
    ("07060400", 0),
    ("0707030000000000", 2),
    ("0707050000000000", 2),
    ("0707060000000000", 2),
    ("0706040000000000", 2),
    ("0707080000000000", "0707080000000000"),
    ("07070400000000070704000000000000", 7),
    ("070704000000000702000000", 7),
    ("44030000", 1),
    ("44040000", 2),
    ("44040500", "44040510"),
    ("440809f000000000", 3),
    ("440809e000000000", "440809f000000000"),
    ("440809e500000000", "440809f500000000"),
    ("4408050200000000", "4408050200000000"),
    ("4408040000000000", 2),
    ("4408060000000000", 2),
    ("440c06010000000000000000", 2),
    ("440b05010000000000000000", 2),
    ("440a09030000000000000000", 2),
    ("440c05030a4e000200000000", "440c05030a4e000200000000"),
    ("440cff010000000000000000", "440cff110000000000000000"),
    ("4409090000000000", 0),
    ("440805000000000044030000", 8),
    ("44080500000000004408050000000000", 8),
    ("94040000", ""),
    ("9404ffff", ""),
    ("9404000094040000", ""),
    ("9405940000000000", ""),
    ("94030000", 1),
    ("94020000", 1),
    ("83020000", 1),
    ("83030400", NOTHING),
    ("83030300", 2),
    ("8305040000000000", NOTHING),
    ("8307060000000000", NOTHING),
    ("8307040a4e000100", NOTHING),
    ("83070404", 0),
    ("89030000", 2),
    ("8303048303040000", 3),
    ("8303048903000000", 5),
    ("0703078303070000", NOTHING),
    ("86000000", 0),
    ("8606000000000000", 1),
    ("8608000000010000", 2),
    ("1e020000", ""),
    ("1e000000", 0),
    ("1e04aabb", ""),
    ("82020000", ""),
    ("88040001", ""),
    ("01010100", ""),
    ("00070000", ""),
]


@pytest.mark.parametrize(("options", "answer"), RECORDED)
def test_ipv4_options_are_judged_as_linux_judged_them(options: str, answer: str | int | None) -> None:
    raw = bytes.fromhex(options)
    if isinstance(answer, int):
        with pytest.raises(WireError) as caught:
            list(walk_options(raw))
        assert caught.value.offset == 20 + answer
        return
    found = [option for _, option in walk_options(raw)]
    sourced = any(isinstance(option, RecordRoute) and option.kind != 7 for option in found)
    assert sourced == (answer is NOTHING)
    if answer is not NOTHING:
        stamped = [option.record(B, 0).emit() for option in found if isinstance(option, TimestampOption)]
        routed = [option.record(B).emit() for option in found if isinstance(option, RecordRoute)]
        echoed = b"".join([*routed, *stamped])
        assert (echoed + bytes(-len(echoed) & 3)).hex() == answer


def test_an_option_beyond_the_options_is_a_bad_length_at_its_first_byte() -> None:
    with pytest.raises(WireError) as caught:
        list(walk_options(b"\x01\x01\x01\x07"))
    assert caught.value.offset == 23


def test_options_come_with_their_offsets() -> None:
    raw = b"\x01" + RecordRoute(bytes(4), 8).emit() + ROUTER_ALERT + b"\x00\x07\xff\xff"
    assert list(walk_options(raw)) == [(1, RecordRoute(bytes(4), 8)), (8, OtherOption(148, b"\0\0"))]


def test_record_route_fills_its_slots_in_order_and_then_stays_as_it_is() -> None:
    # Linux answered a request with three empty slots having recorded itself twice, on input and on output
    option = RecordRoute(bytes(12)).record(B).record(B)
    assert option.emit() == bytes.fromhex("070f0c 0a4e0001 0a4e0001 00000000")
    full = option.record(A)
    assert full.full and full.record(B) is full
    assert full.emit() == bytes.fromhex("070f10 0a4e0001 0a4e0001 0a4e0002")


def test_timestamps_with_addresses_as_linux_filled_them() -> None:
    option = TimestampOption(bytes(8), IPOPT_TS_TSANDADDR).record(B, 0x03224BA5)
    assert option.emit() == bytes.fromhex("440c0d01 0a4e0001 03224ba5")
    assert option.record(B, 1).emit() == bytes.fromhex("440c0d11 0a4e0001 03224ba5")


def test_timestamps_alone_and_the_overflow_counter_that_stops_at_fifteen() -> None:
    option = TimestampOption(bytes(4)).record(B, 0x03224BA3)
    assert option.emit() == bytes.fromhex("44080900 03224ba3")
    for _ in range(20):
        option = option.record(B, 0)
    assert option.emit() == bytes.fromhex("440809f0 03224ba3")


def test_a_prespecified_timestamp_waits_for_its_address() -> None:
    option = TimestampOption(B + bytes(4), IPOPT_TS_PRESPEC)
    assert option.wanted == B
    assert option.record(A, 5) is option
    assert option.record(B, 0x03224BA5).emit() == bytes.fromhex("440c0d03 0a4e0001 03224ba5")
    assert option.record(B, 5).wanted is None


def test_source_routes_keep_their_kind() -> None:
    [(_, option)] = walk_options(bytes.fromhex("8307040a4e000100"))
    assert option == RecordRoute(B, 4, IPOPT_LSRR)


# ---- IPv6 ------------------------------------------------------------------------------------


def test_an_ipv6_header_by_hand() -> None:
    built = build_header6(A6, B6, 6, 20, tclass=0xB9, flow=0xABCDE, hop_limit=63)
    assert built == bytes.fromhex("6b9abcde 0014 06 3f") + A6 + B6


def test_ipv6_packets_parse_back_to_themselves_and_padding_is_dropped() -> None:
    packet = Ipv6(A6, B6, 17, b"hello", 0xFF, 0xFFFFF, 255)
    assert Ipv6.parse(packet.emit() + b"PAD") == packet


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", TruncatedError),
        (b"\x60" + bytes(38), TruncatedError),
        (b"\x40" + bytes(39), WireError),
        (b"\x60\0\0\0\0\x01" + bytes(34), TruncatedError),
    ],
)
def test_broken_ipv6_headers_are_refused(raw: bytes, error: type[WireError]) -> None:
    with pytest.raises(error):
        Ipv6.parse(raw)
    if error is TruncatedError and len(raw) == 40:
        assert Ipv6.parse(raw, quoted=True).payload == b""


def test_a_walk_finds_the_upper_header_behind_every_extension_header() -> None:
    tcp = bytes(20)
    chain = OptionsHeader(
        60, (), OptionsHeader(43, (), RoutingHeader(44, 0, 0, bytes(20), FragmentHeader(60, 0, True, 7, OptionsHeader(6, (), tcp).emit()).emit()).emit()).emit()
    )
    packet = Ipv6(A6, B6, 0, chain.emit()).emit()
    where = walk(packet, 0)
    assert where.extensions == (
        Extension(0, 40, 8, 6),
        Extension(60, 48, 8, 40),
        Extension(43, 56, 24, 48),
        Extension(44, 80, 8, 56),
        Extension(60, 88, 8, 80),
    )
    assert (where.proto, where.offset, where.pointer) == (6, 96, 88)


def test_a_walk_without_extension_headers_stays_where_it_is() -> None:
    assert walk(bytes(60), 6) == ((), 6, 40, 6)
    assert walk(bytes(60), 59) == ((), 59, 40, 6)
    assert walk(bytes(60), 99) == ((), 99, 40, 6)


def test_a_walk_stops_behind_the_header_of_a_later_fragment() -> None:
    packet = Ipv6(A6, B6, 44, FragmentHeader(60, 8, False, 7, b"\xff" * 8).emit()).emit()
    where = walk(packet, 44)
    assert (where.proto, where.offset, where.pointer) == (60, 48, 40)


@pytest.mark.parametrize("kind", [0, 43, 44, 60])
def test_an_extension_header_that_does_not_fit_is_refused_with_its_place(kind: int) -> None:
    with pytest.raises(TruncatedError) as caught:
        walk(bytes(47), kind)
    assert caught.value.offset == 40
    if kind != 44:
        with pytest.raises(TruncatedError):
            walk(bytes(40) + b"\x06\x01" + bytes(13), kind)
    with pytest.raises(TruncatedError):
        walk(bytes(100), kind, 40, 47)


def test_ipv6_options_are_read_with_their_places_and_actions() -> None:
    raw = bytes.fromhex("3a 00 0502 0000 0100".replace(" ", ""))
    assert list(iter_options(raw, 2, 8)) == [Ipv6Option(OPT_ROUTER_ALERT, b"\0\0", 2), Ipv6Option(OPT_PADN, b"", 6)]
    assert Ipv6Option(OPT_ROUTER_ALERT).action == ACTION_SKIP
    assert Ipv6Option(0x9E).action == ACTION_ERROR
    assert Ipv6Option(OPT_JUMBO).action == Ipv6Option(OPT_HOME_ADDRESS).action == ACTION_ERROR_UNICAST


@pytest.mark.parametrize("raw", ["05", "0503 0000", "00 01"])
def test_an_ipv6_option_that_does_not_fit_is_refused(raw: str) -> None:
    data = bytes.fromhex(raw)
    with pytest.raises(TruncatedError):
        list(iter_options(data, 0, len(data)))


@pytest.mark.parametrize("length", range(17))
def test_padding_reaches_a_multiple_of_eight_with_one_option(length: int) -> None:
    padding = pad(length)
    assert (2 + length + len(padding)) % 8 == 0 and len(padding) < 8
    assert len(list(iter_options(padding, 0, len(padding)))) == (1 if padding else 0)
    assert set(padding[2:]) <= {0}


def test_scapy_builds_the_same_extension_headers() -> None:
    ours = OptionsHeader(58, (Ipv6Option(OPT_ROUTER_ALERT, b"\0\0"),), b"x").emit()
    assert ours == bytes(IPv6ExtHdrHopByHop(nh=58, options=[RouterAlert(value=0), PadN(optdata=b"")])) + b"x"
    assert OptionsHeader(6).emit() == bytes(IPv6ExtHdrDestOpt(nh=6, options=[PadN(optdata=bytes(4))]))
    assert RoutingHeader(6, 0, 1, bytes(4) + A6).emit() == bytes(IPv6ExtHdrRouting(nh=6, type=0, segleft=1, addresses=["fd78::2"]))
    assert FragmentHeader(17, 1480, True, 77).emit() == bytes(IPv6ExtHdrFragment(nh=17, offset=185, m=1, id=77))


def test_scapy_builds_the_same_ipv6_packet() -> None:
    theirs = IPv6(src="fd78::2", dst="fd78::1", tc=0xB8, fl=0x12345, hlim=3) / UDP(sport=1, dport=2, chksum=0)
    assert Ipv6(A6, B6, 17, b"\0\1\0\2\0\x08\0\0", 0xB8, 0x12345, 3).emit() == bytes(theirs)


@pytest.mark.parametrize(
    "header",
    [
        OptionsHeader(6, (Ipv6Option(OPT_ROUTER_ALERT, b"\0\0", 2), Ipv6Option(OPT_PADN, b"", 6)), b"rest"),
        RoutingHeader(6, 4, 2, bytes(range(20)), b"rest"),
        FragmentHeader(6, 65528, True, 0xFFFFFFFF, b"rest"),
    ],
)
def test_extension_headers_parse_back_to_themselves(header: OptionsHeader | RoutingHeader | FragmentHeader) -> None:
    raw = header.emit()
    assert type(header).parse(raw) == header
    for size in range(8):
        with pytest.raises(TruncatedError):
            type(header).parse(raw[:size])


def test_headers_of_impossible_sizes_are_the_callers_error() -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        FragmentHeader(6, 4, False, 1).emit()
    with pytest.raises(ValueError, match="multiple of 8 more"):
        RoutingHeader(6, 0, 0, bytes(8)).emit()
