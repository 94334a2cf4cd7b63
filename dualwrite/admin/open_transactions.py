"""Transactions that are open in partitions, with what the coordinators tell of them (KIP-664)."""

from collections.abc import Collection, Iterable
from datetime import datetime, timezone

from dualwrite.admin.views import OpenTransaction
from dualwrite.client.admin.cluster_client import ClusterClient
from dualwrite.client.admin.offsets import by_leader
from dualwrite.client.protocol.requests import describe_producers, describe_transactions, identity_in, list_transactions
from dualwrite.client.terms.error_classes import raise_for
from dualwrite.errors import KafkaRefusedError
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

_Started = tuple[TopicPartition, ProducerIdentity, int]
"""A producer's open transaction in a partition, and its first offset there."""


def transactional_ids(cluster: ClusterClient, producer_ids: Collection[int]) -> dict[int, str]:
    """The transactional ids of ``producer_ids``, by ListTransactions at every broker. Ids are missing that no
    coordinator knows (any more) or that this client may not describe; all of them if the brokers lack the request."""

    def attempt(deadline: float) -> dict[int, str]:
        call, names = list_transactions(sorted(producer_ids)), {}
        for endpoint in cluster.brokers(deadline):
            answer = cluster.ask(endpoint, call, deadline)
            raise_for(call.api_key, f"{call.operation}: broker {endpoint}", answer.error_code)
            names.update({entry.producer_id: entry.transactional_id for entry in answer.transaction_states})
        return names

    try:
        return cluster.persist(attempt) if producer_ids else {}
    except KafkaRefusedError:
        return {}


def open_transactions(
    cluster: ClusterClient, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[OpenTransaction, ...]]:
    """The open transactions of each of ``partitions``, in the order of their first offsets. Partitions are missing if
    READ on their topic is not granted, or the brokers lack DescribeProducers.

    :raises KafkaUnavailableError: if a partition has no leader until the deadline.
    """
    distinct = sorted(set(partitions))

    def attempt(deadline: float) -> tuple[set[TopicPartition], list[_Started]]:
        answered, started = set(), []
        for endpoint, group in by_leader(cluster.leaders(distinct, deadline, deleted_too=True)).items():
            for topic in cluster.ask(endpoint, describe_producers(group), deadline).topics:
                for entry in topic.partitions:
                    if entry.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                        continue
                    partition = TopicPartition(topic.name, entry.partition_index)
                    raise_for(ApiKey.DESCRIBE_PRODUCERS, f"DescribeProducers of {partition}", entry.error_code)
                    answered.add(partition)
                    started += [(partition, *begun) for begun in _begun(entry)]
        return answered, started

    try:
        answered, started = cluster.persist(attempt) if distinct else (set(), [])
    except KafkaRefusedError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        return {}
    names = transactional_ids(cluster, {producer.producer_id for _, producer, _ in started})
    moments = {name: _start_time(cluster, name) for name in sorted(set(names.values()))}
    found: dict[TopicPartition, list[OpenTransaction]] = {partition: [] for partition in sorted(answered)}
    for partition, producer, offset in sorted(started, key=lambda begun: begun[2]):
        name = names.get(producer.producer_id)
        found[partition].append(OpenTransaction(name, producer, offset, moments.get(name or "")))
    return {partition: tuple(transactions) for partition, transactions in found.items()}


def _begun(entry: Message) -> list[tuple[ProducerIdentity, int]]:
    return [
        (identity_in(producer), producer.current_txn_start_offset)
        for producer in entry.active_producers
        if producer.current_txn_start_offset >= 0
    ]


def _start_time(cluster: ClusterClient, transactional_id: str) -> datetime | None:
    """When the transaction began; None if none is open any more, or it may not be described."""
    call = describe_transactions(transactional_id)
    try:
        answer = cluster.ask_coordinator(transactional_id, call, lambda answer: answer.transaction_states[0].error_code)
    except KafkaRefusedError:
        return None
    (described,) = answer.transaction_states
    if described.error_code or described.transaction_start_time_ms <= 0:
        return None
    return datetime.fromtimestamp(described.transaction_start_time_ms / 1000, timezone.utc)
