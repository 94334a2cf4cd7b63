"""AddOffsetsToTxn (25), v0-v4.

The partition of ``__consumer_offsets`` that holds the group's offsets joins the transaction, so that they become valid
with it; TxnOffsetCommit up to v4 asks for it first. Before v2 a fenced client is told INVALID_PRODUCER_EPOCH. ACL: none
yet.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.transactions.init_producer_id import fenced_as
from dualwrite.broker.core.commands import AddPartitions
from dualwrite.broker.runtime.group_log import PARTITION
from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import AddOffsetsToTxnResponse, ApiKey, Message

KEY = ApiKey.ADD_OFFSETS_TO_TXN
VERSIONS = range(5)

_FIRST_WITH_FENCED = 2


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Add the offsets' partition to the transaction."""
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    reply = await broker.coordinator.execute(AddPartitions(request.transactional_id, producer, frozenset({PARTITION})))
    error = fenced_as(reply.error, version >= _FIRST_WITH_FENCED)
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=error)
