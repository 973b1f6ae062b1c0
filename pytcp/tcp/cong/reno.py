"""Reno: slow start, congestion avoidance, half the window on loss (RFC 5681)."""

from __future__ import annotations

from .base import CongestionControl


class Reno(CongestionControl):
    """The base class's behaviour under its name; without state, so one instance serves all."""

    __slots__ = ()

    name = "reno"
