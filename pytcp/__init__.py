"""A TCP/IP stack in Python that behaves like Linux, segment for segment.

The names below are loaded when they are first used, so that `import pytcp` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytcp.clock.real import RealRuntime
    from pytcp.clock.virtual import VirtualClock, VirtualRuntime
    from pytcp.link.emulator import Emulator, Impairment
    from pytcp.link.frame import LinkDown
    from pytcp.link.pipe import pipe_pair
    from pytcp.link.tap import Tap
    from pytcp.net.stack import Stack
    from pytcp.sockets.factory import use_stack
    from pytcp.sockets.open import TrioStack, open_stack, run_virtual

__version__ = "0.1.0"

__all__ = [
    "Emulator",
    "Impairment",
    "LinkDown",
    "RealRuntime",
    "Stack",
    "Tap",
    "TrioStack",
    "VirtualClock",
    "VirtualRuntime",
    "__version__",
    "open_stack",
    "pipe_pair",
    "run_virtual",
    "use_stack",
]

_HOME = {
    "pytcp.clock.real": ("RealRuntime",),
    "pytcp.clock.virtual": ("VirtualClock", "VirtualRuntime"),
    "pytcp.link.emulator": ("Emulator", "Impairment"),
    "pytcp.link.frame": ("LinkDown",),
    "pytcp.link.pipe": ("pipe_pair",),
    "pytcp.link.tap": ("Tap",),
    "pytcp.net.stack": ("Stack",),
    "pytcp.sockets.factory": ("use_stack",),
    "pytcp.sockets.open": ("TrioStack", "open_stack", "run_virtual"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(module), name)
            return value
    raise AttributeError(f"module 'pytcp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
