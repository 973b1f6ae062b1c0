"""The UDP socket: what each call answers in each state, as measured on Linux 6.18, and datagrams for trio tasks."""

from __future__ import annotations

import errno
import select
import socket as stdlib
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from pytcp.sockets.cmsg import MSG_CTRUNC, MSG_ERRQUEUE
from pytcp.sockets.udp import MSG_PEEK, MSG_TRUNC, DatagramSocket

from .streams import A4, A6, B4, B6, PORT, World, simulate

OUT, IN, ERR, HUP, RDHUP = select.POLLOUT, select.POLLIN, select.POLLERR, select.POLLHUP, select.POLLRDHUP
SOL_SOCKET, IP, IPV6 = stdlib.SOL_SOCKET, stdlib.IPPROTO_IP, stdlib.IPPROTO_IPV6
AF_INET, AF_INET6 = int(stdlib.AF_INET), int(stdlib.AF_INET6)


def refused(call: Callable[[], object]) -> str:
    """The errno's name a call fails with."""
    with pytest.raises(OSError) as caught:
        call()
    return errno.errorcode[caught.value.errno or 0]


def udp(program: Callable[[World, DatagramSocket, DatagramSocket], Awaitable[None]], family: int = AF_INET) -> None:
    """Run a program with a socket on host a, and one on b that is bound to PORT."""

    async def main(world: World) -> None:
        a, b = world.a.datagram_socket(family), world.b.datagram_socket(family)
        b.bind(("", PORT))
        await program(world, a, b)

    simulate(main)


async def settle() -> None:
    await trio.sleep(0.1)


# --- a socket by itself ---


def test_a_fresh_socket_can_only_be_written_to_and_has_nobody_to_write_to() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        assert a.poll() == OUT
        assert refused(lambda: a.recv(10)) == "EAGAIN"
        assert a.getsockname() == ("0.0.0.0", 0)
        assert refused(lambda: a.send(b"x")) == "EDESTADDRREQ"
        assert a.getsockname()[1]  # and yet it has a port now
        assert refused(a.getpeername) == "ENOTCONN"
        assert refused(lambda: a.listen(1)) == "ENOTSUP"
        assert refused(a.accept) == "ENOTSUP"
        assert refused(lambda: a.sendto(b"x", (B4, 0))) == "EINVAL"
        assert refused(lambda: a.sendto(bytes(65508), (B4, 9))) == "EMSGSIZE"

    udp(program)


@pytest.mark.parametrize(("how", "poll", "sending"), [(0, IN | OUT | RDHUP, None), (1, OUT, "EPIPE"), (2, IN | OUT | HUP | RDHUP, "EPIPE")])
def test_shutdown_of_an_unconnected_socket_is_refused_and_done(how: int, poll: int, sending: str | None) -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        assert refused(lambda: a.shutdown(how)) == "ENOTCONN"
        assert a.poll() == poll
        assert refused(lambda: a.recv(10)) == "EAGAIN"
        if sending is None:
            assert a.sendto(b"x", (B4, PORT)) == 1
        else:
            assert refused(lambda: a.sendto(b"x", (B4, PORT))) == sending
        assert refused(lambda: a.shutdown(3)) == "EINVAL"

    udp(program)


def test_what_arrived_can_be_read_after_a_shutdown() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        a.connect((B4, PORT))
        a.shutdown(2)
        b.sendto(b"data", a.getsockname())
        await settle()
        assert a.recv(10) == b"data"
        assert a.getpeername() == (B4, PORT)

    udp(program)


def test_after_close_every_call_says_so() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        a.close()
        a.close()
        for call in (lambda: a.recv(1), lambda: a.bind(("", 0)), a.getsockname, lambda: a.getsockopt(SOL_SOCKET, stdlib.SO_ERROR), a.poll):
            assert refused(call) == "EBADF"

    udp(program)


def test_disconnecting_gives_back_a_port_that_nobody_named() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        a.connect((B4, 7))
        assert a.getsockname()[0] == A4
        assert a.getsockname()[1] >= 32768
        a.disconnect()
        assert a.getsockname() == ("0.0.0.0", 0)
        assert refused(a.getpeername) == "ENOTCONN"
        named = world.a.datagram_socket()
        named.bind(("0.0.0.0", 7777))
        named.connect((B4, 7))
        assert named.getsockname() == (A4, 7777)
        named.disconnect()
        assert named.getsockname() == ("0.0.0.0", 7777)
        addressed = world.a.datagram_socket()
        addressed.bind((A4, 0))
        addressed.connect((B4, 7))
        addressed.disconnect()
        assert addressed.getsockname() == (A4, 0)

    udp(program)


def test_sending_binds_to_a_port_but_not_to_an_address() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        a.sendto(b"x", (B4, PORT))
        host, port = a.getsockname()[:2]
        assert (host, port >= 32768) == ("0.0.0.0", True)
        assert refused(lambda: a.bind(("", 7779))) == "EINVAL"
        await settle()
        assert b.recvfrom(10) == (b"x", (A4, port))

    udp(program)


# --- who may bind what ---


@pytest.mark.parametrize(
    ("first", "second", "both", "one", "verdict"),
    [
        ("0.0.0.0", A4, "", "", "EADDRINUSE"),
        (A4, "127.0.0.1", "", "", ""),
        (A4, A4, "REUSEADDR", "", ""),
        (A4, A4, "", "REUSEADDR", "EADDRINUSE"),
        (A4, A4, "REUSEPORT", "", ""),
        (A4, A4, "", "REUSEPORT", "EADDRINUSE"),
        ("10.9.9.9", "", "", "", "EADDRNOTAVAIL"),
    ],
)
def test_binding(first: str, second: str, both: str, one: str, verdict: str) -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        other = world.a.datagram_socket()
        for name, sockets in ((both, (a, other)), (one, (other,))):
            for sock in sockets if name else ():
                sock.setsockopt(SOL_SOCKET, getattr(stdlib, f"SO_{name}"), 1)

        def bind_both() -> None:
            a.bind((first, 5353))
            other.bind((second, 5353))

        if verdict:
            assert refused(bind_both) == verdict
        else:
            bind_both()

    udp(program)


def test_a_dual_stack_socket_takes_the_port_for_ipv4_too_unless_v6only() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        six = world.b.datagram_socket(AF_INET6)
        assert refused(lambda: six.bind(("::", PORT))) == "EADDRINUSE"
        six.setsockopt(IPV6, stdlib.IPV6_V6ONLY, 1)
        six.bind(("::", PORT))
        assert refused(lambda: six.setsockopt(IPV6, stdlib.IPV6_V6ONLY, 0)) == "EINVAL"
        assert refused(lambda: six.sendto(b"x", (f"::ffff:{A4}", 9))) == "ENETUNREACH"

    udp(program)


def test_ipv4_and_ipv6_do_not_mix_on_a_socket_that_has_chosen() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        a.connect((f"::ffff:{B4}", PORT))
        assert a.getsockname()[0] == f"::ffff:{A4}"
        assert a.getpeername() == (f"::ffff:{B4}", PORT, 0, 0)
        assert refused(lambda: a.connect((B6, 7))) == "EAFNOSUPPORT"
        six = world.a.datagram_socket(AF_INET6)
        six.bind((A6, 0))
        assert refused(lambda: six.sendto(b"x", (f"::ffff:{B4}", 7))) == "ENETUNREACH"
        v6only = world.a.datagram_socket(AF_INET6)
        v6only.setsockopt(IPV6, stdlib.IPV6_V6ONLY, 1)
        assert refused(lambda: v6only.bind((f"::ffff:{A4}", 0))) == "EINVAL"

    udp(program, AF_INET6)


def test_with_reuseport_a_flow_always_reaches_the_same_socket_and_flows_spread() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        group = [world.b.datagram_socket() for _ in range(4)]
        for sock in group:
            sock.setsockopt(SOL_SOCKET, stdlib.SO_REUSEPORT, 1)
            sock.bind((B4, 6000))
        flows = [world.a.datagram_socket() for _ in range(32)]
        for _ in range(3):
            for number, sock in enumerate(flows):
                sock.sendto(bytes((number,)), (B4, 6000))
        await settle()
        heard: list[list[int]] = []
        for sock in group:
            heard.append([])
            while sock.poll() & IN:
                heard[-1] += sock.recv(1)
        assert sorted(number for numbers in heard for number in numbers) == sorted(list(range(32)) * 3)
        assert all(numbers.count(number) == 3 for numbers in heard for number in numbers)
        assert all(heard)  # 32 flows leave one of four without any once in 2500 secrets

    udp(program)


# --- reading ---


def test_a_datagram_may_be_looked_at_and_is_cut_to_what_was_asked_for() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        for data in (b"0123456789", b"", b"z", b"abcdef", b"abcdef"):
            a.sendto(data, (B4, PORT))
        await settle()
        assert b.recv(4, MSG_PEEK) == b"0123"
        data, control, flags, source = b.recvmsg(4, 0, MSG_PEEK)
        assert (data, control, flags, source) == (b"0123", [], MSG_TRUNC, (A4, a.getsockname()[1]))
        assert len(b.recv(4, MSG_PEEK | MSG_TRUNC)) == 10
        assert b.recvmsg(4)[:3] == (b"0123", [], MSG_TRUNC)
        assert b.recvmsg(4)[:3] == (b"", [], 0)
        assert b.recv(0) == b""  # the rest of b"z" is gone with it
        buffer = bytearray(3)
        assert (b.recv_into(buffer, 0, MSG_TRUNC), bytes(buffer)) == (6, b"abc")
        assert (b.recvfrom_into(buffer)[0], bytes(buffer)) == (3, b"abc")
        assert refused(lambda: b.recv(1)) == "EAGAIN"

    udp(program)


def test_control_data_tells_where_a_datagram_went_and_what_was_in_its_header() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        for option in (stdlib.IP_RECVTOS, 12, 8):  # IP_RECVTTL, IP_PKTINFO
            b.setsockopt(IP, option, 1)
        a.setsockopt(IP, stdlib.IP_TOS, 0x2E)
        a.sendto(b"x", (B4, PORT))
        a.sendto(b"y", (B4, PORT))
        await settle()
        where = struct.pack("=i", 2) + stdlib.inet_aton(B4) * 2
        assert b.recvmsg(10, 200)[1:3] == ([(IP, 8, where), (IP, 2, struct.pack("=i", 64)), (IP, 1, b"\x2e")], 0)
        assert b.recvmsg(10, 28)[1:3] == ([(IP, 8, where)], MSG_CTRUNC)

    udp(program)


def test_control_data_of_ipv6() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        for option in (49, 51, 66):  # IPV6_RECVPKTINFO, IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS
            b.setsockopt(IPV6, option, 1)
        a.setsockopt(IPV6, 67, 0x2E)  # IPV6_TCLASS
        a.sendto(b"x", (B6, PORT))
        four = world.a.datagram_socket()
        four.sendto(b"x", (B4, PORT))
        await settle()
        index = struct.pack("=i", 2)
        to6 = (IPV6, 50, stdlib.inet_pton(AF_INET6, B6) + index)
        assert b.recvmsg(10, 200)[1] == [to6, (IPV6, 52, struct.pack("=i", 64)), (IPV6, 67, struct.pack("=i", 0x2E))]
        _, control, _, source = b.recvmsg(10, 200)
        assert source[0] == f"::ffff:{A4}"
        assert control == [(IPV6, 50, stdlib.inet_pton(AF_INET6, f"::ffff:{B4}") + index)]

    udp(program, AF_INET6)


def test_a_link_local_peer_comes_with_its_interface() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        local = next(address.addr for address in world.b.net.interface(world.link_b.name).addresses6 if address.addr[0] == 0xFE)
        there = stdlib.inet_ntop(AF_INET6, local)
        a.sendto(b"x", (there, PORT, 0, 2))
        assert refused(lambda: a.sendto(b"x", (there, PORT, 0, 9))) == "ENODEV"
        await settle()
        _, source = b.recvfrom(10)
        assert source[0].startswith("fe80::") and source[3] == 2  # type: ignore[misc]

    udp(program, AF_INET6)


# --- errors of the network ---


def test_a_closed_port_is_told_once_to_a_connected_socket() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        a.connect((B4, 9))
        asking: list[Callable[[], str]] = [
            lambda: refused(lambda: a.recv(1)),
            lambda: errno.errorcode[int(a.getsockopt(SOL_SOCKET, stdlib.SO_ERROR))],
            lambda: refused(lambda: a.send(b"y")),
        ]
        for ask in asking:
            a.send(b"x")
            await settle()
            assert a.poll() == OUT | ERR
            assert ask() == "ECONNREFUSED"
            assert a.poll() == OUT

    udp(program)


def test_the_error_queue_has_the_report_and_what_was_sent() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        assert refused(lambda: a.recvmsg(10, 200, MSG_ERRQUEUE)) == "EAGAIN"
        a.setsockopt(IP, 11, 1)  # IP_RECVERR
        a.sendto(b"hello", (B4, 9))
        await settle()
        assert refused(lambda: a.recv(9)) == "ECONNREFUSED"
        assert a.poll() == OUT | ERR
        data, control, flags, address = a.recvmsg(10, 200, MSG_ERRQUEUE)
        assert (data, flags, address) == (b"hello", MSG_ERRQUEUE, (B4, 9))
        # ee_errno 111, origin ICMP, port unreachable; then the offender
        report = bytes.fromhex("6f000000 02030300 00000000 00000000") + struct.pack("=HH", AF_INET, 0) + stdlib.inet_aton(B4) + bytes(8)
        assert control == [(IP, 11, report)]
        assert a.poll() == OUT

    udp(program)


def test_the_error_queue_of_ipv6() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        a.setsockopt(IPV6, 25, 1)  # IPV6_RECVERR
        a.sendto(b"hello", (B6, 9))
        await settle()
        data, control, flags, address = a.recvmsg(10, 200, MSG_ERRQUEUE)
        report = bytes.fromhex("6f000000 03010400 00000000 00000000") + struct.pack("=HHI", AF_INET6, 0, 0) + stdlib.inet_pton(AF_INET6, B6) + bytes(4)
        assert (data, control, flags, address) == (b"hello", [(IPV6, 25, report)], MSG_ERRQUEUE, (B6, 9, 0, 0))

    udp(program, AF_INET6)


def test_broadcast_needs_permission() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        assert refused(lambda: a.sendto(b"x", ("10.0.0.255", PORT))) == "EACCES"
        assert refused(lambda: a.connect(("10.0.0.255", PORT))) == "EACCES"
        a.setsockopt(SOL_SOCKET, stdlib.SO_BROADCAST, 1)
        a.sendto(b"all", ("10.0.0.255", PORT))
        await settle()
        assert b.recv(10) == b"all"

    udp(program)


# --- several sends, one datagram ---


def test_more_and_cork_make_one_datagram_of_several_sends() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        more = stdlib.MSG_MORE
        assert refused(lambda: a.send(b"x", more)) == "EDESTADDRREQ"
        a.sendto(b"one ", (B4, PORT), more)
        a.sendto(b"two", ("10.0.0.77", 9))  # where the first one named
        a.setsockopt(17, 1, 1)  # UDP_CORK
        a.sendto(b"three ", (B4, PORT))
        a.sendto(b"four", (B4, PORT))
        await settle()
        assert b.recv(100) == b"one two"
        assert refused(lambda: b.recv(100)) == "EAGAIN"
        a.setsockopt(17, 1, 0)
        await settle()
        assert b.recv(100) == b"three four"
        a.sendto(bytes(40_000), (B4, PORT), more)
        assert refused(lambda: a.sendto(bytes(40_000), (B4, PORT), more)) == "EMSGSIZE"
        a.sendto(b"fresh", (B4, PORT))
        await settle()
        assert b.recv(100) == b"fresh"

    udp(program)


# --- what we send and hear ourselves ---


def test_a_member_hears_its_own_multicast_unless_the_sender_turned_that_off() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        here = stdlib.inet_aton("239.1.1.1") + stdlib.inet_aton(B4)
        sender = world.b.datagram_socket()
        sender.setsockopt(IP, stdlib.IP_MULTICAST_IF, stdlib.inet_aton(B4))
        assert sender.getsockopt(IP, stdlib.IP_MULTICAST_LOOP) == 1
        sender.sendto(b"before", ("239.1.1.1", PORT))
        await settle()
        assert not b.poll() & IN
        b.setsockopt(IP, stdlib.IP_ADD_MEMBERSHIP, here)
        sender.sendto(b"x", ("239.1.1.1", PORT))
        assert not b.poll() & IN  # not inside the call
        await settle()
        assert b.recvfrom(10) == (b"x", (B4, sender.getsockname()[1]))
        sender.setsockopt(IP, stdlib.IP_MULTICAST_LOOP, 0)
        sender.sendto(b"y", ("239.1.1.1", PORT))
        await settle()
        assert refused(lambda: b.recv(10)) == "EAGAIN"

    udp(program)


def test_multicast_with_ttl_0_stays_on_the_host() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        for sock, host in ((a, A4), (b, B4)):
            sock.setsockopt(IP, stdlib.IP_ADD_MEMBERSHIP, stdlib.inet_aton("239.1.1.1") + stdlib.inet_aton(host))
        a.bind(("", PORT))
        a.setsockopt(IP, stdlib.IP_MULTICAST_TTL, 0)
        a.setsockopt(IP, stdlib.IP_MULTICAST_IF, stdlib.inet_aton(A4))
        a.sendto(b"x", ("239.1.1.1", PORT))
        await settle()
        assert a.recv(10) == b"x"
        assert not b.poll() & IN

    udp(program)


def test_a_broadcast_is_heard_by_the_sender_too() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        own = world.a.datagram_socket()
        own.bind(("", PORT))
        own.setsockopt(IP, 8, 1)  # IP_PKTINFO
        a.setsockopt(SOL_SOCKET, stdlib.SO_BROADCAST, 1)
        a.sendto(b"x", ("10.0.0.255", PORT))
        await settle()
        assert b.recv(10) == b"x"
        data, control, _, source = own.recvmsg(10, 100)
        assert (data, source) == (b"x", (A4, a.getsockname()[1]))
        # the address for an answer, and the one it was sent to
        assert control == [(IP, 8, struct.pack("=i", 2) + stdlib.inet_aton(A4) + stdlib.inet_aton("10.0.0.255"))]

    udp(program)


def test_a_group_of_ipv6_is_heard_here_too() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        group = stdlib.inet_pton(AF_INET6, "ff15::1")
        own = world.a.datagram_socket(AF_INET6)
        own.bind(("", PORT))
        for sock in (own, b):
            sock.setsockopt(IPV6, stdlib.IPV6_JOIN_GROUP, group + struct.pack("=i", 2))
        a.setsockopt(IPV6, stdlib.IPV6_MULTICAST_IF, 2)
        a.sendto(b"x", ("ff15::1", PORT))
        await settle()
        assert own.recvfrom(10)[1][:2] == (A6, a.getsockname()[1])
        assert b.recv(10) == b"x"
        assert refused(lambda: a.connect(("fe80::1", 7))) == "EINVAL"

    udp(program, AF_INET6)


# --- options ---


@pytest.mark.parametrize(
    ("level", "option", "default", "value", "outcome"),
    [
        # measured on 6.18: what is set, and what is read then (or the refusal)
        (SOL_SOCKET, stdlib.SO_REUSEADDR, 0, 64, 1),
        (SOL_SOCKET, stdlib.SO_RCVBUF, 212992, 0, 2304),
        (SOL_SOCKET, stdlib.SO_RCVBUF, 212992, -1, 8388608),
        (SOL_SOCKET, stdlib.SO_SNDBUF, 212992, 1000, 4608),
        (SOL_SOCKET, stdlib.SO_SNDBUF, 212992, 65536, 131072),
        (SOL_SOCKET, stdlib.SO_RCVLOWAT, 1, -1, 2147483647),
        (SOL_SOCKET, stdlib.SO_TYPE, 2, 1, "ENOPROTOOPT"),
        (SOL_SOCKET, stdlib.SO_PROTOCOL, 17, 1, "ENOPROTOOPT"),
        (SOL_SOCKET, stdlib.SO_LINGER, 0, 1, "EINVAL"),
        (SOL_SOCKET, stdlib.SO_MARK, 0, -1, -1),
        (SOL_SOCKET, stdlib.SO_ACCEPTCONN, 0, 1, "ENOPROTOOPT"),
        (IP, stdlib.IP_TOS, 0, 255, 255),
        (IP, stdlib.IP_TOS, 0, 1000, 232),
        (IP, stdlib.IP_TTL, 64, 0, "EINVAL"),
        (IP, stdlib.IP_TTL, 64, 3, 3),
        (IP, 10, 1, 5, 5),  # IP_MTU_DISCOVER
        (IP, 10, 1, -1, "EINVAL"),
        (IP, stdlib.IP_MULTICAST_TTL, 1, 256, "EINVAL"),
        (IP, 49, 1, 2, "EINVAL"),  # IP_MULTICAST_ALL
        (IP, stdlib.IP_MULTICAST_IF, 0, 1, "EADDRNOTAVAIL"),
        (IPV6, stdlib.IPV6_UNICAST_HOPS, 64, 256, "EINVAL"),
        (IPV6, stdlib.IPV6_MULTICAST_IF, 0, 77, "ENODEV"),
        (IPV6, 67, 0, 255, 255),  # IPV6_TCLASS
        (IPV6, stdlib.IPV6_V6ONLY, 0, 4, 1),
    ],
)
def test_options_take_and_refuse_what_linux_does(level: int, option: int, default: int, value: int, outcome: int | str) -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        sock = world.a.datagram_socket(AF_INET6 if level == IPV6 else AF_INET)
        assert sock.getsockopt(level, option) == default
        if isinstance(outcome, str):
            assert refused(lambda: sock.setsockopt(level, option, value)) == outcome
            assert sock.getsockopt(level, option) == default
        else:
            sock.setsockopt(level, option, value)
            assert sock.getsockopt(level, option) == outcome

    udp(program)


def test_options_of_tcp_are_refused_as_linux_refuses_them() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        assert refused(lambda: a.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_NODELAY, 1)) == "ENOPROTOOPT"
        assert refused(lambda: a.getsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_NODELAY)) == "ENOTSUP"
        assert refused(lambda: a.getsockopt(IP, 14)) == "ENOTCONN"  # IP_MTU
        a.connect((B4, 9))
        assert a.getsockopt(IP, 14) == 1500
        a.setsockopt(SOL_SOCKET, stdlib.SO_BINDTODEVICE, b"lo")
        assert a.getsockopt(SOL_SOCKET, stdlib.SO_BINDTODEVICE, 16) == b"lo\0"
        assert refused(lambda: a.setsockopt(SOL_SOCKET, stdlib.SO_BINDTODEVICE, b"nope")) == "ENODEV"

    udp(program)


def test_groups_are_joined_and_left_on_an_interface() -> None:
    async def program(world: World, a: DatagramSocket, b: DatagramSocket) -> None:
        group, add, drop = stdlib.inet_aton("224.1.1.1"), stdlib.IP_ADD_MEMBERSHIP, stdlib.IP_DROP_MEMBERSHIP
        here = group + stdlib.inet_aton(B4)
        b.setsockopt(IP, add, here)
        assert refused(lambda: b.setsockopt(IP, add, here)) == "EADDRINUSE"
        assert refused(lambda: b.setsockopt(IP, add, stdlib.inet_aton("10.1.1.1") + here[4:])) == "EINVAL"
        assert refused(lambda: b.setsockopt(IP, add, group + stdlib.inet_aton("10.9.0.1"))) == "ENODEV"
        a.setsockopt(IP, stdlib.IP_MULTICAST_IF, stdlib.inet_aton(A4))
        assert a.getsockopt(IP, stdlib.IP_MULTICAST_IF, 4) == stdlib.inet_aton(A4)
        a.sendto(b"group", ("224.1.1.1", PORT))
        await settle()
        assert b.recv(10) == b"group"
        b.setsockopt(IP, drop, here)
        assert refused(lambda: b.setsockopt(IP, drop, here)) == "EADDRNOTAVAIL"
        a.sendto(b"group", ("224.1.1.1", PORT))
        await settle()
        assert not b.poll() & IN

    udp(program)


# --- trio ---


def test_a_task_waits_for_datagrams_and_answers_them() -> None:
    async def program(world: World) -> None:
        async def echo() -> None:
            while True:
                data, who = await server.receive_from()
                await server.send_to(data.upper(), who)

        async with await world.b.open_udp(PORT) as server, trio.open_nursery() as nursery:
            nursery.start_soon(echo)
            for host in (B4, B6):
                async with await world.a.open_udp(remote=(host, PORT)) as client:
                    await client.send(b"hello")
                    assert await client.receive() == b"HELLO"
            nursery.cancel_scope.cancel()

    simulate(program)


def test_a_task_takes_the_datagrams_of_a_super_frame_at_once() -> None:
    async def program(world: World) -> None:
        async with await world.b.open_udp(PORT) as server, await world.a.open_udp(remote=(B4, PORT)) as client:
            client.socket.setsockopt(stdlib.IPPROTO_UDP, 103, 2)  # UDP_SEGMENT
            for gro, reads in ((0, [[b"ab"], [b"cd"], [b"e"]]), (1, [[b"ab", b"cd", b"e"]])):
                server.socket.setsockopt(stdlib.IPPROTO_UDP, 104, gro)  # UDP_GRO
                await client.send(b"abcde")
                assert [await server.receive_many() for _ in reads] == reads
            await client.send(b"f")
            assert await server.receive_many() == [b"f"]

    simulate(program)


def test_a_cancelled_receive_loses_no_datagram() -> None:
    async def program(world: World) -> None:
        server, client = await world.b.open_udp(PORT), await world.a.open_udp()
        with trio.move_on_after(1):
            await server.receive()
        await client.send_to(b"kept", (f"::ffff:{B4}", PORT))
        await settle()
        with trio.CancelScope() as scope:
            scope.cancel()
            await server.receive()
        assert await server.receive() == b"kept"

    simulate(program)


def test_closing_wakes_who_receives_and_an_error_does_not_close() -> None:
    async def program(world: World) -> None:
        client = await world.a.open_udp(remote=(B4, 9))
        await client.send(b"x")
        with pytest.raises(ConnectionRefusedError):
            await client.receive()

        async def waits() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await client.receive()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits)
            await settle()
            with pytest.raises(trio.BusyResourceError):
                await client.receive()
            await client.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await client.send(b"x")

    simulate(program)


def test_the_end_of_a_stack_ends_its_datagram_sockets() -> None:
    left: list[Any] = []

    async def program(world: World) -> None:
        left.append(world.a.datagram_socket())

    simulate(program)
    assert refused(lambda: left[0].recv(1)) in ("ENETDOWN", "EBADF")
