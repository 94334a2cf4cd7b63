"""TxnOffsetCommit (28), v0-v6.

Remembers where a group is, as part of a transaction: pending until its marker is written, and valid from then on or
gone (KIP-98). From v3 on the consumer's generation, member id and instance id are compared with the group's, so that a
zombie cannot commit (KIP-447): ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID. From v5 on (KIP-890, TV2) the
offsets' partition joins the transaction implicitly; before that AddOffsetsToTxn must have added it. From v6 on
(KIP-1319) topics are named by id, and a generation of a group that nobody has heard of is GROUP_ID_NOT_FOUND
(ILLEGAL_GENERATION before that). ACL: none yet.
"""

from collections.abc import Mapping

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.joining import TXN_OFFSET_COMMIT, join_transaction
from dualwrite.broker.core.offsets import CommitOffsets, Position
from dualwrite.broker.runtime.group_log import PARTITION
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.wire.apis import ApiKey, Message, TxnOffsetCommitResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.TXN_OFFSET_COMMIT
VERSIONS = range(7)

_FIRST_WITH_UNKNOWN_GROUPS = 6
_FIRST_WITH_TOPIC_IDS = 6


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Commit the offsets of the request in its transaction; each partition is answered by itself."""
    by_id = version >= _FIRST_WITH_TOPIC_IDS
    names = [broker.cluster.topic_name(topic.topic_id) if by_id else topic.name for topic in request.topics]
    positions = {
        TopicPartition(name, entry.partition_index): Position(
            entry.committed_offset, entry.committed_leader_epoch, entry.committed_metadata or ""
        )
        for name, topic in zip(names, request.topics, strict=True)
        if name is not None
        for entry in topic.partitions
    }
    errors = await _commit(request, positions, version, broker) if positions else {}
    await broker.flusher.barrier()
    response = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    partition_response = response.TxnOffsetCommitResponsePartition
    topics = []
    for name, topic in zip(names, request.topics, strict=True):
        results = []
        for entry in topic.partitions:
            error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else errors[TopicPartition(name, entry.partition_index)]
            code = _as_known_to(version, error)
            results.append(partition_response(partition_index=entry.partition_index, error_code=code))
        topics.append(response(name=topic.name, topic_id=topic.topic_id, partitions=results))
    return TxnOffsetCommitResponse(throttle_time_ms=0, topics=topics)


async def _commit(
    request: Message, positions: Mapping[TopicPartition, Position], version: int, broker: BrokerContext
) -> Mapping[TopicPartition, ErrorCode]:
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    implicit = version >= TXN_OFFSET_COMMIT.implicit
    error = await join_transaction(broker, request.transactional_id, producer, frozenset({PARTITION}), implicit)
    if error is not ErrorCode.NONE:
        return dict.fromkeys(positions, TXN_OFFSET_COMMIT.error(error, version))
    command = CommitOffsets(
        request.group_id,
        positions,
        request.generation_id,
        request.member_id,
        request.group_instance_id,
        is_transactional=True,
    )
    return broker.offsets.commit_now(command, producer)  # nothing may come between the look above and this


def _as_known_to(version: int, error: ErrorCode) -> ErrorCode:
    if error is ErrorCode.GROUP_ID_NOT_FOUND and version < _FIRST_WITH_UNKNOWN_GROUPS:
        return ErrorCode.ILLEGAL_GENERATION
    return error
