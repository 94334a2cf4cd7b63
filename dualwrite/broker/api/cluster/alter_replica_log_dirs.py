"""AlterReplicaLogDirs (34), v1-v2 (KIP-113).

There is one data directory, the one that DescribeLogDirs answers. A request for it changes nothing; any other directory
gets LOG_DIR_NOT_FOUND, and a partition that does not exist UNKNOWN_TOPIC_OR_PARTITION.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import AlterReplicaLogDirsResponse, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.ALTER_REPLICA_LOG_DIRS
VERSIONS = range(1, 3)
_ALTER = on_cluster(AclOperation.ALTER)
NEEDS = (_ALTER,)

_Topic = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Answer for each partition whether it is in the requested directory."""
    is_allowed = broker.may(_ALTER)
    results: dict[str, list[Message]] = {}
    async for directory in in_turns(request.dirs):
        async for topic in in_turns(directory.topics):
            async for index in in_turns(topic.partitions):
                error = _move(directory.path, TopicPartition(topic.name, index), broker) if is_allowed else _ALTER.error
                result = _Topic.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error)
                results.setdefault(topic.name, []).append(result)
    await broker.flusher.barrier()
    topics = [_Topic(topic_name=name, partitions=partitions) for name, partitions in results.items()]
    return AlterReplicaLogDirsResponse(throttle_time_ms=0, results=topics)


def _move(path: str, partition: TopicPartition, broker: BrokerContext) -> ErrorCode:
    if path != str(broker.cluster.data_dir.absolute()):
        return ErrorCode.LOG_DIR_NOT_FOUND
    return ErrorCode.NONE if broker.cluster.partition(partition) is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
