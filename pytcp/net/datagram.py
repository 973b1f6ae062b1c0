"""A UDP endpoint: bind, connect, send, receive, and the errors that come back.

Non-blocking: what would wait raises BlockingIOError, and `on_ready` tells of readiness. The receive
queue is bounded in truesize (SO_RCVBUF), the newest datagram is dropped when it is full. Errors of the
network reach a connected endpoint as one pending errno; with `recverr` they are also queued whole
(IP_RECVERR), for unconnected endpoints too. The path MTU modes are IP_MTU_DISCOVER's.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from pytcp.tcp.const import POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, RCV_SHUTDOWN, SEND_SHUTDOWN, SHUTDOWN_MASK
from pytcp.tcp.sockopt_ip import narrowed
from pytcp.wire.addr import IP4_ANY, IP4_BROADCAST, IP6_ANY, IP6_LOOPBACK, is_multicast

from . import addr as A
from . import udp_output
from .route import BROADCAST, Dst
from .udp_output import DONT, INTERFACE, OMIT, PLAIN, WANT, Control

if TYPE_CHECKING:
    from pytcp.wire.icmp import Quoted

    from .interface import Interface
    from .stack import Stack
    from .udp import UdpTable

MIN_RCVBUF = 2304
MIN_SNDBUF = 4608
ERRORS_KEPT = 64  # reports queued per endpoint

ORIGIN_LOCAL = "local"
ORIGIN_ICMP = {4: "icmp", 6: "icmp6"}


class Datagram(NamedTuple):
    """What was received, and from whom."""

    data: bytes
    source: bytes
    sport: int
    dst: bytes
    dev: Interface
    ttl: int
    tos: int
    bad: bool  # its checksum is wrong, which shows when it is read
    truesize: int
    flow: int = 0  # IPv6 flow label
    drops: int = 0  # lost by the endpoint before this one (SO_RXQ_OVFL)
    stamp_ns: int = 0  # when it came, since the epoch; 0: nobody had asked
    gso_size: int = 0  # it is many datagrams of so many bytes, the last perhaps shorter (UDP_GRO)
    seen: bool = False  # shown to somebody who only looked


class ErrorReport(NamedTuple):
    """One entry of the error queue (struct sock_extended_err and the address beside it)."""

    errno: int
    origin: str  # local, icmp, icmp6
    type: int
    code: int
    info: int  # the MTU of a path MTU report
    offender: bytes  # who sent the error; b"" for local ones
    data: bytes  # payload as far as it was quoted
    dst: bytes  # where the datagram was going
    dport: int


class Way(NamedTuple):
    """Where a datagram goes, and from which address."""

    dst: Dst
    saddr: bytes
    port: int


class UdpSocket:
    """One endpoint; made by `UdpTable.socket`."""

    __slots__ = (
        "stack", "table", "family", "saddr", "bound_addr", "lport", "raddr", "rport", "bound_dev_if", "reuseaddr", "reuseport", "v6only", "broadcast",
        "tos", "ttl", "multicast_ttl", "multicast_all", "pmtu_disc", "dontfrag", "recverr", "no_check6_rx", "rcvbuf", "rmem", "queue", "errors", "err",
        "on_ready", "closed", "ip_id", "groups", "sndbuf", "shutdown", "freebind", "multicast_dev", "port_given",
        "multicast_loop", "autoflowlabel", "port_range", "no_check", "no_check6_tx", "gso_size", "gro",
        "hops", "multicast_hops", "tclass", "pmtu_disc6", "recverr6", "multicast_loop6", "multicast_all6", "frag_size", "transparent", "unicast_if",
        "unicast_if6", "peek_off", "stamps", "drops",
    )  # fmt: skip

    def __init__(self, stack: Stack, table: UdpTable, family: int) -> None:
        self.stack = stack
        self.table = table
        self.family = family
        self.saddr = b""  # local address, b"" = any
        self.bound_addr = b""
        self.lport = 0
        self.raddr = b""
        self.rport = 0
        self.bound_dev_if = 0  # SO_BINDTODEVICE, SO_BINDTOIFINDEX; there need not be one of that index
        self.reuseaddr = False
        self.reuseport = False
        self.v6only = bool(stack.sysctl.bindv6only)
        self.broadcast = False
        # for IPv4, also on an IPv6 socket
        self.tos = 0
        self.ttl = 0  # 0: the sysctl
        self.multicast_ttl = 1
        self.multicast_loop = True
        self.multicast_all = family == 4
        self.unicast_if = 0  # IP_UNICAST_IF
        self.recverr = False
        self.pmtu_disc = DONT if stack.sysctl.ip_no_pmtu_disc else WANT
        # for IPv6
        self.tclass = 0
        self.hops = -1  # -1: the sysctl
        self.multicast_hops = 1
        self.multicast_loop6 = True
        self.multicast_all6 = True
        self.unicast_if6 = 0
        self.recverr6 = False
        self.pmtu_disc6 = WANT
        self.frag_size = 0  # IPV6_MTU: fragments are no longer
        self.dontfrag = False  # IPV6_DONTFRAG
        self.no_check6_rx = False
        self.rcvbuf = stack.sysctl.rmem_default
        self.rmem = 0
        self.queue: deque[Datagram] = deque()
        self.errors: deque[ErrorReport] = deque(maxlen=ERRORS_KEPT)
        self.err = 0
        self.on_ready: Callable[[int], None] | None = None
        self.closed = False
        self.ip_id = 0
        self.groups: set[tuple[Interface, bytes]] = set()
        self.sndbuf = stack.sysctl.wmem_default
        self.shutdown = 0  # RCV_SHUTDOWN | SEND_SHUTDOWN
        self.freebind = False
        self.transparent = False
        self.multicast_dev: Interface | None = None  # IP_MULTICAST_IF
        self.autoflowlabel = True
        self.no_check = False  # SO_NO_CHECK, which means IPv4 only
        self.no_check6_tx = False
        self.gso_size = 0  # UDP_SEGMENT
        self.gro = False  # UDP_GRO: super-frames are wanted whole
        self.peek_off = -1  # SO_PEEK_OFF: where the next look begins; negative: always at the first byte
        self.stamps = 0  # SO_TIMESTAMP and its kin: which one
        self.drops = 0  # datagrams lost here
        self.port_range = 0  # IP_LOCAL_PORT_RANGE: last << 16 | first port to choose from
        self.port_given = False  # bind() named the port: disconnecting does not give it back

    @property
    def dev(self) -> Interface | None:
        """The interface it is bound to; None also when there is none of that index."""
        return next((dev for dev in self.stack.interfaces if dev.index == self.bound_dev_if), None) if self.bound_dev_if else None

    # --- setting up ---

    def _check(self) -> None:
        if self.closed:
            raise OSError(errno.EBADF, "the endpoint is closed")
        self.stack.check_open()

    def set_rcvbuf(self, value: int) -> None:
        """SO_RCVBUF: the kernel doubles what is asked for."""
        self.rcvbuf = max(2 * min(value & 0xFFFFFFFF, self.stack.sysctl.rmem_max), MIN_RCVBUF)

    def set_sndbuf(self, value: int) -> None:
        """SO_SNDBUF, doubled likewise. Nothing waits for it: the ring takes or drops a datagram at once."""
        self.sndbuf = max(2 * min(value & 0xFFFFFFFF, self.stack.sysctl.wmem_max), MIN_SNDBUF)

    def bind(self, addr: bytes, port: int) -> None:
        """Take a local address (b"" or all zeros = any) and port (0 = any free one). An address of IPv6 makes it IPv6 only.

        Raises OSError: EINVAL when bound already, EADDRNOTAVAIL for somebody else's address, EADDRINUSE."""
        self._check()
        if self.lport:
            raise OSError(errno.EINVAL, "bound already")
        if addr in (IP4_ANY, IP6_ANY):
            addr = b""
        if addr and not self._may_bind(addr):
            raise OSError(errno.EADDRNOTAVAIL, "not an address of this host")
        if self.v6only and A.is_v4mapped(addr):
            raise OSError(errno.EINVAL, "an IPv4 address, and the socket is IPv6 only")
        self.saddr = self.bound_addr = addr
        try:
            self._take_port(port)
        except OSError:
            self.saddr = self.bound_addr = b""
            raise
        self.port_given = bool(port)
        if len(addr) == 16 and not A.is_v4mapped(addr):
            self.v6only = True

    def _may_bind(self, addr: bytes) -> bool:
        stack = self.stack
        if self.freebind or self.transparent:
            return True
        if len(addr) == 4:
            return self._is_ours4(addr) or bool(stack.sysctl.ip_nonlocal_bind)
        if A.is_v4mapped(addr):
            return self._may_bind(addr[12:])
        return addr in stack.local6 or is_multicast(addr)

    def _is_ours4(self, addr: bytes) -> bool:
        stack = self.stack
        return addr in stack.local4 or addr[0] == 127 or addr in stack.broadcast4 or addr == IP4_BROADCAST or is_multicast(addr)

    def _take_port(self, port: int) -> None:
        ports = self.table.ports
        if port:
            ports.bind(self, port)
        else:
            port = ports.bind_any(self, narrowed(self.stack.sysctl.ip_local_port_range, self.port_range))
        self.lport = port
        self.table.enter(self)

    def connect(self, addr: bytes, port: int, dev: Interface | None = None) -> None:
        """Fix the peer; `dev` is the interface of a link-local one.

        Raises OSError: ENETUNREACH, EACCES (broadcast without permission), EAGAIN (no port left)."""
        self._check()
        addr = self.destination(addr)
        dst = self._route(addr, dev)
        if not self.lport:
            try:
                self._take_port(0)
            except OSError:
                raise BlockingIOError(errno.EAGAIN, "no port is left") from None
        self.saddr = self.saddr or self._source(dst)
        self.raddr = _unwire(self.family, dst.daddr)
        self.rport = port
        self.ip_id = self.stack.random.getrandbits(16)

    def disconnect(self) -> None:
        """Accept datagrams from anybody and by any interface again; a port that nobody named is given back."""
        self._check()
        self.raddr, self.rport = b"", 0
        self.bound_dev_if = 0
        self.saddr = self.bound_addr
        if self.lport and not self.port_given:
            self.table.leave(self)
            self.lport = 0

    def join(self, group: bytes, dev: Interface) -> None:
        """IP_ADD_MEMBERSHIP. Raises OSError EADDRINUSE when joined already."""
        self._check()
        if (dev, group) in self.groups:
            raise OSError(errno.EADDRINUSE, "joined already")
        self.stack.join(dev, group)
        self.groups.add((dev, group))

    def leave(self, group: bytes, dev: Interface) -> None:
        """IP_DROP_MEMBERSHIP. Raises OSError EADDRNOTAVAIL when not joined."""
        if (dev, group) not in self.groups:
            raise OSError(errno.EADDRNOTAVAIL, "not joined")
        self.groups.remove((dev, group))
        self.stack.leave(dev, group)

    def hears(self, group: bytes) -> bool:
        """Whether datagrams to a group are delivered here: joined by us, or by anybody unless IP_MULTICAST_ALL is off."""
        return (self.multicast_all if len(group) == 4 else self.multicast_all6) or any(joined == group for _, joined in self.groups)

    # --- sending ---

    def destination(self, addr: bytes) -> bytes:
        """An address as it goes on the wire: IPv4 for mapped addresses. Raises OSError EAFNOSUPPORT, ENETUNREACH."""
        if self.family == 4:
            return addr
        if A.is_v4mapped(addr):
            if self.v6only:
                raise OSError(errno.ENETUNREACH, "IPv4 cannot be reached from this IPv6 socket")
            return addr[12:]
        if len(addr) == 4:
            raise OSError(errno.EAFNOSUPPORT, "an IPv4 address on an IPv6 socket")
        if addr == IP6_ANY:
            return A.LOOPBACK4 if A.is_v4mapped(self.saddr) else IP6_LOOPBACK
        return addr

    def _route(self, daddr: bytes, dev: Interface | None = None, source: bytes | None = None) -> Dst:
        if source is None:
            source = self.saddr
        four = len(daddr) == 4
        if four:
            if len(source) == 16:
                source = source[12:] if A.is_v4mapped(source) else b""  # an address of IPv6 says nothing of IPv4's
            if source and source not in self.stack.local4 and not self.transparent and not self._is_ours4(source):
                raise OSError(errno.ENETUNREACH, "the source is not an address of this host")
            if daddr == IP4_ANY:
                daddr = source or A.LOOPBACK4
        if self.bound_dev_if:
            dev = self.dev
            if dev is None:
                raise OSError(errno.ENODEV if four else errno.ENETUNREACH, f"no interface {self.bound_dev_if}")
        elif is_multicast(daddr):
            dev = dev or self.multicast_dev
        elif dev is None:
            index = self.unicast_if if four else self.unicast_if6
            dev = self.stack.device(index) if index else None
        if not four and A.is_v4mapped(source):
            raise OSError(errno.EAFNOSUPPORT, "IPv6 cannot be reached from an IPv4-mapped address")
        dst = self.stack.dst(daddr, b"" if is_multicast(source or b"\0") else source, dev)
        if dst.kind == BROADCAST and not self.broadcast:
            raise PermissionError(errno.EACCES, "broadcast without SO_BROADCAST")
        return dst

    def _source(self, dst: Dst) -> bytes:
        return _unwire(self.family, dst.saddr)

    def autobind(self) -> None:
        """Take any port, unless there is one. Raises BlockingIOError when none is left."""
        self._check()
        if not self.lport:
            try:
                self._take_port(0)
            except OSError:
                raise BlockingIOError(errno.EAGAIN, "no port is left") from None

    def way(self, daddr: bytes, port: int, dev: Interface | None = None, control: Control = PLAIN) -> Way:
        """How a datagram gets to `daddr`, an address as `destination` gives it; `dev` is the interface of a link-local one.

        Raises OSError: ENETUNREACH, ENODEV, EACCES."""
        dst = self._route(daddr, control.dev or dev, control.source)
        source = self.saddr if control.source is None else control.source
        if dst.family == 4 and len(source) == 16 and not A.is_v4mapped(source):
            source = b""
        return Way(dst, source or self._source(dst), port)

    def transmit(self, way: Way, data: bytes, *, confirm: bool = False, control: Control = PLAIN) -> int:
        """Send one datagram. `confirm` = MSG_CONFIRM. Raises OSError: EMSGSIZE; a pending error (nothing is sent then); EPIPE after a
        shutdown; EINVAL for a segment size that cannot be."""
        if confirm:
            way.dst.neigh.confirm()
        if way.dst.family == 4:
            udp_output.send4(self, way.dst, way.saddr[-4:], data, way.port, control)
        else:
            udp_output.send6(self, way.dst, way.saddr, data, way.port, control)
        return len(data)

    def send(self, data: bytes) -> int:
        """Send to the connected peer. Raises OSError EDESTADDRREQ and as `sendto`."""
        self.autobind()
        if not self.raddr:
            raise OSError(errno.EDESTADDRREQ, "no destination")
        return self.transmit(self.way(self.destination(self.raddr), self.rport), data)

    def sendto(self, data: bytes, addr: bytes, port: int, *, control: Control = PLAIN) -> int:
        """Send one datagram. Raises OSError: EINVAL for port 0, EAFNOSUPPORT, and as `way` and `transmit`."""
        self.autobind()
        if port == 0:
            raise OSError(errno.EINVAL, "port 0")
        return self.transmit(self.way(self.destination(addr), port, None, control), data, control=control)

    def claim(self) -> None:
        """What a sender asks before a datagram is made. Raises the pending error, or OSError EPIPE."""
        self._raise_pending()
        if self.shutdown & SEND_SHUTDOWN:
            raise BrokenPipeError(errno.EPIPE, "shut down for sending")

    def too_long(self, dst: Dst, port: int, mtu: int) -> OSError:
        """For a sender to raise: the datagram does not fit and may not be cut: the error queue says how much would."""
        if self.recverr if dst.family == 4 else self.recverr6:
            told = port if dst.family == 6 else self.rport
            self.errors.append(ErrorReport(errno.EMSGSIZE, ORIGIN_LOCAL, 0, 0, mtu, b"", b"", _unwire(self.family, dst.daddr), told))
        return OSError(errno.EMSGSIZE, f"the path takes packets of {mtu} bytes")

    # --- receiving ---

    def queue_datagram(self, datagram: Datagram) -> None:
        """A datagram for this endpoint came in."""
        mib = self.stack.mib
        if self.rmem and self.rmem + datagram.truesize > self.rcvbuf:
            self.drops += 1
            if self.family == 4:
                mib.UdpRcvbufErrors += 1
                mib.UdpInErrors += 1
            else:
                mib.Udp6RcvbufErrors += 1
                mib.Udp6InErrors += 1
            return
        self.rmem += datagram.truesize
        self.queue.append(datagram)
        self._tell(POLLIN)

    def recv(self) -> Datagram:
        """The next datagram. Raises a pending error, or BlockingIOError when there is nothing."""
        self._check()
        self._raise_pending()
        datagram = self._sound(0)
        del self.queue[0]
        self.rmem -= datagram.truesize
        self.stack.mib.count("UdpInDatagrams" if len(datagram.source) == 4 else "Udp6InDatagrams")
        return datagram

    def peek(self) -> tuple[Datagram, int]:
        """The datagram at `peek_off`, which stays, and where in it that is. Raises as `recv`.

        The offset counts through all that is queued; an empty datagram is shown once to who looks on."""
        self._check()
        self._raise_pending()
        index, offset = 0, max(self.peek_off, 0)
        if self.peek_off >= 0:
            for datagram in self.queue:
                size = len(datagram.data)
                if offset < size or (not offset and not datagram.seen):
                    break
                offset -= size
                index += 1
        datagram = self._sound(index)
        if not datagram.data:
            self.queue[index] = datagram._replace(seen=True)
        return datagram, offset

    def moved(self, count: int) -> None:
        """`peek_off` follows a program that has looked at `count` bytes more, or (negative) taken them."""
        if self.peek_off >= 0:
            self.peek_off = max(self.peek_off + count, 0)

    def _sound(self, index: int) -> Datagram:
        """A queued datagram whose checksum is right; one that is not is dropped. Raises BlockingIOError."""
        if index >= len(self.queue):
            raise BlockingIOError(errno.EAGAIN, "no datagram")
        datagram = self.queue[index]
        if not datagram.bad:
            return datagram
        del self.queue[index]
        self.rmem -= datagram.truesize
        self.drops += 1
        four = len(datagram.source) == 4
        self.stack.mib.count("UdpInCsumErrors" if four else "Udp6InCsumErrors")
        self.stack.mib.count("UdpInErrors" if four else "Udp6InErrors")
        raise BlockingIOError(errno.EAGAIN, "its checksum was wrong")

    def poll(self) -> int:
        """Readiness bits."""
        mask = POLLOUT
        if self.queue:
            mask |= POLLIN
        if self.err or self.errors:
            mask |= POLLERR
        if self.shutdown & RCV_SHUTDOWN:
            mask |= POLLIN | POLLRDHUP
        if self.shutdown == SHUTDOWN_MASK:
            mask |= POLLHUP
        return mask

    def _tell(self, events: int) -> None:
        if self.on_ready is not None:
            self.on_ready(events)

    # --- errors ---

    def _raise_pending(self) -> None:
        if self.err:
            number, self.err = self.err, 0
            raise OSError(number, os.strerror(number))

    def so_error(self) -> int:
        """SO_ERROR: the pending error, cleared by asking."""
        number, self.err = self.err, 0
        return number

    def recv_error(self) -> ErrorReport:
        """The oldest report of the error queue (MSG_ERRQUEUE); that of the network behind it is the pending error then.

        Raises BlockingIOError when it is empty."""
        if not self.errors:
            raise BlockingIOError(errno.EAGAIN, "the error queue is empty")
        report = self.errors.popleft()
        following = self.errors[0] if self.errors and self.errors[0].origin != ORIGIN_LOCAL else None
        if following is not None:
            self.err = following.errno
        elif report.origin != ORIGIN_LOCAL:
            self.err = 0
        return report

    def icmp_error(self, number: int, hard: bool, family: int, kind: int, code: int, info: int, offender: bytes, quote: Quoted, raw: bytes) -> None:
        """The network said something about a datagram of ours."""
        whole = self.recverr if family == 4 else self.recverr6
        if not whole and not (hard and self.raddr):
            return
        if whole:
            mtu = info if number == errno.EMSGSIZE else 0
            payload = quote.l4[8:]
            self.errors.append(ErrorReport(number, ORIGIN_ICMP[family], kind, code, mtu, offender, payload, quote.dst, quote.dport))
        self.err = number
        self._tell(POLLERR)

    def path_mtu_report(self, daddr: bytes, mtu: int) -> bool:
        """A router said that the path takes only `mtu` bytes; whether that is an error for us."""
        mode = self.pmtu_disc if len(daddr) == 4 else self.pmtu_disc6
        if mode not in (INTERFACE, OMIT):
            try:
                self.stack.pmtu.update(self.stack.dst(daddr, b"", self.dev), mtu)
            except OSError:
                return False
        if len(daddr) == 4:
            return mode != DONT
        return mode not in (DONT, INTERFACE, OMIT)

    def mtu(self) -> int:
        """IP_MTU, IPV6_MTU: what the path of a connected endpoint takes. Raises OSError ENOTCONN."""
        if not self.raddr:
            raise OSError(errno.ENOTCONN, "not connected")
        dst = self._route(self.destination(self.raddr))
        if (self.pmtu_disc if dst.family == 4 else self.pmtu_disc6) in (INTERFACE, OMIT):
            return dst.dev.mtu if dst.family == 4 else dst.dev.mtu6
        return dst.mtu

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        for dev, group in self.groups:
            self.stack.leave(dev, group)
        self.groups.clear()
        if self.lport:
            self.table.leave(self)
        self.queue.clear()
        self.rmem = 0


def _unwire(family: int, addr: bytes) -> bytes:
    """A wire address as a socket of `family` calls it."""
    return A.V4MAPPED + addr if family == 6 and len(addr) == 4 else addr
