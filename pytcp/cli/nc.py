"""`pytcp nc`: standard input to a connection, the connection to standard output."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import click

from pytcp.cli import network

if TYPE_CHECKING:
    import trio

CHUNK = 1 << 16


@click.command("nc")
@network.options
@click.argument("target", nargs=-1, required=True, metavar="[HOST] PORT")
@click.option("-l", "--listen", is_flag=True, help="Wait for one connection to PORT instead of making one.")
@click.option("-w", "--timeout", type=float, metavar="SECONDS", help="Give up on connecting after this long.")
def command(where: network.Where, target: tuple[str, ...], listen: bool, timeout: float | None) -> int:
    """Connect to HOST PORT, or listen on PORT, and copy both ways.

    The end of standard input shuts down the sending direction only; the command ends when the peer has done the same.

    \b
    Examples:
      echo hello | pytcp nc 10.99.0.1 7000 --peer 'nc -l 7000'
      pytcp nc -l 7000 --peer 'echo hello | nc -N $PYTCP4 7000'
    """
    if len(target) != (1 if listen else 2):
        raise click.UsageError("--listen takes a PORT." if listen else "HOST and PORT are needed.")
    port = click.IntRange(1, 65535)(target[-1])
    host = None if listen else target[0]
    return network.run(where, partial(_main, host=host, port=port, timeout=timeout))


async def _main(net: network.Network, host: str | None, port: int, timeout: float | None) -> int:
    import trio

    with trio.fail_after(timeout) if timeout is not None else trio.CancelScope():
        stream = await _connect(net, host, port)
    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(send_file, stream, 0)
        await receive_file(stream, 1)
        nursery.cancel_scope.cancel()
    return 0


async def _connect(net: network.Network, host: str | None, port: int) -> trio.abc.HalfCloseableStream:
    if host is not None:
        return await net.connect(host, port)
    listeners = await net.stack.open_tcp_listeners(port)
    click.echo(f"listening on {', '.join(f'{host}:{port}' for host in net.hosts())}", err=True)
    stream = await listeners[0].accept()
    for listener in listeners:
        await listener.aclose()
    return stream


async def send_file(stream: trio.abc.HalfCloseableStream, fd: int) -> None:
    """Send what can be read from a descriptor, then shut down sending."""
    import trio

    # A thread, because files and terminals cannot all be waited for; it is left behind if the peer ends first.
    while data := await trio.to_thread.run_sync(os.read, fd, CHUNK, abandon_on_cancel=True):
        await stream.send_all(data)
    await stream.send_eof()


async def receive_file(stream: trio.abc.ReceiveStream, fd: int) -> None:
    """Write what is received to a descriptor, until the end of file."""
    import trio

    def write(data: bytes | bytearray) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    while data := await stream.receive_some(1 << 18):
        await trio.to_thread.run_sync(write, data)
