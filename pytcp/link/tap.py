"""A TAP device: Ethernet frames to and from the Linux kernel through /dev/net/tun.

With IFF_VNET_HDR every frame carries a `struct virtio_net_hdr`, and TUNSETOFFLOAD tells the kernel
which unfinished work we accept: TCP super-frames of up to 64 KiB (TSO), UDP ones (USO, Linux 6.2) and
checksums left for the receiver. One system call then moves 64 KiB, which is where the speed of the
stack comes from. Without them the device gives and takes finished MTU frames, and the stack's own
segmentation and coalescing (`batch`) stand in, as GSO and GRO do on a Linux NIC that can do nothing.

A TAP whose kernel interface is down takes nothing (EIO): such frames are lost, as on a cable without
carrier, and counted. A deleted TAP (EBADFD, ENODEV) raises LinkDown from `poll`; until then sends to
it are lost in the same way, so that no program call meets the device's end.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence

from .batch import FrameReader, FrameWriter
from .frame import (
    CSUM_NONE,
    CSUM_UNNECESSARY,
    F_CSUM,
    F_RXCSUM,
    F_TSO4,
    F_TSO6,
    F_USO,
    LinkDown,
    RxBuf,
    RxFrame,
    TxFrame,
)

TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
TUNGETIFF = 0x800454D2
TUNGETVNETHDRSZ = 0x800454D7
TUNSETVNETHDRSZ = 0x400454D8
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
IFF_VNET_HDR = 0x4000
TUN_F_CSUM = 0x01
TUN_F_TSO4 = 0x02
TUN_F_TSO6 = 0x04
TUN_F_TSO_ECN = 0x08
TUN_F_USO4 = 0x20
TUN_F_USO6 = 0x40
SIOCGIFMTU = 0x8921

VNET_F_NEEDS_CSUM = 1
VNET_F_DATA_VALID = 2
VNET_F_CHECKED = VNET_F_NEEDS_CSUM | VNET_F_DATA_VALID
VNET_HDR = struct.Struct("=BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
VNET_HDR_LEN = 10

RX_BUF_SIZE = VNET_HDR_LEN + 2 + 18 + 65536  # header, Ethernet with one VLAN tag, the largest IP packet
POOL_MAX = 256  # idle receive buffers kept for reuse
IOV_MAX = 1000  # buffers in one writev (the kernel's limit is 1024)

_GONE = frozenset((errno.EBADFD, errno.ENODEV, errno.EBADF))
_FULL = frozenset((errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM))


def _no_rx(frame: RxFrame) -> None:
    """Nobody listens yet: a received frame is lost."""


def _no_rx_end() -> None:
    """Nobody listens yet."""


class Tap:
    """One TAP device as a `Link`."""

    def __init__(
        self,
        name: str | None = None,
        *,
        vnet_hdr: bool = True,
        offload: bool = True,
        fd: int | None = None,
        mac: bytes | None = None,
        mtu: int | None = None,
        gso: bool = True,
        gro: bool = True,
        vnet_hdr_size: int = VNET_HDR_LEN,
    ) -> None:
        """Create or attach to the TAP `name` in the current network namespace (None: the kernel names
        it), or adopt `fd`, a descriptor on which TUNSETIFF was done.

        vnet_hdr: exchange virtio-net headers; ignored with `fd`, which knows whether it has them.
        offload: take super-frames and unfinished checksums from the kernel, and give it ours.
        mac: our address; a random locally administered one by default (the kernel's end has its own).
        mtu: bytes of IP; the kernel interface's by default. vnet_hdr_size: 10, or 12 (mergeable layout).
        gso, gro: without offloads, still take super-frames from the stack and cut them, and coalesce
        what is received before the stack sees it.

        Raises OSError: EPERM, EBUSY (name in use), ENOENT (no /dev/net/tun), EINVAL (not a TAP)."""
        if vnet_hdr_size not in (10, 12):
            raise OSError(errno.EINVAL, "vnet_hdr_size is 10 or 12")
        self.fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC) if fd is None else fd
        try:
            self._open(name, vnet_hdr, fd is not None, vnet_hdr_size)
            self.features = self._set_offload(offload) if self.vnet_hdr else 0
            self.mtu = self._kernel_mtu() if mtu is None else mtu
            self._hdr_len = vnet_hdr_size if self.vnet_hdr else 0
        except BaseException:
            if fd is None:
                os.close(self.fd)
            raise
        self.mac = bytes((2,)) + os.urandom(5) if mac is None else mac
        self.gso_max_size = 65536
        self.rx: Callable[[RxFrame], None] = _no_rx
        self.rx_end: Callable[[], None] = _no_rx_end
        self.rx_packets = 0  # frames as they pass the descriptor, a super-frame being one
        self.rx_bytes = 0
        self.tx_packets = 0
        self.tx_bytes = 0
        self.tx_carrier_errors = 0  # lost because the interface was down or gone
        self.tx_errors = 0  # refused by the kernel as malformed
        self._hdr_pad = bytes(vnet_hdr_size - VNET_HDR_LEN)
        self._plain_hdr = bytes(vnet_hdr_size)
        self._hdr_key = (0, 0, 0, 0, 0)
        self._hdr = self._plain_hdr
        self._pool: list[RxBuf] = []
        self._buf = RxBuf(RX_BUF_SIZE, self._pool)
        self._buf.taken = 1  # our own hold: a view taken and given back within one `rx` must not pool it
        bare = not self.features
        self._reader = FrameReader(self.fd, frame_size=self.mtu + 18, vnet_hdr_len=self._hdr_len) if gro and bare else None
        self._writer = FrameWriter(self.fd, vnet_hdr_len=self._hdr_len) if gso and bare else None
        if self._writer is not None:
            self.features = F_CSUM | F_TSO4 | F_TSO6 | F_USO

    def _open(self, name: str | None, vnet_hdr: bool, adopted: bool, vnet_hdr_size: int) -> None:
        if adopted:
            os.set_blocking(self.fd, False)
            raw = fcntl.ioctl(self.fd, TUNGETIFF, bytes(40))
        else:
            encoded = (name or "").encode()
            if len(encoded) > 15:
                raise OSError(errno.EINVAL, f"interface name too long: {name}")
            flags = IFF_TAP | IFF_NO_PI | (IFF_VNET_HDR if vnet_hdr else 0)
            raw = fcntl.ioctl(self.fd, TUNSETIFF, struct.pack("16sH22x", encoded, flags))
        self.name = raw[:16].split(b"\0", 1)[0].decode()
        (flags,) = struct.unpack_from("H", raw, 16)
        if not flags & IFF_TAP or not flags & IFF_NO_PI:
            raise OSError(errno.EINVAL, f"{self.name} is not a TAP without packet information")
        self.vnet_hdr = bool(flags & IFF_VNET_HDR)
        if self.vnet_hdr:
            fcntl.ioctl(self.fd, TUNSETVNETHDRSZ, struct.pack("i", vnet_hdr_size))

    def _set_offload(self, offload: bool) -> int:
        """Tell the kernel what it may leave to us; returns the F_* bits that hold both ways."""
        if not offload:
            fcntl.ioctl(self.fd, TUNSETOFFLOAD, 0)
            return 0
        base = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN
        features = F_CSUM | F_TSO4 | F_TSO6 | F_RXCSUM
        try:
            fcntl.ioctl(self.fd, TUNSETOFFLOAD, base | TUN_F_USO4 | TUN_F_USO6)
        except OSError as refused:
            if refused.errno != errno.EINVAL:
                raise
            fcntl.ioctl(self.fd, TUNSETOFFLOAD, base)  # before Linux 6.2
            return features
        return features | F_USO

    def _kernel_mtu(self) -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as control:
            try:
                raw = fcntl.ioctl(control, SIOCGIFMTU, struct.pack("16s24x", self.name.encode()))
            except OSError as missing:
                if missing.errno != errno.ENODEV:
                    raise
                return 1500  # an inherited descriptor whose interface lives in another namespace
        mtu: int = struct.unpack_from("i", raw, 16)[0]
        return mtu

    def fileno(self) -> int:
        return self.fd

    def poll(self, budget: int) -> int:
        """Read up to `budget` frames; see `Link.poll`. Raises LinkDown when the TAP was deleted."""
        if self._reader is not None:
            return self._poll_coalesced(self._reader, budget)
        fd = self.fd
        readv = os.readv
        unpack = VNET_HDR.unpack_from
        hdr_len = self._hdr_len
        pool = self._pool
        rx = self.rx
        buf = self._buf
        vec = (buf.mem,)
        count = 0
        size = 0
        while count < budget:
            try:
                n = readv(fd, vec)
            except OSError as failed:
                if count:
                    break  # what came before is delivered first; the next poll meets the error again
                self._read_failed(failed)
                break
            if n <= hdr_len:
                break
            count += 1
            size += n
            if hdr_len:
                flags, gso_type, _, gso_size, _, _ = unpack(buf.mem)
                csum = CSUM_UNNECESSARY if flags & VNET_F_CHECKED else CSUM_NONE
                rx(RxFrame(buf.view[hdr_len:n], gso_type, gso_size, csum, buf))
            else:
                rx(RxFrame(buf.view[:n], buf=buf))
            if buf.taken != 1:
                buf.taken -= 1
                buf = self._buf = pool.pop() if pool else RxBuf(RX_BUF_SIZE, pool)
                buf.taken = 1
                vec = (buf.mem,)
        if count:
            self.rx_packets += count
            self.rx_bytes += size - count * hdr_len
            if len(pool) > POOL_MAX:
                del pool[POOL_MAX:]
            self.rx_end()
        return count

    def _poll_coalesced(self, reader: FrameReader, budget: int) -> int:
        before = reader.rx_packets
        try:
            frames = reader.read(budget)
        except OSError as failed:
            self._read_failed(failed)
            return 0
        rx = self.rx
        for frame in frames:
            rx(frame)
        if frames:
            self.rx_end()
        self.rx_packets = reader.rx_packets
        self.rx_bytes = reader.rx_bytes
        return reader.rx_packets - before

    def _read_failed(self, failed: OSError) -> None:
        if failed.errno in _GONE:
            raise LinkDown(failed.errno, f"{self.name}: {failed.strerror}") from failed
        if failed.errno not in (errno.EAGAIN, errno.EIO, errno.EINTR):
            raise failed

    def send(self, frames: Sequence[TxFrame]) -> int:
        """Write each frame with one writev; see `Link.send`. Frames the kernel refuses are lost and counted."""
        if self._writer is not None:
            return self._send_cut(self._writer, frames)
        fd = self.fd
        writev = os.writev
        hdr_len = self._hdr_len
        taken = 0
        size = 0
        lost = 0
        for frame in frames:
            parts = frame.parts
            if len(parts) > IOV_MAX:
                parts = (b"".join(parts),)
            try:
                if not hdr_len:
                    size += writev(fd, (frame.head, *parts))
                else:
                    if frame.csum_start:
                        head = frame.head
                        key = (frame.gso_type, len(head), frame.gso_size, frame.csum_start, frame.csum_offset)
                        if key != self._hdr_key:
                            self._hdr = VNET_HDR.pack(VNET_F_NEEDS_CSUM, *key) + self._hdr_pad
                            self._hdr_key = key
                        size += writev(fd, (self._hdr, head, *parts))
                    else:
                        size += writev(fd, (self._plain_hdr, frame.head, *parts))
            except OSError as failed:
                if failed.errno in _FULL:
                    break
                self._write_failed(failed)
                lost += 1
            taken += 1
        self.tx_packets += taken - lost
        self.tx_bytes += size - (taken - lost) * hdr_len
        return taken

    def _send_cut(self, writer: FrameWriter, frames: Sequence[TxFrame]) -> int:
        rest = frames
        while rest:
            try:
                taken = writer.write(rest)
            except OSError as failed:
                self._write_failed(failed)
                taken = 1
            else:
                self.tx_bytes += sum([frame.length for frame in rest[:taken]])
            if not taken:
                break
            rest = rest[taken:]
        self.tx_packets = writer.tx_packets
        return len(frames) - len(rest)

    def _write_failed(self, failed: OSError) -> None:
        if failed.errno == errno.EIO or failed.errno in _GONE:
            self.tx_carrier_errors += 1
        elif failed.errno == errno.EINVAL:
            self.tx_errors += 1
        else:
            raise failed

    def close(self) -> None:
        """Close the descriptor, which deletes the TAP unless it is persistent. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
