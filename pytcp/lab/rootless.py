"""Testbeds without root: a user namespace in which an ordinary user may do what a testbed needs.

`enter` puts the calling process into a user, network and mount namespace of its own, for good. In there it is user 0 with every
capability over its own network and none over the machine's; files it makes belong to the user who started it. The network is
empty, so whatever needs the machine's has to come before, and so do threads: the kernel refuses a process that has any.

Order (user_namespaces(7)): unshare, then the uid map, then `deny` to setgroups, without which an ordinary user may not write the
gid map, then that. /dev/net/tun keeps its permissions: where it is 0666 (as on most machines) there is a TAP,
elsewhere the testbed uses a veth pair and a packet socket, which need nothing of the machine.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading

from pytcp.lab.netns import TestbedError

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
CLONE_NEWNS = 0x00020000
CAP_NET_ADMIN = 12
CAP_SYS_ADMIN = 21
NS_GET_USERNS = 0xB701
NEEDED = {"CAP_NET_ADMIN": CAP_NET_ADMIN, "CAP_SYS_ADMIN": CAP_SYS_ADMIN}
WHERE = {"CAP_NET_ADMIN": "net", "CAP_SYS_ADMIN": "mnt"}  # the kind of namespace it is wanted over

_entered_as: int | None = None


def lacking() -> list[str]:
    """The capabilities a testbed needs and this process has not, by name.

    They are wanted over the network and the mounts it is in: root of a user namespace only (`unshare -rU`) has all of them, and not there."""
    with open("/proc/self/status") as file:
        effective = next((int(line.split()[1], 16) for line in file if line.startswith("CapEff:")), 0)
    return [name for name, bit in NEEDED.items() if not (effective >> bit & 1 and _ours(WHERE[name]))]


def _ours(kind: str) -> bool:
    """Whether our namespace of a kind belongs to our user namespace, or to one below."""
    namespace = os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.close(fcntl.ioctl(namespace, NS_GET_USERNS))
    except PermissionError:
        return False
    finally:
        os.close(namespace)
    return True


def entered() -> int | None:
    """The user who entered by `enter`, None when nobody did."""
    return _entered_as


def enter() -> bool:
    """Become root of namespaces of our own, unless this process may do what is needed already. Whether it did.

    Raises TestbedError with the reason when the machine does not let ordinary users, or there are threads.
    """
    global _entered_as
    if _entered_as is not None or (os.geteuid() == 0 and not lacking()):
        return False
    if threading.active_count() > 1:
        raise TestbedError(errno.EINVAL, "a process with threads cannot enter a user namespace")
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS) != 0:
        number = ctypes.get_errno()
        who = "needs root, or user namespaces for ordinary users" if uid else f"root without {' and '.join(lacking())}, and no user namespace to be had"
        raise TestbedError(number, f"{who}: {explain(number)}")
    try:
        for name, text in (("uid_map", f"0 {uid} 1"), ("setgroups", "deny"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError as exc:
        raise TestbedError(exc.errno or errno.EPERM, f"needs root: a user namespace was made, but {name} could not be written: {exc.strerror}") from exc
    _entered_as = uid
    return True


def probe() -> str:
    """Why `enter` would fail; empty when it would not. Tried in a child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            try:
                enter()
            except OSError as exc:
                os.write(writer, (exc.strerror or str(exc)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return said.decode() or ("" if status == 0 else "the attempt crashed")


def explain(number: int) -> str:
    """What stands in the way of unshare(CLONE_NEWUSER), and how to change it."""
    limits = [f"user.max_{kind}_namespaces" for kind in ("user", "net", "mnt")]
    none = [name for name in limits if _setting(f"/proc/sys/{name.replace('.', '/')}") == "0"]
    if none or number == errno.ENOSPC:
        return f"sysctl {(none or limits)[0]} is used up or 0"
    if _setting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "sysctl kernel.unprivileged_userns_clone is 0"
    if _setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "AppArmor forbids it (sysctl kernel.apparmor_restrict_unprivileged_userns is 1)"
    if number == errno.EPERM:
        return "a container's seccomp profile or a chroot forbids it"
    return os.strerror(number)


def _setting(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
