"""The non-blocking UDP socket: BSD calls with Linux's results, over the endpoints of `net.udp`.

Like `Socket` it never waits and knows no trio: what would wait raises BlockingIOError, readiness is a
level (`poll`) and a callback (`notify`). What a call sends is with the device when it returns. Options
are in `udp_options`. A datagram is never cut without saying so: `recvmsg` gives MSG_TRUNC, and with
MSG_TRUNC in its flags the real length.

With MSG_MORE or UDP_CORK several sends make one datagram, which goes where the first of them named.
With UDP_SEGMENT one send makes many datagrams, with UDP_GRO one read takes as many as came in a super-frame.
Measured on Linux 6.18: which errno comes from which call in which state.
"""

from __future__ import annotations

import contextlib
import errno
import socket as stdlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from pytcp.net.datagram import Datagram
from pytcp.net.udp_output import PLAIN, check_size
from pytcp.tcp.const import POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, RCV_SHUTDOWN, SEND_SHUTDOWN, SHUTDOWN_MASK
from pytcp.wire.addr import is_link_local

from . import arguments, cmsg, udp_control, udp_options
from .address import AF_INET, AF_INET6, MAPPED_PREFIX, SockAddr, build, host_port, oserror, parse, peername
from .cmsg import MSG_ERRQUEUE, Ancillary

if TYPE_CHECKING:
    from pytcp.net.datagram import UdpSocket, Way
    from pytcp.net.interface import Interface
    from pytcp.tcp.skb import Buffer

MSG_OOB = int(stdlib.MSG_OOB)
MSG_PEEK = int(stdlib.MSG_PEEK)
MSG_TRUNC = int(stdlib.MSG_TRUNC)
MSG_CONFIRM = int(getattr(stdlib, "MSG_CONFIRM", 0x800))
MSG_MORE = int(getattr(stdlib, "MSG_MORE", 0x8000))

ALL_EVENTS = POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP
ORIGINS = {"local": 1, "icmp": 2, "icmp6": 3}
_SHUTDOWN = {0: RCV_SHUTDOWN, 1: SEND_SHUTDOWN, 2: SHUTDOWN_MASK}


def _nobody(mask: int) -> None:
    """`notify` of a socket nobody waits for."""


class DatagramHost(Protocol):
    """What a UDP socket needs of its stack; `TrioStack` is one."""

    def now(self) -> int:
        """Refresh the stack's clock."""

    def flush(self) -> None:
        """Give queued frames to the devices."""

    def new_endpoint(self, family: int) -> UdpSocket:
        """An endpoint, family 4 or 6."""

    def interface_of(self, index: int) -> Interface:
        """The interface of an index. Raises OSError ENODEV."""

    def opened(self, socket: DatagramSocket) -> None:
        """A socket exists; it is failed with `fail` when the stack ends before it."""

    def closed(self, socket: DatagramSocket) -> None:
        """It was closed."""


class DatagramSocket:
    """A UDP socket. Errors are OSError with Linux's errno; EBADF after `close`.

    host: the stack. family: AF_INET or AF_INET6.
    notify: called with readiness bits (`select.POLL*`) that may have come true; look with `poll`.
    """

    __slots__ = ("__weakref__", "_failure", "_flush", "_held", "_held_control", "_held_way", "_host", "_now", "_udp", "corked", "family", "kept", "notify")
    notify: Callable[[int], object]

    def __init__(self, host: DatagramHost, family: int = AF_INET) -> None:
        if arguments.c_int(family) not in (AF_INET, AF_INET6):
            raise oserror(errno.EAFNOSUPPORT, f"family {family}")
        self.family = family
        self.notify = _nobody
        self.kept: dict[tuple[int, int], int | bytes] = {}  # options that are only remembered
        self._udp: UdpSocket | None = host.new_endpoint(4 if family == AF_INET else 6)
        self._udp.on_ready = self._ready
        self._host = host
        self._now = host.now
        self._flush = host.flush
        self._failure: OSError | None = None
        self.corked = False  # UDP_CORK
        self._held: bytearray | None = None  # a datagram that is not complete yet
        self._held_control = PLAIN
        self._held_way: Way | None = None
        host.opened(self)

    def _ready(self, mask: int) -> None:
        self.notify(mask)

    def check_open(self) -> UdpSocket:
        """The endpoint. Raises EBADF after `close`, or why the stack is gone."""
        udp = self._udp
        if udp is None:
            if self._failure is None:
                raise oserror(errno.EBADF, "the socket was closed")
            raise OSError(self._failure.errno, self._failure.strerror) from self._failure
        self._now()
        return udp

    def fail(self, error: OSError) -> None:
        """The stack can carry it no further: every further call raises `error`."""
        if self._udp is not None:
            self._failure = error
            self._end()

    def _end(self) -> None:
        udp, self._udp = self._udp, None
        if udp is not None:
            udp.close()
            self._host.closed(self)
            self.notify(ALL_EVENTS)

    # --- addresses ---

    def _where(self, address: object) -> tuple[bytes, int, Interface | None]:
        """(address bytes as the endpoint takes them, port, interface of a link-local address)."""
        raw, port, scope = parse(self.family, address)
        if self.family == AF_INET6 and len(raw) == 4:
            raw = MAPPED_PREFIX + raw
        dev = self._host.interface_of(scope) if scope and is_link_local(raw) else None
        return raw or bytes(4 if self.family == AF_INET else 16), port, dev

    def _shown(self, raw: bytes, port: int, dev: Interface | None = None) -> SockAddr:
        scope = dev.index if dev is not None and len(raw) == 16 and is_link_local(raw) else 0
        return build(self.family, raw, port, scope)

    def bind(self, address: SockAddr) -> None:
        """Take a local address and port; port 0 picks one. Raises EADDRINUSE, EADDRNOTAVAIL, EINVAL."""
        udp = self.check_open()
        raw, port, dev = self._where(address)
        udp.bind(raw, port)
        if dev is not None:
            udp.bound_dev_if = dev.index

    def connect(self, address: SockAddr) -> None:
        """Fix the peer: others are not heard, and errors of the network are told. Raises ENETUNREACH, EACCES, ..."""
        udp = self.check_open()
        raw, port, dev = self._where(address)
        if dev is None and not udp.bound_dev_if and is_link_local(raw):
            raise oserror(errno.EINVAL, "a link-local peer needs an interface")
        udp.connect(raw, port, dev)

    def disconnect(self) -> None:
        """connect() with AF_UNSPEC: hear everybody again."""
        self.check_open().disconnect()

    def getsockname(self) -> SockAddr:
        """The local address; a wildcard before `bind`, and port 0 before anything was sent."""
        udp = self.check_open()
        return self._shown(udp.saddr, udp.lport, udp.dev)

    def getpeername(self) -> SockAddr:
        """The peer of a connected socket. Raises ENOTCONN."""
        udp = self.check_open()
        if not udp.rport:
            raise oserror(errno.ENOTCONN)
        return self._shown(udp.raddr, udp.rport, udp.dev)

    # --- what only streams do ---

    def listen(self, backlog: int = 0) -> None:
        """Raises EOPNOTSUPP."""
        arguments.c_int(backlog)
        self.check_open()
        raise oserror(errno.EOPNOTSUPP, "a datagram socket does not listen")

    def accept(self) -> tuple[DatagramSocket, SockAddr]:
        """Raises EOPNOTSUPP."""
        self.check_open()
        raise oserror(errno.EOPNOTSUPP, "a datagram socket accepts nothing")

    # --- data ---

    def send(self, data: Buffer, flags: int = 0) -> int:
        """Send a datagram to the connected peer; returns its length.

        A pending error of the network is raised instead, once. Raises EDESTADDRREQ, EMSGSIZE, EPIPE, ..."""
        return self._send(data, flags, None)

    def sendto(self, data: Buffer, address: SockAddr, flags: int = 0) -> int:
        """Send a datagram to `address`; as `send`, and EINVAL for port 0, EACCES for broadcasts without SO_BROADCAST."""
        if address is None:
            raise TypeError("an address is a tuple (host, port), not None")
        return self._send(data, flags, address)

    def sendmsg(self, buffers: Iterable[Buffer], ancdata: Iterable[tuple[int, int, Buffer]] = (), flags: int = 0, address: SockAddr | None = None) -> int:
        """Send the buffers as one datagram.

        Control data of its own: IP_TTL, IP_TOS, IP_PKTINFO (its source address and interface), IPV6_HOPLIMIT, IPV6_TCLASS, IPV6_PKTINFO,
        IPV6_DONTFRAG; UDP_SEGMENT makes it many. Other levels are ignored, other messages of these are EINVAL."""
        return self._send(arguments.joined(buffers), flags, address, arguments.control(ancdata))

    def _send(self, data: Buffer, flags: int, address: SockAddr | None, ancdata: Ancillary | None = None) -> int:
        payload, flags = bytes(arguments.buffer(data)), arguments.c_int(flags)
        udp = self.check_open()
        udp.autobind()
        if self.family == AF_INET and len(payload) > 0xFFFF:
            raise oserror(errno.EMSGSIZE)
        if flags & MSG_OOB:
            raise oserror(errno.EOPNOTSUPP, "datagrams have no urgent data")
        if self._held is not None:
            # where it goes and what its control data asks for was said when it was begun
            assert self._held_way is not None
            if address is not None and self._held_way.dst.family == 6 and len(udp.destination(self._where(address)[0])) == 4:
                raise oserror(errno.EINVAL, "a datagram of IPv6 is being made")
            return self._append(udp, payload, bool(flags & MSG_MORE))
        if address is not None:
            addr, port, dev = self._where(address)
        elif udp.raddr:
            addr, port, dev = udp.raddr, udp.rport, None
        else:
            raise oserror(errno.EDESTADDRREQ)
        daddr = udp.destination(addr)
        if len(daddr) == 4 and len(payload) > 0xFFFF:
            raise oserror(errno.EMSGSIZE)
        if not port:
            raise oserror(errno.EINVAL, "port 0")
        control = udp_control.outgoing(self, udp, ancdata, len(daddr) == 16) if ancdata else PLAIN
        way = udp.way(daddr, port, dev, control)
        if self.corked or flags & MSG_MORE:
            self._held, self._held_way = bytearray(), way
            self._held_control = control if control.gso_size is not None else control._replace(gso_size=udp.gso_size)
            return self._append(udp, payload, True)
        try:
            return udp.transmit(way, payload, confirm=bool(flags & MSG_CONFIRM), control=control)
        finally:
            self._flush()

    def _append(self, udp: UdpSocket, payload: bytes, more: bool) -> int:
        """Add to the datagram that is being made, and send it unless more is to come. Raises EMSGSIZE, ... (and drops it all)."""
        held, way = self._held, self._held_way
        assert held is not None and way is not None
        held += payload
        try:
            check_size(udp, way.dst, way.port, len(held), self._held_control)
            udp.claim()
        except OSError:
            self._held = None
            raise
        if not self.corked and not more:
            self._push(udp)
        return len(payload)

    def _push(self, udp: UdpSocket) -> None:
        """Send the datagram that was being made."""
        held, self._held = self._held, None
        if held is not None and self._held_way is not None:
            try:
                udp.transmit(self._held_way, bytes(held), control=self._held_control)
            finally:
                self._flush()

    def cork(self, on: bool) -> None:
        """UDP_CORK: hold what is sent; taken off, it goes out as one datagram."""
        udp = self.check_open()
        self.corked = on
        if not on:
            with contextlib.suppress(OSError):  # nobody is told
                self._push(udp)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """The next datagram, cut to `bufsize` bytes: the rest of it is lost.

        flags: MSG_PEEK leaves it queued (from SO_PEEK_OFF on). With MSG_TRUNC the result has the datagram's length, its end zeros.
        Raises BlockingIOError when there is none, and a pending error of the network, once."""
        return self.recvmsg(arguments.size(bufsize, "recv"), 0, flags)[0]

    def recvfrom(self, bufsize: int, flags: int = 0) -> tuple[bytes, SockAddr]:
        """As `recv`, with who sent it."""
        data, _, _, address = self.recvmsg(arguments.size(bufsize, "recvfrom"), 0, flags)
        return data, address

    def recv_into(self, buffer: bytearray | memoryview, nbytes: int = 0, flags: int = 0) -> int:
        """As `recv` into a buffer; returns how many bytes, with MSG_TRUNC the datagram's length."""
        return self.recvfrom_into(buffer, nbytes, flags)[0]

    def recvfrom_into(self, buffer: bytearray | memoryview, nbytes: int = 0, flags: int = 0) -> tuple[int, SockAddr]:
        """As `recv_into`, with who sent it. Raises ValueError for more bytes than the buffer has."""
        view = arguments.room(buffer, nbytes, "recv_into")
        data, address = self.recvfrom(len(view), flags)
        kept = min(len(data), len(view))
        view[:kept] = data[:kept]
        return len(data), address

    def recvmsg(self, bufsize: int, ancbufsize: int = 0, flags: int = 0) -> tuple[bytes, Ancillary, int, SockAddr]:
        """(data, control data, MSG_TRUNC | MSG_CTRUNC | MSG_ERRQUEUE, source) of the next datagram.

        Control data: IP_PKTINFO, IP_TTL, IP_TOS and their IPv6 namesakes when asked for by option; with
        MSG_ERRQUEUE the report of a failed datagram (IP_RECVERR)."""
        bufsize, ancbufsize, flags = arguments.size(bufsize, "recvmsg"), arguments.size(ancbufsize, "recvmsg"), arguments.c_int(flags)
        udp = self.check_open()
        if flags & MSG_ERRQUEUE:
            return self._recv_error(udp, bufsize, ancbufsize)
        datagram, at = udp.peek() if flags & MSG_PEEK else (udp.recv(), 0)
        ancillary, result = cmsg.fit(udp_control.ancillary(self, udp, datagram), ancbufsize)
        whole = len(datagram.data)
        data = datagram.data[at : at + bufsize]
        if bufsize <= whole - at and bufsize < whole:
            result |= MSG_TRUNC  # also when the rest behind SO_PEEK_OFF just fits
        if flags & MSG_TRUNC:
            data += bytes(whole - len(data))
        udp.moved(len(data) if flags & MSG_PEEK else -len(data))
        return data, ancillary, result, self._sender(datagram)

    def _sender(self, datagram: Datagram) -> SockAddr:
        return self._shown(datagram.source, datagram.sport, datagram.dev)

    def _recv_error(self, udp: UdpSocket, bufsize: int, ancbufsize: int) -> tuple[bytes, Ancillary, int, SockAddr]:
        report = udp.recv_error()
        error = cmsg.extended_error(self.family, report.errno, ORIGINS[report.origin], report.type, report.code, report.info, report.offender)
        ancillary, result = cmsg.fit([error], ancbufsize)
        if len(report.data) > bufsize:
            result |= MSG_TRUNC
        return bytes(report.data[:bufsize]), ancillary, result | MSG_ERRQUEUE, build(self.family, report.dst, report.dport)

    def poll(self) -> int:
        """The readiness bits that are true now (`select.POLL*`)."""
        return self.check_open().poll()

    # --- closing ---

    def shutdown(self, how: int) -> None:
        """SHUT_RD, SHUT_WR or SHUT_RDWR. Raises ENOTCONN when unconnected, and yet shuts down, as Linux does; EINVAL."""
        how = arguments.c_int(how)
        udp = self.check_open()
        if how not in _SHUTDOWN:
            raise oserror(errno.EINVAL, f"shutdown({how})")
        udp.shutdown |= _SHUTDOWN[how]
        self.notify(ALL_EVENTS)
        if not udp.rport:
            raise oserror(errno.ENOTCONN)

    def close(self) -> None:
        """Give the port back and forget what is queued. Harmless when done before."""
        self._failure = None
        self._end()

    # --- options ---

    def setsockopt(self, level: int, option: int, value: int | Buffer) -> None:
        """Set an option by its Linux numbers, to a C int or to bytes. Raises ENOPROTOOPT, EINVAL, ...; TypeError, OverflowError."""
        level, option, value = arguments.option(level, option, value)
        udp_options.setsockopt(self, self.check_open(), level, option, value)

    def getsockopt(self, level: int, option: int, buflen: int = 0) -> int | bytes:
        """The value of an option: an int, or with `buflen` the bytes Linux would copy out."""
        level, option, buflen = arguments.query(level, option, buflen)
        if (level, option) == (cmsg.SOL_SOCKET, udp_options.SO_PEERNAME):
            return peername(self.getpeername(), buflen)
        return udp_options.getsockopt(self, self.check_open(), level, option, buflen)

    def interface_of(self, index: int) -> Interface:
        """The stack's interface of an index. Raises ENODEV."""
        return self._host.interface_of(index)

    def __repr__(self) -> str:
        udp = self._udp
        if udp is None:
            return "<pytcp DatagramSocket closed>"
        local = host_port(*build(self.family, udp.saddr, udp.lport)[:2])
        peer = f" -> {host_port(*build(self.family, udp.raddr, udp.rport)[:2])}" if udp.raddr else ""
        return f"<pytcp DatagramSocket {local}{peer}>"
