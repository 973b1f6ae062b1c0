"""The non-blocking TCP socket: BSD calls with Linux's results, over the engine's `tcp.api`.

Nothing here waits and nothing here knows trio. A call that would block raises BlockingIOError (EAGAIN;
EINPROGRESS from `connect`). Readiness is a level, `poll()`, and a callback, `notify`, which the host
calls at most once per batch of frames. Streams, listeners and script runners are built on this class.

Every call refreshes `now` before and flushes the TX rings after (docs/architecture.md): what a call
sent is with the device when the call returns, and completes in a later pass.
"""

from __future__ import annotations

import errno
import socket as stdlib
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from pytcp.tcp import api, rx_timestamps, sockopt_socket
from pytcp.tcp.const import MSG_PEEK, POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDHUP, STATE_NAMES
from pytcp.tcp.timestamping import OPT_STATS, ORIGIN_TIMESTAMPING, SOFTWARE
from pytcp.wire.addr import is_link_local

from . import arguments, cmsg
from .address import AF_INET, AF_INET6, SockAddr, build, host_port, oserror, parse, peername
from .cmsg import MSG_ERRQUEUE, Ancillary

if TYPE_CHECKING:
    from pytcp.net.stack import Stack
    from pytcp.tcp.info import TcpInfo
    from pytcp.tcp.skb import Buffer
    from pytcp.tcp.sock import Sock

SHUT_RD = 0
SHUT_WR = 1
SHUT_RDWR = 2

SOL_SOCKET = int(stdlib.SOL_SOCKET)
SO_ERROR = int(stdlib.SO_ERROR)
SO_REUSEADDR = int(stdlib.SO_REUSEADDR)
SO_ACCEPTCONN = int(stdlib.SO_ACCEPTCONN)
SO_LINGER = int(stdlib.SO_LINGER)
SO_DOMAIN = int(stdlib.SO_DOMAIN)
SO_PEERNAME = 28
SCM_TXTIME = sockopt_socket.SO_TXTIME
IPPROTO_TCP = int(stdlib.IPPROTO_TCP)
IPPROTO_IPV6 = int(stdlib.IPPROTO_IPV6)
IPV6_V6ONLY = int(stdlib.IPV6_V6ONLY)
IPV6_ADDRFORM = 1
TCP_NODELAY = int(stdlib.TCP_NODELAY)
TCP_INQ = 36  # of the option and of its control message

_LEVELS4 = (SOL_SOCKET, int(stdlib.IPPROTO_IP), IPPROTO_TCP)  # of an AF_INET socket: it refuses others in its own way

ALL_EVENTS = POLLIN | POLLPRI | POLLOUT | POLLERR | POLLHUP | POLLRDHUP
MAX_BACKLOG = 0xFFFF
RESET_ON_CLOSE = struct.pack("=ii", 1, 0)  # struct linger

MSG_OOB = int(stdlib.MSG_OOB)
MSG_TRUNC = int(stdlib.MSG_TRUNC)
MSG_FASTOPEN = 0x20000000
MSG_ZEROCOPY = 0x4000000
_IGNORED_CONTROL = (1, 2, 12, 36)  # SCM_RIGHTS, SCM_CREDENTIALS, SO_PRIORITY, SO_MARK

SIOCINQ = 0x541B
SIOCOUTQ = 0x5411
SIOCOUTQNSD = 0x894B
SIOCATMARK = 0x8905
IOCTLS = {SIOCINQ: api.inq, SIOCOUTQ: api.outq, SIOCOUTQNSD: api.outq_unsent, SIOCATMARK: api.at_mark}


def _received(sk: Sock, upto: int) -> Ancillary:
    """When what was read had come, the last of it ending before `upto`, as far as the socket wants to know."""
    stamp_ns = rx_timestamps.of_read(sk, upto)
    found: Ancillary = []
    if not stamp_ns:
        return found
    new = api.new_timestamps(sk)
    kind = (sk.optmem or {}).get(rx_timestamps.KIND)
    if kind:
        found.append(cmsg.timestamp(stamp_ns, nanoseconds=kind == rx_timestamps.NANOSECONDS, new=new))
    if sk.tstamp_flags & SOFTWARE:
        found.append(cmsg.timestamping(stamp_ns, new=new))
    return found


def _nobody(mask: int) -> None:
    """`notify` of a socket nobody waits for."""


class SocketHost(Protocol):
    """What a socket needs of its stack; `open_stack`'s `TrioStack` is one."""

    def now(self) -> int:
        """Refresh the engine's clock."""

    def flush(self) -> None:
        """Give queued frames to the devices."""

    def new_sock(self, family: int) -> Sock:
        """An engine socket, family 4 or 6."""

    def opened(self, socket: Socket) -> None:
        """A socket exists; it is failed with `Socket.fail` when the stack ends before it."""

    def closed(self, socket: Socket) -> None:
        """It was closed."""


class StackHost:
    """A stack as its sockets want it, where nobody keeps account of them: they end with it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.now = stack.now
        self.flush = stack.flush

    def new_sock(self, family: int) -> Sock:
        return self.stack.new_sock(family)

    def opened(self, socket: Socket) -> None:
        """It ends with the stack."""

    def closed(self, socket: Socket) -> None:
        """Nothing is counted here."""


class Socket:
    """A TCP socket. Errors are OSError with Linux's errno; EBADF after `close`.

    host: the stack. family: AF_INET or AF_INET6. sk: an engine socket that exists already (accept).
    notify: called with readiness bits (`select.POLL*`) that may have come true; look with `poll`.
    """

    __slots__ = ("__weakref__", "_failure", "_flush", "_host", "_lingering", "_now", "family", "notify", "sk")
    notify: Callable[[int], object]

    def __init__(self, host: SocketHost, family: int = AF_INET, *, sk: Sock | None = None) -> None:
        if arguments.c_int(family) not in (AF_INET, AF_INET6):
            raise oserror(errno.EAFNOSUPPORT, f"family {family}")
        self.family = family
        self.notify = _nobody
        self.sk: Sock | None = host.new_sock(4 if family == AF_INET else 6) if sk is None else sk
        self._host = host
        self._now = host.now
        self._flush = host.flush
        self._failure: OSError | None = None
        self._lingering: Sock | None = None
        self.sk.user = self
        host.opened(self)

    def on_events(self, mask: int) -> None:
        """Readiness bits that may have come true; the host calls `notify` itself, at the end of a batch."""
        self.notify(mask)

    def fail(self, error: OSError) -> None:
        """The stack can carry it no further: the connection is reset, every further call raises `error`."""
        sk = self.sk or self._lingering
        if sk is None:
            return
        self._failure = error
        self.sk = self._lingering = None
        api.setsockopt(sk, SOL_SOCKET, SO_LINGER, RESET_ON_CLOSE)
        api.close(sk)
        self._host.closed(self)
        self.notify(ALL_EVENTS)

    def _gone(self) -> OSError:
        failure = self._failure
        if failure is None:
            return oserror(errno.EBADF, "the socket was closed")
        error = OSError(failure.errno, failure.strerror)
        error.__cause__ = failure
        return error

    def check_open(self) -> Sock:
        """The engine's socket. Raises EBADF after `close`, or why the stack is gone."""
        sk = self.sk
        if sk is None:
            raise self._gone()
        self._now()
        return sk

    # --- opening ---

    def bind(self, address: SockAddr) -> None:
        """Take a local address and port; port 0 picks one. Raises EADDRINUSE, EADDRNOTAVAIL, EINVAL."""
        sk = self.check_open()
        addr, port, scope_id = parse(self.family, address)
        api.bind(sk, addr, port, scope_id)

    def connect(self, address: SockAddr) -> None:
        """Start a connection: BlockingIOError EINPROGRESS, then POLLOUT and SO_ERROR tell the outcome.

        Called again it tells how far it is: EALREADY, 0 once, EISCONN, or the error of the attempt.
        """
        sk = self.check_open()
        addr, port, scope_id = parse(self.family, address)
        try:
            api.connect(sk, addr, port, scope_id)
        finally:
            self._flush()

    def disconnect(self) -> None:
        """connect() with AF_UNSPEC: reset the peer and be a fresh socket again."""
        sk = self.check_open()
        try:
            api.disconnect(sk)
        finally:
            self._flush()

    def listen(self, backlog: int = MAX_BACKLOG) -> None:
        """Accept connections, at most `backlog` (bounded by net.core.somaxconn) waiting for `accept`."""
        backlog = arguments.c_int(backlog)
        api.listen(self.check_open(), backlog)

    def accept(self) -> tuple[Socket, SockAddr]:
        """(socket, peer address) of the next finished handshake. Raises BlockingIOError when there is none."""
        child = api.accept(self.check_open())
        return Socket(self._host, self.family, sk=child), self._shown(child, child.daddr, child.dport)

    def accept_socket(self) -> Socket:
        """As `accept`, for those who do not ask where it comes from."""
        return Socket(self._host, self.family, sk=api.accept(self.check_open()))

    # --- data ---

    def send(self, data: Buffer, flags: int = 0) -> int:
        """Queue bytes; returns how many there was room for. Large `bytes` are kept by reference.

        flags: MSG_MORE, MSG_OOB, MSG_EOR, MSG_ZEROCOPY (with SO_ZEROCOPY: the buffer is the stack's until a record of
        the error queue says that the call is over). Raises BlockingIOError without room, EPIPE, ECONNRESET, ...
        """
        if data.__class__ is not bytes and not (isinstance(data, memoryview) and data.c_contiguous):
            data = arguments.buffer(data)
        if flags != 0:
            flags = arguments.c_int(flags)
        sk = self.sk
        if sk is None:
            raise self._gone()
        self._now()
        try:
            if flags and flags & (MSG_FASTOPEN | MSG_ZEROCOPY):
                return self._send_specially(sk, [data], flags, b"", 0, False)
            return api.sendmsg(sk, data, flags)
        finally:
            self._flush()

    def sendto(self, data: Buffer, flags: int, address: SockAddr, *, waits: bool = False) -> int:
        """As `send`; the address counts with MSG_FASTOPEN only, which connects to it and sends the first bytes in the SYN (RFC 7413).

        waits: the caller waits for the connection then, and writes the rest (the handshake's last ACK rides on it).
        Returns how many the SYN took. Raises BlockingIOError (EINPROGRESS) when it could only ask for a cookie, EOPNOTSUPP where
        net.ipv4.tcp_fastopen does not allow it, else as `connect`."""
        if not flags & MSG_FASTOPEN:
            return self.send(data, flags)
        sk = self.check_open()
        addr, port, _ = parse(self.family, address)
        try:
            return self._send_specially(sk, [data], flags, addr, port, waits)
        finally:
            self._flush()

    def _send_specially(self, sk: Sock, buffers: list[Buffer], flags: int, addr: bytes, port: int, waits: bool) -> int:
        if not flags & MSG_FASTOPEN:
            return api.send_zerocopy(sk, buffers, flags)
        done = api.send_fastopen(sk, b"".join(buffers), flags, addr, port, waits)
        return api.sent_by_copy(sk, done) if flags & MSG_ZEROCOPY else done

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Up to `bufsize` received bytes; b"" at the end. flags: MSG_PEEK, MSG_OOB, MSG_TRUNC.

        Raises BlockingIOError when there are none, ENOTCONN, ECONNRESET, ...
        """
        if bufsize.__class__ is not int or bufsize < 0:
            bufsize = arguments.size(bufsize, "recv")
        if flags != 0:
            flags = arguments.c_int(flags)
        sk = self.sk
        if sk is None:
            raise self._gone()
        self._now()
        try:
            return api.recv(sk, bufsize, flags)
        finally:
            self._flush()

    def recv_into(self, buffer: bytearray | memoryview, flags: int = 0) -> int:
        """As `recv`, into a buffer of the caller; returns how many bytes."""
        view, flags = arguments.room(buffer, 0, "recv_into"), arguments.c_int(flags)
        sk = self.check_open()
        try:
            return api.recv_into(sk, view, flags)
        finally:
            self._flush()

    def sendmsg(self, buffers: Iterable[Buffer], ancdata: Iterable[tuple[int, int, Buffer]] = (), flags: int = 0) -> int:
        """As `send`, of several buffers in a row.

        Control data as Linux treats it here: what is not of level SOL_SOCKET is ignored, SO_MARK, SO_PRIORITY and what
        belongs to Unix sockets is accepted without effect on a stream, and so is SCM_TXTIME after SO_TXTIME; anything else is EINVAL."""
        buffers = list(buffers)
        data, control = arguments.joined(buffers), arguments.control(ancdata)
        sk = self.check_open()
        for level, kind, sent in control:
            timed = kind == SCM_TXTIME and len(sent) == 8 and api.takes_txtime(sk)
            if level == SOL_SOCKET and kind not in _IGNORED_CONTROL and not timed:
                raise oserror(errno.EINVAL, "unknown control message")
        if flags & MSG_ZEROCOPY and not flags & MSG_FASTOPEN:
            try:
                return api.send_zerocopy(sk, buffers, flags)
            finally:
                self._flush()
        return self.send(data, flags)

    def recvmsg(self, bufsize: int, ancbufsize: int = 0, flags: int = 0) -> tuple[bytes, Ancillary, int, SockAddr | None]:
        """(data, control data, message flags, address) as `socket.recvmsg` of a stream; the address is None.

        With SO_TIMESTAMP or its kin the control data says when the last of the data had come.
        With the option TCP_INQ it says how many bytes are left to read (TCP_CM_INQ, an int).
        With MSG_ERRQUEUE the oldest ICMP error kept under IP_RECVERR, or EAGAIN when there is none: as data the segment
        it was about, as far as it was quoted, as address where that was going, and as control data a struct
        sock_extended_err followed by the sockaddr of who reported the error (ip(7)). Notices of MSG_ZEROCOPY come the same way."""
        if bufsize < 0 or ancbufsize < 0:
            raise ValueError("negative buffersize in recvmsg")
        sk = self.check_open()
        if not flags & MSG_ERRQUEUE:
            begin = sk.copied_seq + max(sk.peek_off, 0)
            data = self.recv(bufsize, flags)
            control: Ancillary = []
            if sk.rx_stamps is not None and data and not flags & MSG_OOB:
                control = _received(sk, begin + len(data) if flags & MSG_PEEK else sk.copied_seq)
            if sk.optmem is not None and sk.optmem.get((IPPROTO_TCP, TCP_INQ)):
                control.append((IPPROTO_TCP, TCP_INQ, struct.pack("=i", api.inq_hint(sk))))
            if not control:
                return data, [], flags & MSG_OOB, None
            ancillary, result = cmsg.fit(control, ancbufsize)
            return data, ancillary, result | flags & MSG_OOB, None
        report = api.read_error_queue(sk)
        error = cmsg.extended_error(self.family, report.errno, report.origin, report.type, report.code, report.info, report.offender, report.data)
        control = [error]
        if report.origin == ORIGIN_TIMESTAMPING:
            if sk.tstamp_flags & SOFTWARE:
                control.insert(0, cmsg.timestamping(report.stamp_ns, new=api.new_timestamps(sk)))
            if sk.tstamp_flags & OPT_STATS:
                control.insert(-1, (cmsg.SOL_SOCKET, cmsg.SCM_TIMESTAMPING_OPT_STATS, report.payload))
        ancillary, result = cmsg.fit(control, ancbufsize)
        if len(report.payload) > bufsize:
            result |= MSG_TRUNC
        peer = self._shown(sk, sk.daddr, int.from_bytes(report.payload[2:4], "big"))
        return report.payload[:bufsize], ancillary, result | MSG_ERRQUEUE, peer

    def ioctl(self, request: int) -> int:
        """SIOCINQ (FIONREAD), SIOCOUTQ (TIOCOUTQ), SIOCOUTQNSD: bytes to read, not acknowledged, not sent; SIOCATMARK: 1 before
        the urgent byte. Raises OSError EINVAL on a listener, ENOTTY for another request."""
        sk = self.check_open()
        call = IOCTLS.get(request)
        if call is None:
            raise oserror(errno.ENOTTY, "Inappropriate ioctl for device")
        return int(call(sk))

    def would_block(self) -> bool:
        """Whether `recv` (of a listener: `accept`) would do nothing but raise BlockingIOError, told without the price of that."""
        sk = self.sk
        return sk is not None and api.would_block(sk)

    def poll(self) -> int:
        """The readiness bits that are true now (`select.POLL*`)."""
        return api.poll(self.check_open())

    # --- closing ---

    def shutdown(self, how: int) -> None:
        """SHUT_RD, SHUT_WR or SHUT_RDWR. Raises ENOTCONN, EINVAL."""
        how = arguments.c_int(how)
        sk = self.check_open()
        try:
            api.shutdown(sk, how)
        finally:
            self._flush()

    def close(self) -> None:
        """Let the connection go: FIN behind queued data, RST when received data was not read.

        It goes on by itself; a positive SO_LINGER is not waited for here. Harmless when done before.
        """
        if self.begin_close():
            self.end_close()

    def begin_close(self) -> int:
        """Close; returns for how many ns SO_LINGER asks to wait for the peer's ACK of the FIN before
        `end_close`, 0 when everything is done. `notify` is called when `lingering` may have ended."""
        sk = self.sk
        if sk is None:
            self._failure = None
            return 0
        self._now()
        self.sk = None
        self._lingering = sk
        try:
            linger_ns = api.close(sk)
        finally:
            self._host.closed(self)
            self.notify(ALL_EVENTS)
            self._flush()
        if not linger_ns:
            self._lingering = None
        return linger_ns

    def lingering(self) -> bool:
        """Whether a FIN sent by `begin_close` is still without an ACK."""
        return self._lingering is not None and api.lingering(self._lingering)

    def end_close(self) -> None:
        """Wait no longer: what is left of the connection is the stack's."""
        sk, self._lingering = self._lingering, None
        if sk is not None:
            self._now()
            api.finish_close(sk)
            self._flush()

    def abort(self) -> None:
        """Close with a RST, whatever is queued (SO_LINGER of 0 seconds)."""
        if self.sk is not None:
            self.setsockopt(SOL_SOCKET, SO_LINGER, RESET_ON_CLOSE)
            self.close()

    # --- what it is ---

    def getsockname(self) -> SockAddr:
        """The local address."""
        sk = self.check_open()
        addr, port = api.getsockname(sk)
        return self._shown(sk, addr, port)

    def getpeername(self) -> SockAddr:
        """The remote address. Raises ENOTCONN."""
        sk = self.check_open()
        addr, port = api.getpeername(sk)
        return self._shown(sk, addr, port)

    def _shown(self, sk: Sock, addr: bytes, port: int) -> SockAddr:
        return build(self.family, addr, port, sk.bound_dev_if if len(addr) == 16 and is_link_local(addr) else 0)

    def setsockopt(self, level: int, option: int, value: int | Buffer) -> None:
        """Set an option by its Linux numbers, to a C int or to bytes. Raises ENOPROTOOPT, EINVAL, ...; TypeError, OverflowError."""
        level, option, value = arguments.option(level, option, value)
        sk = self.check_open()
        if self.family == AF_INET and level not in _LEVELS4:
            raise oserror(errno.ENOPROTOOPT, f"level {level}")
        if (level, option) in api.MD5_KEYS and not isinstance(value, int) and int.from_bytes(value[:2], "little") != self.family:
            raise oserror(errno.EINVAL, "the key is for an address of another family")
        try:
            api.setsockopt(sk, level, option, value)
        finally:
            self._flush()
        if (level, option) == (IPPROTO_IPV6, IPV6_ADDRFORM):
            self.family = AF_INET  # it was connected to a mapped address, or the engine would have refused

    def getsockopt(self, level: int, option: int, buflen: int = 0) -> int | bytes:
        """The value of an option: an int, or with `buflen` the bytes Linux would copy out."""
        level, option, buflen = arguments.query(level, option, buflen)
        sk = self.check_open()
        if self.family == AF_INET and level not in _LEVELS4:
            raise oserror(errno.EOPNOTSUPP, f"level {level}")
        if (level, option) == (SOL_SOCKET, SO_DOMAIN):
            # the engine knows only what the connection speaks, which may be IPv4 on an IPv6 socket
            return self.family if not buflen else self.family.to_bytes(4, "little")[:buflen]
        if (level, option) == (SOL_SOCKET, SO_PEERNAME):
            return peername(self.getpeername(), buflen)
        return api.getsockopt(sk, level, option, buflen)

    def info(self) -> TcpInfo:
        """tcp_info of the connection."""
        return api.tcp_info(self.check_open())

    def __repr__(self) -> str:
        if self.sk is None:
            return "<pytcp Socket closed>"
        sk = self.sk
        local, remote = build(self.family, sk.saddr, sk.sport), build(self.family, sk.daddr, sk.dport)
        return f"<pytcp Socket {STATE_NAMES[sk.state]} {host_port(*local[:2])} -> {host_port(*remote[:2])}>"
