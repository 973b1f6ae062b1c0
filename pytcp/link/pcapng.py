"""Captures in pcapng (draft-ietf-opsawg-pcapng), written by hand because this runs for every frame.

A section header, one description per interface (nanosecond time stamps), then enhanced packet blocks
with a direction flag and comments. What is captured is what passes at that point of the stack of
links: super-frames whole and checksums unfinished where the device finishes them, as tcpdump shows
them on a host with offloads.

A full disk must not disturb the traffic: the first write error ends the capture, is kept in `error`
and logged once.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from collections.abc import Callable, Sequence
from typing import BinaryIO

from .around import Around
from .frame import Buffer, Link, RxFrame, TxFrame

LINKTYPE_ETHERNET = 1
LINKTYPE_RAW = 101
INBOUND = 1
OUTBOUND = 2
SNAPLEN = 262_144
FLUSH_BYTES = 1 << 16

_SHB, _IDB, _EPB = 0x0A0D0D0A, 1, 6
_BYTE_ORDER_MAGIC = 0x1A2B3C4D
_OPT_COMMENT, _OPT_IF_NAME, _OPT_IF_DESCRIPTION, _OPT_SHB_USERAPPL, _OPT_IF_TSRESOL, _OPT_EPB_FLAGS = 1, 2, 3, 4, 9, 2
_EPB_HEAD = struct.Struct("<IIIIIII")  # type, block length, interface, time high, time low, captured, original
_EPB_TAIL = struct.Struct("<HHIHHI")  # flags option, end of options, block length
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")
_OPTION_MAX = 65532

_log = logging.getLogger(__name__)


def _option(code: int, value: bytes) -> bytes:
    value = value[:_OPTION_MAX]
    return struct.pack("<HH", code, len(value)) + value + _PADDING[len(value) & 3]


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + length + body + length


class PcapngWriter:
    """A capture file. Blocks gather in memory and are written in lumps of 64 KiB and by `flush`."""

    def __init__(self, file: str | os.PathLike[str] | BinaryIO, *, comment: str = "", snaplen: int = SNAPLEN) -> None:
        """file: a path to create, or a binary file to write to, which is then not closed.
        comment: of the section. snaplen: bytes kept of a frame. Raises OSError when the path cannot be
        created; later errors end the capture (`error`)."""
        self._owned = isinstance(file, str | os.PathLike)
        self._file: BinaryIO = open(file, "wb", buffering=0) if isinstance(file, str | os.PathLike) else file  # noqa: SIM115
        self.snaplen = snaplen
        self.error: OSError | None = None
        self.closed = False
        self.packets = 0
        self._interfaces = 0
        self._buffer: list[Buffer] = []
        self._buffered = 0
        options = _option(_OPT_SHB_USERAPPL, b"pytcp")
        if comment:
            options += _option(_OPT_COMMENT, comment.encode())
        self._add(_block(_SHB, struct.pack("<IHHq", _BYTE_ORDER_MAGIC, 1, 0, -1) + options + bytes(4)))

    def add_interface(self, name: str, *, linktype: int = LINKTYPE_ETHERNET, description: str = "") -> int:
        """Describe an interface; returns the number by which `packet` refers to it."""
        options = _option(_OPT_IF_NAME, name.encode()) + _option(_OPT_IF_TSRESOL, b"\x09")
        if description:
            options += _option(_OPT_IF_DESCRIPTION, description.encode())
        self._add(_block(_IDB, struct.pack("<HHI", linktype, 0, self.snaplen) + options + bytes(4)))
        self._interfaces += 1
        return self._interfaces - 1

    def packet(self, interface: int, time_ns: int, parts: Sequence[Buffer], length: int, direction: int = 0, comments: Sequence[str] = ()) -> None:
        """Record one frame. time_ns: since 1970. parts: its buffers, copied only when written, so
        mutable ones must be given as bytes. length: their sum. direction: INBOUND, OUTBOUND or 0."""
        if self.error is not None or self.closed:
            return
        self.packets += 1
        kept = length
        if kept > self.snaplen:
            kept = self.snaplen
            parts = (b"".join(parts)[:kept],)
        options = b"".join([_option(_OPT_COMMENT, text.encode()) for text in comments]) if comments else b""
        padding = _PADDING[kept & 3]
        size = 28 + kept + len(padding) + len(options) + 16
        add = self._buffer.append
        add(_EPB_HEAD.pack(_EPB, size, interface, time_ns >> 32, time_ns & 0xFFFFFFFF, kept, length))
        self._buffer += parts
        add(padding + options + _EPB_TAIL.pack(_OPT_EPB_FLAGS, 4, direction, 0, 0, size))
        self._buffered += size
        if self._buffered >= FLUSH_BYTES:
            self.flush()

    def _add(self, block: bytes) -> None:
        if self.error is None and not self.closed:
            self._buffer.append(block)
            self._buffered += len(block)

    def flush(self) -> None:
        """Hand what has gathered to the file."""
        data = memoryview(b"".join(self._buffer))
        self._buffer.clear()
        self._buffered = 0
        try:
            while data:
                written = self._file.write(data)
                if not written:
                    raise BlockingIOError(errno.EAGAIN, "the file takes nothing now")
                data = data[written:]
        except (OSError, ValueError) as failed:  # ValueError: its owner has closed it
            self.error = failed if isinstance(failed, OSError) else OSError(errno.EBADF, str(failed))
            _log.warning("capture stopped after %d packets: %s", self.packets, failed)

    def close(self) -> None:
        """Write the rest and close the file if it was opened here. May be called twice."""
        if self.closed:
            return
        if self.error is None:
            self.flush()
        self.closed = True
        if self._owned:
            self._file.close()


def _first(frame: TxFrame, limit: int) -> bytes:
    """Up to `limit` bytes of a frame, copied: its payload buffers are the socket's and may be filled anew
    before the file is written."""
    if frame.length <= limit:
        return b"".join((frame.head, *frame.parts))
    out: list[Buffer] = [frame.head[:limit]]
    left = limit - len(frame.head)
    for part in frame.parts:
        if left <= 0:
            break
        out.append(memoryview(part)[:left])
        left -= len(part)
    return b"".join(out)


class Capture(Around):
    """A link that records what passes between the stack and `inner`, at any point of a stack of links."""

    def __init__(self, inner: Link, writer: PcapngWriter, name: str | None = None, *, realtime_ns: Callable[[], int]) -> None:
        """name: of the interface in the file, by default the link's. realtime_ns: `Runtime.realtime_ns`."""
        super().__init__(inner)
        self.writer = writer
        self.realtime_ns = realtime_ns
        self._interface = writer.add_interface(name or inner.name, linktype=LINKTYPE_ETHERNET if inner.mac else LINKTYPE_RAW)
        self._notes: list[str] = []

    def note(self, text: str) -> None:
        """Attach a comment to the next frame recorded here."""
        self._notes.append(text)

    def send(self, frames: Sequence[TxFrame]) -> int:
        """Send and record what the device took."""
        taken = self.inner.send(frames)
        writer = self.writer
        if writer.error is None:
            now = self.realtime_ns()
            for frame in frames[:taken]:
                data = _first(frame, writer.snaplen)
                writer.packet(self._interface, now, (data,), frame.length, OUTBOUND, self._take_notes())
        return taken

    def close(self) -> None:
        """Flush the capture, which others may share, and close the link within."""
        if self.writer.error is None and not self.writer.closed:
            self.writer.flush()
        self.inner.close()

    def _take_notes(self) -> Sequence[str]:
        if not self._notes:
            return ()
        notes = self._notes
        self._notes = []
        return notes

    def _received(self, frame: RxFrame) -> None:
        writer = self.writer
        if writer.error is None:
            data = bytes(frame.data[: writer.snaplen])
            writer.packet(self._interface, self.realtime_ns(), (data,), len(frame.data), INBOUND, self._take_notes())
        self.rx(frame)
