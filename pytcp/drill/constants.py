"""Names of the C headers that scripts use, with Linux's numbers, and what expressions of them are worth."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
from ipaddress import ip_address

from .errors import ScriptError, Where
from .script import Call, Dots, Expr, ListOf, Name, Not, Or, Struct

_MORE = {
    "SOL_TCP": 6, "SOL_IP": 0, "SOL_IPV6": 41, "SOL_UDP": 17, "SOL_ICMPV6": 58, "IPPROTO_IP": 0,
    "SO_MARK": 36, "SO_TIMESTAMPING": 37, "SO_ZEROCOPY": 60, "SO_MAX_PACING_RATE": 47, "SO_MEMINFO": 55, "SO_RCVBUFFORCE": 33,
    "SO_SNDBUFFORCE": 32, "SO_INCOMING_CPU": 49, "SO_COOKIE": 57, "SO_TXREHASH": 74, "SO_PEEK_OFF": 42, "SO_BUSY_POLL": 46,
    "TCP_MAXSEG": 2, "TCP_CORK": 3, "TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 6, "TCP_SYNCNT": 7, "TCP_LINGER2": 8,
    "TCP_DEFER_ACCEPT": 9, "TCP_WINDOW_CLAMP": 10, "TCP_INFO": 11, "TCP_QUICKACK": 12, "TCP_CONGESTION": 13, "TCP_MD5SIG": 14, "TCP_MD5SIG_EXT": 32,
    "TCP_MD5SIG_FLAG_PREFIX": 1, "TCP_MD5SIG_FLAG_IFINDEX": 2, "TCP_MD5SIG_MAXKEYLEN": 80,
    "TCP_THIN_LINEAR_TIMEOUTS": 16, "TCP_THIN_DUPACK": 17, "TCP_USER_TIMEOUT": 18, "TCP_REPAIR": 19, "TCP_FASTOPEN": 23,
    "TCP_TIMESTAMP": 24, "TCP_NOTSENT_LOWAT": 25, "TCP_CC_INFO": 26, "TCP_SAVE_SYN": 27, "TCP_SAVED_SYN": 28,
    "TCP_FASTOPEN_CONNECT": 30, "TCP_FASTOPEN_KEY": 33, "TCP_FASTOPEN_NO_COOKIE": 34, "TCP_ZEROCOPY_RECEIVE": 35, "TCP_INQ": 36,
    "TCP_CM_INQ": 36, "TCP_TX_DELAY": 37, "TCP_RTO_MAX_MS": 44, "TCP_RTO_MIN_US": 45, "TCP_DELACK_MAX_US": 46,
    "IP_TOS": 1, "IP_TTL": 2, "IP_MTU_DISCOVER": 10, "IP_RECVERR": 11, "IP_MTU": 14, "IP_FREEBIND": 15, "IP_MINTTL": 21,
    "IP_BIND_ADDRESS_NO_PORT": 24, "IP_PMTUDISC_DONT": 0, "IP_PMTUDISC_WANT": 1, "IP_PMTUDISC_DO": 2, "IP_PMTUDISC_PROBE": 3,
    "IP_PMTUDISC_INTERFACE": 4, "IP_PMTUDISC_OMIT": 5, "IPV6_RECVERR": 25, "IPV6_MTU_DISCOVER": 23, "IPV6_MTU": 24, "IPV6_TCLASS": 67,
    "MSG_FASTOPEN": 0x20000000, "MSG_ZEROCOPY": 0x4000000, "MSG_EOR": 0x80, "MSG_MORE": 0x8000, "MSG_OOB": 1, "MSG_ERRQUEUE": 0x2000,
    "MSG_NOSIGNAL": 0x4000, "MSG_DONTWAIT": 0x40, "MSG_PEEK": 2, "MSG_TRUNC": 0x20, "MSG_WAITALL": 0x100, "MSG_CTRUNC": 8,
    "SIOCINQ": 0x541B, "SIOCOUTQ": 0x5411, "SIOCOUTQNSD": 0x894B, "SIOCATMARK": 0x8905, "FIONREAD": 0x541B, "TIOCINQ": 0x541B,
    "TIOCOUTQ": 0x5411,
    "SPLICE_F_MOVE": 1, "SPLICE_F_NONBLOCK": 2, "SPLICE_F_MORE": 4,
    "EPOLLONESHOT": 1 << 30, "EPOLLET": 1 << 31, "EPOLLEXCLUSIVE": 1 << 28, "EPOLL_CTL_ADD": 1, "EPOLL_CTL_DEL": 2, "EPOLL_CTL_MOD": 3,
    "SO_EE_ORIGIN_NONE": 0, "SO_EE_ORIGIN_LOCAL": 1, "SO_EE_ORIGIN_ICMP": 2, "SO_EE_ORIGIN_ICMP6": 3, "SO_EE_ORIGIN_TIMESTAMPING": 4,
    "SO_EE_ORIGIN_ZEROCOPY": 5, "SO_EE_CODE_ZEROCOPY_COPIED": 1, "SCM_TIMESTAMPING": 37,
    "SCM_TSTAMP_SND": 0, "SCM_TSTAMP_SCHED": 1, "SCM_TSTAMP_ACK": 2,
    "SOF_TIMESTAMPING_TX_HARDWARE": 1, "SOF_TIMESTAMPING_TX_SOFTWARE": 2, "SOF_TIMESTAMPING_RX_HARDWARE": 4,
    "SOF_TIMESTAMPING_RX_SOFTWARE": 8, "SOF_TIMESTAMPING_SOFTWARE": 16, "SOF_TIMESTAMPING_SYS_HARDWARE": 32,
    "SOF_TIMESTAMPING_RAW_HARDWARE": 64, "SOF_TIMESTAMPING_OPT_ID": 128, "SOF_TIMESTAMPING_TX_SCHED": 256,
    "SOF_TIMESTAMPING_TX_ACK": 512, "SOF_TIMESTAMPING_OPT_CMSG": 1024, "SOF_TIMESTAMPING_OPT_TSONLY": 2048,
    "SOF_TIMESTAMPING_OPT_STATS": 4096,
}  # fmt: skip

CODE_NAMES = {
    "TCP_ESTABLISHED": 1, "TCP_SYN_SENT": 2, "TCP_SYN_RECV": 3, "TCP_FIN_WAIT1": 4, "TCP_FIN_WAIT2": 5, "TCP_TIME_WAIT": 6,
    "TCP_CLOSE": 7, "TCP_CLOSE_WAIT": 8, "TCP_LAST_ACK": 9, "TCP_LISTEN": 10, "TCP_CLOSING": 11,
    "TCP_CA_Open": 0, "TCP_CA_Disorder": 1, "TCP_CA_CWR": 2, "TCP_CA_Recovery": 3, "TCP_CA_Loss": 4,
    "TCPI_OPT_TIMESTAMPS": 1, "TCPI_OPT_SACK": 2, "TCPI_OPT_WSCALE": 4, "TCPI_OPT_ECN": 8, "TCPI_OPT_ECN_SEEN": 16,
    "TCPI_OPT_SYN_DATA": 32, "TCPI_OPT_USEC_TS": 64, "TCPI_OPT_TFO_CHILD": 128,
}  # fmt: skip
"""What a code block sees beside the fields of tcp_info."""

_PREFIXES = ("AF_", "PF_", "SOCK_", "SOL_", "SO_", "IPPROTO_", "TCP_", "IP_", "IPV6_", "MSG_", "SHUT_")


def _table() -> dict[str, int]:
    names: dict[str, int] = {}
    for module, prefixes in ((socket, _PREFIXES), (select, ("POLL", "EPOLL")), (os, ("O_",)), (fcntl, ("F_",))):
        names.update((name, int(getattr(module, name))) for name in dir(module) if name.startswith(prefixes) and isinstance(getattr(module, name), int))
    names.update((name, getattr(errno, name)) for name in dir(errno) if name.startswith("E"))
    names.update(_MORE)
    names.update(CODE_NAMES)
    return names


NAMES = _table()


def number(expr: Expr, where: Where, what: str = "a number") -> int:
    """What an integer expression is worth. Raises ScriptError."""
    match expr:
        case int():
            return expr
        case Name(name, at):
            if name not in NAMES:
                raise ScriptError(f"unknown name {name!r}", at)
            return NAMES[name]
        case Or(parts):
            total = 0
            for part in parts:
                total |= number(part, where, what)
            return total
        case Not(value):
            return ~number(value, where, what)
        case Call("htons" | "htonl" | "ntohs" | "ntohl", (arg,), _):
            return number(arg, where, what)  # ports stay in host order, as the calls of this tool want them
        case Call(name, _, at):
            raise ScriptError(f"no function {name}() here", at)
    raise ScriptError(f"expected {what}, and this is {describe(expr)}", where)


def address(expr: Expr, where: Where) -> str:
    """The text of an address: inet_addr("...") or a string. Raises ScriptError, for a name too: scripts look nothing up."""
    match expr:
        case bytes():
            text = expr.decode("ascii", "replace")
        case Call("inet_addr" | "inet_pton" | "in6_addr", args, _) if args and isinstance(args[-1], bytes):
            text = args[-1].decode("ascii", "replace")
        case _:
            raise ScriptError(f"expected an address, and this is {describe(expr)}", where)
    try:
        ip_address(text)
    except ValueError:
        raise ScriptError(f"{text!r} is neither an IPv4 nor an IPv6 address", where) from None
    return text


def describe(expr: Expr) -> str:
    """An expression in words."""
    match expr:
        case Dots():
            return "..."
        case None:
            return "NULL"
        case bytes():
            return "a string"
        case ListOf():
            return "a list"
        case Struct():
            return "a structure"
        case Name(name):
            return name
    return str(expr)


def errno_name(code: int) -> str:
    return errno.errorcode.get(code, f"errno {code}")
