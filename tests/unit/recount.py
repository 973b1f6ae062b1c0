"""Everything a sender keeps count of, counted again from its queues: for tests that try to break it."""

from __future__ import annotations

from itertools import pairwise

from pytcp.tcp import const
from pytcp.tcp.skb import Skb, SkbList
from pytcp.tcp.sock import NEVER, Sock

from .harness import FakeHost

SENDING = {const.ESTABLISHED, const.CLOSE_WAIT, const.FIN_WAIT1, const.CLOSING, const.LAST_ACK}


def linked(queue: SkbList) -> list[Skb]:
    """The skbs of a queue, its links checked in both directions."""
    out: list[Skb] = []
    prev = None
    skb = queue.head
    while skb is not None:
        assert skb.prev is prev
        out.append(skb)
        prev, skb = skb, skb.next
    assert queue.tail is prev
    assert queue.qlen == len(out)
    return out


def check_queues(sk: Sock, refused: bool) -> None:
    """Sequence space, payload lengths, memory, packet counts and scoreboard of an open connection.

    `refused`: the host has refused segments, which leaves them stamped but where they were in time."""
    sent, unsent = linked(sk.rtx_queue), linked(sk.write_queue)
    base = sk.sysctl.skb_base_truesize
    if sent:
        assert sent[0].end_seq > sk.snd_una, "acknowledged data is freed"
        assert sent[0].seq <= sk.snd_una
        assert sent[-1].end_seq == sk.snd_nxt
    else:
        assert sk.snd_una == sk.snd_nxt
    if unsent:
        assert unsent[0].seq == sk.snd_nxt
        assert unsent[-1].end_seq == sk.write_seq
    else:
        assert sk.write_seq == sk.snd_nxt
    for queue in (sent, unsent):
        for skb, follower in pairwise(queue):
            assert skb.end_seq == follower.seq
    for skb in sent + unsent:
        assert skb.length == sum(len(f) for f in skb.frags)
        assert skb.end_seq - skb.seq == skb.length + (skb.flags & const.FIN) + (1 if skb.flags & const.SYN else 0)
        assert skb.truesize == base + skb.length
    assert sk.wmem_queued == sum(skb.truesize for skb in sent + unsent)

    assert all(skb.pcount >= 1 for skb in sent)
    assert sk.packets_out == sum(skb.pcount for skb in sent)
    assert sk.lost_out == sum(skb.pcount for skb in sent if skb.sacked & const.LOST)
    retransmitted = sum(skb.pcount for skb in sent if skb.sacked & const.SACKED_RETRANS)
    if sk.mib.TCPLossUndo or sk.mib.TCPPartialUndo:
        # R without L is counted again when it is lost and resent, as Linux does (measured)
        assert sk.retrans_out >= retransmitted
    else:
        assert sk.retrans_out == retransmitted
    if sk.sack_ok:
        assert sk.sacked_out == sum(skb.pcount for skb in sent if skb.sacked & const.SACKED_ACKED)
        assert not any(skb.sacked & const.SACKED_ACKED and skb.sacked & const.LOST for skb in sent)
        assert sk.sacked_out + sk.lost_out <= sk.packets_out
    else:
        assert 0 <= sk.sacked_out <= sk.packets_out

    members = set(map(id, sent))
    last: Skb | None = None
    timed = sk.tsorted.head
    while timed is not None:
        assert timed.tprev is last
        assert id(timed) in members, "only what is in flight is in the time-sorted list"
        assert refused or last is None or last.tx_ns <= timed.tx_ns
        last, timed = timed, timed.tnext
    assert sk.tsorted.tail is last
    for hint in (sk.retransmit_hint, sk.highest_sack):
        assert hint is None or id(hint) in members


def check_timers(sk: Sock) -> None:
    """Whoever waits for something has a clock running."""
    deadlines = (sk.delack_deadline, sk.rtx_deadline, sk.keep_deadline, sk.compressed_ack_deadline, sk.pacing_deadline)
    earliest = min(deadlines)
    assert (sk.pending == const.PENDING_NONE) == (sk.rtx_deadline == NEVER)
    assert earliest == NEVER or sk.heap_when <= earliest
    if sk.state not in SENDING:
        return
    if sk.packets_out:
        assert sk.pending not in (const.PENDING_NONE, const.PENDING_PROBE0), "data in flight has a retransmission timer"
    elif sk.write_queue:
        assert sk.pending == const.PENDING_PROBE0 or sk.pacing_deadline < NEVER, "data that cannot leave is probed for"


def check_ring(sk: Sock) -> None:
    """Memory charged until TX completion is that of the clones in the ring."""
    host = sk.host
    assert isinstance(host, FakeHost)
    assert sk.wmem_alloc == 1 + sum(truesize for _, _, truesize in host.in_ring)
    clones: dict[int, int] = {}
    for _, skb, _ in host.in_ring:
        if skb is not None:
            clones[id(skb)] = clones.get(id(skb), 0) + 1
    for skb in [*sk.rtx_queue, *sk.write_queue]:
        assert skb.in_host == clones.get(id(skb), 0)


def check(sk: Sock, refused: bool = False) -> None:
    """All of it."""
    if sk.state in SENDING:
        check_queues(sk, refused)
    check_timers(sk)
    check_ring(sk)
