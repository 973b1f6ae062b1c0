"""Numbers with units, as people write them on a command line and in a table: 40ms, 10MB, 64KiB, 25Gbit, 400k.

Inside everything is an integer of the smallest unit: ns, bytes, bit/s. A parameter of an experiment names its
kind by its annotation (`Time`, `Bytes`, `Rate`, `Count`), so the function's signature is also the list of what
may be set, in which units; `Between` says from where to where.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Annotated, NamedTuple


class Kind(NamedTuple):
    """One sort of quantity."""

    name: str
    units: Mapping[str, int]  # factor of each unit
    bare: bool  # a number without a unit is one in the smallest unit


TIME = Kind("time", {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "min": 60_000_000_000}, False)
BYTES = Kind("size", {"B": 1, "kB": 1_000, "KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}, True)
RATE = Kind("rate", {"bit": 1, "kbit": 1_000, "Mbit": 1_000_000, "Gbit": 1_000_000_000}, False)
COUNT = Kind("number", {"k": 1_000, "M": 1_000_000}, True)



class Between(NamedTuple):
    """The values a parameter may have, both ends among them."""

    low: float
    high: float = math.inf

    def check(self, value: float) -> None:
        """Raises ValueError."""
        if not self.low <= value <= self.high:
            ends = f"at least {self.low}" if self.high == math.inf else f"between {self.low} and {self.high}"
            raise ValueError(f"{value} is not {ends}")


SOME = Between(1)

Time = Annotated[int, TIME]  # ns
Bytes = Annotated[int, BYTES]
Rate = Annotated[int, RATE]  # bit/s
Count = Annotated[int, COUNT]
SomeTime = Annotated[Time, SOME]
SomeBytes = Annotated[Bytes, SOME]
SomeRate = Annotated[Rate, SOME]
Some = Annotated[Count, SOME]
Mtu = Annotated[int, Between(68, 65535)]
Mtu6 = Annotated[int, Between(1280, 65535)]  # of a path of IPv6
Share = Annotated[float, Between(0, 1)]

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE]([+-]?[0-9]+))?\s*([A-Za-z]*)(?:/s)?\Z")


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: what is near it, or else all there is."""
    names = list(known)
    found = near(word, names)
    return "near: " + ", ".join(found) if found else "there are: " + ", ".join(names)


def near(word: str, known: Iterable[str], cutoff: float = 0.5) -> list[str]:
    """The names that are like `word`, the nearest first, three at most. Of dotted ones the last part counts: they all begin alike.

    cutoff: how like, from 0 to 1."""
    names = list(known)
    dotted = any("." in name for name in names)
    parts: dict[str, list[str]] = {}
    for name in names:
        parts.setdefault(name.lower().rpartition(".")[2] if dotted else name.lower(), []).append(name)
    wanted = word.lower().rpartition(".")[2] if dotted else word.lower()
    return [name for part in difflib.get_close_matches(wanted, parts, n=3, cutoff=0.7 if dotted else cutoff) for name in parts[part]][:3]


def parse(text: str, kind: Kind) -> int:
    """`text` in the smallest unit of `kind`. Raises ValueError with the units there are."""
    match = _NUMBER.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a {kind.name} like {example(kind)}")
    number, exponent, unit = match.groups()
    if not unit:
        if not kind.bare and Fraction(number):
            raise ValueError(f"{text!r} needs a unit of {kind.name}: {', '.join(kind.units)}")
        factor = 1
    elif unit in kind.units:
        factor = kind.units[unit]
    else:
        raise ValueError(f"unknown unit {unit!r} of {kind.name} in {text!r}; {nearest(unit, kind.units)}")
    if exponent and abs(int(exponent)) > 30:
        raise ValueError(f"{text!r} is out of range")
    exact = Fraction(number) * Fraction(10) ** int(exponent or 0) * factor
    if exact.denominator != 1:
        raise ValueError(f"{text!r} is no whole number of {next(iter(kind.units)) if kind.units and kind is not COUNT else 'ones'}")
    return int(exact)


def example(kind: Kind) -> str:
    """How a quantity of this kind is written."""
    return {"time": "40ms", "size": "10MB", "rate": "25Gbit", "number": "400k"}[kind.name]


def show(value: int, kind: Kind) -> str:
    """`value` in the unit in which it is shortest; `parse` gives it back."""
    if not value:
        return "0"
    texts = [(f"{value / factor:g}{unit}", factor) for unit, factor in kind.units.items()]
    if kind.bare:
        texts.append((str(value), 1))
    exact = [(text.startswith("0."), len(text), "." in text, -factor, text) for text, factor in texts if _same(text, value, kind)]
    return min(exact)[4] if exact else f"{value}{next(iter(kind.units))}"


def _same(text: str, value: int, kind: Kind) -> bool:
    try:
        return parse(text, kind) == value
    except ValueError:
        return False
