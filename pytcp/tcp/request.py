"""Half-open connections: the mini block between a SYN and the handshake's last ACK (RFC 9293 §3.5, NEW_SYN_RECV).

A SYN costs a few hundred bytes, not a socket (Linux 4.4). The block stands in the demux table under its
4-tuple, repeats the SYN-ACK, answers a repeated SYN (rate limited), and turns into a full socket when a
valid ACK comes; TCP_DEFER_ACCEPT makes it wait for data instead. Segments are judged as RFC 9293 §3.10.7.4
judges them in SYN-RECEIVED. When many requests wait, those that were already repeated are given up
earlier ("young" ones are spared).

Sysctls: tcp_synack_retries, tcp_abort_on_overflow. Counters: TCPSynRetrans, TCPTimeouts, EmbryonicRsts,
TcpAttemptFails, TcpPassiveOpens, ListenOverflows, ListenDrops, TCPDeferAcceptDrop, TCPACKSkippedSynRecv,
PAWSEstab, TSEcrRejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytcp.wire.addr import is_link_local

from . import challenge, cong, ecn, fastopen, handshake, input, ip_families, keepalive, listen, md5, mtu, options, reset, rtt, rwnd, seq, timers, timewait
from .const import ACK, ECE, FIN, NSEC_PER_MSEC, NSEC_PER_SEC, POLLIN, RST, SYN, SYN_RECV
from .options import M32, TSTAMP_ALIGNED
from .sock import NEVER

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Sock

TIMEOUT_INIT_NS = NSEC_PER_SEC
ECN_MASK = 3


class Request:
    """One half-open connection. Names as in Sock; `saddr`, `sport` are ours."""

    __slots__ = (
        # identity and path, as in Sock, so that the host can route it
        "host", "sysctl", "mib", "listener", "family", "saddr", "daddr", "sport", "dport", "bound_dev_if", "demux_key", "hashed",
        "dst", "pseudo_base", "tos", "ttl", "ip_id", "txhash", "flowlabel", "pmtu_disc", "priority", "mark",
        # what the SYN said and what we answer
        "rcv_isn", "snt_isn", "mss", "advmss", "tstamp_ok", "sack_ok", "wscale_ok", "ecn_ok", "snd_wscale", "rcv_wscale",
        "ts_recent", "ts_offset", "cookie_tsval", "window_clamp", "rcv_wnd", "saved_syn", "syn_tos",
        # progress
        "rcv_nxt", "tfo_cookie", "tfo_exp",
        "acked", "num_retrans", "num_timeout", "deadline", "expires_ns", "armed", "last_oow_ack_ns", "snt_synack_us", "snt_tsval_first", "snt_tsval_last",
    )  # fmt: skip

    def __init__(self, listener: Sock, seg: Segment) -> None:
        """From a segment whose source becomes the peer; `seg.seq` counts as the peer's ISN."""
        self.host = listener.host
        self.sysctl = listener.sysctl
        self.mib = listener.mib
        self.listener = listener
        self.family = seg.family
        self.saddr = seg.dst
        self.daddr = seg.src
        self.sport = seg.dport
        self.dport = seg.sport
        # the connection is the listener's device's; one with a link-local peer, the link's
        self.bound_dev_if = listener.bound_dev_if or (self.host.iif if self.family == 6 and is_link_local(self.daddr) else 0)
        self.demux_key: Any = None
        self.hashed = False
        self.dst: Any = None
        self.pseudo_base = 0
        self.tos = listener.tos
        self.ttl = listener.ttl
        self.ip_id = 0
        self.txhash = 0
        self.flowlabel = 0
        self.pmtu_disc = listener.pmtu_disc
        if self.family != listener.family:
            # IPv4 at a listener of IPv6, which has values for each
            self.tos, self.ttl, self.pmtu_disc = (ip_families.of_family(listener, name, ip_families.IPPROTO_IP) for name in ("tos", "ttl", "pmtu_disc"))
        self.priority = 0
        self.mark = listener.mark

        self.rcv_isn = seq.initial(seg.seq & M32)
        self.snt_isn = 0
        self.mss = 0
        self.advmss = 0
        self.tstamp_ok = False
        self.sack_ok = False
        self.wscale_ok = False
        self.ecn_ok = False
        self.snd_wscale = 0
        self.rcv_wscale = 0
        self.ts_recent = 0
        self.ts_offset = 0
        self.cookie_tsval: int | None = None
        self.window_clamp = 0
        self.rcv_wnd = 0
        self.saved_syn: bytes | None = None
        self.syn_tos = seg.tos

        self.rcv_nxt = self.rcv_isn + 1  # what the SYN-ACK acknowledges
        self.tfo_cookie: bytes | None = None  # Fast Open: for the first SYN-ACK
        self.tfo_exp = False
        self.acked = False
        self.num_retrans = 0
        self.num_timeout = 0
        self.deadline = NEVER
        self.expires_ns = 0  # the same before the timer wheel rounds, for those who look
        self.armed = NEVER
        self.last_oow_ack_ns = 0
        self.snt_synack_us = 0
        self.snt_tsval_first = 0
        self.snt_tsval_last = 0

    def choose_window(self, mss: int) -> None:
        """The first window for segments of `mss` bytes, from the listener's buffer and the route."""
        lsk = self.listener
        full = rwnd.full_space(lsk)
        clamp = lsk.window_clamp
        if lsk.rcvbuf_locked and not 0 < clamp <= full:
            clamp = full
        initrwnd = self.dst.initrwnd
        self.rcv_wnd, self.window_clamp, self.rcv_wscale = rwnd.select_initial_window(lsk, max(full, initrwnd * mss), mss, clamp, self.wscale_ok, initrwnd)

    # ------------------------------------------------------------ sending

    def secret(self) -> bytes | None:
        """The key the listener has for the peer by now."""
        return md5.lookup(self.listener.md5, self.daddr)

    def tsval(self) -> int:
        """TSval of a SYN-ACK sent now; a cookie's carries options."""
        now = self.host.now_ns // NSEC_PER_MSEC if self.cookie_tsval is None else self.cookie_tsval
        return (now + self.ts_offset) & M32

    def send_synack(self) -> None:
        """Send the SYN-ACK, first or again."""
        if self.listener.md5 is not None and self.sack_ok and self.cookie_tsval is None and self.secret() is not None:
            # no segment with a signature has room for both
            self.tstamp_ok = False
        if self.tstamp_ok:
            self.snt_tsval_last = self.tsval()
            if not self.snt_synack_us:
                self.snt_tsval_first = self.snt_tsval_last
        if not self.snt_synack_us:
            self.snt_synack_us = self.host.now_ns // 1000 or 1
        tos = self.tos
        if self.sysctl.tcp_reflect_tos:
            tos = self.syn_tos & ~ECN_MASK | tos & ECN_MASK
        flags = SYN | ACK | (ECE if self.ecn_ok else 0)
        opts = options.synack_options(self)
        self.tfo_cookie = None
        self._send(self.snt_isn, flags, min(self.rcv_wnd, 65535), opts, tos)

    def _send(self, number: int, flags: int, window: int, opts: bytes, tos: int) -> None:
        reset.reply(
            self.host, self.family, self.saddr, self.daddr, self.sport, self.dport, number, self.rcv_nxt, flags, window, opts,
            tos=tos, ttl=self.ttl, mark=self.mark, flowlabel=self.flowlabel, dev_if=self.bound_dev_if,
            secret=self.secret(),
        )  # fmt: skip

    def resend_synack(self) -> None:
        """Send the SYN-ACK once more."""
        self.host.rehash(self)
        self.send_synack()
        self.num_retrans += 1
        mib = self.mib
        mib.TcpRetransSegs += 1
        mib.TCPSynRetrans += 1

    def _send_ack(self, tos: int) -> None:
        """Say where we stand to a segment outside the window."""
        # by Linux's rule, which is not whether they were agreed on
        opts = options.encode_established(self.tsval(), self.ts_recent) if self.ts_recent else b""
        self._send(self.snt_isn + 1, ACK, min(self.rcv_wnd, 65535) >> self.rcv_wscale, opts, tos & ~ECN_MASK)

    # ------------------------------------------------------------ time

    def start(self) -> None:
        """Enter the demux table and the listener's SYN queue; the SYN-ACK timer runs."""
        self.host.hash(self)
        self.listener.syn_queue.add(self)
        self._schedule()

    def _schedule(self) -> None:
        delay = min(TIMEOUT_INIT_NS << self.num_timeout, self.listener.rto_max_ns)
        self.expires_ns = self.host.now_ns + delay
        self.deadline = timers.expiry(self, delay)
        if self.deadline < self.armed:
            self.armed = self.deadline
            self.host.arm(self, self.deadline)

    def on_timer(self) -> None:
        """The heap came up."""
        self.armed = NEVER
        if self.deadline > self.host.now_ns:
            if self.deadline < NEVER:
                self.armed = self.deadline
                self.host.arm(self, self.deadline)
            return
        self._timeout()

    def _timeout(self) -> None:
        """The SYN-ACK was not answered (or not enough): repeat it, wait on, or give up."""
        lsk = self.listener
        self.mib.TCPTimeouts += 1
        retries = lsk.syn_queue.retries(lsk.syn_retries or self.sysctl.tcp_synack_retries, lsk.backlog)
        defer = lsk.defer_accept
        expired = self.num_timeout >= retries
        resend = True
        if defer and self.acked:
            # the peer is there; in its period it is left alone until the last repetition
            expired = expired and self.num_timeout >= defer
            resend = self.num_timeout >= defer - 1
        if expired:
            self.drop()
            return
        if resend:
            self.resend_synack()
        if not self.num_timeout:
            lsk.syn_queue.young -= 1
        self.num_timeout += 1
        self._schedule()

    def drop(self) -> bool:
        """Forget the half-open connection; False when it was gone already."""
        if not self.hashed:
            return False
        self.deadline = self.armed = NEVER
        self.host.disarm(self)
        self.host.unhash(self)
        self.listener.syn_queue.remove(self)
        return True

    # ------------------------------------------------------------ segments

    def receive(self, seg: Segment) -> None:
        """A segment for this half-open connection."""
        if not md5.acceptable(self.listener.md5, seg, self.mib):
            return
        if seg.options.md5 is not None:
            # TCP-AO, which the SYN-ACK has not taken up
            self.mib.TCPAOBad += 1
            return
        flags = seg.flags
        start = seg.seq = seq.unwrap(seg.seq, self.rcv_isn)
        seg.end_seq = start + seg.length + (1 if flags & SYN else 0) + (1 if flags & FIN else 0)
        if not self.judge(seg, None):
            return
        if self.num_timeout < self.listener.defer_accept and seg.end_seq == self.rcv_nxt:
            self.acked = True
            self.mib.TCPDeferAcceptDrop += 1
            return
        child = self.spawn(seg)
        if child is None:
            if self.sysctl.tcp_abort_on_overflow:
                self._embryonic_reset(seg)
            else:
                self.acked = True
            return
        self.drop()
        if not self.num_retrans:
            rtt.synack_rtt_meas(child, self.host.now_ns // 1000 - self.snt_synack_us)
        deliver(child, seg)

    def judge(self, seg: Segment, child: Sock | None) -> bool:
        """Whether an unwrapped segment is an ACK that may pass; what else it calls for is done here.

        child: that of Fast Open, which has its data already: it looks at the acknowledgement number itself."""
        sysctl = self.sysctl
        flags = seg.flags
        rcv_isn = self.rcv_isn
        start, end = seg.seq, seg.end_seq
        flg = flags & (RST | SYN | ACK)
        saw_tstamp = seg.saw_tstamp and bool(sysctl.tcp_timestamps)
        paws = echo_wrong = False
        if saw_tstamp:
            age_s = min(TIMEOUT_INIT_NS << self.num_timeout, self.listener.rto_max_ns) // NSEC_PER_SEC
            paws = timewait.paws_reject(self.host, self.ts_recent, timewait.now_s(self.host) - age_s, seg.tsval, bool(flags & RST))
            if seg.tsecr and self.tstamp_ok and child is None:
                echo_wrong = (seg.tsecr - self.snt_tsval_first) & M32 > (self.snt_tsval_last - self.snt_tsval_first) & M32

        if start == rcv_isn and flg == SYN and not paws:
            if not challenge.oow_rate_limited(self, seg, "TCPACKSkippedSynRecv"):
                self.resend_synack()
                if child is None:
                    self._schedule()
            return False
        if child is None and flg & (ACK | RST) == ACK and (seg.ack - self.snt_isn - 1) & M32:
            # perhaps that of a SYN cookie
            listen.receive(self.listener, seg)
            return False
        rcv_nxt = self.rcv_nxt
        if paws or echo_wrong or not timewait.in_window(start, end, rcv_nxt, rcv_nxt + min(self.rcv_wnd, 65535)):
            if not flg & RST and not challenge.oow_rate_limited(self, seg, "TCPACKSkippedSynRecv"):
                self._send_ack(seg.tos)
            if paws:
                self.mib.PAWSEstab += 1
            elif echo_wrong:
                self.mib.TSEcrRejected += 1
            return False
        if flg & RST and start != rcv_nxt:
            # RFC 5961 §3.2 holds before the connection is there, too (6.18)
            if challenge.allowed(self):
                self._send_ack(seg.tos)
            return False
        if start == rcv_isn:
            # a SYN repeated together with the ACK: its number lies before the window
            flg &= ~SYN
        if flg & (RST | SYN):
            self.mib.TcpAttemptFails += 1
            if child is None:
                self._embryonic_reset(seg)
            elif flg & RST:
                fastopen.reset_by_peer(child)
            else:
                reset.send_reset(child, seg)
            return False
        return bool(flg & ACK)

    def _embryonic_reset(self, seg: Segment) -> None:
        reset.send_reset(self.listener, seg)
        if self.drop():
            self.mib.EmbryonicRsts += 1

    def spawn(self, seg: Segment) -> Sock | None:
        """The full socket, in SYN_RECV, for an ACK that is valid; None when the accept queue is full."""
        lsk = self.listener
        mib = self.mib
        if listen.accept_queue_full(lsk):
            mib.ListenOverflows += 1
            mib.ListenDrops += 1
            return None
        mib.TcpPassiveOpens += 1
        child = self.host.new_sock(self.family)
        listen.inherit(child, lsk)
        if self.family != lsk.family:
            ip_families.inherit_other(child, lsk)
        child.parent = lsk
        child.state = SYN_RECV
        child.saddr = self.saddr
        child.daddr = self.daddr
        child.sport = self.sport
        child.dport = self.dport
        child.bound_dev_if = self.bound_dev_if
        if lsk.md5 is not None:
            md5.inherit(child, lsk)
        child.dst = self.dst
        child.pseudo_base = self.pseudo_base
        child.txhash = self.txhash
        child.flowlabel = self.flowlabel
        child.ip_id = self.ip_id
        if self.sysctl.tcp_reflect_tos:
            child.tos = self.syn_tos & ~ECN_MASK
        cong.assign(child, lsk.cong_name)

        child.irs = self.rcv_isn
        child.rcv_nxt = child.rcv_wup = child.copied_seq = self.rcv_isn + 1
        child.iss = self.snt_isn
        first = self.snt_isn + 1
        child.snd_una = child.snd_nxt = child.write_seq = child.pushed_seq = child.snd_sml = child.snd_up = first
        child.segs_in = 1
        child.lrcvtime_ns = child.lsndtime_ns = self.host.now_ns
        child.sack_ok = self.sack_ok
        child.wscale_ok = self.wscale_ok
        child.window_clamp = self.window_clamp
        child.rcv_wnd = child.rcv_ssthresh = self.rcv_wnd
        if self.wscale_ok:
            child.snd_wscale = self.snd_wscale
            child.rcv_wscale = self.rcv_wscale
        else:
            child.window_clamp = min(self.window_clamp, 65535)
        child.snd_wnd = child.max_window = seg.window << child.snd_wscale
        child.tstamp_ok = self.tstamp_ok
        child.ts_offset = self.ts_offset
        if self.tstamp_ok:
            child.ts_recent = self.ts_recent
            child.ts_recent_stamp_s = timewait.now_s(self.host)
            child.tcp_header_len = handshake.TCP_HEADER + TSTAMP_ALIGNED
        if seg.saw_tstamp and not seg.flags & SYN and seg.seq <= self.rcv_nxt and self.sysctl.tcp_timestamps:
            # that of the ACK (of the one that counts: a bare one dropped by TCP_DEFER_ACCEPT leaves no trace). Linux takes it without
            # having agreed on timestamps, too, and then shows it in TIME-WAIT
            child.ts_recent = seg.tsval
        if self.num_timeout:
            # the SYN-ACK was lost, or seemed so: cwnd starts at 1 unless the echo shows otherwise
            child.total_rto = self.num_timeout
            child.total_rto_recoveries = 1
            child.undo_marker = self.snt_isn
            child.retrans_stamp = self.snt_synack_us // 1000
            child.total_rto_time_ms = self.host.now_ns // NSEC_PER_MSEC - child.retrans_stamp
        child.total_retrans = self.num_retrans
        child.mss_clamp = self.mss
        child.advmss = handshake.clamp_mss(lsk, self.dst.advmss)
        mtu.setup_caps(child)
        mtu.sync_mss(child, self.dst.mtu)
        rwnd.init_rcv_mss(child)
        if self.ecn_ok:
            child.ecn_flags = ecn.OK
        child.saved_syn = self.saved_syn
        if child.keepopen:
            keepalive.start(child)
        return child


def deliver(child: Sock, seg: Segment) -> None:
    """Queue a new child for accept(), then let it see the segment that completed it (it may carry data, or a FIN)."""
    lsk = child.parent
    assert lsk is not None
    child.host.hash(child)
    lsk.accept_queue.append(child)
    input.receive(child, seg)
    if child.state != SYN_RECV:
        lsk.host.wake(lsk, POLLIN)
