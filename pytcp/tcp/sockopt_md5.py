"""TCP_MD5SIG and TCP_MD5SIG_EXT: the keys of `md5` as a program sets and ends them, in struct tcp_md5sig.

Linux's checks in Linux's order, as measured on 6.18. A key is known by its address (with the bits behind the prefix),
prefix length and TCP_MD5SIG_FLAG_IFINDEX together; TCP_MD5SIG takes no notice of prefix and index. Keys can be set in
every state and never be read. They are charged to the socket's option memory, net.core.optmem_max of which is the limit.
"""

from __future__ import annotations

import errno
from struct import Struct

from . import md5
from .sock import Sock
from .sockopt_kinds import check, fail

MAX_KEY = 80
FLAG_PREFIX = 1
FLAG_IFINDEX = 2
OPTMEM_MAX = 131072  # net.core.optmem_max

AF_INET = 2
AF_INET6 = 10
_FAMILY = Struct("=H")
_SIG = Struct("=BBHi80s")  # struct tcp_md5sig behind its address
_STORAGE = 128  # bytes of struct sockaddr_storage
_V4MAPPED = bytes(10) + b"\xff\xff"


def set_key(sk: Sock, value: bytes) -> None:
    """TCP_MD5SIG: a key for one address, or with no key its end. Raises OSError EINVAL, ENOENT, ENOMEM."""
    _change(sk, value, False)


def set_key_ext(sk: Sock, value: bytes) -> None:
    """TCP_MD5SIG_EXT: the same with tcpm_flags, for a prefix. Raises OSError EINVAL, ENOENT, ENOMEM."""
    _change(sk, value, True)


def _change(sk: Sock, value: bytes, extended: bool) -> None:
    check(len(value) >= _STORAGE + _SIG.size)
    addr = _address(sk, value)
    flags, prefix_len, key_len, ifindex, secret = _SIG.unpack_from(value, _STORAGE)
    most = 8 * len(addr)
    if extended and flags & FLAG_PREFIX:
        check(prefix_len <= most)
    else:
        prefix_len = most
    of_device = bool(flags & FLAG_IFINDEX)
    # a device of another domain of routes (VRF), of which there are none
    check(not extended or not of_device or not ifindex)
    old = next((key for key in sk.md5 or () if (key.addr, key.prefix_len, key.of_device) == (addr, prefix_len, of_device)), None)
    if not key_len:
        if old is None:
            fail(errno.ENOENT)
        sk.md5.remove(old)
        return
    check(key_len <= MAX_KEY)
    if old is not None:
        old.secret = secret[:key_len]
        return
    if md5.option_memory(sk) + md5.KEY_TRUESIZE >= OPTMEM_MAX:
        fail(errno.ENOMEM)
    md5.enable(sk).insert(0, md5.Key(addr, prefix_len, of_device, secret[:key_len]))


def _address(sk: Sock, value: bytes) -> bytes:
    """The address at the head of struct tcp_md5sig; a mapped one is an IPv4 address.

    A connection that speaks IPv4 may be an IPv6 socket's: whose it is only `sockets` knows, and looks."""
    family = _FAMILY.unpack_from(value)[0]
    if family == AF_INET and sk.family == 4:
        return value[4:8]
    check(family == AF_INET6)
    addr = value[8:24]
    return addr[12:] if addr[:12] == _V4MAPPED else addr
