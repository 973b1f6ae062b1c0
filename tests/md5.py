"""MD5 signatures for tests: struct tcp_md5sig, RFC 2385's digest laid out by hand, and the calls whose answers were measured."""

from __future__ import annotations

import errno
import hashlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

TCP_MD5SIG, TCP_MD5SIG_EXT = 14, 32
FLAG_PREFIX, FLAG_IFINDEX = 1, 2
MEASURED = Path(__file__).parent / "data" / "md5sig.txt"


def md5sig(address: str, key: bytes, *, flags: int = 0, prefix: int = 0, ifindex: int = 0, keylen: int | None = None, family: int | None = None) -> bytes:
    """struct tcp_md5sig as C lays it out."""
    if ":" in address:
        name = struct.pack("=HHI16sI", socket.AF_INET6, 0, 0, socket.inet_pton(socket.AF_INET6, address), 0)
    else:
        name = struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_pton(socket.AF_INET, address))
    if family is not None:
        name = struct.pack("=H", family) + name[2:]
    return name.ljust(128, b"\0") + struct.pack("=BBHi80s", flags, prefix, len(key) if keylen is None else keylen, ifindex, key)


def signature(packet: bytes, key: bytes) -> bytes:
    """RFC 2385 section 2.0, of a whole IP packet: 1. pseudo-header, 2. TCP header without options and checksum, 3. data, 4. key."""
    if packet[0] >> 4 == 4:
        tcp = packet[(packet[0] & 15) * 4 : int.from_bytes(packet[2:4], "big")]
        pseudo = packet[12:16] + packet[16:20] + b"\0\x06" + len(tcp).to_bytes(2, "big")
    else:
        tcp = packet[40 : 40 + int.from_bytes(packet[4:6], "big")]
        pseudo = packet[8:24] + packet[24:40] + len(tcp).to_bytes(4, "big") + b"\0\0\0\x06"
    return hashlib.md5(pseudo + tcp[:16] + b"\0\0" + tcp[18:20] + tcp[(tcp[12] >> 4) * 4 :] + key).digest()


def carried(packet: bytes) -> bytes | None:
    """The digest in a packet's MD5 option, found option by option; None: there is no such option."""
    tcp = packet[(packet[0] & 15) * 4 :] if packet[0] >> 4 == 4 else packet[40:]
    options = tcp[20 : (tcp[12] >> 4) * 4]
    at = 0
    while at < len(options) and options[at]:
        if options[at] == 1:
            at += 1
            continue
        if options[at] == 19:
            assert options[at + 1] == 18
            return options[at + 2 : at + 18]
        at += options[at + 1]
    return None


class Sets(Protocol):
    """What has options: a socket of the kernel's or ours."""

    def setsockopt(self, level: int, option: int, value: bytes, /) -> None: ...


def answer(sock: Sets, option: int, value: bytes) -> str:
    """"ok", or the errno's name."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def measured() -> Iterator[tuple[str, int, bytes, str, str]]:
    """The calls of the table in their order: socket's family, option, value, expected answer, the line. A line "new" begins another socket."""
    for line in MEASURED.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("new "):
            yield line[4:], 0, b"", "", line
            continue
        name, family, address, keylen, flags, prefix, ifindex, size, expected = line.split()
        length = int(keylen)
        value = md5sig(
            address, b"k" * min(length, 80), flags=int(flags), prefix=int(prefix), ifindex=int(ifindex), keylen=length,
            family=None if family == "=" else int(family),
        )  # fmt: skip
        yield "", TCP_MD5SIG if name == "SIG" else TCP_MD5SIG_EXT, value[: int(size)].ljust(int(size), b"\0"), expected, line
