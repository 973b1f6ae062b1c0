"""Socket options: every measured value in, result and value out; and the structures (linux-sockets §7)."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from struct import pack, unpack
from typing import NamedTuple

import pytest

from pytcp.tcp import api, const, sockopt_absent, sockopt_ip, sockopt_socket, sockopt_tcp
from pytcp.tcp.sock import Sock

from .endpoint import LOCAL, MS, Peer, World, connection

TABLE = Path(__file__).parents[1] / "data" / "socket_options.txt"
LEVELS = {"SOL_SOCKET": 1, "IPPROTO_IP": 0, "IPPROTO_TCP": 6, "IPPROTO_IPV6": 41}
MODULES = (sockopt_absent, sockopt_ip, sockopt_socket, sockopt_tcp)
NUMBERS = {
    **{name: value for module in MODULES for name, value in vars(module).items() if re.match(r"(TCP|SO|IP|IPV6)_", name)},
    "unknown_99": 99,
    "unknown_200": 200,
}
# structures, values of the moment, and those tested below
APART = {"TCP_INFO", "TCP_CC_INFO", "TCP_SAVED_SYN", "TCP_TIMESTAMP", "SO_MAX_PACING_RATE", "SO_INCOMING_CPU", "SO_COOKIE", "TCP_REPAIR", "SO_CNX_ADVICE"}
# set without a way to read them: the table shows the refused reading
APART |= {"SO_SNDBUFFORCE", "SO_RCVBUFFORCE"}
VALUES = [-(1 << 31), -1, 0, 1, 2, 3, 7, 10, 47, 48, 100, 126, 127, 128, 255, 256, 1000, 1023, 4096, 32767, 32768, 65535, 65536, 120000, 1000000]
VALUES += [16777216, (1 << 31) - 1]


class Row(NamedTuple):
    level: int
    option: str
    state: str
    default: str
    same: set[int]
    rejected: dict[int, str]
    other: dict[int, int]
    one_byte: str
    eight_bytes: str


def numbers(text: str) -> Iterator[int]:
    for part in re.split(r"[,;]\s*", text.strip()):
        low, _, high = part.partition("..")
        if high:
            yield from (value for value in VALUES if int(low) <= value <= int(high))
        elif part:
            yield int(part)


def rows() -> Iterator[Row]:
    level = 0
    for line in TABLE.read_text().splitlines():
        if line.startswith("## "):
            level = LEVELS[line[3:]]
        if not line.startswith("|") or line.startswith("| option"):
            continue
        option, states, default, same, rejected, other, lengths = (cell.strip() for cell in line.strip("|").split("|"))
        if option in APART:
            continue
        refusals: dict[int, str] = {}
        for part in rejected.split(";") if rejected != "-" else ():
            name, _, values = part.partition(":")
            refusals |= dict.fromkeys(numbers(values), name.strip())
        changed: dict[int, int] = {}
        for part in other.split(";") if "->" in other else ():
            values, _, result = part.partition("->")
            changed |= dict.fromkeys(numbers(values), int(result))
        one, _, eight = lengths.partition(" / ")
        for state in states.split("+"):
            yield Row(level, option, state, default, set(numbers(same)) if same != "-" else set(), refusals, changed, one, eight)


ROWS = list(rows())


def prepared(state: str, level: int) -> Sock:
    """A socket of the state the table was measured on."""
    family = 6 if level == LEVELS["IPPROTO_IPV6"] else 4
    if state == "established":
        world = World()
        lsk = world.listening(family=family)
        peer = Peer(world, family=family)
        peer.syn()
        peer.heard()
        peer.send(".", 1, ack=1, win=511)
        sk = world.accepted(lsk)
    else:
        sk = World().socket(family)
    if state == "listening":
        api.listen(sk, 5)
    sk.reuseaddr = True
    sk.v6only = family == 6
    return sk


def name_of(error: OSError) -> str:
    assert error.errno is not None
    return {errno.EOPNOTSUPP: "ENOTSUP"}.get(error.errno, errno.errorcode[error.errno])


def attempt(sk: Sock, level: int, option: str, value: int | bytes) -> str:
    try:
        api.setsockopt(sk, level, NUMBERS[option], value)
    except OSError as error:
        return name_of(error)
    return "ok"


def reading(sk: Sock, level: int, option: str) -> str:
    try:
        return str(api.getsockopt(sk, level, NUMBERS[option]))
    except OSError as error:
        return name_of(error)


def test_the_table_covers_what_it_should() -> None:
    assert len({(row.level, row.option) for row in ROWS}) > 70
    assert {row.state for row in ROWS} == {"closed", "listening", "established"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.option}-{row.state}")
def test_option(row: Row) -> None:
    sk = prepared(row.state, row.level)
    if row.option not in ("SO_REUSEADDR", "IPV6_V6ONLY", "TCP_WINDOW_CLAMP", "TCP_MAXSEG"):
        assert reading(sk, row.level, row.option) == row.default
    for value in VALUES:
        result = attempt(sk, row.level, row.option, value)
        if value in row.rejected and row.rejected[value] != "ENOTCONN":
            assert result == row.rejected[value], value
            continue
        assert result == "ok", value
        expected = value if value in row.same else row.other.get(value)
        if expected is not None:
            assert reading(sk, row.level, row.option) == str(expected), value


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.option}-{row.state}")
def test_option_lengths(row: Row) -> None:
    # what was set: the number 2 in one byte, and in the first four of eight
    sk = prepared(row.state, row.level)
    assert attempt(sk, row.level, row.option, b"\x02") == row.one_byte
    assert attempt(sk, row.level, row.option, pack("=ii", 2, 0)) == row.eight_bytes


# ---------------------------------------------------------------- reading into buffers


def test_a_short_buffer_gets_the_first_bytes() -> None:
    sk = World().socket()
    assert api.getsockopt(sk, 6, sockopt_tcp.TCP_KEEPIDLE, 4) == pack("=i", 7200)
    assert api.getsockopt(sk, 6, sockopt_tcp.TCP_KEEPIDLE, 2) == pack("=i", 7200)[:2]
    assert api.getsockopt(sk, 6, sockopt_tcp.TCP_KEEPIDLE, 100) == pack("=i", 7200)
    assert api.getsockopt(sk, 0, sockopt_ip.IP_TTL, 2) == b"\x40", "IPPROTO_IP writes one byte when fewer than four are asked for"
    assert api.getsockopt(sk, 0, sockopt_ip.IP_TTL, 4) == pack("=i", 64)


def test_the_congestion_control_is_a_name() -> None:
    sk = World().socket()
    assert api.getsockopt(sk, 6, sockopt_tcp.TCP_CONGESTION, 16) == b"cubic".ljust(16, b"\0")
    api.setsockopt(sk, 6, sockopt_tcp.TCP_CONGESTION, b"reno")
    assert api.getsockopt(sk, 6, sockopt_tcp.TCP_CONGESTION, 16) == b"reno".ljust(16, b"\0")
    assert api.getsockopt(sk, 6, sockopt_tcp.TCP_CC_INFO, 100) == b""
    for name, code in ((b"nonesuch", errno.ENOENT), (b"", errno.EINVAL)):
        with pytest.raises(OSError) as caught:
            api.setsockopt(sk, 6, sockopt_tcp.TCP_CONGESTION, name)
        assert caught.value.errno == code
    assert sk.cong_name == "reno"


def test_the_congestion_control_of_a_connection_can_be_changed() -> None:
    _, _, sk = connection()
    api.setsockopt(sk, 6, sockopt_tcp.TCP_CONGESTION, b"reno")
    assert sk.ca.name == "reno"


@pytest.mark.parametrize("wanted", [0, 1, 17_179_870, 2**31 - 1, -1, -(2**31)])
def test_linger_takes_every_time_as_this_machines_kernel_does(wanted: int) -> None:
    """Seconds are kept as ticks of a long; a negative time is the longest, of which 32 bits are read back."""
    with socket.socket() as kernel:
        kernel.setsockopt(1, sockopt_socket.SO_LINGER, pack("ii", 1, wanted))
        theirs = kernel.getsockopt(1, sockopt_socket.SO_LINGER, 8)
    sk = World().socket()
    api.setsockopt(sk, 1, sockopt_socket.SO_LINGER, pack("ii", 1, wanted))
    if wanted >= 0:
        assert api.getsockopt(sk, 1, sockopt_socket.SO_LINGER, 8) == theirs == pack("ii", 1, wanted)
    else:
        # LONG_MAX ticks at 250 Hz; a kernel with another HZ has another number here
        assert api.getsockopt(sk, 1, sockopt_socket.SO_LINGER, 8) == pack("iI", 1, (2**63 - 1) // 250 & 0xFFFFFFFF)
        assert sk.linger is not None
        assert sk.linger > 2**55


@pytest.mark.parametrize("rate", [1000, 2**31, 2**32 - 2, 2**32, 2**40, 2**64 - 1])
@pytest.mark.parametrize("room", [1, 4, 6, 8, 12])
def test_a_pacing_rate_beyond_32_bits_is_read_back_as_the_most_that_fits(rate: int, room: int) -> None:
    with socket.socket() as kernel:
        kernel.setsockopt(1, sockopt_socket.SO_MAX_PACING_RATE, pack("Q", rate))
        theirs = kernel.getsockopt(1, sockopt_socket.SO_MAX_PACING_RATE, room)
    sk = World().socket()
    api.setsockopt(sk, 1, sockopt_socket.SO_MAX_PACING_RATE, pack("Q", rate))
    assert api.getsockopt(sk, 1, sockopt_socket.SO_MAX_PACING_RATE, room) == theirs


def test_linger_keeps_its_time_while_off() -> None:
    sk = World().socket()
    linger = sockopt_socket.SO_LINGER
    assert api.getsockopt(sk, 1, linger, 8) == pack("ii", 0, 0)
    api.setsockopt(sk, 1, linger, pack("ii", 7, 5))
    assert (api.getsockopt(sk, 1, linger, 8), sk.linger) == (pack("ii", 1, 5), 5)
    api.setsockopt(sk, 1, linger, pack("ii", 0, 9))
    assert (api.getsockopt(sk, 1, linger, 8), sk.linger) == (pack("ii", 0, 5), None)
    with pytest.raises(OSError) as caught:
        api.setsockopt(sk, 1, linger, 1)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("name", [sockopt_socket.SO_RCVTIMEO, sockopt_socket.SO_SNDTIMEO])
def test_timeouts_are_rounded_up_to_ticks(name: int) -> None:
    sk = World().socket()
    assert (api.getsockopt(sk, 1, name, 16), sockopt_socket.timeout_us(sk, name)) == (pack("qq", 0, 0), sockopt_socket.FOREVER)
    for given, stored in (((1, 1), (1, 4000)), ((0, 1), (0, 4000)), ((2, 500_000), (2, 500_000))):
        api.setsockopt(sk, 1, name, pack("qq", *given))
        assert api.getsockopt(sk, 1, name, 16) == pack("qq", *stored)
    api.setsockopt(sk, 1, name, pack("qq", -1, 0))
    assert (api.getsockopt(sk, 1, name, 16), sockopt_socket.timeout_us(sk, name)) == (pack("qq", 0, 0), 0)
    api.setsockopt(sk, 1, name, pack("qq", 0, 0))
    assert sockopt_socket.timeout_us(sk, name) == sockopt_socket.FOREVER
    for us in (-1, 1_000_000):
        with pytest.raises(OSError) as caught:
            api.setsockopt(sk, 1, name, pack("qq", 1, us))
        assert caught.value.errno == errno.EDOM


def test_max_pacing_rate_is_64_bits_wide_and_turns_pacing_on() -> None:
    sk = World().socket()
    rate = sockopt_socket.SO_MAX_PACING_RATE
    assert api.getsockopt(sk, 1, rate, 8) == b"\xff" * 8
    api.setsockopt(sk, 1, rate, pack("=q", -1))
    assert sk.pacing_status == 0
    api.setsockopt(sk, 1, rate, pack("=Q", 10_000_000_000))
    assert (sk.max_pacing_rate, sk.pacing_rate, sk.pacing_status) == (10_000_000_000, 10_000_000_000, 1)
    api.setsockopt(sk, 1, rate, -1)
    assert api.getsockopt(sk, 1, rate, 8) == b"\xff" * 8, "32 bits of ones mean no limit, too"


def test_repair_mode_is_refused_like_to_an_ordinary_program() -> None:
    for value, result in ((-1, "ok"), (0, "ok"), (1, "EPERM"), (2, "EINVAL")):
        assert attempt(World().socket(), 6, "TCP_REPAIR", value) == result
    assert attempt(prepared("listening", 6), 6, "TCP_REPAIR", 0) == "EPERM"


def test_tcp_timestamp_is_the_tsval_of_now() -> None:
    world = World()
    sk = world.socket()
    sk.ts_offset = 7
    assert api.getsockopt(sk, 6, sockopt_tcp.TCP_TIMESTAMP) == world.now_ns // MS + 7


def test_cookies_differ_and_stay() -> None:
    world = World()
    one, two = world.socket(), world.socket()
    first = api.getsockopt(one, 1, sockopt_socket.SO_COOKIE, 8)
    assert first == api.getsockopt(one, 1, sockopt_socket.SO_COOKIE, 8) != api.getsockopt(two, 1, sockopt_socket.SO_COOKIE, 8)


def test_meminfo_is_nine_words() -> None:
    _, peer, sk = connection()
    peer.send("P.", 1, 1000, ack=1, win=511)
    info = api.getsockopt(sk, 1, sockopt_socket.SO_MEMINFO, 36)
    assert isinstance(info, bytes)
    words = unpack("=9I", info)
    assert words[0] == sk.rmem_alloc > 1000
    assert words[1:4] == (131072, 0, 46080)


def test_so_error_prefers_the_pending_error_and_clears_what_it_tells() -> None:
    sk = World().socket()
    sk.sk_err, sk.sk_err_soft = errno.ECONNRESET, errno.EHOSTUNREACH
    assert [api.getsockopt(sk, 1, sockopt_socket.SO_ERROR) for _ in range(3)] == [errno.ECONNRESET, errno.EHOSTUNREACH, 0]


# ---------------------------------------------------------------- what is not here

# (level, option, value, socket, result) as Linux 6.18 has it, which was asked by tests/interop/test_socket_options.py
PROGRAM = pack("=HxxxxxxQ", 1, 1 << 20)
GROUP = pack("=IxxxxH14x112x", 1, 0)
REFUSED = [
    (1, 26, b"", "closed", "EINVAL"), (1, 26, PROGRAM[:12], "closed", "EINVAL"), (1, 26, bytes(16), "closed", "EINVAL"),
    (1, 27, 0, "closed", "ENOENT"), (1, 68, 0, "closed", "EINVAL"), (1, 50, bytes(8), "closed", "EINVAL"),
    (1, 76, 1, "closed", "ENOTSUP"), (1, 83, 1, "closed", "ENOTSUP"), (1, 80, bytes(12), "closed", "EINVAL"), (1, 80, bytes(16), "closed", "ok"),
    (1, 70, 65536, "closed", "EINVAL"), (1, 70, 65535, "closed", "ok"),
    (1, 37, pack("=ii", 1 << 15, 3), "closed", "ENOTSUP"), (1, 37, pack("=ii", 1 << 15 | 1 << 12, 3), "closed", "EINVAL"),
    (1, 61, bytes(4), "closed", "EINVAL"), (1, 61, pack("=iI", 2, 0), "closed", "EINVAL"), (1, 61, pack("=iI", 11, 4), "closed", "EINVAL"),
    (6, 22, 0, "established", "EINVAL"), (6, 29, 0, "closed", "EPERM"), (6, 29, b"", "closed", "EINVAL"),
    (6, 31, b"", "established", "EINVAL"), (6, 31, b"nonesuch", "established", "ENOENT"), (6, 31, b"\0", "closed", "ENOENT"),
    (6, 42, 0, "listening", "EPERM"), (6, 42, 0, "closed", "ENOPROTOOPT"),
    (0, 4, bytes(41), "closed", "EINVAL"), (0, 4, b"\x07", "closed", "EINVAL"), (0, 4, b"\x07\x05\x04", "closed", "EINVAL"), (0, 4, b"\0\x07", "closed", "ok"),
    (0, 50, bytes(8), "closed", "EINVAL"), (41, 76, bytes(8), "closed", "EINVAL"),
    (0, 39, bytes(11), "closed", "EINVAL"), (0, 39, bytes(12), "closed", "EINVAL"),
    (0, 41, bytes(16), "closed", "EINVAL"), (0, 41, b"\xff" * 16, "closed", "ENOBUFS"),
    (0, 42, GROUP[:135], "closed", "EINVAL"), (0, 42, GROUP, "closed", "EINVAL"), (0, 46, bytes(264), "closed", "EADDRNOTAVAIL"),
    (41, 42, GROUP, "closed", "EADDRNOTAVAIL"), (41, 46, bytes(263), "closed", "EINVAL"), (41, 48, b"\xff" * 144, "closed", "ENOBUFS"),
    (41, 28, bytes(19), "closed", "EINVAL"), (41, 28, bytes(20), "closed", "ENOENT"), (41, 27, b"\xff" * 20, "closed", "EINVAL"),
    (41, 32, bytes(31), "closed", "EINVAL"), (41, 32, bytes(32), "closed", "EINVAL"),
    (41, 6, bytes(12), "closed", "ok"), (41, 6, bytes(16), "closed", "EINVAL"),
    (41, 50, bytes(19), "closed", "EINVAL"), (41, 50, bytes(20), "closed", "ok"),
    (41, 54, b"", "closed", "ok"), (41, 54, bytes(12), "closed", "EINVAL"), (41, 59, b"\0\1" + bytes(6), "closed", "EINVAL"),
    (41, 57, bytes(8), "closed", "EINVAL"),
    (41, 1, 2, "closed", "ENOTCONN"), (41, 1, 2, "established", "EADDRNOTAVAIL"), (41, 1, 1, "established", "EINVAL"),
]  # fmt: skip


@pytest.mark.parametrize(("level", "number", "value", "state", "result"), REFUSED)
def test_wrong_arguments_of_options_that_are_not_here_are_told_as_by_a_kernel_that_has_them(
    level: int, number: int, value: int | bytes, state: str, result: str
) -> None:
    sk = prepared(state, level)
    if (level, number, state) == (41, 1, "established"):
        sk.v6only = False
    try:
        api.setsockopt(sk, level, number, value)
    except OSError as error:
        assert name_of(error) == result
    else:
        assert result == "ok"


@pytest.mark.parametrize(
    ("level", "number", "room", "result"),
    [
        (1, 26, 8, b""), (1, 77, 4, "ENODATA"), (1, 76, 4, "ENOTSUP"), (1, 71, 4, "EINVAL"), (1, 71, 16, "EINVAL"),
        (6, 29, 19, "EINVAL"), (6, 29, 20, "EPERM"), (6, 29, 21, "EINVAL"), (6, 31, 16, b""), (6, 33, 32, b""), (6, 35, 15, "EINVAL"), (6, 43, 8, bytes(4)),
        (0, 32, 3, bytes(3)), (0, 51, 3, bytes(1)), (41, 6, 64, b""), (41, 32, 31, "EINVAL"), (41, 32, 32, "ENOENT"), (41, 57, 8, b""),
        (41, 61, 31, "EINVAL"), (41, 61, 32, "ENOTCONN"), (41, 1, 4, "ENOTCONN"),
    ],
)  # fmt: skip
def test_reading_them_too(level: int, number: int, room: int, result: bytes | str) -> None:
    sk = prepared("closed", level)
    try:
        value = api.getsockopt(sk, level, number, room)
    except OSError as error:
        assert name_of(error) == result
    else:
        assert value == result


def test_a_locked_filter_may_not_be_changed() -> None:
    sk = World().socket()
    api.setsockopt(sk, 1, sockopt_socket.SO_LOCK_FILTER, 1)
    for number, value in ((sockopt_absent.SO_ATTACH_FILTER, PROGRAM), (sockopt_absent.SO_ATTACH_BPF, bytes(4)), (sockopt_absent.SO_DETACH_FILTER, bytes(4))):
        with pytest.raises(OSError) as caught:
            api.setsockopt(sk, 1, number, value)
        assert caught.value.errno == errno.EPERM


def test_the_path_mtu_is_behind_the_address_of_nobody() -> None:
    sk = prepared("established", LEVELS["IPPROTO_IPV6"])
    assert api.getsockopt(sk, 41, sockopt_ip.IPV6_PATHMTU, 64) == bytes(28) + pack("=i", 1500)


def test_ip_multicast_all_begins_as_one_on_ipv4_only() -> None:
    for family, first in ((4, 1), (6, 0)):
        sk = World().socket(family)
        assert api.getsockopt(sk, 0, sockopt_ip.IP_MULTICAST_ALL) == first
        api.setsockopt(sk, 0, sockopt_ip.IP_MULTICAST_ALL, 1 - first)
        assert api.getsockopt(sk, 0, sockopt_ip.IP_MULTICAST_ALL) == 1 - first


def test_sockets_of_one_stack_have_its_number() -> None:
    world = World()
    first = api.getsockopt(world.socket(), 1, sockopt_socket.SO_NETNS_COOKIE, 8)
    assert first == api.getsockopt(world.socket(), 1, sockopt_socket.SO_NETNS_COOKIE, 8)
    assert isinstance(first, bytes) and any(first)


def test_the_fast_open_key_of_a_socket_is_what_it_has_set_not_what_its_host_has() -> None:
    world = World()
    sk = world.listening()
    api.setsockopt(sk, 6, sockopt_tcp.TCP_FASTOPEN, 5)
    assert any(world.sysctl.tcp_fastopen_key.replace("-", "").strip("0"))
    assert api.getsockopt(sk, 6, sockopt_tcp.TCP_FASTOPEN_KEY, 32) == b""
    for key in (bytes(range(16)), bytes(range(32))):
        api.setsockopt(sk, 6, sockopt_tcp.TCP_FASTOPEN_KEY, key)
        for room in (8, 16, 20, 32):
            assert api.getsockopt(sk, 6, sockopt_tcp.TCP_FASTOPEN_KEY, room) == key[:room]


def test_timestamping_reads_back_under_the_name_it_was_set_by() -> None:
    sk = World().socket()
    old, new = sockopt_socket.SO_TIMESTAMPING, sockopt_socket.SO_TIMESTAMPING_NEW
    for name, read in ((old, 0), (new, 18)):
        api.setsockopt(sk, 1, name, pack("=ii", 18, 0))
        assert api.getsockopt(sk, 1, old, 64) == pack("=ii", 18, 0)
        assert api.getsockopt(sk, 1, new, 64) == pack("=ii", read, 0)


# ---------------------------------------------------------------- effects


def test_nodelay_sends_what_nagle_holds() -> None:
    _, peer, sk = connection()
    api.sendmsg(sk, b"a")
    api.sendmsg(sk, b"b")
    assert peer.heard() == ["P. 1:2 ack 1"]
    api.setsockopt(sk, 6, sockopt_tcp.TCP_NODELAY, 1)
    assert peer.heard() == ["P. 2:3 ack 1"]


def test_uncorking_sends_what_the_cork_holds() -> None:
    _, peer, sk = connection()
    api.setsockopt(sk, 6, sockopt_tcp.TCP_CORK, 1)
    api.sendmsg(sk, bytes(100))
    assert peer.heard() == []
    api.setsockopt(sk, 6, sockopt_tcp.TCP_CORK, 0)
    assert peer.heard() == ["P. 1:101 ack 1"]


def test_a_larger_sndbuf_wakes_the_writer() -> None:
    world, peer, sk = connection()
    api.setsockopt(sk, 1, sockopt_socket.SO_SNDBUF, 10_000)
    peer.send(".", 1, ack=1, win=0)
    with pytest.raises(BlockingIOError):
        while True:
            api.sendmsg(sk, bytes(5000))
    world.woken.clear()
    api.setsockopt(sk, 1, sockopt_socket.SO_SNDBUF, 200_000)
    assert world.woken == [(sk, const.POLLOUT)]


def test_forced_buffers_have_no_upper_limit_and_no_reading() -> None:
    sk = World().socket()
    api.setsockopt(sk, 1, sockopt_socket.SO_SNDBUFFORCE, 50_000_000)
    api.setsockopt(sk, 1, sockopt_socket.SO_RCVBUFFORCE, 50_000_000)
    assert (sk.sndbuf, sk.rcvbuf) == (100_000_000, 100_000_000)
    api.setsockopt(sk, 1, sockopt_socket.SO_SNDBUFFORCE, -1)
    api.setsockopt(sk, 1, sockopt_socket.SO_RCVBUFFORCE, -1)
    assert (sk.sndbuf, sk.rcvbuf) == (4608, 2304)
    for name in ("SO_SNDBUFFORCE", "SO_RCVBUFFORCE", "SO_CNX_ADVICE"):
        assert reading(sk, 1, name) == "ENOPROTOOPT"
        assert attempt(sk, 1, name, 1) == "ok"


def test_so_rcvlowat_grows_the_buffer_for_good() -> None:
    sk = World().socket()
    api.setsockopt(sk, 1, sockopt_socket.SO_RCVLOWAT, 1_000_000)
    assert sk.rcvbuf == 2_000_000
    api.setsockopt(sk, 1, sockopt_socket.SO_RCVLOWAT, 1)
    assert sk.rcvbuf == 2_000_000


def test_ip_bind_address_no_port_leaves_the_port_to_connect() -> None:
    world = World()
    sk = world.socket()
    api.setsockopt(sk, 0, sockopt_ip.IP_BIND_ADDRESS_NO_PORT, 1)
    api.bind(sk, LOCAL, 0)
    assert (sk.saddr, sk.bound_port, world.held) == (LOCAL, 0, {})
    world.connecting(Peer(world, 80), sk)
    assert sk.bound_port


def test_ip_freebind_binds_to_what_is_not_ours() -> None:
    world = World()
    foreign = b"\x0a\x4f\x00\x63"
    with pytest.raises(OSError) as caught:
        api.bind(world.socket(), foreign, 8080)
    assert caught.value.errno == errno.EADDRNOTAVAIL
    sk = world.socket()
    api.setsockopt(sk, 0, sockopt_ip.IP_FREEBIND, 1)
    api.bind(sk, foreign, 8080)
    assert sk.saddr == foreign


def test_ip_minttl_drops_what_came_from_too_far() -> None:
    world, peer, sk = connection()
    api.setsockopt(sk, 0, sockopt_ip.IP_MINTTL, 65)
    peer.send("P.", 1, 10, ack=1, win=511)
    assert (api.inq(sk), world.mib.TCPMinTTLDrop) == (0, 1)
    api.setsockopt(sk, 0, sockopt_ip.IP_MINTTL, 64)
    peer.send("P.", 1, 10, ack=1, win=511)
    assert api.inq(sk) == 10


def test_ip_local_port_range_narrows_the_hosts_range() -> None:
    sk = World().socket()
    assert sockopt_ip.local_port_range(sk) == (32768, 60999)
    for low, high, used in ((40000, 40010, (40000, 40010)), (0, 40010, (32768, 40010)), (40000, 0, (40000, 60999)), (1000, 65000, (32768, 60999))):
        api.setsockopt(sk, 0, sockopt_ip.IP_LOCAL_PORT_RANGE, low | high << 16)
        assert sockopt_ip.local_port_range(sk) == used
