"""Names to addresses over the stack's own UDP and TCP, with the C library's answers.

`Resolver` is a `trio.abc.HostnameResolver`: getaddrinfo and getnameinfo with the arguments, results and
`socket.gaierror` codes of the standard library. /etc/hosts comes first, then DNS (RFC 1035, messages by
dnspython) with the servers, search list and options of /etc/resolv.conf (`hosts`). What needs no name
look-up (service names, protocols, flags, numeric hosts) is asked of the C library itself.

The queries for A and AAAA go out together from one socket. A server that does not answer in time,
refuses or fails is followed by the next, `attempts` times round, the time doubling each time; an answer
that does not fit a datagram is fetched by TCP (RFC 7766). Only a response with our id and question from
the server's address counts, and each query has a port and an id of its own (RFC 5452). There is no cache.
"""

from __future__ import annotations

import os
import socket as stdlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.reversename
import trio

from .address import MAPPED_PREFIX, numeric, show
from .hosts import Hosts, ResolverConfig, WatchedFile, parse_hosts, parse_resolv_conf
from .precedence import ordered

if TYPE_CHECKING:
    from .open import TrioStack

DNS_PORT = 53
EDNS_SIZE = 1200
A = dns.rdatatype.A
AAAA = dns.rdatatype.AAAA
PTR = dns.rdatatype.PTR
TRY_NEXT = (dns.rcode.SERVFAIL, dns.rcode.NOTIMP, dns.rcode.REFUSED)

AI_CANONNAME = int(stdlib.AI_CANONNAME)
AI_NUMERICHOST = int(stdlib.AI_NUMERICHOST)
AI_V4MAPPED = int(stdlib.AI_V4MAPPED)
AI_ALL = int(stdlib.AI_ALL)
AI_ADDRCONFIG = int(stdlib.AI_ADDRCONFIG)
EAI_NODATA = -5  # glibc's; the standard library names it only in some builds
TEXTS = {
    stdlib.EAI_NONAME: "Name or service not known",
    stdlib.EAI_AGAIN: "Temporary failure in name resolution",
    stdlib.EAI_FAIL: "Non-recoverable failure in name resolution",
    EAI_NODATA: "No address associated with hostname",
}

AddrInfo = tuple[Any, Any, int, str, Any]  # as socket.getaddrinfo's


def _fail(code: int) -> NoReturn:
    raise stdlib.gaierror(code, TEXTS[code])


@dataclass
class Found:
    """What is known of a name after asking: addresses, or with what it failed."""

    addresses: list[bytes] = field(default_factory=list)
    canonical: str = ""
    failure: int = stdlib.EAI_NONAME  # the gaierror's code when there are no addresses


class Resolver(trio.abc.HostnameResolver):
    """Resolves names for one stack.

    nameservers: numeric addresses to ask instead of those of resolv.conf.
    hosts, resolv_conf: paths of the files. environ: where LOCALDOMAIN and RES_OPTIONS are looked up.
    """

    def __init__(
        self,
        stack: TrioStack,
        *,
        nameservers: Sequence[str] = (),
        hosts: str = "/etc/hosts",
        resolv_conf: str = "/etc/resolv.conf",
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.stack = stack
        self._nameservers = tuple(nameservers)
        for server in nameservers:
            numeric(server)
        self._hosts: WatchedFile[Hosts] = WatchedFile(hosts, parse_hosts)
        self._config: WatchedFile[ResolverConfig] = WatchedFile(resolv_conf, partial(parse_resolv_conf, environ=environ))
        self._turn = 0

    # --- getaddrinfo ---

    async def getaddrinfo(
        self, host: bytes | str | None, port: bytes | str | int | None, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        """As `socket.getaddrinfo`: (family, type, proto, canonical name, address) tuples, the best address first (RFC 6724).

        Raises socket.gaierror: EAI_NONAME no such name, EAI_NODATA no such addresses, EAI_AGAIN no server
        answered, EAI_FAIL, and the C library's own for arguments that make no sense."""
        local = partial(stdlib.getaddrinfo, port=port, family=family, type=type, proto=proto)
        quiet = (flags & ~AI_ADDRCONFIG) | AI_NUMERICHOST
        if host is None or _is_numeric(host):
            await trio.lowlevel.checkpoint()
            return local(host, flags=quiet)
        local("::" if family == stdlib.AF_INET6 else "0.0.0.0", flags=quiet & ~AI_CANONNAME)  # what is wrong with the other arguments
        if flags & AI_NUMERICHOST:
            _fail(stdlib.EAI_NONAME)
        found = await self._find(_text(host), family, flags)
        if not found.addresses:
            _fail(found.failure)
        infos: list[AddrInfo] = []
        numbers = AI_NUMERICHOST | (flags & stdlib.AI_NUMERICSERV)
        for addr in found.addresses:
            text = show(addr if len(addr) == 16 or family != stdlib.AF_INET6 else MAPPED_PREFIX + addr)
            infos += local(text, flags=numbers)
        if flags & AI_CANONNAME:
            infos[0] = (*infos[0][:3], found.canonical, infos[0][4])
        return infos

    async def _find(self, name: str, family: int, flags: int) -> Found:
        """The addresses of a name, in order of preference."""
        four, six = family in (0, stdlib.AF_INET), family in (0, stdlib.AF_INET6)
        if flags & AI_ADDRCONFIG:
            net = self.stack.net
            four = four and any(dev.addresses4 for dev in net.interfaces if not dev.loopback)
            six = six and any(dev.addresses6 for dev in net.interfaces if not dev.loopback)
        mapped = family == stdlib.AF_INET6 and bool(flags & AI_V4MAPPED)
        types = [A] * (four or mapped) + [AAAA] * six
        if not types:
            await trio.lowlevel.checkpoint()
            return Found()
        found = self._from_hosts(name, types)
        if found.addresses:
            await trio.lowlevel.checkpoint()
        else:
            found = await self._from_dns(name, types)
        if mapped and not flags & AI_ALL and any(len(addr) == 16 for addr in found.addresses):
            found.addresses = [addr for addr in found.addresses if len(addr) == 16]
        found.addresses = ordered(self.stack.net, found.addresses)
        return found

    def _from_hosts(self, name: str, types: Sequence[int]) -> Found:
        sizes = {4 if kind == A else 16 for kind in types}
        entries = [(addr, canonical) for addr, canonical in self._hosts.read().addresses(name) if len(addr) in sizes]
        return Found([addr for addr, _ in entries], entries[0][1]) if entries else Found()

    async def _from_dns(self, name: str, types: Sequence[int]) -> Found:
        """Ask for the name as it is and with each domain of the search list, in resolv.conf's order."""
        config = self.config()
        if config.no_aaaa:
            types = [kind for kind in types if kind != AAAA]
        failures: list[int] = []
        for qname in _candidates(name, config):
            found = await self._ask_all(qname, types, config)
            if found.addresses:
                return found
            failures.append(found.failure)
        # the C library's order: a name that exists without addresses, then a server that failed, then none of them
        for code in (EAI_NODATA, stdlib.EAI_AGAIN, stdlib.EAI_FAIL):
            if code in failures:
                return Found(failure=code)
        return Found()

    async def _ask_all(self, qname: dns.name.Name, types: Sequence[int], config: ResolverConfig) -> Found:
        found = Found()
        failures: list[int] = []
        for response in await self._exchange(qname, types, config):
            addresses, canonical, failure = _read(response)
            found.addresses += addresses
            found.canonical = found.canonical or canonical
            failures.append(failure)
        if not found.addresses:
            for code in (stdlib.EAI_AGAIN, EAI_NODATA, stdlib.EAI_FAIL):
                if code in failures:
                    found.failure = code
                    break
        return found

    # --- getnameinfo ---

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        """As `socket.getnameinfo`: (host, service), by /etc/hosts and PTR; the numeric host when there is no name.

        Raises socket.gaierror EAI_NONAME with NI_NAMEREQD, and the C library's own."""
        text, service = stdlib.getnameinfo(sockaddr, flags & ~stdlib.NI_NAMEREQD | stdlib.NI_NUMERICHOST)
        if flags & stdlib.NI_NUMERICHOST:
            await trio.lowlevel.checkpoint()
            if flags & stdlib.NI_NAMEREQD:
                _fail(stdlib.EAI_NONAME)
            return text, service
        plain = text.partition("%")[0]
        host = self._hosts.read().by_address.get(stdlib.inet_pton(numeric(plain)[0], plain), "")
        if not host:
            host = await self._pointer(plain)
        if not host and flags & stdlib.NI_NAMEREQD:
            _fail(stdlib.EAI_NONAME)
        if host and flags & stdlib.NI_NOFQDN:
            domain = next(iter(self.config().search), "")
            host = host.removesuffix("." + domain) if domain else host
        return host or text, service

    async def _pointer(self, text: str) -> str:
        [response] = await self._exchange(dns.reversename.from_address(text), [PTR], self.config())
        if response is None:
            return ""
        try:
            answer = response.resolve_chaining().answer
        except dns.exception.DNSException:
            return ""
        return str(answer[0].target).rstrip(".") if answer else ""

    # --- queries ---

    def config(self) -> ResolverConfig:
        """What resolv.conf says now, and the servers that were given instead."""
        config = self._config.read()
        if not self._nameservers:
            return config
        return ResolverConfig(**{**config.__dict__, "nameservers": self._nameservers})

    async def _exchange(self, qname: dns.name.Name, types: Sequence[int], config: ResolverConfig) -> list[dns.message.QueryMessage | None]:
        """The response to a query of each type, None where no server gave one."""
        servers = list(config.nameservers)
        if config.rotate:
            self._turn += 1
            servers = servers[self._turn % len(servers) :] + servers[: self._turn % len(servers)]
        answers: dict[int, dns.message.QueryMessage] = {}
        for attempt in range(config.attempts):
            seconds = config.timeout << attempt
            if attempt:
                seconds = max(seconds // len(servers), 1)
            for server in servers:
                missing = [kind for kind in types if kind not in answers]
                try:
                    with trio.move_on_after(seconds):
                        await self._ask(server, qname, missing, config, answers)
                except OSError:
                    self.stack.net.check_open()  # of the stack's end nobody else would tell
                if len(answers) == len(types):
                    return [answers[kind] for kind in types]
        await trio.lowlevel.checkpoint()
        return [answers.get(kind) for kind in types]

    def _query(self, qname: dns.name.Name, kind: int, config: ResolverConfig) -> dns.message.QueryMessage:
        edns: Any = 0 if config.edns0 else False
        return dns.message.make_query(qname, dns.rdatatype.RdataType.make(kind), id=self.stack.net.random.getrandbits(16), use_edns=edns, payload=EDNS_SIZE)

    async def _ask(self, server: str, qname: dns.name.Name, types: Sequence[int], config: ResolverConfig, answers: dict[int, dns.message.QueryMessage]) -> None:
        """Put to `answers` what one server says about each type; returns when it has answered all, or failed. Raises OSError."""
        queries = {kind: self._query(qname, kind, config) for kind in types}
        if config.use_vc:
            for kind, query in queries.items():
                _keep(answers, kind, await self._ask_tcp(server, query))
            return
        async with await self.stack.open_udp(remote=(server, DNS_PORT)) as endpoint:
            for query in queries.values():
                await endpoint.send(query.to_wire())
            while queries:
                kind, response = _match(queries, await endpoint.receive())
                if response is None:
                    continue
                query = queries.pop(kind)
                if response.flags & dns.flags.TC:
                    response = await self._ask_tcp(server, query)
                _keep(answers, kind, response)

    async def _ask_tcp(self, server: str, query: dns.message.QueryMessage) -> dns.message.QueryMessage | None:
        wire = query.to_wire()
        async with await self.stack.open_tcp_stream(server, DNS_PORT) as stream:
            try:
                await stream.send_all(struct.pack("!H", len(wire)) + wire)
                received = bytearray()
                while len(received) < 2 or len(received) < 2 + int.from_bytes(received[:2], "big"):
                    data = await stream.receive_some()
                    if not data:
                        return None
                    received += data
            except trio.BrokenResourceError:
                return None
        return _match({0: query}, bytes(received[2 : 2 + int.from_bytes(received[:2], "big")]))[1]


def _keep(answers: dict[int, dns.message.QueryMessage], kind: int, response: dns.message.QueryMessage | None) -> None:
    """An answer, unless the next server should be asked for a better one."""
    if response is not None and response.rcode() not in TRY_NEXT:
        answers[kind] = response


def _match(queries: Mapping[int, dns.message.QueryMessage], wire: bytes) -> tuple[int, dns.message.QueryMessage | None]:
    """Which query a received message answers, and the message; None for what is no answer to any."""
    try:
        message = dns.message.from_wire(wire, ignore_trailing=True)
    except dns.exception.DNSException:
        return 0, None
    for kind, query in queries.items():
        if isinstance(message, dns.message.QueryMessage) and message.question == query.question and query.is_response(message):
            return kind, message
    return 0, None


def _read(response: dns.message.QueryMessage | None) -> tuple[list[bytes], str, int]:
    """(addresses, canonical name, what it means that there are none)."""
    if response is None:
        return [], "", stdlib.EAI_AGAIN
    if response.rcode() == dns.rcode.NXDOMAIN:
        return [], "", stdlib.EAI_NONAME
    if response.rcode() != dns.rcode.NOERROR:
        return [], "", stdlib.EAI_FAIL
    try:
        chain = response.resolve_chaining()
    except dns.exception.DNSException:
        return [], "", stdlib.EAI_FAIL
    addresses = [stdlib.inet_pton(stdlib.AF_INET if record.rdtype == A else stdlib.AF_INET6, record.address) for record in chain.answer or ()]
    return addresses, chain.canonical_name.to_text(omit_final_dot=True), EAI_NODATA


def _candidates(name: str, config: ResolverConfig) -> list[dns.name.Name]:
    """The absolute names to ask for, in order; none when the name cannot be one."""
    try:
        given = dns.name.from_text(name, None, idna_codec=dns.name.IDNA_2008_UTS_46)
        if given.is_absolute():
            return [given]
        absolute = given.concatenate(dns.name.root)
        searched = [given.concatenate(dns.name.from_text(domain)) for domain in config.search]
    except dns.exception.DNSException:
        return []
    return [absolute, *searched] if len(given) - 1 >= config.ndots else [*searched, absolute]


def _text(host: bytes | str) -> str:
    """A host name as text. Raises socket.gaierror EAI_NONAME for bytes that are none."""
    try:
        return host.decode("ascii") if isinstance(host, bytes) else host
    except UnicodeDecodeError:
        _fail(stdlib.EAI_NONAME)


def _is_numeric(host: bytes | str) -> bool:
    """Whether the C library takes the host for an address, in any of the ways of inet_aton(3)."""
    try:
        stdlib.getaddrinfo(host, None, flags=AI_NUMERICHOST)
    except (stdlib.gaierror, UnicodeError):
        return False
    return True
