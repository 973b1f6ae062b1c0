"""What a host says to its neighbours besides TCP: ping, limits, fragments, redirects, UDP, life of a stack."""

from __future__ import annotations

import errno

import pytest

from pytcp.net import sysctl
from pytcp.net.datagram import UdpSocket
from pytcp.net.neighbour import STATE_NAMES
from pytcp.net.ping import Reply
from pytcp.net.stack import Stack
from pytcp.net.udp_output import PROBE
from pytcp.tcp.const import POLLERR, POLLIN
from pytcp.wire.addr import parse_ip
from pytcp.wire.arp import REPLY, REQUEST, Arp
from pytcp.wire.ethernet import Ethernet
from pytcp.wire.icmp import Echo, Redirect, Timestamp
from pytcp.wire.icmpv6 import Echo as Echo6
from pytcp.wire.icmpv6 import seal
from pytcp.wire.ipv4 import Ipv4
from pytcp.wire.ipv6 import FragmentHeader, Ipv6
from pytcp.wire.ndp import NeighborSolicit, RouterAdvert, SourceLinkAddr
from pytcp.wire.ndp import Redirect as Redirect6
from pytcp.wire.udp import Udp

from .net_world import HOST4, HOST6, HOST_MAC, MS, PEER4, PEER6, PEER_MAC, S, Wire, one_host, two_hosts

PATTERN = bytes(i & 0xFF for i in range(65536))


def _closed_port(port: int = 5999, source: bytes = PEER4) -> Ipv4:
    return Ipv4(source, HOST4, 17, Udp(4000, port, b"hello").emit(source, HOST4))


def _closed_port6(source: bytes = PEER6) -> Ipv6:
    return Ipv6(source, HOST6, 17, Udp(4000, 5999, b"hello").emit(source, HOST6))


# --- ping ---


@pytest.mark.parametrize("addr", ["10.0.0.2", "fd00::2"])
def test_ping_measures_the_round_trip(addr: str) -> None:
    runtime, first, _, _ = two_hosts(delay_ns=3 * MS)
    heard: list[Reply] = []
    pinger = first.ping.open(parse_ip(addr), heard.append)
    pinger.send(b"warm the neighbour up")
    runtime.run_for(100 * MS)
    assert pinger.send(b"abc") == 2
    runtime.run_for(100 * MS)
    assert (heard[1].seq, heard[1].rtt_ns, heard[1].ttl, heard[1].data, heard[1].error) == (2, 6 * MS, 64, b"abc", None)


def test_ping_tells_of_an_address_that_does_not_answer() -> None:
    # the host reports its own failure: ICMP 3/1 from itself, at ~3.06 s (linux-host §1)
    runtime, stack, _, _ = one_host(neighbours=False)
    heard: list[Reply] = []
    stack.ping.open(parse_ip("10.0.0.9"), heard.append).send()
    runtime.run_for(3 * S)
    assert heard == []
    runtime.run_for(120 * MS)
    assert [(reply.source, reply.error) for reply in heard] == [(HOST4, (3, 1))]


def test_a_ping_larger_than_the_mtu_goes_in_fragments_without_df() -> None:
    _, stack, _, wire = one_host()
    pinger = stack.ping.open(PEER4, lambda reply: None)
    for size in (1472, 1473):
        pinger.send(bytes(size))
    stack.flush()
    assert [(p.df, p.mf, len(p.payload)) for p in wire.packets() if isinstance(p, Ipv4)] == [(True, False, 1480), (False, True, 1480), (False, False, 1)]


def test_an_interface_that_is_down_hears_nothing() -> None:
    _, stack, dev, wire = one_host()
    dev.set_up(False)
    wire.hears(Ipv4(PEER4, HOST4, 1, Echo(1, 1, b"x").emit()))
    assert (wire.packets(), stack.mib.IpInReceives) == ([], 0)
    dev.set_up(True)
    wire.hears(Ipv4(PEER4, HOST4, 1, Echo(1, 1, b"x").emit()))
    assert len(wire.packets()) == 1


def test_replies_to_nobody_and_duplicates_are_ignored() -> None:
    _, stack, _, wire = one_host()
    heard: list[Reply] = []
    pinger = stack.ping.open(PEER4, heard.append)
    seq = pinger.send()
    for ident in (pinger.ident ^ 1, pinger.ident, pinger.ident):
        wire.hears(Ipv4(PEER4, HOST4, 1, Echo(ident, seq, b"x", reply=True).emit()))
    assert len(heard) == 1
    pinger.close()
    wire.hears(Ipv4(PEER4, HOST4, 1, Echo(pinger.ident, seq, b"x", reply=True).emit()))
    assert len(heard) == 1


# --- rate limits (linux-host §5) ---


def test_errors_to_one_destination_come_six_at_once_and_then_one_a_second() -> None:
    runtime, stack, _, wire = one_host()
    for _ in range(20):
        wire.hears(_closed_port())
    assert len(wire.packets()) == 6
    assert stack.mib.IcmpOutRateLimitHost == 14
    runtime.run_for(3 * S)
    for _ in range(20):
        wire.hears(_closed_port())
    assert len(wire.packets()) == 3


def test_ipv6_errors_come_six_at_once_and_then_one_per_100_ms() -> None:
    runtime, stack, _, wire = one_host()
    for _ in range(20):
        wire.hears(_closed_port6())
    assert len(wire.packets()) == 6
    assert stack.mib.Icmp6OutRateLimitHost == 14
    runtime.run_for(300 * MS)
    for _ in range(20):
        wire.hears(_closed_port6())
    assert len(wire.packets()) == 3


def test_two_destinations_do_not_share_a_bucket() -> None:
    _, _, dev, wire = one_host()
    third = parse_ip("10.0.0.3")
    dev.neigh4.add_permanent(third, PEER_MAC)
    for _ in range(12):
        wire.hears(_closed_port())
        wire.hears(_closed_port(source=third))
    dsts = [packet.dst for packet in wire.packets()]
    assert (dsts.count(PEER4), dsts.count(third)) == (6, 6)


def test_the_whole_host_sends_about_fifty_errors_at_once() -> None:
    # measured: 45..58 of 200, the rest counted OutRateLimitGlobal
    _, stack, dev, wire = one_host()
    for i in range(200):
        source = bytes((10, 0, 0, 3 + i))
        dev.neigh4.add_permanent(source, PEER_MAC)
        wire.hears(_closed_port(source=source))
    out = len(wire.packets())
    assert 40 <= out <= 62
    assert stack.mib.IcmpOutRateLimitGlobal == 200 - out


def test_echo_and_timestamp_replies_are_not_limited_and_a_limit_of_0_is_none() -> None:
    _, stack, _, wire = one_host()
    for i in range(100):
        wire.hears(Ipv4(PEER4, HOST4, 1, Echo(1, i, b"x").emit()))
        wire.hears(Ipv4(PEER4, HOST4, 1, Timestamp(1, i, 5).emit()))
    assert len(wire.packets()) == 200
    sysctl.set_(stack.sysctl, "net.ipv4.icmp_ratelimit", 0)
    for _ in range(20):
        wire.hears(_closed_port())
    assert len(wire.packets()) == 20


# --- fragments ---


def test_an_echo_of_65507_bytes_is_answered_in_45_fragments_of_one_id() -> None:
    _, stack, _, wire = one_host()
    message = Echo(7, 1, PATTERN[:65499]).emit()
    for at in range(0, len(message), 1480):
        wire.hears(Ipv4(PEER4, HOST4, 1, message[at : at + 1480], ident=77, df=False, mf=at + 1480 < len(message), frag_offset=at))
    pieces = [packet for packet in wire.packets() if isinstance(packet, Ipv4)]
    assert len(pieces) == 45
    assert len({packet.ident for packet in pieces}) == 1
    assert [packet.frag_offset for packet in pieces] == list(range(0, 65507, 1480))
    assert b"".join(packet.payload for packet in pieces)[8:] == PATTERN[:65499]
    assert (stack.mib.IpReasmOKs, stack.mib.IpFragOKs, stack.mib.IpFragCreates) == (1, 1, 45)


def test_an_ipv6_echo_of_65487_bytes_is_answered_in_46_fragments() -> None:
    _, stack, _, wire = one_host()
    raw = Echo6(7, 1, PATTERN[:65479]).emit(PEER6, HOST6)
    for at in range(0, len(raw), 1448):
        piece = FragmentHeader(58, at, at + 1448 < len(raw), 9, raw[at : at + 1448]).emit()
        wire.hears(Ipv6(PEER6, HOST6, 44, piece))
    pieces = [FragmentHeader.parse(packet.payload) for packet in wire.packets()]
    assert len(pieces) == 46
    assert len({piece.ident for piece in pieces}) == 1
    assert b"".join(piece.payload for piece in pieces)[8:] == PATTERN[:65479]
    assert stack.mib.Ip6FragCreates == 46


def _fragment(ident: int, at: int, size: int, more: bool) -> Ipv4:
    datagram = Udp(4000, 5000, PATTERN[:3000]).emit(PEER4, HOST4)
    return Ipv4(PEER4, HOST4, 17, datagram[at : at + size], ident=ident, df=False, mf=more, frag_offset=at)


def test_64_other_fragments_from_the_source_are_put_up_with_and_65_are_not() -> None:
    for others, received in ((63, 1), (64, 0)):
        _, stack, _, wire = one_host()
        sock = stack.udp.socket(4)
        sock.bind(b"", 5000)
        wire.hears(_fragment(77, 0, 1480, True))
        for ident in range(1000, 1000 + others):
            wire.hears(_fragment(ident, 0, 1480, True))
        wire.hears(_fragment(77, 1480, 1528, False))
        assert len(sock.queue) == received
        assert stack.mib.IpReasmFails == 1 - received


def test_memory_above_the_limit_refuses_new_datagrams_and_evicts_none() -> None:
    # linux-host §3: 1766 queues of one 1480-byte fragment, 2376 bytes each
    _, stack, _, wire = one_host()
    sysctl.set_(stack.sysctl, "net.ipv4.ipfrag_max_dist", 0)
    for ident in range(1800):
        wire.hears(_fragment(ident, 0, 1480, True))
    assert len(stack.frags4) == 1766
    assert stack.frags4.memory == 1766 * 2376
    assert stack.mib.IpReasmFails == 1800 - 1766


def test_reassembly_gives_all_memory_back() -> None:
    runtime, stack, _, wire = one_host()
    wire.hears(_fragment(1, 0, 1480, True))
    wire.hears(_fragment(1, 1480, 1528, False))
    wire.hears(_fragment(2, 0, 1480, True))
    wire.hears(_fragment(2, 8, 1480, True))
    wire.hears(_fragment(3, 0, 1480, True))
    runtime.run_for(33 * S)
    assert (len(stack.frags4), stack.frags4.memory) == (0, 0)


# --- neighbours ---


def test_256_small_or_92_large_datagrams_wait_for_an_address_and_the_oldest_go() -> None:
    for size, waiting in ((100, 256), (1472, 92)):
        _, stack, dev, wire = one_host(neighbours=False)
        sock = stack.udp.socket(4)
        sock.connect(PEER4, 9)
        for i in range(300):
            sock.send(i.to_bytes(2, "big") + bytes(size - 2))
        stack.flush()
        wire.sent.clear()
        wire.hears(Arp(REPLY, PEER_MAC, PEER4, HOST_MAC, HOST4).emit(), ethertype=0x0806)
        numbers = [int.from_bytes(packet.payload[8:10], "big") for packet in wire.packets()]
        assert numbers == list(range(300 - waiting, 300))
        assert STATE_NAMES[dev.neigh4.entries[PEER4].state] == "REACHABLE"


def test_the_table_is_bounded_and_forgets_the_oldest() -> None:
    _, stack, dev, wire = one_host()
    sysctl.set_(stack.sysctl, "net.ipv4.neigh.default.gc_thresh3", 16)
    for i in range(100):
        wire.hears(Arp(REQUEST, PEER_MAC, bytes((10, 0, 0, 100 + i)), bytes(6), HOST4).emit(), ethertype=0x0806)
    assert len(dev.neigh4.entries) == 16
    assert PEER4 in dev.neigh4.entries  # entered by hand
    assert bytes((10, 0, 0, 199)) in dev.neigh4.entries


def test_progress_of_a_connection_keeps_its_neighbour_from_being_probed() -> None:
    from .net_world import dial, serve, transfer

    runtime, first, second, _ = two_hosts()
    listener = serve(second, 4, 80)
    client = dial(first, PEER4, 80)
    runtime.run_for(20 * MS)
    from pytcp.tcp import api

    server = api.accept(listener)
    first_arps = _count_arp(first)
    for _ in range(300):
        transfer(runtime, client, server, b"x" * 100)
        runtime.run_for(400 * MS)
    assert _count_arp(first) == first_arps


def _count_arp(stack: Stack) -> int:
    entry = stack.interfaces[1].neigh4.entries[PEER4]
    return entry.probes


# --- routes ---


def test_a_redirect_from_the_gateway_in_use_moves_one_destination_for_300_s() -> None:
    runtime, stack, dev, wire = one_host()
    other, far = parse_ip("10.0.0.3"), parse_ip("192.0.2.9")
    dev.neigh4.add_permanent(other, b"\x02\0\0\0\0\x13")
    sock = stack.udp.socket(4)
    sock.connect(far, 9)
    sock.send(b"x")
    stack.flush()
    quote = wire.packets()[0].emit()[:28]
    wire.hears(Ipv4(parse_ip("10.0.0.7"), HOST4, 1, Redirect(1, other, quote).emit()))
    assert stack.dst(far).gateway == PEER4
    wire.hears(Ipv4(PEER4, HOST4, 1, Redirect(1, other, quote).emit()))
    assert stack.dst(far).gateway == other
    assert stack.dst(parse_ip("192.0.2.10")).gateway == PEER4
    sock.send(b"x")
    stack.flush()
    assert Ethernet.parse(wire.sent[-1]).dst == b"\x02\0\0\0\0\x13"
    runtime.run_for(300 * S)
    assert stack.dst(far).gateway == PEER4


def test_an_ipv6_redirect_about_a_datagram_counts_for_sockets_bound_to_the_device_only() -> None:
    # a quirk of Linux (linux-host §2)
    for bound, moved in ((False, False), (True, True)):
        _, stack, dev, wire = one_host()
        router, better, far = parse_ip("fe80::12"), parse_ip("fe80::13"), parse_ip("2001:db8::9")
        dev.neigh6.add_permanent(router, PEER_MAC)
        stack.remove_route(stack.routes6.find(bytes(16), 0)[0])
        stack.add_route("default6", via="fe80::12", dev=dev)
        sock = stack.udp.socket(6)
        sock.bound_dev_if = dev.index if bound else 0
        sock.connect(far, 9)
        sock.send(b"x")
        stack.flush()
        from pytcp.wire.ndp import Redirected, TargetLinkAddr

        options = (TargetLinkAddr(b"\x02\0\0\0\0\x13"), Redirected(wire.packets()[0].emit()))
        wire.hears(Ipv6(router, HOST6, 58, Redirect6(better, far, options).emit(router, HOST6), hop_limit=255))
        assert (stack.dst(far, b"", sock.dev).gateway == better) is moved


def test_a_router_advertisement_ends_the_solicitations_and_its_route_ends_with_its_lifetime() -> None:
    from pytcp.clock.virtual import VirtualRuntime

    runtime = VirtualRuntime()
    stack = Stack(runtime, seed=3)
    wire = Wire(runtime)
    dev = stack.add_interface(wire, dad=True, autoconf=True)
    runtime.run_for(3 * S)
    router = parse_ip("fe80::12")
    asked = [packet for packet in wire.packets() if packet.payload[0] == 133]
    assert len(asked) == 1
    wire.hears(Ipv6(router, parse_ip("ff02::1"), 58, RouterAdvert(64, lifetime=30).emit(router, parse_ip("ff02::1")), hop_limit=255), to=b"\x33\x33\0\0\0\1")
    assert stack.dst(parse_ip("2001:db8::9")).gateway == router
    runtime.run_for(29 * S)
    assert [packet for packet in wire.packets() if packet.payload[0] == 133] == []
    runtime.run_for(2 * S)
    with pytest.raises(OSError, match="no route") as caught:
        stack.dst(parse_ip("2001:db8::9"))
    assert caught.value.errno == errno.ENETUNREACH
    assert dev.up


def test_an_optimistic_address_is_answered_for_without_override() -> None:
    # RFC 4429 §3.3
    _, stack, dev, wire = one_host()
    sysctl.set_(stack.sysctl, "net.ipv6.conf.all.optimistic_dad", 1)
    addr, asker = parse_ip("fd00::77"), parse_ip("fe80::12")
    stack.add_address(dev, "fd00::77/64", dad=True)
    stack.flush()
    wire.sent.clear()
    group = parse_ip("ff02::1:ff00:77")
    question = NeighborSolicit(addr, (SourceLinkAddr(PEER_MAC),)).emit(asker, group)
    wire.hears(Ipv6(asker, group, 58, question, hop_limit=255), to=b"\x33\x33\xff\0\0\x77")
    answer = wire.packets()[0]
    assert (answer.payload[0], answer.payload[4] >> 5) == (136, 0b010)  # R 0, S 1, O 0


# --- UDP ---


def _bound(stack: Stack, port: int = 5000) -> UdpSocket:
    sock = stack.udp.socket(4)
    sock.bind(b"", port)
    return sock


def test_the_receive_buffer_counts_memory_and_drops_the_newest() -> None:
    # linux-host §6: 212992 holds 302 datagrams of 10 bytes or 97 of 1472
    for size, held in ((10, 302), (1472, 97)):
        _, stack, _, wire = one_host()
        sock = _bound(stack)
        for i in range(held + 5):
            wire.hears(Ipv4(PEER4, HOST4, 17, Udp(4000, 5000, i.to_bytes(2, "big") + bytes(size - 2)).emit(PEER4, HOST4)))
        assert len(sock.queue) == held
        assert int.from_bytes(sock.recv().data[:2], "big") == 0
        assert (stack.mib.UdpRcvbufErrors, stack.mib.UdpInErrors, stack.mib.UdpInDatagrams) == (5, 5, 1)


def test_a_tiny_buffer_takes_one_datagram_whatever_its_size() -> None:
    _, stack, _, wire = one_host()
    sock = _bound(stack)
    sock.set_rcvbuf(1)
    assert sock.rcvbuf == 2304
    for _ in range(3):
        wire.hears(Ipv4(PEER4, HOST4, 17, Udp(4000, 5000, bytes(1472)).emit(PEER4, HOST4)))
    assert len(sock.queue) == 1


def test_the_closest_endpoint_gets_the_datagram_and_of_equals_the_latest() -> None:
    _, stack, dev, wire = one_host()
    socks = []
    for bind, peer, device in ((b"", b"", None), (b"", b"", dev), (HOST4, b"", None), (HOST4, PEER4, None)):
        sock = stack.udp.socket(4)
        sock.reuseaddr = True
        sock.bound_dev_if = device.index if device is not None else 0
        sock.bind(bind, 5000)
        if peer:
            sock.connect(peer, 4000)
        socks.append(sock)
    late = stack.udp.socket(4)
    late.reuseaddr = True
    late.bind(HOST4, 5000)
    datagram = Ipv4(PEER4, HOST4, 17, Udp(4000, 5000, b"x").emit(PEER4, HOST4))
    order = [socks[3], late, socks[1], socks[0]]
    socks[2].close()
    for sock in order:
        wire.hears(datagram)
        assert [len(other.queue) for other in order] == [1 if other is sock else 0 for other in order]
        sock.recv()
        sock.close()
    wire.hears(datagram)
    assert stack.mib.UdpNoPorts == 1


def test_readiness_is_told_and_errors_too() -> None:
    runtime, stack, _, wire = one_host()
    sock = _bound(stack)
    told: list[int] = []
    sock.on_ready = told.append
    wire.hears(Ipv4(PEER4, HOST4, 17, Udp(4000, 5000, b"x").emit(PEER4, HOST4)))
    assert (told, sock.poll() & POLLIN) == ([POLLIN], POLLIN)
    sock.connect(HOST4, 5999)
    sock.send(b"to ourselves, port closed")
    runtime.run_for(MS)
    assert told[1:] == [POLLERR]
    with pytest.raises(ConnectionRefusedError):
        sock.recv()
    assert sock.recv().data == b"x"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda sock: sock.sendto(b"x", PEER4, 0), errno.EINVAL),
        (lambda sock: sock.sendto(bytes(65508), PEER4, 9), errno.EMSGSIZE),
        (lambda sock: sock.send(b"x"), errno.EDESTADDRREQ),
        (lambda sock: sock.sendto(b"x", parse_ip("10.0.0.255"), 9), errno.EACCES),
        (lambda sock: sock.bind(parse_ip("10.0.0.99"), 0), errno.EADDRNOTAVAIL),
        (lambda sock: sock.recv(), errno.EAGAIN),
        (lambda sock: sock.recv_error(), errno.EAGAIN),
        (lambda sock: sock.mtu(), errno.ENOTCONN),
    ],
)
def test_what_a_caller_does_wrong_has_its_errno(call: object, code: int) -> None:
    _, stack, _, _ = one_host()
    with pytest.raises(OSError) as caught:
        call(stack.udp.socket(4))  # type: ignore[operator]
    assert caught.value.errno == code


def test_probing_sends_the_full_mtu_whatever_was_learnt() -> None:
    _, stack, _, wire = one_host()
    sock = stack.udp.socket(4)
    sock.pmtu_disc = PROBE
    sock.connect(PEER4, 9)
    stack.pmtu.update(stack.dst(PEER4), 1000)
    sock.send(bytes(1472))
    stack.flush()
    (packet,) = wire.packets()
    assert isinstance(packet, Ipv4)
    assert (len(packet.payload), packet.df) == (1480, True)
    with pytest.raises(OSError) as caught:
        sock.send(bytes(1473))
    assert caught.value.errno == errno.EMSGSIZE


def test_ephemeral_ports_are_exhausted_with_eagain_by_connect_and_eaddrinuse_by_bind() -> None:
    _, stack, _, _ = one_host()
    sysctl.set_(stack.sysctl, "net.ipv4.ip_local_port_range", (40000, 40003))
    ports = set()
    for _ in range(4):
        sock = stack.udp.socket(4)
        sock.bind(b"", 0)
        ports.add(sock.lport)
    assert ports == {40000, 40001, 40002, 40003}
    with pytest.raises(OSError) as caught:
        stack.udp.socket(4).bind(b"", 0)
    assert caught.value.errno == errno.EADDRINUSE
    with pytest.raises(BlockingIOError):
        stack.udp.socket(4).connect(PEER4, 9)


def test_a_udp_super_frame_becomes_its_datagrams() -> None:
    from pytcp.link.frame import CSUM_UNNECESSARY, GSO_UDP_L4, RxFrame

    runtime, stack, _, wire = one_host()
    sock = _bound(stack)
    packet = Ipv4(PEER4, HOST4, 17, Udp(4000, 5000, PATTERN[:2500]).emit(PEER4, HOST4))
    data = Ethernet(HOST_MAC, PEER_MAC, 0x0800, packet.emit()).emit()
    wire.rx(RxFrame(memoryview(data), GSO_UDP_L4, 1000, CSUM_UNNECESSARY))
    runtime.run_for(0)
    assert [len(datagram.data) for datagram in sock.queue] == [1000, 1000, 500]
    assert b"".join(datagram.data for datagram in sock.queue) == PATTERN[:2500]


# --- links ---


def test_a_link_without_ethernet_carries_bare_packets() -> None:
    from pytcp.clock.virtual import VirtualRuntime

    runtime = VirtualRuntime()
    stack = Stack(runtime, seed=7)
    wire = Wire(runtime)
    wire.mac = b""
    stack.add_interface(wire, ["10.0.0.1/24", "fd00::1/64"])
    wire.hears_frame(Ipv4(PEER4, HOST4, 1, Echo(1, 1, b"x").emit()).emit())
    wire.hears_frame(Ipv6(PEER6, HOST6, 58, Echo6(1, 1, b"x").emit(PEER6, HOST6)).emit())
    stack.flush()
    four, six = Ipv4.parse(wire.sent[0]), Ipv6.parse(wire.sent[1])
    assert (four.dst, four.payload[0], six.dst, six.payload[0]) == (PEER4, 0, PEER6, 129)


def test_an_mtu_below_1280_ends_ipv6_and_1500_brings_the_link_local_address_back() -> None:
    _, stack, dev, _ = one_host()
    dev.set_mtu(1000)
    assert (dev.addresses6, dev.ip6) == ([], False)
    with pytest.raises(OSError) as caught:
        stack.dst(PEER6)
    assert caught.value.errno == errno.ENETUNREACH
    dev.set_mtu(1500)
    assert [entry.addr for entry in dev.addresses6] == [parse_ip("fe80::ff:fe00:11")]


def test_icmpv6_with_a_bad_checksum_is_counted_and_dropped() -> None:
    _, stack, _, wire = one_host()
    good = seal(bytes((128, 0, 0, 0, 0, 1, 0, 1)), PEER6, HOST6)
    wire.hears(Ipv6(PEER6, HOST6, 58, good[:2] + bytes((good[2] ^ 1, good[3])) + good[4:]))
    assert wire.packets() == []
    assert (stack.mib.Icmp6InErrors, stack.mib.Icmp6InCsumErrors) == (1, 1)
