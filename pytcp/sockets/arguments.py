"""Arguments of socket calls, as the standard library's `socket` takes them: what is no number or no buffer is a
TypeError that says so, a number beyond a C int an OverflowError, before anything has happened.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from pytcp.tcp.skb import Buffer

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
OPTLEN_MAX = 1024


def c_int(value: Any) -> int:
    """An argument that is a C int. Raises TypeError, OverflowError."""
    number = operator.index(value)
    if not INT_MIN <= number <= INT_MAX:
        raise OverflowError(f"{number} is no C int ({INT_MIN} to {INT_MAX})")
    return number


def size(value: Any, call: str) -> int:
    """How many bytes to receive. Raises TypeError, and ValueError for a negative number."""
    number = operator.index(value)
    if number < 0:
        raise ValueError(f"negative buffersize in {call}")
    return number


def buffer(value: Any) -> memoryview:
    """The bytes of an object. Raises TypeError, BufferError when they do not lie in one piece."""
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"a bytes-like object is required, not {type(value).__name__!r}") from None
    if not view.c_contiguous:
        raise BufferError("memoryview: underlying buffer is not C-contiguous")
    return view.cast("B")


def room(value: Any, nbytes: int, call: str) -> memoryview:
    """The first `nbytes` (0: all) of a buffer that is received into. Raises TypeError, ValueError."""
    try:
        view = memoryview(value)
    except TypeError:
        view = None
    if view is None or view.readonly or not view.c_contiguous:
        raise TypeError(f"{call}() argument 1 must be read-write bytes-like object, not {type(value).__name__}")
    view = view.cast("B")
    if size(nbytes, call) > len(view):
        raise ValueError("buffer too small for requested bytes")
    return view[: nbytes or len(view)]


def option(level: Any, name: Any, value: Any) -> tuple[int, int, int | bytes]:
    """Level, number and value of setsockopt: a C int, or bytes. Raises TypeError, OverflowError."""
    level, name = c_int(level), c_int(name)
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise OverflowError(f"an option's value is a C int ({INT_MIN} to {INT_MAX}) or bytes, not {value}")
        return level, name, int(value)
    return level, name, bytes(buffer(value))


def query(level: Any, name: Any, buflen: Any) -> tuple[int, int, int]:
    """Level, number and buffer length of getsockopt. Raises TypeError, OverflowError, OSError for a length that none has."""
    level, name, buflen = c_int(level), c_int(name), c_int(buflen)
    if not 0 <= buflen <= OPTLEN_MAX:
        raise OSError("getsockopt buflen out of range")
    return level, name, buflen


def control(ancdata: Any) -> list[tuple[int, int, bytes]]:
    """Control data of sendmsg. Raises TypeError."""
    if not isinstance(ancdata, Iterable):
        raise TypeError("sendmsg() argument 2 must be an iterable")
    found = []
    for item in ancdata:
        if not isinstance(item, Sequence) or len(item) != 3:
            raise TypeError(f"sendmsg() ancillary data items must be (level, type, data), not {item!r}")
        found.append((c_int(item[0]), c_int(item[1]), bytes(buffer(item[2]))))
    return found


def joined(buffers: Any) -> bytes:
    """The buffers of sendmsg in one. Raises TypeError."""
    if not isinstance(buffers, Iterable):
        raise TypeError("sendmsg() argument 1 must be an iterable")
    parts: list[Buffer] = [buffer(part) for part in buffers]
    return b"".join(parts)
