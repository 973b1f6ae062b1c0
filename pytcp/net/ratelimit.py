"""How many ICMP messages leave: a bucket per destination, and one for the whole host.

Per destination (Linux: inet_peer) a token bucket six deep that refills one per `icmp_ratelimit` ms;
all limited types share it. Host-wide there are `icmp_msgs_per_sec` credits a second up to
`icmp_msgs_burst`; a message costs a random number of them (5.10, b38e7819cae9 "icmp: randomize the
global rate limiter"). The host-wide bucket is asked first, and paid last.
Counters: IcmpOutRateLimitHost, IcmpOutRateLimitGlobal, Icmp6OutRateLimitHost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

BURST = 6
PEERS = 4096  # destinations remembered

REFILL_NS = 20_000_000  # the host's bucket is topped up no more often

_MS = 1_000_000
_S = 1_000_000_000


class PeerLimit:
    """The buckets of all destinations."""

    __slots__ = ("_peers",)

    def __init__(self) -> None:
        self._peers: dict[bytes, tuple[int, int]] = {}  # address -> (tokens in ns, since)

    def allow(self, addr: bytes, now_ns: int, interval_ms: int) -> bool:
        """Take one message's worth from the bucket of `addr`; False when there is not enough."""
        if interval_ms == 0:
            return True
        cost = interval_ms * _MS
        peers = self._peers
        entry = peers.pop(addr, None)
        if entry is None:
            tokens = BURST * cost
            if len(peers) >= PEERS:
                del peers[next(iter(peers))]
        else:
            tokens = min(entry[0] + now_ns - entry[1], BURST * cost)
        allowed = tokens >= cost
        if allowed:
            tokens -= cost
        peers[addr] = (tokens, now_ns)
        return allowed


class HostLimit:
    """The one bucket of the host, shared by both families."""

    __slots__ = ("credit", "stamp_ns", "_random")

    def __init__(self, random: Random) -> None:
        self.credit = -1  # full at first use
        self.stamp_ns = 0
        self._random = random

    def allow(self, now_ns: int, per_sec: int, burst: int) -> bool:
        """Whether there is credit for one message; it is taken by `consume` once nothing else forbids the message."""
        if self.credit < 0:
            self.credit = burst
            self.stamp_ns = now_ns
        elapsed = now_ns - self.stamp_ns
        if elapsed >= REFILL_NS:
            self.credit = min(self.credit + per_sec * min(elapsed, _S) // _S, burst)
            self.stamp_ns = now_ns
        return self.credit > 0

    def consume(self) -> None:
        """Take nought to two credits, one on average: a prober cannot count what others caused."""
        self.credit = max(self.credit - self._random.randrange(3), 0)
