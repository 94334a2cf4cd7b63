"""Bounds of the offsets that records will get, while a broker has not acknowledged them.

The offsets of a partition only grow, so a record lies behind the last one that was acknowledged there.
"""

FRESH = 10.0
"""Seconds for which a bound counts. Who looks for the record reads the log from the bound on, with the records of other
producers; so a bound may not be old."""
_MOST = 1024
"""Partitions that are remembered: those with the latest acknowledgements."""


class AcknowledgedOffsets:
    """The offsets that brokers have acknowledged lately, of any transaction of one producer."""

    def __init__(self) -> None:
        self._following: dict[tuple[str, int], tuple[int, float]] = {}
        """By partition: the offset after the last acknowledged record, and when that was acknowledged."""

    def acknowledged(self, topic: str, partition: int, following: int, now: float) -> None:
        """All records of ``partition`` before the offset ``following`` are in its log."""
        known = self._following
        known.pop((topic, partition), None)  # so that the partitions are in the order of their last acknowledgements
        known[topic, partition] = following, now
        if len(known) > _MOST:
            del known[next(iter(known))]

    def bound(self, topic: str, partition: int, now: float) -> int | None:
        """An offset that the next record of ``partition`` has or exceeds; None if none is known that is fresh."""
        following, since = self._following.get((topic, partition), (0, now - 2 * FRESH))
        return following if now <= since + FRESH else None
