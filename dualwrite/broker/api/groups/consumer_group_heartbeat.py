"""ConsumerGroupHeartbeat (68), v0-v1 (KIP-848).

A member of a consumer group joins (epoch 0), is alive, or leaves (epoch -1; -2 for a static member that will come
back). The answer has the member's epoch, and its partitions if they have changed. The broker assigns them, by the
assignor that most members prefer. A member first gives up what it has to give up; the next owner gets it after that.

From v1 on a member may subscribe by a regular expression in RE2's syntax, and chooses its own member id (KIP-1082). The
expression matches only topics on which the client has DESCRIBE. The broker stores rack ids and has no use for them.

A classic group of consumers becomes a consumer group when a member joins, and a classic group again when its last
member of this protocol has left (group.consumer.migration.policy).

Errors: INVALID_REQUEST; UNSUPPORTED_ASSIGNOR; INVALID_REGULAR_EXPRESSION; GROUP_MAX_SIZE_REACHED; GROUP_ID_NOT_FOUND,
also for a classic group that cannot become a consumer group; UNKNOWN_MEMBER_ID and FENCED_MEMBER_EPOCH, after which the
member joins again; UNRELEASED_INSTANCE_ID and FENCED_INSTANCE_ID if another client has the instance id.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import Need, on_group, on_topic
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.consumer_groups.commands import ConsumerHeartbeat, ConsumerHeartbeatReply
from dualwrite.broker.facts.assignments import TopicIdPartition, by_topic
from dualwrite.wire.apis import ApiKey, ConsumerGroupHeartbeatResponse, Message

KEY = ApiKey.CONSUMER_GROUP_HEARTBEAT
VERSIONS = range(2)
_READ = on_group(AclOperation.READ)
_DESCRIBE = on_topic(AclOperation.DESCRIBE, "of a regular expression: other topics do not match")
NEEDS = (_READ, _DESCRIBE)

_FIRST_WITH_OWN_IDS = 1


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Carry out the heartbeat."""
    lacking = await _lacking(request, broker)
    if lacking is not None:
        return _response(ConsumerHeartbeatReply(lacking.error))
    topics = request.subscribed_topic_names
    command = ConsumerHeartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        broker.client.client_id,
        broker.client.host,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if topics is None else tuple(topics),
        request.subscribed_topic_regex,
        request.server_assignor,
        None if request.topic_partitions is None else await _owned(request.topic_partitions),
        names_itself=version >= _FIRST_WITH_OWN_IDS,
    )
    return _response(await broker.consumer_groups.heartbeat(command, lambda name: broker.may(_DESCRIBE, name)))


async def _lacking(request: Message, broker: BrokerContext) -> Need | None:
    """A right that the client lacks."""
    if not broker.may(_READ, request.group_id):
        return _READ
    async for name in in_turns(request.subscribed_topic_names or ()):
        if not broker.may(_DESCRIBE, name):
            return _DESCRIBE
    return None


async def _owned(topics: list[Message]) -> frozenset[TopicIdPartition]:
    """The partitions that the member says to hold."""
    return frozenset(
        [TopicIdPartition(topic.topic_id, number) async for topic in in_turns(topics) for number in topic.partitions]
    )


def _response(reply: ConsumerHeartbeatReply) -> Message:
    response = ConsumerGroupHeartbeatResponse
    assignment = None
    if reply.assigned is not None:
        entry = response.Assignment.TopicPartitions
        topics = by_topic(reply.assigned).items()
        assignment = response.Assignment(
            topic_partitions=[entry(topic_id=topic_id, partitions=numbers) for topic_id, numbers in topics]
        )
    return response(
        throttle_time_ms=0,
        error_code=reply.error,
        error_message=reply.message,
        member_id=reply.member_id,
        member_epoch=reply.epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assignment=assignment,
    )
