"""A control plane with the answers of a test, for the participants."""

from collections.abc import Iterable
from typing import Any

from dualwrite.client.admin.control_plane import TransactionDescription
from dualwrite.client.admin.log_reader import LogExtent
from dualwrite.client.encoding.transaction_end import LogSlice
from dualwrite.client.protocol.requests import InitializedProducer
from dualwrite.ids import Anchor, ProducerIdentity, TopicPartition

CONFIG = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "app-0"}
SESSION = ProducerIdentity(7, 0)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeLogs:
    """A LogReader of partitions whose records were deleted, unless a test sets the ``slice`` that is read there."""

    def __init__(self) -> None:
        self.slice: LogSlice | None = None
        self.fails: Exception | None = None
        self.timeouts: list[float | None] = []
        self.topic_ids: dict[str, str] = {}

    def partition_of(self, anchor: Anchor) -> TopicPartition | None:
        if self.fails is not None:
            raise self.fails
        return TopicPartition(anchor.topic, anchor.partition)

    def topic_id(self, topic: str) -> str:
        return self.topic_ids.get(topic, "")

    def read(self, partition: TopicPartition, offset: int, *, committed: bool, most: int) -> LogSlice | None:
        return self.slice

    def extent(self, partition: TopicPartition) -> LogExtent:
        return LogExtent(1_000_000, 1_000_000)


class FakeControl:
    """A control plane over one transactional id whose facts a test sets."""

    def __init__(self, config: dict[str, Any], timeout: float) -> None:
        self.timeout = timeout
        self.state, self.producer = "Ongoing", SESSION
        self.partitions: frozenset[TopicPartition] = frozenset({T0, T1})
        self.started_ms = 0
        self.unknown = False
        self.hidden: set[str] = set()
        """Topics that the client may not describe."""
        self.initialized = InitializedProducer(ProducerIdentity(7, 1), None)
        self.starts: dict[TopicPartition, int] = {}
        self.ended: list[tuple[ProducerIdentity, bool, bool]] = []
        self.asked: list[tuple[frozenset[TopicPartition], ProducerIdentity]] = []
        self.failures: dict[str, Exception] = {}
        self.closed = 0
        self.lost_connections = 0
        self.log = FakeLogs()

    def init_producer_id(self, _id: str, *, two_phase_commit: bool, keep_prepared_txn: bool) -> InitializedProducer:
        assert two_phase_commit
        assert keep_prepared_txn
        self._fail("init_producer_id")
        return self.initialized

    def describe_transaction(self, _id: str) -> TransactionDescription | None:
        self._fail("describe_transaction")
        return (
            None
            if self.unknown
            else TransactionDescription(self.state, self.producer, 0, self.started_ms, self.partitions)
        )

    def hides(self, topic: str) -> bool:
        return topic in self.hidden

    def current_transaction_start_offsets(
        self, partitions: Iterable[TopicPartition], producer: ProducerIdentity, *, deleted_too: bool = False
    ) -> dict[TopicPartition, int]:
        self._fail("current_transaction_start_offsets")
        self.asked.append((frozenset(partitions), producer))
        return {partition: offset for partition, offset in self.starts.items() if partition in self.asked[-1][0]}

    def end_txn(self, _id: str, producer: ProducerIdentity, committed: bool, *, repeatable: bool) -> ProducerIdentity:
        self._fail("end_txn")
        self.ended.append((producer, committed, repeatable))
        return producer

    def logs(self, timeout: float | None = None) -> FakeLogs:
        self.log.timeouts.append(timeout)
        return self.log

    def close(self) -> None:
        self.closed += 1

    def _fail(self, name: str) -> None:
        if name in self.failures:
            raise self.failures[name]
