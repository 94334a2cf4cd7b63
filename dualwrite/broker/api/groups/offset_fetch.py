"""OffsetFetch (9), v1-v10.

Tells where groups have committed: in the partitions that are asked for, with offset -1 where there is no commit, or in
all of them if topics is null (v2). An unknown group has no commits. From v8 on several groups
can be asked for at once (KIP-709); from v10 on topics are named by id. With RequireStable (v7, KIP-447) a partition in
which an open transaction has committed an offset is answered UNSTABLE_OFFSET_COMMIT: ask again. The member of v9 is of
the next protocol (KIP-848) and not looked at. ACL: none yet.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.facts.offsets import OffsetCommitted
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, Message, OffsetFetchResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.OFFSET_FETCH
VERSIONS = range(1, 11)

_FIRST_WITH_SEVERAL_GROUPS = 8
_FIRST_WITH_TOPIC_IDS = 10
_NO_OFFSET = -1


class _Topic(NamedTuple):
    """A topic to answer about; one whose id is unknown has no name."""

    name: str | None
    topic_id: Any
    indexes: Sequence[int]

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, index) for index in self.indexes] if self.name is not None else []


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Look up the committed offsets of every group of the request."""
    if version < _FIRST_WITH_SEVERAL_GROUPS:
        kind = OffsetFetchResponse.OffsetFetchResponseTopic
        stable = request.require_stable
        topics = await _look_up(request, kind, kind.OffsetFetchResponsePartition, version, stable, broker)
        return OffsetFetchResponse(throttle_time_ms=0, topics=topics, error_code=ErrorCode.NONE)
    response = OffsetFetchResponse.OffsetFetchResponseGroup
    kind = response.OffsetFetchResponseTopics
    groups = []
    for group in request.groups:
        topics = await _look_up(
            group, kind, kind.OffsetFetchResponsePartitions, version, request.require_stable, broker
        )
        groups.append(response(group_id=group.group_id, topics=topics, error_code=ErrorCode.NONE))
    return OffsetFetchResponse(throttle_time_ms=0, groups=groups)


async def _look_up(
    wanted: Message, topic_kind: Any, partition_kind: Any, version: int, stable: bool, broker: BrokerContext
) -> Any:
    """The answer for one group, in this version's classes for a topic and a partition."""
    unstable = broker.offsets.pending(wanted.group_id) if stable else set()  # first: the reads below do not await
    if wanted.topics is None:
        committed = await broker.offsets.committed(wanted.group_id)
        topics = _all_topics(committed, broker)
    else:
        topics = [_wanted_topic(topic, version, broker) for topic in wanted.topics]
        partitions = [partition for topic in topics for partition in topic.partitions()]
        committed = await broker.offsets.committed(wanted.group_id, partitions)
    answers = []
    for topic in topics:
        results = [
            partition_kind(**_answer(topic.name, index, committed, unstable)) async for index in in_turns(topic.indexes)
        ]
        named = {"topic_id": topic.topic_id} if version >= _FIRST_WITH_TOPIC_IDS else {"name": topic.name}
        answers.append(topic_kind(partitions=results, **named))
    return answers


def _wanted_topic(topic: Message, version: int, broker: BrokerContext) -> _Topic:
    if version < _FIRST_WITH_TOPIC_IDS:
        return _Topic(topic.name, None, topic.partition_indexes)
    return _Topic(broker.cluster.topic_name(topic.topic_id), topic.topic_id, topic.partition_indexes)


def _all_topics(committed: Mapping[TopicPartition, OffsetCommitted], broker: BrokerContext) -> list[_Topic]:
    indexes: dict[str, list[int]] = {}
    for partition in sorted(committed):
        indexes.setdefault(partition.topic, []).append(partition.partition)
    topics = broker.cluster.topics()  # a power cut may keep a commit and lose its unacknowledged topic
    return [_Topic(name, topics[name].topic_id, found) for name, found in indexes.items() if name in topics]


def _answer(
    topic: str | None,
    index: int,
    committed: Mapping[TopicPartition, OffsetCommitted],
    unstable: Container[TopicPartition],
) -> dict[str, int | str]:
    fact, error = None, ErrorCode.NONE
    if topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_ID
    elif TopicPartition(topic, index) in unstable:
        error = ErrorCode.UNSTABLE_OFFSET_COMMIT
    else:
        fact = committed.get(TopicPartition(topic, index))
    return {
        "partition_index": index,
        "committed_offset": _NO_OFFSET if fact is None else fact.offset,
        "committed_leader_epoch": -1 if fact is None else fact.leader_epoch,
        "metadata": "" if fact is None else fact.metadata,
        "error_code": error,
    }
