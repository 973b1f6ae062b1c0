"""Ctrl-C never strikes inside the stack.

A signal handler may raise KeyboardInterrupt between any two bytecodes. In the middle of a call that
changes a connection's state that would leave the connection neither here nor there, which no system call
of a kernel does to a program. So the sockets' methods are protected, as trio protects its own code: the
interrupt waits for the end of the call, or goes to the program's main task. (For the runtime's tasks see
`clock.real`.)
"""

from __future__ import annotations

from typing import Any

import trio


def protect(*classes: type[Any]) -> None:
    """Protect every method of the classes."""
    for cls in classes:
        for name, value in list(vars(cls).items()):
            if callable(value) and not isinstance(value, type) and name != "__repr__":
                setattr(cls, name, trio.lowlevel.enable_ki_protection(value))
