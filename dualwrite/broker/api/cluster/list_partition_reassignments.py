"""ListPartitionReassignments (46), v0 (KIP-455).

Lists nothing: on one node no reassignment is ever in progress.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.wire.apis import ApiKey, ListPartitionReassignmentsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.LIST_PARTITION_REASSIGNMENTS
VERSIONS = range(1)
_DESCRIBE = on_cluster(AclOperation.DESCRIBE)
NEEDS = (_DESCRIBE,)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """List no reassignment."""
    is_allowed = broker.may(_DESCRIBE)
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE if is_allowed else _DESCRIBE.error,
        error_message=None if is_allowed else _DESCRIBE.message,
        topics=[],
    )
