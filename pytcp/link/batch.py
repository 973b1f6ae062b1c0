"""MTU frames by the batch: many system calls and one call into C, in both directions.

A device without offloads costs one read or write per 1500 bytes. `FrameReader` drains it into a slab
and coalesces the batch before Python sees a frame; `FrameWriter` takes super-frames, cuts them and
writes the segments. Neither makes a Python object per packet. Both work on any non-blocking
descriptor that keeps message boundaries: a TAP with or without virtio-net header, a packet socket.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from struct import Struct
from typing import Any

from pytcp.link.frame import CSUM_NONE, CSUM_UNNECESSARY, RxFrame, TxFrame
from pytcp.link.gro import Output, coalesce, coalesce_py
from pytcp.link.offload import ETHERNET, Layout, complete_checksum, cut_into, new_scratch, segment
from pytcp.native import ffi, lib

BATCH = 64
FULL = frozenset((errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM))
_VNET_HDR = Struct("=BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
_CHECKED = 3  # NEEDS_CSUM | DATA_VALID


class FrameReader:
    """Reads and coalesces frames of one descriptor."""

    def __init__(self, fd: int, *, frame_size: int = 2048, vnet_hdr_len: int = 0, link_header: int = ETHERNET) -> None:
        """fd: non-blocking. frame_size: the largest frame in bytes, without the virtio-net header
        (longer ones are cut off by the kernel). vnet_hdr_len: 0, 10 or 12. link_header: 14 or 0."""
        if vnet_hdr_len not in (0, 10, 12) or link_header not in (0, ETHERNET) or frame_size <= 0:
            raise ValueError("no such frame layout")
        self.fd = fd
        self.link_header = link_header
        self._hdr = vnet_hdr_len
        self._stride = frame_size + vnet_hdr_len
        self.rx_packets = 0  # frames as the device gave them
        self.rx_bytes = 0
        if ffi is not None:
            self._slab = bytearray(BATCH * self._stride)
            self._view = memoryview(self._slab)
            self._base = ffi.from_buffer(self._slab)
            self._rx = ffi.new("struct pytcp_rx[]", BATCH)
            self._res = ffi.new("struct pytcp_merged[]", BATCH)
            self._out = Output()

    def read(self, budget: int = BATCH) -> list[RxFrame]:
        """Up to `budget` (at most 64) frames from the device, coalesced; empty when there are none.

        Merged frames may be read until the next call; whoever keeps one longer takes its buffer.
        Raises OSError when the first read fails (ENODEV at end of file); an error after some frames
        is left for the next call."""
        if lib is None:
            return coalesce_py(self._read_py(min(budget, BATCH)), self.link_header)
        rx = self._rx
        n = lib.pytcp_read_batch(self.fd, self._base, self._stride, self._hdr, min(budget, BATCH), rx)
        if n <= 0:
            if n:
                raise OSError(-n, os.strerror(-n))
            return []
        size = 0
        for i in range(n):
            size += rx[i].len
        self.rx_packets += n
        self.rx_bytes += size
        return coalesce(rx, n, size, self.link_header, self._res, self._out, self._frame)

    def _frame(self, index: int) -> RxFrame:
        """Frame `index` of the slab with memory of its own: a small frame must not hold the slab."""
        entry = self._rx[index]
        at = index * self._stride + self._hdr
        return RxFrame(memoryview(bytes(self._view[at : at + entry.len])), entry.gso_type, entry.gso_size, entry.csum_ok)

    def _read_py(self, budget: int) -> list[RxFrame]:
        frames: list[RxFrame] = []
        hdr = self._hdr
        while len(frames) < budget:
            try:
                data = os.read(self.fd, self._stride)
            except BlockingIOError:
                break
            except OSError:
                if frames:
                    break
                raise
            if not data:
                if frames:
                    break
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            if len(data) <= hdr:
                continue
            frame = RxFrame(memoryview(data)[hdr:])
            if hdr:
                flags, gso_type, _, gso_size, _, _ = _VNET_HDR.unpack_from(data)
                frame.gso_type, frame.gso_size = gso_type, gso_size
                frame.csum = CSUM_UNNECESSARY if flags & _CHECKED else CSUM_NONE
            frames.append(frame)
            self.rx_packets += 1
            self.rx_bytes += len(frame.data)
        return frames


class FrameWriter:
    """Writes super-frames to a descriptor that takes MTU frames."""

    def __init__(self, fd: int, *, vnet_hdr_len: int = 0) -> None:
        """fd: non-blocking. vnet_hdr_len: 0, 10 or 12 zero bytes go before each frame."""
        if vnet_hdr_len not in (0, 10, 12):
            raise ValueError(f"virtio-net header of {vnet_hdr_len} bytes")
        self.fd = fd
        self.tx_packets = 0  # frames as the device took them
        self._hdr = vnet_hdr_len
        self._zeros = bytes(vnet_hdr_len)
        self._skip = 0  # segments of the next frame that an earlier call has written
        self._out: Any = None
        self._room = 0

    def write(self, frames: Sequence[TxFrame]) -> int:
        """Write frames, segmented and with complete checksums; returns how many were taken whole.

        Fewer than given: the device is full. Call again with the rest, the first of which may be
        half written. Raises OSError when the first frame is refused, and forgets how much of it was
        written; a refusal later on is left for the next call. Raises ValueError as `segment` does."""
        taken = 0
        for frame in frames:
            try:
                whole = self._segments(frame) if frame.gso_size else self._single(frame)
            except OSError as failed:
                if failed.errno in FULL:
                    break
                if taken:
                    break
                self._skip = 0
                raise
            if not whole:
                break
            self._skip = 0
            taken += 1
        return taken

    def _single(self, frame: TxFrame) -> bool:
        frame = complete_checksum(frame)
        os.writev(self.fd, (self._zeros, frame.head, *frame.parts))
        self.tx_packets += 1
        return True

    def _segments(self, frame: TxFrame) -> bool:
        if lib is None:
            return self._segments_py(frame)
        layout = Layout(frame)
        gso_size = frame.gso_size
        count = layout.count(gso_size)
        size = layout.payload + count * layout.hdr_len
        if size > self._room:
            self._room = size
            self._out = new_scratch("uint8_t[]", size)
        cut_into(frame, layout, self._out, self._room)
        stride = layout.hdr_len + gso_size
        last = size - (count - 1) * stride
        written = lib.pytcp_write_frames(self.fd, self._out, stride, count, last, self._skip, self._hdr)
        if written < 0:
            raise OSError(-written, os.strerror(-written))
        self.tx_packets += written
        self._skip += written
        return self._skip == count

    def _segments_py(self, frame: TxFrame) -> bool:
        before = self._skip
        for piece in segment(frame)[before:]:
            try:
                os.writev(self.fd, (self._zeros, piece))
            except OSError:
                if self._skip > before:
                    return False
                raise
            self.tx_packets += 1
            self._skip += 1
        return True
