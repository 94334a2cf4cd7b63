"""Records as a consumer returns them, and a Kafka that keeps whole records, not only their values."""

from dataclasses import dataclass, field
from typing import Any

from dualwrite.ids import TopicPartition
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.fake_consumer import FakeConsumer
from tests.support.coordinator.fake_kafka import FakeKafka, FakeParticipant

TIME_MS = 1_700_000_000_000


class FakeRecord:
    """confluent_kafka.Message."""

    def __init__(self, place: TopicPartition, offset: int, value: Any, **fields: Any) -> None:
        self._place, self._offset, self._value = place, offset, value
        self._fields = {"key": b"key", "headers": None, "error": None, "timestamp": (1, TIME_MS), **fields}

    def topic(self) -> str:
        return self._place.topic

    def partition(self) -> int:
        return self._place.partition

    def offset(self) -> int:
        return self._offset

    def value(self) -> Any:
        return self._value

    def key(self) -> Any:
        return self._fields["key"]

    def headers(self) -> Any:
        return self._fields["headers"]

    def error(self) -> Any:
        return self._fields["error"]

    def timestamp(self) -> Any:
        return self._fields["timestamp"]

    def leader_epoch(self) -> int:
        return 3


def polled(consumer: FakeConsumer, place: TopicPartition, *values: str | None) -> list[FakeRecord]:
    """The next records of ``place``, with ``values``."""
    offsets = consumer.poll(place, len(values))
    pairs = zip(offsets, values, strict=True)
    return [FakeRecord(place, offset, None if value is None else value.encode()) for offset, value in pairs]


@dataclass
class KeptRecords:
    """The records that a KeepingKafka was given, committed or not."""

    records: list[OutgoingRecord] = field(default_factory=list)

    def of(self, topic: str) -> list[OutgoingRecord]:
        return [record for record in self.records if record.topic == topic]


class KeepingKafka(FakeKafka):
    """A FakeKafka that keeps the records of committed and of aborted transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = KeptRecords()

    def participant(self, config: object = None) -> "WholeRecordParticipant":
        made = WholeRecordParticipant(self)
        self.participants.append(made)
        return made


class WholeRecordParticipant(FakeParticipant):
    """The participant of a KeepingKafka."""

    def produce(self, record: OutgoingRecord) -> None:
        super().produce(record)
        assert isinstance(self.kafka, KeepingKafka)
        self.kafka.kept.records.append(record)
