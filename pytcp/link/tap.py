"""A TAP device: Ethernet frames to and from the Linux kernel through /dev/net/tun.

With IFF_VNET_HDR every frame carries a `struct virtio_net_hdr`, and TUNSETOFFLOAD tells the kernel
which unfinished work we accept: TCP super-frames of up to 64 KiB (TSO), UDP ones (USO, Linux 6.2) and
checksums left for the receiver. How frames then pass is `descriptor`'s business.

A TAP whose kernel interface is down takes nothing (EIO); a deleted one says EBADFD or ENODEV.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from .descriptor import VNET_HDR_LEN, DescriptorLink
from .frame import F_CSUM, F_RXCSUM, F_TSO4, F_TSO6, F_USO, check_name

TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
TUNGETIFF = 0x800454D2
TUNGETVNETHDRSZ = 0x800454D7
TUNSETVNETHDRSZ = 0x400454D8
IFF_TUN = 0x0001
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
IFF_VNET_HDR = 0x4000
TUN_F_CSUM = 0x01
TUN_F_TSO4 = 0x02
TUN_F_TSO6 = 0x04
TUN_F_TSO_ECN = 0x08
TUN_F_USO4 = 0x20
TUN_F_USO6 = 0x40
SIOCGIFMTU = 0x8921


class Tap(DescriptorLink):
    """One TAP device as a `Link`."""

    kind = IFF_TAP

    def __init__(
        self,
        name: str | None = None,
        *,
        vnet_hdr: bool = True,
        offload: bool = True,
        fd: int | None = None,
        mac: bytes | None = None,
        mtu: int | None = None,
        gso: bool = True,
        gro: bool = True,
        vnet_hdr_size: int = VNET_HDR_LEN,
    ) -> None:
        """Create or attach to the TAP `name` in the current network namespace (None: the kernel names
        it), or adopt `fd`, a descriptor on which TUNSETIFF was done.

        vnet_hdr: exchange virtio-net headers; ignored with `fd`, which knows whether it has them.
        offload: take super-frames and unfinished checksums from the kernel, and give it ours.
        mac: our address; a random locally administered one by default (the kernel's end has its own).
        mtu: bytes of IP; the kernel interface's by default. vnet_hdr_size: 10, or 12 (mergeable layout).
        gso, gro: without offloads, still take super-frames from the stack and cut them, and coalesce
        what is received before the stack sees it.

        Raises OSError: EPERM, EBUSY (name in use), ENOENT (no /dev/net/tun), EINVAL (not a TAP, or no name for one)."""
        if vnet_hdr_size not in (10, 12):
            raise OSError(errno.EINVAL, "vnet_hdr_size is 10 or 12")
        if name is not None:
            check_name(name)
        self.fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC) if fd is None else fd
        try:
            self._open(name, vnet_hdr, fd is not None, vnet_hdr_size)
            self.features = self._set_offload(offload) if self.vnet_hdr else 0
            self.mtu = self._kernel_mtu() if mtu is None else mtu
        except BaseException:
            if fd is None:
                os.close(self.fd)
            raise
        self.mac = (bytes((2,)) + os.urandom(5) if mac is None else mac) if self.link_header else b""
        self._start(vnet_hdr_size if self.vnet_hdr else 0, gso=gso, gro=gro)

    def duplicate(self) -> Tap:
        """Another link on the same device: it stays when this one is closed."""
        return Tap(fd=os.dup(self.fd), mac=self.mac, mtu=self.mtu)

    def _open(self, name: str | None, vnet_hdr: bool, adopted: bool, vnet_hdr_size: int) -> None:
        if adopted:
            os.set_blocking(self.fd, False)
            raw = fcntl.ioctl(self.fd, TUNGETIFF, bytes(40))
        else:
            encoded = (name or "").encode()
            flags = self.kind | IFF_NO_PI | (IFF_VNET_HDR if vnet_hdr else 0)
            raw = fcntl.ioctl(self.fd, TUNSETIFF, struct.pack("16sH22x", encoded, flags))
        self.name = raw[:16].split(b"\0", 1)[0].decode()
        (flags,) = struct.unpack_from("H", raw, 16)
        if not flags & self.kind or not flags & IFF_NO_PI:
            raise OSError(errno.EINVAL, f"{self.name} is not a {'TAP' if self.kind == IFF_TAP else 'TUN'} without packet information")
        self.vnet_hdr = bool(flags & IFF_VNET_HDR)
        if self.vnet_hdr:
            fcntl.ioctl(self.fd, TUNSETVNETHDRSZ, struct.pack("i", vnet_hdr_size))

    def _set_offload(self, offload: bool) -> int:
        """Tell the kernel what it may leave to us; returns the F_* bits that hold both ways."""
        if not offload:
            fcntl.ioctl(self.fd, TUNSETOFFLOAD, 0)
            return 0
        base = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN
        features = F_CSUM | F_TSO4 | F_TSO6 | F_RXCSUM
        try:
            fcntl.ioctl(self.fd, TUNSETOFFLOAD, base | TUN_F_USO4 | TUN_F_USO6)
        except OSError as refused:
            if refused.errno != errno.EINVAL:
                raise
            fcntl.ioctl(self.fd, TUNSETOFFLOAD, base)  # before Linux 6.2
            return features
        return features | F_USO

    def _kernel_mtu(self) -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as control:
            try:
                raw = fcntl.ioctl(control, SIOCGIFMTU, struct.pack("16s24x", self.name.encode()))
            except OSError as missing:
                if missing.errno != errno.ENODEV:
                    raise
                return 1500  # an inherited descriptor whose interface lives in another namespace
        mtu: int = struct.unpack_from("i", raw, 16)[0]
        return mtu
