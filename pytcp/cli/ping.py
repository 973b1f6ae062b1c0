"""`pytcp ping`: echo requests from the stack."""

from __future__ import annotations

import statistics
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

import click

from pytcp.cli import network

if TYPE_CHECKING:
    from pytcp.sockets.open import Ping


@click.command("ping")
@network.options
@click.argument("host", required=False)
@click.option("-c", "--count", default=4, show_default=True, type=click.IntRange(1), help="Requests to send.")
@click.option("-i", "--interval", default=1.0, show_default=True, type=click.FloatRange(0), help="Seconds between two requests.")
@click.option("-s", "--size", default=56, show_default=True, type=click.IntRange(0, 65000), help="Bytes of data in each.")
@click.option("-W", "--timeout", default=2.0, show_default=True, type=click.FloatRange(0), help="Seconds to wait for an answer.")
def command(where: network.Where, host: str | None, count: int, interval: float, size: int, timeout: float) -> int:
    """Send ICMP echo requests to HOST (the testbed's peer by default). Exit status 1 when none was answered."""
    if host is None and where.tap is not None:
        raise click.UsageError("HOST is missing.")
    if host is not None:
        try:
            ip_address(host)
        except ValueError as error:
            raise click.BadParameter(f"{host!r} is not an IPv4 or IPv6 address", param_hint="HOST") from error
    return network.run(where, partial(_main, host=host, count=count, interval=interval, size=size, timeout=timeout))


async def _main(net: network.Network, host: str | None, count: int, interval: float, size: int, timeout: float) -> int:
    if host is None:
        assert net.testbed is not None
        host = net.testbed.peer4

    def show(answer: Ping) -> None:
        if answer.rtt is not None:
            click.echo(f"{8 + size} bytes from {answer.source}: seq={answer.seq} ttl={answer.ttl} time={answer.rtt * 1000:.3f} ms")
        elif answer.error is not None:
            click.echo(f"from {answer.source}: seq={answer.seq} ICMP error type {answer.error[0]} code {answer.error[1]}")
        else:
            click.echo(f"no answer from {host}: seq={answer.seq}")

    answers = await net.stack.ping(host, count=count, interval=interval, timeout=timeout, size=size, on_answer=show)
    times = [answer.rtt * 1000 for answer in answers if answer.rtt is not None]
    click.echo(f"{count} sent, {len(times)} answered, {(count - len(times)) / count:.0%} lost")
    if times:
        click.echo(f"round trip min/median/max {min(times):.3f}/{statistics.median(times):.3f}/{max(times):.3f} ms")
    return 0 if times else 1
