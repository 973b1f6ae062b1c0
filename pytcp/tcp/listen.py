"""LISTEN: what a SYN meets, the two queues behind a listener, and what an accepted child inherits.

The SYN queue holds half-open connections (`request`), the accept queue established ones; `backlog` bounds
both, and both hold one more than it says. A full accept queue drops SYNs. A full SYN queue turns to
cookies (`syncookies`), or drops where tcp_syncookies is 0; without cookies its last quarter is kept for
peers known from before, of which this stack remembers none. A SYN that ended a TIME-WAIT is exempt.

Sysctls: tcp_syncookies, tcp_max_syn_backlog, somaxconn. Counters: ListenOverflows, ListenDrops,
TCPReqQFullDoCookies, TCPReqQFullDrop, SyncookiesRecv, SyncookiesFailed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from . import close, delack, fastopen, handshake, ip_families, isn, request, reset, rx_timestamps, seq, syncookies
from .const import ACK, AE, CWR, ECE, FIN, MAX_WSCALE, POLLIN, RST, SYN
from .options import M32, TSTAMP_ALIGNED

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .request import Request
    from .sock import Sock


class SynQueue:
    """The half-open connections of one listener."""

    __slots__ = ("requests", "young")

    def __init__(self) -> None:
        self.requests: set[Request] = set()
        self.young = 0  # requests whose SYN-ACK was not repeated by the timer

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, req: Request) -> None:
        self.requests.add(req)
        self.young += 1

    def remove(self, req: Request) -> None:
        self.requests.discard(req)
        if not req.num_timeout:
            self.young -= 1

    def retries(self, retries: int, backlog: int) -> int:
        """SYN-ACK repetitions granted now: fewer while the queue is more than half full of old requests."""
        length = len(self.requests)
        if length << 1 > max(8, backlog):
            young = self.young << 1
            while retries > 2 and length >= young:
                retries -= 1
                young <<= 1
        return retries


def start(sk: Sock) -> None:
    """Make `sk` ready to take SYNs."""
    delack.forget(sk)
    sk.syn_queue = SynQueue()
    sk.accept_queue = deque()


def stop(sk: Sock) -> None:
    """The listener ends: half-open connections are forgotten, established ones nobody accepted are reset."""
    for req in list(sk.syn_queue.requests):
        req.drop()
    sk.syn_queue = None
    children, sk.accept_queue = sk.accept_queue, None
    for child in children:
        if fastopen.waiting(child):
            fastopen.release(child, False)
        close.disconnect(child)
        close.destroy(child)


def accept_queue_full(sk: Sock) -> bool:
    return len(sk.accept_queue) > sk.backlog


def inherit(child: Sock, sk: Sock) -> None:
    """Give a new child the listener's options (linux-sockets §7: all but SO_PRIORITY; TCP_QUICKACK set before listen() is forgotten there).

    One assignment each, not a loop over names: this is a good part of what accepting costs."""
    child.bound_addr = sk.bound_addr
    child.sock_flags |= sk.sock_flags & close.BINDADDR_LOCK
    child.reuseaddr = sk.reuseaddr
    child.reuseport = sk.reuseport
    child.v6only = sk.v6only
    child.recverr = sk.recverr
    child.min_ttl = sk.min_ttl
    child.tos = sk.tos
    child.ttl = sk.ttl
    child.pmtu_disc = sk.pmtu_disc
    child.mark = sk.mark
    child.sndbuf = sk.sndbuf
    child.sndbuf_locked = sk.sndbuf_locked
    child.notsent_lowat = sk.notsent_lowat
    child.nonagle = sk.nonagle
    child.user_mss = sk.user_mss
    child.snd_cwnd_clamp = sk.snd_cwnd_clamp
    child.rto_min_us = sk.rto_min_us
    child.rto_max_ns = sk.rto_max_ns
    child.max_pacing_rate = sk.max_pacing_rate
    child.pacing_rate = sk.pacing_rate
    child.pacing_status = sk.pacing_status
    child.tx_delay_ns = sk.tx_delay_ns
    child.rcvbuf = sk.rcvbuf
    child.rcvbuf_locked = sk.rcvbuf_locked
    child.rcvlowat = sk.rcvlowat
    child.rx_opt_oobinline = sk.rx_opt_oobinline
    child.peek_off = sk.peek_off
    child.delack_max_ns = sk.delack_max_ns
    delack.inherit(child, sk)
    child.keepopen = sk.keepopen
    child.keepalive_time = sk.keepalive_time
    child.keepalive_intvl = sk.keepalive_intvl
    child.keepalive_probes = sk.keepalive_probes
    child.user_timeout_ms = sk.user_timeout_ms
    child.syn_retries = sk.syn_retries
    child.linear_timeouts = sk.linear_timeouts
    child.linger = sk.linger
    child.linger2 = sk.linger2
    child.tstamp_flags = sk.tstamp_flags
    if sk.optmem is not None:
        child.optmem = dict(sk.optmem)
    if sk.rx_stamps is not None:
        rx_timestamps.update(child)


# ---------------------------------------------------------------- segments


def receive(sk: Sock, seg: Segment, tw_isn: int = 0) -> None:
    """A segment for a listener (RFC 9293 §3.10.7.2). `tw_isn`: the SYN ended a TIME-WAIT, which names our ISN."""
    if seg.family != sk.family and seg.ttl < ip_families.of_family(sk, "min_ttl", ip_families.IPPROTO_IP):
        sk.mib.TCPMinTTLDrop += 1
        return
    flags = seg.flags
    if not flags & SYN and flags & (ACK | RST) == ACK and sk.sysctl.tcp_syncookies and syncookies.recent_overflow(sk) and _cookie_ack(sk, seg):
        return
    if flags & ACK:
        reset.send_reset(sk, seg)
    elif flags & (SYN | RST | FIN) == SYN and not _syn(sk, seg, tw_isn):
        sk.mib.ListenDrops += 1


def _syn(sk: Sock, seg: Segment, tw_isn: int) -> bool:
    """Answer a SYN; False when it is dropped."""
    sysctl = sk.sysctl
    mib = sk.mib
    cookie = False
    if not tw_isn and (sysctl.tcp_syncookies == 2 or len(sk.syn_queue) > sk.backlog):
        if not sysctl.tcp_syncookies:
            mib.TCPReqQFullDrop += 1
            return False
        mib.TCPReqQFullDoCookies += 1
        cookie = True
    if accept_queue_full(sk):
        mib.ListenOverflows += 1
        return False
    req = request.Request(sk, seg)
    _take_options(req, seg, cookie)
    if not _route(req):
        return False
    number, ts_offset = isn.choose(req.host, req.saddr, req.daddr, req.sport, req.dport)
    if req.tstamp_ok:
        req.ts_offset = ts_offset
    if not cookie and not tw_isn and not sysctl.tcp_syncookies and sysctl.tcp_max_syn_backlog - len(sk.syn_queue) < sysctl.tcp_max_syn_backlog >> 2:
        return False
    req.ecn_ok = _ecn_wanted(sk, req, seg)
    if cookie:
        number = syncookies.make(req)
        if req.tstamp_ok:
            req.cookie_tsval = syncookies.encode_timestamp(req)
        else:
            req.ecn_ok = False
    req.snt_isn = seq.initial(tw_isn or number)
    req.advmss = handshake.clamp_mss(sk, req.dst.advmss)
    req.choose_window(req.advmss - (TSTAMP_ALIGNED if req.tstamp_ok else 0))
    if sk.optmem is not None:
        req.saved_syn = _saved_syn(sk.optmem, seg)
    child = None
    if not cookie:
        child = fastopen.try_fastopen(sk, seg, req)
        if child is None:
            req.start()
    req.send_synack()
    if child is not None:
        sk.host.hash(child)
        sk.accept_queue.append(child)
        sk.host.wake(sk, POLLIN)
    return True


def _take_options(req: Request, seg: Segment, cookie: bool) -> None:
    """What the SYN offers and the sysctls allow. A cookie keeps window scale and SACK only inside a timestamp."""
    sysctl = req.sysctl
    user_mss = req.listener.user_mss
    req.mss = user_mss or handshake.default_mss(req.family)
    if seg.options.mss is not None:
        req.mss = handshake.clamp_mss(req.listener, seg.options.mss)
    req.tstamp_ok = seg.saw_tstamp and bool(sysctl.tcp_timestamps)
    if req.tstamp_ok:
        req.ts_recent = seg.tsval
    elif cookie:
        return
    req.sack_ok = seg.options.sack_perm and bool(sysctl.tcp_sack)
    if seg.options.wscale is not None and sysctl.tcp_window_scaling:
        req.wscale_ok = True
        req.snd_wscale = min(seg.options.wscale, MAX_WSCALE)


def _route(req: Request) -> bool:
    try:
        req.host.route(req)
    except OSError:
        # no way back to the peer: as if its SYN had been lost
        return False
    return True


def _ecn_wanted(sk: Sock, req: Request, seg: Segment) -> bool:
    """Whether a SYN asks for ECN and may have it: RFC 3168 only from a not-ECT packet, AccECN (AE) from any."""
    wanted = seg.flags & (ECE | CWR) == ECE | CWR and (not seg.tos & 3 or bool(seg.flags & AE))
    return wanted and (sk.sysctl.tcp_ecn != 0 or req.dst.ecn or sk.ca.needs_ecn)


def _cookie_ack(sk: Sock, seg: Segment) -> bool:
    """An ACK that may return a cookie. True when that settled it (accepted, or no room); False: treat it as any ACK."""
    mib = sk.mib
    seg.seq &= M32
    peer_isn = (seg.seq - 1) & M32
    cookie = (seg.ack - 1) & M32
    mss = syncookies.check(sk.host, seg.family, seg.dst, seg.src, seg.dport, seg.sport, peer_isn, cookie)
    if not mss:
        mib.SyncookiesFailed += 1
        return False
    mib.SyncookiesRecv += 1
    req = request.Request(sk, seg)
    req.rcv_isn -= 1
    req.snt_isn = seq.initial(cookie)
    req.mss = mss
    if seg.saw_tstamp:
        req.ts_offset = isn.choose(sk.host, req.saddr, req.daddr, req.sport, req.dport)[1]
        if not syncookies.decode_timestamp(req, (seg.tsecr - req.ts_offset) & M32):
            return True
        req.tstamp_ok = True
        req.ts_recent = seg.tsval
    if not _route(req):
        return True
    if not sk.sysctl.tcp_ecn and not req.dst.ecn:
        req.ecn_ok = False
    req.advmss = handshake.clamp_mss(sk, req.dst.advmss)
    req.choose_window(req.mss)
    child = req.spawn(seg)
    if child is not None:
        request.deliver(child, seg)
    return True


# ---------------------------------------------------------------- TCP_SAVE_SYN

ETH_HEADER = 14
SAVE_SYN = (6, 27)  # IPPROTO_TCP, TCP_SAVE_SYN: its key in sk.optmem


def _saved_syn(optmem: dict[tuple[int, int], int], seg: Segment) -> bytes | None:
    """The SYN's headers as TCP_SAVE_SYN wants them: 1 from IP on, 2 from the link layer on."""
    mode = optmem.get(SAVE_SYN, 0)
    if not mode or not seg.data:
        return None
    start = 0 if mode == 2 else _ip_header(seg)
    return bytes(seg.data[start : seg.l4_off + seg.doff * 4])


def _ip_header(seg: Segment) -> int:
    """Where the IP header starts in the packet, which may begin with it or with an Ethernet header."""
    data = seg.data
    if seg.family == 4:
        return ETH_HEADER if ETH_HEADER + (data[ETH_HEADER] & 15) * 4 == seg.l4_off else 0
    return ETH_HEADER if bytes(data[12:14]) == b"\x86\xdd" else 0
