"""Names over our own UDP and TCP, with the answers and the error codes of the C library."""

from __future__ import annotations

import os
import socket as stdlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import dns.message
import dns.rcode
import pytest
import trio

from pytcp.sockets.resolver import EAI_NODATA, Resolver

from .nameserver import NameServer, a_records
from .streams import A4, B4, B6, World, simulate

AF_INET, AF_INET6 = int(stdlib.AF_INET), int(stdlib.AF_INET6)
STREAM = int(stdlib.SOCK_STREAM)
RECORDS = {
    ("both.example", "A"): a_records("both.example", "10.0.0.7", "192.0.2.7"),
    ("both.example", "AAAA"): a_records("both.example", "fd00::7", kind="AAAA"),
    ("four.example", "A"): a_records("four.example", "10.0.0.8"),
    ("alias.example", "A"): ["alias.example. 60 IN CNAME middle.example.", "middle.example. 60 IN CNAME four.example.", *a_records("four.example", "10.0.0.8")],
    ("many.example", "A"): a_records("many.example", *(f"10.0.0.{n}" for n in range(100, 180))),
    ("empty.example", "MX"): [],
    ("www.home.lan", "A"): a_records("www.home.lan", "10.0.0.9"),
    ("a.b.home.lan", "A"): a_records("a.b.home.lan", "10.0.0.10"),
    ("5.0.0.10.in-addr.arpa", "PTR"): ["5.0.0.10.in-addr.arpa. 60 IN PTR five.home.lan."],
}
HOSTS = """
127.0.0.1  localhost   # comment
::1        localhost ip6-localhost
10.0.0.20  files.example Files
fd00::20   files.example
10.0.0.21
nonsense   name
"""


class Setup:
    """A resolver on host a, and a name server on host b."""

    def __init__(self, world: World, folder: Path, server: NameServer) -> None:
        self.world = world
        self.server = server
        self.hosts = folder / "hosts"
        self.conf = folder / "resolv.conf"
        self.hosts.write_text(HOSTS)
        self.conf.write_text(f"nameserver {B4}\nsearch home.lan other.lan\noptions timeout:2 attempts:2\n")
        self.environ: dict[str, str] = {}
        self.resolver = Resolver(world.a, hosts=str(self.hosts), resolv_conf=str(self.conf), environ=self.environ)

    async def addresses(self, name: str, family: int = 0, flags: int = 0) -> list[str]:
        return [info[4][0] for info in await self.resolver.getaddrinfo(name, 80, family, STREAM, 0, flags)]

    async def failure(self, name: str | bytes | None, family: int = 0, flags: int = 0, port: int | str | None = 80, kind: int = STREAM) -> int | None:
        with pytest.raises(stdlib.gaierror) as caught:
            await self.resolver.getaddrinfo(name, port, family, kind, 0, flags)
        return caught.value.errno


@pytest.fixture
def names(tmp_path: Path) -> Callable[[Callable[[Setup], Awaitable[None]]], None]:
    def run(program: Callable[[Setup], Awaitable[None]]) -> None:
        async def main(world: World) -> None:
            server = NameServer(RECORDS, rcodes={"broken.example": dns.rcode.SERVFAIL, "refused.example": dns.rcode.REFUSED, "form.example": dns.rcode.FORMERR})
            async with trio.open_nursery() as nursery:
                await nursery.start(server.serve, world.b)
                await program(Setup(world, tmp_path, server))
                nursery.cancel_scope.cancel()

        simulate(main)

    return run


Run = Callable[[Callable[[Setup], Awaitable[None]]], None]


def test_a_name_has_its_addresses_of_both_families(names: Run) -> None:
    async def program(s: Setup) -> None:
        assert sorted(await s.addresses("both.example")) == ["10.0.0.7", "192.0.2.7", "fd00::7"]
        assert await s.addresses("both.example", AF_INET6) == ["fd00::7"]
        assert sorted(await s.addresses("both.example", AF_INET)) == ["10.0.0.7", "192.0.2.7"]
        assert {kind for _, kind, _ in s.server.asked[:2]} == {"A", "AAAA"}
        infos = await s.resolver.getaddrinfo(b"four.example", "http")
        assert infos[0] == (stdlib.AF_INET, stdlib.SOCK_STREAM, 6, "", ("10.0.0.8", 80))

    names(program)


def test_an_address_the_stack_cannot_reach_is_tried_last(names: Run) -> None:
    """RFC 6724 rule 1: 192.0.2.7 has no route; then rule 6: our ULA prefix is below IPv4 in the policy table."""

    async def program(s: Setup) -> None:
        assert await s.addresses("both.example") == ["10.0.0.7", "fd00::7", "192.0.2.7"]

    names(program)


def test_the_hosts_file_comes_first_and_is_followed_when_it_changes(names: Run) -> None:
    async def program(s: Setup) -> None:
        assert sorted(await s.addresses("FILES.example")) == ["10.0.0.20", "fd00::20"]
        assert await s.addresses("Files", AF_INET) == ["10.0.0.20"]
        assert sorted(await s.addresses("localhost")) == ["127.0.0.1", "::1"]
        assert not s.server.asked
        s.hosts.write_text("10.0.0.99 files.example\n")
        os.utime(s.hosts, ns=(1, 1))
        assert await s.addresses("files.example") == ["10.0.0.99"]

    names(program)


def test_aliases_are_followed_to_the_canonical_name(names: Run) -> None:
    async def program(s: Setup) -> None:
        infos = await s.resolver.getaddrinfo("alias.example", 80, AF_INET, STREAM, 0, int(stdlib.AI_CANONNAME))
        assert [(info[3], info[4][0]) for info in infos] == [("four.example", "10.0.0.8")]
        infos = await s.resolver.getaddrinfo("files", 80, AF_INET, STREAM, 0, int(stdlib.AI_CANONNAME))
        assert infos[0][3] == "files.example"

    names(program)


def test_an_answer_too_long_for_a_datagram_comes_by_tcp(names: Run) -> None:
    async def program(s: Setup) -> None:
        found = await s.addresses("many.example", AF_INET)
        assert sorted(found) == sorted(f"10.0.0.{n}" for n in range(100, 180))
        assert [transport for _, _, transport in s.server.asked] == ["udp", "tcp"]

    names(program)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("missing.example", stdlib.EAI_NONAME),
        ("empty.example", EAI_NODATA),
        ("broken.example", stdlib.EAI_AGAIN),
        ("refused.example", stdlib.EAI_AGAIN),
        ("form.example", stdlib.EAI_FAIL),
        ("two..dots.example", stdlib.EAI_NONAME),
        ("x" * 64 + ".example", stdlib.EAI_NONAME),
    ],
)
def test_what_a_server_says_is_told_as_the_c_library_tells_it(names: Run, name: str, code: int) -> None:
    async def program(s: Setup) -> None:
        s.conf.write_text(f"nameserver {B4}\n")
        assert await s.failure(name) == code

    names(program)


def test_arguments_that_make_no_sense_are_refused_without_asking_anybody(names: Run) -> None:
    async def program(s: Setup) -> None:
        assert await s.failure("four.example", port="no-such-service") == stdlib.EAI_SERVICE
        assert await s.failure("four.example", family=99) == stdlib.EAI_FAMILY
        assert await s.failure("four.example", kind=99) == stdlib.EAI_SOCKTYPE
        assert await s.failure("four.example", flags=1 << 30) == stdlib.EAI_BADFLAGS
        assert await s.failure("four.example", flags=int(stdlib.AI_NUMERICHOST)) == stdlib.EAI_NONAME
        assert await s.failure(None, port=None) == stdlib.EAI_NONAME
        assert await s.failure("10.0.0.1", family=AF_INET6) is not None
        assert await s.failure(b"\xff\xfe") == stdlib.EAI_NONAME
        assert not s.server.asked

    names(program)


def test_the_search_list_is_used_before_or_after_the_name_itself_by_its_dots(names: Run) -> None:
    async def program(s: Setup) -> None:
        assert await s.addresses("www", AF_INET) == ["10.0.0.9"]
        assert [name for name, _, _ in s.server.asked] == ["www.home.lan"]
        s.server.asked.clear()
        assert await s.addresses("a.b", AF_INET) == ["10.0.0.10"]
        assert [name for name, _, _ in s.server.asked] == ["a.b", "a.b.home.lan"]
        s.server.asked.clear()
        s.environ["RES_OPTIONS"] = "ndots:2"
        s.conf.write_text(f"nameserver {B4}\ndomain home.lan\n# again\n")
        assert await s.addresses("a.b", AF_INET) == ["10.0.0.10"]
        assert [name for name, _, _ in s.server.asked] == ["a.b.home.lan"]
        s.server.asked.clear()
        assert await s.failure("www.", AF_INET) == stdlib.EAI_NONAME
        assert [name for name, _, _ in s.server.asked] == ["www"]

    names(program)


def test_a_server_that_refuses_connections_is_followed_by_the_next_at_once(names: Run) -> None:
    async def program(s: Setup) -> None:
        s.conf.write_text(f"nameserver {A4}\nnameserver {B4}\n")  # nobody listens on our own port 53
        start = trio.current_time()
        assert await s.addresses("four.example", AF_INET) == ["10.0.0.8"]
        assert trio.current_time() - start < 1

    names(program)


def test_silent_servers_are_asked_attempts_times_with_the_timeout_doubled(names: Run) -> None:
    async def program(s: Setup) -> None:
        s.server.silent.add("four.example")
        start = trio.current_time()
        assert await s.failure("four.example.", AF_INET) == stdlib.EAI_AGAIN
        assert trio.current_time() - start == pytest.approx(2 + 4, abs=0.01)
        assert len(s.server.asked) == 2

    names(program)


def test_with_two_silent_servers_the_second_round_is_shared_among_them(names: Run) -> None:
    async def program(s: Setup) -> None:
        s.server.silent.add("four.example")
        s.conf.write_text(f"nameserver {B4}\nnameserver {B6}\noptions timeout:3\n")
        start = trio.current_time()
        assert await s.failure("four.example.", AF_INET) == stdlib.EAI_AGAIN
        assert trio.current_time() - start == pytest.approx(3 + 3 + 3 + 3, abs=0.01)  # 2 * 3 s over 2 servers
        assert len(s.server.asked) == 4

    names(program)


def test_only_the_answer_to_our_question_counts(names: Run) -> None:
    def forge(query: dns.message.Message) -> list[bytes]:
        wrong_id = dns.message.make_response(query)
        wrong_id.id ^= 1
        other = dns.message.make_response(dns.message.make_query("other.example", "A", id=query.id))
        return [b"", b"\0" * 12, wrong_id.to_wire(), other.to_wire(), query.to_wire()]

    async def program(s: Setup) -> None:
        s.server.forge = forge
        assert await s.addresses("four.example", AF_INET) == ["10.0.0.8"]

    names(program)


def test_each_query_has_a_port_and_an_id_of_its_own(names: Run) -> None:
    async def program(s: Setup) -> None:
        ids: list[int] = []
        s.server.forge = lambda query: ids.append(query.id) or []  # type: ignore[func-returns-value]
        for _ in range(8):
            await s.addresses("both.example")
        assert len(set(ids)) == 16  # of 65536: two alike once in 500 seeds

    names(program)


def test_mapped_addresses_are_given_when_there_are_no_others_or_all_are_wanted(names: Run) -> None:
    async def program(s: Setup) -> None:
        mapped, every = int(stdlib.AI_V4MAPPED), int(stdlib.AI_V4MAPPED | stdlib.AI_ALL)
        assert await s.failure("four.example", AF_INET6) == EAI_NODATA
        assert await s.addresses("four.example", AF_INET6, mapped) == ["::ffff:10.0.0.8"]
        assert await s.addresses("both.example", AF_INET6, mapped) == ["fd00::7"]
        assert sorted(await s.addresses("both.example", AF_INET6, every)) == ["::ffff:10.0.0.7", "::ffff:192.0.2.7", "fd00::7"]

    names(program)


def test_addrconfig_leaves_out_families_the_stack_has_no_address_of(names: Run) -> None:
    async def program(s: Setup) -> None:
        dev = s.world.a.net.interface(s.world.link_a.name)
        s.world.a.net.remove_address(dev, f"{A4}/24")
        s.resolver = Resolver(s.world.a, nameservers=[B6], hosts=str(s.hosts), resolv_conf=str(s.conf), environ={})
        assert await s.addresses("both.example", flags=int(stdlib.AI_ADDRCONFIG)) == ["fd00::7"]
        assert {kind for _, kind, _ in s.server.asked} == {"AAAA"}

    names(program)


def test_names_of_addresses(names: Run) -> None:
    async def program(s: Setup) -> None:
        look = s.resolver.getnameinfo
        assert await look(("10.0.0.20", 80), 0) == ("files.example", "http")
        assert await look(("10.0.0.5", 81), int(stdlib.NI_NUMERICSERV)) == ("five.home.lan", "81")
        assert await look(("10.0.0.5", 80), int(stdlib.NI_NOFQDN)) == ("five", "http")
        assert await look(("10.0.0.6", 80), 0) == ("10.0.0.6", "http")
        assert await look(("10.0.0.20", 80), int(stdlib.NI_NUMERICHOST)) == ("10.0.0.20", "http")
        with pytest.raises(stdlib.gaierror) as caught:
            await look(("10.0.0.6", 80), int(stdlib.NI_NAMEREQD))
        assert caught.value.errno == stdlib.EAI_NONAME

    names(program)


def test_a_cancelled_look_up_leaves_no_socket_behind(names: Run) -> None:
    async def program(s: Setup) -> None:
        s.server.silent.add("four.example")
        before = len(s.world.a._sockets)
        with trio.move_on_after(1) as scope:
            await s.addresses("four.example")
        assert scope.cancelled_caught
        assert len(s.world.a._sockets) == before

    names(program)
