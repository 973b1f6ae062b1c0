"""Both ends side by side: what `pytcp ss`, `neigh`, `nstat`, ... say of a stack, and what the real tools say of the kernel it talks to.

Host 10.99.0.2 is pytcp, 10.99.0.1 the kernel. Where the facts of the two are mirror images, so must the
output be, to the character; where they cannot be, the same words must stand in the same order.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio

from pytcp.lab.testbed import Testbed
from pytcp.sockets.address import AF_INET, AF_INET6
from pytcp.sockets.streams import TcpStream

from .exchange import Kernel, Pair, pair

pytestmark = pytest.mark.tap

PORT, OUR_PORT, THEIR_PORT = 7000, 7001, 7002
SOL_SOCKET, SO_KEEPALIVE = 1, 9
Program = Callable[[str], str]


@pytest.fixture(autouse=True)
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTCP_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("NSTAT_HISTORY", str(tmp_path / "history"))


async def ours(*words: str, status: int = 0) -> str:
    """What a `pytcp` command prints about the only stack there is."""
    done = await trio.to_thread.run_sync(lambda: subprocess.run([sys.executable, "-m", "pytcp", *words], capture_output=True, text=True, check=False))
    assert done.returncode == status, done.stderr
    return done.stdout


async def theirs(testbed: Testbed, *words: str) -> str:
    """What a real tool prints about the peer's namespace."""
    return (await testbed.run_async(words)).stdout.decode()


def mirrored(text: str, testbed: Testbed) -> str:
    """The same seen from the other end: its addresses and ours change places."""
    for one, other in ((testbed.address4, testbed.peer4), (testbed.address6, testbed.peer6)):
        text = re.sub(rf"(?<![\w:.]){re.escape(one)}(?![\w.])", "\0", text)
        text = re.sub(rf"(?<![\w:.]){re.escape(other)}(?![\w.])", one, text).replace("\0", other)
    return text


@contextlib.asynccontextmanager
async def conversation(p: Pair, family: int, talk: bool) -> AsyncIterator[None]:
    """A listener at each end, and a connection each way, alike to the port.

    talk: 3000 bytes have gone there and back on both; else each end has closed the connection it opened."""
    async with contextlib.AsyncExitStack() as stack:
        theirs = stack.enter_context(p.kernel_socket(family))
        theirs.setsockopt(SOL_SOCKET, 2, 1)  # SO_REUSEADDR
        await theirs.bind((p.peer(family), PORT))
        theirs.listen(16)
        [ours] = await p.stack.open_tcp_listeners(PORT, host=p.address(family), backlog=16)
        await stack.enter_async_context(ours)

        sock = stack.enter_context(p.kernel_socket(family))
        await sock.bind((p.peer(family), OUR_PORT))
        await sock.connect((p.address(family), PORT))
        mine = await stack.enter_async_context(await ours.accept())

        socket = p.stack.socket(AF_INET if family == 4 else AF_INET6)
        socket.bind((p.address(family), OUR_PORT))
        with contextlib.suppress(BlockingIOError):
            socket.connect((p.peer(family), PORT))
        accepted, _ = await theirs.accept()
        stack.enter_context(accepted)
        while not socket.poll() & 4:  # POLLOUT
            await trio.sleep(0.01)
        stream = await stack.enter_async_context(TcpStream(socket))

        if not talk:
            sock.close()
            assert await mine.receive_some() == b""
            await mine.aclose()
            await stream.aclose()
            assert await accepted.recv(1) == b""
            accepted.close()
            await trio.sleep(0.05)
            yield
            return
        await _talk(Kernel(sock), mine)
        await _talk(Kernel(accepted), stream)
        for one in (sock, accepted, mine.socket, socket):
            one.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
        yield


async def _talk(kernel: Kernel, stream: TcpStream) -> None:
    for one, other in ((kernel.stream, stream), (stream, kernel.stream)):
        await one.send_all(b"x" * 3000)
        left = 3000
        while left:
            left -= len(await other.receive_some(left))


def side_by_side(program: Callable[[Pair], Awaitable[None]], *, family: int = 4, talk: bool = True) -> None:
    """Run `program(pair)` while the conversation stands. Both ends use CUBIC."""

    async def main() -> None:
        async with pair(testbed) as p, conversation(p, family, talk):
            await program(p)

    with Testbed(congestion="cubic") as testbed:
        trio.run(main)


# --- ss ---


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("options", ["-tan", "-tn", "-ltn", "-tanH", "-tano", "-4tan", "-6tan", "-at", "-tuan"])
def test_the_tables_of_both_ends_are_mirror_images(program: Program, options: str, family: int) -> None:
    program("ss")

    async def compare(p: Pair) -> None:
        # by the time of the two calls a keepalive timer of two hours has 119 minutes left
        mine, kernels = await ours("ss", options), await theirs(p.testbed, "ss", options)
        assert sorted(mirrored(mine, p.testbed).splitlines()) == sorted(kernels.splitlines())
        if options == "-tano":
            assert mine.count("timer:(keepalive,119min,0)") == 2

    side_by_side(compare, family=family)


@pytest.mark.parametrize("options", ["-tano", "-tanoim"])
def test_what_is_left_of_connections_is_shown_alike(program: Program, options: str) -> None:
    program("ss")

    async def compare(p: Pair) -> None:
        mine, kernels = await ours("ss", options, "state", "time-wait"), await theirs(p.testbed, "ss", options, "state", "time-wait")
        assert mirrored(mine, p.testbed) == kernels
        assert mine.count("timer:(timewait,59sec,0)") == 1

    side_by_side(compare, talk=False)


@pytest.mark.parametrize(
    "words", [["dport", "=", f":{PORT}"], ["state", "listening"], ["sport", "lt", str(OUR_PORT), "and", "not", "dport", str(OUR_PORT)], ["src", "10.99.0.0/24"]]
)
def test_filters_find_the_same(program: Program, words: list[str]) -> None:
    program("ss")

    async def compare(p: Pair) -> None:
        mine, kernels = await ours("ss", "-tan", *words), await theirs(p.testbed, "ss", "-tan", *words)
        assert sorted(mirrored(mine, p.testbed).splitlines()) == sorted(kernels.splitlines())

    side_by_side(compare)


# what one end may have to say and the other not: it depends on who sent last, on luck, or on a newer ss
SOMETIMES = {
    "ato", "app_limited", "busy", "rcv_rtt", "retrans", "ssthresh", "backoff", "bytes_retrans", "dsack_dups", "reordering", "reord_seen", "rwnd_limited",
    "sndbuf_limited", "notsent", "rcv_ooopack", "rcv_wnd", "rehash", "lastsnd", "lastrcv", "lastack", "delivery_rate", "unacked", "pacing_rate",
}  # fmt: skip
ALWAYS = {
    "skmem", "ts", "sack", "cubic", "wscale", "rto", "rtt", "mss", "pmtu", "rcvmss", "advmss", "cwnd", "bytes_sent", "bytes_acked", "bytes_received",
    "segs_out", "segs_in", "data_segs_out", "data_segs_in", "send", "delivered", "rcv_space", "rcv_ssthresh", "minrtt", "snd_wnd",
}  # fmt: skip
VALUED = ("send", "pacing_rate", "delivery_rate")  # their value stands behind a space


def words_of(line: str) -> dict[str, str]:
    """{word: shape of its value} in order: digits become 9s, so that "rtt:0.9/0.9" is what "rtt:0.017/0.009" is like."""
    for word in VALUED:
        line = re.sub(rf"(?<!\S){word} (?=\d)", f"{word}:", line)
    found = {}
    for part in line.split():
        name, _, value = part.partition(":")
        found[name] = re.sub(r"9(\.9+)?(e[+-]?9+)?", "9", re.sub(r"\d+", "9", value))
    return found


@pytest.mark.parametrize("options", ["-tino", "-tiemn"])
def test_the_words_about_a_connection_are_the_same_in_the_same_order(program: Program, options: str) -> None:
    program("ss")

    async def compare(p: Pair) -> None:
        select = ["state", "established", "dport", "=", f":{PORT}"]
        [mine] = [words_of(line) for line in (await ours("ss", options, *select)).splitlines() if line.startswith("\t")]
        [kernels] = [words_of(line) for line in (await theirs(p.testbed, "ss", options, *select)).splitlines() if line.startswith("\t")]
        expected = ALWAYS - ({"skmem"} if "m" not in options else set())
        assert expected <= set(mine)
        assert expected <= set(kernels)
        assert set(mine) ^ set(kernels) <= SOMETIMES
        both = [word for word in mine if word in kernels]
        assert both == [word for word in kernels if word in mine]
        assert {word: mine[word] for word in both} == {word: kernels[word] for word in both}

    side_by_side(compare)


def laid_out(text: str) -> list[str]:
    """The lines of `ss -tiemoanp`, with 9 for every number, without the words that one end alone may have, sorted by socket."""
    sockets: list[str] = []
    for line in text.splitlines():
        line = re.sub(r" cgroup:\S+", "", line)  # the kernel's
        line = re.sub(r'\("[^"]+",pid=\d+,fd=-?\d+\)', '("name",pid=9,fd=9)', line)
        if line.startswith("\t"):
            for word in VALUED:
                line = re.sub(rf"(?<!\S){word} (?=\d)", f"{word}:", line)
            line = re.sub(r" \w+ cwnd:", " name cwnd:", line) if "wscale" not in line else line  # a listener has the machine's default
            line = re.sub(rf" (?:{'|'.join(SOMETIMES)})(?::\S+)?(?= |$)", "", line)
            line = re.sub(r"9(\.9+)?(e[+-]?9+)?", "9", re.sub(r"\d+", "9", line))
            sockets[-1] += "\n" + line.rstrip()  # lines are filled up to the longest, which is each end's own
        else:
            # addresses and queues stay: of both ends they are alike
            line = re.sub(r"(timer:\(keepalive,)[^,]+", r"\g<1>9min", line)
            sockets.append(re.sub(r"(ino:)\d+( sk:)[0-9a-f]+", r"\g<1>9\g<2>9", line).rstrip())
    return sorted(sockets)


def test_all_of_ss_at_once_is_laid_out_to_the_character_as_the_real_one(program: Program) -> None:
    program("ss")

    async def compare(p: Pair) -> None:
        mine, kernels = laid_out(mirrored(await ours("ss", "-tiemoanp"), p.testbed)), laid_out(await theirs(p.testbed, "ss", "-tiemoanp"))
        assert len(mine) == 4  # heading, listener, two connections
        assert mine == kernels

    side_by_side(compare)


def test_what_stands_behind_an_address_has_the_same_shape(program: Program) -> None:
    program("ss")

    async def compare(p: Pair) -> None:
        shapes = []
        for text in (await ours("ss", "-tanep"), await theirs(p.testbed, "ss", "-tanep")):
            lines = {line.split()[3]: line.split(None, 5)[5].strip() for line in text.splitlines()[1:]}
            line = next(rest for address, rest in lines.items() if address.endswith(f":{OUR_PORT}"))
            # cgroups are the kernel's; the name, numbers and hexadecimal cookie are each one's own
            line = re.sub(r" cgroup:\S+", "", line)
            line = re.sub(r'\("[^"]+"', '("name"', line)
            shapes.append(re.sub(r"(?<=sk:)[0-9a-f]+|(?<=[=:,])-?\d+", "9", line))
        assert shapes == 2 * ['users:(("name",pid=9,fd=9)) timer:(keepalive,9min,9) ino:9 sk:9 <->']

    side_by_side(compare)


def test_every_fact_as_json() -> None:
    async def check(p: Pair) -> None:
        [facts] = json.loads(await ours("ss", "-tj", "sport", "=", str(OUR_PORT)))
        assert (facts["local"], facts["local_port"], facts["remote"], facts["remote_port"]) == (p.address(4), OUR_PORT, p.peer(4), PORT)
        assert (facts["info"]["bytes_received"], facts["pid"]) == (3000, os.getpid())

    side_by_side(check)


# --- ip ---


def test_neighbours_know_each_other(program: Program) -> None:
    program("ip")

    async def compare(p: Pair) -> None:
        for options in ([], ["-s"]):
            lines = []
            for text in (await ours("neigh", *options, "show", p.peer(4)), await theirs(p.testbed, "ip", *options, "neigh", "show", p.address(4))):
                [line] = text.splitlines()
                # ref: who else holds the entry, which here is nobody's business
                line = re.sub(r" ref \d+", "", line)
                lines.append(re.sub(r"(lladdr )\S+|(used )\S+?(?=probes)|(probes )\d+|\b[A-Z]+\b", lambda m: next(filter(None, m.groups()), "STATE"), line))
            assert mirrored(lines[0], p.testbed) == lines[1]
        [mine] = json.loads(await ours("neigh", "-s", "-j", "show", p.peer(4)))
        [kernels] = json.loads(await theirs(p.testbed, "ip", "-s", "-j", "neigh", "show", p.address(4)))
        kernels.pop("refcnt", None)
        assert list(mine) == list(kernels)
        assert mine["lladdr"] == json.loads(await theirs(p.testbed, "ip", "-j", "link", "show", "dev", "tap0"))[0]["address"]

    side_by_side(compare)


@pytest.mark.parametrize("family", ["-4", "-6"])
def test_routes_are_mirror_images(program: Program, family: str) -> None:
    program("ip")

    async def compare(p: Pair) -> None:
        mine, kernels = await ours("route", family), await theirs(p.testbed, "ip", family, "route")
        # how the testbed chooses the kernel's congestion control where it may not be set for all
        kernels = kernels.replace("congctl cubic ", "")
        assert mirrored(mine, p.testbed) == kernels
        listed = json.loads(await theirs(p.testbed, "ip", family, "-j", "route"))
        for route in listed:
            route.pop("metrics", None)
        assert json.loads(mirrored(await ours("route", family, "-j"), p.testbed)) == listed

    side_by_side(compare)


def test_links_have_the_same_lines(program: Program) -> None:
    program("ip")

    async def compare(p: Pair) -> None:
        mine = (await ours("link", "-s", "show", "tap0")).splitlines()
        kernels = (await theirs(p.testbed, "ip", "-s", "link", "show", "tap0")).splitlines()
        shape = r"(?<=qdisc )\S+|(?<=state )\S+|(?<=qlen )\d+|(?<=ether )\S+|(?<=mtu )\d+"
        assert [re.sub(shape, "X", line) for line in mine[:2]] == [re.sub(shape, "X", line) for line in kernels[:2]]
        # the columns are the same ones at the same places
        assert (mine[2], mine[4]) == (kernels[2], kernels[4])
        for place in (3, 5):
            ends = [[match.end() for match in re.finditer(r"\d+", lines[place])] for lines in (mine, kernels)]
            assert ends[0] == ends[1]
        [counted] = json.loads(await ours("link", "-s", "-j", "tap0"))
        [reference] = json.loads(await theirs(p.testbed, "ip", "-s", "-j", "link", "show", "tap0"))
        assert list(counted) == [key for key in reference if key in counted]
        assert set(reference) - set(counted) <= {"link_index", "link_netnsid"}
        assert {way: list(counts) for way, counts in counted["stats64"].items()} == {way: list(counts) for way, counts in reference["stats64"].items()}
        # what one end has sent the other has received, give or take a packet between the two looks
        assert abs(counted["stats64"]["rx"]["packets"] - reference["stats64"]["tx"]["packets"]) <= 5
        assert abs(counted["stats64"]["tx"]["bytes"] - reference["stats64"]["rx"]["bytes"]) <= 1000

    side_by_side(compare)


def test_addresses_have_the_same_lines(program: Program) -> None:
    program("ip")

    async def compare(p: Pair) -> None:
        def about(text: str, *addresses: str) -> list[str]:
            lines = text.splitlines()
            wanted = [number for number, line in enumerate(lines) if any(f" {address}/" in line for address in addresses)]
            # nodad: how the testbed set the kernel's up; the others: what newer tools say as well
            return [re.sub(r" nodad| noprefixroute| proto \w+", "", part) for number in wanted for part in lines[number : number + 2]]

        mine, kernels = await ours("addr"), await theirs(p.testbed, "ip", "addr")
        found = about(mine, p.address(4), p.address(6), "127.0.0.1")
        assert [mirrored(line, p.testbed) for line in found] == about(kernels, p.peer(4), p.peer(6), "127.0.0.1")
        assert len(found) == 6

    side_by_side(compare)


# --- nstat and sysctl ---


def test_counters_stand_in_the_kernels_order_and_columns(program: Program) -> None:
    program("nstat")

    async def compare(p: Pair) -> None:
        mine = (await ours("nstat", "-az")).splitlines()
        kernels = (await theirs(p.testbed, "nstat", "-az")).splitlines()
        assert mine[0] == kernels[0] == "#kernel"
        names, reference = ([line.split()[0] for line in lines[1:]] for lines in (mine, kernels))
        both = [name for name in names if name in set(reference)]
        assert both == [name for name in reference if name in set(names)]
        assert len(both) > 200
        line = re.compile(r"(?=.{32}\d)\S+ +(?=\d+ +0\.0$)(?=.{19}0\.0$)\d+ +0\.0")
        for one in (*mine[1:], *kernels[1:]):
            assert len(one) == 54
            assert line.fullmatch(one), one
        counted = json.loads(await ours("nstat", "-aj"))["kernel"]
        assert counted["TcpPassiveOpens"] == counted["TcpActiveOpens"] == 1
        assert counted["TcpInSegs"] > 4

    side_by_side(compare)


def test_settings_of_equal_value_are_equal_lines(program: Program) -> None:
    program("sysctl")

    async def compare(p: Pair) -> None:
        mine, kernels = (
            {line.split(" = ")[0]: line for line in text.splitlines()} for text in (await ours("sysctl", "-a"), await theirs(p.testbed, "sysctl", "-a"))
        )
        both = set(mine) & set(kernels)
        same = {name for name in both if mine[name].split("=")[1].split() == kernels[name].split("=")[1].split()}
        assert {name: mine[name] for name in same} == {name: kernels[name] for name in same}
        assert {"net.ipv4.ip_local_port_range", "net.ipv4.tcp_sack"} <= same
        assert len(same) > 50

    side_by_side(compare)


def test_a_setting_written_from_outside_changes_what_is_sent() -> None:
    async def check(p: Pair) -> None:
        assert await ours("sysctl", "-w", "net.ipv4.tcp_timestamps=0") == "net.ipv4.tcp_timestamps = 0\n"
        async with p.pytcp_connects(4) as (kernel, _):
            assert not kernel.options & 1
        assert await ours("sysctl", "-w", "net.ipv4.tcp_ecn=99", status=1) == ""
        assert p.stack.net.sysctl.tcp_ecn == 2

    side_by_side(check)


def test_two_calls_of_nstat_show_what_happened_between_them() -> None:
    async def check(p: Pair) -> None:
        await ours("nstat", "-n")
        async with p.pytcp_connects(4):
            pass
        assert "TcpActiveOpens                  1                  0.0" in await ours("nstat")
        assert "TcpActiveOpens" not in await ours("nstat")

    side_by_side(check)


def test_the_prometheus_page_has_each_connection() -> None:
    async def check(p: Pair) -> None:
        page = await ours("nstat", "--prometheus", "--connections")
        assert (
            f'pytcp_tcp_received_bytes_total{{local="{p.address(4)}:{OUR_PORT}",remote="{p.peer(4)}:{PORT}",state="established",congestion="cubic"}} 3000\n'
            in page
        )
        assert "\npytcp_netstat_Tcp_CurrEstab 2\n" in page

    side_by_side(check)
