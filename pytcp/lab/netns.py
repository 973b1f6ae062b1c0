"""Network namespaces for peers: made under a name, entered per thread, removed with all that runs in them.

A namespace is called `pytcp-<pid>-<start>-<n>`: the process that owns it, the kernel's start time of that process (so that a
reused pid is not mistaken for the owner) and a counter. Whoever dies without cleaning up (SIGKILL, power) leaves a name
whose owner is gone; `reap()` finds and removes those, with every process still inside, and runs before each new one is made.
Who may not write there (root of a user namespace only, `lab/rootless.py`) gets a namespace without a name, held by a descriptor: it
is gone with its last process.

`setns(2)` moves one thread. `entered()` moves the calling thread and moves it back; what is made meanwhile (sockets, TAPs,
child processes) stays in the namespace for good. Nothing here touches a sysctl of the machine itself: a write needs a
name under `net.`, and happens inside.

Needs CAP_SYS_ADMIN and CAP_NET_ADMIN over the current network (root, as a rule); `/proc` and `/run/netns`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import itertools
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CLONE_NEWNET = 0x40000000
_NAME = re.compile(r"pytcp-(\d+)-(\d+)-\d+\Z")
_count = itertools.count(1)
_libc = ctypes.CDLL(None, use_errno=True)


class TestbedError(OSError):
    """The machine does not let us build what was asked for; the text says what is missing."""

    __test__ = False  # the name begins with Test: not something for pytest to collect


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C, SIGTERM and SIGHUP back for the length of a `with` block that must not be left half done.

    They are delivered, once, when it ends. Only the main thread gets signals, so elsewhere this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before: dict[int, Any] = {}
    try:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(signum)
            if handler is not None:  # else it was set outside of Python and could not be put back
                before[signum] = handler
                signal.signal(signum, lambda number, frame: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)


def _explain(exc: OSError, run: str) -> str:
    """pyroute2 says what failed, where an error says why: both, and the folder. run: that of the names."""
    said = exc.strerror or str(exc)
    if not exc.errno or not said.endswith(" failed"):
        return said
    what = f"mount on {run}" if said.endswith(" rundir failed") else said.removesuffix(" failed")
    return f"{what}: {os.strerror(exc.errno)}"


def _setns(fd: int) -> None:
    if _libc.setns(fd, CLONE_NEWNET) != 0:
        err = ctypes.get_errno()
        raise TestbedError(err, f"cannot enter the network namespace: {os.strerror(err)}")


def start_time(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return None


def processes_in(path: str) -> list[int]:
    """Pids, other than ours, whose network namespace is the one bound at `path`."""
    try:
        want = os.stat(path)
    except OSError:
        return []
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        try:
            have = os.stat(f"/proc/{entry}/ns/net")
        except OSError:
            continue
        if (have.st_dev, have.st_ino) == (want.st_dev, want.st_ino):
            found.append(int(entry))
    return found


def _new_namespace() -> int:
    """A descriptor of a new network namespace. A thread makes it, and leaves the others where they are."""
    made: list[int] = []
    failed: list[OSError] = []

    def make() -> None:
        if _libc.unshare(CLONE_NEWNET) != 0:
            err = ctypes.get_errno()
            failed.append(OSError(err, os.strerror(err)))
        else:
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def _empty(path: str) -> None:
    """Kill every process in the namespace."""
    deadline = time.monotonic() + 2
    # again and again: one of them may be forking, and who was killed takes a moment to be gone
    while (pids := processes_in(path)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _forget(name: str) -> None:
    """Remove a namespace's name."""
    from pyroute2 import netns

    try:
        netns.remove(name)
    except OSError as exc:
        if exc.errno != errno.ENOENT:  # two starters may reap the same one
            raise


def reap() -> list[str]:
    """Remove the namespaces whose owner is dead, with what still runs in them; returns their names."""
    from pyroute2 import netns

    removed = []
    for name in netns.listnetns():
        match = _NAME.match(name)
        if match and start_time(int(match[1])) != int(match[2]):
            _empty(os.path.join(netns.NETNS_RUN_DIR, name))
            _forget(name)
            removed.append(name)
    return removed


def kernel_counters() -> dict[str, int]:
    """The kernel's counters in this thread's namespace under nstat's names (IpInReceives, TcpRetransSegs, TcpExtTCPTimeouts, Ip6..., ...)."""
    counters: dict[str, int] = {}
    for table in ("snmp", "netstat"):
        with open(f"/proc/thread-self/net/{table}") as file:
            lines = file.read().splitlines()
        for names, values in zip(lines[::2], lines[1::2], strict=True):
            prefix = names.partition(":")[0]
            counters.update((prefix + name, int(value)) for name, value in zip(names.split()[1:], values.split()[1:], strict=True))
    with contextlib.suppress(FileNotFoundError), open("/proc/thread-self/net/snmp6") as file:
        counters.update((name, int(value)) for name, value in map(str.split, file))
    return counters


class Namespace:
    """One network namespace, a context manager: gone at the end, with its programs, whatever happened inside.

    Raises TestbedError (an OSError) when the machine refuses: EPERM without the privilege, ENOSYS and
    others where the kernel has no network namespaces.
    """

    def __init__(self) -> None:
        self.name = f"pytcp-{os.getpid()}-{start_time(os.getpid())}-{next(_count)}"
        self.path = ""
        self.named = True
        self._fd = -1
        self._children: list[subprocess.Popen[Any]] = []

    def open(self) -> None:
        """Make it, with its loopback up."""
        if os.geteuid() != 0:
            raise TestbedError(errno.EPERM, "a network namespace needs root: run as root, or call pytcp.lab.rootless.enter() before")
        from pyroute2 import netns

        run = netns.NETNS_RUN_DIR
        self.named = os.access(run if os.path.exists(run) else os.path.dirname(run), os.W_OK)
        if self.named:
            reap()
        try:
            with uninterrupted():
                try:
                    self._make()
                except OSError as exc:
                    raise TestbedError(exc.errno or errno.EPERM, f"cannot make a network namespace: {_explain(exc, os.path.realpath(run))}") from exc
                # an interruption between two statements of whoever opens it may find nobody to close it
                atexit.register(self.close)
            with self.netlink() as ip:
                ip.link("set", index=1, state="up")
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        from pyroute2 import netns

        if self.named:
            netns.create(self.name)
            self.path = os.path.join(netns.NETNS_RUN_DIR, self.name)
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        else:
            self._fd = _new_namespace()
            self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Stop the programs inside, remove the name. Safe to call twice."""
        with uninterrupted():
            self._close()

    def _close(self) -> None:
        for child in self._children:
            self.stop(child)
        self._children.clear()
        if self.path:
            path, self.path = self.path, ""
            _empty(path)
            if self.named:
                _forget(self.name)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        atexit.unregister(self.close)

    def __enter__(self) -> Namespace:
        self.open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def fileno(self) -> int:
        """A descriptor of the namespace, as setns(2) takes it."""
        return self._fd

    # --- being inside ---

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Put the calling thread inside for the length of a `with` block. Do not `await` in the block."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(self._fd)
            try:
                yield
            finally:
                _setns(before)
        finally:
            os.close(before)

    def socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM, proto: int = 0) -> socket.socket:
        """A kernel socket that lives in the namespace; use it from anywhere."""
        with self.entered():
            return socket.socket(family, kind, proto)

    @contextlib.contextmanager
    def netlink(self) -> Iterator[Any]:
        """A pyroute2 `IPRoute` that talks to the namespace."""
        from pyroute2 import IPRoute

        with self.entered():
            ip = IPRoute()
        try:
            yield ip
        finally:
            ip.close()

    # --- programs ---

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program inside, in a session of its own (a terminal's Ctrl-C reaches us, not it); stopped at the end.

        `options` are subprocess.Popen's. Raises FileNotFoundError when there is no such program."""
        options.setdefault("start_new_session", True)
        options.setdefault("stdin", subprocess.DEVNULL)
        with self.entered():
            child = subprocess.Popen(argv, **options)
        self._children = [c for c in self._children if c.returncode is None]
        self._children.append(child)
        return child

    def run(self, argv: Sequence[str], *, data: bytes | None = None, timeout: float | None = 60, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        """Run a program inside to its end, `data` on its standard input; output and errors are collected.

        Blocks the calling thread, so not for a program that talks to a stack run by the same thread: see `run_async`.
        Raises subprocess.TimeoutExpired after `timeout` seconds, and CalledProcessError on a failure unless `check` is off."""
        child = self.popen(argv, stdin=subprocess.PIPE if data is not None else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = child.communicate(data, timeout=timeout)
        finally:
            self.stop(child)
        done = subprocess.CompletedProcess(argv, child.returncode, out, err)
        if check:
            done.check_returncode()
        return done

    async def run_async(self, argv: Sequence[str], *, data: bytes | None = None, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        """`run` for trio programs: the stack in this thread goes on meanwhile. Cancelling stops the program."""
        import trio

        child = self.popen(argv, stdin=subprocess.PIPE if data is not None else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = await trio.to_thread.run_sync(child.communicate, data, abandon_on_cancel=True)
        finally:
            if child.returncode is None:
                self.stop(child)
        done = subprocess.CompletedProcess(argv, child.returncode, out, err)
        if check:
            done.check_returncode()
        return done

    def stop(self, child: subprocess.Popen[Any], grace: float = 2.0) -> None:
        """End a program started here: SIGTERM to its session, SIGKILL after `grace` seconds."""
        if child.poll() is not None:
            return
        for signum, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signum)
            deadline = time.monotonic() + wait
            while child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
            if child.returncode is not None:
                return

    # --- the kernel in there ---

    def sysctl(self, name: str) -> str:
        """Value of a `net.` sysctl of the namespace, dotted name. Raises FileNotFoundError for an unknown one."""
        with self.entered(), open(_sysctl_path(name)) as file:
            return file.read().strip()

    def set_sysctl(self, name: str, value: int | str) -> None:
        """Set a `net.` sysctl of the namespace. Raises OSError as the kernel does (EINVAL, EPERM for one that is not per namespace)."""
        with self.entered(), open(_sysctl_path(name), "w") as file:
            file.write(str(value))

    def nstat(self) -> Mapping[str, int]:
        """The kernel's counters in the namespace under nstat's names (IpInReceives, TcpRetransSegs, TcpExtTCPTimeouts, Ip6..., ...)."""
        with self.entered():
            return kernel_counters()

    def ss(self, *arguments: str) -> str:
        """What `ss` prints in the namespace; `-tin` unless told otherwise. Needs iproute2."""
        return self.run(["ss", *(arguments or ("-tin",))]).stdout.decode()

    def spread_receive(self, device: str, cpu: int) -> None:
        """Let processor `cpu` do the receive work of `device` (RPS): the sender's thread then only queues."""
        # The network part of a sysfs mount is that of the namespace it was mounted from: mount one in a child.
        script = f"mount -t sysfs sysfs /sys && echo {1 << cpu:x} > /sys/class/net/{device}/queues/rx-0/rps_cpus"
        self.run(["unshare", "--mount", "sh", "-c", script])


def _sysctl_path(name: str) -> str:
    if not name.startswith("net.") or "/" in name:
        raise ValueError(f"{name!r}: only net. sysctls belong to a network namespace")
    return "/proc/sys/" + name.replace(".", "/")
