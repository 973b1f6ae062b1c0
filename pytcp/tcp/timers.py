"""The timers of one connection: deadlines in fields, at most one entry in the stack's heap.

Linux's retransmission timer is one timer that stands for several things in turn (`sk.pending`): RTO,
tail loss probe, RACK reordering timeout, zero-window probe. Jiffy timers fire as the kernel's timer
wheel fires them: in whole ticks, never early, coarser the longer they are (linux-tcp §14). High-
resolution timers (pacing, SACK compression) are exact.
Sysctls: tcp_retries1, tcp_retries2, tcp_thin_linear_timeouts, pytcp.hz. Counter: TCPTimeouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import close, delack, fastopen, fastopen_client, gates, handshake, keepalive, mtu_probe, probe0, rack, retransmit, rtt, sack_send, tlp, tsq
from .const import (
    CA_DISORDER,
    CA_LOSS,
    CA_RECOVERY,
    CLOSE,
    ESTABLISHED,
    LISTEN,
    NSEC_PER_MSEC,
    NSEC_PER_SEC,
    PENDING_LOSS_PROBE,
    PENDING_NONE,
    PENDING_PROBE0,
    PENDING_REO_TIMEOUT,
    PENDING_RETRANS,
    SF_DEAD,
    SF_SYN_RECV,
    SF_SYN_SENT,
    SYN_SENT,
)
from .sock import NEVER

if TYPE_CHECKING:
    from .request import Request
    from .sock import Sock
    from .timewait import TimeWait

# what sk.keep_deadline stands for (sk.keep_kind)
KEEP_KEEPALIVE = 1
KEEP_FIN_WAIT2 = 2

RTO_MIN_NS = 200 * NSEC_PER_MSEC
RESOURCE_PROBE_INTERVAL_NS = 500 * NSEC_PER_MSEC
THIN_LINEAR_RETRIES = 6
FIRST_LEVEL = 63  # ticks: timers below are kept to the tick


def expiry(sk: Sock | Request | TimeWait, delay_ns: int) -> int:
    """When a jiffy timer armed now for `delay_ns` fires, absolute ns, by the kernel's timer wheel."""
    return _wheel(sk.host.now_ns, delay_ns, sk.sysctl.tick_ns)


def _wheel(now_ns: int, delay_ns: int, tick: int) -> int:
    ticks = -(-delay_ns // tick)
    expires = now_ns // tick + ticks
    granularity = 1
    start = FIRST_LEVEL
    while ticks >= start:
        granularity <<= 3
        start <<= 3
    # the wheel rounds up to the next bucket, so a timer is never early
    return (expires + granularity) // granularity * granularity * tick


def touch(sk: Sock, when_ns: int) -> None:
    """A deadline was set to `when_ns`: make sure the heap wakes us by then."""
    if when_ns < sk.heap_when:
        sk.heap_when = when_ns
        sk.host.arm(sk, when_ns)


def fire(sk: Sock) -> None:
    """The heap entry came up: run what is due, then arm the earliest of what is left."""
    sk.heap_when = NEVER
    now = sk.host.now_ns
    if sk.delack_deadline <= now:
        # of two timers of one tick the one armed last comes first, of two levels of the wheel the coarser
        if sk.rtx_deadline <= now and rtx_expiry(sk) <= now and (~sk.rtx_armed_ns > sk.lrcvtime_ns or sk.rtx_delay_ns > 62 * sk.sysctl.tick_ns):
            _rtx_timer(sk)
        if sk.delack_deadline <= now:
            sk.delack_deadline = NEVER
            delack.timer(sk)
    if sk.compressed_ack_deadline <= now:
        sk.compressed_ack_deadline = NEVER
        sack_send.compressed_timer(sk)
    if sk.pacing_deadline <= now:
        sk.pacing_deadline = NEVER
        tsq.handler(sk)
    if sk.rtx_deadline <= now and rtx_expiry(sk) <= now:
        _rtx_timer(sk)
    if sk.keep_deadline <= now:
        sk.keep_deadline = NEVER
        if sk.keep_kind == KEEP_FIN_WAIT2:
            close.fin_wait2_timer(sk)
        else:
            keepalive.timer(sk)
    earliest = min(sk.delack_deadline, sk.rtx_deadline, sk.keep_deadline, sk.compressed_ack_deadline, sk.pacing_deadline)
    if earliest < NEVER:
        touch(sk, earliest)


def clear_all(sk: Sock) -> None:
    """The connection is over: nothing fires any more."""
    sk.pending = PENDING_NONE
    sk.rtx_armed_ns = -1
    sk.rtx_deadline = sk.delack_deadline = sk.keep_deadline = sk.compressed_ack_deadline = sk.pacing_deadline = NEVER
    if sk.heap_when < NEVER:
        sk.heap_when = NEVER
        sk.host.disarm(sk)


# ---------------------------------------------------------------- the retransmission timer


def arm_rtx(sk: Sock, what: int, delay_ns: int, paced: bool = True) -> None:
    """(Re)start the retransmission timer as `what`, a PENDING_* value, at most rto_max from now.

    `paced`: what pacing makes the last packet wait is added. Nearly every ACK does this and nearly none of the timers fires, so the wheel's arithmetic waits
    until the heap comes up: until then rtx_deadline is a lower bound."""
    if sk.pacing_status and paced:
        delay_ns += _pacing_ticks_ns(sk)
    if delay_ns > sk.rto_max_ns:
        delay_ns = sk.rto_max_ns
    sk.pending = what
    now = sk.host.now_ns
    sk.rtx_armed_ns = now
    sk.rtx_delay_ns = delay_ns
    sk.rtx_deadline = when = now + delay_ns
    if when < sk.heap_when:
        sk.heap_when = when
        sk.host.arm(sk, when)


def rtx_expiry(sk: Sock) -> int:
    """The exact time the running retransmission timer fires, ns (NEVER when it is not running)."""
    if sk.rtx_armed_ns >= 0:
        sk.rtx_deadline = _wheel(sk.rtx_armed_ns, sk.rtx_delay_ns, sk.sysctl.tick_ns)
        sk.rtx_armed_ns = ~sk.rtx_armed_ns  # worked out
    return sk.rtx_deadline


def _pacing_ticks_ns(sk: Sock) -> int:
    ahead = sk.wstamp_ns - sk.host.now_ns
    if ahead <= 0:
        return 0
    tick = sk.sysctl.tick_ns
    return ahead // tick * tick


def arm_retrans(sk: Sock, delay_ns: int) -> None:
    """The next retransmission is due in `delay_ns`, whatever pacing says."""
    arm_rtx(sk, PENDING_RETRANS, delay_ns, False)


def clear_rtx(sk: Sock) -> None:
    sk.pending = PENDING_NONE
    sk.rtx_deadline = NEVER
    sk.rtx_armed_ns = -1


def rto_delta_us(sk: Sock) -> int:
    """Time left until the RTO of the oldest unacknowledged segment, us; may be negative."""
    skb = sk.rtx_queue.head
    if skb is None:
        return sk.rto_ns // 1000
    return (skb.tx_ns + sk.rto_ns - sk.host.now_ns) // 1000


def rearm_rto(sk: Sock) -> None:
    """Restart the RTO for what is in flight, or stop it when nothing is."""
    if sk.fastopen is not None and sk.fastopen.request is not None:
        # the timer repeats the SYN-ACK
        return
    if not sk.packets_out:
        clear_rtx(sk)
        return
    delay = sk.rto_ns
    if sk.pending == PENDING_REO_TIMEOUT or sk.pending == PENDING_LOSS_PROBE:
        # those timers stood in for the RTO: count from the segment's transmission
        delay = max(rto_delta_us(sk), 1) * 1000
    arm_rtx(sk, PENDING_RETRANS, delay)


def _rtx_timer(sk: Sock) -> None:
    what = sk.pending
    sk.rtx_deadline = NEVER
    sk.rtx_armed_ns = -1
    if sk.state == CLOSE or sk.state == LISTEN or not what:
        return
    if what == PENDING_REO_TIMEOUT:
        rack.reo_timeout(sk)
    elif what == PENDING_LOSS_PROBE:
        tlp.send_loss_probe(sk)
    elif what == PENDING_RETRANS:
        sk.pending = PENDING_NONE
        retransmit_timer(sk)
    elif what == PENDING_PROBE0:
        sk.pending = PENDING_NONE
        probe0.timer(sk)


def retransmit_timer(sk: Sock) -> None:
    """The RTO fired (RFC 6298 §5.4–5.7 as Linux does it)."""
    if sk.fastopen is not None and sk.fastopen.request is not None:
        fastopen.synack_timer(sk)
        return
    skb = sk.rtx_queue.head
    if not sk.packets_out or skb is None:
        return
    in_syn = 1 << sk.state & (SF_SYN_SENT | SF_SYN_RECV)
    if not sk.snd_wnd and not sk.sock_flags & SF_DEAD and not in_syn:
        # the peer shrank its window to nothing under data in flight: this is a window probe
        if probe0.rtx_timed_out(sk, skb):
            close.write_err(sk)
            return
        retransmit.enter_loss(sk)
        retransmit.retransmit_skb(sk, skb, 1)
        retransmit.hold_lost(sk, gates.RWND)
        _back_off(sk)
        return
    sk.mib.TCPTimeouts += 1
    if write_timeout(sk):
        return
    if not sk.retransmits:
        if sk.ca_state == CA_RECOVERY:
            if sk.sack_ok:
                sk.mib.TCPSackRecoveryFail += 1
            else:
                sk.mib.TCPRenoRecoveryFail += 1
        elif sk.ca_state == CA_LOSS:
            sk.mib.TCPLossFailures += 1
        elif sk.ca_state == CA_DISORDER or sk.sacked_out:
            if sk.sack_ok:
                sk.mib.TCPSackFailures += 1
            else:
                sk.mib.TCPRenoFailures += 1
    if sk.trace is not None:
        sk.trace.event(sk, "rto", rto_us=sk.rto_ns // 1000, backoff=sk.backoff, inflight=sk.packets_out, cwnd=sk.snd_cwnd)
    retransmit.enter_loss(sk)
    sk.retransmits += 1
    sk.total_rto += 1
    if sk.retransmits == 1:
        sk.total_rto_recoveries += 1
        sk.rto_stamp = sk.host.now_ns // NSEC_PER_MSEC
    head = sk.rtx_queue.head
    error = retransmit.retransmit_skb(sk, head, 1) if head is not None else 0
    if not error:
        retransmit.hold_lost(sk, gates.CWND)
    elif error > 0:
        # refused by our own host: try again soon, without backing off
        retransmit.hold_lost(sk, gates.HOST_QUEUE)
        arm_retrans(sk, RESOURCE_PROBE_INTERVAL_NS)
        return
    _back_off(sk)


def _back_off(sk: Sock) -> None:
    """Double the RTO, but for thin streams that want none of it, and wait for it."""
    sysctl = sk.sysctl
    thin = sk.state == ESTABLISHED and sk.packets_out < 4 and not retransmit.in_initial_slowstart(sk) and sk.retransmits <= THIN_LINEAR_RETRIES
    if thin and (sk.linear_timeouts or sysctl.tcp_thin_linear_timeouts):
        sk.backoff = 0
        sk.rto_ns = max(sk.rto_min_us * 1000, min(rtt.rto_from_srtt_ns(sk), sk.rto_max_ns))
    elif sk.state != SYN_SENT or sk.total_rto > sysctl.tcp_syn_linear_timeouts:
        sk.backoff += 1
        sk.rto_ns = min(sk.rto_ns << 1, sk.rto_max_ns)
    arm_retrans(sk, clamp_to_user_timeout(sk, sk.rto_ns))


def clamp_to_user_timeout(sk: Sock, delay_ns: int) -> int:
    """Shorten a retransmission delay so that TCP_USER_TIMEOUT is noticed on time."""
    if not sk.user_timeout_ms:
        return delay_ns
    elapsed = sk.host.now_ns // NSEC_PER_MSEC - sk.retrans_stamp
    left = sk.user_timeout_ms - elapsed
    if left <= 0:
        return sk.sysctl.tick_ns
    return min(delay_ns, left * NSEC_PER_MSEC)


def model_timeout_ms(boundary: int, rto_base_ms: int, rto_max_ms: int) -> int:
    """How long `boundary` doublings of `rto_base_ms` take, ms, capped at rto_max each."""
    linear_from = (rto_max_ms // rto_base_ms).bit_length() - 1
    if boundary <= linear_from:
        return ((2 << boundary) - 1) * rto_base_ms
    return ((2 << linear_from) - 1) * rto_base_ms + (boundary - linear_from) * rto_max_ms


def retransmits_timed_out(sk: Sock, boundary: int, timeout_ms: int) -> bool:
    """Whether retransmitting has gone on for longer than `boundary` RTOs (or `timeout_ms`) allow."""
    if not sk.retransmits:
        return False
    if not timeout_ms:
        base = RTO_MIN_NS
        if 1 << sk.state & (SF_SYN_SENT | SF_SYN_RECV):
            base = NSEC_PER_SEC
        timeout_ms = model_timeout_ms(boundary, base // NSEC_PER_MSEC, sk.rto_max_ns // NSEC_PER_MSEC)
    return sk.host.now_ns // NSEC_PER_MSEC - sk.retrans_stamp >= timeout_ms


def write_timeout(sk: Sock) -> bool:
    """Whether the connection is to be given up at this RTO; if so it has been."""
    sysctl = sk.sysctl
    if 1 << sk.state & (SF_SYN_SENT | SF_SYN_RECV):
        expired = handshake.syn_timeout(sk)
    else:
        if retransmits_timed_out(sk, sysctl.tcp_retries1, 0):
            mtu_probe.black_hole(sk)
        retry_until = sysctl.tcp_retries2
        if sk.sock_flags & SF_DEAD:
            alive = sk.rto_ns < sk.rto_max_ns
            retry_until = close.orphan_retries(sk, alive)
            if close.out_of_resources(sk, alive or not retransmits_timed_out(sk, retry_until, 0)):
                return True
        expired = retransmits_timed_out(sk, retry_until, sk.user_timeout_ms)
    if sk.fastopen is not None:
        fastopen_client.detect_blackhole(sk, expired)
    if expired:
        close.write_err(sk)
        return True
    sk.timeout_rehash += 1
    sk.mib.TcpTimeoutRehash += 1
    sk.host.rehash(sk)
    return False


def check_probe_timer(sk: Sock) -> None:
    """Data waits, nothing is in flight: the zero-window probe keeps the connection alive."""
    if not sk.packets_out and sk.pending == PENDING_NONE:
        arm_rtx(sk, PENDING_PROBE0, probe0.base_ns(sk))
