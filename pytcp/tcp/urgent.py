"""Urgent data as BSD sockets have it: one byte out of band, and a mark in the stream (RFC 9293 §3.8.5, RFC 6093).

The urgent pointer names the byte behind the urgent one, except with tcp_stdurg (RFC 1122's reading). The
byte is kept aside for recv(MSG_OOB) unless SO_OOBINLINE leaves it in the stream; a normal read stops
before the mark. A newer pointer replaces an unread byte, which then stays in the stream. While
any of this is pending header prediction is off.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from .const import CLOSE, LISTEN, MSG_PEEK, POLLIN, POLLPRI, RCV_SHUTDOWN, SF_DEAD, SF_DONE, URG

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .sock import Sock

# sk.urg_data
NONE = 0
VALID = 1  # sk.oob_byte holds it
NOTYET = 2  # announced, not arrived
READ = 3  # taken; the mark stays until the stream has been read past it


def urg(sk: Sock, seg: Segment) -> None:
    """Take notice of an urgent pointer, and of the urgent byte when it is in this segment."""
    if seg.flags & URG:
        _check_pointer(sk, seg)
    if sk.urg_data == NOTYET:
        at = sk.urg_seq - seg.seq
        # a byte that lies before this segment cannot be in it
        if 0 <= at < seg.length:
            sk.oob_byte = seg.payload[at]
            sk.urg_data = VALID
            if not sk.sock_flags & SF_DEAD:
                sk.host.wake(sk, POLLIN | POLLPRI)


def _check_pointer(sk: Sock, seg: Segment) -> None:
    ptr = seg.urg_ptr
    if ptr and not sk.sysctl.tcp_stdurg:
        ptr -= 1
    ptr += seg.seq
    if ptr < sk.copied_seq or ptr < sk.rcv_nxt:
        # read already, or a repetition of what came before
        return
    if sk.urg_data and ptr <= sk.urg_seq:
        return
    if sk.urg_data and sk.urg_seq == sk.copied_seq and not sk.rx_opt_oobinline and sk.copied_seq != sk.rcv_nxt:
        # the old urgent byte is next in the stream: it was out of band and must not turn into data
        sk.copied_seq += 1
        queue = sk.receive_queue
        if queue and sk.copied_seq >= queue[0].end_seq:
            from . import memory

            memory.free_chunk(sk, queue.pop(0))
    sk.urg_data = NOTYET
    sk.urg_seq = ptr
    sk.pred = False


def recv_urg(sk: Sock, flags: int) -> int:
    """recv(MSG_OOB): the urgent byte.

    Returns it, or -1 at the end of the stream. Raises OSError: EINVAL when there is none, EAGAIN when
    it is announced but has not come, ENOTCONN on a socket that never had a connection."""
    if sk.state == LISTEN:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
    if sk.rx_opt_oobinline or not sk.urg_data or sk.urg_data == READ:
        raise OSError(errno.EINVAL, "Invalid argument")
    if sk.state == CLOSE and not sk.sock_flags & SF_DONE:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
    if sk.urg_data == VALID:
        if not flags & MSG_PEEK:
            sk.urg_data = READ
        return sk.oob_byte
    if sk.state == CLOSE or sk.shutdown & RCV_SHUTDOWN:
        return -1
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


def at_mark(sk: Sock) -> bool:
    """SIOCATMARK: whether the next byte to read is the urgent one."""
    return sk.urg_data != NONE and sk.urg_seq == sk.copied_seq
