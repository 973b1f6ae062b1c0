"""The control block: everything one TCP connection knows, flat, grouped by the room that owns it.

Any room may read any field; only the owning room assigns it (`tests/unit/test_ownership.py` holds the
code against `OWNERS` there). Sequence numbers are unwrapped integers: they are wrapped where a header
is built and unwrapped where one is parsed, so `<` is all the comparison there is. Times are
nanoseconds of `host.now_ns` unless a name says us or jiffies.

There is no socket lock and no "owned by user" state: program calls and packets meet in one thread, so
Linux's backlog, release_cb and deferred flags have no counterpart here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .const import CA_OPEN, CLOSE, INFINITE_SSTHRESH
from .mib import TcpMib
from .skb import PageFrag, SkbList, TimeList
from .sysctl import TcpSysctl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytcp.wire.tcp import Segment

    from .cong.base import CongestionControl
    from .fastopen import HostState
    from .skb import Buffer, Skb
    from .trace import Tracer

NEVER = 1 << 62


class Host(Protocol):
    """What the engine asks of the world. The stack implements it; unit tests give a fake one."""

    @property
    def now_ns(self) -> int:
        """The engine's time; refreshed before each segment, call and timer."""

    @property
    def sysctl(self) -> TcpSysctl: ...

    @property
    def fastopen(self) -> HostState:
        """What Fast Open remembers of the host."""

    @property
    def mib(self) -> TcpMib: ...

    @property
    def page_frag(self) -> PageFrag:
        """Where all sockets of this host's program have their bytes copied to."""

    @property
    def iif(self) -> int:
        """Index of the device by which the segment in hand came in: a packet to an address of our own counts as one that
        came by the device with that address. Good for segments that reach a listener."""

    def transmit(self, sk: Sock, th: bytes, parts: Sequence[Buffer], length: int, skb: Skb | None, gso_size: int, truesize: int, ecn: int) -> int:
        """Send one super-segment: TCP header `th` (checksum field = folded pseudo-header sum), payload
        `parts` of `length` bytes. Charged `truesize` until completion (`tsq.wfree(sk, skb, truesize)`).
        `ecn` = the two IP ECN bits. Returns 0, or a negative errno when the host refused it."""

    def fresh_route(self, sk: Sock) -> int:
        """Look the way of `sk` up again if it is stale (its MTU may be another). Returns 0, or a negative errno when there is none."""

    def reply(self, family: int, src: bytes, dst: bytes, th: bytes, payload: bytes, tos: int, ttl: int, mark: Any, flowlabel: int = 0, dev_if: int = 0) -> None:
        """Send a segment that belongs to no Sock (RST, SYN-ACK, TIME-WAIT ACK); `th` as above.
        `flowlabel` is for IPv6, 0 = the host's choice; `dev_if` the index of the device to use, 0 = the route's."""

    def arm(self, sk: Any, when_ns: int) -> None:
        """Call `sk.on_timer()` at `when_ns`, or earlier (the callee looks at its own deadlines)."""

    def disarm(self, sk: Any) -> None:
        """`sk` waits for no timer any more: nothing need be kept for it."""

    def wake(self, sk: Sock, events: int) -> None:
        """Readiness bits that may have come true; delivered once per batch to `sk.user`."""

    def looped(self, sk: Sock, th: bytes, length: int, gso_size: int, ecn: int) -> tuple[bytes, bool]:
        """What stood before the payload of the segment `transmit` has just been given, link layer first, and whether the device
        takes super-segments whole."""

    def route(self, sk: Any) -> None:
        """Fill (for a Sock or a request) sk.dst, sk.saddr (when unset), pmtu facts. Raises OSError (ENETUNREACH, ...)."""

    def bind_port(self, sk: Sock, port: int) -> int:
        """Reserve a local port (0: ephemeral by RFC 6056). Raises OSError (EADDRINUSE, ...)."""

    def hash(self, sk: Any) -> None:
        """Enter a Sock, a request or a TIME-WAIT block into the demux table under its 4-tuple, or a
        LISTEN Sock among the listeners; sets `hashed`. It replaces the request or Sock it grew out of.
        An accepted child and a TIME-WAIT block become holders of their port as if by bind_port.
        A connecting Sock may find a TIME-WAIT block on its 4-tuple: `timewait.reusable` decides.
        Raises OSError EADDRNOTAVAIL when the 4-tuple is taken."""

    def unhash(self, sk: Any) -> None:
        """Take it out again (nothing happens when it is not in), clear `hashed`. A Sock keeps its
        port until release_port; a TIME-WAIT block gives its port back here."""

    def release_port(self, sk: Sock) -> None:
        """`sk` holds its port (`bound_port`) no longer; the port is free when nobody else holds it."""

    def listener(self, family: int, addr: bytes, port: int) -> Sock | None:
        """The LISTEN socket a SYN to this local address and port reaches."""

    def is_local(self, addr: bytes, dev_if: int = 0) -> bool:
        """Whether `addr` is an address of this host (bind), of that device if one is given."""

    def dev_index(self, name: str) -> int:
        """The index of the device of that name; 0 = there is none."""

    def dev_name(self, index: int) -> str:
        """The name of the device with that index; "" = there is none."""

    def bind_device(self, sk: Sock, index: int) -> None:
        """Set `bound_dev_if`, whatever state `sk` is in: from now on it sends and hears by that device only (0: by any)."""

    def new_sock(self, family: int) -> Sock:
        """A Sock for a passive open, with this host."""

    def rehash(self, sk: Any) -> None:
        """Pick another flow hash (IPv6 flow label): the path may be what fails (6.x TcpTimeoutRehash)."""

    def random32(self) -> int: ...

    def realtime_ns(self) -> int:
        """Wall clock for the ISN's clock term (virtual hosts: the virtual clock)."""

    def secret(self) -> bytes:
        """16 bytes, fixed for the life of the stack, for ISNs, timestamps and cookies."""

    def throttled(self, sk: Sock) -> None:
        """THROTTLED of `sk` was set: reap completions soon, one of them must call it. What another thread has completed by now is debited."""


class Sock:
    """One endpoint, from socket() to the last timer."""

    __slots__ = (
        # --- identity (handshake, api, close, icmp_err, ip_families, listen, request, sockopt_socket, sockopt_ip, ack, established, input, errors) ---
        "host", "sysctl", "mib", "family", "saddr", "daddr", "sport", "dport", "state", "user", "parent",
        "bound_addr", "bound_port", "bound_dev_if", "reuseaddr", "reuseport", "v6only", "sk_err", "sk_err_soft", "shutdown", "sock_flags",
        "demux_key", "hashed",
        # --- path (net, api, ip_families, listen, request, sockopt_socket) ---
        "dst", "pseudo_base", "tos", "ttl", "ip_id", "txhash", "flowlabel", "pmtu_disc", "priority", "mark",
        # --- send sequence (xmit, ack, api, close, handshake, request, timewait, established, probe0, push, sendmsg, fastopen, fastopen_client, zerocopy) ---
        "iss", "snd_una", "snd_nxt", "write_seq", "pushed_seq", "snd_sml", "snd_up", "snd_wnd", "max_window", "snd_wl1", "snd_wscale",
        # --- send memory (sendmsg, xmit, listen, poll, sockopt_socket, sockopt_kinds, sockopt_tcp, mtu, tsq, zerocopy) ---
        "write_queue", "rtx_queue", "tsorted", "page_frag", "sndbuf", "wmem_alloc", "sndbuf_locked", "nospace", "notsent_lowat",
        "nonagle", "tsq_throttled", "slab", "slab_used", "size_goal_segs",
        # --- segment size (mtu, mtu_probe, handshake, listen, md5, options, request, sockopt_tcp, fastopen_client) ---
        "mss_cache", "mss_clamp", "advmss", "user_mss", "pmtu_cookie", "tcp_header_len", "gso_max_size", "gso_max_segs", "mtu_probe",
        # --- packets in flight (ack, sack, retransmit, handshake, cwnd, rack, rate, undo, xmit, cong, fastopen_client) ---
        "packets_out", "sacked_out", "lost_out", "retrans_out", "highest_sack", "retransmit_hint", "lost_skb_hint", "recv_sack_cache",
        "reordering", "reord_seen", "delivered", "delivered_ce", "lost", "app_limited", "is_cwnd_limited",
        # --- congestion (cong, mtu_probe, retransmit, handshake, listen, request, ack, cwnd, frto, prr, sack, sendmsg, undo, xmit, fastopen) ---
        "ca", "ca_state", "snd_cwnd", "snd_cwnd_cnt", "snd_cwnd_clamp", "snd_ssthresh", "snd_cwnd_used", "cwnd_stamp", "max_packets_out", "cwnd_usage_seq",
        "prior_cwnd", "prior_ssthresh", "prr_delivered", "prr_out", "high_seq", "undo_marker", "undo_retrans", "retrans_stamp",
        # --- RTT and RTO (rtt, handshake, icmp_err, listen, sockopt_tcp, ack, probe0, timers, undo, xmit, fastopen) ---
        "srtt_us", "mdev_us", "mdev_max_us", "rttvar_us", "rtt_seq", "rto_ns", "rto_min_us", "rto_max_ns", "rtt_min", "min_rtt_us", "backoff", "retransmits",
        # --- RACK, TLP, F-RTO (rack, tlp, frto, request, ack, prr, retransmit, sack, timers, undo) ---
        "rack_mstamp_us", "rack_rtt_us", "rack_end_seq", "rack_advanced", "rack_reo_wnd_steps", "rack_reo_wnd_persist", "rack_dsack_seen",
        "rack_last_delivered", "tlp_high_seq", "tlp_retrans", "frto", "sack_reneged", "total_rto", "total_rto_recoveries", "total_rto_time_ms", "rto_stamp",
        # --- delivery rate (rate) ---
        "first_tx_us", "delivered_us", "rate_delivered", "rate_interval_us", "rate_app_limited",
        # --- pacing (pacing, sockopt_tcp, handshake, listen, sockopt_socket, timers, xmit, cong, request) ---
        "pacing_rate", "max_pacing_rate", "pacing_status", "pacing_shift", "tx_delay_ns", "wstamp_ns", "lsndtime_ns", "pacing_deadline",
        # --- ECN (ecn, request, retransmit, undo) ---
        "ecn_flags", "received_ecn",
        # --- receive sequence (established, reassembly, recv, rwnd, urgent, handshake, request, fastopen) ---
        "irs", "rcv_nxt", "copied_seq", "rcv_wup", "rcv_wnd", "rcv_wscale", "urg_data", "urg_seq", "oob_byte",
        # --- memory queued to be sent, and the pages both ways share (sendmsg, ack, memory, tso, established, reassembly) ---
        "wmem_queued", "forward_alloc",
        # --- receive queues and memory (established, reassembly, recv, memory, rwnd, drs, sockopt_socket, listen) ---
        "receive_queue", "ofo_queue", "rcvbuf", "rcvbuf_locked", "rmem_alloc", "rcvlowat", "rx_opt_oobinline", "peek_off",
        # --- header prediction, time of the last event (input, established, reassembly, memory, rwnd, urgent, delack, sack_send, handshake, ack) ---
        "pred", "mstamp_ns",
        # --- receive window (rwnd, drs, established, memory, handshake, request, sockopt_tcp) ---
        "window_due", "window_clamp", "rcv_ssthresh", "rcv_mss", "rcv_small_len", "scaling_ratio", "rcvq_space", "rcvq_seq", "rcvq_time_us",
        "rcv_rtt_us", "rcv_rtt_seq", "rcv_rtt_time_us", "rcv_rtt_last_tsecr",
        # --- SACK we send (sack_send, reassembly, established, delack, timers) ---
        "selective_acks", "duplicate_sack", "compressed_ack", "compressed_ack_deadline", "compressed_ack_rcv_nxt", "dup_ack_counter",
        # --- delayed ACK (delack, input, established, reassembly, rwnd, memory, ecn, handshake, request, timers, sockopt_tcp, listen) ---
        "ack_pending", "quick", "pingpong", "ato_jiffies", "lrcvtime_ns", "lrcv_flowlabel", "delack_deadline", "delack_timeout", "delack_max_ns",
        # --- options negotiated (handshake, api, request, timewait, established, input, paws) ---
        "tstamp_ok", "sack_ok", "wscale_ok", "ts_recent", "ts_recent_stamp_s", "ts_offset", "rcv_tsval", "rcv_tsecr",
        # --- timers (timers, close, keepalive, listen, sockopt_tcp, ack, established, probe0, tlp) ---
        "pending", "rtx_deadline", "rtx_armed_ns", "rtx_delay_ns", "keep_deadline", "keep_expires_ns", "keep_kind", "heap_when", "probes_out", "probes_tstamp",
        "keepopen", "keepalive_time", "keepalive_intvl", "keepalive_probes", "user_timeout_ms", "rcv_tstamp_ns", "syn_retries",
        "lsnd_ack_ns", "linear_timeouts",
        # --- closing (close, listen, sockopt_socket, sockopt_tcp, challenge) ---
        "linger", "linger2", "last_oow_ack_ns",
        # --- what the program asked of the socket (sockopt_socket, api, ip_families, listen, sockopt_ip, sockopt_kinds) ---
        "ss_state", "optmem", "recverr", "min_ttl",
        # --- listening (listen, api, request, sockopt_tcp, syncookies) ---
        "backlog", "syn_queue", "accept_queue", "defer_accept", "last_overflow_ns",
        # --- totals (info, request, ack, chrono, established, input, reassembly, retransmit, sack, timers, xmit, fastopen) ---
        "segs_in", "segs_out", "data_segs_in", "data_segs_out", "bytes_sent", "bytes_acked", "bytes_received", "bytes_retrans", "total_retrans",
        "dsack_dups", "rcv_ooopack", "timeout_rehash", "chrono_kind", "chrono_start_ns", "chrono_us",
        # --- why (gates, close, net) ---
        "gate", "gate_since_ns", "gate_seq", "gate_below", "gate_sums", "trace",
        # --- rare features, made on demand (cong, fastopen, icmp_err, listen, md5, request, rx_timestamps, sockopt_ip, sockopt_tcp, timestamping, zerocopy) ---
        "fastopen", "md5", "error_queue", "saved_syn", "cong_name", "zerocopy_id", "tstamp_flags", "tstamp_base", "rx_stamps",
    )  # fmt: skip

    def __init__(self, host: Host, family: int) -> None:
        sysctl = host.sysctl
        self.host = host
        self.sysctl = sysctl
        self.mib = host.mib
        self.family = family
        self.saddr = b""
        self.daddr = b""
        self.sport = 0
        self.dport = 0
        self.state = CLOSE
        self.user: Any = None  # the socket object that is told of readiness
        self.parent: Sock | None = None
        self.bound_addr = b""  # b"" = wildcard
        self.bound_port = 0
        self.bound_dev_if = 0  # SO_BINDTODEVICE: index of the one device it uses; 0 = any
        self.reuseaddr = False
        self.reuseport = False
        self.v6only = False
        self.sk_err = 0
        self.sk_err_soft = 0
        self.shutdown = 0
        self.sock_flags = 0
        self.demux_key: Any = None
        self.hashed = False

        self.dst: Any = None
        self.pseudo_base = 0  # sum of the pseudo header without the length, not folded
        self.tos = 0
        self.ttl = 64
        self.ip_id = 0
        self.txhash = 0
        self.flowlabel = 0
        self.pmtu_disc = 1  # IP_PMTUDISC_WANT
        self.priority = 0
        self.mark = 0

        self.iss = 0
        self.snd_una = 0
        self.snd_nxt = 0
        self.write_seq = 0
        self.pushed_seq = 0
        self.snd_sml = 0
        self.snd_up = 0
        self.snd_wnd = 0  # bytes, already scaled
        self.max_window = 0
        self.snd_wl1 = 0
        self.snd_wscale = 0

        self.write_queue = SkbList()
        self.rtx_queue = SkbList()
        self.tsorted = TimeList()
        self.page_frag = host.page_frag
        self.sndbuf = sysctl.tcp_wmem[1]
        self.wmem_queued = 0  # truesize of unsent and unacknowledged skbs
        self.wmem_alloc = 1  # truesize in the host's queues, plus the socket's own reference
        self.sndbuf_locked = False
        self.nospace = False  # SOCK_NOSPACE: a writer waits for room
        self.notsent_lowat = 0  # 0: the sysctl
        self.nonagle = 0
        self.tsq_throttled = False
        self.slab: Any = None
        self.slab_used = 0
        self.size_goal_segs = 0

        self.mss_cache = 536
        self.mss_clamp = 536
        self.advmss = 0
        self.user_mss = 0
        self.pmtu_cookie = 0
        self.tcp_header_len = 20
        self.gso_max_size = 65536 - (sysctl.max_tcp_header + 1)
        self.gso_max_segs = 65535
        self.mtu_probe: Any = None

        self.packets_out = 0
        self.sacked_out = 0
        self.lost_out = 0
        self.retrans_out = 0
        self.highest_sack: Skb | None = None
        self.retransmit_hint: Skb | None = None
        self.lost_skb_hint: Skb | None = None
        self.recv_sack_cache: list[tuple[int, int]] | None = None
        self.reordering = sysctl.tcp_reordering
        self.reord_seen = 0
        self.delivered = 0
        self.delivered_ce = 0
        self.lost = 0
        self.app_limited = -1  # limited by the program until the first ACK shows otherwise
        self.is_cwnd_limited = False

        self.ca: CongestionControl = None  # type: ignore[assignment]  # set by cong.assign before any use
        self.ca_state = CA_OPEN
        self.snd_cwnd = 10
        self.snd_cwnd_cnt = 0
        self.snd_cwnd_clamp = 0xFFFFFFFF
        self.snd_ssthresh = INFINITE_SSTHRESH
        self.snd_cwnd_used = 0
        self.cwnd_stamp = 0
        self.max_packets_out = 0
        self.cwnd_usage_seq = 0
        self.prior_cwnd = 0
        self.prior_ssthresh = 0
        self.prr_delivered = 0
        self.prr_out = 0
        self.high_seq = 0
        self.undo_marker = 0
        self.undo_retrans = -1
        self.retrans_stamp = 0

        self.srtt_us = 0  # times 8
        self.mdev_us = 1_000_000  # times 4
        self.mdev_max_us = 0
        self.rttvar_us = 0
        self.rtt_seq = 0
        self.rto_ns = 1_000_000_000
        self.rto_min_us = -(-sysctl.tcp_rto_min_us * 1000 // sysctl.tick_ns) * sysctl.tick_ns // 1000  # whole ticks, as the kernel keeps it
        self.rto_max_ns = sysctl.tcp_rto_max_ms * 1_000_000
        self.rtt_min: Any = None  # windowed minimum; of the first sample its time only
        self.min_rtt_us = 0xFFFFFFFF  # its value; all ones before the first sample
        self.backoff = 0
        self.retransmits = 0

        self.rack_mstamp_us = 0
        self.rack_rtt_us = 0
        self.rack_end_seq = 0
        self.rack_advanced = False
        self.rack_reo_wnd_steps = 1
        self.rack_reo_wnd_persist = 0
        self.rack_dsack_seen = False
        self.rack_last_delivered = 0
        self.tlp_high_seq = 0
        self.tlp_retrans = False
        self.frto = False
        self.sack_reneged = False  # the peer took SACKs back: no delivery rates until this Loss is over
        self.total_rto = 0
        self.total_rto_recoveries = 0
        self.total_rto_time_ms = 0
        self.rto_stamp = 0

        self.first_tx_us = 0
        self.delivered_us = 0
        self.rate_delivered = 0
        self.rate_interval_us = 0
        self.rate_app_limited = True

        self.pacing_rate = 0xFFFFFFFFFFFFFFFF  # bytes/s; all ones = no limit
        self.max_pacing_rate = 0xFFFFFFFFFFFFFFFF
        self.pacing_status = 0  # 0 none, 1 needed (internal timer), 2 fq
        self.pacing_shift = 10
        self.tx_delay_ns = 0  # TCP_TX_DELAY
        self.wstamp_ns = 0
        self.lsndtime_ns = 0
        self.pacing_deadline = NEVER

        self.ecn_flags = 0
        self.received_ecn: list[int] | None = None  # CE packets; bytes with ECT(1), ECT(0), CE: made with the first codepoint

        self.irs = 0
        self.rcv_nxt = 0
        self.copied_seq = 0
        self.rcv_wup = 0
        self.rcv_wnd = 0
        self.rcv_wscale = 0
        self.urg_data = 0
        self.urg_seq = 0
        self.oob_byte = 0

        self.receive_queue: Any = None
        self.ofo_queue: Any = None
        self.rcvbuf = sysctl.tcp_rmem[1]
        self.rcvbuf_locked = False
        self.rmem_alloc = 0
        self.forward_alloc = 0  # memory taken from the host in pages and not yet charged to an skb
        self.rcvlowat = 1
        self.rx_opt_oobinline = False
        self.peek_off = -1  # SO_PEEK_OFF; -1: MSG_PEEK starts at the first unread byte
        self.pred = False  # header prediction on (pred_flags != 0)
        self.mstamp_ns = 0  # when the last segment came in or an ACK went out (tcp_mstamp)

        self.window_due = -1  # the window the ACK decision has just worked out, for the header that follows
        self.window_clamp = 0
        self.rcv_ssthresh = 0
        self.rcv_mss = 0
        self.rcv_small_len = 0
        self.scaling_ratio = sysctl.scaling_ratio_default
        self.rcvq_space = 0
        self.rcvq_seq = 0
        self.rcvq_time_us = 0
        self.rcv_rtt_us = 0  # times 8
        self.rcv_rtt_seq = 0
        self.rcv_rtt_time_us = 0
        self.rcv_rtt_last_tsecr = 0

        self.selective_acks: Any = ()  # a list once there is a block
        self.duplicate_sack: tuple[int, int] | None = None
        self.compressed_ack = 0
        self.compressed_ack_deadline = NEVER
        self.compressed_ack_rcv_nxt = 0
        self.dup_ack_counter = 0

        self.ack_pending = 0
        self.quick = 0
        self.pingpong = 0
        self.ato_jiffies = 0
        self.lrcvtime_ns = 0
        self.lrcv_flowlabel = 0  # IPv6: label of the last data segment
        self.delack_deadline = NEVER
        self.delack_timeout = 0  # the same in jiffies, before the timer wheel rounds
        self.delack_max_ns = 200_000_000

        self.tstamp_ok = False
        self.sack_ok = False
        self.wscale_ok = False
        self.ts_recent = 0
        self.ts_recent_stamp_s = 0
        self.ts_offset = 0
        self.rcv_tsval = 0
        self.rcv_tsecr = 0

        self.pending = 0
        self.rtx_deadline = NEVER  # lower bound until the heap comes up: see timers.arm_rtx
        self.rtx_armed_ns = -1
        self.rtx_delay_ns = 0
        self.keep_deadline = NEVER
        self.keep_expires_ns = 0  # the same before the timer wheel rounds, for those who look
        self.keep_kind = 0
        self.heap_when = NEVER
        self.probes_out = 0
        self.probes_tstamp = 0
        self.keepopen = False
        self.keepalive_time = 0  # 0: the sysctl, else seconds
        self.keepalive_intvl = 0
        self.keepalive_probes = 0
        self.user_timeout_ms = 0
        self.rcv_tstamp_ns = 0
        self.syn_retries = 0
        self.lsnd_ack_ns = 0
        self.linear_timeouts = False

        self.linger: int | None = None  # SO_LINGER seconds when on
        self.linger2 = 0
        self.last_oow_ack_ns = 0

        self.ss_state = 0  # api.SS_*: what connect() has come to
        self.optmem: dict[tuple[int, int], int] | None = None  # stored values of rare options, (level, name)
        self.recverr = False
        self.min_ttl = 0  # IP_MINTTL, IPV6_MINHOPCOUNT: segments below are dropped

        self.backlog = 0
        self.syn_queue: Any = None
        self.accept_queue: Any = None
        self.defer_accept = 0
        self.last_overflow_ns = 0

        self.segs_in = 0
        self.segs_out = 0
        self.data_segs_in = 0
        self.data_segs_out = 0
        self.bytes_sent = 0
        self.bytes_acked = 0
        self.bytes_received = 0
        self.bytes_retrans = 0
        self.total_retrans = 0
        self.dsack_dups = 0
        self.rcv_ooopack = 0
        self.timeout_rehash = 0
        self.chrono_kind = 0
        self.chrono_start_ns = 0
        self.chrono_us: list[int] | None = None

        self.gate = 0  # gates.APP
        self.gate_since_ns = -1  # -1: not open (any more)
        self.gate_seq = 0  # payload below it is charged to a gate
        self.gate_below = 0  # what is shut behind a hold
        self.gate_sums: list[int] | None = None  # ns of each gate, then bytes of each, from the first change on
        self.trace: Tracer | None = None  # who is told of decisions

        self.fastopen: Any = None
        self.md5: Any = None  # keys of TCP_MD5SIG, from the first one on
        self.error_queue: Any = None
        self.saved_syn: bytes | None = None
        self.tstamp_flags = 0  # SO_TIMESTAMPING
        self.rx_stamps: Any = None  # when what is to be read had come (rx_timestamps), while the program wants to know
        self.tstamp_base = 0
        self.zerocopy_id = 0  # number of the next call with MSG_ZEROCOPY
        self.cong_name: str | None = None

    def on_timer(self) -> None:
        """The heap entry of this socket came up (see `timers.fire`)."""
        from . import timers

        timers.fire(self)

    def receive(self, seg: Segment) -> None:
        """One segment, or super-segment, that the demux table found to be for this socket.

        The host replaces this method by `input.receive` itself, which spares the hot path a call."""
        from . import input as room

        room.receive(self, seg)
