"""The TAP device against the kernel behind it: frames both ways, offload facts, and a device that is down or gone."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
import trio
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether

from pytcp.clock.real import RealRuntime
from pytcp.lab.netns import Namespace
from pytcp.lab.testbed import Testbed
from pytcp.link.frame import CSUM_NONE, CSUM_UNNECESSARY, F_CSUM, F_RXCSUM, F_TSO4, F_TSO6, GSO_TCPV4, GSO_UDP_L4, LinkDown, RxFrame, TxFrame
from pytcp.link.tap import IFF_NO_PI, IFF_TAP, IFF_VNET_HDR, TUNSETIFF, Tap

pytestmark = pytest.mark.tap

US4, PEER4 = "10.99.0.2", "10.99.0.1"
OURS = b"\x02\x50\x59\x00\x00\x01"

Keep = Callable[[bytes], object]


class Ear:
    """Copies of what a TAP received."""

    def __init__(self, tap: Tap) -> None:
        self.frames: list[tuple[int, int, int, bytes]] = []  # gso_type, gso_size, csum, data
        self.batches = 0
        tap.rx = self._rx
        tap.rx_end = self._rx_end
        self.tap = tap

    def _rx(self, frame: RxFrame) -> None:
        self.frames.append((frame.gso_type, frame.gso_size, frame.csum, bytes(frame.data)))

    def _rx_end(self) -> None:
        self.batches += 1

    def until(self, wanted: Keep) -> tuple[int, int, int, bytes]:
        """Poll until a frame whose bytes satisfy `wanted` has come; forget those before it."""

        async def listen() -> None:
            with trio.fail_after(10):
                while not any(wanted(frame[3]) for frame in self.frames):
                    if not self.tap.poll(64):
                        await trio.lowlevel.wait_readable(self.tap.fileno())

        trio.run(listen)
        while not wanted(self.frames[0][3]):
            del self.frames[0]
        return self.frames.pop(0)


def whole(packet: object) -> TxFrame:
    data = bytes(packet)  # type: ignore[call-overload]
    return TxFrame(data, (), len(data))


def peer_mac(tap: Tap, ear: Ear) -> str:
    """Ask the kernel for its address; that also tells it ours."""
    ours = OURS.hex(":")
    tap.send([whole(Ether(src=ours, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=ours, psrc=US4, pdst=PEER4))])
    data = ear.until(lambda data: data[12:14] == b"\x08\x06" and data[21] == 2)[3]
    return str(Ether(data)[ARP].hwsrc)


@pytest.mark.parametrize("vnet_hdr", [True, False])
def test_the_kernel_echoes_what_we_send_through_any_kind_of_tap(vnet_hdr: bool) -> None:
    with Testbed(vnet_hdr=vnet_hdr) as tb:
        tap = tb.link
        ear = Ear(tap)
        packet = Ether(src=OURS.hex(":"), dst=peer_mac(tap, ear)) / IP(src=US4, dst=PEER4) / ICMP(id=0x1234, seq=5) / (b"x" * 1000)
        tap.send([whole(packet)])
        data = ear.until(lambda data: data[12:14] == b"\x08\x00" and data[23] == 1 and data[34] == 0)[3]
        reply = Ether(data)
        assert (reply[ICMP].id, reply[ICMP].seq, bytes(reply[ICMP].payload)) == (0x1234, 5, b"x" * 1000)
        assert ear.batches >= 2
        assert tap.rx_packets >= 2 and tap.tx_packets == 2


def test_what_a_tap_offers_follows_from_how_it_was_opened() -> None:
    with Namespace() as ns, ns.entered():
        taps = [Tap("full", mtu=9000), Tap("bare", vnet_hdr=False, gso=False), Tap("soft", vnet_hdr=False), Tap("hdr", offload=False, gso=False)]
        full, bare, soft, hdr = taps
        assert full.features & (F_CSUM | F_TSO4 | F_TSO6 | F_RXCSUM) == F_CSUM | F_TSO4 | F_TSO6 | F_RXCSUM
        assert (bare.features, hdr.features) == (0, 0)
        assert soft.features & (F_CSUM | F_TSO4) == F_CSUM | F_TSO4
        assert not soft.features & F_RXCSUM
        assert (bare.vnet_hdr, hdr.vnet_hdr) == (False, True)
        assert (full.mtu, bare.mtu) == (9000, 1500)
        assert [tap.name for tap in taps] == ["full", "bare", "soft", "hdr"]
        assert full.mac[0] & 3 == 2  # local, unicast
        assert full.mac != bare.mac
        for tap in taps:
            tap.close()
            tap.close()


def test_the_kernel_names_a_tap_that_was_given_no_name() -> None:
    with Namespace() as ns, ns.entered():
        tap = Tap()
        assert tap.name.startswith("tap")
        tap.close()


def test_a_name_in_use_or_too_long_is_the_callers_error() -> None:
    with Namespace() as ns, ns.entered():
        tap = Tap("here")
        with pytest.raises(OSError) as busy:
            Tap("here")
        assert busy.value.errno == errno.EBUSY
        with pytest.raises(OSError) as long:
            Tap("a-name-of-sixteen")
        assert long.value.errno == errno.EINVAL
        with pytest.raises(OSError) as size:
            Tap("size", vnet_hdr_size=11)
        assert size.value.errno == errno.EINVAL
        tap.close()


@pytest.mark.parametrize("flags", [IFF_VNET_HDR, 0])
def test_an_inherited_descriptor_tells_what_it_is(flags: int) -> None:
    with Namespace() as ns:
        with ns.entered():
            fd = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"mine", IFF_TAP | IFF_NO_PI | flags))
        tap = Tap(fd=fd, mac=OURS)
        assert (tap.name, tap.vnet_hdr, tap.mac, tap.fileno()) == ("mine", bool(flags), OURS, fd)
        assert not os.get_blocking(fd)
        tap.close()


def test_a_descriptor_that_is_no_tap_is_refused_and_stays_open() -> None:
    with Namespace() as ns, ns.entered():
        fd = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"tun9", 0x0001 | IFF_NO_PI))
        with pytest.raises(OSError) as refused:
            Tap(fd=fd)
        assert refused.value.errno == errno.EINVAL
        os.close(fd)


@pytest.mark.parametrize("vnet_hdr_size", [10, 12])
def test_a_udp_send_of_many_segments_arrives_as_one_super_frame(vnet_hdr_size: int) -> None:
    with Testbed() as tb:
        fd = os.dup(tb.link.fileno())
        tap = Tap(fd=fd, vnet_hdr_size=vnet_hdr_size)
        ear = Ear(tap)
        peer_mac(tap, ear)
        with tb.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_UDP, 103, 1000)  # UDP_SEGMENT
            sock.sendto(b"d" * 4500, (US4, 9))
        gso_type, gso_size, csum, data = ear.until(lambda data: data[12:14] == b"\x08\x00" and data[23] == 17)
        assert (gso_type, gso_size, csum, len(data)) == (GSO_UDP_L4, 1000, CSUM_UNNECESSARY, 42 + 4500)
        tap.close()


def test_without_offloads_the_same_send_arrives_as_datagrams_whose_checksums_must_be_checked() -> None:
    with Testbed(offload=False) as tb:
        ear = Ear(tb.link)
        peer_mac(tb.link, ear)
        with tb.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_UDP, 103, 1000)
            sock.sendto(b"d" * 2500, (US4, 9))
        sizes = []
        for _ in range(3):
            gso_type, gso_size, csum, data = ear.until(lambda data: data[12:14] == b"\x08\x00" and data[23] == 17)
            assert (gso_type, gso_size, csum) == (0, 0, CSUM_NONE)
            claimed = Ether(data)[UDP].chksum
            packet = Ether(data)
            del packet[UDP].chksum
            assert Ether(bytes(packet))[UDP].chksum == claimed
            sizes.append(len(data) - 42)
        assert sizes == [1000, 1000, 500]


class HandTcp:
    """Just enough of a TCP client, by hand, to push one super-segment into a kernel socket."""

    def __init__(self, tb: Testbed) -> None:
        self.tap = tb.link
        self.ear = Ear(self.tap)
        self.mac = peer_mac(self.tap, self.ear)
        self.listener = tb.socket()
        self.listener.bind((PEER4, 0))
        self.listener.listen()
        self.port = self.listener.getsockname()[1]
        self.base = Ether(src=OURS.hex(":"), dst=self.mac) / IP(src=US4, dst=PEER4)

    def _answer(self) -> Any:
        def ours(data: bytes) -> bool:
            return data[12:14] == b"\x08\x00" and data[23] == 6 and data[36:38] == struct.pack(">H", 4000)

        return Ether(self.ear.until(ours)[3])[TCP]

    def push(self, payload: bytes, mss: int) -> bytes:
        """Open a connection, send `payload` as one super-frame; returns what the kernel's program read."""
        iss = 0xFFFFFF00  # the data straddles the wrap
        self.tap.send([whole(self.base / TCP(sport=4000, dport=self.port, seq=iss, flags="S", window=65535, options=[("MSS", mss), ("WScale", 0)]))])
        synack = self._answer()
        headers = {"sport": 4000, "dport": self.port, "seq": iss + 1, "ack": synack.seq + 1, "window": 65535}
        self.tap.send([whole(self.base / TCP(flags="A", **headers))])
        head = bytearray(bytes(self.base / TCP(flags="PA", **headers)))
        total = 20 + len(payload)
        head[16:18] = (20 + total).to_bytes(2, "big")
        head[24:26] = bytes(2)
        words = sum(struct.unpack(">10H", bytes(head[14:34])))
        while words >> 16:
            words = (words & 0xFFFF) + (words >> 16)
        head[24:26] = (words ^ 0xFFFF).to_bytes(2, "big")
        pseudo = sum(struct.unpack(">4H", bytes(head[26:34]))) + 6 + total
        head[50:52] = ((pseudo & 0xFFFF) + (pseudo >> 16)).to_bytes(2, "big")
        third = len(payload) // 3
        parts = (memoryview(payload)[:third], payload[third:])
        taken = self.tap.send([TxFrame(head, parts, len(head) + len(payload), GSO_TCPV4, mss, 34, 16)])
        assert taken == 1
        conn, _ = self.listener.accept()
        conn.settimeout(10)
        got = b""
        while len(got) < len(payload):
            got += conn.recv(65536)
        conn.close()
        self.listener.close()
        return got


@pytest.mark.parametrize(("vnet_hdr", "offload"), [(True, True), (True, False), (False, False)])
def test_a_super_frame_of_ours_reaches_a_kernel_program_whole(vnet_hdr: bool, offload: bool) -> None:
    payload = bytes(i * 31 >> 3 & 255 for i in range(40_000))
    with Testbed(vnet_hdr=vnet_hdr, offload=offload) as tb:
        before = tb.link.tx_packets
        assert HandTcp(tb).push(payload, 1448) == payload
        sent = tb.link.tx_packets - before
        assert sent == (4 if offload else 3 + 28)  # ARP, SYN, ACK and 1 super-frame or ceil(40000 / 1448) segments


def test_a_frame_of_very_many_parts_is_still_one_frame() -> None:
    payload = bytes(i & 255 for i in range(3000))
    with Testbed() as tb:
        tap = tb.link
        ear = Ear(tap)
        packet = bytes(Ether(src=OURS.hex(":"), dst=peer_mac(tap, ear)) / IP(src=US4, dst=PEER4) / ICMP() / payload[:1400])
        tap.send([TxFrame(packet[:42], [packet[i : i + 1] for i in range(42, len(packet))], len(packet))])
        data = ear.until(lambda data: data[23] == 1 and data[34] == 0)[3]
        assert data[42:] == payload[:1400]


def test_kept_views_survive_the_frames_that_follow_and_their_buffers_come_back() -> None:
    with Testbed() as tb:
        tap = tb.link
        peer_mac(tap, Ear(tap))
        kept: list[RxFrame] = []

        def keep(frame: RxFrame) -> None:
            assert frame.buf is not None
            if bytes(frame.data[12:14]) == b"\x08\x00" and frame.data[23] == 17:
                frame.buf.taken += 1
                kept.append(frame)

        tap.rx = keep
        with tb.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for i in range(5):
                sock.sendto(bytes([i]) * 100, (US4, 9))
        while len(kept) < 5:
            tap.poll(2)
        assert [bytes(frame.data[42:]) for frame in kept] == [bytes([i]) * 100 for i in range(5)]
        buffers = {id(frame.buf) for frame in kept}
        assert len(buffers) == 5
        for frame in kept:
            assert frame.buf is not None
            frame.buf.release()
        again: list[int] = []
        tap.rx = lambda frame: again.append(id(frame.buf))
        with tb.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _ in range(4):
                sock.sendto(b"x", (US4, 9))
        while len(again) < 4:
            tap.poll(64)
        assert len(set(again)) == 1  # nobody keeps anything: one buffer serves all


def test_a_view_taken_and_given_back_within_one_call_leaves_one_buffer_in_one_place() -> None:
    with Testbed() as tb:
        tap = tb.link
        peer_mac(tap, Ear(tap))
        kept: list[RxFrame] = []
        count = [0]

        def rx(frame: RxFrame) -> None:
            assert frame.buf is not None
            if frame.data[12:14] != b"\x08\x00" or frame.data[23] != socket.IPPROTO_UDP:
                return  # the kernel has things of its own to say: ARP, NDP, MLD
            count[0] += 1
            frame.buf.taken += 1
            if count[0] == 1:
                frame.buf.release()
            else:
                kept.append(frame)

        tap.rx = rx
        with tb.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for i in range(4):
                sock.sendto(bytes([i]) * 60, (US4, 9))
        while count[0] < 4:
            tap.poll(64)
        assert len({id(frame.buf) for frame in kept}) == len(kept) == 3
        assert [frame.data[42] for frame in kept] == [1, 2, 3]


@pytest.mark.parametrize("vnet_hdr", [True, False])
def test_a_tap_that_is_down_loses_frames_without_an_error_and_works_when_up_again(vnet_hdr: bool) -> None:
    with Testbed(vnet_hdr=vnet_hdr) as tb:
        tap = tb.link
        ear = Ear(tap)
        peer_mac(tap, ear)
        tb.run(["ip", "link", "set", "tap0", "down"])
        lost = tap.tx_carrier_errors
        assert tap.send([whole(Ether() / ARP())] * 3) == 3
        assert tap.tx_carrier_errors == lost + 3
        while tap.poll(64):
            pass
        tb.run(["ip", "link", "set", "tap0", "up"])
        assert peer_mac(tap, ear)


@pytest.mark.parametrize("vnet_hdr", [True, False])
def test_a_deleted_tap_is_down_for_the_reader_and_a_lossy_cable_for_the_writer(vnet_hdr: bool) -> None:
    with Testbed(vnet_hdr=vnet_hdr) as tb:
        tap = tb.link
        tb.run(["ip", "link", "delete", "tap0"])
        assert tap.send([whole(Ether() / ARP())]) == 1
        assert tap.tx_carrier_errors == 1
        with pytest.raises(LinkDown):
            for _ in range(100):
                tap.poll(64)


def test_the_runtime_reports_a_tap_deleted_under_it() -> None:
    with Testbed() as tb:
        runtime = RealRuntime()
        runtime.add_link(tb.link)
        down: list[int | None] = []

        async def main() -> None:
            gone = trio.Event()

            def told(link: object, error: LinkDown) -> None:
                down.append(error.errno)
                gone.set()

            runtime.link_down.append(told)
            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    await nursery.start(runtime.run)
                    tb.run(["ip", "link", "delete", "tap0"])
                    await gone.wait()
                    nursery.cancel_scope.cancel()

        trio.run(main)
        assert down == [errno.EBADFD]
        assert runtime.links == []


def test_a_frame_the_kernel_finds_malformed_is_counted_and_the_next_one_goes_through() -> None:
    with Testbed() as tb:
        tap = tb.link
        ear = Ear(tap)
        assert tap.send([TxFrame(b"short"), TxFrame(bytes(60), (), 60, 77, 100, 14, 16)]) == 2
        assert tap.tx_errors == 2
        assert peer_mac(tap, ear)
