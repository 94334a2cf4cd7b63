"""InitProducerId (22), v0-v6.

Without a transactional id, a fresh producer id. With one, the start of a session: earlier clients are fenced and what
they left open is aborted, unless v6's KeepPreparedTxn keeps it (KIP-939), which is legal without Enable2Pc too. A
transaction.timeout.ms of 2147483647 asks for two-phase commit in any version. From v3 on the client may name the
identity that it expects to have (KIP-360). Before v4 a fenced client is told INVALID_PRODUCER_EPOCH. ACL: none yet;
two-phase commit needs transaction.two.phase.commit.enable.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.commands import InitProducerId, Reply
from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import ApiKey, InitProducerIdResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.INIT_PRODUCER_ID
VERSIONS = range(7)

_FIRST_WITH_FENCED = 4


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Give the client its identity."""
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        reply = Reply(ErrorCode.INVALID_REQUEST)  # one half of an identity
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


def fenced_as(error: ErrorCode, knows_fenced: bool) -> ErrorCode:
    """PRODUCER_FENCED as INVALID_PRODUCER_EPOCH for a client that is too old to know it (KIP-588)."""
    if error is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
