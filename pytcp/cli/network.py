"""What the commands that need a stack share: options, a testbed or a TAP of the user's, a capture, a program at the peer."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import ipaddress
import math
import os
import socket
import struct
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pytcp import native
from pytcp.cli.files import NewFile
from pytcp.link.qdisc import KINDS
from pytcp.tcp import profiles

if TYPE_CHECKING:
    from pytcp.lab.testbed import Testbed
    from pytcp.link.frame import Link
    from pytcp.link.pcapng import PcapngWriter
    from pytcp.sockets.open import TrioStack
    from pytcp.sockets.socket import Socket
    from pytcp.sockets.streams import TcpStream

PATIENCE = 3.0
LAST_WORDS = 0.3  # seconds a --peer program has to end by itself when the command is done
F = TypeVar("F", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A finite number of seconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return number


DEVICES = ("tap", "tun", "veth")


@dataclass(frozen=True)
class Where:
    """The options: to which network, and what to record of it."""

    device: tuple[str, str] | None  # an option of DEVICES and its value; None: a testbed
    address: tuple[str, ...]
    gateway: tuple[str, ...]
    peer: str | None
    pcap: str | None
    trace: str | None = None
    profile: str = profiles.DEFAULT
    qdisc: str | None = None
    tx_thread: bool = False

    def stack_options(self) -> dict[str, Any]:
        """What of it `open_stack` takes."""
        return {"gateway": self.gateway, "profile": self.profile, "qdisc": self.qdisc, "tx_mode": "thread" if self.tx_thread else "reaped"}


def options(command: F) -> F:
    """Add the options; the command gets them as one `where`."""

    @functools.wraps(command)
    def collect(
        *args: Any, tap: str | None, tun: str | None, veth: str | None, address: tuple[str, ...], gateway: tuple[str, ...], peer: str | None,
        pcap: str | None, trace: str | None, profile: str, qdisc: str | None, tx_thread: bool, **rest: Any,
    ) -> Any:
        given = [(kind, name) for kind, name in zip(DEVICES, (tap, tun, veth), strict=True) if name is not None]
        if len(given) > 1:
            raise click.UsageError(f"--{given[0][0]} and --{given[1][0]} exclude each other.")
        if not given and (address or gateway):
            raise click.UsageError("--address and --gateway go with --tap, --tun or --veth; a testbed has its own.")
        if given and not address:
            raise click.UsageError(f"--{given[0][0]} needs an --address, like --address 10.0.0.2/24.")
        for text in address:
            _check(ipaddress.ip_interface, text, "--address", "10.0.0.2/24", whole="/" in text)
        for text in gateway:
            _check(ipaddress.ip_address, text, "--gateway", "10.0.0.1")
        if tap is not None and tap.startswith("fd:") and not tap[3:].isdecimal():
            raise click.UsageError(f"--tap {tap!r} is not like fd:5.")
        if given and peer is not None:
            raise click.UsageError(f"--peer runs in a testbed; with --{given[0][0]} the peer is yours.")
        if tx_thread and pcap is not None:
            raise click.UsageError("--tx-thread and --pcap exclude each other: a capture stands between the stack and its device.")
        if tx_thread and not native.HAVE_C:
            raise click.ClickException(f"--tx-thread needs the C helpers, and there are none: {native.reason}")
        where = Where(given[0] if given else None, address, gateway, peer, pcap, trace, profile, qdisc, tx_thread)
        return command(*args, where=where, **rest)

    decorated: Any = collect
    for option in (
        click.option("--tx-thread", is_flag=True, help="Have a C thread write the frames while Python works."),
        click.option("--qdisc", type=click.Choice(sorted(KINDS)), help="Queueing discipline before the device."),
        click.option("--profile", type=click.Choice(profiles.NAMES), default=profiles.DEFAULT, show_default=True, help="Kernel whose defaults the stack has."),
        click.option("--trace", metavar="FILE", type=NewFile(), help="Record TCP's decisions, for `pytcp trace` and `pytcp explain`."),
        click.option("--pcap", metavar="FILE", type=NewFile(), help="Record the packets as pcapng."),
        click.option("--peer", metavar="COMMAND", help="Run a shell command in the testbed's namespace meanwhile, with $PYTCP4, $PYTCP6, $PEER4, $PEER6 set."),
        click.option("--gateway", metavar="ADDRESS", multiple=True, help="Default route; once per family. With a device of yours."),
        click.option("--address", metavar="ADDRESS/PREFIX", multiple=True, help="Address of the stack; may be repeated. With a device of yours."),
        click.option("--veth", metavar="NAME", help="The same, by a packet socket on one end of a veth pair, or on another Ethernet interface."),
        click.option("--tun", metavar="NAME", help="The same, with a TUN device: IP without Ethernet."),
        click.option("--tap", metavar="NAME|fd:N", help="Attach to this TAP device, or to what descriptor N leads to, instead of making a testbed."),
    ):
        decorated = option(decorated)
    result: F = decorated
    return result


def _check(kind: Callable[[str], Any], text: str, option: str, example: str, *, whole: bool = True) -> None:
    try:
        if whole and not kind(text).is_multicast:
            return
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is not like {example}.", param_hint=option)


@dataclass(frozen=True)
class Network:
    """A running stack and where it lives."""

    stack: TrioStack
    testbed: Testbed | None
    addresses: tuple[str, ...]
    patience: float = 0.0  # seconds for which a refused connection is tried again: a --peer program needs time to start

    def hosts(self) -> list[str]:
        """The stack's addresses as they appear in URLs."""
        plain = [address.partition("/")[0] for address in self.addresses]
        return [f"[{address}]" if ":" in address else address for address in plain]

    async def numeric(self, host: str) -> str:
        """The first address of a host, which may be one already. Raises click.ClickException for a name nobody knows."""
        from socket import gaierror

        try:
            return (await self.stack.addresses_of(host, 0))[0][1]
        except gaierror as error:
            raise click.ClickException(str(error.strerror)) from error

    async def connect(self, host: str, port: int, prepare: Callable[[Socket], object] | None = None) -> TcpStream:
        """`open_tcp_stream`, waiting for a server that --peer is only starting."""
        from socket import gaierror

        import trio

        deadline = trio.current_time() + self.patience
        while True:
            try:
                return await self.stack.open_tcp_stream(host, port, prepare=prepare)
            except gaierror as error:
                raise click.ClickException(str(error.strerror)) from error
            except OSError:
                if trio.current_time() >= deadline:
                    raise
            await trio.sleep(0.05)


def run(where: Where, program: Callable[[Network], Awaitable[int]]) -> int:
    """Run `program` on a stack; its result is the exit status. Cleans up whatever happens."""
    import trio

    import pytcp.lab.wired  # noqa: F401  (before trio runs: an interrupt in the middle of an import can be lost)

    with _place(where) as (link, testbed, addresses):

        async def main() -> int:
            async with _stack(where, link, testbed, addresses, recording) as network, _peer_command(where, testbed):
                return await program(network)

        with recorded(where) as recording:
            status = trio.run(main)
        return recording.status(status)


def environment(testbed: Testbed) -> dict[str, str]:
    """What programs in the testbed's namespace find in their environment."""
    names = {"PYTCP4": testbed.address4, "PYTCP6": testbed.address6, "PEER4": testbed.peer4, "PEER6": testbed.peer6}
    return {**os.environ, **names}


def inside(testbed: Testbed) -> str:
    """Where to find the peer."""
    return f" in {testbed.name}" if testbed.named else ""


@contextlib.contextmanager
def _place(where: Where) -> Iterator[tuple[Link, Testbed | None, tuple[str, ...]]]:
    if where.device is not None:
        yield _attach(*where.device), None, where.address
        return
    from pytcp.lab import rootless
    from pytcp.lab.testbed import Testbed

    rootless.enter()
    with Testbed() as testbed:
        click.echo(f"testbed: pytcp is {testbed.address4} and {testbed.address6}; the peer {testbed.peer4} and {testbed.peer6}{inside(testbed)}", err=True)
        yield testbed.link, testbed, tuple(testbed.addresses)


HOW_TO_MAKE = {
    "tap": "ip tuntap add {0} mode tap vnet_hdr && ip link set {0} up",
    "tun": "ip tuntap add {0} mode tun vnet_hdr && ip link set {0} up",
    "veth": "ip link add {0} type veth peer name {0}-peer && ip link set {0} up && ip link set {0}-peer up",
}
IFF_UP = 1
SIOCGIFFLAGS = 0x8913


def _attach(kind: str, name: str) -> Link:
    """The link on a device of the user's. Raises click.ClickException that says what to do."""
    from pytcp.link.frame import check_name
    from pytcp.link.packet import PacketLink
    from pytcp.link.tap import Tap
    from pytcp.link.tun import Tun

    if kind == "tap" and name.startswith("fd:"):
        return _adopt(int(name[3:]))
    called = kind if kind == "veth" else kind.upper()
    try:
        check_name(name)
    except OSError as error:
        raise click.ClickException(f"{error.strerror} (1 to 15 bytes)") from error
    if name not in (there for _, there in socket.if_nameindex()):
        raise click.ClickException(f"no {called} device {name!r}; make one: {HOW_TO_MAKE[kind].format(name)}")
    kinds: dict[str, Callable[[str], Link]] = {"tap": Tap, "tun": Tun, "veth": PacketLink}
    try:
        link = kinds[kind](name)
    except OSError as error:
        reason = {errno.EBUSY: "another program has it", errno.EINVAL: f"it is not a {called}"}.get(error.errno or 0, error.strerror)
        raise click.ClickException(f"{name}: {reason}") from error
    if not _flags(name) & IFF_UP:
        say(f"{name} is down: nothing passes until `ip link set {name} up`")
    return link


def _flags(name: str) -> int:
    """The IFF_* flags of an interface of the kernel."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        return int(struct.unpack_from("H", fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16s24x", name.encode())), 16)[0])


def _speaker() -> str:
    ctx = click.get_current_context(silent=True)
    return ctx.command_path if ctx is not None else "pytcp"


def say(text: str) -> None:
    """A line on standard error that says which command speaks."""
    click.echo(f"{_speaker()}: {text}", err=True)


def _adopt(fd: int) -> Link:
    """A link on a descriptor that was inherited: a TAP, a TUN or a packet socket."""
    from pytcp.link.packet import PacketLink
    from pytcp.link.tap import Tap
    from pytcp.link.tun import Tun

    for kind in (Tap, Tun, PacketLink):
        try:
            return kind(fd=fd)
        except OSError as exc:
            if exc.errno == errno.EBADF:
                raise click.ClickException(f"there is no descriptor {fd}") from exc
    raise click.ClickException(f"descriptor {fd} is neither a TAP or TUN without packet information nor a packet socket")


@contextlib.asynccontextmanager
async def _stack(where: Where, link: Link, testbed: Testbed | None, addresses: tuple[str, ...], recording: Recording) -> AsyncIterator[Network]:
    from pytcp.lab.wired import open_wired

    async with open_wired(link, addresses, writer=recording.writer, **where.stack_options()) as wired:
        yield Network(wired.stack, testbed, addresses, PATIENCE if where.peer is not None else 0.0)


@dataclass
class Recording:
    """What is recorded, and whether a file of it broke off."""

    writer: PcapngWriter | None = None
    broken: bool = False

    def status(self, status: int) -> int:
        """The exit status of a command that would end with `status`."""
        return status or int(self.broken)

    def ended(self, what: str, path: str, number: int, things: str, error: OSError | None) -> None:
        """Say what there is."""
        if error is None:
            click.echo(f"{what}: {path} ({number:,} {things})", err=True)
        else:
            self.broken = True
            say(f"{path}: {error.strerror or error}: the {what} breaks off")


@contextlib.contextmanager
def recorded(where: Where) -> Iterator[Recording]:
    """What --pcap and --trace ask for: listens to every stack made meanwhile, and says at the end what there is."""
    from pytcp.lab.tracefile import TraceFile
    from pytcp.link.pcapng import PcapngWriter
    from pytcp.net.tracer import every_stack

    recording = Recording()
    with contextlib.ExitStack() as ends:
        if where.trace is not None:
            path = where.trace
            trace = TraceFile(where.trace, experiment=" ".join(click.get_current_context().command_path.split()))
            ends.callback(lambda: recording.ended("trace", path, trace.events, "events", trace.error))
            ends.callback(trace.close)
            ends.enter_context(every_stack(trace.listener))
        if where.pcap is not None:
            capture = where.pcap
            recording.writer = packets = PcapngWriter(capture)
            ends.callback(lambda: recording.ended("capture", capture, packets.packets, "packets", packets.error))
            ends.callback(packets.close)
        yield recording


@contextlib.asynccontextmanager
async def _peer_command(where: Where, testbed: Testbed | None) -> AsyncIterator[None]:
    if where.peer is None or testbed is None:
        yield
        return
    child: subprocess.Popen[bytes] = testbed.popen(["sh", "-c", where.peer], env=environment(testbed))
    ours = threading.Event()  # from then on its end is our doing
    watcher = threading.Thread(target=_watch, args=(child, ours, _speaker()), daemon=True)
    watcher.start()
    import trio

    try:
        yield
        with trio.move_on_after(LAST_WORDS):
            while child.poll() is None:
                await trio.sleep(0.01)
        if child.returncode is not None:
            watcher.join(LAST_WORDS)
    finally:
        ours.set()
        testbed.stop(child)


def _watch(child: subprocess.Popen[bytes], ours: threading.Event, speaker: str) -> None:
    """Say it as soon as a --peer command has failed: a server would wait for ever for who was to come."""
    status = child.wait()
    if status and not ours.is_set():
        ended = f"by signal {-status}" if status < 0 else f"with status {status}"
        click.echo(f"{speaker}: the --peer command ended {ended}", err=True)
