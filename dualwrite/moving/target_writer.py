"""The mover's producer at the target, and its readers of topics: confluent-kafka's clients.

The transactional id names the source cluster. So a second mover of the same source fences the first one, and a mover
that starts after a crash first aborts the transaction that was left open.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaException, Producer

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.librdkafka.connecting import CONNECT_AT_ONCE
from dualwrite.client.librdkafka.errors import is_purged, translated, translating
from dualwrite.client.terms.transaction_states import ENDING
from dualwrite.comparison.topic import TopicReader
from dualwrite.errors import (
    ConfigurationError,
    DualWriteError,
    FencedError,
    InputError,
    KafkaRefusedError,
    KafkaUnavailableError,
)
from dualwrite.ids import TopicPartition
from dualwrite.moving.group_commits import commit_in_transaction, identity_of
from dualwrite.moving.journal import (
    Finished,
    JournalRecord,
    MovedRecords,
    SourceGroup,
    TopicPair,
    encode,
    journal_topic,
)
from dualwrite.moving.offset_mapping import first_offset, runs_of
from dualwrite.moving.ports import GroupOffset
from dualwrite.moving.records import MovedRecord, by_partition
from dualwrite.wire.error_codes import ErrorCode

_SECONDS = 60.0
"""How long each step of a transaction may take."""
_PAUSE = 0.02
"""Seconds between two questions whether a transaction's markers are written."""
USUAL_BATCH_BYTES = 1_000_000
"""librdkafka's batch.size. A larger record has a batch of its own."""
GROUPS_AT_ONCE = 50
"""Groups whose offsets are committed in one transaction: each takes three requests, and a transaction a minute."""
_MOST_BYTES = 1_000_000_000
"""The maximum of librdkafka's message.max.bytes. The topic has the limit that counts."""
_REFUSALS: Mapping[int, str] = {
    ErrorCode.MESSAGE_TOO_LARGE: "a record is larger than the target allows. Raise max.message.bytes of the topic "
    "there; or, if the source has it compressed, put compression.type=zstd into the file of --to-config",
    ErrorCode.INVALID_RECORD: "the target refuses a record without a key, because the topic is compacted. Create it "
    "there with cleanup.policy=delete, and change that after the move",
    ErrorCode.INVALID_TIMESTAMP: "the target refuses the time of a record. Raise message.timestamp.before.max.ms or "
    "message.timestamp.after.max.ms of the topic there",
}
"""What to do about a record that the target refuses."""
_GROUPS = "moving the groups' offsets"
_log = logging.getLogger("dualwrite.librdkafka")

ResultT = TypeVar("ResultT")


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
    :param largest_batch: the most bytes that every topic takes in one batch.
    :raises ConfigurationError: if librdkafka refuses a setting.
    :raises KafkaUnavailableError: if the cluster does not answer.
    :raises KafkaRefusedError: if it refuses the transactional id.
    """

    def __init__(self, config: Mapping[str, Any], source_cluster: str, largest_batch: int = USUAL_BATCH_BYTES) -> None:
        self._config = {key: value for key, value in config.items() if value is not None}
        self._journal = journal_topic(source_cluster)
        own = {
            "transactional.id": self._journal,
            "message.max.bytes": _MOST_BYTES,
            "batch.size": _batch_size(self._config, largest_batch),
            "logger": _log,
        }
        try:
            self._producer = Producer({"linger.ms": 5, **CONNECT_AT_ONCE, **self._config, **own})
        except KafkaException as error:
            raise ConfigurationError(f"librdkafka: {error.args[0].str()}") from None
        with translating("beginning the move at the target", two_phase=False):
            self._producer.init_transactions(_SECONDS)

    def close(self) -> None:
        """Let librdkafka close the connections."""
        self._producer.purge()
        with suppress(KafkaException):  # after a fatal error, which was raised where it happened
            self._producer.flush(0)

    def write(self, topic: TopicPair, records: Sequence[MovedRecord], begins: Mapping[int, int]) -> list[MovedRecords]:
        """See TargetWriter."""
        for record in records:
            if not record.timestamp:
                raise InputError(
                    f"topic {topic.name!r}, partition {record.partition}, offset {record.offset:,}: the record has the "
                    "timestamp 0, which librdkafka cannot write. Delete the records up to it, or leave the topic out"
                )
        try:
            return self._transaction(f"copying to topic {topic.name}", lambda: self._write(topic, records, begins))
        except KafkaRefusedError as error:
            if error.code not in _REFUSALS:
                raise
            raise InputError(f"topic {topic.name!r}: {_REFUSALS[error.code]}") from error

    def await_markers(self) -> None:
        """Wait until read_committed consumers see all that was written. Apache Kafka writes a transaction's markers
        after it has answered EndTxn.

        :raises KafkaUnavailableError: if the markers are not written in time, or the cluster does not answer.
        """
        deadline = time.monotonic() + _SECONDS
        with closing(ControlPlane(self._config)) as control:
            while (found := control.describe_transaction(self._journal)) is not None and found.state in ENDING:
                if time.monotonic() > deadline:
                    raise KafkaUnavailableError(
                        f"the target has not written the markers of the last transaction in {_SECONDS:g} s: run the "
                        "command again"
                    )
                time.sleep(_PAUSE)

    def finish(
        self, groups: Mapping[str, Mapping[TopicPartition, GroupOffset]], notes: Sequence[SourceGroup], end: Finished
    ) -> None:
        """See TargetWriter."""

        def commit(some: Collection[str], records: Sequence[JournalRecord]) -> None:
            identity = identity_of(self._config, self._journal)
            self._write_journal(_GROUPS, records)  # between the two: see group_commits.py
            commit_in_transaction(self._config, self._journal, identity, {group: groups[group] for group in some})

        left = list(groups)
        while len(left) > GROUPS_AT_ONCE:
            some, left = left[:GROUPS_AT_ONCE], left[GROUPS_AT_ONCE:]
            self._transaction(_GROUPS, partial(commit, some, [note for note in notes if note.group in some]))
        rest = [note for note in notes if note.group in left or note.group not in groups]
        self._transaction(_GROUPS, partial(commit, left, [*rest, end]))

    def _transaction(self, operation: str, work: Callable[[], ResultT]) -> ResultT:
        """Run ``work`` in one transaction. Return its result."""
        with translating(operation, two_phase=False):
            self._producer.begin_transaction()
        try:
            with translating(operation, two_phase=False):
                result = work()
                self._commit()
        except FencedError as error:
            raise FencedError(
                f"another `dualwrite move` from the same source has begun, and goes on ({error})"
            ) from error
        except DualWriteError:
            with suppress(KafkaException):
                self._producer.abort_transaction(_SECONDS)
            raise
        return result

    def _write_journal(self, operation: str, records: Iterable[JournalRecord]) -> None:
        journaled = _Deliveries(operation)
        for record in records:
            self._produce(journaled, self._journal, value=encode(record))
        self._deliver(journaled)

    def _commit(self) -> None:
        """Commit; once more if librdkafka says that this may help."""
        try:
            self._producer.commit_transaction(_SECONDS)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            self._producer.commit_transaction(_SECONDS)

    def _write(self, topic: TopicPair, records: Sequence[MovedRecord], begins: Mapping[int, int]) -> list[MovedRecords]:
        operation = f"copying to topic {topic.name}"
        deliveries = _Deliveries(operation)
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
        if deliveries.are_stamped:
            raise KafkaUnavailableError(
                f"{operation}: a broker gives records its own time, because it does not know yet that the topic's "
                "message.timestamp.type is CreateTime: run the command again"
            )
        written: list[MovedRecords] = []
        for partition, group in by_partition(records).items():
            first = first_offset(deliveries.offsets[partition])
            if first is None:
                raise KafkaUnavailableError(
                    f"{operation}: the target has not told the offsets of partition {partition}"
                )
            if first != begins.get(partition, 0):
                raise KafkaUnavailableError(
                    f"{operation}: partition {partition} has something there that this move has not written. Run the "
                    "command again: if it is a record of another program, it is named"
                )
            runs = runs_of((record.offset for record in group), range(first, first + len(group)))
            written.append(MovedRecords(topic, partition, tuple(runs)))
        self._write_journal(operation, written)
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
        if deliveries.were_purged:
            self._producer.begin_transaction()  # which fails with the reason why librdkafka gave the transaction up
        deliveries.require_all()


def _batch_size(config: Mapping[str, Any], largest: int) -> int:
    given = config.get("batch.size", USUAL_BATCH_BYTES)
    try:
        return max(1, min(int(given), largest))
    except ValueError:
        raise ConfigurationError(f"batch.size={given}: not a whole number") from None


class _Deliveries:
    """The delivery reports of one step.

    :param operation: a description of the step, for errors.
    """

    def __init__(self, operation: str) -> None:
        self.sent = 0
        self.offsets: dict[int, list[int]] = {}
        """The offsets of each partition's records."""
        self.are_stamped = False
        """True if a record has the broker's time."""
        self.were_purged = False
        """True if librdkafka dropped records because the transaction has failed."""
        self._operation = operation
        self._error: DualWriteError | None = None

    def note(self, error: Any, message: Any) -> None:
        """Take a delivery report."""
        if error is None:
            self.offsets.setdefault(message.partition(), []).append(message.offset())
            self.are_stamped |= message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME
        elif is_purged(error):
            self.were_purged = True
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
