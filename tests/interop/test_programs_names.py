"""Names and datagrams with the kernel at the other end."""

from __future__ import annotations

import socket as stdlib

import pytest
import trio

from pytcp.sockets.factory import SocketFactory
from tests.sim.nameserver import NameServer, a_records

from .exchange import Pair
from .programs import kernel_listener, kernel_nameserver, run

pytestmark = pytest.mark.tap


def test_names_are_looked_up_at_a_server_on_the_kernel_by_udp_and_by_tcp_when_truncated() -> None:
    many = [f"10.99.0.{n}" for n in range(100, 200)]

    async def main(p: Pair, factory: SocketFactory, nursery: trio.Nursery) -> None:
        server = NameServer(
            {
                ("peer.example", "A"): a_records("peer.example", p.peer(4)),
                ("peer.example", "AAAA"): a_records("peer.example", p.peer(6), kind="AAAA"),
                ("many.example", "A"): a_records("many.example", *many),
            }
        )
        await nursery.start(kernel_nameserver, p, server)
        infos = await trio.socket.getaddrinfo("peer.example", 80, type=stdlib.SOCK_STREAM)
        assert {info[4][0] for info in infos} == {p.peer(4), p.peer(6)}
        infos = await trio.socket.getaddrinfo("many.example", 80, family=stdlib.AF_INET, type=stdlib.SOCK_STREAM)
        assert sorted(info[4][0] for info in infos) == sorted(many)
        assert ("many.example", "A", "tcp") in server.asked
        with pytest.raises(stdlib.gaierror) as caught:
            await trio.socket.getaddrinfo("missing.example", 80)
        assert caught.value.errno == stdlib.EAI_NONAME
        listener = kernel_listener(p, 4, (p.peer(4), 8000))
        async with listener, await trio.open_tcp_stream("peer.example", 8000) as stream:
            assert stream.socket.getpeername()[0] in (p.peer(4), p.peer(6))

    run(main)


@pytest.mark.parametrize("family", [4, 6])
def test_a_trio_datagram_socket_and_the_kernels_exchange_datagrams_and_errors(family: int) -> None:
    async def main(p: Pair, factory: SocketFactory, nursery: trio.Nursery) -> None:
        kind = stdlib.AF_INET if family == 4 else stdlib.AF_INET6
        ours = trio.socket.socket(kind, stdlib.SOCK_DGRAM)
        await ours.bind((p.address(family), 5000))
        theirs = trio.socket.from_stdlib_socket(p.testbed.socket(kind, stdlib.SOCK_DGRAM))
        with theirs:
            await theirs.bind((p.peer(family), 5001))
            for size in (0, 1, 1472, 20_000):
                await theirs.sendto(bytes(size), (p.address(family), 5000))
                data, who = await ours.recvfrom(65535)
                assert (len(data), who[:2]) == (size, (p.peer(family), 5001))
                await ours.sendto(data, who)
                assert len(await theirs.recv(65535)) == size
            await ours.connect((p.peer(family), 5001))
        await ours.send(b"too late")
        with pytest.raises(ConnectionRefusedError):
            await ours.recv(10)

    run(main)
