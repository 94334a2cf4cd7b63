"""The message and the error that a delivery callback gets for a record, in confluent-kafka's form."""

from typing import Any

from dualwrite.records.outgoing import OutgoingRecord

CREATE_TIME = 1
"""confluent-kafka's TIMESTAMP_CREATE_TIME."""


class DeliveredRecord:
    """One record and where it was written, with the methods of confluent_kafka.Message that apply to a producer."""

    __slots__ = ("_error", "_latency", "_offset", "_partition", "_record", "_timestamp_ms")

    def __init__(
        self,
        record: OutgoingRecord,
        partition: int,
        offset: int,
        timestamp_ms: int,
        error: Any,
        latency: float | None = None,
    ) -> None:
        self._record = record
        self._partition = partition
        self._offset = offset
        self._timestamp_ms = timestamp_ms
        self._error = error
        self._latency = latency

    def topic(self) -> str:
        """The topic's name."""
        return self._record.topic

    def partition(self) -> int | None:
        """The partition; None if none was chosen."""
        return None if self._partition < 0 else self._partition

    def offset(self) -> int | None:
        """The offset; None if the record was not acknowledged, or the broker did not tell the offset."""
        return None if self._offset < 0 else self._offset

    def latency(self) -> float | None:
        """Seconds from produce() to the acknowledgement; None if there was none."""
        return self._latency

    def leader_epoch(self) -> None:
        """Always None: brokers do not tell it to producers. Here for compatibility with confluent-kafka."""

    def key(self) -> bytes | None:
        """The key."""
        return self._record.key

    def value(self) -> bytes | None:
        """The value."""
        return self._record.value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """The headers; None if there are none."""
        return list(self._record.headers) or None

    def timestamp(self) -> tuple[int, int]:
        """TIMESTAMP_CREATE_TIME, and the time in milliseconds since the epoch."""
        return CREATE_TIME, self._timestamp_ms

    def error(self) -> Any:
        """Why it was not acknowledged: a DualWriteError, or its conversion by the caller; None if it was
        acknowledged."""
        return self._error

    def with_error(self, error: Any) -> "DeliveredRecord":
        """The same record with ``error`` as its error."""
        return DeliveredRecord(self._record, self._partition, self._offset, self._timestamp_ms, error, self._latency)

    def __len__(self) -> int:
        return len(self._record.value or b"")
