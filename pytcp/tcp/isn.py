"""Initial sequence numbers and timestamp offsets nobody outside can guess.

RFC 6528: ISN = clock + F(4-tuple, secret), so that a reincarnation of a connection starts above the
old one while other 4-tuples learn nothing. Linux's clock ticks every 64 ns (wraps in 274 s). The other
half of the same keyed hash offsets the connection's timestamps when tcp_timestamps is 1 (RFC 7323
§5.4), which keeps uptime private and TSval continuous for one 4-tuple; 2 sends the bare clock.
Linux hashes with SipHash; a keyed BLAKE2 has the same property and is what Python has in C.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sock import Host

M32 = 0xFFFFFFFF
_PORTS = Struct("!HH").pack
_HALVES = Struct("<II").unpack


def choose(host: Host, saddr: bytes, daddr: bytes, sport: int, dport: int) -> tuple[int, int]:
    """(ISN, timestamp offset) for a connection from our `saddr`:`sport` to `daddr`:`dport`, 32 bits each."""
    low, high = _HALVES(blake2b(saddr + daddr + _PORTS(sport, dport), digest_size=8, key=host.secret()).digest())
    return (low + (host.realtime_ns() >> 6)) & M32, high if host.sysctl.tcp_timestamps == 1 else 0
