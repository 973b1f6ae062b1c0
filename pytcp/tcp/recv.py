"""recv: from the receive queue to the program, without ever blocking (linux-sockets §1, §7).

Errors and ends come in Linux's order: what is queued, then the mark of an in-order FIN, a pending error,
a shut or closed socket. A read stops before the urgent byte. Freed buffer space may owe the peer a
window update, and the amount read per round trip drives buffer growth: both are looked at on every read.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from . import drs, errors, memory, reassembly, rwnd, urgent
from .const import ACK_SCHED, CLOSE, ESTABLISHED, LISTEN, MSG_OOB, MSG_PEEK, MSG_TRUNC, POLLIN, RCV_SHUTDOWN, SF_DEAD, SF_DONE, SYN_RECV, SYN_SENT

if TYPE_CHECKING:
    from .sock import Sock


def recv(sk: Sock, nbytes: int, flags: int = 0) -> bytes:
    """Up to `nbytes` bytes; b"" at the end of the stream.

    MSG_PEEK leaves them queued (from SO_PEEK_OFF on), MSG_TRUNC throws them away (the result is as long,
    of zeros), MSG_OOB takes the urgent byte. MSG_WAITALL is the caller's to loop for.
    Raises OSError: EAGAIN, ENOTCONN, EINVAL (MSG_OOB), or the connection's error, once."""
    queue = sk.receive_queue
    if not flags and queue and len(queue) == 1 and not sk.urg_data and sk.peek_off < 0:
        chunk = queue[0]
        if chunk.seq == sk.copied_seq and chunk.length <= nbytes and not chunk.fin:
            # all there is in one piece: what `_gather` and `_finish` would do, without looking for exceptions
            parts = chunk.parts
            data = bytes(parts[0][0]) if len(parts) == 1 else b"".join([buf for buf, _ in parts])
            sk.copied_seq = chunk.end_seq
            if sk.rcv_rtt_us:
                drs.rcv_space_adjust(sk)
            queue.clear()
            memory.free_chunk(sk, chunk)
            rwnd.cleanup_rbuf(sk, chunk.length)
            return data
    if flags & MSG_OOB:
        byte = urgent.recv_urg(sk, flags)
        return b"" if byte < 0 or not nbytes else bytes((byte,))
    out: list[Any] = []
    copied, eaten = _gather(sk, nbytes, flags, None if flags & MSG_TRUNC else out)
    if len(out) == 1:
        data = bytes(out[0])
    elif flags & MSG_TRUNC:
        data = bytes(copied)
    else:
        data = b"".join(out)
    _finish(sk, eaten, copied)
    return data


def recv_into(sk: Sock, buf: Any, flags: int = 0) -> int:
    """The same into a writable buffer; returns the number of bytes (MSG_TRUNC: thrown away, `buf` is only a length)."""
    view = memoryview(buf)
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    if flags & MSG_OOB:
        byte = urgent.recv_urg(sk, flags)
        if byte < 0 or not len(view):
            return 0
        if not flags & MSG_TRUNC:
            view[0] = byte
        return 1
    out: list[Any] = []
    copied, eaten = _gather(sk, len(view), flags, None if flags & MSG_TRUNC else out)
    at = 0
    for piece in out:
        upto = at + len(piece)
        view[at:upto] = piece
        at = upto
    _finish(sk, eaten, copied)
    return copied


def _gather(sk: Sock, want: int, flags: int, out: list[Any] | None) -> tuple[int, int]:
    """Views of the next `want` bytes into `out`, copied_seq moved behind them (unless MSG_PEEK).

    Returns (bytes, chunks that have been read to their end); `_finish` frees those once the views are
    used. Raises OSError when there is nothing to return."""
    if sk.state == LISTEN:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
    queue = sk.receive_queue
    peek = flags & MSG_PEEK
    seq = sk.copied_seq
    if peek and sk.peek_off >= 0:
        seq += sk.peek_off
    copied = 0
    eaten = 0
    fin = False
    at = 0
    while True:
        if sk.urg_data and sk.urg_seq == seq and copied:
            break
        chunk = None
        while queue and at < len(queue):
            chunk = queue[at]
            if seq < chunk.end_seq:
                break
            chunk = None
            at += 1
        if chunk is None:
            break
        offset = seq - chunk.seq
        used = chunk.length - offset
        if used > 0:
            if used > want - copied:
                used = want - copied
            if sk.urg_data:
                ahead = sk.urg_seq - seq
                if 0 <= ahead < used:
                    if ahead:
                        used = ahead
                    elif not sk.rx_opt_oobinline:
                        # the urgent byte is not part of the stream
                        seq += 1
                        offset += 1
                        used -= 1
            if used and out is not None:
                _slices(chunk, offset, used, out)
            seq += used
            copied += used
            if not peek:
                sk.copied_seq = seq
                drs.rcv_space_adjust(sk)
                if sk.urg_data and seq > sk.urg_seq:
                    sk.urg_data = urgent.NONE
                    reassembly.fast_path_check(sk)
            if seq - chunk.seq < chunk.length:
                if copied >= want:
                    break
                continue
        if chunk.fin:
            seq += 1
            fin = True
        if not peek:
            sk.copied_seq = seq
            eaten += 1
        at += 1
        if fin or copied >= want:
            break
    if not copied and not fin:
        _finish(sk, eaten, 0)
        _nothing(sk, want)
        return 0, 0
    if sk.peek_off >= 0:
        sk.peek_off = sk.peek_off + copied if peek else max(sk.peek_off - copied, 0)
    return copied, eaten


def _slices(chunk: memory.RxChunk, offset: int, size: int, out: list[Any]) -> None:
    """Views of `size` payload bytes from `offset` on."""
    for buf, _ in chunk.parts:
        have = len(buf)
        if offset >= have:
            offset -= have
            continue
        if offset or size < have:
            piece = memoryview(buf)[offset : offset + size]
            out.append(piece)
            size -= len(piece)
        else:
            out.append(buf)
            size -= have
        if not size:
            return
        offset = 0


def _nothing(sk: Sock, want: int) -> None:
    """Nothing to read: return (end of stream) or raise what Linux would."""
    if not want or sk.sock_flags & SF_DONE:
        return
    if sk.sk_err:
        errors.raise_pending(sk)
    if sk.shutdown & RCV_SHUTDOWN:
        return
    if sk.state == CLOSE:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


def _finish(sk: Sock, eaten: int, copied: int) -> None:
    """The views have been used: free what was read, see about an ACK."""
    if eaten:
        queue = sk.receive_queue
        for chunk in queue[:eaten]:
            memory.free_chunk(sk, chunk)
        del queue[:eaten]
    rwnd.cleanup_rbuf(sk, copied)


# ---------------------------------------------------------------- what there is to read


def inq(sk: Sock) -> int:
    """SIOCINQ: bytes that can be read (up to the urgent mark); a FIN does not count. Raises EINVAL on a listener."""
    state = sk.state
    if state == LISTEN:
        raise OSError(errno.EINVAL, "Invalid argument")
    if state in (SYN_SENT, SYN_RECV):
        return 0  # also with the data of Fast Open
    if sk.urg_data and not sk.rx_opt_oobinline and sk.copied_seq <= sk.urg_seq < sk.rcv_nxt:
        return sk.urg_seq - sk.copied_seq
    left = sk.rcv_nxt - sk.copied_seq
    return left - 1 if left and sk.sock_flags & SF_DONE else left


def inq_hint(sk: Sock) -> int:
    """TCP_INQ: bytes left after a read; after the peer's FIN at least 1, so that the program reads on and finds the end."""
    left = sk.rcv_nxt - sk.copied_seq
    return left or (1 if sk.sock_flags & SF_DONE else 0)


def would_block(sk: Sock) -> bool:
    """Whether `recv` (of a listener: accept) would only say EAGAIN: nothing has come, nothing has ended, no ACK is owed that a read might send."""
    if sk.state == ESTABLISHED:
        return not (sk.receive_queue or sk.ack_pending & ACK_SCHED or sk.sk_err or sk.shutdown & RCV_SHUTDOWN)
    return sk.state == LISTEN and not sk.accept_queue


def unread(sk: Sock) -> bool:
    """Whether payload waits that the program has not read (a FIN is no payload)."""
    queue = sk.receive_queue
    if not queue:
        return False
    last = queue[-1]
    return last.end_seq - last.fin > sk.copied_seq  # type: ignore[no-any-return]


def readable(sk: Sock, target: int) -> bool:
    """Whether poll may say IN for data: `target` bytes are there, or waiting for them would stop the sender."""
    avail = sk.rcv_nxt - sk.copied_seq
    if avail <= 0:
        return False
    if avail >= target or sk.rmem_alloc > sk.rcvbuf - (sk.rcvbuf >> 3):
        return True
    return rwnd.receive_window(sk) <= sk.rcv_mss


def data_ready(sk: Sock) -> None:
    """Tell the program about new data, if it is enough by SO_RCVLOWAT."""
    if sk.sock_flags & SF_DEAD:
        return
    if readable(sk, sk.rcvlowat) or sk.sock_flags & SF_DONE:
        sk.host.wake(sk, POLLIN)


def purge(sk: Sock) -> None:
    """Drop everything received, in and out of order, and give its memory back."""
    for chunks in (sk.receive_queue, sk.ofo_queue):
        for chunk in chunks or ():
            memory.free_chunk(sk, chunk)
    sk.receive_queue = None
    sk.ofo_queue = None
