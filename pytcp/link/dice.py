"""Chance that repeats: yes/no draws of a given probability, in integer arithmetic.

A generator is seeded by a text (its SHA-512, the same in every process), one for each kind of accident, so that
changing the probability of one does not move the draws of another.
"""

from __future__ import annotations

import random


class Dice:
    """A seeded yes/no of one probability, exact to 2^-32."""

    __slots__ = ("_draw", "_limit")

    def __init__(self, probability: float, rng: random.Random) -> None:
        self._limit = round(probability * (1 << 32))
        self._draw = rng.getrandbits

    def roll(self) -> bool:
        return self._draw(32) < self._limit


def whole(name: str, value: object) -> int:
    """A number of things, ns or bytes, which may have been written as 25e6. Raises ValueError naming `name`, TypeError for what is no number."""
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is a number, not {value!r}")
    if not float(value).is_integer():
        raise ValueError(f"{name}: {value} is no whole number")
    if value < 0:
        raise ValueError(f"{name} is negative")
    return int(value)


def check_probability(name: str, value: float) -> None:
    """Raises ValueError naming `name` when `value` is not a probability, TypeError when it is no number."""
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is a probability, not {value!r}")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} {value} is not a probability")
