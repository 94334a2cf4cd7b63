"""AddPartitionsToTxn (24), v0-v5.

Adds partitions to a transaction, and begins it if necessary. A transaction's partitions are added together or not at
all: if one is unknown, the others get OPERATION_NOT_ATTEMPTED. A topic of the broker itself gets
TOPIC_AUTHORIZATION_FAILED. Before v2 a fenced client gets INVALID_PRODUCER_EPOCH.

v4 and v5 (KIP-890) are for brokers; Kafka's clients send at most v3. Such a request may have several transactions, and
may ask only to verify that partitions were added: TRANSACTION_ABORTABLE if not.
"""

from collections.abc import Iterable, Mapping

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster, on_topic, on_transactional_id
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.transactions.init_producer_id import fenced_as
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.cluster import INTERNAL_TOPICS
from dualwrite.broker.core.commands import AddPartitions, VerifyPartitions
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.wire.apis import AddPartitionsToTxnResponse, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.producing import AddedPartition, AddedPartitions, AddedTopic

KEY = ApiKey.ADD_PARTITIONS_TO_TXN
VERSIONS = range(6)
_WRITE_ID = on_transactional_id(AclOperation.WRITE, "up to v3")
_WRITE = on_topic(AclOperation.WRITE, "up to v3")
_CLUSTER_ACTION = on_cluster(AclOperation.CLUSTER_ACTION, "from v4 on")
NEEDS = (_WRITE_ID, _WRITE, _CLUSTER_ACTION)

_FIRST_WITH_FENCED = 2
_FIRST_WITH_SEVERAL = 4


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Add, or verify, the partitions of every transaction of the request."""
    if version < _FIRST_WITH_SEVERAL:
        producer = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        partitions = _partitions(request.v3_and_below_topics)
        transactional_id = request.v3_and_below_transactional_id
        if broker.may(_WRITE_ID, transactional_id):
            errors = await _add(transactional_id, producer, partitions, False, version, broker)
        else:
            errors = dict.fromkeys(partitions, _WRITE_ID.error)
        by_topic = [
            AddedTopic(topic, [AddedPartition(index, error) for index, error in results])
            for topic, results in _by_topic(errors)
        ]
        return AddedPartitions(0, by_topic)
    if not broker.may(_CLUSTER_ACTION):
        return AddPartitionsToTxnResponse(
            throttle_time_ms=0, error_code=_CLUSTER_ACTION.error, results_by_transaction=[]
        )
    results = []
    for transaction in request.transactions:
        producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
        partitions = _partitions(transaction.topics)
        transactional_id = transaction.transactional_id
        errors = await _add(transactional_id, producer, partitions, transaction.verify_only, version, broker)
        results.append(
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=transactional_id, topic_results=_topic_results(errors)
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
    refused = {name: error async for name in in_turns(partitions) if (error := _refusal(name, version, broker))}
    if refused:
        return {name: refused.get(name, ErrorCode.OPERATION_NOT_ATTEMPTED) async for name in in_turns(partitions)}
    command = VerifyPartitions if verify_only else AddPartitions
    reply = await broker.coordinator.execute(command(transactional_id, producer, partitions))
    return dict.fromkeys(partitions, fenced_as(reply.error, version >= _FIRST_WITH_FENCED))


def _refusal(name: TopicPartition, version: int, broker: BrokerContext) -> ErrorCode:
    is_client = version < _FIRST_WITH_SEVERAL
    if name.topic in INTERNAL_TOPICS or (is_client and not broker.may(_WRITE, name.topic)):
        return _WRITE.error
    return ErrorCode.NONE if broker.cluster.partition(name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _partitions(topics: Iterable[Message]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)


def _by_topic(errors: Mapping[TopicPartition, ErrorCode]) -> list[tuple[str, list[tuple[int, ErrorCode]]]]:
    """The topics by name, each with its partitions and their errors by index."""
    by_topic: dict[str, list[tuple[int, ErrorCode]]] = {}
    for name, error in sorted(errors.items()):
        by_topic.setdefault(name.topic, []).append((name.partition, error))
    return list(by_topic.items())


def _topic_results(errors: Mapping[TopicPartition, ErrorCode]) -> list[Message]:
    topic_result = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    partition_result = topic_result.AddPartitionsToTxnPartitionResult
    return [
        topic_result(
            name=topic,
            results_by_partition=[
                partition_result(partition_index=index, partition_error_code=error) for index, error in results
            ],
        )
        for topic, results in _by_topic(errors)
    ]
