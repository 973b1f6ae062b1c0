"""Readiness: which of IN PRI OUT ERR HUP RDHUP hold now (linux-sockets §1, the table of all states).

HUP means both directions are over (or never began: a fresh socket says OUT|HUP), RDHUP and IN that
reading will not block because nothing more can come. A connection being opened says nothing at all. A
program that finds no OUT has asked for the news of free space (SOCK_NOSPACE). epoll's edges come from
`host.wake`, this function is the level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import gates, recv, sendmsg, urgent
from .const import CLOSE, LISTEN, POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDHUP, RCV_SHUTDOWN, SEND_SHUTDOWN, SHUTDOWN_MASK, SYN_RECV, SYN_SENT

if TYPE_CHECKING:
    from .sock import Sock


def poll(sk: Sock) -> int:
    """The POLL* bits that hold for `sk`."""
    state = sk.state
    if state == LISTEN:
        return POLLIN if sk.accept_queue else 0
    shutdown = sk.shutdown
    mask = 0
    if shutdown == SHUTDOWN_MASK or state == CLOSE:
        mask |= POLLHUP
    if shutdown & RCV_SHUTDOWN:
        mask |= POLLIN | POLLRDHUP
    opening = state in (SYN_SENT, SYN_RECV)
    early = sk.fastopen
    if opening and early is not None:
        if state == SYN_RECV:
            # a child that has had the data of its SYN
            opening = early.request is None
        elif early.deferred:
            # connect() waits for the data that the first write brings
            mask |= POLLOUT
    if not opening:
        target = sk.rcvlowat
        if sk.urg_data:
            if sk.urg_seq == sk.copied_seq and not sk.rx_opt_oobinline:
                # the urgent byte alone is not readable
                target += 1
            if sk.urg_data == urgent.VALID:
                mask |= POLLPRI
        if recv.readable(sk, target):
            mask |= POLLIN
        if shutdown & SEND_SHUTDOWN or sendmsg.stream_is_writeable(sk):
            mask |= POLLOUT
        else:
            sk.nospace = True
            if sk.gate == gates.APP and sk.write_queue.head is None:
                gates.idle(sk)
    if sk.sk_err or sk.error_queue:
        mask |= POLLERR
    return mask
