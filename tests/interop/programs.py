"""Unmodified trio programs on pytcp with the kernel at the other end: what their tests share."""

from __future__ import annotations

import contextlib
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import trio
import trustme

from pytcp.lab.testbed import Testbed
from pytcp.sockets.factory import SocketFactory, patched_stdlib, use_stack
from pytcp.sockets.resolver import Resolver
from tests.sim.nameserver import NameServer

from .exchange import Pair, pair, pattern

SIZE = 2 << 20
BODY = pattern(SIZE, 7)


@contextlib.asynccontextmanager
async def on_pytcp(testbed: Testbed, *, hosts: Path | None = None) -> AsyncIterator[tuple[Pair, SocketFactory]]:
    """A stack that is trio's network; the peer's kernel is its name server."""
    async with pair(testbed) as p:
        resolver = Resolver(p.stack, nameservers=[testbed.peer4], hosts=str(hosts or "/dev/null"), resolv_conf="/dev/null", environ={})
        with use_stack(p.stack, resolver=resolver) as factory:
            yield p, factory


def kernel_listener(p: Pair, family: int, address: tuple[str, int]) -> trio.SocketListener:
    """A listener of the kernel in the peer's namespace."""
    sock = p.testbed.socket(trio.socket.AF_INET if family == 4 else trio.socket.AF_INET6)
    sock.bind(address)
    sock.listen()
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def adopting(factory: SocketFactory) -> contextlib.AbstractContextManager[None]:
    """For programs that make their listeners of the standard library's sockets."""
    return patched_stdlib(factory)


async def kernel_nameserver(p: Pair, server: NameServer, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Answer queries on the kernel's UDP and TCP port 53."""
    udp = trio.socket.from_stdlib_socket(p.testbed.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM))
    await udp.bind((p.testbed.peer4, 53))
    listener = kernel_listener(p, 4, (p.testbed.peer4, 53))

    async def by_tcp(stream: trio.abc.Stream) -> None:
        received = bytearray()
        while data := await stream.receive_some():
            received += data
            if len(received) >= 2 and len(received) == 2 + int.from_bytes(received[:2], "big"):
                answer = server.answer(bytes(received[2:]), "tcp") or b""
                await stream.send_all(len(answer).to_bytes(2, "big") + answer)
                received.clear()

    with udp:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, by_tcp, [listener])
            task_status.started()
            while True:
                wire, who = await udp.recvfrom(65535)
                answer = server.answer(wire, "udp")
                if answer is not None:
                    await udp.sendto(answer, who)


@functools.cache
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(*names: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority().issue_cert(*names).configure_cert(context)
    return context


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority().configure_trust(context)
    return context


def certificate_files(folder: Path, *names: str) -> tuple[Path, Path, Path]:
    """(certificate, key, authority) as files."""
    certificate = authority().issue_cert(*names)
    cert, key, root = folder / "cert.pem", folder / "key.pem", folder / "root.pem"
    certificate.cert_chain_pems[0].write_to_path(str(cert))
    certificate.private_key_pem.write_to_path(str(key))
    authority().cert_pem.write_to_path(str(root))
    return cert, key, root


def run(program: Callable[[Pair, SocketFactory, trio.Nursery], Awaitable[None]]) -> None:
    """Run a program on a testbed; the nursery is cancelled when it returns."""

    async def main() -> None:
        async with on_pytcp(testbed) as (p, factory), trio.open_nursery() as nursery:
            await program(p, factory, nursery)
            nursery.cancel_scope.cancel()

    with Testbed() as testbed:
        trio.run(main)
