"""What this machine can do for pytcp: each requirement looked at, with what to do where it is missing.

Nothing is assumed from the next-best sign: a TAP is opened to see whether TAPs open, a namespace made to see whether
namespaces can be made. A check never raises; `Check.status` says how bad its finding is:

- ok
- optional: something works less well, or one program is missing for one test
- missing: the testbed (demo, interop tests) does not work
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import os
import platform
import shutil
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from pytcp.lab import rootless

OK: Literal["ok"] = "ok"
OPTIONAL: Literal["optional"] = "optional"
MISSING: Literal["missing"] = "missing"
Status = Literal["ok", "optional", "missing"]

TUN = "/dev/net/tun"
NO_C = "PYTCP_NO_C=1"
MAKE = "rm -f {0}; mkdir -p {1}; mknod {0} c 10 200"
INSTEAD = "testbeds use a veth pair and a packet socket instead"
PROGRAMS = {
    "curl": ("the demo's first transfer", "curl"),
    "ip": ("a look into a testbed", "iproute2"),
    "ss": ("the peer's view of a connection", "iproute2"),
    "unshare": ("receive steering in benchmarks", "util-linux"),
    "iperf3": ("interop tests", "iperf3"),
    "nginx": ("interop tests", "nginx-light"),
    "socat": ("interop tests", "socat"),
    "tshark": ("reading captures", "tshark"),
}
PACKAGES = {"trio": "trio", "pyroute2": "pyroute2", "cffi": "cffi", "click": "click", "rich": "rich", "h11": "h11", "dns": "dnspython", "idna": "idna"}


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `remedy` is what to type or to change; empty when there is nothing to do."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def python() -> Check:
    return Check("python", OK, f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}")


def packages() -> Check:
    missing = []
    for module, package in PACKAGES.items():
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(package)
    if missing:
        return Check("packages", MISSING, f"cannot import {', '.join(missing)}", f"{sys.executable} -m pip install {' '.join(missing)}")
    return Check("packages", OK, ", ".join(PACKAGES.values()))


def kernel() -> Check:
    system, release = platform.system(), platform.release()
    if system != "Linux":
        return Check("kernel", MISSING, f"{system} {release}", "TAP devices and network namespaces need Linux; virtual time works anywhere")
    return Check("kernel", OK, f"Linux {release}")


def privileges() -> Check:
    uid = rootless.entered()
    if uid is not None:
        return Check("privileges", OK, f"ordinary user (uid {uid}), root of a user namespace")
    lacking = rootless.lacking()
    if os.geteuid() == 0 and not lacking:
        return Check("privileges", OK, "root")
    reason = rootless.probe()
    if not reason:
        return Check("privileges", OK, f"{'ordinary user' if os.geteuid() else 'root of a container'}; user namespaces are allowed")
    without = f"without {' and '.join(lacking)}" if lacking else "not root, though capable"
    # sudo does not look for `pytcp` in a virtual environment
    as_root = f"run as root: sudo {sys.executable} -m pytcp ...; or allow user namespaces"
    remedy = as_root if os.geteuid() else "in a container: --cap-add NET_ADMIN --cap-add SYS_ADMIN"
    return Check("privileges", MISSING, f"{without}; {reason}" if os.geteuid() else reason, remedy)


def tun_device(path: str = TUN) -> Check:
    try:
        mode = os.stat(path)
    except FileNotFoundError:
        return Check("tun device", OPTIONAL, f"no {path}: {INSTEAD}", "modprobe tun; in a container: --device /dev/net/tun")
    if not stat.S_ISCHR(mode.st_mode) or mode.st_rdev != os.makedev(10, 200):
        return Check("tun device", OPTIONAL, f"{path} is not the TUN device: {INSTEAD}", MAKE.format(path, os.path.dirname(path)))
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except PermissionError:
        return Check("tun device", OPTIONAL, f"no permission to open {path}: {INSTEAD}", f"run as root, or: sudo chmod 0666 {path}")
    except OSError as exc:
        hint = "modprobe tun" if exc.errno in (errno.ENODEV, errno.ENXIO) else f"check {path} and the kernel's CONFIG_TUN"
        return Check("tun device", OPTIONAL, f"cannot open {path}: {exc.strerror}: {INSTEAD}", hint)
    return Check("tun device", OK, path)


def tap_offloads() -> Check:
    """Opens a TAP with each set of offloads; it disappears with its descriptor."""
    from pytcp.link.tap import (
        IFF_NO_PI,
        IFF_TAP,
        IFF_VNET_HDR,
        TUN_F_CSUM,
        TUN_F_TSO4,
        TUN_F_TSO6,
        TUN_F_USO4,
        TUN_F_USO6,
        TUNSETIFF,
        TUNSETOFFLOAD,
    )

    csum, tso, uso = TUN_F_CSUM, TUN_F_TSO4 | TUN_F_TSO6, TUN_F_USO4 | TUN_F_USO6
    try:
        fd = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
    except OSError as exc:
        return Check("TAP", OPTIONAL, f"cannot open {TUN}: {exc.strerror}", "see the line above")
    try:
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"", IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
        for flags, status, detail in (
            (csum | tso | uso, OK, "checksum, TSO and USO offload"),
            (csum | tso, OK, "checksum and TSO offload (USO needs Linux 6.2)"),
            (csum, OPTIONAL, "checksum offload only, no TSO: single frames, several times slower"),
            (0, OPTIONAL, "no offloads: single frames and software checksums, several times slower"),
        ):
            try:
                fcntl.ioctl(fd, TUNSETOFFLOAD, flags)
            except OSError:
                continue
            return Check("TAP", status, detail, "" if status == OK else "a newer kernel offers TSO on TAP devices")
        return Check("TAP", OPTIONAL, "the kernel takes no offload setting", "a newer kernel offers TSO on TAP devices")
    except OSError as exc:
        return Check("TAP", OPTIONAL, f"cannot make a TAP device: {exc.strerror}", _more_rights("NET_ADMIN"))
    finally:
        os.close(fd)


def _more_rights(capability: str) -> str:
    """What to do where `capability` is wanting. Who is root already is so of a container, or of a user namespace."""
    return f"in a container: --cap-add {capability}" if os.geteuid() == 0 else f"run as root (CAP_{capability})"


def namespaces() -> Check:
    from pytcp.lab.netns import Namespace

    try:
        with Namespace():
            pass
    except OSError as exc:
        return Check("namespaces", MISSING, exc.strerror or str(exc), f"{_more_rights('SYS_ADMIN')}; the kernel needs CONFIG_NET_NS")
    return Check("namespaces", OK, "network namespaces can be made")


def testbed() -> Check:
    """The real thing, with a ping of its own address to see that the peer lives."""
    from pytcp.lab.testbed import Testbed

    try:
        with Testbed() as tb:
            carrier = "a TAP" if type(tb.link).__name__ == "Tap" else "a veth pair with a packet socket"
            alive = tb.ping(tb.peer4)[0] is not None
    except OSError as exc:
        return Check("testbed", MISSING, exc.strerror or str(exc), "see the lines above")
    if not alive:
        return Check("testbed", MISSING, f"made, over {carrier}, but its peer does not answer", "look at it from inside: pytcp testbed")
    return Check("testbed", OK, f"made, over {carrier}")


def ipv6() -> Check:
    if os.path.exists("/proc/net/if_inet6"):
        return Check("ipv6", OK, "the kernel has it")
    return Check("ipv6", MISSING, "the kernel has no IPv6", "boot without ipv6.disable=1")


def congestion_controls() -> Check:
    try:
        with open("/proc/sys/net/ipv4/tcp_available_congestion_control") as file:
            available = file.read().split()
    except OSError as exc:
        return Check("congestion control", OPTIONAL, f"cannot tell: {exc.strerror}")
    lacking = [name for name in ("cubic", "reno", "bbr") if name not in available]
    if "cubic" in lacking:
        return Check("congestion control", MISSING, f"the kernel has no cubic, only {' '.join(available)}", "modprobe tcp_cubic")
    if lacking:
        return Check("congestion control", OPTIONAL, f"{' '.join(available)}; without {' '.join(lacking)}", f"modprobe tcp_{lacking[0]}")
    return Check("congestion control", OK, " ".join(available))


def c_helpers() -> Check:
    from pytcp import native

    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if native.HAVE_C:
        if compiler is None:
            return Check("C helpers", OPTIONAL, "built; no C compiler now, so no tools/bench", "apt-get install gcc libc6-dev")
        return Check("C helpers", OK, f"built; compiler {compiler}")
    if native.reason == NO_C:
        return Check("C helpers", OPTIONAL, f"{NO_C}: pure Python instead, slower per byte", "unset PYTCP_NO_C")
    detail = f"{native.reason}{'' if compiler else '; no C compiler'}: pure Python instead, slower per byte"
    first = "" if compiler else "apt-get install gcc libc6-dev python3-dev; then "
    return Check("C helpers", OPTIONAL, detail, f"{first}install pytcp again: {sys.executable} -m pip install --force-reinstall --no-deps .")


def processors() -> Check:
    count = len(os.sched_getaffinity(0))
    if count < 2:
        return Check("processors", OPTIONAL, "one: the peer and the stack take turns on it")
    return Check("processors", OK, str(count))


def programs() -> Iterator[Check]:
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # not in everybody's PATH
    for name, (purpose, package) in PROGRAMS.items():
        where = shutil.which(name, path=path)
        if where:
            yield Check(name, OK, where)
        else:
            needed = name == "curl"
            yield Check(name, MISSING if needed else OPTIONAL, f"not installed: {purpose}", f"apt-get install {package}")


CHECKS: tuple[Callable[[], Check], ...] = (
    python,
    packages,
    kernel,
    privileges,
    tun_device,
    tap_offloads,
    namespaces,
    testbed,
    ipv6,
    congestion_controls,
    c_helpers,
    processors,
)


def examine() -> Iterator[Check]:
    """All checks in an order in which the first finding explains the later ones."""
    for check in CHECKS:
        try:
            yield check()
        except (OSError, ImportError) as exc:
            yield Check(check.__name__.replace("_", " "), MISSING, f"cannot tell: {exc}", "see the lines above")
    yield from programs()
