"""The benchmark's services and the peer's programs, without a network of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import trio
from trio.testing import memory_stream_pair

from pytcp.lab import peer, services


def test_discard_reads_to_the_end() -> None:
    async def main() -> None:
        ours, theirs = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services.discard, ours)
            await theirs.send_all(bytes(3 << 20))
            await theirs.send_eof()

    trio.run(main)


def test_source_ends_when_the_peer_goes_away() -> None:
    async def main() -> None:
        ours, theirs = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services.source, ours)
            assert len(await theirs.receive_some(1000)) == 1000
            await theirs.aclose()

    trio.run(main)


def test_echo_returns_everything_and_then_the_end_of_file() -> None:
    async def main() -> None:
        ours, theirs = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services.echo, ours)
            await theirs.send_all(b"x" * 1000)
            await theirs.send_eof()
            received = b"".join([chunk async for chunk in theirs])
        assert received == b"x" * 1000

    trio.run(main)


def test_rpc_answers_whole_requests_only() -> None:
    async def main() -> None:
        ours, theirs = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services.rpc, ours)
            await theirs.send_all(bytes(services.RPC_SIZE - 1))
            with trio.move_on_after(0.02) as early:
                await theirs.receive_some(1)
            assert early.cancelled_caught
            await theirs.send_all(bytes(1 + services.RPC_SIZE))
            answered = 0
            while answered < 2 * services.RPC_SIZE:
                answered += len(await theirs.receive_some(1 << 20))
            assert answered == 2 * services.RPC_SIZE
            await theirs.send_eof()

    trio.run(main)


def run_peer(*arguments: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-I", peer.__file__, *arguments], capture_output=True, check=True, timeout=60)
    said: dict[str, object] = json.loads(done.stdout)
    return said


def test_the_peers_programs_against_the_services_over_the_kernels_loopback() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            ports = {}
            for service, handler in services.SERVICES.items():
                listeners = await nursery.start(trio.serve_tcp, handler, 0)
                ports[service] = str(listeners[0].socket.getsockname()[1])
            sent = await trio.to_thread.run_sync(run_peer, "tx", "127.0.0.1", ports[services.DISCARD], "0.1")
            assert isinstance(sent["bytes"], int)
            assert sent["bytes"] > 0
            received = await trio.to_thread.run_sync(run_peer, "rx", "127.0.0.1", ports[services.SOURCE], "0.1")
            assert isinstance(received["bytes"], int)
            assert received["bytes"] > 0
            echoed = await trio.to_thread.run_sync(run_peer, "many", "127.0.0.1", ports[services.ECHO], "7", "100000")
            assert (echoed["good"], echoed["bytes"]) == (7, 700_000)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_many_notices_bytes_that_are_not_those_it_sent() -> None:
    async def liar(stream: trio.SocketStream) -> None:
        received = b"".join([chunk async for chunk in stream])
        await stream.send_all(received[:-1] + bytes((received[-1] ^ 1,)))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, liar, 0)
            port = str(listeners[0].socket.getsockname()[1])
            said = await trio.to_thread.run_sync(run_peer, "many", "127.0.0.1", port, "3", "5000")
            assert said["good"] == 0
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_peers_web_server_serves_a_folder(tmp_path: Path) -> None:
    from pytcp.sockets import http

    (tmp_path / "file").write_bytes(bytes(range(256)) * 1000)
    server = subprocess.Popen([sys.executable, "-I", peer.__file__, "web", str(tmp_path), "127.0.0.1", "18099"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert json.loads(server.stdout.readline()) == {"ready": True}

        async def main() -> None:
            response = await http.get(trio.open_tcp_stream, "http://127.0.0.1:18099/file")
            assert response.body == bytes(range(256)) * 1000

        trio.run(main)
    finally:
        server.kill()
        server.communicate()
