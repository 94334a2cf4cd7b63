"""The broker's counters: plain numbers, so that counting costs next to nothing.

A scrape reads all other metrics from the broker's state.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

FSYNC_BOUNDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""The upper bounds of the histogram's buckets, except the last bucket, in seconds."""
REQUEST_BOUNDS = (0.0002, 0.001, 0.005, 0.025, 0.1, 1.0)
"""The same for the parts of requests. There are few, because each API has five such histograms."""
_SHORTEST = REQUEST_BOUNDS[0]


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

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count ``value``."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_short(self, count: int, total: float) -> None:
        """Count ``count`` values of the first bucket, whose sum is ``total``."""
        self.counts[0] += count
        self.total += total


class RequestTimes:
    """The seconds that the answered requests of one API took, in the parts of a request."""

    __slots__ = ("_local", "_parts", "_queue", "_response", "_short")

    def __init__(self) -> None:
        self._parts = {part: Histogram(REQUEST_BOUNDS) for part in ("queue", "local", "fsync", "wait", "response")}
        self._short = 0
        """The requests whose three parts belong into the first bucket, as nearly all do, and the sums of their parts:
        :meth:`parts` adds them to the histograms, so that a request costs a few additions."""
        self._queue = self._local = self._response = 0.0

    def note(self, queue: float, local: float, response: float) -> None:
        """Count one request.

        :param queue: seconds from its last byte until the broker began with it: requests of its connection come first.
        :param local: seconds of the broker's own work: decode, decide, append, encode.
        :param response: seconds from then until the system has taken the answer. There are many if the client does not
            read.
        """
        if queue <= _SHORTEST and local <= _SHORTEST and response <= _SHORTEST:
            self._short += 1
            self._queue += queue
            self._local += local
            self._response += response
        else:
            self._parts["queue"].observe(queue)
            self._parts["local"].observe(local)
            self._parts["response"].observe(response)

    def note_waits(self, fsync: float, wait: float) -> None:
        """Count the waits of a request that has waited.

        :param fsync: seconds of waiting for the disk, 0 if it did not.
        :param wait: seconds of all other waits: a long poll, a thread, the turns of other requests.
        """
        if fsync > 0:
            self._parts["fsync"].observe(fsync)
        if wait > 0:
            self._parts["wait"].observe(wait)

    def parts(self) -> Mapping[str, Histogram]:
        """The histogram of each part."""
        for part, total in (("queue", self._queue), ("local", self._local), ("response", self._response)):
            self._parts[part].add_short(self._short, total)
        self._short = 0
        self._queue = self._local = self._response = 0.0
        return self._parts


@dataclass(slots=True)
class Meters:
    """Counters and facts since the start of the process. They belong to the event loop's thread."""

    requests: defaultdict[int, RequestTimes] = field(default_factory=lambda: defaultdict(RequestTimes))
    """The times of requests by API key."""
    errors: Counter[tuple[int, int]] = field(default_factory=Counter)
    """The number of error codes by API key and code. Counts every code but 0 in every answer."""
    bytes_received: int = 0
    bytes_sent: int = 0
    connections: Callable[[], Mapping[tuple[str, str], int]] = dict
    """Counts the open connections by listener and kind of principal. The server sets it."""
    authentications: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """The number of authentications by SASL mechanism and success, re-authentications included."""
    failed_authentications: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of failed authentications by SASL mechanism and reason."""
    handshake_failures: Counter[str] = field(default_factory=Counter)
    """The number of failed TLS handshakes by listener."""
    refusals: Counter[tuple[int, int]] = field(default_factory=Counter)
    """The number of refusals by the authorizer, by operation and type of resource, with Kafka's codes."""
    fsyncs: Histogram = field(default_factory=Histogram)
    """Seconds that each round of fsyncs took."""
    is_disk_writable: bool = True
    """What the last look at the disk has found. Each scrape looks first."""
    serving_since_ms: int = 0
    """When the broker had recovered, in milliseconds since the epoch."""
