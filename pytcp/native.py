"""Door to the C helpers: `lib` and `ffi` of `pytcp._native`, or None where they are not to be had.

C holds loops over bytes (checksums, cutting super-segments, coalescing, batches of frames), each with a
Python twin beside its caller and identical results, so nothing but speed depends on `HAVE_C`; and what
only threads beside Python can do (`link.txthread`, `lab.litmus`), which is refused without.
`PYTCP_NO_C=1` forces the twins, `PYTCP_REQUIRE_C=1` makes missing helpers an ImportError. cffi releases
the interpreter lock around every call and costs 0.07–0.15 µs of its own.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any, Protocol

ABI = 3  # PYTCP_ABI of csrc/pytcp.h: an extension left over from other sources is not used


class Lib(Protocol):
    """The functions of csrc/pytcp.h, which says what they do. Pointers are cffi `cdata`, or bytes."""

    PYTCP_ABI: int
    PYTCP_SEG_IPV6: int
    PYTCP_SEG_UDP: int
    PYTCP_SEG_CWR_ONCE: int

    def pytcp_ones_sum(self, p: Any, n: int, start: int, /) -> int: ...

    def pytcp_segment(
        self,
        head: Any,
        head_len: int,
        l3: int,
        l4: int,
        hdr_len: int,
        mode: int,
        gso_size: int,
        parts: Any,
        nparts: int,
        out: Any,
        out_size: int,
        /,
    ) -> int: ...

    def pytcp_gro(self, frames: Any, n: int, l2: int, out: Any, out_size: int, res: Any, /) -> int: ...

    def pytcp_read_batch(self, fd: int, base: Any, stride: int, hdr: int, limit: int, rx: Any, /) -> int: ...

    def pytcp_write_frames(self, fd: int, base: Any, stride: int, count: int, last: int, first: int, hdr: int, /) -> int: ...

    PYTCP_TX_NOBODY: int
    PYTCP_TX_PARTS: int

    def pytcp_txq_open(self, fd: int, entries: int, socks: int, error: Any, /) -> Any: ...

    def pytcp_txq_close(self, q: Any, /) -> None: ...

    def pytcp_txq_eventfd(self, q: Any, /) -> int: ...

    def pytcp_txq_put(self, q: Any, sock: int, truesize: int, quiet: int, hdr: bytes, hdr_len: int, parts: Any, nparts: int, /) -> int: ...

    def pytcp_txq_publish(self, q: Any, /) -> None: ...

    def pytcp_txq_reap(self, q: Any, called: Any, limit: int, /) -> int: ...

    def pytcp_txq_throttle(self, q: Any, sock: int, fence: int, /) -> int: ...

    def pytcp_txq_throttled(self, q: Any, sock: int, /) -> int: ...

    def pytcp_txq_unthrottle(self, q: Any, sock: int, /) -> None: ...

    def pytcp_txq_stats(self, q: Any, out: Any, /) -> None: ...

    PYTCP_P0_STORE: int
    PYTCP_P0_FENCE: int
    PYTCP_P0_LOCKED: int
    PYTCP_P1_LOCKED: int
    PYTCP_P1_STORE: int

    def pytcp_litmus(self, p0: int, p1: int, rounds: int, skew: int, seed: int, /) -> int: ...


lib: Lib | None
ffi: Any
reason: str
"""Why there are no C helpers; empty when there are."""


def _load() -> tuple[Lib | None, Any, str]:
    if os.environ.get("PYTCP_NO_C") == "1":
        return None, None, "PYTCP_NO_C=1"
    try:
        module: Any = importlib.import_module("pytcp._native")
    except ImportError as error:
        return None, None, f"not built: {error}"
    found = getattr(module.lib, "PYTCP_ABI", 0)
    if found != ABI:
        return None, None, f"built from other sources (interface {found}, wanted {ABI}): build again"
    return module.lib, module.ffi, ""


lib, ffi, reason = _load()
HAVE_C: bool = lib is not None

if not HAVE_C and os.environ.get("PYTCP_REQUIRE_C") == "1":
    raise ImportError(f"pytcp: C helpers required (PYTCP_REQUIRE_C=1) but {reason}")
if not HAVE_C and reason != "PYTCP_NO_C=1":
    warnings.warn(f"pytcp runs without its C helpers ({reason}); pure Python is slower per byte", RuntimeWarning, stacklevel=2)
