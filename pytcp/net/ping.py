"""Echo requests from this host, and the answers to them (RFC 792, RFC 4443).

A `Pinger` sends on demand and is told of every reply and every error about its requests; it keeps no
timer of its own, so that a program decides what "too late" means. At most `OUTSTANDING` requests are
remembered, the oldest are forgotten first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytcp.wire.icmp import Quoted

    from .packet import Packet
    from .stack import Stack

OUTSTANDING = 4096


class Reply(NamedTuple):
    """What became of one echo request."""

    seq: int
    source: bytes  # who answered: the destination, or the sender of an error
    rtt_ns: int
    ttl: int  # of the answer
    data: bytes  # what came back; b"" with an error
    error: tuple[int, int] | None = None  # ICMP type and code of an error


class Pinger:
    """One series of echo requests to one destination."""

    def __init__(self, table: PingTable, dst: bytes, ident: int, on_reply: Callable[[Reply], None], source: bytes = b"", ttl: int = 0) -> None:
        self.table = table
        self.dst = dst
        self.ident = ident
        self.on_reply = on_reply
        self.source = source
        self.ttl = ttl
        self.seq = 0
        self._sent: dict[int, int] = {}

    def send(self, data: bytes = bytes(range(56))) -> int:
        """Send the next request and return its sequence number. Raises OSError when there is no route."""
        from . import icmp, icmpv6

        stack = self.table.stack
        stack.check_open()
        self.seq = self.seq + 1 & 0xFFFF
        if len(self._sent) >= OUTSTANDING:
            del self._sent[next(iter(self._sent))]
        self._sent[self.seq] = stack.now()
        send = icmp.send_echo if len(self.dst) == 4 else icmpv6.send_echo
        send(stack, self.dst, self.source, self.ident, self.seq, data, self.ttl)
        return self.seq

    def answered(self, seq: int, source: bytes, ttl: int, data: bytes, error: tuple[int, int] | None = None) -> None:
        """A reply or an error came in; duplicates and strangers are ignored."""
        sent = self._sent.pop(seq, None)
        if sent is not None:
            self.on_reply(Reply(seq, source, self.table.stack.heap.now_ns - sent, ttl, data, error))

    def close(self) -> None:
        """Expect no more replies."""
        self.table.remove(self)


class PingTable:
    """The pingers of a stack by family and identifier."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._pingers: dict[tuple[int, int], Pinger] = {}

    def open(self, dst: bytes, on_reply: Callable[[Reply], None], *, source: bytes = b"", ttl: int = 0) -> Pinger:
        """A pinger with an identifier of its own. Raises OSError EAGAIN when all 65535 are taken."""
        family = 4 if len(dst) == 4 else 6
        start = self.stack.random.randrange(1, 0x10000)
        for step in range(0xFFFF):
            ident = (start + step) % 0xFFFF + 1
            if (family, ident) not in self._pingers:
                pinger = Pinger(self, dst, ident, on_reply, source, ttl)
                self._pingers[family, ident] = pinger
                return pinger
        raise BlockingIOError(11, "every echo identifier is in use")

    def remove(self, pinger: Pinger) -> None:
        self._pingers.pop((4 if len(pinger.dst) == 4 else 6, pinger.ident), None)

    def close(self) -> None:
        self._pingers.clear()

    def reply(self, pkt: Packet, message: bytes) -> None:
        """An echo reply came in; `message` is the whole ICMP message."""
        pinger = self._pingers.get((pkt.family, message[4] << 8 | message[5]))
        if pinger is not None:
            pinger.answered(message[6] << 8 | message[7], pkt.src, pkt.ttl, message[8:])

    def error(self, pkt: Packet, quote: Quoted, kind: int, code: int) -> None:
        """An error about an ICMP message of ours came in."""
        pinger = self._pingers.get((quote.family, quote.l4[4] << 8 | quote.l4[5]))
        if pinger is not None and quote.dst == pinger.dst:
            pinger.answered(quote.l4[6] << 8 | quote.l4[7], pkt.src, pkt.ttl, b"", (kind, code))
