"""Congestion control: registry and assignment (TCP_CONGESTION, net.ipv4.tcp_congestion_control).

`register(cls)` makes an algorithm available to every stack of the process; `assign(sk, name)` puts it
on a connection. See `base.CongestionControl` for the hooks.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from .base import CongestionControl
from .bbr import Bbr
from .cubic import Cubic
from .reno import Reno

if TYPE_CHECKING:
    from ..sock import Sock

_registry: dict[str, type[CongestionControl]] = {}


def register(cls: type[CongestionControl]) -> type[CongestionControl]:
    """Make `cls` available under `cls.name`; usable as a class decorator."""
    if not cls.name:
        raise ValueError("a congestion control needs a name")
    _registry[cls.name] = cls
    return cls


def available() -> list[str]:
    """Names of all registered algorithms, in order of registration."""
    return list(_registry)


def assign(sk: Sock, name: str | None = None) -> None:
    """Give `sk` the algorithm `name` (None: the sysctl's default).

    Raises OSError(ENOENT) for an unknown name, as setsockopt(TCP_CONGESTION) does.
    """
    wanted = name or sk.sysctl.tcp_congestion_control
    cls = _registry.get(wanted)
    if cls is None:
        raise OSError(errno.ENOENT, f"unknown congestion control {wanted!r}; available: {', '.join(_registry)}")
    old = sk.ca
    if old is not None:
        old.release(sk)
    sk.ca = cls()
    sk.cong_name = wanted


def init(sk: Sock) -> None:
    """The connection is established: the algorithm starts."""
    sk.ca.init(sk)


register(Reno)
register(Cubic)
register(Bbr)
