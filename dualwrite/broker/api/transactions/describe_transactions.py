"""DescribeTransactions (65), v0 (KIP-664).

ProducerId and ProducerEpoch are the identity of the transaction's records. While the broker keeps a prepared
transaction for a recovering client, the client itself has another identity (KIP-939). An id that occurs twice is
described once.
"""

from collections.abc import Iterable

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_topic, on_transactional_id
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.facts.transactions import TransactionRecorded
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, DescribeTransactionsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_TRANSACTIONS
VERSIONS = range(1)
_DESCRIBE_ID = on_transactional_id(AclOperation.DESCRIBE)
_DESCRIBE = on_topic(AclOperation.DESCRIBE, "other topics are left out", is_refused=False)
NEEDS = (_DESCRIBE_ID, _DESCRIBE)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe every transactional id of the request."""
    names = dict.fromkeys(request.transactional_ids)
    states = [_describe(name, broker) async for name in in_turns(names)]
    await broker.flusher.barrier()
    return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=states)


def _describe(transactional_id: str, broker: BrokerContext) -> Message:
    state = DescribeTransactionsResponse.TransactionState
    if not broker.may(_DESCRIBE_ID, transactional_id):
        return state(error_code=_DESCRIBE_ID.error, transactional_id=transactional_id)
    if not transactional_id:
        return state(error_code=ErrorCode.INVALID_REQUEST, transactional_id=transactional_id)
    entry: TransactionRecorded | None = broker.coordinator.table.entries.get(transactional_id)
    if entry is None:
        return state(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=transactional_id)
    return state(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=entry.status.kafka_name,
        transaction_timeout_ms=entry.timeout_ms,
        transaction_start_time_ms=entry.started_ms,
        producer_id=entry.producer.producer_id,
        producer_epoch=entry.producer.epoch,
        topics=_topics(name for name in entry.partitions if broker.may(_DESCRIBE, name.topic)),
    )


def _topics(partitions: Iterable[TopicPartition]) -> list[Message]:
    by_topic: dict[str, list[int]] = {}
    for name in sorted(partitions):
        by_topic.setdefault(name.topic, []).append(name.partition)
    data = DescribeTransactionsResponse.TransactionState.TopicData
    return [data(topic=topic, partitions=indexes) for topic, indexes in by_topic.items()]
