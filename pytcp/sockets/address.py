"""Socket addresses: the tuples programs write and the bytes the engine keeps.

`("10.0.0.2", 80)` for AF_INET; `("fd00::2", 80)` or four fields, `("fe80::1", 80, 0, scope_id)`, for
AF_INET6, as in the standard library. Hosts are numeric here; who takes names has them looked up first
(`resolver`). An AF_INET6 socket that speaks IPv4 shows
IPv4-mapped addresses (`::ffff:10.0.0.2`, RFC 4291 §2.5.5.2), as on Linux.
"""

from __future__ import annotations

import errno
import os
import socket as stdlib
import struct
from typing import Any

AF_INET = int(stdlib.AF_INET)
AF_INET6 = int(stdlib.AF_INET6)

MAPPED_PREFIX = bytes(10) + b"\xff\xff"

SockAddr = tuple[str, int] | tuple[str, int, int, int]


def oserror(number: int, detail: str = "") -> OSError:
    """An OSError of the right subclass, with Linux's text and, behind it, what exactly is wrong."""
    text = os.strerror(number)
    return OSError(number, f"{text}: {detail}" if detail else text)


def numeric(host: str | bytes) -> tuple[int, str]:
    """(AF_INET or AF_INET6, host without brackets) of a numeric host; a `%zone` stays.

    Raises socket.gaierror (an OSError) for a name; `TrioStack.addresses_of` looks names up. TypeError for what is no host.
    """
    if not isinstance(host, str | bytes):
        raise TypeError(f"a host is a string, not {host!r}")
    text = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    for family in (AF_INET, AF_INET6):
        try:
            stdlib.inet_pton(family, text.partition("%")[0])
        except (OSError, ValueError):
            continue
        if "\0" in text:  # which inet_pton takes for the end
            break
        return family, text
    raise stdlib.gaierror(stdlib.EAI_NONAME, f"{text!r} is not a numeric IPv4 or IPv6 address")


def encode_name(host: str | bytes) -> bytes:
    """A host name as it is asked for: ASCII, other letters by IDNA 2008 (UTS 46), as trio does. Raises socket.gaierror."""
    if isinstance(host, bytes):
        return host
    try:
        return host.encode("ascii")
    except UnicodeEncodeError:
        import idna

        try:
            return idna.encode(host, uts46=True)
        except idna.IDNAError as exc:
            raise stdlib.gaierror(stdlib.EAI_NONAME, f"{host!r} is not a host name: {exc}") from exc


def parse(family: int, address: Any) -> tuple[bytes, int, int]:
    """(address bytes, port, scope id) of a program's address tuple; b"" for the wildcard.

    Four bytes for IPv4 and for IPv4-mapped IPv6, else sixteen.
    Raises TypeError for other shapes, OverflowError for a port outside 0..65535 or a flowinfo beyond 20 bits (as the
    standard library does), OSError EAFNOSUPPORT for an address of another family, socket.gaierror for a name.
    """
    if not isinstance(address, tuple) or not 2 <= len(address) <= (2 if family == AF_INET else 4):
        shape = "(host, port)" if family == AF_INET else "(host, port[, flowinfo[, scope_id]])"
        raise TypeError(f"an address is a tuple {shape}, not {address!r}")
    host, port = address[0], address[1]
    if not isinstance(host, str | bytes) or not isinstance(port, int):
        raise TypeError(f"an address is a host string and a port number, not {address!r}")
    if "\0" in (host if isinstance(host, str) else host.decode("latin-1")):
        raise TypeError("host name must not contain null character")
    if not 0 <= port <= 65535:
        raise OverflowError("port must be 0-65535")
    for field in address[2:]:
        if not isinstance(field, int):
            raise TypeError(f"flowinfo and scope_id are numbers, not {address!r}")
    if address[2:] and not 0 <= address[2] < 1 << 20:
        raise OverflowError("flowinfo must be 0-1048575")
    scope: int = address[3] if len(address) == 4 else 0
    if host in ("", b""):
        return b"", port, scope
    found, text = numeric(host)
    text, _, zone = text.partition("%")
    if zone:
        if not zone.isdigit():
            raise stdlib.gaierror(stdlib.EAI_NONAME, f"the zone of {host!r} must be an interface index")
        scope = int(zone)
    if found != family:
        if found == AF_INET:
            raise oserror(errno.EAFNOSUPPORT, f"{text} is an IPv4 address and this is an IPv6 socket (write ::ffff:{text})")
        raise oserror(errno.EAFNOSUPPORT, f"{text} is an IPv6 address and this is an IPv4 socket")
    raw = stdlib.inet_pton(found, text)
    if raw.startswith(MAPPED_PREFIX):
        raw = raw[12:]
    return (raw if any(raw) else b""), port, scope


def show(raw: bytes) -> str:
    """Text of four or sixteen address bytes."""
    return stdlib.inet_ntop(AF_INET if len(raw) == 4 else AF_INET6, raw)


def build(family: int, raw: bytes, port: int, scope: int = 0) -> SockAddr:
    """The tuple a program of `family` gets to see; b"" is the wildcard."""
    if family == AF_INET:
        return (show(raw or bytes(4)), port)
    if len(raw) == 4:
        raw = MAPPED_PREFIX + raw
    return (show(raw or bytes(16)), port, 0, scope)


def peername(address: SockAddr, buflen: int) -> int | bytes:
    """SO_PEERNAME: a program's address tuple as a struct sockaddr, its first int without `buflen`. Raises OSError EINVAL for
    a buffer longer than it."""
    host = stdlib.inet_pton(AF_INET if len(address) == 2 else AF_INET6, address[0].partition("%")[0])
    if len(address) == 2:
        raw = struct.pack("=H", AF_INET) + struct.pack(">H4s8x", address[1], host)
    else:
        raw = struct.pack("=H", AF_INET6) + struct.pack(">H4s16s", address[1], bytes(4), host) + struct.pack("=I", address[3])
    if buflen > len(raw):
        raise oserror(errno.EINVAL, f"a struct sockaddr has {len(raw)} bytes")
    return raw[:buflen] if buflen else int.from_bytes(raw[:4], "little")


def host_port(host: str, port: int) -> str:
    """`host:port` for messages, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
