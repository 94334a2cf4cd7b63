"""TxnOffsetCommit (28), v0-v6.

Remembers where a group is, as part of a transaction: pending until its marker is written, and valid from then on or
gone (KIP-98). From v3 on the consumer's generation, member id and instance id are compared with the group's, so that a
zombie cannot commit (KIP-447): ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID. From v5 on (KIP-890, TV2) the
offsets' partition joins the transaction implicitly; before that AddOffsetsToTxn must have added it. From v6 on
(KIP-1319) topics are named by id, and a generation of an unknown group is GROUP_ID_NOT_FOUND
(ILLEGAL_GENERATION before that). ACL: none yet.
"""

from collections.abc import Mapping

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.groups.committing import Commit, CommittingVersions
from dualwrite.broker.api.transactions.joining import TXN_OFFSET_COMMIT, join_transaction
from dualwrite.broker.core.offsets import CommitOffsets, CommittedPosition
from dualwrite.broker.runtime.group_log import PARTITION
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.wire.apis import ApiKey, Message, TxnOffsetCommitResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.TXN_OFFSET_COMMIT
VERSIONS = range(7)

_VERSIONS = CommittingVersions(topic_ids=6, unknown_groups=6)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Commit the offsets of the request in its transaction; each partition is answered by itself."""
    commit = Commit(request, version, _VERSIONS, broker)
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
