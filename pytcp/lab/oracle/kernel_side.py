"""The running kernel with one connection over a TAP in a namespace of its own.

Frames are seen twice: the TAP's descriptor is only drained, while a packet socket with PACKET_VNET_HDR
gives each super-frame's head, segment size and the kernel's own time stamp at the device (behind the
queueing discipline). What the peer sends is written to the TAP and processed inside that call.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from pytcp.drill.target_kernel import unpack_info
from pytcp.lab.netns import Namespace, kernel_counters

from .frames import HOST_IP, HOST_MAC, LISTEN_PORT, PEER_IP, PEER_MAC, PEER_PORT, VNET, HostFrame, parse

TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
OFFLOADS = 0x01 | 0x02 | 0x08  # checksums, TCP over IPv4, with ECN
SOL_PACKET = 263
PACKET_VNET_HDR = 15
ETH_P_ALL = 3  # only so are outgoing frames seen
SO_TIMESTAMPNS = 35
PACKET_OUTGOING = 4
SO_MEMINFO = 55
SO_ATTACH_FILTER = 26
SKF_PKTTYPE = 0xFFFFF000 + 4  # SKF_AD_OFF + SKF_AD_PKTTYPE
MSG_MORE, MSG_EOR, MSG_OOB = 0x8000, 0x80, 1
SNAP = 192
SPIN_US = 150
DEVICE = "tap0"
_MEM = ("rmem", "rcvbuf", "wmem_alloc", "sndbuf", "fwd_alloc", "wmem_queued", "optmem", "backlog", "drops")
OPTIONS: dict[str, tuple[int, int]] = {
    "nodelay": (6, 1), "cork": (6, 3), "notsent_lowat": (6, 25), "sndbuf": (1, 7), "max_pacing": (1, 47), "rcvbuf": (1, 8), "rcvlowat": (1, 18),
    "quickack": (6, 12), "window_clamp": (6, 10), "maxseg": (6, 2), "user_timeout": (6, 18), "cc": (6, 13),
    "zerocopy": (1, 60), "oobinline": (1, 10), "peek_off": (1, 42), "thin_linear": (6, 16), "linger2": (6, 8),
}  # fmt: skip
MSG = {
    "more": MSG_MORE, "eor": MSG_EOR, "oob": MSG_OOB, "zerocopy": 0x4000000, "peek": socket.MSG_PEEK, "trunc": socket.MSG_TRUNC, "waitall": socket.MSG_WAITALL,
}  # fmt: skip


def tick_ns() -> int:
    """Length of the running kernel's tick."""
    return 4_000_000


def jiffies_at(now_ns: int) -> int:
    """The kernel's tick counter at `now_ns` on the monotonic clock: timers of a wheel fire at multiples of it. Needs root."""
    with open("/proc/timer_list") as file:
        at = 0
        for line in file:
            if line.startswith("now at "):
                at = int(line.split()[2])
            elif line.startswith("jiffies: "):
                # ticks are at multiples of their length on the monotonic clock
                return int(line.split()[1]) + now_ns // tick_ns() - at // tick_ns()
    raise OSError(errno.ENOENT, "no jiffies in /proc/timer_list")


class KernelSide:
    """See the module. A context manager; sysctls and the device are as the workload's config says."""

    name = "kernel"

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self._stack = contextlib.ExitStack()
        self.space = Namespace()
        self.tap = -1
        self.sock: socket.socket
        self.watch: socket.socket
        self._buffer = bytearray(65536 + 64)
        self._seen: list[HostFrame] = []
        self._wall_ns = 0

    def __enter__(self) -> KernelSide:
        try:
            # the processor that keeps the time: timers armed on others may fire a tick late (docs/compare-kernel.md)
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {min(before)})
            self._stack.callback(os.sched_setaffinity, 0, before)
            self._stack.enter_context(self.space)
            self._stack.enter_context(self.space.entered())
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        sock: socket.socket | None = getattr(self, "sock", None)  # a run may have failed before it connected
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        self.watch.close()
        os.close(self.tap)
        self._stack.close()

    def _open(self) -> None:
        config = self.config
        self.tap = open_tap(DEVICE, bool(config.get("offload", True)))
        space = self.space
        space.set_sysctl("net.ipv6.conf.all.disable_ipv6", 1)
        space.set_sysctl(f"net.ipv6.conf.{DEVICE}.disable_ipv6", 1)
        configure(space, config)
        for name, value in config.get("sysctls", {}).items():
            self.sysctl(name, value)
        self.watch = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.watch.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        self.watch.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        _only_outgoing(self.watch)
        self.watch.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
        self.watch.setblocking(False)
        self.watch.bind((DEVICE, ETH_P_ALL))
        self._wall_ns = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.monotonic_ns()
        self._poll = select.poll()
        self._poll.register(self.watch, select.POLLIN)

    # --- time and frames ---

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000

    def frames(self) -> list[HostFrame]:
        self._read()
        seen, self._seen = self._seen, []
        return seen

    def _read(self) -> None:
        while True:
            try:
                os.readv(self.tap, [self._buffer])
            except BlockingIOError:
                break
        while True:
            try:
                data, control, _, address = self.watch.recvmsg(SNAP, 64)
            except BlockingIOError:
                return
            if address[2] != PACKET_OUTGOING:
                continue
            gso_type, gso_size = data[1], VNET.unpack_from(data)[3]
            frame = parse(data[VNET.size :], gso_size if gso_type else 0, (stamp_ns(control) - self._wall_ns) // 1000)
            if frame is not None:
                self._seen.append(frame)

    def wait_until(self, until_us: int) -> None:
        """Return at that time, whatever comes."""
        while (left := until_us - self.now_us()) > 0:
            if left > SPIN_US:
                time.sleep((left - SPIN_US) / 1e6)

    def wait(self, until_us: int) -> None:
        while not self._seen:
            left = until_us - self.now_us()
            if left <= 0:
                return
            if left > 1000 + SPIN_US:
                self._poll.poll((left - SPIN_US) // 1000)
            self._read()

    def inject(self, vnet: bytes, frame: bytes) -> None:
        os.writev(self.tap, [vnet, frame])

    # --- the program ---

    def _socket(self) -> socket.socket:
        sock = self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        if self.config.get("cc"):
            sock.setsockopt(6, 13, self.config["cc"].encode())
        for name, value in self.config.get("pre", []):
            self.setsockopt(name, value)
        return sock

    def connect(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._socket().connect((PEER_IP, PEER_PORT))

    def listen(self) -> None:
        listener = self._socket()
        self._stack.callback(listener.close)
        listener.bind((HOST_IP, LISTEN_PORT))
        listener.listen(5)

    def accept(self) -> None:
        self.sock, _ = self.sock.accept()
        self.sock.setblocking(False)

    def write(self, size: int, flags: tuple[str, ...]) -> int | str:
        # memory that is lent to the kernel is charged by the page
        data = memoryview(mmap.mmap(-1, size)) if "zerocopy" in flags and size else bytes(size)
        return call(lambda: self.sock.send(data, sum(MSG[word] for word in flags)))

    def read(self, size: int, flags: tuple[str, ...]) -> int | str:
        return call(lambda: len(self.sock.recv(size, sum(MSG[word] for word in flags))))

    def setsockopt(self, name: str, value: int | str) -> int | str:
        level, number = OPTIONS[name]
        return call(lambda: self.sock.setsockopt(level, number, value.encode() if isinstance(value, str) else value))

    def shutdown(self) -> None:
        call(lambda: self.sock.shutdown(socket.SHUT_WR))

    def close(self) -> None:
        self.sock.close()

    def sysctl(self, name: str, value: int | str) -> None:
        self.space.set_sysctl(name if name.startswith("net.") else f"net.ipv4.{name}", value)

    def mtu(self, mtu: int) -> None:
        with self.space.netlink() as ip:
            ip.link("set", index=ip.link_lookup(ifname=DEVICE)[0], mtu=mtu)

    def writable(self) -> bool:
        return bool(select.select([], [self.sock], [], 0)[1])

    def readable(self) -> bool:
        return bool(select.select([self.sock], [], [], 0)[0])

    def info(self) -> dict[str, int]:
        raw = self.sock.getsockopt(6, 11, 512)
        memory = struct.unpack("9I", self.sock.getsockopt(1, SO_MEMINFO, 36))
        clamp = self.sock.getsockopt(6, 10)
        return flat(unpack_info(raw)) | dict(zip(_MEM[:6], memory, strict=False)) | {"clamp": clamp}

    def counters(self) -> dict[str, int]:
        return kernel_counters()

    def limit(self, rate: int, burst: int) -> None:
        tc("qdisc", "add", "dev", DEVICE, "root", "handle", "1:", "htb", "default", "1")
        tc("class", "add", "dev", DEVICE, "parent", "1:", "classid", "1:1", "htb", "rate", f"{rate}bit", "burst", str(burst), "cburst", str(burst))


def flat(info: dict[str, int]) -> dict[str, int]:
    """tcp_info under the names recordings use."""
    out = dict(info)
    out["notsent"] = out.pop("notsent_bytes")
    out["app_limited"] = out.pop("delivery_rate_app_limited")
    return out


def open_tap(name: str, offload: bool) -> int:
    """A TAP in the calling thread's namespace that takes super-frames, or (offload false) none."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(fd, TUNSETOFFLOAD, OFFLOADS if offload else 0)
    return fd


def configure(space: Namespace, config: dict[str, Any]) -> None:
    """Addresses, MTU, GSO limits and the peer's neighbour entry."""
    with space.netlink() as ip:
        index = ip.link_lookup(ifname=DEVICE)[0]
        ip.link("set", index=index, address=HOST_MAC.hex(":"), mtu=config.get("mtu") or 1500, txqlen=10000, state="up")
        ip.addr("add", index=index, address=HOST_IP, prefixlen=24)
        ip.neigh("replace", dst=PEER_IP, lladdr=PEER_MAC.hex(":"), ifindex=index, state=0x80)
    limits = [str(word) for name in ("gso_max_size", "gso_max_segs") if config.get(name) for word in (name, config[name])]
    if limits:
        subprocess.run(["ip", "link", "set", "dev", DEVICE, *limits], check=True)


def tc(*words: str) -> None:
    subprocess.run(["tc", *words], check=True, stdin=subprocess.DEVNULL)


def _only_outgoing(watch: socket.socket) -> None:
    """Pass only the host's frames, cut short. A frame of the peer's that was copied for us would not be coalesced by TCP."""
    program = struct.pack("HBBI" * 4, 0x28, 0, 0, SKF_PKTTYPE, 0x15, 0, 1, PACKET_OUTGOING, 0x06, 0, 0, SNAP, 0x06, 0, 0, 0)
    memory = ctypes.create_string_buffer(program)
    watch.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 4, ctypes.addressof(memory)))


def stamp_ns(control: Sequence[tuple[int, int, bytes]]) -> int:
    """The kernel's time stamp of a received frame, ns of the wall clock."""
    for _, kind, body in control:
        if kind == SO_TIMESTAMPNS:
            seconds, ns = struct.unpack("qq", body[:16])
            return int(seconds * 1_000_000_000 + ns)
    return time.time_ns()


def call(function: Callable[[], object]) -> int | str:
    """What a call gives: its number, 0 for none, or an errno's name."""
    try:
        result = function()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return result if isinstance(result, int) else 0
