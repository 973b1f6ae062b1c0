"""From quantiles that somebody published to numbers that are so distributed, and from measured numbers back to quantiles."""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence

PERCENTILES = (50, 75, 90, 99, 99.9, 99.99, 99.999, 100)  # what wrk2 prints


def sampler(least: float, quantiles: Mapping[float, float], rng: random.Random) -> Callable[[], float]:
    """Numbers with these quantiles (percent -> value, up to 100), straight lines between them, `least` at 0."""
    shares = [0.0, *(percent / 100 for percent in quantiles)]
    values = [least, *quantiles.values()]
    draw = rng.random

    def sample() -> float:
        share = draw()
        place = bisect(shares, share)
        low, high = shares[place - 1], shares[place]
        return values[place - 1] + (values[place] - values[place - 1]) * (share - low) / (high - low)

    return sample


def percentile(ordered: Sequence[int], percent: float) -> int:
    """The smallest of `ordered` that `percent` of them do not exceed."""
    return ordered[max(1, math.ceil(percent / 100 * len(ordered))) - 1]


def percentiles(values: Iterable[int], unit: int, prefix: str = "p") -> dict[str, float]:
    """Figures of `PERCENTILES`: {"p50": ..., "p99.9": ...}, in units of `unit`."""
    ordered = sorted(values)
    return {f"{prefix}{percent:g}": percentile(ordered, percent) / unit for percent in PERCENTILES}
