"""The pytcp target: a whole `Stack` in virtual time, its device a wire that ends in the script.

Nothing in the stack knows that it is tested. The device is a link of bare IP packets, as a TUN is, with the same habits:
frames count as completed when the device is given them, and super-segments are cut by the host. Time passes only while
the runner waits, event by event, so that a script takes milliseconds and every time in it is exact.
"""

from __future__ import annotations

import errno
import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.frame import CSUM_NONE, GSO_NONE, GSO_TCPV4, GSO_TCPV6, RxFrame, TxFrame
from pytcp.net import sysctl
from pytcp.net.stack import Stack
from pytcp.sockets.arguments import OPTLEN_MAX
from pytcp.sockets.cmsg import MSG_ERRQUEUE
from pytcp.sockets.epoll import Epoll
from pytcp.sockets.socket import IOCTLS, MSG_FASTOPEN, MSG_ZEROCOPY, SIOCATMARK, Socket, StackHost
from pytcp.tcp.const import MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, SYN_RECV, SYN_SENT
from pytcp.tcp.info import TcpInfo

from .blocking import Sleeper, Waits
from .constants import NAMES
from .errors import Mismatch, Unsupported
from .interpreter import Shell
from .script import Packet
from .target import Addr, Null, Pending, Setup

if TYPE_CHECKING:
    pass

BOOT_NS = 1_000_000_000_000  # the host has been up for so long when a script starts
# What a script does takes a moment, as on any machine. Without it two events "1 ms apart" would be exactly that, and fall
# on the other side of every "more than 1 ms" in the engine.
STEP_NS = 10_000
FRAME_NS = 1_000  # and so long a packet of a burst
SOCK_NONBLOCK = 0o4000
SOCK_CLOEXEC = 0o2000000
O_NONBLOCK = os.O_NONBLOCK
MSG_DONTWAIT = 0x40
SPLICE_F_NONBLOCK = 2
POLLIN, POLLOUT, POLLERR, POLLHUP = select.POLLIN, select.POLLOUT, select.POLLERR, select.POLLHUP


class Wire:
    """The device: packets of the stack are captured, packets of the script arrive."""

    def __init__(self, heap: Any, mtu: int) -> None:
        self.heap = heap
        self.name = "tun0"
        self.mac = b""
        self.mtu = mtu
        self.features = 0
        self.gso_max_size = 65536
        self.rx: Callable[[RxFrame], None] = lambda frame: None
        self.rx_end: Callable[[], None] = lambda: None
        self.captured: deque[tuple[int, bytes]] = deque()
        self.start_ns = 0
        self._last_ns = -1

    def fileno(self) -> int:
        return -1

    def poll(self, budget: int) -> int:
        return 0

    def send(self, frames: Sequence[TxFrame]) -> int:
        at = self.heap.now_ns - self.start_ns
        for frame in frames:
            # what leaves at one instant is seen one after the other: a script's "+.001" counts from the last
            self._last_ns = at = at if at > self._last_ns else self._last_ns + FRAME_NS
            self.captured.append((at, b"".join((frame.head, *frame.parts))))
        return len(frames)

    def close(self) -> None:
        """Nothing to let go of."""


class Descriptor:
    """An open socket of the script: the stack's, and what a file description keeps beside it."""

    def __init__(self, sock: Socket, nonblocking: bool) -> None:
        self.sock = sock
        self.nonblocking = nonblocking
        self.peer: Addr = ("", 0)  # of the last connect()


class EpollSet:
    """An epoll set of the script, with the data that goes with each entry."""

    def __init__(self) -> None:
        self.epoll: Epoll[Socket] = Epoll()
        self.data: dict[Socket, int] = {}

    def control(self, op: int, sock: Socket, events: int, data: int) -> None:
        """epoll_ctl. Raises OSError EEXIST, ENOENT, EINVAL."""
        if op == NAMES["EPOLL_CTL_ADD"]:
            self.epoll.register(sock, events)
        elif op == NAMES["EPOLL_CTL_MOD"]:
            self.epoll.modify(sock, events)
        elif op == NAMES["EPOLL_CTL_DEL"]:
            self.epoll.unregister(sock)
        else:
            raise _bad(errno.EINVAL)
        self.data[sock] = data


class Buffer:
    """One end of a pipe, or a file: bytes in memory. `writer`: the other end, of a pipe's reading end."""

    def __init__(self, data: bytearray, pipe: bool = False, writer: Buffer | None = None) -> None:
        self.data = data
        self.offset = 0
        self.pipe = pipe
        self.writer = writer
        self.closed = False

    def waits(self) -> bool:
        """Whether a reader has to wait: an empty pipe somebody may yet write to."""
        return self.offset >= len(self.data) and self.writer is not None and not self.writer.closed

    def take(self, size: int) -> bytes:
        """The next bytes, at most `size`; they are passed over."""
        data = bytes(self.data[self.offset : self.offset + size])
        self.offset += len(data)
        return data


class PytcpTarget:
    """See the module."""

    name = "pytcp"

    def __init__(self, setup: Setup, boot_ns: int = BOOT_NS) -> None:
        """boot_ns: how long the host has been up when the script starts, which says where ticks and the timer wheel stand."""
        self.setup = setup
        self.runtime = VirtualRuntime()
        self.runtime.heap.now_ns = boot_ns
        self.wire = Wire(self.runtime.heap, setup.mtu)
        self.wire.start_ns = boot_ns
        self.captured = self.wire.captured
        self.stack: Stack
        self.shells: Shell
        self.calls = PytcpCalls(self)
        self._sleepers: list[Sleeper] = []

    # --- the run ---

    def open(self) -> None:
        setup = self.setup
        self.stack = Stack(self.runtime, seed=1, profile=setup.profile)
        if setup.hz:
            sysctl.set_(self.stack.sysctl, "pytcp.hz", setup.hz)
        dev = self.stack.add_interface(self.wire, [f"{setup.local}/{setup.prefix}"], tx_mode="orphan", ipv6=False)
        host = "32" if setup.family4 else "128"
        self.stack.add_route(f"{setup.gateway}/{host}", None, dev)
        self.stack.add_route(f"{setup.remote}/{host}", setup.gateway, dev)
        self.shells = Shell(self.stack, setup)

    def close(self) -> None:
        for sleeper in self._sleepers:
            sleeper.abandon()
        self.stack.close()

    def start(self) -> None:
        self.runtime.run_for(0)
        self.captured.clear()
        self.wire.start_ns = self.runtime.heap.now_ns

    def now(self) -> int:
        return self.runtime.heap.now_ns - self.wire.start_ns

    def epoch_ns(self) -> int:
        return self.runtime.epoch_ns + self.wire.start_ns

    @property
    def patience_ns(self) -> int:
        return 0

    def wait(self, until_ns: int, done: Callable[[], bool]) -> None:
        runtime = self.runtime
        until = until_ns + self.wire.start_ns
        while not done():
            if not runtime.step(until):
                runtime.heap.now_ns = max(runtime.heap.now_ns, until)
                return
            self._resume()

    def settle(self) -> None:
        """Run what is due at this very instant: softirq follows a system call or an interrupt at once."""
        while self.runtime.step(self.runtime.heap.now_ns):
            self._resume()

    def _moment(self) -> None:
        self.wait(self.now() + STEP_NS, lambda: False)

    def _resume(self) -> None:
        if self._sleepers:
            self._sleepers = [sleeper for sleeper in self._sleepers if not sleeper.resume()]

    def check(self, packet: Packet, injected: bool) -> None:
        """Nothing a script can write is unknown here."""

    def inject(self, data: bytes, gso_size: int) -> None:
        kind = GSO_NONE
        if gso_size:
            kind = GSO_TCPV4 if self.setup.family4 else GSO_TCPV6
        frame = RxFrame(memoryview(data), kind, gso_size, CSUM_NONE)
        self._moment()
        self.runtime.heap.call_later(0, lambda: self._arrive(frame))
        self.settle()

    def _arrive(self, frame: RxFrame) -> None:
        self.wire.rx(frame)
        self.wire.rx_end()

    def begin(self, function: Callable[..., Any], *args: Any) -> Pending:
        self._moment()
        sleeper = Sleeper(function, args, self.now)
        if not sleeper.pending.done:
            self._sleepers.append(sleeper)
        self.settle()
        return sleeper.pending

    def shell(self, text: str, cleanup: bool) -> None:
        for delay_ns in self.shells.run(text):
            if self.now() + delay_ns > self.setup.timeout_s * 1e9:
                raise Mismatch(f"command {' '.join(text.split())[:200]!r} sleeps beyond the limit of {self.setup.timeout_s:g} s (--timeout)")
            self.wait(self.now() + delay_ns, lambda: False)

    def info(self, handle: Descriptor) -> dict[str, int]:
        if handle.sock.sk is None:
            return {}
        self.stack.now()
        info = handle.sock.info()
        return {field.name: getattr(info, field.name) for field in fields(TcpInfo)}


def _bad(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def _sock(handle: Any) -> Descriptor:
    """The socket a call is made on. Raises OSError ENOTSOCK for a file, a pipe, an epoll set."""
    if not isinstance(handle, Descriptor):
        raise _bad(errno.ENOTSOCK)
    return handle


def _would_block(error: OSError) -> bool:
    return error.errno in (errno.EAGAIN, errno.EINPROGRESS, errno.EALREADY)


class PytcpCalls:
    """System calls on the stack's sockets; those that block are generators (`blocking`)."""

    def __init__(self, target: PytcpTarget) -> None:
        self.target = target
        self._host: StackHost | None = None

    # --- opening ---

    def socket(self, family: int, kind: int, proto: int) -> Descriptor:
        if self._host is None:
            self._host = StackHost(self.target.stack)
        if kind & ~(SOCK_NONBLOCK | SOCK_CLOEXEC) != 1 or proto not in (0, 6):
            raise Unsupported(f"socket(..., {kind}, {proto}): only TCP sockets")
        return Descriptor(Socket(self._host, family), bool(kind & SOCK_NONBLOCK))

    def bind(self, handle: Descriptor, address: Addr) -> int:
        _sock(handle)
        handle.sock.bind(address)
        return 0

    def listen(self, handle: Descriptor, backlog: int) -> int:
        _sock(handle)
        handle.sock.listen(backlog)
        return 0

    def accept(self, handle: Descriptor, flags: int) -> Waits:
        _sock(handle)
        while True:
            try:
                child, _ = handle.sock.accept()
            except BlockingIOError:
                if handle.nonblocking:
                    raise
                yield
            else:
                return Descriptor(child, bool(flags & SOCK_NONBLOCK))

    def connect(self, handle: Descriptor, address: Addr | None) -> Waits:
        _sock(handle)
        if address is None:
            handle.sock.disconnect()
            return 0
        handle.peer = address
        while True:
            try:
                handle.sock.connect(address)
            except OSError as error:
                if handle.nonblocking or not _would_block(error):
                    raise
                yield
            else:
                return 0

    # --- data ---

    def send(self, handle: Descriptor | Buffer, parts: list[bytes] | Null, flags: int, call: str, address: Addr | None) -> Waits:
        if isinstance(handle, Buffer) and not isinstance(parts, Null):
            handle.data += b"".join(parts)
            return sum(map(len, parts))
        handle = _sock(handle)
        if isinstance(parts, Null) and flags & MSG_FASTOPEN:
            parts = []  # found out too late for the SYN, which goes without data
        if isinstance(parts, Null):
            # a pointer into nowhere is found out when bytes are copied: after the socket's own reasons to refuse or to wait
            handle.sock.send(b"", flags & ~MSG_DONTWAIT)
            raise _bad(errno.EFAULT if handle.sock.poll() & POLLOUT else errno.EAGAIN)
        data = memoryview(b"".join(parts))
        wait = not (handle.nonblocking or flags & MSG_DONTWAIT)
        sent = 0
        if flags & MSG_FASTOPEN and call == "sendto" and address is None:
            raise _bad(errno.EOPNOTSUPP)  # AF_UNSPEC
        opening = handle.sock.sk is not None and handle.sock.sk.state == SYN_SENT and handle.sock.poll() & POLLOUT
        if flags & MSG_FASTOPEN or opening:
            try:
                sent = handle.sock.sendto(bytes(data), flags & ~MSG_DONTWAIT | MSG_FASTOPEN, address or handle.peer, waits=wait)
            except BlockingIOError as error:
                if not wait or error.errno != errno.EINPROGRESS:
                    raise
            flags &= ~MSG_FASTOPEN
            if not wait:
                return sent
            while handle.sock.sk is not None and handle.sock.sk.state in (SYN_SENT, SYN_RECV):
                yield
            failure = handle.sock.getsockopt(1, NAMES["SO_ERROR"])
            if isinstance(failure, int) and failure:
                raise _bad(failure)
            if sent >= len(data):
                return sent
        while True:
            try:
                if flags & MSG_ZEROCOPY and not sent:
                    sent = handle.sock.sendmsg(parts, (), flags & ~MSG_DONTWAIT)
                else:
                    sent += handle.sock.send(bytes(data[sent:]), flags & ~MSG_DONTWAIT)
            except OSError as error:
                if not _would_block(error):
                    if sent:
                        return sent
                    raise
                if not wait:
                    if sent:
                        return sent
                    raise
            if sent >= len(data) or not wait:
                return sent
            yield
            while not handle.sock.poll() & (POLLOUT | POLLERR | POLLHUP):
                yield

    def recv(self, handle: Descriptor | Buffer, size: int | Null, flags: int, call: str) -> Waits:
        if isinstance(size, Null):
            if not isinstance(handle, Descriptor) or handle.sock.recv(1, flags & ~(MSG_DONTWAIT | MSG_WAITALL) | MSG_PEEK):
                raise _bad(errno.EFAULT)
            return b""
        if isinstance(handle, Buffer):
            while handle.waits():
                yield
            return handle.take(size)
        handle = _sock(handle)
        if not size and call in ("read", "readv"):
            return b""  # in any state: the socket is not asked
        wait = not (handle.nonblocking or flags & MSG_DONTWAIT)
        if not size and not flags & MSG_OOB:
            # room for nothing still waits for something, which Python's recv(0) does not
            yield from self.recv(handle, 1, flags & ~(MSG_WAITALL | MSG_TRUNC) | MSG_PEEK, call)
            return b""
        got = b""
        while True:
            try:
                piece = handle.sock.recv(size - len(got), flags & ~(MSG_DONTWAIT | MSG_WAITALL))
            except BlockingIOError:
                if not wait:
                    if got:
                        return got
                    raise
                yield
                continue
            got += piece
            if not flags & MSG_WAITALL or not piece or len(got) >= size:
                return got

    def recvmsg(self, handle: Descriptor, size: int, control: int, flags: int) -> Waits:
        handle = _sock(handle)
        wait = not (handle.nonblocking or flags & (MSG_DONTWAIT | MSG_ERRQUEUE))
        while True:
            try:
                data, found, got, _ = handle.sock.recvmsg(size, control, flags & ~(MSG_DONTWAIT | MSG_WAITALL))
            except BlockingIOError:
                if not wait:
                    raise
                yield
            else:
                return data, found, got

    # --- options and the rest ---

    def setsockopt(self, handle: Descriptor, level: int, name: int, value: int | bytes) -> int:
        _sock(handle)
        self._known_option(level, name)
        handle.sock.setsockopt(level, name, value)
        return 0

    def getsockopt(self, handle: Descriptor, level: int, name: int, size: int) -> bytes:
        _sock(handle)
        self._known_option(level, name)
        value = handle.sock.getsockopt(level, name, min(max(size, 1), OPTLEN_MAX))
        assert isinstance(value, bytes)
        return value

    def _known_option(self, level: int, name: int) -> None:
        if (level, name) == (6, NAMES["TCP_ZEROCOPY_RECEIVE"]):
            raise Unsupported("TCP_ZEROCOPY_RECEIVE: pytcp does not have it")

    def shutdown(self, handle: Descriptor, how: int) -> int:
        _sock(handle)
        handle.sock.shutdown(how)
        return 0

    def close(self, handle: Descriptor | Buffer | EpollSet) -> Waits:
        if isinstance(handle, Descriptor):
            linger_ns = handle.sock.begin_close()
            deadline = self.target.now() + linger_ns
            if linger_ns:
                self.target.runtime.heap.call_later(linger_ns, lambda: None)
                while handle.sock.lingering() and self.target.now() < deadline:
                    yield
                handle.sock.end_close()
        elif isinstance(handle, Buffer):
            handle.closed = True
        return 0

    def getfl(self, handle: Descriptor) -> int:
        _sock(handle)
        return os.O_RDWR | (O_NONBLOCK if handle.nonblocking else 0)

    def setfl(self, handle: Descriptor, flags: int) -> int:
        _sock(handle)
        handle.nonblocking = bool(flags & O_NONBLOCK)
        return 0

    def ioctl(self, handle: Descriptor, request: int) -> int:
        _sock(handle)
        if request not in IOCTLS:
            raise Unsupported(f"ioctl {request:#x}")
        return handle.sock.ioctl(request)

    # --- readiness ---

    def _deadline(self, timeout_ms: int) -> int | None:
        if timeout_ms < 0:
            return None
        if timeout_ms:
            self.target.runtime.heap.call_later(timeout_ms * 1_000_000, lambda: None)
        return self.target.now() + timeout_ms * 1_000_000

    def poll(self, handles: list[tuple[Descriptor, int]], timeout_ms: int) -> Waits:
        for handle, _ in handles:
            _sock(handle)
        deadline = self._deadline(timeout_ms)
        while True:
            found = [handle.sock.poll() & (events | POLLERR | POLLHUP) for handle, events in handles]
            if any(found) or (deadline is not None and self.target.now() >= deadline):
                return found
            yield

    def epoll_create(self) -> EpollSet:
        return EpollSet()

    def epoll_ctl(self, epoll: EpollSet, op: int, handle: Descriptor, events: int, data: int) -> int:
        if not isinstance(epoll, EpollSet):
            raise _bad(errno.EINVAL)
        if not isinstance(handle, Descriptor):
            raise _bad(errno.EPERM)
        epoll.control(op, handle.sock, events, data)
        return 0

    def epoll_wait(self, epoll: EpollSet, most: int, timeout_ms: int) -> Waits:
        if not isinstance(epoll, EpollSet) or most < 1:
            raise _bad(errno.EINVAL)
        deadline = self._deadline(timeout_ms)
        while True:
            found = [(events, epoll.data[sock]) for sock, events in epoll.epoll.poll(most)]
            if found or (deadline is not None and self.target.now() >= deadline):
                return found
            yield

    # --- files and pipes ---

    def pipe(self) -> tuple[Buffer, Buffer]:
        data = bytearray()
        writer = Buffer(data, pipe=True)
        return Buffer(data, pipe=True, writer=writer), writer

    def open(self, path: str, flags: int) -> Buffer:
        content = self.target.shells.files.get(path)
        if content is None:
            raise Unsupported(f"open({path!r}): only files the script has made with dd")
        return Buffer(bytearray(content))

    def splice(self, source: Descriptor | Buffer, sink: Descriptor | Buffer, size: int, flags: int) -> Waits:
        """To or from a pipe: what reading and writing would move, but never past the urgent mark."""
        if not any(isinstance(end, Buffer) and end.pipe for end in (source, sink)):
            raise _bad(errno.EINVAL)
        if isinstance(source, Buffer):
            while source.waits():
                if flags & SPLICE_F_NONBLOCK:
                    raise _bad(errno.EAGAIN)
                yield
            data = bytes(source.data[source.offset : source.offset + size])
            sent: int = yield from self.send(sink, [data], 0, "splice", None)
            source.offset += sent
            return sent
        if source.sock.ioctl(SIOCATMARK):
            return 0
        data = yield from self.recv(source, size, 0, "splice")
        assert isinstance(sink, Buffer)
        sink.data += data
        return len(data)

    def sendfile(self, sink: Descriptor, source: Buffer, offset: int | None, size: int) -> Waits:
        if not isinstance(source, Buffer):
            raise _bad(errno.EINVAL)
        data = source.take(size) if offset is None else bytes(source.data[max(offset, 0) :][:size])
        return self.send(sink, [data], 0, "sendfile", None)
