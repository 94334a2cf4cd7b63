"""AlterPartitionReassignments (45), v0-v1 (KIP-455).

The replicas of a partition can only be the one node, which they are, so a request for it changes nothing. Other
replicas are refused with INVALID_REPLICA_ASSIGNMENT, and the cancellation of a reassignment (null) with
NO_REASSIGNMENT_IN_PROGRESS. A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION. v1's permission to change
the replication factor (KIP-860) makes no difference.
"""

from collections.abc import Callable

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.cluster import RefusedError, check_replicas
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import AlterPartitionReassignmentsResponse, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.ALTER_PARTITION_REASSIGNMENTS
VERSIONS = range(2)
_ALTER = on_cluster(AclOperation.ALTER)
NEEDS = (_ALTER,)

_Topic = AlterPartitionReassignmentsResponse.ReassignableTopicResponse


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Answer for each partition whether its replicas are the requested ones."""
    is_allowed = broker.may(_ALTER)

    def check(topic: str, partition: Message) -> None:
        if not is_allowed:
            raise RefusedError(_ALTER.error, _ALTER.message)
        _check(topic, partition, broker)

    topics = []
    async for topic in in_turns(request.topics):
        partitions = [_answer(topic.name, partition, check) async for partition in in_turns(topic.partitions)]
        topics.append(_Topic(name=topic.name, partitions=partitions))
    await broker.flusher.barrier()
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE if is_allowed else _ALTER.error,
        error_message=None if is_allowed else _ALTER.message,
        responses=topics,
    )


def _answer(topic: str, partition: Message, check: Callable[[str, Message], None]) -> Message:
    error, message = ErrorCode.NONE, None
    try:
        check(topic, partition)
    except RefusedError as refused:
        error, message = refused.error, str(refused)
    return _Topic.ReassignablePartitionResponse(
        partition_index=partition.partition_index, error_code=error, error_message=message
    )


def _check(topic: str, partition: Message, broker: BrokerContext) -> None:
    """Refuse the request unless it asks for the replicas that the partition has."""
    index, replicas = partition.partition_index, partition.replicas
    if broker.cluster.partition(TopicPartition(topic, index)) is None:
        message = f"there is no partition {index} of a topic '{topic}'"
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    if replicas is None:
        raise RefusedError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    check_replicas(replicas, broker.node_id)
