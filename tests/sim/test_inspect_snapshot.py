"""What a snapshot says of two hosts that talk in virtual time: the facts `pytcp ss` and its family print."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from pytcp.net import snapshot
from pytcp.net.stack import Stack
from pytcp.sockets.address import AF_INET6
from pytcp.sockets.socket import IPPROTO_IPV6, IPV6_V6ONLY, Socket
from pytcp.wire.addr import parse_ip

from .streams import A4, A6, B4, B6, PORT, World, simulate

Facts = dict[str, Any]


def tcp(stack: Stack, **wanted: object) -> list[Facts]:
    """The TCP sockets of a stack for which some facts are as wanted."""
    return [facts for facts in snapshot.sockets(stack, ("tcp",)) if all(facts[key] == value for key, value in wanted.items())]


def test_everything_is_plain_json() -> None:
    async def program(two: World) -> None:
        client, server = await two.pair()
        await client.send_all(b"x" * 100)
        for net in (two.a.net, two.b.net):
            for facts in (
                list(snapshot.sockets(net)), snapshot.sockstat(net), snapshot.counters(net), snapshot.sysctls(net), snapshot.neighbours(net),
                snapshot.routes(net), snapshot.interfaces(net),
            ):  # fmt: skip
                assert json.dumps(facts)
        del server

    simulate(program)


def test_looking_changes_nothing() -> None:
    """The same conversation takes the same course whether somebody looks at it or not."""

    def course(look: bool) -> list[Any]:
        trace: list[Any] = []

        async def program(two: World) -> None:
            client, server = await two.pair()
            for size in range(1, 40_000, 3_001):
                await client.send_all(bytes(size))
                if look:
                    list(snapshot.sockets(two.a.net))
                    list(snapshot.sockets(two.b.net))
                while size:
                    size -= len(await server.receive_some())
            trace.extend(two.wire)

        simulate(program)
        return trace

    assert course(True) == course(False)


def test_a_connection_as_both_ends_see_it() -> None:
    async def program(two: World) -> None:
        client, server = await two.pair()
        await client.send_all(b"x" * 1000)
        await trio.sleep(0.1)
        [mine] = tcp(two.a.net)
        [theirs] = tcp(two.b.net, state="ESTABLISHED")
        assert (mine["local"], mine["remote"], mine["remote_port"]) == (A4, B4, PORT)
        assert (theirs["local"], theirs["local_port"], theirs["remote"], theirs["remote_port"]) == (B4, PORT, A4, mine["local_port"])
        assert (mine["recv_q"], mine["send_q"]) == (0, 0)
        assert (theirs["recv_q"], theirs["send_q"]) == (1000, 0)
        assert theirs["memory"]["rmem_alloc"] > 1000
        assert mine["info"]["bytes_acked"] == 1001, "the SYN counts"
        assert theirs["info"]["bytes_received"] == 1000
        assert mine["info"]["min_rtt"] == 2000, "1 ms each way"
        assert mine["congestion"] == "cubic"
        assert mine["fd"] is not None
        assert mine["timer"] is None
        assert await server.receive_some() == b"x" * 1000
        [theirs] = tcp(two.b.net, state="ESTABLISHED")
        assert theirs["recv_q"] == 0

    simulate(program)


def test_what_nobody_acknowledges_waits_and_has_a_timer() -> None:
    async def program(two: World) -> None:
        client, _server = await two.pair()
        two.link_b.rx = lambda frame: None
        await client.send_all(b"x" * 5000)
        await trio.sleep(2.0)
        [mine] = tcp(two.a.net)
        assert mine["send_q"] == 5000
        assert mine["timer"]["kind"] == "on"
        # probes at about 0.2, 0.4, 0.8, 1.6 s: three timeouts after one tail loss probe
        assert mine["timer"]["retrans"] == mine["info"]["retransmits"] == mine["info"]["backoff"] == 3
        assert 0 < mine["timer"]["ms"] <= mine["info"]["rto"] // 1000

    simulate(program)


def test_a_full_receiver_is_probed() -> None:
    async def program(two: World) -> None:
        client, _server = await two.pair()
        with trio.move_on_after(1.0):
            await client.send_all(bytes(50_000_000))
        await trio.sleep(3.0)
        [mine] = tcp(two.a.net)
        assert mine["timer"]["kind"] == "persist"
        assert mine["info"]["rwnd_limited"] > 0
        assert mine["info"]["notsent_bytes"] == mine["send_q"] > 0

    simulate(program)


def test_keepalive_is_a_timer() -> None:
    async def program(two: World) -> None:
        client, _server = await two.pair()
        client.socket.setsockopt(1, 9, 1)  # SO_KEEPALIVE
        client.socket.setsockopt(6, 4, 60)  # TCP_KEEPIDLE
        await trio.sleep(10)
        [mine] = tcp(two.a.net)
        assert mine["timer"]["kind"] == "keepalive"
        assert mine["timer"]["ms"] == 50_000

    simulate(program)


def test_a_listener_counts_who_waits() -> None:
    async def program(two: World) -> None:
        [listener] = await two.b.open_tcp_listeners(PORT, host=B4, backlog=16)
        for _ in range(2):
            await two.a.open_tcp_stream(B4, PORT)
        await trio.sleep(0.1)
        listening, *waiting = tcp(two.b.net)
        assert (listening["state"], listening["recv_q"], listening["send_q"], listening["remote"]) == ("LISTEN", 2, 16, "0.0.0.0")
        assert [facts["inode"] for facts in waiting] == [0, 0], "no program holds them yet"
        assert [facts["fd"] for facts in waiting] == [None, None]
        await listener.accept()
        listening, *both = tcp(two.b.net)
        assert listening["recv_q"] == 1
        assert sorted(facts["inode"] > 0 for facts in both) == [False, True]

    simulate(program)


def test_ipv4_on_an_ipv6_socket_shows_as_its_program_sees_it() -> None:
    async def program(two: World) -> None:
        socket = Socket(two.b, AF_INET6)
        socket.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
        socket.bind(("::", PORT))
        socket.listen(5)
        await two.a.open_tcp_stream(B4, PORT)
        await trio.sleep(0.1)
        for accept in (False, True):
            if accept:
                accepted, _ = socket.accept()
            listening, connection = tcp(two.b.net)
            assert (listening["family"], listening["local"], listening["v6only"]) == (6, "::", False)
            assert (connection["family"], connection["local"], connection["remote"]) == (6, f"::ffff:{B4}", f"::ffff:{A4}")
        accepted.close()

    simulate(program)


def test_half_open_and_closed_connections_show_with_their_timers() -> None:
    async def program(two: World) -> None:
        [listener] = await two.b.open_tcp_listeners(PORT, host=B6)
        await two.a.ping(B6)  # they know each other
        to_a = two.link_a.rx
        two.link_a.rx = lambda frame: None  # the SYN-ACK is lost
        async with trio.open_nursery() as nursery:
            streams: list[Any] = []

            async def connect() -> None:
                streams.append(await two.a.open_tcp_stream(B6, PORT))

            nursery.start_soon(connect)
            await trio.sleep(0.5)
            [opening] = tcp(two.a.net)
            assert (opening["state"], opening["send_q"], opening["timer"]["kind"]) == ("SYN_SENT", 1, "on")
            [_, half] = tcp(two.b.net)
            assert (half["state"], half["remote"], half["timer"]["kind"], half["timer"]["retrans"]) == ("SYN_RECV", A6, "on", 0)
            assert half["timer"]["ms"] == 501, "a second, less what has passed since the SYN arrived after 1 ms"
            assert "info" not in half
            assert snapshot.sockstat(two.b.net)["synrecv"] == 1
            two.link_a.rx = to_a
        [client] = streams
        server = await listener.accept()
        await client.aclose()
        await trio.sleep(0.1)
        [left] = tcp(two.a.net)
        assert (left["state"], left["timer"]["kind"]) == ("FIN_WAIT2", "timewait")
        [waiting] = tcp(two.b.net, state="CLOSE_WAIT")
        assert (waiting["shutdown"], waiting["recv_q"]) == (1, 1), "the FIN waits to be read"
        await server.aclose()
        await trio.sleep(0.1)
        [left] = tcp(two.a.net)
        assert (left["state"], left["timer"]["kind"], left["local"]) == ("TIME_WAIT", "timewait", A6)
        assert 59_800 <= left["timer"]["ms"] <= 60_000
        assert snapshot.sockstat(two.a.net)["timewait"] == 1

    simulate(program)


def test_datagram_endpoints() -> None:
    async def program(two: World) -> None:
        net = two.a.net
        bound = net.udp.socket(4)
        bound.bind(parse_ip(A4), 5353)
        connected = net.udp.socket(6)
        connected.connect(parse_ip(B6), 53)
        everywhere = net.udp.socket(6)
        everywhere.bind(b"", 6000)
        net.udp.socket(4)  # no port: not there
        first, *six = snapshot.sockets(net, ("udp",))
        assert (first["state"], first["local"], first["local_port"], first["remote"], first["remote_port"]) == ("CLOSE", A4, 5353, "0.0.0.0", 0)
        by_port = {facts["local_port"]: facts for facts in six}
        there = by_port.pop(6000)
        assert (there["local"], there["v6only"], there["state"]) == ("::", False, "CLOSE")
        [one] = by_port.values()
        assert (one["local"], one["remote"], one["remote_port"], one["state"], one["v6only"]) == (A6, B6, 53, "ESTABLISHED", True)
        assert first["memory"] == {"rmem_alloc": 0, "rcvbuf": 212992, "wmem_alloc": 0, "sndbuf": 212992, "forward_alloc": 0, "wmem_queued": 0}

    simulate(program)


def test_neighbours_age() -> None:
    async def program(two: World) -> None:
        await two.pair()
        await trio.sleep(1)
        [neigh] = snapshot.neighbours(two.a.net)
        assert (neigh["dst"], neigh["dev"], neigh["state"], neigh["router"]) == (B4, "pipe0", "REACHABLE", False)
        assert neigh["lladdr"] == two.link_b.mac.hex(":")
        assert 990 <= neigh["confirmed"] <= 1010

    simulate(program)


def test_routes_come_in_the_kernels_order() -> None:
    async def program(two: World) -> None:
        net = two.a.net
        # listed by `ip route` and `ip -6 route` on Linux 6.18 in the order asserted below
        for prefix in ("10.20.0.0/16", "10.20.5.0/24", "10.20.0.0/15", "10.20.0.0/24", "default"):
            net.add_route(prefix, via=B4)
        net.add_route("10.20.0.0/16", via=B4, metric=4)
        for prefix in ("default6", "fd09::/64", "fd09::8000:0:0:0/65", "fd09::/48", "fd09:0:0:1::/64", "fd0a::1/128", "fd00::/8"):
            net.add_route(prefix, via=B6)
        net.add_route("fd09::/64", via=B6, metric=10)
        net.add_route("10.8.0.0/16", kind="unreachable")
        routes = snapshot.routes(net)
        assert [(f"{route['dst']}/{route['prefixlen']}", route["metric"]) for route in routes] == [
            ("0.0.0.0/0", 0), ("10.0.0.0/24", 0), ("10.8.0.0/16", 0), ("10.20.0.0/24", 0), ("10.20.0.0/16", 0), ("10.20.0.0/16", 4), ("10.20.0.0/15", 0),
            ("10.20.5.0/24", 0),
            ("fd00::/64", 256), ("fd09::8000:0:0:0/65", 1024), ("fd09::/64", 10), ("fd09::/64", 1024), ("fd09:0:0:1::/64", 1024), ("fd09::/48", 1024),
            ("fd0a::1/128", 1024), ("fd00::/8", 1024), ("fe80::/64", 256), ("::/0", 1024),
        ]  # fmt: skip
        assert {route["dst"]: route["type"] for route in routes}["10.8.0.0"] == "unreachable"

    simulate(program)


def test_interfaces_count_and_list_their_addresses() -> None:
    async def program(two: World) -> None:
        client, server = await two.pair()
        await client.send_all(b"x" * 1000)
        await server.receive_some()
        net = two.a.net
        net.add_address(net.interfaces[1], "10.0.0.7/24")
        lo, eth = snapshot.interfaces(net)
        assert (lo["name"], lo["kind"], lo["mtu"]) == ("lo", "loopback", 65536)
        assert [entry["scope"] for entry in lo["addresses"]] == ["host", "host"]
        assert (eth["index"], eth["kind"], eth["address"]) == (2, "ether", two.link_a.mac.hex(":"))
        assert [(entry["address"], entry["scope"], entry.get("secondary")) for entry in eth["addresses"][:3]] == [
            (A4, "global", False), ("10.0.0.7", "global", True), (A6, "global", None),
        ]  # fmt: skip
        assert eth["tx"]["bytes"] == two.link_a.tx_bytes > 1000
        assert eth["tx"]["packets"] == net.interfaces[1].tx_packets

    simulate(program)


@pytest.mark.parametrize("protocols", [(), ("udp",)])
def test_only_what_was_asked_for(protocols: tuple[str, ...]) -> None:
    async def program(two: World) -> None:
        await two.pair()
        assert list(snapshot.sockets(two.a.net, protocols)) == []

    simulate(program)
