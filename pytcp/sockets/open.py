"""The front door: a stack as an async context manager, with trio's functions on it.

    async with open_stack(link=tap, addresses=["10.0.0.2/24"], gateway="10.0.0.1") as stack:
        stream = await stack.open_tcp_stream("10.0.0.1", 80)
        await stack.serve_tcp(handler, 8080)

`open_stack` makes the runtime (real time, or the virtual one of the running `VirtualClock`), the
network stack and an interface. `TrioStack` is what comes out: `net.Stack` knows no trio, so what waits
lives here, with the signatures and the semantics of `trio.open_tcp_stream` and its family; names are
looked up over the stack itself, local addresses and addresses of datagrams are numeric. Programs written
for trio take `stack.open_tcp_stream` where they took `trio.open_tcp_stream`, and run in virtual time by
`run_virtual`.

Leaving the block ends the stack. Sockets still open are closed, and for `drain` seconds their last data
may be acknowledged, as a kernel would see to after the program has ended; on an error or a cancellation
nothing is waited for, and connections are reset. When a device vanishes (LinkDown), everything that
depended on it fails with that error instead of timing out; a stack used after its end says so (ENETDOWN).
"""

from __future__ import annotations

import errno
import socket as stdlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, TypeVarTuple, Unpack

import trio

from pytcp.clock import virtual
from pytcp.clock.real import RealRuntime
from pytcp.clock.runtime import Runtime
from pytcp.net import sysctl
from pytcp.net.stack import Stack
from pytcp.tcp.profiles import DEFAULT as DEFAULT_PROFILE

from . import control, interrupts
from .address import AF_INET, AF_INET6, encode_name, host_port, numeric, oserror, parse, show
from .datagrams import UdpEndpoint
from .eyeballs import open_first
from .socket import IPPROTO_IPV6, IPV6_V6ONLY, MAX_BACKLOG, SO_ERROR, SO_REUSEADDR, SOL_SOCKET, Socket
from .streams import TcpListener, TcpStream
from .udp import DatagramSocket
from .waiting import Waiter

if TYPE_CHECKING:
    from pytcp.link.frame import Link, LinkDown
    from pytcp.net.datagram import UdpSocket
    from pytcp.net.interface import Interface
    from pytcp.net.ping import Reply
    from pytcp.tcp.sock import Sock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

interrupts.protect(Socket, DatagramSocket)

DRAIN = 2.0  # seconds the last data of closed connections may take when the stack ends
DRAIN_POLL = 0.005
PING_MAX = 65507  # bytes of data that an echo request can carry

_links_in_use: dict[int, Link] = {}  # by id(): a second stack would take the frames of the first


def check_port(port: Any) -> None:
    """Raises TypeError, OverflowError for what is no port, before anything is looked up."""
    if not isinstance(port, int):
        raise TypeError(f"port must be an int, not {port!r}")
    if not 0 <= port <= 65535:
        raise OverflowError("port must be 0-65535")


def _refused(number: int, name: str, address: str, port: int) -> OSError:
    """An attempt to connect failed: to whom, by his name and by the address that was tried."""
    where = host_port(address, port)
    return oserror(number, where if name.strip("[]") == address else f"{name} ({where})")


class Ping(NamedTuple):
    """What became of one echo request."""

    seq: int
    source: str  # who answered: the host, or the router that reports an error; "" when nobody did
    rtt: float | None  # seconds; None without an echo reply
    ttl: int  # of the answer
    error: tuple[int, int] | None = None  # type and code of an ICMP error


class TrioStack:
    """A running stack as trio programs see it. `open_stack` makes it.

    net: the stack below, for what has no trio side: interfaces, routes, counters (`net.mib`).
    runtime: its clock and its driver.
    """

    def __init__(self, net: Stack, runtime: Runtime) -> None:
        self.net = net
        self.runtime = runtime
        self.now = net.now
        self.flush = net.flush
        self._resolver: trio.abc.HostnameResolver | None = None
        self._sockets: set[Socket | DatagramSocket] = set()
        self._failure: OSError | None = None
        self._pings: set[trio.CancelScope] = set()
        runtime.link_down.append(self._link_down)

    # --- what sockets need of it (SocketHost, DatagramHost) ---

    def new_sock(self, family: int) -> Sock:
        """An engine socket. Raises OSError ENETDOWN when the stack has ended, or its device's error."""
        self._check()
        return self.net.new_sock(family)

    def new_endpoint(self, family: int) -> UdpSocket:
        """A UDP endpoint. Raises OSError as `new_sock`."""
        self._check()
        return self.net.udp.socket(family)

    def interface_of(self, index: int) -> Interface:
        """The interface of an index. Raises OSError ENODEV."""
        return self.net.device(index)

    def opened(self, socket: Socket | DatagramSocket) -> None:
        self._sockets.add(socket)

    def closed(self, socket: Socket | DatagramSocket) -> None:
        self._sockets.discard(socket)

    def _check(self) -> None:
        if self._failure is not None:
            raise OSError(self._failure.errno, self._failure.strerror) from self._failure

    # --- programs ---

    @property
    def resolver(self) -> trio.abc.HostnameResolver:
        """What looks names up: a `resolver.Resolver` with the system's files until another one is set."""
        if self._resolver is None:
            from .resolver import Resolver  # what has no names to look up needs no DNS library

            self._resolver = Resolver(self)
        return self._resolver

    @resolver.setter
    def resolver(self, resolver: trio.abc.HostnameResolver) -> None:
        if not isinstance(resolver, trio.abc.HostnameResolver):
            raise TypeError(f"a resolver is a trio.abc.HostnameResolver, not {resolver!r}")
        self._resolver = resolver

    def socket(self, family: int = AF_INET) -> Socket:
        """A non-blocking TCP socket, AF_INET or AF_INET6."""
        return Socket(self, family)

    def datagram_socket(self, family: int = AF_INET) -> DatagramSocket:
        """A non-blocking UDP socket, AF_INET or AF_INET6."""
        return DatagramSocket(self, family)

    async def open_udp(self, port: int = 0, *, host: str | bytes | None = None, remote: tuple[str, int] | None = None) -> UdpEndpoint:
        """A UDP endpoint on a local port (0: any), connected to a numeric `remote` when one is given.

        host: the local address; None is every address, of both families without a remote.
        Raises OSError: EADDRINUSE, EADDRNOTAVAIL, ENETUNREACH, ...; socket.gaierror for a name.
        """
        await trio.lowlevel.checkpoint()
        check_port(port)
        if remote is not None and not (isinstance(remote, tuple) and len(remote) >= 2):
            raise TypeError(f"remote is a tuple (host, port), not {remote!r}")
        if host is not None:
            family, text = numeric(host)
        elif remote is not None:
            family, text = numeric(remote[0])[0], ""
        else:
            family, text = AF_INET6, ""
        socket = DatagramSocket(self, family)
        try:
            socket.bind((text, port))
            if remote is not None:
                socket.connect(remote)
        except BaseException:
            socket.close()
            raise
        return UdpEndpoint(socket)

    async def open_tcp_stream(
        self,
        host: str | bytes,
        port: int,
        *,
        local_address: str | None = None,
        nodelay: bool | None = True,
        prepare: Callable[[Socket], object] | None = None,
    ) -> TcpStream:
        """Connect to a host and port, as `trio.open_tcp_stream`; the addresses of a name are tried as RFC 8305 says.

        local_address: the source address, None for the route's. nodelay: see `TcpStream`. prepare: called with
        the socket before it connects, for options that matter from the SYN on.
        Raises OSError: ECONNREFUSED, ETIMEDOUT, ENETUNREACH, ...; socket.gaierror for a name that is none. What is no host, as in
        trio, is a ValueError.
        """
        if not isinstance(host, str | bytes):
            raise ValueError(f"host must be str or bytes, not {host!r}")
        check_port(port)
        self._check()
        targets = await self.addresses_of(host, port)
        name = host.decode("ascii", "backslashreplace") if isinstance(host, bytes) else host
        connect = partial(self._connect, name, port=port, local_address=local_address, nodelay=nodelay, prepare=prepare)
        return await connect(targets[0]) if len(targets) == 1 else await open_first(targets, connect)

    async def addresses_of(self, host: str | bytes, port: int) -> list[tuple[int, str]]:
        """(family, numeric host) of a host, by `resolver` when it is a name. Raises socket.gaierror, with the name; ValueError, TypeError."""
        if isinstance(host, str | bytes) and ("\0" if isinstance(host, str) else b"\0") in host:  # type: ignore[operator]
            raise ValueError(f"a host name has no null character: {host!r}")
        try:
            return [numeric(host)]
        except stdlib.gaierror:
            if not host:
                raise stdlib.gaierror(stdlib.EAI_NONAME, "the host is empty") from None
        try:
            infos = await self.resolver.getaddrinfo(encode_name(host), port, 0, int(stdlib.SOCK_STREAM))
        except stdlib.gaierror as error:
            name = host.decode("ascii", "backslashreplace") if isinstance(host, bytes) else host
            raise stdlib.gaierror(error.errno, f"{error.strerror}: {name}") from None
        return [(int(info[0]), str(info[4][0])) for info in infos]

    async def _connect(
        self, name: str, target: tuple[int, str], *, port: int, local_address: str | None, nodelay: bool | None, prepare: Callable[[Socket], object] | None
    ) -> TcpStream:
        family, text = target
        await trio.lowlevel.checkpoint_if_cancelled()
        socket = Socket(self, family)
        waiter = Waiter()
        socket.notify = waiter
        try:
            if prepare is not None:
                prepare(socket)
            if local_address is not None:
                socket.bind((local_address, 0))
            try:
                socket.connect((text, port))
            except BlockingIOError:
                await waiter.until_writable(socket.poll)
                error = socket.getsockopt(SOL_SOCKET, SO_ERROR)
                if error:
                    assert isinstance(error, int)
                    raise _refused(error, name, text, port) from None
            except OSError as exc:
                if name.strip("[]") == text or exc.errno is None:
                    raise
                raise OSError(exc.errno, f"{exc.strerror}: {name}") from exc
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
            return TcpStream(socket, nodelay=nodelay)
        except BaseException:
            socket.close()
            raise

    async def open_tcp_listeners(self, port: int, *, host: str | bytes | None = None, backlog: int | None = None) -> list[TcpListener]:
        """Listen on a port, as `trio.open_tcp_listeners`: one listener for IPv4 and one for IPv6, or one for `host`.

        port: 0 lets the stack choose (each listener its own). backlog: None = as long as
        net.core.somaxconn allows. Raises OSError: EADDRINUSE, EADDRNOTAVAIL, ...
        """
        await trio.lowlevel.checkpoint()
        check_port(port)
        if backlog is not None and not isinstance(backlog, int):
            raise TypeError(f"backlog must be an int or None, not {backlog!r}")
        hosts: list[tuple[int, str]] = [(AF_INET, "0.0.0.0"), (AF_INET6, "::")] if host is None else [numeric(host)]
        listeners: list[TcpListener] = []
        try:
            for family, text in hosts:
                socket = Socket(self, family)
                try:
                    socket.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
                    if family == AF_INET6:
                        socket.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)
                    socket.bind((text, port))
                    socket.listen(MAX_BACKLOG if backlog is None else min(backlog, MAX_BACKLOG))
                    listeners.append(TcpListener(socket))
                except BaseException:
                    socket.close()
                    raise
        except BaseException:
            for listener in listeners:
                listener.socket.close()
            raise
        return listeners

    async def serve_tcp(
        self,
        handler: Callable[[TcpStream], Awaitable[object]],
        port: int,
        *,
        host: str | bytes | None = None,
        backlog: int | None = None,
        handler_nursery: trio.Nursery | None = None,
        task_status: trio.TaskStatus[list[TcpListener]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run `handler(stream)` in a task for each connection, as `trio.serve_tcp`; returns only when cancelled.

        A stream that its handler leaves open is closed behind it."""
        if not callable(handler):
            raise TypeError(f"a handler is an async function that takes a stream, not {handler!r}")
        listeners = await self.open_tcp_listeners(port, host=host, backlog=backlog)
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(_serve, listener, handler, handler_nursery or nursery)
            task_status.started(listeners)

    async def ping(
        self,
        host: str,
        *,
        count: int = 1,
        interval: float = 1.0,
        timeout: float = 2.0,
        size: int = 56,
        ttl: int = 0,
        on_answer: Callable[[Ping], object] | None = None,
    ) -> list[Ping]:
        """Echo requests to a numeric host, one every `interval` seconds, each given `timeout` seconds.

        size: bytes of data in a request. ttl: 0 = the stack's. on_answer: called with each outcome as it
        is known. Returns the outcomes in the order of the requests. Raises OSError without a route or when the stack is closed
        or loses its last device meanwhile, ValueError for numbers that cannot be.
        """
        for what, number, low, high in (("count", count, 0, 1 << 31), ("size", size, 0, PING_MAX), ("ttl", ttl, 0, 255)):
            if not isinstance(number, int):
                raise TypeError(f"{what} is a number, not {number!r}")
            if not low <= number <= high:
                raise ValueError(f"{what} is {low} to {high}, not {number}")
        self._check()
        family, text = numeric(host)
        outcomes: dict[int, Ping] = {}
        waiting: dict[int, trio.Event] = {}

        def answered(reply: Reply) -> None:
            outcomes[reply.seq] = Ping(reply.seq, show(reply.source), None if reply.error else reply.rtt_ns / 1e9, reply.ttl, reply.error)
            waiting[reply.seq].set()

        pinger = self.net.ping.open(parse(family, (text, 0))[0], answered, ttl=ttl)

        async def wait(seq: int) -> None:
            with trio.move_on_after(timeout):
                await waiting[seq].wait()
            outcome = outcomes.setdefault(seq, Ping(seq, "", None, 0))
            if on_answer is not None:
                on_answer(outcome)

        failure: OSError | None = None
        scope = trio.CancelScope()
        self._pings.add(scope)
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    for number in range(count):
                        if number:
                            await trio.sleep(interval)
                        try:
                            seq = pinger.send(bytes(i & 0xFF for i in range(size)))
                        except OSError as exc:
                            failure = exc  # raised outside the nursery, which would make a group of it
                            break
                        waiting[seq] = trio.Event()
                        self.flush()
                        nursery.start_soon(wait, seq)
        finally:
            self._pings.discard(scope)
            pinger.close()
        if scope.cancelled_caught:
            self._check()
        if failure is not None:
            raise failure
        return [outcomes[seq] for seq in waiting]

    # --- the end ---

    def _link_down(self, link: Link, down: LinkDown) -> None:
        """A device vanished: nothing that leads over it can ever go on."""
        gone = next((dev for dev in self.net.interfaces if dev.link is link), None)
        if gone is None:
            return
        gone.set_up(False)
        reason = str(down.strerror or down).removeprefix(f"{link.name}: ")
        error = OSError(down.errno or errno.ENETDOWN, f"device {link.name} vanished: {reason}")
        error.__cause__ = down
        last = not any(dev.up and not dev.loopback for dev in self.net.interfaces)
        if last:
            self._fail(error)
        for socket in list(self._sockets):
            sk = socket.sk if isinstance(socket, Socket) else None
            dst = sk.dst if sk is not None else None
            if last or (dst is not None and dst.dev is gone):
                socket.fail(error)

    async def _drain(self, seconds: float) -> None:
        """Close all sockets and let their last data be acknowledged, for at most so long."""
        for socket in list(self._sockets):
            socket.close()
        sockstat = self.net.mib.sockstat
        with trio.move_on_after(seconds):
            while sockstat.orphan:
                await trio.sleep(DRAIN_POLL)

    def _end(self) -> None:
        """Reset what is still open, and stop."""
        self.runtime.link_down.remove(self._link_down)
        closed = oserror(errno.ENETDOWN, "the stack was closed")
        for socket in list(self._sockets):
            socket.fail(closed)
        self._fail(self._failure or closed)
        self.flush()
        self.net.close()

    def _fail(self, error: OSError) -> None:
        """From now on `error` is the answer to every new call, and to pings under way."""
        self._failure = error
        for scope in self._pings:
            scope.cancel()


async def _serve(listener: TcpListener, handler: Callable[[TcpStream], Awaitable[object]], nursery: trio.Nursery) -> None:
    """A task of `handler` for each connection, as `trio.serve_listeners`, whose answer to a want of descriptors has no use here."""
    async with listener:
        while True:
            nursery.start_soon(_handle, await listener.accept(), handler)


async def _handle(stream: TcpStream, handler: Callable[[TcpStream], Awaitable[object]]) -> None:
    try:
        await handler(stream)
    finally:
        # what a cancelled `aclose` does, without the scope and the checkpoint that cancelling it takes
        stream.socket.close()


def _check_arguments(link: Any, addresses: Any, gateway: Any, runtime: Any, sysctls: Any, seed: Any, drain: Any, options: dict[str, Any]) -> None:
    """What `open_stack` was given, as far as it can be told before anything is made. Raises TypeError, ValueError."""
    if link is None and (options or (not isinstance(addresses, str) and list(addresses))):
        raise ValueError(f"{', '.join(options) or 'addresses'}: there is no link they could be for")
    gateways = [] if gateway is None else [gateway] if isinstance(gateway, str) else gateway
    if not isinstance(gateways, Iterable) or isinstance(gateways, bytes):
        raise TypeError(f"a gateway is a string like '10.0.0.1', not {gateway!r}")
    if runtime is not None and not hasattr(runtime, "heap"):
        raise TypeError(f"a runtime is a RealRuntime or a VirtualRuntime, not {runtime!r}")
    if sysctls is not None and not isinstance(sysctls, Mapping):
        raise TypeError(f"sysctls are a dict of names and values, not {sysctls!r}")
    if seed is not None and not isinstance(seed, int):
        raise TypeError(f"a seed is a number, not {seed!r}")
    if not isinstance(drain, int | float):
        raise TypeError(f"drain is a number of seconds, not {drain!r}")
    if not drain >= 0:
        raise ValueError(f"drain is {drain!r} seconds")


@asynccontextmanager
async def open_stack(
    *,
    link: Link | None = None,
    addresses: Iterable[str] = (),
    gateway: str | Iterable[str] | None = None,
    runtime: Runtime | None = None,
    sysctls: Mapping[str, int | str] | None = None,
    profile: str = DEFAULT_PROFILE,
    seed: int | None = None,
    drain: float = DRAIN,
    **options: Any,
) -> AsyncIterator[TrioStack]:
    """A stack for the length of an `async with`.

    link: the device, which the stack closes at the end; None gives a host with only its loopback (more
    devices: `stack.net.add_interface`). addresses: "address/prefix" strings for it. gateway: of the
    default route; one for each family.
    runtime: who drives it. None makes one in real time, or takes that of the `VirtualClock` of this trio
    run; one that is given must be run by whoever made it.
    sysctls: Linux names and values, set before anything is sent. profile: the kernel whose defaults the others have, as
    "linux-5.15" (docs/variants.md).
    seed: of everything random. None is the system's randomness in real time, and in virtual time the
    number of stacks made before, so that runs repeat.
    drain: seconds that closed connections may take to deliver their last data when the block ends.
    options: for `Stack.add_interface` (tx_mode, gro, dad, name, ...).

    Raises TypeError and ValueError for arguments that cannot be, OSError for a configuration that cannot be, EBUSY for a link that
    another stack has.
    """
    _check_arguments(link, addresses, gateway, runtime, sysctls, seed, drain, options)
    if link is not None and id(link) in _links_in_use:
        raise oserror(errno.EBUSY, "another stack has the link")
    own: RealRuntime | None = None
    if runtime is None:
        clock = trio.lowlevel.current_clock()
        if isinstance(clock, virtual.VirtualClock):
            runtime = clock.runtime
        else:
            runtime = own = RealRuntime()
    if seed is None and isinstance(runtime, virtual.VirtualRuntime):
        seed = len(runtime.before_pass)
    net = Stack(runtime, seed=seed, profile=profile)
    try:
        for name, value in (sysctls or {}).items():
            sysctl.set_(net.sysctl, name, value)
        if link is not None:
            net.add_interface(link, addresses, **options)
        for via in (gateway,) if isinstance(gateway, str) else gateway or ():
            net.add_route("default", via=via)
    except BaseException:
        net.close()
        raise
    stack = TrioStack(net, runtime)
    raised: BaseException | None = None
    if link is not None:
        _links_in_use[id(link)] = link
    try:
        async with trio.open_nursery() as nursery:
            if own is not None:
                await nursery.start(own.run)
            if isinstance(runtime, RealRuntime):
                await nursery.start(control.serve, net, net.now)
            try:
                yield stack
                await stack._drain(drain)
            except BaseException as exc:
                # raised again outside the nursery, which would wrap it into a group
                raised = exc
            stack._end()
            nursery.cancel_scope.cancel()
    finally:
        _links_in_use.pop(id(link), None)
        if not net.closed:
            stack._end()
    if raised is not None:
        raise raised


def run_virtual(async_fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, seed: int = 0) -> T:
    """`trio.run(async_fn, *args)` in virtual time: nothing sleeps, and the same seed gives the same run.

    Stacks opened inside share one virtual clock; join them by `pipe_pair(heap)` of `stack.runtime.heap`,
    or of `trio.lowlevel.current_clock().runtime.heap` before there is a stack.
    Raises clock.virtual.VirtualDeadlock when no task can run and nothing is pending.
    """
    return virtual.run(async_fn, *args, seed=seed)
