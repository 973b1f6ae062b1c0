"""Where running stacks can be found: a private directory per user, with one socket per stack.

The first of these that is ours: $PYTCP_RUNTIME_DIR, $XDG_RUNTIME_DIR/pytcp, /run/user/UID/pytcp,
/tmp/pytcp-UID. It must be a directory of ours that nobody else may enter (0700); anything else is not
believed, since others can write to /tmp. UID is the user as the machine knows it, so that a program in a
user namespace, where we are root, and a shell outside of it meet in the same place.

A socket is called `PID.sock`, a further stack of the same process `PID.2.sock`, and so on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
from pathlib import Path

_NAME = re.compile(r"(\d+)(?:\.(\d+))?\.sock")
PER_PROCESS = 64  # stacks of one process that can be found


def outer_uid() -> int:
    """Our effective user id outside of the user namespace we may be in."""
    uid = os.geteuid()
    with contextlib.suppress(OSError, ValueError), open("/proc/self/uid_map", encoding="ascii") as lines:
        for line in lines:
            inside, outside, count = map(int, line.split())
            if inside <= uid < inside + count:
                return outside + uid - inside
    return uid


def candidates() -> list[Path]:
    """The directories there may be, best first."""
    uid = outer_uid()
    found = [Path(f"/tmp/pytcp-{uid}")]
    if private(user := Path(f"/run/user/{uid}")):
        found.insert(0, user / "pytcp")
    xdg = os.environ.get("XDG_RUNTIME_DIR")
    if xdg and private(Path(xdg)) and Path(xdg) / "pytcp" not in found:
        found.insert(0, Path(xdg) / "pytcp")
    own = os.environ.get("PYTCP_RUNTIME_DIR")
    return [Path(own)] if own else found


def private(path: Path) -> bool:
    """Whether `path` is a directory (no link) of ours that only we may enter."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def directory() -> Path:
    """The directory for a new socket, made if need be. Raises OSError when there is none to be had."""
    failure = OSError(errno.ENOENT, "no runtime directory")
    for path in candidates():
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            failure = error
            continue
        if private(path):
            return path
        failure = PermissionError(errno.EPERM, f"{path} is not a private directory of ours")
    raise failure


def sockets() -> list[tuple[int, Path]]:
    """(pid, path) of every socket there is, dead ones included, by pid and age."""
    found = []
    for place in candidates():
        if private(place):
            for entry in place.iterdir():
                match = _NAME.fullmatch(entry.name)
                if match is not None:
                    found.append((int(match[1]), int(match[2] or 1), entry))
    return [(pid, entry) for pid, _, entry in sorted(found)]


def alive(pid: int) -> bool:
    """Whether a process of that number exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def clean() -> None:
    """Remove the sockets of processes that are no more.

    Both must be true, no process of that number and nobody who listens: a stack in a container has a
    number that means nothing here."""
    for pid, path in sockets():
        if not alive(pid) and refuses(path):
            remove(path)


def remove(path: Path) -> None:
    """Remove a socket and what `pytcp nstat` remembers of its stack."""
    for name in (path, path.with_suffix(".nstat")):
        with contextlib.suppress(OSError):
            name.unlink()


def refuses(path: Path) -> bool:
    """Whether nobody listens on a socket any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED


def bind(listener: socket.socket, pid: int) -> Path:
    """Give `listener` the first free name of process `pid`, mode 0600, and make it listen. Raises OSError."""
    place = directory()
    for number in range(1, PER_PROCESS + 1):
        path = place / (f"{pid}.sock" if number == 1 else f"{pid}.{number}.sock")
        if path.exists() and refuses(path):
            # left by an earlier process of our number
            remove(path)
        try:
            listener.bind(str(path))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise
        # nobody else can have come in before: the directory is ours alone
        path.chmod(0o600)
        listener.listen(16)
        return path
    raise OSError(errno.EADDRINUSE, f"process {pid} has {PER_PROCESS} stacks already")
