"""The sender's SACK scoreboard (RFC 2018, 2883, 6675 tags; linux-tcp §8.4), and its Reno stand-in.

Blocks tag skbs of the retransmit queue S; an skb only partly covered is split at a segment boundary,
or its SACKed segments move to a SACKed skb in front of it.
DSACKs (a first block below the cumulative ACK, or inside the second block) report duplicates and feed
undo and RACK's reordering window. Without SACK, duplicate ACKs are counted as if they were S tags.
Counters: TCPDSACKRecv, TCPDSACKOfoRecv, TCPSACKDiscard, TCPSACKReorder, TCPRenoReorder, TCPTSReorder,
TCPSackShifted, TCPSackMerged, TCPSackShiftFallback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import mtu, rack, rate, retransmit, tso, xmit
from .const import CA_LOSS, EVER_RETRANS, LOST, RETRANS, SACKED_ACKED, SACKED_RETRANS, TAGBITS
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
    blocks = [(unwrap(left, una), unwrap(right, una)) for left, right in seg.options.sack]
    flag = _check_dsack(sk, blocks, ack, prior_snd_una, rs)
    # too old to be of use
    if ack < prior_snd_una - sk.max_window:
        return 0
    if not sk.packets_out:
        return flag
    used: list[tuple[int, int, bool]] = []
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
    used.sort(key=_block_start)
    rs.sack_flag = 0
    _tag_blocks(sk, used, rs)
    sk.recv_sack_cache = [(start, end) for start, end, _ in used] or None
    if sk.ca_state != CA_LOSS or sk.undo_marker:
        check_reordering_at(sk, rs.reord)
    return flag | rs.sack_flag


def _block_start(block: tuple[int, int, bool]) -> int:
    return block[0]


def _tag_blocks(sk: Sock, used: list[tuple[int, int, bool]], rs: rate.AckSample) -> None:
    """Walk the queue once for all blocks, in order, past what the ACK before this one already told."""
    mss = mtu.current_mss(sk)
    cache = sk.recv_sack_cache if sk.recv_sack_cache is not None and sk.sacked_out else []
    at = 0  # next block of the cache that may matter
    skb: Skb | None = None
    for i, (start, end, dup) in enumerate(used):
        # a DSACK inside this block is tagged on the way
        inner = used[i + 1] if i + 1 < len(used) and used[i + 1][2] else None
        while at < len(cache) and cache[at][1] <= start:
            at += 1
        done = False
        while not dup and at < len(cache) and cache[at][0] < end:
            left, right = cache[at]
            if start < left:
                skb = _walk(sk, _skip(sk, skb, start), start, left, inner, False, mss, rs)
            if end <= right:
                done = True
                break
            if inner is not None and inner[0] < right:
                skb = _walk(sk, _skip(sk, skb, inner[0]), inner[0], inner[1], None, True, mss, rs)
            skb = _skip(sk, skb, right)
            at += 1
        if not done:
            if start >= highest_sack_seq(sk):
                # nothing is tagged from here on, wherever the last block ended
                skb = sk.highest_sack
                if skb is None:
                    return
            skb = _walk(sk, _skip(sk, skb, start), start, end, inner, dup, mss, rs)


def _skip(sk: Sock, skb: Skb | None, seq: int) -> Skb | None:
    """The skb that holds `seq` (None: none does), or the one the walk has come to if that is further on."""
    highest = sk.highest_sack
    if skb is None:
        skb = sk.rtx_queue.head
        if skb is not None and skb.seq > seq:
            return None
    elif skb.seq > seq:
        return skb
    if sk.sacked_out and highest is not None and highest.seq <= seq:
        skb = highest
    while skb is not None and skb.end_seq <= seq:
        skb = skb.next
    return skb


def check_reordering_at(sk: Sock, reord: int) -> None:
    if reord != rate.NO_REORDER:
        check_reordering(sk, reord, False)


def _walk(sk: Sock, skb: Skb | None, start: int, end: int, inner: tuple[int, int, bool] | None, dup: bool, mss: int, rs: rate.AckSample) -> Skb | None:
    """Tag [start, end) from `skb` on; returns where it ends. `dup`: the block is a DSACK; `inner`: one lies in it."""
    while skb is not None and skb.seq < end:
        if inner is not None and skb.seq < inner[1] and _match(sk, skb, inner[0], inner[1], mss):
            _tag(sk, skb, True, rs)
            skb = skb.next
            continue
        merged = _shift(sk, skb, start, end, dup, rs)
        if merged is not None:
            skb = merged.next
            continue
        inside = _match(sk, skb, start, end, mss)
        if inside is None:
            break
        if inside:
            _tag(sk, skb, dup, rs)
        skb = skb.next
    return skb


def _match(sk: Sock, skb: Skb, start: int, end: int, mss: int) -> bool | None:
    """Whether [start, end) covers `skb`; a partly covered one is split at a segment boundary.

    None when less than a segment is covered, and where the queue must not be torn further: the rest
    of the block cannot matter either."""
    if start <= skb.seq and skb.end_seq <= end:
        return True
    if skb.pcount <= 1 or skb.end_seq <= start:
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


def _tag(sk: Sock, skb: Skb, dup: bool, rs: rate.AckSample) -> None:
    """The whole of `skb` was (D)SACKed."""
    skb.sacked = _tag_range(sk, skb, skb.end_seq, skb.pcount, dup, rs)
    rate.skb_delivered(sk, skb, rs)
    if skb.sacked & SACKED_ACKED:
        if skb.tprev is not None or sk.tsorted.head is skb:
            sk.tsorted.remove(skb)
        # only a segment above everything SACKed so far moves FACK (None: the last one is SACKed)
        highest = sk.highest_sack
        if highest is not None and skb.seq >= highest.seq:
            sk.highest_sack = skb.next


def _tag_range(sk: Sock, skb: Skb, end_seq: int, pcount: int, dup: bool, rs: rate.AckSample) -> int:
    """`skb` up to `end_seq`, `pcount` packets, was (D)SACKed: counts and conclusions. Returns its tags."""
    sacked = skb.sacked
    if dup and sacked & RETRANS:
        if sk.undo_marker and sk.undo_retrans > 0 and end_seq > sk.undo_marker:
            sk.undo_retrans = max(0, sk.undo_retrans - pcount)
        if sacked & SACKED_ACKED and skb.seq < rs.reord:
            rs.reord = skb.seq
    if end_seq <= sk.snd_una:
        return sacked
    if not sacked & SACKED_ACKED:
        tx_us = skb.tx_ns // 1000
        rack.advance(sk, sacked, end_seq, tx_us)
        if sacked & SACKED_RETRANS:
            # tagged lost and retransmitted: the retransmission arrived (or the original did)
            if sacked & LOST:
                sacked &= ~(LOST | SACKED_RETRANS)
                sk.lost_out -= pcount
                sk.retrans_out -= pcount
        else:
            if not sacked & RETRANS:
                # new information about data sent once: reordering, and proof for F-RTO
                if skb.seq < rs.reord and skb.seq < highest_sack_seq(sk):
                    rs.reord = skb.seq
                if end_seq <= sk.high_seq:
                    rs.sack_flag |= FLAG_ORIG_SACK_ACKED
                if not rs.first_sackt_us:
                    rs.first_sackt_us = tx_us
                rs.last_sackt_us = tx_us
            if sacked & LOST:
                sacked &= ~LOST
                sk.lost_out -= pcount
        sacked |= SACKED_ACKED
        rs.sack_flag |= FLAG_DATA_SACKED
        sk.sacked_out += pcount
        rs.sack_delivered += pcount
    if dup and sacked & SACKED_RETRANS:
        sacked &= ~SACKED_RETRANS
        sk.retrans_out -= pcount
    return sacked


# ---------------------------------------------------------------- merging what is SACKed

MAX_SHIFTED = 65535 * 8  # bytes of one skb


def _shift(sk: Sock, skb: Skb, start: int, end: int, dup: bool, rs: rate.AckSample) -> Skb | None:
    """Move what [start, end) covers of `skb` to a SACKed skb in front of it, and what follows if that closes a hole.

    Saves an skb's memory for each SACKed segment (Linux 2.6.29, 832d11c5cd07). Returns the skb to go on
    behind, or None: `skb` is to be split and tagged by itself."""
    mib = sk.mib
    sacked = skb.sacked
    prev = skb.prev
    if (
        (not dup and sacked & (LOST | SACKED_RETRANS) == SACKED_RETRANS)
        or prev is None
        or skb.end_seq <= sk.snd_una
        or prev.sacked & TAGBITS != SACKED_ACKED
        or prev.eor
        or not prev.length
        or skb.is_zerocopy()
        or prev.is_zerocopy()
    ):
        mib.TCPSackShiftFallback += 1
        return None
    size = skb.gso_size or skb.length
    if start <= skb.seq and skb.end_seq <= end:
        length = skb.length
        pcount = skb.pcount
    else:
        if skb.pcount <= 1:
            return skb
        pcount = (end - skb.seq) // size
        if not pcount and start <= skb.seq and size == (prev.gso_size or prev.length):
            return skb
        length = pcount * size
    if start > skb.seq or size != (prev.gso_size or prev.length) or skb.seq + length <= sk.snd_una or not length or prev.length + length >= MAX_SHIFTED:
        mib.TCPSackShiftFallback += 1
        return None
    if not _move(sk, prev, skb, length, pcount, size, dup, rs):
        return prev
    # the hole in front of the next SACKed skb may be closed now
    nxt = prev.next
    if (
        nxt is not None
        and nxt.sacked & TAGBITS == SACKED_ACKED
        and nxt.length
        and size == (nxt.gso_size or nxt.length)
        and not prev.eor
        and prev.length + nxt.length < MAX_SHIFTED
        and not nxt.is_zerocopy()
    ):
        _move(sk, prev, nxt, nxt.length, nxt.pcount, size, False, rs)
    return prev


def _move(sk: Sock, prev: Skb, skb: Skb, length: int, pcount: int, size: int, dup: bool, rs: rate.AckSample) -> bool:
    """The first `length` bytes of `skb` become the end of `prev`; whether nothing of `skb` is left."""
    _tag_range(sk, skb, skb.seq + length, pcount, dup, rs)
    rate.skb_delivered(sk, skb, rs)
    moved, skb.frags = tso.split_frags(skb.frags, length)
    # (a clone of prev in the TX ring has the old list)
    prev.frags = [*prev.frags, *moved]
    prev.length += length
    prev.truesize += length
    prev.end_seq += length
    prev.pcount += pcount
    prev.gso_size = prev.gso_size or size
    prev.sacked |= skb.sacked & EVER_RETRANS
    skb.seq += length
    skb.length -= length
    skb.truesize -= length
    skb.pcount -= pcount
    if skb.slabs:
        prev.share_slabs(skb)
    if skb.length:
        if skb.pcount <= 1:
            skb.gso_size = 0
        sk.mib.TCPSackShifted += 1
        return False
    prev.flags |= skb.flags
    prev.eor = skb.eor
    prev.end_seq = skb.end_seq
    prev.tx_delivered_us = 0
    if sk.retransmit_hint is skb:
        sk.retransmit_hint = prev
    if sk.highest_sack is skb:
        sk.highest_sack = skb.next
    if skb.tprev is not None or sk.tsorted.head is skb:
        sk.tsorted.remove(skb)
    sk.rtx_queue.remove(skb)
    if skb.stamp is not None:
        prev.stamp = skb.stamp
    xmit.free_skb(sk, skb)
    sk.mib.TCPSackMerged += 1
    return True


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
