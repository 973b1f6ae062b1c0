"""TCP options: their numbers, encoders for what we send, typed values for tools and tests.

RFC 9293 §3.2 (MSS), RFC 7323 (window scale, timestamps), RFC 2018 (SACK), RFC 7413 (Fast Open), RFC
2385 (MD5), RFC 9768 (AccECN). Encoders return exactly the option; padding to a multiple of four is
the caller's, because Linux places its NOPs deliberately (`options.syn_options`). Decoding keeps every
byte: what has an unknown kind or an odd length becomes `Unknown`, what cannot be cut into options
becomes `Malformed`, so `emit_options(parse_options(raw)) == raw` for any bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct

EOL = 0
NOP = 1
MSS = 2
WSCALE = 3
SACK_PERM = 4
SACK = 5
TIMESTAMP = 8
MD5SIG = 19
AO = 29
FASTOPEN = 34
ACCECN0 = 172  # counters in the order EE0B, ECEB, EE1B
ACCECN1 = 174  # counters in the order EE1B, ECEB, EE0B
EXPERIMENTAL = 254
FASTOPEN_MAGIC = 0xF989  # RFC 6994 ExID under which Fast Open travelled before kind 34

MAX_OPTIONS = 40
MD5_SIZE = 18
# what stands in the place of a digest (`Segment.md5`)
AUTH_BROKEN = b""  # options nobody can be told to have signed: cut off, or two signatures
AUTH_AO = b"\x1d"  # TCP-AO (RFC 5925)
TS_WORD = 0x0101080A  # NOP NOP TIMESTAMP 10: how nearly every segment's options begin

_MSS = Struct(">BBH")
_TS = Struct(">BBII")
_TS_ALIGNED = Struct(">III")
_PAIR = Struct(">II")
_EXP = Struct(">BBH")


# ---- encoders --------------------------------------------------------------------------------


def opt_mss(mss: int) -> bytes:
    """Maximum segment size in bytes (4 bytes; RFC 9293 §3.7.1)."""
    return _MSS.pack(MSS, 4, mss)


def opt_wscale(shift: int) -> bytes:
    """Window scale (3 bytes; RFC 7323 §2.2)."""
    return bytes((WSCALE, 3, shift))


def opt_sack_perm() -> bytes:
    """SACK permitted (2 bytes; RFC 2018 §2)."""
    return b"\x04\x02"


def opt_timestamp(tsval: int, tsecr: int) -> bytes:
    """Timestamps (10 bytes; RFC 7323 §3.2); both values modulo 2^32."""
    return _TS.pack(TIMESTAMP, 10, tsval & 0xFFFFFFFF, tsecr & 0xFFFFFFFF)


def opt_timestamp_aligned(tsval: int, tsecr: int) -> bytes:
    """NOP NOP timestamps (12 bytes): the layout of RFC 7323 appendix A that receivers look for first."""
    return _TS_ALIGNED.pack(TS_WORD, tsval & 0xFFFFFFFF, tsecr & 0xFFFFFFFF)


def opt_sack(blocks: Iterable[tuple[int, int]]) -> bytes:
    """SACK blocks (2 + 8n bytes; RFC 2018 §3), a DSACK block first (RFC 2883); edges modulo 2^32."""
    body = b"".join([_PAIR.pack(left & 0xFFFFFFFF, right & 0xFFFFFFFF) for left, right in blocks])
    return bytes((SACK, 2 + len(body))) + body


def opt_md5(digest: bytes) -> bytes:
    """MD5 signature (18 bytes; RFC 2385 §3)."""
    return bytes((MD5SIG, 2 + len(digest))) + digest


def opt_fastopen(cookie: bytes, exp: bool = False) -> bytes:
    """Fast Open cookie, empty to request one (RFC 7413 §4.1.1); `exp` uses kind 254 with ExID F989."""
    if exp:
        return _EXP.pack(EXPERIMENTAL, 4 + len(cookie), FASTOPEN_MAGIC) + cookie
    return bytes((FASTOPEN, 2 + len(cookie))) + cookie


def opt_accecn(counters: Sequence[int], kind: int = ACCECN1) -> bytes:
    """AccECN byte counters, 0 to 3 of them in the order `kind` prescribes, modulo 2^24 (RFC 9768 §3.2.3)."""
    return bytes((kind, 2 + 3 * len(counters))) + b"".join([(value & 0xFFFFFF).to_bytes(3, "big") for value in counters])


def opt_pad(options: bytes) -> bytes:
    """`options` padded with end-of-list bytes to a multiple of four."""
    return options + bytes(-len(options) & 3)


# ---- typed options ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nop:
    """Padding between options."""

    def emit(self) -> bytes:
        return b"\x01"


@dataclass(frozen=True, slots=True)
class Eol:
    """End of the list; `padding` is whatever follows it up to the data offset."""

    padding: bytes = b""

    def emit(self) -> bytes:
        return b"\x00" + self.padding


@dataclass(frozen=True, slots=True)
class Mss:
    """Maximum segment size, bytes."""

    value: int

    def emit(self) -> bytes:
        return opt_mss(self.value)


@dataclass(frozen=True, slots=True)
class WindowScale:
    """Shift count as sent, even above 14."""

    shift: int

    def emit(self) -> bytes:
        return opt_wscale(self.shift)


@dataclass(frozen=True, slots=True)
class SackPermitted:
    """The sender of this SYN understands SACK."""

    def emit(self) -> bytes:
        return opt_sack_perm()


@dataclass(frozen=True, slots=True)
class Sack:
    """Received blocks, (left, right) edges."""

    blocks: tuple[tuple[int, int], ...]

    def emit(self) -> bytes:
        return opt_sack(self.blocks)


@dataclass(frozen=True, slots=True)
class Timestamps:
    """TSval and TSecr."""

    tsval: int
    tsecr: int

    def emit(self) -> bytes:
        return opt_timestamp(self.tsval, self.tsecr)


@dataclass(frozen=True, slots=True)
class FastOpen:
    """Cookie (b"" requests one), under kind 34 or the experimental one."""

    cookie: bytes
    exp: bool = False

    def emit(self) -> bytes:
        return opt_fastopen(self.cookie, self.exp)


@dataclass(frozen=True, slots=True)
class Md5:
    """Signature of 16 bytes."""

    digest: bytes

    def emit(self) -> bytes:
        return opt_md5(self.digest)


@dataclass(frozen=True, slots=True)
class AccEcn:
    """0 to 3 counters of 24 bits in the order `kind` (172 or 174) prescribes."""

    kind: int
    counters: tuple[int, ...]

    def emit(self) -> bytes:
        return opt_accecn(self.counters, self.kind)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Any other kind, or a known kind with a length it does not have; `data` is what follows the length byte."""

    kind: int
    data: bytes

    def emit(self) -> bytes:
        return bytes((self.kind, 2 + len(self.data))) + self.data


@dataclass(frozen=True, slots=True)
class Malformed:
    """The rest of the options from a length byte that is missing, below 2 or beyond the end."""

    raw: bytes

    def emit(self) -> bytes:
        return self.raw


Option = Nop | Eol | Mss | WindowScale | SackPermitted | Sack | Timestamps | FastOpen | Md5 | AccEcn | Unknown | Malformed


def _decode(kind: int, body: bytes) -> Option:
    size = len(body)
    match kind:
        case 2 if size == 2:
            return Mss(int.from_bytes(body, "big"))
        case 3 if size == 1:
            return WindowScale(body[0])
        case 4 if size == 0:
            return SackPermitted()
        case 5 if size >= 8 and size % 8 == 0:
            return Sack(tuple(_PAIR.iter_unpack(body)))
        case 8 if size == 8:
            return Timestamps(*_PAIR.unpack(body))
        case 19 if size == 16:
            return Md5(body)
        case 34:
            return FastOpen(body)
        case 172 | 174 if size <= 9 and size % 3 == 0:
            return AccEcn(kind, tuple(int.from_bytes(body[i : i + 3], "big") for i in range(0, size, 3)))
        case 254 if size >= 2 and body[:2] == b"\xf9\x89":
            return FastOpen(body[2:], exp=True)
    return Unknown(kind, body)


def parse_options(raw: bytes | bytearray | memoryview) -> tuple[Option, ...]:
    """All options in `raw` (the bytes between the fixed header and the data), every byte accounted for. Never raises."""
    data = bytes(raw)
    end = len(data)
    found: list[Option] = []
    at = 0
    while at < end:
        kind = data[at]
        if kind == EOL:
            found.append(Eol(data[at + 1 :]))
            break
        if kind == NOP:
            found.append(Nop())
            at += 1
            continue
        size = data[at + 1] if at + 1 < end else 0
        if size < 2 or at + size > end:
            found.append(Malformed(data[at:]))
            break
        found.append(_decode(kind, data[at + 2 : at + size]))
        at += size
    return tuple(found)


def emit_options(options: Iterable[Option]) -> bytes:
    """The options one after the other, unpadded."""
    return b"".join([option.emit() for option in options])
