"""Gates: what a connection that could send is waiting for, all the time.

Exactly one gate is shut at any moment from ESTABLISHED to CLOSE. It answers one question: why does no
more new data leave now? The answer is that of the decision that ended the last attempt to send.

    app          nothing to send and nobody waiting to write: the program is what is missing
    sndbuf       everything queued has left, and the writer waits for send memory
    cork         a partial segment held by TCP_CORK or MSG_MORE
    nagle        a partial segment held behind an unacknowledged small one (Nagle, Minshall)
    autocork     a small write held while earlier data lies in the host's queue
    tso_defer    a burst held because the next ACK is near and would make it longer
    tsq          the host's queue holds the socket's share (small queues)
    cwnd         the congestion window is full, or leaves less than the burst that is due
    rwnd         the peer's window is full (or zero), or leaves less than the burst that is due
    pacing       the departure time of the next packet has not come
    host_queue   a retransmission held because the original has not left the host, or the host refused
    neighbour    sent data waits in the host for the link-layer address (ARP, NDP)

Data that is in flight does not shut a gate: with everything sent the program is what is missing,
however long the ACK takes. tcp_info's chronos (`chrono`, Linux 4.10) are coarser: busy_time is the
time with data unacknowledged, rwnd_limited agrees with `rwnd`, sndbuf_limited with `sndbuf` while the
congestion window has room. Each byte of payload counts once, under the gate it waited for last.

Work is done only where the gate changes. `host_queue` and `neighbour` are holds: they stay shut over
whatever else is decided meanwhile, until the host lets go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .const import SEND_SHUTDOWN

if TYPE_CHECKING:
    from .sock import Sock

NAMES = ("app", "sndbuf", "cork", "nagle", "autocork", "tso_defer", "tsq", "cwnd", "rwnd", "pacing", "host_queue", "neighbour")
APP, SNDBUF, CORK, NAGLE, AUTOCORK, TSO_DEFER, TSQ, CWND, RWND, PACING, HOST_QUEUE, NEIGHBOUR = range(len(NAMES))

WORDS = {
    "app": "the program had written nothing more",
    "sndbuf": "the send buffer was full, with everything in it sent: the program had to wait",
    "cork": "the program had corked the socket",
    "nagle": "Nagle waited for an acknowledgement before a small segment",
    "autocork": "autocork waited for the host's queue to empty",
    "tso_defer": "deferral waited for the next acknowledgement, for a longer super-segment",
    "tsq": "small queues: enough of this connection was in the host's queue",
    "cwnd": "the congestion window was full",
    "rwnd": "the peer's receive window was full",
    "pacing": "the departure time of the next packet had not come",
    "host_queue": "a retransmission waited for its original to leave the host, or the host refused",
    "neighbour": "the neighbour's link-layer address was not known",
}


def begin(sk: Sock) -> None:
    """The connection is open: its time runs from here, and the program is awaited."""
    sk.gate = APP
    sk.gate_since_ns = sk.host.now_ns
    sk.gate_seq = sk.snd_nxt
    sk.gate_sums = None


def end(sk: Sock) -> None:
    """The connection is over: the sums stay as they are. Harmless before `begin` and when repeated."""
    if sk.gate_since_ns >= 0:
        _charge(sk)
        sk.gate_since_ns = -1


def _charge(sk: Sock) -> None:
    """Add time and bytes since the last change to the gate that was shut."""
    sums = sk.gate_sums
    if sums is None:
        sums = sk.gate_sums = [0] * (2 * len(NAMES))
    gate = sk.gate
    ns, sent = _since(sk)
    sums[gate] += ns
    sk.gate_since_ns += ns
    if sent:
        sums[gate + len(NAMES)] += sent
        sk.gate_seq += sent


def _since(sk: Sock) -> tuple[int, int]:
    """(ns, bytes) since the last change."""
    end = sk.snd_nxt
    if sk.shutdown and sk.shutdown & SEND_SHUTDOWN and end == sk.write_seq:
        # the FIN has gone, too, and is no payload
        end -= 1
    sent = end - sk.gate_seq
    return sk.host.now_ns - sk.gate_since_ns, sent if sent > 0 else 0


def switch(sk: Sock, gate: int) -> None:
    """`gate` is shut now, another one than before. Holds stay until the host lets go."""
    old = sk.gate
    if old >= HOST_QUEUE and (old == NEIGHBOUR or sk.tsq_throttled):
        sk.gate_below = gate
        return
    _change(sk, gate)


def _change(sk: Sock, gate: int) -> None:
    if sk.gate_since_ns < 0:
        return
    _charge(sk)
    old = sk.gate
    sk.gate = gate
    if sk.trace is not None:
        sk.trace.event(sk, "gate", old=NAMES[old], new=NAMES[gate])


def idle(sk: Sock) -> None:
    """Nothing waits to be sent: the program is awaited, or send memory if the program waits for that."""
    gate = SNDBUF if sk.nospace else APP
    if gate != sk.gate:
        switch(sk, gate)


def hold(sk: Sock, gate: int) -> None:
    """The host keeps what the connection has sent: HOST_QUEUE until the next TX completion, NEIGHBOUR until `release`."""
    if sk.gate < HOST_QUEUE:
        sk.gate_below = sk.gate
    # without an address nothing leaves the host, so that is what a retransmission waits for, too
    if sk.gate < gate:
        _change(sk, gate)


def release(sk: Sock) -> None:
    """The link-layer address is known, or given up: back to what was decided meanwhile."""
    if sk.gate == NEIGHBOUR:
        _change(sk, sk.gate_below)


def times(sk: Sock) -> dict[str, tuple[int, int]]:
    """(ns, bytes) of every gate so far, the one shut now included; all zero before ESTABLISHED.

    The ns add up to the life of the connection, the bytes to the payload sent for the first time."""
    sums = sk.gate_sums or [0] * (2 * len(NAMES))
    found = {name: (sums[gate], sums[gate + len(NAMES)]) for gate, name in enumerate(NAMES)}
    if sk.gate_since_ns >= 0:
        name = NAMES[sk.gate]
        ns, sent = _since(sk)
        found[name] = found[name][0] + ns, found[name][1] + sent
    return found
