"""ICMP errors about a connection: what they mean to it, and which are believed (RFC 1122 §4.2.3.9, RFC 5927).

An error counts only if the sequence number it quotes is in flight (snd_una..snd_nxt). Once connected no
error ends a connection: it is kept as the reason to report if retransmitting fails ("soft"), or becomes
the pending error at once where the program set IP_RECVERR. A connection attempt ends. A half-open
connection ends for those errors that would be soft, in IPv4; for the fatal ones in IPv6 (measured, both).
Network and host unreachable undo one RTO backoff (RFC 6069): the outage is in the path, not congestion.
"Fragmentation needed" and "packet too big" lower the path MTU (`mtu`). Counters: OutOfWindowIcmps, ListenDrops.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, NamedTuple

from . import close, handshake, mtu, request, rtt, seq, timers
from .const import CLOSE, LISTEN, POLLERR, SYN_RECV, SYN_SENT
from .sock import Sock

if TYPE_CHECKING:
    from .sock import Host

# ICMPv4 types (RFC 792)
DEST_UNREACH = 3
TIME_EXCEEDED = 11
PARAMETER_PROBLEM = 12
NET_UNREACH = 0
HOST_UNREACH = 1
FRAG_NEEDED = 4
# ICMPv6 types (RFC 4443)
DEST_UNREACH6 = 1
PACKET_TOO_BIG6 = 2
TIME_EXCEEDED6 = 3
PARAMETER_PROBLEM6 = 4
NO_ROUTE6 = 0
MIN_MTU6 = 1280

# errno by code of ICMPv4 destination unreachable; 4 (fragmentation needed) is handled apart
UNREACH_ERRNO4 = (
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.ENOPROTOOPT,
    errno.ECONNREFUSED,
    errno.EMSGSIZE,
    errno.EOPNOTSUPP,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.ENONET,
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.EHOSTUNREACH,
    errno.EHOSTUNREACH,
    errno.EHOSTUNREACH,
)
# (errno, fatal) by code of ICMPv6 destination unreachable; beyond: EPROTO, fatal
UNREACH_ERRNO6 = (
    (errno.ENETUNREACH, False),
    (errno.EACCES, True),
    (errno.EHOSTUNREACH, False),
    (errno.EHOSTUNREACH, False),
    (errno.ECONNREFUSED, True),
    (errno.EACCES, True),
    (errno.EACCES, True),
)

ORIGIN_ICMP = 2
ORIGIN_ICMP6 = 3
_ICMP_ORIGINS = (ORIGIN_ICMP, ORIGIN_ICMP6)
QUEUE_LIMIT = 64  # records kept for MSG_ERRQUEUE


class QueuedError(NamedTuple):
    """One record of the error queue (struct sock_extended_err), with the segment it is about as far as that was quoted."""

    errno: int
    origin: int
    type: int
    code: int
    info: int
    data: int
    payload: bytes
    offender: bytes  # address of who reported it
    stamp_ns: int = 0  # the time a record of SO_TIMESTAMPING is about, since the epoch


def convert4(kind: int, code: int) -> int:
    """errno of an ICMPv4 error; 0 for those TCP ignores."""
    if kind == DEST_UNREACH:
        return UNREACH_ERRNO4[code] if code < len(UNREACH_ERRNO4) else 0
    if kind == TIME_EXCEEDED:
        # code 1, reassembly time exceeded, says nothing about our packets' way
        return errno.EHOSTUNREACH if code == 0 else 0
    return errno.EPROTO if kind == PARAMETER_PROBLEM else 0


def convert6(kind: int, code: int) -> tuple[int, bool]:
    """(errno, fatal) of an ICMPv6 error; errno 0 for those TCP ignores."""
    if kind == DEST_UNREACH6:
        return UNREACH_ERRNO6[code] if code < len(UNREACH_ERRNO6) else (errno.EPROTO, True)
    if kind == TIME_EXCEEDED6:
        return errno.EHOSTUNREACH, False
    if kind == PARAMETER_PROBLEM6:
        return errno.EPROTO, True
    return 0, False


def error(host: Host, entry: Any, family: int, quote: bytes, kind: int, code: int, info: int, offender: bytes) -> None:
    """An ICMP error from `offender` about a segment of `entry` (Sock, request, TIME-WAIT).

    `quote`: the segment from its TCP header on, at least 8 bytes. `info`: the MTU of "fragmentation needed" and
    "packet too big"."""
    if family == 4 and kind == TIME_EXCEEDED and code:
        return  # reassembly time exceeded never gets to the connection, whatever it quotes
    seq32 = int.from_bytes(quote[4:8], "big")
    if isinstance(entry, request.Request):
        _half_open(entry, family, seq32, kind, code)
    elif isinstance(entry, Sock) and entry.state != CLOSE:
        number = seq.unwrap(seq32, entry.snd_una)
        # a Fast Open child's SYN-ACK is not part of its own send sequence
        una = entry.snd_una if entry.fastopen is None or entry.fastopen.request is None else entry.iss
        if entry.state != LISTEN and not una <= number <= entry.snd_nxt:
            host.mib.OutOfWindowIcmps += 1
        elif family == 4:
            _error4(entry, number, kind, code, info, quote, offender)
        else:
            _error6(entry, number, kind, code, info, quote, offender)


def _half_open(req: request.Request, family: int, seq32: int, kind: int, code: int) -> None:
    if (seq32 - req.snt_isn) & seq.MASK:
        req.mib.OutOfWindowIcmps += 1
        return
    if family == 4:
        ends = (kind == TIME_EXCEEDED and code == 0) or kind == PARAMETER_PROBLEM or (kind == DEST_UNREACH and code in (NET_UNREACH, HOST_UNREACH))
    else:
        ends = convert6(kind, code)[1]
    if ends and req.drop():
        req.mib.ListenDrops += 1


def _error4(sk: Sock, number: int, kind: int, code: int, info: int, quote: bytes, offender: bytes) -> None:
    if kind == DEST_UNREACH and code == FRAG_NEEDED:
        if sk.state != LISTEN:
            mtu.reduced(sk, info)
        return
    err = convert4(kind, code)
    if not err:
        return
    if kind == DEST_UNREACH and code in (NET_UNREACH, HOST_UNREACH):
        revert_backoff(sk, number)
    _report(sk, QueuedError(err, ORIGIN_ICMP, kind, code, info, 0, quote, offender))


def _error6(sk: Sock, number: int, kind: int, code: int, info: int, quote: bytes, offender: bytes) -> None:
    if kind == PACKET_TOO_BIG6:
        if sk.state != LISTEN and info >= MIN_MTU6:
            mtu.reduced(sk, info)
        return
    err, _ = convert6(kind, code)
    if not err:
        return
    if kind == DEST_UNREACH6 and code == NO_ROUTE6:
        revert_backoff(sk, number)
    _report(sk, QueuedError(err, ORIGIN_ICMP6, kind, code, info, 0, quote, offender))


def _report(sk: Sock, record: QueuedError) -> None:
    """End a connection attempt with the error; keep it for an established one."""
    accepted_early = sk.fastopen is not None and sk.fastopen.request is not None and sk.parent is None
    if sk.state == SYN_SENT or (sk.state == SYN_RECV and not accepted_early):
        if sk.recverr or record.origin == ORIGIN_ICMP:
            # IPv4 does so without IP_RECVERR, too (measured)
            enqueue(sk, record)
        close.done_with_error(sk, record.errno)
    elif sk.state != LISTEN:
        if sk.recverr:
            sk.sk_err = record.errno
            sk.host.wake(sk, POLLERR)
        else:
            sk.sk_err_soft = record.errno


def enqueue(sk: Sock, record: QueuedError) -> None:
    """Keep a record for recvmsg(MSG_ERRQUEUE), unless too many are kept."""
    if sk.error_queue is None:
        sk.error_queue = []
    if len(sk.error_queue) < QUEUE_LIMIT:
        sk.error_queue.append(record)


def read_error_queue(sk: Sock) -> QueuedError:
    """Take the oldest record (recvmsg MSG_ERRQUEUE); the pending error becomes that of the next one, or none.

    Raises OSError EAGAIN when there is none."""
    if not sk.error_queue:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
    record: QueuedError = sk.error_queue.pop(0)
    if record.origin in _ICMP_ORIGINS:
        following = sk.error_queue[0] if sk.error_queue else None
        sk.sk_err = following.errno if following is not None and following.origin in _ICMP_ORIGINS else 0
    if not sk.error_queue:
        sk.error_queue = None
    return record


def revert_backoff(sk: Sock, number: int) -> None:
    """RFC 6069: an unreachable message about the segment being retransmitted takes back one doubling of the RTO.

    The timer then runs from that segment's last transmission; if that is over, it is retransmitted now."""
    skb = sk.rtx_queue.head
    if number != sk.snd_una or not sk.retransmits or not sk.backoff or skb is None:
        return
    sk.backoff -= 1
    base = rtt.rto_from_srtt_ns(sk) if sk.srtt_us else handshake.TIMEOUT_INIT_NS
    sk.rto_ns = min(base << sk.backoff, sk.rto_max_ns)
    tick = sk.sysctl.tick_ns
    remaining = sk.rto_ns - (sk.host.now_ns - skb.tx_ns) // tick * tick
    if remaining > 0:
        timers.arm_retrans(sk, remaining)
    else:
        timers.retransmit_timer(sk)
