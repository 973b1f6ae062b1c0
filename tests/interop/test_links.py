"""TUN devices and packet sockets against the kernel: what passes, with and without offloads, and a device that goes away."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
from collections.abc import Callable, Iterator

import pytest
import trio

import pytcp
from pytcp.lab.netns import Namespace
from pytcp.link.descriptor import DescriptorLink
from pytcp.link.frame import F_TSO4
from pytcp.link.packet import PacketLink, turn_off_offloads
from pytcp.link.tap import Tap
from pytcp.link.tun import Tun
from pytcp.sockets.open import TrioStack

from .exchange import duplex, pattern, read_all

pytestmark = pytest.mark.tap

US, PEER = ("10.99.0.2", "fd99::2"), ("10.99.0.1", "fd99::1")
SIZE = 4 << 20
Maker = Callable[[str], contextlib.AbstractContextManager[tuple[Namespace, DescriptorLink]]]
MODES = {"offloads": (True, True), "header only": (True, False), "plain": (False, False)}


def address(ns: Namespace, device: str) -> None:
    """Give the kernel its addresses on the device, and put it up."""
    ns.set_sysctl("net.ipv6.conf.default.accept_dad", 0)
    with ns.netlink() as ip:
        index = ip.link_lookup(ifname=device)[0]
        ip.link("set", index=index, state="up")
        for text, bits in zip(PEER, (24, 64), strict=True):
            ip.addr("add", index=index, address=text, prefixlen=bits, **({"flags": 2} if ":" in text else {}))


@contextlib.contextmanager
def tun(mode: str) -> Iterator[tuple[Namespace, DescriptorLink]]:
    vnet_hdr, offload = MODES[mode]
    with Namespace() as ns:
        with ns.entered():
            link = Tun("tun0", vnet_hdr=vnet_hdr, offload=offload)
        address(ns, "tun0")
        yield ns, link
        link.close()


@contextlib.contextmanager
def veth(mode: str) -> Iterator[tuple[Namespace, DescriptorLink]]:
    """A pair in one namespace: the kernel has addresses on p0, ours is p1."""
    with Namespace() as ns:
        with ns.netlink() as ip:
            ip.link("add", ifname="p0", kind="veth", peer={"ifname": "p1"})
        ns.set_sysctl("net.ipv6.conf.p1.disable_ipv6", 1)
        with ns.netlink() as ip:
            ip.link("set", index=ip.link_lookup(ifname="p1")[0], state="up")
        address(ns, "p0")
        vnet_hdr, _ = MODES[mode]
        if not vnet_hdr:
            with ns.socket(kind=socket.SOCK_DGRAM) as control:
                turn_off_offloads("p0", control)
        with ns.entered():
            link = PacketLink("p1", vnet_hdr=vnet_hdr)
        yield ns, link
        link.close()


def stack_on(link: DescriptorLink) -> contextlib.AbstractAsyncContextManager[TrioStack]:
    return pytcp.open_stack(link=link, addresses=[f"{US[0]}/24", f"{US[1]}/64"])


async def both_ways(ns: Namespace, link: DescriptorLink) -> None:
    """Pings, a connection each way in both families with data both ways at once, and UDP errors of the kernel."""
    with trio.fail_after(60):
        async with stack_on(link) as stack:
            for ours, theirs in zip(US, PEER, strict=True):
                assert (await stack.ping(theirs, size=1400))[0].rtt is not None
                family = socket.AF_INET6 if ":" in theirs else socket.AF_INET
                [listener] = await stack.open_tcp_listeners(7000, host=ours)
                async with listener:
                    with trio.socket.from_stdlib_socket(ns.socket(family)) as sock:
                        await sock.connect((ours, 7000))
                        async with await listener.accept() as stream:
                            await duplex(trio.SocketStream(sock), stream, SIZE)
                with trio.socket.from_stdlib_socket(ns.socket(family)) as server:
                    await server.bind((theirs, 7001))
                    server.listen()
                    async with await stack.open_tcp_stream(theirs, 7001) as stream:
                        sock, _ = await server.accept()
                        with sock:
                            await duplex(trio.SocketStream(sock), stream, SIZE)
                with pytest.raises(ConnectionRefusedError):
                    await stack.open_tcp_stream(theirs, 7002)
            mib = stack.net.mib
            assert mib.TcpInCsumErrors == 0
            assert mib.TcpInErrs == 0
    assert ns.nstat()["TcpInCsumErrors"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_everything_passes_a_tun(mode: str) -> None:
    with tun(mode) as (ns, link):
        assert link.mac == b""
        assert link.mtu == 1500
        trio.run(both_ways, ns, link)


@pytest.mark.parametrize("mode", ["offloads", "plain"])
def test_everything_passes_a_packet_socket_on_a_veth(mode: str) -> None:
    with veth(mode) as (ns, link):
        assert link.mtu == 1500
        trio.run(both_ways, ns, link)


@pytest.mark.parametrize("make", [tun, veth])
def test_with_offloads_super_frames_pass_whole_both_ways(make: Maker) -> None:
    data = pattern(SIZE, 9)

    async def main(ns: Namespace, link: DescriptorLink) -> None:
        async def digest(stream: trio.abc.HalfCloseableStream) -> None:
            received = await read_all(stream)
            await stream.send_all(hashlib.sha256(received).digest() + received)

        async with stack_on(link) as stack, trio.open_nursery() as nursery:
            await nursery.start(stack.serve_tcp, digest, 7000)
            with trio.socket.from_stdlib_socket(ns.socket()) as sock:
                await sock.connect((US[0], 7000))
                stream = trio.SocketStream(sock)
                await stream.send_all(data)
                await stream.send_eof()
                assert await read_all(stream) == hashlib.sha256(data).digest() + data
            nursery.cancel_scope.cancel()
        packets = SIZE // 1448
        assert link.rx_packets < packets / 4
        assert link.tx_packets < packets  # acknowledgements and all

    with make("offloads") as (ns, link):
        assert link.features & F_TSO4
        trio.run(main, ns, link)


def test_a_device_of_the_other_kind_is_not_adopted() -> None:
    with Namespace() as ns, ns.entered():
        tap = Tap("tap0")
        with pytest.raises(OSError, match="tap0 is not a TUN"):
            Tun(fd=tap.fileno())
        tap.close()
        link = Tun("tun0")
        with pytest.raises(OSError, match="tun0 is not a TAP"):
            Tap(fd=link.fileno())
        link.close()


def test_an_inherited_descriptor_of_a_tun_is_adopted() -> None:
    with tun("offloads") as (ns, link):
        adopted = Tun(fd=link.fileno())
        assert (adopted.name, adopted.mac) == ("tun0", b"")
        trio.run(both_ways, ns, adopted)
        link.fd = -1  # closed with the stack


def deleted(ns: Namespace, link: DescriptorLink) -> None:
    with ns.netlink() as ip:
        ip.link("del", index=ip.link_lookup(ifname=link.name)[0])


def closed(ns: Namespace, link: DescriptorLink) -> None:
    os.close(link.fileno())


@pytest.mark.parametrize("make", [tun, veth])
@pytest.mark.parametrize(("lose", "why"), [(deleted, ""), (closed, "somebody closed its descriptor")])
def test_connections_fail_at_once_when_the_device_is_deleted_or_its_descriptor_closed(
    lose: Callable[[Namespace, DescriptorLink], None], why: str, make: Maker
) -> None:
    async def main(ns: Namespace, link: DescriptorLink) -> None:
        async with stack_on(link) as stack:
            with trio.socket.from_stdlib_socket(ns.socket()) as server:
                await server.bind((PEER[0], 7001))
                server.listen()
                stream = await stack.open_tcp_stream(PEER[0], 7001)
                lose(ns, link)
                with trio.fail_after(10), pytest.raises(trio.BrokenResourceError, match=f"device {link.name} vanished: {why}"):
                    stack.runtime.kick()  # of a number that is nobody's no epoll tells
                    await stream.receive_some()

    with make("offloads") as (ns, link):
        trio.run(main, ns, link)


def test_a_veth_that_is_down_for_a_while_loses_packets_and_nothing_else() -> None:
    async def main(ns: Namespace, link: DescriptorLink) -> None:
        async with stack_on(link) as stack:
            assert (await stack.ping(PEER[0]))[0].rtt is not None
            with ns.netlink() as ip:
                index = ip.link_lookup(ifname="p1")[0]
                ip.link("set", index=index, state="down")
                assert (await stack.ping(PEER[0], timeout=0.1))[0].rtt is None
                ip.link("set", index=index, state="up")
            with trio.fail_after(10):
                while (await stack.ping(PEER[0], timeout=0.5))[0].rtt is None:
                    pass
        assert link.tx_carrier_errors > 0

    with veth("offloads") as (ns, link):
        trio.run(main, ns, link)


@pytest.mark.parametrize(("name", "number"), [("nosuch", errno.ENODEV), ("a-name-much-too-long", errno.ENODEV), ("lo", errno.EINVAL)])
def test_a_packet_socket_on_what_is_no_ethernet_device_says_so(name: str, number: int) -> None:
    with Namespace() as ns, ns.entered(), pytest.raises(OSError) as caught:
        PacketLink(name)
    assert caught.value.errno == number


def test_another_address_than_the_devices_needs_no_more_than_the_option() -> None:
    async def main(link: DescriptorLink) -> None:
        async with stack_on(link) as stack:
            assert (await stack.ping(PEER[0]))[0].rtt is not None

    with Namespace() as ns:
        with ns.netlink() as ip:
            ip.link("add", ifname="p0", kind="veth", peer={"ifname": "p1"})
            ip.link("set", index=ip.link_lookup(ifname="p1")[0], state="up")
        address(ns, "p0")
        with ns.entered():
            link = PacketLink("p1", mac=b"\2\0\0\0\0\7")
        assert link.mac == b"\2\0\0\0\0\7"
        trio.run(main, link)
        link.close()
