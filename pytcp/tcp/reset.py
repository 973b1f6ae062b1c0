"""Resets nobody asked for: answers to segments that belong to no connection (RFC 9293 §3.5.2).

A segment with ACK is answered by a bare RST whose sequence number is that acknowledgement; without
ACK by RST|ACK with sequence 0 and an acknowledgement just past what came. Window 0, no options, the
TOS of the offender without its ECN bits (measured), never in answer to a RST. Where the peer has a key the RST is
signed (`md5`). Counter: TcpOutRsts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytcp.wire.checksum import pseudo
from pytcp.wire.tcp import IPPROTO_TCP, build_header
from pytcp.wire.tcpopt import AUTH_AO

from . import md5
from .const import ACK, FIN, RST, SYN

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Host, Sock

DEFAULT_TTL = 64
ECN_MASK = 3


def reply(
    host: Host,
    family: int,
    saddr: bytes,
    daddr: bytes,
    sport: int,
    dport: int,
    seq: int,
    ack: int,
    flags: int,
    window: int,
    options: bytes = b"",
    tos: int = 0,
    ttl: int = DEFAULT_TTL,
    mark: int = 0,
    flowlabel: int = 0,
    dev_if: int = 0,
    secret: bytes | None = None,
) -> None:
    """Send one dataless segment from `saddr`:`sport` for a connection that has no Sock, and count it. secret: the key to sign it with."""
    total = pseudo(saddr, daddr, IPPROTO_TCP, 20 + len(options))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    th = build_header(sport, dport, seq, ack, flags, window, 0, options, total)
    if secret is not None:
        # in an ACK that no Sock sends Linux has it behind the timestamps
        th = md5.sign(secret, saddr, daddr, th, (), flags == ACK)
    host.mib.TcpOutSegs += 1
    host.reply(family, saddr, daddr, th, b"", tos, ttl, mark, flowlabel, dev_if)


def answer(host: Host, seg: Segment, mark: int = 0, dev_if: int = 0, secret: bytes | None = None) -> None:
    """Send the RST that `seg` calls for, by a device if it is given, signed with `secret`; nothing when it is a RST itself."""
    flags = seg.flags
    if flags & RST:
        return
    if flags & ACK:
        seq, ack, out = seg.ack, 0, RST
    else:
        seq = 0
        ack = seg.seq + seg.length + (1 if flags & SYN else 0) + (1 if flags & FIN else 0)
        out = RST | ACK
    host.mib.TcpOutRsts += 1
    reply(host, seg.family, seg.dst, seg.src, seg.dport, seg.sport, seq, ack, out, 0, b"", seg.tos & ~ECN_MASK, mark=mark, dev_if=dev_if, secret=secret)


def closed_port(host: Host, seg: Segment, mark: int = 0, dev_if: int = 0) -> None:
    """`seg` found no connection and no listener, or what is left of a connection. A signed one is answered to who has a key of ours."""
    secret = None
    if seg.options.md5 is not None:
        secret = md5.key_for_stranger(host, seg)
        if secret is None:
            return
    answer(host, seg, mark, dev_if, secret)


def send_reset(sk: Sock, seg: Segment) -> None:
    """`seg` reached `sk` but is wrong for its state (half-open connection, listener, orphan)."""
    if seg.options.md5 == AUTH_AO:
        # it could not be authenticated
        return
    answer(sk.host, seg, sk.mark, sk.bound_dev_if, md5.lookup(sk.md5, seg.src))
