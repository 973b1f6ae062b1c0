"""When what is read had come: SO_TIMESTAMP, SO_TIMESTAMPNS, their namesakes of 64 bits, and SO_TIMESTAMPING's RX_SOFTWARE.

A read is told the time of the last segment it took something of, as control data. Segments that were merged in the receive queue
(a chunk) have one time, that of the last of them. Times are kept beside the queues, as (end of the segment, time), from the moment the socket
wants them; what had come before has none, and a read of it says nothing.

A socket that wants times changes its class, like one with MD5 keys: the others pay nothing for them. Linux 4.12 (98aaa913b4ed).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from .md5 import Signed
from .sock import Sock

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

Stamps = list[tuple[int, int]]  # (end_seq, ns since 1970 or 0), by end_seq, never empty

SO_TIMESTAMP = 29
KIND = (1, SO_TIMESTAMP)  # key in sk.optmem: 0, or one of
MICROSECONDS, NANOSECONDS = 1, 2
RX_SOFTWARE = 1 << 3


def _advanced(sk: Sock) -> None:
    """The fast path may have queued something."""
    stamps: Stamps | None = sk.rx_stamps
    if stamps is not None and sk.rcv_nxt > stamps[-1][0] and sk.receive_queue:
        note(sk, sk.rcv_nxt)


class Stamped(Sock):
    """A Sock that keeps times."""

    __slots__ = ()

    def receive(self, seg: Segment) -> None:
        Sock.receive(self, seg)
        _advanced(self)


class SignedStamped(Signed):
    """One with MD5 keys, too."""

    __slots__ = ()

    def receive(self, seg: Segment) -> None:
        Signed.receive(self, seg)
        _advanced(self)


def update(sk: Sock) -> None:
    """What the socket wants may have changed."""
    wanted = sk.tstamp_flags & RX_SOFTWARE or (sk.optmem is not None and sk.optmem.get(KIND))
    if not wanted:
        sk.rx_stamps = None
        return
    if sk.rx_stamps is None:
        sk.rx_stamps = [(sk.rcv_nxt, 0)]  # nobody looked at the clock before
    if not isinstance(sk, Stamped | SignedStamped):
        sk.__class__ = SignedStamped if isinstance(sk, Signed) else Stamped


def note(sk: Sock, end_seq: int) -> None:
    """What ends at `end_seq` was queued now, if it had not been before."""
    stamps: Stamps = sk.rx_stamps
    if stamps[0][0] <= sk.copied_seq:
        del stamps[: bisect_left(stamps, (sk.copied_seq + 1,))]
    at = bisect_left(stamps, (end_seq,))
    if at == len(stamps) or stamps[at][0] != end_seq:
        stamps.insert(at, (end_seq, sk.host.realtime_ns()))


def forget(sk: Sock) -> None:
    """The last out-of-order segments were dropped: they come again, at another time."""
    stamps: Stamps = sk.rx_stamps
    last = max(sk.ofo_queue[-1].end_seq if sk.ofo_queue else 0, sk.rcv_nxt)
    del stamps[bisect_left(stamps, (last + 1,)) :]
    if not stamps:
        stamps.append((sk.rcv_nxt, 0))


def of_read(sk: Sock, upto: int) -> int:
    """The time of what a read took that ended before `upto`, ns; 0 if it is not known."""
    stamps: Stamps = sk.rx_stamps
    end = upto
    for chunk in sk.receive_queue or ():
        if chunk.seq < upto <= chunk.end_seq:
            end = chunk.end_seq
            break
    at = bisect_left(stamps, (end,))
    return stamps[at][1] if at < len(stamps) else 0
