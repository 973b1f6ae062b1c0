"""SYN cookies: accepting connections without remembering half-open ones (D. J. Bernstein 1996, RFC 4987 §3.6).

When the SYN queue is full (tcp_syncookies 1) or always (2) the SYN-ACK's sequence number itself carries
what must be known when the last ACK comes back:

  ISN = H0(4-tuple) + peer's ISN + minute << 24 + ((H1(4-tuple, minute) + MSS index) mod 2^24)

The MSS is rounded down to a table of four. A cookie is good for the current and the previous minute of
the host's clock, and only at a listener that has sent cookies in the last two minutes. With timestamps
the SYN-ACK's TSval carries window scale, SACK and ECN in its low six bits; without, they are lost.
Counters: SyncookiesSent, SyncookiesRecv, SyncookiesFailed.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING

from .const import NSEC_PER_MSEC, NSEC_PER_SEC

if TYPE_CHECKING:
    from .request import Request
    from .sock import Host, Sock

M32 = 0xFFFFFFFF
COOKIE_BITS = 24
COOKIE_MASK = (1 << COOKIE_BITS) - 1
PERIOD_NS = 60 * NSEC_PER_SEC
MAX_AGE = 2  # periods
VALID_NS = MAX_AGE * PERIOD_NS

MSS_TABLE4 = (536, 1300, 1440, 1460)
MSS_TABLE6 = (1220, 1420, 1440, 8940)

TS_BITS = 6
TS_MASK = (1 << TS_BITS) - 1
TS_NO_WSCALE = 0xF
TS_SACK = 1 << 4
TS_ECN = 1 << 5

_INPUT = Struct("!HHQB").pack


def _hash(host: Host, saddr: bytes, daddr: bytes, sport: int, dport: int, count: int, which: int) -> int:
    data = saddr + daddr + _INPUT(sport, dport, count, which)
    return int.from_bytes(blake2b(data, digest_size=4, key=host.secret(), person=b"syncookie").digest(), "big")


def _mss_index(family: int, mss: int) -> int:
    table = MSS_TABLE4 if family == 4 else MSS_TABLE6
    index = len(table) - 1
    while index and mss < table[index]:
        index -= 1
    return index


def make(req: Request) -> int:
    """The ISN that stands for `req` (its addresses, the peer's ISN and MSS); notes at the listener that it sends cookies."""
    host = req.host
    listener = req.listener
    listener.last_overflow_ns = host.now_ns or 1
    host.mib.SyncookiesSent += 1
    count = host.now_ns // PERIOD_NS
    plain = _hash(host, req.saddr, req.daddr, req.sport, req.dport, 0, 0)
    masked = _hash(host, req.saddr, req.daddr, req.sport, req.dport, count, 1)
    data = _mss_index(req.family, req.mss)
    return (plain + req.rcv_isn + (count << COOKIE_BITS) + (masked + data & COOKIE_MASK)) & M32


def recent_overflow(listener: Sock) -> bool:
    """Whether `listener` has sent cookies recently enough for one to come back."""
    last = listener.last_overflow_ns
    return bool(last) and listener.host.now_ns - last <= VALID_NS


def check(host: Host, family: int, saddr: bytes, daddr: bytes, sport: int, dport: int, peer_isn: int, cookie: int) -> int:
    """The MSS a returned `cookie` stands for; 0 when it is none of ours, or too old."""
    count = host.now_ns // PERIOD_NS
    rest = (cookie - _hash(host, saddr, daddr, sport, dport, 0, 0) - peer_isn) & M32
    age = (count - (rest >> COOKIE_BITS)) & (M32 >> COOKIE_BITS)
    if age >= MAX_AGE or age > count:
        return 0
    index = (rest - _hash(host, saddr, daddr, sport, dport, count - age, 1)) & COOKIE_MASK
    table = MSS_TABLE4 if family == 4 else MSS_TABLE6
    return table[index] if index < len(table) else 0


def encode_timestamp(req: Request) -> int:
    """TSval, without the connection's offset, whose low bits carry the options of `req`; never later than now."""
    now = req.host.now_ns // NSEC_PER_MSEC & M32
    bits = req.snd_wscale if req.wscale_ok else TS_NO_WSCALE
    if req.sack_ok:
        bits |= TS_SACK
    if req.ecn_ok:
        bits |= TS_ECN
    stamp = now & ~TS_MASK | bits
    return stamp if stamp <= now else stamp - (TS_MASK + 1)


def decode_timestamp(req: Request, tsecr: int) -> bool:
    """Give `req` the options in `tsecr` (offset removed); False when the sysctls forbid what it claims."""
    sysctl = req.sysctl
    if not sysctl.tcp_timestamps:
        return False
    req.sack_ok = bool(tsecr & TS_SACK)
    if req.sack_ok and not sysctl.tcp_sack:
        return False
    req.ecn_ok = bool(tsecr & TS_ECN)
    wscale = tsecr & TS_NO_WSCALE
    if wscale == TS_NO_WSCALE:
        return True
    req.wscale_ok = True
    req.snd_wscale = wscale
    return bool(sysctl.tcp_window_scaling)
