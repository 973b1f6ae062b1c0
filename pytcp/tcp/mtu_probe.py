"""Path MTU probing by size (PLPMTUD, RFC 4821; Linux 2.6.17): finding what the path takes without ICMP.

A connection that probes sends segments of `search_low`, which is known to pass (tcp_base_mss at first),
and now and then one as long as the middle between that and `search_high`. If the probe is acknowledged
its size is the new bottom, and the MSS; if it is lost while what follows arrives, it is resent in pieces
without a reduction of cwnd and the top falls below it. Below tcp_probe_threshold bytes the search rests,
and begins anew tcp_probe_interval seconds after it began. A path change (`mtu.sync_mss`) lowers the top.

tcp_mtu_probing 1 begins only when a black hole shows: at the RTO after tcp_retries1; each further RTO
halves the bottom. 2 begins with the connection. `Sock.mtu_probe` is None where nothing is probed.
Sysctls: tcp_mtu_probing, tcp_base_mss, tcp_mtu_probe_floor, tcp_probe_threshold, tcp_probe_interval,
tcp_min_snd_mss. Counters: TCPMTUPSuccess, TCPMTUPFail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import cwnd, mtu, retransmit, tso, xmit
from . import trace as tracing
from .const import CA_CWR, CA_OPEN
from .skb import MAX_SKB_FRAGS

if TYPE_CHECKING:
    from .skb import Skb
    from .sock import Sock

FROM_THE_START = 2  # of tcp_mtu_probing
MIN_CWND = 11  # packets: a probe is an extra burden
TCP_HEADER = 20

# what became of an attempt
NO = 0  # no probe now; send as usual
SENT = 1
WAIT_CWND = 2  # the data that must follow a probe does not fit yet: send nothing until it does
WAIT_RWND = 3


class MtuProbe:
    """The search of one connection. Sizes are bytes of an IP packet."""

    __slots__ = ("low", "high", "size", "seq", "end_seq", "since_ns")

    def __init__(self, sk: Sock) -> None:
        self.low = mss_to_mtu(sk, sk.sysctl.tcp_base_mss)
        self.high = top(sk)
        self.size = 0  # of the probe under way, 0 = none
        self.seq = 0
        self.end_seq = 0
        self.since_ns = sk.host.now_ns


def mss_to_mtu(sk: Sock, mss: int) -> int:
    """Bytes of an IP packet with `mss` bytes of payload behind the usual header."""
    return mss + sk.tcp_header_len + mtu.net_header_len(sk)


def top(sk: Sock) -> int:
    """The longest packet the peer takes."""
    return sk.mss_clamp + TCP_HEADER + mtu.net_header_len(sk)


def init(sk: Sock) -> None:
    """The connection opens: begin a search, if that is wanted from the start."""
    sk.mtu_probe = MtuProbe(sk) if sk.sysctl.tcp_mtu_probing >= FROM_THE_START else None


def black_hole(sk: Sock) -> None:
    """An RTO after tcp_retries1 others: maybe long packets vanish. Go down."""
    sysctl = sk.sysctl
    if not sysctl.tcp_mtu_probing:
        return
    search = sk.mtu_probe
    if search is None:
        sk.mtu_probe = MtuProbe(sk)
    else:
        mss = min(sysctl.tcp_base_mss, mtu.mtu_to_mss(sk, search.low) >> 1)
        search.low = mss_to_mtu(sk, max(mss, sysctl.tcp_mtu_probe_floor, sysctl.tcp_min_snd_mss))
    mtu.sync_mss(sk, sk.pmtu_cookie)


def attempt(sk: Sock, mss: int) -> int:
    """Send a probe if this is the time for one. Returns NO, SENT, WAIT_CWND or WAIT_RWND."""
    search = sk.mtu_probe
    # SACK blocks would make the header longer than the search counts with
    if search.size or sk.ca_state != CA_OPEN or sk.snd_cwnd < MIN_CWND or sk.selective_acks or sk.duplicate_sack is not None:
        return NO
    size = mtu.mtu_to_mss(sk, (search.high + search.low) >> 1)
    if size > mtu.mtu_to_mss(sk, search.high) or search.high - search.low < sk.sysctl.tcp_probe_threshold:
        _search_again(sk)
        return NO
    # as many segments must follow as it takes to notice that the probe was lost
    needed = size + (sk.reordering + 1) * sk.mss_cache
    if sk.write_seq - sk.snd_nxt < needed or sk.snd_wnd < needed or not _mergeable(sk, size):
        return NO
    if sk.snd_nxt + needed > sk.snd_una + sk.snd_wnd:
        return WAIT_RWND
    in_flight = sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out
    if in_flight + 2 > sk.snd_cwnd:
        return WAIT_CWND if in_flight else NO
    skb = _build(sk, size, mss)
    if xmit.transmit_skb(sk, skb):
        # it stays at the head of the queue and leaves in segments
        return NO
    if sk.trace is not None:
        tracing.xmit(sk.trace, sk, skb, "mtu-probe", 1, 1)
    # a probe is about two packets
    sk.snd_cwnd -= 1
    xmit.new_data_sent(sk, skb)
    search.size = mss_to_mtu(sk, skb.length)
    search.seq = skb.seq
    search.end_seq = skb.end_seq
    return SENT


def _search_again(sk: Sock) -> None:
    """The search has ended; after a while the path may be another one."""
    search = sk.mtu_probe
    tick = sk.sysctl.tick_ns
    now = sk.host.now_ns
    if now // tick - search.since_ns // tick >= sk.sysctl.tcp_probe_interval * sk.sysctl.hz:
        search.size = 0
        search.high = top(sk)
        search.low = mss_to_mtu(sk, mtu.current_mss(sk))
        search.since_ns = now


def _mergeable(sk: Sock, size: int) -> bool:
    """The first `size` unsent bytes may become one segment: no message boundary (MSG_EOR) and no change of MSG_ZEROCOPY among them,
    and no more fragments than an skb may have."""
    frags = 0
    skb = sk.write_queue.head
    while skb is not None:
        if skb.length > size:
            return frags < MAX_SKB_FRAGS
        frags += skb.nr_frags
        if frags > MAX_SKB_FRAGS:
            return False
        size -= skb.length
        if not size:
            break
        if skb.eor or skb.is_zerocopy() or (skb.next is not None and skb.next.is_zerocopy()):
            return False
        skb = skb.next
    return True


def _build(sk: Sock, size: int, mss: int) -> Skb:
    """Make the head of the write queue one segment of `size` bytes."""
    skb = sk.write_queue.head
    assert skb is not None
    while skb.length < size:
        xmit.grow(sk, skb, size)
    if skb.length > size:
        sk.write_queue.insert_after(skb, tso.fragment(sk, skb, size, mss))
    skb.pcount = 1
    skb.gso_size = 0
    return skb


def succeeded(sk: Sock) -> None:
    """The probe was acknowledged: segments may be as long. cwnd keeps its bytes, not its packets."""
    search = sk.mtu_probe
    sk.prior_ssthresh = cwnd.current_ssthresh(sk)
    sk.snd_cwnd = max(1, sk.snd_cwnd * mss_to_mtu(sk, sk.mss_cache) // search.size)
    sk.snd_cwnd_cnt = 0
    sk.cwnd_stamp = sk.host.now_ns
    sk.snd_ssthresh = cwnd.current_ssthresh(sk)
    search.low = search.size
    search.size = 0
    mtu.sync_mss(sk, sk.pmtu_cookie)
    sk.mib.TCPMTUPSuccess += 1


def failed(sk: Sock) -> bool:
    """Loss was detected: whether it is the probe's alone, which says that it was too long. It is then on its way again."""
    search = sk.mtu_probe
    if not search.size or sk.ca_state >= CA_CWR or sk.snd_una != search.seq:
        return False
    search.high = search.size - 1
    search.size = 0
    sk.mib.TCPMTUPFail += 1
    sk.snd_cwnd += 1  # what `attempt` took
    retransmit.simple_retransmit(sk)
    return True
