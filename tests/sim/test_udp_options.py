"""What options of a UDP socket do to its datagrams and errors, as measured on a 6.18 kernel."""

from __future__ import annotations

import errno
import socket as stdlib
import struct
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import trio

from pytcp.sockets.udp import MSG_PEEK, MSG_TRUNC, DatagramSocket

from .streams import A4, A6, B4, B6, PORT, World, simulate
from .test_bind_to_device import Host, on_two_networks

SOL, IP, IP6, UDP = 1, 0, 41, 17
V4, V6 = int(stdlib.AF_INET), int(stdlib.AF_INET6)
INT = struct.Struct("=i").pack
BINDTOIFINDEX, PEEK_OFF, TXTIME, DEVICE = 62, 42, 61, 25
TTL, HOPS, MULTICAST_TTL, MULTICAST_HOPS = 2, 16, 33, 18
MONOTONIC = 1
Message = tuple[int, int, bytes]


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def index(value: int) -> bytes:
    return value.to_bytes(4, "big")


def receiver(world: World, family: int = V4, *options: tuple[int, int]) -> DatagramSocket:
    sock = world.b.datagram_socket(family)
    sock.bind(("", PORT))
    for level, option in options:
        sock.setsockopt(level, option, 1)
    return sock


async def told(sock: DatagramSocket) -> list[Message]:
    """The control data of the next datagram."""
    await trio.sleep(0.1)
    return sock.recvmsg(100, 400)[1]


# --- interfaces ---


def test_an_interface_that_is_not_there_can_be_bound_to_and_nothing_sent_by_it() -> None:
    async def program(world: World) -> None:
        sock = world.a.datagram_socket()
        sock.setsockopt(SOL, BINDTOIFINDEX, 99)
        assert sock.getsockopt(SOL, BINDTOIFINDEX) == 99
        assert outcome(lambda: sock.getsockopt(SOL, DEVICE, 16)) == "ENODEV"
        assert outcome(lambda: sock.getsockopt(SOL, DEVICE, 4)) == "EINVAL"
        assert outcome(lambda: sock.sendto(b"x", (B4, PORT))) == "ENODEV"
        assert outcome(lambda: sock.sendto(b"x", ("127.0.0.1", PORT))) == "ENODEV"
        assert outcome(lambda: sock.connect((B4, PORT))) == "ENODEV"
        six = world.a.datagram_socket(V6)
        six.setsockopt(SOL, BINDTOIFINDEX, 99)
        assert outcome(lambda: six.sendto(b"x", (B6, PORT))) == "ENETUNREACH"
        assert outcome(lambda: six.connect((B6, PORT))) == "ENETUNREACH"
        assert outcome(lambda: six.sendto(b"x", (f"::ffff:{B4}", PORT))) == "ENODEV"
        six.setsockopt(SOL, BINDTOIFINDEX, 0)
        assert six.sendto(b"x", (B6, PORT)) == 1

    simulate(program)


def test_nothing_comes_by_an_interface_that_is_not_there() -> None:
    async def program(world: World) -> None:
        heard = receiver(world)
        heard.setsockopt(SOL, BINDTOIFINDEX, 99)
        world.a.datagram_socket().sendto(b"x", (B4, PORT))
        await trio.sleep(0.1)
        assert outcome(lambda: heard.recv(9)) == "EAGAIN"

    simulate(program)


@pytest.mark.parametrize(("family", "level", "option"), [(V4, IP, 50), (V6, IP6, 76)])
def test_a_unicast_interface_is_the_way_of_what_goes_to_no_group(family: int, level: int, option: int) -> None:
    async def program(host: Host) -> None:
        other = host.stack.net.interface("va2").index
        sock = host.stack.datagram_socket(family)
        assert outcome(lambda: sock.setsockopt(level, option, index(99))) == "EADDRNOTAVAIL"
        sock.setsockopt(level, option, index(other))
        assert sock.getsockopt(level, option, 4) == index(other)
        far = "192.0.2.1" if family == V4 else "2001:db8::1"
        assert outcome(lambda: host.stack.datagram_socket(family).sendto(b"x", (far, PORT))) == "ENETUNREACH"
        if family == V4:
            assert sock.sendto(b"x", (far, PORT)) == 1  # with the interface alone it is on the link
        sock.setsockopt(SOL, DEVICE, b"va")
        sock.setsockopt(level, option, index(0))
        assert outcome(lambda: sock.setsockopt(level, option, index(other))) == "EINVAL"
        assert outcome(lambda: sock.setsockopt(level, option, index(host.stack.net.interface("va").index))) == "EINVAL"

    on_two_networks(program)


# --- fields of the header ---


@pytest.mark.parametrize("by_message", [False, True])
def test_hop_limit_0_is_one_like_another_and_minus_1_the_default(by_message: bool) -> None:
    async def program(world: World) -> None:
        heard, sock = receiver(world, V6, (IP6, 51)), world.a.datagram_socket(V6)
        for hops, seen in ((0, 0), (1, 1), (255, 255), (-1, 64)):
            if by_message:
                sock.sendmsg([b"x"], [(IP6, 52, INT(hops))], 0, (B6, PORT))
            else:
                sock.setsockopt(IP6, HOPS, hops)
                assert sock.getsockopt(IP6, HOPS) == seen
                sock.sendto(b"x", (B6, PORT))
            assert await told(heard) == [(IP6, 52, INT(seen))]

    simulate(program)


def test_an_ipv6_socket_has_fields_of_its_own_for_each_family() -> None:
    async def program(world: World) -> None:
        pairs = {TTL: HOPS, MULTICAST_TTL: MULTICAST_HOPS, 1: 67, 10: 23, 11: 25, 34: 19, 49: 29}
        four = world.a.datagram_socket(V6)
        for option, value in {TTL: 5, MULTICAST_TTL: 7, 1: 8, 10: 2, 11: 1, 34: 0, 49: 1}.items():
            four.setsockopt(IP, option, value)
        assert {six: four.getsockopt(IP6, six) for six in pairs.values()} == {HOPS: 64, MULTICAST_HOPS: 1, 67: 0, 23: 1, 25: 0, 19: 1, 29: 1}
        six = world.a.datagram_socket(V6)
        for option, value in {HOPS: 5, MULTICAST_HOPS: 7, 67: 8, 23: 2, 25: 1, 19: 0, 29: 0}.items():
            six.setsockopt(IP6, option, value)
        assert {option: six.getsockopt(IP, option) for option in pairs} == {TTL: 64, MULTICAST_TTL: 1, 1: 0, 10: 1, 11: 0, 34: 1, 49: 0}
        heard = receiver(world, V4, (IP, 12), (IP, 13))
        four.setsockopt(IP6, HOPS, 6)
        four.setsockopt(IP6, 67, 4)
        four.sendto(b"x", (f"::ffff:{B4}", PORT))
        assert await told(heard) == [(IP, TTL, INT(5)), (IP, 1, b"\x08")]

    simulate(program)


@pytest.mark.parametrize(
    ("option", "to", "report"),
    [((IP, 11), f"::ffff:{B4}", True), ((IP6, 25), f"::ffff:{B4}", False), ((IP, 11), B6, False), ((IP6, 25), B6, True)],
)
def test_reports_of_each_family_are_asked_for_by_its_own_option(option: tuple[int, int], to: str, report: bool) -> None:
    async def program(world: World) -> None:
        sock = world.a.datagram_socket(V6)
        sock.setsockopt(*option, 1)
        sock.connect((to, PORT))
        sock.send(b"x")
        await trio.sleep(0.1)
        assert outcome(lambda: len(sock.recvmsg(9, 200, 0x2000)[1])) == (1 if report else "EAGAIN")

    simulate(program)


def test_a_least_hop_limit_means_nothing_to_datagrams() -> None:
    async def program(world: World) -> None:
        for family, level, option, to in ((V4, IP, 21, B4), (V6, IP6, 73, B6)):
            heard = world.b.datagram_socket(family)
            heard.bind((to, PORT))
            heard.setsockopt(level, option, 255)
            world.a.datagram_socket(family).sendto(b"x", (to, PORT))
            await trio.sleep(0.1)
            assert heard.recv(9) == b"x"

    simulate(program)


def test_fragments_are_no_longer_than_ipv6_mtu_says_but_it_makes_none() -> None:
    async def program(world: World) -> None:
        sock, heard = world.a.datagram_socket(V6), receiver(world, V6)
        assert [outcome(partial(sock.setsockopt, IP6, 24, value)) for value in (0, 1, 1279, 1280, -1)] == [None, "EINVAL", "EINVAL", None, "EINVAL"]
        mib = world.a.net.mib
        for size, fragments in ((1400, 0), (2500, 3)):
            before = mib.Ip6FragCreates
            sock.sendto(bytes(size), (B6, PORT))
            await trio.sleep(0.1)
            assert len(heard.recv(9000)) == size
            assert mib.Ip6FragCreates - before == fragments
        sock.setsockopt(IP6, 23, 2)  # IPV6_PMTUDISC_DO
        assert outcome(lambda: sock.sendto(bytes(1400), (B6, PORT))) == "EMSGSIZE"
        assert outcome(lambda: sock.sendmsg([bytes(3000)], [(UDP, 103, struct.pack("=H", 1300))], 0, (B6, PORT))) == "EMSGSIZE"

    simulate(program)


def test_a_group_of_ipv4_is_not_heard_by_an_ipv6_socket_that_has_not_joined() -> None:
    async def program(world: World) -> None:
        member, other = world.b.datagram_socket(), receiver(world, V6)
        member.setsockopt(IP, stdlib.IP_ADD_MEMBERSHIP, stdlib.inet_aton("239.1.1.1") + stdlib.inet_aton(B4))
        sender = world.a.datagram_socket()
        sender.setsockopt(IP, stdlib.IP_MULTICAST_IF, stdlib.inet_aton(A4))
        for every, heard in ((0, "EAGAIN"), (1, b"x")):
            other.setsockopt(IP, 49, every)
            sender.sendto(b"x", ("239.1.1.1", PORT))
            await trio.sleep(0.1)
            assert outcome(lambda: other.recv(9)) == heard

    simulate(program)


# --- foreign addresses ---


@pytest.mark.parametrize(("option", "bound", "sent"), [(None, "EADDRNOTAVAIL", 1), (19, None, 1), (15, None, "ENETUNREACH")])
def test_a_foreign_address_of_ipv4_needs_freebind_to_be_bound_and_transparent_to_be_sent_from(option: int | None, bound: object, sent: object) -> None:
    async def program(world: World) -> None:
        sock, heard = world.a.datagram_socket(), receiver(world)
        if option is not None:
            sock.setsockopt(IP, option, 1)
        assert outcome(lambda: sock.bind(("192.0.2.7", 5))) == bound
        assert outcome(lambda: sock.sendto(b"x", (B4, PORT))) == sent
        await trio.sleep(0.1)
        if sent == 1:
            assert heard.recvfrom(9)[1][0] == ("192.0.2.7" if bound is None else A4)
        source = (IP, 8, struct.pack("=i4s4x", 0, stdlib.inet_aton("192.0.2.7")))
        again = world.a.datagram_socket()
        if option is not None:
            again.setsockopt(IP, option, 1)
        assert outcome(lambda: again.sendmsg([b"x"], [source], 0, (B4, PORT))) == (1 if option == 19 else "ENETUNREACH")

    simulate(program)


@pytest.mark.parametrize(("option", "bound", "sent"), [(None, "EADDRNOTAVAIL", "EINVAL"), (75, None, 1), (78, None, 1)])
def test_either_is_enough_for_ipv6(option: int | None, bound: object, sent: object) -> None:
    async def program(world: World) -> None:
        sock, again = world.a.datagram_socket(V6), world.a.datagram_socket(V6)
        for each in (sock, again):
            if option is not None:
                each.setsockopt(IP6, option, 1)
                assert (each.getsockopt(IP, 19), each.getsockopt(IP, 15)) == ((1, 0) if option == 75 else (0, 1))
        assert outcome(lambda: sock.bind(("2001:db8::7", 5))) == bound
        assert sock.sendto(b"x", (B6, PORT)) == 1
        source = (IP6, 50, stdlib.inet_pton(V6, "2001:db8::7") + INT(0))
        assert outcome(lambda: again.sendmsg([b"x"], [source], 0, (B6, PORT))) == sent

    simulate(program)


# --- looking at what is queued ---


def queued(*datagrams: bytes, off: int = 0) -> Callable[[Callable[[DatagramSocket], None]], None]:
    """Runs a function with a socket that has received these, and looks from `off` on."""

    def run(look: Callable[[DatagramSocket], None]) -> None:
        async def program(world: World) -> None:
            heard, sock = receiver(world), world.a.datagram_socket()
            for datagram in datagrams:
                sock.sendto(datagram, (B4, PORT))
            await trio.sleep(0.1)
            heard.setsockopt(SOL, PEEK_OFF, off)
            look(heard)

        simulate(program)

    return run


def peeks(sock: DatagramSocket, *sizes: int) -> list[tuple[object, int]]:
    """What each look of so many bytes sees, and where the next begins."""
    return [(outcome(partial(sock.recv, size, MSG_PEEK)), sock.getsockopt(SOL, PEEK_OFF)) for size in sizes]  # type: ignore[misc]


def test_looks_go_on_through_all_datagrams_and_reading_draws_them_back() -> None:
    @queued(b"abcdef", b"ghij")
    def _(sock: DatagramSocket) -> None:
        assert peeks(sock, 2, 2, 2, 2, 3, 9) == [(b"ab", 2), (b"cd", 4), (b"ef", 6), (b"gh", 8), (b"ij", 10), ("EAGAIN", 10)]
        assert (sock.recv(3), sock.getsockopt(SOL, PEEK_OFF)) == (b"abc", 7)
        assert peeks(sock, 3) == [("EAGAIN", 7)]
        assert (sock.recv(3), sock.getsockopt(SOL, PEEK_OFF)) == (b"ghi", 4)


def test_a_look_begins_where_the_offset_is() -> None:
    @queued(b"abcdef", b"ghij", off=3)
    def _(sock: DatagramSocket) -> None:
        assert peeks(sock, 10, 10, 10) == [(b"def", 6), (b"ghij", 10), ("EAGAIN", 10)]
        sock.setsockopt(SOL, PEEK_OFF, 8)
        assert peeks(sock, 9) == [(b"ij", 10)]
        sock.setsockopt(SOL, PEEK_OFF, -1)
        assert peeks(sock, 9, 2, 9) == [(b"abcdef", -1), (b"ab", -1), (b"abcdef", -1)]


def test_an_empty_datagram_is_looked_at_once() -> None:
    @queued(b"", b"abc", b"")
    def _(sock: DatagramSocket) -> None:
        assert peeks(sock, 9, 9, 9, 9) == [(b"", 0), (b"abc", 3), (b"", 3), ("EAGAIN", 3)]
        sock.setsockopt(SOL, PEEK_OFF, -1)
        assert peeks(sock, 9, 9) == [(b"", -1), (b"", -1)]


def test_a_look_that_is_cut_says_so_even_when_the_rest_just_fits() -> None:
    @queued(b"abcdef", off=4)
    def _(sock: DatagramSocket) -> None:
        assert sock.recvmsg(2, 0, MSG_PEEK)[:3] == (b"ef", [], MSG_TRUNC)
        sock.setsockopt(SOL, PEEK_OFF, 4)
        assert sock.recvmsg(3, 0, MSG_PEEK)[:3] == (b"ef", [], 0)
        sock.setsockopt(SOL, PEEK_OFF, 0)
        # with MSG_TRUNC the length of all is told, and counted
        assert len(sock.recv(3, MSG_PEEK | MSG_TRUNC)) == 6
        assert sock.getsockopt(SOL, PEEK_OFF) == 6
        sock.setsockopt(SOL, PEEK_OFF, 4)
        assert (sock.recv(2), sock.getsockopt(SOL, PEEK_OFF)) == (b"ab", 2)


# --- control data ---


def test_where_a_datagram_was_going_is_told_with_its_port() -> None:
    async def program(world: World) -> None:
        port = PORT.to_bytes(2, "big")
        dual = receiver(world, V6, (IP, 20), (IP6, 74))
        sock = world.a.datagram_socket(V6)
        sock.sendto(b"x", (f"::ffff:{B4}", PORT))
        assert await told(dual) == [(IP, 20, struct.pack("=H", V4) + port + stdlib.inet_aton(B4) + bytes(8))]
        sock.sendto(b"x", (B6, PORT))
        assert await told(dual) == [(IP6, 74, struct.pack("=H", V6) + port + bytes(4) + stdlib.inet_pton(V6, B6) + bytes(4))]

    simulate(program)


def test_control_data_of_ipv6_comes_in_the_kernels_order() -> None:
    async def program(world: World) -> None:
        heard = receiver(world, V6, *((IP6, option) for option in (74, 8, 2, 11, 66, 51, 49)), (SOL, 82), (SOL, 75), (SOL, 35), (UDP, 104))
        sock = world.a.datagram_socket(V6)
        sock.sendmsg([bytes(3000)], [(UDP, 103, struct.pack("=H", 1000)), (IP6, 11, bytes.fromhex("0ab12345"))], 0, (B6, PORT))
        found = await told(heard)
        of_ipv6 = [(IP6, option) for option in (50, 52, 67, 11, 2, 8, 74)]
        assert [item[:2] for item in found] == [(SOL, 35), (SOL, 36), (SOL, 12), (UDP, 104), *of_ipv6]
        assert found[7][2] == bytes.fromhex("00012345")  # the label that was asked for; the class was not

    simulate(program)


@pytest.mark.parametrize(("option", "read", "unit"), [(29, [1, 0, 0, 0], 1000), (35, [0, 1, 0, 0], 1), (63, [0, 0, 1, 0], 1000), (64, [0, 0, 1, 1], 1)])
def test_of_the_four_time_stamps_a_socket_has_one(option: int, read: Sequence[int], unit: int) -> None:
    async def program(world: World) -> None:
        heard, sock = receiver(world, V4, (SOL, 35), (SOL, option)), world.a.datagram_socket()
        assert [heard.getsockopt(SOL, name) for name in (29, 35, 63, 64)] == read
        sock.sendto(b"x", (B4, PORT))
        await trio.sleep(0.1)
        came = world.b.net.realtime_ns()
        await trio.sleep(5)
        [(level, kind, data)] = heard.recvmsg(9, 100)[1]
        assert (level, kind) == (SOL, option)
        seconds, fraction = struct.unpack("=qq", data)
        assert 0 <= came - (seconds * 1_000_000_000 + fraction * unit) <= 100_000_000  # when it came, not when it was read
        heard.setsockopt(SOL, 35, 0)
        assert [heard.getsockopt(SOL, name) for name in (29, 35, 63, 64)] == [0, 0, 0, 0]

    simulate(program)


def test_what_was_lost_is_told_with_the_next_datagram_and_all_that_follow() -> None:
    async def program(world: World) -> None:
        heard, sock = receiver(world, V4, (SOL, 40)), world.a.datagram_socket()
        heard.setsockopt(SOL, stdlib.SO_RCVBUF, 0)
        for _ in range(6):
            sock.sendto(b"x", (B4, PORT))
        assert await told(heard) == []
        lost = world.b.net.mib.UdpRcvbufErrors
        assert lost
        while outcome(lambda: heard.recv(9)) != "EAGAIN":
            pass
        for _ in range(2):
            sock.sendto(b"y", (B4, PORT))
            assert await told(heard) == [(SOL, 40, struct.pack("=I", lost))]

    simulate(program)


def test_a_time_to_leave_is_taken_once_the_option_is_set_and_no_device_waits_for_it() -> None:
    async def program(world: World) -> None:
        sock, heard = world.a.datagram_socket(), receiver(world)
        later = (SOL, TXTIME, struct.pack("=Q", world.a.net.now_ns + 10**10))
        assert outcome(lambda: sock.sendmsg([b"x"], [later], 0, (B4, PORT))) == "EINVAL"
        for clock in range(13):
            taken = None if clock in (0, 1, 11) else "EINVAL"
            assert outcome(partial(sock.setsockopt, SOL, TXTIME, struct.pack("=iI", clock, 0))) == taken
        for flags in range(1, 9):
            assert outcome(partial(sock.setsockopt, SOL, TXTIME, struct.pack("=iI", MONOTONIC, flags))) == (None if flags < 4 else "EINVAL")
        for size in (0, 4, 7, 9, 16):
            assert outcome(partial(sock.setsockopt, SOL, TXTIME, bytes(size))) == "EINVAL"
        assert sock.getsockopt(SOL, TXTIME, 16) == struct.pack("=iI", MONOTONIC, 3)
        assert outcome(lambda: sock.sendmsg([b"x"], [(SOL, TXTIME, bytes(4))], 0, (B4, PORT))) == "EINVAL"
        assert sock.sendmsg([b"x"], [later], 0, (B4, PORT)) == 1
        await trio.sleep(0.1)
        assert heard.recv(9) == b"x"

    simulate(program)


@pytest.mark.parametrize(
    ("message", "result"),
    [
        *[((SOL, kind, INT(1)), 1) for kind in (1, 2, 12, 36, 37, 65, 79)],
        *[((SOL, kind, bytes(size)), "EINVAL") for kind in (12, 36, 37, 65, 79) for size in (1, 8)],
        *[((SOL, 37, INT(flags)), 1) for flags in (0, 2, 256, 512)],
        *[((SOL, 37, INT(flags)), "EINVAL") for flags in (8, 16, 128, 1024)],
        ((SOL, 81, INT(1)), "EINVAL"),
        *[((IP, 52, INT(protocol)), 1) for protocol in (1, 17, 255)],
        *[((IP, 52, INT(protocol)), "EINVAL") for protocol in (0, 256, -1)],
        *[((IP, 7, data), 1) for data in (b"\1", b"\0\1\1\0", bytes(12))],
    ],
    ids=str,
)
def test_messages_that_mean_nothing_here_are_taken_and_refused_as_the_kernel_does(message: Message, result: object) -> None:
    async def program(world: World) -> None:
        assert outcome(lambda: world.a.datagram_socket().sendmsg([b"x"], [message], 0, (B4, PORT))) == result

    simulate(program)


@pytest.mark.parametrize(
    ("message", "result"),
    [
        ((IP6, 50, stdlib.inet_pton(V6, f"::ffff:{A4}") + INT(0)), A4),
        ((IP6, 50, stdlib.inet_pton(V6, A6) + INT(0)), "EINVAL"),
        ((IP6, 50, bytes(20)), "EINVAL"),
        ((IP6, 50, b"short"), "EINVAL"),
        ((IP6, 52, INT(300)), A4),
        ((IP6, 77, INT(1)), A4),
        ((IP, 8, struct.pack("=i4s4x", 0, stdlib.inet_aton(A4))), A4),
        ((IP, 77, INT(1)), "EINVAL"),
    ],
    ids=str,
)
def test_to_an_ipv4_mapped_address_only_the_source_is_asked_for_as_of_ipv6(message: Message, result: str) -> None:
    async def program(world: World) -> None:
        heard, sock = receiver(world), world.a.datagram_socket(V6)
        sent = outcome(lambda: sock.sendmsg([b"x"], [message], 0, (f"::ffff:{B4}", PORT)))
        await trio.sleep(0.1)
        assert (heard.recvfrom(9)[1][0] if sent == 1 else sent) == result

    simulate(program)


# --- which refusal comes first ---


def test_a_call_that_is_refused_has_taken_a_port_all_the_same() -> None:
    async def program(world: World) -> None:
        for call in ("send", "long", "port"):
            sock = world.a.datagram_socket()
            if call == "send":
                assert outcome(lambda sock=sock: sock.send(b"x")) == "EDESTADDRREQ"  # type: ignore[misc]
            else:
                assert outcome(partial(sock.sendto, bytes(65508 if call == "long" else 1), (B4, PORT if call == "long" else 0))) in ("EMSGSIZE", "EINVAL")
            assert sock.getsockname()[1]
            assert outcome(partial(sock.bind, ("", PORT))) == "EINVAL"

    simulate(program)


def test_a_destination_is_asked_for_before_control_data_and_all_of_that_before_a_route() -> None:
    async def program(world: World) -> None:
        bad, nowhere = (IP, 2, INT(0)), (IP, 8, struct.pack("=i4s4x", 99, bytes(4)))
        sock = world.a.datagram_socket()
        assert outcome(lambda: sock.sendmsg([b"x"], [bad])) == "EDESTADDRREQ"
        assert outcome(lambda: sock.sendmsg([b"x"], [nowhere, bad], 0, (B4, PORT))) == "EINVAL"
        assert outcome(lambda: sock.sendmsg([b"x"], [nowhere], 0, (B4, PORT))) == "ENODEV"
        foreign = (IP, 8, struct.pack("=i4s4x", 99, stdlib.inet_aton("192.0.2.7")))
        assert outcome(lambda: sock.sendmsg([b"x"], [foreign], 0, (B4, PORT))) == "ENETUNREACH"
        six = world.a.datagram_socket(V6)
        six.bind((f"::ffff:{A4}", 0))
        assert outcome(lambda: six.sendmsg([b"x"], [(IP6, 52, INT(300))], 0, (B6, PORT))) == "EINVAL"
        assert outcome(lambda: six.sendto(b"x", (B6, PORT))) == "EAFNOSUPPORT"
        bound = world.a.datagram_socket(V6)
        bound.setsockopt(SOL, BINDTOIFINDEX, 1)
        assert outcome(lambda: bound.sendmsg([b"x"], [(IP6, 50, bytes(16) + INT(99))], 0, ("::1", PORT))) == "EINVAL"

    simulate(program)


def test_a_length_that_cannot_be_is_refused_before_a_pending_error_is_told_and_reported_in_the_queue() -> None:
    async def program(world: World) -> None:
        sock = world.a.datagram_socket()
        sock.setsockopt(IP, 11, 1)
        sock.connect((B4, PORT))
        sock.send(b"x")
        await trio.sleep(0.1)
        assert outcome(lambda: sock.send(bytes(65508))) == "EMSGSIZE"
        assert outcome(lambda: sock.send(b"x")) == "ECONNREFUSED"
        assert [sock.recvmsg(9, 100, 0x2000)[1][0][2][4] for _ in range(2)] == [2, 1]  # SO_EE_ORIGIN_ICMP, _LOCAL

    simulate(program)


def test_a_report_of_the_network_is_the_pending_error_once_it_is_the_next() -> None:
    async def program(world: World) -> None:
        sock = world.a.datagram_socket()
        sock.setsockopt(IP, 11, 1)
        assert outcome(lambda: sock.sendto(bytes(65508), (B4, PORT))) == "EMSGSIZE"
        sock.sendto(b"x", (B4, PORT))
        await trio.sleep(0.1)
        assert sock.getsockopt(SOL, stdlib.SO_ERROR) == errno.ECONNREFUSED
        _, _, _, address = sock.recvmsg(9, 100, 0x2000)
        assert address == (B4, 0)  # a local report knows no port but a connected one
        assert sock.getsockopt(SOL, stdlib.SO_ERROR) == errno.ECONNREFUSED  # again: the network's report comes next
        sock.recvmsg(9, 100, 0x2000)
        assert sock.getsockopt(SOL, stdlib.SO_ERROR) == 0

    simulate(program)


def test_a_datagram_of_several_sends_is_refused_where_it_would_be_whole() -> None:
    async def program(world: World) -> None:
        sock = world.a.datagram_socket()
        sock.connect((B4, PORT))
        heard = receiver(world)
        assert outcome(lambda: sock.send(bytes(65508), stdlib.MSG_MORE)) == "EMSGSIZE"
        sock.send(bytes(40000), stdlib.MSG_MORE)
        assert outcome(lambda: sock.send(bytes(30000), stdlib.MSG_MORE)) == "EMSGSIZE"
        sock.send(b"and all of it is gone")
        await trio.sleep(0.1)
        assert heard.recv(100) == b"and all of it is gone"
        sock.setsockopt(UDP, 1, 1)  # UDP_CORK
        sock.sendmsg([bytes(129)], [(UDP, 103, struct.pack("=H", 1))])
        sock.setsockopt(UDP, 1, 0)  # too many segments, but nobody is told
        await trio.sleep(0.1)
        assert outcome(lambda: heard.recv(100)) == "EAGAIN"
        six = world.a.datagram_socket(V6)
        assert outcome(lambda: six.sendto(b"x", ("2001:db8::1", PORT), stdlib.MSG_MORE)) == "ENETUNREACH"
        six.sendto(b"x", (B6, PORT), stdlib.MSG_MORE)
        assert outcome(lambda: six.sendto(b"y", (f"::ffff:{B4}", PORT))) == "EINVAL"

    simulate(program)


def test_the_wildcard_as_destination_is_the_address_one_sends_from() -> None:
    async def program(world: World) -> None:
        sock = world.a.datagram_socket()
        sock.bind(("127.0.0.2", 0))
        sock.connect(("0.0.0.0", PORT))
        assert sock.getpeername() == ("127.0.0.2", PORT)
        six = world.a.datagram_socket(V6)
        six.bind(("::ffff:127.0.0.2", 0))
        six.connect(("::", PORT))
        assert six.getpeername()[0] == "::ffff:127.0.0.1"

    simulate(program)
