"""OffsetFetch (9), v1-v10.

Answers the committed offsets of groups in the partitions of the request, or in all partitions if topics is null (v2).
The offset is -1 where the group has committed none, and everywhere for an unknown group. From v8 on a request may have
several groups (KIP-709); from v10 on topics are named by id. With RequireStable (v7, KIP-447) a partition in which an
open transaction has committed an offset gets UNSTABLE_OFFSET_COMMIT, and the client asks again. From v9 on a member of
a consumer group (KIP-848) names itself: UNKNOWN_MEMBER_ID or STALE_MEMBER_EPOCH if it is not in its current epoch.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_group, on_topic
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.facts.offsets import OffsetCommitted
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, Message, OffsetFetchResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.OFFSET_FETCH
VERSIONS = range(1, 11)
_DESCRIBE_GROUP = on_group(AclOperation.DESCRIBE)
_DESCRIBE = on_topic(AclOperation.DESCRIBE, "left out if the client asks for all topics")
NEEDS = (_DESCRIBE_GROUP, _DESCRIBE)

_FIRST_WITH_ERROR = 2
_FIRST_WITH_SEVERAL_GROUPS = 8
_FIRST_WITH_TOPIC_IDS = 10
_NO_OFFSET = -1


class _Topic(NamedTuple):
    """A topic of the answer. The name is None if the topic's id is unknown."""

    name: str | None
    topic_id: Any
    indexes: Sequence[int]
    error: ErrorCode = ErrorCode.NONE

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, index) for index in self.indexes] if self.name is not None else []


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Look up the committed offsets of every group of the request."""
    if version < _FIRST_WITH_SEVERAL_GROUPS:
        kind = OffsetFetchResponse.OffsetFetchResponseTopic
        stable = request.require_stable
        if not broker.may(_DESCRIBE_GROUP, request.group_id):
            return _refused(request, kind, version)
        topics = await _look_up(request, kind, kind.OffsetFetchResponsePartition, version, stable, broker)
        return OffsetFetchResponse(throttle_time_ms=0, topics=topics, error_code=ErrorCode.NONE)
    response = OffsetFetchResponse.OffsetFetchResponseGroup
    kind = response.OffsetFetchResponseTopics
    groups = []
    for group in request.groups:
        if not broker.may(_DESCRIBE_GROUP, group.group_id):
            groups.append(response(group_id=group.group_id, topics=[], error_code=_DESCRIBE_GROUP.error))
            continue
        error = broker.offsets.fetch_error(group.group_id, group.member_id, group.member_epoch)
        if error is not ErrorCode.NONE:
            groups.append(response(group_id=group.group_id, topics=[], error_code=error))
            continue
        topics = await _look_up(
            group, kind, kind.OffsetFetchResponsePartitions, version, request.require_stable, broker
        )
        groups.append(response(group_id=group.group_id, topics=topics, error_code=ErrorCode.NONE))
    return OffsetFetchResponse(throttle_time_ms=0, groups=groups)


def _refused(request: Message, kind: Any, version: int) -> Message:
    """The answer up to v7 without the right to the group. Only from v2 on a request as a whole can have an error."""
    error = _DESCRIBE_GROUP.error
    if version >= _FIRST_WITH_ERROR:
        return OffsetFetchResponse(throttle_time_ms=0, topics=[], error_code=error)
    partition = kind.OffsetFetchResponsePartition
    topics = [
        kind(
            name=topic.name,
            partitions=[partition(**_without_offset(index, error)) for index in topic.partition_indexes],
        )
        for topic in request.topics
    ]
    return OffsetFetchResponse(throttle_time_ms=0, topics=topics)


async def _look_up(
    group_request: Message, topic_kind: Any, partition_kind: Any, version: int, stable: bool, broker: BrokerContext
) -> Any:
    """The answer for one group, in this version's message classes for a topic and a partition."""
    unstable = (
        broker.offsets.pending(group_request.group_id) if stable else set()
    )  # first: the reads below do not await
    if group_request.topics is None:
        committed = await broker.offsets.committed(group_request.group_id)
        topics = _all_topics(committed, broker)
    else:
        topics = [_requested_topic(topic, version, broker) for topic in group_request.topics]
        partitions = [partition for topic in topics if not topic.error for partition in topic.partitions()]
        committed = await broker.offsets.committed(group_request.group_id, partitions)
    answers = []
    for topic in topics:
        results = [
            partition_kind(**_answer(topic, index, committed, unstable)) async for index in in_turns(topic.indexes)
        ]
        named = {"topic_id": topic.topic_id} if version >= _FIRST_WITH_TOPIC_IDS else {"name": topic.name}
        answers.append(topic_kind(partitions=results, **named))
    return answers


def _requested_topic(topic: Message, version: int, broker: BrokerContext) -> _Topic:
    by_id = version >= _FIRST_WITH_TOPIC_IDS
    name = broker.cluster.topic_name(topic.topic_id) if by_id else topic.name
    error = ErrorCode.NONE
    if name is None:
        error = ErrorCode.UNKNOWN_TOPIC_ID
    elif not broker.may(_DESCRIBE, name):
        error = _DESCRIBE.error
    return _Topic(name, topic.topic_id if by_id else None, topic.partition_indexes, error)


def _all_topics(committed: Mapping[TopicPartition, OffsetCommitted], broker: BrokerContext) -> list[_Topic]:
    indexes_by_topic: dict[str, list[int]] = {}
    for partition in sorted(committed):
        indexes_by_topic.setdefault(partition.topic, []).append(partition.partition)
    topics = broker.cluster.topics()  # a power cut may keep a commit and lose its unacknowledged topic
    return [
        _Topic(name, topics[name].topic_id, indexes)
        for name, indexes in indexes_by_topic.items()
        if name in topics and broker.may(_DESCRIBE, name)
    ]


def _answer(
    topic: _Topic,
    index: int,
    committed: Mapping[TopicPartition, OffsetCommitted],
    unstable: Container[TopicPartition],
) -> dict[str, int | str]:
    if topic.name is None or topic.error:
        return _without_offset(index, topic.error)
    partition = TopicPartition(topic.name, index)
    if partition in unstable:
        return _without_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    fact = committed.get(partition)
    if fact is None:
        return _without_offset(index, ErrorCode.NONE)
    return {
        "partition_index": index,
        "committed_offset": fact.offset,
        "committed_leader_epoch": fact.leader_epoch,
        "metadata": fact.metadata,
        "error_code": ErrorCode.NONE,
    }


def _without_offset(index: int, error: ErrorCode) -> dict[str, int | str]:
    return {
        "partition_index": index,
        "committed_offset": _NO_OFFSET,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": error,
    }
