"""Reading a descriptor, by the C helpers and by Python: the same frames with the same facts, the same ends."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from pytcp.link.descriptor import VNET_HDR, DescriptorLink
from pytcp.link.frame import CSUM_NONE, CSUM_UNNECESSARY, F_CSUM, F_TSO4, GSO_TCPV4, LinkDown, RxFrame
from pytcp.native import HAVE_C

PADDING = {0: b"", 10: b"", 12: b"\0\0"}


class Ends:
    """A link on one end of a pair of sockets that keep frames apart, and the other end."""

    def __init__(self, vnet_hdr_len: int, by_c: bool) -> None:
        near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.setblocking(False)
        self.link = DescriptorLink()
        self.link.fd = near.detach()
        self.link.name, self.link.mac, self.link.mtu, self.link.features = "pair", bytes(6), 1500, F_CSUM | F_TSO4
        self.link._start(vnet_hdr_len, gso=False, gro=False)
        if not by_c:
            self.link._facts = None
        self.got: list[tuple[bytes, int, int, int]] = []
        self.ends = 0
        self.link.rx = self.take
        self.link.rx_end = self.end

    def take(self, frame: RxFrame) -> None:
        self.got.append((bytes(frame.data), frame.gso_type, frame.gso_size, frame.csum))

    def end(self) -> None:
        self.ends += 1


@pytest.fixture(params=[True, False], ids=["C", "Python"])
def by_c(request: pytest.FixtureRequest) -> bool:
    if request.param and not HAVE_C:
        pytest.skip("no C helpers")
    return bool(request.param)


@pytest.fixture(params=[0, 10, 12])
def pair(request: pytest.FixtureRequest, by_c: bool) -> Iterator[Ends]:
    ends = Ends(request.param, by_c)
    yield ends
    ends.link.close()
    ends.far.close()


def test_frames_come_with_what_their_header_says(pair: Ends) -> None:
    hdr_len = pair.link.vnet_hdr_len
    said = [(0, 0, 0), (1, GSO_TCPV4, 1448), (2, 0, 0)]
    frames = [bytes([number]) * (60 + number) for number in range(3)]
    for (flags, gso_type, gso_size), frame in zip(said, frames, strict=True):
        header = VNET_HDR.pack(flags, gso_type, 66, gso_size, 34, 16) + PADDING[hdr_len] if hdr_len else b""
        pair.far.send(header + frame)
    assert pair.link.poll(64) == 3
    if hdr_len:
        facts = [(0, 0, CSUM_NONE), (GSO_TCPV4, 1448, CSUM_UNNECESSARY), (0, 0, CSUM_UNNECESSARY)]
    else:
        facts = [(0, 0, CSUM_NONE)] * 3
    assert pair.got == [(frame, *fact) for frame, fact in zip(frames, facts, strict=True)]
    assert (pair.link.rx_packets, pair.link.rx_bytes, pair.ends) == (3, 60 + 61 + 62, 1)


def test_the_budget_leaves_the_rest_in_the_device(pair: Ends) -> None:
    for number in range(5):
        pair.far.send(bytes(pair.link.vnet_hdr_len) + bytes([number]) * 60)
    assert pair.link.poll(2) == 2
    assert pair.link.poll(64) == 3
    assert [data[0] for data, *_ in pair.got] == [0, 1, 2, 3, 4]


def test_nothing_to_read_is_no_batch(pair: Ends) -> None:
    assert pair.link.poll(64) == 0
    assert (pair.got, pair.ends, pair.link.rx_packets) == ([], 0, 0)


def test_a_frame_somebody_keeps_is_not_overwritten_by_the_next(pair: Ends) -> None:
    kept: list[RxFrame] = []

    def keep(frame: RxFrame) -> None:
        assert frame.buf is not None
        frame.buf.taken += 1
        kept.append(frame)

    pair.link.rx = keep
    for number in range(3):
        pair.far.send(bytes(pair.link.vnet_hdr_len) + bytes([number]) * 60)
    pair.link.poll(64)
    assert [bytes(frame.data[:1]) for frame in kept] == [b"\0", b"\1", b"\2"]


def test_a_descriptor_that_somebody_closed_is_link_down_and_not_a_socket_that_is_closed(pair: Ends) -> None:
    fd, pair.link.fd = pair.link.fd, os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    number = pair.link.fd
    os.close(number)
    with pytest.raises(LinkDown) as down:
        pair.link.poll(64)
    assert down.value.errno == errno.ENODEV
    others = os.dup2(fd, number)
    pair.link.close()
    os.fstat(others)  # whoever has the number now keeps it
    os.close(others)
    pair.link.fd = fd
