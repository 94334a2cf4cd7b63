"""The independent check of both sides: a plain consumer and plain SQL, without the library's code."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from sqlalchemy import bindparam, create_engine, text

_POLL_SECONDS = 10.0
_SHOWN = 5
_BATCH = 500


@dataclass(slots=True)
class Comparison:
    """Table and topic, compared row by row. They are equal if every field but the first two is 0."""

    rows: int = 0
    records: int = 0
    missing: int = 0
    """Rows of the table without a visible record."""
    duplicate: int = 0
    """Visible records beyond the first of a row."""
    uncommitted: int = 0
    """Visible records of rows that the table does not have."""
    different: int = 0
    """Records whose value differs from the row."""
    examples: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """True if the table and the topic hold the same rows, each once."""
        return not (self.missing or self.duplicate or self.uncommitted or self.different)


def compare(url: str, table: str, key: str, bootstrap_servers: str, topic: str) -> Comparison:
    """Compare ``table`` of the database at ``url`` with the records that a read_committed consumer gets from ``topic``.

    :param key: the integer column that identifies a row; its text is the records' key.
    :raises KafkaException: if the topic cannot be read to its end.
    """
    result = Comparison()
    record_keys: set[bytes] = set()
    # The SQL is safe: the names come from the demo itself.
    look_up = text(f"SELECT * FROM {table} WHERE {key} IN :keys").bindparams(bindparam("keys", expanding=True))  # noqa: S608
    engine = create_engine(url)
    with engine.connect() as connection:
        records = read_topic(bootstrap_servers, topic, "read_committed")
        while batch := list(islice(records, _BATCH)):
            result.records += len(batch)
            selected = connection.execute(look_up, {"keys": [int(record_key) for record_key, _ in batch]}).mappings()
            rows = {str(row[key]).encode(): dict(row) for row in selected}
            for record_key, value in batch:
                if record_key in record_keys:
                    _count(result, "duplicate", record_key)
                elif record_key not in rows:
                    _count(result, "uncommitted", record_key)
                elif rows[record_key] != json.loads(value):
                    _count(result, "different", record_key)
                record_keys.add(record_key)
        for (row_key,) in connection.execute(text(f"SELECT {key} FROM {table}")):  # noqa: S608
            result.rows += 1
            if str(row_key).encode() not in record_keys:
                _count(result, "missing", str(row_key).encode())
    engine.dispose()
    return result


def read_topic(bootstrap_servers: str, topic: str, isolation_level: str) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of every record of ``topic`` that is visible under ``isolation_level``, up to each partition's end.

    :raises KafkaException: if the broker reports an error or does not answer for 10 seconds.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "demo-check",
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # how long the broker waits at the end of a partition
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
