"""SipHash-2-4 (Aumasson & Bernstein 2012): a short keyed hash that outsiders cannot predict.

Linux makes Fast Open cookies with it since 5.3, so that a key set by `tcp_fastopen_key` gives the same cookie on every host
that has it; here it is for the same cookies. Where only unpredictability matters, pytcp uses what Python has in C.
"""

from __future__ import annotations

_M64 = (1 << 64) - 1
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def siphash(key: bytes, data: bytes) -> int:
    """The 64-bit hash of `data` under a key of 16 bytes."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:16], "little")
    state = (_START[0] ^ k0, _START[1] ^ k1, _START[2] ^ k0, _START[3] ^ k1)
    whole = len(data) & ~7
    words = [data[at : at + 8] for at in range(0, whole, 8)]
    words.append(data[whole:].ljust(7, b"\0") + bytes((len(data) & 0xFF,)))
    for word in words:
        m = int.from_bytes(word, "little")
        v0, v1, v2, v3 = state
        v0, v1, v2, v3 = _round(*_round(v0, v1, v2, v3 ^ m))
        state = (v0 ^ m, v1, v2, v3)
    v0, v1, v2, v3 = state
    state = (v0, v1, v2 ^ 0xFF, v3)
    for _ in range(4):
        state = _round(*state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _turn(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & _M64


def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = (v0 + v1) & _M64
    v2 = (v2 + v3) & _M64
    v1 = _turn(v1, 13) ^ v0
    v3 = _turn(v3, 16) ^ v2
    v0 = _turn(v0, 32)
    v2 = (v2 + v1) & _M64
    v0 = (v0 + v3) & _M64
    return v0, _turn(v1, 17) ^ v2, _turn(v2, 32), _turn(v3, 21) ^ v0
