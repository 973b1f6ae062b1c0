"""TIME-WAIT and orphaned FIN_WAIT2 as a mini block in the socket's place (RFC 9293 §3.6.1, RFC 1122 §4.2.2.13).

The full socket goes as soon as only the peer may still have something to say; what stays remembers
sequence numbers, timestamps and how to answer. TIME-WAIT lasts 60 s whatever tcp_fin_timeout says.
A new SYN ends it early when it is provably new: a sequence number above the old one or a newer
timestamp (RFC 1122, RFC 6191); the new ISN then lies 65537 above the old snd_nxt. A connect() from our
side may take the place over when timestamps protect it (`reusable`).

Sysctls: tcp_max_tw_buckets, tcp_rfc1337, tcp_tw_reuse, tcp_tw_reuse_delay. Counters: TW, TWKilled (those
set for 4 s or less), TWRecycled, PAWSTimewait, TCPACKSkippedTimeWait, TCPACKSkippedFinWait2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import challenge, listen, md5, options, reset, rwnd, seq, timers
from .const import ACK, FIN, FIN_WAIT2, NSEC_PER_MSEC, NSEC_PER_SEC, RST, SYN, TIME_WAIT
from .paws import PAWS_WRAP_S
from .sock import NEVER

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Host, Sock

TIMEWAIT_LEN_NS = 60 * NSEC_PER_SEC
SHORT_LIVED_NS = 4 * NSEC_PER_SEC
ISN_GAP = 65535 + 2  # above anything the old connection can have sent
PAWS_MSL_S = 60
M32 = 0xFFFFFFFF


def now_s(host: Host) -> int:
    """Seconds for `ts_recent_stamp_s`, never 0: that means there is no timestamp."""
    return host.now_ns // NSEC_PER_SEC or 1


def paws_reject(host: Host, ts_recent: int, stamp_s: int, tsval: int, rst: bool) -> bool:
    """Whether a segment with `tsval` is older than `ts_recent`, seen at `stamp_s` (RFC 7323 §5.3).

    Nothing is older than 0, nor than a timestamp so old that the peer's clock may have wrapped. A RST
    gets the benefit of the doubt after a minute."""
    older = 0 < (ts_recent - tsval) & M32 < 0x80000000
    if not ts_recent or not older:
        return False
    return now_s(host) - stamp_s < (PAWS_MSL_S if rst else PAWS_WRAP_S)


def in_window(start: int, end: int, win_start: int, win_end: int) -> bool:
    """RFC 9293 §3.10.7.4's acceptability test for a segment [start, end)."""
    if start == win_start or (end > win_start and start < win_end):
        return True
    return start == win_end and start == end


class TimeWait:
    """What is left of a connection: stands in the demux table, answers, and goes when its time is over."""

    __slots__ = (
        "armed",
        "bound_dev_if",
        "daddr",
        "deadline",
        "demux_key",
        "dport",
        "entry_ms",
        "expires_ns",
        "family",
        "flowlabel",
        "hashed",
        "host",
        "last_oow_ack_ns",
        "mark",
        "pseudo_base",
        "rcv_nxt",
        "rcv_wnd",
        "rcv_wscale",
        "reuseaddr",
        "reuseport",
        "saddr",
        "secret",
        "snd_nxt",
        "sport",
        "substate",
        "sysctl",
        "tos",
        "ts_offset",
        "ts_recent",
        "ts_recent_stamp_s",
        "v6only",
    )

    def __init__(self, sk: Sock, substate: int) -> None:
        """`substate` is FIN_WAIT2 or TIME_WAIT. `start` makes it live."""
        host = sk.host
        self.host = host
        self.sysctl = sk.sysctl
        self.family = sk.family
        self.saddr = sk.saddr
        self.daddr = sk.daddr
        self.sport = sk.sport
        self.dport = sk.dport
        self.reuseaddr = sk.reuseaddr
        self.reuseport = sk.reuseport
        self.v6only = sk.v6only
        self.bound_dev_if = sk.bound_dev_if
        self.demux_key: Any = sk.demux_key
        self.pseudo_base = sk.pseudo_base
        self.hashed = False
        self.substate = substate
        self.snd_nxt = sk.snd_nxt
        self.rcv_nxt = sk.rcv_nxt
        self.rcv_wnd = rwnd.receive_window(sk)
        self.rcv_wscale = sk.rcv_wscale
        self.ts_recent = sk.ts_recent
        self.ts_recent_stamp_s = sk.ts_recent_stamp_s
        self.ts_offset = sk.ts_offset
        self.secret = md5.lookup(sk.md5, sk.daddr)
        self.tos = sk.tos
        self.mark = sk.mark
        self.flowlabel = sk.flowlabel
        self.entry_ms = host.now_ns // NSEC_PER_MSEC
        self.last_oow_ack_ns = 0
        self.deadline = NEVER
        self.expires_ns = 0  # the same before the timer wheel rounds, for those who look
        self.armed = NEVER

    def start(self, timeout_ns: int) -> None:
        """Enter the demux table for `timeout_ns`; the socket has left it."""
        mib = self.host.mib
        mib.sockstat.tw += 1
        if timeout_ns <= SHORT_LIVED_NS:
            mib.TWKilled += 1
        else:
            mib.TW += 1
        self.host.hash(self)
        self._schedule(timeout_ns)

    def kill(self) -> None:
        """The 4-tuple is free again."""
        if self.hashed:
            self.deadline = self.armed = NEVER
            self.host.disarm(self)
            self.host.unhash(self)
            self.host.mib.sockstat.tw -= 1

    def on_timer(self) -> None:
        """The heap came up."""
        self.armed = NEVER
        if self.deadline <= self.host.now_ns:
            self.kill()
        elif self.deadline < NEVER:
            self._arm()

    def _schedule(self, timeout_ns: int) -> None:
        self.expires_ns = self.host.now_ns + timeout_ns
        self.deadline = timers.expiry(self, timeout_ns)
        self._arm()

    def _arm(self) -> None:
        if self.deadline < self.armed:
            self.armed = self.deadline
            self.host.arm(self, self.deadline)

    def receive(self, seg: Segment) -> None:
        """A segment for the old 4-tuple."""
        flags = seg.flags
        start = seg.seq = seq.unwrap(seg.seq, self.rcv_nxt)
        end = seg.end_seq = start + seg.length + (1 if flags & SYN else 0) + (1 if flags & FIN else 0)
        paws = seg.saw_tstamp and self.ts_recent_stamp_s != 0 and paws_reject(self.host, self.ts_recent, self.ts_recent_stamp_s, seg.tsval, bool(flags & RST))
        if self.substate == FIN_WAIT2:
            self._fin_wait2(seg, start, end, paws)
        else:
            self._time_wait(seg, start, end, paws)

    def _fin_wait2(self, seg: Segment, start: int, end: int, paws: bool) -> None:
        flags = seg.flags
        rcv_nxt = self.rcv_nxt
        if paws or not in_window(start, end, rcv_nxt, rcv_nxt + self.rcv_wnd):
            self._ack_out_of_window(seg, "TCPACKSkippedFinWait2")
        elif flags & RST:
            self.kill()
        elif flags & SYN and start >= rcv_nxt:
            self._reset(seg)
        elif not flags & ACK or end <= rcv_nxt or end == start:
            pass
        elif not flags & FIN or end != rcv_nxt + 1:
            # data nobody will ever read
            self._reset(seg)
        else:
            self.substate = TIME_WAIT
            self.entry_ms = self.host.now_ns // NSEC_PER_MSEC
            self.rcv_nxt = end
            self._remember_timestamp(seg)
            self._schedule(TIMEWAIT_LEN_NS)
            self._ack()

    def _time_wait(self, seg: Segment, start: int, end: int, paws: bool) -> None:
        flags = seg.flags
        rcv_nxt = self.rcv_nxt
        if not paws and start == rcv_nxt and (start == end or flags & RST):
            # nothing new: a bare ACK, or a RST, which RFC 1337 would rather not believe
            if not flags & RST:
                self._schedule(TIMEWAIT_LEN_NS)
            elif not self.sysctl.tcp_rfc1337:
                self.kill()
                return
            self._remember_timestamp(seg)
            return
        if flags & (SYN | RST | ACK) == SYN and not paws:
            newer = seg.saw_tstamp and self.ts_recent_stamp_s != 0 and 0 < (seg.tsval - self.ts_recent) & M32 <= 0x80000000
            if start > rcv_nxt or newer:
                if not self._reopen(seg):
                    # nobody listens any more: an ACK, outside the limit (as the kernel does)
                    self._ack()
                return
        if paws:
            self.host.mib.PAWSTimewait += 1
        if not flags & RST:
            if paws or flags & ACK:
                # an ACKless SYN may be a new connection's with a random number: it must not prolong us
                self._schedule(TIMEWAIT_LEN_NS)
            self._ack_out_of_window(seg, "TCPACKSkippedTimeWait")

    def _reopen(self, seg: Segment) -> bool:
        """A provably new SYN: hand the 4-tuple to the listener, if there still is one."""
        listener = self.host.listener(self.family, self.saddr, self.sport)
        if listener is None:
            return False
        isn = (self.snd_nxt + ISN_GAP) & M32 or 1
        self.kill()
        if md5.acceptable(listener.md5, seg, listener.mib):
            listen.receive(listener, seg, isn)
        return True

    def _remember_timestamp(self, seg: Segment) -> None:
        if seg.saw_tstamp and self.ts_recent_stamp_s:
            self.ts_recent = seg.tsval
            self.ts_recent_stamp_s = now_s(self.host)

    def _ack_out_of_window(self, seg: Segment, counter: str) -> None:
        if not challenge.oow_rate_limited(self, seg, counter):
            self._ack()

    def _ack(self) -> None:
        opts = options.encode_established(self.host.now_ns // NSEC_PER_MSEC + self.ts_offset, self.ts_recent) if self.ts_recent else b""
        # as Linux does it: without scaling a window above 65535 loses its high bits here
        window = self.rcv_wnd >> self.rcv_wscale & 0xFFFF
        reset.reply(
            self.host, self.family, self.saddr, self.daddr, self.sport, self.dport, self.snd_nxt, self.rcv_nxt, ACK, window, opts,
            tos=self.tos, mark=self.mark, flowlabel=self.flowlabel, dev_if=self.bound_dev_if,
            secret=self.secret,
        )  # fmt: skip

    def _reset(self, seg: Segment) -> None:
        """The peer still believes in a connection we cannot go on with."""
        reset.closed_port(self.host, seg, self.mark, self.bound_dev_if)
        self.kill()


def reusable(sk: Sock, tw: TimeWait, auto: bool) -> bool:
    """Whether a connect() of `sk` may take over the 4-tuple of `tw`: only where timestamps tell old segments apart.

    `auto`: the port is being chosen for the program, so tcp_tw_reuse (2: loopback only) and
    tcp_tw_reuse_delay decide; a port the program bound itself needs neither (linux-sockets §1)."""
    if not tw.ts_recent_stamp_s:
        return False
    if not auto:
        return True
    reuse = sk.sysctl.tcp_tw_reuse
    if tw.substate == FIN_WAIT2 or not reuse or (reuse == 2 and not _is_loopback(tw)):
        return False
    return sk.host.now_ns // NSEC_PER_MSEC > tw.entry_ms + sk.sysctl.tcp_tw_reuse_delay


def take_over(sk: Sock, tw: TimeWait) -> None:
    """`sk` connects on the 4-tuple of `tw`, which ends: numbers and timestamps go on above the old ones."""
    sk.write_seq = (tw.snd_nxt + ISN_GAP) & M32 or 1
    sk.ts_recent = tw.ts_recent
    sk.ts_recent_stamp_s = tw.ts_recent_stamp_s
    sk.mib.TWRecycled += 1
    tw.kill()


def _is_loopback(tw: TimeWait) -> bool:
    return _loopback(tw.saddr) or _loopback(tw.daddr)


def _loopback(addr: bytes) -> bool:
    if len(addr) == 4:
        return addr[0] == 127
    return addr == bytes(15) + b"\x01" or addr[:13] == bytes(10) + b"\xff\xff\x7f"
