"""Requests of tests about committed offsets, in one call each."""

from collections.abc import Iterable, Mapping
from typing import Any

from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import Message, OffsetCommitRequest, OffsetFetchRequest, TxnOffsetCommitRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.calls import topic_id
from tests.support.requests.raw_client import RawClient

FIRST_WITH_SEVERAL_GROUPS = 8
FIRST_WITH_TOPIC_IDS = 10

Partition = tuple[str, int]
Committed = tuple[int, int, str]
"""Offset, leader epoch and metadata."""


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    indexes: dict[str, list[int]] = {}
    for topic, index in partitions:
        indexes.setdefault(topic, []).append(index)
    return indexes


def _named(client: RawClient, topic: str, version: int) -> dict[str, Any]:
    return {"topic_id": topic_id(client, topic)} if version >= FIRST_WITH_TOPIC_IDS else {"name": topic}


def commit_request(
    client: RawClient, group: str, positions: Mapping[Partition, Committed | int], version: int = 9, **fields: object
) -> Message:
    """An OffsetCommit request of a consumer outside of any generation, unless ``fields`` say otherwise."""
    entry = OffsetCommitRequest.OffsetCommitRequestTopic
    partition_entry = entry.OffsetCommitRequestPartition
    topics = []
    for topic, indexes in _by_topic(positions).items():
        partitions = []
        for index in indexes:
            position = positions[topic, index]
            offset, epoch, metadata = (position, -1, "") if isinstance(position, int) else position
            partitions.append(
                partition_entry(
                    partition_index=index,
                    committed_offset=offset,
                    committed_leader_epoch=epoch,
                    committed_metadata=metadata,
                )
            )
        topics.append(entry(partitions=partitions, **_named(client, topic, version)))
    fields = {"generation_id_or_member_epoch": -1, "member_id": "", **fields}
    return OffsetCommitRequest(group_id=group, topics=topics, **fields)


def commit(
    client: RawClient, group: str, positions: Mapping[Partition, Committed | int], version: int = 9, **fields: object
) -> list[ErrorCode]:
    """What OffsetCommit answers for each partition, in the order of the request's topics."""
    answer = client.ask(commit_request(client, group, positions, version, **fields), version)
    return [ErrorCode(entry.error_code) for topic in answer.topics for entry in topic.partitions]


def fetch_request(
    client: RawClient, groups: Mapping[str, Iterable[Partition] | None], version: int = 9, stable: bool = False
) -> Message:
    """An OffsetFetch request; None asks for all partitions."""
    several = OffsetFetchRequest.OffsetFetchRequestGroup
    is_one = version < FIRST_WITH_SEVERAL_GROUPS
    kind = OffsetFetchRequest.OffsetFetchRequestTopic if is_one else several.OffsetFetchRequestTopics
    topics = {
        group: None
        if partitions is None
        else [
            kind(partition_indexes=indexes, **_named(client, topic, version))
            for topic, indexes in _by_topic(partitions).items()
        ]
        for group, partitions in groups.items()
    }
    if is_one:
        ((group, wanted),) = topics.items()
        return OffsetFetchRequest(group_id=group, topics=wanted, require_stable=stable)
    return OffsetFetchRequest(
        groups=[several(group_id=group, topics=wanted) for group, wanted in topics.items()], require_stable=stable
    )


def committed_by(
    client: RawClient, groups: Mapping[str, Iterable[Partition] | None], version: int = 9, stable: bool = False
) -> dict[str, dict[Partition, Committed]]:
    """What OffsetFetch answers for each group, every error being NONE."""
    answer = client.ask(fetch_request(client, groups, version, stable), version)
    if version < FIRST_WITH_SEVERAL_GROUPS:
        (group,) = groups
        found = {group: answer}
    else:
        found = {entry.group_id: entry for entry in answer.groups}
    assert all(entry.error_code == ErrorCode.NONE for entry in found.values())
    names: dict[Any, str] = {}
    if version >= FIRST_WITH_TOPIC_IDS:
        wanted = {topic for partitions in groups.values() for topic, _ in partitions or ()}
        names = {topic_id(client, topic): topic for topic in wanted}
    return {group: _positions(entry.topics, names) for group, entry in found.items()}


def _positions(topics: Iterable[Message], names: Mapping[Any, str]) -> dict[Partition, Committed]:
    positions = {}
    for topic in topics:
        for entry in topic.partitions:
            assert entry.error_code == ErrorCode.NONE, ErrorCode(entry.error_code)
            name = names[topic.topic_id] if names else topic.name
            position = (entry.committed_offset, entry.committed_leader_epoch, entry.metadata)
            positions[name, entry.partition_index] = position
    return positions


def committed(client: RawClient, group: str, *partitions: Partition, version: int = 9) -> dict[Partition, Committed]:
    """Where ``group`` has committed in ``partitions``; in every partition if none is named."""
    return committed_by(client, {group: partitions or None}, version)[group]


def txn_commit(
    client: RawClient,
    transactional_id: str,
    producer: ProducerIdentity,
    group: str,
    positions: dict[Partition, int],
    version: int = 5,
    **more: object,
) -> list[ErrorCode]:
    """What TxnOffsetCommit answers for each partition; ``version`` 5 is TV2, and from 6 on topics go by their ids."""
    entry = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition_entry = entry.TxnOffsetCommitRequestPartition
    topics = [
        entry(
            **({"topic_id": topic_id(client, topic)} if version >= 6 else {"name": topic}),
            partitions=[
                partition_entry(
                    partition_index=index, committed_offset=offset, committed_leader_epoch=3, committed_metadata="m"
                )
            ],
        )
        for (topic, index), offset in positions.items()
    ]
    fields: dict[str, Any] = {"generation_id": -1, "member_id": "", "group_instance_id": None, **more}
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
        topics=topics,
        **fields,
    )
    answer = client.ask(request, version)
    return [ErrorCode(partition.error_code) for topic in answer.topics for partition in topic.partitions]
