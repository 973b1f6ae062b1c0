"""Frames by the batch over a message-keeping descriptor: what goes in whole comes out whole.

A pair of packet-mode sockets stands for the device; it fills up and drains as one.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator

import pytest

from pytcp import native
from pytcp.link import batch, offload
from pytcp.link.batch import FrameReader, FrameWriter
from pytcp.link.frame import CSUM_NONE, CSUM_UNNECESSARY, GSO_NONE, GSO_TCPV4, TxFrame
from pytcp.wire.checksum import ones_sum_py

VNET_NEEDS_CSUM = b"\x01" + bytes(9)


@pytest.fixture(params=["C", "Python"], autouse=True)
def helpers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Python":
        monkeypatch.setattr(batch, "lib", None)
        monkeypatch.setattr(batch, "ffi", None)
    elif not native.HAVE_C:
        pytest.skip(native.reason)


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with a, b:
        a.setblocking(False)
        b.setblocking(False)
        a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 19)
        yield a.fileno(), b.fileno()


def super_frame(payload: bytes, gso_size: int, *, seq: int = 0xFFFFFF00, sport: int = 1000) -> TxFrame:
    """Ethernet, IPv4 with DF and id 1, TCP without options, payload in two buffers."""
    ip = bytearray(b"\x45\0\0\0\0\1\x40\0\x40\x06\0\0\x0a\0\0\1\x0a\0\0\2")
    tcp = sport.to_bytes(2, "big") + b"\0\x50" + seq.to_bytes(4, "big") + b"\0\0\0\5\x50\x10\1\0\0\0\0\0"
    head = b"\2\0\0\0\0\1\2\0\0\0\0\2\x08\0" + ip + tcp
    middle = len(payload) // 3
    return TxFrame(head, (payload[:middle], payload[middle:]), len(head) + len(payload), GSO_TCPV4, gso_size, 34, 16)


def payload_of(data: memoryview) -> bytes:
    return bytes(data[54:])


def drain(fd: int) -> list[bytes]:
    out = []
    try:
        while True:
            out.append(os.read(fd, 70000))
    except BlockingIOError:
        return out


@pytest.mark.parametrize("vnet_hdr_len", [0, 10, 12])
def test_a_super_frame_leaves_as_segments_behind_empty_virtio_headers(ends: tuple[int, int], vnet_hdr_len: int) -> None:
    frame = super_frame(os.urandom(5000), 1460)
    writer = FrameWriter(ends[0], vnet_hdr_len=vnet_hdr_len)
    assert writer.write([frame]) == 1
    assert drain(ends[1]) == [bytes(vnet_hdr_len) + piece for piece in offload.segment_py(frame)]
    assert writer.tx_packets == 4


def test_a_single_frame_leaves_with_its_checksum_completed(ends: tuple[int, int]) -> None:
    frame = super_frame(b"abc", 0)
    frame.gso_type = GSO_NONE
    assert FrameWriter(ends[0]).write([frame]) == 1
    (sent,) = drain(ends[1])
    assert sent[54:] == b"abc" and sent[:50] == bytes(frame.head[:50])
    # the field was zero instead of the pseudo-header's sum, so the L4 part alone adds up
    assert ones_sum_py(sent[34:]) == 0xFFFF


def test_what_the_writer_cut_the_reader_joins(ends: tuple[int, int]) -> None:
    data = [os.urandom(40000), os.urandom(20000)]
    frames = [super_frame(data[0], 1460, sport=1), super_frame(data[1], 1000, sport=2)]
    assert FrameWriter(ends[0]).write(frames) == 2
    reader = FrameReader(ends[1])
    got = reader.read()
    assert [payload_of(f.data) for f in got] == data
    assert [(f.gso_type, f.gso_size, f.csum) for f in got] == [(GSO_TCPV4, 1460, CSUM_UNNECESSARY), (GSO_TCPV4, 1000, CSUM_UNNECESSARY)]
    assert (reader.rx_packets, reader.rx_bytes) == (28 + 20, 60000 + 48 * 54)
    assert reader.read() == []


def test_the_budget_limits_packets_not_merged_frames(ends: tuple[int, int]) -> None:
    FrameWriter(ends[0]).write([super_frame(bytes(10000), 1000)])
    reader = FrameReader(ends[1])
    assert [len(payload_of(f.data)) for f in reader.read(4)] == [4000]
    assert [len(payload_of(f.data)) for f in reader.read(1)] == [1000]
    assert [len(payload_of(f.data)) for f in reader.read(1000)] == [5000]


def test_a_read_frame_outlives_the_next_read(ends: tuple[int, int]) -> None:
    reader = FrameReader(ends[1])
    os.write(ends[0], b"first" * 20)
    (first,) = reader.read()
    os.write(ends[0], b"other" * 20)
    (other,) = reader.read()
    assert (bytes(first.data), bytes(other.data)) == (b"first" * 20, b"other" * 20)
    assert first.buf is None and first.csum == CSUM_NONE


def test_a_virtio_header_says_whether_the_checksum_was_checked(ends: tuple[int, int]) -> None:
    reader = FrameReader(ends[1], vnet_hdr_len=10)
    os.write(ends[0], VNET_NEEDS_CSUM + b"x" * 60)
    os.write(ends[0], bytes(10) + b"y" * 60)
    os.write(ends[0], bytes(10))  # no frame at all
    os.write(ends[0], b"\0\1\0\0" + (500).to_bytes(2, sys.byteorder) + bytes(4) + b"z" * 60)
    got = [(bytes(f.data[:1]), f.csum, f.gso_type, f.gso_size) for f in reader.read()]
    assert got == [(b"x", CSUM_UNNECESSARY, 0, 0), (b"y", CSUM_NONE, 0, 0), (b"z", CSUM_NONE, 1, 500)]


def test_a_full_device_takes_part_of_a_super_frame_and_later_the_rest(ends: tuple[int, int]) -> None:
    writer = FrameWriter(ends[0])
    frames = [super_frame(os.urandom(60000), 1460) for _ in range(40)]
    taken = writer.write(frames)
    assert 0 < taken < 40
    seen: list[bytes] = []
    left = frames[taken:]
    while left:
        seen += drain(ends[1])
        left = left[writer.write(left) :]
    seen += drain(ends[1])
    assert seen == [piece for frame in frames for piece in offload.segment_py(frame)]
    assert writer.tx_packets == len(seen)


def test_the_first_refused_frame_raises_a_later_one_waits_for_the_next_call(ends: tuple[int, int]) -> None:
    writer = FrameWriter(ends[0])
    single = TxFrame(b"x" * 60, (), 60)
    too_long = TxFrame(bytes(1 << 20), (), 1 << 20)
    assert writer.write([single, too_long, single]) == 1
    with pytest.raises(OSError) as refused:
        writer.write([too_long, single])
    assert refused.value.errno == errno.EMSGSIZE


def test_a_descriptor_that_is_no_longer_there_is_an_error(ends: tuple[int, int]) -> None:
    copy = os.dup(ends[0])
    os.close(copy)
    for write in (TxFrame(b"x" * 60, (), 60), super_frame(bytes(3000), 1000)):
        with pytest.raises(OSError) as failed:
            FrameWriter(copy).write([write])
        assert failed.value.errno == errno.EBADF
    with pytest.raises(OSError) as failed:
        FrameReader(copy).read()
    assert failed.value.errno == errno.EBADF


def test_the_end_of_the_other_side_comes_after_what_it_sent() -> None:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with a, b:
        b.setblocking(False)
        reader = FrameReader(b.fileno())
        a.send(b"last" * 20)
        a.close()
        assert [bytes(f.data) for f in reader.read()] == [b"last" * 20]
        with pytest.raises(OSError) as gone:
            reader.read()
        assert gone.value.errno == errno.ENODEV


def test_unknown_layouts_are_refused() -> None:
    for layout in ({"vnet_hdr_len": 11}, {"link_header": 18}, {"frame_size": 0}):
        with pytest.raises(ValueError):
            FrameReader(0, **layout)
    with pytest.raises(ValueError):
        FrameWriter(0, vnet_hdr_len=4)


def test_a_broken_super_frame_is_refused_not_sent(ends: tuple[int, int]) -> None:
    frame = super_frame(bytes(3000), 1000)
    frame.csum_start = 38
    with pytest.raises(ValueError):
        FrameWriter(ends[0]).write([frame])
    assert drain(ends[1]) == []
