"""Kinds of options of a UDP socket: a flag, a number in a range, one that is only remembered.

`udp_options` has those of the socket and of UDP, `udp_options_ip` those of IP; both are tables of what is made here.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from .address import oserror

if TYPE_CHECKING:
    from pytcp.net.datagram import UdpSocket

    from .udp import DatagramSocket

SOL_SOCKET, IPPROTO_IP, IPPROTO_UDP, IPPROTO_IPV6 = 1, 0, 17, 41
INT = struct.Struct("=i")

Key = tuple[int, int]
Setter = Callable[["DatagramSocket", "UdpSocket", int], None]
Getter = Callable[["DatagramSocket", "UdpSocket"], "int | bytes"]
ByteSetter = Callable[["DatagramSocket", "UdpSocket", bytes], None]


def check(ok: bool, value: int) -> None:
    """Raises OSError EINVAL unless `ok`."""
    if not ok:
        raise oserror(errno.EINVAL, f"value {value}")


def flag(name: str) -> Setter:
    """A field that is on or off, whatever number it is given."""

    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        setattr(udp, name, bool(value))

    return setter


def strict_flag(name: str) -> Setter:
    """A field that takes 0 and 1 only."""

    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        check(value in (0, 1), value)
        setattr(udp, name, bool(value))

    return setter


def number(name: str, low: int, high: int, default: int) -> Setter:
    """A field from `low` to `high`; -1 is its default."""

    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        check(value == -1 or low <= value <= high, value)
        setattr(udp, name, default if value == -1 else value)

    return setter


def field(name: str) -> Getter:
    """Reads a field of the endpoint."""

    def getter(so: DatagramSocket, udp: UdpSocket) -> int:
        return int(getattr(udp, name))

    return getter


def constant(value: int) -> Getter:
    """Always reads the same."""

    def getter(so: DatagramSocket, udp: UdpSocket) -> int:
        return value

    return getter


def keep(key: Key) -> Setter:
    """Remembers any number."""

    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        so.kept[key] = value

    return setter


def keep_flag(key: Key) -> Setter:
    """Remembers 0 or 1, whatever number it is given."""

    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        so.kept[key] = int(bool(value))

    return setter


def kept(key: Key, default: int | bytes) -> Getter:
    """Reads what is remembered, or the default."""

    def getter(so: DatagramSocket, udp: UdpSocket) -> int | bytes:
        return so.kept.get(key, default)

    return getter


def keep_bytes(key: Key, size: int) -> ByteSetter:
    """Remembers `size` bytes, refuses fewer with EINVAL."""

    def setter(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
        if len(value) < size:
            raise oserror(errno.EINVAL, f"{len(value)} bytes, not {size}")
        so.kept[key] = value[:size]

    return setter


def keep_range(key: Key, low: int, high: int) -> Setter:
    """Remembers a number from `low` to `high`."""

    def setter(so: DatagramSocket, udp: UdpSocket, value: int) -> None:
        check(low <= value <= high, value)
        so.kept[key] = value

    return setter


def refuse(code: int, size: int = 0) -> ByteSetter:
    """Fails with `code`, and before that with EINVAL for fewer than `size` bytes."""

    def setter(so: DatagramSocket, udp: UdpSocket, value: bytes) -> None:
        check(len(value) >= size, len(value))
        raise oserror(code)

    return setter


def unreadable(code: int) -> Getter:
    """Reading fails with `code`."""

    def getter(so: DatagramSocket, udp: UdpSocket) -> int:
        raise oserror(code)

    return getter
