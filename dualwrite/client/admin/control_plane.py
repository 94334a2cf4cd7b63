"""The control plane of transactions: requests that librdkafka and kafka-python cannot send.

InitProducerId v6 (KIP-939), EndTxn with any identity, DescribeTransactions, ListTransactions and DescribeProducers
(KIP-664), and reading from the log how a transaction ended. It never produces a record.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dualwrite.client.admin.cluster_client import DEFAULT_TIMEOUT, ClusterClient, Connect
from dualwrite.client.admin.log_reader import LogReader
from dualwrite.client.admin.offsets import by_leader
from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.net.blocking_connection import BlockingConnection
from dualwrite.client.protocol.requests import (
    TWO_PHASE_VERSION,
    InitializedProducer,
    describe_producers,
    describe_transactions,
    end_txn,
    identity_in,
    init_producer_id,
    initialized_in,
    list_transactions,
)
from dualwrite.client.terms.error_classes import raise_for
from dualwrite.client.terms.versions import TRANSACTION_VERSION
from dualwrite.errors import KafkaUnavailableError
from dualwrite.ids import NO_PRODUCER, TWO_PHASE_TIMEOUT_MS, ProducerIdentity, TopicPartition
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The answer to DescribeTransactions for one transactional id. Durations and times are in milliseconds.

    :param state: Kafka's name: Empty, Ongoing, PrepareCommit, CompleteCommit, PrepareAbort, CompleteAbort, …
    :param start_ms: when the transaction began, since the epoch; -1 if none is open.
    :param partitions: those of the open transaction; while markers are written, those that still lack one.
    """

    state: str
    producer: ProducerIdentity
    timeout_ms: int
    start_ms: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One transaction of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str


class ControlPlane:
    """Asks coordinators and leaders about transactions, and ends them. Not thread-safe.

    Every method raises KafkaUnavailableError if the cluster gave no usable answer within ``timeout`` seconds, and
    KafkaRefusedError for an error code that no retry cures.

    :param config: librdkafka's keys: bootstrap.servers, client.id, security.protocol, ssl.*, sasl.*, socket.timeout.ms.
    :param timeout: seconds that a call may take, with all attempts.
    :param clock: monotonic seconds.
    :param sleep: waits between attempts.
    :param connect: opens a connection to an endpoint.
    :raises ConfigurationError: if a setting is missing, malformed, or cannot be honoured.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout: float = DEFAULT_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        connect: Connect = BlockingConnection,
    ) -> None:
        self._cluster = ClusterClient(
            ClientSettings.from_config(config), timeout=timeout, clock=clock, sleep=sleep, connect=connect
        )

    @property
    def lost_connections(self) -> int:
        """How many connections were lost and replaced."""
        return self._cluster.lost_connections

    def init_producer_id(
        self,
        transactional_id: str,
        *,
        transaction_timeout_ms: int = TWO_PHASE_TIMEOUT_MS,
        two_phase_commit: bool,
        keep_prepared_txn: bool,
        expected: ProducerIdentity = NO_PRODUCER,
    ) -> InitializedProducer:
        """InitProducerId v6 (KIP-939): fence every earlier producer; abort the open transaction, or keep it.

        If the answer is lost, the call asks again: that fences only the identity of the lost answer, which no client
        has.

        :param expected: the identity that the caller holds; the call fails if a newer one exists (KIP-360).
        :raises TwoPhaseCommitUnavailableError: if the cluster has no v6, or two-phase commit is off or not permitted.
        :raises FencedError: if ``expected`` is out of date.
        """
        call = init_producer_id(
            transactional_id,
            transaction_timeout_ms,
            two_phase_commit=two_phase_commit,
            keep_prepared_txn=keep_prepared_txn,
            expected=expected,
        )
        answer = self._cluster.ask_coordinator(transactional_id, call)
        raise_for(call.api_key, call.operation, answer.error_code, two_phase=call.needs_two_phase)
        return initialized_in(answer)

    def end_txn(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        committed: bool,
        *,
        bumps_epoch: bool = False,
        repeatable: bool = False,
    ) -> ProducerIdentity:
        """EndTxn: commit or abort the open transaction of ``transactional_id`` as ``producer``.

        :param bumps_epoch: True for v5 (KIP-890 part 2), which fences ``producer``; otherwise the identity stays.
        :param repeatable: True only if no transaction will ever begin under ``producer``, as with the identity from an
            InitProducerId with keepPreparedTxn. Then an EndTxn that arrives late or twice finds the transaction ended
            and changes nothing, so the call asks again after a lost answer.
        :returns: the identity of the next transaction.
        :raises AnswerLostError: if the answer was lost and ``repeatable`` is False: the outcome is unknown.
        :raises FencedError: if another producer has a newer identity.
        :raises KafkaRefusedError: INVALID_TXN_STATE if no transaction is open, or it ended the other way.
        """
        call = end_txn(transactional_id, producer, committed, bumps_epoch=bumps_epoch, repeatable=repeatable)
        answer = self._cluster.ask_coordinator(transactional_id, call)
        raise_for(call.api_key, call.operation, answer.error_code)
        return identity_in(answer) or producer

    def describe_transaction(self, transactional_id: str) -> TransactionDescription | None:
        """DescribeTransactions: the coordinator's description; None if it does not know the transactional id."""
        call = describe_transactions(transactional_id)
        answer = self._cluster.ask_coordinator(transactional_id, call, lambda answer: _only_state(answer).error_code)
        described = _only_state(answer)
        if described.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        raise_for(call.api_key, call.operation, described.error_code)
        return TransactionDescription(
            described.transaction_state,
            identity_in(described),
            described.transaction_timeout_ms,
            described.transaction_start_time_ms,
            frozenset(TopicPartition(entry.topic, index) for entry in described.topics for index in entry.partitions),
        )

    def current_transaction_start_offsets(
        self, partitions: Iterable[TopicPartition], producer: ProducerIdentity, *, deleted_too: bool = False
    ) -> dict[TopicPartition, int]:
        """DescribeProducers at the leaders: where the open transaction of ``producer`` began.

        :param deleted_too: ``partitions`` may include deleted topics; they are left out.
        :returns: the offset of the transaction's first record, for each of ``partitions`` in which it has one.
        :raises KafkaRefusedError: if a topic is unknown, or the READ operation on it is not granted.
        """
        missing = set(partitions)
        first_offsets: dict[TopicPartition, int] = {}

        def attempt(deadline: float) -> None:
            leaders = self._cluster.leaders(missing, deadline, deleted_too=deleted_too)
            missing.intersection_update(leaders)
            for endpoint, group in by_leader(leaders).items():
                answer = self._cluster.ask(endpoint, describe_producers(group), deadline)
                for topic in answer.topics:
                    for entry in topic.partitions:
                        partition = TopicPartition(topic.name, entry.partition_index)
                        if not (deleted_too and entry.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                            raise_for(ApiKey.DESCRIBE_PRODUCERS, f"DescribeProducers of {partition}", entry.error_code)
                        for offset in _starts(entry.active_producers, producer):
                            first_offsets[partition] = offset
                        missing.discard(partition)
            if missing:  # a partition that is left out must never read as "no transaction there"
                raise KafkaUnavailableError(
                    f"DescribeProducers: no answer about {', '.join(map(str, sorted(missing)))}"
                )

        if missing:
            self._cluster.persist(attempt)
        return first_offsets

    def hides(self, topic: str) -> bool:
        """True if this client may not describe ``topic``: then describe_transaction leaves its partitions out."""

        def attempt(deadline: float) -> bool:
            described = self._cluster.described_topics([topic], deadline)
            return any(entry.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED for entry in described)

        return self._cluster.persist(attempt)

    def list_transactions(self) -> list[TransactionListing]:
        """ListTransactions at every broker, as each coordinates some of the transactional ids."""

        def attempt(deadline: float) -> list[TransactionListing]:
            call, listed = list_transactions(), []
            for endpoint in self._cluster.brokers(deadline):
                answer = self._cluster.ask(endpoint, call, deadline)
                raise_for(call.api_key, f"{call.operation}: broker {endpoint}", answer.error_code)
                listed += [
                    TransactionListing(entry.transactional_id, entry.producer_id, entry.transaction_state)
                    for entry in answer.transaction_states
                ]
            return sorted(listed, key=lambda listing: listing.transactional_id)

        return self._cluster.persist(attempt)

    def logs(self, timeout: float | None = None) -> LogReader:
        """The logs of the cluster's partitions.

        :param timeout: seconds that a request may take; None for the ``timeout`` of the control plane.
        """
        return LogReader(self._cluster, timeout)

    def supports_keep_prepared(self) -> bool:
        """True if a broker advertises InitProducerId v6. Only InitProducerId itself tells whether two-phase commit is
        enabled and permitted, and whether the broker carries out KeepPreparedTxn."""
        return self._cluster.any_connection().offers(ApiKey.INIT_PRODUCER_ID, TWO_PHASE_VERSION)

    def cluster_id(self) -> str | None:
        """Kafka's cluster id; None if the cluster has none."""
        return self._cluster.persist(self._cluster.cluster_id)

    def transaction_version(self) -> int:
        """The finalized level of the feature transaction.version; 0 if the cluster does not know it. From level 2 on,
        the cluster speaks KIP-890 part 2."""
        return self._cluster.any_connection().versions.features.get(TRANSACTION_VERSION, 0)

    def close(self) -> None:
        """Close every connection."""
        self._cluster.close()


def _only_state(answer: Message) -> Message:
    if len(answer.transaction_states) != 1:
        raise KafkaUnavailableError(f"DescribeTransactions: {len(answer.transaction_states)} answers to one question")
    return answer.transaction_states[0]


def _starts(active: Iterable[Message], producer: ProducerIdentity) -> list[int]:
    """CurrentTxnStartOffset of ``producer`` in one partition; empty if it has no open transaction there."""
    return [
        entry.current_txn_start_offset
        for entry in active
        if identity_in(entry) == producer and entry.current_txn_start_offset >= 0
    ]
