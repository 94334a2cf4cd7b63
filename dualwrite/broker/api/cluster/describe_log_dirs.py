"""DescribeLogDirs (35), v1-v5.

Answers the one data directory with the sizes of its partitions on disk: of the partitions that the request names, or of
all if it names none. The answer omits partitions that do not exist, as Kafka's does. From v4 on it has the size of the
volume and its free space (KIP-827). No directory is ever cordoned (v5).
"""

from collections.abc import Iterator

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.runtime.partition import Partition
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, DescribeLogDirsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_LOG_DIRS
VERSIONS = range(1, 6)
_DESCRIBE = on_cluster(AclOperation.DESCRIBE)
NEEDS = (_DESCRIBE,)

_Result = DescribeLogDirsResponse.DescribeLogDirsResult


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe the data directory."""
    if not broker.may(_DESCRIBE):
        return DescribeLogDirsResponse(throttle_time_ms=0, error_code=_DESCRIBE.error, results=[])
    by_topic: dict[str, list[Message]] = {}
    for partition in _requested_partitions(request, broker):
        by_topic.setdefault(partition.name.topic, []).append(_describe(partition))
    total, usable = broker.cluster.volume()
    result = _Result(
        error_code=ErrorCode.NONE,
        log_dir=str(broker.cluster.data_dir.absolute()),
        topics=[
            _Result.DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in by_topic.items()
        ],
        total_bytes=total,
        usable_bytes=usable,
        is_cordoned=False,
    )
    await broker.flusher.barrier()
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, results=[result])


def _requested_partitions(request: Message, broker: BrokerContext) -> Iterator[Partition]:
    if request.topics is None:
        names = [
            TopicPartition(topic.name, index)
            for topic in broker.cluster.topics().values()
            for index in range(topic.partitions)
        ]
    else:
        names = [TopicPartition(topic.topic, index) for topic in request.topics for index in topic.partitions]
    for name in dict.fromkeys(names):
        partition = broker.cluster.partition(name)
        if partition is not None:
            yield partition


def _describe(partition: Partition) -> Message:
    return _Result.DescribeLogDirsTopic.DescribeLogDirsPartition(
        partition_index=partition.name.partition,
        partition_size=partition.log.size_bytes,
        offset_lag=0,
        is_future_key=False,
    )
