"""tcp_info: what a connection knows about itself, as getsockopt(TCP_INFO) and `ss -i` show it.

Same names, units and binary layout (280 bytes, Linux 6.18) as struct tcp_info without the `tcpi_`.
A listener reports its accept queue in `unacked` and the backlog in `sacked`. Of the ECN figures those of
received codepoints count on every connection; what needs accurate ECN stays 0, as with a kernel without it. Times of timers are in
us but of tick resolution, ages in ms, windows of the congestion control in packets; the three chronos are exclusive, `busy_time` is their sum.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from struct import Struct
from typing import TYPE_CHECKING

from . import chrono, delack, ecn
from .const import LISTEN, NSEC_PER_MSEC

if TYPE_CHECKING:
    from .sock import Sock

OPT_TIMESTAMPS = 1
OPT_SACK = 2
OPT_WSCALE = 4
OPT_ECN = 8
OPT_ECN_SEEN = 16
OPT_SYN_DATA = 32
OPT_TFO_CHILD = 128

M32 = 0xFFFFFFFF

_LAYOUT = Struct("<8B 24I 4Q 6I 4Q 2I 2Q 6I 2HI 7I 2H")


@dataclass(slots=True)
class TcpInfo:
    """struct tcp_info; every field 0 until known."""

    state: int = 0  # const.ESTABLISHED, ...
    ca_state: int = 0  # const.CA_OPEN, ...
    retransmits: int = 0  # RTOs of the segment at snd_una
    probes: int = 0  # unanswered window probes
    backoff: int = 0  # doublings of the RTO
    options: int = 0  # OPT_* bits
    snd_wscale: int = 0  # shift of the windows received
    rcv_wscale: int = 0  # shift of the windows sent
    delivery_rate_app_limited: int = 0  # 0 or 1: delivery_rate is what the program offered
    fastopen_client_fail: int = 0  # reason, 0 without
    rto: int = 0  # us
    ato: int = 0  # us
    snd_mss: int = 0  # bytes
    rcv_mss: int = 0  # bytes
    unacked: int = 0  # packets; LISTEN: children waiting for accept()
    sacked: int = 0  # packets; LISTEN: backlog
    lost: int = 0  # packets
    retrans: int = 0  # packets sent again and not yet acknowledged
    fackets: int = 0  # packets
    last_data_sent: int = 0  # ms ago
    last_ack_sent: int = 0  # ms ago; 0 as in Linux
    last_data_recv: int = 0  # ms ago
    last_ack_recv: int = 0  # ms ago
    pmtu: int = 0  # bytes
    rcv_ssthresh: int = 0  # bytes
    rtt: int = 0  # us, smoothed
    rttvar: int = 0  # us
    snd_ssthresh: int = 0  # packets
    snd_cwnd: int = 0  # packets
    advmss: int = 0  # bytes
    reordering: int = 0  # packets
    rcv_rtt: int = 0  # us, as the receiver sees it
    rcv_space: int = 0  # bytes read per round trip
    total_retrans: int = 0  # segments
    pacing_rate: int = 0  # bytes/s
    max_pacing_rate: int = 0  # bytes/s
    bytes_acked: int = 0  # bytes
    bytes_received: int = 0  # bytes
    segs_out: int = 0  # segments
    segs_in: int = 0  # segments
    notsent_bytes: int = 0  # bytes
    min_rtt: int = 0  # us
    data_segs_in: int = 0  # segments
    data_segs_out: int = 0  # segments
    delivery_rate: int = 0  # bytes/s
    busy_time: int = 0  # us
    rwnd_limited: int = 0  # us
    sndbuf_limited: int = 0  # us
    delivered: int = 0  # packets
    delivered_ce: int = 0  # packets
    bytes_sent: int = 0  # bytes, with those sent again
    bytes_retrans: int = 0  # bytes
    dsack_dups: int = 0  # packets
    reord_seen: int = 0  # events
    rcv_ooopack: int = 0  # packets
    snd_wnd: int = 0  # bytes, what the peer offers
    rcv_wnd: int = 0  # bytes, what we offer
    rehash: int = 0  # RTOs after which another path was tried
    total_rto: int = 0  # timeouts
    total_rto_recoveries: int = 0  # episodes
    total_rto_time: int = 0  # ms
    received_ce: int = 0  # packets
    delivered_e1_bytes: int = 0  # bytes
    delivered_e0_bytes: int = 0  # bytes
    delivered_ce_bytes: int = 0  # bytes
    received_e1_bytes: int = 0  # bytes
    received_e0_bytes: int = 0  # bytes
    received_ce_bytes: int = 0  # bytes
    accecn_fail_mode: int = 0  # bits
    accecn_opt_seen: int = 0  # bits

    def pack(self) -> bytes:
        """The kernel's binary layout; counters wrap where the kernel's do."""
        values = [getattr(self, name) for name in _WORDS]
        head = (
            self.state, self.ca_state, self.retransmits & 0xFF, self.probes & 0xFF, self.backoff & 0xFF, self.options,
            self.snd_wscale | self.rcv_wscale << 4, self.delivery_rate_app_limited | self.fastopen_client_fail << 1,
        )  # fmt: skip
        return _LAYOUT.pack(*head, *[value & mask for value, mask in zip(values, _MASKS, strict=True)])


_WORDS = [f.name for f in fields(TcpInfo)][10:]
_WIDTHS = [32] * 24 + [64] * 4 + [32] * 6 + [64] * 4 + [32] * 2 + [64] * 2 + [32] * 6 + [16] * 2 + [32] * 8 + [16] * 2
_MASKS = [(1 << width) - 1 for width in _WIDTHS]


def tcp_info(sk: Sock) -> TcpInfo:
    """A snapshot of `sk`; never raises, in any state."""
    info = TcpInfo()
    info.state = sk.state
    info.pacing_rate = min(sk.pacing_rate, sk.max_pacing_rate)
    info.max_pacing_rate = sk.max_pacing_rate
    info.reordering = sk.reordering
    info.snd_cwnd = sk.snd_cwnd
    if sk.state == LISTEN:
        info.unacked = len(sk.accept_queue)
        info.sacked = sk.backlog
        return info
    info.ca_state = sk.ca_state
    info.retransmits = sk.retransmits
    info.probes = sk.probes_out
    info.backoff = sk.backoff
    _options(sk, info)
    _timing(sk, info)
    info.snd_mss = sk.mss_cache
    info.rcv_mss = sk.rcv_mss
    info.unacked = sk.packets_out
    info.sacked = sk.sacked_out
    info.lost = sk.lost_out
    info.retrans = sk.retrans_out
    info.pmtu = sk.pmtu_cookie
    info.rcv_ssthresh = sk.rcv_ssthresh
    info.snd_ssthresh = sk.snd_ssthresh
    info.advmss = sk.advmss
    info.rcv_space = sk.rcvq_space
    info.total_retrans = sk.total_retrans
    info.bytes_acked = sk.bytes_acked
    info.bytes_received = sk.bytes_received
    info.segs_out = sk.segs_out
    info.segs_in = sk.segs_in
    info.notsent_bytes = max(0, sk.write_seq - sk.snd_nxt)
    info.data_segs_in = sk.data_segs_in
    info.data_segs_out = sk.data_segs_out
    info.delivery_rate_app_limited = int(sk.rate_app_limited)
    if sk.rate_delivered and sk.rate_interval_us:
        info.delivery_rate = sk.rate_delivered * sk.mss_cache * 1_000_000 // sk.rate_interval_us
    info.busy_time, info.rwnd_limited, info.sndbuf_limited = chrono.times_us(sk)
    info.delivered = sk.delivered
    info.delivered_ce = sk.delivered_ce
    info.bytes_sent = sk.bytes_sent
    info.bytes_retrans = sk.bytes_retrans
    info.dsack_dups = sk.dsack_dups
    info.reord_seen = sk.reord_seen
    info.rcv_ooopack = sk.rcv_ooopack
    info.snd_wnd = sk.snd_wnd
    info.rcv_wnd = sk.rcv_wnd
    info.rehash = sk.timeout_rehash
    info.total_rto = sk.total_rto
    info.total_rto_recoveries = sk.total_rto_recoveries
    info.total_rto_time = sk.total_rto_time_ms
    if sk.rto_stamp:
        info.total_rto_time += sk.host.now_ns // NSEC_PER_MSEC - sk.rto_stamp
    return info


def _options(sk: Sock, info: TcpInfo) -> None:
    if sk.tstamp_ok:
        info.options |= OPT_TIMESTAMPS
    if sk.sack_ok:
        info.options |= OPT_SACK
    if sk.wscale_ok:
        info.options |= OPT_WSCALE
        info.snd_wscale = sk.snd_wscale
        info.rcv_wscale = sk.rcv_wscale
    if sk.ecn_flags & ecn.OK:
        info.options |= OPT_ECN
    if sk.received_ecn is not None:
        info.options |= OPT_ECN_SEEN
        info.received_ce, info.received_e1_bytes, info.received_e0_bytes, info.received_ce_bytes = sk.received_ecn
    if sk.fastopen is not None:
        info.fastopen_client_fail = sk.fastopen.client_fail
        if sk.fastopen.is_child:
            info.options |= OPT_TFO_CHILD
        if sk.fastopen.syn_data_acked:
            info.options |= OPT_SYN_DATA


def _timing(sk: Sock, info: TcpInfo) -> None:
    tick = sk.sysctl.tick_ns
    jiffies = sk.host.now_ns // tick
    info.rto = sk.rto_ns // 1000
    info.ato = min(sk.ato_jiffies, delack.delack_max(sk)) * tick // 1000
    info.last_data_sent = (jiffies - sk.lsndtime_ns // tick) * tick // NSEC_PER_MSEC
    info.last_data_recv = (jiffies - sk.lrcvtime_ns // tick) * tick // NSEC_PER_MSEC
    info.last_ack_recv = (jiffies - sk.rcv_tstamp_ns // tick) * tick // NSEC_PER_MSEC
    info.rtt = sk.srtt_us >> 3
    info.rttvar = sk.mdev_us >> 2
    info.rcv_rtt = sk.rcv_rtt_us >> 3
    info.min_rtt = sk.min_rtt_us
