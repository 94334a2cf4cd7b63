"""FindCoordinator (10), v0-v6.

The one node coordinates every transactional id (key type 1, from v1 on) and every group (key type 0), of which it keeps
the offsets. Any other key type, share groups among them, is an INVALID_REQUEST. From v4 on several keys can be asked
for at once (KIP-699). ACL: none yet.
"""

from dualwrite.broker.api.context import NODE_ID, BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.wire.apis import ApiKey, FindCoordinatorResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.FIND_COORDINATOR
VERSIONS = range(7)

_FIRST_WITH_SEVERAL_KEYS = 4
_GROUP, _TRANSACTION = 0, 1
_NOWHERE = {"node_id": -1, "host": "", "port": -1}


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Name the coordinator of the keys of the request."""
    if version >= _FIRST_WITH_SEVERAL_KEYS:
        entry = FindCoordinatorResponse.Coordinator
        keys = in_turns(request.coordinator_keys)
        coordinators = [entry(key=key, **_coordinator(request, broker)) async for key in keys]
        return FindCoordinatorResponse(throttle_time_ms=0, coordinators=coordinators)
    return FindCoordinatorResponse(throttle_time_ms=0, **_coordinator(request, broker))


def _coordinator(request: Message, broker: BrokerContext) -> dict[str, object]:
    if request.key_type in (_GROUP, _TRANSACTION):
        node = {"node_id": NODE_ID, "host": broker.host, "port": broker.port}
        return {"error_code": ErrorCode.NONE, "error_message": None, **node}
    message = "this broker coordinates transactions and groups, nothing else"
    return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": message, **_NOWHERE}
