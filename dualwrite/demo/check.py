"""The independent look at both sides: a plain consumer, the database's own driver, and none of the library's code."""

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

_POLL_SECONDS = 10.0
_SHOWN = 5


@dataclass(slots=True)
class Comparison:
    """Table and topic, row by row. Everything but the first two must be 0 for the two to be the same."""

    rows: int = 0
    records: int = 0
    missing: int = 0
    """rows of the table that no visible record has"""
    duplicate: int = 0
    """visible records beyond the first of a row"""
    uncommitted: int = 0
    """visible records of a row that the table does not have"""
    different: int = 0
    """records whose value is not the row's"""
    examples: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """True if the table and the topic hold the same, once."""
        return not (self.missing or self.duplicate or self.uncommitted or self.different)


def compare(database: Path, table: str, key: str, bootstrap_servers: str, topic: str) -> Comparison:
    """Compare ``table`` of a SQLite file with what a read_committed consumer sees in ``topic``.

    :param key: the column that identifies a row, and whose text is the records' key.
    :raises KafkaException: if the topic cannot be read to its end.
    """
    result = Comparison()
    seen: set[bytes] = set()
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    try:
        look_up = f'SELECT * FROM "{table}" WHERE "{key}" = ?'  # noqa: S608  names from the demo itself
        for record_key, value in read_topic(bootstrap_servers, topic, "read_committed"):
            result.records += 1
            row = connection.execute(look_up, (record_key.decode(),)).fetchone()
            if record_key in seen:
                _count(result, "duplicate", record_key)
            elif row is None:
                _count(result, "uncommitted", record_key)
            elif dict(row) != json.loads(value):
                _count(result, "different", record_key)
            seen.add(record_key)
        for (row_key,) in connection.execute(f'SELECT "{key}" FROM "{table}"'):  # noqa: S608
            result.rows += 1
            if str(row_key).encode() not in seen:
                _count(result, "missing", str(row_key).encode())
    finally:
        connection.close()
    return result


def read_topic(bootstrap_servers: str, topic: str, isolation_level: str) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of every record of ``topic`` that is visible under ``isolation_level``, to each partition's end.

    :raises KafkaException: if the broker reports an error or says nothing for 10 seconds.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "demo-check",
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, _POLL_SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        unread = set(partitions)
        while unread:
            message = consumer.poll(_POLL_SECONDS)
            if message is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"nothing from {topic} for {_POLL_SECONDS:g} s"))
            error = message.error()
            if error is None:
                yield message.key() or b"", message.value() or b""
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            else:
                raise KafkaException(error)
    finally:
        consumer.close()


def _count(result: Comparison, kind: str, key: bytes) -> None:
    setattr(result, kind, getattr(result, kind) + 1)
    if len(result.examples) < _SHOWN:
        result.examples.append(f"{kind}: {key.decode()}")
