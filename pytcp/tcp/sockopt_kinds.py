"""Kinds of socket options, and what their functions share; the options themselves are in `sockopt` and beside it.

Every option has a key (level, name). Most are a setter and a getter on the Sock; some are only *kept*: a
number in `sk.optmem` with a default in `defaults`, because for TCP it means nothing more in Linux either,
or because the room it concerns looks there.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from struct import Struct
from typing import NoReturn

from . import gates, sendmsg
from .const import POLLOUT
from .sock import Sock

SOL_SOCKET = 1
IPPROTO_IP = 0
IPPROTO_TCP = 6
IPPROTO_IPV6 = 41

INT_MAX = 0x7FFFFFFF
M32 = 0xFFFFFFFF
INT = Struct("=i")

Key = tuple[int, int]
Setter = Callable[[Sock, int], None]
ByteSetter = Callable[[Sock, bytes], None]
Getter = Callable[[Sock], int | bytes]
SizedGetter = Callable[[Sock, int], bytes]  # of how many bytes have room

# options that are only kept, and what they are until set; each group of options adds its own
defaults: dict[Key, int] = {}


_TEXTS = {  # of strerror(3), which the engine has no operating system to ask for
    errno.EPERM: "Operation not permitted",
    errno.ENOMEM: "Cannot allocate memory",
    errno.EINVAL: "Invalid argument",
    errno.EDOM: "Numerical argument out of domain",
    errno.EPROTO: "Protocol error",
    errno.ENOPROTOOPT: "Protocol not available",
    errno.EOPNOTSUPP: "Operation not supported",
    errno.EADDRNOTAVAIL: "Cannot assign requested address",
    errno.ENODEV: "No such device",
    errno.ESRCH: "No such process",
    errno.ENOENT: "No such file or directory",
    errno.ENOBUFS: "No buffer space available",
    errno.ENODATA: "No data available",
    errno.ENOTCONN: "Transport endpoint is not connected",
}


def fail(code: int, detail: str = "") -> NoReturn:
    """Raise OSError with errno `code` and its usual text, and `detail` behind it."""
    raise OSError(code, f"{_TEXTS[code]}: {detail}" if detail else _TEXTS[code])


def check(ok: bool) -> None:
    """EINVAL unless `ok`."""
    if not ok:
        fail(errno.EINVAL)


def kept(sk: Sock, level: int, name: int) -> int:
    """The value of an option that is only kept."""
    key = (level, name)
    default = defaults[key]
    return default if sk.optmem is None else sk.optmem.get(key, default)


def keep(sk: Sock, key: Key, value: int) -> None:
    """Store the value of an option that is only kept."""
    if sk.optmem is None:
        sk.optmem = {}
    sk.optmem[key] = value


def to_int(value: int) -> int:
    """What a C int makes of a Python int. Raises OSError EINVAL beyond 32 bits."""
    if not -(1 << 31) <= value <= M32:
        fail(errno.EINVAL)
    return value if value <= INT_MAX else value - (1 << 32)


def ticks(sk: Sock, us: int) -> int:
    """Microseconds as whole ticks, rounded up."""
    return -(-us * 1000 // sk.sysctl.tick_ns)


def write_space(sk: Sock) -> None:
    """Tell a waiting writer when the new limit leaves it room."""
    if sk.nospace and sendmsg.stream_is_writeable(sk):
        sk.nospace = False
        if sk.gate == gates.SNDBUF:
            gates.idle(sk)
        sk.host.wake(sk, POLLOUT)


# ---------------------------------------------------------------- makers of setters and getters


def in_range(key: Key, low: int, high: int) -> Setter:
    """Keeps a number from `low` to `high`, refuses others with EINVAL."""

    def setter(sk: Sock, value: int) -> None:
        check(low <= value <= high)
        keep(sk, key, value)

    return setter


def flag(key: Key) -> Setter:
    """Keeps 0 or 1, whatever number it is given."""

    def setter(sk: Sock, value: int) -> None:
        keep(sk, key, int(bool(value)))

    return setter


def refuse(code: int, size: int = 0) -> ByteSetter:
    """Fails with `code`, and before that with EINVAL for fewer than `size` bytes."""

    def setter(sk: Sock, value: bytes) -> None:
        check(len(value) >= size)
        fail(code)

    return setter


def unreadable(code: int, size: int = 0) -> SizedGetter:
    """Fails with `code`, and before that with EINVAL where fewer than `size` bytes have room."""

    def getter(sk: Sock, room: int) -> bytes:
        check(room >= size)
        fail(code)

    return getter


def field(name: str) -> Getter:
    """Reads a field of the Sock."""

    def getter(sk: Sock) -> int:
        return int(getattr(sk, name))

    return getter


def constant(value: int) -> Getter:
    """Always reads the same."""

    def getter(sk: Sock) -> int:
        return value

    return getter


def kept_getter(key: Key) -> Getter:
    """Reads what `keep` stored, or the default."""

    def getter(sk: Sock) -> int:
        return kept(sk, *key)

    return getter
