"""A TUN device: IP packets without Ethernet to and from the Linux kernel through /dev/net/tun.

The same device node, ioctls, virtio-net headers and offloads as a TAP (`tap`); what differs is that a frame begins with
its IP header. There are no neighbours to ask for and no addresses of hardware: the kernel routes into the device, and
everything that comes out is for us.
"""

from __future__ import annotations

import os

from .descriptor import VNET_HDR_LEN
from .tap import IFF_TUN, Tap


class Tun(Tap):
    """One TUN device as a `Link`."""

    kind = IFF_TUN
    link_header = 0

    def __init__(
        self,
        name: str | None = None,
        *,
        vnet_hdr: bool = True,
        offload: bool = True,
        fd: int | None = None,
        mtu: int | None = None,
        gso: bool = True,
        gro: bool = True,
        vnet_hdr_size: int = VNET_HDR_LEN,
    ) -> None:
        """Create or attach to the TUN `name` in the current network namespace (None: the kernel names it), or adopt `fd`.

        The parameters are those of `tap.Tap`. Raises OSError: EPERM, EBUSY (name in use), ENOENT (no /dev/net/tun), EINVAL (not a TUN).
        """
        super().__init__(name, vnet_hdr=vnet_hdr, offload=offload, fd=fd, mac=b"", mtu=mtu, gso=gso, gro=gro, vnet_hdr_size=vnet_hdr_size)

    def duplicate(self) -> Tun:
        """Another link on the same device: it stays when this one is closed."""
        return Tun(fd=os.dup(self.fd), mtu=self.mtu)
