"""Queueing disciplines before the transmit ring, as `tc qdisc` sets them: `pfifo`, `fq`, `htb`.

Without one frames go straight into the ring, which is then the queue ("noqueue" in `pytcp qdisc`). With one the ring
is a NIC's, of `RING` frames, and what it has no room for, or what may not leave yet, waits here, charged to its
socket: small queues and autocork see both. Settings are values (`Pfifo`, `Fq`, `Htb`), given to
`Stack.add_interface(qdisc=...)` or `Interface.set_qdisc`; a name means its defaults.
"""

from __future__ import annotations

from collections.abc import Callable

from .base import RING, Hooks, Qdisc
from .fq import Fq, FqQdisc
from .htb import Htb, HtbQdisc
from .pfifo import Pfifo, PfifoQdisc

Settings = Pfifo | Fq | Htb

KINDS: dict[str, Callable[[], Settings]] = {"pfifo": Pfifo, "fq": Fq}  # those with defaults

__all__ = ["KINDS", "RING", "Fq", "FqQdisc", "Hooks", "Htb", "HtbQdisc", "Pfifo", "PfifoQdisc", "Qdisc", "Settings", "make"]


def settings(spec: str | Settings) -> Settings:
    """The settings a name stands for. Raises ValueError naming what there is."""
    if not isinstance(spec, str):
        return spec
    if spec == "htb":
        raise ValueError("htb has no defaults: give Htb(rate=...)")
    if spec not in KINDS:
        raise ValueError(f"qdisc {spec!r} is not one of {', '.join(KINDS)}, htb")
    return KINDS[spec]()


def make(spec: str | Settings, hooks: Hooks, mtu: int) -> Qdisc:
    """A queueing discipline with these settings; mtu: bytes of a frame, from which fq takes its quanta. Raises ValueError."""
    what = settings(spec)
    if isinstance(what, Fq):
        return FqQdisc(what, hooks, mtu)
    if isinstance(what, Htb):
        return HtbQdisc(what, hooks)
    return PfifoQdisc(what, hooks)
