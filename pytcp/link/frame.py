"""What travels on a link: a frame (possibly a 64 KiB super-frame) and the device's contract.

`TxFrame` goes down: a head (Ethernet + IP + L4 header, one buffer) and payload buffers gathered by
the device, never joined on the way. `RxFrame` comes up: one contiguous view. Offload facts travel
beside them as in `struct virtio_net_hdr`: segment size, and who still owes the checksum.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pytcp.native import ffi

Buffer = bytes | bytearray | memoryview

# virtio_net_hdr gso_type
GSO_NONE = 0
GSO_TCPV4 = 1
GSO_TCPV6 = 4
GSO_UDP_L4 = 5
GSO_ECN = 0x80

# what a device can do for us (`Link.features`)
F_CSUM = 1  # completes checksums from csum_start/csum_offset
F_TSO4 = 2
F_TSO6 = 4
F_USO = 8
F_RXCSUM = 16  # tells whether a received checksum still has to be checked

# RxFrame.csum
CSUM_NONE = 0  # nobody checked: the stack must
CSUM_UNNECESSARY = 1  # checked, or never left this machine (virtio NEEDS_CSUM / DATA_VALID)


IFNAMSIZ = 16
POOL_MAX = 256  # idle receive buffers a pool keeps for reuse


def check_name(name: object) -> None:
    """Raises TypeError for what is no string, OSError EINVAL for a name no interface can have (as Linux's dev_valid_name)."""
    if not isinstance(name, str):
        raise TypeError(f"an interface's name is a string, not {name!r}")
    if not 0 < len(name.encode("utf-8", "replace")) < IFNAMSIZ:
        raise OSError(errno.EINVAL, f"interface name too long: {name}" if name else "an interface needs a name")
    if name in (".", "..") or any(letter in "/:\0" or letter.isspace() for letter in name):
        raise OSError(errno.EINVAL, f"no name for an interface (no white space, '/' and ':'): {name!r}")


class TxFrame:
    """One frame on its way out."""

    __slots__ = ("head", "parts", "length", "gso_type", "gso_size", "csum_start", "csum_offset", "owner", "skb", "truesize")

    def __init__(
        self,
        head: Buffer,
        parts: Sequence[Buffer] = (),
        length: int = 0,
        gso_type: int = GSO_NONE,
        gso_size: int = 0,
        csum_start: int = 0,
        csum_offset: int = 0,
        owner: Any = None,
        skb: Any = None,
        truesize: int = 0,
    ) -> None:
        self.head = head  # from the link-layer header to the end of the L4 header
        self.parts = parts  # payload buffers behind it
        self.length = length  # bytes in head and parts together
        self.gso_type = gso_type
        self.gso_size = gso_size  # payload bytes per segment, 0 = not a super-frame
        self.csum_start = csum_start  # 0 = checksum complete; else the L4 field holds the pseudo-header sum
        self.csum_offset = csum_offset
        self.owner = owner  # who is charged: given back to the ring's on_complete
        self.skb = skb
        self.truesize = truesize


class RxBuf:
    """A reusable receive buffer. Whoever keeps a view into it takes it and later gives it back."""

    __slots__ = ("mem", "view", "address", "pool", "taken")

    def __init__(self, size: int, pool: list[RxBuf]) -> None:
        self.mem = bytearray(size)
        self.view = memoryview(self.mem)
        self.address = None if ffi is None else ffi.from_buffer(self.mem)
        self.pool = pool
        self.taken = 0  # views kept; the device reuses the buffer at once while this is 0

    def release(self) -> None:
        """Give back one kept view; the last one returns the buffer to its pool, if that is not full."""
        self.taken -= 1
        if self.taken == 0 and len(self.pool) < POOL_MAX:
            self.pool.append(self)


class RxFrame:
    """One received frame: `data` starts at the link-layer header."""

    __slots__ = ("data", "gso_type", "gso_size", "csum", "buf", "counted")

    def __init__(self, data: memoryview, gso_type: int = GSO_NONE, gso_size: int = 0, csum: int = CSUM_NONE, buf: RxBuf | None = None) -> None:
        self.data = data
        self.gso_type = gso_type
        self.gso_size = gso_size
        self.csum = csum
        self.buf = buf  # None: `data` is immutable or private and may simply be kept
        # whoever merged the super-frame knows of how many segments; a virtio header does not say, and Linux then counts one
        self.counted = False


class Link(Protocol):
    """A device that carries frames. Everything is called from the stack's one thread."""

    name: str
    mac: bytes  # our address on it; b"" on links without Ethernet
    mtu: int
    features: int  # F_* bits
    gso_max_size: int  # largest super-frame's IP length, 65536 by default; above 65535 the header's length field is 0 (BIG TCP)
    rx: Callable[[RxFrame], None]  # set by the interface: one received frame
    rx_end: Callable[[], None]  # set by the interface: the batch is over

    def fileno(self) -> int:
        """The descriptor to wait on, or -1 when frames arrive by timer (pipe, emulator)."""

    def poll(self, budget: int) -> int:
        """Read up to `budget` frames, give each to `rx`, then call `rx_end` once if there were any.

        Raises LinkDown (an OSError) when the device is gone."""

    def send(self, frames: Sequence[TxFrame]) -> int:
        """Write frames; returns how many were taken (fewer: the device is full, try later)."""

    def close(self) -> None: ...


class LinkDown(OSError):
    """The device under the stack vanished (TAP deleted, peer closed)."""
