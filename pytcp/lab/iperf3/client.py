"""The iperf3 client: asks a server for a test, moves the data, and reports as iperf3 does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import trio

from pytcp.sockets.datagrams import UdpEndpoint
from pytcp.sockets.socket import IPPROTO_TCP, TCP_NODELAY, Socket
from pytcp.sockets.streams import TcpStream

from .protocol import PORT, Control, Iperf3Error, Results, Settings, State, new_cookie
from .report import Report
from .session import Session, configure, congestion_of

Connect = Callable[[str, int, Callable[[Socket], object] | None], Awaitable[TcpStream]]
ConnectUdp = Callable[[str, int], Awaitable[UdpEndpoint]]


async def run_client(
    connect: Connect,
    host: str,
    settings: Settings,
    *,
    port: int = PORT,
    interval: float = 1.0,
    form: str = "",
    say: Callable[[str], object] | None = None,
    connect_udp: ConnectUdp | None = None,
) -> dict[str, Any]:
    """Run one test against a server and return the tree of `iperf3 -J`.

    connect: makes a stream to (host, port), calling the third argument with the socket before it connects.
    interval: seconds between two reports, 0 for none but the last. form: unit of bitrates, one of kmgtKMGT. say: takes the
    lines of the report. connect_udp: makes a stream of datagrams, for a test of UDP (`udp.connect`). Raises Iperf3Error, and OSError from
    `connect`.
    """
    report = Report("client", Session(settings, interval, bool), say, form)
    cookie = new_cookie()
    async with AsyncExitStack() as streams:
        stream = await connect(host, port, None)
        await streams.enter_async_context(stream)
        control = Control(stream)
        report.line(f"Connecting to host {host}, port {port}")
        if settings.reverse:
            report.line(f"Reverse mode, remote host {host} is sending")
        try:
            return await _test(connect, connect_udp, host, port, settings, report, control, cookie, streams)
        except (Iperf3Error, trio.BrokenResourceError) as exc:
            error = exc if isinstance(exc, Iperf3Error) else Iperf3Error(f"control connection: {exc}")
            error.tree = report.tree(None, "", str(error))
            raise error from exc.__cause__
        except BaseException as exc:
            if not isinstance(exc, Exception):  # cancelled, or Ctrl-C
                with trio.move_on_after(0.2, shield=True), suppress(trio.BrokenResourceError):
                    await control.say(State.CLIENT_TERMINATE)
            raise


async def _test(
    connect: Connect, connect_udp: ConnectUdp | None, host: str, port: int, settings: Settings, report: Report, control: Control, cookie: bytes,
    streams: AsyncExitStack,
) -> dict[str, Any]:  # fmt: skip
    session = report.session

    def prepare(socket: Socket) -> None:
        try:
            configure(socket, settings)
        except OSError as exc:
            raise Iperf3Error(f"unable to set a socket option: {exc.strerror}") from exc

    async def data_connection(sender: bool) -> None:
        if settings.udp:
            assert connect_udp is not None
            endpoint = await connect_udp(host, port)
            await streams.enter_async_context(endpoint)
            configure(endpoint.socket, settings)
            session.add(endpoint, sender, 2)
            return
        stream = await connect(host, port, prepare)
        await streams.enter_async_context(stream)
        stream.setsockopt(IPPROTO_TCP, TCP_NODELAY, int(settings.nodelay))
        await stream.send_all(cookie)
        session.add(stream, sender, 2)

    await control.stream.send_all(cookie)
    await control.expect(State.PARAM_EXCHANGE)
    await control.send_json(settings.encode())
    await control.expect(State.CREATE_STREAMS)
    for _ in range(settings.parallel):
        await data_connection(not settings.reverse)
    if settings.bidirectional:
        for _ in range(settings.parallel):
            await data_connection(False)
    await control.expect(State.TEST_START)
    report.connected()
    report.began(connecting_to={"host": host, "port": port}, cookie=cookie.rstrip(b"\0").decode())
    await control.expect(State.TEST_RUNNING)

    async def over() -> None:
        failure: Exception | None = None

        async def hear() -> None:
            """The server has nothing good to say now."""
            nonlocal failure
            try:
                failure = Iperf3Error(f"{(await control.heard()).name} in the middle of the test")
            except (Iperf3Error, trio.BrokenResourceError) as exc:
                failure = exc
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            if settings.limit:
                await session.budget_spent.wait()
            else:
                await trio.sleep(settings.omit + settings.duration)
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    await session.run(over, drain=False)
    await control.say(State.TEST_END)
    await control.expect(State.EXCHANGE_RESULTS)
    congestion = congestion_of(session.flows)
    await control.send_json(Results(session.results(), session.cpu, any(flow.sender for flow in session.flows), congestion).encode())
    theirs = Results.decode(await control.receive_json())
    await control.expect(State.DISPLAY_RESULTS)
    report.summary(theirs)
    if theirs.output:
        report.line()
        report.line("Server output:\n" + _harmless(theirs.output))
    report.line()
    report.line("iperf Done.")
    await control.say(State.IPERF_DONE)
    return report.tree(theirs, congestion)


def _harmless(text: str) -> str:
    """Somebody else's text without what would steer a terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
