"""TCP on the wire: what the engine gets from a segment, header building, options, scapy's answers."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6

from pytcp.wire.checksum import transport_ok
from pytcp.wire.errors import TruncatedError, WireError
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
    Segment,
    TcpHeader,
    Timestamps,
    Unknown,
    WindowScale,
    build_header,
    emit_options,
    opt_accecn,
    opt_fastopen,
    opt_md5,
    opt_mss,
    opt_pad,
    opt_sack,
    opt_sack_perm,
    opt_timestamp,
    opt_timestamp_aligned,
    opt_wscale,
    parse_options,
    parse_segment,
)
from pytcp.wire.tcpopt import AUTH_AO, AUTH_BROKEN

SRC, DST = b"\x0a\x4e\x00\x02", b"\x0a\x4e\x00\x01"
SRC6, DST6 = bytes.fromhex("fd780000000000000000000000000002"), bytes.fromhex("fd780000000000000000000000000001")
SYN, ACK, PSH, FIN = 0x02, 0x10, 0x08, 0x01

# the SYN of a Linux client on a 1500-byte link: MSS 1460, SACK-permitted, TS, NOP, window scale 7
LINUX_SYN_OPTIONS = bytes.fromhex("020405b4 0402 080a 00000001 00000000 01 030307")
COOKIE = bytes.fromhex("0011223344556677")


def segment(options: bytes = b"", flags: int = ACK, payload: bytes = b"") -> Segment:
    """Parsed from bytes whose fixed part is written here by hand."""
    doff = 5 + len(options) // 4
    raw = bytes.fromhex("03e8 0050 fffffff0 00000010".replace(" ", "")) + bytes((doff << 4 | flags >> 8, flags & 0xFF)) + bytes.fromhex("fadc 0000 0003")
    raw += options + payload
    return parse_segment(memoryview(raw), 0, len(raw), 4, SRC, DST)


# ---- the fixed header ------------------------------------------------------------------------


def test_every_field_of_the_fixed_header_arrives_as_it_was_on_the_wire() -> None:
    seg = segment(flags=0x1FF, payload=b"ab")
    assert (seg.sport, seg.dport) == (1000, 80)
    assert (seg.seq, seg.ack) == (0xFFFFFFF0, 0x10)
    assert seg.flags == 0x1FF
    assert (seg.window, seg.urg_ptr, seg.doff) == (0xFADC, 3, 5)
    assert (seg.family, seg.src, seg.dst) == (4, SRC, DST)
    assert (bytes(seg.payload), seg.length) == (b"ab", 2)


def test_reserved_bits_are_no_flags() -> None:
    raw = bytearray(20)
    raw[12] = 0x5E  # data offset 5, the three reserved bits, AE clear
    raw[13] = ACK
    assert parse_segment(memoryview(raw), 0, 20, 4, SRC, DST).flags == ACK


def test_a_segment_without_options_says_so() -> None:
    seg = segment()
    assert not seg.saw_tstamp and (seg.tsval, seg.tsecr) == (0, 0)
    assert seg.options.sack == () and seg.options.mss is None and seg.options.wscale is None and not seg.options.sack_perm
    assert seg.options.tfo_cookie is None and seg.options.md5 is None and seg.options.accecn is None
    assert bytes(seg.options_raw) == b"" and bytes(seg.payload) == b"" and seg.length == 0


def test_what_net_fills_in_later_starts_as_one_plain_segment() -> None:
    for seg in (segment(), segment(LINUX_SYN_OPTIONS), Segment()):
        assert (seg.gso_size, seg.nsegs, seg.tos, seg.ttl, seg.truesize, seg.rx, seg.end_seq) == (0, 1, 0, 0, 0, None, 0)


def test_a_segment_made_by_hand_knows_its_length() -> None:
    seg = Segment(seq=0xFFFFFFFF, flags=ACK, payload=b"abc")
    assert seg.length == 3 and bytes(seg.options_raw) == b""


def test_the_header_is_found_inside_a_frame_and_padding_behind_it_is_not_payload() -> None:
    frame = b"E" * 34 + build_header(1, 2, 3, 4, ACK, 5, 0, opt_timestamp_aligned(7, 8)) + b"data" + b"PAD"
    seg = parse_segment(memoryview(frame), 34, len(frame) - 3, 4, SRC, DST)
    assert (seg.sport, seg.dport, seg.tsval, seg.tsecr) == (1, 2, 7, 8)
    assert bytes(seg.payload) == b"data"
    assert bytes(seg.data[seg.l4_off :][:2]) == b"\x00\x01"


def test_the_payload_is_a_view_and_not_a_copy() -> None:
    frame = bytearray(build_header(1, 2, 3, 4, ACK, 5) + b"data")
    seg = parse_segment(memoryview(frame), 0, len(frame), 4, SRC, DST)
    frame[20:24] = b"DATA"
    assert bytes(seg.payload) == b"DATA"


@pytest.mark.parametrize("size", range(20))
def test_a_cut_off_header_is_refused(size: int) -> None:
    with pytest.raises(TruncatedError):
        parse_segment(memoryview(bytes(19) + b"\x50"), 0, size, 4, SRC, DST)


def test_an_end_beyond_the_buffer_is_refused() -> None:
    with pytest.raises(TruncatedError):
        parse_segment(memoryview(build_header(1, 2, 3, 4, ACK, 5)), 0, 21, 4, SRC, DST)


@pytest.mark.parametrize("doff", range(5))
def test_a_data_offset_below_five_is_refused(doff: int) -> None:
    raw = bytearray(60)
    raw[12] = doff << 4
    with pytest.raises(WireError):
        parse_segment(memoryview(raw), 0, 60, 4, SRC, DST)


def test_a_data_offset_beyond_the_segment_is_refused_even_when_the_buffer_goes_on() -> None:
    raw = bytearray(60)
    raw[12] = 8 << 4
    with pytest.raises(WireError):
        parse_segment(memoryview(raw), 0, 31, 4, SRC, DST)
    assert parse_segment(memoryview(raw), 0, 32, 4, SRC, DST).length == 0


# ---- options as Linux reads them -------------------------------------------------------------


def test_the_syn_of_a_linux_client() -> None:
    seg = segment(LINUX_SYN_OPTIONS, SYN)
    assert (seg.options.mss, seg.options.wscale, seg.options.sack_perm) == (1460, 7, True)
    assert (seg.saw_tstamp, seg.tsval, seg.tsecr) == (True, 1, 0)
    assert seg.options_raw == LINUX_SYN_OPTIONS


def test_mss_scale_sack_permitted_and_cookies_mean_nothing_without_syn() -> None:
    seg = segment(opt_pad(LINUX_SYN_OPTIONS + opt_fastopen(COOKIE)), ACK)
    assert seg.options.mss is None and seg.options.wscale is None and not seg.options.sack_perm and seg.options.tfo_cookie is None
    assert seg.saw_tstamp


@pytest.mark.parametrize(
    "options",
    [
        bytes.fromhex("0101080a 0000ffff fffffff0"),  # RFC 7323 appendix A: the fast path
        bytes.fromhex("080a 0000ffff fffffff0 0101"),
        bytes.fromhex("01080a 0000ffff fffffff0 01"),
        bytes.fromhex("0101080a 0000ffff fffffff0 01010101"),
        bytes.fromhex("0101080a 0000ffff fffffff0 00000000"),
        bytes.fromhex("080a 00000001 00000002 080a 0000ffff fffffff0"),  # the last one counts
    ],
)
def test_timestamps_are_found_in_every_layout(options: bytes) -> None:
    seg = segment(opt_pad(options), payload=b"x")
    assert (seg.saw_tstamp, seg.tsval, seg.tsecr) == (True, 0xFFFF, 0xFFFFFFF0)
    assert bytes(seg.payload) == b"x"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_sack_behind_timestamps_carries_up_to_three_blocks(count: int) -> None:
    blocks = tuple((0xFFFFFF00 + 0x100 * i & 0xFFFFFFFF, 0xFFFFFF10 + 0x100 * i & 0xFFFFFFFF) for i in range(count))
    seg = segment(opt_timestamp_aligned(5, 6) + b"\x01\x01" + opt_sack(blocks))
    assert seg.options.sack == blocks and (seg.tsval, seg.tsecr) == (5, 6)


@pytest.mark.parametrize("doff", [11, 13, 15])
@pytest.mark.parametrize("size", [0, 2, 9, 11, 34, 42, 255])
def test_sack_behind_timestamps_whose_length_does_not_fit_the_header_is_no_sack(doff: int, size: int) -> None:
    options = opt_timestamp_aligned(5, 6) + bytes((1, 1, 5, size)) + bytes(4 * (doff - 9))
    seg = segment(options)
    assert seg.options.sack == () and (seg.saw_tstamp, seg.tsval, seg.tsecr) == (True, 5, 6)


def test_a_shorter_sack_than_the_header_has_room_for_is_taken_as_it_is() -> None:
    assert segment(opt_timestamp_aligned(5, 6) + b"\x01\x01" + opt_sack([(1, 2)]) + bytes(8)).options.sack == ((1, 2),)


def test_four_sack_blocks_fit_without_timestamps() -> None:
    blocks = ((1, 2), (3, 4), (5, 6), (7, 8))
    assert segment(b"\x01\x01" + opt_sack(blocks)).options.sack == blocks


@pytest.mark.parametrize("body", ["0502", "05060000 0001", "050b" + "00" * 9])
def test_sack_of_a_length_that_is_no_whole_number_of_blocks_is_skipped(body: str) -> None:
    seg = segment(opt_pad(bytes.fromhex(body) + opt_timestamp(7, 8)))
    assert seg.options.sack == () and seg.tsval == 7


def test_sack_that_is_not_the_last_option_is_still_found() -> None:
    seg = segment(opt_timestamp_aligned(5, 6) + b"\x01\x01" + opt_sack([(1, 2)]) + b"\x01\x01\x01\x01")
    assert seg.options.sack == ((1, 2),)
    seg = segment(opt_timestamp_aligned(5, 6) + opt_sack([(1, 2)]) + b"\x01\x01")
    assert seg.options.sack == ((1, 2),)


@pytest.mark.parametrize("bad", ["0200", "0201", "0209", "02"])
def test_a_bad_length_ends_the_options_and_keeps_what_came_before(bad: str) -> None:
    options = opt_wscale(3) + bytes.fromhex(bad)
    options = bytes(-len(options) & 3).replace(b"\0", b"\x01") + options
    seg = segment(options, SYN)
    assert seg.options.wscale == 3 and seg.options.mss is None


def test_nothing_behind_end_of_list_is_read() -> None:
    assert segment(b"\x00" + opt_mss(1460) + bytes(3), SYN).options.mss is None


def test_a_known_option_of_the_wrong_length_is_skipped() -> None:
    wrong = bytes.fromhex("0203ff 0304ffff 0403ff 0809ffffffffffffff")  # MSS, scale, SACK-permitted, timestamps
    seg = segment(opt_pad(wrong + opt_mss(1400)), SYN)
    assert seg.options.mss == 1400 and seg.options.wscale is None and not seg.options.sack_perm and not seg.saw_tstamp


def test_an_mss_of_zero_is_no_mss() -> None:
    assert segment(opt_mss(0), SYN).options.mss is None
    assert segment(opt_mss(1400) + opt_mss(0), SYN).options.mss == 1400


def test_a_window_scale_above_fourteen_arrives_as_sent() -> None:
    assert segment(opt_pad(opt_wscale(200)), SYN).options.wscale == 200


def test_the_last_of_equal_options_counts() -> None:
    assert segment(opt_mss(1400) + opt_mss(1460), SYN).options.mss == 1460


@pytest.mark.parametrize("exp", [False, True])
@pytest.mark.parametrize("cookie", [b"", b"1234", COOKIE, COOKIE * 2])
def test_fast_open_cookies_and_requests_of_both_kinds(cookie: bytes, exp: bool) -> None:
    seg = segment(opt_pad(opt_fastopen(cookie, exp)), SYN)
    assert seg.options.tfo_cookie == cookie and seg.options.tfo_exp == exp


@pytest.mark.parametrize("cookie", [b"1", b"12", b"123", b"12345", COOKIE * 2 + b"12"])
def test_a_cookie_of_a_length_rfc_7413_does_not_have_is_no_cookie(cookie: bytes) -> None:
    assert segment(opt_pad(opt_fastopen(cookie)), SYN).options.tfo_cookie is None


def test_experimental_options_of_others_are_not_fast_open() -> None:
    assert segment(bytes.fromhex("fe04dead"), SYN).options.tfo_cookie is None
    assert segment(bytes.fromhex("fe02 0101"), SYN).options.tfo_cookie is None


def test_md5_and_accecn_are_handed_on() -> None:
    digest = bytes(range(16))
    assert segment(opt_pad(opt_md5(digest))).options.md5 == digest
    # RFC 9768 §3.2.3, figure 4: kind 174 is EE1B, ECEB, EE0B
    assert segment(opt_pad(opt_accecn((1, 2, 0xABCDEF)))).options.accecn == bytes.fromhex("ae0b 000001 000002 abcdef")
    assert segment(opt_pad(opt_accecn((1,), 172))).options.accecn == bytes.fromhex("ac05 000001")


MD5 = "1312" + "ab" * 16
AO16 = "1d10 0101" + "cd" * 12  # TCP-AO with keys 1, 1


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (MD5, bytes.fromhex("ab" * 16)),
        (MD5 + "0101" + AO16, bytes.fromhex("ab" * 16)),  # 18 bytes behind the first: too few for a second
        (MD5 + "1302 0101", bytes.fromhex("ab" * 16)),
        ("0001 0101" + MD5, None),  # behind the end of the list
        ("1302 0101", None),
        ("1300 0101", None),
        (AO16, None),  # shorter than a digest, and so not looked for
        ("1d04 0101 1d04 0101", None),
        ("0200" + "01" * 14, None),
        ("010101 0200" + "01" * 15, None),
        ("6314" + "01" * 18, None),
        (AO16 + "01010101", AUTH_AO),
        (MD5 + MD5, AUTH_BROKEN),
        (AO16 + "0101" + MD5, AUTH_BROKEN),
        ("1d04 0101" + MD5, AUTH_BROKEN),
        ("1302 0101" + MD5, AUTH_BROKEN),
        ("1311" + "00" * 15 + "010101", AUTH_BROKEN),
        ("1314" + "00" * 18, AUTH_BROKEN),
        ("1300 0101" + MD5, AUTH_BROKEN),
        ("0200" + "01" * 16, AUTH_BROKEN),
        ("0101 0200" + "01" * 16, AUTH_BROKEN),
        ("6315" + "01" * 18, AUTH_BROKEN),
        ("1d05 616263 1d05 616263" + "01" * 14, AUTH_BROKEN),
    ],
)
def test_signatures_and_broken_options_as_linux_tells_them_apart(options: str, found: bytes | None) -> None:
    """Measured on 6.18: what becomes of data with these options, on sockets with and without a key."""
    for flags in (ACK, SYN):
        assert segment(opt_pad(bytes.fromhex(options)), flags).options.md5 == found


# ---- building --------------------------------------------------------------------------------


def test_a_header_by_hand() -> None:
    built = build_header(1000, 80, 0xFFFFFFF0, 0x10, 0x1FF, 0xFADC, 3, bytes.fromhex("0101080a 00000005 00000006"), 0xBEEF)
    assert built == bytes.fromhex("03e8 0050 fffffff0 00000010 81ff fadc beef 0003 0101080a 00000005 00000006")


def test_unwrapped_sequence_numbers_are_cut_to_32_bits() -> None:
    built = build_header(1, 2, (7 << 32) + 5, (1 << 32) - 1 + (1 << 40), ACK, 1)
    assert built[4:12] == bytes.fromhex("00000005 ffffffff")
    assert opt_timestamp(1 << 32 | 9, -1) == bytes.fromhex("080a 00000009 ffffffff")
    assert opt_sack([((1 << 32) - 1, 1 << 32)]) == bytes.fromhex("050a ffffffff 00000000")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 41, 44])
def test_options_no_header_can_hold_are_the_callers_error(size: int) -> None:
    with pytest.raises(ValueError, match="TCP options"):
        build_header(1, 2, 3, 4, ACK, 5, 0, b"\x01" * size)


@pytest.mark.parametrize(
    ("built", "wire"),
    [
        (opt_mss(1460), "020405b4"),
        (opt_wscale(7), "030307"),
        (opt_sack_perm(), "0402"),
        (opt_sack([(1, 2), (3, 4)]), "0512 00000001 00000002 00000003 00000004"),
        (opt_timestamp(1, 2), "080a 00000001 00000002"),
        (opt_timestamp_aligned(1, 2), "0101080a 00000001 00000002"),
        (opt_md5(bytes(16)), "1312" + "00" * 16),
        (opt_fastopen(b""), "2202"),
        (opt_fastopen(COOKIE), "220a 0011223344556677"),
        (opt_fastopen(b"", exp=True), "fe04f989"),
        (opt_fastopen(COOKIE, exp=True), "fe0cf989 0011223344556677"),
        (opt_accecn(()), "ae02"),
        (opt_accecn((1, 2, 3), 172), "ac0b 000001 000002 000003"),
        (opt_accecn((0x1000001,)), "ae05 000001"),
    ],
)
def test_option_encodings_are_those_of_their_rfcs(built: bytes, wire: str) -> None:
    assert built == bytes.fromhex(wire)


@pytest.mark.parametrize(("size", "padded"), [(0, 0), (1, 4), (2, 4), (3, 4), (4, 4), (5, 8)])
def test_padding_fills_up_to_a_word_with_end_of_list(size: int, padded: int) -> None:
    assert opt_pad(b"\x01" * size) == b"\x01" * size + bytes(padded - size)


# ---- TcpHeader -------------------------------------------------------------------------------

ALL_OPTIONS: list[tuple[Option, ...]] = [
    (),
    (Mss(1460), SackPermitted(), Timestamps(1, 0), Nop(), WindowScale(7)),
    (Nop(), Nop(), Timestamps(5, 6), Nop(), Nop(), Sack(((0xFFFFFFF0, 5), (7, 8)))),
    (FastOpen(COOKIE), Nop(), Nop()),
    (FastOpen(b"", exp=True),),
    (Md5(bytes(range(16))), Nop(), Nop()),
    (AccEcn(172, (1, 2, 3)), Nop()),
    (AccEcn(174, ()), Nop(), Eol()),
    (Unknown(77, b"abcd"), Unknown(254, b"ab"), Nop(), Nop()),
    (Unknown(2, b""), Unknown(3, b"\x01\x02\x03"), Eol()),
    (Nop(), Malformed(b"\x02\x09\x00")),
    (Eol(b"abc"),),
]


@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_a_header_parses_back_to_itself(options: tuple[Option, ...]) -> None:
    header = TcpHeader(1000, 80, 0xFFFFFFF0, 5, 0x1FF, 77, 3, options, b"hello", reserved=5)
    parsed = TcpHeader.parse(header.emit(SRC, DST))
    assert parsed == header
    assert parsed.emit() == header.emit(SRC, DST)  # the received checksum is kept


@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_options_are_decoded_without_losing_a_byte(options: tuple[Option, ...]) -> None:
    raw = emit_options(options)
    assert parse_options(raw) == options
    assert emit_options(parse_options(raw)) == raw


def test_unaligned_options_are_padded_when_emitted() -> None:
    assert TcpHeader.parse(TcpHeader(1, 2, options=(WindowScale(7),)).emit()).options == (WindowScale(7), Eol())


@pytest.mark.parametrize(("src", "dst"), [(SRC, DST), (SRC6, DST6)])
@pytest.mark.parametrize("payload", [b"", b"odd", b"x" * 1448])
def test_the_computed_checksum_verifies(src: bytes, dst: bytes, payload: bytes) -> None:
    raw = TcpHeader(1000, 80, 0xFFFFFFFF, 1, ACK | PSH, 500, payload=payload).emit(src, dst)
    assert transport_ok(raw, src, dst, 6)


def test_without_addresses_the_checksum_field_is_zero_and_a_given_one_is_kept() -> None:
    assert TcpHeader(1, 2).emit()[16:18] == b"\0\0"
    assert TcpHeader(1, 2, checksum=0xBEEF).emit(SRC, DST)[16:18] == b"\xbe\xef"


@pytest.mark.parametrize("raw", [b"", bytes(19), bytes(12) + b"\x40" + bytes(20), bytes(12) + b"\x60" + bytes(10)])
def test_bytes_that_are_no_header_are_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        TcpHeader.parse(raw)


# ---- scapy -----------------------------------------------------------------------------------


def test_scapy_builds_the_same_segment() -> None:
    ours = TcpHeader(
        1000,
        80,
        0xFFFFFFF0,
        5,
        SYN | ACK | 0x40,
        64240,
        9,
        (Mss(1460), SackPermitted(), Timestamps(11, 22), Nop(), WindowScale(7), Sack(((1, 2),)), Nop(), Nop()),
        b"hello",
    )
    theirs = TCP(
        sport=1000,
        dport=80,
        seq=0xFFFFFFF0,
        ack=5,
        flags="SAE",
        window=64240,
        urgptr=9,
        options=[("MSS", 1460), ("SAckOK", b""), ("Timestamp", (11, 22)), ("NOP", None), ("WScale", 7), ("SAck", (1, 2)), ("NOP", None), ("NOP", None)],
    )
    assert ours.emit(SRC, DST) == bytes(IP(src="10.78.0.2", dst="10.78.0.1") / theirs / b"hello")[20:]
    assert ours.emit(SRC6, DST6) == bytes(IPv6(src="fd78::2", dst="fd78::1") / theirs / b"hello")[40:]


def test_scapy_reads_what_we_build() -> None:
    raw = TcpHeader(1, 2, 3, 4, 0x1FF, 6, 7, (Nop(), Nop(), Timestamps(8, 9), Nop(), Nop(), Sack(((10, 20), (30, 40)))), b"z").emit(SRC, DST)
    theirs = TCP(raw)
    assert (theirs.sport, theirs.dport, theirs.seq, theirs.ack, theirs.window, theirs.urgptr) == (1, 2, 3, 4, 6, 7)
    assert theirs.dataofs == 13 and int(theirs.flags) == 0x1FF
    assert theirs.options == [("NOP", None), ("NOP", None), ("Timestamp", (8, 9)), ("NOP", None), ("NOP", None), ("SAck", (10, 20, 30, 40))]
    assert bytes(theirs.payload) == b"z"
