"""Local ports: who may bind what, and which one an unbound socket gets.

Two sockets may hold one port when their addresses differ, or the devices they are bound to, or when both allow it: SO_REUSEADDR on both
and neither listening, or SO_REUSEPORT on both. Accepted connections and TIME-WAIT blocks hold the port
too, which is why a server that restarts needs SO_REUSEADDR. A port chosen for connect() may be shared
by connections to different peers, as long as nobody bound it explicitly.

Ephemeral ports are random in `ip_local_port_range`, of both parities (RFC 6056 algorithm 1; Linux has
preferred one parity per use since 4.6, but measured binds spread over both).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from pytcp.tcp.const import LISTEN

from .addr import V4MAPPED


class Holder(Protocol):
    """What holds a port: a Sock, a TIME-WAIT block, a UDP endpoint."""

    family: int
    reuseaddr: bool
    reuseport: bool
    v6only: bool
    bound_dev_if: int


def local_address(holder: Any) -> bytes:
    """The local address of a holder, b"" for the wildcard."""
    addr: bytes = holder.saddr or getattr(holder, "bound_addr", b"")
    return addr


def _overlap(a: Any, b: Any) -> bool:
    """Whether two holders of one port could be meant by the same packet."""
    if a.bound_dev_if and b.bound_dev_if and a.bound_dev_if != b.bound_dev_if:
        return False
    left, right = local_address(a), local_address(b)
    if left and right:
        return left == right or left == V4MAPPED + right or right == V4MAPPED + left
    for wild, fixed, other in ((left, right, b), (right, left, a)):
        if not wild:
            holder = a if other is b else b
            four = other.family == 4 or len(fixed) == 4 or fixed[:12] == V4MAPPED
            if holder.family == 6 and four and holder.v6only:
                return False
            if holder.family == 4 and not four and (fixed or other.v6only):
                return False
    return True


class PortTable:
    """The ports of one protocol."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ports: dict[int, dict[Any, bool]] = {}  # port -> holder -> chosen by connect()

    def holders(self, port: int) -> list[Any]:
        """Who holds a port."""
        return list(self._ports.get(port, ()))

    def conflict(self, holder: Any, port: int, ignore: Any = None) -> bool:
        """Whether `holder` may not bind `port` besides those who hold it."""
        for other in self._ports.get(port, ()):
            if other is holder or other is ignore or not _overlap(holder, other):
                continue
            if holder.reuseport and other.reuseport:
                continue
            if holder.reuseaddr and other.reuseaddr and getattr(other, "state", 0) != LISTEN:
                continue
            return True
        return False

    def add(self, holder: Any, port: int, auto: bool = False) -> None:
        """`holder` holds `port` from now on, whoever else does."""
        self._ports.setdefault(port, {})[holder] = auto

    def remove(self, holder: Any, port: int) -> None:
        """`holder` holds `port` no longer; nothing happens when it did not."""
        held = self._ports.get(port)
        if held is not None and held.pop(holder, None) is not None and not held:
            del self._ports[port]

    def chosen(self, port: int) -> bool:
        """Whether the port is held, and only because connect() chose it."""
        held = self._ports.get(port)
        return held is not None and all(held.values())

    def was_auto(self, holder: Any, port: int) -> bool:
        """Whether the port was chosen for `holder` by connect()."""
        return self._ports.get(port, {}).get(holder, False)

    def bind(self, holder: Any, port: int) -> None:
        """Reserve an explicit port. Raises OSError EADDRINUSE."""
        if self.conflict(holder, port):
            raise OSError(errno.EADDRINUSE, f"port {port} is in use")
        self.add(holder, port)

    def _candidates(self, span: tuple[int, int]) -> range | list[int]:
        low, high = span
        size = high - low + 1
        start = self._random.randrange(size)
        return [low + (start + step) % size for step in range(size)]

    def bind_any(self, holder: Any, span: tuple[int, int]) -> int:
        """Reserve any free port of the range for bind(0). Raises OSError EADDRINUSE when there is none."""
        ports = self._ports
        for _ in range(16):
            port = span[0] + self._random.randrange(span[1] - span[0] + 1)
            if port not in ports:
                self.add(holder, port)
                return port
        for port in self._candidates(span):
            if port not in ports or not self.conflict(holder, port):
                self.add(holder, port)
                return port
        raise OSError(errno.EADDRINUSE, "every port of ip_local_port_range is in use")

    def connect_any(self, holder: Any, span: tuple[int, int], usable: Callable[[int], bool], error: int) -> int:
        """Reserve a port for connect(): one that nobody bound and for which `usable(port)` finds the 4-tuple free.

        Raises OSError with errno `error` when there is none."""
        ports = self._ports
        for _ in range(16):
            port = span[0] + self._random.randrange(span[1] - span[0] + 1)
            if port not in ports:
                self.add(holder, port, auto=True)
                return port
        for port in self._candidates(span):
            held = ports.get(port)
            if held is not None and not all(held.values()):
                continue
            if usable(port):
                self.add(holder, port, auto=True)
                return port
        raise OSError(error, "every port of ip_local_port_range is in use")
