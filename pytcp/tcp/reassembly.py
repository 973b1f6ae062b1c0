"""From segments to a stream: the receive queue, and the out-of-order queue behind a hole.

In-order payload goes to the end of the receive queue. Data past a hole waits sorted by sequence number;
what overlaps is reported by D-SACK and, where it lies wholly inside what is there, dropped (linux-tcp
§7.6; RFC 9293 §3.10.7.4 seventh). Old data means our ACKs got lost: it is answered at once, with a
D-SACK. A queue entry is a `memory.RxChunk`, Linux's skb. Counters: TCPOFOQueue, TCPOFOMerge, TCPOFODrop,
TCPRcvQDrop, TCPZeroWindowDrop, DelayedACKLost, TcpDuplicateDataRehash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import delack, drs, ecn, input, memory, ofo, recv, rwnd, rx_timestamps, sack_send
from .const import ACK_NOMEM, ACK_NOW, ACK_SCHED, CA_LOSS, FIN, MAX_QUICKACKS, POLLIN, SF_DEAD

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .memory import RxChunk
    from .ofo import OfoQueue
    from .sock import Sock


def data_queue(sk: Sock, seg: Segment) -> None:
    """Queue the payload and FIN of a segment that passed every check, or drop it and say why by counter."""
    seq = seg.seq
    end_seq = seg.end_seq
    if seq == end_seq:
        return
    sk.duplicate_sack = None
    rcv_nxt = sk.rcv_nxt
    mib = sk.mib
    if seq == rcv_nxt:
        # a bare FIN is let in through a closed window
        if rwnd.receive_window(sk) == 0 and seg.length:
            mib.TCPZeroWindowDrop += 1
            _out_of_window(sk)
            return
        _queue_in_order(sk, seg)
    elif end_seq <= rcv_nxt:
        mib.DelayedACKLost += 1
        spurious_retrans(sk, seg)
        sack_send.dsack_set(sk, seq, end_seq)
        _out_of_window(sk)
    elif seq >= rcv_nxt + rwnd.receive_window(sk):
        _out_of_window(sk)
    elif seq < rcv_nxt:
        sack_send.dsack_set(sk, seq, rcv_nxt)
        if rwnd.receive_window(sk) == 0:
            mib.TCPZeroWindowDrop += 1
            _out_of_window(sk)
            return
        _queue_in_order(sk, seg)
    else:
        _queue_out_of_order(sk, seg)


def _out_of_window(sk: Sock) -> None:
    """Nothing of the segment is of use: answer at once, and further ones too."""
    delack.enter_quickack_mode(sk, MAX_QUICKACKS)
    sk.ack_pending |= ACK_SCHED


def spurious_retrans(sk: Sock, seg: Segment) -> None:
    """Old data again, with another IPv6 flow label: the peer's RTO made it look for another path, so it may be
    our ACKs that are lost (linux-sockets §4): look for another path too, unless we are doing so already."""
    if seg.family == 6:
        label = flow_label(seg)
        if label != sk.lrcv_flowlabel and sk.ca_state != CA_LOSS:
            sk.mib.TcpDuplicateDataRehash += 1
            sk.host.rehash(sk)
        sk.lrcv_flowlabel = label


def flow_label(seg: Segment) -> int:
    """The label in the IPv6 header right before the TCP header; 0 where extension headers lie between."""
    at = seg.l4_off - 40
    if at < 0 or seg.data[at] >> 4 != 6:
        return 0
    return int.from_bytes(seg.data[at : at + 4], "big") & 0xFFFFF


# ---------------------------------------------------------------- in order


def queue_rcv(sk: Sock, seg: Segment) -> None:
    """Append to the receive queue and advance rcv_nxt; bytes below rcv_nxt stay in the chunk, unread."""
    queue = sk.receive_queue
    if queue is None:
        queue = sk.receive_queue = []
    if not queue or not memory.coalesce_segment(sk, queue[-1], seg):
        queue.append(memory.RxChunk(seg))
        truesize = seg.truesize
        sk.rmem_alloc += truesize
        sk.forward_alloc -= truesize
    sk.bytes_received += seg.end_seq - sk.rcv_nxt
    sk.rcv_nxt = seg.end_seq
    if sk.rx_stamps is not None:
        rx_timestamps.note(sk, seg.end_seq)


def take_syn_data(sk: Sock, seg: Segment) -> None:
    """What a SYN carries under Fast Open is delivered without the questions put to data of a connection; it is acknowledged by the SYN-ACK."""
    memory.reserve(sk, seg.truesize)
    queue_rcv(sk, seg)
    if seg.flags & FIN:
        input.fin(sk)


def _queue_in_order(sk: Sock, seg: Segment) -> None:
    if not memory.try_rmem_schedule(sk, seg):
        sk.ack_pending |= ACK_NOMEM | ACK_NOW | ACK_SCHED
        if not sk.sock_flags & SF_DEAD:
            sk.host.wake(sk, POLLIN)
        if sk.receive_queue and seg.length:
            sk.mib.TCPRcvQDrop += 1
            return
        # an empty queue must take something, or the connection would stand still
        memory.reserve(sk, seg.truesize)
    orphan = sk.sock_flags & SF_DEAD
    queue_rcv(sk, seg)
    if seg.length:
        event_data_recv(sk, seg)
    if seg.flags & FIN:
        input.fin(sk)
    if sk.ofo_queue:
        _fill_from_ofo(sk)
        if not sk.ofo_queue:
            # the hole is filled: tell the sender at once (RFC 5681 §4.2)
            sk.ack_pending |= ACK_NOW
    if sk.selective_acks:
        sack_send.remove_acked(sk)
    fast_path_check(sk)
    if not orphan:
        recv.data_ready(sk)


def event_data_recv(sk: Sock, seg: Segment) -> None:
    """Data came in order: an ACK is owed, and everything that watches the sender's behaviour learns."""
    sk.ack_pending |= ACK_SCHED
    rwnd.measure_rcv_mss(sk, seg)
    drs.rcv_rtt_measure(sk)
    now = sk.host.now_ns
    delack.measure_ato(sk, now // sk.sysctl.tick_ns)
    sk.lrcvtime_ns = now
    if seg.family == 6:
        sk.lrcv_flowlabel = flow_label(seg)
    ecn.data_ecn_check(sk, seg)
    if seg.length >= 128:
        rwnd.grow_window(sk, seg, True)


def fast_path_check(sk: Sock) -> None:
    """Turn header prediction on where nothing stands against it."""
    if not sk.ofo_queue and sk.rcv_wnd and sk.rmem_alloc < sk.rcvbuf and not sk.urg_data:
        sk.pred = True


def _fill_from_ofo(sk: Sock) -> None:
    """rcv_nxt moved: take over what is in order now."""
    waiting = sk.ofo_queue
    edge = sk.rcv_nxt
    finished = False
    while waiting and waiting[0].seq <= sk.rcv_nxt:
        (chunk,) = waiting.take(0, 1)
        if chunk.seq < edge:
            # the segment that filled the hole repeated (the beginning of) this
            sack_send.dsack_extend(sk, chunk.seq, min(chunk.end_seq, edge))
        if chunk.end_seq <= sk.rcv_nxt:
            memory.free_chunk(sk, chunk)
            continue
        queue = sk.receive_queue
        end_seq = chunk.end_seq
        fin = chunk.fin
        if queue and memory.coalesce_chunk(sk, queue[-1], chunk):
            memory.free_chunk(sk, chunk)
        else:
            queue.append(chunk)
        sk.bytes_received += end_seq - sk.rcv_nxt
        sk.rcv_nxt = end_seq
        if fin:
            finished = True
            break
    if finished:
        # drops whatever lies behind the FIN
        input.fin(sk)


# ---------------------------------------------------------------- out of order


def _queue_out_of_order(sk: Sock, seg: Segment) -> None:
    if seg.family == 6:
        sk.lrcv_flowlabel = flow_label(seg)
    ecn.data_ecn_check(sk, seg)
    mib = sk.mib
    if not memory.try_rmem_schedule(sk, seg):
        mib.TCPOFODrop += 1
        if not sk.sock_flags & SF_DEAD:
            sk.host.wake(sk, POLLIN)
        return
    rwnd.measure_rcv_mss(sk, seg)
    sk.pred = False
    sk.ack_pending |= ACK_SCHED
    sk.rcv_ooopack += seg.nsegs
    mib.TCPOFOQueue += 1
    sack_ok = sk.sack_ok
    waiting = sk.ofo_queue
    if waiting is None:
        waiting = sk.ofo_queue = ofo.OfoQueue()
    stored = True
    if not waiting:
        if sack_ok:
            sk.selective_acks = [(seg.seq, seg.end_seq)]
        chunk: RxChunk | None = memory.RxChunk(seg)
        waiting.add(chunk, None)
    else:
        chunk, stored = _insert(sk, waiting, seg)
        if sack_ok:
            sack_send.new_ofo_skb(sk, seg.seq, seg.end_seq)
    if stored and sk.rx_stamps is not None:
        rx_timestamps.note(sk, seg.end_seq)
    # without SACK the window stays put, so that the duplicate ACKs are recognised as such
    if chunk is not None:
        if sack_ok:
            rwnd.grow_window(sk, seg, False)
        memory.charge(sk, chunk.truesize)
    elif stored and sack_ok:
        rwnd.grow_window(sk, seg, True)
    if not sk.sock_flags & SF_DEAD and sk.parent is None and sk.sysctl.drs == "unqueued":
        # neither an orphan nor waiting for accept(): the reader will want room for what the hole held up
        drs.rcvbuf_grow(sk, sk.rcvq_space)


def _insert(sk: Sock, waiting: OfoQueue, seg: Segment) -> tuple[RxChunk | None, bool]:
    """Place a segment among those queued: (its new chunk or None, whether its bytes were kept).

    Which of several neighbours it meets first on its way down the tree decides what becomes of it."""
    seq = seg.seq
    end_seq = seg.end_seq
    last = waiting[-1]
    if memory.coalesce_segment(sk, last, seg):
        return None, True
    parent = last
    node: RxChunk | None = None if seq >= last.end_seq else waiting.root
    while node is not None:
        parent = node
        if seq < node.seq:
            node = node.left
            continue
        if seq < node.end_seq:
            if end_seq <= node.end_seq:
                # all of it is there already
                sk.mib.TCPOFOMerge += 1
                sack_send.dsack_set(sk, seq, end_seq)
                return None, False
            if seq == node.seq:
                # it covers the older chunk wholly
                chunk = memory.RxChunk(seg)
                at = waiting.index_of(node)
                waiting.replace(at, chunk)
                sack_send.dsack_extend(sk, node.seq, node.end_seq)
                _drop_merged(sk, node)
                _merge_right(sk, waiting, at)
                return chunk, True
            sack_send.dsack_set(sk, seq, node.end_seq)
        elif memory.coalesce_segment(sk, node, seg):
            return None, True
        node = node.right
    chunk = memory.RxChunk(seg)
    _merge_right(sk, waiting, waiting.add(chunk, parent))
    return chunk, True


def _merge_right(sk: Sock, waiting: OfoQueue, at: int) -> None:
    """Drop what the chunk at index `at` covers of those behind it."""
    end_seq = waiting[at].end_seq
    while at + 1 < len(waiting):
        after = waiting[at + 1]
        if end_seq <= after.seq:
            return
        if end_seq < after.end_seq:
            sack_send.dsack_extend(sk, after.seq, end_seq)
            return
        waiting.take(at + 1, at + 2)
        sack_send.dsack_extend(sk, after.seq, after.end_seq)
        _drop_merged(sk, after)


def _drop_merged(sk: Sock, chunk: RxChunk) -> None:
    sk.mib.TCPOFOMerge += 1
    memory.free_chunk(sk, chunk)


def purge_ofo(sk: Sock) -> None:
    """Drop everything that waits behind a hole."""
    waiting = sk.ofo_queue
    if waiting:
        for chunk in waiting:
            memory.free_chunk(sk, chunk)
        waiting.clear()
