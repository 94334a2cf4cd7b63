"""The settings of a log."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogSettings:
    """A topic's settings for its logs, under Kafka's names and with Kafka's defaults."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
