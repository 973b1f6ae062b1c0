"""The system calls of a TCP socket, without ever blocking: what `sockets/` is built on.

Every call has Linux's result in every state (linux-sockets §1, the two big tables); what would block
raises EAGAIN, or EINPROGRESS from connect(). Beside the TCP state a socket remembers what its connect()
has come to (`ss_state`): that is why connect() succeeds once after the handshake and says EISCONN
afterwards, and why a refused socket reports its error through connect(), too.
Addresses are 4 or 16 bytes, b"" the wildcard; a 4-byte address on an IPv6 socket is an IPv4-mapped one. A scope id is
an interface's index: a link-local IPv6 address has no meaning without, and binds the socket to that interface.
"""

from __future__ import annotations

import errno

from pytcp.wire.addr import is_link_local

from . import close as closing
from . import cong, errors, fastopen, fastopen_client, handshake, ip_families
from . import listen as listening
from .close import BINDADDR_LOCK, BINDPORT_LOCK, finish_close, lingering
from .close import disconnect as _disconnect
from .const import (
    CLOSE,
    CLOSE_WAIT,
    ESTABLISHED,
    LISTEN,
    POLLHUP,
    POLLIN,
    POLLOUT,
    POLLRDHUP,
    RCV_SHUTDOWN,
    SEND_SHUTDOWN,
    SHUTDOWN_MASK,
    SYN_RECV,
    SYN_SENT,
)
from .icmp_err import QueuedError, read_error_queue
from .info import TcpInfo, tcp_info
from .poll import poll
from .recv import inq, inq_hint, recv, recv_into, would_block
from .sendmsg import sendmsg
from .skb import Buffer
from .sock import Sock
from .sockopt import getsockopt, setsockopt
from .sockopt_ip import IP_BIND_ADDRESS_NO_PORT, IP_FREEBIND, IP_TRANSPARENT
from .sockopt_kinds import IPPROTO_IP, kept
from .sockopt_socket import new_timestamps, take_error, takes_txtime
from .sockopt_tcp import MD5_KEYS
from .zerocopy import by_copy as sent_by_copy
from .zerocopy import send as send_zerocopy

__all__ = [
    "MD5_KEYS",
    "SHUT_RD",
    "SHUT_RDWR",
    "SHUT_WR",
    "QueuedError",
    "TcpInfo",
    "accept",
    "at_mark",
    "bind",
    "close",
    "connect",
    "disconnect",
    "finish_close",
    "getpeername",
    "getsockname",
    "getsockopt",
    "inq",
    "inq_hint",
    "lingering",
    "listen",
    "new_timestamps",
    "outq",
    "outq_unsent",
    "poll",
    "read_error_queue",
    "recv",
    "recv_into",
    "send_fastopen",
    "send_zerocopy",
    "sendmsg",
    "sent_by_copy",
    "setsockopt",
    "shutdown",
    "take_error",
    "takes_txtime",
    "tcp_info",
    "would_block",
]

SHUT_RD = 0
SHUT_WR = 1
SHUT_RDWR = 2

# sk.ss_state
SS_UNCONNECTED = 0
SS_CONNECTING = 1
SS_CONNECTED = 2
SS_DISCONNECTING = 3

LOOPBACK4 = b"\x7f\x00\x00\x01"
LOOPBACK6 = bytes(15) + b"\x01"


def _error(code: int, text: str) -> OSError:
    return OSError(code, text)


def _ready(sk: Sock) -> None:
    """A congestion control is chosen with the first use of the socket."""
    if sk.cong_name is None:
        cong.assign(sk)


# ---------------------------------------------------------------- addresses


def bind(sk: Sock, addr: bytes, port: int, scope_id: int = 0) -> None:
    """Take a local address and port (0: any). An address of IPv6 makes it a socket of IPv6 only.

    Raises OSError: EINVAL (has a port, or a connection; link-local without an interface), EADDRNOTAVAIL (not ours),
    EADDRINUSE, ENODEV (no interface of that scope id)."""
    if sk.state != CLOSE or sk.bound_port:
        raise _error(errno.EINVAL, "Invalid argument")
    if len(addr) == 16 and is_link_local(addr):
        if scope_id:
            sk.bound_dev_if = scope_id
        if not sk.bound_dev_if:
            raise _error(errno.EINVAL, "Invalid argument: a link-local address needs an interface (scope id)")
        if not sk.host.dev_name(sk.bound_dev_if):
            raise _error(errno.ENODEV, "No such device")
    anywhere = kept(sk, IPPROTO_IP, IP_FREEBIND) or kept(sk, IPPROTO_IP, IP_TRANSPARENT)
    if addr and not anywhere and not sk.host.is_local(addr, sk.bound_dev_if if len(addr) == 16 and is_link_local(addr) else 0):
        raise _error(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    before = sk.saddr, sk.bound_addr
    sk.saddr = sk.bound_addr = addr
    if port or not kept(sk, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT):
        try:
            _take_port(sk, port)
        except OSError:
            sk.saddr, sk.bound_addr = before
            raise
    if len(addr) == 16:
        sk.v6only = True
    sk.sock_flags |= (BINDADDR_LOCK if addr else 0) | (BINDPORT_LOCK if port else 0)


def _take_port(sk: Sock, port: int) -> None:
    sk.bound_port = sk.sport = sk.host.bind_port(sk, port)


def getsockname(sk: Sock) -> tuple[bytes, int]:
    """(address, port) of this end; b"" and 0 where nothing is chosen yet."""
    return sk.saddr, sk.sport


def getpeername(sk: Sock) -> tuple[bytes, int]:
    """(address, port) of the other end. Raises OSError ENOTCONN."""
    if not sk.dport or sk.state in (CLOSE, SYN_SENT, LISTEN):
        raise _error(errno.ENOTCONN, "Transport endpoint is not connected")
    return sk.daddr, sk.dport


# ---------------------------------------------------------------- opening


def connect(sk: Sock, addr: bytes, port: int, scope_id: int = 0) -> None:
    """Open a connection, or ask how far it is.

    Raises OSError: EINPROGRESS (begun), EALREADY (still opening), EISCONN, the attempt's error
    (ECONNREFUSED, ETIMEDOUT, ...; ECONNABORTED if that was fetched already), or why it could not begin:
    ENETUNREACH, EHOSTUNREACH, EACCES, EADDRNOTAVAIL, EAFNOSUPPORT, EINVAL (link-local without an interface). Returns, once, when it is open."""
    if sk.ss_state == SS_CONNECTED:
        raise _error(errno.EISCONN, "Transport endpoint is already connected")
    if sk.ss_state == SS_DISCONNECTING:
        raise _error(errno.EINVAL, "Invalid argument")
    pending = errno.EALREADY
    if sk.ss_state == SS_UNCONNECTED:
        if sk.state != CLOSE:
            raise _error(errno.EISCONN, "Transport endpoint is already connected")
        _begin(sk, addr, port, scope_id)
        sk.ss_state = SS_CONNECTING
        if fastopen_client.is_deferred(sk):
            return
        pending = errno.EINPROGRESS
    elif fastopen_client.is_deferred(sk):
        raise _error(errno.EISCONN, "Transport endpoint is already connected")
    if sk.state == SYN_SENT or sk.state == SYN_RECV:
        raise _error(pending, "Operation now in progress" if pending == errno.EINPROGRESS else "Operation already in progress")
    if sk.state == CLOSE:
        code, sk.sk_err = sk.sk_err or errno.ECONNABORTED, 0
        sk.ss_state = SS_UNCONNECTED
        _disconnect(sk)
        raise errors.pending(code)
    sk.ss_state = SS_CONNECTED


def _begin(sk: Sock, addr: bytes, port: int, scope_id: int) -> None:
    """Choose route, source and port, and send the SYN; nothing is left behind when that fails."""
    family = sk.family
    if not addr:
        # "this host": the address we are bound to, else loopback
        addr = sk.bound_addr or (LOOPBACK4 if family == 4 else LOOPBACK6)
    if family == 4 and len(addr) != 4:
        raise _error(errno.EAFNOSUPPORT, "Address family not supported by protocol")
    if family == 6 and len(addr) == 4:
        if sk.v6only:
            raise _error(errno.ENETUNREACH, "Network is unreachable")
        ip_families.speak(sk, 4)
    if len(addr) == 16 and is_link_local(addr):
        if scope_id and sk.bound_dev_if not in (0, scope_id):
            raise _error(errno.EINVAL, "Invalid argument: the socket is bound to another interface")
        sk.bound_dev_if = sk.bound_dev_if or scope_id
        if not sk.bound_dev_if:
            raise _error(errno.EINVAL, "Invalid argument: a link-local address needs an interface (scope id)")
    _ready(sk)
    if sk.ts_recent_stamp_s and sk.daddr != addr:
        # another peer: what the last one sent means nothing
        sk.ts_recent = sk.ts_recent_stamp_s = sk.write_seq = 0
    sk.daddr = addr
    sk.dport = port
    try:
        sk.host.route(sk)
        if not sk.bound_port:
            _take_port(sk, 0)
        # every connection gets a flow hash (an IPv6 flow label) of its own
        sk.host.rehash(sk)
        closing.set_state(sk, SYN_SENT)
        sk.host.hash(sk)
    except OSError:
        closing.set_state(sk, CLOSE)
        if not sk.sock_flags & BINDPORT_LOCK:
            closing.release_port(sk)
        if not sk.sock_flags & BINDADDR_LOCK:
            sk.saddr = b""
        sk.daddr = b""
        sk.dport = 0
        sk.dst = None
        ip_families.speak(sk, family)
        raise
    if sk.fastopen is None:
        handshake.connect(sk)
    elif not fastopen_client.defer_connect(sk):
        try:
            handshake.connect(sk)
        finally:
            if sk.fastopen.data is None:
                sk.fastopen.wanted = False


def send_fastopen(sk: Sock, data: Buffer, flags: int, addr: bytes, port: int, waits: bool = False) -> int:
    """sendto(MSG_FASTOPEN): connect, and have the SYN take what it can of `data`. Returns how much that was.

    waits: the caller waits for the connection and writes the rest then.
    Raises OSError: EINPROGRESS (the SYN asks for a cookie and took nothing), EOPNOTSUPP (tcp_fastopen), else as connect()."""
    state = fastopen_client.begin(sk, data, waits)
    error: OSError | None = None
    try:
        if fastopen_client.is_deferred(sk):
            state.deferred = False
            handshake.connect(sk)
            error = _error(errno.EINPROGRESS, "Operation now in progress")
        else:
            connect(sk, addr, port)
    except OSError as raised:
        error = raised
    finally:
        copied = fastopen_client.end(state)
    if error is not None:
        if copied and error.errno == errno.EINPROGRESS:
            return copied
        raise error
    return copied + sendmsg(sk, memoryview(data)[copied:], flags)


def disconnect(sk: Sock) -> None:
    """connect(AF_UNSPEC): end whatever there is, by a reset where the peer may believe in it, and start afresh."""
    _disconnect(sk)
    sk.ss_state = SS_UNCONNECTED


def listen(sk: Sock, backlog: int) -> None:
    """Take connections; called again it only changes the backlog (bounded by somaxconn, which a negative one means).

    Raises OSError: EINVAL (there is, or was, a connection), EADDRINUSE."""
    if sk.ss_state != SS_UNCONNECTED or sk.state not in (CLOSE, LISTEN):
        raise _error(errno.EINVAL, "Invalid argument")
    limit = sk.sysctl.somaxconn
    sk.backlog = backlog if 0 <= backlog <= limit else limit
    if sk.state == LISTEN:
        return
    _ready(sk)
    fastopen.listen(sk)
    listening.start(sk)
    sk.state = LISTEN
    try:
        # again for a port held already: others may hold it that must not share it with a listener
        _take_port(sk, sk.bound_port)
        sk.host.hash(sk)
    except OSError:
        sk.state = CLOSE
        sk.syn_queue = sk.accept_queue = None
        raise


def accept(sk: Sock) -> Sock:
    """The oldest connection nobody has accepted, in whatever state it is by now.

    Raises OSError: EAGAIN (none waits), EINVAL (not a listener)."""
    if sk.state != LISTEN:
        raise _error(errno.EINVAL, "Invalid argument")
    if not sk.accept_queue:
        raise _error(errno.EAGAIN, "Resource temporarily unavailable")
    child: Sock = sk.accept_queue.popleft()
    child.ss_state = SS_CONNECTED
    child.parent = None
    return child


# ---------------------------------------------------------------- ending


def shutdown(sk: Sock, how: int) -> None:
    """Shut the receive side (SHUT_RD: nothing is sent, later data is still taken), the send side (FIN), or both.

    On a listener SHUT_RD ends listening; while connecting anything ends the attempt.
    Raises OSError: EINVAL (`how`), ENOTCONN (closed; the sides are shut all the same)."""
    if how not in (SHUT_RD, SHUT_WR, SHUT_RDWR):
        raise _error(errno.EINVAL, "Invalid argument")
    bits = how + 1
    if sk.ss_state == SS_CONNECTING:
        sk.ss_state = SS_DISCONNECTING if sk.state in (SYN_SENT, SYN_RECV, CLOSE) else SS_CONNECTED
    state = sk.state
    if state == SYN_SENT or (state == LISTEN and bits & RCV_SHUTDOWN):
        disconnect(sk)
        return
    if state == LISTEN:
        return
    sk.shutdown |= bits
    if bits & SEND_SHUTDOWN and state in (ESTABLISHED, CLOSE_WAIT):
        closing.send_no_more(sk)
    events = POLLOUT
    if sk.shutdown & RCV_SHUTDOWN:
        events |= POLLIN | POLLRDHUP
    if sk.shutdown == SHUTDOWN_MASK or state == CLOSE:
        events |= POLLHUP
    sk.host.wake(sk, events)
    if state == CLOSE:
        raise _error(errno.ENOTCONN, "Transport endpoint is not connected")


def close(sk: Sock) -> int:
    """Let go of the socket. Returns 0, or the ns SO_LINGER waits: then `finish_close` is still to be called,
    when `lingering` turns false or the time is over."""
    return closing.close(sk)


# ---------------------------------------------------------------- ioctls


def outq(sk: Sock) -> int:
    """SIOCOUTQ: bytes written and not acknowledged, a FIN counted as one. Raises OSError EINVAL on a listener."""
    if sk.state == LISTEN:
        raise _error(errno.EINVAL, "Invalid argument")
    return 0 if sk.state in (SYN_SENT, SYN_RECV) else sk.write_seq - sk.snd_una


def outq_unsent(sk: Sock) -> int:
    """SIOCOUTQNSD: bytes written and not sent yet. Raises OSError EINVAL on a listener."""
    if sk.state == LISTEN:
        raise _error(errno.EINVAL, "Invalid argument")
    return 0 if sk.state in (SYN_SENT, SYN_RECV) else sk.write_seq - sk.snd_nxt


def at_mark(sk: Sock) -> bool:
    """SIOCATMARK: the next byte to read is the urgent one."""
    return bool(sk.urg_data) and sk.urg_seq == sk.copied_seq
