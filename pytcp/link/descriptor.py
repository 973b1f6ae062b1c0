"""Frames through a file descriptor that keeps their boundaries: the common half of TAP, TUN and packet socket.

With a `struct virtio_net_hdr` before each frame the kernel says which unfinished work comes with it, and is told the
same: super-frames of up to 64 KiB and checksums left for the receiver. One system call then moves 64 KiB, which is where
the speed of the stack comes from. Without offloads the descriptor gives and takes finished MTU frames, and the stack's own
segmentation and coalescing (`batch`) stand in, as GSO and GRO do on a Linux NIC that can do nothing.

A device that is down takes nothing: such frames are lost, as on a cable without carrier, and counted. One that is gone
raises LinkDown from `poll`; until then sends to it are lost in the same way, so that no program call meets the device's end.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pytcp.native import ffi, lib

from .batch import FrameReader, FrameWriter
from .frame import CSUM_NONE, CSUM_UNNECESSARY, F_CSUM, F_TSO4, F_TSO6, F_USO, LinkDown, RxBuf, RxFrame, TxFrame

VNET_F_NEEDS_CSUM = 1
VNET_F_DATA_VALID = 2
VNET_F_CHECKED = VNET_F_NEEDS_CSUM | VNET_F_DATA_VALID
VNET_HDR = struct.Struct("=BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
VNET_HDR_LEN = 10
if ffi is not None:
    # of a struct pytcp_rx: length, gso_size, gso_type, whether the checksum is right
    _FACTS = struct.Struct(f"={ffi.offsetof('struct pytcp_rx', 'len')}xI4xHBB").unpack_from

RX_BUF_SIZE = VNET_HDR_LEN + 2 + 18 + 65536  # header, Ethernet with one VLAN tag, the largest IP packet
IOV_MAX = 1000  # buffers in one writev (the kernel's limit is 1024)
ETHERNET = 14
VLAN = 4

GONE = frozenset((errno.EBADFD, errno.ENODEV, errno.EBADF, errno.ENXIO))
FULL = frozenset((errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM))
NO_CARRIER = frozenset((errno.EIO, errno.ENETDOWN))
MALFORMED = frozenset((errno.EINVAL, errno.EMSGSIZE))


def _no_rx(frame: RxFrame) -> None:
    """Nobody listens yet: a received frame is lost."""


def _no_rx_end() -> None:
    """Nobody listens yet."""


class DescriptorLink:
    """A `Link` over a descriptor. A subclass opens it, sets `name`, `mac`, `mtu` and `features`, and calls `_start`.

    link_header: bytes of link-layer header a frame begins with, 14 or 0.
    """

    link_header = ETHERNET

    fd: int
    name: str
    mac: bytes
    mtu: int
    features: int

    def _start(self, vnet_hdr_len: int, *, gso: bool, gro: bool) -> None:
        """vnet_hdr_len: 0, 10 or 12 bytes before each frame. gso, gro: without offloads of the device, the stack's own."""
        self.gso_max_size = 65536
        self.rx: Callable[[RxFrame], None] = _no_rx
        self.rx_end: Callable[[], None] = _no_rx_end
        self.rx_packets = 0  # frames as they pass the descriptor, a super-frame being one
        self.rx_bytes = 0
        self.tx_packets = 0
        self.tx_bytes = 0
        self.tx_carrier_errors = 0  # lost because the interface was down or gone
        self.tx_errors = 0  # refused by the kernel as malformed
        self.vnet_hdr_len = vnet_hdr_len
        self._hdr_len = vnet_hdr_len
        self._hdr_pad = bytes(max(0, vnet_hdr_len - VNET_HDR_LEN))
        self._plain_hdr = bytes(vnet_hdr_len)
        self._hdr_key = (0, 0, 0, 0, 0)
        self._hdr = self._plain_hdr
        self._pool: list[RxBuf] = []
        self._buf = RxBuf(RX_BUF_SIZE, self._pool)
        self._read: Any = None if lib is None else lib.pytcp_read_batch
        self._entry = None if ffi is None else ffi.new("struct pytcp_rx *")
        self._facts = None if ffi is None else memoryview(ffi.buffer(self._entry))  # what C tells of a frame
        self._buf.taken = 1  # our own hold: a view taken and given back within one `rx` must not pool it
        bare = not self.features
        frame_size = self.mtu + (self.link_header + VLAN if self.link_header else 0)
        header = self.link_header
        self._reader = FrameReader(self.fd, frame_size=frame_size, vnet_hdr_len=vnet_hdr_len, link_header=header) if gro and bare else None
        if self._reader is not None:
            self._facts = None  # it reads by itself
        self._writer = FrameWriter(self.fd, vnet_hdr_len=vnet_hdr_len) if gso and bare else None
        self.cuts = self._writer is not None  # super-frames are cut here, not by the device
        if self.cuts:
            self.features = F_CSUM | F_TSO4 | F_TSO6 | F_USO

    def fileno(self) -> int:
        return self.fd

    def poll(self, budget: int) -> int:
        """Read up to `budget` frames; see `Link.poll`. Raises LinkDown when the device was deleted.

        The C helpers, if they are there, know no exception when there is nothing (more) to read, which is once in every pass."""
        facts = self._facts
        if facts is None:
            return self._poll_readv(budget) if self._reader is None else self._poll_coalesced(self._reader, budget)
        fd = self.fd
        read = self._read
        hdr_len = self._hdr_len
        entry = self._entry
        rx = self.rx
        buf = self._buf
        count = 0
        size = 0
        while count < budget:
            n = read(fd, buf.address, RX_BUF_SIZE, hdr_len, 1, entry)
            if n <= 0:
                if n and not count:
                    self._read_failed(OSError(-n, os.strerror(-n)))
                break
            length, gso_size, gso_type, csum = _FACTS(facts)
            count += 1
            size += length
            rx(RxFrame(buf.view[hdr_len : hdr_len + length], gso_type, gso_size, csum, buf))
            if buf.taken != 1:
                buf = self._next_buf(buf)
        if count:
            self.rx_packets += count
            self.rx_bytes += size
            self.rx_end()
        return count

    def _poll_readv(self, budget: int) -> int:
        """The same without C."""
        fd = self.fd
        readv = os.readv
        unpack = VNET_HDR.unpack_from
        hdr_len = self._hdr_len
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
                buf = self._next_buf(buf)
                vec = (buf.mem,)
        if count:
            self.rx_packets += count
            self.rx_bytes += size - count * hdr_len
            self.rx_end()
        return count

    def _next_buf(self, buf: RxBuf) -> RxBuf:
        """Views of `buf` are kept: it is theirs, and another one receives what comes next."""
        buf.taken -= 1
        pool = self._pool
        buf = self._buf = pool.pop() if pool else RxBuf(RX_BUF_SIZE, pool)
        buf.taken = 1
        return buf

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
        if failed.errno == errno.EBADF:
            # that number would tell a program that its own socket is closed; and the descriptor's may be another's soon
            self.fd = -1
            raise LinkDown(errno.ENODEV, f"{self.name}: somebody closed its descriptor") from failed
        if failed.errno in GONE:
            raise LinkDown(failed.errno, f"{self.name}: {failed.strerror}") from failed
        if failed.errno not in (errno.EAGAIN, errno.EIO, errno.EINTR):
            raise failed

    def send(self, frames: Sequence[TxFrame]) -> int:
        """Write each frame with one writev; see `Link.send`. Frames the kernel refuses are lost and counted."""
        if self._writer is not None:
            return self._send_cut(self._writer, frames)
        fd = self.fd
        hdr_len = self._hdr_len
        taken = 0
        size = 0
        for frame in frames:
            parts = frame.parts
            if len(parts) > IOV_MAX:
                parts = (b"".join(parts),)
            try:
                if not hdr_len:
                    size += os.writev(fd, (frame.head, *parts))
                elif frame.csum_start:
                    head = frame.head
                    key = (frame.gso_type, len(head), frame.gso_size, frame.csum_start, frame.csum_offset)
                    if key != self._hdr_key:
                        self._hdr = VNET_HDR.pack(VNET_F_NEEDS_CSUM, *key) + self._hdr_pad
                        self._hdr_key = key
                    size += os.writev(fd, (self._hdr, head, *parts))
                else:
                    size += os.writev(fd, (self._plain_hdr, frame.head, *parts))
            except OSError as failed:
                if failed.errno in FULL:
                    break
                self._write_failed(failed)
                # lost: taken, and not counted
                self.tx_packets -= 1
                size += hdr_len
            taken += 1
        self.tx_packets += taken
        self.tx_bytes += size - taken * hdr_len
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
        if failed.errno in NO_CARRIER or failed.errno in GONE:
            self.tx_carrier_errors += 1
        elif failed.errno in MALFORMED:
            self.tx_errors += 1
        else:
            raise failed

    def close(self) -> None:
        """Close the descriptor, which deletes a TAP or TUN that is not persistent. May be called twice, and after somebody else closed it."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            with suppress(OSError):
                os.close(fd)
