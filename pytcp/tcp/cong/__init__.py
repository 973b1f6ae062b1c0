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

NAME_LONGEST = 15  # characters; TCP_CA_NAME_MAX is 16 with the NUL

_registry: dict[str, type[CongestionControl]] = {}


def register(cls: type[CongestionControl]) -> type[CongestionControl]:
    """Make `cls` available under `cls.name`; usable as a class decorator.

    Raises TypeError for what is no `CongestionControl`; ValueError without a name, for one of more than 15 characters, which no program
    could ask for (the option's value ends there), and for a hook that nobody would call because its `has_...` is not set.
    """
    if not (isinstance(cls, type) and issubclass(cls, CongestionControl)):
        raise TypeError(f"a congestion control is a subclass of pytcp.tcp.cong.CongestionControl, not {cls!r}")
    if not 0 < len(cls.name) <= NAME_LONGEST:
        raise ValueError(f"a congestion control needs a name of 1 to {NAME_LONGEST} characters, not {cls.name!r}")
    for hook in ("cong_control", "min_tso_segs"):
        if getattr(cls, hook) is not getattr(CongestionControl, hook) and not getattr(cls, f"has_{hook}"):
            raise ValueError(f"{cls.name} has {hook}(), which is called with has_{hook} = True only")
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
    """The connection is established, or gets another algorithm: it starts. What went before cannot be undone."""
    sk.prior_ssthresh = 0
    sk.ca.init(sk)


register(Reno)
register(Cubic)
register(Bbr)
