"""The librdkafka participant on stand-ins for librdkafka and the control plane, which can fail at every call."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from dualwrite.client.protocol.requests import GroupMember, InitializedProducer
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.fake_consumer import Position
from tests.support.coordinator.librdkafka.fake_control_plane import CONFIG, T0, T1, FakeControl

OFFSETS = TopicPartition("__consumer_offsets", 3)
MEMBER = GroupMember("group", 1, "member")
POSITIONS = [Position("in", 0, 7)]


def kafka_error(code: int, **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(code, **flags))


class FakeMessage:
    def __init__(self, partition: TopicPartition, offset: int) -> None:
        self._partition, self._offset = partition, offset

    def topic(self) -> str:
        return self._partition.topic

    def partition(self) -> int:
        return self._partition.partition

    def offset(self) -> int:
        return self._offset


class FakeConfluentProducer:
    """confluent_kafka.Producer: keeps records until flush or commit, and acknowledges them there."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.calls: list[str] = []
        self.timeouts: dict[str, float] = {}
        """Of the last call of each name."""
        self.failures: dict[str, list[Exception]] = {}
        self.queue: list[tuple[TopicPartition, Callable[[Any, Any], None]]] = []
        self.next_offset = {T0: 10, T1: 20}
        self.report_errors: dict[int, KafkaError] = {}
        self.offset_of: Callable[[int], int] = lambda offset: offset
        self.unreported = 0
        self.produced: list[dict[str, Any]] = []
        self.sent: list[tuple[list[Any], Any]] = []
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens in send_offsets and abort."""
        self.note_state: Callable[[str], None] = lambda state: None
        """Called with the coordinator's state of the transaction from now on."""

    def init_transactions(self, timeout: float) -> None:
        self.timeouts["init_transactions"] = timeout
        self._call("init_transactions")
        self.note_state("Empty")

    def begin_transaction(self) -> None:
        self._call("begin_transaction")
        self.note_state("Ongoing")

    def produce(self, topic: str, value: Any, key: Any, partition: int, **arguments: Any) -> None:
        self._call("produce")
        self.produced.append({"value": value, "key": key, "partition": partition, **arguments})
        place = TopicPartition(topic, max(partition, 0))
        self.queue.append((place, arguments["on_delivery"]))

    def poll(self, timeout: float) -> int:
        self._call("poll")
        return 0

    def flush(self, timeout: float) -> int:
        self._call("flush")
        return self._deliver()

    def send_offsets_to_transaction(self, positions: list[Any], metadata: Any, timeout: float) -> None:
        self._call("send_offsets_to_transaction")
        self.sent.append((positions, metadata))
        self.meanwhile()

    def commit_transaction(self, timeout: float) -> None:
        self._call("commit_transaction")

    def abort_transaction(self, timeout: float) -> None:
        self.timeouts["abort_transaction"] = timeout
        self._call("abort_transaction")
        self.note_state("CompleteAbort")
        self.meanwhile()
        self.queue.clear()

    def purge(self, blocking: bool) -> None:
        self._call("purge")

    def fail(self, name: str, *errors: Exception) -> None:
        self.failures[name] = list(errors)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.failures.get(name):
            raise self.failures[name].pop(0)

    def _deliver(self) -> int:
        reported = self.queue[: len(self.queue) - self.unreported]
        self.queue = []
        for number, (partition, report) in enumerate(reported):
            if number in self.report_errors:
                report(self.report_errors[number], FakeMessage(partition, -1001))
                continue
            report(None, FakeMessage(partition, self.offset_of(self.next_offset[partition])))
            self.next_offset[partition] += 1
        return 0


class LibrdkafkaRig:
    """A participant with its two stand-ins in sight."""

    producer: FakeConfluentProducer
    control: FakeControl

    def __init__(self, timeout: float | None = 3, grace: float = 2.0, **config: Any) -> None:
        self.participant = LibrdkafkaProducer(
            CONFIG | config,
            timeout=timeout,
            grace=grace,
            make_producer=self._make_producer,
            make_control=self._make_control,  # type: ignore[arg-type]
        )

    def _make_producer(self, config: dict[str, Any]) -> FakeConfluentProducer:
        self.producer = FakeConfluentProducer(config)
        self.producer.note_state = lambda state: setattr(self.control, "state", state)
        return self.producer

    def _make_control(self, config: dict[str, Any], timeout: float) -> FakeControl:
        self.control = FakeControl(config, timeout)
        return self.control

    def begun(self, *partitions: TopicPartition) -> "LibrdkafkaRig":
        self.participant.init_transactions()
        self.participant.begin_transaction()
        for partition in partitions:
            self.participant.produce(OutgoingRecord(partition.topic, b"v", partition=partition.partition))
        return self

    def keeping(
        self, ongoing: ProducerIdentity | None, starts: dict[TopicPartition, int] | None = None
    ) -> "LibrdkafkaRig":
        self.control.initialized = InitializedProducer(ProducerIdentity(7, 1), ongoing)
        self.control.starts = starts or {}
        self.participant.init_transactions(keep_prepared_txn=True)
        return self

    @property
    def state(self) -> ProducerState:
        return self.participant.state
