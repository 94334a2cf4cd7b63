"""The dead letter of a record: the record's own bytes, and headers that say where it came from and why.

The names of the headers are Kafka Connect's, and their values are text, as Connect's are. Connect has no name for the
consumer group and for the number of attempts: those two have a prefix of their own.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from dualwrite.errors import ConfigurationError
from dualwrite.records.outgoing import OutgoingRecord

TOPIC = "__connect.errors.topic"
PARTITION = "__connect.errors.partition"
OFFSET = "__connect.errors.offset"
EXCEPTION = "__connect.errors.exception.class.name"
MESSAGE = "__connect.errors.exception.message"
GROUP = "__dualwrite.errors.consumer.group"
ATTEMPTS = "__dualwrite.errors.attempts"

LONGEST_MESSAGE = 1000
"""The most bytes of an exception's text in a header: a dead letter must not be much larger than its record."""


@runtime_checkable
class ReadRecord(Protocol):
    """The part of confluent_kafka.Message that is used."""

    def error(self) -> Any:
        """None for a record."""

    def topic(self) -> Any:
        """Its topic."""

    def partition(self) -> Any:
        """Its partition."""

    def offset(self) -> Any:
        """Its offset."""

    def key(self) -> Any:
        """Bytes, or None."""

    def value(self) -> Any:
        """Bytes, or None: a tombstone."""

    def headers(self) -> Any:
        """Pairs of a name and bytes or None; None without headers."""

    def timestamp(self) -> tuple[int, int]:
        """Its type, and milliseconds since the epoch."""


class Failure(NamedTuple):
    """The reason for a dead letter."""

    error: BaseException
    """Of the last attempt."""
    attempts: int
    group: str
    """The consumer group that could not use the record."""


def name_of(record: ReadRecord) -> str:
    """``record``, for log lines and messages."""
    return f"record {record.topic()}-{record.partition()}@{record.offset()}"


def dead_letter(record: ReadRecord, topic: str, failure: Failure) -> OutgoingRecord:
    """The record for the dead-letter topic ``topic``. Its key, value, timestamp and own headers are those of
    ``record``; if ``record`` was a dead letter already, the last header of a name is the newest."""
    text = str(failure.error).encode("utf-8", "backslashreplace")[:LONGEST_MESSAGE]
    headers: list[tuple[str, bytes | None]] = [
        *(record.headers() or ()),
        (TOPIC, record.topic().encode()),
        (PARTITION, b"%d" % record.partition()),
        (OFFSET, b"%d" % record.offset()),
        (EXCEPTION, _class_name(failure.error).encode()),
        (MESSAGE, text.decode("utf-8", "ignore").encode()),  # a character is not cut in two
        (GROUP, failure.group.encode()),
        (ATTEMPTS, b"%d" % failure.attempts),
    ]
    timestamp = max(0, record.timestamp()[1])
    return OutgoingRecord(topic, record.value(), record.key(), timestamp=timestamp, headers=headers)


def require_records(messages: Iterable[Any], topic: str) -> list[ReadRecord]:
    """``messages`` as a list, if each of them could go to the dead-letter topic ``topic``.

    :raises TypeError: if one is not a confluent_kafka.Message with a key and a value of bytes.
    :raises ValueError: if one is an error of the consumer, and no record.
    :raises ConfigurationError: if one comes from ``topic`` itself.
    """
    if isinstance(messages, ReadRecord) or not isinstance(messages, Iterable):
        raise TypeError(
            f"records of type {type(messages).__name__}: give the list that consume() returns, or [message]"
        )
    records = list(messages)
    for record in records:
        _check(record, topic)
    return records


def next_offsets(records: Sequence[ReadRecord]) -> list[Any]:
    """The offset after the last of ``records`` in each partition, as confluent_kafka.TopicPartition."""
    from confluent_kafka import TopicPartition  # loads librdkafka, which an application with a consumer has anyway

    last = {(record.topic(), record.partition()): record for record in sorted(records, key=lambda each: each.offset())}
    return [
        TopicPartition(topic, partition, record.offset() + 1, leader_epoch=_leader_epoch(record))
        for (topic, partition), record in last.items()
    ]


def _check(record: Any, topic: str) -> None:
    if not isinstance(record, ReadRecord):
        raise TypeError(f"a record of type {type(record).__name__}: give the messages of a confluent_kafka.Consumer")
    if (error := record.error()) is not None:
        raise ValueError(f"a message that is no record ({error}): look at message.error() first, and leave it out")
    for field, content in (("key", record.key()), ("value", record.value())):
        if content is not None and not isinstance(content, bytes):
            raise TypeError(
                f"{name_of(record)}: its {field} is a {type(content).__name__}, and a dead letter needs the bytes: use "
                "confluent_kafka.Consumer, and deserialize in your function"
            )
    if record.topic() == topic:
        raise ConfigurationError(
            f"{name_of(record)}: the consumer reads its own dead-letter topic: use another topic for dead letters"
        )


def _leader_epoch(record: Any) -> int | None:
    epoch = record.leader_epoch() if hasattr(record, "leader_epoch") else None
    return epoch if isinstance(epoch, int) and epoch >= 0 else None


def _class_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
