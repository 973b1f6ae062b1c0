"""A test under way: the data streams, what they move, and the figures of each interval.

A `Flow` is one data connection and one direction. Senders count what the socket has taken, receivers what they have read,
as iperf3 does; the two differ by what is in the buffers. The clock starts when the test does; with `omit` it starts again
after so many seconds, and what was moved before counts in its own, "omitted" intervals only.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import trio

from pytcp.sockets.datagrams import UdpEndpoint
from pytcp.sockets.socket import IPPROTO_TCP, SOL_SOCKET, TCP_NODELAY, Socket
from pytcp.sockets.streams import TcpStream
from pytcp.sockets.udp import DatagramSocket

from . import udp
from .protocol import Iperf3Error, Result, Settings, stream_number
from .udp import Counts

if TYPE_CHECKING:
    from pytcp.tcp.info import TcpInfo

SO_SNDBUF, SO_RCVBUF, TCP_MAXSEG, TCP_CONGESTION, IP_TOS, IPV6_TCLASS = 7, 8, 2, 13, 1, 67
DRAIN = 0.2  # seconds in which a receiver may read what is on its way when the client says that the test is over
DRAIN_IDLE = 0.01
GRACE = 5.0  # seconds a sender has for the rest of its last block
SMALL = 0.1  # share of an interval that is worth a line of its own at the end


@dataclass
class Sample:
    """One flow in one interval. What the sender's TCP says is None at the receiver."""

    start: float
    end: float
    bytes: int
    omitted: bool
    retransmits: int | None = None
    cwnd: int = 0  # bytes
    snd_wnd: int = 0
    rtt: int = 0  # us
    rttvar: int = 0  # us
    pmtu: int = 0
    jitter: float = 0.0  # UDP: seconds
    lost: int = 0
    packets: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass
class Flow:
    """One data stream."""

    index: int  # in the order of the connections
    stream: TcpStream | UdpEndpoint
    sender: bool
    socket: int  # the number iperf3 would show, its descriptor
    total: int = 0
    sent_before: int = 0  # in the omitted part
    mark: int = 0
    retransmits: int = 0
    retransmits_mark: int = 0
    samples: list[Sample] = field(default_factory=list)
    udp: Counts | None = None  # of a UDP stream
    udp_mark: Counts = field(default_factory=Counts)
    omitted: Counts = field(default_factory=Counts)  # of UDP, in the omitted part

    @property
    def ident(self) -> int:
        return stream_number(self.index)

    def counted(self) -> list[Sample]:
        return [sample for sample in self.samples if not sample.omitted]


def configure(socket: Socket | DatagramSocket, settings: Settings) -> None:
    """The options of a data connection, before it connects or when it was accepted. Raises OSError for what the stack refuses."""
    if settings.window:
        socket.setsockopt(SOL_SOCKET, SO_SNDBUF, settings.window)
        socket.setsockopt(SOL_SOCKET, SO_RCVBUF, settings.window)
    if settings.tos:
        v6 = socket.family == 10
        socket.setsockopt(41 if v6 else 0, IPV6_TCLASS if v6 else IP_TOS, settings.tos)
    if isinstance(socket, DatagramSocket):
        return
    socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, int(settings.nodelay))
    if settings.mss:
        socket.setsockopt(IPPROTO_TCP, TCP_MAXSEG, settings.mss)
    if settings.congestion:
        socket.setsockopt(IPPROTO_TCP, TCP_CONGESTION, settings.congestion.encode())


def congestion_of(flows: list[Flow]) -> str:
    """The congestion control the streams use."""
    if not flows or flows[0].udp is not None:
        return ""
    name = flows[0].stream.socket.getsockopt(IPPROTO_TCP, TCP_CONGESTION, 16)
    assert isinstance(name, bytes)
    return name.rstrip(b"\0").decode()


class Session:
    """The flows of one test, in either role.

    interval: seconds between two reports, 0 for none. on_interval: called after each with whether it was omitted.
    """

    def __init__(self, settings: Settings, interval: float, on_interval: Callable[[bool], object]) -> None:
        self.settings = settings
        self.interval = interval
        self.on_interval = on_interval
        self.flows: list[Flow] = []
        self.intervals: list[list[Sample]] = []
        self.started = 0.0
        self.elapsed = 0.0
        self.omitting = settings.omit > 0
        self.done = False
        self.budget_spent = trio.Event()
        self.cpu = (0.0, 0.0, 0.0)
        self._budget = settings.limit or (1 << 63)
        self._reported = 0.0
        self._failure: Iperf3Error | None = None
        self._scope = trio.CancelScope()
        self._received = 0
        self._sending = 0  # senders at work
        self._idle = trio.Event()  # none is any more

    def add(self, stream: TcpStream | UdpEndpoint, sender: bool, spacing: int) -> Flow:
        """A data connection. spacing: between the descriptors shown of the first and the second one."""
        index = len(self.flows)
        flow = Flow(index, stream, sender, 5 + (2 * index if spacing == 2 or not index else 2 * index + 1))
        if isinstance(stream, UdpEndpoint):
            flow.udp = Counts()
        self.flows.append(flow)
        return flow

    # --- moving data ---

    async def run(self, over: Callable[[], Awaitable[object]], *, drain: bool) -> None:
        """Move data until `over` returns. drain: then read on for as long as something is on its way.

        Raises Iperf3Error when a connection breaks before, or `over` raises one."""
        clock, cpu = time.monotonic(), os.times()
        self.started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for flow in self.flows:
                nursery.start_soon(self._mover(flow), flow)
            nursery.start_soon(self._tick)
            with self._scope:
                try:
                    await over()
                except Iperf3Error as exc:
                    self._failure = exc
                except trio.BrokenResourceError as exc:
                    self._failure = Iperf3Error(f"control connection: {exc}")
            if self._failure is None:
                self.elapsed = trio.current_time() - self.started
                self.done = True
                with trio.move_on_after(GRACE):
                    while self._sending:
                        await self._idle.wait()
                if drain:
                    await self._settle()
                if self.elapsed - self._reported >= SMALL * (self.interval or self.elapsed) or any(flow.total > flow.mark for flow in self.flows):
                    self._sample(self.elapsed)
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        wall, now = max(time.monotonic() - clock, 1e-9), os.times()
        user, system = (100 * (now[i] - cpu[i]) / wall for i in (0, 1))
        self.cpu = (user + system, user, system)
        for flow in self.flows:
            flow.retransmits = _retransmits(flow) - flow.sent_before

    def _mover(self, flow: Flow) -> Callable[[Flow], Awaitable[None]]:
        if flow.udp is not None:
            return self._send_datagrams if flow.sender else self._receive_datagrams
        return self._send if flow.sender else self._receive

    async def _send_datagrams(self, flow: Flow) -> None:
        stream, counts, settings = flow.stream, flow.udp, self.settings
        assert isinstance(stream, UdpEndpoint) and counts is not None
        length, rate = settings.length, settings.bitrate / 8
        most = udp.at_once(length)
        stream.socket.setsockopt(udp.IPPROTO_UDP, udp.UDP_SEGMENT, length if most > 1 else 0)
        self._sending += 1
        try:
            while not self.done:
                if self._budget <= 0:
                    self.budget_spent.set()
                    return
                now = trio.current_time()
                due = most if not rate else min(most, 1 + max(0, int(((now - self.started) * rate - flow.total) / length)))
                count = min(due, -(-self._budget // length))
                try:
                    stream.socket.send(udp.several(counts.packets + 1, count, now, length, settings.counters64))
                except OSError as exc:
                    if exc.errno != errno.EMSGSIZE or most == 1:
                        raise
                    most = 1  # the path takes no such datagrams: they go as fragments, one by one
                    stream.socket.setsockopt(udp.IPPROTO_UDP, udp.UDP_SEGMENT, 0)
                    continue
                self._budget -= count * length
                counts.packets += count
                flow.total += count * length
                if rate:
                    await self._pace(flow, rate)
                await trio.lowlevel.checkpoint()
        except OSError as exc:
            self._broken("unable to write to stream socket", exc)
        finally:
            self._sending -= 1
            if not self._sending:
                self._idle.set()

    async def _receive_datagrams(self, flow: Flow) -> None:
        stream, counts, limit = flow.stream, flow.udp, self.settings.limit
        assert isinstance(stream, UdpEndpoint) and counts is not None
        try:
            stream.socket.setsockopt(udp.IPPROTO_UDP, udp.UDP_GRO, 1)
            while True:
                for data in await stream.receive_many():
                    found = udp.parse(data, self.settings.counters64)
                    if found is None:
                        continue  # a CONNECT that was said again, or an answer
                    counts.received(*found, trio.current_time())
                    flow.total += len(data)
                    self._received += len(data)
                if limit and self._received >= limit:
                    self.budget_spent.set()
        except OSError as exc:
            self._broken("unable to read from stream socket", exc)

    async def _send(self, flow: Flow) -> None:
        assert isinstance(flow.stream, TcpStream)
        block = (bytes(range(256)) * (self.settings.length // 256 + 1))[: self.settings.length]
        rest: bytes | memoryview = b""
        send = flow.stream.socket.send
        rate = self.settings.bitrate / 8
        self._sending += 1
        try:
            # whole blocks only: an iperf3 that receives waits for all of one and hears nothing meanwhile
            while rest or not self.done:
                if not rest:
                    if self._budget <= 0:
                        self.budget_spent.set()
                        return
                    self._budget -= len(block)
                    rest = block
                try:
                    sent = send(rest)
                except BlockingIOError:
                    await flow.stream.wait_send_all_might_not_block()
                    continue
                flow.total += sent
                rest = b"" if sent == len(rest) else memoryview(rest)[sent:]
                if rate and not rest:
                    await self._pace(flow, rate)
                await trio.lowlevel.checkpoint()
        except (OSError, trio.BrokenResourceError) as exc:
            self._broken("unable to write to stream socket", exc)
        finally:
            self._sending -= 1
            if not self._sending:
                self._idle.set()

    async def _pace(self, flow: Flow, rate: float) -> None:
        due = self.started + flow.total / rate
        if due > trio.current_time():
            await trio.sleep_until(due)

    async def _receive(self, flow: Flow) -> None:
        assert isinstance(flow.stream, TcpStream)
        limit = self.settings.limit
        size = max(self.settings.length, 1 << 18)
        try:
            while data := await flow.stream.receive_some(size):
                flow.total += len(data)
                self._received += len(data)
                if limit and self._received >= limit:
                    self.budget_spent.set()
        except trio.BrokenResourceError as exc:
            self._broken("unable to read from stream socket", exc)

    def _broken(self, what: str, exc: Exception) -> None:
        if not self.done and self._failure is None:
            cause = exc if isinstance(exc, OSError) else exc.__cause__
            self._failure = Iperf3Error(f"{what}: {os.strerror(getattr(cause, 'errno', 0))}")
            self._scope.cancel()

    async def _settle(self) -> None:
        """What was sent before the client's last word is still read, if it comes without a pause."""
        deadline = trio.current_time() + DRAIN
        before = -1
        while before != self._received and trio.current_time() < deadline:
            before = self._received
            await trio.sleep(DRAIN_IDLE)

    # --- measuring ---

    async def _tick(self) -> None:
        if self.omitting:
            await self._ticks_until(self.started + self.settings.omit)
            if trio.current_time() - self.started > self._reported:
                self._sample(trio.current_time() - self.started)
            self.omitting = False
            self.started = trio.current_time()
            self._reported = 0.0
            for flow in self.flows:
                flow.total = flow.mark = 0
                flow.sent_before = _retransmits(flow)
                if flow.udp is not None:
                    flow.omitted = replace(flow.udp)
        await self._ticks_until(float("inf"))

    async def _ticks_until(self, end: float) -> None:
        # the end makes its own sample: no tick where it is due, but again if it does not come
        last = float("inf") if self.settings.limit else self.started + self.settings.duration
        number = 0
        while self.interval:
            number += 1
            due = self.started + number * self.interval
            if due >= end:
                break
            if abs(due - last) < SMALL * self.interval:
                continue
            await trio.sleep_until(due)
            self._sample(trio.current_time() - self.started)
        await trio.sleep_until(end)

    def _sample(self, now: float) -> None:
        samples = []
        for flow in self.flows:
            sample = Sample(self._reported, now, flow.total - flow.mark, self.omitting)
            if flow.udp is not None:
                sample.jitter = flow.udp.jitter
                sample.lost = flow.udp.lost - flow.udp_mark.lost
                sample.packets = flow.udp.packets - flow.udp_mark.packets
                flow.udp_mark = replace(flow.udp)
            elif flow.sender:
                info = _info(flow)
                sample.retransmits = info.total_retrans - flow.retransmits_mark
                sample.cwnd = info.snd_cwnd * info.snd_mss
                sample.snd_wnd, sample.rtt, sample.rttvar, sample.pmtu = info.snd_wnd, info.rtt, info.rttvar, info.pmtu
                flow.retransmits_mark = info.total_retrans
            flow.mark = flow.total
            flow.samples.append(sample)
            samples.append(sample)
        self._reported = now
        self.intervals.append(samples)
        self.on_interval(self.omitting)

    def moved(self) -> int:
        """Bytes so far, all flows together; something else when anything was moved since it was asked."""
        return sum(flow.total for flow in self.flows)

    def results(self) -> dict[int, Result]:
        """What this side tells the other about its streams."""
        return {flow.ident: self.result(flow) for flow in self.flows}

    def result(self, flow: Flow) -> Result:
        """What this side knows of one stream."""
        counts = flow.udp
        if counts is None:
            return Result(flow.total, flow.retransmits if flow.sender else None, self.elapsed)
        return Result(flow.total, None, self.elapsed, counts.jitter, counts.lost - flow.omitted.lost, counts.packets - flow.omitted.packets)


def _info(flow: Flow) -> TcpInfo:
    assert isinstance(flow.stream, TcpStream)
    return flow.stream.info()


def _retransmits(flow: Flow) -> int:
    return _info(flow).total_retrans if flow.sender and flow.udp is None else 0
