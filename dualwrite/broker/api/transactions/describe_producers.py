"""DescribeProducers (61), v0 (KIP-664).

Answers the producers that a partition knows. CurrentTxnStartOffset is the first offset of the producer's open
transaction in the partition, or -1. dualwrite's recovery compares it with the anchor of its transaction.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_topic
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.ids import TopicPartition, is_legal_topic
from dualwrite.wire.apis import ApiKey, DescribeProducersResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_PRODUCERS
VERSIONS = range(1)
_READ = on_topic(AclOperation.READ)
NEEDS = (_READ,)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe the producers of every partition of the request."""
    response = DescribeProducersResponse.TopicResponse
    topics = [
        response(
            name=topic.name,
            partitions=[
                _describe(TopicPartition(topic.name, index), broker)
                async for index in in_turns(dict.fromkeys(topic.partition_indexes))
            ],
        )
        async for topic in in_turns(request.topics)
    ]
    await broker.flusher.barrier()
    return DescribeProducersResponse(throttle_time_ms=0, topics=topics)


def _describe(name: TopicPartition, broker: BrokerContext) -> Message:
    response = DescribeProducersResponse.TopicResponse.PartitionResponse
    if is_legal_topic(name.topic) and not broker.may(_READ, name.topic):
        return response(partition_index=name.partition, error_code=_READ.error, error_message=None, active_producers=[])
    partition = broker.cluster.partition(name)
    if partition is None:
        legal = is_legal_topic(name.topic)
        return response(
            partition_index=name.partition,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION,
            error_message=f"there is no partition {name}",
            active_producers=[],
        )
    return response(
        partition_index=name.partition,
        error_code=ErrorCode.NONE,
        error_message=None,
        active_producers=[
            response.ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.transaction_start,
            )
            for entry in partition.state.producers.values()
        ],
    )
