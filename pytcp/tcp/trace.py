"""Trace: the engine says what it decided and why, at the place where it decides.

`Sock.trace` is None, or an object with one method, `event(sk, kind, **fields)`: tracing that is off
costs a test of a slot where a decision ends. A sink adds the time (`sk.host.now_ns`) and the name of
the connection (`flow`). What an event says comes from the branch that was taken; nothing here decides
anything a second time. Times are ns unless a name says us, sizes bytes, sequence numbers relative:
the first byte of payload is 0, in each direction.

    state       the connection's state changes: old, new
    xmit        one super-segment has left: seq, end_seq, segs, gso_size, flags, rtx (1: again), why (`WHY`: it has this size), quota
                and max_segs (packets it might have had by cwnd, by pacing rate and device), cwnd, inflight (packets before it)
    stop        an attempt to send ended with data left: gate, queued, wmem_alloc, limit (of what stopped it: tsq bytes of truesize,
                cwnd packets, rwnd bytes, pacing ns from now, else 0)
    gate        another gate is shut: old, new (`gates`)
    autocork    a small write stays: length, truesize, wmem_alloc (more than its truesize lies in the host), size_goal
    tso_defer   a burst of several segments was looked at: wait (1: held), why (`DEFER`: the exit), length
    tsq         the host has enough of this socket: wmem_alloc, limit
    ack         an acknowledgement: una, wnd (the peer's window), sacks ([[from, to], ...]), delivered (packets), rtt_us (-1: no sample)
    recv        data has arrived, wanted or not: seq, end_seq, segs
    window      the window we offer has another right edge: wnd, edge
    ca_state    congestion state: old, new (Open, Disorder, CWR, Recovery, Loss), cwnd, ssthresh
    lost        a segment counts as lost: seq, end_seq, segs, why (`LOST`), again (1: its retransmission is)
    retransmit  a segment was sent again (its xmit comes before): seq, end_seq, segs, cause (`CAUSE`)
    rto, tlp    the timer fired: rto_us, backoff, inflight, cwnd; a probe was sent: new (1: of new data), inflight
    probe       a window probe without data: probes (unanswered), backoff, wnd
    undo        a reduction is taken back: why (`UNDO`), cwnd, ssthresh
    ecn         what (ece: the peer echoes a mark; ce: a mark came; cwr: we said that we reduced), cwnd
    hystart     slow start is left: detector (train, delay), cwnd, round_us or rtt_us, delay_min_us
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from . import gates, tso
from .const import PSH, URG
from .seq import unwrap

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .skb import Skb
    from .sock import Sock

KINDS = (
    "state", "xmit", "stop", "gate", "autocork", "tso_defer", "tsq", "ack", "recv", "window", "ca_state", "lost", "retransmit", "rto", "tlp", "probe",
    "undo", "ecn", "hystart",
)  # fmt: skip

# why a super-segment has the size it has
WHY = {
    "queue": "all there was",
    "write": "as long as the write made it: size goal, or a message boundary behind it",
    "cwnd": "the congestion window had room for no more",
    "cwnd/2": "half of the congestion window at most in one burst",
    "autosize": "about 1 ms of the pacing rate in a burst, more on a short RTT",
    "gso_max": "the device takes no longer super-segment",
    "window": "the peer's window ends here",
    "nagle-tail": "whole segments; the partial one behind them waits",
    "urgent": "urgent data goes segment by segment",
    "tlp": "a loss probe, beyond the congestion window",
    "probe": "a window probe, of what the window takes",
    "mtu-probe": "a probe of how long packets the path takes",
    "mss": "a timer resends one segment",
    "again": "resent as it was sent",
}

# why a burst left at once, or did not
DEFER = {
    tso.DEFER: "the next ACK is near and will make it longer",
    tso.DEFER_CWND_LIMITED: "cwnd has room for less than is there, and the next ACK is near",
    tso.DEFER_RWND_LIMITED: "the peer's window has room for less than is there, and the next ACK is near",
    tso.NOW_RECOVERY: "in recovery nothing is deferred",
    tso.NOW_STALE: "the last transmission is over a millisecond old",
    tso.NOW_FULL_BURST: "a full burst",
    tso.NOW_WHOLE: "all of it fits, and more is queued behind it",
    tso.NOW_ENOUGH: "a good part of the window",
    tso.NOW_NO_ACK_DUE: "nothing is in flight that could be acknowledged",
    tso.NOW_ACK_FAR: "the next ACK is too far away",
    tso.NOW_END: "the last of a message or of the connection",
}
# why a segment counts as lost
LOST = {
    "rack": "one sent later was delivered",
    "dupacks": "enough duplicate ACKs, or a partial one (no SACK)",
    "rto": "the retransmission timer fired",
    "mtu": "it is too long for the path",
    "fastopen": "the SYN-ACK left the data of the SYN out",
}
# what a segment was sent again for
CAUSE = {
    "lost": "it counts as lost",
    "rto": "the timer fired for it",
    "tlp": "to learn whether the end of a flight arrived",
}
# what proved a reduction needless
UNDO = {
    "full": "the originals had arrived: timestamps, or DSACKs for every retransmission",
    "partial": "a partial ACK echoed a timestamp from before the retransmission",
    "dsack": "the peer reported every retransmission as a duplicate",
    "loss": "after the timeout the originals were acknowledged",
    "frto": "after the timeout data was acknowledged that was never sent again",
}
CA_NAMES = ("Open", "Disorder", "CWR", "Recovery", "Loss")


class Tracer(Protocol):
    """Who listens. `event` runs inside the engine: it must be short and must not call back into it."""

    def event(self, sk: Sock, kind: str, **fields: Any) -> None:
        """Something was decided about `sk`: `kind` and its `fields` as the head of this module lists them."""


def flag_text(bits: int) -> str:
    """TCP flags as tcpdump writes them: "P.", "S", "F."."""
    return "".join(letter for letter, bit in (("S", 2), ("F", 1), ("R", 4), ("P", 8), ("U", 0x20), ("E", 0x40), ("W", 0x80), (".", 0x10)) if bits & bit)


def xmit(tracer: Tracer, sk: Sock, skb: Skb, why: str, quota: int, max_segs: int, rtx: int = 0) -> None:
    """`skb` has just left; it is not counted as in flight yet."""
    flags = skb.flags
    if skb.pcount > 1:
        flags |= PSH
    if sk.snd_up > skb.seq:
        flags |= URG
    seq = skb.seq - sk.iss - 1
    inflight = sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out
    tracer.event(
        sk, "xmit", seq=seq, end_seq=seq + skb.length, segs=skb.pcount, gso_size=skb.gso_size, flags=flag_text(flags), rtx=rtx, why=why,
        quota=quota, max_segs=max_segs, cwnd=sk.snd_cwnd, inflight=inflight,
    )  # fmt: skip


def stop(tracer: Tracer, sk: Sock, gate: int, limit: int) -> None:
    """An attempt to send ended at `gate` with data left."""
    if gate == gates.CWND:
        limit = sk.snd_cwnd
    elif gate == gates.RWND:
        limit = sk.snd_wnd
    elif gate == gates.PACING:
        limit = sk.wstamp_ns - sk.host.now_ns
    tracer.event(sk, "stop", gate=gates.NAMES[gate], queued=sk.write_seq - sk.snd_nxt, wmem_alloc=sk.wmem_alloc, limit=limit)


def tso_defer(tracer: Tracer, sk: Sock, skb: Skb, verdict: int) -> None:
    """`tso.should_defer` has spoken about `skb`."""
    tracer.event(sk, "tso_defer", wait=int(verdict > 0), why=DEFER[verdict], length=skb.length)


def ack(tracer: Tracer, sk: Sock, seg: Segment, delivered: int, rtt_us: int) -> None:
    """An acknowledgement has been dealt with: it delivered so many packets."""
    first = sk.iss + 1
    una = sk.snd_una
    sacks = [[unwrap(left, una) - first, unwrap(right, una) - first] for left, right in seg.options.sack] if sk.sack_ok else []
    tracer.event(sk, "ack", una=una - first, wnd=sk.snd_wnd, sacks=sacks, delivered=delivered, rtt_us=rtt_us)


def recv(tracer: Tracer, sk: Sock, seg: Segment) -> None:
    """A segment with data has arrived; its sequence number is still that of the wire."""
    seq = unwrap(seg.seq, sk.rcv_nxt) - sk.irs - 1
    tracer.event(sk, "recv", seq=seq, end_seq=seq + seg.length, segs=seg.nsegs)


def ca_state(tracer: Tracer, sk: Sock, state: int) -> None:
    """The congestion state is about to become `state`."""
    tracer.event(sk, "ca_state", old=CA_NAMES[sk.ca_state], new=CA_NAMES[state], cwnd=sk.snd_cwnd, ssthresh=sk.snd_ssthresh)


def lost(tracer: Tracer, sk: Sock, skb: Skb, why: str, again: int) -> None:
    """`skb` has been tagged lost; `again`: what is lost is its retransmission."""
    seq = skb.seq - sk.iss - 1
    tracer.event(sk, "lost", seq=seq, end_seq=seq + skb.length, segs=skb.pcount, why=why, again=again)


def retransmit(tracer: Tracer, sk: Sock, skb: Skb, cause: str) -> None:
    """`skb` has been sent again."""
    seq = skb.seq - sk.iss - 1
    tracer.event(sk, "retransmit", seq=seq, end_seq=seq + skb.length, segs=skb.pcount, cause=cause)
