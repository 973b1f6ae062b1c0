"""Commands on a terminal of a width of our choice."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios


def on_a_terminal(columns: int, *arguments: str, env: dict[str, str] | None = None, program: tuple[str, ...] = ("-m", "pytcp")) -> str:
    """What a command prints on its terminal, standard error included, with its escape sequences."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    clean |= {"TERM": "xterm", **(env or {})}
    child = subprocess.Popen([sys.executable, *program, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=clean)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # EIO: nobody has it open any more
        while more := os.read(ours, 1 << 16):
            said += more
    os.close(ours)
    child.wait(timeout=60)
    return said.decode().replace("\r\n", "\n")


def unstyled(text: str) -> str:
    """Without colours."""
    return re.sub("\x1b\\[[0-9;]*m", "", text)
