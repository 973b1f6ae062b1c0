"""The iperf3 server: one test at a time, any number of streams, both directions.

Serve `Server().handle` on port 5201. A second client during a test is told that the server is busy. A client that breaks
the protocol, asks for something impossible or goes away only loses its own test.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from pytcp.sockets.datagrams import UdpEndpoint
from pytcp.sockets.open import TrioStack
from pytcp.sockets.streams import TcpStream

from . import udp
from .protocol import COOKIE_SIZE, E_CONGESTION, E_NOT_IMPLEMENTED, E_PARAMETERS, SERVER_ERRORS, Control, Iperf3Error, Results, Settings, State
from .report import BAR, Report
from .session import Session, configure, congestion_of

SETUP = 30.0  # seconds a client may take from its cookie to its last data connection, and for the results
IDLE = 120.0  # seconds without a byte after which a client is given up, as iperf3's --rcv-timeout

Stream = trio.abc.HalfCloseableStream


@dataclass
class _Test:
    """The test under way: who asked, and the data connections so far."""

    cookie: bytes
    settings: Settings | None = None
    streams: list[TcpStream | UdpEndpoint] = field(default_factory=list)
    complete: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)

    def wants(self, cookie: bytes) -> bool:
        return self.settings is not None and not self.settings.udp and cookie == self.cookie and len(self.streams) < self.settings.streams


class Server:
    """The server. `handle` is a stream handler.

    say: takes the lines of its report. on_json: takes the `-J` tree of each test. interval: seconds between reports.
    stack: where datagrams come in, for tests of UDP; without it they are refused.
    tests: how many were done. bytes: of the last one, all directions. finished: set after the first test, good or bad, or a connection that asked for none.
    """

    def __init__(
        self,
        *,
        port: int = 5201,
        say: Callable[[str], object] | None = None,
        on_json: Callable[[dict[str, Any]], object] | None = None,
        interval: float = 1.0,
        form: str = "",
        stack: TrioStack | None = None,
    ) -> None:
        self.port = port
        self.stack = stack
        self.say = say
        self.on_json = on_json
        self.interval = interval
        self.form = form
        self.tests = 0
        self.bytes = 0
        self.finished = trio.Event()
        self._asked = 0
        self._test: _Test | None = None

    def announce(self) -> None:
        """Say that the server waits for a test."""
        self._asked += 1
        for line in (BAR, f"Server listening on {self.port} (test #{self._asked})", BAR):
            self._tell(line)

    def _tell(self, line: str) -> None:
        if self.say is not None:
            self.say(line)

    async def handle(self, stream: Stream) -> None:
        """Serve one connection, control or data."""
        control = Control(stream)
        try:
            with trio.fail_after(SETUP):
                cookie = await control.exactly(COOKIE_SIZE)
        except (Iperf3Error, trio.BrokenResourceError, trio.TooSlowError):
            if self._test is None:
                self._failed(SERVER_ERRORS[E_PARAMETERS], None)
            return
        test = self._test
        if test is None:
            await self._control(cookie, stream, control)
        elif isinstance(stream, TcpStream) and test.wants(cookie):
            test.streams.append(stream)
            assert test.settings is not None
            if len(test.streams) == test.settings.streams:
                test.complete.set()
            await test.over.wait()
        else:
            try:
                await control.say(State.ACCESS_DENIED)
            except trio.BrokenResourceError:
                return

    async def _control(self, cookie: bytes, stream: Stream, control: Control) -> None:
        test = self._test = _Test(cookie)
        report: Report | None = None
        error = ""
        try:
            with trio.fail_after(SETUP) as setup:
                settings = await self._parameters(test, control)
                report = Report("server", Session(settings, self.interval, bool), self.say, self.form)
                if isinstance(stream, TcpStream):
                    peer = stream.socket.getpeername()
                    report.line(f"Accepted connection from {peer[0]}, port {peer[1]}")
                    report.start = {"accepted_connection": {"host": peer[0], "port": peer[1]}}
                await self._streams(test, settings, control)
                setup.deadline = float("inf")
                await self._measure(test, settings, report, control)
        except (Iperf3Error, trio.BrokenResourceError) as exc:
            error = str(exc)
        except OSError as exc:  # a data connection that was reset before it was looked at
            error = exc.strerror or str(exc)
        except trio.TooSlowError:
            error = "the client took too long"
        except BaseException as exc:
            if not isinstance(exc, Exception):  # the server is being stopped
                with trio.move_on_after(0.2, shield=True), suppress(trio.BrokenResourceError):
                    await control.say(State.SERVER_TERMINATE)
            raise
        finally:
            test.over.set()
            for data_stream in test.streams:
                if isinstance(data_stream, UdpEndpoint):
                    data_stream.socket.close()
            self._test = None
        if error:
            await _goodbye(stream)
            self._failed(error, report)
        else:
            self.finished.set()

    def _failed(self, error: str, report: Report | None) -> None:
        """A test ended in failure, perhaps before it could be reported on."""
        self._tell(f"iperf3: error - {error}")
        if self.on_json is not None:
            self.on_json({"start": {"connected": []}, "intervals": [], "end": {}, "error": error} if report is None else report.tree(None, "", error))
        self.finished.set()

    async def _streams(self, test: _Test, settings: Settings, control: Control) -> None:
        """Wait for the data streams."""
        if not settings.udp:
            await control.say(State.CREATE_STREAMS)
            await test.complete.wait()
            return
        assert self.stack is not None
        door = udp.Door(self.stack, self.port)
        try:
            await control.say(State.CREATE_STREAMS)
            while len(test.streams) < settings.streams:
                test.streams.append(await door.accept())
        finally:
            door.close()

    async def _parameters(self, test: _Test, control: Control) -> Settings:
        await control.say(State.PARAM_EXCHANGE)
        try:
            found = await control.receive_json()
        except Iperf3Error as exc:
            raise Iperf3Error(f"{SERVER_ERRORS[E_PARAMETERS]}: {exc}") from exc
        if not found.get("tcp") and not (found.get("udp") and self.stack is not None):
            await control.fail(E_NOT_IMPLEMENTED)
            raise Iperf3Error("the client asks for something else than TCP and UDP")
        try:
            test.settings = Settings.decode(found)
        except Iperf3Error:
            await control.fail(E_PARAMETERS)
            raise
        return test.settings

    async def _measure(self, test: _Test, settings: Settings, report: Report, control: Control) -> None:
        session = report.session
        for index, stream in enumerate(test.streams):
            try:
                configure(stream.socket, settings)
            except OSError as exc:
                await control.fail(E_CONGESTION if settings.congestion else E_PARAMETERS, exc.errno or 0)
                raise Iperf3Error(f"an option the client wants was refused: {exc.strerror}") from exc
            session.add(stream, settings.reverse or index >= settings.parallel, 3)
        report.connected()
        report.began(cookie=test.cookie.rstrip(b"\0").decode("ascii", "replace"), **report.start)
        await control.say(State.TEST_START)
        await control.say(State.TEST_RUNNING)

        async def over() -> None:
            before = -1
            while (now := session.moved()) != before:
                before = now
                with trio.move_on_after(IDLE):
                    await control.expect(State.TEST_END)
                    return
            raise Iperf3Error("idle timeout for receiving data")

        await session.run(over, drain=True)
        report.summary(None)
        congestion = congestion_of(session.flows)
        test.over.set()  # closes the data connections: an iperf3 that receives may be waiting for the rest of a block
        with trio.fail_after(SETUP):
            theirs = await self._exchange(session, report, control, congestion)
        self.tests += 1
        self.bytes = sum(flow.total for flow in session.flows)
        if self.on_json is not None:
            self.on_json(report.tree(theirs, congestion))

    async def _exchange(self, session: Session, report: Report, control: Control, congestion: str) -> Results:
        await control.say(State.EXCHANGE_RESULTS)
        theirs = Results.decode(await control.receive_json())
        output = "\n".join(report.lines) + "\n" if session.settings.server_output else ""
        await control.send_json(Results(session.results(), session.cpu, any(flow.sender for flow in session.flows), congestion, output).encode())
        await control.say(State.DISPLAY_RESULTS)
        await control.expect(State.IPERF_DONE)
        return theirs


async def _goodbye(stream: Stream) -> None:
    """Closing with bytes unread would reset the connection, and the client would not read why."""
    try:
        await stream.send_eof()
        with trio.move_on_after(1):
            while await stream.receive_some(COOKIE_SIZE):
                pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return
