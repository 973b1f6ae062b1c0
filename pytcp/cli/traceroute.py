"""`pytcp traceroute`: the hops to a host, printed as traceroute prints them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pytcp.cli import network

if TYPE_CHECKING:
    from pytcp.lab.traceroute import Probe


def hop_line(probes: Sequence[Probe], bare: bool = False) -> str:
    """One line of the output: who answered, and how fast. bare: addresses once."""
    line = f"{probes[0].hop:2d} "
    last = ""
    for probe in probes:
        if probe.rtt is None:
            line += " *"
            continue
        if probe.source != last:
            last = probe.source
            line += f" {last}" if bare else f" {last} ({last})"
        line += f"  {probe.rtt * 1000:.3f} ms"
        if probe.note:
            line += f" {probe.note}"
    return line


@click.command("traceroute")
@network.options
@click.argument("host", required=False)
@click.argument("length", required=False, type=click.IntRange(28, 65000))
@click.option("-I", "--icmp", is_flag=True, help="Probe by ICMP echo requests instead of UDP datagrams.")
@click.option("-f", "--first", default=1, show_default=True, type=click.IntRange(1, 255), help="Hop to begin with.")
@click.option("-m", "--max-hops", "hops", default=30, show_default=True, type=click.IntRange(1, 255), help="Hop to end with.")
@click.option("-q", "--queries", default=3, show_default=True, type=click.IntRange(1, 10), help="Probes per hop.")
@click.option("-w", "--wait", default=5.0, show_default=True, type=network.Seconds(0), help="Seconds to wait for an answer.")
@click.option("-p", "--port", default=33434, show_default=True, type=click.IntRange(1, 65535), help="Port of the first UDP probe; each takes the next.")
@click.option("-N", "--sim-queries", "simultaneous", default=16, show_default=True, type=click.IntRange(1, 256), help="Probes under way together.")
@click.option("-n", "bare", is_flag=True, help="Each address once, without the brackets.")
def command(where: network.Where, host: str | None, length: int | None, bare: bool, first: int, hops: int, **options: Any) -> int:
    """Print the way of packets to HOST (the testbed's peer by default), with packets of LENGTH bytes.

    Exit status: 0 when the host answered, 1 when it did not.
    """
    if host is None and where.device is not None:
        raise click.UsageError("HOST is missing.")
    if first > hops:
        raise click.UsageError("--first is beyond --max-hops.")
    return network.run(where, partial(_main, host=host, length=length, bare=bare, first=first, hops=hops, options=options))


async def _main(net: network.Network, host: str | None, length: int | None, bare: bool, first: int, hops: int, options: dict[str, Any]) -> int:
    from pytcp.lab.traceroute import traceroute

    if host is None:
        assert net.testbed is not None
        host = net.testbed.peer4
    address = await net.numeric(host)
    length = length or (80 if ":" in address else 60)
    click.echo(f"traceroute to {host} ({address}), {hops} hops max, {length} byte packets")
    way = await traceroute(net.stack, address, length=length, first=first, hops=hops, on_hop=lambda probes: click.echo(hop_line(probes, bare)), **options)
    return 0 if any(probe.final and not probe.note for probe in way[-1]) else 1
