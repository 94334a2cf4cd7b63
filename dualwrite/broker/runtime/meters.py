"""The broker's counters: plain numbers, so that counting costs next to nothing.

All other metrics are read from the broker's state at a scrape.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

FSYNC_BOUNDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Upper bounds of the histogram's buckets but the last, in seconds."""


@dataclass(slots=True)
class Histogram:
    """Counts of values by bucket, and their sum."""

    bounds: tuple[float, ...] = FSYNC_BOUNDS
    total: float = 0.0
    counts: list[int] = field(init=False)
    """One count for each bound, of values up to it and above the previous one; and one for values above all bounds."""

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count ``value``."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class Meters:
    """Counters since the start of the process. They belong to the event loop's thread."""

    requests: Counter[int] = field(default_factory=Counter)
    """By API key."""
    errors: Counter[tuple[int, int]] = field(default_factory=Counter)
    """By API key and error code: every code but 0 in every answer."""
    bytes_received: int = 0
    bytes_sent: int = 0
    connections: int = 0
    """Connections that are open now."""
    fsyncs: Histogram = field(default_factory=Histogram)
    """Seconds that each round of fsyncs took."""
