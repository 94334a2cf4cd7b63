"""InitProducerId (22), v0-v6.

Without a transactional id, the broker answers a fresh producer id. With one, it begins a session: it fences earlier
clients and aborts their open transaction, unless v6's KeepPreparedTxn keeps it (KIP-939). That is legal without
Enable2Pc too, and INVALID_REQUEST with an expected identity (apache/kafka#21735). A transaction.timeout.ms of
2147483647 or 2147483547 asks for two-phase commit in any version. With 2147483547, the library's own value for
librdkafka, no open transaction is aborted, but PRODUCER_FENCED answered: the library has ended the predecessor's, and a
late request must not abort a successor's. From v3 on the client may send the identity that it expects to have
(KIP-360). An identity that is neither the present one nor the one before it is fenced, and the open transaction stays
as it is. (Kafka compares only the producer id before it aborts, so there a stale client aborts its successor's
transaction, and is fenced then.) A client whose transaction has timed out goes on in this way, with the epoch of the
abort. Before v4 a fenced client gets INVALID_PRODUCER_EPOCH. Two-phase commit needs a right of its own, in whichever
way it is asked for. If transaction.two.phase.commit.enable is off, Enable2Pc gets
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, and those timeouts INVALID_TRANSACTION_TIMEOUT, as every timeout above
transaction.max.timeout.ms.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import Need, on_cluster, on_topic, on_transactional_id
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.commands import InitProducerId, Reply
from dualwrite.broker.core.transaction_rules import asks_for_two_phase_commit
from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import ApiKey, InitProducerIdResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.INIT_PRODUCER_ID
VERSIONS = range(7)
_WRITE = on_transactional_id(AclOperation.WRITE, "with a transactional id")
_TWO_PHASE_COMMIT = on_transactional_id(
    AclOperation.TWO_PHASE_COMMIT,
    "with Enable2Pc, or with a transaction.timeout.ms of 2147483647 or 2147483547 in any version",
)
_IDEMPOTENT_WRITE = on_cluster(AclOperation.IDEMPOTENT_WRITE, "without a transactional id")
_WRITE_SOMEWHERE = on_topic(AclOperation.WRITE, "any topic, instead of IDEMPOTENT_WRITE (KIP-679)", is_refused=False)
NEEDS = (_WRITE, _TWO_PHASE_COMMIT, _IDEMPOTENT_WRITE, _WRITE_SOMEWHERE)

_FIRST_WITH_FENCED = 4


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Give the client its identity."""
    refusal = _refusal(request, broker)
    if refusal is not None:
        reply = Reply(refusal.error)
    elif (request.producer_id < 0) != (request.producer_epoch < 0):
        reply = Reply(ErrorCode.INVALID_REQUEST)  # only one half of an identity
    elif request.transactional_id is None:
        reply = Reply(producer=ProducerIdentity(broker.cluster.take_producer_id(), 0))
        await broker.flusher.barrier()
    else:
        reply = await broker.coordinator.execute(
            InitProducerId(
                request.transactional_id,
                request.transaction_timeout_ms,
                request.enable2_pc,
                request.keep_prepared_txn,
                ProducerIdentity(request.producer_id, request.producer_epoch),
            )
        )
    return InitProducerIdResponse(
        throttle_time_ms=0,
        error_code=fenced_as(reply.error, version >= _FIRST_WITH_FENCED),
        producer_id=reply.producer.producer_id,
        producer_epoch=reply.producer.epoch,
        ongoing_txn_producer_id=reply.ongoing.producer_id,
        ongoing_txn_producer_epoch=reply.ongoing.epoch,
    )


def _refusal(request: Message, broker: BrokerContext) -> Need | None:
    """The right that the client lacks; None if it lacks none."""
    name = request.transactional_id
    if name is None:
        may_write = broker.may_somewhere(_WRITE_SOMEWHERE) or broker.may(_IDEMPOTENT_WRITE)
        return None if may_write else _IDEMPOTENT_WRITE
    if not broker.may(_WRITE, name):
        return _WRITE
    settings = broker.coordinator.settings
    two_phase = asks_for_two_phase_commit(request.enable2_pc, request.transaction_timeout_ms, settings)
    return _TWO_PHASE_COMMIT if two_phase and not broker.may(_TWO_PHASE_COMMIT, name) else None


def fenced_as(error: ErrorCode, knows_fenced: bool) -> ErrorCode:
    """``error``; for a version without PRODUCER_FENCED, INVALID_PRODUCER_EPOCH stands for it (KIP-588)."""
    if error is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
