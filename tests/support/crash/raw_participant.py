"""A participant made of single requests (TV2), sound as it stands, and ways to break it: the tests' control group."""

import time
from collections.abc import Callable
from typing import Any

from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import KafkaUnavailableError
from dualwrite.ids import NO_PRODUCER, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.apis import Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.apache_kafka.cluster import KafkaCluster
from tests.support.crash.cluster_producers import FAILOVER_SECONDS, Make
from tests.support.requests.calls import end, identity, init, produce, tx_batch
from tests.support.requests.raw_client import RawClient

PASSING = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Errors that are waited out."""

_PAUSE_SECONDS = 0.02


def raw(cluster: KafkaCluster, ports: dict[int, int], kind: "type[RawParticipant] | None" = None) -> Make:
    """Makes participants that reach the nodes of ``cluster`` through ``ports``."""
    return lambda name: (kind or RawParticipant)(cluster, ports, name)


class RawParticipant(KafkaParticipant):
    """Sends a transaction's records when it is prepared, and the same bytes again until they are acknowledged."""

    def __init__(self, cluster: KafkaCluster, ports: dict[int, int], name: str) -> None:
        self._cluster = cluster
        self._ports = ports
        self._name = name
        self._clients: dict[int, RawClient] = {}
        self._nodes: dict[TopicPartition | None, int] = {}
        """Who leads a partition; under None, who coordinates."""
        self._producer: ProducerIdentity = NO_PRODUCER
        self._records: dict[TopicPartition, list[tuple[bytes, Any]]] = {}

    @property
    def is_reusable(self) -> bool:
        return True

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        assert not keep_prepared_txn
        self._producer = identity(self._of_coordinator(lambda client: init(client, self._name, version=5)))

    def begin_transaction(self) -> None:
        self._records = {}

    def produce(self, record: OutgoingRecord) -> None:
        assert record.value is not None
        place = TopicPartition(record.topic, record.partition)
        self._records.setdefault(place, []).append((record.value, record.on_delivery))

    def prepare_transaction(self) -> PreparedTxnState:
        for place, records in self._records.items():
            self.writes(place, [value for value, _ in records], [report for _, report in records])
        return PreparedTxnState(self._producer)

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        raise NotImplementedError

    def commit_transaction(self) -> None:
        self.ends(True)

    def abort_transaction(self) -> None:
        self.ends(False)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def writes(self, place: TopicPartition, values: list[bytes], reports: list[Any]) -> None:
        """One batch, until it is acknowledged."""
        content = self.batch(values, 0)
        answer = self._of_leader(
            place,
            lambda client: produce(client, place.topic, content, self._name, partition=place.partition, version=12),
        )
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        for offset, (value, report) in enumerate(zip(values, reports, strict=True), answer.base_offset):
            report(None, Delivered(value, offset))

    def batch(self, values: list[bytes], sequence: int) -> bytes:
        """``values`` as the transaction's batch from ``sequence`` on. Its time is the present one: between an old one
        and that of a marker the log would begin a new segment each time."""
        return tx_batch(values, self._producer, sequence, timestamp=int(time.time() * 1000))

    def ends(self, commit: bool) -> None:
        """EndTxn under the transaction's own identity, until it is answered."""
        self._producer = identity(self._of_coordinator(lambda client: end(client, self._name, self._producer, commit)))

    def _of_leader(self, place: TopicPartition, call: Callable[[RawClient], Message]) -> Message:
        return self._persist(place, lambda: self._cluster.leader_of(place.topic, place.partition), call)

    def _of_coordinator(self, call: Callable[[RawClient], Message]) -> Message:
        return self._persist(None, lambda: self._cluster.coordinator_of(self._name), call)

    def _persist(
        self, whose: TopicPartition | None, find: Callable[[], int], call: Callable[[RawClient], Message]
    ) -> Message:
        deadline = time.monotonic() + FAILOVER_SECONDS
        while time.monotonic() < deadline:
            if whose not in self._nodes:
                self._nodes[whose] = find()
            node = self._nodes[whose]
            try:
                if node not in self._clients:
                    self._clients[node] = RawClient(f"127.0.0.1:{self._ports[node]}")
                answer = call(self._clients[node])
            except OSError as error:
                if node in self._clients:
                    self._clients.pop(node).close()
                    self.loses(error)
            else:
                if answer.error_code not in PASSING:
                    return answer
            del self._nodes[whose]
            time.sleep(_PAUSE_SECONDS)
        raise KafkaUnavailableError(f"{self._name}: no answer")

    def loses(self, error: OSError) -> None:
        """A connection was lost with a request under way. Nothing to do: it is sent again."""


class Delivered:
    """What a delivery report says."""

    def __init__(self, value: bytes, offset: int) -> None:
        self._value, self._offset = value, offset

    def value(self) -> bytes:
        return self._value

    def offset(self) -> int:
        return self._offset


class _GivesUpError(Exception):
    """An answer was lost."""


class GivingUp(RawParticipant):
    """Raises where an answer is lost: breaks nothing by itself."""

    def loses(self, error: OSError) -> None:
        raise _GivesUpError from error


class Resending(GivingUp):
    """Broken: sends a batch whose answer was lost again under the next sequence, as if it had never been sent."""

    def writes(self, place: TopicPartition, values: list[bytes], reports: list[Any]) -> None:
        try:
            super().writes(place, values, reports)
        except _GivesUpError:
            content = self.batch(values, len(values))
            self._of_leader(
                place,
                lambda client: produce(client, place.topic, content, self._name, partition=place.partition, version=12),
            )


class Believing(GivingUp):
    """Broken: takes an EndTxn without an answer for carried out."""

    def ends(self, commit: bool) -> None:
        try:
            super().ends(commit)
        except _GivesUpError:
            self.init_transactions()


class Doubting(GivingUp):
    """Says that nobody knows where an EndTxn has no answer: sound, if its caller takes it for what it is."""

    def ends(self, commit: bool) -> None:
        try:
            super().ends(commit)
        except _GivesUpError as error:
            raise KafkaUnavailableError("EndTxn: no answer") from error


class Tearing(Doubting):
    """Broken: one unit is two transactions."""

    def prepare_transaction(self) -> PreparedTxnState:
        *before, last = self._records.items()
        for place, records in before:
            self.writes(place, [value for value, _ in records], [report for _, report in records])
        if before:
            self._producer = identity(self._of_coordinator(lambda client: end(client, self._name, self._producer)))
        self.writes(last[0], [value for value, _ in last[1]], [report for _, report in last[1]])
        return PreparedTxnState(self._producer)
