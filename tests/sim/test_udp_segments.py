"""UDP_SEGMENT and UDP_GRO: many datagrams in one call, and what a 6.18 kernel sends, refuses and counts for the same calls."""

from __future__ import annotations

import errno
import socket as stdlib
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from pytcp.link.frame import F_CSUM, F_USO, GSO_UDP_L4
from pytcp.net.datagram import UdpSocket
from pytcp.net.stack import Stack
from pytcp.net.udp_output import Control
from pytcp.sockets.udp import MSG_PEEK, MSG_TRUNC, DatagramSocket
from pytcp.wire.arp import REPLY, Arp

from .net_world import HOST4, HOST_MAC, PEER4, PEER6, PEER_MAC, Wire, one_host
from .streams import A4, B4, B6, PORT, World, simulate

SEGMENT, GRO, CORK, NO_CHECK6_TX = 103, 104, 1, 101
UDP_LEVEL = int(stdlib.IPPROTO_UDP)
MSG_MORE = int(stdlib.MSG_MORE)
V4, V6 = int(stdlib.AF_INET), int(stdlib.AF_INET6)
DST = {V4: B4, V6: B6}
PREFIX = {V4: "", V6: "6"}
USO = F_CSUM | F_USO


def data(size: int) -> bytes:
    return bytes(i * 7 + i // 251 & 0xFF for i in range(size))


def message(size: int) -> tuple[int, int, bytes]:
    return UDP_LEVEL, SEGMENT, struct.pack("=H", size)


def sending(sock: DatagramSocket, size: int, gso_size: int, host: str = "") -> object:
    """What sendmsg of so many bytes with a segment size comes to; to PORT of a host, or to the connected peer."""
    return outcome(partial(sock.sendmsg, [bytes(size)], [message(gso_size)], 0, (host, PORT) if host else None))


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


# --- on the wire ---


def endpoint(stack: Stack, addr: bytes, *, connected: bool = False, **fields: Any) -> UdpSocket:
    sock = stack.udp.socket(4 if len(addr) == 4 else 6)
    sock.bind(b"", 5000)
    for name, value in fields.items():
        setattr(sock, name, value)
    if connected:
        sock.connect(addr, 7)
        sock.ip_id = 0xFFFF
    return sock


def expected(wire: Wire, payload: bytes, size: int, *, ident: int = 0, df: bool = False) -> list[bytes]:
    """The datagrams as scapy builds them, over the family of what was sent."""
    ether, udp = Ether(dst=PEER_MAC.hex(":"), src=HOST_MAC.hex(":")), UDP(sport=5000, dport=7)
    six = wire.sent[0][12:14] == b"\x86\xdd"
    found = []
    for number, at in enumerate(range(0, len(payload), size)):
        if six:
            ip: Any = IPv6(src="fd00::1", dst="fd00::2", hlim=64, fl=IPv6(wire.sent[0][14:]).fl)
        else:
            ip = IP(src="10.0.0.1", dst="10.0.0.2", ttl=64, flags="DF" if df else 0, id=ident + number & 0xFFFF)
        found.append(bytes(ether / ip / udp / Raw(payload[at : at + size])))
    return found


@pytest.mark.parametrize("features", [0, F_CSUM, USO])
@pytest.mark.parametrize("addr", [PEER4, PEER6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize(("size", "gso_size"), [(3000, 1000), (2501, 1000), (1001, 1000), (12800, 100), (64000, 1452)])
def test_each_datagram_is_what_a_single_one_would_be_and_ids_count_up(addr: bytes, features: int, size: int, gso_size: int) -> None:
    _, stack, _, wire = one_host(features=features)
    sock = endpoint(stack, addr, connected=True, gso_size=gso_size)
    payload = data(size)
    assert sock.send(payload) == size
    stack.flush()
    # what fits a packet as a whole has DF, as a single datagram; only the endpoint's id is one for all
    whole = size + 28 <= 1500
    assert wire.sent == expected(wire, payload, gso_size, ident=0xFFFF, df=whole)
    assert len(wire.frames) == (1 if features == USO else len(wire.sent))
    if features == USO:
        frame = wire.frames[0]
        l4 = 34 if addr == PEER4 else 54
        assert (frame.gso_type, frame.gso_size, frame.csum_start, frame.csum_offset, len(frame.head)) == (GSO_UDP_L4, gso_size, l4, 6, l4 + 8)
        assert frame.head[l4 + 4 : l4 + 6] == (8 + size).to_bytes(2, "big")
    wire.sent.clear()
    assert sock.send(b"next") == 4
    stack.flush()
    assert wire.sent == expected(wire, b"next", 4, ident=0x10000, df=True)


@pytest.mark.parametrize(("mode", "df", "ident"), [(0, False, None), (1, False, None), (2, True, 0), (3, True, 0), (4, False, None), (5, False, None)])
def test_of_path_mtu_discovery_only_df_is_left(mode: int, df: bool, ident: int | None) -> None:
    _, stack, _, wire = one_host()
    sock = endpoint(stack, PEER4, pmtu_disc=mode)
    assert sock.sendto(data(3000), PEER4, 7, control=Control(gso_size=1000)) == 3000
    with pytest.raises(OSError) as caught:
        sock.sendto(data(3000), PEER4, 7, control=Control(gso_size=1473))
    assert caught.value.errno == errno.EMSGSIZE
    stack.flush()
    first = IP(wire.sent[0][14:]).id if ident is None else ident
    assert wire.sent == expected(wire, data(3000), 1000, ident=first, df=df)


@pytest.mark.parametrize(("size", "frames"), [(65408, 1), (65507, 128)])
def test_what_is_too_long_for_a_device_with_its_header_is_cut_before_it(size: int, frames: int) -> None:
    # measured on a veth pair: 65408 bytes leave as one super-frame, 65507 as 128 datagrams
    _, stack, _, wire = one_host(features=USO)
    sock = endpoint(stack, PEER4, connected=True, gso_size=512)
    sock.send(data(size))
    stack.flush()
    assert len(wire.frames) == frames
    assert wire.sent == expected(wire, data(size), 512, ident=0xFFFF)


def test_a_super_frame_waits_for_its_neighbour_as_one() -> None:
    _, stack, _, wire = one_host(neighbours=False, features=USO)
    sock = endpoint(stack, PEER4, connected=True, gso_size=1000)
    sock.send(data(30000))
    stack.flush()
    wire.sent.clear()  # the question
    wire.hears(Arp(REPLY, PEER_MAC, PEER4, HOST_MAC, HOST4).emit(), ethertype=0x0806)
    assert wire.sent == expected(wire, data(30000), 1000, ident=0xFFFF)


# --- calls ---


@pytest.mark.parametrize(
    ("size", "gso_size", "ipv4", "ipv6"),
    [
        # measured on 6.18 over a path of 1500 bytes: gso_size larger than the path or than what is sent, number of datagrams, length of all
        (1000, 1000, 1000, 1000),
        (500, 1000, 500, 500),
        (0, 1000, 0, 0),
        (2944, 1472, 2944, "EMSGSIZE"),
        (2904, 1452, 2904, 2904),
        (2906, 1453, 2906, "EMSGSIZE"),
        (2946, 1473, "EMSGSIZE", "EMSGSIZE"),
        (1473, 1473, "EMSGSIZE", "EMSGSIZE"),
        (1472, 1473, 1472, "EMSGSIZE"),
        (1400, 1500, 1400, 1400),
        (100, 65535, 100, 100),
        (12800, 100, 12800, 12800),
        (12801, 100, "EINVAL", "EINVAL"),
        (128, 1, 128, 128),
        (129, 1, "EINVAL", "EINVAL"),
        (65507, 512, 65507, 65507),
        (65508, 1452, "EMSGSIZE", 65508),
        (65527, 1452, "EMSGSIZE", 65527),
        (65528, 1452, "EMSGSIZE", "EMSGSIZE"),
        (70000, 1000, "EMSGSIZE", "EMSGSIZE"),
        (3000, 0, 3000, 3000),
    ],
)
def test_limits(size: int, gso_size: int, ipv4: int | str, ipv6: int | str) -> None:
    async def program(world: World) -> None:
        for family, result in ((V4, ipv4), (V6, ipv6)):
            by_message, by_option = world.a.datagram_socket(family), world.a.datagram_socket(family)
            by_option.setsockopt(UDP_LEVEL, SEGMENT, gso_size)
            assert sending(by_message, size, gso_size, DST[family]) == result
            assert outcome(partial(by_option.sendto, bytes(size), (DST[family], PORT))) == result

    simulate(program)


def test_the_option_and_the_message_take_what_linux_takes() -> None:
    async def program(world: World) -> None:
        sock = world.a.datagram_socket()
        for value, result in ((0, None), (1, None), (65535, None), (65536, "EINVAL"), (-1, "EINVAL")):
            assert outcome(partial(sock.setsockopt, UDP_LEVEL, SEGMENT, value)) == result
        assert sock.getsockopt(UDP_LEVEL, SEGMENT) == 65535
        for size in (0, 1, 3, 4, 8):
            assert outcome(partial(sock.sendmsg, [b"x"], [(UDP_LEVEL, SEGMENT, bytes(size))], 0, (B4, PORT))) == "EINVAL"
        assert sock.getsockopt(UDP_LEVEL, GRO) == 0
        sock.setsockopt(UDP_LEVEL, GRO, 7)
        assert sock.getsockopt(UDP_LEVEL, GRO) == 1

    simulate(program)


def test_segments_have_checksums_or_are_refused() -> None:
    async def program(world: World) -> None:
        sock, six = world.a.datagram_socket(), world.a.datagram_socket(V6)
        for size in (3000, 1000, 300):
            sock.setsockopt(stdlib.SOL_SOCKET, 11, 1)  # SO_NO_CHECK is of IPv4
            assert sending(sock, size, 1000, B4) == "EINVAL"
            six.setsockopt(stdlib.SOL_SOCKET, 11, 1)
            six.setsockopt(UDP_LEVEL, NO_CHECK6_TX, 0)
            assert sending(six, size, 1000, B6) == size
            six.setsockopt(UDP_LEVEL, NO_CHECK6_TX, 1)
            assert sending(six, size, 1000, B6) == "EINVAL"

    simulate(program)


def receiver(world: World, family: int = V4, *, gro: bool = False) -> DatagramSocket:
    sock = world.b.datagram_socket(family)
    sock.bind(("", PORT))
    sock.setsockopt(UDP_LEVEL, GRO, gro)
    return sock


def read(sock: DatagramSocket, size: int = 70000) -> list[tuple[bytes, int]]:
    """What has come: (data, size of the datagrams in it, 0 = it is one)."""
    found: list[tuple[bytes, int]] = []
    while True:
        try:
            received, ancillary, _, _ = sock.recvmsg(size, 200)
        except BlockingIOError:
            return found
        found.append((received, next((int.from_bytes(value, "little") for level, kind, value in ancillary if (level, kind) == (UDP_LEVEL, GRO)), 0)))


def cut(payload: bytes, size: int) -> list[tuple[bytes, int]]:
    return [(payload[at : at + size], 0) for at in range(0, len(payload), size)]


@pytest.mark.parametrize("family", [V4, V6])
def test_a_super_frame_is_read_whole_by_who_asked_for_that_and_as_datagrams_by_others(family: int) -> None:
    async def program(world: World) -> None:
        sock = world.a.datagram_socket(family)
        heard = receiver(world, family)
        for size, gso_size in ((3000, 1000), (2500, 1000), (12800, 100), (64000, 1452)):
            for gro in (False, True):
                heard.setsockopt(UDP_LEVEL, GRO, gro)
                sock.sendmsg([data(size)], [message(gso_size)], 0, (DST[family], PORT))
                await trio.sleep(0.1)
                assert read(heard) == ([(data(size), gso_size)] if gro else cut(data(size), gso_size))
        sock.sendmsg([data(1000)], [message(1000)], 0, (DST[family], PORT))
        await trio.sleep(0.1)
        assert read(heard) == [(data(1000), 0)]

    simulate(program)


def test_whether_it_is_cut_is_decided_when_it_comes_and_whether_that_is_told_when_it_is_read() -> None:
    async def program(world: World) -> None:
        sock, heard = world.a.datagram_socket(), receiver(world)
        for before, after, found in ((True, False, [(data(3000), 0)]), (False, True, cut(data(3000), 1000))):
            heard.setsockopt(UDP_LEVEL, GRO, before)
            sock.sendmsg([data(3000)], [message(1000)], 0, (B4, PORT))
            await trio.sleep(0.1)
            heard.setsockopt(UDP_LEVEL, GRO, after)
            assert read(heard) == found

    simulate(program)


def test_the_size_comes_before_the_control_data_of_ip_and_what_is_not_read_is_lost() -> None:
    async def program(world: World) -> None:
        sock, heard = world.a.datagram_socket(), receiver(world, gro=True)
        heard.setsockopt(0, 12, 1)  # IP_RECVTTL
        sock.sendmsg([data(3000)], [message(1000)], 0, (B4, PORT))
        await trio.sleep(0.1)
        size = (UDP_LEVEL, GRO, struct.pack("=i", 1000))
        assert heard.recvmsg(70000, 200, MSG_PEEK)[:3] == (data(3000), [size, (0, 2, struct.pack("=i", 64))], 0)
        assert heard.recvmsg(1500, 200)[:3] == (data(1500), [size, (0, 2, struct.pack("=i", 64))], MSG_TRUNC)
        assert read(heard) == []

    simulate(program)


def counters(world: World, family: int) -> dict[str, int]:
    a, b = world.a.net.mib, world.b.net.mib
    p = PREFIX[family]
    octets, ect = ("IpExtOutOctets", "IpExtInNoECTPkts") if family == V4 else ("Ip6OutOctets", "Ip6InNoECTPkts")
    return {
        "sent": getattr(a, f"Udp{p}OutDatagrams"),
        "requests": getattr(a, f"Ip{p}OutRequests"),
        "transmits": getattr(a, f"Ip{p}OutTransmits"),
        "octets": getattr(a, octets),
        "receives": getattr(b, f"Ip{p}InReceives"),
        "delivers": getattr(b, f"Ip{p}InDelivers"),
        "packets": getattr(b, ect),
        "read": getattr(b, f"Udp{p}InDatagrams"),
    }


@pytest.mark.parametrize("gro", [False, True])
@pytest.mark.parametrize("family", [V4, V6])
def test_one_call_is_one_packet_to_every_counter_but_those_of_ecn_and_of_reading(family: int, gro: bool) -> None:
    async def program(world: World) -> None:
        sock, heard = world.a.datagram_socket(family), receiver(world, family, gro=gro)
        sock.sendto(b"the neighbour is known from now on", (DST[family], PORT))
        await trio.sleep(0.1)
        read(heard)
        before = counters(world, family)
        sock.sendmsg([data(2500)], [message(1000)], 0, (DST[family], PORT))
        await trio.sleep(0.1)
        read(heard)
        once = {"sent": 1, "requests": 1, "transmits": 1, "octets": 2528 if family == V4 else 2548, "receives": 1, "delivers": 1, "packets": 3}
        after = counters(world, family)
        assert {name: after[name] - before[name] for name in after} == once | {"read": 1 if gro else 3}

    simulate(program)


def test_only_ipv6_counts_a_request_that_is_refused() -> None:
    async def program(world: World) -> None:
        for family, requests in ((V4, 0), (V6, 1)):
            before = counters(world, family)
            sock = world.a.datagram_socket(family)
            assert sending(sock, 129, 1, DST[family]) == "EINVAL"
            after = counters(world, family)
            assert (after["requests"] - before["requests"], after["sent"] - before["sent"]) == (requests, 0)

    simulate(program)


def test_a_small_buffer_has_room_for_some_of_the_datagrams_or_for_one_super_frame() -> None:
    async def program(world: World) -> None:
        sock, heard = world.a.datagram_socket(), receiver(world)
        heard.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_RCVBUF, 2304)
        mib = world.b.net.mib
        for gro, lost in ((False, 10), (True, 0)):
            heard.setsockopt(UDP_LEVEL, GRO, gro)
            before = mib.UdpRcvbufErrors
            sock.sendmsg([data(12000)], [message(1000)], 0, (B4, PORT))
            await trio.sleep(0.1)
            assert mib.UdpRcvbufErrors - before == lost
            assert len(read(heard)) == (12 - lost if not gro else 1)

    simulate(program)


def test_nobody_at_the_port_is_one_error_for_all() -> None:
    async def program(world: World) -> None:
        sock = world.a.datagram_socket()
        sock.connect((B4, 9))
        sock.sendmsg([data(3000)], [message(1000)])
        await trio.sleep(0.1)
        assert outcome(lambda: sock.send(b"x")) == "ECONNREFUSED"
        assert outcome(lambda: sock.recv(9)) == "EAGAIN"
        assert world.b.net.mib.UdpNoPorts == 1

    simulate(program)


def test_several_sends_are_cut_as_one() -> None:
    async def program(world: World) -> None:
        sock, heard = world.a.datagram_socket(), receiver(world)
        sock.connect((B4, PORT))
        sock.setsockopt(UDP_LEVEL, SEGMENT, 1000)
        sock.setsockopt(UDP_LEVEL, CORK, 1)
        sock.send(data(1500))
        sock.send(data(1700))
        sock.setsockopt(UDP_LEVEL, CORK, 0)
        await trio.sleep(0.1)
        assert read(heard) == cut(data(1500) + data(1700), 1000)

    simulate(program)


def test_the_first_of_several_sends_says_how_they_are_cut() -> None:
    async def program(world: World) -> None:
        sock, heard = world.a.datagram_socket(), receiver(world)
        sock.connect((B4, PORT))

        async def arrives(*expected: int) -> None:
            await trio.sleep(0.1)
            assert [len(received) for received, _ in read(heard)] == list(expected)

        sock.sendmsg([bytes(1500)], [message(1000)], MSG_MORE)
        sock.send(bytes(600))
        await arrives(1000, 1000, 100)
        sock.send(bytes(1500), MSG_MORE)
        sock.sendmsg([bytes(600)], [message(1000)])
        await arrives(2100)
        sock.send(bytes(1500), MSG_MORE)
        sock.sendmsg([bytes(600)], [(UDP_LEVEL, SEGMENT, b"bad")])  # nobody looks at it
        await arrives(2100)
        sock.send(bytes(1500), MSG_MORE)
        sock.setsockopt(UDP_LEVEL, SEGMENT, 1000)
        sock.send(bytes(600))
        await arrives(2100)
        sock.setsockopt(UDP_LEVEL, SEGMENT, 0)
        for first, gso_size, second, result in ((1500, 2000, 1600, "EMSGSIZE"), (120, 1, 100, "EINVAL")):
            sock.sendmsg([bytes(first)], [message(gso_size)], MSG_MORE)
            assert outcome(partial(sock.send, bytes(second))) == result
            sock.send(b"and all of it is gone")
            await arrives(21)

    simulate(program)


def test_members_of_a_group_hear_our_super_frames_each_in_its_way() -> None:
    async def program(world: World) -> None:
        group = stdlib.inet_aton("239.1.1.1")
        whole, cutting = (world.a.datagram_socket() for _ in range(2))
        for sock, gro in ((whole, 1), (cutting, 0)):
            sock.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_REUSEADDR, 1)
            sock.bind(("", PORT))
            sock.setsockopt(0, stdlib.IP_ADD_MEMBERSHIP, group + stdlib.inet_aton(A4))
            sock.setsockopt(UDP_LEVEL, GRO, gro)
        sender = world.a.datagram_socket()
        sender.setsockopt(0, stdlib.IP_MULTICAST_IF, stdlib.inet_aton(A4))
        before = world.a.net.mib.IpExtInNoECTPkts
        sender.sendmsg([data(3000)], [message(1000)], 0, ("239.1.1.1", PORT))
        await trio.sleep(0.1)
        assert read(whole) == [(data(3000), 1000)]
        assert read(cutting) == cut(data(3000), 1000)
        assert world.a.net.mib.IpExtInNoECTPkts - before == 3

    simulate(program)


def test_the_loopback_carries_super_frames_whole() -> None:
    async def program(world: World) -> None:
        heard, sock = receiver(world, gro=True), world.b.datagram_socket()
        sock.sendmsg([data(3000)], [message(1000)], 0, ("127.0.0.1", PORT))
        await trio.sleep(0.1)
        assert read(heard) == [(data(3000), 1000)]
        sock.sendmsg([data(65507)], [message(1000)], 0, ("127.0.0.1", PORT))
        await trio.sleep(0.1)
        assert read(heard) == cut(data(65507), 1000)  # too long for any device, and cut before it

    simulate(program)
