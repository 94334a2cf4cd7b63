"""EndTxn (26), v0-v5.

Commits or aborts a transaction. The broker answers once the decision is on disk and every marker is written, so the
client's next transaction never gets CONCURRENT_TRANSACTIONS, and readers that ask after the answer see the end. Before
v5 the markers are on disk, too. v5 is TV2 (KIP-890 part 2): it bumps the epoch and answers the identity for the next
transaction. After a recovery the request carries the identity from InitProducerId's answer, not that of
the ongoing transaction (KIP-939). If the transaction has timed out, an abort in v5 is answered with the identity for
the next one, and a commit with INVALID_TXN_STATE; before v5 such a client is fenced. Before v2 a fenced client gets
INVALID_PRODUCER_EPOCH.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_transactional_id
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.transactions.init_producer_id import fenced_as
from dualwrite.broker.core.commands import EndTransaction
from dualwrite.broker.facts.transactions import TransactionVersion
from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.records.control import Marker
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.producing import EndTxnResult

KEY = ApiKey.END_TXN
VERSIONS = range(6)
_WRITE_ID = on_transactional_id(AclOperation.WRITE)
NEEDS = (_WRITE_ID,)


# Python 3.11 looks the members of an enum up slowly.
_COMMIT, _ABORT = Marker.COMMIT, Marker.ABORT
_TV1, _TV2 = TransactionVersion.TV1, TransactionVersion.TV2

_FIRST_WITH_FENCED = 2
_FIRST_OF_TV2 = 5


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Commit or abort."""
    if not broker.may(_WRITE_ID, request.transactional_id):
        return EndTxnResult(0, _WRITE_ID.error, *NO_PRODUCER)
    reply = await broker.coordinator.execute(
        EndTransaction(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            _COMMIT if request.committed else _ABORT,
            _TV2 if version >= _FIRST_OF_TV2 else _TV1,
        )
    )
    return EndTxnResult(0, fenced_as(reply.error, version >= _FIRST_WITH_FENCED), *reply.producer)
