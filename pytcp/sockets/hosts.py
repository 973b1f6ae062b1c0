"""The system's own word on names: /etc/hosts (hosts(5)) and /etc/resolv.conf (resolv.conf(5)).

Parsed as the C library parses them: what is not understood is skipped, limits are applied silently
(three servers, ndots 15, timeout 30, attempts 5), of several `search` or `domain` lines the last one
counts, and LOCALDOMAIN and RES_OPTIONS of the environment come last. Both files are read again when
they have changed, so a resolver that lives long follows them.
"""

from __future__ import annotations

import os
import socket as stdlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MAX_SERVERS = 3
MAX_NDOTS = 15
MAX_TIMEOUT = 30
MAX_ATTEMPTS = 5
DEFAULT_SERVER = "127.0.0.1"

T = TypeVar("T")


@dataclass(frozen=True)
class ResolverConfig:
    """What resolv.conf says. timeout: seconds of the first try; attempts: rounds over all servers."""

    nameservers: tuple[str, ...] = (DEFAULT_SERVER,)
    search: tuple[str, ...] = ()
    ndots: int = 1
    timeout: int = 5
    attempts: int = 2
    rotate: bool = False
    edns0: bool = False
    use_vc: bool = False
    no_aaaa: bool = False


def parse_resolv_conf(text: str, environ: Mapping[str, str] | None = None) -> ResolverConfig:
    """Read resolv.conf; never fails. `environ` gives LOCALDOMAIN and RES_OPTIONS."""
    servers: list[str] = []
    search: tuple[str, ...] = ()
    options: list[str] = []
    for line in text.splitlines():
        if line[:1] in ("#", ";"):
            continue
        keyword, *values = line.split() or [""]
        if keyword == "nameserver" and values and len(servers) < MAX_SERVERS and _is_address(values[0]):
            servers.append(values[0])
        elif keyword == "search" and values:
            search = tuple(values)
        elif keyword == "domain" and values:
            search = (values[0],)
        elif keyword == "options":
            options += values
    env = environ or {}
    if "LOCALDOMAIN" in env:
        search = tuple(env["LOCALDOMAIN"].split())
    options += env.get("RES_OPTIONS", "").split()
    return ResolverConfig(
        tuple(servers) or (DEFAULT_SERVER,),
        tuple(domain.strip(".") for domain in search if domain.strip(".")),
        _number(options, "ndots", 1, 0, MAX_NDOTS),
        _number(options, "timeout", 5, 1, MAX_TIMEOUT),
        _number(options, "attempts", 2, 1, MAX_ATTEMPTS),
        "rotate" in options,
        "edns0" in options,
        "use-vc" in options,
        "no-aaaa" in options,
    )


def _number(options: list[str], name: str, default: int, low: int, high: int) -> int:
    value = default
    for option in options:
        key, _, text = option.partition(":")
        if key == name and text.isdecimal():
            value = min(max(int(text), low), high)
    return value


def _is_address(text: str) -> bool:
    return bool(_packed(text.partition("%")[0]))


def _packed(text: str) -> bytes:
    """The address bytes of a numeric host; b"" when it is none."""
    for family in (stdlib.AF_INET, stdlib.AF_INET6):
        try:
            return stdlib.inet_pton(family, text)
        except (OSError, ValueError):
            continue
    return b""


@dataclass
class Hosts:
    """The entries of /etc/hosts."""

    by_name: dict[str, list[tuple[bytes, str]]] = field(default_factory=dict)  # lower case -> (address, canonical name)
    by_address: dict[bytes, str] = field(default_factory=dict)

    def addresses(self, name: str) -> list[tuple[bytes, str]]:
        """(address bytes, canonical name) of each line that has the name, in the file's order."""
        return self.by_name.get(name.rstrip(".").lower(), [])


def parse_hosts(text: str) -> Hosts:
    """Read /etc/hosts; lines that are not an address and a name are skipped."""
    hosts = Hosts()
    for address, names in _host_lines(text):
        hosts.by_address.setdefault(address, names[0])
        for name in names:
            entries = hosts.by_name.setdefault(name.rstrip(".").lower(), [])
            if all(known != address for known, _ in entries):
                entries.append((address, names[0]))
    return hosts


def _host_lines(text: str) -> Iterator[tuple[bytes, list[str]]]:
    for line in text.splitlines():
        first, *names = line.partition("#")[0].split() or [""]
        address = _packed(first)
        if address and names:
            yield address, names


class WatchedFile(Generic[T]):
    """A file's parsed content, read again after the file has changed; a missing file is an empty one."""

    def __init__(self, path: str, parse: Callable[[str], T]) -> None:
        self.path = path
        self._parse = parse
        self._seen: tuple[int, int, int] | None = None
        self._content: T | None = None

    def read(self) -> T:
        """What the file says now."""
        try:
            stat = os.stat(self.path)
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except OSError:
            seen = (0, 0, 0)
        if self._content is None or seen != self._seen:
            self._seen = seen
            self._content = self._parse(_text(self.path))
        return self._content


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
