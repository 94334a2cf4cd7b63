"""TxnOffsetCommit (28), v0-v6.

Stores a group's positions as part of a transaction. They are pending until the transaction's marker commits or discards
them (KIP-98). From v3 on the broker compares the consumer's generation, member id and instance id with the group, so
that a zombie cannot commit (KIP-447): ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID. From v5 on (KIP-890,
TV2) the partition of the offsets joins the transaction implicitly; before that AddOffsetsToTxn must have added it. From
v6 on (KIP-1319) topics are named by id, and a generation of an unknown group gets GROUP_ID_NOT_FOUND
(ILLEGAL_GENERATION before that). A member of a consumer group (KIP-848) sends its epoch as the generation, and gets
STALE_MEMBER_EPOCH for another epoch (ILLEGAL_GENERATION before v6).
"""

from collections.abc import Mapping

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_group, on_topic, on_transactional_id
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.groups.committing import Commit, CommittingVersions
from dualwrite.broker.api.transactions.joining import TXN_OFFSET_COMMIT, join_transaction
from dualwrite.broker.core.offsets import CommitOffsets, CommittedPosition
from dualwrite.broker.runtime.groups.group_log import PARTITION
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.wire.apis import ApiKey, Message, TxnOffsetCommitResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.TXN_OFFSET_COMMIT
VERSIONS = range(7)
_WRITE_ID = on_transactional_id(AclOperation.WRITE)
_READ_GROUP = on_group(AclOperation.READ)
_READ = on_topic(AclOperation.READ)
NEEDS = (_WRITE_ID, _READ_GROUP, _READ)

_VERSIONS = CommittingVersions(topic_ids=6, unknown_groups=6, stale_epochs=6)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Commit the offsets of the request in its transaction, with an error code for each partition."""
    commit = Commit(request, version, _VERSIONS, broker)
    rights = ((_WRITE_ID, request.transactional_id), (_READ_GROUP, request.group_id))
    lacking = next((need for need, name in rights if not broker.may(need, name)), None)
    commit.refuse(lacking, _READ)
    positions = commit.positions()
    errors = await _commit(request, positions, version, broker) if positions else {}
    await broker.flusher.barrier()
    response = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    topics = commit.answer(response, response.TxnOffsetCommitResponsePartition, errors)
    return TxnOffsetCommitResponse(throttle_time_ms=0, topics=topics)


async def _commit(
    request: Message, positions: Mapping[TopicPartition, CommittedPosition], version: int, broker: BrokerContext
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
    return broker.offsets.commit_now(command, producer)  # no await may come between the check above and this
