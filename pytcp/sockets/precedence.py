"""Which of a name's addresses to try first: destination address selection (RFC 6724 §6).

The source address that the stack would use decides most of it: a destination without one goes to the
end, and one whose source has its scope, label and a longer common prefix comes first. The default policy
table of §2.1; what is equal by all rules keeps its order.
"""

from __future__ import annotations

import errno
import functools
from typing import TYPE_CHECKING

from pytcp.net.addr import LOOPBACK4, SCOPE_GLOBAL, SCOPE_LINK, V4MAPPED, common_bits, mask_bits, scope6

if TYPE_CHECKING:
    from pytcp.net.stack import Stack

# (prefix, its length, precedence, label), the longest prefixes first
POLICY: tuple[tuple[bytes, int, int, int], ...] = (
    (bytes(15) + b"\x01", 128, 50, 0),
    (V4MAPPED + bytes(4), 96, 35, 4),
    (bytes(16), 96, 1, 3),
    (b"\x20\x01" + bytes(14), 32, 5, 5),
    (b"\x20\x02" + bytes(14), 16, 30, 2),
    (b"\x3f\xfe" + bytes(14), 16, 1, 12),
    (b"\xfe\xc0" + bytes(14), 10, 1, 11),
    (b"\xfc" + bytes(15), 7, 3, 13),
    (bytes(16), 0, 40, 1),
)


def policy(addr: bytes) -> tuple[int, int]:
    """(precedence, label) of an address of either family."""
    six = V4MAPPED + addr if len(addr) == 4 else addr
    for prefix, plen, precedence, label in POLICY:
        if mask_bits(six, plen) == mask_bits(prefix, plen):
            return precedence, label
    raise AssertionError("the last entry matches everything")


def scope(addr: bytes) -> int:
    """RFC 4007 scope; of IPv4, loopback and 169.254/16 are link-local, the rest global (RFC 6724 §3.2)."""
    if len(addr) == 16:
        return scope6(addr)
    return SCOPE_LINK if addr[0] == 127 or addr[:2] == b"\xa9\xfe" else SCOPE_GLOBAL


def source_of(stack: Stack, addr: bytes) -> bytes:
    """The address the stack would send from; b"" when it cannot send there."""
    try:
        return stack.dst(addr).saddr or (LOOPBACK4 if len(addr) == 4 else b"")
    except OSError as exc:
        if exc.errno == errno.ENETDOWN:
            raise
        return b""


def _compare(a: tuple[bytes, bytes], b: tuple[bytes, bytes]) -> int:
    """Negative when destination and source `a` come before `b`."""
    (da, sa), (db, sb) = a, b
    if bool(sa) != bool(sb):  # rule 1: avoid unusable destinations
        return -1 if sa else 1
    if sa and sb:
        matching = (scope(da) == scope(sa)) - (scope(db) == scope(sb))  # rule 2
        if matching:
            return -matching
        labels = (policy(da)[1] == policy(sa)[1]) - (policy(db)[1] == policy(sb)[1])  # rule 5
        if labels:
            return -labels
    precedence = policy(db)[0] - policy(da)[0]  # rule 6
    if precedence:
        return precedence
    smaller = scope(da) - scope(db)  # rule 8
    if smaller or not (sa and sb) or len(da) != len(db):
        return smaller
    return common_bits(db, sb) - common_bits(da, sa) if len(da) == 16 else 0  # rule 9


def ordered(stack: Stack, addresses: list[bytes]) -> list[bytes]:
    """The addresses in the order in which to try them from this stack."""
    pairs = [(addr, source_of(stack, addr)) for addr in addresses]
    return [addr for addr, _ in sorted(pairs, key=functools.cmp_to_key(_compare))]
