"""The pytest fixtures for other people's programs, used as they would."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import trio

from pytcp.lab.pytest_plugin import KernelPeer, VirtualHosts
from pytcp.link.emulator import Impairment
from pytcp.sockets.factory import use_stack

MS = 1_000_000


async def download(client: Any, server: Any, size: int = 100_000) -> tuple[float, int]:
    """Seconds and bytes of a download over a fresh connection."""
    [listener] = await server.open_tcp_listeners(80, host="10.0.0.2")

    async def serve() -> None:
        stream = await listener.accept()
        await stream.send_all(bytes(size))
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        began = trio.current_time()
        stream = await client.open_tcp_stream("10.0.0.2", 80)
        received = 0
        async for data in stream:
            received += len(data)
        return trio.current_time() - began, received


def test_the_wire_is_the_one_asked_for(pytcp_virtual: VirtualHosts) -> None:
    seconds, received = pytcp_virtual(download, delay_ns=50 * MS)
    assert received == 100_000
    # ARP and handshake, then windows of 10, 20 and 40 segments: five round trips and what ARP takes
    assert 0.4 <= seconds <= 0.61
    slow, _ = pytcp_virtual(download, back=Impairment(rate=1_000_000))
    assert slow >= 0.8  # 100 kB at 1 Mbit/s


def test_accidents_are_the_same_with_the_same_seed_and_others_with_another(pytcp_virtual: VirtualHosts) -> None:
    def run(seed: int) -> tuple[float, int]:
        return pytcp_virtual(download, back=Impairment(loss=0.1), delay_ns=5 * MS, seed=seed)

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(2)[1] == 100_000


def test_an_unmodified_program_gets_its_sockets_from_the_stack(pytcp_virtual: VirtualHosts) -> None:
    async def program(host: str) -> bytes:  # knows nothing of pytcp
        stream = await trio.open_tcp_stream(host, 7)
        await stream.send_all(b"hello")
        return bytes(await stream.receive_some())

    async def main(client: Any, server: Any) -> bytes:
        [listener] = await server.open_tcp_listeners(7, host="10.0.0.2")

        async def echo() -> None:
            stream = await listener.accept()
            await stream.send_all(await stream.receive_some())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(echo)
            with use_stack(client):
                return await program("10.0.0.2")

    assert pytcp_virtual(main, delay_ns=MS) == b"hello"


def test_what_the_program_raises_is_raised_and_time_has_an_end(pytcp_virtual: VirtualHosts) -> None:
    async def fails(client: Any, server: Any) -> None:
        raise ValueError("the program's")

    async def hangs(client: Any, server: Any) -> None:
        await trio.sleep(7200)

    with pytest.raises(ValueError, match="the program's"):
        pytcp_virtual(fails)
    with pytest.raises(TimeoutError, match="not done after 3600 virtual seconds"):
        pytcp_virtual(hangs)


def test_sysctls_are_those_of_either_host(pytcp_virtual: VirtualHosts) -> None:
    async def congestion(client: Any, server: Any) -> tuple[str, str]:
        return client.net.sysctl.tcp_congestion_control, server.net.sysctl.tcp_congestion_control

    name = "net.ipv4.tcp_congestion_control"
    assert pytcp_virtual(congestion, client_sysctls={name: "reno"}, server_sysctls={name: "bbr"}) == ("reno", "bbr")


@pytest.mark.tap
@pytest.mark.pytcp_testbed(mtu=1400, sysctls={"net.ipv4.tcp_sack": 0})
def test_the_kernel_is_the_peer_behind_a_lossy_wire(pytcp_kernel: KernelPeer) -> None:
    async def main(stack: Any, testbed: Any) -> int:
        with trio.socket.from_stdlib_socket(testbed.socket()) as listening:
            await listening.bind((testbed.peer4, 80))
            listening.listen()
            stream = await stack.open_tcp_stream(testbed.peer4, 80)
            kernel, _ = await listening.accept()
            async with trio.SocketStream(kernel) as sender, trio.open_nursery() as nursery:
                nursery.start_soon(sender.send_all, bytes(50_000))
                received = 0
                while received < 50_000:
                    received += len(await stream.receive_some())
        assert testbed.sysctl("net.ipv4.tcp_sack") == "0"
        return received

    assert pytcp_kernel(main, rx=Impairment(loss=0.02), seed=3) == 50_000


# --- the plugin in a project of its own ---

pytest_plugins = ["pytester"]

PROJECT = """
import pytest
from pytcp.lab import testbed

@pytest.fixture(autouse=True)
def no_testbed(monkeypatch):
    def refuse(self):
        raise testbed.TestbedError(1, "not allowed here")
    monkeypatch.setattr(testbed.Testbed, "open", refuse)

def test_peer(pytcp_kernel):
    assert False, "never reached"
"""


def test_without_a_testbed_the_test_is_skipped_with_the_reason_or_fails_where_it_is_required(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PROJECT)
    skipped = pytester.runpytest_inprocess("-rs")
    skipped.assert_outcomes(skipped=1)
    skipped.stdout.fnmatch_lines(["*no testbed: not allowed here*"])
    pytester.makeini("[pytest]\npytcp_require_kernel = true\n")
    failed = pytester.runpytest_inprocess()
    failed.assert_outcomes(errors=1)
    failed.stdout.fnmatch_lines(["*no testbed: not allowed here*"])


def test_loading_the_plugin_imports_nothing_of_the_stack() -> None:
    code = "import sys, pytcp.lab.pytest_plugin; print(sorted({'trio', 'pytcp.net.stack', 'pytcp.tcp.sock', 'pyroute2'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
