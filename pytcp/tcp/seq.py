"""Sequence numbers: 32 bits on the wire, plain growing integers inside the engine.

RFC 9293 §3.4 compares modulo 2^32. Doing that for every comparison costs a Python engine three times
what `<` does, so numbers are unwrapped once, where a header is parsed, next to a number already known
(rcv_nxt for SEG.SEQ, snd_una for SEG.ACK), and wrapped again where a header is built.
"""

from __future__ import annotations

MASK = 0xFFFFFFFF
HALF = 0x80000000


def unwrap(wire: int, near: int) -> int:
    """The unwrapped number whose low 32 bits are `wire` and that lies within 2^31 of `near`."""
    ahead = (wire - near) & MASK
    return near + ahead if ahead < HALF else near + ahead - (MASK + 1)


def initial(isn: int) -> int:
    """An unwrapped initial sequence number: one cycle up, so that nothing near it is negative."""
    return isn | (MASK + 1)  # (a sum would take 16 bytes more, for as long as it is kept)
