"""The filter language of `ss`: `state established sport = :443 and not dst 10.0.0.0/8`.

    FILTER     = { state NAME | exclude NAME } [ EXPRESSION ]
    EXPRESSION = conditions joined by "and" (or nothing, or &, &&), "or" (|, ||), "not" (!), parentheses
    CONDITION  = sport|dport [COMPARISON] [:]PORT, with = eq == != ne neq > gt < lt >= ge geq <= le leq
               | src|dst [= | !=] [ADDRESS[/BITS]][:PORT], an IPv6 address in brackets when a port follows

A port may be a service name. An IPv4 prefix also finds IPv4-mapped IPv6 addresses.
"""

from __future__ import annotations

import ipaddress
import operator
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Facts = dict[str, Any]
Test = Callable[[Facts], bool]

STATES = {
    "established": "ESTABLISHED",
    "syn-sent": "SYN_SENT",
    "syn-recv": "SYN_RECV",
    "fin-wait-1": "FIN_WAIT1",
    "fin-wait-2": "FIN_WAIT2",
    "time-wait": "TIME_WAIT",
    "unconnected": "CLOSE",
    "closed": "CLOSE",
    "close-wait": "CLOSE_WAIT",
    "last-ack": "LAST_ACK",
    "listening": "LISTEN",
    "listen": "LISTEN",
    "closing": "CLOSING",
}
ALL = frozenset(STATES.values())
IDLE = frozenset({"LISTEN", "CLOSE"})
BRIEF = frozenset({"SYN_RECV", "TIME_WAIT"})
GROUPS = {
    "all": ALL,
    "connected": ALL - IDLE,
    "synchronized": ALL - IDLE - {"SYN_SENT"},
    "bucket": BRIEF,
    "big": ALL - BRIEF,
}
USUAL = ALL - IDLE - BRIEF  # what is shown when nothing is asked for

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(("=", "==", "eq"), operator.eq),
    **dict.fromkeys(("!=", "ne", "neq"), operator.ne),
    **dict.fromkeys((">", "gt"), operator.gt),
    **dict.fromkeys(("<", "lt"), operator.lt),
    **dict.fromkeys((">=", "ge", "geq"), operator.ge),
    **dict.fromkeys(("<=", "le", "leq"), operator.le),
}
_TOKEN = re.compile(r"\s*(\(|\)|&&?|\|\|?|[=!<>]=|[=!<>]|[^\s()&|=!<>]+)")


class FilterError(ValueError):
    """The filter cannot be understood; the message says where."""


def parse(words: Iterable[str], protocol: str = "tcp") -> tuple[frozenset[str] | None, Test]:
    """The states a filter names (None: it names none) and the test for the rest. Raises FilterError.

    protocol: whose service names are looked up."""
    tokens = _TOKEN.findall(" ".join(words))
    states: frozenset[str] | None = None
    while len(tokens) and tokens[0] in ("state", "exclude"):
        if len(tokens) < 2:
            raise FilterError(f"{tokens[0]} what? There are {', '.join([*STATES, *GROUPS])}")
        named = _states(tokens[1])
        if tokens[0] == "exclude":
            states = (ALL if states is None else states) - named
        else:
            states = named if states is None else states | named
        del tokens[:2]
    if not tokens:
        return states, lambda facts: True
    parser = _Parser(tokens, protocol)
    test = parser.either()
    if parser.tokens:
        raise FilterError(f"{parser.tokens[0]!r} is not expected here")
    return states, test


def _states(name: str) -> frozenset[str]:
    if name in GROUPS:
        return GROUPS[name]
    if name in STATES:
        return frozenset({STATES[name]})
    raise FilterError(f"no state {name!r}; there are {', '.join([*STATES, *GROUPS])}")


class _Parser:
    """Recursive descent; "and" binds closer than "or", "not" closest."""

    def __init__(self, tokens: Sequence[str], protocol: str) -> None:
        self.tokens = list(tokens)
        self.protocol = protocol

    def take(self, *wanted: str) -> str:
        """The next token if it is one of `wanted`, else ""."""
        return self.tokens.pop(0) if self.tokens and self.tokens[0] in wanted else ""

    def need(self, what: str) -> str:
        if not self.tokens:
            raise FilterError(f"the filter ends where {what} is expected")
        return self.tokens.pop(0)

    def either(self) -> Test:
        tests = [self.both()]
        while self.take("or", "|", "||"):
            tests.append(self.both())
        return tests[0] if len(tests) == 1 else lambda facts: any(test(facts) for test in tests)

    def both(self) -> Test:
        tests = [self.one()]
        while self.take("and", "&", "&&") or (self.tokens and self.tokens[0] not in ("or", "|", "||", ")")):
            tests.append(self.one())
        return tests[0] if len(tests) == 1 else lambda facts: all(test(facts) for test in tests)

    def one(self) -> Test:
        if self.take("not", "!"):
            test = self.one()
            return lambda facts: not test(facts)
        if self.take("("):
            test = self.either()
            if not self.take(")"):
                raise FilterError("a parenthesis is not closed")
            return test
        word = self.need("a condition")
        if word in ("sport", "dport"):
            return self.port("local_port" if word == "sport" else "remote_port")
        if word in ("src", "dst"):
            return self.host("local" if word == "src" else "remote")
        raise FilterError(f"{word!r} is not one of state, exclude, sport, dport, src, dst (and state comes first)")

    def port(self, key: str) -> Test:
        compare = _COMPARISONS[self.take(*_COMPARISONS) or "="]
        number = _port(self.need("a port").rpartition(":")[2], self.protocol)
        return lambda facts: compare(facts[key], number)

    def host(self, key: str) -> Test:
        other = self.take("!=", "ne", "neq")
        if not other:
            self.take("=", "==", "eq")
        test = _host(self.need("an address"), key, self.protocol)
        return (lambda facts: not test(facts)) if other else test


def _port(text: str, protocol: str) -> int:
    if text.isdecimal():
        number = int(text)
        if number > 65535:
            raise FilterError(f"port {number} is above 65535")
        return number
    try:
        return socket.getservbyname(text, protocol)
    except OSError:
        raise FilterError(f"{text!r} is neither a port nor a service") from None


def _host(text: str, key: str, protocol: str) -> Test:
    """`ADDRESS[/BITS][:PORT]`, either part may be * or missing."""
    address, port = text, ""
    if text.startswith("["):
        address, _, rest = text[1:].partition("]")
        bits, _, port = rest.partition(":")
        address += bits
    elif text.count(":") == 1:
        address, _, port = text.partition(":")
    number = None if port in ("", "*") else _port(port, protocol)
    network = None
    if address not in ("", "*"):
        try:
            network = ipaddress.ip_network(address, strict=False)
        except ValueError:
            raise FilterError(f"{address!r} is not an IPv4 or IPv6 address or prefix") from None

    def test(facts: Facts) -> bool:
        if number is not None and facts[f"{key}_port"] != number:
            return False
        if network is None:
            return True
        found = ipaddress.ip_address(facts[key])
        if network.version == 4 and found.version == 6:
            assert isinstance(found, ipaddress.IPv6Address)
            mapped = found.ipv4_mapped
            return mapped is not None and mapped in network
        return found in network

    return test
