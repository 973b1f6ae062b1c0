"""setsockopt and getsockopt of a TCP socket, the two calls (linux-sockets §7).

The options are in `sockopt_socket`, `sockopt_tcp` and `sockopt_ip`, by their level. Options
of features that do not exist here are refused as by a kernel built without them (`sockopt_absent`). Lengths: an int
is read from the first 4 bytes; fewer is EINVAL, except at IPPROTO_IP, where one byte is a number too. A getsockopt
buffer that is too small gets the first bytes of the value. A program has every privilege over its own stack: what
Linux asks CAP_NET_ADMIN or CAP_NET_RAW for is granted.
"""

from __future__ import annotations

import errno

from . import sockopt_absent, sockopt_ip, sockopt_socket, sockopt_tcp
from .sock import Sock
from .sockopt_kinds import (
    INT,
    IPPROTO_IP,
    IPPROTO_IPV6,
    IPPROTO_TCP,
    SOL_SOCKET,
    ByteSetter,
    Getter,
    Key,
    Setter,
    SizedGetter,
    check,
    fail,
    to_int,
)


def setsockopt(sk: Sock, level: int, name: int, value: int | bytes) -> None:
    """Set an option from an int or from bytes as the system call takes them.

    Raises OSError: ENOPROTOOPT (no such option, or not to be set), EINVAL, EPERM, ENOENT, EDOM, ..."""
    key = (level, name)
    special = _SET_BYTES.get(key)
    if special is not None:
        special(sk, INT.pack(value) if isinstance(value, int) else bytes(value))
        return
    if isinstance(value, int):
        number = to_int(value)
    elif len(value) >= 4:
        number = INT.unpack_from(value)[0]
        if key in _EXACT_LENGTH and len(value) != 4:
            fail(errno.EINVAL)
    elif level == IPPROTO_IP and key not in _EXACT_LENGTH and key in _SET:
        check(bool(value) or key not in sockopt_ip.NOT_EMPTY)
        number = value[0] if value else 0
    elif key in _LENGTH_UNCHECKED:
        number = 0
    elif level not in (SOL_SOCKET, IPPROTO_TCP) and key not in _SET:
        fail(errno.ENOPROTOOPT)
    else:
        fail(errno.EINVAL)
    setter = _SET.get(key)
    if setter is None:
        fail(errno.ENOPROTOOPT)
    setter(sk, number)


def getsockopt(sk: Sock, level: int, name: int, buflen: int = 0) -> int | bytes:
    """An option's value: an int, or with `buflen` the first `buflen` bytes of what the system call would write.

    A structure asked for without `buflen` gives its first int. Raises OSError ENOPROTOOPT, EINVAL, ENOTCONN."""
    key = (level, name)
    if key in _GET_SIZED:
        sized = _GET_SIZED[key](sk, buflen or INT.size)
        return sized if buflen else INT.unpack(sized[:4].ljust(4, b"\0"))[0]
    if key in sockopt_socket.LEAST:
        check((buflen or INT.size) >= sockopt_socket.LEAST[key](sk))
    getter = _GET.get(key)
    if getter is None:
        fail(errno.ENOPROTOOPT)
    value = getter(sk)
    if not buflen:
        if isinstance(value, int):
            return value
        return INT.unpack(value[:4].ljust(4, b"\0"))[0]  # type: ignore[no-any-return]
    if isinstance(value, int):
        if level == IPPROTO_IP and 0 < buflen < 4 and 0 <= value <= 255:
            return bytes((value,))
        value = INT.pack(value)
    return value[:buflen]


# ---------------------------------------------------------------- tables

_SET: dict[Key, Setter] = sockopt_socket.SET | sockopt_tcp.SET | sockopt_ip.SET
_SET_BYTES: dict[Key, ByteSetter] = sockopt_socket.SET_BYTES | sockopt_tcp.SET_BYTES | sockopt_ip.SET_BYTES | sockopt_absent.SET_BYTES
_GET: dict[Key, Getter] = sockopt_socket.GET | sockopt_tcp.GET | sockopt_ip.GET
# what the room for the answer changes
_GET_SIZED: dict[Key, SizedGetter] = sockopt_socket.GET_SIZED | sockopt_absent.GET_SIZED | {
    (IPPROTO_TCP, sockopt_tcp.TCP_SAVED_SYN): sockopt_tcp.saved_syn,
    (IPPROTO_IPV6, sockopt_ip.IPV6_PATHMTU): sockopt_ip.path_mtu,
}

_EXACT_LENGTH = {(IPPROTO_IP, sockopt_ip.IP_LOCAL_PORT_RANGE)}
_LENGTH_UNCHECKED = {(IPPROTO_IPV6, name) for name in (sockopt_ip.IPV6_AUTOFLOWLABEL, sockopt_ip.IPV6_DONTFRAG, sockopt_ip.IPV6_RECVFRAGSIZE)}
