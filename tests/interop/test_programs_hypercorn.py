"""hypercorn on pytcp, asked by curl on the kernel: HTTP/1.1, TLS, HTTP/2, and its own command line under `pytcp run`."""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import hypercorn.trio
import pytest
import trio
from hypercorn.config import Config

from pytcp.sockets.factory import SocketFactory

from .exchange import Pair
from .programs import BODY, adopting, certificate_files, run

pytestmark = pytest.mark.tap

Program = Callable[[str], str]
APPLICATION = '''
async def app(scope, receive, send):
    """Answers with the path and who asks."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = f"{scope['path']} {scope['client'][0]}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})
'''


async def digest(scope: Any, receive: Callable[[], Awaitable[dict[str, Any]]], send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """An ASGI application: the version of HTTP and the hash of the body."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    seen = hashlib.sha256()
    while True:
        message = await receive()
        seen.update(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"{scope['http_version']} {seen.hexdigest()}".encode()})


@pytest.mark.parametrize("family", [4, 6])
def test_hypercorn_takes_uploads_from_curl(program: Program, tmp_path: Path, family: int) -> None:
    curl = program("curl")

    async def main(p: Pair, factory: SocketFactory, nursery: trio.Nursery) -> None:
        config = Config()
        config.bind = ["[::]:0"]
        config.errorlog = None
        config.graceful_timeout = 0.5
        with adopting(factory):
            [url] = await nursery.start(functools.partial(hypercorn.trio.serve, digest, config))  # type: ignore[arg-type]
        port = url.rpartition(":")[2]
        host = f"[{p.address(6)}]" if family == 6 else p.address(4)
        done = await p.testbed.run_async([curl, "-sSf", "--noproxy", "*", "--data-binary", "@-", f"http://{host}:{port}/"], data=BODY)
        assert done.stdout.decode() == f"1.1 {hashlib.sha256(BODY).hexdigest()}"

    run(main)


def test_hypercorn_speaks_http2_over_tls(program: Program, tmp_path: Path) -> None:
    curl = program("curl")
    if b"HTTP2" not in subprocess.run([curl, "--version"], capture_output=True, check=True).stdout:
        pytest.skip("this curl has no HTTP/2")

    async def main(p: Pair, factory: SocketFactory, nursery: trio.Nursery) -> None:
        cert, key, root = certificate_files(tmp_path, p.address(4))
        config = Config()
        config.bind = ["0.0.0.0:0"]
        config.certfile, config.keyfile = str(cert), str(key)
        config.errorlog = None
        config.graceful_timeout = 0.5
        with adopting(factory):
            [url] = await nursery.start(functools.partial(hypercorn.trio.serve, digest, config))  # type: ignore[arg-type]
        target = f"https://{p.address(4)}:{url.rpartition(':')[2]}/"
        done = await p.testbed.run_async([curl, "-sSf", "--noproxy", "*", "--cacert", str(root), "--data-binary", "@-", target], data=BODY)
        assert done.stdout.decode() == f"2 {hashlib.sha256(BODY).hexdigest()}"

    run(main)


def test_the_hypercorn_command_runs_under_pytcp_run(program: Program, tmp_path: Path) -> None:
    program("curl")
    (tmp_path / "application.py").write_text(APPLICATION)
    # the peer asks as soon as it is answered, and then interrupts hypercorn as Ctrl-C does: when it is done with the connection, for an
    # interrupt that hits a connection's handler gets past hypercorn
    ask = "for i in $(seq 100); do curl -sf --noproxy '*' http://$PYTCP4:8000/hello && break; sleep 0.05; done; sleep 0.3; kill -INT $PPID"
    done = subprocess.run(
        [sys.executable, "-m", "pytcp", "run", "--peer", ask, "-m", "hypercorn", "-k", "trio", "-w", "0", "-b", "10.99.0.2:8000", "application:app"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "/hello 10.99.0.1", done.stderr
    assert done.returncode == 0, done.stderr
