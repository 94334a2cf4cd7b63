"""DescribeLogDirs (35), v1-v5.

The one data directory with its partitions, all of them or those that the request names, and their sizes on disk; from
v4 on the volume's size and what is left of it (KIP-827). Partitions that do not exist are left out, as by Kafka. No
directory is ever cordoned (v5). ACL: none yet.
"""

from collections.abc import Iterator

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.runtime.partition import Partition
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, DescribeLogDirsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_LOG_DIRS
VERSIONS = range(1, 6)

_Result = DescribeLogDirsResponse.DescribeLogDirsResult


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe the data directory."""
    by_topic: dict[str, list[Message]] = {}
    for partition in _wanted(request, broker):
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


def _wanted(request: Message, broker: BrokerContext) -> Iterator[Partition]:
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
