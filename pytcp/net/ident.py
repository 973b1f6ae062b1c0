"""Numbers that tell packets of one host apart: the identification of IPv4 (RFC 6864), of IPv6 fragments (RFC 8200 §4.5).

TCP's segments count on from a start of their own (`Sock.ip_id`); these are for everything else. Neither may tell an outsider
how much is sent: an IPv4 counter starts at random and runs on a little with time, an IPv6 number is drawn.
"""

from __future__ import annotations

from random import Random

COUNTERS = 4096  # destinations and protocols remembered


class Idents:
    """The counters of one stack."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._last: dict[tuple[bytes, int], tuple[int, int]] = {}

    def ipv4(self, daddr: bytes, proto: int, tick: int) -> int:
        """The next id towards a destination for a protocol, at a tick of the host's clock."""
        last = self._last
        key = (daddr, proto)
        old = last.pop(key, None)
        if old is None:
            if len(last) >= COUNTERS:
                del last[next(iter(last))]
            value = self._random.getrandbits(16)
        else:
            value = old[0] + 1 + (self._random.randrange(tick - old[1]) if tick > old[1] else 0)
        last[key] = (value & 0xFFFF, tick)
        return value & 0xFFFF

    def fragment6(self) -> int:
        """An id for the fragments of one IPv6 packet, never 0."""
        return self._random.randrange(1, 1 << 32)
