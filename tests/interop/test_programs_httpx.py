"""httpx on pytcp: HTTP/1.1, HTTP/2 and TLS against servers on the kernel, names included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trio

from pytcp.sockets import http
from pytcp.sockets.factory import SocketFactory
from tests.sim.nameserver import NameServer, a_records

from .exchange import Pair
from .programs import BODY, client_context, kernel_listener, kernel_nameserver, run, server_context

pytestmark = pytest.mark.tap

Program = Callable[[str], str]
NAME = "peer.example"


def test_httpx_fetches_by_name_from_nginx(program: Program, tmp_path: Path) -> None:
    nginx = program("nginx")
    (tmp_path / "file").write_bytes(BODY)
    tmp_path.chmod(0o755)
    config = tmp_path / "nginx.conf"

    async def main(p: Pair, factory: SocketFactory, nursery: trio.Nursery) -> None:
        records = {(NAME, "A"): a_records(NAME, p.peer(4)), (NAME, "AAAA"): a_records(NAME, p.peer(6), kind="AAAA")}
        await nursery.start(kernel_nameserver, p, NameServer(records))
        config.write_text(
            f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; user root; worker_processes 1; events {{}}\n"
            f"http {{ access_log off; server {{ listen {p.peer(4)}:80; listen [{p.peer(6)}]:80; root {tmp_path}; }} }}\n"
        )
        p.testbed.popen([nginx, "-c", str(config), "-e", str(tmp_path / "error.log")])
        while ":80 " not in p.testbed.ss("-tlnH"):
            await trio.sleep(0.02)
        async with httpx.AsyncClient(trust_env=False) as client:
            for host in (NAME, p.peer(4), f"[{p.peer(6)}]"):
                for _ in range(2):
                    response = await client.get(f"http://{host}/file")
                    assert (response.status_code, response.content) == (200, BODY)
            assert (await client.get(f"http://{NAME}/nothing")).status_code == 404
        assert p.stack.net.mib.TcpActiveOpens == 3

    run(main)


def test_httpx_over_tls_checks_the_name_and_reports_what_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BODY)

    async def main(p: Pair, factory: SocketFactory, nursery: trio.Nursery) -> None:
        listener = trio.SSLListener(kernel_listener(p, 4, (p.peer(4), 443)), server_context(p.peer(4)), https_compatible=True)
        nursery.start_soon(trio.serve_listeners, http.FileServer(tmp_path), [listener])
        async with httpx.AsyncClient(trust_env=False, verify=client_context()) as client:
            assert (await client.get(f"https://{p.peer(4)}/file")).content == BODY
            with pytest.raises(httpx.ConnectError):
                await client.get(f"http://{p.peer(4)}:9/")

    run(main)
