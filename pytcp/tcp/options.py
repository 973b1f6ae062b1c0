"""Which TCP options leave with a segment, and in which order.

Linux places its NOPs so that every header it builds has one of a few layouts, and receivers (GRO, the
header prediction of other stacks, middleboxes, fingerprinting) have come to expect them (linux-tcp §9):

  (with a key, in front of everything: NOP NOP MD5 signature, which `md5` puts there)
  SYN, SYN-ACK   MSS, [SACK-permitted + timestamps | NOP NOP timestamps], [NOP NOP SACK-permitted], NOP window scale,
                 [Fast Open cookie or request, padded behind]
  established    [NOP NOP timestamps], [NOP NOP SACK: a DSACK block first, then the newest blocks]

TSval is milliseconds of host time plus a per-connection offset (RFC 7323 §5.4 allows any clock of 1 ms
to 1 s). RFC 7323, RFC 2018, RFC 2883. Sysctls: tcp_timestamps, tcp_sack, tcp_window_scaling.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from pytcp.wire.tcpopt import MAX_OPTIONS, MSS, NOP, SACK, SACK_PERM, TIMESTAMP, TS_WORD, WSCALE, opt_fastopen

from . import md5

if TYPE_CHECKING:
    from .request import Request
    from .sock import Sock

M32 = 0xFFFFFFFF
TSTAMP_ALIGNED = 12  # bytes of NOP NOP timestamps
SACK_BASE_ALIGNED = 4  # bytes of NOP NOP SACK before the first block
SACK_PER_BLOCK = 8

_MSS = Struct("!BBH").pack
_TS = Struct("!III").pack
_PAIR = Struct("!II").pack
_SACK_TS_WORD = SACK_PERM << 24 | 2 << 16 | TIMESTAMP << 8 | 10
_SACK_ALONE = bytes((NOP, NOP, SACK_PERM, 2))


def tsval_now(sk: Sock) -> int:
    """The TSval a segment of `sk` sent now carries."""
    return (sk.host.now_ns // 1_000_000 + sk.ts_offset) & M32


def encode_syn(mss: int, timestamps: tuple[int, int] | None, sack: bool, wscale: int | None) -> bytes:
    """Options of a SYN or SYN-ACK: `timestamps` = (TSval, TSecr), `wscale` = shift count; None = not sent."""
    out = _MSS(MSS, 4, mss)
    if timestamps is not None:
        out += _TS(_SACK_TS_WORD if sack else TS_WORD, timestamps[0] & M32, timestamps[1] & M32)
    elif sack:
        out += _SACK_ALONE
    if wscale is not None:
        out += bytes((NOP, WSCALE, 3, wscale))
    return out


def syn_options(sk: Sock) -> bytes:
    """Options of this socket's SYN (or of the SYN-ACK of a simultaneous open), at any retransmission.

    They offer what the sysctls allow, whatever a crossing SYN of the peer said."""
    sysctl = sk.sysctl
    # beside a signature there is no room for timestamps and SACK, and SACK it is
    signature = md5.option_size(sk)
    out = encode_syn(
        advertised_mss(sk),
        (tsval_now(sk), sk.ts_recent) if sysctl.tcp_timestamps and not signature else None,
        bool(sysctl.tcp_sack),
        sk.rcv_wscale if sysctl.tcp_window_scaling else None,
    )
    state = sk.fastopen
    if state is not None and state.cookie is not None:
        whole = append_cookie(out, state.cookie, state.exp, MAX_OPTIONS - signature)
        state.syn_option = len(whole) > len(out)
        state.syn_exp = state.syn_option and state.exp
        return whole
    return out


def append_cookie(opts: bytes, cookie: bytes, exp: bool, room: int) -> bytes:
    """The Fast Open option behind the others of a SYN, where they all fit `room` bytes."""
    option = opt_fastopen(cookie, exp)
    option += bytes((NOP,)) * (-len(option) % 4)
    return opts + option if len(opts) + len(option) <= room else opts


def advertised_mss(sk: Sock) -> int:
    """MSS to announce now: a path MTU that shrank since connect() lowers it."""
    dst = sk.dst
    if dst is not None and dst.advmss and dst.advmss < sk.advmss:
        sk.advmss = dst.advmss
    return sk.advmss


def synack_options(req: Request) -> bytes:
    """Options of a SYN-ACK: those the SYN offered and we agreed to."""
    out = encode_syn(
        req.advmss,
        (req.tsval(), req.ts_recent) if req.tstamp_ok else None,
        req.sack_ok,
        req.rcv_wscale if req.wscale_ok else None,
    )
    if req.tfo_cookie is None:
        return out
    return append_cookie(out, req.tfo_cookie, req.tfo_exp, MAX_OPTIONS if req.secret() is None else MAX_OPTIONS - md5.SIZE_ALIGNED)


def _blocks(sk: Sock, room: int) -> int:
    """SACK blocks that go out: all there are, as far as `room` bytes (at least 4) reach."""
    count = len(sk.selective_acks) + (sk.duplicate_sack is not None)
    return min(count, (room - SACK_BASE_ALIGNED) // SACK_PER_BLOCK)


def established_size(sk: Sock) -> int:
    """Bytes of options an established segment carries now."""
    size = (TSTAMP_ALIGNED if sk.tstamp_ok else 0) + md5.option_size(sk)
    blocks = _blocks(sk, MAX_OPTIONS - size)
    if blocks:
        size += SACK_BASE_ALIGNED + SACK_PER_BLOCK * blocks
    return size


def encode_established(tsval: int, tsecr: int) -> bytes:
    """NOP NOP timestamps."""
    return _TS(TS_WORD, tsval & M32, tsecr & M32)


def established_options(sk: Sock) -> bytes:
    """Options of an established segment: timestamps, then SACK blocks (a DSACK first, RFC 2883 §3); a signature is still to come."""
    out = encode_established((sk.wstamp_ns // 1_000_000 + sk.ts_offset) & M32, sk.ts_recent) if sk.tstamp_ok else b""
    left = _blocks(sk, MAX_OPTIONS - len(out) - md5.option_size(sk))
    if not left:
        return out
    parts = [out, bytes((NOP, NOP, SACK, 2 + SACK_PER_BLOCK * left))]
    if sk.duplicate_sack is not None:
        start, end = sk.duplicate_sack
        parts.append(_PAIR(start & M32, end & M32))
        left -= 1
    parts.extend(_PAIR(start & M32, end & M32) for start, end in sk.selective_acks[:left])
    return b"".join(parts)
