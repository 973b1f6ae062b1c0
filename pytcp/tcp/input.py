"""tcp_input: what a segment does to a connection, state by state (RFC 9293 §3.10.7, linux-tcp §8, §12).

`receive` unwraps the sequence numbers and dispatches. An established connection tries header prediction
first (`established`); everything else walks the RFC's steps in Linux's order: timestamps (PAWS), sequence
number, RST, SYN (RFC 5961: only exact numbers are believed, others are challenged), ACK, urgent pointer,
data, FIN; then what the ACK allows is sent and our own ACK is decided. There is no socket lock and so no
backlog: a segment is always processed where it arrives. Counters: BeyondWindow, PAWSEstab, PAWSOldAck,
TCPACKSkippedPAWS, TCPACKSkippedSeq, TCPSYNChallenge, TcpInErrs, TCPAbortOnData, DelayedACKLost.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from . import ack, challenge, close, delack, drs, ecn, established, fastopen, handshake, listen, md5, paws, reassembly, rwnd, sack_send, timewait, urgent, xmit
from . import trace as tracing
from .const import (
    ACK,
    ACK_SCHED,
    CLOSE,
    CLOSE_WAIT,
    CLOSING,
    ESTABLISHED,
    FIN,
    FIN_WAIT1,
    FIN_WAIT2,
    LAST_ACK,
    LISTEN,
    MAX_QUICKACKS,
    POLLHUP,
    POLLIN,
    POLLOUT,
    POLLRDHUP,
    RCV_SHUTDOWN,
    RST,
    SEND_SHUTDOWN,
    SF_CLOSE_WAIT,
    SF_CLOSING,
    SF_DEAD,
    SF_DONE,
    SF_LAST_ACK,
    SF_LISTEN,
    SF_SYN_SENT,
    SHUTDOWN_MASK,
    SYN,
    SYN_RECV,
    SYN_SENT,
    TIME_WAIT,
    URG,
)
from .flags import FLAG_NO_CHALLENGE_ACK, FLAG_SLOWPATH, FLAG_UPDATE_TS_RECENT
from .reset import send_reset

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Sock

M32 = 0xFFFFFFFF
HALF = 0x80000000
TOP = 0x100000000

_AFTER_PEER_FIN = SF_CLOSE_WAIT | SF_LAST_ACK | SF_CLOSING


def receive(sk: Sock, seg: Segment) -> None:
    """One segment, or super-segment, for this socket. Never raises for what the peer did."""
    if sk.min_ttl and seg.ttl < sk.min_ttl and seg.family == sk.family:
        sk.mib.TCPMinTTLDrop += 1
        return
    state = sk.state
    nsegs = seg.nsegs
    sk.segs_in += nsegs
    if seg.length:
        sk.data_segs_in += nsegs
        if sk.trace is not None and 1 << state & ~(SF_LISTEN | SF_SYN_SENT):
            tracing.recv(sk.trace, sk, seg)
    if state == ESTABLISHED and established.predicted(sk, seg):
        return
    if seg.options.md5 is not None and not md5.acceptable(None, seg, sk.mib):
        # a signature nobody has asked for, or broken options
        sk.segs_in -= nsegs
        sk.data_segs_in -= nsegs if seg.length else 0
        return
    if state == LISTEN:
        listen.receive(sk, seg)
        return
    near = sk.snd_una
    ahead = (seg.ack - near) & M32
    seg.ack = near + ahead if ahead < HALF else near + ahead - TOP
    sk.mstamp_ns = sk.host.now_ns
    flags = seg.flags
    if state == SYN_SENT:
        seg.end_seq = seg.seq + seg.length + (flags & FIN) + (flags >> 1 & 1)
        handshake.syn_sent(sk, seg)
        return
    near = sk.rcv_nxt
    ahead = (seg.seq - near) & M32
    seq = seg.seq = near + ahead if ahead < HALF else near + ahead - TOP
    seg.end_seq = seq + seg.length + (flags & FIN) + (flags >> 1 & 1)
    if state == ESTABLISHED:
        _established_slow(sk, seg)
    elif state != CLOSE:
        _state_process(sk, seg)


def _note_timestamp(sk: Sock, seg: Segment) -> None:
    """Leave the segment's timestamps where the ACK rooms look for them (TSecr 0 = none)."""
    if seg.saw_tstamp and sk.tstamp_ok:
        sk.rcv_tsval = seg.tsval
        sk.rcv_tsecr = seg.tsecr
    else:
        sk.rcv_tsecr = 0


def _established_slow(sk: Sock, seg: Segment) -> None:
    """ESTABLISHED, header prediction failed."""
    if not seg.flags & (ACK | RST | SYN):
        return
    _note_timestamp(sk, seg)
    if not validate_incoming(sk, seg, True):
        return
    if seg.tos & 3:
        ecn.received(sk, seg)
    if ack.tcp_ack(sk, seg, FLAG_SLOWPATH | FLAG_UPDATE_TS_RECENT) < 0:
        return
    if seg.saw_tstamp and sk.tstamp_ok:
        drs.rcv_rtt_measure_ts(sk, seg)
    if seg.flags & URG or sk.urg_data:
        urgent.urg(sk, seg)
    reassembly.data_queue(sk, seg)
    xmit.data_snd_check(sk)
    delack.ack_snd_check(sk)


# ---------------------------------------------------------------- is it acceptable


def validate_incoming(sk: Sock, seg: Segment, syn_inerr: bool) -> bool:
    """Steps one to four of RFC 9293 §3.10.7.4: timestamp, sequence number, RST, SYN.

    False: the segment has been dealt with. `syn_inerr`: count a challenged SYN as TcpInErrs too."""
    flags = seg.flags
    if seg.saw_tstamp and sk.tstamp_ok and not flags & RST:
        verdict = paws.check(sk, seg)
        if verdict:
            if flags & SYN:
                _challenge_syn(sk, syn_inerr)
            elif verdict == paws.OLD_ACK:
                sk.mib.PAWSOldAck += 1
            else:
                sk.mib.PAWSEstab += 1
                if not challenge.oow_rate_limited(sk, seg, "TCPACKSkippedPAWS"):
                    send_dupack(sk, seg)
            return False
    beyond = _out_of_sequence(sk, seg)
    if beyond is not None:
        if flags & RST:
            if _rst_behind_fin(sk, seg):
                reset(sk)
        elif flags & SYN:
            _challenge_syn(sk, syn_inerr)
        else:
            if beyond:
                sk.mib.BeyondWindow += 1
            if not challenge.oow_rate_limited(sk, seg, "TCPACKSkippedSeq"):
                send_dupack(sk, seg)
        return False
    if flags & RST:
        if seg.seq == sk.rcv_nxt or _rst_behind_fin(sk, seg) or (sk.selective_acks and seg.seq == max(block[1] for block in sk.selective_acks)):
            reset(sk)
        else:
            challenge.send_challenge_ack(sk)
        return False
    if flags & SYN:
        crossed = sk.state == SYN_RECV and sk.parent is None and flags & ACK and seg.seq + 1 == seg.end_seq == sk.rcv_nxt and seg.ack == sk.snd_nxt
        if not crossed:
            _challenge_syn(sk, syn_inerr)
            return False
    return True


def _out_of_sequence(sk: Sock, seg: Segment) -> bool | None:
    """None: (partly) in the window. False: old. True: beyond it.

    A segment that ends beyond the window is taken whole while the receive queue is empty; a FIN alone may lie beyond it."""
    if seg.end_seq < sk.rcv_wup:
        return False
    edge = sk.rcv_nxt + rwnd.receive_window(sk)
    if seg.end_seq - (seg.flags & FIN) > edge and (seg.seq > edge or sk.receive_queue):
        return True
    return None


def _rst_behind_fin(sk: Sock, seg: Segment) -> bool:
    """After the peer's FIN its RST may still carry the FIN's own number (some stacks do that)."""
    return seg.seq == sk.rcv_nxt - 1 and bool(1 << sk.state & _AFTER_PEER_FIN)


def _challenge_syn(sk: Sock, syn_inerr: bool) -> None:
    if syn_inerr:
        sk.mib.TcpInErrs += 1
    sk.mib.TCPSYNChallenge += 1
    challenge.send_challenge_ack(sk)


def send_dupack(sk: Sock, seg: Segment) -> None:
    """Answer an unacceptable segment; if it repeats old data our ACKs are being lost."""
    if seg.seq != seg.end_seq and seg.seq < sk.rcv_nxt:
        sk.mib.DelayedACKLost += 1
        delack.enter_quickack_mode(sk, MAX_QUICKACKS)
        if sk.sack_ok and sk.sysctl.tcp_dsack:
            reassembly.spurious_retrans(sk, seg)
            sack_send.dsack_set(sk, seg.seq, min(seg.end_seq, sk.rcv_nxt))
    xmit.send_ack(sk)


# ---------------------------------------------------------------- RST, FIN


def reset(sk: Sock) -> None:
    """An acceptable RST: the connection is gone; the error depends on what the program still expected."""
    state = sk.state
    if state == CLOSE:
        return
    if state == SYN_SENT:
        error = errno.ECONNREFUSED
    elif state == CLOSE_WAIT:
        error = errno.EPIPE
    else:
        error = errno.ECONNRESET
    close.done_with_error(sk, error)


def fin(sk: Sock) -> None:
    """The peer's FIN is next in the stream (already counted in rcv_nxt)."""
    orphan = sk.sock_flags & SF_DEAD
    sk.ack_pending |= ACK_SCHED
    sk.shutdown |= RCV_SHUTDOWN
    sk.sock_flags |= SF_DONE
    state = sk.state
    if state in (ESTABLISHED, SYN_RECV):
        close.set_state(sk, CLOSE_WAIT)
        delack.enter_pingpong(sk)
    elif state == FIN_WAIT1:
        # both sides closed at once
        xmit.send_ack(sk)
        close.set_state(sk, CLOSING)
    elif state == FIN_WAIT2:
        xmit.send_ack(sk)
        close.enter_time_wait(sk, TIME_WAIT)
    # nothing can follow a FIN
    reassembly.purge_ofo(sk)
    if sk.sack_ok:
        sack_send.reset(sk)
    if not orphan:
        events = POLLIN | POLLRDHUP
        if sk.shutdown == SHUTDOWN_MASK or sk.state == CLOSE:
            events |= POLLHUP
        sk.host.wake(sk, events)


# ---------------------------------------------------------------- every other state


def _state_process(sk: Sock, seg: Segment) -> None:
    """SYN_RECV, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, CLOSING, LAST_ACK."""
    if not seg.flags & (ACK | RST | SYN):
        return
    waiting = sk.fastopen is not None and sk.fastopen.request is not None
    if waiting and not fastopen.acceptable(sk, seg):
        return
    _note_timestamp(sk, seg)
    if not validate_incoming(sk, seg, False):
        return
    acceptable = ack.tcp_ack(sk, seg, FLAG_SLOWPATH | FLAG_UPDATE_TS_RECENT | FLAG_NO_CHALLENGE_ACK)
    if acceptable <= 0:
        if sk.state == SYN_RECV:
            send_reset(sk, seg)
            return
        if acceptable < 0:
            challenge.send_challenge_ack(sk)
            return
    state = sk.state
    if state == SYN_RECV:
        handshake.syn_recv_established(sk, seg)
    elif state == FIN_WAIT1:
        if waiting:
            fastopen.established(sk)
        if sk.snd_una == sk.write_seq and not _fin_acked(sk, seg):
            return
    elif state == CLOSING:
        if sk.snd_una == sk.write_seq:
            close.enter_time_wait(sk, TIME_WAIT)
            return
    elif state == LAST_ACK:
        if sk.snd_una == sk.write_seq:
            close.done(sk)
            return
    if seg.flags & URG or sk.urg_data:
        urgent.urg(sk, seg)
    state = sk.state
    if state not in (CLOSE_WAIT, CLOSING, LAST_ACK) or seg.seq < sk.rcv_nxt:
        # behind the peer's FIN there is nothing, only a repetition still deserves an answer
        if state != ESTABLISHED and sk.shutdown & RCV_SHUTDOWN and _new_data(sk, seg):
            # RFC 1122 §4.2.2.13: nobody will read this, and the peer must learn that it is lost
            sk.mib.TCPAbortOnData += 1
            reset(sk)
            send_reset(sk, seg)
            return
        reassembly.data_queue(sk, seg)
    if sk.state != CLOSE:
        xmit.data_snd_check(sk)
        delack.ack_snd_check(sk)


def _new_data(sk: Sock, seg: Segment) -> bool:
    """Whether the segment carries bytes (not just a FIN) we have not seen."""
    return seg.end_seq != seg.seq and seg.end_seq - (seg.flags & FIN) > sk.rcv_nxt


def _fin_acked(sk: Sock, seg: Segment) -> bool:
    """FIN_WAIT1, and everything including our FIN is acknowledged. False: the segment is dealt with."""
    close.set_state(sk, FIN_WAIT2)
    sk.shutdown |= SEND_SHUTDOWN
    if not sk.sock_flags & SF_DEAD:
        sk.host.wake(sk, POLLOUT)
        return True
    if sk.linger2 < 0:
        close.done(sk)
        sk.mib.TCPAbortOnData += 1
        send_reset(sk, seg)
        return False
    if _new_data(sk, seg):
        close.done(sk)
        sk.mib.TCPAbortOnData += 1
        send_reset(sk, seg)
        return False
    timeout = close.fin_time(sk)
    if timeout > timewait.TIMEWAIT_LEN_NS:
        close.arm_fin_wait2(sk, timeout - timewait.TIMEWAIT_LEN_NS)
    elif seg.flags & FIN:
        # the FIN is handled further down; the mini block comes from there
        close.arm_fin_wait2(sk, timeout)
    else:
        close.enter_time_wait(sk, FIN_WAIT2, timeout)
        return False
    return True
