"""SSLStream in both roles, against OpenSSL's own programs on the kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from pytcp.sockets.factory import SocketFactory

from .exchange import Pair
from .programs import BODY, certificate_files, client_context, run, server_context

pytestmark = pytest.mark.tap

Program = Callable[[str], str]


@pytest.mark.parametrize("family", [4, 6])
def test_an_ssl_client_on_pytcp_fetches_from_openssl_s_server(program: Program, tmp_path: Path, family: int) -> None:
    openssl = program("openssl")
    (tmp_path / "file").write_bytes(BODY)

    async def main(p: Pair, factory: SocketFactory, nursery: trio.Nursery) -> None:
        cert, key, _ = certificate_files(tmp_path, p.peer(family))
        p.testbed.popen(
            [openssl, "s_server", "-accept", "4433", "-cert", str(cert), "-key", str(key), "-WWW", "-quiet", *(["-6"] if family == 6 else [])], cwd=tmp_path
        )
        while ":4433 " not in p.testbed.ss("-tlnH"):
            await trio.sleep(0.02)
        stream = await trio.open_ssl_over_tcp_stream(p.peer(family), 4433, ssl_context=client_context(), https_compatible=True)
        await stream.send_all(b"GET /file HTTP/1.0\r\n\r\n")
        received = bytearray()
        while data := await stream.receive_some():
            received += data
        assert received.endswith(b"\r\n\r\n" + BODY)
        await stream.aclose()

    run(main)


@pytest.mark.parametrize("family", [4, 6])
def test_an_ssl_server_on_pytcp_serves_openssl_s_client(program: Program, tmp_path: Path, family: int) -> None:
    openssl = program("openssl")

    async def backwards(stream: trio.SSLStream[trio.SocketStream]) -> None:
        received = bytearray()
        while not received.endswith(b"\n"):
            received += await stream.receive_some()
        await stream.send_all(bytes(reversed(received)))
        await stream.aclose()

    async def main(p: Pair, factory: SocketFactory, nursery: trio.Nursery) -> None:
        _, _, root = certificate_files(tmp_path, "unused")
        await nursery.start(functools.partial(trio.serve_ssl_over_tcp, backwards, 4433, server_context(p.address(family))))
        address = p.address(family)
        target = f"[{address}]:4433" if family == 6 else f"{address}:4433"
        line = b"0123456789" * 20_000 + b"\n"
        done = await p.testbed.run_async(
            [openssl, "s_client", "-connect", target, "-CAfile", str(root), "-verify_return_error", "-verify_ip", address, "-quiet", "-ign_eof"], data=line
        )
        assert done.stdout == line[::-1]

    run(main)
