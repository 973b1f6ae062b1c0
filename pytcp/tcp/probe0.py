"""Zero-window probes (RFC 9293 §3.8.6.1, linux-tcp §7.7): ask a closed window until it opens.

Armed when data waits and nothing is in flight: after max(RTO, 200 ms), doubling. A probe is a real
partial segment if the window takes part of the head, else a dataless segment one byte below snd_una.
The same timer ends an indefinite TCP_CORK. Sysctl: tcp_retries2. Counter: TCPWinProbe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import close, gates, mtu, timers, tso, xmit
from . import trace as tracing
from .const import ACK, NSEC_PER_MSEC, PENDING_PROBE0, PSH, SF_DEAD
from .skb import Skb

if TYPE_CHECKING:
    from .sock import Sock


def base_ns(sk: Sock) -> int:
    return max(sk.rto_ns, timers.RTO_MIN_NS)


def when_ns(sk: Sock, max_ns: int) -> int:
    """Delay of the next probe: the base, doubled per unanswered probe, at most `max_ns`."""
    base = base_ns(sk)
    limit = (sk.rto_max_ns // base).bit_length() + 1
    return min(base << min(limit, sk.backoff), max_ns)


def timer(sk: Sock) -> None:
    """The probe timer fired."""
    head = sk.write_queue.head
    if sk.packets_out or head is None:
        sk.probes_out = 0
        sk.probes_tstamp = 0
        return
    now_ms = sk.host.now_ns // NSEC_PER_MSEC
    if not sk.probes_tstamp:
        sk.probes_tstamp = now_ms
    elif sk.user_timeout_ms and now_ms - sk.probes_tstamp >= sk.user_timeout_ms:
        close.write_err(sk)
        return
    max_probes = sk.sysctl.tcp_retries2
    if sk.sock_flags & SF_DEAD:
        alive = when_ns(sk, sk.rto_max_ns) < sk.rto_max_ns
        max_probes = close.orphan_retries(sk, alive)
        if not alive and sk.backoff >= max_probes:
            close.write_err(sk)
            return
        if close.out_of_resources(sk, True):
            return
    if sk.probes_out >= max_probes:
        close.write_err(sk)
    else:
        send(sk)


def send(sk: Sock) -> None:
    """Send a probe and arm the next."""
    error = write_wakeup(sk)
    if sk.packets_out or sk.write_queue.head is None:
        # it was a real segment: the RTO takes over
        sk.probes_out = 0
        sk.backoff = 0
        sk.probes_tstamp = 0
        if sk.write_queue.head is None:
            gates.idle(sk)
        return
    sk.probes_out += 1
    if sk.trace is not None:
        sk.trace.event(sk, "probe", probes=sk.probes_out, backoff=sk.backoff, wnd=sk.snd_wnd)
    if error <= 0:
        if sk.backoff < sk.sysctl.tcp_retries2:
            sk.backoff += 1
        delay = when_ns(sk, sk.rto_max_ns)
    else:
        # dropped in our own host: soon again
        delay = timers.RESOURCE_PROBE_INTERVAL_NS
    timers.arm_rtx(sk, PENDING_PROBE0, _clamp_to_user_timeout(sk, delay))


def _clamp_to_user_timeout(sk: Sock, delay_ns: int) -> int:
    if not sk.user_timeout_ms or not sk.probes_tstamp:
        return delay_ns
    elapsed = sk.host.now_ns // NSEC_PER_MSEC - sk.probes_tstamp
    left = max(sk.user_timeout_ms - elapsed, 0)
    return max(min(delay_ns, left * NSEC_PER_MSEC), 2 * sk.sysctl.tick_ns)


def write_wakeup(sk: Sock) -> int:
    """Send what fits the window of the head, or a dataless probe; returns the host's verdict (>0: dropped)."""
    skb = sk.write_queue.head
    wnd_end = sk.snd_una + sk.snd_wnd
    if skb is not None and skb.seq < wnd_end:
        mss = mtu.current_mss(sk)
        fits = wnd_end - skb.seq
        if sk.pushed_seq < skb.end_seq:
            sk.pushed_seq = skb.end_seq
        if fits < skb.end_seq - skb.seq or skb.length > mss:
            fits = min(fits, mss)
            skb.flags |= PSH
            sk.write_queue.insert_after(skb, tso.fragment(sk, skb, fits, mss))
        elif not skb.pcount:
            tso.set_pcount(skb, mss)
        skb.flags |= PSH
        error = xmit.transmit_skb(sk, skb)
        if not error:
            if sk.trace is not None:
                tracing.xmit(sk.trace, sk, skb, "probe", 1, 1)
            had_packets = sk.packets_out
            xmit.new_data_sent(sk, skb)
            if not had_packets:
                timers.rearm_rto(sk)
        return error
    if sk.snd_una < sk.snd_up <= sk.snd_una + 0xFFFF:
        # one in the window, which need not be answered but announces the urgent pointer
        _dataless(sk, sk.snd_una)
    return _dataless(sk, sk.snd_una - 1)


def _dataless(sk: Sock, seq: int) -> int:
    sk.mib.TCPWinProbe += 1
    return xmit.send_control(sk, ACK, seq)


def ack_probe(sk: Sock) -> None:
    """An ACK came while nothing was in flight: is the window open again?"""
    head = sk.write_queue.head
    if head is None:
        return
    if head.end_seq <= sk.snd_una + sk.snd_wnd:
        sk.backoff = 0
        sk.probes_tstamp = 0
        timers.clear_rtx(sk)
    else:
        delay = when_ns(sk, sk.rto_max_ns)
        timers.arm_rtx(sk, PENDING_PROBE0, _clamp_to_user_timeout(sk, delay))


def rtx_timed_out(sk: Sock, skb: Skb) -> bool:
    """Data in flight behind a window that shrank to zero: whether the peer has been silent too long."""
    now_ms = sk.host.now_ns // NSEC_PER_MSEC
    resending_ms = now_ms - (sk.retrans_stamp or skb.tx_ns // NSEC_PER_MSEC)
    timeout_ms = 2 * (sk.rto_max_ns // NSEC_PER_MSEC)
    if sk.user_timeout_ms:
        # the program's limit holds although the peer answers
        if resending_ms > sk.user_timeout_ms:
            return True
        timeout_ms = min(timeout_ms, sk.user_timeout_ms)
    return resending_ms > timeout_ms and now_ms - sk.rcv_tstamp_ns // NSEC_PER_MSEC > timeout_ms
