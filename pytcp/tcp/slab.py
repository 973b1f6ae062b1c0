"""Memory for copied payload: 64 KiB slabs, used again as soon as their last byte is acknowledged.

A fresh allocation per write costs page faults (8 Gbit/s instead of 14–17 at 4 MiB in flight), so
slabs come from a last-in-first-out pool whose top is warm in the cache. A slab counts the skbs that
hold views of it and returns to the pool with the last one.
"""

from __future__ import annotations

SLAB_SIZE = 65536
POOL_LIMIT = 256

_pool: list[Slab] = []


class Slab:
    by_program = False  # `zerocopy.Held` takes a slab's place

    __slots__ = ("view", "used", "refs", "tail_frag", "tail_start")

    def __init__(self) -> None:
        self.view = memoryview(bytearray(SLAB_SIZE))
        self.used = 0
        self.refs = 0
        self.tail_frag: memoryview | None = None  # the fragment that ends at `used`: it may grow while no skb was cut through it
        self.tail_start = 0

    def put(self) -> None:
        """Drop one reference."""
        self.refs -= 1
        if self.refs == 0:
            self.tail_frag = None
            if len(_pool) < POOL_LIMIT:
                _pool.append(self)


def get() -> Slab:
    """A slab with one reference, that of the socket filling it."""
    slab = _pool.pop() if _pool else Slab()
    slab.used = 0
    slab.refs = 1
    return slab
