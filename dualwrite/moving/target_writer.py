"""The mover's producer at the target, and its readers of topics: confluent-kafka's clients.

The transactional id names the source cluster. So a second mover of the same source fences the first one, and a mover
that starts after a crash first aborts the transaction that was left open.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from dualwrite.client.librdkafka.errors import translated, translating
from dualwrite.comparison.topic import TopicReader
from dualwrite.errors import ConfigurationError, DualWriteError, InputError, KafkaUnavailableError
from dualwrite.ids import TopicPartition
from dualwrite.moving.journal import JournalRecord, MovedRecords, TopicPair, encode, journal_topic
from dualwrite.moving.offset_mapping import SEVERAL, first_offset, runs_of
from dualwrite.moving.ports import GroupOffset
from dualwrite.moving.records import MovedRecord, by_partition

_SECONDS = 60.0
"""How long each step of a transaction may take."""
_MOST_BYTES = 1_000_000_000
"""The maximum of librdkafka's message.max.bytes. The topic has the limit that counts."""
_log = logging.getLogger("dualwrite.librdkafka")


class MovedTopicReader:
    """A RecordReader of one topic, by a read_committed consumer.

    :param config: how to reach the cluster, by librdkafka's keys.
    """

    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        self._reader = TopicReader(config, topic)
        self.positions = self._reader.positions

    def read_on(self) -> Iterator[Sequence[MovedRecord]]:
        """See RecordReader."""
        for batch in self._reader.read_on():
            yield [MovedRecord.of(message) for message in batch]

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()


class MoverProducer:
    """A TargetWriter. Its first act is to end what an earlier mover has left open.

    :param config: how to reach the target cluster, by librdkafka's keys.
    :param source_cluster: the source cluster's id.
    :raises ConfigurationError: if librdkafka refuses a setting.
    :raises KafkaUnavailableError: if the cluster does not answer.
    :raises KafkaRefusedError: if it refuses the transactional id.
    """

    def __init__(self, config: Mapping[str, Any], source_cluster: str) -> None:
        self._config = {key: value for key, value in config.items() if value is not None}
        self._journal = journal_topic(source_cluster)
        own = {
            "transactional.id": self._journal,
            "message.max.bytes": _MOST_BYTES,
            "logger": _log,
        }
        try:
            self._producer = Producer({"linger.ms": 5, **self._config, **own})
        except KafkaException as error:
            raise ConfigurationError(f"librdkafka: {error.args[0].str()}") from None
        with translating("beginning the move at the target", two_phase=False):
            self._producer.init_transactions(_SECONDS)

    def close(self) -> None:
        """Let librdkafka close the connections."""
        self._producer.purge()
        self._producer.flush(0)

    def write(self, topic: TopicPair, records: Sequence[MovedRecord]) -> list[JournalRecord]:
        """See TargetWriter."""
        for record in records:
            if not record.timestamp:
                raise InputError(
                    f"topic {topic.name!r}, partition {record.partition}, offset {record.offset:,}: the record has the "
                    "timestamp 0, which librdkafka cannot write. Delete the records before it, or leave the topic out"
                )
        return self._transaction(f"copying to topic {topic.name}", lambda: self._write(topic, records))

    def finish(
        self, groups: Mapping[str, Mapping[TopicPartition, GroupOffset]], records: Sequence[JournalRecord]
    ) -> None:
        """See TargetWriter."""

        def commit_offsets() -> list[JournalRecord]:
            for group, offsets in groups.items():
                self._producer.send_offsets_to_transaction(
                    [KafkaPartition(*place, offset, metadata) for place, (offset, metadata) in offsets.items()],
                    self._member_of(group),
                    _SECONDS,
                )
            return list(records)

        self._transaction("moving the groups' offsets", commit_offsets)

    def _transaction(self, operation: str, work: Any) -> list[JournalRecord]:
        """Run ``work`` and write the journal's records that it returns, in one transaction."""
        with translating(operation, two_phase=False):
            self._producer.begin_transaction()
        try:
            with translating(operation, two_phase=False):
                records: list[JournalRecord] = work()
                journaled = _Deliveries(operation)
                for record in records:
                    self._produce(journaled, self._journal, value=encode(record))
                self._deliver(journaled)
                self._commit()
        except DualWriteError:
            with suppress(KafkaException):
                self._producer.abort_transaction(_SECONDS)
            raise
        return records

    def _commit(self) -> None:
        """Commit; once more if librdkafka says that this may help."""
        try:
            self._producer.commit_transaction(_SECONDS)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            self._producer.commit_transaction(_SECONDS)

    def _write(self, topic: TopicPair, records: Sequence[MovedRecord]) -> list[JournalRecord]:
        deliveries = _Deliveries(f"copying to topic {topic.name}")
        for record in records:
            self._produce(
                deliveries,
                topic.name,
                partition=record.partition,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp=record.timestamp,
            )
        self._deliver(deliveries)
        written: list[JournalRecord] = []
        for partition, group in by_partition(records).items():
            first = first_offset(deliveries.offsets[partition])
            if first is None:
                raise KafkaUnavailableError(
                    f"copying to topic {topic.name}: the target has not told the offsets of partition {partition}"
                )
            if first == SEVERAL:
                raise InputError(
                    f"topic {topic.name!r} at the target: another program writes to partition {partition} there. Stop "
                    "it, and delete the topic at the target to begin again"
                )
            runs = runs_of((record.offset for record in group), range(first, first + len(group)))
            written.append(MovedRecords(topic, partition, tuple(runs)))
        return written

    def _produce(self, deliveries: "_Deliveries", topic: str, **record: Any) -> None:
        while True:
            try:
                self._producer.produce(topic, on_delivery=deliveries.note, **record)
            except BufferError:  # librdkafka's queue is full
                self._producer.poll(1)
            else:
                deliveries.sent += 1
                self._producer.poll(0)
                return

    def _deliver(self, deliveries: "_Deliveries") -> None:
        try:
            self._producer.flush(_SECONDS)
        except SystemError:
            # confluent-kafka 2.16 raises it if the producer is fenced meanwhile; this call says so.
            self._producer.abort_transaction(_SECONDS)
            raise KafkaUnavailableError("the transaction at the target has failed") from None
        deliveries.require_all()

    def _member_of(self, group: str) -> Any:
        """The identity of a consumer of ``group`` that has not joined it."""
        consumer = Consumer({**self._config, "group.id": group, "logger": _log})
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()


class _Deliveries:
    """The delivery reports of one step.

    :param operation: a description of the step, for errors.
    """

    def __init__(self, operation: str) -> None:
        self.sent = 0
        self.offsets: dict[int, list[int]] = {}
        """The offsets of each partition's records."""
        self._operation = operation
        self._error: DualWriteError | None = None

    def note(self, error: Any, message: Any) -> None:
        """Take a delivery report."""
        if error is None:
            self.offsets.setdefault(message.partition(), []).append(message.offset())
        elif self._error is None:
            self._error = translated(self._operation, error, two_phase=False)

    def require_all(self) -> None:
        """Require that every record was acknowledged.

        :raises DualWriteError: if not.
        """
        if self._error is not None:
            raise self._error
        acknowledged = sum(map(len, self.offsets.values()))
        if acknowledged != self.sent:
            raise KafkaUnavailableError(
                f"{self._operation}: {self.sent - acknowledged} records were not acknowledged in {_SECONDS:g} s"
            )
