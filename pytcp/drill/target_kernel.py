"""The kernel target: real sockets in a fresh network namespace, a TUN device whose other end is the script.

The namespace has one device, tun0, with the script's local address and a route to the remote one; the machine itself is
not touched (but see docs/drill.md about module parameters). Packets go in through the TUN descriptor; what the kernel
sends is read from it with the time of arrival. Time is real. A call that may block runs in a thread, so that the script
can go on meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import queue
import select
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from struct import Struct
from typing import Any

from pyroute2 import NetlinkError

import pytcp
from pytcp.lab.netns import Namespace, TestbedError
from pytcp.sockets.arguments import OPTLEN_MAX
from pytcp.tcp.info import TcpInfo

from .constants import NAMES
from .errors import CannotRun, Mismatch
from .script import Packet
from .target import Addr, Null, Pending, Setup

TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
IFF_VNET_HDR = 0x4000
_VNET = Struct("=BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
GSO_TCPV4, GSO_TCPV6 = 1, 4
NEEDS_CSUM = 1
READ_SIZE = 65536 + _VNET.size
SPIN_NS = 200_000  # the last stretch before a time is waited for by looking at the clock
PATIENCE_NS = 50_000_000  # on a busy machine a thread starts late
SWITCH_S = 0.0002
RTN_LOCAL = 2
COMMAND_TIMEOUT = 60.0  # real seconds of one command, or --timeout if that is less
CONGESTION = "cubic"
TCP_INFO_SIZE = 512
_libc = ctypes.CDLL(None, use_errno=True)
_HEAD = Struct("=8B")


class KernelTarget:
    """See the module."""

    name = "kernel"

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.captured: deque[tuple[int, bytes]] = deque()
        self.calls = KernelCalls(self)
        self.space = Namespace()
        self._stack = contextlib.ExitStack()
        self._tun = -1
        self._start_ns = time.monotonic_ns()
        self._poll = select.poll()
        self._bell_r, self._bell_w = -1, -1
        self._worker: Worker | None = None

    # --- building ---

    def _build(self) -> None:
        """The namespace, its device and addresses. Raises CannotRun."""
        try:
            self._stack.enter_context(self.space)
            with self.space.entered():
                self._open_tun()
                self._configure()
        except TestbedError as error:
            self._stack.close()
            raise CannotRun(str(error.strerror or error)) from None
        except BaseException:
            self.close()
            raise
        self._bell_r, self._bell_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def open(self) -> None:
        self._build()
        self._stack.enter_context(self.space.entered())
        self._poll.register(self._tun, select.POLLIN)
        self._poll.register(self._bell_r, select.POLLIN)
        # a thread that wakes from a call wants the interpreter before it can look at the clock
        interval = sys.getswitchinterval()
        self._stack.callback(sys.setswitchinterval, interval)
        sys.setswitchinterval(SWITCH_S)
        if urgent():
            self._stack.callback(ordinary)
        self._worker = Worker(self._ring, self.now)

    def _open_tun(self) -> None:
        try:
            self._tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(self._tun, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
        except OSError as error:
            raise TestbedError(error.errno or errno.ENODEV, f"cannot open a TUN device: {error.strerror} (`pytcp doctor` says more)") from None

    def _configure(self) -> None:
        setup = self.setup
        six = not setup.family4
        self.space.set_sysctl("net.ipv6.conf.all.accept_dad", 0)
        self.space.set_sysctl("net.ipv6.conf.default.accept_dad", 0)
        self.space.set_sysctl("net.ipv6.conf.tun0.accept_dad", 0)
        if not six:
            self.space.set_sysctl("net.ipv6.conf.tun0.disable_ipv6", 1)
        self.space.set_sysctl("net.ipv6.conf.tun0.router_solicitations", 0)
        with self.space.netlink() as ip:
            index = ip.link_lookup(ifname="tun0")[0]
            ip.link("set", index=index, mtu=setup.mtu, state="up")
            extra = {"flags": 2} if six else {}
            ip.addr("add", index=index, address=setup.local, prefixlen=setup.prefix, **extra)
            metrics = {} if self._default_congestion() else {"metrics": {"cc_algo": CONGESTION}}
            if six:
                await_local(ip, setup.local)
            ip.route("replace", dst=f"{setup.gateway}/{128 if six else 32}", oif=index, scope=253)
            ip.route("add", dst=f"{setup.remote}/{128 if six else 32}", gateway=setup.gateway, oif=index, **metrics)

    def _default_congestion(self) -> bool:
        """Whether the namespace lets us choose the congestion control scripts are written for; a machine that
        restricts it still takes it as a metric of the route (cf. `lab.testbed`)."""
        try:
            self.space.set_sysctl("net.ipv4.tcp_congestion_control", CONGESTION)
        except PermissionError:
            return False
        except OSError:
            return True  # the kernel does not have it: then it cannot be a metric either
        return True

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None
        self.calls.close_all()
        for fd in (self._tun, self._bell_r, self._bell_w):
            if fd >= 0:
                os.close(fd)
        self._tun = self._bell_r = self._bell_w = -1
        self._stack.close()

    # --- time ---

    def start(self) -> None:
        self._read()
        self.captured.clear()
        self._start_ns = time.monotonic_ns()

    def now(self) -> int:
        return time.monotonic_ns() - self._start_ns

    def epoch_ns(self) -> int:
        return time.time_ns() - self.now()

    @property
    def patience_ns(self) -> int:
        return PATIENCE_NS

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._bell_w, b"!")

    def wait(self, until_ns: int, done: Callable[[], bool]) -> None:
        while not done():
            left = until_ns - self.now()
            if left <= 0:
                self._read()
                return
            # poll's milliseconds are too coarse for the last one
            ready = self._poll.poll(0 if left < 2 * SPIN_NS + 1_000_000 else (left - SPIN_NS) // 1_000_000)
            if ready:
                self._read()
            elif left < 2 * SPIN_NS + 1_000_000:
                time.sleep(min(left, SPIN_NS // 2) / 1e9)

    def _read(self) -> None:
        """Take what the kernel has sent."""
        while True:
            try:
                data = os.read(self._tun, READ_SIZE)
            except BlockingIOError:
                break
            self.captured.append((self.now(), data[_VNET.size :]))
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell_r, 4096)

    # --- acting ---

    def check(self, packet: Packet, injected: bool) -> None:
        """The kernel has everything."""

    def inject(self, data: bytes, gso_size: int) -> None:
        head = bytes(_VNET.size)
        if gso_size:
            data, head = self._as_gso(data, gso_size)
        self._read()
        os.write(self._tun, head + data)
        self._read()

    def _as_gso(self, data: bytes, gso_size: int) -> tuple[bytes, bytes]:
        """A packet as the device of a virtual machine would pass it: unfinished checksum, segment size."""
        four = data[0] >> 4 == 4
        l4 = (data[0] & 15) * 4 if four else 40
        doff = (data[l4 + 12] >> 4) * 4
        from pytcp.wire.checksum import ones_sum, pseudo

        src, dst = (data[12:16], data[16:20]) if four else (data[8:24], data[24:40])
        partial = ones_sum(b"", pseudo(src, dst, 6, len(data) - l4))
        data = data[: l4 + 16] + partial.to_bytes(2, "big") + data[l4 + 18 :]
        return data, _VNET.pack(NEEDS_CSUM, GSO_TCPV4 if four else GSO_TCPV6, l4 + doff, gso_size, l4, 16)

    def begin(self, function: Callable[..., Any], *args: Any) -> Pending:
        if function in self.calls.quick:
            pending = Pending(began_ns=self.now())
            try:
                pending.value = function(*args)
            except OSError as error:
                pending.error = error
            pending.done, pending.ended_ns = True, self.now()
            self._read()
            return pending
        assert self._worker is not None
        pending = self._worker.begin(function, args)
        # nearly every call is over at once
        self.wait(self.now() + SPIN_NS, lambda: pending.done)
        return pending

    def shell(self, text: str, cleanup: bool) -> None:
        program = shutil.which("bash") or "/bin/sh"
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        env = {**os.environ, "PACKETDRILL_PID": str(os.getpid()), "PATH": path}
        if "ethtool" in text and shutil.which("ethtool", path=path) is None:
            here = shlex.quote(str(Path(pytcp.__file__).parent.parent))
            text = f"ethtool() {{ PYTHONPATH={here} {shlex.quote(sys.executable)} -m pytcp.drill.ethtool \"$@\"; }}\n{text}"
        limit_s = min(COMMAND_TIMEOUT, max(self.setup.timeout_s, 1.0))
        folder = self.setup.folder if str(self.setup.folder) not in ("", ".") else None
        with subprocess.Popen(
            [program, "-c", text], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        ) as child:
            try:
                out, _ = child.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, 9)
                raise Mismatch(f"command {_short(text)!r} ran for more than {limit_s:g} s") from None
        if child.returncode:
            said = out.decode(errors="replace").strip()
            raise Mismatch(f"command {_short(text)!r} failed with status {child.returncode}", report=f"  {said[-500:]}" if said else "")

    def info(self, handle: Any) -> dict[str, int]:
        try:
            raw = handle.sock.getsockopt(socket.IPPROTO_TCP, NAMES["TCP_INFO"], TCP_INFO_SIZE)
        except OSError:
            return {}
        return unpack_info(raw)


def await_local(ip: Any, address: str) -> None:
    """The kernel makes an IPv6 address its own in a work queue, a moment after it was added; until then what comes for it is lost."""
    for _ in range(1000):
        with contextlib.suppress(NetlinkError):
            if any(route["type"] == RTN_LOCAL for route in ip.route("get", dst=address)):
                return
        time.sleep(0.001)


def urgent() -> bool:
    """The calling thread goes before others, so that a busy machine does not make the script late. Whether it was let."""
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    try:
        # programs we start are not to inherit it
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False
    return True


def ordinary() -> None:
    """Take back what `urgent` has done."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _short(text: str) -> str:
    return " ".join(text.split())[:200]


_U8 = ("state", "ca_state", "retransmits", "probes", "backoff", "options")
_WORDS = [field.name for field in fields(TcpInfo)][10:]
_REST = Struct("<24I 4Q 6I 4Q 2I 2Q 6I 2HI 7I 2H")


def unpack_info(raw: bytes) -> dict[str, int]:
    """struct tcp_info, of any kernel: fields a shorter one does not have are 0."""
    raw = raw.ljust(8 + _REST.size, b"\0")
    head = _HEAD.unpack_from(raw)
    info = dict(zip(_U8, head, strict=False))
    info["snd_wscale"], info["rcv_wscale"] = head[6] & 15, head[6] >> 4
    info["delivery_rate_app_limited"], info["fastopen_client_fail"] = head[7] & 1, head[7] >> 1 & 3
    info.update(zip(_WORDS, _REST.unpack_from(raw, 8), strict=True))
    return info


class Worker:
    """The thread that makes the calls which may block."""

    def __init__(self, ring: Callable[[], None], now: Callable[[], int]) -> None:
        self._ring = ring
        self._now = now
        self._jobs: queue.SimpleQueue[tuple[Pending, Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="drill calls", daemon=True)
        self._thread.start()

    def begin(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Pending:
        pending = Pending(began_ns=self._now())
        self._jobs.put((pending, function, args))
        return pending

    def _work(self) -> None:
        urgent()
        while (job := self._jobs.get()) is not None:
            pending, function, args = job
            try:
                pending.value = function(*args)
            except OSError as error:
                pending.error = error
            except Exception as error:
                pending.error = OSError(errno.EIO, str(error))
            pending.ended_ns = self._now()
            pending.done = True
            self._ring()

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join(0.2)


class Descriptor:
    """An open socket, pipe end, file or epoll set of the script."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock  # a socket, or anything with fileno() and close()

    def fileno(self) -> int:
        return int(self.sock.fileno())


class Raw:
    """A descriptor that is no socket."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _sock(handle: Descriptor) -> socket.socket:
    """The socket a call is made on. Raises OSError ENOTSOCK."""
    if not isinstance(handle.sock, socket.socket):
        raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
    return handle.sock


def _epoll(handle: Descriptor) -> Epoll:
    if not isinstance(handle.sock, Epoll):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return handle.sock


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class KernelCalls:
    """System calls as they are. Sockets are made blocking, as C programs get them."""

    def __init__(self, target: KernelTarget) -> None:
        self.target = target
        self._open: list[Descriptor] = []
        self.quick = {self.socket, self.bind, self.listen, self.setsockopt, self.getsockopt, self.shutdown, self.getfl, self.setfl,
                      self.ioctl, self.epoll_create, self.epoll_ctl, self.pipe, self.open}  # fmt: skip

    def close_all(self) -> None:
        for handle in self._open:
            with contextlib.suppress(OSError):
                if isinstance(handle.sock, socket.socket):
                    handle.sock.shutdown(socket.SHUT_RDWR)
        for handle in self._open:
            with contextlib.suppress(OSError):
                handle.sock.close()
        self._open.clear()

    def _keep(self, sock: Any) -> Descriptor:
        handle = Descriptor(sock)
        self._open.append(handle)
        return handle

    # --- opening ---

    def socket(self, family: int, kind: int, proto: int) -> Descriptor:
        nonblocking = kind & socket.SOCK_NONBLOCK
        sock = socket.socket(family, kind & ~socket.SOCK_NONBLOCK, proto)
        if nonblocking:
            os.set_blocking(sock.fileno(), False)
        return self._keep(sock)

    def bind(self, handle: Descriptor, address: Addr) -> int:
        _sock(handle).bind(address)
        return 0

    def listen(self, handle: Descriptor, backlog: int) -> int:
        _sock(handle).listen(backlog)
        return 0

    def accept(self, handle: Descriptor, flags: int) -> Descriptor:
        fd, _ = _sock(handle)._accept()  # type: ignore[attr-defined]
        if flags & socket.SOCK_NONBLOCK:
            os.set_blocking(fd, False)
        return self._keep(socket.socket(fileno=fd))

    def connect(self, handle: Descriptor, address: Addr | None) -> int:
        if address is None:
            _checked(_libc.connect(handle.fileno(), bytes(16), 16))
        else:
            _sock(handle).connect(address)
        return 0

    # --- data ---

    def send(self, handle: Descriptor, parts: list[bytes] | Null, flags: int, call: str, address: Addr | None) -> int:
        fd = handle.fileno()
        if isinstance(parts, Null):
            if call == "write":
                return _checked(_libc.write(fd, None, ctypes.c_size_t(parts.size)))
            if address is not None:
                raw = _sockaddr(_sock(handle).family, address)
                return _checked(_libc.sendto(fd, None, ctypes.c_size_t(parts.size), flags, raw, len(raw)))
            return _checked(_libc.send(fd, None, ctypes.c_size_t(parts.size), flags))
        if call == "write":
            return os.write(fd, b"".join(parts))
        if call == "writev":
            return os.writev(fd, parts)
        flags |= socket.MSG_NOSIGNAL
        if call == "sendmsg":
            sent = _sock(handle).sendmsg(parts, [], flags, address) if address is not None else _sock(handle).sendmsg(parts, [], flags)
        elif call == "sendto" and (address is not None or flags & NAMES["MSG_FASTOPEN"]):
            raw = _sockaddr(_sock(handle).family, address) if address is not None else bytes(16)
            data = b"".join(parts)
            sent = _checked(_libc.sendto(fd, data, ctypes.c_size_t(len(data)), flags, raw, len(raw)))
        else:
            sent = _sock(handle).send(b"".join(parts), flags)
        return int(sent)

    def recv(self, handle: Descriptor, size: int | Null, flags: int, call: str) -> bytes:
        fd = handle.fileno()
        if isinstance(size, Null):
            if call == "read":
                _checked(_libc.read(fd, None, ctypes.c_size_t(size.size)))
            else:
                _checked(_libc.recv(fd, None, ctypes.c_size_t(size.size), flags))
            return b""
        if call == "read":
            return os.read(fd, size)
        if not size:
            # Python would not ask the kernel
            _checked(_libc.recv(fd, b"", ctypes.c_size_t(0), flags))
            return b""
        data: bytes = _sock(handle).recv(size, flags)
        return data

    def recvmsg(self, handle: Descriptor, size: int, control: int, flags: int) -> Any:
        data, found, got, _ = _sock(handle).recvmsg(size, control, flags)
        return data, found, got & ~socket.MSG_DONTWAIT

    # --- options and the rest ---

    def setsockopt(self, handle: Descriptor, level: int, name: int, value: int | bytes) -> int:
        _sock(handle).setsockopt(level, name, value)
        return 0

    def getsockopt(self, handle: Descriptor, level: int, name: int, size: int) -> bytes:
        value: bytes = _sock(handle).getsockopt(level, name, min(max(size, 1), OPTLEN_MAX))
        return value

    def shutdown(self, handle: Descriptor, how: int) -> int:
        return _checked(_libc.shutdown(handle.fileno(), how))

    def close(self, handle: Descriptor) -> int:
        if handle in self._open:
            self._open.remove(handle)
        handle.sock.close()
        return 0

    def getfl(self, handle: Descriptor) -> int:
        return fcntl.fcntl(handle.fileno(), fcntl.F_GETFL)

    def setfl(self, handle: Descriptor, flags: int) -> int:
        return fcntl.fcntl(handle.fileno(), fcntl.F_SETFL, flags)

    def ioctl(self, handle: Descriptor, request: int) -> int:
        answer: bytes = fcntl.ioctl(handle.fileno(), request, bytes(4))
        return int.from_bytes(answer, "little", signed=True)

    # --- readiness ---

    def poll(self, handles: list[tuple[Descriptor, int]], timeout_ms: int) -> list[int]:
        poll = select.poll()
        for handle, events in handles:
            poll.register(handle.fileno(), events)
        found = dict(poll.poll(timeout_ms))
        return [found.get(handle.fileno(), 0) for handle, _ in handles]

    def epoll_create(self) -> Descriptor:
        return self._keep(Epoll())

    def epoll_ctl(self, epoll: Descriptor, op: int, handle: Descriptor, events: int, data: int) -> int:
        _epoll(epoll).control(op, handle.fileno(), events, data)
        return 0

    def epoll_wait(self, epoll: Descriptor, most: int, timeout_ms: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = _epoll(epoll).wait(most, timeout_ms)
        return found

    # --- files and pipes ---

    def pipe(self) -> tuple[Descriptor, Descriptor]:
        read, write = os.pipe2(os.O_CLOEXEC)
        return self._keep(Raw(read)), self._keep(Raw(write))

    def open(self, path: str, flags: int) -> Descriptor:
        return self._keep(Raw(os.open(path, flags | os.O_CLOEXEC)))

    def splice(self, source: Descriptor, sink: Descriptor, size: int, flags: int) -> int:
        return os.splice(source.fileno(), sink.fileno(), size, flags=flags)

    def sendfile(self, sink: Descriptor, source: Descriptor, offset: int | None, size: int) -> int:
        return os.sendfile(sink.fileno(), source.fileno(), offset, size)


class Epoll:
    """A kernel epoll set; the data that goes with an entry is kept here, as Python's has only the descriptor."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._data: dict[int, int] = {}

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        self._epoll.close()

    def control(self, op: int, fd: int, events: int, data: int) -> None:
        if op == NAMES["EPOLL_CTL_ADD"]:
            self._epoll.register(fd, events)
        elif op == NAMES["EPOLL_CTL_MOD"]:
            self._epoll.modify(fd, events)
        elif op == NAMES["EPOLL_CTL_DEL"]:
            self._epoll.unregister(fd)
        else:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._data[fd] = data

    def wait(self, most: int, timeout_ms: int) -> list[tuple[int, int]]:
        if most < 1:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        found = self._epoll.poll(timeout_ms / 1000 if timeout_ms >= 0 else None, most)
        return [(events, self._data.get(fd, fd)) for fd, events in found]


def _sockaddr(family: int, address: Addr) -> bytes:
    host, port = address
    if family == socket.AF_INET:
        return struct.pack("=H", family) + struct.pack("!H4s8x", port, socket.inet_aton(host))
    return struct.pack("=H", family) + struct.pack("!HI16sI", port, 0, socket.inet_pton(socket.AF_INET6, host), 0)
