"""The comparison: both sides once, and then again those keys that differ.

Both sides change while they are read. So each look at the keys that differ reads the topic on to its new end, and then
asks the database again. A key is called different only if its row was there, or was missing, before and after the topic
was read, and none of its records may be in an open transaction.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Message
from sqlalchemy import Engine

from dualwrite.comparison.job import Comparison, ComparisonJob
from dualwrite.comparison.key_text import NOT_JSON, field_key, value_digest
from dualwrite.comparison.seen_keys import TABLE, Seen, SeenKeys
from dualwrite.comparison.table import TableKeys
from dualwrite.comparison.topic import TopicReader

MOST_LOOKED_UP = 1_000
"""The most keys that are looked up one by one. For more keys the whole table is read."""
_FIRST_PAUSE = 0.1


def compare(
    engine: Engine,
    kafka: Mapping[str, Any],
    job: ComparisonJob,
    *,
    wait: float = 5.0,
    limit: int = 20,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Comparison:
    """Compare the table with the topic. Changes nothing on either side.

    :param kafka: how to reach the cluster, by librdkafka's keys.
    :param wait: seconds for which keys that differ are looked at again; they are looked at once in any case.
    :param limit: how many keys of each difference the result names.
    :param clock: monotonic seconds.
    :param sleep: waits between two looks.
    :raises InputError: if the job is invalid, or the table, a column or the topic is missing.
    :raises KafkaUnavailableError: if the broker does not answer.
    :raises KafkaRefusedError: if the client may not read the topic.
    :raises SQLAlchemyError: if the database refuses, for example the condition ``where``.
    """
    job.check()
    table = TableKeys(engine, job)
    with (
        closing(TopicReader(kafka, job.topic)) as topic,
        closing(TopicReader(kafka, job.topic, committed=False)) as open_tail,
        closing(SeenKeys(last=job.last)) as seen,
    ):
        run = _Run(job, table, topic, open_tail, seen)
        run.read_both()
        deadline, pause = clock() + wait, _FIRST_PAUSE
        while run.look_again():
            left = deadline - clock()
            if left <= 0:
                break
            sleep(min(pause, left))
            pause *= 2
        result = run.result
        result.differing = seen.counts()
        result.examples = list(seen.examples(limit))
        result.deleted_before = {partition: first for partition, first in topic.first_offsets.items() if first}
        return result


class _Run:
    """One comparison, and what it has counted."""

    def __init__(
        self, job: ComparisonJob, table: TableKeys, topic: TopicReader, open_tail: TopicReader, seen: SeenKeys
    ) -> None:
        self.result = Comparison()
        self._paths = [path.split(".") for path in job.record_key]
        self._with_values = job.values
        self._table = table
        self._topic = topic
        self._open_tail = open_tail
        self._seen = seen
        self._differing = 0

    def read_both(self) -> None:
        """Read the topic up to its end, then the table."""
        self._read_topic()
        for batch in self._table.read():
            known = [Seen(key, 1, digest) for key, digest in batch if key is not None]
            self._seen.add(TABLE, known)
            self.result.rows += len(batch)
            self.result.rows_without_key += len(batch) - len(known)
        self._differing = self._seen.compare()

    def look_again(self) -> int:
        """Look again at the keys that differ; return how many still do."""
        if self._differing:
            self._seen.begin_look()
            self._read_topic()
            # From the last stable offset on: read before the database is asked, so that no record is missed.
            self._open_tail.positions = dict(self._topic.positions)
            for batch in self._open_tail.read_on():
                self._seen.mark_open(key for key in map(self._key_of, batch) if key is not None)
            for rows in self._table.read_again(self._seen.differing(MOST_LOOKED_UP)):
                again = [Seen(key, 1, digest) for key, digest in rows if key is not None]
                self._seen.add(TABLE, again, differing_only=True)
            self._differing = self._seen.end_look()
        return self._differing

    def _read_topic(self) -> None:
        for batch in self._topic.read_on():
            self.result.records += len(batch)
            for partition, messages in _by_partition(batch):
                self._seen.add(partition, self._records(messages))

    def _records(self, messages: Iterable[Message]) -> Iterator[Seen]:
        for message in messages:
            key = self._key_of(message)
            if key is None:
                self.result.records_without_key += 1
                continue
            value = message.value()
            if value is None:
                yield Seen(key, 0)
            else:
                yield Seen(key, 1, value_digest(value) if self._with_values else None)

    def _key_of(self, message: Message) -> bytes | None:
        """The key of the message, or None if it has none."""
        if not self._paths:
            return message.key()
        return field_key(message.value() or NOT_JSON, self._paths)


def _by_partition(batch: Iterable[Message]) -> Iterator[tuple[int, list[Message]]]:
    """The messages of each partition, in their order."""
    partitions: dict[int, list[Message]] = {}
    for message in batch:
        partition = message.partition()
        assert partition is not None
        partitions.setdefault(partition, []).append(message)
    yield from partitions.items()
