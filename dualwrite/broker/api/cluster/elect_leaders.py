"""ElectLeaders (43), v0-v2 (KIP-183, KIP-460).

The one node leads every partition and is its preferred leader, so no election is needed: a partition that the request
names gets ELECTION_NOT_NEEDED, and the answer for all partitions (a null list) has no partition. Errors:
UNKNOWN_TOPIC_OR_PARTITION; INVALID_REQUEST for an unknown type of election (v1).
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, ElectLeadersResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.ELECT_LEADERS
VERSIONS = range(3)
_ALTER = on_cluster(AclOperation.ALTER)
NEEDS = (_ALTER,)

_PREFERRED, _UNCLEAN = 0, 1
_Topic = ElectLeadersResponse.ReplicaElectionResult


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Answer that every existing partition has its leader."""
    if not broker.may(_ALTER):
        return await _refuse(request, _ALTER.error, _ALTER.message)
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        return await _refuse(request, ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    if request.topic_partitions is None:
        topics = [_Topic(topic=name, partition_result=[]) for name in broker.cluster.topics()]
    else:
        topics = [await _elect(topic, broker) async for topic in in_turns(request.topic_partitions)]
    await broker.flusher.barrier()
    return ElectLeadersResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, replica_election_results=topics)


async def _elect(topic: Message, broker: BrokerContext) -> Message:
    results = []
    async for index in in_turns(topic.partitions):
        if broker.cluster.partition(TopicPartition(topic.topic, index)) is not None:
            error, message = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        else:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            message = f"there is no partition {index} of a topic '{topic.topic}'"
        results.append(_result(index, error, message))
    return _Topic(topic=topic.topic, partition_result=results)


async def _refuse(request: Message, error: ErrorCode, message: str) -> Message:
    topics = []
    async for topic in in_turns(request.topic_partitions or ()):
        results = [_result(index, error, message) async for index in in_turns(topic.partitions)]
        topics.append(_Topic(topic=topic.topic, partition_result=results))
    return ElectLeadersResponse(throttle_time_ms=0, error_code=error, replica_election_results=topics)


def _result(index: int, error: ErrorCode, message: str) -> Message:
    return _Topic.PartitionResult(partition_id=index, error_code=error, error_message=message)
