"""The running kernel as oracle for segmentation and coalescing.

GSO: a super-frame given to a TAP without offloads through a packet socket is cut by the kernel in
software; what the TAP's reader gets must be, byte for byte, what `segment` makes. GRO: frames written
to a TAP in NAPI mode with a flush timeout are coalesced by the kernel; what a packet socket then sees
must be what `Gro` gives for the same frames. Both live in a network namespace of their own.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from pytcp.link import gro, offload
from pytcp.link.frame import GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, RxFrame, TxFrame
from pytcp.wire.checksum import ones_sum_py

pytestmark = pytest.mark.tap

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_REC_PRIVATE = 0x4000 | 0x40000
TUNSETIFF = 0x400454CA
SIOCSIFFLAGS, SIOCGIFFLAGS, SIOCSIFMTU = 0x8914, 0x8913, 0x8922
IFF_TAP, IFF_NAPI, IFF_NO_PI = 2, 0x10, 0x1000
SOL_PACKET, PACKET_VNET_HDR = 263, 15
NEEDS_CSUM = 1
VNET_HDR = struct.Struct("=BBHHHH")
FLUSH_NS = 20_000_000
CLOCK_MONOTONIC_COARSE = 6
WRAP = 1 << 32


def in_namespace(work: Callable[[Any], None]) -> None:
    """Run `work(libc)` in a thread that has left this process's network and mount namespaces."""
    failure: list[BaseException] = []

    def body() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(CLONE_NEWNET | CLONE_NEWNS):
                raise OSError(ctypes.get_errno(), "unshare")
            work(libc)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


class Device:
    """A TAP and a packet socket on its kernel side."""

    def __init__(self, flags: int, name: bytes, flush_ns: int = 0) -> None:
        self.tap = -1
        self.packet: Any = None

        def work(libc: Any) -> None:
            self.tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(self.tap, TUNSETIFF, struct.pack("16sH22x", name, IFF_TAP | IFF_NO_PI | flags))
            if libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) or libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None):
                raise OSError(ctypes.get_errno(), "mount")
            with open(f"/proc/sys/net/ipv6/conf/{name.decode()}/disable_ipv6", "w") as knob:
                knob.write("1")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                old = fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sH22x", name, 0))
                up = struct.unpack_from("H", old, 16)[0] | 1 | 0x100  # IFF_UP, IFF_PROMISC
                fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", name, up))
            if flush_ns:  # for the queues there are now: those of an interface that is up
                with open(f"/sys/class/net/{name.decode()}/gro_flush_timeout", "w") as knob:
                    knob.write(str(flush_ns))
            self.packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self.packet.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            self.packet.bind((name.decode(), 3))
            self.packet.setblocking(False)

        in_namespace(work)

    def close(self) -> None:
        os.close(self.tap)
        self.packet.close()


def drain(read: Callable[[], bytes]) -> list[bytes]:
    out = []
    try:
        while True:
            out.append(read())
    except BlockingIOError:
        return out


@pytest.fixture(scope="module")
def plain() -> Iterator[Device]:
    device = Device(0, b"gso0")
    yield device
    device.close()


@pytest.fixture(scope="module")
def napi() -> Iterator[Device]:
    device = Device(IFF_NAPI, b"gro0", FLUSH_NS)
    yield device
    device.close()


ETHER = Ether(dst="02:00:00:00:00:01", src="02:00:00:00:00:02")
OPTIONS = [("NOP", None), ("NOP", None), ("Timestamp", (1, 2))]


def pseudo_sum(ip: Any, proto: int, length: int) -> bytes:
    raw = bytes(ip)
    return ones_sum_py(raw[12:20] if ip.version == 4 else raw[8:40], proto + length).to_bytes(2, "big")


def to_send(ip: Any, l4: Any, payload: bytes, gso_type: int, gso_size: int) -> TxFrame:
    """A super-frame (gso_size 0: a single frame) with lengths and pseudo-header sum as the stack fills them in."""
    udp = isinstance(l4, UDP)
    size = len(bytes(l4)) + len(payload)
    if ip.version == 4:
        ip.len = 20 + size
        ip.proto = 17 if udp else 6
    else:
        ip.plen = size
        ip.nh = 17 if udp else 6
    if udp:
        l4.len = size
    head = bytearray(bytes(ETHER / ip) + bytes(l4))
    start = 14 + (20 if ip.version == 4 else 40)
    offset = 6 if udp else 16
    head[start + offset : start + offset + 2] = pseudo_sum(ip, 17 if udp else 6, size)
    return TxFrame(bytes(head), (payload,), len(head) + len(payload), gso_type, gso_size, start, offset)


def cut_by_kernel(device: Device, frame: TxFrame) -> list[bytes]:
    header = VNET_HDR.pack(NEEDS_CSUM, frame.gso_type, len(frame.head), frame.gso_size, frame.csum_start, frame.csum_offset)
    drain(lambda: os.read(device.tap, 70000))
    device.packet.send(header + bytes(frame.head) + b"".join(frame.parts))
    return drain(lambda: os.read(device.tap, 70000))


def ip(v6: bool, **fields: Any) -> Any:
    return IPv6(src="fd00::1", dst="fd00::2") if v6 else IP(**{"src": "10.0.0.1", "dst": "10.0.0.2", "id": 65534, "flags": "DF", **fields})


@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize("flags", ["A", "FPA", "AE", "UA"])
@pytest.mark.parametrize("size", [1429, 2856, 5000, 65000])
def test_tcp_is_cut_as_the_kernel_cuts_it(plain: Device, v6: bool, flags: str, size: int) -> None:
    tcp = TCP(sport=1, dport=2, seq=WRAP - 2000, ack=7, flags=flags, options=OPTIONS, urgptr=3)
    frame = to_send(ip(v6), tcp, random.Random(size).randbytes(size), GSO_TCPV6 if v6 else GSO_TCPV4, 1428)
    kernel = cut_by_kernel(plain, frame)
    assert len(kernel) == -(-size // 1428)
    assert offload.segment(frame) == kernel
    assert offload.segment_py(frame) == kernel


def test_classic_cwr_is_sent_once_by_the_kernel_too(plain: Device) -> None:
    frame = to_send(ip(False), TCP(seq=WRAP - 10, flags="ACP"), bytes(3000), GSO_TCPV4 | GSO_ECN, 1000)
    kernel = cut_by_kernel(plain, frame)
    assert len(kernel) == 3
    assert offload.segment(frame) == kernel


def test_ids_count_up_without_df_too(plain: Device) -> None:
    frame = to_send(ip(False, flags=0), TCP(seq=5, flags="A"), bytes(3000), GSO_TCPV4, 1000)
    assert offload.segment(frame) == cut_by_kernel(plain, frame) != []


@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize("size", [1001, 2000, 12345])
def test_udp_is_cut_as_the_kernel_cuts_it(plain: Device, v6: bool, size: int) -> None:
    frame = to_send(ip(v6, flags=0), UDP(sport=1, dport=2), random.Random(size).randbytes(size), GSO_UDP_L4, 1000)
    kernel = cut_by_kernel(plain, frame)
    assert len(kernel) == -(-size // 1000)
    assert offload.segment(frame) == kernel
    assert offload.segment_py(frame) == kernel


@pytest.mark.parametrize("l4", [TCP(sport=1, dport=2, seq=0, ack=0, flags="A", window=0), UDP(sport=1, dport=2)])
def test_a_checksum_that_comes_out_as_zero(plain: Device, l4: Any) -> None:
    # two bytes of payload that bring the sum to 0xffff, hence the checksum to zero
    proto, size = (17, 10) if isinstance(l4, UDP) else (6, 22)
    header = (1 + 2 + 10) if proto == 17 else (1 + 2 + 0x5010)
    payload = (0xFFFF - (0x0A00 + 1 + 0x0A00 + 2 + proto + size) - header).to_bytes(2, "big")
    for gso_size in (0, 2):
        gso_type = GSO_NONE if not gso_size else GSO_UDP_L4 if proto == 17 else GSO_TCPV4
        # the second segment of a super-frame differs in sequence number, so TCP's has two bytes less to cancel
        frame = to_send(ip(False), l4.copy(), payload if not gso_size else payload * 2, gso_type, gso_size)
        kernel = cut_by_kernel(plain, frame)
        assert len(kernel) == max(1, gso_size)
        at = frame.csum_start + frame.csum_offset
        assert kernel[0][at : at + 2] in (b"\0\0", b"\xff\xff")
        assert offload.segment(frame) == kernel


def test_single_frames_are_completed_as_by_the_kernel(plain: Device) -> None:
    for size in (0, 1, 2, 999, 1428):
        for v6 in (False, True):
            frame = to_send(ip(v6), TCP(flags="PA", options=OPTIONS), random.Random(size).randbytes(size), GSO_NONE, 0)
            assert offload.segment(frame) == cut_by_kernel(plain, frame) != []


def tick() -> int:
    """The time of the kernel's last timer tick."""
    return time.clock_gettime_ns(CLOCK_MONOTONIC_COARSE)


def merged_by_kernel(device: Device, frames: list[bytes]) -> list[tuple[bytes, int, int]]:
    """What the packet socket sees of `frames`: (data, gso_type, gso_size).

    The kernel sends held frames up that are older than the current tick, so all are written within
    one; tried again when this process was held up."""
    for _ in range(50):
        time.sleep(2 * FLUSH_NS / 1e9)
        drain(lambda: device.packet.recv(70000))
        before = tick()
        while (now := tick()) == before:
            pass
        for frame in frames:
            os.write(device.tap, frame)
        in_time = tick() == now
        deadline = time.monotonic_ns() + 3 * FLUSH_NS
        seen: list[bytes] = []
        while time.monotonic_ns() < deadline:
            time.sleep(FLUSH_NS / 2e9)
            seen += drain(lambda: device.packet.recv(70000))
        if in_time:
            out = []
            for raw in seen:
                _, gso_type, _, gso_size, _, _ = VNET_HDR.unpack_from(raw)
                out.append((raw[10:], gso_type, gso_size))
            return out
    raise AssertionError("this machine is too busy to be asked")


def merged_here(frames: list[bytes]) -> list[tuple[bytes, int, int]]:
    coalescer = gro.Gro()
    for frame in frames:
        coalescer.feed(RxFrame(memoryview(frame)))
    return [(bytes(f.data), f.gso_type, f.gso_size) for f in coalescer.flush()]


def without_tcp_checksum(frame: tuple[bytes, int, int]) -> tuple[bytes, int, int]:
    """The kernel leaves whatever it likes in the checksum field of a merged frame: it is not owed."""
    data, gso_type, gso_size = frame
    if gso_size:
        at = (34 if gso_type & ~GSO_ECN == GSO_TCPV4 else 54) + 16
        data = data[:at] + b"\0\0" + data[at + 2 :]
    return data, gso_type, gso_size


def segment(rng: random.Random, seq: int, size: int, v6: bool, sport: int, change: dict[str, Any]) -> bytes:
    tcp_fields: dict[str, Any] = {"flags": "A", "ack": 5, "window": 100, "options": OPTIONS}
    ip_fields: dict[str, Any] = {}
    for name, value in change.items():
        (tcp_fields if name in ("flags", "ack", "window", "options", "reserved", "urgptr") else ip_fields)[name] = value
    base: dict[str, Any] = {"src": "fd00::1", "dst": "fd00::2"} if v6 else {"src": "10.0.0.1", "dst": "10.0.0.2", "id": 1, "flags": "DF"}
    if "df" in ip_fields:
        base["flags"] = "DF" if ip_fields.pop("df") else 0
    network = (IPv6 if v6 else IP)(**{**base, **ip_fields})
    return bytes(ETHER / network / TCP(sport=sport, dport=80, seq=seq % WRAP, **tcp_fields) / Raw(rng.randbytes(size)))


TCP_CHANGES: list[dict[str, Any]] = [
    {"flags": "PA"}, {"flags": "FA"}, {"flags": "RA"}, {"flags": "SA"}, {"flags": "UA"}, {"flags": "AE"}, {"flags": "AC"}, {"flags": "AEC"},
    {"reserved": 1}, {"ack": 6}, {"window": 99}, {"options": []}, {"urgptr": 9},
]  # fmt: skip
V4_CHANGES: list[dict[str, Any]] = [{"tos": 2}, {"ttl": 3}, {"df": False}, {"id": 2}, {"id": 3}]
V6_CHANGES: list[dict[str, Any]] = [{"tc": 2}, {"hlim": 3}, {"fl": 9}]


def scenario(seed: int) -> list[bytes]:
    """A dozen frames of one or two flows in which most things are equal and something is not."""
    rng = random.Random(f"gro {seed}")
    flows = [(rng.random() < 0.4, 1000), (rng.random() < 0.4, 1001)][: rng.randint(1, 2)]
    position = dict.fromkeys(flows, WRAP - 150)
    lasting: dict[str, Any] = rng.choice([{}, {}, {}, {}, *TCP_CHANGES[5:9]])
    counting = rng.random() < 0.5
    frames = []
    for number in range(rng.randint(3, 12)):
        flow = rng.choice(flows)
        v6, sport = flow
        change = dict(lasting)
        if counting and not v6:
            change["id"] = number
        if rng.random() < 0.15:
            change |= rng.choice(TCP_CHANGES + (V6_CHANGES if v6 else V4_CHANGES))
        size = rng.choice([100] * 17 + [60, 101, 0])
        seq = position[flow] + rng.choice([0] * 19 + [1])
        position[flow] = seq + size
        frame = segment(rng, seq, size, v6, sport, change)
        if rng.random() < 0.03:
            frame += bytes(4)
        if rng.random() < 0.03:
            at = rng.randrange(14, len(frame))
            frame = frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1 :]
        frames.append(frame)
    return frames


@pytest.mark.parametrize("seed", range(40))
def test_frames_are_coalesced_as_the_kernel_coalesces_them(napi: Device, seed: int) -> None:
    frames = scenario(seed)
    kernel = [without_tcp_checksum(f) for f in merged_by_kernel(napi, frames)]
    ours = [without_tcp_checksum(f) for f in merged_here(frames)]
    assert sorted(kernel) == sorted(ours)
    for sport in (1000, 1001):  # each flow in the same order
        assert [f for f in kernel if flow_of(f) == sport] == [f for f in ours if flow_of(f) == sport]


def test_the_scenarios_contain_merges_and_refusals() -> None:
    results = [merged_here(scenario(seed)) for seed in range(40)]
    assert sum(f[2] > 0 for result in results for f in result) > 40
    assert sum(f[2] == 0 for result in results for f in result) > 40


def flow_of(frame: tuple[bytes, int, int]) -> int:
    data = frame[0]
    return int.from_bytes(data[54:56] if data[12:14] == b"\x86\xdd" else data[34:36], "big")


def test_a_full_super_frame_is_as_long_as_the_kernels(napi: Device) -> None:
    rng = random.Random(1)
    frames = [segment(rng, i * 1448, 1448, False, 1000, {"id": i}) for i in range(46)]
    kernel = [(len(f[0]), f[2]) for f in merged_by_kernel(napi, frames)]
    assert kernel == [(len(f[0]), f[2]) for f in merged_here(frames)] == [(66 + 45 * 1448, 1448), (66 + 1448, 0)]
