"""The non-blocking socket, between two hosts, without trio: calls, errnos, readiness, notices.

What every call returns in every TCP state is tested against the recorded tables where the engine is
(`test_api`); here is what the socket object itself adds.
"""

from __future__ import annotations

import errno
import gc
import select
import socket as stdlib
import struct

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.pipe import PipeEnd, pipe_pair
from pytcp.net.stack import Stack
from pytcp.sockets.address import SockAddr
from pytcp.sockets.cmsg import IP_RECVERR, IPV6_RECVERR, MSG_CTRUNC, MSG_ERRQUEUE
from pytcp.sockets.open import TrioStack
from pytcp.sockets.socket import (
    IPV6_ADDRFORM,
    MSG_OOB,
    MSG_TRUNC,
    SCM_TXTIME,
    SHUT_RDWR,
    SHUT_WR,
    SIOCATMARK,
    SIOCINQ,
    SIOCOUTQ,
    SIOCOUTQNSD,
    SO_LINGER,
    SO_REUSEADDR,
    SOL_SOCKET,
    Socket,
)
from pytcp.tcp.const import ESTABLISHED, LISTEN, MSG_PEEK
from pytcp.tcp.timestamping import SOFTWARE, TX_ACK

A4, B4 = "10.0.0.1", "10.0.0.2"
NOBODY4 = "10.0.0.99"
NOBODY6 = "fd00::99"
A6, B6 = "fd00::1", "fd00::2"
PORT = 7000
MS = 1_000_000
POLLRDHUP = 0x2000


class Two:
    """Hosts a and b on a wire of 1 ms."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.link_a, self.link_b = pipe_pair(self.runtime.heap, delay_ns=MS)
        self.a = self.host(self.link_a, A4, A6, 1)
        self.b = self.host(self.link_b, B4, B6, 2)

    def host(self, link: PipeEnd, v4: str, v6: str, seed: int) -> TrioStack:
        net = Stack(self.runtime, seed=seed)
        net.add_interface(link, [f"{v4}/24", f"{v6}/64"])
        return TrioStack(net, self.runtime)

    def run(self, ms: int = 20) -> None:
        self.runtime.run_for(ms * MS)

    def listener(self, host: str = B4, family: int = stdlib.AF_INET, *, reuse: bool = True) -> Socket:
        sock = self.b.socket(family)
        sock.setsockopt(SOL_SOCKET, SO_REUSEADDR, reuse)
        sock.bind((host, PORT))
        sock.listen()
        return sock

    def pair(self) -> tuple[Socket, Socket]:
        """A connection: (a's socket, b's socket)."""
        listener = self.listener()
        client = self.a.socket()
        with pytest.raises(BlockingIOError):
            client.connect((B4, PORT))
        self.run()
        server, _ = listener.accept()
        listener.close()
        return client, server


@pytest.fixture
def two() -> Two:
    return Two()


def fails(number: int) -> pytest.RaisesExc[OSError]:
    return pytest.RaisesExc(OSError, check=lambda exc: exc.errno == number)


# --- opening ---


def test_connecting_tells_its_progress_as_linux_does(two: Two) -> None:
    two.listener()
    client = two.a.socket()
    for number in (errno.EINPROGRESS, errno.EALREADY):
        with fails(number):
            client.connect((B4, PORT))
    assert client.poll() == 0
    two.run()
    assert client.poll() == select.POLLOUT
    client.connect((B4, PORT))
    with fails(errno.EISCONN):
        client.connect((B4, PORT))


def test_accepting_gives_the_peer_and_both_ends_know_their_names(two: Two) -> None:
    listener = two.listener()
    with pytest.raises(BlockingIOError):
        listener.accept()
    client = two.a.socket()
    with pytest.raises(BlockingIOError):
        client.connect((B4, PORT))
    two.run()
    assert listener.poll() == select.POLLIN
    server, address = listener.accept()
    assert address == client.getsockname() == server.getpeername()
    assert client.getpeername() == server.getsockname() == (B4, PORT)
    assert address[0] == A4


@pytest.mark.parametrize(("family", "host", "expected"), [(stdlib.AF_INET, "", "0.0.0.0"), (stdlib.AF_INET6, "::", "::")])
def test_a_bound_socket_knows_its_address_and_no_peer(two: Two, family: int, host: str, expected: str) -> None:
    sock = two.a.socket(family)
    sock.bind((host, 0))
    name = sock.getsockname()
    assert name[0] == expected
    assert 32768 <= name[1] <= 60999  # ip_local_port_range
    with fails(errno.ENOTCONN):
        sock.getpeername()
    with fails(errno.EINVAL):
        sock.bind((host, 0))


def test_an_ipv6_listener_takes_ipv4_under_mapped_names(two: Two) -> None:
    listener = two.listener("::", stdlib.AF_INET6)
    client = two.a.socket()
    with pytest.raises(BlockingIOError):
        client.connect((B4, PORT))
    two.run()
    server, address = listener.accept()
    assert address[0] == "::ffff:10.0.0.1"
    assert server.getsockname()[0] == "::ffff:10.0.0.2"


def test_an_ipv6_socket_connects_to_a_mapped_address(two: Two) -> None:
    listener = two.listener()
    client = two.a.socket(stdlib.AF_INET6)
    with pytest.raises(BlockingIOError):
        client.connect(("::ffff:10.0.0.2", PORT))
    two.run()
    server, _ = listener.accept()
    assert server.getpeername()[0] == A4
    assert client.getpeername() == ("::ffff:10.0.0.2", PORT, 0, 0)


def test_a_socket_of_a_mapped_peer_can_become_one_of_ipv4(two: Two) -> None:
    """IPV6_ADDRFORM; afterwards it knows nothing of the level of IPv6."""
    listener = two.listener()
    client = two.a.socket(stdlib.AF_INET6)
    with pytest.raises(BlockingIOError):
        client.connect(("::ffff:10.0.0.2", PORT))
    two.run()
    assert client.getsockopt(41, IPV6_ADDRFORM) == stdlib.AF_INET6
    client.setsockopt(41, IPV6_ADDRFORM, stdlib.AF_INET)
    assert client.getpeername() == (B4, PORT)
    assert client.getsockopt(SOL_SOCKET, stdlib.SO_DOMAIN) == stdlib.AF_INET
    with fails(errno.EOPNOTSUPP):
        client.getsockopt(41, IPV6_ADDRFORM)
    server, _ = listener.accept()
    client.send(b"on it goes")
    two.run()
    assert server.recv(100) == b"on it goes"


# the option of IPv4, that of IPv6, what each is set to, and what it is without: TOS, TTL, path MTU discovery, error queue, least TTL
TWINS = [(1, 67, 0x20, 0x40, 0), (2, 16, 7, 9, 64), (10, 23, 2, 0, 1), (11, 25, 1, 0, 0), (21, 73, 3, 5, 0)]


@pytest.mark.parametrize(("four", "six", "value4", "value6", "first"), TWINS)
def test_an_ipv6_socket_has_ip_options_of_both_families(two: Two, four: int, six: int, value4: int, value6: int, first: int) -> None:
    sock = two.a.socket(stdlib.AF_INET6)
    sock.setsockopt(0, four, value4)
    assert (sock.getsockopt(0, four), sock.getsockopt(41, six)) == (value4, first)
    sock.setsockopt(41, six, value6)
    assert (sock.getsockopt(0, four), sock.getsockopt(41, six)) == (value4, value6)


@pytest.mark.parametrize(("four", "six", "value4", "value6", "first"), TWINS)
def test_a_connection_goes_by_the_options_of_the_family_it_speaks(two: Two, four: int, six: int, value4: int, value6: int, first: int) -> None:
    listener = two.b.socket(stdlib.AF_INET6)
    client4, client6 = two.a.socket(stdlib.AF_INET6), two.a.socket(stdlib.AF_INET6)
    for sock in (listener, client4, client6):
        sock.setsockopt(0, four, value4)
        sock.setsockopt(41, six, value6)
    listener.bind(("::", PORT))
    listener.listen()
    for client, host, spoken in ((client4, f"::ffff:{B4}", value4), (client6, B6, value6)):
        with pytest.raises(BlockingIOError):
            client.connect((host, PORT))
        two.run()
        server, _ = listener.accept()
        for sock in (client, server):
            assert (sock.getsockopt(0, four), sock.getsockopt(41, six)) == (value4, value6)
            assert sock.sk is not None
            fields = {1: sock.sk.tos, 2: sock.sk.ttl, 10: sock.sk.pmtu_disc, 11: sock.sk.recverr, 21: sock.sk.min_ttl}
            assert fields[four] == spoken


@pytest.mark.parametrize(("option", "level", "heard"), [(21, 0, B6), (73, 41, f"::ffff:{B4}")])
def test_a_listener_of_both_families_measures_the_way_of_each(two: Two, option: int, level: int, heard: str) -> None:
    """IP_MINTTL, IPV6_MINHOPCOUNT: 65 hops are more than anybody has here."""
    listener = two.b.socket(stdlib.AF_INET6)
    listener.setsockopt(level, option, 65)
    listener.bind(("::", PORT))
    listener.listen()
    for host in (f"::ffff:{B4}", B6):
        with pytest.raises(BlockingIOError):
            two.a.socket(stdlib.AF_INET6).connect((host, PORT))
    two.run()
    _, address = listener.accept()
    assert (address[0] == A6) == (heard == B6)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_a_transmit_time_comes_with_data_once_the_socket_said_so(two: Two) -> None:
    client, server = two.pair()
    when = [(SOL_SOCKET, SCM_TXTIME, struct.pack("=Q", 5 * MS))]
    with fails(errno.EINVAL):
        client.sendmsg([b"early"], when)
    client.setsockopt(SOL_SOCKET, SCM_TXTIME, struct.pack("=iI", 1, 0))
    assert client.getsockopt(SOL_SOCKET, SCM_TXTIME, 64) == struct.pack("=iI", 1, 0)
    with fails(errno.EINVAL):
        client.sendmsg([b"short"], [(SOL_SOCKET, SCM_TXTIME, bytes(4))])
    assert client.sendmsg([b"late"], when) == 4
    two.run()
    assert server.recv(100) == b"late"


@pytest.mark.parametrize("option", [37, 65])
def test_time_stamps_come_under_the_name_they_were_asked_for(two: Two, option: int) -> None:
    client, _ = two.pair()
    client.setsockopt(SOL_SOCKET, option, TX_ACK | SOFTWARE)
    client.send(b"x")
    two.run()
    _, control, _, _ = client.recvmsg(100, 200, MSG_ERRQUEUE)
    assert [kind for level, kind, _ in control if level == SOL_SOCKET] == [option]


def test_other_families_are_refused(two: Two) -> None:
    with fails(errno.EAFNOSUPPORT):
        two.a.socket(stdlib.AF_UNIX)
    with fails(errno.EAFNOSUPPORT):
        two.a.socket().connect((B6, PORT))


def test_a_listening_address_must_be_ones_own_and_free(two: Two) -> None:
    with fails(errno.EADDRNOTAVAIL):
        two.a.socket().bind((B4, PORT))
    two.listener()
    with fails(errno.EADDRINUSE):
        two.listener()


# --- data ---


def test_a_call_has_sent_its_segment_when_it_returns(two: Two) -> None:
    client, _ = two.pair()
    before = two.link_a.tx_packets
    assert client.send(b"now") == 3
    assert two.link_a.tx_packets == before + 1


def test_what_is_received_can_be_peeked_taken_in_parts_and_read_into_a_buffer(two: Two) -> None:
    client, server = two.pair()
    with pytest.raises(BlockingIOError):
        server.recv(10)
    client.send(b"0123456789")
    two.run()
    assert server.recv(4, MSG_PEEK) == b"0123"
    assert server.recv(4) == b"0123"
    buffer = bytearray(20)
    assert server.recv_into(memoryview(buffer)[5:]) == 6
    assert bytes(buffer[5:11]) == b"456789"
    with pytest.raises(BlockingIOError):
        server.recv_into(buffer)


def test_a_full_send_buffer_would_block_and_becomes_writable_when_a_third_is_free(two: Two) -> None:
    client, server = two.pair()
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            sent += client.send(bytes(50_000))
            two.run()
    assert not client.poll() & select.POLLOUT
    woken: list[int] = []
    client.notify = woken.append
    received = 0
    while not woken:
        received += len(server.recv(20_000))
        two.run()
    assert woken[0] & select.POLLOUT
    assert client.poll() & select.POLLOUT
    sk = client.sk
    assert sk is not None
    # Linux's rule: what is queued is at most twice what is free
    assert sk.wmem_queued <= 2 * (sk.sndbuf - sk.wmem_queued)


def test_half_closing_ends_the_other_ends_reading(two: Two) -> None:
    client, server = two.pair()
    client.send(b"last words")
    client.shutdown(SHUT_WR)
    with fails(errno.EPIPE):
        client.send(b"more")
    two.run()
    assert server.poll() == select.POLLIN | select.POLLOUT | POLLRDHUP
    assert server.recv(100) == b"last words"
    assert server.recv(100) == b""
    server.send(b"answer")
    two.run()
    assert client.recv(100) == b"answer"
    client.shutdown(SHUT_RDWR)


def test_buffers_go_out_in_a_row_and_control_data_is_taken_or_refused_as_linux_does(two: Two) -> None:
    client, server = two.pair()
    taken = [(SOL_SOCKET, stdlib.SO_MARK), (SOL_SOCKET, stdlib.SO_PRIORITY), (stdlib.IPPROTO_IP, 2), (stdlib.IPPROTO_TCP, 1), (SOL_SOCKET, stdlib.SCM_RIGHTS)]
    for level, kind in taken:
        assert client.sendmsg([b"ab", b"", b"cd"], [(level, kind, b"1234")]) == 4
    with fails(errno.EINVAL):
        client.sendmsg([b"ab"], [(SOL_SOCKET, 99, b"1234")])
    two.run()
    assert server.recvmsg(100, 100) == (b"abcd" * len(taken), [], 0, None)


def test_the_urgent_byte_is_read_beside_the_stream_and_marked(two: Two) -> None:
    client, server = two.pair()
    client.send(b"before")
    client.send(b"!", MSG_OOB)
    client.send(b"after")
    two.run()
    assert server.ioctl(SIOCATMARK) == 0
    assert server.recvmsg(10, 0, MSG_OOB) == (b"!", [], MSG_OOB, None)
    assert server.recvmsg(100) == (b"before", [], 0, None)
    assert server.ioctl(SIOCATMARK) == 1
    assert server.recvmsg(100) == (b"after", [], 0, None)


def test_ioctls_count_what_is_to_read_to_be_acknowledged_and_to_be_sent(two: Two) -> None:
    client, server = two.pair()
    size = 40_000  # more than the initial window of ten segments
    assert client.send(bytes(size)) == size
    assert client.ioctl(SIOCOUTQ) == size
    assert client.ioctl(SIOCOUTQNSD) == size - 10 * 1448
    two.run(ms=1)
    assert server.ioctl(SIOCINQ) == 10 * 1448
    two.run()
    assert (client.ioctl(SIOCOUTQ), client.ioctl(SIOCOUTQNSD)) == (0, 0)
    with fails(errno.ENOTTY):
        client.ioctl(0x1234)


def test_a_listener_has_no_queues_to_count(two: Two) -> None:
    listener = two.listener()
    for request in (SIOCINQ, SIOCOUTQ, SIOCOUTQNSD):
        with fails(errno.EINVAL):
            listener.ioctl(request)
    assert listener.ioctl(SIOCATMARK) == 0


OFFENDER4 = struct.pack("=HH4s8x", stdlib.AF_INET, 0, stdlib.inet_aton(A4))
OFFENDER6 = struct.pack("=HHI16sI", stdlib.AF_INET6, 0, 0, stdlib.inet_pton(stdlib.AF_INET6, A6), 0)


@pytest.mark.parametrize(
    ("family", "nobody", "level", "option", "origin", "kind", "code", "offender"),
    [
        (stdlib.AF_INET, NOBODY4, stdlib.IPPROTO_IP, IP_RECVERR, 2, 3, 1, OFFENDER4),
        (stdlib.AF_INET6, NOBODY6, stdlib.IPPROTO_IPV6, IPV6_RECVERR, 3, 1, 3, OFFENDER6),
    ],
)
def test_an_icmp_error_is_kept_for_recverr_with_what_it_was_about_and_who_sent_it(
    two: Two, family: int, nobody: str, level: int, option: int, origin: int, kind: int, code: int, offender: bytes
) -> None:
    client = two.a.socket(family)
    client.setsockopt(level, option, 1)
    with fails(errno.EAGAIN):
        client.recvmsg(100, 100, MSG_ERRQUEUE)
    with pytest.raises(BlockingIOError):
        client.connect((nobody, PORT))
    source = client.getsockname()[1]
    two.run(ms=5000)
    assert client.poll() & select.POLLERR
    data, control, flags, address = client.recvmsg(4, 100, MSG_ERRQUEUE)
    assert data == struct.pack("!HH", source, PORT)
    assert flags == MSG_ERRQUEUE | MSG_TRUNC
    assert address is not None
    assert address[:2] == (nobody, PORT)
    error = struct.pack("=IBBBBII", errno.EHOSTUNREACH, origin, kind, code, 0, 0, 0)
    assert control == [(level, option, error + offender)]


def test_control_data_that_has_no_room_is_cut_as_linux_does(two: Two) -> None:
    client = two.a.socket()
    client.setsockopt(stdlib.IPPROTO_IP, IP_RECVERR, 1)
    with pytest.raises(BlockingIOError):
        client.connect((NOBODY4, PORT))
    two.run(ms=5000)
    _, control, flags, _ = client.recvmsg(100, 26, MSG_ERRQUEUE)
    error = struct.pack("=IBBBBH", errno.EHOSTUNREACH, 2, 3, 1, 0, 0)
    assert control == [(stdlib.IPPROTO_IP, IP_RECVERR, error)]
    assert flags == MSG_ERRQUEUE | MSG_CTRUNC


def test_tcp_inq_says_what_a_read_left_and_that_the_end_is_still_to_come(two: Two) -> None:
    """After the peer's FIN the hint is one more than what is left, so that it is never 0 before the end has been read (linux-sockets, TCP_INQ)."""
    client, server = two.pair()
    inq = (stdlib.IPPROTO_TCP, 36)
    server.setsockopt(*inq, 1)
    client.send(bytes(100))
    two.run()

    def left(bufsize: int) -> int:
        data, control, flags, _ = server.recvmsg(bufsize, 100)
        assert len(data) <= bufsize
        assert flags == 0
        ((level, kind, value),) = control
        assert (level, kind) == inq
        return int(struct.unpack("=i", value)[0])

    assert left(60) == 40
    assert left(40) == 0
    client.send(bytes(50))
    client.shutdown(stdlib.SHUT_WR)
    two.run()
    assert [left(20), left(30), left(30)] == [31, 1, 1]
    server.setsockopt(*inq, 0)
    assert server.recvmsg(10, 100)[1] == []


# --- notices ---


def test_the_host_notifies_once_per_batch(two: Two) -> None:
    client, server = two.pair()
    notices: list[int] = []
    server.notify = notices.append
    for _ in range(5):
        client.send(b"segment")
    two.run(2)
    assert notices == [select.POLLIN]


def test_nobody_has_to_listen_to_notices(two: Two) -> None:
    client, server = two.pair()
    client.send(b"data")
    two.run()
    server.on_events(select.POLLIN)
    assert server.recv(10) == b"data"


# --- closing ---


def test_a_closed_socket_is_a_bad_descriptor(two: Two) -> None:
    client, _ = two.pair()
    notices: list[int] = []
    client.notify = notices.append
    client.close()
    client.close()
    assert notices == [select.POLLIN | select.POLLPRI | select.POLLOUT | select.POLLERR | select.POLLHUP | POLLRDHUP]
    for use in (
        lambda: client.send(b"x"),
        lambda: client.recv(1),
        lambda: client.recv_into(bytearray(1)),
        client.poll,
        client.getsockname,
        client.getpeername,
        client.accept,
        client.listen,
        client.info,
        client.disconnect,
        lambda: client.connect((B4, PORT)),
        lambda: client.bind((A4, 0)),
        lambda: client.shutdown(SHUT_WR),
        lambda: client.getsockopt(SOL_SOCKET, SO_REUSEADDR),
        lambda: client.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1),
    ):
        with fails(errno.EBADF):
            use()
    assert not client.lingering()
    assert repr(client) == "<pytcp Socket closed>"


def test_closing_without_waiting_for_linger_leaves_an_orphan_that_ends_well(two: Two) -> None:
    client, server = two.pair()
    client.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("=ii", 1, 10))
    client.send(b"data")
    client.close()
    assert two.a.net.mib.sockstat.orphan == 1
    two.run()
    assert server.recv(10) == b"data"
    assert server.recv(10) == b""
    server.close()
    two.run()
    assert two.a.net.mib.sockstat.orphan == 0


def test_a_lingering_close_is_told_when_the_fin_is_acknowledged(two: Two) -> None:
    client, _server = two.pair()
    client.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("=ii", 1, 10))
    client.send(b"data")
    assert client.begin_close() == 10_000_000_000
    assert client.lingering()
    notices: list[int] = []
    client.notify = notices.append
    two.run(100)  # the ACK of the FIN may be delayed
    assert notices
    assert not client.lingering()
    client.end_close()


def test_disconnecting_resets_the_peer_and_makes_the_socket_usable_again(two: Two) -> None:
    client, server = two.pair()
    client.disconnect()
    two.run()
    with fails(errno.ECONNRESET):
        server.recv(1)
    with fails(errno.ECONNRESET):
        client.recv(1)
    listener = two.listener()
    with pytest.raises(BlockingIOError):
        client.connect((B4, PORT))
    two.run()
    assert client.info().state == ESTABLISHED
    listener.accept()


def test_a_failed_socket_repeats_the_reason_and_closes_quietly(two: Two) -> None:
    client, server = two.pair()
    reason = OSError(errno.ENETDOWN, "the wire was cut")
    client.fail(reason)
    for _ in range(2):
        with pytest.raises(OSError, match="the wire was cut") as caught:
            client.send(b"x")
        assert caught.value.errno == errno.ENETDOWN
        assert caught.value.__cause__ is reason
    client.close()
    with fails(errno.EBADF):
        client.send(b"x")
    client.fail(reason)
    two.a.flush()
    two.run()
    with fails(errno.ECONNRESET):
        server.recv(1)


def test_a_socket_that_is_dropped_without_close_does_not_keep_its_host_from_ending(two: Two) -> None:
    client, _ = two.pair()
    del client
    gc.collect()
    two.a.net.close()


# --- options ---


def test_options_take_integers_and_bytes(two: Two) -> None:
    sock = two.a.socket()
    sock.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    assert sock.getsockopt(SOL_SOCKET, SO_REUSEADDR) == 1
    sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("=ii", 1, 5))
    assert sock.getsockopt(SOL_SOCKET, SO_LINGER, 8) == struct.pack("=ii", 1, 5)
    sock.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_CONGESTION, b"reno")
    value = sock.getsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_CONGESTION, 16)
    assert isinstance(value, bytes)
    assert value.rstrip(b"\0") == b"reno"
    with fails(errno.ENOPROTOOPT):
        sock.setsockopt(stdlib.IPPROTO_TCP, 12345, 1)


def test_tcp_info_and_repr_describe_the_connection(two: Two) -> None:
    client, _ = two.pair()
    assert client.info().state == ESTABLISHED
    port = client.getsockname()[1]
    assert repr(client) == f"<pytcp Socket ESTABLISHED 10.0.0.1:{port} -> 10.0.0.2:7000>"
    listener = two.listener()
    assert listener.info().state == LISTEN
    assert repr(listener) == "<pytcp Socket LISTEN 10.0.0.2:7000 -> 0.0.0.0:0>"


def test_addresses_are_plain_tuples(two: Two) -> None:
    client, _ = two.pair()
    name: SockAddr = client.getsockname()
    assert type(name) is tuple
