"""ConsumerGroupDescribe (69), v0-v1 (KIP-848).

Answers the state, the epochs and the members of consumer groups, each member with the partitions that it holds and
those that it is to hold. A partition that a member has to give up is held until the member says that it has given it
up. v1 has the type of each member (KIP-1099), which tells its protocol.

Errors: GROUP_ID_NOT_FOUND, also for a classic group; INVALID_GROUP_ID for an empty name; TOPIC_AUTHORIZATION_FAILED if
the client may not know of a topic of the group.
"""

from collections.abc import Iterable

from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.broker.access.needs import on_group, on_topic
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.consumer_groups.group import ConsumerGroup
from dualwrite.broker.facts.assignments import TopicIdPartition, by_topic
from dualwrite.wire.apis import ApiKey, ConsumerGroupDescribeResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.CONSUMER_GROUP_DESCRIBE
VERSIONS = range(2)
_DESCRIBE = on_group(AclOperation.DESCRIBE)
_DESCRIBE_TOPIC = on_topic(AclOperation.DESCRIBE, "on every topic of the group")
NEEDS = (_DESCRIBE, _DESCRIBE_TOPIC)

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe every group of the request."""
    groups = []
    async for name in in_turns(dict.fromkeys(request.group_ids)):
        if not broker.may(_DESCRIBE, name):
            groups.append(_error(name, _DESCRIBE.error))
            continue
        described = _describe(name, broker)
        if request.include_authorized_operations and described.error_code is ErrorCode.NONE:
            described.authorized_operations = broker.operations(ResourceType.GROUP, name)
        groups.append(described)
    await broker.flusher.barrier()
    return ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=groups)


def _error(name: str, error: ErrorCode, message: str | None = None) -> Message:
    return ConsumerGroupDescribeResponse.DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=name,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def _describe(name: str, broker: BrokerContext) -> Message:
    group = broker.consumer_groups.group(name)
    if not name:
        return _error(name, ErrorCode.INVALID_GROUP_ID)
    if group is None:
        missing = "not found." if broker.groups.group(name) is None else "is not a consumer group."
        return _error(name, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} {missing}")
    if any(not broker.may(_DESCRIBE_TOPIC, topic) for topic in group.subscribed_topics()):
        return _error(
            name,
            _DESCRIBE_TOPIC.error,
            "The group has described topic(s) that the client is not authorized to describe.",
        )
    return ConsumerGroupDescribeResponse.DescribedGroup(
        error_code=ErrorCode.NONE,
        error_message=None,
        group_id=name,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor(broker.consumer_groups.settings.assignors),
        members=[_describe_member(group, member_id, broker) for member_id in group.subscriptions],
    )


def _describe_member(group: ConsumerGroup, member_id: str, broker: BrokerContext) -> Message:
    response = ConsumerGroupDescribeResponse.DescribedGroup.Member
    member, current = group.subscriptions[member_id], group.current(member_id)
    return response(
        member_id=member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=current.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.pattern or "",
        assignment=_assignment([*current.assigned, *current.revoking], broker),
        target_assignment=_assignment(group.target(member_id), broker),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _assignment(partitions: Iterable[TopicIdPartition], broker: BrokerContext) -> Message:
    """``partitions`` with the names of their topics; those of deleted topics are left out."""
    named = (
        (broker.cluster.topic_name(topic_id), topic_id, numbers) for topic_id, numbers in by_topic(partitions).items()
    )
    response = ConsumerGroupDescribeResponse.DescribedGroup.Member.Assignment
    return response(
        topic_partitions=[
            response.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=numbers)
            for name, topic_id, numbers in named
            if name is not None
        ]
    )
