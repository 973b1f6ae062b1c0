"""write_xmit: which queued super-segments leave now, and how each becomes a segment on the wire.

The order of tests is Linux's (linux-tcp §3.1): pacing, congestion window, growing, receive window,
Nagle or TSO deferral, split point, small queues, transmit. One header is built per super-segment; its
checksum field carries the pseudo-header sum, which the device (or csrc) completes.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from . import (
    cwnd,
    delack,
    ecn,
    fastopen_client,
    gates,
    md5,
    memory,
    mtu,
    mtu_probe,
    options,
    pacing,
    push,
    rate,
    retransmit,
    rwnd,
    sendmsg,
    timers,
    timestamping,
    tlp,
    tso,
    tsq,
)
from . import trace as tracing
from .chrono import BUSY, RWND_LIMITED
from .chrono import start as chrono_start
from .chrono import stop as chrono_stop
from .const import (
    ACK,
    CA_CWR,
    CA_EVENT_TX_START,
    CA_RECOVERY,
    CLOSE,
    ECE,
    FIN,
    NAGLE_CORK,
    NAGLE_OFF,
    NAGLE_PUSH,
    PENDING_LOSS_PROBE,
    PSH,
    SYN,
    URG,
)
from .gates import APP, CORK, CWND, HOST_QUEUE, NAGLE, PACING, RWND, SNDBUF, TSO_DEFER, TSQ
from .skb import MAX_SKB_FRAGS, Skb

if TYPE_CHECKING:
    from .sock import Sock

_HEADER = Struct("!HHIIHHHH").pack
_HEADER_TS = Struct("!HHIIHHHHIII").pack
_NOP_NOP_TS = 0x0101080A
M32 = 0xFFFFFFFF


def established_header(sk: Sock, flags: int, seq: int, length: int, urg: int = 0) -> bytes:
    """TCP header with the options every established segment carries, for `length` payload bytes. Its time stamp is `wstamp_ns`."""
    if sk.selective_acks or sk.duplicate_sack is not None:
        opts = options.established_options(sk)
        return _build(sk, flags, seq, rwnd.select_window(sk), opts, length, urg)
    if not sk.tstamp_ok:
        return _build(sk, flags, seq, rwnd.select_window(sk), b"", length, urg)
    return _HEADER_TS(
        sk.sport, sk.dport, seq & M32, sk.rcv_nxt & M32 if flags & ACK else 0, 0x8000 | flags, rwnd.select_window(sk),
        (sk.pseudo_base + 31 + length) % 65535 + 1, urg,  # folded, as in _build
        _NOP_NOP_TS, (sk.wstamp_ns // 1_000_000 + sk.ts_offset) & M32, sk.ts_recent,  # paced: ahead of the clock
    )  # fmt: skip


def _build(sk: Sock, flags: int, seq: int, window: int, opts: bytes, length: int, urg: int) -> bytes:
    size = 20 + len(opts)
    # a sum of 16-bit words folded to one is itself modulo 65535, where 65535 stands for 0
    total = (sk.pseudo_base + size + length - 1) % 65535 + 1
    ack = sk.rcv_nxt & M32 if flags & ACK else 0
    return _HEADER(sk.sport, sk.dport, seq & M32, ack, size << 10 | flags, window, total, urg) + opts


def transmit_skb(sk: Sock, skb: Skb) -> int:
    """Put one super-segment of the send queues on the wire; 0, or the host's negative errno.

    Stamps the departure time, charges the socket until TX completion and counts."""
    host = sk.host
    prior_wstamp = sk.wstamp_ns
    now = host.now_ns
    if now > prior_wstamp:
        sk.wstamp_ns = now
    skb.tx_ns = sk.wstamp_ns
    length = skb.length
    flags = skb.flags
    pcount = skb.pcount
    urg = 0
    ip_ecn = 0
    if flags & SYN:
        opts = options.syn_options(sk)
        window = sk.rcv_wnd
        th = _build(sk, flags, skb.seq, window if window < 65535 else 65535, opts, length, 0)
    else:
        if pcount > 1:
            flags |= PSH
        if sk.snd_up > skb.seq:
            urg = urgent_pointer(sk, skb.seq)
            if urg:
                flags |= URG
        if sk.ecn_flags:
            flags, ip_ecn = ecn.send(sk, skb, flags)
        th = established_header(sk, flags, skb.seq, length, urg)
    if sk.md5 is not None:
        th = md5.signed(sk, th, skb.frags)
    truesize = skb.truesize
    sk.wmem_alloc += truesize
    skb.in_host += 1
    throttled = sk.tsq_throttled
    if throttled:
        # a host that completes inside the call must not start another round of sending in the middle of ours
        sk.tsq_throttled = False
    error = host.transmit(sk, th, skb.frags, length, skb, skb.gso_size, truesize, ip_ecn)
    # books the host does not look at, whatever its answer: the frame need not wait for them
    if flags & ACK:
        delack.event_ack_sent(sk, 1)
    if length:
        if not sk.packets_out or sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out == 0:
            sk.ca.cwnd_event(sk, CA_EVENT_TX_START)
        if sk.pingpong < 255:
            delack.event_data_sent(sk)
        sk.lsndtime_ns = now
        sk.data_segs_out += pcount
        sk.bytes_sent += length
    sk.segs_out += pcount
    if skb.end_seq > sk.snd_nxt or skb.seq == skb.end_seq:
        sk.mib.TcpOutSegs += pcount
    if throttled or error:
        if error:
            sk.wmem_alloc -= truesize
            skb.in_host -= 1
        if throttled:
            sk.tsq_throttled = sk.wmem_alloc > 1
        if error > 0:
            # local congestion: the host dropped it, as if the network had
            retransmit.enter_cwr(sk)
        if error:
            return error
    if sk.pacing_status:
        pacing.after_send(sk, skb, prior_wstamp)
    if skb.stamp is not None:
        timestamping.sent(sk, skb, th, ip_ecn)
    ts = sk.tsorted
    if ts.tail is not skb:
        if skb.tprev is not None or ts.head is skb:
            ts.remove(skb)
        ts.append(skb)
    rate.skb_sent(sk, skb)
    return 0


def urgent_pointer(sk: Sock, seq: int) -> int:
    """URG pointer of a segment at `seq` while urgent data is ahead of it; 0: it is too far away to be named."""
    ahead = sk.snd_up - seq
    if ahead <= 0xFFFF:
        return ahead
    return 0xFFFF if seq + 0xFFFF > sk.snd_nxt else 0


def _send_bare(sk: Sock, flags: int, seq: int) -> int:
    urg = 0
    if sk.snd_up > sk.snd_una and sk.snd_up > seq:
        urg = urgent_pointer(sk, seq)
        if urg:
            flags |= URG
    if sk.ecn_flags & ecn.DEMAND_CWR:
        flags |= ECE
    now = sk.host.now_ns
    if now > sk.wstamp_ns:
        sk.wstamp_ns = now
    th = established_header(sk, flags, seq, 0, urg)
    if sk.md5 is not None:
        th = md5.signed(sk, th, ())
    if flags & ACK:
        delack.event_ack_sent(sk, 1)
    sk.segs_out += 1
    sk.mib.TcpOutSegs += 1
    # a pure ACK is charged 2 so that it hardly moves sk_wmem_alloc
    sk.wmem_alloc += 2
    error = sk.host.transmit(sk, th, (), 0, None, 0, 2, 0)
    if error:
        sk.wmem_alloc -= 2
    return error


def acceptable_seq(sk: Sock) -> int:
    """Sequence number for a dataless segment: snd_nxt unless the window shrank below it."""
    wnd_end = sk.snd_una + sk.snd_wnd
    if sk.snd_nxt <= wnd_end or (sk.wscale_ok and sk.snd_nxt - wnd_end < 1 << sk.rcv_wscale):
        return sk.snd_nxt
    return wnd_end


def send_ack(sk: Sock) -> None:
    """Send a pure ACK now."""
    if sk.state != CLOSE:
        _send_bare(sk, ACK, acceptable_seq(sk))


def send_control(sk: Sock, flags: int, seq: int) -> int:
    """Send a dataless segment with established options, queued nowhere (keepalive, RST, probe).

    Returns 0 or the host's refusal."""
    return _send_bare(sk, flags, seq)


def new_data_sent(sk: Sock, skb: Skb) -> None:
    """`skb` has just left for the first time: move it to the retransmit queue."""
    sk.snd_nxt = skb.end_seq
    queue = sk.write_queue
    nxt = skb.next
    queue.head = nxt
    if nxt is None:
        queue.tail = None
    else:
        nxt.prev = None
    queue.qlen -= 1
    sk.rtx_queue.append(skb)
    if sk.highest_sack is None:
        sk.highest_sack = skb
    sk.packets_out += skb.pcount
    sk.mib.TCPOrigDataSent += skb.pcount
    if sk.nospace:
        sendmsg.check_space(sk)


def grow(sk: Sock, skb: Skb, want: int) -> None:
    """Pull bytes from the next skb so that a burst reaches its quota (6.10, 8ee602c63520)."""
    nxt = skb.next
    if nxt is None or skb.eor or skb.flags & FIN or skb.is_zerocopy() or nxt.is_zerocopy():
        return
    take = want - skb.length
    if take >= nxt.length:
        take = nxt.length
        if nxt.flags & SYN or skb.nr_frags + nxt.nr_frags > MAX_SKB_FRAGS:
            return
        skb.nr_frags += nxt.nr_frags
        if sk.page_frag.skb is nxt:
            sk.page_frag.skb = skb
        skb.frags.extend(nxt.frags)
        skb.flags |= nxt.flags & (FIN | PSH)
        skb.eor = nxt.eor
        skb.end_seq = nxt.end_seq
        memory.uncharge_send(sk, nxt.truesize - take)
        sk.write_queue.remove(nxt)
        if nxt.stamp is not None:
            skb.stamp = nxt.stamp
        if nxt.slabs:
            skb.share_slabs(nxt)
            nxt.free_slabs()
    elif take > 0:
        first, nxt.frags = tso.split_frags(nxt.frags, take)
        skb.frags.extend(first)
        if nxt.slabs:
            skb.share_slabs(nxt)
            nxt.trim_slabs()
        nxt.seq += take
        nxt.length -= take
        nxt.truesize -= take
        skb.end_seq += take
    skb.length += take
    skb.truesize += take


def write_xmit(sk: Sock, mss: int, nonagle: int, push_one: int) -> bool:
    """Send what may be sent. `push_one`: 0 drain, 1 one skb, 2 a loss probe (may ignore cwnd).

    Returns True when nothing is in flight and data waits that could not be sent: the caller arms
    the zero-window probe timer."""
    queue = sk.write_queue
    trace = sk.trace
    sent = 0
    rwnd_limited = False
    cwnd_limited = False
    held = 0
    max_segs = 0  # not yet worked out: a small segment alone does not ask
    had_packets = sk.packets_out
    if sk.mtu_probe is not None and not push_one:
        outcome = mtu_probe.attempt(sk, mss)
        if outcome > mtu_probe.SENT:
            gate = CWND if outcome == mtu_probe.WAIT_CWND else RWND
            if gate != sk.gate:
                gates.switch(sk, gate)
            if trace is not None:
                tracing.stop(trace, sk, gate, 0)
            return False
        sent = outcome
    in_flight = sk.packets_out
    if in_flight:
        in_flight += sk.retrans_out - sk.sacked_out - sk.lost_out
    while True:
        skb = queue.head
        if skb is None:
            gate = SNDBUF if sk.nospace else APP
            break
        if sk.pacing_status and pacing.check(sk):
            gate = PACING
            break
        quota = sk.snd_cwnd - in_flight
        why = "cwnd"
        if quota <= 0:
            if push_one != 2:
                gate = CWND
                break
            quota = 1
            why = "tlp"
        length = skb.length
        if length > mss or skb.next is not None or trace is not None:
            # (a small segment alone needs no more than that one packet may leave)
            sysctl = sk.sysctl
            if sysctl.half_cwnd_cap:
                half = sk.snd_cwnd >> 1
                if quota > half > 0:
                    quota = half
                    why = "cwnd/2"
            if not max_segs:
                max_segs = tso.tso_segs(sk, mss)
            if 0 < max_segs < quota:
                quota = max_segs
                why = "autosize"
            # two segments of a jumbo MSS may be more than an IPv4 packet can hold
            if skb.next is not None and quota * mss > length and sysctl.grow_skb and quota * mss <= sk.gso_max_size:
                grow(sk, skb, quota * mss)
                length = skb.length
        if length <= mss:
            skb.pcount = 1
            skb.gso_size = 0
            end = skb.end_seq
        else:
            skb.pcount = -(-length // mss)
            skb.gso_size = mss
            end = skb.seq + mss
        window = sk.snd_una + sk.snd_wnd
        if end > window:
            rwnd_limited = True
            gate = RWND
            break
        if length <= mss:
            # (TCP_NODELAY alone lets everything go)
            if nonagle != NAGLE_OFF and not push.nagle_test(sk, skb, mss, nonagle if skb is queue.tail else NAGLE_PUSH):
                gate = CORK if nonagle & NAGLE_CORK else NAGLE
                break
        else:
            if not push_one:
                verdict = tso.should_defer(sk, skb, max_segs)
                if trace is not None:
                    tracing.tso_defer(trace, sk, skb, verdict)
                if verdict > 0:
                    gate = TSO_DEFER
                    if verdict == tso.DEFER_CWND_LIMITED:
                        cwnd_limited = True
                        gate = CWND
                    elif verdict == tso.DEFER_RWND_LIMITED:
                        rwnd_limited = True
                        gate = RWND
                    break
            # the split point: whole segments of the quota; a partial one at the end of data or window may ride along
            limit = quota * mss
            if sk.snd_up > sk.snd_una:
                limit = mss
                why = "urgent"
            else:
                window -= skb.seq
                if limit > window or skb is queue.tail:
                    needed = length if length < window else window
                    if limit > needed:
                        limit = needed
                        why = "window"
                        partial = needed % mss
                        if partial and push.nagle_blocks(sk, True, nonagle):
                            limit -= partial
                            if needed == length:
                                why = "nagle-tail"
            if sk.sysctl.sized_by_sendmsg:
                held = tsq.small_queue_check_unsplit(sk)
                if held:
                    gate = TSQ
                    break
            if length > limit:
                queue.insert_after(skb, tso.fragment(sk, skb, limit, mss))
        if sk.rtx_queue.qlen > 1:
            # (the first two are never held)
            if not sk.sysctl.sized_by_sendmsg:
                held = tsq.small_queue_check(sk, skb, 0)
            elif length <= mss:
                held = tsq.small_queue_check_unsplit(sk)
            if held:
                gate = TSQ
                break
        if not length and skb.seq == skb.end_seq:
            gate = APP
            break
        if transmit_skb(sk, skb):
            gate = HOST_QUEUE
            # (a path MTU that shrank has marked packets lost)
            in_flight = sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out
            break
        if trace is not None:
            if skb.length == length and length < quota * mss:
                # nothing cut it
                why = "queue" if skb.next is None else "write"
            elif why == "autosize" and (max_segs + 1) * mss > sk.gso_max_size:
                why = "gso_max"
            tracing.xmit(trace, sk, skb, why, quota, max_segs)
        new_data_sent(sk, skb)
        pcount = skb.pcount
        if skb.length < pcount * mss:
            sk.snd_sml = skb.end_seq
        sent += pcount
        in_flight += pcount
        if push_one:
            gate = SNDBUF if sk.nospace else APP
            if queue.head is not None:
                # what is left was not looked at: it waits for what it waited for
                gate = sk.gate
                trace = None
            break
    if gate != sk.gate:
        gates.switch(sk, gate)
    if trace is not None and queue.head is not None:
        tracing.stop(trace, sk, gate, held)
    if rwnd_limited:
        chrono_start(sk, RWND_LIMITED)
    elif sk.chrono_kind == RWND_LIMITED:
        chrono_stop(sk, RWND_LIMITED)
    if not cwnd_limited:
        cwnd_limited = in_flight >= sk.snd_cwnd
    if sent or cwnd_limited:
        cwnd.validate(sk, cwnd_limited)
    if sent:
        if sk.ca_state and (sk.ca_state == CA_RECOVERY or sk.ca_state == CA_CWR):
            sk.prr_out += sent
        # the probe timer replaces the RTO where it makes sense; else the RTO runs from here if this
        # is the first data in flight, or takes over from a probe timer that no longer applies
        if (push_one == 2 or not tlp.schedule(sk, False)) and (not had_packets or sk.pending == PENDING_LOSS_PROBE):
            timers.rearm_rto(sk)
        return False
    return not sk.packets_out and queue.head is not None


def push_pending_frames(sk: Sock, mss_now: int, nonagle: int) -> None:
    """Try to send what is queued; if nothing can move and nothing is in flight, arm the probe timer."""
    if sk.write_queue.head is None or sk.state == CLOSE:
        return
    if write_xmit(sk, mss_now, nonagle, 0):
        timers.check_probe_timer(sk)


def push_one(sk: Sock, mss_now: int) -> None:
    """Send the head of the queue, full skb during a large write."""
    write_xmit(sk, mss_now, NAGLE_PUSH, 1)


def data_snd_check(sk: Sock) -> None:
    """After an ACK: send what became possible, tell a waiting writer about new room."""
    if sk.write_queue.head is not None:
        push_pending_frames(sk, mtu.current_mss(sk), sk.nonagle)
    elif sk.gate > SNDBUF and sk.lost_out <= sk.retrans_out:
        # what waited has gone or is acknowledged
        gates.idle(sk)
    if sk.nospace:
        sendmsg.check_space(sk)


def send_syn(sk: Sock, flags: int) -> int:
    """Queue and transmit the SYN (`flags` SYN, with ACK for a simultaneous open), start its timer.

    Expects sk.iss; sets write_seq and snd_nxt behind the SYN. Returns the host's verdict."""
    skb = Skb(sk.iss, flags, sk.sysctl.skb_base_truesize)
    skb.end_seq = sk.iss + 1
    skb.pcount = 1
    sk.snd_una = sk.iss
    sk.snd_sml = sk.iss
    sk.snd_up = sk.iss
    sk.snd_nxt = sk.iss
    sk.write_seq = sk.pushed_seq = sk.iss + 1
    memory.charge_send(sk, skb.truesize)
    sk.retrans_stamp = sk.host.now_ns // 1_000_000
    sk.rtx_queue.append(skb)
    sk.packets_out = 1
    error = transmit_skb(sk, skb) if sk.fastopen is None or not sk.fastopen.wanted else fastopen_client.send_syn(sk, skb)
    sk.snd_nxt = sk.write_seq
    timers.arm_retrans(sk, sk.rto_ns)
    return error


def send_fin(sk: Sock) -> None:
    """Queue a FIN behind everything written and push."""
    skb = sk.write_queue.tail
    if skb is not None:
        skb.flags |= FIN
        skb.end_seq += 1
        sk.write_seq += 1
    else:
        skb = Skb(sk.write_seq, ACK | FIN, sk.sysctl.skb_base_truesize)
        skb.end_seq = sk.write_seq + 1
        sk.write_seq += 1
        sk.write_queue.append(skb)
        memory.charge_send(sk, skb.truesize)
        if not sk.packets_out:
            chrono_start(sk, BUSY)
    push_pending_frames(sk, mtu.current_mss(sk), NAGLE_OFF)


def free_skb(sk: Sock, skb: Skb) -> None:
    """Release an acknowledged (or dropped) skb's memory."""
    memory.uncharge_send(sk, skb.truesize)
    if skb.slabs:
        skb.free_slabs()


def free_queues(sk: Sock) -> None:
    """Drop everything unsent and unacknowledged; the connection is over."""
    chrono_stop(sk, BUSY)
    for queue in (sk.write_queue, sk.rtx_queue):
        skb = queue.head
        while skb is not None:
            nxt = skb.next
            free_skb(sk, skb)
            skb.prev = skb.next = skb.tprev = skb.tnext = None
            skb = nxt
        queue.head = queue.tail = None
        queue.qlen = 0
    sk.tsorted.head = sk.tsorted.tail = None
    if sk.slab is not None:
        sk.slab.put()
        sk.slab = None
    sk.highest_sack = sk.retransmit_hint = sk.lost_skb_hint = None
    # what was marked in them stays to be read in tcp_info
    sk.packets_out = sk.backoff = 0
