"""`pytcp ping`: echo requests from the stack, printed as iputils prints them."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import click

from pytcp.cli import network

if TYPE_CHECKING:
    from pytcp.sockets.open import Ping

ERRORS4 = {
    (3, 0): "Destination Net Unreachable",
    (3, 1): "Destination Host Unreachable",
    (3, 2): "Destination Protocol Unreachable",
    (3, 3): "Destination Port Unreachable",
    (3, 4): "Frag needed and DF set",
    (3, 13): "Packet filtered",
    (11, 0): "Time to live exceeded",
    (11, 1): "Frag reassembly time exceeded",
}
ERRORS6 = {
    (1, 0): "Destination unreachable: No route",
    (1, 1): "Destination unreachable: Administratively prohibited",
    (1, 3): "Destination unreachable: Address unreachable",
    (1, 4): "Destination unreachable: Port unreachable",
    (2, 0): "Packet too big",
    (3, 0): "Time exceeded: Hop limit",
    (3, 1): "Time exceeded: Defragmentation failure",
}


def milliseconds(rtt: float) -> str:
    """A round trip in ms: three significant digits below 100."""
    us = int(rtt * 1_000_000)
    digits = 0 if us >= 100_000 else 1 if us >= 10_000 else 2 if us >= 1000 else 3
    return f"{us // 10 ** (3 - digits) / 10**digits:.{digits}f}"


def answer_line(answer: Ping, size: int) -> str:
    """What is printed for one request; empty for one without an answer."""
    if answer.rtt is not None:
        return f"{8 + size} bytes from {answer.source}: icmp_seq={answer.seq} ttl={answer.ttl} time={milliseconds(answer.rtt)} ms"
    if answer.error is None:
        return ""
    kind, code = answer.error
    errors = ERRORS6 if ":" in answer.source else ERRORS4
    text = errors.get((kind, code), f"ICMP type {kind} code {code}")
    return f"From {answer.source} icmp_seq={answer.seq} {text}"


def statistics(host: str, sent: int, answers: list[Ping], seconds: float) -> list[str]:
    """The summary of a run."""
    times = [answer.rtt * 1000 for answer in answers if answer.rtt is not None]
    errors = sum(answer.error is not None for answer in answers)
    failed = f", +{errors} errors" if errors else ""
    loss = f"{100 * (sent - len(times)) / sent:g}" if sent else "0"
    lines = [f"--- {host} ping statistics ---"]
    lines.append(f"{sent} packets transmitted, {len(times)} received{failed}, {loss}% packet loss, time {int(seconds * 1000)}ms")
    if times:
        mean = sum(times) / len(times)
        deviation = math.sqrt(max(0.0, sum(value * value for value in times) / len(times) - mean * mean))
        lines.append(f"rtt min/avg/max/mdev = {min(times):.3f}/{mean:.3f}/{max(times):.3f}/{deviation:.3f} ms")
    return lines


@click.command("ping")
@network.options
@click.argument("host", required=False)
@click.option("-c", "--count", default=4, show_default=True, type=click.IntRange(1), help="Requests to send.")
@click.option("-i", "--interval", default=1.0, show_default=True, type=network.Seconds(0), help="Seconds between two requests.")
@click.option("-s", "--size", default=56, show_default=True, type=click.IntRange(0, 65000), help="Bytes of data in each.")
@click.option("-W", "--timeout", default=2.0, show_default=True, type=network.Seconds(0), help="Seconds to wait for an answer.")
@click.option("-t", "--ttl", default=0, type=click.IntRange(0, 255), help="Hops a request may live.  [default: the stack's, 64]")
@click.option("-q", "--quiet", is_flag=True, help="Only the first line and the summary.")
def command(where: network.Where, host: str | None, count: int, interval: float, size: int, timeout: float, ttl: int, quiet: bool) -> int:
    """Send ICMP echo requests to HOST (the testbed's peer by default).

    Exit status: 0 when something answered, 1 when nothing did. Ctrl-C ends it with the summary.
    """
    if host is None and where.device is not None:
        raise click.UsageError("HOST is missing.")
    return network.run(where, partial(_main, host=host, count=count, interval=interval, size=size, timeout=timeout, ttl=ttl, quiet=quiet))


async def _main(net: network.Network, host: str | None, count: int, interval: float, size: int, timeout: float, ttl: int, quiet: bool) -> int:
    import trio

    if host is None:
        assert net.testbed is not None
        host = net.testbed.peer4
    address = await net.numeric(host)
    answers: list[Ping] = []

    def show(answer: Ping) -> None:
        answers.append(answer)
        if not quiet and (line := answer_line(answer, size)):
            click.echo(line)

    if ":" in address:
        click.echo(f"PING {host}({address}) {size} data bytes")
    else:
        click.echo(f"PING {host} ({address}) {size}({size + 28}) bytes of data.")
    started = trio.current_time()

    def summary() -> None:
        elapsed = trio.current_time() - started
        sent = min(count, 1 + int(elapsed / interval)) if interval else count
        click.echo("\n" + "\n".join(statistics(host, max(sent, len(answers)), answers, elapsed)))

    try:
        await net.stack.ping(address, count=count, interval=interval, timeout=timeout, size=size, ttl=ttl, on_answer=show)
    except OSError:
        raise
    except BaseException:
        summary()
        raise
    summary()
    return 0 if any(answer.rtt is not None for answer in answers) else 1
