"""How a connection ends: close, shutdown, abort, orphans, FIN_WAIT2, and the way into TIME-WAIT.

RFC 9293 §3.6 with what Linux adds (linux-sockets §1). A close() that finds unread data resets the peer
(RFC 2525 §2.17: it must learn that its data was lost), one with SO_LINGER 0 aborts, every other sends a
FIN behind the data. What the program has let go lives on as an orphan: it retransmits for a bounded
time, answers late data with a reset, and spends FIN_WAIT2 and TIME-WAIT as a mini block (`timewait`).
`set_state` is the only way a state changes: it keeps the gauge CurrEstab, the demux table and the port.

Sysctls: tcp_fin_timeout, tcp_orphan_retries, tcp_max_orphans. Counters: TCPAbortOnClose, TCPAbortOnData,
TCPAbortOnLinger, TCPAbortOnTimeout, TCPAbortOnMemory, TcpEstabResets, TcpAttemptFails, TcpOutRsts.
"""

from __future__ import annotations

import errno

from . import fastopen, fastopen_client, gates, listen, recv, rwnd, rx_timestamps, timers, timewait, xmit
from .const import (
    ACK,
    CLOSE,
    CLOSE_WAIT,
    ESTABLISHED,
    FIN_WAIT1,
    FIN_WAIT2,
    LAST_ACK,
    LISTEN,
    NSEC_PER_SEC,
    POLLERR,
    POLLHUP,
    POLLIN,
    POLLOUT,
    POLLRDHUP,
    RST,
    SF_CLOSE_WAIT,
    SF_CLOSING,
    SF_DEAD,
    SF_DONE,
    SF_ESTABLISHED,
    SF_FIN_WAIT1,
    SF_FIN_WAIT2,
    SF_LAST_ACK,
    SF_SYN_RECV,
    SHUTDOWN_MASK,
    STATE_NAMES,
    SYN_RECV,
    SYN_SENT,
)
from .sock import NEVER, Sock

# sk.sock_flags beside SF_DEAD: the program chose the port (the address) itself, so it outlives the connection
BINDPORT_LOCK = 0x100
BINDADDR_LOCK = 0x200

EVERYTHING = POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP

_HAD_CONNECTION = SF_ESTABLISHED | SF_CLOSE_WAIT
_NEEDS_RESET = SF_ESTABLISHED | SF_CLOSE_WAIT | SF_FIN_WAIT1 | SF_FIN_WAIT2 | SF_SYN_RECV
_FIN_UNACKED = SF_FIN_WAIT1 | SF_CLOSING | SF_LAST_ACK

# state -> state after we decide to send no more, where that takes a FIN
_AFTER_FIN = {ESTABLISHED: FIN_WAIT1, SYN_RECV: FIN_WAIT1, CLOSE_WAIT: LAST_ACK}


def set_state(sk: Sock, state: int) -> None:
    """Move `sk` to `state`; leaving for CLOSE also leaves the demux table and gives up a port not asked for."""
    old = sk.state
    if old == state:
        return
    mib = sk.mib
    if state == ESTABLISHED or (state == CLOSE_WAIT and old == SYN_RECV):
        mib.TcpCurrEstab += 1
        gates.begin(sk)
    elif state != CLOSE_WAIT:
        if 1 << old & _HAD_CONNECTION:
            mib.TcpCurrEstab -= 1
            if state == CLOSE:
                mib.TcpEstabResets += 1
        if state == CLOSE:
            gates.end(sk)
            sk.host.unhash(sk)
            if not sk.sock_flags & BINDPORT_LOCK:
                release_port(sk)
    sk.state = state
    if sk.trace is not None:
        sk.trace.event(sk, "state", old=STATE_NAMES[old], new=STATE_NAMES[state])


def release_port(sk: Sock) -> None:
    """Give the local port back; harmless when there is none."""
    if sk.bound_port:
        sk.host.release_port(sk)
        sk.bound_port = 0


def done(sk: Sock) -> None:
    """The connection is over, whatever the reason: CLOSE, timers off, the program (if any) told."""
    if sk.state == SYN_SENT or sk.state == SYN_RECV:
        sk.mib.TcpAttemptFails += 1
    set_state(sk, CLOSE)
    timers.clear_all(sk)
    if sk.fastopen is not None:
        fastopen_client.ended(sk)
        if sk.fastopen.request is not None:
            fastopen.release(sk, False)
    sk.shutdown = SHUTDOWN_MASK
    if sk.sock_flags & SF_DEAD:
        destroy(sk)
    else:
        sk.host.wake(sk, EVERYTHING)


def done_with_error(sk: Sock, error: int) -> None:
    """As `done`, with `error` for the program and everything unsent or unacknowledged dropped."""
    sk.sk_err = error
    xmit.free_queues(sk)
    done(sk)


def write_err(sk: Sock) -> None:
    """Retransmitting has failed: report what an ICMP error said about it, else ETIMEDOUT."""
    sk.mib.TCPAbortOnTimeout += 1
    done_with_error(sk, sk.sk_err_soft or errno.ETIMEDOUT)


def send_active_reset(sk: Sock) -> None:
    """Abort: RST|ACK as a segment of the connection itself."""
    sk.mib.TcpOutRsts += 1
    xmit.send_control(sk, RST | ACK, xmit.acceptable_seq(sk))


def destroy(sk: Sock) -> None:
    """Nobody needs `sk` any more: its memory, timers and port are released."""
    timers.clear_all(sk)
    xmit.free_queues(sk)
    recv.purge(sk)
    release_port(sk)
    sk.user = None
    if sk.sock_flags & SF_DEAD:
        sk.mib.sockstat.orphan -= 1
        sk.sock_flags &= ~SF_DEAD


# ---------------------------------------------------------------- the program lets go


def close(sk: Sock) -> int:
    """close() by the program. Returns ns the caller has to wait before `finish_close` (SO_LINGER), else 0.

    While it waits the connection is not an orphan yet; the wait ends early when `lingering` turns
    false. Linux waits on non-blocking sockets too. With 0 everything is done."""
    sk.shutdown = SHUTDOWN_MASK
    if sk.state == LISTEN:
        set_state(sk, CLOSE)
        listen.stop(sk)
    elif sk.state == CLOSE:
        recv.purge(sk)
    else:
        unread = recv.unread(sk)
        recv.purge(sk)
        if unread:
            sk.mib.TCPAbortOnClose += 1
            set_state(sk, CLOSE)
            send_active_reset(sk)
        elif sk.linger == 0:
            disconnect(sk)
            sk.mib.TCPAbortOnData += 1
        else:
            send_no_more(sk)
            if sk.linger and lingering(sk):
                return sk.linger * NSEC_PER_SEC
    finish_close(sk)
    return 0


def lingering(sk: Sock) -> bool:
    """Whether a close() with SO_LINGER still waits: our FIN has not been acknowledged."""
    return bool(1 << sk.state & _FIN_UNACKED)


def finish_close(sk: Sock) -> None:
    """Second half of close(): from here on an orphan, or gone."""
    sk.sock_flags |= SF_DEAD
    sk.user = None
    sk.mib.sockstat.orphan += 1
    if sk.state == FIN_WAIT2:
        if sk.linger2 < 0:
            sk.mib.TCPAbortOnLinger += 1
            set_state(sk, CLOSE)
            send_active_reset(sk)
        else:
            fin_wait2_orphan(sk, fin_time(sk))
            return
    if sk.state != CLOSE and too_many_orphans(sk, 0):
        sk.mib.TCPAbortOnMemory += 1
        set_state(sk, CLOSE)
        send_active_reset(sk)
    if sk.state == CLOSE:
        destroy(sk)


def send_no_more(sk: Sock) -> None:
    """Send side shut: queue the FIN where the state has not seen one; SYN_SENT just ends."""
    if sk.state == SYN_SENT:
        set_state(sk, CLOSE)
        return
    after = _AFTER_FIN.get(sk.state)
    if after is not None:
        set_state(sk, after)
        xmit.send_fin(sk)


def disconnect(sk: Sock) -> None:
    """connect(AF_UNSPEC), an aborting close(), a listener that stops: back to a fresh socket.

    The peer gets a reset where it may still believe in the connection; options stay."""
    old = sk.state
    if old != CLOSE:
        set_state(sk, CLOSE)
    if old == LISTEN:
        listen.stop(sk)
    elif 1 << old & _NEEDS_RESET or (1 << old & (SF_CLOSING | SF_LAST_ACK) and sk.snd_nxt != sk.write_seq):
        send_active_reset(sk)
        sk.sk_err = errno.ECONNRESET
    elif old == SYN_SENT:
        sk.sk_err = errno.ECONNRESET
    timers.clear_all(sk)
    recv.purge(sk)
    xmit.free_queues(sk)
    if sk.fastopen is not None:
        sk.fastopen.forget()
    _renew(sk)
    rx_timestamps.update(sk)
    sk.host.wake(sk, EVERYTHING)


# what disconnect() leaves as it is: who the socket is, and what the program set
_KEPT = {
    "host", "sysctl", "mib", "family", "saddr", "sport", "user", "bound_addr", "bound_port", "reuseaddr", "reuseport", "v6only", "sk_err",
    "sk_err_soft", "sock_flags", "ss_state", "optmem", "recverr", "min_ttl", "tos", "ttl", "ip_id", "pmtu_disc", "priority", "mark", "iss", "snd_una",
    "snd_nxt", "write_seq", "sndbuf", "sndbuf_locked", "wmem_queued", "wmem_alloc", "notsent_lowat", "nonagle", "snd_cwnd_clamp",
    "rto_min_us", "rto_max_ns", "max_pacing_rate", "rcvbuf", "rcvbuf_locked", "rmem_alloc", "rcvlowat", "rx_opt_oobinline",
    "delack_max_ns", "ts_recent", "ts_recent_stamp_s", "ts_offset", "heap_when", "keepopen", "keepalive_time", "keepalive_intvl", "keepalive_probes",
    "user_timeout_ms", "syn_retries", "linear_timeouts", "linger", "linger2", "backlog", "defer_accept", "last_overflow_ns", "fastopen",
    "md5", "error_queue", "cong_name", "ca", "reordering", "write_queue", "rtx_queue", "tsorted", "flowlabel", "txhash", "forward_alloc",
    "advmss", "retransmits", "lsndtime_ns", "rcv_tstamp_ns", "rcvq_space", "min_rtt_us", "snd_wnd", "scaling_ratio",
    "max_window", "rcv_wnd", "rcv_ssthresh", "mss_cache", "pmtu_cookie", "trace", "bound_dev_if", "tstamp_flags", "tstamp_base", "tx_delay_ns",
    "pacing_status",
}  # fmt: skip


def _renew(sk: Sock) -> None:
    fresh = Sock(sk.host, sk.family)
    # a later connect() starts well above anything sent (SIOCOUTQ shows the gap, as on Linux)
    sk.write_seq += sk.max_window + 2
    for name in Sock.__slots__:
        if name not in _KEPT:
            setattr(sk, name, getattr(fresh, name))
    rwnd.forget_rcv_mss(sk)
    sk.sock_flags &= ~SF_DONE
    if not sk.sock_flags & BINDADDR_LOCK:
        sk.saddr = b""


# ---------------------------------------------------------------- FIN_WAIT2, TIME-WAIT, orphans


def fin_time(sk: Sock) -> int:
    """How long an orphan stays in FIN_WAIT2, ns: TCP_LINGER2 or tcp_fin_timeout, at least 3.5 RTO."""
    seconds = sk.linger2 or sk.sysctl.tcp_fin_timeout
    rto = sk.rto_ns
    return max(seconds * NSEC_PER_SEC, (rto << 2) - (rto >> 1))


def fin_wait2_orphan(sk: Sock, timeout_ns: int) -> None:
    """An orphan in FIN_WAIT2 becomes a mini block, after the part of its time that exceeds TIME-WAIT's."""
    if timeout_ns > timewait.TIMEWAIT_LEN_NS:
        arm_fin_wait2(sk, timeout_ns - timewait.TIMEWAIT_LEN_NS)
    else:
        enter_time_wait(sk, FIN_WAIT2, timeout_ns)


def arm_fin_wait2(sk: Sock, delay_ns: int) -> None:
    """Let `fin_wait2_timer` run after `delay_ns`; keepalive shares the timer and stops."""
    sk.keep_kind = timers.KEEP_FIN_WAIT2
    sk.keep_expires_ns = sk.host.now_ns + delay_ns
    sk.keep_deadline = when = timers.expiry(sk, delay_ns)
    timers.touch(sk, when)


def fin_wait2_timer(sk: Sock) -> None:
    """The orphan's time as a full socket in FIN_WAIT2 is over."""
    if sk.state != FIN_WAIT2 or not sk.sock_flags & SF_DEAD:
        return
    if sk.linger2 >= 0:
        # the same excess once more, now as a mini block: 66 s are over after 12 (measured)
        rest = fin_time(sk) - timewait.TIMEWAIT_LEN_NS
        if rest > 0:
            enter_time_wait(sk, FIN_WAIT2, rest)
            return
    send_active_reset(sk)
    done(sk)


def enter_time_wait(sk: Sock, state: int, timeout_ns: int = 0) -> None:
    """Put a mini block in the socket's place and end the socket.

    `state` FIN_WAIT2: the peer's FIN is still to come, for at most `timeout_ns` (not below 3.5 RTO).
    TIME_WAIT: 60 s. With tcp_max_tw_buckets blocks alive there is none: the connection just ends."""
    sysctl = sk.sysctl
    mib = sk.mib
    if mib.sockstat.tw < sysctl.tcp_max_tw_buckets:
        rto = sk.rto_ns
        timeout_ns = timewait.TIMEWAIT_LEN_NS if state != FIN_WAIT2 else max(timeout_ns, (rto << 2) - (rto >> 1))
        block = timewait.TimeWait(sk, state)
        sk.host.unhash(sk)
        block.start(timeout_ns)
    else:
        mib.TCPTimeWaitOverflow += 1
    done(sk)


def orphan_retries(sk: Sock, alive: bool) -> int:
    """RTOs an orphan is granted, as `retransmits_timed_out` models them; `alive`: its RTO is below the maximum."""
    retries = sk.sysctl.tcp_orphan_retries
    if sk.sk_err_soft and not alive:
        retries = 0
    if not retries and alive:
        retries = 8
    return retries


def too_many_orphans(sk: Sock, shift: int) -> bool:
    """Whether the host keeps more orphans than it may, each counted 2^shift times."""
    return sk.mib.sockstat.orphan << shift > sk.sysctl.tcp_max_orphans


def out_of_resources(sk: Sock, do_reset: bool) -> bool:
    """Whether this orphan is to go because there are too many; if so it has gone.

    Orphans whose peer is silent or unreachable weigh more."""
    tick = sk.sysctl.tick_ns
    silence_ns = (sk.host.now_ns // tick - sk.lsndtime_ns // tick) * tick
    shift = (silence_ns > 2 * sk.rto_max_ns or not do_reset) + bool(sk.sk_err_soft)
    if not too_many_orphans(sk, shift):
        return False
    if do_reset or silence_ns <= timewait.TIMEWAIT_LEN_NS or (not sk.snd_wnd and not sk.packets_out):
        send_active_reset(sk)
    sk.mib.TCPAbortOnMemory += 1
    done(sk)
    return True


def stop_keep_timer(sk: Sock) -> None:
    """Neither keepalive nor FIN_WAIT2 is timed any more."""
    sk.keep_deadline = NEVER
