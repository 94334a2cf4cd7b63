"""DescribeQuorum (55), v0-v2 (KIP-595, KIP-836, KIP-853).

Describes the quorum of ``__cluster_metadata-0``: its leader and only voter is the one node, and its offsets are those
of the broker's journal. There are no observers. v2 names the node without an address, because it has no listener for
other controllers. Any other partition gets UNKNOWN_TOPIC_OR_PARTITION.
"""

import uuid
from typing import Any

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.cluster import CLUSTER_METADATA
from dualwrite.broker.runtime.partition import LEADER_EPOCH
from dualwrite.wire.apis import ApiKey, DescribeQuorumResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_QUORUM
VERSIONS = range(3)
_DESCRIBE = on_cluster(AclOperation.DESCRIBE)
NEEDS = (_DESCRIBE,)

_Topic = DescribeQuorumResponse.TopicData
_Partition = _Topic.PartitionData
_QUORUM = [(CLUSTER_METADATA, [0])]
_NO_DIRECTORY = uuid.UUID(int=0)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe the quorum of one voter."""
    if not broker.may(_DESCRIBE):
        return DescribeQuorumResponse(error_code=_DESCRIBE.error, error_message=_DESCRIBE.message, topics=[], nodes=[])
    requested = [(topic.topic_name, [entry.partition_index for entry in topic.partitions]) for topic in request.topics]
    if requested != _QUORUM:
        topics = []
        async for name, indexes in in_turns(requested):
            topics.append(_Topic(topic_name=name, partitions=[_unknown(index) async for index in in_turns(indexes)]))
        return DescribeQuorumResponse(error_code=ErrorCode.NONE, error_message=None, topics=topics, nodes=[])
    quorum = _describe(broker)
    await broker.flusher.barrier()  # its offsets are on disk now
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        topics=[_Topic(topic_name=CLUSTER_METADATA, partitions=[quorum])],
        nodes=[DescribeQuorumResponse.Node(node_id=broker.node_id, listeners=[])],
    )


def _describe(broker: BrokerContext) -> Message:
    end_offset, now_ms = broker.cluster.journal_end_offset, broker.clock.wall_ms()
    voter = _Partition.ReplicaState(
        replica_id=broker.node_id,
        replica_directory_id=_NO_DIRECTORY,
        log_end_offset=end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    return _partition(
        0, leader_id=broker.node_id, leader_epoch=LEADER_EPOCH, high_watermark=end_offset, current_voters=[voter]
    )


def _unknown(index: int) -> Message:
    return _partition(
        index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message="the quorum is __cluster_metadata-0"
    )


def _partition(index: int, **fields: Any) -> Message:
    unset: dict[str, Any] = {
        "error_code": ErrorCode.NONE, "error_message": None, "leader_id": 0, "leader_epoch": 0, "high_watermark": 0,
        "current_voters": [], "observers": [],
    }  # fmt: skip
    return _Partition(partition_index=index, **{**unset, **fields})
