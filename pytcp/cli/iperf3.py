"""`pytcp iperf3`: throughput against any iperf3, as client or as server, over pytcp."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pytcp.cli import network

if TYPE_CHECKING:
    from pytcp.lab.iperf3 import Settings
    from pytcp.sockets.datagrams import UdpEndpoint

DATAGRAM = 1448  # bytes: what a TCP segment with timestamps carries over Ethernet
NAMES = {"mss": "set-mss", "nodelay": "no-delay"}

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)\Z")


class Size(click.ParamType[int]):
    """A number with K, M, G or T behind it, by `base`."""

    name = "size"

    def __init__(self, base: int) -> None:
        self.base = base

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.match(value)
        if match is None:
            self.fail(f"{value!r} is not a number like 64, 128K or 1.5M", param, ctx)
        return int(float(match[1]) * self.base ** (" kmgt".index(match[2].lower()) if match[2] else 0))


@click.command("iperf3")
@network.options
@click.option("-s", "--server", is_flag=True, help="Serve tests until Ctrl-C.")
@click.option("-c", "--client", "host", metavar="HOST", help="Run one test against the server on HOST.")
@click.option("-p", "--port", default=5201, show_default=True, type=click.IntRange(1, 65535), help="Server port to listen on or connect to.")
@click.option("-i", "--interval", default=1.0, show_default=True, type=click.FloatRange(0, 60), help="Seconds between reports; 0 for the last only.")
@click.option("-f", "--format", "form", type=click.Choice([*"kmgtKMGT"]), help="Unit of bitrates: bits (k, m, ...) or bytes (K, M, ...).")
@click.option("-J", "--json", "as_json", is_flag=True, help="Print the results as iperf3's JSON.")
@click.option("-1", "--one-off", is_flag=True, help="Server: end after one test.")
@click.option("-t", "--time", "duration", type=click.IntRange(1, 86_400), metavar="SECONDS", help="How long to send.  [default: 10]")
@click.option("-n", "--bytes", "size", type=Size(1024), metavar="N[KMG]", help="Send so many bytes, instead of -t.")
@click.option("-k", "--blockcount", "blocks", type=Size(1024), metavar="N[KMG]", help="Send so many blocks, instead of -t or -n.")
@click.option("-l", "--length", type=Size(1024), metavar="N[KMG]", help="Bytes of one write.  [default: 128K; UDP: what a segment of TCP carries]")
@click.option("-P", "--parallel", default=1, show_default=True, type=click.IntRange(1, 128), help="Streams at the same time.")
@click.option("-u", "--udp", is_flag=True, help="Datagrams instead of a stream.")
@click.option("--udp-counters-64bit", "counters64", is_flag=True, help="UDP: number the datagrams with 64 bits.")
@click.option("-R", "--reverse", is_flag=True, help="The server sends.")
@click.option("--bidir", is_flag=True, help="Both send.")
@click.option("-b", "--bitrate", type=Size(1000), metavar="N[KMG]", help="Bits per second of each stream, 0 = no limit.  [default: no limit; UDP: 1M]")
@click.option("-O", "--omit", default=0, show_default=True, type=click.IntRange(0, 600), metavar="SECONDS", help="Leave the first seconds out of the results.")
@click.option("-w", "--window", default=0, type=Size(1024), metavar="N[KMG]", help="Socket buffers, both directions.  [default: autotuned]")
@click.option("-M", "--set-mss", "mss", default=0, type=click.IntRange(0, 9216), metavar="BYTES", help="Largest segment.  [default: by the MTU]")
@click.option("-N", "--no-delay", "nodelay", is_flag=True, help="Without Nagle's algorithm.")
@click.option("-C", "--congestion", default="", metavar="NAME", help="Congestion control of both sides' streams.")
@click.option("-S", "--tos", default=0, type=click.IntRange(0, 255), help="IP type of service of the data.")
@click.option("-T", "--title", default="", help="Text before each line.")
@click.option("--get-server-output", "server_output", is_flag=True, help="Print what the server printed, too.")
@click.option("--extra-data", default="", metavar="TEXT", help="Text to find again in the JSON.")
def command(
    where: network.Where,
    server: bool,
    host: str | None,
    port: int,
    interval: float,
    form: str | None,
    as_json: bool,
    one_off: bool,
    duration: int | None,
    size: int | None,
    blocks: int | None,
    **options: Any,
) -> int:
    """Measure TCP or UDP throughput against a real iperf3 (or another pytcp), as client or server.

    Exit status: 0 done; 1 no server, a test that failed, or (server) one that never came; 2 wrong usage; 130 interrupted.

    \b
    Examples:
      pytcp iperf3 -c 10.99.0.1 -t 5 -P 4 --peer 'iperf3 -s -1'
      pytcp iperf3 -c 10.99.0.1 -u -b 100M --peer 'iperf3 -s -1'
      pytcp iperf3 -s -1 --peer 'sleep 1; iperf3 -c $PYTCP4 -R'
    """
    if server and host is not None:
        raise click.UsageError("--server and --client exclude each other.")
    if not server and not host:
        raise click.UsageError("--server or --client HOST is needed.")
    if sum(value is not None for value in (duration, size, blocks)) > 1:
        raise click.UsageError("Only one of -t, -n and -k ends a test.")
    if options["reverse"] and options["bidir"]:
        raise click.UsageError("--reverse and --bidir exclude each other.")
    from pytcp.lab.iperf3 import udp

    if options["udp"]:
        low, high, usual, rate = udp.MIN_LENGTH, udp.MAX_LENGTH, DATAGRAM, udp.DEFAULT_RATE
        for name in ("mss", "congestion", "nodelay"):
            if options[name]:
                raise click.UsageError(f"--{NAMES.get(name, name)} is TCP's: without --udp.")
    else:
        low, high, usual, rate = 1, 1 << 20, 128 << 10, 0
        if options["counters64"]:
            raise click.UsageError("--udp-counters-64bit goes with --udp.")
    options["length"] = usual if options["length"] is None else options["length"]
    options["bitrate"] = rate if options["bitrate"] is None else options["bitrate"]
    if not low <= options["length"] <= high:
        raise click.BadParameter(f"between {low} and {'1M' if high == 1 << 20 else high}", param_hint="--length")
    if host is None:
        return network.run(where, partial(_serve, port=port, interval=interval, form=form or "", as_json=as_json, one_off=one_off))
    from pytcp.lab.iperf3 import Settings

    _known(options["congestion"])
    options["bidirectional"] = options.pop("bidir")
    settings = Settings(duration=duration or 10, amount=size or 0, blocks=blocks or 0, **options)
    return network.run(where, partial(_client, host=host, settings=settings, port=port, interval=interval, form=form or "", as_json=as_json))


def _known(congestion: str) -> None:
    """Raises click.BadParameter for a congestion control the stack does not have."""
    from pytcp.tcp.cong import available

    if congestion and congestion not in available():
        raise click.BadParameter(f"there is no {congestion!r}, but {', '.join(available())}", param_hint="--congestion")


async def _serve(net: network.Network, port: int, interval: float, form: str, as_json: bool, one_off: bool) -> int:
    import trio

    from pytcp.lab.iperf3 import Server

    server = Server(stack=net.stack, port=port, interval=interval, form=form, say=None if as_json else click.echo, on_json=_print if as_json else None)
    listeners = await net.stack.open_tcp_listeners(port)
    server.announce()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.handle, listeners)
        while True:
            await server.finished.wait()
            if one_off:
                break
            server.finished = trio.Event()
            server.announce()
        nursery.cancel_scope.cancel()
    return 0 if server.tests else 1


async def _client(net: network.Network, host: str, settings: Settings, port: int, interval: float, form: str, as_json: bool) -> int:
    from pytcp.lab.iperf3 import Iperf3Error, run_client

    try:
        tree = await run_client(
            net.connect, host, settings, port=port, interval=interval, form=form, say=None if as_json else click.echo, connect_udp=partial(_stream, net)
        )
    except (Iperf3Error, OSError) as error:
        text = f"unable to connect to server: {error.strerror}" if isinstance(error, OSError) else str(error)
        if as_json:
            _print(getattr(error, "tree", None) or {"start": {"connected": []}, "intervals": [], "end": {}, "error": text})
            return 1
        raise click.ClickException(text) from error
    if as_json:
        _print(tree)
    return 0


async def _stream(net: network.Network, host: str, port: int) -> UdpEndpoint:
    from pytcp.lab.iperf3.udp import connect

    return await connect(net.stack, await net.numeric(host), port)


def _print(tree: dict[str, Any]) -> None:
    click.echo(json.dumps(tree, indent="\t"))
