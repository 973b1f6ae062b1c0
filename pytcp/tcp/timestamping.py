"""SO_TIMESTAMPING of what is sent: when the last byte of a write was queued to the device, left, and was acknowledged.

The segment that holds the last byte of a write carries the wish (`skb.stamp`), and keeps it where it is split or merged (`skb.Skb`). When
it leaves, the error queue gets a record for SCHED (given to the host's queue) and one for SND (the same moment here: the ring that
takes a frame is the driver's), again for each retransmission; one for ACK when the byte is acknowledged. A record has the time, the
byte's number (OPT_ID: counted from snd_una at the moment the option was set, OPT_ID_TCP: from what had been written), and the packet,
or nothing of it (OPT_TSONLY), or the connection's figures instead (OPT_STATS).

Linux 3.17 for TCP (e1c8a607b281, f24b9be5957b); OPT_STATS 4.10, OPT_ID_TCP 6.2. Receive time stamps are in `rx_timestamps`.
"""

from __future__ import annotations

import errno
from struct import pack
from typing import TYPE_CHECKING

from . import icmp_err, info
from .const import CLOSE, INFINITE_SSTHRESH, LISTEN, POLLERR

if TYPE_CHECKING:
    from .skb import Skb
    from .sock import Sock

# SOF_TIMESTAMPING_*
TX_SOFTWARE = 1 << 1
SOFTWARE = 1 << 4
OPT_ID = 1 << 7
TX_SCHED = 1 << 8
TX_ACK = 1 << 9
OPT_TSONLY = 1 << 11
OPT_STATS = 1 << 12
BIND_PHC = 1 << 15
OPT_ID_TCP = 1 << 16
TX_COMPLETION = 1 << 18
KNOWN = (1 << 19) - 1
TX_RECORDS = 1 | TX_SOFTWARE | TX_SCHED | TX_ACK | TX_COMPLETION

ORIGIN_TIMESTAMPING = 4
# ee_info
SND = 0
SCHED = 1
ACKED = 2

Wish = tuple[int, int]  # SOF_TIMESTAMPING_* of the socket, number of the last byte


def set_flags(sk: Sock, flags: int) -> None:
    """SO_TIMESTAMPING. Raises OSError EINVAL for flags that do not exist or do not go together, and OPT_ID without a connection;
    EOPNOTSUPP for the clock of a device where the socket is bound to none, EINVAL where it is: devices here have none."""
    alone = (flags & OPT_ID_TCP and not flags & OPT_ID) or (flags & OPT_STATS and not flags & OPT_TSONLY)
    counts = flags & OPT_ID and not sk.tstamp_flags & OPT_ID
    if flags & ~KNOWN or alone or (counts and sk.state in (CLOSE, LISTEN)):
        raise OSError(errno.EINVAL, "Invalid argument")
    if flags & BIND_PHC:
        if sk.bound_dev_if:
            raise OSError(errno.EINVAL, "Invalid argument")
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")
    if counts:
        sk.tstamp_base = sk.write_seq if flags & OPT_ID_TCP else sk.snd_una
    sk.tstamp_flags = flags


def wish(sk: Sock) -> None:
    """A write has ended: its last byte is to be watched, if it has not left yet."""
    skb = sk.write_queue.tail
    if skb is not None and sk.tstamp_flags & TX_RECORDS:
        skb.stamp = (sk.tstamp_flags, skb.seq + skb.length - 1)


def sent(sk: Sock, skb: Skb, th: bytes, ecn: int) -> None:
    """A watched segment, with the TCP header `th`, is with the device."""
    assert skb.stamp is not None
    flags, last = skb.stamp
    packet = b""
    segment = b""
    if not flags & OPT_TSONLY and flags & (TX_SCHED | TX_SOFTWARE):
        payload = b"".join(skb.frags)
        head, whole = sk.host.looped(sk, th, skb.length, skb.gso_size, ecn)
        packet = segment = head + payload
        if skb.gso_size and not whole:
            start = (last - skb.seq) // skb.gso_size * skb.gso_size
            segment = head + payload[start : start + skb.gso_size]
    if flags & TX_SCHED:
        _report(sk, flags, SCHED, last, packet)
    if flags & TX_SOFTWARE:
        _report(sk, flags, SND, last, segment)


def acked(sk: Sock, skb: Skb, prior_una: int) -> None:
    """Some of a watched segment is acknowledged, perhaps the byte."""
    assert skb.stamp is not None
    flags, last = skb.stamp
    if flags & TX_ACK and prior_una <= last < sk.snd_una:
        _report(sk, flags, ACKED, last, b"" if flags & OPT_TSONLY else b"".join(skb.frags))


def _report(sk: Sock, flags: int, kind: int, last: int, packet: bytes) -> None:
    if flags & OPT_STATS and kind == ACKED:
        packet = stats(sk)
    number = (last - sk.tstamp_base) & 0xFFFFFFFF if sk.tstamp_flags & OPT_ID else 0
    icmp_err.enqueue(sk, icmp_err.QueuedError(errno.ENOMSG, ORIGIN_TIMESTAMPING, 0, 0, kind, number, packet, b"", sk.host.realtime_ns()))
    sk.host.wake(sk, POLLERR)


# TCP_NLA_*: (number, format, the field of tcp_info or what stands for it)
_STATS: tuple[tuple[int, str, str], ...] = (
    (1, "Q", "busy_time"), (2, "Q", "rwnd_limited"), (3, "Q", "sndbuf_limited"), (4, "Q", "data_segs_out"), (5, "Q", "total_retrans"),
    (6, "Q", "pacing_rate"), (7, "Q", "delivery_rate"), (8, "I", "snd_cwnd"), (9, "I", "reordering"), (10, "I", "min_rtt"), (11, "B", "retransmits"),
    (12, "B", "delivery_rate_app_limited"), (15, "I", "snd_ssthresh"), (16, "I", "delivered"), (17, "I", "delivered_ce"), (13, "I", "queued"),
    (14, "B", "ca_state"), (18, "Q", "bytes_sent"), (19, "Q", "bytes_retrans"), (20, "I", "dsack_dups"), (21, "I", "reord_seen"),
    (22, "I", "srtt"), (23, "H", "rehash"), (24, "I", "unsent"), (25, "Q", "edt"), (26, "B", "ttl"), (27, "I", "rehash"),
)  # fmt: skip


def stats(sk: Sock) -> bytes:
    """The connection's figures as netlink attributes (SCM_TIMESTAMPING_OPT_STATS)."""
    now = info.tcp_info(sk)
    more = {
        "queued": sk.write_seq - sk.snd_una, "unsent": max(sk.write_seq - sk.snd_nxt, 0), "srtt": sk.srtt_us >> 3,
        "edt": sk.wstamp_ns, "ttl": sk.ttl, "snd_ssthresh": min(sk.snd_ssthresh, INFINITE_SSTHRESH),
    }  # fmt: skip
    out = b""
    for number, form, name in _STATS:
        value = pack("=" + form, more[name] if name in more else getattr(now, name))
        out += pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)
    return out
