"""Opening a connection from this side, and the moment any connection becomes ESTABLISHED.

Active open (RFC 9293 §3.5): the SYN offers what the sysctls allow, is repeated by the retransmission
timer (`xmit.send_syn` puts it into the queue like data) and given up by count or by time, whichever
comes first. SYN_SENT answers a wrong acknowledgement by RST, and then asks again soon: some old
connection is in the way. A crossing SYN leads through SYN_RECV (simultaneous open). Passive opens live
in `listen` and `request` and join here when their last ACK has come.

Sysctls: tcp_syn_retries, tcp_syn_linear_timeouts (6.5, ccce324dabfe), tcp_timestamps, tcp_sack,
tcp_window_scaling. Counters: TcpActiveOpens, TcpAttemptFails, PAWSActive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import (
    ack,
    close,
    cong,
    cwnd,
    delack,
    ecn,
    fastopen,
    fastopen_client,
    input,
    isn,
    keepalive,
    mtu,
    mtu_probe,
    pacing,
    reset,
    rtt,
    rwnd,
    sendmsg,
    seq,
    timers,
    timewait,
    xmit,
)
from .const import (
    ACK,
    ACK_SCHED,
    ACK_TIMER,
    CWR,
    ECE,
    ESTABLISHED,
    INFINITE_SSTHRESH,
    MAX_QUICKACKS,
    MAX_WSCALE,
    NSEC_PER_MSEC,
    NSEC_PER_SEC,
    POLLOUT,
    RST,
    SEND_SHUTDOWN,
    SF_DEAD,
    SYN,
    SYN_RECV,
    SYN_SENT,
)
from .flags import FLAG_SLOWPATH
from .options import M32, TSTAMP_ALIGNED

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Sock

TCP_HEADER = 20
MSS_DEFAULT4 = 536  # RFC 9293 §3.7.1: what a peer that names no MSS takes
MSS_DEFAULT6 = 1220
TIMEOUT_INIT_NS = NSEC_PER_SEC
TIMEOUT_FALLBACK_US = 3_000_000  # RFC 6298 §5.7: the handshake gave no RTT
DELACK_MAX_NS = 200 * NSEC_PER_MSEC


def default_mss(family: int) -> int:
    """MSS assumed of a peer whose SYN has no MSS option."""
    return MSS_DEFAULT4 if family == 4 else MSS_DEFAULT6


def clamp_mss(sk: Sock, mss: int) -> int:
    """TCP_MAXSEG lowers what we announce, never raises it."""
    return sk.user_mss if 0 < sk.user_mss < mss else mss


def connect(sk: Sock) -> int:
    """Send the SYN of a socket in SYN_SENT whose addresses, ports and route are chosen.

    Returns 0 or the host's negative errno; the SYN is repeated either way."""
    sysctl = sk.sysctl
    dst = sk.dst
    number, sk.ts_offset = isn.choose(sk.host, sk.saddr, sk.daddr, sk.sport, sk.dport)
    if sk.write_seq:
        # a reused TIME-WAIT, or a socket that was connected before: start above its old numbers
        number = sk.write_seq & M32
    sk.iss = seq.initial(number)
    sk.tcp_header_len = TCP_HEADER + (TSTAMP_ALIGNED if sysctl.tcp_timestamps else 0)
    sk.mss_clamp = sk.user_mss or default_mss(sk.family)
    sk.max_window = 0
    mtu.setup_caps(sk)
    mtu_probe.init(sk)
    mtu.sync_mss(sk, dst.mtu)
    sk.advmss = clamp_mss(sk, dst.advmss)
    rwnd.init_rcv_mss(sk)
    full = rwnd.full_space(sk)
    if sk.rcvbuf_locked and not 0 < sk.window_clamp <= full:
        sk.window_clamp = full
    # with a timestamp to echo (a reused TIME-WAIT) segments are known to be shorter
    payload = sk.advmss - (sk.tcp_header_len - TCP_HEADER if sk.ts_recent_stamp_s else 0)
    sk.rcv_wnd, sk.window_clamp, sk.rcv_wscale = rwnd.select_initial_window(sk, full, payload, sk.window_clamp, bool(sysctl.tcp_window_scaling), dst.initrwnd)
    sk.rcv_ssthresh = sk.rcv_wnd
    sk.sk_err = 0
    sk.snd_wnd = 0
    sk.snd_wl1 = 0
    sk.rcv_nxt = sk.rcv_wup = sk.copied_seq = 0
    sk.rto_ns = TIMEOUT_INIT_NS
    sk.retransmits = 0
    error = xmit.send_syn(sk, SYN | ecn.syn_flags(sk))
    sk.mib.TcpActiveOpens += 1
    return error


def syn_timeout(sk: Sock) -> bool:
    """The SYN (or the SYN-ACK of a simultaneous open) timed out again: whether to give up.

    By count, TCP_SYNCNT or tcp_syn_retries, plus the linear ones for a SYN; or once 2^(n+1) - 1
    seconds (or TCP_USER_TIMEOUT) have passed since the first."""
    sysctl = sk.sysctl
    retries = sk.syn_retries or sysctl.tcp_syn_retries
    most = retries + (sysctl.tcp_syn_linear_timeouts if sk.state == SYN_SENT else 0)
    return sk.retransmits >= most or timers.retransmits_timed_out(sk, retries, sk.user_timeout_ms)


# ---------------------------------------------------------------- SYN_SENT


def syn_sent(sk: Sock, seg: Segment) -> None:
    """A segment for a socket in SYN_SENT (RFC 9293 §3.10.7.3)."""
    flags = seg.flags
    saw_tstamp = seg.saw_tstamp and bool(sk.sysctl.tcp_timestamps)
    if flags & ACK:
        if not sk.snd_una < seg.ack <= sk.snd_nxt:
            if not sk.retransmits:
                timers.arm_retrans(sk, 2 * sk.sysctl.tick_ns)
            reset.send_reset(sk, seg)
        elif saw_tstamp and seg.tsecr and not _echoes_our_syn(sk, seg.tsecr):
            sk.mib.PAWSActive += 1
            reset.send_reset(sk, seg)
        elif flags & RST:
            input.reset(sk)
        elif flags & SYN:
            _syn_ack(sk, seg, saw_tstamp)
    elif flags & (RST | SYN) == SYN:
        if saw_tstamp and sk.ts_recent_stamp_s and timewait.paws_reject(sk.host, sk.ts_recent, sk.ts_recent_stamp_s, seg.tsval, False):
            return
        _crossing_syn(sk, seg, saw_tstamp)


def _echoes_our_syn(sk: Sock, tsecr: int) -> bool:
    """Whether a timestamp echo lies between our first SYN and now."""
    age = (sk.host.now_ns // NSEC_PER_MSEC - sk.retrans_stamp) & M32
    return (tsecr - sk.ts_offset - sk.retrans_stamp) & M32 <= age


def _take_options(sk: Sock, seg: Segment, saw_tstamp: bool) -> None:
    """What the peer's SYN says about its segments, window scale, SACK and timestamps, where we want them too."""
    sysctl = sk.sysctl
    if seg.options.mss is not None:
        sk.mss_clamp = clamp_mss(sk, seg.options.mss)
    sk.wscale_ok = seg.options.wscale is not None and bool(sysctl.tcp_window_scaling)
    if sk.wscale_ok and seg.options.wscale is not None:
        sk.snd_wscale = min(seg.options.wscale, MAX_WSCALE)
    sk.sack_ok = seg.options.sack_perm and bool(sysctl.tcp_sack)
    sk.tstamp_ok = saw_tstamp
    if saw_tstamp:
        sk.rcv_tsval = seg.tsval
        sk.rcv_tsecr = seg.tsecr
        sk.ts_recent = seg.tsval
        sk.ts_recent_stamp_s = timewait.now_s(sk.host)
        sk.tcp_header_len = TCP_HEADER + TSTAMP_ALIGNED
    else:
        sk.rcv_tsval = sk.rcv_tsecr = 0


def _take_number(sk: Sock, seg: Segment) -> None:
    """Receive sequence space begins behind the peer's SYN."""
    sk.irs = seg.seq = seq.initial(seg.seq & M32)
    seg.end_seq = sk.irs + 1 + seg.length
    sk.rcv_nxt = sk.rcv_wup = sk.irs + 1


def _syn_ack(sk: Sock, seg: Segment, saw_tstamp: bool) -> None:
    """The peer accepts: ESTABLISHED."""
    ecn.rcv_synack(sk, seg)
    _take_options(sk, seg, saw_tstamp)
    _take_number(sk, seg)
    sk.snd_wl1 = sk.irs
    undo_spurious_syn(sk)
    # (the first pacing rate still leaves room for the timestamps we offered)
    ack.tcp_ack(sk, seg, FLAG_SLOWPATH)
    _settle_header(sk)
    # the window of a SYN is never scaled (RFC 7323 §2.2)
    sk.snd_wnd = seg.window
    if sk.max_window < seg.window:
        sk.max_window = seg.window
    _settle_scale(sk)
    if sk.tstamp_ok:
        sk.advmss -= TSTAMP_ALIGNED
    mtu_probe.init(sk)
    mtu.sync_mss(sk, sk.pmtu_cookie)
    rwnd.init_rcv_mss(sk)
    sk.copied_seq = sk.rcv_nxt
    finish_connect(sk)
    again = sk.fastopen is not None and fastopen_client.rcv_synack(sk, seg)
    if not sk.sock_flags & SF_DEAD:
        sk.host.wake(sk, POLLOUT)
    if again:
        # the data of the SYN has just been sent again, and acknowledges
        return
    if sk.defer_accept or delack.in_pingpong(sk) or (sk.fastopen is not None and sk.fastopen.write_pending):
        _delay_third_ack(sk)
    else:
        xmit.send_ack(sk)


def _delay_third_ack(sk: Sock) -> None:
    """Data will follow soon and can carry the handshake's last ACK; 200 ms at most."""
    delack.enter_quickack_mode(sk, MAX_QUICKACKS)
    sk.ack_pending |= ACK_SCHED | ACK_TIMER
    tick = sk.sysctl.tick_ns
    sk.delack_timeout = sk.host.now_ns // tick + DELACK_MAX_NS // tick
    sk.delack_deadline = when = timers.expiry(sk, DELACK_MAX_NS)
    timers.touch(sk, when)


def _settle_header(sk: Sock) -> None:
    if not sk.tstamp_ok:
        sk.tcp_header_len = TCP_HEADER


def _settle_scale(sk: Sock) -> None:
    if not sk.wscale_ok:
        sk.snd_wscale = sk.rcv_wscale = 0
        sk.window_clamp = min(sk.window_clamp, 65535)


def _crossing_syn(sk: Sock, seg: Segment, saw_tstamp: bool) -> None:
    """Simultaneous open (RFC 9293 §3.5, figure 8): answer the SYN from where we stand; its data is dropped."""
    close.set_state(sk, SYN_RECV)
    _take_options(sk, seg, saw_tstamp)
    _take_number(sk, seg)
    sk.copied_seq = sk.rcv_nxt
    sk.snd_wnd = sk.max_window = seg.window
    sk.snd_wl1 = sk.irs
    _settle_header(sk)
    # our scale stays as offered whatever the peer's SYN says: the SYN-ACK repeats our SYN
    ecn.rcv_syn(sk, seg)
    mtu_probe.init(sk)
    mtu.sync_mss(sk, sk.pmtu_cookie)
    rwnd.init_rcv_mss(sk)
    send_synack(sk)


def send_synack(sk: Sock) -> None:
    """Turn the SYN in the retransmit queue into a SYN-ACK and send it; the timer repeats it as such."""
    skb = sk.rtx_queue.head
    if skb is None or not skb.flags & SYN:
        return
    if not skb.flags & ACK:
        skb.flags |= ACK
        skb.flags &= ~CWR
        if not sk.ecn_flags & ecn.OK:
            skb.flags &= ~ECE
    xmit.transmit_skb(sk, skb)


# ---------------------------------------------------------------- ESTABLISHED


def undo_spurious_syn(sk: Sock) -> None:
    """The timestamp echo names our first SYN (SYN-ACK): it was not lost, so cwnd need not start at 1 (RFC 5681 §3.1)."""
    stamp = sk.retrans_stamp
    if sk.undo_marker and stamp and sk.tstamp_ok and (stamp + sk.ts_offset) & M32 == sk.rcv_tsecr:
        sk.undo_marker = 0


def finish_connect(sk: Sock) -> None:
    """Our SYN was accepted: ESTABLISHED, ready to send."""
    close.set_state(sk, ESTABLISHED)
    now = sk.host.now_ns
    sk.lrcvtime_ns = now
    init_transfer(sk)
    # so that the first write does not count as one after an idle period
    sk.lsndtime_ns = now
    if sk.keepopen:
        keepalive.start(sk)
    sk.pred = not sk.snd_wscale


def syn_recv_established(sk: Sock, seg: Segment) -> None:
    """An acceptable ACK in SYN_RECV, already processed by tcp_ack: ESTABLISHED. For accepted children and crossed SYNs alike."""
    # the ACK of a SYN-ACK is not seen by tcp_ack's delivery count
    sk.delivered += 1
    if sk.fastopen is not None and sk.fastopen.request is not None:
        req = sk.fastopen.request
        if not sk.srtt_us:
            if not req.num_retrans:
                rtt.synack_rtt_meas(sk, sk.host.now_ns // 1000 - req.snt_synack_us)
            elif sk.tstamp_ok and sk.rcv_tsecr:
                rtt.synack_rtt_meas(sk, rtt.tsecr_rtt_us(sk))
        if sk.tstamp_ok:
            sk.advmss -= TSTAMP_ALIGNED
        fastopen.established(sk)
    else:
        if not sk.srtt_us and sk.tstamp_ok and sk.rcv_tsecr:
            # which of our SYNs was meant the echo says
            rtt.synack_rtt_meas(sk, rtt.tsecr_rtt_us(sk))
        undo_spurious_syn(sk)
        sk.retrans_stamp = 0
        if sk.tstamp_ok:
            # before the buffers are measured in segments
            sk.advmss -= TSTAMP_ALIGNED
        init_transfer(sk)
        sk.copied_seq = sk.rcv_nxt
    close.set_state(sk, ESTABLISHED)
    sk.snd_una = seg.ack
    sk.snd_wnd = seg.window << sk.snd_wscale
    sk.snd_wl1 = seg.seq
    if not sk.ca.has_cong_control:
        pacing.update_rate(sk)
    sk.lsndtime_ns = sk.host.now_ns
    rwnd.init_rcv_mss(sk)
    sk.pred = True
    if sk.user is not None:
        sk.host.wake(sk, POLLOUT)
    if sk.shutdown & SEND_SHUTDOWN:
        close.send_no_more(sk)


def init_transfer(sk: Sock) -> None:
    """First values of RTO, cwnd, congestion control and buffers, from what the handshake showed."""
    if not sk.srtt_us:
        # no RTT sample: the SYN was repeated, so the path may be slow (RFC 6298 §5.7)
        sk.rttvar_us = sk.mdev_us = sk.mdev_max_us = TIMEOUT_FALLBACK_US
        sk.rto_ns = TIMEOUT_FALLBACK_US * 1000
    # a lost SYN says nothing about congestion
    sk.snd_ssthresh = INFINITE_SSTHRESH
    # one repetition is forgiven: the initial RTO of 1 s is short (RFC 6298 appendix A)
    sk.snd_cwnd = 1 if sk.total_retrans > 1 and sk.undo_marker else cwnd.init_cwnd(sk)
    sk.cwnd_stamp = sk.host.now_ns
    mtu_probe.init(sk)
    cong.init(sk)
    sendmsg.init_sndbuf(sk)
    rwnd.init_buffer_space(sk)
