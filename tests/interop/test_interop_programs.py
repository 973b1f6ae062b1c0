"""Programs as people run them, against pytcp: curl, nginx, socat."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from pytcp.lab.testbed import Testbed
from pytcp.sockets import http

from .exchange import pair, pattern, read_all

pytestmark = pytest.mark.tap

SIZE = 8 << 20
Program = Callable[[str], str]


def url(address: str, port: int, path: str) -> str:
    return f"http://{f'[{address}]' if ':' in address else address}:{port}/{path}"


async def until_it_listens(tb: Testbed, port: int) -> None:
    """Wait for a server program in the peer's namespace."""
    with trio.fail_after(10):
        while f":{port} " not in tb.ss("-tlnH"):
            await trio.sleep(0.02)


@pytest.mark.parametrize("family", [4, 6])
def test_curl_fetches_a_file_a_range_of_it_and_two_over_one_connection(program: Program, tmp_path: Path, family: int) -> None:
    program("curl")
    data = pattern(SIZE, 3)
    (tmp_path / "file").write_bytes(data)

    async def main() -> None:
        async with pair(tb) as p, trio.open_nursery() as nursery:
            await nursery.start(p.stack.serve_tcp, http.FileServer(tmp_path), 80)
            where = url(p.address(family), 80, "file")
            whole = await tb.run_async(["curl", "-sSf", "--noproxy", "*", where])
            assert whole.stdout == data
            part = await tb.run_async(["curl", "-sSf", "--noproxy", "*", "-r", "1000-1999", where])
            assert part.stdout == data[1000:2000]
            before = p.stack.net.mib.TcpPassiveOpens
            twice = await tb.run_async(["curl", "-sSf", "--noproxy", "*", where, where])
            assert twice.stdout == data + data
            assert p.stack.net.mib.TcpPassiveOpens == before + 1
            nursery.cancel_scope.cancel()

    with Testbed() as tb:
        trio.run(main)


@pytest.mark.parametrize("family", [4, 6])
def test_we_fetch_from_nginx(program: Program, tmp_path: Path, family: int) -> None:
    nginx = program("nginx")
    data = pattern(SIZE, 4)
    (tmp_path / "file").write_bytes(data)
    tmp_path.chmod(0o755)
    config = tmp_path / "nginx.conf"

    async def main() -> None:
        async with pair(tb) as p:
            peer = p.peer(family)
            listen = f"[{peer}]:80" if family == 6 else f"{peer}:80"
            config.write_text(
                f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; user root; worker_processes 1; events {{}}\n"
                f"http {{ access_log off; sendfile on; gzip on; server {{ listen {listen}; root {tmp_path}; }} }}\n"
            )
            tb.popen([nginx, "-c", str(config), "-e", str(tmp_path / "error.log")])
            await until_it_listens(tb, 80)
            response = await http.get(p.stack.open_tcp_stream, url(peer, 80, "file"))
            assert response.status == 200
            assert response.body == data
            missing = await http.get(p.stack.open_tcp_stream, url(peer, 80, "nothing"))
            assert missing.status == 404

    with Testbed() as tb:
        trio.run(main)


def test_socat_shuts_down_writing_and_still_gets_the_answer(program: Program) -> None:
    program("socat")
    data = pattern(SIZE, 5)

    async def digest(stream: trio.abc.HalfCloseableStream) -> None:
        received = await read_all(stream)
        await stream.send_all(hashlib.sha256(received).hexdigest().encode())

    async def main() -> None:
        async with pair(tb) as p, trio.open_nursery() as nursery:
            await nursery.start(p.stack.serve_tcp, digest, 7000)
            done = await tb.run_async(["socat", "-t", "20", "-", f"TCP:{p.address(4)}:7000"], data=data)
            assert done.stdout.decode() == hashlib.sha256(data).hexdigest()
            nursery.cancel_scope.cancel()

    with Testbed() as tb:
        trio.run(main)


def test_we_shut_down_writing_towards_socat_and_still_get_the_answer(program: Program) -> None:
    program("socat")
    data = pattern(SIZE, 6)

    async def main() -> None:
        async with pair(tb) as p:
            tb.popen(["socat", "-t", "20", f"TCP6-LISTEN:7000,bind=[{p.peer(6)}]", "EXEC:sha256sum"])
            await until_it_listens(tb, 7000)
            async with await p.stack.open_tcp_stream(p.peer(6), 7000) as stream:
                await stream.send_all(data)
                await stream.send_eof()
                answer = await read_all(stream)
            assert answer.split()[0].decode() == hashlib.sha256(data).hexdigest()

    with Testbed() as tb:
        trio.run(main)
