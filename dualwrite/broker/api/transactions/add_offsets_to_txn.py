"""AddOffsetsToTxn (25), v0-v4.

Adds the partition of ``__consumer_offsets`` with the group's offsets to the transaction, so that the offsets become
valid with it. A client must do this before TxnOffsetCommit up to v4. Before v2 a fenced client gets
INVALID_PRODUCER_EPOCH.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_group, on_transactional_id
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.transactions.init_producer_id import fenced_as
from dualwrite.broker.core.commands import AddPartitions
from dualwrite.broker.runtime.groups.group_log import PARTITION
from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import AddOffsetsToTxnResponse, ApiKey, Message

KEY = ApiKey.ADD_OFFSETS_TO_TXN
VERSIONS = range(5)
_WRITE_ID = on_transactional_id(AclOperation.WRITE)
_READ_GROUP = on_group(AclOperation.READ)
NEEDS = (_WRITE_ID, _READ_GROUP)

_FIRST_WITH_FENCED = 2


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Add the partition of the offsets to the transaction."""
    for need, name in ((_WRITE_ID, request.transactional_id), (_READ_GROUP, request.group_id)):
        if not broker.may(need, name):
            return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=need.error)
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    reply = await broker.coordinator.execute(AddPartitions(request.transactional_id, producer, frozenset({PARTITION})))
    error = fenced_as(reply.error, version >= _FIRST_WITH_FENCED)
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=error)
