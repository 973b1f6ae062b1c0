"""Explicit congestion notification, RFC 3168 both ways (linux-tcp §8.10; classic ECN only).

Data carries ECT(0); a CE mark makes the receiver echo ECE on every ACK until it sees CWR; the sender
answers ECE by one window reduction per round trip and marks CWR on its next new data. Retransmissions
and pure ACKs are not ECT. Sysctls: tcp_ecn, tcp_ecn_fallback. Counter: TCPDeliveredCE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import delack
from .const import ACK_NOW, CWR, ECE, SYN

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .skb import Skb
    from .sock import Sock

# sk.ecn_flags
OK = 1
QUEUE_CWR = 2
DEMAND_CWR = 4
SEEN = 8

# IP ECN field
NOT_ECT = 0
ECT_1 = 1
ECT_0 = 2
CE = 3


def syn_flags(sk: Sock) -> int:
    """Flags our SYN asks for ECN with."""
    if sk.sysctl.tcp_ecn == 1 or sk.ca.needs_ecn or sk.dst.ecn:
        sk.ecn_flags = OK
        return ECE | CWR
    return 0


def rcv_synack(sk: Sock, seg: Segment) -> None:
    """The SYN-ACK decides: ECE without CWR accepts."""
    if sk.ecn_flags & OK and (not seg.flags & ECE or seg.flags & CWR):
        sk.ecn_flags &= ~OK


def rcv_syn(sk: Sock, seg: Segment) -> None:
    """A SYN in SYN_SENT (simultaneous open) accepts only with both flags."""
    if sk.ecn_flags & OK and (not seg.flags & ECE or not seg.flags & CWR):
        sk.ecn_flags &= ~OK


def rcv_ecn_echo(sk: Sock, seg: Segment) -> bool:
    return bool(seg.flags & ECE and not seg.flags & SYN and sk.ecn_flags & OK)


def accept_cwr(sk: Sock, seg: Segment) -> None:
    """The sender has reduced: stop echoing. If it also carried data, ACK at once (RFC 3168 §6.1.3)."""
    if seg.flags & CWR:
        sk.ecn_flags &= ~DEMAND_CWR
        if seg.length:
            sk.ack_pending |= ACK_NOW


def data_ecn_check(sk: Sock, seg: Segment) -> None:
    """Look at the IP ECN bits of a received data segment."""
    if not sk.ecn_flags & OK:
        return
    bits = seg.tos & 3
    if bits == NOT_ECT:
        # a not-ECT retransmission: the peer's congestion state may be unknown to us
        if sk.ecn_flags & SEEN:
            delack.enter_quickack_mode(sk, 2)
        return
    if bits == CE and not sk.ecn_flags & DEMAND_CWR:
        delack.enter_quickack_mode(sk, 2)
        sk.ecn_flags |= DEMAND_CWR
        if sk.trace is not None:
            sk.trace.event(sk, "ecn", what="ce", cwnd=sk.snd_cwnd)
    sk.ecn_flags |= SEEN


def received(sk: Sock, seg: Segment) -> None:
    """Count a segment that came with an ECN codepoint in ESTABLISHED, negotiated or not: payload by codepoint, packets with CE (6.18)."""
    sums = sk.received_ecn
    if sums is None:
        sums = sk.received_ecn = [0, 0, 0, 0]
    bits = seg.tos & 3
    sums[bits] += seg.length
    if bits == CE:
        sums[NOT_ECT] += seg.nsegs


def send(sk: Sock, skb: Skb, tcp_flags: int) -> tuple[int, int]:
    """TCP flags and IP ECN bits for an outgoing segment of an ECN connection."""
    ip = NOT_ECT
    if skb.length and skb.seq >= sk.snd_nxt:
        ip = ECT_0
        if sk.ecn_flags & QUEUE_CWR:
            sk.ecn_flags &= ~QUEUE_CWR
            tcp_flags |= CWR
            if sk.trace is not None:
                sk.trace.event(sk, "ecn", what="cwr", cwnd=sk.snd_cwnd)
    if sk.ecn_flags & DEMAND_CWR:
        tcp_flags |= ECE
    return tcp_flags, ip


def queue_cwr(sk: Sock) -> None:
    if sk.ecn_flags & OK:
        sk.ecn_flags |= QUEUE_CWR
