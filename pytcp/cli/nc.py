"""`pytcp nc`: standard input to a connection, the connection to standard output; TCP, TLS over it, or UDP."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytcp.cli import network
from pytcp.cli.errors import one_line

if TYPE_CHECKING:
    import trio

    from pytcp.sockets.datagrams import UdpEndpoint
    from pytcp.sockets.streams import TcpStream

CHUNK = 1 << 16
DATAGRAM = 16384  # most that one read of standard input puts into a datagram, as OpenBSD's nc
TLS_QUIT = 1.0
LAST_NOTE = 1.0  # seconds to wait for the answer to a close_notify


@dataclass(frozen=True)
class Options:
    """What the command line says, beyond where."""

    host: str | None  # None: listen
    ports: tuple[int, ...]
    listen: bool
    keep: bool
    udp: bool
    zero: bool
    verbose: bool
    timeout: float | None
    quit: float | None
    tls: bool
    verify: bool
    cert: Path | None
    key: Path | None
    name: str | None


def ports(text: str) -> tuple[int, ...]:
    """A port, or a range like 20-25. Raises click.BadParameter."""
    first, _, last = text.partition("-")
    try:
        low, high = int(first), int(last or first)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no port, nor a range like 20-25", param_hint="PORT") from None
    if not (1 <= low <= 65535 and 1 <= high <= 65535):
        raise click.BadParameter(f"{text!r}: ports are 1 to 65535", param_hint="PORT")
    if high < low:
        raise click.BadParameter(f"{text!r} is an empty range", param_hint="PORT")
    return tuple(range(low, high + 1))


@click.command("nc")
@network.options
@click.argument("target", nargs=-1, required=True, metavar="[HOST] PORT")
@click.option("-l", "--listen", is_flag=True, help="Wait for a connection to PORT instead of making one.")
@click.option("-k", "--keep", is_flag=True, help="With --listen: another one after each, until Ctrl-C.")
@click.option("-u", "--udp", is_flag=True, help="Datagrams instead of a connection.")
@click.option("-z", "--zero", is_flag=True, help="Only see whether somebody listens; PORT may be a range like 20-25.")
@click.option("-v", "--verbose", is_flag=True, help="Say on standard error who is connected.")
@click.option("-w", "--timeout", type=network.Seconds(0), metavar="SECONDS", help="Give up on connecting, and on a silent connection, after this long.")
@click.option("-q", "--quit", "quit_after", type=network.Seconds(0), metavar="SECONDS", help="End so long after the end of standard input.")
@click.option("--tls", is_flag=True, help="TLS over the connection.")
@click.option("--no-verify", is_flag=True, help="With --tls: do not verify the server's certificate.")
@click.option("--name", metavar="NAME", help="With --tls: the name in the server's certificate.  [default: HOST]")
@click.option("--cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="With --tls: our certificate chain, PEM. Needed to listen.")
@click.option("--key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its private key, when that is not in --cert.")
def command(
    where: network.Where,
    target: tuple[str, ...],
    listen: bool,
    keep: bool,
    udp: bool,
    zero: bool,
    verbose: bool,
    timeout: float | None,
    quit_after: float | None,
    tls: bool,
    no_verify: bool,
    name: str | None,
    cert: Path | None,
    key: Path | None,
) -> int:
    """Connect to HOST PORT, or listen on PORT, and copy both ways.

    The end of standard input shuts down the sending direction only; the command ends when the peer has done the same. TLS has
    no half of a connection to shut down: there the command ends a second after standard input, or --quit seconds.
    With --udp it ends --quit seconds after, or by --timeout, or by Ctrl-C.

    Exit status: 0 done; 1 no connection, a broken one, or (--zero) a port where nobody listens.

    \b
    Examples:
      printf 'GET / HTTP/1.0\\r\\n\\r\\n' | pytcp nc 10.99.0.1 8000 --peer 'python3 -m http.server'
      pytcp nc -l 7000 --peer 'bash -c "echo hello >/dev/tcp/$PYTCP4/7000"'
      pytcp nc --tls --no-verify 10.99.0.1 4433 --peer 'openssl s_server -accept 4433 -cert c.pem -key k.pem'
      pytcp nc -z -v 10.99.0.1 20-25
    """
    if len(target) != (1 if listen else 2):
        raise click.UsageError("--listen takes a PORT." if listen else "HOST and PORT are needed.")
    for wrong, complaint in (
        (keep and not listen, "--keep goes with --listen."),
        (zero and listen, "--zero connects: without --listen."),
        (udp and tls, "--tls runs over a connection: without --udp."),
        (zero and tls, "--zero says nothing: without --tls."),
        (tls and listen and cert is None, "--listen with --tls needs a --cert."),
        (not tls and (no_verify or name or cert or key), "--no-verify, --name, --cert and --key go with --tls."),
        (keep and udp, "--keep goes with connections: without --udp."),
    ):
        if wrong:
            raise click.UsageError(complaint)
    found = ports(target[-1])
    if len(found) > 1 and not zero:
        raise click.UsageError("a range of ports goes with --zero.")
    if tls and quit_after is None:
        quit_after = TLS_QUIT
    host = None if listen else target[0]
    options = Options(host, found, listen, keep, udp, zero, verbose, timeout, quit_after, tls, not no_verify, cert, key, name)
    return network.run(where, partial(_main, options=options))


async def _main(net: network.Network, options: Options) -> int:
    if options.zero:
        return await _scan(net, options)
    if options.udp:
        return await _datagrams(net, options)
    if options.host is None:
        return await _listen(net, options)
    stream = await _connect(net.connect, options.host, options.ports[0], options.timeout)
    _say(options, f"Connection to {options.host} {options.ports[0]} port [tcp/*] succeeded!")
    await _copy(stream, options)
    return 0


def _say(options: Options, text: str) -> None:
    if options.verbose:
        click.echo(text, err=True)


async def _connect(connect: Callable[[str, int], Awaitable[TcpStream]], host: str, port: int, timeout: float | None) -> TcpStream:
    import trio

    try:
        with trio.fail_after(timeout) if timeout is not None else trio.CancelScope():
            return await connect(host, port)
    except trio.TooSlowError:
        raise OSError(errno.ETIMEDOUT, f"{os.strerror(errno.ETIMEDOUT)}: no answer from {host} port {port} in {timeout:g} s") from None


async def _listen(net: network.Network, options: Options) -> int:
    import trio

    listeners = await net.stack.open_tcp_listeners(options.ports[0])
    click.echo(f"listening on {', '.join(f'{host}:{options.ports[0]}' for host in net.hosts())}", err=True)
    while True:
        stream = await _first([listener.accept for listener in listeners])
        if not options.keep:
            for listener in listeners:
                await listener.aclose()
        _say(options, f"Connection received{_peer(stream)}")
        try:
            await _copy(stream, options)
        except trio.BrokenResourceError as error:
            if not options.keep:
                raise
            network.say(one_line(error))
        if not options.keep:
            return 0


def _peer(stream: TcpStream) -> str:
    try:
        host, port, *_ = stream.socket.getpeername()
    except OSError:  # ENOTCONN
        return ", and reset already"
    return f" on {host} {port}"


async def _first(waits: list[Callable[[], Awaitable[TcpStream]]]) -> TcpStream:
    """What comes first; the others are cancelled."""
    import trio

    found: list[TcpStream] = []
    async with trio.open_nursery() as nursery:

        async def wait(one: Callable[[], Awaitable[TcpStream]]) -> None:
            found.append(await one())
            nursery.cancel_scope.cancel()

        for one in waits:
            nursery.start_soon(wait, one)
    return found[0]


async def _secured(stream: trio.abc.Stream, options: Options) -> trio.abc.Stream:
    import ssl

    import trio

    if options.listen:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    else:
        context = ssl.create_default_context()
        if not options.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
    if options.cert is not None:
        context.load_cert_chain(options.cert, options.key)
    name = None if options.listen else options.name or options.host
    secure = trio.SSLStream(stream, context, server_hostname=name, server_side=options.listen)
    try:
        await secure.do_handshake()
    except trio.BrokenResourceError as error:
        raise trio.BrokenResourceError(f"TLS: {error.__cause__ or error}") from error
    return secure


async def _copy(stream: trio.abc.HalfCloseableStream, options: Options) -> None:
    """Both ways until both have ended, nothing happens for too long, or standard input has ended long enough ago.

    The peer's end is enough over TLS, which has no halves, and where somebody would have to type to learn of it.
    Raises trio.BrokenResourceError when the connection breaks, after what has come until then was written; OSError of the standard streams."""
    import trio

    async with stream:
        carrier: trio.abc.Stream = await _secured(stream, options) if options.tls else stream
        failures: list[trio.BrokenResourceError] = []
        async with trio.open_nursery() as nursery:
            scope = nursery.cancel_scope

            def alive() -> None:
                if options.timeout is not None:
                    scope.deadline = trio.current_time() + options.timeout

            async def outward() -> None:
                try:
                    await send_file(carrier, 0, alive)
                except trio.BrokenResourceError as error:
                    failures.append(error)  # and what has come is still to be read
                    return
                if options.quit is not None:
                    await trio.sleep(options.quit)
                    scope.cancel()

            alive()
            nursery.start_soon(outward)
            try:
                await receive_file(carrier, 1, alive)
            except trio.BrokenResourceError as error:
                failures.append(error)
            if failures or options.tls or os.isatty(0):
                scope.cancel()
        if failures:
            raise failures[0]
        if isinstance(carrier, trio.SSLStream):
            # Who closes before the peer's close_notify has come resets the connection with it, perhaps under the peer's last read.
            with trio.move_on_after(LAST_NOTE), suppress(trio.BrokenResourceError):
                await carrier.unwrap()


async def send_file(stream: trio.abc.SendStream, fd: int, alive: Callable[[], None]) -> None:
    """Send what can be read from a descriptor, then shut down sending where the stream can do that."""
    import trio

    # A thread, because files and terminals cannot all be waited for; it is left behind when there is nobody to send to any more.
    while data := await trio.to_thread.run_sync(os.read, fd, CHUNK, abandon_on_cancel=True):
        await stream.send_all(data)
        alive()
    if isinstance(stream, trio.abc.HalfCloseableStream):
        try:
            await stream.send_eof()
        except trio.BrokenResourceError as error:
            if not (isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENOTCONN):
                raise  # what was reset has no direction left to shut down; why, reading tells


async def receive_file(stream: trio.abc.ReceiveStream, fd: int, alive: Callable[[], None]) -> None:
    """Write what is received to a descriptor, until the end of file."""
    while data := await stream.receive_some(1 << 18):
        alive()
        await _write(fd, data)


async def _write(fd: int, data: bytes | bytearray) -> None:
    import trio

    def write() -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    await trio.to_thread.run_sync(write)


# --- UDP ---


async def _datagrams(net: network.Network, options: Options) -> int:
    import trio

    port = options.ports[0]
    if options.host is None:
        endpoint = await net.stack.open_udp(port)
        click.echo(f"listening on {', '.join(f'{host}:{port}' for host in net.hosts())} (UDP)", err=True)
        data, sender = await endpoint.receive_from()
        endpoint.socket.connect(sender)
        _say(options, f"Connection received on {sender[0]} {sender[1]}")
        await _write(1, data)
    else:
        endpoint = await net.stack.open_udp(remote=(await net.numeric(options.host), port))
    async with endpoint, trio.open_nursery() as nursery:
        scope = nursery.cancel_scope

        def alive() -> None:
            if options.timeout is not None:
                scope.deadline = trio.current_time() + options.timeout

        async def outward() -> None:
            while data := await trio.to_thread.run_sync(os.read, 0, DATAGRAM, abandon_on_cancel=True):
                await endpoint.send(data)
                alive()
            if options.quit is not None:
                await trio.sleep(options.quit)
                scope.cancel()

        async def inward() -> None:
            while True:
                data = await endpoint.receive()
                alive()
                await _write(1, data)

        alive()
        nursery.start_soon(outward)
        nursery.start_soon(inward)
    return 0


# --- scanning ---


async def _scan(net: network.Network, options: Options) -> int:
    """Try every port; 0 when somebody listens on one of them."""
    import trio

    assert options.host is not None
    found = 0
    kind = "udp" if options.udp else "tcp"
    host = await net.numeric(options.host)
    patience = trio.current_time() + net.patience  # of all ports together: a --peer program needs time to start

    async def open_tcp(_: str, port: int) -> TcpStream:
        while True:
            try:
                return await net.stack.open_tcp_stream(host, port)
            except ConnectionRefusedError:
                if trio.current_time() >= patience:
                    raise
            await trio.sleep(0.05)

    for port in options.ports:
        try:
            if options.udp:
                await _knock(await net.stack.open_udp(remote=(host, port)), options.timeout or 1.0)
            else:
                await trio.aclose_forcefully(await _connect(open_tcp, options.host, port, options.timeout))
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.ETIMEDOUT):
                raise
            _say(options, f"connect to {options.host} port {port} ({kind}) failed: {os.strerror(error.errno)}")
        else:
            found += 1
            click.echo(f"Connection to {options.host} {port} port [{kind}/*] succeeded!", err=True)
    return 0 if found else 1


async def _knock(endpoint: UdpEndpoint, timeout: float) -> None:
    """A datagram of one byte: silence means that it may have been taken. Raises ConnectionRefusedError when it was not."""
    import trio

    async with endpoint:
        with trio.move_on_after(timeout):
            await endpoint.send(b"X")
            await endpoint.receive()
