"""Whether a measured thing grows: a line through its samples after the warm-up, that single peaks do not move."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

WARM_UP = 0.25
"""The part of a soak at its beginning that does not count: caches fill, and pools reach their size."""
_MOST_PAIRS = 20_000


@dataclass(frozen=True)
class Allowance:
    """What still counts as flat, from the end of the warm-up to the end: the larger of both.

    :param least: in the unit of the samples.
    :param share: of the median.
    """

    least: float
    share: float

    def of(self, typical: float) -> float:
        """The most that a thing may grow whose median is ``typical``."""
        return max(self.least, self.share * typical)


@dataclass(frozen=True)
class Growth:
    """How one thing has grown.

    :param per_hour: the slope.
    :param grown: the slope over the time that counts.
    :param allowed: the most that ``grown`` may be.
    """

    name: str
    typical: float
    per_hour: float
    grown: float
    allowed: float

    @property
    def is_flat(self) -> bool:
        """Whether it passes."""
        return self.grown <= self.allowed


def growth_of(name: str, seconds: Sequence[float], values: Sequence[float], allowance: Allowance) -> Growth:
    """Fit the line.

    :param seconds: when each of ``values`` was measured, from the beginning of the soak on.
    """
    end = seconds[-1]
    counted = [(at, value) for at, value in zip(seconds, values, strict=True) if at >= WARM_UP * end]
    typical = median(value for _, value in counted)
    slope = slope_of(counted)
    lasting = counted[-1][0] - counted[0][0]
    return Growth(name, typical, slope * 3600, slope * lasting, allowance.of(typical))


def slope_of(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points (Theil and Sen), or of many pairs at random."""
    pairs = list(combinations(points, 2)) if len(points) < 200 else _some_pairs(points)
    slopes = [(later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in pairs if later[0] != earlier[0]]
    return median(slopes) if slopes else 0.0


def _some_pairs(points: Sequence[tuple[float, float]]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    chance = random.Random(0)
    return [tuple(sorted(chance.sample(points, 2))) for _ in range(_MOST_PAIRS)]  # type: ignore[misc]
