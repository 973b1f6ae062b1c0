"""The real iperf3 against ours, in both roles, directions and families."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from pytcp.lab.iperf3 import PORT, Server, Settings, run_client, udp
from pytcp.lab.testbed import Testbed
from pytcp.sockets.streams import TcpStream

from .exchange import pair

pytestmark = pytest.mark.tap

Program = Callable[[str], str]
ENDS = ("sum_sent", "sum_received")


def shape(value: Any) -> Any:
    """The keys of a tree, values left out; what differs by machine or by luck left out as well."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else type(value).__name__.replace("int", "float")


@pytest.mark.parametrize(
    "arguments",
    [["-t", "1"], ["-t", "1", "-R"], ["-t", "1", "-P", "4"], ["-t", "1", "-6"], ["-t", "1", "--bidir"], ["-n", "20M", "-R", "-P", "2"], ["-t", "1", "-O", "1"]],
    ids=["to us", "from us", "four streams", "IPv6", "both ways", "so many bytes from us", "omitted"],
)
def test_the_real_client_gets_its_results_from_our_server(program: Program, arguments: list[str]) -> None:
    program("iperf3")
    trees: list[dict[str, Any]] = []

    async def main() -> None:
        server = Server(on_json=trees.append)
        async with pair(tb) as p, trio.open_nursery() as nursery:
            await nursery.start(p.stack.serve_tcp, server.handle, PORT)
            address = p.address(6 if "-6" in arguments else 4)
            done = await tb.run_async(["iperf3", "-c", address, "-J", "--get-server-output", *arguments], check=False)
            theirs = json.loads(done.stdout)
            assert "error" not in theirs, theirs["error"]
            await server.finished.wait()
            nursery.cancel_scope.cancel()
        (ours,) = trees
        assert "Accepted connection" in theirs["server_output_text"]
        names = ENDS + (("sum_sent_bidir_reverse", "sum_received_bidir_reverse") if "--bidir" in arguments else ())
        for name in names:
            assert theirs["end"][name]["bytes"] > 0
            # each end knows its own half and what the other told it
            assert ours["end"][name]["bytes"] == theirs["end"][name]["bytes"]

    with Testbed() as tb:
        trio.run(main)


@pytest.mark.parametrize(
    ("settings", "family"),
    [
        (Settings(duration=1), 4),
        (Settings(duration=1, reverse=True), 4),
        (Settings(duration=1, parallel=4), 6),
        (Settings(duration=1, bidirectional=True, parallel=2), 4),
        (Settings(amount=20 << 20, length=10_000), 4),
        (Settings(blocks=100, reverse=True, server_output=True, congestion="reno", mss=1000, window=100_000, nodelay=True), 4),
    ],
    ids=["to it", "from it", "four streams over IPv6", "both ways", "so many bytes", "so many blocks from it, with options"],
)
def test_our_client_gets_its_results_from_the_real_server_and_in_its_shape(program: Program, settings: Settings, family: int) -> None:
    iperf3 = program("iperf3")

    async def main() -> None:
        async with pair(tb) as p:

            async def connect(host: str, port: int, prepare: Any) -> TcpStream:
                stream: TcpStream = await p.stack.open_tcp_stream(host, port, prepare=prepare)
                return stream

            child = tb.popen([iperf3, "-s", "-1", "-J"], stdout=subprocess.PIPE)
            with trio.fail_after(10):
                while f":{PORT} " not in tb.ss("-tlnH"):
                    await trio.sleep(0.02)
            tree = await run_client(connect, p.peer(family), settings)
            assert child.stdout is not None
            theirs = json.loads(await trio.to_thread.run_sync(child.stdout.read))
        end = tree["end"]
        assert end["sum_sent"]["bytes"] > 0
        assert end["sum_received"]["bytes"] > 0
        if settings.limit and not settings.reverse:
            assert settings.limit <= end["sum_sent"]["bytes"] < settings.limit + settings.length
        # what the server has counted itself, when it printed its results
        ours, half = ("sum_sent", "sum_sent") if settings.reverse else ("sum_received", "sum_received")
        assert theirs["end"][half]["bytes"] == end[ours]["bytes"]
        assert tree["start"]["cookie"] == theirs["start"]["cookie"]
        assert shape(tree["start"]["test_start"]) == shape(theirs["start"]["test_start"])
        assert shape(tree["start"]["connected"]) == shape(theirs["start"]["connected"])
        assert set(end["cpu_utilization_percent"]) == set(theirs["end"]["cpu_utilization_percent"])
        if settings.server_output:
            assert tree["server_output_json"]["start"]["cookie"] == tree["start"]["cookie"]

    with Testbed() as tb:
        trio.run(main)


def test_the_tree_of_our_client_has_every_key_of_the_real_clients(program: Program) -> None:
    iperf3 = program("iperf3")

    async def main() -> None:
        async with pair(tb) as p, trio.open_nursery() as nursery:
            await nursery.start(p.stack.serve_tcp, Server().handle, PORT)
            done = await tb.run_async([iperf3, "-c", p.address(4), "-J", "--bidir", "-t", "1"])
            theirs = shape(json.loads(done.stdout))
            dial = p.stack.open_tcp_stream
            settings = Settings(duration=1, bidirectional=True)
            ours = shape(await run_client(lambda host, port, prepare: dial(host, port, prepare=prepare), p.address(4), settings))
            nursery.cancel_scope.cancel()
        assert ours == theirs

    with Testbed() as tb:
        trio.run(main)


# --- UDP ---


@pytest.mark.parametrize(
    "arguments",
    [["-b", "20M"], ["-b", "20M", "-R"], ["-b", "5M", "-P", "3"], ["-b", "5M", "-6"], ["-b", "5M", "--bidir"], ["-b", "10M", "--udp-counters-64bit"]],
    ids=lambda arguments: " ".join(arguments),
)
def test_the_real_client_tests_udp_with_our_server(program: Program, arguments: list[str]) -> None:
    program("iperf3")
    trees: list[dict[str, Any]] = []

    async def main() -> None:
        async with pair(tb) as p, trio.open_nursery() as nursery:
            server = Server(stack=p.stack, on_json=trees.append)
            await nursery.start(p.stack.serve_tcp, server.handle, PORT)
            done = await tb.run_async(["iperf3", "-c", p.address(6 if "-6" in arguments else 4), "-u", "-t", "1", "-l", "1000", "-J", *arguments], check=False)
            theirs = json.loads(done.stdout)
            assert "error" not in theirs, theirs["error"]
            await server.finished.wait()
            nursery.cancel_scope.cancel()
        (ours,) = trees
        rate = int(arguments[1].rstrip("M")) * 125_000 * (3 if "-P" in arguments else 1)
        sent = theirs["end"]["sum_sent" if "-R" not in arguments else "sum"]
        # what was sent in a second is what was asked for, and none of it is unaccounted for
        assert 0.8 * rate < sent["bytes"] < 1.3 * rate
        for tree in (ours, theirs):
            for stream in tree["end"]["streams"]:
                assert stream["udp"]["lost_packets"] <= 0.2 * stream["udp"]["packets"]
                assert stream["udp"]["jitter_ms"] < 100
        assert ours["end"]["sum"]["packets"] == pytest.approx(theirs["end"]["sum"]["packets"], abs=0.05 * sent["packets"])

    with Testbed() as tb:
        trio.run(main)


@pytest.mark.parametrize(
    ("settings", "family"),
    [
        (Settings(duration=1, bitrate=20_000_000, udp=True, length=1000), 4),
        (Settings(duration=1, bitrate=20_000_000, udp=True, length=1000, reverse=True), 4),
        (Settings(duration=1, bitrate=5_000_000, udp=True, length=1000, parallel=3, counters64=True), 6),
        (Settings(duration=1, bitrate=5_000_000, udp=True, length=1000, bidirectional=True), 4),
        (Settings(amount=1 << 20, bitrate=20_000_000, udp=True, length=1024), 4),
    ],
    ids=["to it", "from it", "three streams over IPv6", "both ways", "so many bytes"],
)
def test_our_client_tests_udp_with_the_real_server_and_has_every_key_of_the_real_client(program: Program, settings: Settings, family: int) -> None:
    iperf3 = program("iperf3")
    options = ["-u", "-b", str(settings.bitrate), "-l", str(settings.length), "-J", "-P", str(settings.parallel)]
    options += ["-n", str(settings.amount)] if settings.amount else ["-t", "1"]
    options += ["-R"] * settings.reverse + ["--bidir"] * settings.bidirectional

    async def serve() -> None:
        tb.popen([iperf3, "-s", "-1"], stdout=subprocess.DEVNULL)
        with trio.fail_after(10):
            while f":{PORT} " not in tb.ss("-tlnH"):
                await trio.sleep(0.02)

    async def main() -> None:
        async with pair(tb) as p:

            async def open_tcp(host: str, port: int, prepare: Any) -> TcpStream:
                stream: TcpStream = await p.stack.open_tcp_stream(host, port, prepare=prepare)
                return stream

            await serve()
            tree = await run_client(open_tcp, p.peer(family), settings, connect_udp=partial(udp.connect, p.stack))
            await serve()
            real = json.loads((await tb.run_async([iperf3, "-c", p.peer(family), *options])).stdout)
        assert set(shape(tree["end"])) == set(shape(real["end"]))
        for name in real["end"]:
            if name.startswith(("sum", "streams")):
                mine, its = shape(tree["end"][name]), shape(real["end"][name])
                if name == "streams":
                    mine, its = mine[0]["udp"], its[0]["udp"]
                assert mine.keys() == its.keys(), name
        assert set(shape(tree["intervals"])[0]["streams"][0]) == set(shape(real["intervals"])[0]["streams"][0])
        assert set(shape(tree["intervals"])[0]["sum"]) == set(shape(real["intervals"])[0]["sum"])
        assert tree["start"]["test_start"]["protocol"] == "UDP"
        expected = settings.amount or settings.bitrate / 8 * settings.parallel
        assert tree["end"]["sum_received"]["bytes"] == pytest.approx(expected, rel=0.25)
        assert tree["end"]["sum_received"]["lost_percent"] < 20

    with Testbed() as tb:
        trio.run(main)
