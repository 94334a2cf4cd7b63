"""AddPartitionsToTxn (24), v0-v5.

Partitions join a transaction and begin it. All of a transaction's partitions are added or none: if one is unknown, it
is told so and the others OPERATION_NOT_ATTEMPTED; the broker's own topics are not to be written to
(TOPIC_AUTHORIZATION_FAILED). v4 and v5 carry several transactions and may only verify (KIP-890): TRANSACTION_ABORTABLE.
Before v2 a fenced client is told INVALID_PRODUCER_EPOCH. ACL: none yet.
"""

from collections.abc import Iterable, Mapping

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.transactions.init_producer_id import fenced_as
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.cluster import INTERNAL_TOPICS
from dualwrite.broker.core.commands import AddPartitions, VerifyPartitions
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.wire.apis import AddPartitionsToTxnResponse, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.ADD_PARTITIONS_TO_TXN
VERSIONS = range(6)

_FIRST_WITH_FENCED = 2
_FIRST_WITH_SEVERAL = 4


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Add, or verify, the partitions of every transaction of the request."""
    if version < _FIRST_WITH_SEVERAL:
        producer = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        partitions = _partitions(request.v3_and_below_topics)
        transactional_id = request.v3_and_below_transactional_id
        errors = await _add(transactional_id, producer, partitions, False, version, broker)
        return AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_topic_v3_and_below=_by_topic(errors))
    results = []
    for transaction in request.transactions:
        producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
        partitions = _partitions(transaction.topics)
        transactional_id = transaction.transactional_id
        errors = await _add(transactional_id, producer, partitions, transaction.verify_only, version, broker)
        results.append(
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=transactional_id, topic_results=_by_topic(errors)
            )
        )
    return AddPartitionsToTxnResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, results_by_transaction=results)


async def _add(
    transactional_id: str,
    producer: ProducerIdentity,
    partitions: frozenset[TopicPartition],
    verify_only: bool,
    version: int,
    broker: BrokerContext,
) -> Mapping[TopicPartition, ErrorCode]:
    refused = {name: error async for name in in_turns(partitions) if (error := _refusal(name, broker))}
    if refused:
        return {name: refused.get(name, ErrorCode.OPERATION_NOT_ATTEMPTED) async for name in in_turns(partitions)}
    command = VerifyPartitions if verify_only else AddPartitions
    reply = await broker.coordinator.execute(command(transactional_id, producer, partitions))
    return dict.fromkeys(partitions, fenced_as(reply.error, version >= _FIRST_WITH_FENCED))


def _refusal(name: TopicPartition, broker: BrokerContext) -> ErrorCode:
    if name.topic in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE if broker.cluster.partition(name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _partitions(topics: Iterable[Message]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)


def _by_topic(errors: Mapping[TopicPartition, ErrorCode]) -> list[Message]:
    topic_result = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    partition_result = topic_result.AddPartitionsToTxnPartitionResult
    by_topic: dict[str, list[tuple[int, ErrorCode]]] = {}
    for name, error in errors.items():
        by_topic.setdefault(name.topic, []).append((name.partition, error))
    return [
        topic_result(
            name=topic,
            results_by_partition=[
                partition_result(partition_index=index, partition_error_code=error) for index, error in sorted(results)
            ],
        )
        for topic, results in sorted(by_topic.items())
    ]
