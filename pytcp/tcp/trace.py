"""Trace: the engine says what it decided and why, at the place where it decides.

`Sock.trace` is None, or an object with one method, `event(sk, kind, **fields)`: tracing that is off
costs a test of a slot where a decision ends. A sink adds the time (`sk.host.now_ns`) and the name of
the connection (`flow`). What an event says comes from the branch that was taken; nothing here decides
anything a second time. Times are ns unless a name says us, sizes bytes, sequence numbers relative:
the first byte of payload is 0, in each direction.

    xmit        one super-segment has left: seq, end_seq, segs, gso_size, flags, rtx (1: again), why, quota and
                max_segs (packets it might have had by cwnd, by pacing rate and device), cwnd, inflight (before it)
    stop        an attempt to send ended with data left: gate, queued, wmem_alloc, limit (of what stopped it: tsq
                bytes of truesize, cwnd packets, rwnd bytes, pacing ns from now, else 0)
    gate        another gate is shut: old, new (`gates`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from . import gates
from .const import PSH, URG

if TYPE_CHECKING:
    from .skb import Skb
    from .sock import Sock

# why a super-segment has the size it has
WHY = {
    "queue": "all there was",
    "write": "as long as the write made it: size goal, or a message boundary behind it",
    "cwnd": "the congestion window had room for no more",
    "cwnd/2": "half of the congestion window at most in one burst",
    "autosize": "about 1 ms of the pacing rate in one burst, with the bonus for a short RTT",
    "gso_max": "the device takes no longer super-segment",
    "window": "the peer's window ends here",
    "nagle-tail": "whole segments; the partial one behind them waits",
    "urgent": "urgent data goes segment by segment",
    "tlp": "a loss probe, beyond the congestion window",
    "probe": "a window probe, of what the window takes",
    "mss": "a timer resends one segment",
    "again": "resent as it was sent",
}


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
