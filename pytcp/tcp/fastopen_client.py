"""The client's side of TCP Fast Open (RFC 7413 §4.1.3): asking for a cookie, data in the SYN, and what becomes of it.

sendto(MSG_FASTOPEN), or a connect() put off by TCP_FASTOPEN_CONNECT until the first write, sends its first bytes in the SYN when
a cookie for the path is remembered, and asks for one otherwise. The bytes are an skb of their own behind the SYN in the
retransmit queue; a SYN-ACK that leaves them out has them sent again at once, without a congestion response, since the peer
dropped them on purpose. A SYN that is repeated carries neither. Boxes that swallow such SYNs make the host stop for a
while (tcp_fastopen_blackhole_timeout_sec, doubling up to 64 times).

Linux 3.6; TCP_FASTOPEN_CONNECT 4.11, the pause 4.12. Counters: TCPFastOpenActive, TCPFastOpenActiveFail, TCPFastOpenBlackhole.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from . import fastopen, handshake, memory, mtu, rack, retransmit, xmit
from .const import ACK, CLOSE, NSEC_PER_SEC, PSH, SYN_SENT
from .skb import Skb

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .fastopen import FastOpen
    from .skb import Buffer
    from .sock import Sock

OPTION_ROOM = 40  # left free beside the data of a SYN
MAX_SHIFT = 6  # of the pause after a black hole

# tcpi_fastopen_client_fail
COOKIE_UNAVAILABLE = 1
DATA_NOT_ACKED = 2
SYN_RETRANSMITTED = 3


def _cookie_check(sk: Sock, state: FastOpen) -> bool:
    """Whether data may go with the SYN; sets the option it is to carry."""
    known = sk.host.fastopen.cache.get((sk.saddr, sk.daddr))
    state.cookie, state.exp = b"", False
    if known is not None and known.mss:
        sk.mss_clamp = known.mss
        state.cookie, state.exp = known.cookie, known.exp
        if not known.cookie and known.try_exp == 1:
            state.exp = True
    if _paused(sk, state):
        state.cookie = None
        return False
    if sk.sysctl.tcp_fastopen & fastopen.CLIENT_NO_COOKIE or state.no_cookie:
        state.cookie = None
        return True
    if state.cookie:
        return True
    state.client_fail = COOKIE_UNAVAILABLE
    return False


def defer_connect(sk: Sock) -> bool:
    """connect() under TCP_FASTOPEN_CONNECT: whether the SYN waits for data; if not it asks for a cookie."""
    state: FastOpen = sk.fastopen
    if not state.connect or state.wanted:
        return False
    clamp = sk.mss_clamp
    if _cookie_check(sk, state):
        sk.mss_clamp = clamp
        state.deferred = True
        return True
    sk.mss_clamp = clamp
    state.wanted = True
    return False


def begin(sk: Sock, data: Buffer, waits: bool = False) -> FastOpen:
    """The next SYN is to carry what it can of `data`, or a request. Raises OSError EOPNOTSUPP where the host does not want that.

    waits: the caller waits for the connection, to write what the SYN does not take: the handshake's last ACK rides on that."""
    if not sk.sysctl.tcp_fastopen & fastopen.CLIENT:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")
    state = fastopen.of(sk)
    state.data = data
    state.wanted = True
    state.copied = 0
    state.write_pending = waits
    return state


def end(state: FastOpen) -> int:
    """The call is over; returns how much of its data the SYN took."""
    state.data = None
    state.wanted = state.deferred = False
    return state.copied


def send_deferred(sk: Sock, data: Buffer, waits: bool = False) -> int:
    """The first write after a connect() that was put off. Returns what the SYN took; raises EINPROGRESS when it took nothing."""
    state = begin(sk, data, waits)
    state.deferred = False
    try:
        handshake.connect(sk)
    finally:
        copied = end(state)
    if not copied:
        raise OSError(errno.EINPROGRESS, "Operation now in progress")
    return copied


def send_syn(sk: Sock, syn: Skb) -> int:
    """Transmit the SYN at the head of the queue with the option and data asked for. Returns the host's verdict."""
    state: FastOpen = sk.fastopen
    # until a better value is remembered
    sk.mss_clamp = sk.advmss
    try:
        if not _cookie_check(sk, state):
            if state.cookie:
                state.cookie = b""
            return xmit.transmit_skb(sk, syn)
        return _send_with_data(sk, syn, state)
    finally:
        # a SYN that is repeated has no option
        state.cookie = None


def _send_with_data(sk: Sock, syn: Skb, state: FastOpen) -> int:
    view = memoryview(state.data if state.data is not None else b"").cast("B")
    sk.mss_clamp = handshake.clamp_mss(sk, sk.mss_clamp)
    mtu.sync_mss(sk, sk.pmtu_cookie)
    size = min(len(view), mtu.mtu_to_mss(sk, sk.pmtu_cookie) + sk.tcp_header_len - handshake.TCP_HEADER - OPTION_ROOM)
    if size <= 0:
        return xmit.transmit_skb(sk, syn)
    skb = Skb(syn.seq, syn.flags, sk.sysctl.skb_base_truesize)
    skb.frags.append(bytes(view[:size]))
    skb.length = size
    skb.truesize += size
    skb.end_seq = syn.end_seq + size
    skb.pcount = 1
    sk.write_seq = skb.end_seq
    memory.charge_send(sk, skb.truesize)
    sk.packets_out += 1
    error = xmit.transmit_skb(sk, skb)
    state.copied = size
    if size == len(view):
        state.write_pending = False
    # what stays in the queue is the data without the SYN
    syn.tx_ns = skb.tx_ns
    skb.seq += 1
    skb.flags = ACK | PSH
    if error:
        sk.packets_out -= 1
        sk.write_queue.append(skb)
        return error
    state.syn_data = True
    sk.rtx_queue.append(skb)
    sk.mib.TCPOrigDataSent += 1
    return 0


def rcv_synack(sk: Sock, seg: Segment) -> bool:
    """What a SYN-ACK, already processed by tcp_ack, says about our SYN's option and data. True: data was sent again."""
    state: FastOpen = sk.fastopen
    if not (state.syn_option or state.syn_data):
        return False
    left = sk.rtx_queue.head if state.syn_data else None
    cookie = seg.options.tfo_cookie if state.syn_option else None
    try_exp = 0
    if state.syn_option and not sk.total_retrans and cookie is None and not state.syn_data:
        # a request that was not understood: try the other option next time
        try_exp = 2 if state.syn_exp else 1
    _remember(sk, seg, cookie, try_exp)
    if left is not None:
        state.client_fail = SYN_RETRANSMITTED if sk.total_retrans else DATA_NOT_ACKED
        skb: Skb | None = left
        while skb is not None:
            rack.mark_skb_lost(sk, skb, "fastopen")
            skb = skb.next
        retransmit.non_congestion_loss(sk)
        sk.mib.TCPFastOpenActiveFail += 1
        return True
    state.syn_data_acked = state.syn_data
    if state.syn_data:
        sk.mib.TCPFastOpenActive += 1
        if sk.delivered > 1:
            # SYN and data were one packet
            sk.delivered -= 1
    fastopen.take_data(sk, seg)
    return False


def _remember(sk: Sock, seg: Segment, cookie: bytes | None, try_exp: int) -> None:
    known = sk.host.fastopen.entry(sk.saddr, sk.daddr)
    known.mss = seg.options.mss or sk.mss_clamp
    if cookie:
        known.cookie = cookie
        known.exp = seg.options.tfo_exp
    elif try_exp > known.try_exp and not known.cookie and not known.exp:
        known.try_exp = try_exp


# ---------------------------------------------------------------- black holes


def _paused(sk: Sock, state: FastOpen) -> bool:
    memory = sk.host.fastopen
    pause_s = sk.sysctl.tcp_fastopen_blackhole_timeout_sec
    if not pause_s or not memory.disable_times:
        return False
    if sk.host.now_ns < memory.disable_ns + (pause_s << min(memory.disable_times - 1, MAX_SHIFT)) * NSEC_PER_SEC:
        return True
    state.check_pause = True
    return False


def _pause(sk: Sock) -> None:
    if not sk.sysctl.tcp_fastopen_blackhole_timeout_sec:
        return
    memory = sk.host.fastopen
    memory.disable_times += 1
    memory.disable_ns = sk.host.now_ns
    sk.mib.TCPFastOpenBlackhole += 1


def detect_blackhole(sk: Sock, expired: bool) -> None:
    """An RTO of a connection that began with Fast Open: the third in a row, or the last, means that something swallows it."""
    state: FastOpen = sk.fastopen
    if not (state.syn_option or state.syn_data or state.syn_data_acked):
        return
    if sk.retransmits == 2 or (sk.retransmits < 2 and expired):
        _pause(sk)
        sk.mib.TCPFastOpenActiveFail += 1


def ended(sk: Sock) -> None:
    """The connection is over: data that came after a pause shows that Fast Open works again."""
    state: FastOpen = sk.fastopen
    if state.check_pause and state.syn_option and sk.data_segs_in:
        sk.host.fastopen.disable_times = 0


def set_connect(sk: Sock, value: int) -> None:
    """TCP_FASTOPEN_CONNECT. Raises OSError EINVAL (value, state), EOPNOTSUPP."""
    if value not in (0, 1):
        raise OSError(errno.EINVAL, "Invalid argument")
    if not sk.sysctl.tcp_fastopen & fastopen.CLIENT:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")
    if sk.state != CLOSE:
        raise OSError(errno.EINVAL, "Invalid argument")
    fastopen.of(sk).connect = value


def is_deferred(sk: Sock) -> bool:
    """Whether connect() has returned but the SYN waits for the first write."""
    return sk.state == SYN_SENT and sk.fastopen is not None and sk.fastopen.deferred
