"""The sender's SACK scoreboard (RFC 2018, 2883, 6675 tags; linux-tcp §8.4), and its Reno stand-in.

Blocks tag skbs of the retransmit queue S; an skb only partly covered is split at a segment boundary.
DSACKs (a first block below the cumulative ACK, or inside the second block) report duplicates and feed
undo and RACK's reordering window. Without SACK, duplicate ACKs are counted as if they were S tags.
Counters: TCPDSACKRecv, TCPDSACKOfoRecv, TCPSACKDiscard, TCPSACKReorder, TCPRenoReorder, TCPTSReorder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import mtu, rack, rate, retransmit
from .const import CA_LOSS, LOST, RETRANS, SACKED_ACKED, SACKED_RETRANS
from .seq import unwrap
from .skb import Skb

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Sock

# what tagging found out; combined into tcp_ack's flags
from .flags import FLAG_DATA_SACKED, FLAG_DSACK_TLP, FLAG_DSACKING_ACK, FLAG_ORIG_SACK_ACKED


def highest_sack_seq(sk: Sock) -> int:
    """Sequence behind the highest SACKed segment (FACK)."""
    if not sk.sacked_out:
        return sk.snd_una
    if sk.highest_sack is None:
        return sk.snd_nxt
    return sk.highest_sack.seq


def block_valid(sk: Sock, is_dsack: bool, start: int, end: int) -> bool:
    """Whether a block can be about anything we sent (and, as DSACK, anything we might undo)."""
    if end > sk.snd_nxt or start >= end:
        return False
    if start > sk.snd_una:
        return True
    if not is_dsack or not sk.undo_marker:
        return False
    if end > sk.snd_una:
        return False
    if start >= sk.undo_marker:
        return True
    # a block that straddles undo_marker and is not older than one window
    return end > sk.undo_marker and start >= end - sk.max_window


def _dsack_seen(sk: Sock, start: int, end: int, rs: rate.AckSample) -> tuple[int, int]:
    """Account for a DSACK. Returns the flags it adds and its segments, 0 when it is not believed."""
    span = end - start
    if not 0 < span <= sk.max_window:
        return 0, 0
    flag = 0
    segs = 1
    if span > sk.mss_cache:
        segs = -(-span // sk.mss_cache)
    elif sk.tlp_high_seq and end == sk.tlp_high_seq:
        flag = FLAG_DSACK_TLP
    sk.dsack_dups += segs
    # more duplicates than retransmissions: the network duplicates
    if sk.dsack_dups > sk.total_retrans:
        return flag, 0
    # a probe's duplicate says nothing about RACK's reordering window
    if sk.reord_seen and not flag:
        sk.rack_dsack_seen = True
    rs.sack_delivered += segs
    return flag | FLAG_DSACKING_ACK, segs


def _check_dsack(sk: Sock, blocks: list[tuple[int, int]], ack: int, prior_snd_una: int, rs: rate.AckSample) -> int:
    """Whether the first block is a DSACK (FLAG_DSACKING_ACK among the flags returned), and what that undoes."""
    start, end = blocks[0]
    mib = sk.mib
    if start < ack:
        mib.TCPDSACKRecv += 1
    elif len(blocks) > 1 and blocks[1][0] <= start and end <= blocks[1][1]:
        mib.TCPDSACKOfoRecv += 1
    else:
        return 0
    flag, segs = _dsack_seen(sk, start, end, rs)
    if not segs:
        mib.TCPDSACKIgnoredDubious += 1
        return flag
    mib.TCPDSACKRecvSegs += segs
    # its skbs are gone already: count segments instead of looking at tags
    if sk.undo_marker and sk.undo_retrans > 0 and sk.undo_marker < end <= prior_snd_una:
        sk.undo_retrans = max(0, sk.undo_retrans - segs)
    return flag


def tag_write_queue(sk: Sock, seg: Segment, prior_snd_una: int, rs: rate.AckSample) -> int:
    """Apply the SACK blocks of `seg` to the retransmit queue; returns FLAG_* bits.

    `sk.snd_una` is already that of this ACK, the queue still has what it acknowledges."""
    if not sk.sacked_out:
        sk.highest_sack = sk.rtx_queue.head
    una = sk.snd_una
    ack = seg.ack
    blocks = [(unwrap(left, una), unwrap(right, una)) for left, right in seg.sack]
    flag = _check_dsack(sk, blocks, ack, prior_snd_una, rs)
    # too old to be of use
    if ack < prior_snd_una - sk.max_window:
        return 0
    if not sk.packets_out:
        return flag
    used = []
    dup = bool(flag & FLAG_DSACKING_ACK)
    for start, end in blocks:
        if not block_valid(sk, dup, start, end):
            if dup:
                if sk.undo_marker:
                    sk.mib.TCPDSACKIgnoredOld += 1
                else:
                    sk.mib.TCPDSACKIgnoredNoUndo += 1
            elif ack == una or end > una:
                # (below an ACK that was overtaken a block is merely old)
                sk.mib.TCPSACKDiscard += 1
        elif end > prior_snd_una:
            used.append((start, end, dup))
        dup = False
    used.sort()
    cache = sk.recv_sack_cache or ()
    mss = mtu.current_mss(sk)
    for start, end, dup in used:
        # what an earlier ACK told of this block need not be walked again
        known = start
        if not dup:
            for left, right in cache:
                if left <= start < right:
                    known = right
        if known < end:
            flag |= _walk(sk, start, end, known, dup, mss, rs)
    sk.recv_sack_cache = [(start, end) for start, end, dup in used if not dup] or None
    if sk.ca_state != CA_LOSS or sk.undo_marker:
        check_reordering_at(sk, rs.reord)
    return flag


def check_reordering_at(sk: Sock, reord: int) -> None:
    if reord != rate.NO_REORDER:
        check_reordering(sk, reord, False)


def _walk(sk: Sock, start: int, end: int, known: int, dup: bool, mss: int, rs: rate.AckSample) -> int:
    """Tag every skb of [start, end); those below `known` are."""
    hint = sk.highest_sack
    skb = hint if hint is not None and sk.sacked_out and hint.seq <= known else sk.rtx_queue.head
    flag = 0
    while skb is not None and skb.seq < end:
        if skb.end_seq <= start:
            skb = skb.next
            continue
        if not dup and skb.sacked & SACKED_ACKED:
            skb = skb.next
            continue
        if start <= skb.seq and skb.end_seq <= end:
            inside = True
        else:
            verdict = _match(sk, skb, start, end, mss)
            if verdict is None:
                break
            inside = verdict
        if inside:
            flag |= _tag_one(sk, skb, dup, rs)
        skb = skb.next
    return flag


def _match(sk: Sock, skb: Skb, start: int, end: int, mss: int) -> bool | None:
    """A partly covered skb: split it at a segment boundary; whether its first part is covered.

    None when less than a segment is covered, and where the queue must not be torn further: the rest
    of the block cannot matter either."""
    if skb.pcount <= 1:
        return False
    size = skb.gso_size or mss
    inside = start <= skb.seq
    if not inside:
        cut = max(start - skb.seq, size)
    else:
        cut = end - skb.seq
        if cut < size:
            return None
    if cut > size:
        whole = cut // size * size
        if not inside and whole < cut:
            whole += size
        cut = whole
    if cut >= skb.length and not inside:
        return False
    if retransmit.fragment(sk, skb, cut, size) is None:
        return None
    return inside


def _tag_one(sk: Sock, skb: Skb, dup: bool, rs: rate.AckSample) -> int:
    """One skb was (D)SACKed."""
    sacked = skb.sacked
    flag = 0
    if dup and sacked & RETRANS:
        if sk.undo_marker and sk.undo_retrans > 0 and skb.end_seq > sk.undo_marker:
            sk.undo_retrans = max(0, sk.undo_retrans - skb.pcount)
        if sacked & SACKED_ACKED and skb.seq < rs.reord:
            rs.reord = skb.seq
    if skb.end_seq <= sk.snd_una:
        return flag
    if not sacked & SACKED_ACKED:
        tx_us = skb.tx_ns // 1000
        rack.advance(sk, sacked, skb.end_seq, tx_us)
        if sacked & SACKED_RETRANS:
            # tagged lost and retransmitted: the retransmission arrived (or the original did)
            if sacked & LOST:
                skb.sacked &= ~(LOST | SACKED_RETRANS)
                sk.lost_out -= skb.pcount
                sk.retrans_out -= skb.pcount
        else:
            if not sacked & RETRANS:
                # new information about data sent once: reordering, and proof for F-RTO
                if skb.seq < highest_sack_seq(sk) and skb.seq < rs.reord:
                    rs.reord = skb.seq
                if skb.end_seq <= sk.high_seq:
                    flag |= FLAG_ORIG_SACK_ACKED
                if not rs.first_sackt_us:
                    rs.first_sackt_us = tx_us
                rs.last_sackt_us = tx_us
            if sacked & LOST:
                skb.sacked &= ~LOST
                sk.lost_out -= skb.pcount
        skb.sacked |= SACKED_ACKED
        flag |= FLAG_DATA_SACKED
        sk.sacked_out += skb.pcount
        sk.delivered += skb.pcount
        rate.skb_delivered(sk, skb, rs)
        # only a segment above everything SACKed so far moves FACK (None: the last one is SACKed)
        highest = sk.highest_sack
        if highest is not None and skb.seq >= highest.seq:
            sk.highest_sack = skb.next
        if skb.tprev is not None or sk.tsorted.head is skb:
            sk.tsorted.remove(skb)
    if dup and skb.sacked & SACKED_RETRANS:
        skb.sacked &= ~SACKED_RETRANS
        sk.retrans_out -= skb.pcount
    return flag


def check_reordering(sk: Sock, low_seq: int, ts: bool) -> None:
    """Data below FACK was delivered late: raise the reordering metric."""
    fack = highest_sack_seq(sk)
    if low_seq >= fack:
        return
    mss = sk.mss_cache
    metric = fack - low_seq
    if metric > sk.reordering * mss and mss:
        sk.reordering = min(-(-metric // mss), sk.sysctl.tcp_max_reordering)
    sk.reord_seen += 1
    if ts:
        sk.mib.TCPTSReorder += 1
    else:
        sk.mib.TCPSACKReorder += 1


def add_reno_sack(sk: Sock, num_dupack: int, ece_ack: bool) -> None:
    """`num_dupack` duplicate ACKs stand for as many delivered packets."""
    if not num_dupack:
        return
    prior = sk.sacked_out
    sk.sacked_out += num_dupack
    _check_reno_reordering(sk, 0)
    delivered = sk.sacked_out - prior
    if delivered > 0:
        sk.delivered += delivered


def remove_reno_sacks(sk: Sock, acked: int) -> None:
    """`acked` packets were cumulatively acknowledged: one was the hole, the rest were dupacks' packets."""
    if acked > 0:
        sk.delivered += max(acked - sk.sacked_out, 1)
        if acked - 1 >= sk.sacked_out:
            sk.sacked_out = 0
        else:
            sk.sacked_out -= acked - 1
    _check_reno_reordering(sk, acked)


def reset_reno_sack(sk: Sock) -> None:
    sk.sacked_out = 0


def _check_reno_reordering(sk: Sock, addend: int) -> None:
    """More dupacks than packets can be missing: that was reordering."""
    holes = max(sk.lost_out, 1)
    holes = min(holes, sk.packets_out)
    if sk.sacked_out + holes > sk.packets_out:
        sk.sacked_out = sk.packets_out - holes
        sk.reordering = min(sk.packets_out + addend, sk.sysctl.tcp_max_reordering)
        sk.reord_seen += 1
        sk.mib.TCPRenoReorder += 1
