"""The comparison: both sides once, and then again those keys that differ.

Both sides change while they are read. So each look at the keys that differ reads the topic on to its new end, and then
asks the database again. A key is called different only if its row was there, or was missing, before and after the topic
was read, and none of its records may be in an open transaction.

Records after the last stable offset cannot be compared. So the topic is first read on until that offset has passed the
high watermark at which the comparison began. Transactions that are open for a moment only delay it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Message
from sqlalchemy import Engine

from dualwrite.comparison.job import Comparison, ComparisonJob
from dualwrite.comparison.key_text import field_key, record_key, value_digest
from dualwrite.comparison.seen_keys import TABLE, Seen, SeenKeys
from dualwrite.comparison.table import RowKeys, TableKeys
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
    :param wait: seconds to wait for the end of transactions that were open at the beginning; and again, for which keys
        that differ are looked at again. They are looked at once in any case.
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
        run.read_topic_whole(_pauses(wait, clock, sleep))
        run.read_table()
        pauses = _pauses(wait, clock, sleep)
        while run.look_again() and next(pauses, False):
            pass
        result = run.result
        result.differing = seen.counts()
        result.examples = list(seen.examples(limit))
        result.deleted_before = {partition: first for partition, first in topic.first_offsets.items() if first}
        return result


def _pauses(wait: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> Iterator[bool]:
    """Sleep between two looks, each time longer; True after each sleep. Ends ``wait`` seconds after the first look."""
    deadline, pause = clock() + wait, _FIRST_PAUSE
    while (left := deadline - clock()) > 0:
        sleep(min(pause, left))
        yield True
        pause *= 2


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

    def read_topic_whole(self, pauses: Iterator[bool]) -> None:
        """Read the topic up to the high watermark that it has now, or as far as open transactions let it before
        ``pauses`` end."""
        ends = self._open_tail.ends()
        while True:
            self._read_topic()
            positions = self._topic.positions
            behind = {number: end - read for number, end in ends.items() if (read := positions.get(number, 0)) < end}
            if not behind or not next(pauses, False):
                self.result.after_stable = behind
                return

    def read_table(self) -> None:
        """Read the table, and find the keys that differ."""
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
            self._read_rows_again()
            self._differing = self._seen.end_look()
        return self._differing

    def _read_rows_again(self) -> None:
        """Read the rows of the keys that differ. A row that a look-up does not find may be there in another form, so
        only a reading of the whole table shows that it is gone."""
        keys = self._seen.differing(MOST_LOOKED_UP)
        looked_up = None if keys is None else self._table.look_up(keys)
        if looked_up is not None:
            self._add_again(looked_up)
            if not self._seen.lacks_rows():
                return
            self._seen.forget_rows()
        self._add_again(self._table.read())

    def _add_again(self, batches: Iterable[RowKeys]) -> None:
        for rows in batches:
            again = [Seen(key, 1, digest) for key, digest in rows if key is not None]
            self._seen.add(TABLE, again, differing_only=True)

    def _read_topic(self) -> None:
        for batch in self._topic.read_on():
            self.result.records += len(batch)
            for partition, messages in _by_partition(batch):
                self._seen.add(partition, self._records(messages))

    def _records(self, messages: Iterable[Message]) -> Iterator[Seen]:
        for message in messages:
            key = self._key_of(message)
            if key is None:
                self._count_without_key(message)
                continue
            value = message.value()
            if value is None:
                yield Seen(key, 0)
            else:
                yield Seen(key, 1, value_digest(value, self._table.forms) if self._with_values else None)

    def _count_without_key(self, message: Message) -> None:
        self.result.records_without_key += 1
        if self.result.first_without_key is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.result.first_without_key = partition, offset

    def _key_of(self, message: Message) -> bytes | None:
        """The key of the message, or None if it has none."""
        if not self._paths:
            return record_key(message.key(), self._table.key_forms[0])
        return field_key(message.value() or b"", self._paths, self._table.key_forms)


def _by_partition(batch: Iterable[Message]) -> Iterator[tuple[int, list[Message]]]:
    """The messages of each partition, in their order."""
    partitions: dict[int, list[Message]] = {}
    for message in batch:
        partition = message.partition()
        assert partition is not None
        partitions.setdefault(partition, []).append(message)
    yield from partitions.items()
