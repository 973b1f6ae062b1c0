"""A real Linux peer behind a real TAP, made and removed by one `with`.

    with Testbed(sysctls={"net.ipv4.tcp_sack": 0}) as tb:
        ...open_stack(link=tb.link, addresses=tb.addresses)...
        tb.run(["curl", f"http://{tb.address4}/"])

The peer is the machine's own kernel in a network namespace (`lab/netns.py`). The TAP is created inside: the interface
`tap0` is the peer's, the descriptor stays in our process and is `tb.link`. Both ends have an address of each family; the
peer's are there at once (no duplicate address detection) and its own chatter (router solicitations, MLD reports at start) is
turned down. Facts of the kernel that show here:

- `tcp_congestion_control` of a namespace accepts only what the *machine* allows (`tcp_allowed_congestion_control` is global,
  and not ours to change); the `congctl` metric of a route has no such rule, so that is how a restricted one is set.
- Where /dev/net/tun cannot be used there is a veth pair with a packet socket at our end instead of the TAP.
- Who writes to a TAP pays for the peer's whole receive path inside `writev`. With `rps=True` another processor does
  it (29 -> 20 us per 64 KiB super-segment measured on two cores).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import TYPE_CHECKING, Any, Literal

from pytcp.lab.netns import Namespace, TestbedError, uninterrupted
from pytcp.wire.checksum import checksum

if TYPE_CHECKING:
    from pytcp.link.descriptor import DescriptorLink

__all__ = ["Testbed", "TestbedError"]

IFA_F_NODAD = 2
RT_SCOPE_LINK = 253
RTPROT_KERNEL = 2


class Testbed(Namespace):
    """A namespace with a kernel peer, and the TAP that leads to it.

    mtu: of the TAP, in bytes; IPv6 needs 1280, below that only IPv4 is set up.
    vnet_hdr: open the TAP with IFF_VNET_HDR; offload: also exchange super-segments and unfinished checksums.
    congestion: the peer's default congestion control; None leaves the machine's.
    sysctls: `net.` names and values for the peer, set before its interface exists.
    rps: the peer's receive work goes to the last processor we may run on.
    txqueuelen: packets the kernel's end of the TAP holds for us; beyond, it drops. The kernel's default of 1000 is
        soon full when a hundred connections start at once, and a clean wire should lose nothing.
    carrier: "tap", or "veth" with a packet socket at our end, or "auto": a TAP where the machine lets us have one.
    addresses, peer_addresses: "address/prefix" strings, one of each family.
    """

    __test__ = False
    device = "tap0"

    def __init__(
        self,
        *,
        mtu: int = 1500,
        vnet_hdr: bool = True,
        offload: bool = True,
        congestion: str | None = "cubic",
        sysctls: Mapping[str, int | str] | None = None,
        rps: bool = False,
        txqueuelen: int = 10_000,
        carrier: Literal["auto", "tap", "veth"] = "auto",
        addresses: Sequence[str] = ("10.99.0.2/24", "fd99::2/64"),
        peer_addresses: Sequence[str] = ("10.99.0.1/24", "fd99::1/64"),
    ) -> None:
        super().__init__()
        self.mtu = mtu
        self.vnet_hdr = vnet_hdr
        self.offload = offload and vnet_hdr
        self.congestion = congestion
        self.sysctls = dict(sysctls or {})
        self.rps = rps
        self.txqueuelen = txqueuelen
        self.carrier = carrier
        families = 2 if mtu >= 1280 else 1
        self.addresses = list(addresses[:families])
        self.peer_addresses = list(peer_addresses[:families])
        self._link: DescriptorLink | None = None
        self._near: Namespace | None = None  # where our end of a veth pair is

    # --- names of the ends ---

    @property
    def link(self) -> DescriptorLink:
        """Our end: hand it to a stack, once. The stack, or the end of the testbed, closes it."""
        if self._link is None:
            raise TestbedError(errno.ENODEV, "the testbed is not open")
        return self._link

    @property
    def address4(self) -> str:
        """pytcp's IPv4 address, without the prefix length."""
        return _address(self.addresses, 4)

    @property
    def address6(self) -> str:
        return _address(self.addresses, 6)

    @property
    def peer4(self) -> str:
        """The kernel's IPv4 address."""
        return _address(self.peer_addresses, 4)

    @property
    def peer6(self) -> str:
        return _address(self.peer_addresses, 6)

    # --- making and removing ---

    def open(self) -> None:
        """Build it. Raises TestbedError with the reason when the machine does not let us."""
        super().open()
        try:
            self._quiet()
            for name, value in self.sysctls.items():
                self.set_sysctl(name, value)
            self._open_link()
            self._configure()
            if self.rps:
                self.spread_receive(self.device, max(os.sched_getaffinity(0)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with uninterrupted():
            if self._link is not None:
                link, self._link = self._link, None
                link.close()
            if self._near is not None:
                near, self._near = self._near, None
                near.close()
            super().close()

    def __enter__(self) -> Testbed:
        self.open()
        return self

    def _quiet(self) -> None:
        for name, value in (("accept_dad", 0), ("dad_transmits", 0), ("router_solicitations", 0), ("accept_ra", 0)):
            self.set_sysctl(f"net.ipv6.conf.default.{name}", value)

    def _open_link(self) -> None:
        from pytcp.link.tap import Tap

        if self.carrier != "veth":
            try:
                with self.entered():
                    self._link = Tap(self.device, vnet_hdr=self.vnet_hdr, offload=self.offload, mtu=self.mtu)
                return
            except OSError as exc:
                if self.carrier == "tap" or exc.errno not in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENODEV, errno.ENXIO):
                    raise TestbedError(exc.errno or errno.ENODEV, f"cannot open a TAP device: {exc.strerror or exc} (`pytcp doctor` says more)") from exc
        self._open_veth()

    def _open_veth(self) -> None:
        """The peer's end bears the TAP's name; ours is in a namespace of its own, where no kernel address disturbs it."""
        from pytcp.link.packet import PacketLink, turn_off_offloads

        near = self._near = Namespace()
        near.open()
        near.set_sysctl("net.ipv6.conf.default.disable_ipv6", 1)
        try:
            with self.netlink() as ip:
                ip.link("add", ifname=self.device, kind="veth", peer={"ifname": "pytcp0", "net_ns_fd": near.fileno()}, mtu=self.mtu)
            with near.netlink() as ip:
                ip.link("set", index=ip.link_lookup(ifname="pytcp0")[0], mtu=self.mtu, state="up")
            if not self.offload:
                with self.socket(kind=socket.SOCK_DGRAM) as control:
                    turn_off_offloads(self.device, control)
            with near.entered():
                self._link = PacketLink("pytcp0", vnet_hdr=self.offload, mtu=self.mtu)
        except Exception as exc:
            number = getattr(exc, "errno", None) or getattr(exc, "code", None) or errno.ENODEV
            raise TestbedError(number, f"cannot make a veth pair with a packet socket: {exc}") from exc

    def _configure(self) -> None:
        with self.netlink() as ip:
            index = ip.link_lookup(ifname=self.device)[0]
            ip.link("set", index=index, mtu=self.mtu, txqlen=self.txqueuelen, state="up")
            for text in self.peer_addresses:
                interface = ip_interface(text)
                extra = {"flags": IFA_F_NODAD} if interface.version == 6 else {}
                ip.addr("add", index=index, address=str(interface.ip), prefixlen=interface.network.prefixlen, **extra)
            if self.congestion is not None and not self._default_congestion(self.congestion):
                for text in self.peer_addresses:
                    _route_congestion(ip, index, ip_interface(text), self.congestion)

    def _default_congestion(self, name: str) -> bool:
        if name not in self.sysctl("net.ipv4.tcp_available_congestion_control").split():
            raise TestbedError(errno.ENOENT, f"the kernel has no congestion control {name!r}: {self.sysctl('net.ipv4.tcp_available_congestion_control')}")
        try:
            self.set_sysctl("net.ipv4.tcp_congestion_control", name)
        except PermissionError:
            return False
        return True

    # --- the peer asks ---

    def ping(self, address: str, *, count: int = 1, size: int = 56, timeout: float = 2.0) -> list[float | None]:
        """Echo requests from the peer's kernel, one after the other; seconds until each answer, None for none.

        Blocks the calling thread: in a trio program use `await trio.to_thread.run_sync(tb.ping, address)`.
        """
        v6 = ":" in address
        family, proto = (socket.AF_INET6, socket.getprotobyname("ipv6-icmp")) if v6 else (socket.AF_INET, socket.IPPROTO_ICMP)
        request, reply = (128, 129) if v6 else (8, 0)
        identifier = os.getpid() & 0xFFFF
        results: list[float | None] = []
        with self.socket(family, socket.SOCK_RAW, proto) as sock:
            for number in range(count):
                message = struct.pack("!BBHHH", request, 0, 0, identifier, number) + bytes(i & 0xFF for i in range(size))
                if not v6:  # for ICMPv6 the kernel fills the checksum in
                    message = message[:2] + checksum(message).to_bytes(2, "big") + message[4:]
                start = time.monotonic()
                sock.sendto(message, (address, 0))
                results.append(_await_echo(sock, message[4:], reply, 0 if v6 else 20, start, timeout))
        return results


def _await_echo(sock: socket.socket, rest: bytes, reply: int, skip: int, start: float, timeout: float) -> float | None:
    while (left := start + timeout - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            answer = sock.recv(65536)
        except TimeoutError:
            return None
        if answer[skip] == reply and answer[skip + 4 :] == rest:
            return time.monotonic() - start
    return None


def _address(interfaces: Sequence[str], version: int) -> str:
    for text in interfaces:
        interface = ip_interface(text)
        if interface.version == version:
            return str(interface.ip)
    raise TestbedError(errno.EADDRNOTAVAIL, f"this testbed has no IPv{version} addresses")


def _route_congestion(ip: Any, index: int, interface: IPv4Interface | IPv6Interface, name: str) -> None:
    """Replace the route that came with an address by one that names a congestion control."""
    metrics = {"cc_algo": name}
    destination = str(interface.network)
    if interface.version == 4:
        ip.route("replace", dst=destination, oif=index, scope=RT_SCOPE_LINK, proto=RTPROT_KERNEL, prefsrc=str(interface.ip), metrics=metrics)
    else:
        ip.route("replace", dst=destination, oif=index, proto=RTPROT_KERNEL, priority=256, metrics=metrics)
