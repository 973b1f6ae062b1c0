"""SO_BINDTODEVICE and the scope of link-local addresses on TCP, as a 6.18 kernel answers on a host with two networks."""

from __future__ import annotations

import errno
import select
import socket as stdlib
from collections.abc import Awaitable, Callable

import pytest
import trio

from pytcp.link.pipe import pipe_pair
from pytcp.sockets.open import TrioStack, open_stack, run_virtual
from pytcp.sockets.socket import IPPROTO_TCP, Socket

from .streams import runtime

SOL_SOCKET, REUSEADDR, REUSEPORT = int(stdlib.SOL_SOCKET), int(stdlib.SO_REUSEADDR), int(stdlib.SO_REUSEPORT)
DEVICE, IFINDEX = 25, 62
V4, V6 = int(stdlib.AF_INET), int(stdlib.AF_INET6)
PORT = 7000
Outcome = str | None


def refused(call: Callable[[], object]) -> str | None:
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return None


class Host:
    """A host with the devices va (10.9.0.1, fd00:9::1) and va2 (10.8.0.1, fd00:8::1); neighbours b and b2 at .2 and ::2."""

    def __init__(self, stack: TrioStack, b: TrioStack, b2: TrioStack) -> None:
        self.stack, self.b, self.b2 = stack, b, b2

    def socket(self, device: str = "", family: int = V4, *, reuse: int = REUSEADDR) -> Socket:
        sock = self.stack.socket(family)
        sock.setsockopt(SOL_SOCKET, reuse, 1)
        if device:
            sock.setsockopt(SOL_SOCKET, DEVICE, device.encode())
        return sock

    def listener(self, device: str = "", family: int = V4, *, address: str = "", reuse: int = REUSEADDR) -> Socket:
        sock = self.socket(device, family, reuse=reuse)
        sock.bind((address, PORT))
        sock.listen(5)
        return sock

    def link_local(self, name: str) -> str:
        [found] = [str(entry.addr.hex(":", 2)) for entry in self.stack.net.interface(name).addresses6 if entry.addr[0] == 0xFE]
        return found


async def outcome(sock: Socket, address: tuple[str, int] | tuple[str, int, int, int]) -> Outcome:
    """connect(), then half a second: None when it is open, an errno's name, or "waits"."""
    error = refused(lambda: sock.connect(address))
    if error != "EINPROGRESS":
        return error
    await trio.sleep(0.5)
    if not sock.poll() & select.POLLOUT:
        return "waits"
    code = sock.getsockopt(SOL_SOCKET, stdlib.SO_ERROR)
    return errno.errorcode[code] if isinstance(code, int) and code else None


async def accepted(listeners: dict[str, Socket]) -> tuple[str, Socket] | None:
    await trio.sleep(0.1)
    for name, sock in listeners.items():
        if sock.poll() & select.POLLIN:
            return name, sock.accept()[0]
    return None


def on_two_networks(program: Callable[[Host], Awaitable[None]]) -> None:
    async def main() -> None:
        heap = runtime().heap
        va, vb = pipe_pair(heap)
        va2, vb2 = pipe_pair(heap, macs=(bytes.fromhex("020000000003"), bytes.fromhex("020000000004")))
        async with (
            open_stack(link=va, addresses=["10.9.0.1/24", "fd00:9::1/64"], name="va") as stack,
            open_stack(link=vb, addresses=["10.9.0.2/24", "fd00:9::2/64"]) as b,
            open_stack(link=vb2, addresses=["10.8.0.2/24", "fd00:8::2/64"]) as b2,
        ):
            stack.net.add_interface(va2, ["10.8.0.1/24", "fd00:8::1/64"], name="va2")
            await program(Host(stack, b, b2))

    run_virtual(main)


def test_a_name_is_looked_up_and_read_back_only_whole() -> None:
    async def program(host: Host) -> None:
        sock = host.socket()
        assert sock.getsockopt(SOL_SOCKET, DEVICE, 16) == b""
        assert refused(lambda: sock.setsockopt(SOL_SOCKET, DEVICE, b"nosuch")) == "ENODEV"
        assert refused(lambda: sock.setsockopt(SOL_SOCKET, DEVICE, b"a" * 20)) == "ENODEV"
        assert refused(lambda: sock.setsockopt(SOL_SOCKET, DEVICE, 1)) == "ENODEV"  # the name "\1"
        sock.setsockopt(SOL_SOCKET, DEVICE, b"va\0and more")
        assert sock.getsockopt(SOL_SOCKET, DEVICE, 16) == b"va\0"
        assert refused(lambda: sock.getsockopt(SOL_SOCKET, DEVICE, 15)) == "EINVAL"
        assert sock.getsockopt(SOL_SOCKET, IFINDEX) == 2
        sock.setsockopt(SOL_SOCKET, DEVICE, b"")
        assert sock.getsockopt(SOL_SOCKET, IFINDEX) == 0
        sock.setsockopt(SOL_SOCKET, IFINDEX, 99)  # nobody asks whether there is one
        assert refused(lambda: sock.getsockopt(SOL_SOCKET, DEVICE, 16)) == "ENODEV"
        assert refused(lambda: sock.connect(("10.9.0.2", PORT))) == "ENODEV"

    on_two_networks(program)


@pytest.mark.parametrize(("address", "only"), [("::", 0), ("::ffff:10.9.0.1", 0), ("fd00:9::1", 1), ("::1", 1)])
def test_binding_to_an_address_of_ipv6_excludes_ipv4(address: str, only: int) -> None:
    async def program(host: Host) -> None:
        for sock in (host.stack.socket(V6), host.stack.datagram_socket(V6)):
            sock.bind((address, 0))
            assert sock.getsockopt(41, 26) == only  # IPV6_V6ONLY

    on_two_networks(program)


def test_a_bound_socket_takes_no_unicast_interface_not_even_its_own() -> None:
    async def program(host: Host) -> None:
        sock = host.socket("va")
        outcomes = {index: refused(lambda index=index: sock.setsockopt(0, 50, index.to_bytes(4, "big"))) for index in (0, 2, 3, 99)}  # type: ignore[misc]
        assert outcomes == {0: None, 2: "EINVAL", 3: "EINVAL", 99: "EADDRNOTAVAIL"}

    on_two_networks(program)


@pytest.mark.parametrize(
    ("target", "device", "expected", "source"),
    [
        ("127.0.0.1", "lo", None, "127.0.0.1"),
        ("127.0.0.1", "va", "waits", "10.9.0.1"),
        ("10.9.0.1", "lo", "waits", None),
        ("10.9.0.1", "va", None, "10.9.0.1"),
        ("10.9.0.1", "va2", "waits", "10.8.0.1"),
        ("10.8.0.1", "va2", None, "10.8.0.1"),
        ("::1", "lo", None, "::1"),
        ("::1", "va", "ENETUNREACH", None),
        ("fd00:9::1", "va", None, "fd00:9::1"),
        ("fd00:9::1", "lo", "ENETUNREACH", None),
        ("2001:db8::1", "va", "ENETUNREACH", None),
        ("192.0.2.1", "va", "waits", "10.9.0.1"),  # without a route an IPv4 address is taken to be on the link
    ],
)
def test_a_connection_goes_by_its_device_and_no_other(target: str, device: str, expected: Outcome, source: str | None) -> None:
    async def program(host: Host) -> None:
        family = V6 if ":" in target else V4
        listener = host.listener(family=family)
        sock = host.socket(device, family)
        assert await outcome(sock, (target, PORT)) == expected
        if source is not None:
            assert sock.getsockname()[0] == source
        if expected is None:
            sock.send(b"over it")
            _, peer = (await accepted({"": listener})) or ("", None)
            assert peer is not None
            assert peer.recv(10) == b"over it"

    on_two_networks(program)


def test_a_listener_hears_by_its_device_only() -> None:
    async def program(host: Host) -> None:
        listeners = {"va": host.listener("va"), "va2": host.listener("va2")}  # one port, two devices
        for peer, address, expected in ((host.b, "10.9.0.1", "va"), (host.b2, "10.8.0.1", "va2")):
            assert await outcome(peer.socket(), (address, PORT)) is None
            heard = await accepted(listeners)
            assert heard is not None
            name, child = heard
            assert name == expected
            assert child.getsockopt(SOL_SOCKET, DEVICE, 16) == expected.encode() + b"\0"
        listeners["va"].close()
        assert await outcome(host.b.socket(), ("10.9.0.1", PORT)) == "ECONNREFUSED"
        # a packet to an address of our own counts as one that came by the device with it
        assert await outcome(host.socket(), ("10.8.0.1", PORT)) is None
        assert await outcome(host.socket(), ("127.0.0.1", PORT)) == "ECONNREFUSED"

    on_two_networks(program)


def test_an_address_wins_over_a_device_and_a_device_over_none() -> None:
    async def program(host: Host) -> None:
        listeners = {"any": host.listener(reuse=REUSEPORT), "va": host.listener("va", reuse=REUSEPORT)}
        assert await outcome(host.b.socket(), ("10.9.0.1", PORT)) is None
        heard = await accepted(listeners)
        assert heard is not None and heard[0] == "va"
        listeners["address"] = host.listener(address="10.9.0.1", reuse=REUSEPORT)
        assert await outcome(host.b.socket(), ("10.9.0.1", PORT)) is None
        heard = await accepted(listeners)
        assert heard is not None and heard[0] == "address"

    on_two_networks(program)


@pytest.mark.parametrize(("first", "second", "expected"), [("", "", True), ("", "va", True), ("va", "", True), ("va", "va", True), ("va", "lo", False)])
def test_one_port_serves_two_devices_but_not_one_device_and_all(first: str, second: str, expected: bool) -> None:
    async def program(host: Host) -> None:
        host.stack.socket()
        a, b = host.stack.socket(), host.stack.socket()
        for sock, device in ((a, first), (b, second)):
            if device:
                sock.setsockopt(SOL_SOCKET, DEVICE, device.encode())
        a.bind(("", PORT))
        assert refused(lambda: b.bind(("", PORT))) == ("EADDRINUSE" if expected else None)

    on_two_networks(program)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("", "", "EADDRNOTAVAIL"), ("", "va", "EADDRNOTAVAIL"), ("va", "", None), ("va", "va", "EADDRNOTAVAIL"), ("va", "lo", "waits")],
)
def test_a_connection_may_be_there_twice_on_two_devices(first: str, second: str, expected: Outcome) -> None:
    async def program(host: Host) -> None:
        host.listener()
        a, b = host.socket(first), host.socket(second)
        a.bind(("10.9.0.1", 20000))
        b.bind(("10.9.0.1", 20000))
        target = ("10.9.0.1", PORT)
        assert refused(lambda: a.connect(target)) == "EINPROGRESS"
        second_time = refused(lambda: b.connect(target))
        assert second_time == ("EADDRNOTAVAIL" if expected == "EADDRNOTAVAIL" else "EINPROGRESS")

    on_two_networks(program)


def test_what_a_connection_sends_while_bound_elsewhere_is_late_not_lost() -> None:
    async def program(host: Host) -> None:
        [listener] = await host.b.open_tcp_listeners(PORT, host="10.9.0.2")
        sock = host.socket()
        assert await outcome(sock, ("10.9.0.2", PORT)) is None
        peer = await listener.accept()
        sock.setsockopt(SOL_SOCKET, DEVICE, b"va2")
        sock.send(b"late")
        await trio.sleep(0.3)
        assert refused(lambda: peer.socket.recv(10)) == "EAGAIN"
        sock.setsockopt(SOL_SOCKET, DEVICE, b"va")
        await trio.sleep(10)
        assert peer.socket.recv(10) == b"late"

    on_two_networks(program)


def test_nobody_hears_what_comes_for_a_connection_that_was_bound_to_another_device() -> None:
    async def program(host: Host) -> None:
        [listener] = await host.b.open_tcp_listeners(PORT, host="10.9.0.2")
        sock = host.socket()
        assert await outcome(sock, ("10.9.0.2", PORT)) is None
        peer = await listener.accept()
        sock.setsockopt(SOL_SOCKET, DEVICE, b"va2")
        await peer.send_all(b"hello?")
        await trio.sleep(0.1)
        assert refused(lambda: sock.recv(10)) == "EAGAIN"
        assert refused(lambda: peer.socket.recv(10)) == "ECONNRESET"

    on_two_networks(program)


def test_a_bound_connection_carries_data_and_ends_like_any_other() -> None:
    async def program(host: Host) -> None:
        [listener] = await host.b.open_tcp_listeners(PORT, host="10.9.0.2")
        sock = host.socket("va")
        assert await outcome(sock, ("10.9.0.2", PORT)) is None
        peer = await listener.accept()
        for turn in range(50):
            sock.send(bytes([turn]) * 3000)
            assert len(await peer.receive_some(3000)) > 0
            await peer.send_all(b"y" * 1000)
            await trio.sleep(0.01)
            assert sock.recv(1000) == b"y" * 1000
        sock.shutdown(stdlib.SHUT_WR)
        while await peer.receive_some():
            pass
        await peer.aclose()
        await trio.sleep(1)
        assert sock.recv(1) == b""
        sock.close()
        [block] = [entry for entry in host.stack.net.table.values() if entry.sport == 0 or entry.dport == PORT]
        assert block.bound_dev_if == 2  # TIME-WAIT
        await trio.sleep(61)
        assert not host.stack.net.table

    on_two_networks(program)


def test_a_link_local_peer_needs_an_interface_and_ties_the_connection_to_it() -> None:
    async def program(host: Host) -> None:
        peer6 = next(entry.addr for entry in host.b.net.interfaces[1].addresses6 if entry.addr[0] == 0xFE)
        text = stdlib.inet_ntop(stdlib.AF_INET6, peer6)
        assert refused(lambda: host.socket(family=V6).connect((text, PORT))) == "EINVAL"
        assert refused(lambda: host.socket("va2", V6).connect((text, PORT, 0, 2))) == "EINVAL"
        assert refused(lambda: host.socket(family=V6).connect((text, PORT, 0, 99))) == "ENETUNREACH"
        [listener] = await host.b.open_tcp_listeners(PORT, host="::")
        for sock, address in ((host.socket(family=V6), (text, PORT, 0, 2)), (host.socket("va", V6), (text, PORT))):
            assert await outcome(sock, address) is None  # type: ignore[arg-type]
            assert sock.getsockopt(SOL_SOCKET, DEVICE, 16) == b"va\0"
            assert sock.getsockname()[3] == sock.getpeername()[3] == 2
            peer = await listener.accept()
            assert peer.socket.getpeername()[3] == 2
            await peer.send_all(b"x")
            await trio.sleep(0.1)
            assert sock.recv(5) == b"x"

    on_two_networks(program)


def test_binding_to_a_link_local_address_needs_its_interface() -> None:
    async def program(host: Host) -> None:
        ours = host.link_local("va")
        assert refused(lambda: host.socket(family=V6).bind((ours, PORT))) == "EINVAL"
        assert refused(lambda: host.socket(family=V6).bind((ours, PORT, 0, 3))) == "EADDRNOTAVAIL"
        assert refused(lambda: host.socket(family=V6).bind((ours, PORT, 0, 99))) == "ENODEV"
        assert refused(lambda: host.socket("va", V6).bind((ours, PORT))) is None
        named = host.socket(family=V6)
        named.bind((ours, PORT + 1, 0, 2))
        assert named.getsockname()[1:] == (PORT + 1, 0, 2)
        assert named.getsockopt(IPPROTO_TCP, stdlib.TCP_NODELAY) == 0

    on_two_networks(program)


def test_a_datagram_to_an_own_address_came_by_the_device_with_it() -> None:
    async def program(host: Host) -> None:
        heard = []
        for address in ("127.0.0.1", "10.9.0.1"):
            for device in ("lo", "va"):
                receiver = host.stack.datagram_socket()
                receiver.setsockopt(SOL_SOCKET, DEVICE, device.encode())
                receiver.setsockopt(0, 8, 1)
                receiver.bind(("", PORT))
                host.stack.datagram_socket().sendto(b"x", (address, PORT))
                await trio.sleep(0.1)
                if receiver.poll() & select.POLLIN:
                    _, [(_, _, info)], _, _ = receiver.recvmsg(10, 100)
                    heard.append((device, address, info[0]))
                receiver.close()
        assert heard == [("lo", "127.0.0.1", 1), ("va", "10.9.0.1", 2)]

    on_two_networks(program)
