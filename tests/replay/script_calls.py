"""The program of a recording: calls as the recordings write them, made on `pytcp.tcp.api` with their results in the same words.

"ok" stands for a call without a result, errors are their names, poll masks the names of their bits. An
edge-triggered epoll is an `Epoll` with one socket: `Edges` hears the wake-ups of the host as a socket's user does.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from struct import pack
from typing import Any

from pytcp.sockets.epoll import EPOLLET, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, Epoll
from pytcp.tcp import api, const, sockopt_ip, sockopt_socket, sockopt_tcp, timestamping
from pytcp.tcp.sock import Sock
from pytcp.wire.addr import format_ip

BITS = ((const.POLLIN, "IN"), (const.POLLPRI, "PRI"), (const.POLLOUT, "OUT"), (const.POLLERR, "ERR"), (const.POLLHUP, "HUP"), (const.POLLRDHUP, "RDHUP"))
LEVELS = {"SO": 1, "TCP": 6, "IP": 0, "IPV6": 41}
NUMBERS = {name: value for module in (sockopt_ip, sockopt_socket, sockopt_tcp) for name, value in vars(module).items() if re.match(r"(TCP|SO|IP|IPV6)_", name)}
HOW = {"RD": api.SHUT_RD, "WR": api.SHUT_WR, "RDWR": api.SHUT_RDWR}
MSG = {
    "FASTOPEN": 0x20000000, "ZEROCOPY": 0x4000000, "OOB": const.MSG_OOB, "PEEK": const.MSG_PEEK, "TRUNC": const.MSG_TRUNC,
    "WAITALL": const.MSG_WAITALL, "MORE": const.MSG_MORE,
}  # fmt: skip


def error_name(code: int) -> str:
    return {errno.EOPNOTSUPP: "ENOTSUP"}.get(code, errno.errorcode[code])


def mask_text(mask: int) -> str:
    return "|".join(name for bit, name in BITS if mask & bit) or "0"


def option_key(name: str, family: int) -> tuple[int, int]:
    """(level, number) of an option's name; RECVERR is the family's."""
    if name == "RECVERR":
        name = "IP_RECVERR" if family == 4 else "IPV6_RECVERR"
    if name.startswith("unknown_"):
        return 6 if name == "unknown_99" else 1, int(name.removeprefix("unknown_"))
    return LEVELS[name.split("_")[0]], NUMBERS[name]


def flags_of(words: str) -> int:
    return sum(MSG[word.removeprefix("MSG_")] for word in words.split("|") if word)


class Edges:
    """An edge-triggered registration for everything: what epoll_wait returns."""

    def __init__(self, sk: Sock) -> None:
        self.sk = sk
        self.notify: Callable[[int], object] = lambda mask: None
        sk.user = self
        self.epoll: Epoll[Edges] = Epoll()
        self.epoll.register(self, EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP | EPOLLET)

    def poll(self) -> int:
        return api.poll(self.sk)

    def wait(self) -> str:
        found = self.epoll.poll()
        return mask_text(found[0][1]) if found else "no edge"


def get_option(sk: Sock, name: str, length: int) -> Any:
    level, number = option_key(name, sk.family)
    if name == "TCP_CONGESTION":
        value = api.getsockopt(sk, level, number, 16)
        assert isinstance(value, bytes)
        return value.rstrip(b"\0").decode()
    if name in ("TCP_INFO", "SO_MEMINFO", "TCP_CC_INFO"):
        value = api.getsockopt(sk, level, number, length or 1000)
        assert isinstance(value, bytes)
        return len(value)
    if name == "TCP_SAVED_SYN":
        value = api.getsockopt(sk, level, number, length)
        assert isinstance(value, bytes)
        return value
    value = api.getsockopt(sk, level, number)
    if name == "SO_ERROR":
        assert isinstance(value, int)
        return error_name(value) if value else 0
    return value


def set_option(sk: Sock, name: str, value: str) -> None:
    level, number = option_key(name, sk.family)
    if value.startswith("["):
        api.setsockopt(sk, level, number, pack("=ii", *(int(part) for part in value.strip("[]").split(","))))
    elif name == "TCP_CONGESTION":
        api.setsockopt(sk, level, number, value.encode())
    else:
        api.setsockopt(sk, level, number, int(value))


def _recv(sk: Sock, args: list[str]) -> Any:
    return len(api.recv(sk, int(args[0] or 100000), flags_of(args[1] if len(args) > 1 else "")))


def _recvmsg(sk: Sock, args: list[str]) -> Any:
    if args[0] == "MSG_ERRQUEUE":
        return _errors(sk)
    return {"len": _recv(sk, args)}


def _errors(sk: Sock) -> Any:
    found: list[dict[str, Any]] = []
    while True:
        try:
            report = api.read_error_queue(sk)
        except BlockingIOError:
            if found:
                return found
            raise
        fields: dict[str, Any] = {name: getattr(report, name) for name in ("origin", "type", "code", "info")}
        fields |= {"ee_errno": error_name(report.errno) if report.errno else 0, "len": min(len(report.payload), 2048), "data": report.data}
        if report.origin == timestamping.ORIGIN_TIMESTAMPING and sk.tstamp_flags & timestamping.SOFTWARE:
            fields["stamp"] = "yes"
        if report.origin == timestamping.ORIGIN_TIMESTAMPING and sk.tstamp_flags & timestamping.OPT_STATS:
            fields["opt_stats"] = len(report.payload)
        found.append(fields)


def _ioctl(sk: Sock, args: list[str]) -> Any:
    name = args[0]
    if name == "SIOCATMARK":
        return int(api.at_mark(sk))
    return {"SIOCINQ": api.inq, "SIOCOUTQ": api.outq, "SIOCOUTQNSD": api.outq_unsent}[name](sk)


def _address(sk: Sock, which: Callable[[Sock], tuple[bytes, int]], family: int) -> str:
    addr, _ = which(sk)
    if family == 6 and len(addr) == 4:
        return "::ffff:" + format_ip(addr)
    return format_ip(addr) if addr else "0.0.0.0" if family == 4 else "::"


def plain(sk: Sock, family: int, name: str, args: list[str]) -> Any:
    """A call on a socket that needs nothing of the script around it. Raises OSError, and KeyError for an unknown call."""
    if name == "recv":
        return _recv(sk, args)
    if name == "recvmsg":
        return _recvmsg(sk, args)
    if name == "send":
        flags = flags_of(args[1] if len(args) > 1 else "")
        data = bytes(int(args[0]))
        return api.send_zerocopy(sk, [data], flags) if flags & MSG["ZEROCOPY"] else api.sendmsg(sk, data, flags)
    if name == "poll":
        return mask_text(api.poll(sk))
    if name == "setsockopt":
        set_option(sk, args[0], ",".join(args[1:]))
        return "ok"
    if name == "getsockopt":
        return get_option(sk, args[0], int(args[1]) if len(args) > 1 else 0)
    if name == "SO_ERROR":
        return get_option(sk, name, 0)
    if name == "shutdown":
        api.shutdown(sk, HOW[args[0]])
        return "ok"
    if name == "ioctl":
        return _ioctl(sk, args)
    if name == "getsockname":
        return _address(sk, api.getsockname, family)
    if name == "getpeername":
        return _address(sk, api.getpeername, family)
    raise KeyError(name)
