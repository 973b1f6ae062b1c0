"""SACK as a receiver: which blocks we report, D-SACK, and compressing a burst of duplicate ACKs.

At most four blocks are remembered, the most recently changed first (RFC 2018 §4); a block that touches
another swallows it. A duplicate is reported once, in front of them (RFC 2883). While a hole is open each
segment owes an ACK; after the first three, which the sender's loss detection needs, they are merged and
sent when a timer of 5 % of the RTT (at most 1 ms) ends, or after 44 of them (4.18; linux-tcp §14).
Sysctls: tcp_dsack, tcp_comp_sack_delay_ns, tcp_comp_sack_nr, tcp_comp_sack_slack_ns.
Counters: TCPDSACKOldSent, TCPDSACKOfoSent, TCPAckCompressed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import timers, xmit
from .sock import NEVER

if TYPE_CHECKING:
    from .sock import Sock

NUM_SACKS = 4
BLOCKS_EXPECTED = 2  # from the third block on, ACKs held back might push one out of the option: send them first
FASTRETRANS_THRESH = 3


def _touches(block: tuple[int, int], seq: int, end_seq: int) -> bool:
    return seq <= block[1] and block[0] <= end_seq


# ---------------------------------------------------------------- blocks


def new_ofo_skb(sk: Sock, seq: int, end_seq: int) -> None:
    """Out-of-order data [seq, end_seq) was queued: bring its block to the front."""
    blocks = sk.selective_acks
    if not blocks:
        sk.selective_acks = [(seq, end_seq)]
        return
    for at, block in enumerate(blocks):
        if _touches(block, seq, end_seq):
            blocks[at] = (min(seq, block[0]), max(end_seq, block[1]))
            if at >= BLOCKS_EXPECTED:
                # with the block as it is now, where it was
                flush(sk)
            blocks.insert(0, blocks.pop(at))
            if len(blocks) > 1:
                _coalesce(blocks)
            return
    if len(blocks) >= BLOCKS_EXPECTED:
        flush(sk)
    if len(blocks) >= NUM_SACKS:
        blocks.pop()
    blocks.insert(0, (seq, end_seq))


def _coalesce(blocks: list[tuple[int, int]]) -> None:
    """The first block has grown: merge every other one it now reaches."""
    at = 1
    while at < len(blocks):
        first = blocks[0]
        start, end = blocks[at]
        if _touches(first, start, end):
            blocks[0] = (min(first[0], start), max(first[1], end))
            del blocks[at]
        else:
            at += 1


def remove_acked(sk: Sock) -> None:
    """rcv_nxt moved: forget blocks that are in order now."""
    if not sk.ofo_queue:
        sk.selective_acks = ()
        return
    rcv_nxt = sk.rcv_nxt
    sk.selective_acks = [block for block in sk.selective_acks if block[0] > rcv_nxt]


def reset(sk: Sock) -> None:
    """The out-of-order queue is gone (FIN, prune): report nothing of it any more."""
    sk.selective_acks = ()
    sk.duplicate_sack = None


# ---------------------------------------------------------------- duplicates


def dsack_set(sk: Sock, seq: int, end_seq: int) -> None:
    """Report [seq, end_seq) as received twice in the next ACK."""
    if sk.sack_ok and sk.sysctl.tcp_dsack:
        if seq < sk.rcv_nxt:
            sk.mib.TCPDSACKOldSent += 1
        else:
            sk.mib.TCPDSACKOfoSent += 1
        sk.duplicate_sack = (seq, end_seq)


def dsack_extend(sk: Sock, seq: int, end_seq: int) -> None:
    """One more duplicate found while queueing the same segment: widen the report where it adjoins."""
    block = sk.duplicate_sack
    if block is None:
        dsack_set(sk, seq, end_seq)
    elif _touches(block, seq, end_seq):
        sk.duplicate_sack = (min(seq, block[0]), max(end_seq, block[1]))


# ---------------------------------------------------------------- compression


def compress(sk: Sock) -> None:
    """An ACK is owed while a hole is open and nothing makes it urgent: send it, or merge it with others."""
    sysctl = sk.sysctl
    if not sk.sack_ok or sk.compressed_ack >= sysctl.tcp_comp_sack_nr:
        xmit.send_ack(sk)
        return
    if sk.compressed_ack_rcv_nxt != sk.rcv_nxt:
        sk.compressed_ack_rcv_nxt = sk.rcv_nxt
        sk.dup_ack_counter = 0
    if sk.dup_ack_counter < FASTRETRANS_THRESH:
        sk.dup_ack_counter += 1
        xmit.send_ack(sk)
        return
    sk.compressed_ack += 1
    if sk.compressed_ack_deadline != NEVER:
        return
    rtt = sk.rcv_rtt_us
    if sk.srtt_us and sk.srtt_us < rtt:
        rtt = sk.srtt_us
    # both are kept times 8
    delay = min(sysctl.tcp_comp_sack_delay_ns, rtt * (1000 >> 3) * sysctl.comp_sack_rtt_percent // 100)
    sk.compressed_ack_deadline = when = sk.host.now_ns + delay + sysctl.tcp_comp_sack_slack_ns
    timers.touch(sk, when)


def flush(sk: Sock) -> None:
    """Send the merged ACK now, if one is held back."""
    if not sk.compressed_ack:
        return
    sk.compressed_ack_deadline = NEVER
    # one of them is the ACK that goes
    sk.mib.TCPAckCompressed += sk.compressed_ack - 1
    sk.compressed_ack = 0
    xmit.send_ack(sk)


def compressed_timer(sk: Sock) -> None:
    """The compression timer fired."""
    if sk.compressed_ack:
        sk.mstamp_ns = sk.host.now_ns
        flush(sk)
