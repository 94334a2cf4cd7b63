"""EndTxn (26), v0-v5.

The decision of a transaction. Answered once the decision and every marker are on disk, so that the client's next
transaction never meets CONCURRENT_TRANSACTIONS. v5 is TV2 (KIP-890 part 2): it bumps the epoch and answers the identity
for the next transaction; after a recovery it carries the identity of InitProducerId's answer, not the ongoing one
(KIP-939). Before v2 a fenced client is told INVALID_PRODUCER_EPOCH. ACL: none yet.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.transactions.init_producer_id import fenced_as
from dualwrite.broker.core.commands import EndTransaction
from dualwrite.broker.facts.transactions import TransactionVersion
from dualwrite.ids import ProducerIdentity
from dualwrite.records.control import Marker
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.producing import EndTxnResult

KEY = ApiKey.END_TXN
VERSIONS = range(6)

_FIRST_WITH_FENCED = 2
_FIRST_OF_TV2 = 5


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Commit or abort."""
    reply = await broker.coordinator.execute(
        EndTransaction(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            Marker.COMMIT if request.committed else Marker.ABORT,
            TransactionVersion.TV2 if version >= _FIRST_OF_TV2 else TransactionVersion.TV1,
        )
    )
    return EndTxnResult(0, fenced_as(reply.error, version >= _FIRST_WITH_FENCED), *reply.producer)
