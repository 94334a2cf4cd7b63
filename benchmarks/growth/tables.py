"""Figures by size, and how fast they grow: the exponent between two sizes is the slope in a log-log plot."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log

from benchmarks.figures import Sample

FASTER_THAN_LINEAR = 1.15
"""An exponent above this is marked: 1 is linear, and the rest is what measurements differ by."""


@dataclass(frozen=True)
class GrowthTable:
    """One kind of size, and what was measured at each.

    :param samples: by size, in rising order.
    """

    title: str
    samples: Mapping[int, Sample]

    @property
    def lines(self) -> list[str]:
        """What was measured."""
        return list(next(iter(self.samples.values())))

    def exponents(self, line: str) -> list[float]:
        """Between each two neighbouring sizes."""
        points = [(size, sample[line]) for size, sample in self.samples.items()]
        return [exponent(*one, *other) for one, other in pairwise(points)]

    def grows_too_fast(self, line: str) -> bool:
        """True if ``line`` grows faster than linearly at the largest sizes, where a fixed part counts least."""
        exponents = self.exponents(line)
        return bool(exponents) and exponents[-1] + is_of_one(line) > FASTER_THAN_LINEAR

    def markdown(self) -> Iterator[str]:
        """A row for each line, with a column for each size."""
        sizes = list(self.samples)
        yield f"### {self.title}"
        yield ""
        yield f"| | {' | '.join(f'{size:,}' for size in sizes)} | exponents | |"
        yield f"|---|{'--:|' * len(sizes)}---|---|"
        for line in self.lines:
            cells = " | ".join(shown(self.samples[size][line]) for size in sizes)
            exponents = ", ".join(f"{each:.2f}" for each in self.exponents(line))
            yield f"| {line} | {cells} | {exponents} | {'faster than linear' * self.grows_too_fast(line)} |"
        yield ""

    def as_json(self) -> dict[str, object]:
        """Everything."""
        exponents = {line: self.exponents(line) for line in self.lines}
        return {"figure": self.title, "samples": self.samples, "exponents": exponents}


def is_of_one(line: str) -> bool:
    """True if ``line`` is the cost of one thing among all: if it grows with their number, the whole grows faster."""
    return re.search(r"\bone\b|\b1 MiB", line) is not None


def exponent(size: float, value: float, larger_size: float, larger_value: float) -> float:
    """Of growth between two sizes; 0 if one of the values is not above 0."""
    if value <= 0 or larger_value <= 0:
        return 0.0
    return log(larger_value / value) / log(larger_size / size)


def shown(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
