"""The broker's counters: plain numbers, so that counting costs next to nothing.

A scrape reads all other metrics from the broker's state.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

FSYNC_BOUNDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""The upper bounds of the histogram's buckets, except the last bucket, in seconds."""


@dataclass(slots=True)
class Histogram:
    """Counts of values by bucket, and their sum."""

    bounds: tuple[float, ...] = FSYNC_BOUNDS
    total: float = 0.0
    counts: list[int] = field(init=False)
    """For each bound the number of values up to it and above the previous bound; then that of values above all
    bounds."""

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
    """The number of requests by API key."""
    errors: Counter[tuple[int, int]] = field(default_factory=Counter)
    """The number of error codes by API key and code. Counts every code but 0 in every answer."""
    bytes_received: int = 0
    bytes_sent: int = 0
    connections: int = 0
    """The number of open connections."""
    authentications: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """The number of authentications by SASL mechanism and success, re-authentications included."""
    fsyncs: Histogram = field(default_factory=Histogram)
    """Seconds that each round of fsyncs took."""
