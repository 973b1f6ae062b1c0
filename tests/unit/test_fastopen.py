"""Fast Open's cookies, keys and places (RFC 7413; linux-sockets §5). Whole conversations: tests/replay (t*), tests/drill/fastopen."""

from __future__ import annotations

import errno

import pytest

from pytcp.net import sysctl
from pytcp.tcp import api, const, fastopen
from pytcp.tcp.siphash import siphash
from pytcp.tcp.sock import Sock
from pytcp.tcp.sockopt_tcp import IPPROTO_TCP as TCP
from pytcp.tcp.sockopt_tcp import TCP_FASTOPEN, TCP_FASTOPEN_KEY
from pytcp.wire.tcpopt import FastOpen

from .endpoint import LOCAL, MS, REMOTE, Peer, World

KEY = "00112233-44556677-8899aabb-ccddeeff"
ANY_DATA = 0x202


def test_siphash_gives_the_paper_s_value() -> None:
    """Appendix A of "SipHash: a fast short-input PRF": key 00..0f, message 00..0e."""
    assert siphash(bytes(range(16)), bytes(range(15))) == 0xA129CA6149BE45E5


@pytest.mark.parametrize("size", [0, 7, 8, 9, 16])
def test_siphash_depends_on_every_byte_and_on_the_length(size: int) -> None:
    key = bytes(range(16))
    data = bytes(size)
    others = [data[:i] + b"\1" + data[i + 1 :] for i in range(size)] + [data + b"\0"]
    assert len({siphash(key, other) for other in (data, *others)}) == len(others) + 1


def test_a_cookie_is_the_kernels() -> None:
    """Linux 6.18 gave it to 10.79.0.2 at 10.79.0.1 under this tcp_fastopen_key."""
    cookie = fastopen.make_cookie(fastopen.parse_key(KEY), bytes((10, 79, 0, 2)), bytes((10, 79, 0, 1)))
    assert cookie.hex() == "ea55608d635afa6d"


def test_keys_are_written_as_the_kernel_writes_them() -> None:
    assert fastopen.format_key(fastopen.parse_key(f"{KEY}, 1-2-3-4")) == f"{KEY},00000001-00000002-00000003-00000004"
    settings = sysctl.Sysctl()
    sysctl.set_(settings, "net.ipv4.tcp_fastopen_key", "1-2-3-4")
    assert sysctl.get(settings, "net.ipv4.tcp_fastopen_key") == "00000001-00000002-00000003-00000004"


@pytest.mark.parametrize("text", ["", "1-2-3", "1-2-3-4-5", "x-2-3-4", "123456789-2-3-4", "1-2-3-4,1-2-3-4,1-2-3-4"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(OSError) as caught:
        sysctl.set_(sysctl.Sysctl(), "net.ipv4.tcp_fastopen_key", text)
    assert caught.value.errno == errno.EINVAL


def world(bits: int, places: int = 5, **sysctls: object) -> tuple[World, Sock, fastopen.FastOpen]:
    net = World(tcp_fastopen=bits, **sysctls)
    lsk = net.listening()
    api.setsockopt(lsk, TCP, TCP_FASTOPEN, places)
    return net, lsk, lsk.fastopen


def syn(net: World, port: int, data: bytes = b"", cookie: bytes | None = None) -> Peer:
    peer = Peer(net, port)
    peer.send("S", 0, data=data, mss=1460, ws=7, sack=True, fo=cookie)
    return peer


def test_a_host_makes_its_key_when_first_asked_and_keeps_it() -> None:
    net, _, _ = world(3)
    key = net.sysctl.tcp_fastopen_key
    assert any(fastopen.parse_key(key))
    api.setsockopt(net.listening(port=81), TCP, TCP_FASTOPEN, 5)
    assert net.sysctl.tcp_fastopen_key == key


def test_a_key_of_zeros_that_was_set_is_a_key() -> None:
    settings = sysctl.Sysctl()
    sysctl.set_(settings, "net.ipv4.tcp_fastopen_key", "0-0-0-0")
    net = World()
    net.sysctl = settings
    api.setsockopt(net.listening(), TCP, TCP_FASTOPEN, 5)
    assert not any(fastopen.parse_key(settings.tcp_fastopen_key))


@pytest.mark.parametrize("length", [0, 15, 17, 31, 33])
def test_keys_of_a_socket_have_sixteen_bytes_or_twice_as_many(length: int) -> None:
    net, lsk, _ = world(3)
    with pytest.raises(OSError) as caught:
        api.setsockopt(lsk, TCP, TCP_FASTOPEN_KEY, bytes(length))
    assert caught.value.errno == errno.EINVAL
    api.setsockopt(lsk, TCP, TCP_FASTOPEN_KEY, bytes(range(32)))
    assert api.getsockopt(lsk, TCP, TCP_FASTOPEN_KEY, 32) == bytes(range(32))
    assert fastopen.keys_of(net.listening(port=81)) != bytes(range(32))


def test_the_second_key_is_accepted_and_the_answer_brings_the_first_one_s_cookie() -> None:
    """After a change of keys (t09 of the kernel's recordings): an old cookie is as good, and is replaced."""
    net, lsk, _ = world(3)
    new, old = bytes(range(16)), bytes(range(16, 32))
    api.setsockopt(lsk, TCP, TCP_FASTOPEN_KEY, new + old)
    answer = syn(net, 50001, b"data", fastopen.make_cookie(old, REMOTE, LOCAL)).hear()
    assert (answer.flags, answer.ack) == ("S.", 5)
    assert answer.option(FastOpen).cookie == fastopen.make_cookie(new, REMOTE, LOCAL)
    assert (net.mib.TCPFastOpenPassive, net.mib.TCPFastOpenPassiveAltKey) == (1, 1)
    api.setsockopt(lsk, TCP, TCP_FASTOPEN_KEY, new)
    answer = syn(net, 50002, b"data", fastopen.make_cookie(old, REMOTE, LOCAL)).hear()
    assert answer.ack == 1
    assert net.mib.TCPFastOpenPassiveFail == 1


def test_places_are_bounded_by_somaxconn() -> None:
    net, lsk, state = world(3, 100_000)
    assert state.max_qlen == net.sysctl.somaxconn
    with pytest.raises(OSError) as caught:
        api.setsockopt(lsk, TCP, TCP_FASTOPEN, -1)
    assert caught.value.errno == errno.EINVAL


def test_every_listener_takes_fast_open_where_the_host_says_so() -> None:
    assert World(tcp_fastopen=0x402).listening(backlog=7).fastopen.max_qlen == 7
    assert World(tcp_fastopen=0x1002).listening(backlog=7).fastopen is None


def test_a_child_before_its_last_ack_is_readable_and_writable() -> None:
    net, lsk, state = world(ANY_DATA)
    peer = syn(net, 50001, b"hello")
    assert peer.hear().ack == 6
    assert api.poll(lsk) & const.POLLIN
    child = net.accepted(lsk)
    assert child.state == const.SYN_RECV
    assert state.qlen == 1
    assert api.poll(child) == const.POLLIN | const.POLLOUT
    assert api.recv(child, 100) == b"hello"
    assert api.sendmsg(child, b"answer") == 6
    assert peer.heard() == ["P. 1:7 ack 6"]
    peer.send(".", 6, ack=7, win=511)
    assert child.state == const.ESTABLISHED
    assert state.qlen == 0


def test_a_repeated_syn_brings_the_synack_again_and_nothing_twice() -> None:
    net, lsk, _ = world(ANY_DATA)
    peer = syn(net, 50001, b"hello")
    peer.heard()
    net.advance(1 * MS)
    peer.send("S", 0, data=b"hello", mss=1460, ws=7, sack=True)
    assert peer.heard() == ["S. 0:0 ack 6"]
    child = net.accepted(lsk)
    assert api.recv(child, 100) == b"hello"
    with pytest.raises(BlockingIOError):
        api.recv(child, 100)


def test_a_listener_that_ends_resets_children_nobody_accepted() -> None:
    net, lsk, _ = world(ANY_DATA)
    peer = syn(net, 50001, b"hello")
    peer.heard()
    api.close(lsk)
    assert peer.heard() == ["R. 1:1 ack 6"]
    assert not net.table


def test_a_silent_client_is_given_up_after_one_repetition_more_than_usual() -> None:
    """tcp_synack_retries 5: repeated after 1, 2, 4, 8, 16 and 32 s more, given up 64 s later: 127 s in all."""
    net, lsk, state = world(ANY_DATA)
    peer = syn(net, 50001, b"hello")
    child = net.accepted(lsk)
    net.advance(126_000 * MS)
    assert len(peer.heard()) == 7
    assert child.state == const.SYN_RECV
    net.advance(6_000 * MS)
    assert (child.state, child.sk_err) == (const.CLOSE, errno.ETIMEDOUT)
    assert state.qlen == 0


# ---------------------------------------------------------------- the client


def test_the_cache_of_cookies_is_bounded() -> None:
    memory = fastopen.HostState()
    for n in range(fastopen.MAX_CACHED + 10):
        memory.entry(b"", n.to_bytes(4, "big")).mss = 1460
    assert len(memory.cache) == fastopen.MAX_CACHED
    assert (b"", (9).to_bytes(4, "big")) not in memory.cache


def test_a_black_hole_stops_fast_open_for_a_while_that_doubles() -> None:
    """tcp_fastopen_blackhole_timeout_sec 10: 10 s after the first, 20 after the second, 640 at most."""
    net = World(tcp_fastopen=1, tcp_fastopen_blackhole_timeout_sec=10)
    memory = net.fastopen
    known = memory.entry(LOCAL, REMOTE)
    known.mss, known.cookie = 1460, bytes(8)

    def data_goes() -> bool:
        peer = Peer(net, 80)
        sk = net.socket()
        try:
            sent = api.send_fastopen(sk, b"hello", 0, REMOTE, 80)
        except BlockingIOError:
            sent = 0
        peer.local_port = sk.sport
        api.close(sk)
        return sent == 5

    assert data_goes()
    for times, pause in ((1, 10), (2, 20), (7, 640), (8, 640)):
        memory.disable_times, memory.disable_ns = times, net.now_ns
        net.advance(pause * 1000 * MS - MS)
        assert not data_goes()
        net.advance(2 * MS)
        assert data_goes()


def test_the_third_timeout_in_a_row_is_a_black_hole() -> None:
    net = World(tcp_fastopen=1, tcp_fastopen_blackhole_timeout_sec=10)
    known = net.fastopen.entry(LOCAL, REMOTE)
    known.mss, known.cookie = 1460, bytes(8)
    sk = net.socket()
    assert api.send_fastopen(sk, b"hello", 0, REMOTE, 80) == 5
    net.advance(2_900 * MS)
    assert net.mib.TCPFastOpenBlackhole == 0
    net.advance(300 * MS)
    assert net.mib.TCPFastOpenBlackhole == 1
