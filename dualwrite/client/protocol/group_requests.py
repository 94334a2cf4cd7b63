"""The requests of ``dualwrite.admin`` about consumer groups, and a member's assignment as bytes.

A dual write sends TxnOffsetCommit alone, which is in ``requests.py``.
"""

import struct
from collections.abc import Collection, Sequence

from dualwrite.client.protocol.requests import CommittedOffset, VersionedRequest, by_topic, topics_of
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import APIS, ApiKey

_FIRST_WITH_STABLE = 7
"""OffsetFetch can ask for stable offsets from this version on (KIP-447); later ones ask about several groups."""
_LAST_WITH_NAMES = 9
"""OffsetCommit names topics up to this version."""
_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")


def group_listing() -> VersionedRequest:
    """ListGroups: those that the broker coordinates. Older versions tell neither the state nor the type."""
    message = APIS[ApiKey.LIST_GROUPS].request(states_filter=[], types_filter=[])
    return VersionedRequest("ListGroups", ApiKey.LIST_GROUPS, message)


def group_description(group: str) -> VersionedRequest:
    """DescribeGroups of one group."""
    message = APIS[ApiKey.DESCRIBE_GROUPS].request(groups=[group], include_authorized_operations=False)
    return VersionedRequest(f"DescribeGroups of {group}", ApiKey.DESCRIBE_GROUPS, message)


def consumer_group_description(group: str) -> VersionedRequest:
    """ConsumerGroupDescribe of one group (KIP-848)."""
    message = APIS[ApiKey.CONSUMER_GROUP_DESCRIBE].request(group_ids=[group], include_authorized_operations=False)
    return VersionedRequest(f"ConsumerGroupDescribe of {group}", ApiKey.CONSUMER_GROUP_DESCRIBE, message)


def committed_offsets(
    group: str, partitions: Collection[TopicPartition] | None = None, *, stable: bool
) -> VersionedRequest:
    """OffsetFetch of offsets of ``group``.

    :param partitions: only those of these partitions; None for all that have one, which leaves out partitions with
        nothing but an offset in an open transaction.
    :param stable: True for an error instead of an offset that an open transaction may replace.
    """
    request = APIS[ApiKey.OFFSET_FETCH].request
    topics = None
    if partitions is not None:
        named = by_topic(partitions).items()
        topics = [request.OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in named]
    message = request(group_id=group, topics=topics, require_stable=stable)
    floor = _FIRST_WITH_STABLE if stable else 2
    return VersionedRequest(f"OffsetFetch of {group}", ApiKey.OFFSET_FETCH, message, floor, _FIRST_WITH_STABLE)


def commit_offsets(group: str, offsets: Sequence[CommittedOffset]) -> VersionedRequest:
    """OffsetCommit for a group without members."""
    request = APIS[ApiKey.OFFSET_COMMIT].request
    topic_class = request.OffsetCommitRequestTopic
    message = request(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=topics_of(offsets, topic_class, topic_class.OffsetCommitRequestPartition),
    )
    return VersionedRequest(f"OffsetCommit of {group}", ApiKey.OFFSET_COMMIT, message, floor=2, cap=_LAST_WITH_NAMES)


def group_deletion(group: str) -> VersionedRequest:
    """DeleteGroups of one group. It is not repeatable: the second answer would be that there is no such group."""
    message = APIS[ApiKey.DELETE_GROUPS].request(groups_names=[group])
    return VersionedRequest(f"DeleteGroups of {group}", ApiKey.DELETE_GROUPS, message, repeatable=False)


def assigned_partitions(assignment: bytes) -> list[TopicPartition]:
    """The partitions in a member's assignment (Kafka: ConsumerProtocolAssignment); empty if it has none.

    :raises ValueError: if it is not the assignment of a consumer.
    """
    if not assignment:
        return []
    try:
        (count,) = _INT.unpack_from(assignment, _SHORT.size)  # after the version
        position, partitions = _SHORT.size + _INT.size, []
        for _ in range(count):
            (size,) = _SHORT.unpack_from(assignment, position)
            end = position + _SHORT.size + size
            topic = assignment[position + _SHORT.size : end].decode()
            (number,) = _INT.unpack_from(assignment, end)
            if size < 0 or number < 0:  # reading would move backwards, perhaps for ever
                raise struct.error("negative size")
            indexes = struct.unpack_from(f">{number}i", assignment, end + _INT.size)
            partitions += [TopicPartition(topic, index) for index in indexes]
            position = end + _INT.size * (1 + number)
    except struct.error as error:
        raise ValueError(f"an assignment that is not a consumer's: {error}") from None
    return partitions
