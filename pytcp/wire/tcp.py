"""TCP headers (RFC 9293 §3.1): the engine's `Segment`, the header builder, and `TcpHeader` for tools.

`parse_segment` runs once per received super-segment and `build_header` once per sent one, so both
are a precompiled struct and plain assignments. Options are read as Linux's tcp_parse_options reads
them: the first length byte that is below 2 or beyond the header ends the list silently, an option
of the wrong length is skipped, the last of equal options wins, and MSS, window scale, SACK-permitted
and Fast Open count on SYN segments only. Linux 6.18 looks for authentication with less patience, as
long as 18 bytes are left: a length that is wrong, or a second signature, condemns the segment
(`AUTH_BROKEN`). The layout NOP NOP TS (RFC 7323 appendix A) has a fast path.

`TcpHeader` is the complete value, for tests, traces and tools: nothing is interpreted or lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from pytcp.wire.checksum import checksum, pseudo
from pytcp.wire.errors import TruncatedError, WireError
from pytcp.wire.tcpopt import (
    ACCECN0,
    ACCECN1,
    AO,
    AUTH_AO,
    AUTH_BROKEN,
    EXPERIMENTAL,
    FASTOPEN,
    FASTOPEN_MAGIC,
    MAX_OPTIONS,
    MD5_SIZE,
    MD5SIG,
    MSS,
    NOP,
    SACK,
    SACK_PERM,
    TIMESTAMP,
    TS_WORD,
    WSCALE,
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
    Timestamps,
    Unknown,
    WindowScale,
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
)

__all__ = [
    "IPPROTO_TCP",
    "AccEcn",
    "Eol",
    "FastOpen",
    "Malformed",
    "Md5",
    "Mss",
    "Nop",
    "Option",
    "Options",
    "Sack",
    "SackPermitted",
    "Segment",
    "TcpHeader",
    "Timestamps",
    "Unknown",
    "WindowScale",
    "build_header",
    "emit_options",
    "opt_accecn",
    "opt_fastopen",
    "opt_md5",
    "opt_mss",
    "opt_pad",
    "opt_sack",
    "opt_sack_perm",
    "opt_timestamp",
    "opt_timestamp_aligned",
    "opt_wscale",
    "parse_options",
    "parse_segment",
]

IPPROTO_TCP = 6

_FLAG_SYN = 0x02
_FLAGS = 0x1FF

_HEADER = Struct(">HHIIHHHH")
_unpack_header = _HEADER.unpack_from
_unpack_header_ts = Struct(">HHIIHHHHIII").unpack_from
_unpack_word = Struct(">I").unpack_from
_unpack_pair = Struct(">II").unpack_from
_unpack_sack_ack = Struct(">IIII").unpack_from
# NOP NOP SACK and its length, by the data offset of one to three blocks behind timestamps
_SACK_WORD = {9 + 2 * n: 0x01010502 + 8 * n for n in (1, 2, 3)}
_iter_pairs = Struct(">II").iter_unpack
_EMPTY = memoryview(b"")


class Options:
    """What the options of one segment said, timestamps apart."""

    __slots__ = ("sack", "mss", "wscale", "sack_perm", "tfo_cookie", "tfo_exp", "md5", "accecn")

    def __init__(self) -> None:
        self.sack: tuple[tuple[int, int], ...] = ()  # ((left, right), ...) as on the wire
        self.mss: int | None = None  # None: no option, or a zero one
        self.wscale: int | None = None  # raw, may exceed 14
        self.sack_perm = False
        self.tfo_cookie: bytes | None = None  # b"" asks for one; None: no option, or one of a length no cookie has
        self.tfo_exp = False
        self.md5: bytes | None = None  # the digest, or AUTH_BROKEN, AUTH_AO
        self.accecn: bytes | None = None  # the whole option with kind and length


NO_OPTIONS = Options()  # of every segment that has none but timestamps, nearly all; nobody writes to it


class Segment:
    """One received segment or super-segment, as the engine sees it.

    Sequence numbers are as on the wire (modulo 2^32) until `input.receive` unwraps them. `data` is
    the whole packet and `l4_off` where the TCP header starts in it: what a reset or an ICMP error
    quotes. `payload` may be a view into a device buffer: whoever keeps it takes `rx`.
    """

    __slots__ = (
        "family",  # 4 or 6
        "src",
        "dst",
        "sport",
        "dport",
        "seq",
        "ack",
        "end_seq",  # set by whoever receives it: seq + length + SYN + FIN
        "flags",  # nine bits, AE to FIN
        "window",  # unscaled, as on the wire
        "urg_ptr",
        "doff",  # header length in 32-bit words, 5..15
        "payload",
        "length",  # payload bytes
        "tsval",
        "tsecr",
        "saw_tstamp",
        "options",  # the others
        "data",
        "l4_off",
        "gso_size",  # payload bytes of each part of a super-segment, 0 for a single segment
        "nsegs",
        "tos",
        "ttl",
        "truesize",  # what it costs in the receive buffer's memory model, set by net
        "rx",  # RxBuf that `payload` points into, or None when it may simply be kept
    )

    def __init__(
        self,
        *,
        family: int = 4,
        src: bytes = b"",
        dst: bytes = b"",
        sport: int = 0,
        dport: int = 0,
        seq: int = 0,
        ack: int = 0,
        flags: int = 0,
        window: int = 0,
        urg_ptr: int = 0,
        doff: int = 5,
        payload: memoryview | bytes = b"",
    ) -> None:
        """A segment without options that came from no packet; assign the other fields afterwards."""
        self.family = family
        self.src = src
        self.dst = dst
        self.sport = sport
        self.dport = dport
        self.seq = seq
        self.ack = ack
        self.end_seq = 0
        self.flags = flags
        self.window = window
        self.urg_ptr = urg_ptr
        self.doff = doff
        self.payload = payload
        self.length = len(payload)
        self.tsval = 0
        self.tsecr = 0
        self.saw_tstamp = False
        self.options = Options()
        self.data: memoryview = _EMPTY
        self.l4_off = 0
        self.gso_size = 0
        self.nsegs = 1
        self.tos = 0
        self.ttl = 0
        self.truesize = 0
        self.rx: Any = None

    @property
    def options_raw(self) -> memoryview:
        """The option bytes as they came, padding included; empty for a segment that came from no packet."""
        start = self.l4_off + 20
        return self.data[start : start - 20 + self.doff * 4]

    def __repr__(self) -> str:
        return f"<Segment {self.sport}>{self.dport} flags={self.flags:#x} seq={self.seq} ack={self.ack} win={self.window} len={self.length}>"


_new_segment = Segment.__new__


def parse_segment(data: memoryview, l4_off: int, l4_end: int, family: int, src: bytes, dst: bytes) -> Segment:
    """The TCP segment in `data[l4_off:l4_end]`; the checksum is the caller's to verify.

    The payload stays a view of `data`. Raises WireError when the header does not fit; never because
    of an option. `gso_size`, `nsegs`, `tos`, `ttl`, `truesize` and `rx` are left at their defaults.
    """
    size = l4_end - l4_off
    if size < 20 or l4_end > len(data):
        raise TruncatedError("TCP header is cut off")
    doff = data[l4_off + 12] >> 4
    start = l4_off + doff * 4
    if doff < 5:
        raise WireError("TCP data offset is below 5", 12)
    if start > l4_end:
        raise TruncatedError("TCP data offset is beyond the end", 12)

    seg = _new_segment(Segment)
    word = 0
    if doff == 8:
        seg.sport, seg.dport, seg.seq, seg.ack, flags, seg.window, _, seg.urg_ptr, word, tsval, tsecr = _unpack_header_ts(data, l4_off)
    else:
        seg.sport, seg.dport, seg.seq, seg.ack, flags, seg.window, _, seg.urg_ptr = _unpack_header(data, l4_off)
    if word == TS_WORD:
        seg.tsval = tsval
        seg.tsecr = tsecr
        seg.saw_tstamp = True
    else:
        seg.tsval = 0
        seg.tsecr = 0
        seg.saw_tstamp = False
    seg.flags = flags & _FLAGS
    seg.family = family
    seg.src = src
    seg.dst = dst
    seg.end_seq = 0
    seg.doff = doff
    seg.length = l4_end - start
    seg.payload = data[start:l4_end] if start < l4_end else b""
    seg.options = NO_OPTIONS
    seg.data = data
    seg.l4_off = l4_off
    seg.gso_size = 0
    seg.nsegs = 1
    seg.tos = 0
    seg.ttl = 0
    seg.truesize = 0
    seg.rx = None
    if doff > 5 and word != TS_WORD and not (doff in _SACK_WORD and _read_sack_ack(seg)):
        _read_options(seg, bytes(data[l4_off + 20 : start]))
    return seg


def _read_sack_ack(seg: Segment) -> bool:
    """Whether the options were exactly NOP NOP TS NOP NOP SACK, what a receiver with holes sends; then they are read."""
    options = seg.l4_off + 20
    word, tsval, tsecr, sack = _unpack_sack_ack(seg.data, options)
    if word != TS_WORD or sack != _SACK_WORD[seg.doff]:
        return False
    seg.tsval = tsval
    seg.tsecr = tsecr
    seg.saw_tstamp = True
    seg.options = Options()
    seg.options.sack = tuple(_iter_pairs(seg.data[options + 16 : options - 20 + seg.doff * 4]))
    return True


def _read_options(seg: Segment, raw: bytes) -> None:
    """Fill in what Linux would take from these option bytes."""
    options = seg.options = Options()
    end = len(raw)
    at = 0
    while at < end:
        kind = raw[at]
        if kind == NOP:
            at += 1
            continue
        # end of list, or no room for a length byte
        if kind == 0 or at + 2 > end:
            return
        size = raw[at + 1]
        if size < 2 or at + size > end:
            if end - at >= MD5_SIZE:
                options.md5 = AUTH_BROKEN
            return
        if kind == SACK:
            if size >= 10 and size & 7 == 2:
                options.sack = tuple(_iter_pairs(raw[at + 2 : at + size]))
        elif kind == TIMESTAMP:
            if size == 10:
                seg.tsval, seg.tsecr = _unpack_pair(raw, at + 2)
                seg.saw_tstamp = True
        elif kind in (ACCECN0, ACCECN1):
            options.accecn = raw[at : at + size]
        elif kind in (MD5SIG, AO):
            if end - at >= MD5_SIZE and not _read_authentication(options, kind, raw[at + 2 : at + size]):
                return
        elif seg.flags & _FLAG_SYN:
            _read_syn_option(options, kind, raw[at + 2 : at + size])
        at += size


def _read_authentication(options: Options, kind: int, body: bytes) -> bool:
    """A signature; False when it is one no segment should have."""
    sound = len(body) == MD5_SIZE - 2 if kind == MD5SIG else len(body) > 2
    if sound and options.md5 is None:
        options.md5 = body if kind == MD5SIG else AUTH_AO
        return True
    options.md5 = AUTH_BROKEN
    return False


def _read_syn_option(options: Options, kind: int, body: bytes) -> None:
    """The options that mean something on a SYN only."""
    size = len(body)
    if kind == MSS and size == 2:
        options.mss = int.from_bytes(body, "big") or options.mss
    elif kind == WSCALE and size == 1:
        options.wscale = body[0]
    elif kind == SACK_PERM and size == 0:
        options.sack_perm = True
    elif kind == FASTOPEN:
        _read_cookie(options, body, False)
    elif kind == EXPERIMENTAL and size >= 2 and body[0] << 8 | body[1] == FASTOPEN_MAGIC:
        _read_cookie(options, body[2:], True)


def _read_cookie(options: Options, cookie: bytes, exp: bool) -> None:
    """A cookie is empty (a request) or an even 4 to 16 bytes (RFC 7413 §4.1.1); of an odd one Linux takes no notice."""
    size = len(cookie)
    if size & 1:
        return
    options.tfo_cookie = cookie if size == 0 or 4 <= size <= 16 else None
    options.tfo_exp = exp


def build_header(sport: int, dport: int, seq: int, ack: int, flags: int, window: int, urg_ptr: int = 0, options: bytes = b"", csum: int = 0) -> bytes:
    """A TCP header ready to send.

    `seq` and `ack` may be unwrapped, they are taken modulo 2^32; `window` is the 16-bit field;
    `csum` is the field's value: the complete checksum or, for a device that completes it, the folded
    pseudo-header sum. Raises ValueError when `options` is not a multiple of 4 bytes or above 40.
    """
    size = len(options)
    if size & 3 or size > MAX_OPTIONS:
        raise ValueError(f"TCP options must be padded to 4 and at most 40 bytes, not {size}")
    return _HEADER.pack(sport, dport, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, (20 + size) << 10 | flags, window, csum, urg_ptr) + options


@dataclass(frozen=True, slots=True)
class TcpHeader:
    """A whole TCP segment as a value; `parse(emit())` gives it back.

    `emit` pads options with end-of-list bytes only when they are not a multiple of four.
    """

    sport: int
    dport: int
    seq: int = 0
    ack: int = 0
    flags: int = 0  # nine bits, AE to FIN
    window: int = 0
    urg_ptr: int = 0
    options: tuple[Option, ...] = ()
    payload: bytes = b""
    reserved: int = 0  # the three bits beside AE
    checksum: int | None = field(default=None, compare=False)  # as received; None: `emit` computes it

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> TcpHeader:
        """From a complete segment. Raises WireError when the header does not fit; the checksum is not verified."""
        if len(data) < 20:
            raise TruncatedError("TCP header is cut off")
        sport, dport, seq, ack, flags, window, csum, urg_ptr = _unpack_header(data)
        size = flags >> 12 << 2
        if size < 20:
            raise WireError("TCP data offset is below 5", 12)
        if size > len(data):
            raise TruncatedError("TCP data offset is beyond the end", 12)
        options = parse_options(data[20:size])
        return cls(sport, dport, seq, ack, flags & _FLAGS, window, urg_ptr, options, bytes(data[size:]), flags >> 9 & 7, csum)

    def emit(self, src: bytes = b"", dst: bytes = b"") -> bytes:
        """The segment's bytes; addresses are needed for a checksum to be computed, without them the field is 0."""
        options = opt_pad(emit_options(self.options))
        flags = self.flags | self.reserved << 9
        head = build_header(self.sport, self.dport, self.seq, self.ack, flags, self.window, self.urg_ptr, options, self.checksum or 0)
        segment = head + self.payload
        if self.checksum is None and src:
            csum = checksum(segment, pseudo(src, dst, IPPROTO_TCP, len(segment)))
            segment = segment[:16] + csum.to_bytes(2, "big") + segment[18:]
        return segment
