"""Captures: what scapy and tshark read back, and that a broken file never disturbs the traffic."""

from __future__ import annotations

import errno
import io
import logging
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import Ether
from scapy.utils import PcapNgReader, RawPcapNgReader

from pytcp.clock.virtual import EPOCH_NS, VirtualRuntime
from pytcp.link.frame import RxFrame, TxFrame
from pytcp.link.pcapng import FLUSH_BYTES, INBOUND, LINKTYPE_RAW, OUTBOUND, Capture, PcapngWriter
from pytcp.link.pipe import pipe_pair

PING = bytes(Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IP(src="10.0.0.1", dst="10.0.0.2") / ICMP(id=7, seq=9) / b"ping")
TIME = 1_700_000_000_123_456_789


def raw(path: Path) -> list[tuple[bytes, Any]]:
    """Frames and what the file says of them."""
    with RawPcapNgReader(str(path)) as reader:
        return list(reader)


def test_scapy_reads_back_frames_times_directions_comments_and_interface_names(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    writer = PcapngWriter(path, comment="a section")
    first = writer.add_interface("tap0", description="the near side")
    second = writer.add_interface("wire")
    writer.packet(first, TIME, (PING[:20], PING[20:]), len(PING), OUTBOUND)
    writer.packet(second, TIME + 1, (PING,), len(PING), INBOUND, ("retransmitted", "by RACK"))
    writer.close()
    with PcapNgReader(str(path)) as reader:
        packets = list(reader)
    assert [bytes(packet) for packet in packets] == [PING, PING]
    assert [packet.time for packet in packets] == [pytest.approx(TIME / 1e9), pytest.approx(TIME / 1e9)]
    assert int(packets[1].time * 10**9) == TIME + 1  # scapy keeps decimals: the nanosecond is there
    assert [packet.direction for packet in packets] == [OUTBOUND, INBOUND]
    assert [packet.sniffed_on for packet in packets] == ["tap0", "wire"]
    assert packets[0].comments is None
    assert packets[1].comments == [b"retransmitted", b"by RACK"]


@pytest.mark.parametrize("size", [60, 61, 62, 63])
def test_blocks_are_padded_to_four_bytes_whatever_the_length(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.pcapng"
    writer = PcapngWriter(path)
    interface = writer.add_interface("x")
    for i in range(3):
        writer.packet(interface, TIME, (bytes([i]) * size,), size, OUTBOUND, ("odd",) if i == 1 else ())
    writer.close()
    assert path.stat().st_size % 4 == 0
    assert [data for data, _ in raw(path)] == [bytes([i]) * size for i in range(3)]


def test_the_snap_length_cuts_what_is_kept_and_the_original_length_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    writer = PcapngWriter(path, snaplen=64)
    writer.packet(writer.add_interface("x"), TIME, (bytes(50), bytes(1450)), 1500)
    writer.close()
    ((data, meta),) = raw(path)
    assert len(data) == 64
    assert meta.wirelen == 1500


def test_nothing_is_written_before_a_lump_is_full_or_a_flush(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    writer = PcapngWriter(path)
    interface = writer.add_interface("x")
    writer.packet(interface, TIME, (PING,), len(PING))
    assert path.stat().st_size == 0
    writer.flush()
    size = path.stat().st_size
    assert size > len(PING)
    writer.packet(interface, TIME, (bytes(FLUSH_BYTES),), FLUSH_BYTES)
    assert path.stat().st_size > size + FLUSH_BYTES
    writer.close()
    writer.close()
    writer.packet(interface, TIME, (PING,), len(PING))  # after the end: ignored


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_tshark_reads_it_too(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    writer = PcapngWriter(path, comment="a section")
    writer.packet(writer.add_interface("tap0"), TIME, (PING,), len(PING), INBOUND, ("hello",))
    writer.close()
    fields = ["frame.time_epoch", "frame.interface_name", "frame.comment", "icmp.seq", "frame.packet_flags_direction"]
    argv = ["tshark", "-r", str(path), "-T", "fields", *[part for name in fields for part in ("-e", name)]]
    out = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
    time, name, comment, seq, direction = out.rstrip("\n").split("\t")
    assert time.startswith("1700000000.123456789")
    assert (name, comment, seq) == ("tap0", "hello", "9")
    assert int(direction, 0) == INBOUND


class FullDisk(io.RawIOBase):
    """Takes `room` bytes, then has no space left."""

    def __init__(self, room: int) -> None:
        self.room = room

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(len(data), self.room)
        self.room -= taken
        return taken


def test_a_full_disk_ends_the_capture_with_one_warning_and_leaves_the_traffic_alone(caplog: pytest.LogCaptureFixture) -> None:
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap)
    arrived: list[bytes] = []
    far.rx = lambda frame: arrived.append(bytes(frame.data))
    writer = PcapngWriter(FullDisk(100))  # type: ignore[arg-type]
    link = Capture(near, writer, realtime_ns=runtime.realtime_ns)
    with caplog.at_level(logging.WARNING):
        for _ in range(200):
            assert link.send([TxFrame(PING, (bytes(1000),), len(PING) + 1000)]) == 1
        link.close()
        writer.close()
    runtime.run_until_idle()
    assert len(arrived) == 200
    assert writer.error is not None and writer.error.errno == errno.ENOSPC
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text


def test_a_path_that_cannot_be_created_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PcapngWriter(tmp_path / "missing" / "a.pcapng")


def test_a_capture_stands_between_stack_and_link_and_sees_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap, delay_ns=1000)
    writer = PcapngWriter(path)
    link = Capture(near, writer, "near", realtime_ns=runtime.realtime_ns)
    up: list[bytes] = []
    link.rx = lambda frame: up.append(bytes(frame.data))
    link.rx_end = lambda: up.append(b"|")

    def echo_reversed(frame: RxFrame) -> None:
        far.send([TxFrame(bytes(frame.data)[::-1], length=len(frame.data))])

    far.rx = echo_reversed
    link.note("first try")
    link.send([TxFrame(PING[:14], (PING[14:],), len(PING))])
    runtime.run_until_idle()
    link.close()
    writer.close()
    assert up == [PING[::-1], b"|"]
    (sent, sent_meta), (received, received_meta) = raw(path)
    assert (sent, received) == (PING, PING[::-1])
    assert (sent_meta.direction, received_meta.direction) == (OUTBOUND, INBOUND)
    assert (sent_meta.comments, received_meta.comments) == ([b"first try"], None)
    times = [(meta.tshigh << 32) + meta.tslow for meta in (sent_meta, received_meta)]
    assert times == [EPOCH_NS, EPOCH_NS + 2000]
    assert (link.name, link.mac, link.mtu, link.features) == (near.name, near.mac, near.mtu, near.features)


def test_only_frames_the_device_took_are_recorded_as_sent(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    runtime = VirtualRuntime()
    near, _far = pipe_pair(runtime.heap, limit=1, macs=(b"", b""))
    writer = PcapngWriter(path)
    link = Capture(near, writer, realtime_ns=runtime.realtime_ns)
    assert link.send([TxFrame(b"taken", length=5), TxFrame(b"left", length=4)]) == 1
    writer.close()
    ((data, meta),) = raw(path)
    assert data == b"taken"
    assert meta.linktype == LINKTYPE_RAW  # a link without addresses carries bare IP


def test_a_snap_length_limits_what_is_copied_not_what_is_said(tmp_path: Path) -> None:
    """A 64 KiB super-frame under a snap length of 100: 100 bytes in the file, its length on record."""
    path = tmp_path / "snap.pcapng"
    near, _far = pipe_pair(VirtualRuntime().heap)
    with path.open("wb") as file:
        writer = PcapngWriter(file, snaplen=100)
        link = Capture(near, writer, realtime_ns=lambda: 1)
        assert link.send([TxFrame(PING[:14], (bytes(60), bytes(60_000)), 60_074)]) == 1
        writer.close()
    [(data, meta)] = raw(path)
    assert (len(data), meta.wirelen, data[:14]) == (100, 60_074, PING[:14])


class Stubborn(io.RawIOBase):
    """A non-blocking file whose reader has gone to sleep: write says None."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> Any:
        return None


def test_a_file_that_takes_nothing_stops_the_capture_not_the_traffic() -> None:
    near, _far = pipe_pair(VirtualRuntime().heap)
    writer = PcapngWriter(Stubborn())  # type: ignore[arg-type]
    link = Capture(near, writer, realtime_ns=lambda: 1)
    assert link.send([TxFrame(PING, length=len(PING))]) == 1
    writer.flush()
    assert writer.error is not None
    assert writer.error.errno == errno.EAGAIN
    assert link.send([TxFrame(PING, length=len(PING))]) == 1


def test_a_file_its_owner_closed_stops_the_capture_not_the_traffic() -> None:
    near, _far = pipe_pair(VirtualRuntime().heap)
    file = io.BytesIO()
    writer = PcapngWriter(file)
    link = Capture(near, writer, realtime_ns=lambda: 1)
    file.close()
    assert link.send([TxFrame(PING, length=len(PING))]) == 1
    writer.flush()
    assert writer.error is not None
    assert writer.error.errno == errno.EBADF
