"""A packet socket (AF_PACKET) on an interface of the kernel: for machines whose /dev/net/tun cannot be used.

Meant for one end of a veth pair that has no addresses: the kernel at the other end is the peer. With PACKET_VNET_HDR
(Linux 2.6.27) each frame carries a `struct virtio_net_hdr` as on a TAP, so the peer's super-frames and unfinished
checksums arrive as what they are, and ours are taken. Without it checksums that the peer left for its device would arrive unfilled and
super-frames longer than the MTU: then switch the *peer's* offloads off (`turn_off_offloads`).

PACKET_IGNORE_OUTGOING (Linux 4.20) keeps what we send from coming back. Needs CAP_NET_RAW in the network namespace, which a user
namespace gives. An interface that is down takes nothing (ENETDOWN); one that is gone says ENXIO to writers and ENETDOWN to
readers, once.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct

from .descriptor import VNET_HDR_LEN, DescriptorLink
from .frame import F_CSUM, F_RXCSUM, F_TSO4, F_TSO6, F_USO, LinkDown

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_ADD_MEMBERSHIP = 1
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
PACKET_MR_PROMISC = 1
SO_RCVBUFFORCE = 33
SO_SNDBUFFORCE = 32
SIOCGIFMTU = 0x8921
SIOCGIFHWADDR = 0x8927
SIOCGIFINDEX = 0x8933
SIOCETHTOOL = 0x8946
ARPHRD_ETHER = 1
ETHTOOL_OFF = {"rx": 0x15, "tx": 0x17, "sg": 0x19, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}

BUFFER = 16 << 20  # bytes of the socket's queues: a few hundred super-frames


class PacketLink(DescriptorLink):
    """A packet socket on one interface as a `Link`."""

    def __init__(
        self,
        name: str | None = None,
        *,
        vnet_hdr: bool = True,
        fd: int | None = None,
        mac: bytes | None = None,
        mtu: int | None = None,
        gso: bool = True,
        gro: bool = True,
    ) -> None:
        """Bind to interface `name` of the current network namespace, or adopt `fd`, a packet socket that is bound.

        vnet_hdr: exchange super-frames and unfinished checksums; ignored with `fd`, which knows. mac: our address; the
        interface's own by default, with any other it is put into promiscuous mode. mtu: bytes of IP, the interface's by default.
        gso, gro: as for `tap.Tap`. Raises OSError: EPERM, ENODEV (no such interface), EINVAL (not Ethernet).
        """
        if fd is None:
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
        else:
            self.socket = socket.socket(fileno=fd)
            self.socket.setblocking(False)
        try:
            if fd is not None:
                name = self.socket.getsockname()[0]
                vnet_hdr = bool(self.socket.getsockopt(SOL_PACKET, PACKET_VNET_HDR))
            self.name = name or ""
            own, kind = self._hardware()
            if kind != ARPHRD_ETHER:
                raise OSError(errno.EINVAL, f"{name} is not an Ethernet device")
            if fd is None:
                self._configure(vnet_hdr)
                self.socket.bind((self.name, ETH_P_ALL))
            if mac is not None and mac != own:
                (index,) = struct.unpack_from("i", self._ask(SIOCGIFINDEX), 16)
                self.socket.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("iHH8s", index, PACKET_MR_PROMISC, 0, b""))
            self.mtu = struct.unpack_from("i", self._ask(SIOCGIFMTU), 16)[0] if mtu is None else mtu
        except BaseException:
            if fd is None:
                self.socket.close()
            else:
                self.socket.detach()
            raise
        self.fd = self.socket.fileno()
        self.mac = own if mac is None else mac
        self.features = F_CSUM | F_TSO4 | F_TSO6 | F_USO | F_RXCSUM if vnet_hdr else 0
        self._start(VNET_HDR_LEN if vnet_hdr else 0, gso=gso, gro=gro)

    def duplicate(self) -> PacketLink:
        """Another link on the same socket: the interface stays in use when this one is closed."""
        return PacketLink(fd=os.dup(self.fd), mac=self.mac, mtu=self.mtu)

    def _ask(self, request: int) -> bytes:
        """One question about the interface, in the socket's network namespace."""
        return fcntl.ioctl(self.socket, request, struct.pack("16s24x", self.name.encode()))

    def _hardware(self) -> tuple[bytes, int]:
        if len(self.name.encode()) > 15:
            raise OSError(errno.ENODEV, f"{self.name}: {os.strerror(errno.ENODEV)}")
        kind, mac = struct.unpack_from("H6s", self._ask(SIOCGIFHWADDR), 16)
        return mac, kind

    def _configure(self, vnet_hdr: bool) -> None:
        self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        if vnet_hdr:
            self.socket.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        for force, plain in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            try:
                self.socket.setsockopt(socket.SOL_SOCKET, force, BUFFER)
            except PermissionError:
                self.socket.setsockopt(socket.SOL_SOCKET, plain, BUFFER)

    def _read_failed(self, failed: OSError) -> None:
        """ENETDOWN says that the interface went down, or away; only the second is the end."""
        if failed.errno == errno.ENETDOWN:
            try:
                self._ask(SIOCGIFINDEX)
            except OSError as missing:
                raise LinkDown(errno.ENODEV, f"{self.name}: {os.strerror(errno.ENODEV)}") from missing
            return
        super()._read_failed(failed)

    def close(self) -> None:
        """Close the socket. May be called twice."""
        self.socket.close()
        self.fd = -1


def turn_off_offloads(name: str, control: socket.socket) -> None:
    """Make an interface finish its packets before they leave: no checksum, segmentation or coalescing is left to others.

    control: any socket of the interface's network namespace. What a driver cannot switch is left as it is (EOPNOTSUPP).
    Raises OSError: EPERM, ENODEV.
    """
    for command in ETHTOOL_OFF.values():
        value = ctypes.create_string_buffer(struct.pack("II", command, 0), 8)
        try:
            fcntl.ioctl(control, SIOCETHTOOL, struct.pack("16sP16x", name.encode(), ctypes.addressof(value)))
        except OSError as exc:
            if exc.errno != errno.EOPNOTSUPP:
                raise
